//! The short way that most misses take.
//!
//! What it does is what [`Ledger::miss`] and [`Ledger::evict`] do. It is cut in pieces that call nothing, so that the
//! registers that calls would need are not saved; the policy puts them together
//! ([`ApproxOnline`](crate::ApproxOnline)). `PLAIN` says that [`Ledger::is_plain`]: then shifts and masks are constants.

use tlbkit_addr::Vpn;

use super::{Charged, Ledger};
use crate::block::{self, JOINED, POPULATED};
use crate::{Miss, Tlb, deferred};

/// Whether the little that most misses take was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Swift {
    Done,
    /// It was, in the block at this place, with a charge to the superpages of this shift and up. The sums are due.
    Due(usize, u32),
    /// This is the first touch of a page in the block at this place, and one that may fill a superpage, or lower the price
    /// of one. Nothing was done.
    Fills(usize),
    /// The page is part of a superpage, in the block at this place, and nothing was done.
    InSuperpage(usize),
    /// The superpage has the block at this place whole, and nothing was done.
    Large(usize),
    /// Nothing is resident in the block at this place, and nothing was done.
    Far(usize),
    /// Nothing was.
    Not,
}

/// What was done of a miss in a block that holds nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Far {
    Done,
    /// All but the charge, which is to the superpages of this shift and up.
    Pays(u32),
    /// Nothing was.
    Not,
}

impl Ledger<'_> {
    /// Tells whether units are pages, there are two TLBs, and the blocks of a segment fill two words of bits or more.
    pub(crate) fn is_plain(&self) -> bool {
        self.last_tlb == 1 && self.lately.is_plain() && self.occupied.is_plain()
    }

    #[inline(always)]
    fn tlb_at<const PLAIN: bool>(&self, tlb: Tlb) -> usize {
        if PLAIN { usize::from(tlb == Tlb::Instruction) } else { self.tlb(tlb) }
    }

    #[inline(always)]
    fn unit_at<const PLAIN: bool>(&self, page: Vpn) -> usize {
        if PLAIN { page.get() } else { self.lately.unit(page) }
    }

    /// The fast path of [`miss`](Self::miss).
    ///
    /// It applies when the block was found lately and holds resident entries. Nothing has to be called then, and the
    /// registers that calls would need are not saved. `PLAIN` says that [`is_plain`](Self::is_plain), `RESERVES` looks whether this is the first touch of a page with a
    /// reservation; one that fills something takes the slow path.
    #[inline(always)]
    pub(crate) fn miss_swiftly<const RESERVES: bool, const PLAIN: bool>(&mut self, miss: &Miss) -> Swift {
        let (tlb, unit) = (self.tlb_at::<PLAIN>(miss.tlb), self.unit_at::<PLAIN>(miss.page));
        let Some(index) = self.lately.find(unit) else { return Swift::Not };
        let Some(block) = self.blocks.get_mut(index) else { return Swift::Not };
        if RESERVES && block[POPULATED] >> (unit % block::UNITS) & 1 == 0 {
            let bit = 1 << (unit % block::UNITS);
            let populated = block[POPULATED] | bit;
            let may_fill = !populated & block::within(1, unit) == 0;
            if self.waits || may_fill && self.closed.get(index).is_some_and(|closed| closed & bit == 0) {
                return Swift::Fills(index);
            }
            block[POPULATED] = populated;
        }
        if block[JOINED] != 0 && block::is_joined(block, unit) {
            return Swift::InSuperpage(index);
        }
        let resident = block[tlb];
        let Some(beyond) = block::smallest(resident, unit, &self.around) else { return Swift::Far(index) };
        block[tlb] = resident | 1 << (unit % block::UNITS);
        if block::charge(block, beyond, unit) { Swift::Due(index, beyond + 1) } else { Swift::Done }
    }

    /// Does what [`miss`](Self::miss) does to part of a superpage in a block that was found lately, if that is little.
    #[inline(always)]
    pub(crate) fn miss_in_superpage<const PLAIN: bool>(&mut self, miss: &Miss, index: usize) -> Swift {
        let (tlb, unit) = (self.tlb_at::<PLAIN>(miss.tlb), self.unit_at::<PLAIN>(miss.page));
        let Some(block) = self.blocks.get_mut(index) else { return Swift::Not };
        let (mapped, resident) = (block::mapped(block, unit), block[tlb]);
        if mapped == block::SHIFT {
            return Swift::Large(index);
        }
        let Some(beyond) = block::smallest(resident, unit, &self.around) else { return Swift::Far(index) };
        block[tlb] = resident | 1 << ((unit % block::UNITS) >> mapped << mapped);
        let beyond = beyond.max(mapped);
        if block::charge(block, beyond, unit) { Swift::Due(index, beyond + 1) } else { Swift::Done }
    }

    /// Does what [`miss`](Self::miss) does to a page that is part of no superpage, or with `JOINED` of one within its block,
    /// in a block that was found lately and in which nothing was resident, if that is little: something is in the blocks
    /// that share a word of bits with it.
    #[inline(always)]
    pub(crate) fn miss_far<const PLAIN: bool, const JOINED: bool>(
        &mut self,
        miss: &Miss,
        index: usize,
    ) -> Far {
        let (tlb, unit) = (self.tlb_at::<PLAIN>(miss.tlb), self.unit_at::<PLAIN>(miss.page));
        let Some(group) = self.occupied.near::<PLAIN>(tlb, index) else { return Far::Not };
        let Some(block) = self.blocks.get_mut(index) else { return Far::Not };
        let mapped = if JOINED { block::mapped(block, unit) } else { 0 };
        block[tlb] = 1 << ((unit % block::UNITS) >> mapped << mapped);
        self.charge_group(index, group)
    }

    /// Charges a miss to the node of `1 << group` blocks around one, if nothing more comes of it.
    #[inline(always)]
    fn charge_group(&mut self, index: usize, group: u32) -> Far {
        let at = self.node(index, group);
        let Some(node) = self.nodes.get_mut(at) else { return Far::Done };
        if deferred::charge_swiftly(node) { Far::Done } else { Far::Pays(block::SHIFT + group) }
    }

    /// Does the same to a page of a superpage of a block or more.
    #[inline(always)]
    pub(crate) fn miss_large<const PLAIN: bool>(&mut self, miss: &Miss, index: usize) -> Far {
        let tlb = self.tlb_at::<PLAIN>(miss.tlb);
        let first = index & !self.mask;
        let unit = (index & self.mask) << block::SHIFT;
        let shift = self.mapped_shift(index >> self.spread, unit);
        let around = self.occupied.around(tlb, index);
        self.enter(first >> self.spread, tlb, unit >> shift << shift);
        match around.map(|group| (block::SHIFT + group).max(shift + 1)) {
            Some(from) if from <= self.spread + block::SHIFT => self.charge_group(index, from - block::SHIFT),
            _ => Far::Done,
        }
    }

    /// Does the same where the next that is resident is farther, and to part of a superpage in the block.
    #[inline(always)]
    pub(crate) fn miss_farther<const PLAIN: bool>(&mut self, miss: &Miss, index: usize) -> Far {
        let (tlb, unit) = (self.tlb_at::<PLAIN>(miss.tlb), self.unit_at::<PLAIN>(miss.page));
        let Some(block) = self.blocks.get_mut(index) else { return Far::Not };
        let mapped = block::mapped(block, unit);
        block[tlb] = 1 << ((unit % block::UNITS) >> mapped << mapped);
        let Some(group) = self.occupied.occupy(tlb, index) else { return Far::Done };
        self.charge_group(index, group)
    }

    /// Charges a miss to the superpages of `1 << from` units or more around a block.
    pub(crate) fn pay_at(&mut self, index: usize, from: u32) -> Charged {
        self.pay(index >> self.spread, index % (1 << self.spread), from)
    }

    /// Takes the sums of a block, which are due after a charge to the superpages of `1 << from` units and more.
    pub(crate) fn account_at(&mut self, index: usize, page: Vpn, from: u32) -> Charged {
        let above = self.node(index, 1);
        if let (Some(block), Some(node)) = (self.blocks.get_mut(index), self.nodes.get_mut(above))
            && self.rules.account_swiftly(block, node)
        {
            return Charged::Nothing;
        }
        let unit = ((index & self.mask) << block::SHIFT) | (self.lately.unit(page) % block::UNITS);
        self.account(index >> self.spread, unit, from)
    }

    /// Does what [`evict`](Self::evict) does, if the block was found lately, and says whether it was.
    #[inline(always)]
    pub(crate) fn evict_swiftly<const PLAIN: bool>(&mut self, tlb: Tlb, page: Vpn) -> bool {
        let (tlb, unit) = (self.tlb_at::<PLAIN>(tlb), self.unit_at::<PLAIN>(page));
        let Some(index) = self.lately.find(unit) else { return false };
        self.leave::<PLAIN>(index, tlb, unit);
        true
    }

    #[inline(always)]
    pub(super) fn leave<const PLAIN: bool>(&mut self, index: usize, tlb: usize, unit: usize) {
        let Some(block) = self.blocks.get_mut(index) else { return };
        block[tlb] &= !(1 << (unit % block::UNITS));
        if block[tlb] == 0 {
            self.occupied.remove::<PLAIN>(tlb, index);
        }
    }
}
