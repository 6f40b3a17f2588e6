//! The paper's PTEs, with the bits that the TLB needs.

use tlbkit_addr::{Attr, FlushScope, PageSize, Pfn};
use tlbkit_pagetable::format::{EntryLo, Format};
use tlbkit_pagetable::nodes::{LinkRange, NodeAddr};
use tlbkit_pagetable::{Change, Error, Word};

/// The layout of [`Paper`](tlbkit_pagetable::format::Paper), to the byte, and the PTEs of [`EntryLo`]: "MIPS format", each
/// pair with its pair of mapping-tree words (Elphinstone et al. 3.2).
#[derive(Clone, Copy, Debug)]
pub struct PaperLo;

// SAFETY: all constants and functions are those of `EntryLo`, which implements `Format`; only `EXTRA`, a number of
// additional words, differs.
unsafe impl Format for PaperLo {
    type Word = u32;

    const STEP: u32 = EntryLo::STEP;
    const LINK_ALIGN: usize = EntryLo::LINK_ALIGN;
    const IMPLIED: Attr = EntryLo::IMPLIED;
    const OPTIONAL: Attr = EntryLo::OPTIONAL;
    const CLOSES: bool = EntryLo::CLOSES;
    const REACH: LinkRange = EntryLo::REACH;
    const ABSENT: u32 = EntryLo::ABSENT;
    const APPEARS: FlushScope = EntryLo::APPEARS;
    const BREAK: bool = EntryLo::BREAK;
    const PAIRED: bool = EntryLo::PAIRED;
    const EXTRA: usize = 1;

    fn leaf(frame: Pfn, size: PageSize, attr: Attr, last: bool) -> Result<u32, Error> {
        EntryLo::leaf(frame, size, attr, last)
    }

    #[inline(always)]
    fn leading_to(first: u32, frame: Pfn) -> u32 {
        Word::advance(first, Self::STEP, frame.get())
    }

    fn link(node: NodeAddr) -> u32 {
        EntryLo::link(node)
    }

    fn is_leaf(word: u32, last: bool) -> bool {
        EntryLo::is_leaf(word, last)
    }

    fn is_link(word: u32) -> bool {
        EntryLo::is_link(word)
    }

    fn node(link: u32) -> NodeAddr {
        EntryLo::node(link)
    }

    fn frame(leaf: u32, size: PageSize) -> Pfn {
        EntryLo::frame(leaf, size)
    }

    fn attr(leaf: u32, last: bool) -> Attr {
        EntryLo::attr(leaf, last)
    }

    fn size(leaf: u32, slot: PageSize) -> PageSize {
        EntryLo::size(leaf, slot)
    }

    fn change(leaf: u32, change: Change, last: bool) -> u32 {
        EntryLo::change(leaf, change, last)
    }

    fn absent(bits: u64) -> u32 {
        EntryLo::absent(bits)
    }

    fn absent_bits(word: u32) -> u64 {
        EntryLo::absent_bits(word)
    }

    fn beside(changed: u32, beside: u32) -> u32 {
        EntryLo::beside(changed, beside)
    }
}
