//! The sizes of nodes: one size for all, or sizes that adapt to the tree.

use core::fmt::Debug;

/// The choice of node sizes: [`Fixed`] or [`Adaptive`].
pub trait NodeSize: Debug + 'static + sealed::Sealed {
    /// Whether nodes grow and shrink with the number of their entries.
    const ADAPTIVE: bool;
    /// The logarithm of the number of slots of each node, if all have one size, and otherwise of the largest.
    const WIDTH: u32;
}

/// Nodes of `2^W` slots: G2 is `Fixed<1>`, G16 `Fixed<4>`, G256 `Fixed<8>`; up to `Fixed<12>`, or `Fixed<8>` in
/// the layout [`Kseg0`](super::Kseg0), and in [`OneWord`](super::OneWord) with 64-bit links.
///
/// Digits begin at multiples of `W` above the leaves, so the nodes hardly depend on the order of changes: only a node that was
/// divided for a larger page stays divided, and a leaf that has lost pages may be larger than a new one would be. If the width does
/// not divide the address evenly, or a larger page ends within a digit, the digit is shorter and the node smaller.
#[derive(Clone, Copy, Debug)]
pub struct Fixed<const W: u32>;

/// Nodes whose sizes are chosen as the tree changes: GA. They have 2 to 256 slots. In the layout
/// [`OneWord`](super::OneWord) nodes grow to 64 slots with 64-bit links, and to 16 with 32-bit links; a node that a range of
/// neighbours fills at once may have four times as many.
///
/// A new node for two entries has two slots; one for two leaves of 16 pages, where a run of pages goes on, has 16. A new node for a
/// range has the largest number of slots that takes no more bytes than nodes of two slots would. A node takes bits from the nodes
/// below it, or gives bits back, if that saves bytes. That is looked up after each change; in the layout
/// [`OneWord`](super::OneWord), after every `n / 8` changes of single pages in a node of `n` slots. Giving bits back must save more
/// than an eighth of the node, so that a page that is mapped and unmapped again and again does not make the node change its size
/// each time.
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
