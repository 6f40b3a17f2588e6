//! The published peers, each as its documentation sets it up for a kernel with a direct map, on the frames that ours have.
//!
//! Nothing flushes. Their entries are accessed and dirty, as ours are, where the crate lets a caller say so: `page_table_multiarch` does
//! not, which costs it nothing, because it does not look at these bits.

mod aarch64;
mod generic;
mod maps;
mod multiarch;
mod x86_64;

pub use aarch64::Aarch64;
pub use generic::Generic;
pub use maps::{BTree, HashBrown};
pub use multiarch::Multiarch;
pub use x86_64::{X86, X86Freeing, X86Linear};

use tlbkit_addr::PhysAddr;

use crate::frames::Frames;

/// Takes a frame, and returns its address.
#[inline(always)]
fn take() -> Option<usize> {
    Frames.take().map(PhysAddr::get)
}

/// Gives a frame back.
#[inline(always)]
fn give(frame: usize) {
    Frames.give(PhysAddr::new(frame));
}
