//! The machine of one CPU: frames, nodes, caches, numbers for address spaces, and which of these runs.

use core::ops::ControlFlow;

use tlbkit_addr::{Attr, Flush, FlushScope, PageSize, Pages, Pfn, Vpn};
use tlbkit_pagetable::{Change, Error, Holes, Pinned, Retired, Table, destroy};
use tlbkit_refill::Block;
use tlbkit_refill::handler::Root;
use tlbkit_stlb::{Asids, Invalidate, Mips32};

use super::caches::{Hardware, Software};
use super::frames::Frames;
use super::space::Space;
use super::structure::{Nodes, Structure};
use crate::arch::{cp0, tlb};
use crate::args::Inject;

/// What the CPU and its refill handler share. The root of the running table may be elsewhere.
pub static BLOCK: Block = Block::new();

/// What was done about faults.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Pages mapped on demand.
    pub mapped: u32,
    /// First stores to clean pages.
    pub dirtied: u32,
    /// Faults that the table allowed by the time they were looked at.
    pub spurious: u32,
    /// Accesses that were refused.
    pub refused: u32,
}

/// The machine.
#[derive(Debug)]
pub struct Machine<S: Structure> {
    pub nodes: &'static Nodes<S::Window>,
    pub frames: Frames,
    pub tally: Tally,
    /// Whether translations that are merely weaker than the table's are left in the TLB until they fault (Tzou 5.1.1,
    /// safe inconsistency).
    pub lazy: bool,
    pub(super) hardware: Hardware,
    software: Software,
    asids: Asids<Mips32>,
    /// Where the refill handler has the root of the running table.
    root: Root,
}

impl<S: Structure> Machine<S> {
    /// Returns the machine with the address-space numbers from 1 to `last`.
    pub fn new(
        nodes: &'static Nodes<S::Window>,
        frames: Frames,
        software: Software,
        last: u8,
        inject: Option<Inject>,
        root: Root,
    ) -> Self {
        let hardware = Hardware::new(inject);
        let (tally, asids) = (Tally::default(), numbers(last));
        Self { nodes, frames, tally, lazy: false, hardware, software, asids, root }
    }

    /// Has the numbers from 1 to `last` for address spaces from now on. There must be no address space.
    pub fn renumber(&mut self, last: u8) {
        self.forget_everything();
        self.asids = numbers(last);
    }

    /// Returns how often the numbers for address spaces began anew.
    pub fn generations(&self) -> u32 {
        self.hardware.cleared
    }

    /// Makes an address space the one that runs.
    pub fn activate(&mut self, space: &mut Space<'_, S>) {
        let mut caches = (&mut self.hardware, &mut self.software);
        let number = self.asids.activate(&mut space.context, &mut caches);
        space.number = Some(number);
        self.set_root(&space.table);
        // SAFETY: the refill handler goes by the root that it has just been given.
        unsafe { tlb::switch(number.asid() as u32) };
    }

    /// Forgets every translation of every address space.
    pub fn forget_everything(&mut self) {
        tlb::forget_all(|_| true);
        self.software.invalidate_all();
    }

    /// Maps pages to frames.
    ///
    /// # Errors
    ///
    /// Those of [`Table::map`].
    pub fn map(
        &mut self,
        space: &mut Space<'_, S>,
        pages: Pages,
        frame: Pfn,
        attr: Attr,
    ) -> Result<(), Error> {
        // SAFETY: the space is borrowed alone, so this is the only writer; the batch is the table's.
        self.edit(space, |table, batch| unsafe { table.map(batch, pages, frame, PageSize::K4, attr) })
    }

    /// Unmaps a page and returns its frame, which no TLB knows any more.
    ///
    /// # Errors
    ///
    /// Those of [`Table::unmap`].
    pub fn unmap(&mut self, space: &mut Space<'_, S>, page: Vpn) -> Result<Pfn, Error> {
        let at = page.address(PageSize::K4);
        let leaf = space.lookup(at).ok_or(Error::NotMapped { at })?;
        let page = Pages::one(page);
        // SAFETY: the space is borrowed alone, so this is the only writer; the batch is the table's.
        self.edit(space, |table, batch| unsafe { table.unmap(batch, page, Holes::Refuse, None) })?;
        Ok(leaf.frame)
    }

    /// Changes the attributes of pages, and returns how many there were.
    ///
    /// # Errors
    ///
    /// Those of [`Table::protect`].
    pub fn protect(
        &mut self,
        space: &mut Space<'_, S>,
        pages: Pages,
        holes: Holes,
        change: Change,
    ) -> Result<usize, Error> {
        // SAFETY: the space is borrowed alone, so this is the only writer; the batch is the table's.
        self.edit(space, |table, batch| unsafe { table.protect(batch, pages, holes, change) })
    }

    /// Changes a table: flushes what that makes stale, then frees what it took out.
    ///
    /// This is what `tlbkit_pagetable::Local` does for a table that has its flush at hand. Here it is the machine that
    /// can flush, and it has many tables.
    fn edit<'n, T>(
        &mut self,
        space: &mut Space<'n, S>,
        change: impl FnOnce(&S::Table<'n>, &mut Retired<'n>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let done = change(&space.table, &mut space.batch);
        // A space that never ran is in no cache. One whose number has gone to another costs that one a few refills.
        if let Some(number) = space.number {
            self.forget(number, space.batch.flush());
            if number.asid() as u32 == tlb::current() {
                self.set_root(&space.table);
            }
        }
        // SAFETY: no other CPU walks the table, and this one does not now, and it has forgotten what the batch names.
        unsafe { space.batch.complete() };
        done
    }

    /// Forgets what a change has made stale.
    fn forget(&mut self, number: tlbkit_stlb::AsidTag<Mips32>, flush: &Flush) {
        // The TLB may wait for a fault. A software cache may not: it would give the same answer to the refill after it.
        let eager = !(self.lazy && flush.scope() == FlushScope::Local);
        if flush.is_all() {
            self.hardware.invalidate_space(number);
            self.software.invalidate_space(number);
        }
        for &pages in flush.ranges() {
            if eager {
                self.hardware.invalidate_pages(number, pages);
            }
            self.software.invalidate_pages(number, pages);
        }
    }

    /// Tells the refill handler where the table of the running address space is.
    fn set_root(&self, table: &S::Table<'_>) {
        let word = S::WALK.root(S::root(table));
        // SAFETY: no other code uses ErrorEPC, as long as there is no reset, NMI or cache error; a scratch
        // register never does, and the CPU has it, or there is no handler with that root.
        unsafe {
            match self.root {
                Root::Block => BLOCK.set_root(word),
                Root::ErrorEpc => cp0::error_epc::write(word),
                Root::Cell => unreachable!("no argument asks for it"),
                Root::KScratch(2) => cp0::kscratch1::write(word),
                Root::KScratch(3) => cp0::kscratch2::write(word),
                Root::KScratch(_) => cp0::kscratch3::write(word),
            }
        }
    }

    /// Takes an address space apart. The frames that are not `shared` go back.
    pub fn delete(&mut self, space: Space<'_, S>, shared: impl Fn(Pfn) -> bool) {
        let nodes = self.nodes;
        for pages in space.table.space().halves().into_iter().flatten() {
            // SAFETY: nothing is reclaimed meanwhile.
            let pinned = unsafe { Pinned::by(nodes) };
            let _ = space.table.for_each(pinned, pages, &mut |leaf| {
                if !shared(leaf.frame) {
                    // SAFETY: the frame was the space's own. What the TLB still has of the space is found under its
                    // number alone, which no other space gets before the TLB has forgotten everything.
                    unsafe { self.frames.give(leaf.frame) };
                }
                ControlFlow::Continue(())
            });
        }
        // SAFETY: no CPU walks the table any more, for the same reason.
        unsafe { destroy(space.table).reclaim() };
    }
}

/// Returns the allocator of the numbers from 1 to `last`: 0 is given to no space.
fn numbers(last: u8) -> Asids<Mips32> {
    match Asids::new(1, u16::from(last)) {
        Ok(asids) => asids,
        Err(error) => panic!("{error}"),
    }
}
