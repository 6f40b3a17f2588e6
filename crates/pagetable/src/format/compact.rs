//! The compact formats of tables that software walks: every attribute, any page size, one word.
//!
//! ```text
//! Compact    63                             12 11 10          2  1    0
//! Compact32  31                             12 11 10          2  1    0
//!           +---------------------------------+--+-------------+----+----+
//!     leaf  |  frame, size in its low bits    | N|    attr     | 1  | 0  |
//!     link  |  address of the node                            | 0  | 1  |
//!           +---------------------------------+--+-------------+----+----+
//! ```
//!
//! A test of bit 0 distinguishes a link from all words that end a walk, and the displacement of the next load subtracts the
//! bit. A test of bit 1 distinguishes a leaf from an empty word or mark. With both bits clear, the bits above them hold a
//! mark. If the size is known, the word without its low twelve bits is the physical address. Otherwise the size is encoded
//! as in RISC-V's Svnapot: with N set, a page of `2^k` frames has bit `k - 1` of its frame number set and the bits below it
//! clear.

use tlbkit_addr::{Attr, PageSize, Pfn};

use super::{Format, Masks};
use crate::fields::Fields as _;
use crate::nodes::NodeAddr;
use crate::{Change, Error, Word};

const LINK: usize = 1;
const LEAF: usize = 2;
const ATTR_SHIFT: u32 = 2;
const ATTRS: u32 = 0x1ff;
const NAPOT: usize = 1 << 11;
const FRAME_SHIFT: u32 = 12;

macro_rules! compact {
    ($(#[$doc:meta])* $name:ident, $word:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name;

        impl $name {
            /// Returns the bits that a change clears and sets in every leaf.
            #[inline(always)]
            fn bits_of(change: Change) -> Masks<$word> {
                let clear = $word::from(change.clear.bits() & ATTRS) << ATTR_SHIFT;
                Masks { clear, set: $word::from(change.set.bits()) << ATTR_SHIFT }
            }
        }

        // SAFETY: bit 0 distinguishes a link from a leaf, and a link without it is the node's address.
        unsafe impl Format for $name {
            type Word = $word;

            const STEP: $word = 1 << FRAME_SHIFT;
            const LINK_ALIGN: usize = 4;
            const IMPLIED: Attr = Attr::empty();
            const OPTIONAL: Attr = Attr::from_bits_truncate(ATTRS);
            const ABSENT: u32 = $word::BITS - ATTR_SHIFT;

            #[inline(always)]
            fn leaf(frame: Pfn, size: PageSize, attr: Attr, _last: bool) -> Result<$word, Error> {
                if frame.get() as u64 > u64::from($word::MAX >> FRAME_SHIFT) {
                    return Err(Error::FrameTooLarge { frame });
                }
                let base = (frame.get() as $word) << FRAME_SHIFT;
                let word = base.with(<$word>::from(attr.bits()) << ATTR_SHIFT).with(LEAF as $word);
                Ok(match size.shift() {
                    FRAME_SHIFT => word,
                    shift if shift > FRAME_SHIFT && shift <= $word::BITS => {
                        word.with(NAPOT as $word).with(1 << (shift - 1))
                    }
                    _ => return Err(Error::WrongSize { size }),
                })
            }

            #[inline(always)]
            fn leading_to(first: $word, frame: Pfn) -> $word {
                Word::advance(first, Self::STEP, frame.get())
            }

            #[inline(always)]
            fn link(node: NodeAddr) -> $word {
                node.get().with(LINK) as $word
            }

            #[inline(always)]
            fn is_leaf(word: $word, _last: bool) -> bool {
                word & LEAF as $word != 0
            }

            #[inline(always)]
            fn is_link(word: $word) -> bool {
                word & LINK as $word != 0
            }

            #[inline(always)]
            fn node(link: $word) -> NodeAddr {
                NodeAddr::new((link as usize).wrapping_sub(LINK))
            }

            #[inline(always)]
            fn frame(leaf: $word, size: PageSize) -> Pfn {
                Pfn::new((leaf as usize & !size.mask()) >> FRAME_SHIFT)
            }

            #[inline(always)]
            fn attr(leaf: $word, _last: bool) -> Attr {
                Attr::from_bits_retain((leaf >> ATTR_SHIFT) as u32 & ATTRS)
            }

            #[inline(always)]
            fn size(leaf: $word, _slot: PageSize) -> PageSize {
                if leaf & NAPOT as $word == 0 {
                    return PageSize::K4;
                }
                // Every leaf with N set has the marker bit of its size, so the shift is less than the word's width.
                PageSize::from_shift((leaf >> FRAME_SHIFT).trailing_zeros() + FRAME_SHIFT + 1).unwrap_or(PageSize::K4)
            }

            #[inline(always)]
            fn absent(bits: u64) -> $word {
                (bits as $word) << ATTR_SHIFT
            }

            #[inline(always)]
            fn absent_bits(word: $word) -> u64 {
                u64::from(word >> ATTR_SHIFT)
            }

            #[inline(always)]
            fn change(leaf: $word, change: Change, _last: bool) -> $word {
                Self::bits_of(change).apply(leaf)
            }

            #[inline(always)]
            fn masks(change: Change, _last: bool) -> Option<Masks<$word>> {
                Some(Self::bits_of(change))
            }
        }
    };
}

#[cfg(target_has_atomic = "64")]
compact! {
    /// 64-bit words for tables that software walks: frames of 4 KiB.
    Compact, u64
}

compact! {
    /// 32-bit words for tables that software walks: frames of 4 KiB below 4 GiB of physical memory.
    Compact32, u32
}
