//! The page tables of both address spaces, as `Dash` sees them.

use tlbkit_addr::{Asid, Attr, PageSize, Pages, Pfn, Vpn};
use tlbkit_dash::tolerance::Entry;
use tlbkit_dash::unmapping::Tables;
use tlbkit_pagetable::{Change, Holes, Pinned, Writer};

use super::{PAGES, SPACES, vpn, wrong};
use crate::smp::Shot;
use crate::smp::masked::Masked;
use crate::smp::run::AnyTable;

/// What `Dash` needs to know of an entry: the format says more, which is the same for every page.
const KNOWN: Attr = Attr::READ.union(Attr::WRITE).union(Attr::DIRTY);

/// A table for each space. All calls come with the kernel's lock held, and so with interrupts off.
pub(super) struct Spaces([&'static AnyTable; SPACES]);

/// Returns the identifier of a space.
pub(super) const fn asid(space: usize) -> Asid {
    match Asid::new(1 + space as u16, 8) {
        Some(asid) => asid,
        None => panic!("the TLB has eight bits for it"),
    }
}

impl Spaces {
    /// Returns the spaces of two tables without a page, each with `anchor` behind the pages under test: the page keeps the
    /// tables' nodes.
    pub(super) fn new(tables: [&'static Shot; SPACES], anchor: Pfn) -> Self {
        let spaces = Self(tables.map(|table| table as &AnyTable));
        for space in 0..SPACES {
            let anchor = Entry { frame: anchor, attr: Attr::READ };
            spaces.set(asid(space), vpn(PAGES), None, Some(anchor));
        }
        spaces
    }

    fn table(&self, space: Asid) -> &'static AnyTable {
        self.0[usize::from(space.get() - 1)]
    }

    /// Makes the entry of a page, which is `old`, `new`.
    fn set(&self, space: Asid, at: Vpn, old: Option<Entry>, new: Option<Entry>) {
        let mut writer = match Writer::new(self.table(space)) {
            Ok(writer) => writer,
            Err(error) => panic!("the holder of the lock is the only writer: {error}"),
        };
        let page = Pages::one(at);
        let done = match (old, new) {
            (Some(old), Some(new)) if old.frame == new.frame => {
                let change = Change { clear: KNOWN & !new.attr & !Attr::READ, set: new.attr & KNOWN };
                writer.protect(page, Holes::Refuse, change).map(|_| ())
            }
            // Refused if another frame is there.
            (_, Some(new)) => writer.map(page, new.frame, PageSize::K4, new.attr),
            (Some(_), None) => writer.unmap(page, Holes::Refuse, None).map(|_| ()),
            (None, None) => Ok(()),
        };
        // A page that stays keeps every node, so there is none to be held until a shootdown has completed.
        let nodes = writer.finish().nodes();
        if done.is_err() || nodes > 0 {
            wrong(format_args!("{at:?} from {old:?} to {new:?}: {done:?}, {nodes} nodes"));
        }
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
}

impl Tables for Spaces {
    fn entry(&self, space: Asid, at: Vpn) -> Option<Entry> {
        // SAFETY: this CPU has the kernel's lock, so interrupts are off.
        let masked = unsafe { Masked::assume() };
        // SAFETY: this CPU is not interrupted, so it acknowledges nothing meanwhile.
        let leaf = self.table(space).lookup(unsafe { Pinned::by(&masked) }, at.address(PageSize::K4))?;
        Some(Entry { frame: leaf.frame, attr: leaf.attr & KNOWN })
    }

    fn exchange(&mut self, space: Asid, at: Vpn, new: Option<Entry>) -> Option<Entry> {
        let old = self.entry(space, at);
        self.set(space, at, old, new);
        old
    }
}
