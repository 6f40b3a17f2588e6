//! What all handlers have in common: where the root is, how the entry is written, how a miss is passed on.

use super::{Root, Spec, Write};
use crate::Error;
use crate::asm::{Asm, Cp0, K0, K1, Label, Reg};
use crate::cpu::Block;
use crate::features::Isa;

/// A handler under construction.
///
/// The parts agree on this: k0 and k1 are free wherever no part says otherwise; EntryHi is what the hardware made it, up
/// to the write.
pub(crate) struct Build {
    pub(crate) asm: Asm,
    pub(crate) spec: Spec,
    /// The general exception vector: branching there passes the miss on, with everything but k0 and k1 intact.
    pub(crate) general: Label,
}

impl Build {
    pub(crate) const fn new(spec: &Spec) -> Self {
        let mut asm = super::start(spec);
        let general = asm.label();
        asm.bind_at(general, spec.place.general / 4);
        if spec.block & 3 != 0 || spec.block >> 29 != 0b100 {
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

    /// Loads a word of the CPU's block: two instructions.
    pub(crate) const fn load_block(&mut self, rt: Reg, word: u32) {
        let (high, low) = split(self.spec.block + word);
        self.asm.lui(rt, high);
        self.asm.lw(rt, low, rt);
    }

    /// Stores a word of the CPU's block: two instructions, and `temporary` is lost.
    pub(crate) const fn store_block(&mut self, rt: Reg, word: u32, temporary: Reg) {
        let (high, low) = split(self.spec.block + word);
        self.asm.lui(temporary, high);
        self.asm.sw(rt, low, temporary);
    }

    /// Loads the root word: two instructions, or one.
    pub(crate) const fn load_root(&mut self, rt: Reg) {
        match self.spec.root {
            Root::Block => self.load_block(rt, Block::ROOT),
            Root::KScratch(select) => self.asm.mfc0(rt, Cp0::KScratch(select)),
            Root::ErrorEpc => self.asm.mfc0(rt, Cp0::ErrorEpc),
        }
    }

    /// Ends a path: k0 is for the even page and k1 for the odd one.
    pub(crate) const fn finish(&mut self) {
        self.asm.mtc0(K0, Cp0::EntryLo0);
        self.asm.mtc0(K1, Cp0::EntryLo1);
        self.choose(K0);
        self.asm.barrier();
        self.write();
    }

    /// Chooses the entry that is replaced, if `tlbwr` does not.
    pub(crate) const fn choose(&mut self, temporary: Reg) {
        if matches!(self.spec.write, Write::Index) {
            self.asm.mfc0(temporary, Cp0::Random);
            self.asm.mtc0(temporary, Cp0::Index);
        }
    }

    /// Writes the entry and returns. What it needs has taken effect.
    pub(crate) const fn write(&mut self) {
        match self.spec.write {
            Write::Random => self.asm.tlbwr(),
            Write::Index => self.asm.tlbwi(),
        }
        self.asm.eret();
    }
}

/// Returns the halves of an address for `lui` and a signed offset.
pub(crate) const fn split(address: u32) -> (u16, i16) {
    ((address.wrapping_add(0x8000) >> 16) as u16, address as i16)
}
