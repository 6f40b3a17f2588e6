//! The bookkeeping that the counting policies share: presence and charges of every touched segment.

use tlbkit_addr::{Pages, Vpn};

use crate::charges::Charges;
use crate::ladder::{MAX_LEVELS, Place};
use crate::presence::Presence;
use crate::segments::{Exhausted, Segments};
use crate::{Footprint, Ladder, Memory, Superpage, Tlb};

/// What a miss came to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Charged {
    pub(crate) place: Place,
    /// The smallest superpage around the page whose count stands at its threshold, or zero.
    pub(crate) ready: usize,
}

#[derive(Debug)]
pub(crate) struct Ledger<'m> {
    pub(crate) ladder: Ladder,
    pub(crate) thresholds: [u32; MAX_LEVELS],
    presence: Presence,
    charges: Charges,
    segments: Segments<'m>,
}

impl<'m> Ledger<'m> {
    pub(crate) fn footprint(
        ladder: &Ladder,
        thresholds: [u32; MAX_LEVELS],
        eager: usize,
        tlbs: usize,
    ) -> Footprint {
        Footprint {
            bits: Presence::new(*ladder, tlbs).words(),
            counters: Charges::new(ladder, thresholds, eager).counters(),
        }
    }

    pub(crate) fn new(
        ladder: Ladder,
        thresholds: [u32; MAX_LEVELS],
        eager: usize,
        tlbs: usize,
        memory: Memory<'m>,
    ) -> Self {
        let footprint = Self::footprint(&ladder, thresholds, eager, tlbs);
        Self {
            presence: Presence::new(ladder, tlbs),
            charges: Charges::new(&ladder, thresholds, eager),
            segments: Segments::new(memory, footprint),
            ladder,
            thresholds,
        }
    }

    pub(crate) const fn tlbs(&self) -> usize {
        self.presence.tlbs()
    }

    /// Charges a miss, unless `count` is false, and records that the TLB now holds the entry.
    ///
    /// Charges go by what was resident before this miss changed anything, the entry about to be evicted included.
    #[inline]
    pub(crate) fn miss(&mut self, tlb: Tlb, page: Vpn, count: bool) -> Result<Charged, Exhausted> {
        let place = self.ladder.locate(page);
        let (chunk, new) = self.segments.touch(place.segment)?;
        let (bits, counters) = self.segments.parts(chunk);
        if new {
            self.charges.start(counters);
        }
        let tlb = tlb.index(self.presence.tlbs());
        let level = self.presence.mapped(bits, place.unit);
        let first = place.unit >> self.ladder.shift(level) << self.ladder.shift(level);
        let mut ready = 0;
        if count {
            // Candidates are strictly larger than what maps the page now.
            let from = self.presence.lowest_positive(bits, tlb, first).max(level + 1);
            if from < self.ladder.levels() {
                ready = self.charges.charge(counters, place.unit, from);
            }
        }
        self.presence.enter(bits, tlb, first);
        Ok(Charged { place, ready })
    }

    /// Records that the TLB no longer holds the entry that starts at `page`.
    #[inline]
    pub(crate) fn evict(&mut self, tlb: Tlb, page: Vpn) {
        let place = self.ladder.locate(page);
        let Some(chunk) = self.segments.find(place.segment) else { return };
        let bits = self.segments.bits(chunk);
        self.presence.leave(bits, tlb.index(self.presence.tlbs()), place.unit);
    }

    /// Records that `level` around `place` is one mapping now: its components are gone from both TLBs, one entry
    /// stands where there were any. Its ancestors lose `less` charges, or what it had of its own.
    pub(crate) fn promote(&mut self, place: Place, level: usize, less: Option<u32>) {
        let Some(chunk) = self.segments.find(place.segment) else { return };
        let first = place.unit >> self.ladder.shift(level) << self.ladder.shift(level);
        let (bits, counters) = self.segments.parts(chunk);
        for tlb in 0..self.presence.tlbs() {
            if self.presence.leave_all(bits, tlb, first, level) {
                self.presence.enter(bits, tlb, first);
            }
        }
        self.presence.join(bits, first, level, true);
        let less = less.unwrap_or_else(|| self.charges.exact(counters, first, level));
        self.charges.promoted(counters, first, level, less);
    }

    /// Splits the superpage that maps `page` into units, none of them resident. Returns it, or `None` if `page` is
    /// not in a superpage.
    pub(crate) fn demote(&mut self, page: Vpn) -> Option<Superpage> {
        let place = self.ladder.locate(page);
        let chunk = self.segments.find(place.segment)?;
        let (bits, counters) = self.segments.parts(chunk);
        let level = self.presence.mapped(bits, place.unit);
        if level == 0 {
            return None;
        }
        for tlb in 0..self.presence.tlbs() {
            self.presence.leave_all(bits, tlb, place.unit, level);
        }
        self.presence.join(bits, place.unit, level, false);
        self.charges.promoted(counters, place.unit, level, 0);
        self.ladder.superpage(place, level)
    }

    /// Forgets the segments that lie in `pages` whole, for reuse.
    pub(crate) fn unmapped(&mut self, pages: Pages) {
        unmapped(&self.ladder, &mut self.segments, pages);
    }

    /// Records that the TLB was flushed.
    pub(crate) fn flushed(&mut self, tlb: Tlb) {
        let (presence, tlb) = (self.presence, tlb.index(self.presence.tlbs()));
        self.segments.for_each(|bits, _| presence.leave_tlb(bits, tlb));
    }

    /// Returns Appendix A's `tlbcount`; what lies in an untouched segment has a count of zero.
    pub(crate) fn tlbcount(&mut self, tlb: Tlb, superpage: Superpage) -> Option<i32> {
        let (place, level) = self.ladder.find(superpage)?;
        let tlb = tlb.index(self.presence.tlbs());
        let chunk = self.segments.find(place.segment);
        Some(
            chunk.map_or(0, |chunk| {
                self.presence.tlbcount(self.segments.peek(chunk).0, tlb, place.unit, level)
            }),
        )
    }

    /// Returns the exact prefetch charges of a superpage.
    pub(crate) fn charged(&mut self, superpage: Superpage) -> Option<u32> {
        let (place, level) = self.ladder.find(superpage).filter(|&(_, level)| level > 0)?;
        Some(self.count(place, level))
    }

    /// Returns the exact prefetch charges of the superpage of `level` around `place`.
    pub(crate) fn count(&mut self, place: Place, level: usize) -> u32 {
        let Some(chunk) = self.segments.find(place.segment) else { return 0 };
        let (_, counters) = self.segments.parts(chunk);
        self.charges.exact(counters, place.unit, level)
    }

    /// Returns the level at which `place` is mapped.
    pub(crate) fn mapped(&mut self, place: Place) -> usize {
        let Some(chunk) = self.segments.find(place.segment) else { return 0 };
        self.presence.mapped(self.segments.peek(chunk).0, place.unit)
    }

    /// Returns the segments in use and those there is memory for.
    pub(crate) fn segments(&self) -> (usize, usize) {
        (self.segments.used(), self.segments.capacity())
    }
}

/// Forgets the segments that lie in `pages` whole. Costs one look-up a segment of the range, or one pass a removal
/// over those in use if they are fewer.
pub(crate) fn unmapped(ladder: &Ladder, segments: &mut Segments<'_>, pages: Pages) {
    let (first, last) = (ladder.locate(pages.first()), ladder.locate(pages.last()));
    let starts = ladder.superpage(first, ladder.top()).is_some_and(|whole| whole.first == pages.first());
    let ends = ladder
        .superpage(last, ladder.top())
        .is_some_and(|whole| whole.pages(ladder.page()).last() == pages.last());
    let Some(from) = first.segment.checked_add(usize::from(!starts)) else { return };
    let Some(to) = last.segment.checked_sub(usize::from(!ends)) else { return };
    if from > to {
        return;
    }
    if to - from < segments.used() {
        for segment in from..=to {
            segments.remove(segment);
        }
    } else {
        loop {
            let dead =
                segments.iter().map(|(segment, _)| segment).find(|segment| (from..=to).contains(segment));
            let Some(segment) = dead else { return };
            segments.remove(segment);
        }
    }
}
