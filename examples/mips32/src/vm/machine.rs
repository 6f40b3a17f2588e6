//! The machine of one CPU: frames, nodes, caches, numbers for address spaces, and which of these runs.

use core::ops::ControlFlow;

use tlbkit_addr::{Flush, PageSize, Pages, Pfn, Reach, VirtAddr};
use tlbkit_pagetable::{Change, Error, Holes, Pinned, Retired, Table, Writer, destroy};
use tlbkit_refill::Block;
use tlbkit_stlb::{Asids, Invalidate, Mips32};

use super::caches::{Hardware, Software};
use super::frames::{self, Frames};
use super::space::Space;
use super::structure::{Nodes, Structure};
use crate::arch::tlb;
use crate::args::Inject;

/// What the CPU and its refill handler share.
pub static BLOCK: Block = Block::new();

/// What happened.
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
    /// Generations of address-space numbers.
    pub generations: u32,
}

/// The machine.
#[derive(Debug)]
pub struct Machine<S: Structure> {
    pub nodes: &'static Nodes<S::Window>,
    pub frames: Frames,
    pub tally: Tally,
    /// Whether weaker translations than the table's are left to faults (Tzou 5.1.1, safe inconsistency) rather than
    /// flushed.
    pub lazy: bool,
    caches: (Hardware, Software),
    asids: Asids<Mips32>,
    inject: Option<Inject>,
}

impl<S: Structure> Machine<S> {
    /// Returns the machine with so many numbers for address spaces.
    pub fn new(
        nodes: &'static Nodes<S::Window>,
        frames: Frames,
        software: Software,
        numbers: u16,
        inject: Option<Inject>,
    ) -> Self {
        let Ok(asids) = Asids::new(1, numbers) else { panic!("the TLB tells 255 address spaces apart") };
        let caches = (Hardware { inject }, software);
        Self { nodes, frames, tally: Tally::default(), lazy: false, caches, asids, inject }
    }

    /// Makes an address space the one that runs.
    pub fn activate(&mut self, space: &mut Space<'_, S>) {
        let last = space.number;
        let number = self.asids.activate(&mut space.context, &mut Watched(self.inject, &mut self.caches, &mut self.tally));
        space.number = Some(number);
        let _ = last;
        BLOCK.set_root(S::root(&space.table));
        // SAFETY: the refill handler goes by the root that it has just been given.
        unsafe { tlb::switch(number.asid() as u32) };
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
        attr: tlbkit_addr::Attr,
    ) -> Result<(), Error> {
        self.edit(space, |writer| writer.map(pages, frame, PageSize::K4, attr))
    }

    /// Unmaps a page, and returns its frame, which no TLB knows any more.
    ///
    /// # Errors
    ///
    /// Those of [`Table::unmap`].
    pub fn unmap(&mut self, space: &mut Space<'_, S>, page: tlbkit_addr::Vpn) -> Result<Pfn, Error> {
        let at = page.address(PageSize::K4);
        let leaf = space.lookup(at).ok_or(Error::NotMapped { at })?;
        self.edit(space, |writer| writer.unmap(Pages::one(page), Holes::Refuse, None))?;
        Ok(leaf.frame)
    }

    /// Changes the attributes of pages.
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
        self.edit(space, |writer| writer.protect(pages, holes, change))
    }

    /// Changes a table: flushes what that makes stale, then frees what it took out.
    fn edit<'n, T>(
        &mut self,
        space: &mut Space<'n, S>,
        change: impl FnOnce(&mut Writer<'_, 'n, S::Table<'n>>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut writer = Writer::new(&space.table)?;
        let done = change(&mut writer);
        let retired = writer.finish();
        self.settle(space.number, retired);
        if space.number.is_some_and(|number| number.asid() as u32 == tlb::current()) {
            BLOCK.set_root(S::root(&space.table));
        }
        done
    }

    fn settle(&mut self, number: Option<tlbkit_stlb::Space<Mips32>>, retired: Retired<'_>) {
        self.forget(number, retired.flush());
        // SAFETY: nobody walks but this CPU, which does not now, and it has just forgotten what the batch names.
        unsafe { retired.reclaim() };
    }

    /// Forgets what a change has made stale.
    fn forget(&mut self, number: Option<tlbkit_stlb::Space<Mips32>>, flush: &Flush) {
        // A space that never ran is in no cache. One whose number has gone to another space costs that one a few
        // refills.
        let Some(number) = number else { return };
        match flush.reach() {
            Reach::Nowhere => return,
            // The TLB may wait for a fault. A software cache may not: it would answer the refill that follows.
            Reach::Local if self.lazy => {
                flush.ranges().iter().for_each(|&pages| self.software().invalidate_pages(number, pages));
                return;
            }
            Reach::Local | Reach::Everywhere => {}
        }
        if flush.is_all() {
            return self.caches.invalidate_space(number);
        }
        for &pages in flush.ranges() {
            self.caches.0.invalidate_pages(number, pages);
            self.software().invalidate_pages(number, pages);
        }
    }

    /// Takes an address space apart and gives its frames back, but those from `keep` on.
    pub fn delete(&mut self, space: Space<'_, S>, is_shared: impl Fn(Pfn) -> bool) {
        let halves = space.table.space().halves();
        for pages in halves.into_iter().flatten() {
            let frames = &mut self.frames;
            // SAFETY: as in `Space::lookup`.
            let _ = space.table.for_each(unsafe { Pinned::by(self.nodes) }, pages, &mut |leaf| {
                if !is_shared(leaf.frame) {
                    // SAFETY: the space's own frame; nobody runs in the space any more, and its number is given to
                    // nobody before the TLB has forgotten everything.
                    unsafe { frames.give(leaf.frame) };
                }
                ControlFlow::Continue(())
            });
        }
        let Space { table, .. } = space;
        let retired = destroy(table);
        // SAFETY: nobody walks the table any more. What the TLB still has is found under the number alone.
        unsafe { retired.reclaim() };
    }
}
