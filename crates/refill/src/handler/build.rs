//! What all handlers have in common: where the root is, how the entry is written, how a miss is passed on.

use super::{Front, Root, Spec, Write, report};
use crate::Error;
use crate::asm::{Asm, Cp0, K0, K1, Label, Reg, ZERO};
use crate::block::Block;
use crate::features::Isa;

/// From here on, at the end of kseg3, register 0 is the base of a load's 16-bit offset.
const NEAR: u32 = 0xffff_8000;

/// A handler under construction.
///
/// The parts agree on this: k0 and k1 are free wherever no part says otherwise; EntryHi is what the hardware made it, and
/// Index, if the handler reports, what was chosen, up to the write.
pub(crate) struct Build {
    pub(crate) asm: Asm,
    pub(crate) spec: Spec,
    /// The general exception vector: branching there passes the miss on, with everything but k0 and k1 intact.
    pub(crate) general: Label,
}

impl Build {
    /// Begins the code at the refill vector.
    pub(crate) const fn new(spec: &Spec) -> Self {
        let mut build = Self::nested(spec);
        build.asm.bind_at(build.general, spec.place.general / 4);
        build
    }

    /// Begins the code at the general vector.
    pub(crate) const fn nested(spec: &Spec) -> Self {
        let mut asm = Asm::new(spec.features.isa);
        let general = asm.label();
        let reached = spec.block >> 29 == 0b100 || spec.block >= NEAR;
        if !(spec.block as usize).is_multiple_of(align_of::<Block>()) || !reached {
            asm.fail(Error::BadAddress { address: spec.block });
        }
        if let Root::KScratch(select) = spec.root
            && !spec.features.has_kscratch(select)
        {
            asm.fail(Error::NoKScratch { select });
        }
        Self { asm, spec: *spec, general }
    }

    /// Tells whether the CPU has bit fields.
    pub(crate) const fn has_fields(&self) -> bool {
        matches!(self.spec.features.isa, Isa::R2)
    }

    /// Tells whether a cache stands in front, which PTEBase then is the address of.
    pub(crate) const fn is_fronted(&self) -> bool {
        !matches!(self.spec.front, Front::None)
    }

    /// What follows is for few misses: it goes to the tail.
    pub(crate) const fn cold(&mut self) {
        self.asm.split(self.spec.place.tail / 4);
    }

    /// Returns the base for the words of the CPU's block: `rt`, or, if the block is that near, register 0, which takes no
    /// instruction.
    pub(crate) const fn block_base(&mut self, rt: Reg) -> Reg {
        if self.spec.block >= NEAR {
            return ZERO;
        }
        self.block_high(rt);
        rt
    }

    /// Makes `rt` the base for the words of the CPU's block.
    const fn block_high(&mut self, rt: Reg) {
        self.asm.lui(rt, (self.spec.block.wrapping_add(0x8000) >> 16) as u16);
    }

    /// Returns the offset of a word of the block from its base.
    pub(crate) const fn block_low(&self, word: u32) -> i16 {
        (self.spec.block + word) as i16
    }

    /// Makes `rt` the base for the block's word `save`, one of the handler's own, and returns the word's offset. These are
    /// for few misses, and the base is often made in a delay slot: `rt` is it wherever the block is.
    pub(crate) const fn save_high(&mut self, rt: Reg, save: usize) -> i16 {
        self.block_high(rt);
        self.save_low(save)
    }

    /// Returns the offset of one of the handler's own words from the block's base.
    pub(crate) const fn save_low(&self, save: usize) -> i16 {
        self.block_low(Block::SAVE + 4 * save as u32)
    }

    /// Loads the root word: one instruction if it is in a register or near, else two.
    pub(crate) const fn load_root(&mut self, rt: Reg) {
        match self.spec.root {
            Root::Block => {
                let base = self.block_base(rt);
                self.asm.lw(rt, self.block_low(Block::ROOT), base);
            }
            Root::KScratch(select) => self.asm.mfc0(rt, Cp0::KScratch(select)),
            Root::ErrorEpc => self.asm.mfc0(rt, Cp0::ErrorEpc),
            Root::Cell => {
                self.asm.mfc0(rt, Cp0::ErrorEpc);
                self.asm.lw(rt, 0, rt);
            }
        }
    }

    /// Clears the `bits` low bits of a register.
    pub(crate) const fn clear_low(&mut self, rt: Reg, bits: u32) {
        if self.has_fields() {
            self.asm.ins(rt, ZERO, 0, bits);
        } else {
            self.asm.srl(rt, rt, bits);
            self.asm.sll(rt, rt, bits);
        }
    }

    /// Tells whether PageMask can be another than that of 4 KiB: hits of a cache in front leave it as they found it in their
    /// entry.
    pub(crate) const fn can_be_larger(&self) -> bool {
        self.spec.form.sized && self.is_fronted()
    }

    /// Makes PageMask that of 4 KiB, if it can be another.
    pub(crate) const fn small(&mut self) {
        if self.can_be_larger() {
            self.asm.mtc0(ZERO, Cp0::PageMask);
        }
    }

    /// Ends a path for pages of 4 KiB: k0 is for the even page and k1 for the odd one.
    pub(crate) const fn finish(&mut self) {
        self.asm.mtc0(K0, Cp0::EntryLo0);
        self.asm.mtc0(K1, Cp0::EntryLo1);
        self.finish_moved();
    }

    /// Ends a path for pages of 4 KiB: the EntryLos are moved.
    pub(crate) const fn finish_moved(&mut self) {
        self.choose(K0);
        self.small();
        self.asm.barrier();
        self.close();
    }

    /// Chooses the entry that is replaced, unless `tlbwr` does, or the report has.
    pub(crate) const fn choose(&mut self, temporary: Reg) {
        if matches!(self.spec.write, Write::Index) && !self.spec.form.reporting {
            self.asm.mfc0(temporary, Cp0::Random);
            self.asm.mtc0(temporary, Cp0::Index);
        }
    }

    /// Ends a walk: the EntryLos, PageMask and Index have taken effect.
    pub(crate) const fn close(&mut self) {
        if let Front::Stlb(stlb) = self.spec.front {
            stlb.fill(self);
        }
        self.write();
    }

    /// Ends a path for larger pages: the EntryLos and PageMask are moved. Leaves PageMask as paths for pages of 4 KiB
    /// expect it.
    pub(crate) const fn finish_sized(&mut self) {
        self.choose(K0);
        self.asm.barrier();
        if let Front::Stlb(stlb) = self.spec.front {
            stlb.fill(self);
        }
        self.write_entry();
        if !self.is_fronted() {
            self.asm.mtc0(ZERO, Cp0::PageMask);
        }
        if self.spec.form.reporting {
            report::close(self);
        }
        self.asm.eret();
    }

    /// Writes the entry and returns. What it needs has taken effect.
    pub(crate) const fn write(&mut self) {
        self.write_entry();
        if self.spec.form.reporting {
            report::close(self);
        }
        self.asm.eret();
    }

    /// Writes the entry.
    pub(crate) const fn write_entry(&mut self) {
        match self.spec.write {
            Write::Random => self.asm.tlbwr(),
            Write::Index => self.asm.tlbwi(),
        }
    }
}
