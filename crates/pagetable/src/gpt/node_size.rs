//! How large nodes are: all of one size, or sizes that follow the tree.

use core::fmt::Debug;

/// The choice of node sizes: [`Fixed`] or [`Adaptive`].
pub trait NodeSize: Debug + 'static + sealed::Sealed {
    /// Whether nodes grow and shrink with what they hold.
    const ADAPTIVE: bool;
    /// The logarithm of a node's slots: of each, or of the largest.
    const WIDTH: u32;
}

/// Nodes of `2^W` slots: G2 is `Fixed<1>`, G16 `Fixed<4>`, G256 `Fixed<8>`; up to `Fixed<12>`, or `Fixed<8>` in
/// the layout [`OneWord`](super::OneWord) with 64-bit links.
///
/// Digits stand at multiples of `W` above the leaves, so two tables with the same pages have the same nodes. Where
/// the width does not divide the address evenly, or a larger page ends within a digit, the digit is a partial one
/// and the node accordingly smaller.
#[derive(Clone, Copy, Debug)]
pub struct Fixed<const W: u32>;

/// Nodes whose sizes are chosen as the tree changes: GA. They have 2 to 256 slots; in the layout
/// [`OneWord`](super::OneWord) up to 64 with 64-bit links, and up to 16 with 32-bit ones.
///
/// A node that joins two entries has two slots, one for a range as many as pay. After each change a node takes bits
/// from the nodes below it, or gives some back, if that saves bytes; giving back has to save an eighth of the node,
/// so that a page that comes and goes does not make a node flap between two sizes.
#[derive(Clone, Copy, Debug)]
pub struct Adaptive;

mod sealed {
    pub trait Sealed {}
    impl<const W: u32> Sealed for super::Fixed<W> {}
    impl Sealed for super::Adaptive {}
}

impl<const W: u32> NodeSize for Fixed<W> {
    const ADAPTIVE: bool = false;
    const WIDTH: u32 = {
        assert!(W >= 1 && W <= super::MAX_WIDTH as u32, "a node has 2 to 4096 slots");
        W
    };
}

impl NodeSize for Adaptive {
    const ADAPTIVE: bool = true;
    const WIDTH: u32 = 8;
}
