//! Handlers for MIPS III, 64 bits: the structures of Elphinstone et al. 3.2, so that their Figures 2 and 5 can be redrawn in
//! instructions and loads.
//!
//! Tables are those of [`tlbkit_pagetable`] over [`PaperLo`] and [`Va64`](tlbkit_pagetable::geometry::Va64), with pages of
//! 4 KiB alone, in the memory of a little-endian machine: the paper's 64-bit guards, tags and pointers lie in the tables as
//! two words, the low one first. Nodes lie in kseg0, and their 32-bit addresses are sign-extended when they are loaded,
//! as the paper's are.
//!
//! ```text
//!   table                     instructions                          loads
//!   S8k hit                   17                                    3
//!   S128k hit                 18                                    3
//!   MPT, six levels           47                                    8
//!   G2 .. G256, n nodes       22 + 9 n                              4 + 2 n
//!   H8k, H128k, first bucket  27                                    4
//!   C128k, first bucket       33                                    4
//! ```
//!
//! `nop`s and the return are counted: three of them lie between `tlbwr` and the return on an R4000, where an R4700 asks for
//! one. A TLB refill of the paper leaves out the return and two instructions more.
//!
//! A [`Block`] in kseg0 holds the root. ErrorEPC serves some walks as a third register.

mod format;
mod gpt;
mod hashed;
mod mpt;
mod stlb;

pub use format::PaperLo;
pub use gpt::Gpt;
pub use hashed::Hashed;
pub use mpt::Mpt;
pub use stlb::Stlb;

use crate::Error;
use crate::asm::{Asm, Code, Cp0, K0, K1, Label, Reg};
use crate::features::Isa;

/// How far the refill vector of 64-bit addresses is from the first vector, in bytes.
pub const VECTOR: u32 = 0x80;
/// The same of the general vector, where misses go that no table resolves.
pub const GENERAL: u32 = 0x180;
/// The same of the code for which there is no room between the two.
pub const TAIL: u32 = 0x400;

/// Where the root is: the first four words are a guarded table's root slot, the first is the address of another's root.
pub type Block = [u32; 4];

/// Everything that a handler is made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spec {
    /// The address in kseg0 of the [`Block`], a multiple of 16.
    pub block: u32,
    /// The software TLB in front, if any.
    pub cache: Option<Stlb>,
    /// The table.
    pub walk: Walk,
}

/// The table, and its geometry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Walk {
    /// Multi-level.
    Mpt(Mpt),
    /// Guarded, of the paper's layout.
    Gpt(Gpt),
    /// Hashed or clustered, of a fixed size.
    Hashed(Hashed),
}

/// The code of a handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handler {
    /// For [`VECTOR`].
    pub refill: Code,
    /// For [`TAIL`].
    pub tail: Code,
}

impl Spec {
    /// Assembles the handler.
    ///
    /// # Errors
    ///
    /// [`Error::BadAddress`] if the block is not in kseg0, [`Error::TooLong`].
    pub const fn assemble(&self) -> Result<Handler, Error> {
        let mut b = Build::new(self);
        if let Some(cache) = self.cache {
            let miss = b.asm.label();
            cache.probe(&mut b, miss);
            b.cold();
            b.asm.bind(miss);
        }
        match self.walk {
            Walk::Mpt(mpt) => mpt.emit(&mut b),
            Walk::Gpt(gpt) => gpt.emit(&mut b),
            Walk::Hashed(hashed) => hashed.emit(&mut b),
        }
        match b.asm.finish_parts(((GENERAL - VECTOR) / 4) as usize, crate::asm::MOST) {
            Ok((refill, tail)) => Ok(Handler { refill, tail }),
            Err(error) => Err(error),
        }
    }
}

/// A handler under construction.
struct Build {
    asm: Asm,
    spec: Spec,
    /// The general vector: branching there passes the miss on.
    general: Label,
}

impl Build {
    const fn new(spec: &Spec) -> Self {
        let mut asm = Asm::new(Isa::Mips3);
        let general = asm.label();
        asm.bind_at(general, ((GENERAL - VECTOR) / 4) as i32);
        if spec.block >> 29 != 0b100 || spec.block & 15 != 0 {
            asm.fail(Error::BadAddress { address: spec.block });
        }
        Self { asm, spec: *spec, general }
    }

    /// What follows is for few misses.
    const fn cold(&mut self) {
        self.asm.split(((TAIL - VECTOR) / 4) as i32);
    }

    /// Makes `rt` the base of the block, and returns the block's offset from there.
    const fn block(&mut self, rt: Reg) -> i16 {
        self.asm.lui(rt, ((self.spec.block + 0x8000) >> 16) as u16);
        self.spec.block as i16
    }

    /// Shifts right by up to 63 bits.
    const fn right(&mut self, rd: Reg, rt: Reg, shift: u32) {
        if shift < 32 {
            self.asm.dsrl(rd, rt, shift);
        } else {
            self.asm.dsrl32(rd, rt, shift - 32);
        }
    }

    /// Ends a walk: k0 is for the even page, k1 for the odd one.
    const fn finish(&mut self) {
        self.asm.mtc0(K0, Cp0::EntryLo0);
        self.asm.mtc0(K1, Cp0::EntryLo1);
        // To find the cache's entry takes more instructions than a barrier has.
        if self.spec.cache.is_none() {
            self.asm.barrier();
        }
        self.close();
    }

    /// Ends a walk: the EntryLos have taken effect.
    const fn close(&mut self) {
        if let Some(cache) = self.spec.cache {
            cache.fill(self);
        }
        self.write();
    }

    /// Writes the entry and returns. On an R4000 the return, and the fetch behind it, come three instructions after the
    /// entry is written, or they may not see it.
    const fn write(&mut self) {
        self.asm.tlbwr();
        self.asm.nop();
        self.asm.nop();
        self.asm.nop();
        self.asm.eret();
    }
}
