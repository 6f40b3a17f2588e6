//! Which units of each segment have been referenced: the bookkeeping of policies that look at population alone.

use tlbkit_addr::{Pages, Vpn};

use crate::ladder::Place;
use crate::presence::Presence;
use crate::segments::{Exhausted, Segments};
use crate::{Footprint, Ladder, Memory, Superpage};

const WORD: u32 = usize::BITS.trailing_zeros();

/// The referenced units and the mappings of every touched segment.
#[derive(Debug)]
pub(crate) struct Population<'m> {
    pub(crate) ladder: Ladder,
    /// One map, which stands for "referenced" here.
    presence: Presence,
    segments: Segments<'m>,
}

impl<'m> Population<'m> {
    pub(crate) fn footprint(ladder: &Ladder) -> Footprint {
        Footprint { bits: Presence::new(*ladder, 1).words(), counters: 0 }
    }

    pub(crate) fn new(ladder: Ladder, memory: Memory<'m>) -> Self {
        let segments = Segments::new(memory, Self::footprint(&ladder));
        Self { ladder, presence: Presence::new(ladder, 1), segments }
    }

    /// Records a reference, and returns where it is and the level it is mapped at.
    pub(crate) fn reference(&mut self, page: Vpn) -> Result<(Place, usize), Exhausted> {
        let place = self.ladder.locate(page);
        let (chunk, _) = self.segments.touch(place.segment)?;
        let (bits, _) = self.segments.parts(chunk);
        self.presence.enter(bits, 0, place.unit);
        Ok((place, self.presence.mapped(bits, place.unit)))
    }

    /// Returns how many units of the superpage of `level` around `place` have been referenced.
    pub(crate) fn populated(&mut self, place: Place, level: usize) -> usize {
        let Some(chunk) = self.segments.find(place.segment) else { return 0 };
        let bits = self.segments.peek(chunk).0;
        let shift = self.ladder.shift(level);
        let first = place.unit >> shift << shift;
        if shift < WORD {
            let word = bits.get(first >> WORD).copied().unwrap_or(0) >> (first & ((1 << WORD) - 1));
            return (word & ((1 << (1 << shift)) - 1)).count_ones() as usize;
        }
        let words = bits.get(first >> WORD..(first >> WORD) + (1 << (shift - WORD))).unwrap_or_default();
        words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Returns the level at which `place` is mapped.
    pub(crate) fn mapped(&mut self, place: Place) -> usize {
        let Some(chunk) = self.segments.find(place.segment) else { return 0 };
        self.presence.mapped(self.segments.peek(chunk).0, place.unit)
    }

    pub(crate) fn promote(&mut self, range: Superpage) {
        let Some((place, level)) = self.ladder.find(range) else { return };
        let Some(chunk) = self.segments.find(place.segment) else { return };
        self.presence.join(self.segments.parts(chunk).0, place.unit, level, true);
    }

    /// Splits the superpage around `page`, none of whose units count as referenced any longer.
    pub(crate) fn demote(&mut self, page: Vpn) -> Option<Superpage> {
        let place = self.ladder.locate(page);
        let chunk = self.segments.find(place.segment)?;
        let (bits, _) = self.segments.parts(chunk);
        let level = self.presence.mapped(bits, place.unit);
        if level == 0 {
            return None;
        }
        self.presence.leave_all(bits, 0, place.unit, level);
        self.presence.join(bits, place.unit, level, false);
        self.ladder.superpage(place, level)
    }

    pub(crate) fn unmapped(&mut self, pages: Pages) {
        crate::ledger::unmapped(&self.ladder, &mut self.segments, pages);
    }

    /// Returns the touched segments by number.
    pub(crate) fn segments(&self) -> impl Iterator<Item = usize> + '_ {
        self.segments.iter().map(|(segment, _)| segment)
    }
}
