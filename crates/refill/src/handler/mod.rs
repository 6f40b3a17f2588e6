//! Handlers: a front, a walk, a form and a way to write, put together.

mod build;
mod mpt;

pub(crate) use build::Build;
pub use mpt::Mpt;

use crate::Error;
use crate::asm::{Asm, Code};
use crate::features::Features;

/// Everything that a handler is made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spec {
    /// The CPU.
    pub features: Features,
    /// Where the code will be.
    pub place: Place,
    /// The address in kseg0 of this CPU's [`Block`](crate::Block).
    pub block: u32,
    /// Where the root word of the running address space's table is.
    pub root: Root,
    /// What stands before the table.
    pub front: Front,
    /// The table.
    pub walk: Walk,
    /// What the handler does beside refilling.
    pub form: Form,
    /// Which entry it replaces, and how.
    pub write: Write,
}

/// Where the code will be, and how long it may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// How far the general exception vector is from the first word, in bytes.
    pub general: i32,
    /// How many words there is room for.
    pub room: usize,
}

impl Place {
    /// At the refill vector itself, up to the cache error vector.
    pub const VECTOR: Self = Self { general: 0x180, room: 0x100 / 4 };

    /// At the refill vector itself, up to the general vector: for kernels without a cache error handler.
    pub const WIDE: Self = Self { general: 0x180, room: 0x180 / 4 };

    /// At `address`, with room for `room` words: the refill vector has a jump there, which is
    /// [`jump`](Self::jump).
    pub const fn elsewhere(address: u32, general: u32, room: usize) -> Self {
        Self { general: general.wrapping_sub(address) as i32, room }
    }
}

/// Where the root word of the running address space's table is. The kernel writes it when it switches spaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Root {
    /// In the CPU's [`Block`](crate::Block): two instructions.
    Block,
    /// In a scratch register, with this select: one instruction.
    KScratch(u8),
    /// In ErrorEPC, which every CPU has and nobody uses until a reset, an NMI or a cache error, whose handlers must
    /// restore it: one instruction.
    ErrorEpc,
}

/// What stands before the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Front {
    /// Nothing.
    None,
}

/// The table, and its geometry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Walk {
    /// A two-level table. The root word is the address of its root node in kseg0.
    Mpt(Mpt),
}

/// What the handler does beside refilling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Nothing: all pages have 4 KiB.
    Plain,
}

/// Which entry is replaced, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// `tlbwr`: the entry that Random names when it executes.
    Random,
    /// Random is copied to Index, for `tlbwi`: two instructions more. Under QEMU, whose `tlbwr` keeps what it evicts for
    /// a while, the number of misses is right only so.
    Index,
}

/// The code of a handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handler {
    /// For the refill vector.
    pub refill: Code,
}

impl Spec {
    /// Assembles the handler.
    ///
    /// # Errors
    ///
    /// What does not fit or does not go together.
    pub const fn assemble(&self) -> Result<Handler, Error> {
        let mut build = Build::new(self);
        match self.walk {
            Walk::Mpt(mpt) => mpt.emit(&mut build),
        }
        match build.asm.finish(self.place.room) {
            Ok(refill) => Ok(Handler { refill }),
            Err(error) => Err(error),
        }
    }
}

/// Returns an assembler for a specification's CPU.
const fn start(spec: &Spec) -> Asm {
    Asm::new(spec.features.isa)
}
