//! The links of the layout [`OneWord`](super::OneWord).

use super::guard;
use crate::nodes::{LinkRange, NodeAddr};
use crate::word::Word;

/// A word that can be a link of the layout [`OneWord`](super::OneWord): the address of a node, and the position and size of its
/// digit.
///
/// ```text
///  u64   63                                16 15        8  7   6  5        0
///       +------------------------------------+-----------+---+---+----------+
///       |  node address                      | slots - 1 | 0 | I |  shift   |
///       +------------------------------------+-----------+---+---+----------+
///  u32   31                     11 10     7  6  5        0
///       +-------------------------+--------+---+----------+
///       |  node address / 4       | log2   | I |  shift   |
///       +-------------------------+--------+---+----------+
/// ```
///
/// `shift` is the position of the digit's lowest bit: the slot is `(address >> shift) & (slots - 1)`. `I` is set if the link leads
/// to an indexing node, and clear if it leads to a leaf, whose slots are PTEs. An empty slot is a zero word. In it `I` is clear
/// too, so a walk needs one test a node. The shift is in the lowest bits because shift instructions use only the low bits of their
/// count. The slot mask of a 64-bit word is its second byte, which many machines extract in one instruction.
///
/// A 64-bit word holds the low 48 bits of an address and extends their sign, so a kernel's nodes may be in the upper half of the
/// address space. A 32-bit word holds the node addresses below 8 MiB: give such a storage a base of 0.
pub trait Link: Word {
    /// The largest logarithm of a node's slots.
    const MAX_WIDTH: u32;
    /// The largest logarithm of a node's slots to which adaptive nodes grow.
    ///
    /// Storage divides each of its pages into nodes of one size, so each additional size leaves some of a page unused. A table with
    /// 32-bit words is chosen to save space, so its nodes grow to 64 bytes only.
    const GROWN_WIDTH: u32;
    /// The node addresses that a link can hold.
    const REACH: LinkRange;

    /// Returns the link to a node of `2^width` slots whose digit begins at bit `shift`.
    fn new(node: NodeAddr, shift: u32, width: u32, leaf: bool) -> Self;

    /// Tells whether the link leads to an indexing node.
    fn is_inner(self) -> bool;

    /// Returns the position of the digit's lowest bit.
    fn shift(self) -> u32;

    /// Returns the logarithm of the node's slots.
    fn width(self) -> u32;

    /// Returns the address of the node.
    fn node(self) -> NodeAddr;

    /// Returns the slot of `at`.
    fn index(self, at: usize) -> usize;

    /// Tells whether the node or leaf of this link covers `at`, if its region begins at `base`. For a leaf, whose tag is `base`,
    /// this is the check of all guards on the path.
    fn covers(self, base: usize, at: usize) -> bool;
}

const INNER: u32 = 1 << 6;

#[cfg(target_has_atomic = "64")]
impl Link for u64 {
    const MAX_WIDTH: u32 = 8;
    const GROWN_WIDTH: u32 = 6;
    const REACH: LinkRange = LinkRange::signed(48);

    #[inline(always)]
    fn new(node: NodeAddr, shift: u32, width: u32, leaf: bool) -> Self {
        let kind = if leaf { 0 } else { INNER };
        (node.get() as u64) << 16 | ((1 << width) - 1) << 8 | u64::from(kind | shift)
    }

    #[inline(always)]
    fn is_inner(self) -> bool {
        self & u64::from(INNER) != 0
    }

    #[inline(always)]
    fn shift(self) -> u32 {
        self as u32 & (INNER - 1)
    }

    #[inline(always)]
    fn width(self) -> u32 {
        // This takes two or three instructions; counting ones takes a dozen on machines without an instruction for that.
        ((self as u32 >> 8 & 0xff) + 1).trailing_zeros()
    }

    #[inline(always)]
    fn node(self) -> NodeAddr {
        NodeAddr::new((self.cast_signed() >> 16) as usize)
    }

    #[inline(always)]
    fn index(self, at: usize) -> usize {
        at.wrapping_shr(self as u32) & (self >> 8 & 0xff) as usize
    }

    #[inline(always)]
    fn covers(self, base: usize, at: usize) -> bool {
        guard::leaf_covers(at, base, self as u32, (self >> 8 & 0xff) as usize)
    }
}

impl Link for u32 {
    const MAX_WIDTH: u32 = 12;
    const GROWN_WIDTH: u32 = 4;
    const REACH: LinkRange = LinkRange::unsigned(23);

    #[inline(always)]
    fn new(node: NodeAddr, shift: u32, width: u32, leaf: bool) -> Self {
        let kind = if leaf { 0 } else { INNER };
        (node.get() as u32 / 4) << 11 | width << 7 | kind | shift
    }

    #[inline(always)]
    fn is_inner(self) -> bool {
        self & INNER != 0
    }

    #[inline(always)]
    fn shift(self) -> u32 {
        self & (INNER - 1)
    }

    #[inline(always)]
    fn width(self) -> u32 {
        self >> 7 & 15
    }

    #[inline(always)]
    fn node(self) -> NodeAddr {
        NodeAddr::new((self >> 11) as usize * 4)
    }

    #[inline(always)]
    fn index(self, at: usize) -> usize {
        at.wrapping_shr(self) & ((1 << self.width()) - 1)
    }

    #[inline(always)]
    fn covers(self, base: usize, at: usize) -> bool {
        guard::leaf_covers(at, base, self, (1 << self.width()) - 1)
    }
}
