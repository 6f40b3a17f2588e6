//! The units of each segment that have been referenced: the bookkeeping of policies that promote by population alone.

use core::mem;

use tlbkit_addr::{Pages, Vpn};

use crate::page_sizes::Place;
use crate::segments::Segments;
use crate::units::Units;
use crate::{Action, PageSizes, PolicyMemory, SegmentMemory, Superpage};

const WORD: u32 = usize::BITS.trailing_zeros();

/// The number of 16-bit counters that a segment's mark takes.
pub(crate) const MARK: usize = size_of::<u64>() / size_of::<u16>();

/// Returns the mark that these counters hold.
fn read(counters: &[u16]) -> u64 {
    counters.iter().rfold(0, |mark, &counter| mark << 16 | u64::from(counter))
}

/// Returns how many units of the superpage of `1 << shift` units around `unit` are in the set of referenced units, which is
/// the first part of `bits`.
pub(crate) fn count(bits: &[usize], unit: usize, shift: u32) -> usize {
    let first = unit >> shift << shift;
    if shift < WORD {
        let word = bits.get(first >> WORD).copied().unwrap_or(0) >> (first & ((1 << WORD) - 1));
        return (word & ((1 << (1 << shift)) - 1)).count_ones() as usize;
    }
    let words = bits.get(first >> WORD..(first >> WORD) + (1 << (shift - WORD))).unwrap_or_default();
    words.iter().map(|word| word.count_ones() as usize).sum()
}

/// The referenced units and the mappings of every touched segment.
#[derive(Debug)]
pub(crate) struct Population<'m> {
    pub(crate) page_sizes: PageSizes,
    /// The layout of the bitmaps: the set of referenced units, and the mappings.
    pub(crate) units: Units,
    pub(crate) segments: Segments<'m>,
    /// Whether the policy has said that there is no memory for a segment.
    told: bool,
}

impl<'m> Population<'m> {
    /// Returns the memory that one segment takes, with so many counters: [`MARK`] for a mark.
    pub(crate) fn segment_memory(page_sizes: &PageSizes, counters: usize) -> SegmentMemory {
        SegmentMemory { bits: Units::new(*page_sizes).words(), counters }
    }

    pub(crate) fn new(page_sizes: PageSizes, counters: usize, memory: PolicyMemory<'m>) -> Self {
        let segments = Segments::new(memory, Self::segment_memory(&page_sizes, counters));
        Self { page_sizes, units: Units::new(page_sizes), segments, told: false }
    }

    /// Records a reference to a page. Returns the page's unit, the level of its mapping, and whether this is the unit's
    /// first reference.
    ///
    /// # Errors
    ///
    /// The policy's answer if there is no memory for the page's segment: it says so once.
    pub(crate) fn reference(&mut self, page: Vpn) -> Result<(Place, usize, bool), Option<Action>> {
        let place = self.page_sizes.locate(page);
        let Ok(chunk) = self.segments.touch(place.segment) else {
            let is_first = !mem::replace(&mut self.told, true);
            return Err(is_first.then_some(Action::OutOfSegments { page }));
        };
        let new = self.units.insert(self.segments.bits(chunk), place.unit);
        Ok((place, self.mapped(place), new))
    }

    /// Returns the highest level, at least `mapped`, such that all units of the superpages around `place` have been
    /// referenced, from `mapped` up to that level.
    pub(crate) fn full(&mut self, place: Place, mapped: usize) -> usize {
        let page_sizes = self.page_sizes;
        let Some(chunk) = self.segments.find(place.segment) else { return mapped };
        let bits = self.segments.peek(chunk).0;
        let is_full = |&level: &usize| {
            let shift = page_sizes.shift(level);
            let first = place.unit >> shift << shift;
            if shift < WORD {
                let all = (1 << (1 << shift)) - 1;
                return bits
                    .get(first >> WORD)
                    .is_some_and(|word| word >> (first & ((1 << WORD) - 1)) & all == all);
            }
            let words = bits.get(first >> WORD..(first >> WORD) + (1 << (shift - WORD)));
            words.is_some_and(|words| words.iter().all(|&word| word == usize::MAX))
        };
        (mapped..page_sizes.levels()).take_while(is_full).last().unwrap_or(mapped)
    }

    /// Sets the mark of a segment.
    pub(crate) fn mark(&mut self, place: Place, mark: u64) {
        if let Some(chunk) = self.segments.find(place.segment) {
            for (n, counter) in self.segments.parts(chunk).1.iter_mut().enumerate() {
                *counter = (mark >> (16 * n)) as u16;
            }
        }
    }

    /// Returns the mark of a segment, which starts at zero.
    pub(crate) fn mark_of(&mut self, place: Place) -> u64 {
        self.segments.find(place.segment).map_or(0, |chunk| read(self.segments.peek(chunk).1))
    }

    /// Returns every touched segment with its mark and the number of its referenced units.
    pub(crate) fn marks(&self) -> impl Iterator<Item = (usize, u64, usize)> + '_ {
        let words = self.page_sizes.units_per_segment().div_ceil(1 << WORD);
        self.segments.iter().map(move |(segment, chunk)| {
            let (bits, marks) = self.segments.peek(chunk);
            let populated = bits.iter().take(words).map(|word| word.count_ones() as usize).sum();
            (segment, read(marks), populated)
        })
    }

    /// Returns how many units of the superpage of `level` around `place` have been referenced.
    pub(crate) fn populated(&mut self, place: Place, level: usize) -> usize {
        let Some(chunk) = self.segments.find(place.segment) else { return 0 };
        count(self.segments.peek(chunk).0, place.unit, self.page_sizes.shift(level))
    }

    /// Returns every superpage of `level` with the number of its referenced units, in no order.
    pub(crate) fn superpages(&self, level: usize) -> impl Iterator<Item = (Place, usize)> + '_ {
        let shift = self.page_sizes.shift(level);
        self.segments.iter().flat_map(move |(segment, chunk)| {
            let bits = self.segments.peek(chunk).0;
            let units = (0..self.page_sizes.units_per_segment()).step_by(1 << shift);
            let mapped = units.filter(move |&unit| self.units.mapped(bits, unit) == level);
            mapped.map(move |unit| (Place { segment, unit }, count(bits, unit, shift)))
        })
    }

    /// Returns the level at which `place` is mapped.
    pub(crate) fn mapped(&mut self, place: Place) -> usize {
        let Some(chunk) = self.segments.find(place.segment) else { return 0 };
        self.units.mapped(self.segments.peek(chunk).0, place.unit)
    }

    /// Marks all units of a superpage as not referenced.
    pub(crate) fn start_over(&mut self, range: Superpage) {
        self.fill(range, false);
    }

    /// Marks all units of a superpage as referenced, or as not referenced.
    pub(crate) fn fill(&mut self, range: Superpage, referenced: bool) {
        let Some((place, level)) = self.page_sizes.find(range) else { return };
        if let Some(chunk) = self.segments.find(place.segment) {
            self.units.fill(self.segments.bits(chunk), place.unit, level, referenced);
        }
    }

    /// Records that a superpage is one mapping. Does nothing if one mapping already covers it.
    pub(crate) fn promote(&mut self, range: Superpage) {
        let Some((place, level)) = self.page_sizes.find(range) else { return };
        let Ok(chunk) = self.segments.touch(place.segment) else { return };
        if self.mapped(place) >= level {
            return;
        }
        self.units.join(self.segments.parts(chunk).0, place.unit, level, true);
    }

    /// Returns a page of each superpage that is only partly within `pages`: the caller must demote that superpage before it
    /// unmaps `pages`.
    pub(crate) fn cut(&mut self, pages: Pages) -> [Option<Vpn>; 2] {
        let page_sizes = self.page_sizes;
        page_sizes.cut(pages, |page| {
            let place = page_sizes.locate(page);
            let level = self.mapped(place);
            page_sizes.superpage(place, level).filter(|_| level > 0)
        })
    }

    /// Splits the superpage around `page`, and marks all of its units as not referenced. Returns the superpage, or `None` if
    /// `page` is in no superpage.
    pub(crate) fn demote(&mut self, page: Vpn) -> Option<Superpage> {
        let range = self.split(page)?;
        self.start_over(range);
        Some(range)
    }

    /// Splits the superpage around `page`, whose units stay as they are. Returns the superpage, or `None` if `page` is in no
    /// superpage.
    pub(crate) fn split(&mut self, page: Vpn) -> Option<Superpage> {
        let place = self.page_sizes.locate(page);
        let chunk = self.segments.find(place.segment)?;
        let (bits, _) = self.segments.parts(chunk);
        let level = self.units.mapped(bits, place.unit);
        if level == 0 {
            return None;
        }
        self.units.join(bits, place.unit, level, false);
        self.page_sizes.superpage(place, level)
    }

    /// Frees the segments that are wholly within `pages`, and clears the references and mappings of `pages` in other
    /// segments. Superpages that are only partly within `pages` are demoted.
    pub(crate) fn unmapped(&mut self, pages: Pages) {
        for page in self.cut(pages).into_iter().flatten() {
            self.demote(page);
        }
        self.segments.unmapped(&self.page_sizes, pages);
        for (segment, units) in self.page_sizes.edges(pages) {
            if let Some(chunk) = self.segments.find(segment) {
                self.units.clear(self.segments.bits(chunk), units);
            }
        }
    }
}
