//! Changes of the same pages by several writers, page by page by a slot where that is enough, and a model that says whether they have an
//! order. (The suite's own history knows nothing of slots: `threads!` with locks.)

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use tlbkit_addr::{Attr, PageSize, Pages, Pfn, Vpn};
use tlbkit_pagetable::{Change, Error, Holes, Pinned, Table, Writer};

use crate::common::numbers::Numbers;
use crate::common::writers::{RIGHTS, at, complete};
use crate::several_writers::{WRITERS, busy};

/// A change of a range, and what it returned.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    /// When it was made: a number that was drawn with the right to write the range.
    pub(super) moment: usize,
    pub(super) pages: Pages,
    pub(super) change: Changed,
    pub(super) result: Result<usize, Error>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Changed {
    /// To frames that follow each other from this one on.
    Map(Pfn),
    Unmap(Holes),
    /// All or nothing of the range loses the right to write.
    Protect(Holes),
}

/// A table by the book: the frame of each page, and whether it may be written.
#[derive(Default)]
pub(super) struct Model(pub(super) BTreeMap<usize, (Pfn, bool)>);

impl Model {
    fn make(&mut self, call: &Call) -> Result<usize, Error> {
        let pages = || call.pages.iter().map(Vpn::get);
        let hole =
            || pages().find(|page| !self.0.contains_key(page)).map(|page| Error::NotMapped { at: at(page) });
        match call.change {
            Changed::Map(first) => {
                if let Some(taken) = pages().find(|page| self.0.contains_key(page)) {
                    return Err(Error::Occupied { at: at(taken), size: PageSize::K4 });
                }
                for (step, page) in pages().enumerate() {
                    self.0.insert(page, (Pfn::new(first.get() + step), true));
                }
                Ok(0)
            }
            Changed::Unmap(Holes::Refuse) | Changed::Protect(Holes::Refuse) if hole().is_some() => {
                hole().map_or(Ok(0), Err)
            }
            Changed::Unmap(_) => Ok(pages().filter(|page| self.0.remove(page).is_some()).count()),
            Changed::Protect(_) => {
                let mut mapped = 0;
                for page in pages() {
                    if let Some((_, writable)) = self.0.get_mut(&page) {
                        *writable = false;
                        mapped += 1;
                    }
                }
                Ok(mapped)
            }
        }
    }
}

/// Makes calls by several writers, and checks that they have an order. Returns the model after them, in which `pages` are as in the table.
pub(super) fn have_an_order<'n, T: Table<'n> + Sync>(
    table: &T,
    calls: usize,
    call: impl Fn(&T, &mut Numbers, &AtomicUsize) -> Call + Copy + Send,
    pages: impl Iterator<Item = usize>,
) -> Model {
    let clock = &AtomicUsize::new(0);
    let mut all: Vec<Call> = thread::scope(|threads| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|number| {
                threads.spawn(move || {
                    let mut numbers = Numbers(0x1234_5678 + number as u64);
                    (0..calls).map(|_| call(table, &mut numbers, clock)).collect::<Vec<_>>()
                })
            })
            .collect();
        writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect()
    });
    all.sort_by_key(|call| call.moment);
    let mut model = Model::default();
    for (number, call) in all.iter().enumerate() {
        assert_eq!(model.make(call), call.result, "call {number}: {call:?}");
    }
    for page in pages {
        // SAFETY: no thread writes the table.
        let leaf = table.lookup(unsafe { Pinned::by(clock) }, at(page));
        let found = leaf.map(|leaf| (leaf.frame, leaf.attr.contains(Attr::WRITE)));
        assert_eq!(found, model.0.get(&page).copied(), "page {page}");
    }
    model
}

/// Makes a change as the writer of its pages.
pub(super) fn by_range<'n>(
    table: &impl Table<'n>,
    pages: Pages,
    change: Changed,
    clock: &AtomicUsize,
) -> Call {
    let mut writer = busy(|| {
        let mut waits = 0;
        Writer::over(table, pages, &mut || {
            waits += 1;
            thread::yield_now();
            waits < 64
        })
    });
    let moment = clock.fetch_add(1, Ordering::Relaxed);
    let result = match change {
        Changed::Map(frame) => writer.map(pages, frame, PageSize::K4, RIGHTS).map(|()| 0),
        Changed::Unmap(holes) => writer.unmap(pages, holes),
        Changed::Protect(holes) => writer.protect(pages, holes, Change::READ_ONLY),
    };
    // Nobody walks the table meanwhile but its writers, which hold on to no node of another one's range.
    complete(writer.finish());
    Call { moment, pages, change, result }
}
