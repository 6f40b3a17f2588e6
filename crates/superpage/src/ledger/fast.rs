//! The fast path of misses and evictions.
//!
//! It has the effect of [`Ledger::miss`] and [`Ledger::evict`]. Most functions here are inlined, so that the compiler saves
//! no registers around them; [`ApproxOnline`](crate::ApproxOnline) calls them one after the other. `PLAIN` states that
//! [`Ledger::is_plain`] returns true, which makes shifts and masks constants.

use tlbkit_addr::Vpn;

use super::{Charged, Ledger};
use crate::block::{self, JOINED, POPULATED};
use crate::{Miss, Tlb, deferred, prefetch_charge};

/// How much of a miss the fast path has done. An index is that of a block in the ledger's `blocks`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fast {
    /// The miss is done.
    Done,
    /// The miss is done, with a charge to the superpages of `1 << shift` units or more. The sums of the block are due. The
    /// values are the block's index and the shift.
    Due(usize, u32),
    /// The miss is the first touch of a page in the block at this index. It may complete a fully populated superpage, or
    /// lower the price of one. Nothing was done.
    Fills(usize),
    /// The page is part of a superpage, in the block at this index. Nothing was done.
    InSuperpage(usize),
    /// The whole block at this index is part of one superpage. Nothing was done.
    Large(usize),
    /// The block at this index has no resident entry. Nothing was done.
    Distant(usize),
    /// The cache of recent blocks does not have the block. Nothing was done.
    Not,
}

/// How much of a miss in a block without a resident entry the fast path has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Distant {
    /// The miss is done.
    Done,
    /// The refill is recorded. The caller must charge the superpages of `1 << shift` units or more; the value is the shift.
    Pays(u32),
    /// Nothing was done.
    Not,
}

impl Ledger<'_> {
    /// Returns whether a unit is one page, there are two TLBs, and a segment's bitmap of blocks has at least two words.
    pub(crate) fn is_plain(&self) -> bool {
        self.last_tlb == 1 && self.recent.is_plain() && self.occupied.is_plain()
    }

    #[inline(always)]
    fn tlb_at<const PLAIN: bool>(&self, tlb: Tlb) -> usize {
        if PLAIN { usize::from(tlb == Tlb::Instruction) } else { self.tlb(tlb) }
    }

    #[inline(always)]
    fn unit_at<const PLAIN: bool>(&self, page: Vpn) -> usize {
        if PLAIN { page.get() } else { self.recent.unit(page) }
    }

    /// The fast path of [`miss`](Self::miss).
    ///
    /// The fast path applies when the cache has the block and the block has resident entries. With `RESERVES`, the function
    /// also checks for the first touch of a page; a first touch that may complete a fully populated superpage takes the slow
    /// path.
    #[inline(always)]
    pub(crate) fn miss_fast<const RESERVES: bool, const PLAIN: bool>(&mut self, miss: &Miss) -> Fast {
        let (tlb, unit) = (self.tlb_at::<PLAIN>(miss.tlb), self.unit_at::<PLAIN>(miss.page));
        let Some(index) = self.recent.find(unit) else { return Fast::Not };
        let Some(block) = self.blocks.get_mut(index) else { return Fast::Not };
        if RESERVES && block[POPULATED] >> (unit % block::UNITS) & 1 == 0 {
            let bit = 1 << (unit % block::UNITS);
            let populated = block[POPULATED] | bit;
            let may_fill = !populated & block::within(1, unit) == 0;
            if self.waits || may_fill && self.closed.get(index).is_some_and(|closed| closed & bit == 0) {
                return Fast::Fills(index);
            }
            block[POPULATED] = populated;
        }
        if block[JOINED] != 0 && block::is_joined(block, unit) {
            return Fast::InSuperpage(index);
        }
        let resident = block[tlb];
        let Some(beyond) = prefetch_charge::smallest(resident, unit, &self.around) else {
            return Fast::Distant(index);
        };
        block[tlb] = resident | 1 << (unit % block::UNITS);
        if prefetch_charge::charge(block, beyond, unit) { Fast::Due(index, beyond + 1) } else { Fast::Done }
    }

    /// The fast path of [`miss`](Self::miss) for a page that is part of a superpage smaller than its block.
    #[inline(always)]
    pub(crate) fn miss_in_superpage<const PLAIN: bool>(&mut self, miss: &Miss, index: usize) -> Fast {
        let (tlb, unit) = (self.tlb_at::<PLAIN>(miss.tlb), self.unit_at::<PLAIN>(miss.page));
        let Some(block) = self.blocks.get_mut(index) else { return Fast::Not };
        let (mapped, resident) = (block::mapped(block, unit), block[tlb]);
        if mapped == block::SHIFT {
            return Fast::Large(index);
        }
        let Some(beyond) = prefetch_charge::smallest(resident, unit, &self.around) else {
            return Fast::Distant(index);
        };
        block[tlb] = resident | 1 << ((unit % block::UNITS) >> mapped << mapped);
        let beyond = beyond.max(mapped);
        if prefetch_charge::charge(block, beyond, unit) { Fast::Due(index, beyond + 1) } else { Fast::Done }
    }

    /// The fast path of [`miss`](Self::miss) for a page in a block that has no resident entry. It applies when another block
    /// with a resident entry has its bit in the same bitmap word, or with `PLAIN` in the same pair of words. `JOINED` states
    /// that the page may be part of a superpage within the block.
    #[inline(always)]
    pub(crate) fn miss_distant<const PLAIN: bool, const JOINED: bool>(
        &mut self,
        miss: &Miss,
        index: usize,
    ) -> Distant {
        let (tlb, unit) = (self.tlb_at::<PLAIN>(miss.tlb), self.unit_at::<PLAIN>(miss.page));
        let Some(group) = self.occupied.near::<PLAIN>(tlb, index) else { return Distant::Not };
        let Some(block) = self.blocks.get_mut(index) else { return Distant::Not };
        let mapped = if JOINED { block::mapped(block, unit) } else { 0 };
        block[tlb] = 1 << ((unit % block::UNITS) >> mapped << mapped);
        self.charge_group(index, group)
    }

    /// Charges a miss to the node of `1 << group` blocks around the block at `index`. If the node's count has to be checked,
    /// the charge is left to the caller.
    #[inline(always)]
    fn charge_group(&mut self, index: usize, group: u32) -> Distant {
        let at = self.node(index, group);
        let Some(node) = self.nodes.get_mut(at) else { return Distant::Done };
        if deferred::charge_fast(node) { Distant::Done } else { Distant::Pays(block::SHIFT + group) }
    }

    /// The fast path of [`miss`](Self::miss) for a page of a superpage that has the size of a block or more.
    #[inline(always)]
    pub(crate) fn miss_large<const PLAIN: bool>(&mut self, miss: &Miss, index: usize) -> Distant {
        let tlb = self.tlb_at::<PLAIN>(miss.tlb);
        let first = index & !self.mask;
        let unit = (index & self.mask) << block::SHIFT;
        let shift = self.mapped_shift(index >> self.spread, unit);
        let around = self.occupied.around(tlb, index);
        self.enter(first >> self.spread, tlb, unit >> shift << shift);
        match around.map(|group| (block::SHIFT + group).max(shift + 1)) {
            Some(from) if from <= self.spread + block::SHIFT => self.charge_group(index, from - block::SHIFT),
            _ => Distant::Done,
        }
    }

    /// As [`miss_distant`](Self::miss_distant), when the nearest resident entry is outside those bitmap words.
    #[inline(always)]
    pub(crate) fn miss_beyond<const PLAIN: bool>(&mut self, miss: &Miss, index: usize) -> Distant {
        let (tlb, unit) = (self.tlb_at::<PLAIN>(miss.tlb), self.unit_at::<PLAIN>(miss.page));
        let Some(block) = self.blocks.get_mut(index) else { return Distant::Not };
        let mapped = block::mapped(block, unit);
        block[tlb] = 1 << ((unit % block::UNITS) >> mapped << mapped);
        let Some(group) = self.occupied.occupy(tlb, index) else { return Distant::Done };
        self.charge_group(index, group)
    }

    /// Charges a miss to the superpages of `1 << from` units or more around a block.
    pub(crate) fn pay_at(&mut self, index: usize, from: u32) -> Charged {
        self.pay(index >> self.spread, index % (1 << self.spread), from)
    }

    /// Computes the sums of a block, which are due after a charge to the superpages of `1 << from` units or more.
    pub(crate) fn account_at(&mut self, index: usize, page: Vpn, from: u32) -> Charged {
        let above = self.node(index, 1);
        if let (Some(block), Some(node)) = (self.blocks.get_mut(index), self.nodes.get_mut(above))
            && self.rules.account_fast(block, node)
        {
            return Charged::Nothing;
        }
        let unit = ((index & self.mask) << block::SHIFT) | (self.recent.unit(page) % block::UNITS);
        self.account(index >> self.spread, unit, from)
    }

    /// The fast path of [`evict`](Self::evict). Returns whether the cache had the block.
    #[inline(always)]
    pub(crate) fn evict_fast<const PLAIN: bool>(&mut self, tlb: Tlb, page: Vpn) -> bool {
        let (tlb, unit) = (self.tlb_at::<PLAIN>(tlb), self.unit_at::<PLAIN>(page));
        let Some(index) = self.recent.find(unit) else { return false };
        self.leave::<PLAIN>(index, tlb, unit);
        true
    }

    /// Removes the entry that starts at `unit` from the resident entries of the block at `index`.
    #[inline(always)]
    pub(super) fn leave<const PLAIN: bool>(&mut self, index: usize, tlb: usize, unit: usize) {
        let Some(block) = self.blocks.get_mut(index) else { return };
        block[tlb] &= !(1 << (unit % block::UNITS));
        if block[tlb] == 0 {
            self.occupied.remove::<PLAIN>(tlb, index);
        }
    }
}
