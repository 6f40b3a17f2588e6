//! Handlers: a front, a walk, a form and a way to write, put together.

mod build;
mod gpt;
mod hashed;
mod lpt;
mod mpt;
mod report;
mod sized;
mod stlb;

pub(crate) use build::Build;
pub use gpt::Gpt;
pub use hashed::Hashed;
pub use lpt::Lpt;
pub use mpt::Mpt;
pub use stlb::Stlb;

use crate::Error;
use crate::asm::{Asm, Code};
use crate::features::{Features, Isa};

/// Everything that a handler is made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spec {
    /// The CPU.
    pub features: Features,
    /// Where the code will be.
    pub place: Place,
    /// The address of this CPU's [`Block`](crate::Block): in kseg0, or, through a wired TLB entry, from 0xffff_8000 on.
    pub block: u32,
    /// Where the root word of the running address space's table is.
    pub root: Root,
    /// What stands before the table.
    pub front: Front,
    /// The table.
    pub walk: Walk,
    /// What the handler does beside refilling with pages of 4 KiB.
    pub form: Form,
    /// Which entry it replaces, and how.
    pub write: Write,
}

/// Where the code will be, and how long it may be.
///
/// ```text
///   0x000  refill vector     the way that most misses take, up to the cache error vector at 0x100
///   0x180  general vector
///   tail   anywhere within 128 KiB: what is left
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// How far the general exception vector is from the first word, in bytes.
    pub general: i32,
    /// How many words there is room for.
    pub room: usize,
    /// How far the tail is from the first word, in bytes.
    pub tail: i32,
    /// How many words the tail has room for.
    pub tail_room: usize,
}

impl Place {
    /// At the refill vector, the tail 0x400 bytes behind it, up to the end of the page.
    pub const VECTOR: Self = Self { general: 0x180, room: 0x100 / 4, tail: 0x400, tail_room: 0xc00 / 4 };

    /// The same over the cache error vector, for kernels that have no use for it: on release 1, a clustered table that
    /// grows needs that much for the form that reports.
    pub const WIDE: Self = Self { room: 0x180 / 4, ..Self::VECTOR };

    /// At the refill vector of 64-bit addresses.
    pub const VECTOR_64: Self = Self { general: 0x100, room: 0x80 / 4, tail: 0x380, ..Self::VECTOR };
}

/// Where the root word of the running address space's table is. The kernel writes it when it switches spaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Root {
    /// In the CPU's [`Block`](crate::Block): two instructions, or one from 0xffff_8000 on.
    Block,
    /// In a scratch register, with this select: one instruction.
    KScratch(u8),
    /// In ErrorEPC, which every CPU has and no code uses until a reset, an NMI or a cache error, whose handlers must
    /// restore it: one instruction.
    ErrorEpc,
    /// In memory, in the word whose address in kseg0 is in ErrorEPC: two instructions. For a table whose root changes while
    /// several CPUs run it, as a guarded one's does: a handle to such a table begins with the word.
    Cell,
}

/// What stands before the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Front {
    /// Nothing.
    None,
    /// A software TLB cache, this CPU's own.
    Stlb(Stlb),
}

/// The table, and its geometry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Walk {
    /// A two-level table.
    Mpt(Mpt),
    /// A linear table.
    Lpt(Lpt),
    /// A hashed or clustered table.
    Hashed(Hashed),
    /// A guarded table.
    Gpt(Gpt),
}

impl Walk {
    /// Returns the root word, made of what the table says is its root: `root()` of the table. A linear table's is a
    /// physical address below 512 MiB, those of others are in kseg0.
    ///
    /// A hashed table that grows keeps its root for life: the kernel writes the word when it switches address spaces, and
    /// nowhere else.
    pub const fn root(&self, root: usize) -> u32 {
        match self {
            Self::Mpt(_) | Self::Gpt(_) => root as u32,
            Self::Lpt(_) => root as u32 | 0x8000_0000,
            Self::Hashed(hashed) => hashed.root(root),
        }
    }
}

/// What the handler does beside refilling with pages of 4 KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Form {
    /// It loads larger pages, with PageMask.
    pub sized: bool,
    /// It writes each miss and what was replaced for it into the CPU's [`Log`](crate::Log).
    pub reporting: bool,
    /// Other CPUs change the table while the handler walks it: no entry takes in more than one larger page, and none is made of
    /// a word that another CPU has just changed. For [`Walk::Mpt`] with larger pages.
    ///
    /// A larger page is several words, and its neighbour in the TLB's pair is several more. A writer stores one after the other,
    /// and a CPU that misses in between would load the page in parts of a pair within it, then all of both: two entries that
    /// match, a machine check. So here a page is always loaded in pairs within it, of a quarter of its size, and an access that
    /// finds one word of a pair that is larger and one that is not is passed on as a fault: the kernel waits for the writer.
    pub shared: bool,
}

impl Form {
    /// Nothing.
    pub const PLAIN: Self = Self { sized: false, reporting: false, shared: false };
    /// Larger pages.
    pub const SIZED: Self = Self { sized: true, reporting: false, shared: false };
    /// Reports.
    pub const REPORTING: Self = Self { sized: false, reporting: true, shared: false };
    /// Larger pages, beside other CPUs that change the table.
    pub const SHARED: Self = Self { shared: true, ..Self::SIZED };
    /// Larger pages and reports: what a promotion policy needs.
    pub const BOTH: Self = Self { sized: true, reporting: true, shared: false };
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

/// The code of a handler: three pieces, of which the last two may be empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handler {
    /// For the refill vector.
    pub refill: Code,
    /// For the tail's place.
    pub tail: Code,
    /// For the general vector, before the kernel's own code: a linear table's nested misses.
    pub general: Code,
}

impl Spec {
    /// Returns what the kernel writes to the Context register of this CPU: PTEBase.
    pub const fn context(&self) -> u32 {
        match (self.front, self.walk) {
            (Front::Stlb(stlb), _) => stlb.base(),
            (Front::None, Walk::Lpt(lpt)) => lpt.context(),
            (Front::None, Walk::Mpt(_) | Walk::Hashed(_)) => 0x8000_0000,
            (Front::None, Walk::Gpt(_)) => 0,
        }
    }

    /// Assembles the handler.
    ///
    /// # Errors
    ///
    /// What does not fit or does not go together.
    pub const fn assemble(&self) -> Result<Handler, Error> {
        if self.form.reporting && matches!(self.write, Write::Random) {
            return Err(Error::ReportNeedsIndex);
        }
        let not_shared = self.form.shared && !(self.form.sized && matches!(self.walk, Walk::Mpt(_)));
        if matches!(self.features.isa, Isa::Mips3) || not_shared {
            return Err(Error::Unsupported);
        }
        let mut build = Build::new(self);
        if self.form.reporting {
            report::open(&mut build);
        }
        if let Front::Stlb(stlb) = self.front {
            let miss = build.asm.label();
            stlb.probe(&mut build, miss);
            build.cold();
            build.asm.bind(miss);
        }
        let mut general = Asm::new(self.features.isa);
        match self.walk {
            Walk::Mpt(mpt) => mpt.emit(&mut build),
            Walk::Lpt(lpt) => {
                general = lpt.nested(&build);
                lpt.emit(&mut build);
            }
            Walk::Hashed(hashed) => hashed.emit(&mut build),
            Walk::Gpt(gpt) => gpt.emit(&mut build),
        }
        let general = match general.finish(crate::asm::MOST) {
            Ok(general) => general,
            Err(error) => return Err(error),
        };
        match build.asm.finish_parts(self.place.room, self.place.tail_room) {
            Ok((refill, tail)) => Ok(Handler { refill, tail, general }),
            Err(error) => Err(error),
        }
    }
}
