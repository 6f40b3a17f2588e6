//! A format for base pages of any size: what [`Compact`] is for 4 KiB.

use tlbkit_addr::{Attr, PageSize, Pfn};
use tlbkit_pagetable::format::{Compact, Format};
use tlbkit_pagetable::nodes::NodeAddr;
use tlbkit_pagetable::{Change, Error};

/// Frames of `2^SHIFT` bytes, encoded as if they had 4 KiB. With `BREAKS`, a change of the frame breaks before it makes.
#[derive(Debug)]
pub(crate) struct Rebased<const SHIFT: u32, const BREAKS: bool = false>;

impl<const SHIFT: u32, const BREAKS: bool> Rebased<SHIFT, BREAKS> {
    /// Returns the size that a size is encoded as, which is as many base pages.
    fn encoded(size: PageSize) -> Option<PageSize> {
        PageSize::from_shift((size.shift() + Compact::BASE.shift()).checked_sub(SHIFT)?)
    }
}

// SAFETY: leaves and links are those of `Compact`.
unsafe impl<const SHIFT: u32, const BREAKS: bool> Format for Rebased<SHIFT, BREAKS> {
    type Word = u64;

    const BASE: PageSize = PageSize::from_shift(SHIFT).unwrap();
    const STEP: u64 = Compact::STEP;
    const LINK_ALIGN: usize = Compact::LINK_ALIGN;
    const IMPLIED: Attr = Compact::IMPLIED;
    const OPTIONAL: Attr = Compact::OPTIONAL;
    const BREAK_FRAME: bool = BREAKS;

    fn leaf(frame: Pfn, size: PageSize, attr: Attr, last: bool) -> Result<u64, Error> {
        Compact::leaf(frame, Self::encoded(size).ok_or(Error::WrongSize { size })?, attr, last)
    }

    fn leading_to(first: u64, frame: Pfn) -> u64 {
        Compact::leading_to(first, frame)
    }

    fn link(node: NodeAddr) -> u64 {
        Compact::link(node)
    }

    fn is_leaf(word: u64, last: bool) -> bool {
        Compact::is_leaf(word, last)
    }

    fn is_link(word: u64) -> bool {
        Compact::is_link(word)
    }

    fn node(link: u64) -> NodeAddr {
        Compact::node(link)
    }

    fn frame(leaf: u64, size: PageSize) -> Pfn {
        Compact::frame(leaf, Self::encoded(size).unwrap())
    }

    fn attr(leaf: u64, last: bool) -> Attr {
        Compact::attr(leaf, last)
    }

    fn size(leaf: u64, slot: PageSize) -> PageSize {
        let encoded = Compact::size(leaf, slot);
        PageSize::from_shift(encoded.shift() - Compact::BASE.shift() + SHIFT).unwrap()
    }

    fn change(leaf: u64, change: Change, last: bool) -> u64 {
        Compact::change(leaf, change, last)
    }
}
