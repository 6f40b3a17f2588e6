//! Traces of a program's page references: recorded ones, and those of other tools.
//!
//! A trace is a sequence of [`Access`]es: which page, by what kind of reference, how many times in a row. Nothing is
//! left out and nothing is reordered, at the resolution of a page: the sequence of (kind, page) pairs, repeats
//! expanded, is exactly the program's. An instruction or operand that straddles two pages is a reference to each,
//! and [`Kind::Rest`] keeps such an instruction from counting twice.
//!
//! [`open`] takes a file or standard input, sees for itself what it is, and yields the accesses one by one. Memory does not grow with
//! the length of the trace. It may be packed by gzip, xz or zstd.
//!
//! | | |
//! |-|-|
//! | [`mod@format`] | a recorded trace, of pages of any size or of lines |
//! | [`lackey`] | text of `valgrind --tool=lackey --trace-mem=yes` |
//! | [`dynamorio`] | text of DynamoRIO's view tool |
//! | [`champsim`] | records of ChampSim's |
//!
//! A trace of several programs, in the order in which they ran on one CPU, has a program's number in the highest byte of addresses. So
//! it is a trace of one address space, too, that all of them share.
//!
//! ```text
//! for access in trace::open(&"ls.tlbt".into())? {
//!     let access = access?;
//!     misses += u64::from(tlb.look_up(access.page).is_miss());
//!     instructions += access.instructions();
//! }
//! ```

use tlbkit_addr::{PageSize, Vpn};

mod champsim;
mod dynamorio;
mod error;
mod format;
mod input;
mod lackey;
mod reader;
#[cfg(test)]
mod tests;
mod text;
mod writer;

pub(crate) use error::TraceError;
pub(crate) use format::{Counts, Header};
pub(crate) use input::{Input, Trace, open, read, unpacked};
pub(crate) use reader::Reader;
pub(crate) use text::{Messages, Text};
pub(crate) use writer::Writer;

/// What a trace of lines counts in: the smallest line of a modelled cache.
pub(crate) const LINE: PageSize = PageSize::from_shift(4).expect("16 bytes");

/// The bit of an address from which on the program's number stands, in a trace of several: they count from 0.
pub(crate) const PROGRAM: u32 = 56;

/// What a reference is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub(crate) enum Kind {
    /// The fetch of an instruction, from the page it begins on.
    Instr = 0,
    /// The fetch of the rest of an instruction that began on another page: a reference, but no instruction more.
    Rest = 1,
    /// A load.
    Load = 2,
    /// A store.
    Store = 3,
    /// A load and a store of the same operand by one instruction.
    Modify = 4,
}

impl Kind {
    /// Tells whether the reference goes through the instruction TLB, where there is one.
    pub(crate) fn is_fetch(self) -> bool {
        matches!(self, Self::Instr | Self::Rest)
    }
}

/// One or more references in a row of the same kind to the same page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Access {
    /// What the references are for.
    pub(crate) kind: Kind,
    /// How many there are, at least one. After the first, nothing can have evicted the page.
    pub(crate) count: u32,
    /// The page, counted in pages of the trace's size (4 KB).
    pub(crate) page: Vpn,
}

impl Access {
    /// Returns how many instructions begin with these references.
    pub(crate) fn instructions(&self) -> u64 {
        if self.kind == Kind::Instr { self.count.into() } else { 0 }
    }

    /// Adds `next` to the run and tells whether that was possible.
    fn absorb(&mut self, next: &Self) -> bool {
        if self.kind != next.kind || self.page != next.page {
            return false;
        }
        let Some(count) = self.count.checked_add(next.count) else { return false };
        self.count = count;
        true
    }
}
