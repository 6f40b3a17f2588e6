//! The compact formats of tables that software walks: every attribute, any page size, one word.
//!
//! ```text
//! Compact    63 62 61       56 55                                12 11 10        2  1    0
//!           +-----+-----------+------------------------------------+--+-----------+----+----+
//!     leaf  |  0  | log2 size |        physical address >> 12      |0 | attr      | 1  | 0  |
//!     link  |  0  |     address of the node                                       | 0  | 1  |
//!           +-----+-----------+------------------------------------+--+-----------+----+----+
//!
//! Compact32  31                           12 11 10          2  1    0
//!           +-------------------------------+--+-------------+----+----+
//!     leaf  |   frame, size in low bits     | N|    attr     | 1  | 0  |
//!     link  |   address of the node                          | 0  | 1  |
//!           +-------------------------------+--+-------------+----+----+
//! ```
//!
//! One test of bit 0 tells a link from everything that ends a walk, and the bit folds into the next load's
//! displacement. `Compact32` tells sizes as RISC-V's Svnapot does: with N set, a page of `2^k` frames has bit `k - 1`
//! of its frame number set and those below clear.

use tlbkit_addr::{Attr, PageSize, Pfn};

use super::Format;
use crate::nodes::NodeAddr;
use crate::{Change, Error};

const LINK: usize = 1;
const LEAF: usize = 2;
const ATTR_SHIFT: u32 = 2;
const ATTRS: u16 = 0x1ff;
const FRAME_SHIFT: u32 = 12;

/// 64-bit words for tables that software walks: frames of 4 KiB below 2^56 bytes of physical memory.
#[cfg(target_has_atomic = "64")]
#[derive(Clone, Copy, Debug)]
pub struct Compact;

#[cfg(target_has_atomic = "64")]
const SIZE_SHIFT: u32 = 56;
#[cfg(target_has_atomic = "64")]
const FRAMES: u64 = (1 << SIZE_SHIFT) - (1 << FRAME_SHIFT);

#[cfg(target_has_atomic = "64")]
impl Format for Compact {
    type Word = u64;

    const STEP: u64 = 1 << FRAME_SHIFT;
    const LINK_ALIGN: usize = 4;
    const IMPLIED: Attr = Attr::empty();
    const OPTIONAL: Attr = Attr::all();

    #[inline(always)]
    fn leaf(frame: Pfn, size: PageSize, attr: Attr, _last: bool) -> Result<u64, Error> {
        let frames = frame.get() as u64;
        if frames > FRAMES >> FRAME_SHIFT {
            return Err(Error::FrameTooLarge { frame });
        }
        Ok(u64::from(size.shift()) << SIZE_SHIFT
            | frames << FRAME_SHIFT
            | u64::from(attr.bits()) << ATTR_SHIFT
            | LEAF as u64)
    }

    #[inline(always)]
    fn link(node: NodeAddr) -> u64 {
        (node.get() | LINK) as u64
    }

    #[inline(always)]
    fn is_leaf(word: u64, _last: bool) -> bool {
        word & (LEAF | LINK) as u64 == LEAF as u64
    }

    #[inline(always)]
    fn is_link(word: u64) -> bool {
        word & LINK as u64 != 0
    }

    #[inline(always)]
    fn node(link: u64) -> NodeAddr {
        NodeAddr::new((link as usize).wrapping_sub(LINK))
    }

    #[inline(always)]
    fn frame(leaf: u64, _size: PageSize) -> Pfn {
        Pfn::new(((leaf & FRAMES) >> FRAME_SHIFT) as usize)
    }

    #[inline(always)]
    fn attr(leaf: u64) -> Attr {
        Attr::from_bits_retain((leaf >> ATTR_SHIFT) as u16 & ATTRS)
    }

    #[inline(always)]
    fn size(leaf: u64, slot: PageSize) -> PageSize {
        PageSize::from_shift((leaf >> SIZE_SHIFT) as u32).unwrap_or(slot)
    }

    #[inline(always)]
    fn change(leaf: u64, change: Change) -> u64 {
        leaf & !(u64::from(change.clear.bits()) << ATTR_SHIFT) | u64::from(change.set.bits()) << ATTR_SHIFT
    }
}

/// 32-bit words for tables that software walks: frames of 4 KiB below 4 GiB of physical memory.
#[derive(Clone, Copy, Debug)]
pub struct Compact32;

/// The bit that says that the frame number's low bits tell the size.
const NAPOT: u32 = 1 << 11;

impl Format for Compact32 {
    type Word = u32;

    const STEP: u32 = 1 << FRAME_SHIFT;
    const LINK_ALIGN: usize = 4;
    const IMPLIED: Attr = Attr::empty();
    const OPTIONAL: Attr = Attr::all();

    #[inline(always)]
    fn leaf(frame: Pfn, size: PageSize, attr: Attr, _last: bool) -> Result<u32, Error> {
        if frame.get() > (u32::MAX >> FRAME_SHIFT) as usize {
            return Err(Error::FrameTooLarge { frame });
        }
        let word = (frame.get() as u32) << FRAME_SHIFT | u32::from(attr.bits()) << ATTR_SHIFT | LEAF as u32;
        Ok(match size.shift() {
            FRAME_SHIFT => word,
            shift @ FRAME_SHIFT..=31 => word | NAPOT | 1 << (shift - 1),
            _ => return Err(Error::WrongSize { size }),
        })
    }

    #[inline(always)]
    fn link(node: NodeAddr) -> u32 {
        (node.get() | LINK) as u32
    }

    #[inline(always)]
    fn is_leaf(word: u32, _last: bool) -> bool {
        word & (LEAF | LINK) as u32 == LEAF as u32
    }

    #[inline(always)]
    fn is_link(word: u32) -> bool {
        word & LINK as u32 != 0
    }

    #[inline(always)]
    fn node(link: u32) -> NodeAddr {
        NodeAddr::new((link as usize).wrapping_sub(LINK))
    }

    #[inline(always)]
    fn frame(leaf: u32, size: PageSize) -> Pfn {
        Pfn::new((leaf as usize & !size.mask()) >> FRAME_SHIFT)
    }

    #[inline(always)]
    fn attr(leaf: u32) -> Attr {
        Attr::from_bits_retain((leaf >> ATTR_SHIFT) as u16 & ATTRS)
    }

    #[inline(always)]
    fn size(leaf: u32, slot: PageSize) -> PageSize {
        // Without N the lowest possible marker is that of a base page.
        let marker = if leaf & NAPOT == 0 {
            FRAME_SHIFT
        } else {
            (leaf >> FRAME_SHIFT).trailing_zeros() + FRAME_SHIFT + 1
        };
        PageSize::from_shift(marker).unwrap_or(slot)
    }

    #[inline(always)]
    fn change(leaf: u32, change: Change) -> u32 {
        leaf & !(u32::from(change.clear.bits()) << ATTR_SHIFT) | u32::from(change.set.bits()) << ATTR_SHIFT
    }
}
