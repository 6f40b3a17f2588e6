//! The bookkeeping that the policies which count misses share, for every touched segment: the resident entries, the sizes of
//! the mappings, and the prefetch charges (section 6.1, Appendix A).
//!
//! ```text
//!   segment, the largest size:   a tree of deferred counts over its blocks (deferred.rs)
//!   block, 16 units:             21 counters of 16 bits (block.rs)
//! ```

use tlbkit_addr::{PageSize, Pages, Vpn};

use crate::block::{self, Block, JOINED, POPULATED};
use crate::deferred::{self, Node, Rules, Segment};
use crate::directory::Directory;
use crate::occupied::Occupied;
use crate::page_sizes::{MAX_LEVELS, Place};
use crate::recent::RecentBlocks;
use crate::{CostError, PageSizes, PolicyMemory, SegmentMemory, Superpage, Tlb, prefetch_charge};

mod reserved;

/// The outcome of a miss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Charged {
    /// No superpage's count has reached its price.
    Nothing,
    /// The level of the smallest charged superpage around the page whose count has reached its price.
    Ready(usize),
    /// There is no memory for the counters of the segment.
    Exhausted,
}

/// Number of 16-bit counters of a segment for each of its blocks: those of the block, and those of one node.
const PER_BLOCK: usize = size_of::<Block>() / size_of::<u16>() + size_of::<Node>() / size_of::<u16>();

#[derive(Debug)]
pub(crate) struct Ledger<'m> {
    pub(crate) page_sizes: PageSizes,
    /// The thresholds, in charges, by level.
    levels: [u32; MAX_LEVELS],
    /// The shifts of all superpage sizes, as a set of bits.
    shifts: u32,
    /// The level of the regions for which memory is reserved; 0 if none is.
    reserved: usize,
    /// The price, in charges, of a superpage whose pages are all untouched, by level. It is at least the threshold, and it
    /// is the largest count that a superpage of this level can have.
    prices: [u32; MAX_LEVELS],
    /// Whether untouched pages raise a superpage's price above its threshold.
    frugal: bool,
    /// Whether some superpage's count has reached its threshold but not its price.
    waits: bool,
    /// For each block, the set of its units that have no reservation; empty for policies that reserve nothing.
    closed: &'m mut [u16],
    rules: Rules,
    /// log2 of the blocks of a segment.
    spread: u32,
    /// The mask of a block's number within its segment.
    mask: usize,
    /// The index of the last TLB: 0 if there is one TLB.
    last_tlb: usize,
    directory: Directory<'m>,
    recent: RecentBlocks,
    occupied: Occupied<'m>,
    blocks: &'m mut [Block],
    nodes: &'m mut [Node],
    /// How often a count was compared with its price.
    #[cfg(test)]
    pub(crate) looks: u32,
}

/// Returns log2 of the blocks of a segment.
fn spread(page_sizes: &PageSizes) -> u32 {
    page_sizes.shift(page_sizes.top()).saturating_sub(block::SHIFT)
}

/// Returns a function that maps log2 of a superpage's units to the value that the table `of` has at its level, or to `None`
/// if no level has that size.
fn by_shift<'a>(page_sizes: &'a PageSizes, of: &'a [u32; MAX_LEVELS]) -> impl Fn(u32) -> Option<u32> + 'a {
    move |shift| (1..page_sizes.levels()).find(|&l| page_sizes.shift(l) == shift).map(|level| of[level])
}

/// Returns the level of the regions for which memory can be reserved; 0 if there is none.
pub(crate) fn reserved(page_sizes: &PageSizes) -> usize {
    let fits = |&level: &usize| {
        page_sizes.shift(level) <= block::SHIFT
            && page_sizes.size(level).is_some_and(|size| size <= PageSize::K64)
    };
    (0..page_sizes.levels()).rfind(fits).unwrap_or(0)
}

impl<'m> Ledger<'m> {
    /// Returns the memory that one segment takes.
    ///
    /// # Errors
    ///
    /// [`CostError::TooLarge`] if a threshold of up to 16 units does not fit a counter.
    pub(crate) fn segment_memory(
        page_sizes: &PageSizes,
        thresholds: [u32; MAX_LEVELS],
        reserves: bool,
    ) -> Result<SegmentMemory, CostError> {
        for (level, &threshold) in thresholds.iter().enumerate().take(page_sizes.levels()) {
            if page_sizes.shift(level) <= block::SHIFT && threshold >= block::MOST.into() {
                return Err(CostError::TooLarge);
            }
        }
        let spread = spread(page_sizes);
        let per_block = PER_BLOCK + usize::from(reserves);
        Ok(SegmentMemory { bits: Occupied::words(spread), counters: per_block << spread })
    }

    /// Makes the ledger. If there are `prices`, the policy reserves memory at first touches, and counts may exceed
    /// thresholds up to these prices.
    ///
    /// # Errors
    ///
    /// As [`segment_memory`](Self::segment_memory).
    pub(crate) fn new(
        page_sizes: PageSizes,
        thresholds: [u32; MAX_LEVELS],
        prices: Option<[u32; MAX_LEVELS]>,
        tlbs: usize,
        memory: PolicyMemory<'m>,
    ) -> Result<Self, CostError> {
        let reserves = prices.is_some();
        let per_segment = Self::segment_memory(&page_sizes, thresholds, reserves)?;
        let chunks = per_segment.fits(&memory).min(memory.directory.len());
        let PolicyMemory { directory, bits, counters } = memory;
        let spread = spread(&page_sizes);
        let blocks = chunks << spread;
        let (counters, rest) = counters.split_at_mut(counters.len().min(blocks * block::WORDS));
        let (nodes, rest) = rest.split_at_mut(rest.len().min(blocks * size_of::<Node>() / size_of::<u16>()));
        let threshold = by_shift(&page_sizes, &thresholds);
        let reserved = if reserves { reserved(&page_sizes) } else { 0 };
        let populated = if reserved == 0 { u16::MAX } else { 0 };
        let mut prices = prices.unwrap_or(thresholds);
        for (level, price) in prices.iter_mut().enumerate() {
            if page_sizes.shift(level) <= block::SHIFT {
                *price = (*price).min(block::MOST.into());
            }
        }
        Ok(Self {
            levels: thresholds,
            shifts: (1..page_sizes.levels()).fold(0, |shifts, level| shifts | 1 << page_sizes.shift(level)),
            reserved,
            prices,
            frugal: false,
            waits: false,
            closed: rest,
            rules: Rules::new(&page_sizes, populated, threshold),
            spread,
            mask: (1 << spread) - 1,
            last_tlb: tlbs - 1,
            directory: Directory::new(directory, chunks),
            recent: RecentBlocks::new(&page_sizes),
            occupied: Occupied::new(bits, spread, chunks),
            blocks: counters.as_chunks_mut().0,
            nodes: nodes.as_chunks_mut().0,
            page_sizes,
            #[cfg(test)]
            looks: 0,
        })
    }

    #[inline(always)]
    pub(crate) fn tlb(&self, tlb: Tlb) -> usize {
        usize::from(tlb == Tlb::Instruction) & self.last_tlb
    }

    /// Returns the count, in charges, at which a superpage of `level` is a candidate.
    pub(crate) fn threshold(&self, level: usize) -> u32 {
        self.levels.get(level).copied().unwrap_or(u32::MAX)
    }

    /// Returns the chunk of a segment, without charges if it is new.
    #[inline(never)]
    fn touch(&mut self, segment: usize) -> Option<usize> {
        if let Some(chunk) = self.directory.find(segment) {
            return Some(chunk);
        }
        let chunk = self.directory.insert(segment).ok()?;
        for tlb in 0..=self.last_tlb {
            self.occupied.clear(tlb, chunk);
        }
        self.segment(chunk)?.open();
        if let Some(closed) = self.closed.get_mut(chunk << self.spread..(chunk + 1) << self.spread) {
            closed.fill(0);
        }
        Some(chunk)
    }

    fn segment(&mut self, chunk: usize) -> Option<Segment<'_>> {
        let all = chunk << self.spread..(chunk + 1) << self.spread;
        let (blocks, nodes) = (self.blocks.get_mut(all.clone())?, self.nodes.get_mut(all)?);
        Some(Segment { rules: &self.rules, blocks, nodes })
    }

    /// Returns the index in `self.blocks` of block `number` of a chunk.
    #[inline(always)]
    const fn index(&self, chunk: usize, number: usize) -> usize {
        chunk << self.spread | number
    }

    /// Returns the index of a page's block, and prepares the block for use.
    #[inline]
    fn find(&mut self, page: Vpn) -> Option<usize> {
        self.recent.find(self.recent.unit(page)).or_else(|| self.search(page))
    }

    /// As [`find`](Self::find), for a block that the cache does not have.
    #[inline(never)]
    fn search(&mut self, page: Vpn) -> Option<usize> {
        let Place { segment, unit } = self.page_sizes.locate(page);
        let chunk = self.directory.near(segment).or_else(|| self.touch(segment))?;
        let number = unit >> block::SHIFT;
        self.segment(chunk)?.prepare(number);
        let index = self.index(chunk, number);
        self.recent.found(self.recent.unit(page), index);
        Some(index)
    }

    /// Charges a miss, unless `count` is false, and records that the TLB now holds the entry.
    ///
    /// The entries that were resident before this miss determine the charges, including the entry that is about to be
    /// evicted. Candidates are strictly larger than the page's mapping.
    #[inline]
    pub(crate) fn miss(&mut self, tlb: Tlb, page: Vpn, count: bool) -> Charged {
        let (tlb, unit) = (self.tlb(tlb), self.page_sizes.locate(page).unit);
        let Some(index) = self.find(page) else { return Charged::Exhausted };
        let chunk = index >> self.spread;
        let Some(block) = self.blocks.get_mut(index) else { return Charged::Exhausted };
        let mapped = block::mapped(block, unit);
        if mapped == block::SHIFT {
            return self.miss_in_large(chunk, tlb, unit, count);
        }
        let resident = block[tlb];
        block[tlb] = resident | 1 << ((unit % block::UNITS) >> mapped << mapped);
        let Some(beyond) = prefetch_charge::smallest(resident, unit) else {
            let from = self.occupied.occupy(tlb, index).map_or(u32::MAX, |group| block::SHIFT + group);
            return if count { self.pay(index, from) } else { Charged::Nothing };
        };
        let beyond = beyond.max(mapped);
        if count && prefetch_charge::charge(block, beyond, unit) {
            return self.account(chunk, unit, beyond + 1);
        }
        Charged::Nothing
    }

    /// Charges and records a miss to a page whose mapping has the size of a block or more.
    #[inline(never)]
    fn miss_in_large(&mut self, chunk: usize, tlb: usize, unit: usize, count: bool) -> Charged {
        let (shift, number) = (self.mapped_shift(chunk, unit), unit >> block::SHIFT);
        let around = self.occupied.around(tlb, self.index(chunk, number));
        let from = around.map_or(u32::MAX, |group| (block::SHIFT + group).max(shift + 1));
        let index = self.index(chunk, number);
        let charged = if count { self.pay(index, from) } else { Charged::Nothing };
        self.enter(chunk, tlb, unit >> shift << shift);
        charged
    }

    /// Charges a miss to the superpages of `1 << from` units or more around the block at `index`, if a segment has such superpages.
    #[inline]
    fn pay(&mut self, index: usize, from: u32) -> Charged {
        if from > self.spread + block::SHIFT {
            return Charged::Nothing;
        }
        let node = (index & !self.mask) | ((self.mask + 1) | (index & self.mask)) >> (from - block::SHIFT);
        let is_deferred = self.nodes.get_mut(node).is_none_or(|node| deferred::defer(node, 1));
        if is_deferred { Charged::Nothing } else { self.check(index, from) }
    }

    /// As [`pay`](Self::pay), if the smallest of these superpages cannot defer the charge.
    #[inline(never)]
    fn check(&mut self, index: usize, from: u32) -> Charged {
        let (chunk, number) = (index >> self.spread, index & self.mask);
        let reached = self.segment(chunk).map_or(0, |mut segment| segment.pay(number, from, 1));
        self.smallest(reached, chunk, number << block::SHIFT)
    }

    #[inline(never)]
    fn account(&mut self, chunk: usize, unit: usize, from: u32) -> Charged {
        let reached = self.segment(chunk).map_or(0, |mut segment| segment.account(unit, from));
        let charged = self.smallest(reached, chunk, unit);
        if self.waits {
            self.rest(chunk, unit >> block::SHIFT);
        }
        charged
    }

    /// Returns the smallest superpage around a unit whose count has reached its price. `reached` is the set of shifts whose
    /// counts have reached their thresholds.
    #[inline(always)]
    fn smallest(&mut self, reached: u32, chunk: usize, unit: usize) -> Charged {
        match reached & self.shifts {
            0 => Charged::Nothing,
            shifts if self.frugal => self.smallest_paid(shifts, chunk, unit),
            shifts => Charged::Ready(self.level(shifts.trailing_zeros())),
        }
    }

    /// Returns the highest level whose superpages have at most `1 << shift` units.
    fn level(&self, shift: u32) -> usize {
        (0..self.page_sizes.levels()).rfind(|&level| self.page_sizes.shift(level) <= shift).unwrap_or(0)
    }

    /// Returns log2 of the units that the mapping of a unit has.
    fn mapped_shift(&self, chunk: usize, unit: usize) -> u32 {
        let block = |number: usize| self.blocks.get(self.index(chunk, number));
        let Some(own) = block(unit >> block::SHIFT) else { return 0 };
        let mut shift = block::mapped(own, unit);
        // A larger superpage is within one mapping if the block in its middle shares its mapping with the block before it.
        while shift >= block::SHIFT && shift < self.spread + block::SHIFT {
            let middle = (unit >> (shift + 1) << (shift + 1) | 1 << shift) >> block::SHIFT;
            if block(middle).is_none_or(|block| block[JOINED] & 1 == 0) {
                break;
            }
            shift += 1;
        }
        shift
    }

    /// Records that the TLB holds the entry that starts at `unit`.
    fn enter(&mut self, chunk: usize, tlb: usize, unit: usize) {
        let index = self.index(chunk, unit >> block::SHIFT);
        let Some(block) = self.blocks.get_mut(index) else { return };
        block[tlb] |= 1 << (unit % block::UNITS);
        self.occupied.insert(tlb, index);
    }

    /// Records that the TLB no longer holds the entry that starts at `page`. Does nothing if it did not hold that entry.
    #[inline]
    pub(crate) fn evict(&mut self, tlb: Tlb, page: Vpn) {
        match self.recent.find(self.recent.unit(page)) {
            Some(index) => self.leave(index, self.tlb(tlb), self.recent.unit(page)),
            None => self.evict_far(tlb, page),
        }
    }

    /// As [`evict`](Self::evict), for a block that the cache does not have.
    #[inline(never)]
    fn evict_far(&mut self, tlb: Tlb, page: Vpn) {
        let (Place { segment, unit }, tlb) = (self.page_sizes.locate(page), self.tlb(tlb));
        if let Some(chunk) = self.directory.find(segment) {
            let index = self.index(chunk, unit >> block::SHIFT);
            // A block that was never touched has no resident entry, and must not enter the cache: a miss that found it there
            // would use it without initialization.
            if self.blocks.get(index).is_some_and(|block| block::left(block) > 0) {
                self.recent.found(self.recent.unit(page), index);
                self.leave(index, tlb, unit);
            }
        }
    }

    /// Removes the entry that starts at `unit` from the resident entries of the block at `index`.
    #[inline]
    fn leave(&mut self, index: usize, tlb: usize, unit: usize) {
        let Some(block) = self.blocks.get_mut(index) else { return };
        block[tlb] &= !(1 << (unit % block::UNITS));
        if block[tlb] == 0 {
            self.occupied.remove(tlb, index);
        }
    }

    /// Removes every resident entry within the superpage of `1 << shift` units around `unit`. Returns whether there was one.
    fn evict_all(&mut self, chunk: usize, tlb: usize, unit: usize, shift: u32) -> bool {
        let blocks = 1 << shift.saturating_sub(block::SHIFT);
        let first = unit >> block::SHIFT & !(blocks - 1);
        let gone = block::within(shift, unit);
        let mut any = false;
        for number in first..first + blocks {
            let index = self.index(chunk, number);
            let Some(block) = self.blocks.get_mut(index) else { break };
            if block[tlb] & gone != 0 {
                any = true;
                block[tlb] &= !gone;
                if block[tlb] == 0 {
                    self.occupied.remove(tlb, index);
                }
            }
        }
        any
    }

    /// Initializes the blocks of the superpage of `1 << shift` units around `unit` that have not been used yet.
    fn prepare(&mut self, chunk: usize, unit: usize, shift: u32) {
        let blocks = 1 << shift.saturating_sub(block::SHIFT);
        let first = unit >> block::SHIFT & !(blocks - 1);
        let Some(mut segment) = self.segment(chunk) else { return };
        for number in first..first + blocks {
            segment.prepare(number);
        }
    }

    /// Marks the superpage of `1 << shift` units around `unit` as one mapping if `one`, and otherwise as separate units.
    fn join(&mut self, chunk: usize, unit: usize, shift: u32, one: bool) {
        let blocks = 1 << shift.saturating_sub(block::SHIFT);
        let first = unit >> block::SHIFT & !(blocks - 1);
        for number in first..first + blocks {
            let index = self.index(chunk, number);
            let Some(block) = self.blocks.get_mut(index) else { break };
            let all = block::within(shift, unit);
            // All but the first unit of the superpage.
            let joined = if number == first { all & (all - 1) } else { all };
            block[JOINED] = if one { block[JOINED] | joined } else { block[JOINED] & !joined };
        }
    }

    /// Records that the superpage of `level` around `place` is one mapping now: in each TLB that held entries of its
    /// components, one entry for the superpage replaces them. The counts of larger superpages around it decrease by `less`,
    /// or by its own count if `less` is `None`. Does nothing if one mapping already covers the superpage.
    pub(crate) fn promote(&mut self, place: Place, level: usize, less: Option<u32>) {
        let Some(chunk) = self.directory.find(place.segment) else { return };
        let shift = self.page_sizes.shift(level);
        let first = place.unit >> shift << shift;
        if self.mapped_shift(chunk, first) >= shift {
            return;
        }
        self.prepare(chunk, first, shift);
        for tlb in 0..=self.last_tlb {
            if self.evict_all(chunk, tlb, first, shift) {
                self.enter(chunk, tlb, first);
            }
        }
        self.join(chunk, first, shift, true);
        let less = less.unwrap_or_else(|| self.count(place, level));
        self.restart(chunk, first, shift, less);
    }

    /// Calls [`Segment::restart`] for a chunk.
    fn restart(&mut self, chunk: usize, unit: usize, shift: u32, less: u32) {
        if let Some(mut segment) = self.segment(chunk) {
            segment.restart(unit, shift, less);
        }
    }

    /// Sets the charges of the superpage of `level` around `place` to zero, and no others.
    pub(crate) fn start_over(&mut self, place: Place, level: usize) {
        let Some(chunk) = self.directory.find(place.segment) else { return };
        let shift = self.page_sizes.shift(level);
        if let Some(mut segment) = self.segment(chunk) {
            segment.start_over(place.unit, shift);
        }
    }

    /// Returns the superpage that maps a page, or `None` if the page has a mapping of one unit.
    fn superpage(&mut self, page: Vpn) -> Option<Superpage> {
        let place = self.page_sizes.locate(page);
        let level = self.mapped(place);
        self.page_sizes.superpage(place, level).filter(|_| level > 0)
    }

    /// Returns a page of each superpage that is partly in `pages` and partly outside: the caller must demote that superpage
    /// before it unmaps `pages`.
    pub(crate) fn cut(&mut self, pages: Pages) -> [Option<Vpn>; 2] {
        let page_sizes = self.page_sizes;
        page_sizes.cut(pages, |page| self.superpage(page))
    }

    /// Splits the superpage that maps `page` into units, none of them resident. Returns it, or `None` if `page` is
    /// not in a superpage.
    pub(crate) fn demote(&mut self, page: Vpn) -> Option<Superpage> {
        let place = self.page_sizes.locate(page);
        let chunk = self.directory.find(place.segment)?;
        let shift = self.mapped_shift(chunk, place.unit);
        if shift == 0 {
            return None;
        }
        for tlb in 0..=self.last_tlb {
            self.evict_all(chunk, tlb, place.unit, shift);
        }
        self.join(chunk, place.unit, shift, false);
        self.restart(chunk, place.unit, shift, 0);
        self.page_sizes.superpage(place, self.level(shift))
    }

    /// Frees the segments that are wholly within `pages`, and removes the mappings and resident entries in the parts of
    /// other segments. No superpage may be [partly within `pages`](Self::cut).
    pub(crate) fn unmapped(&mut self, pages: Pages) {
        self.recent.forget();
        self.directory.unmapped(&self.page_sizes, pages);
        for (segment, units) in self.page_sizes.edges(pages) {
            let Some(chunk) = self.directory.find(segment) else { continue };
            for unit in units {
                let index = self.index(chunk, unit >> block::SHIFT);
                let Some(block) = self.blocks.get_mut(index) else { break };
                let bit = 1 << (unit % block::UNITS);
                block[JOINED] &= !bit;
                if self.reserved > 0 {
                    block[POPULATED] &= !bit;
                }
                for tlb in 0..=self.last_tlb {
                    self.leave(index, tlb, unit);
                }
            }
        }
    }

    /// Records that the TLB was flushed. The time is proportional to the number of blocks that have a resident entry.
    pub(crate) fn flushed(&mut self, tlb: Tlb) {
        let tlb = self.tlb(tlb);
        self.occupied.drain(tlb, |index| {
            if let Some(block) = self.blocks.get_mut(index) {
                block[tlb] = 0;
            }
        });
    }

    /// Returns Appendix A's `tlbcount` of a superpage: -1 if it is inside a larger mapping, 0 if no entry within it is
    /// resident, 1 if its own entry is resident, and otherwise the number of its components with a positive count. A
    /// superpage in an untouched segment has the count zero.
    pub(crate) fn tlbcount(&mut self, tlb: Tlb, superpage: Superpage) -> Option<i32> {
        let (place, level) = self.page_sizes.find(superpage)?;
        let Some(chunk) = self.directory.find(place.segment) else { return Some(0) };
        let (tlb, shift) = (self.tlb(tlb), self.page_sizes.shift(level));
        let mapped = self.mapped_shift(chunk, place.unit);
        if mapped > shift {
            return Some(-1);
        }
        if mapped == shift {
            return Some(self.holds(chunk, tlb, place.unit, shift).into());
        }
        let component = self.page_sizes.shift(level - 1);
        let components = (place.unit..place.unit + (1 << shift)).step_by(1 << component);
        Some(components.filter(|&unit| self.holds(chunk, tlb, unit, component)).count() as i32)
    }

    /// Tells whether the TLB holds an entry that starts in the superpage of `1 << shift` units around `unit`.
    fn holds(&self, chunk: usize, tlb: usize, unit: usize, shift: u32) -> bool {
        let blocks = 1 << shift.saturating_sub(block::SHIFT);
        let first = self.index(chunk, unit >> block::SHIFT & !(blocks - 1));
        let blocks = self.blocks.iter().skip(first).take(blocks);
        blocks.into_iter().any(|block| block[tlb] & block::within(shift, unit) != 0)
    }

    /// Returns the exact prefetch charges of a superpage.
    pub(crate) fn charged(&mut self, superpage: Superpage) -> Option<u32> {
        let (place, level) = self.page_sizes.find(superpage).filter(|&(_, level)| level > 0)?;
        Some(self.count(place, level))
    }

    /// Returns the exact prefetch charges of the superpage of `level` around `place`.
    pub(crate) fn count(&mut self, place: Place, level: usize) -> u32 {
        self.directory.find(place.segment).map_or(0, |chunk| self.count_in(chunk, place.unit, level))
    }

    /// Returns the exact prefetch charges of the superpage of `level` around a unit of a chunk.
    fn count_in(&mut self, chunk: usize, unit: usize, level: usize) -> u32 {
        let (number, shift) = (unit >> block::SHIFT, self.page_sizes.shift(level));
        let Some(segment) = self.segment(chunk) else { return 0 };
        if shift <= block::SHIFT {
            return segment.blocks.get(number).map_or(0, |block| {
                block::counts(block).get(block::number(shift, unit)).copied().unwrap_or(0).into()
            });
        }
        segment.exact(number, shift)
    }

    /// Returns the level at which `place` is mapped.
    pub(crate) fn mapped(&mut self, place: Place) -> usize {
        let Some(chunk) = self.directory.find(place.segment) else { return 0 };
        let shift = self.mapped_shift(chunk, place.unit);
        self.level(shift)
    }

    /// Tells whether a segment was touched and has counters.
    pub(crate) fn counts(&mut self, segment: usize) -> bool {
        self.directory.near(segment).or_else(|| self.directory.find(segment)).is_some()
    }

    /// Returns the number of segments in use, and the number for which there is memory.
    pub(crate) fn segments(&self) -> (usize, usize) {
        (self.directory.used(), self.directory.capacity())
    }
}
