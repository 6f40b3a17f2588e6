//! The page tables of both address spaces, as `Dash` sees them.

use core::cell::RefCell;

use tlbkit::pagetable::{Carried, Holes, Pinned, Table as _, Writer};
use tlbkit::{Asid, Attr, Change, PageSize, Pages, Vpn};
use tlbkit_dash::tolerance::Entry;
use tlbkit_dash::unmapping::Tables;

use super::{PAGES, SPACES, Table, vpn, wrong};

/// What `Dash` needs to know of an entry: the format says more, which is the same for every page.
const KNOWN: Attr = Attr::READ.union(Attr::WRITE).union(Attr::DIRTY);

/// Nodes that wait for an operation, however many changes have taken them out.
pub(super) type Nodes = Option<Carried<'static>>;

/// Lets more nodes wait with these.
pub(super) fn join(nodes: &mut Nodes, more: Nodes) {
    let Some(more) = more else { return };
    let mut all = more.into_retired();
    if let Some(before) = nodes.take()
        && all.append(before.into_retired()).is_err()
    {
        wrong(format_args!("nodes of two storages"));
    }
    *nodes = all.across_cpus().ok();
}

/// A table for each space. All calls come with the lock held.
pub(super) struct Spaces {
    tables: [&'static Table; SPACES],
    /// What changes have taken out of each.
    retired: RefCell<[Nodes; SPACES]>,
}

/// Returns the identifier of a space.
pub(super) const fn asid(space: usize) -> Asid {
    match Asid::new(1 + space as u16, 8) {
        Some(asid) => asid,
        None => panic!("the TLB has eight bits for it"),
    }
}

fn index(space: Asid) -> usize {
    usize::from(space.get() - 1)
}

impl Spaces {
    /// Returns the spaces of two tables without a page.
    pub(super) fn new(tables: [&'static Table; SPACES]) -> Self {
        Self { tables, retired: RefCell::default() }
    }

    /// Makes the entry of a page, which is `old`, `new`.
    fn set(&self, space: Asid, at: Vpn, old: Option<Entry>, new: Option<Entry>) {
        let mut writer =
            Writer::new(self.tables[index(space)]).expect("the holder of the lock is the only writer");
        let page = Pages::one(at);
        let done = match (old, new) {
            (Some(old), Some(new)) if old.frame == new.frame => {
                let change = Change { clear: KNOWN & !new.attr & !Attr::READ, set: new.attr & KNOWN };
                writer.protect(page, Holes::Refuse, change).map(|_| ())
            }
            // Refused if another frame is there.
            (_, Some(new)) => writer.map(page, new.frame, PageSize::K4, new.attr),
            (Some(_), None) => writer.unmap(page, Holes::Refuse).map(|_| ()),
            (None, None) => Ok(()),
        };
        if done.is_err() {
            wrong(format_args!("{at:?} from {old:?} to {new:?}: {done:?}"));
        }
        let retired = writer.finish();
        if retired.nodes() > 0 {
            match retired.across_cpus() {
                Ok(nodes) => join(&mut self.retired.borrow_mut()[index(space)], Some(nodes)),
                Err(_) => wrong(format_args!("nodes leak")),
            }
        }
    }

    /// Takes the nodes that changes of a space have taken out.
    pub(super) fn retired(&self, space: usize) -> Nodes {
        core::mem::take(&mut self.retired.borrow_mut()[space])
    }

    /// The handler of TLB Modified exceptions: sets the dirty bit of a page that may be written.
    pub(super) fn touch(&self, space: Asid, at: Vpn) {
        if let Some(old) = self.entry(space, at)
            && old.attr.contains(Attr::WRITE)
            && !old.attr.contains(Attr::DIRTY)
        {
            self.set(space, at, Some(old), Some(Entry { attr: old.attr | Attr::DIRTY, ..old }));
        }
    }

    /// Unmaps every page, when no CPU runs a space.
    pub(super) fn clear(&self) {
        for space in 0..SPACES {
            (0..PAGES)
                .for_each(|page| self.set(asid(space), vpn(page), self.entry(asid(space), vpn(page)), None));
            // SAFETY: every CPU has left the space, and emptied its TLB.
            unsafe { reclaim(self.retired(space)) };
        }
    }
}

/// Gives nodes back.
///
/// # Safety
///
/// As for [`Retired::reclaim`](tlbkit::pagetable::Retired::reclaim).
pub(super) unsafe fn reclaim(nodes: Nodes) -> usize {
    let Some(nodes) = nodes else { return 0 };
    let count = nodes.nodes();
    // SAFETY: the caller's promise.
    unsafe { nodes.into_retired().reclaim() };
    count
}

impl Tables for Spaces {
    fn entry(&self, space: Asid, at: Vpn) -> Option<Entry> {
        // SAFETY: the kernel takes no interrupt, and this CPU serves no request before it has what it looked up.
        let pinned = unsafe { Pinned::by(self) };
        let leaf = self.tables[index(space)].lookup(pinned, at.address(PageSize::K4))?;
        Some(Entry { frame: leaf.frame, attr: leaf.attr & KNOWN })
    }

    fn exchange(&mut self, space: Asid, at: Vpn, new: Option<Entry>) -> Option<Entry> {
        let old = self.entry(space, at);
        self.set(space, at, old, new);
        old
    }
}
