//! Refill handlers, each a combination of a front, a walk, a form and a way to write the TLB entry.

mod build;
mod gpt;
mod hashed;
mod lpt;
mod mpt;
mod report;
pub(crate) mod sized;
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

/// The parameters of a handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spec {
    /// The CPU.
    pub features: Features,
    /// The place of the code.
    pub place: Place,
    /// The address of this CPU's [`Block`](crate::Block): in kseg0, or, through a wired TLB entry, from 0xffff_8000 on.
    pub block: u32,
    /// The place of the root word of the running address space's table.
    pub root: Root,
    /// The cache that the handler searches before it walks the table.
    pub front: Front,
    /// The table.
    pub walk: Walk,
    /// The work of the handler in addition to refills with pages of 4 KiB.
    pub form: Form,
    /// The way in which the handler chooses and writes the TLB entry.
    pub write: Write,
}

/// The place of the code, and its largest length.
///
/// ```text
///   0x000  refill vector     the path that most misses take, up to the cache error vector at 0x100
///   0x180  general vector
///   tail   anywhere within 128 KiB: the rest of the handler
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The distance of the general exception vector from the first word, in bytes.
    pub general: i32,
    /// The number of words (of 32 bits) at the refill vector.
    pub room: usize,
    /// The distance of the tail from the first word, in bytes.
    pub tail: i32,
    /// The number of words at the tail's place.
    pub tail_room: usize,
}

impl Place {
    /// The code at the refill vector, and the tail from 0x400 bytes behind it to the end of the page.
    pub const VECTOR: Self = Self { general: 0x180, room: 0x100 / 4, tail: 0x400, tail_room: 0xc00 / 4 };

    /// As [`VECTOR`](Self::VECTOR), but the code also occupies the cache error vector, for kernels that do not use that. On
    /// release 1, the reporting form for a clustered table that grows needs this space.
    pub const WIDE: Self = Self { room: 0x180 / 4, ..Self::VECTOR };

    /// The code at the refill vector of 64-bit addresses.
    pub const VECTOR_64: Self = Self { general: 0x100, room: 0x80 / 4, tail: 0x380, ..Self::VECTOR };
}

/// The place of the root word of the running address space's table. The kernel writes it when it switches address spaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Root {
    /// In the CPU's [`Block`](crate::Block). The load takes two instructions, or one if the block is from 0xffff_8000 on.
    Block,
    /// In the KScratch register with this select. The load takes one instruction.
    KScratch(u8),
    /// In ErrorEPC, which every CPU has. Only a reset, an NMI or a cache error changes it, and their handlers must restore
    /// it. The load takes one instruction.
    ErrorEpc,
    /// In memory, in a word whose address in kseg0 is in ErrorEPC. The load takes two instructions. It is for a table whose
    /// root can change while several CPUs run it, such as a guarded table, whose handle begins with this word.
    Cell,
}

/// The cache that the handler searches before it walks the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Front {
    /// No cache.
    None,
    /// A software TLB of this CPU.
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
    /// Returns the root word for the handler, from the result of the table's `root()`. The root of a linear table is a
    /// physical address below 512 MiB; the roots of other tables are addresses in kseg0.
    ///
    /// The root of a hashed table that grows never changes, so the kernel writes the root word only when it switches address
    /// spaces.
    pub const fn root(&self, root: usize) -> u32 {
        match self {
            Self::Mpt(_) | Self::Gpt(_) => root as u32,
            Self::Lpt(_) => root as u32 | 0x8000_0000,
            Self::Hashed(hashed) => hashed.root(root),
        }
    }
}

/// The work of a handler in addition to refills with pages of 4 KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Form {
    /// Whether the handler loads larger pages, with PageMask.
    pub sized: bool,
    /// Whether the handler writes each miss and the TLB entry that it replaced to the CPU's [`Log`](crate::Log).
    pub reporting: bool,
    /// Whether other CPUs change the table while the handler walks it. If so, no TLB entry covers more than one larger page,
    /// and none combines a word that another CPU has just changed with one that it has not. Only [`Walk::Mpt`] with larger
    /// pages supports it.
    ///
    /// A larger page is several words, and the other half of its TLB pair is several more. A writer stores one word after
    /// the other. A CPU that misses in between could load a pair within the page, and later an entry for the whole pair: two
    /// entries that match, which is a machine check. So with this form the handler always loads a pair within the page, of a
    /// quarter of its size each. If one word of a pair belongs to a larger page and the other does not, the handler passes
    /// the miss on as a fault, and the kernel waits for the writer.
    pub shared: bool,
}

impl Form {
    /// No additional work.
    pub const PLAIN: Self = Self { sized: false, reporting: false, shared: false };
    /// Larger pages.
    pub const SIZED: Self = Self { sized: true, reporting: false, shared: false };
    /// Reports.
    pub const REPORTING: Self = Self { sized: false, reporting: true, shared: false };
    /// Larger pages, while other CPUs change the table.
    pub const SHARED: Self = Self { shared: true, ..Self::SIZED };
    /// Larger pages and reports: what a promotion policy needs.
    pub const BOTH: Self = Self { sized: true, reporting: true, shared: false };
}

/// The way in which the handler chooses and writes the TLB entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// By `tlbwr`, which replaces the entry that Random names when the instruction executes.
    Random,
    /// By `tlbwi`, after a copy of Random to Index: two more instructions. QEMU keeps entries that `tlbwr` evicts for some
    /// time, so under QEMU only this way gives the right number of misses.
    Index,
}

/// The code of a handler, in three parts, of which the last two may be empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handler {
    /// The code for the refill vector.
    pub refill: Code,
    /// The code for the tail's place.
    pub tail: Code,
    /// The code for the general vector, before the kernel's own code: a linear table's nested misses.
    pub general: Code,
}

impl Spec {
    /// Returns the value that the kernel writes to the Context register of this CPU: PTEBase.
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
    /// - [`Error::ReportNeedsIndex`] if a reporting form does not write by [`Write::Index`].
    /// - [`Error::Unsupported`] if [`Form::shared`] is set for another walk than [`Walk::Mpt`] with larger pages, or the CPU
    ///   is MIPS III.
    /// - [`Error::TooLong`] if a part is longer than its place.
    /// - Any other error of the assembler.
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
