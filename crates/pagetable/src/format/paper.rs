//! The 32-bit PTEs of Elphinstone et al. 3.2, for exact comparisons of space.
//!
//! For each pair of PTEs in MIPS format, the paper's kernel keeps a pair of 32-bit pointers into the mapping tree, by which
//! it finds the other address spaces that map the page. The table reserves words for them ([`Format::EXTRA`]) and does not
//! use these. Internal nodes of the paper's MPT hold 32-bit pointers that are sign-extended; here they are addresses in an
//! arena of up to 4 GiB.
//!
//! The paper says only "MIPS format", and its figures do not depend on the bits of a PTE. This format has the layout of
//! [`Compact32`], which holds the attributes that the property tests compare.

use tlbkit_addr::{Attr, PageSize, Pfn};

use super::{Compact32, Format, Masks};
use crate::nodes::NodeAddr;
use crate::{Change, Error, Word};

/// The paper's format: PTE pairs, each with its pair of mapping-tree words.
#[derive(Clone, Copy, Debug)]
pub struct Paper;

// SAFETY: all constants and functions are those of `Compact32`, which implements `Format`; only `EXTRA`, a number of
// additional words, differs.
unsafe impl Format for Paper {
    type Word = u32;

    const STEP: u32 = Compact32::STEP;
    const LINK_ALIGN: usize = Compact32::LINK_ALIGN;
    const IMPLIED: Attr = Compact32::IMPLIED;
    const OPTIONAL: Attr = Compact32::OPTIONAL;
    const CLOSES: bool = Compact32::CLOSES;
    const ABSENT: u32 = Compact32::ABSENT;
    const EXTRA: usize = 1;

    #[inline(always)]
    fn leaf(frame: Pfn, size: PageSize, attr: Attr, last: bool) -> Result<u32, Error> {
        Compact32::leaf(frame, size, attr, last)
    }

    #[inline(always)]
    fn leading_to(first: u32, frame: Pfn) -> u32 {
        Word::advance(first, Self::STEP, frame.get())
    }

    #[inline(always)]
    fn link(node: NodeAddr) -> u32 {
        Compact32::link(node)
    }

    #[inline(always)]
    fn is_leaf(word: u32, last: bool) -> bool {
        Compact32::is_leaf(word, last)
    }

    #[inline(always)]
    fn is_link(word: u32) -> bool {
        Compact32::is_link(word)
    }

    #[inline(always)]
    fn node(link: u32) -> NodeAddr {
        Compact32::node(link)
    }

    #[inline(always)]
    fn frame(leaf: u32, size: PageSize) -> Pfn {
        Compact32::frame(leaf, size)
    }

    #[inline(always)]
    fn attr(leaf: u32, last: bool) -> Attr {
        Compact32::attr(leaf, last)
    }

    #[inline(always)]
    fn size(leaf: u32, slot: PageSize) -> PageSize {
        Compact32::size(leaf, slot)
    }

    #[inline(always)]
    fn absent(bits: u64) -> u32 {
        Compact32::absent(bits)
    }

    #[inline(always)]
    fn absent_bits(word: u32) -> u64 {
        Compact32::absent_bits(word)
    }

    #[inline(always)]
    fn change(leaf: u32, change: Change, last: bool) -> u32 {
        Compact32::change(leaf, change, last)
    }

    #[inline(always)]
    fn masks(change: Change, last: bool) -> Option<Masks<u32>> {
        Compact32::masks(change, last)
    }
}
