//! Handlers for 64-bit MIPS III, for the structures of Elphinstone et al. 3.2, to reproduce their Figures 2 and 5 in
//! instructions and loads.
//!
//! The tables are those of [`tlbkit_pagetable`] with [`PaperLo`] and [`Va64`](tlbkit_pagetable::geometry::Va64), on a
//! little-endian machine: the paper's 64-bit guards, tags and pointers are two words in the tables, the low word first. Pages
//! have 4 KiB, but for [`Hashed::with_larger_pages`]. Nodes are in kseg0, and their 32-bit addresses are sign-extended when
//! they are loaded, as in the paper; the words of a linear table hold their physical addresses.
//!
//! ```text
//!   table                     instructions                          loads
//!   S8k hit                   17                                    3
//!   S128k hit                 18                                    3
//!   MPT, six levels           47                                    8
//!   G2 .. G256, n nodes       22 + 9 n                              4 + 2 n
//!   GA, n nodes               22 + 14 n                             4 + 2 n
//!   H8k, H128k, first bucket  27                                    4
//!   C128k, first bucket       33                                    4
//!   HR, first bucket          39                                    5
//!   CS, first bucket          47, a page of 4 KiB                   5
//!   LPT                       17, without a nested miss             2
//!   LPT, a page of it missing 64                                    5
//! ```
//!
//! The numbers include `nop`s and the return: three `nop`s are between `tlbwr` and the return, as an R4000 needs; an R4700
//! needs one. The paper's numbers for a TLB refill do not include the return and two more instructions.
//!
//! A [`Block`] in kseg0 holds the root. Some walks use ErrorEPC as a third register.

mod format;
mod gpt;
mod hashed;
mod lpt;
mod mpt;
mod stlb;

pub use format::PaperLo;
pub use gpt::Gpt;
pub use hashed::Hashed;
pub use lpt::Lpt;
pub use mpt::Mpt;
pub use stlb::Stlb;

use crate::Error;
use crate::asm::{Asm, Code, Cp0, K0, K1, Label, Reg};
use crate::features::Isa;

/// The distance of the refill vector of 64-bit addresses from the first vector, in bytes.
pub const VECTOR: u32 = 0x80;
/// The distance of the general vector, to which misses go that the table does not resolve, from the first vector, in bytes.
pub const GENERAL: u32 = 0x180;
/// The distance of the code that does not fit between the two from the first vector, in bytes.
pub const TAIL: u32 = 0x400;

/// The place of the root: the four words are a guarded table's root slot; the first word is the address of another table's
/// root.
pub type Block = [u32; 4];

/// The parameters of a handler.
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
    /// A multi-level table.
    Mpt(Mpt),
    /// A guarded table in the paper's layout.
    Gpt(Gpt),
    /// A hashed or clustered table.
    Hashed(Hashed),
    /// A linear table.
    Lpt(Lpt),
}

/// The code of a handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handler {
    /// The code for [`VECTOR`].
    pub refill: Code,
    /// The code for [`TAIL`].
    pub tail: Code,
    /// The begin of the code for [`GENERAL`], which the kernel's own follows: of a linear table, otherwise empty.
    pub general: Code,
}

impl Spec {
    /// Assembles the handler.
    ///
    /// # Errors
    ///
    /// [`Error::BadAddress`] if the block is not in kseg0 or not aligned to 16 bytes, [`Error::TooLong`] if a part is too
    /// long.
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
            Walk::Lpt(lpt) => lpt.emit(&mut b),
        }
        let general = match self.walk {
            Walk::Lpt(lpt) => lpt.nested(self),
            _ => Asm::new(Isa::Mips3),
        };
        let parts = b.asm.finish_parts(((GENERAL - VECTOR) / 4) as usize, crate::asm::MOST);
        match (parts, general.finish(((TAIL - GENERAL) / 4) as usize)) {
            (Ok((refill, tail)), Ok(general)) => Ok(Handler { refill, tail, general }),
            (Err(error), _) | (_, Err(error)) => Err(error),
        }
    }
}

/// A handler under construction.
struct Build {
    asm: Asm,
    spec: Spec,
    /// The general vector. A branch to it passes the miss on.
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

    /// Puts the code that follows into the tail, because few misses execute it.
    const fn cold(&mut self) {
        self.asm.split(((TAIL - VECTOR) / 4) as i32);
    }

    /// Loads `rt` with a base for the block, and returns the block's offset from the base.
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

    /// Ends a walk: k0 has the EntryLo of the even page, k1 that of the odd page.
    const fn finish(&mut self) {
        self.asm.mtc0(K0, Cp0::EntryLo0);
        self.asm.mtc0(K1, Cp0::EntryLo1);
        // With a software TLB, the instructions that compute its entry's address are at least as many as a barrier has.
        if self.spec.cache.is_none() {
            self.asm.barrier();
        }
        self.close();
    }

    /// Ends a walk after the EntryLo registers have taken effect.
    const fn close(&mut self) {
        if let Some(cache) = self.spec.cache {
            cache.fill(self);
        }
        self.write();
    }

    /// Writes the entry and returns from the exception. On an R4000, three instructions must be between the write and the
    /// return, so that the fetch after the return uses the new entry.
    const fn write(&mut self) {
        self.asm.tlbwr();
        self.asm.nop();
        self.asm.nop();
        self.asm.nop();
        self.asm.eret();
    }
}
