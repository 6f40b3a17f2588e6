//! Two writers of one table, and a walker.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use loom::thread;
use tlbkit_addr::{Attr, PageSize, Pages, Pfn, Vpn};
use tlbkit_conformance::scenes::Watched;
use tlbkit_pagetable::format::Compact32;
use tlbkit_pagetable::mpt::{Encoded, Mpt};
use tlbkit_pagetable::{Error, Holes, NodeLocks, PageTurn, Pinned, Retired, Table as _, Writer, destroy};

/// Eight pages in three levels of one bit.
type Tiny = tlbkit_conformance::scenes::Tiny;

const WRITE: Attr = Attr::READ.union(Attr::WRITE);

type Shared = Mpt<'static, Tiny, Compact32, Watched<u32>>;

pub(super) fn page(page: usize) -> Pages {
    Pages::one(Vpn::new(page))
}

pub(super) fn frame(page: usize) -> Pfn {
    Pfn::new(8 + page)
}

pub(super) fn complete(retired: Retired<'_>) {
    // SAFETY: the walker has ended.
    unsafe { retired.reclaim() };
}

/// A change; [`Error::Busy`] if another writer was in the way, and nothing has changed. Loom lets a loop of exchanges fail for ever, so
/// the writers do not wait for each other.
type Step = fn(&Shared) -> Result<(), Error>;

/// Becomes the writer of pages, and of what their changes concern.
fn over(table: &Shared, pages: Pages) -> Result<Writer<'_, 'static, Shared>, Error> {
    Writer::over(table, pages, &mut || false)
}

/// Gives up a right. Its nodes become a debt of the table, which the next writer of all pages takes up, and at the end `destroy`: after
/// the walker has ended.
fn finish(writer: Writer<'_, 'static, Shared>) {
    drop(writer.finish());
}

/// Maps a page: by one store, if its node is there.
fn map(table: &Shared, number: usize) -> Result<(), Error> {
    let done = {
        let mut turn = PageTurn::new(table, Vpn::new(number))?;
        turn.slot().is_some_and(|slot| slot.map(frame(number), Encoded::new(WRITE).unwrap()).is_some())
    };
    if !done {
        let mut writer = over(table, page(number))?;
        writer.map(page(number), frame(number), PageSize::K4, WRITE).unwrap();
        finish(writer);
    }
    Ok(())
}

/// Unmaps a page: by one store, if another page of the node is mapped.
fn unmap(table: &Shared, number: usize) -> Result<(), Error> {
    let done = {
        let mut turn = PageTurn::new(table, Vpn::new(number))?;
        turn.slot().is_some_and(|slot| slot.unmap().is_some())
    };
    if !done {
        let mut writer = over(table, page(number))?;
        assert_eq!(writer.unmap(page(number), Holes::Refuse), Ok(1));
        finish(writer);
    }
    Ok(())
}

/// Returns the frame of a page.
fn look(table: &Shared, number: usize) -> Option<Pfn> {
    // SAFETY: no batch is reclaimed before the walker has ended.
    table.lookup(unsafe { Pinned::by(&()) }, Vpn::new(number).address(PageSize::K4)).map(|leaf| leaf.frame)
}

/// Runs two writers and a walker that looks for `probe`, in a table in which `before` are mapped. Then `after` are.
fn check(before: &'static [usize], steps: [Step; 2], probe: usize, after: &'static [usize]) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.max_branches = 20_000;
    let (played, both) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let counts = (Arc::clone(&played), Arc::clone(&both));
    model.check(move || {
        let storage = Box::into_raw(Box::new(Watched::<u32>::default()));
        let locks = Box::into_raw(Box::new(NodeLocks::default()));
        // SAFETY: both are freed below, after the table.
        let table = Shared::new(unsafe { &*storage }).unwrap().with_locks(unsafe { &mut *locks });
        let table = Arc::new(table);
        before.iter().for_each(|&number| map(&table, number).unwrap());
        let run = |step: Step| {
            let table = Arc::clone(&table);
            thread::spawn(move || step(&table))
        };
        let [first, second] = steps.map(run);
        assert!(look(&table, probe).is_none_or(|found| found == frame(probe)));
        let done = [first, second].map(|writer| writer.join().unwrap().is_ok());
        for (step, _) in steps.iter().zip(done).filter(|(_, done)| !done) {
            step(&table).unwrap();
        }
        for number in 0..8 {
            assert_eq!(look(&table, number), after.contains(&number).then(|| frame(number)), "page {number}");
        }
        let table = Arc::into_inner(table).expect("the threads have ended");
        let footprint = table.footprint();
        assert_eq!(footprint.ptes, after.len());
        // Three levels: the root, and the nodes of one and of two bits that have a page below.
        let nodes = |shift: usize| {
            let mut nodes: Vec<_> = after.iter().map(|page| page >> shift).collect();
            nodes.dedup();
            nodes.len()
        };
        assert_eq!(footprint.nodes, 1 + nodes(1) + nodes(2));
        complete(destroy(table));
        // SAFETY: nothing borrows them any more.
        let (storage, _locks) = unsafe { (Box::from_raw(storage), Box::from_raw(locks)) };
        assert_eq!(storage.out(), 0);
        counts.0.fetch_add(1, Relaxed);
        counts.1.fetch_add(usize::from(done == [true; 2]), Relaxed);
    });
    println!(
        "{} interleavings, in {} of them both writers at once",
        played.load(Relaxed),
        both.load(Relaxed)
    );
    assert!(both.load(Relaxed) > 0);
}

#[test]
fn two_pages_of_a_node_appear() {
    check(&[], [|table| map(table, 2), |table| map(table, 3)], 2, &[2, 3]);
}

#[test]
fn one_page_of_a_node_appears_and_the_other_disappears() {
    check(&[3], [|table| map(table, 2), |table| unmap(table, 3)], 3, &[2]);
}

#[test]
fn the_last_two_pages_below_a_node_disappear() {
    check(&[0, 2], [|table| unmap(table, 0), |table| unmap(table, 2)], 0, &[]);
}

#[test]
fn a_range_disappears_while_its_neighbour_appears() {
    check(
        &[0, 1],
        [
            |table| {
                let pages = Pages::count(Vpn::new(0), 2).unwrap();
                let mut writer = over(table, pages)?;
                assert_eq!(writer.unmap(pages, Holes::Refuse), Ok(2));
                finish(writer);
                Ok(())
            },
            |table| map(table, 2),
        ],
        1,
        &[2],
    );
}

/// A writer with a batch has the lock of the node, and the other one changes a page of it by one store, or unlinks it.
#[test]
fn one_page_of_a_node_disappears_by_an_edit_and_the_other_by_a_store() {
    let edit: Step = |table| {
        let mut writer = over(table, page(2))?;
        assert_eq!(writer.unmap(page(2), Holes::Refuse), Ok(1));
        finish(writer);
        Ok(())
    };
    check(&[2, 3], [edit, |table| unmap(table, 3)], 3, &[]);
}

/// Two writers of one page: the second one finds what the first has done.
#[test]
fn the_loser_of_a_race_finds_the_page_mapped() {
    let fault: Step = |table| {
        let mut writer = over(table, page(4))?;
        match writer.map(page(4), frame(4), PageSize::K4, WRITE) {
            Ok(()) | Err(Error::Occupied { .. }) => {}
            wrong => panic!("{wrong:?}"),
        }
        finish(writer);
        Ok(())
    };
    check(&[], [fault; 2], 4, &[4]);
}
