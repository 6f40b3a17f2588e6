//! An address space whose pages grow: the policy in the miss path, and what the kernel does for it.
//!
//! ```text
//!   miss    the refill vector's handler loads the entry, and writes what missed and what it replaced to the log
//!   next    the log has room for one, so the next miss comes to the kernel first: it tells the policy of the last one,
//!           does what the policy asks for, empties the log, and lets the access try again
//! ```

use core::sync::atomic::Ordering;

use heapless::Vec;
use tlbkit_addr::{Attr, Flush, PageSize, Pages, Pfn, VirtAddr, Vpn};
use tlbkit_pagetable::format::{EntryLo, Format};
use tlbkit_pagetable::{Change, Error, Holes, Local};
use tlbkit_refill::{Log, Miss};
use tlbkit_superpage::{Action, ApproxOnline, Policy, Refusal, Superpage, Tlb};

use super::transcript::Line;
use crate::arch::tlb::{self, Entry};
use crate::arch::touch;
use crate::memory::KSEG0;
use crate::vm::frames::{Frames, word};
use crate::vm::machine::BLOCK;
use crate::vm::structure::{Nodes, Structure};

/// Its number in the TLB.
pub(super) const NUMBER: u32 = 1;

/// Pages that may be stored to.
const WRITABLE: Attr = Attr::READ.union(Attr::EXEC).union(Attr::USER).union(Attr::WRITE).union(Attr::DIRTY);

/// Bytes of the smallest page.
const PAGE: usize = PageSize::K4.bytes();

/// The most pages of a superpage.
pub(super) const MOST: usize = 128;

/// Where the handler writes what missed, and what it replaced.
pub(super) static LOG: Log<1> = Log::new();

/// What happened.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    pub(super) misses: u32,
    pub(super) promotions: u32,
    pub(super) refusals: u32,
    pub(super) demotions: u32,
    pub(super) copied: u32,
}

/// The space.
pub(super) struct Space<S: Structure> {
    table: Local<'static, S::Table<'static>, fn(&Flush)>,
    frames: Frames,
    policy: ApproxOnline<'static>,
    pub(super) tally: Tally,
}

/// Why an access could not be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refused;

/// Forgets what a change has made stale.
fn forget(flush: &Flush) {
    if flush.is_all() {
        return tlb::forget_all(|entry| entry.hi & tlb::ASID == NUMBER);
    }
    for pages in flush.ranges() {
        for pair in pages.first().get() / 2..=pages.last().get() / 2 {
            tlb::forget((2 * pair * PAGE) as u32, NUMBER);
        }
    }
}

impl<S: Structure> Space<S> {
    /// Returns an empty space, and makes it the one that runs.
    pub(super) fn new(
        nodes: &'static Nodes<S::Window>,
        frames: Frames,
        policy: ApproxOnline<'static>,
    ) -> Result<Self, Error> {
        let table = Local::new(S::create(nodes)?, forget as fn(&Flush));
        let space = Self { table, frames, policy, tally: Tally::default() };
        space.changed();
        LOG.attach(&BLOCK, (&raw const LOG).addr() as u32);
        Ok(space)
    }

    /// Tells the handler where the table's root is, which a change may have moved.
    fn changed(&self) {
        BLOCK.set_root(S::WALK.root(S::root(self.table.table())));
    }

    /// Maps a page to a frame of its own, which begins with `content`.
    pub(super) fn map(&mut self, page: Vpn, content: u32) -> Result<(), Error> {
        let Some(frame) = self.frames.take() else { return Err(Error::NoMemory { wanted: 1, pending: 0 }) };
        // SAFETY: the frame was just taken.
        unsafe { word(frame).write_volatile(content) };
        let done = self.table.map(Pages::one(page), frame, PageSize::K4, WRITABLE);
        self.changed();
        done
    }

    /// Returns the size of the page at an address.
    pub(super) fn size(&self, page: Vpn) -> Option<PageSize> {
        self.table.lookup(page.address(PageSize::K4)).map(|leaf| leaf.size)
    }

    /// Loads a word.
    pub(super) fn load(&mut self, at: usize) -> Result<u32, Refused> {
        loop {
            match touch::load(at as u32) {
                Ok(touched) => return Ok(touched.value),
                Err(_) => self.hear(at, Attr::READ)?,
            }
        }
    }

    /// Stores a word.
    pub(super) fn store(&mut self, at: usize, value: u32) -> Result<(), Refused> {
        loop {
            // SAFETY: the space's pages hold the workload's words, and nothing else.
            match unsafe { touch::store(at as u32, value) } {
                Ok(()) => return Ok(()),
                Err(_) => self.hear(at, Attr::WRITE)?,
            }
        }
    }

    /// An access came to the kernel: tells the policy what is in the log, so that the access can be tried again.
    fn hear(&mut self, at: usize, wanted: Attr) -> Result<(), Refused> {
        let mut heard = None;
        LOG.drain(&BLOCK, |miss| heard = Some(miss));
        match heard {
            Some(miss) => {
                self.miss(miss);
                Ok(())
            }
            // The log had room, so the handler did not pass the miss on for want of it. If the table allows the access, an
            // entry has become stale that allows less (Tzou 5.1.1).
            None => match self.table.lookup(VirtAddr::new(at)) {
                Some(leaf) if leaf.attr.contains(wanted) => {
                    tlb::forget(at as u32, NUMBER);
                    Ok(())
                }
                _ => Err(Refused),
            },
        }
    }

    /// Tells the policy of a miss, and does what it asks for.
    fn miss(&mut self, miss: Miss) {
        let page = VirtAddr::new(miss.at as usize).vpn(PageSize::K4);
        // An entry for larger pages begins at the bits above its mask.
        let first = miss.evicted.entry_hi & tlb::VPN2 & !miss.evicted.page_mask;
        let ours = !miss.evicted.is_empty() && miss.evicted.entry_hi & tlb::ASID == NUMBER;
        let evicted = ours.then(|| VirtAddr::new(first as usize).vpn(PageSize::K4));
        Line::Miss(page, evicted).write();
        self.tally.misses += 1;
        let now = u64::from(self.tally.misses);
        match self.policy.on_miss(tlbkit_superpage::Miss { tlb: Tlb::Data, page, evicted, now }) {
            Some(Action::Promote { range, .. }) => match self.promote(range) {
                Ok(()) => {
                    self.policy.promoted(range);
                    self.tally.promotions += 1;
                    Line::Promoted(range).write();
                }
                Err(why) => {
                    self.policy.refused(range, why);
                    self.tally.refusals += 1;
                    Line::Refused(range, why).write();
                }
            },
            Some(Action::OutOfSegments { page }) => panic!("no memory to count the misses of page {page:x?}"),
            None => {}
        }
    }

    /// Brings the pages of a range together and maps it with one entry, which takes the place of one of its parts' in the
    /// TLB.
    ///
    /// # Errors
    ///
    /// Changes nothing if there is no memory for that, or if a page has rights of its own.
    fn promote(&mut self, range: Superpage) -> Result<(), Refusal> {
        let pages = range.pages(PageSize::K4);
        let leaf = |page: Vpn| self.table.lookup(page.address(PageSize::K4));
        if pages.into_iter().filter_map(leaf).any(|leaf| leaf.attr != WRITABLE) {
            return Err(Refusal::NotHere);
        }
        // An entry maps a pair, so the pages are of half the size.
        let half = PageSize::from_shift(range.size.shift() - 1).ok_or(Refusal::NotHere)?;
        let new = self.frames.take_run(pages.len(), half).ok_or(Refusal::NoMemory)?;
        let mut old: Vec<Pfn, MOST> = Vec::new();
        for (offset, page) in pages.into_iter().enumerate() {
            let to = Pfn::new(new.get() + offset);
            let leaf = self.table.lookup(page.address(PageSize::K4));
            let from = leaf.map(|leaf| leaf.phys(page.address(PageSize::K4), PageSize::K4).pfn(PageSize::K4));
            // SAFETY: both frames are the space's, and no other code touches it meanwhile.
            unsafe { fill(to, from) };
            self.tally.copied += u32::from(from.is_some());
            old.extend(from);
        }
        let slot =
            pages.into_iter().step_by(2).find_map(|page| tlb::probe((page.get() * PAGE) as u32, NUMBER));
        let remapped = self
            .table
            .unmap(pages, Holes::Skip, None)
            .and_then(|_| self.table.map(pages, new, half, WRITABLE));
        self.changed();
        if let Err(error) = remapped {
            panic!("a range that was looked at cannot be remapped: {error}");
        }
        for frame in old {
            // SAFETY: the table has them no longer, and neither has the TLB.
            unsafe { self.frames.give(frame) };
        }
        if let Some(slot) = slot {
            let lo = [new.get(), new.get() + pages.len() / 2];
            let lo = lo.map(|frame| EntryLo::leaf(Pfn::new(frame), half, WRITABLE, true).unwrap_or(0));
            let hi = (pages.first().get() * PAGE) as u32 | NUMBER;
            // SAFETY: it is what the table says, and the entries of the parts have been forgotten.
            unsafe { tlb::replace(slot, Entry { hi, mask: range.size.mask() as u32 & !0x1fff, lo }) };
        }
        Ok(())
    }

    /// Returns how many frames are in use.
    pub(super) fn frames(&self) -> usize {
        self.frames.taken()
    }

    /// Takes the table apart.
    pub(super) fn destroy(self) {
        self.table.destroy();
    }

    /// Gives a page rights of its own: the superpage around it is mapped as small pages again.
    pub(super) fn protect(&mut self, page: Vpn, change: Change) -> Result<(), Error> {
        if let Some(range) = self.policy.demote(page) {
            // SAFETY: the pages are the user's; the kernel and its table lie in kseg0.
            let done = unsafe { self.table.resize_breaking(range.pages(PageSize::K4), PageSize::K4) };
            self.changed();
            done?;
            self.tally.demotions += 1;
            Line::Demoted(page, range).write();
        }
        self.table.protect(Pages::one(page), Holes::Refuse, change).map(|_| ())
    }
}

/// Copies a frame, or clears it.
///
/// # Safety
///
/// The frames are the caller's.
unsafe fn fill(to: Pfn, from: Option<Pfn>) {
    let memory = |frame: Pfn| -> *mut u32 {
        core::ptr::with_exposed_provenance_mut(KSEG0 + frame.address(PageSize::K4).get())
    };
    // SAFETY: the caller's promise.
    unsafe {
        match from {
            Some(from) => memory(to).copy_from_nonoverlapping(memory(from), PAGE / 4),
            None => memory(to).write_bytes(0, PAGE / 4),
        }
    }
    core::sync::atomic::compiler_fence(Ordering::SeqCst);
}
