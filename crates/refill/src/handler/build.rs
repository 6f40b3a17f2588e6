//! The common parts of all handlers: the load of the root, the write of the TLB entry, and the branch to the general vector.

use super::{Front, Root, Spec, Write, report};
use crate::Error;
use crate::asm::{Asm, Cp0, K0, K1, Label, Reg, ZERO};
use crate::block::Block;
use crate::features::Isa;

/// The first address, at the end of kseg3, that a load's 16-bit offset reaches from register 0.
const NEAR: u32 = 0xffff_8000;

/// A handler under construction.
///
/// Conventions between the parts: k0 and k1 are free unless a part's documentation says otherwise. Until the write of the
/// TLB entry, EntryHi has the value that the hardware set and, in a reporting handler, Index names the entry to replace.
pub(crate) struct Build {
    pub(crate) asm: Asm,
    pub(crate) spec: Spec,
    /// The general exception vector. A branch to it passes the miss on, and only k0 and k1 have lost their values.
    pub(crate) general: Label,
}

impl Build {
    /// Begins code for the refill vector.
    pub(crate) const fn new(spec: &Spec) -> Self {
        let mut build = Self::nested(spec);
        build.asm.bind_at(build.general, spec.place.general / 4);
        build
    }

    /// Begins code for the general vector.
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

    /// Tells whether the CPU has bit-field instructions.
    pub(crate) const fn has_fields(&self) -> bool {
        matches!(self.spec.features.isa, Isa::R2)
    }

    /// Tells whether there is a software TLB in front. If so, PTEBase is its address.
    pub(crate) const fn is_fronted(&self) -> bool {
        !matches!(self.spec.front, Front::None)
    }

    /// Puts the code that follows into the tail, because few misses execute it.
    pub(crate) const fn cold(&mut self) {
        self.asm.split(self.spec.place.tail / 4);
    }

    /// Returns a base register for the words of the CPU's block: register 0 if the block is at the end of kseg3, which takes
    /// no instruction; otherwise `rt`, which it loads.
    pub(crate) const fn block_base(&mut self, rt: Reg) -> Reg {
        if self.spec.block >= NEAR {
            return ZERO;
        }
        self.block_high(rt);
        rt
    }

    /// Loads `rt` with the base for the words of the CPU's block.
    const fn block_high(&mut self, rt: Reg) {
        self.asm.lui(rt, (self.spec.block.wrapping_add(0x8000) >> 16) as u16);
    }

    /// Returns the offset of a word of the block from the base.
    pub(crate) const fn block_low(&self, word: u32) -> i16 {
        (self.spec.block + word) as i16
    }

    /// Loads `rt` with the base for the temporary word `save` of the block, and returns the word's offset. It always emits
    /// an instruction and uses `rt`, wherever the block is, because callers often emit it into a delay slot.
    pub(crate) const fn save_high(&mut self, rt: Reg, save: usize) -> i16 {
        self.block_high(rt);
        self.save_low(save)
    }

    /// Returns the offset of the temporary word `save` from the block's base.
    pub(crate) const fn save_low(&self, save: usize) -> i16 {
        self.block_low(Block::SAVE + 4 * save as u32)
    }

    /// Loads the root word: one instruction if it is in a register or the block is at the end of kseg3, otherwise two.
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

    /// Tells whether PageMask may have another value than that of 4 KiB: a hit in the software TLB sets it to the entry's
    /// value, and does not clear it.
    pub(crate) const fn can_be_larger(&self) -> bool {
        self.spec.form.sized && self.is_fronted()
    }

    /// Sets PageMask to 4 KiB, if it may have another value.
    pub(crate) const fn small(&mut self) {
        if self.can_be_larger() {
            self.asm.mtc0(ZERO, Cp0::PageMask);
        }
    }

    /// Ends a path for pages of 4 KiB: k0 has the EntryLo of the even page, k1 that of the odd page.
    pub(crate) const fn finish(&mut self) {
        self.asm.mtc0(K0, Cp0::EntryLo0);
        self.asm.mtc0(K1, Cp0::EntryLo1);
        self.finish_moved();
    }

    /// Ends a path for pages of 4 KiB whose values have already been moved to the EntryLo registers.
    pub(crate) const fn finish_moved(&mut self) {
        self.choose(K0);
        self.small();
        self.asm.barrier();
        self.close();
    }

    /// Sets Index to the entry to replace, unless `tlbwr` chooses it or [`report::open`] has set it.
    pub(crate) const fn choose(&mut self, temporary: Reg) {
        if matches!(self.spec.write, Write::Index) && !self.spec.form.reporting {
            self.asm.mfc0(temporary, Cp0::Random);
            self.asm.mtc0(temporary, Cp0::Index);
        }
    }

    /// Ends a walk after EntryLo0, EntryLo1, PageMask and Index have taken effect.
    pub(crate) const fn close(&mut self) {
        if let Front::Stlb(stlb) = self.spec.front {
            stlb.fill(self);
        }
        self.write();
    }

    /// Ends a path for larger pages whose values have been moved to the EntryLo registers and PageMask. Without a software
    /// TLB, it sets PageMask back to 4 KiB, as the paths for pages of 4 KiB expect.
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

    /// Writes the entry and returns from the exception. The registers of the entry must have taken effect.
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
