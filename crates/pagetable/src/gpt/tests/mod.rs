//! What is particular to guarded tables: minimal trees, exact space, sizes that follow the load.

mod growth;
mod history;
mod space;
mod tuned;

use core::cell::Cell;
use std::collections::BTreeMap;

use proptest::prelude::*;
use tlbkit_addr::{Attr, PageSize, Pages, Pfn, VirtAddr, Vpn};

use super::node::{Node, View};
use super::shape::Shape;
use super::*;
use crate::format::{self, is_taken};
use crate::geometry::{Va32, Va48, Va64};
use crate::nodes::{Chunk, Held, NodeAddr, Reclaim, Record, Slab};
use crate::{Change, Error, Holes, Leaf, Local, Solo, Table, Word};

/// A slab that refuses when it is told to, and counts a walker's loads.
#[derive(Debug)]
struct Meter<'m, W: Word> {
    slab: Slab<'m, W, Solo>,
    left: Cell<usize>,
    /// The most words of a node.
    most: Cell<usize>,
    loads: Cell<usize>,
}

impl<'m, W: Word> Meter<'m, W> {
    fn new(memory: &'m mut [Chunk]) -> Self {
        Self {
            slab: Slab::new(memory, 0).unwrap(),
            left: Cell::new(usize::MAX),
            most: Cell::new(usize::MAX),
            loads: Cell::new(0),
        }
    }
}

// SAFETY: the slab does it all.
unsafe impl<W: Word> Nodes for Meter<'_, W> {
    type Word = W;
    type Mode = Solo;

    fn lowest(&self) -> NodeAddr {
        self.slab.lowest()
    }

    fn take_within(&self, words: usize, last: usize) -> Option<NodeAddr> {
        self.left.set(self.left.get().checked_sub(1)?);
        self.most.get().checked_sub(words)?;
        self.slab.take_within(words, last)
    }

    fn at(&self, node: NodeAddr) -> *const W::Cell {
        self.slab.at(node)
    }

    fn record_at(&self, node: NodeAddr, words: usize) -> *const Record {
        self.slab.record_at(node, words)
    }

    fn walked_at(&self, node: NodeAddr, index: usize) -> *const W::Cell {
        self.loads.set(self.loads.get() + 1);
        self.slab.walked_at(node, index)
    }
}

// SAFETY: the slab does it all.
unsafe impl<W: Word> Reclaim for Meter<'_, W> {
    unsafe fn free(&self, node: NodeAddr, clean: bool) {
        // SAFETY: this function's contract.
        unsafe { self.slab.free(node, clean) }
    }

    unsafe fn link(&self, node: NodeAddr) -> *const Record {
        // SAFETY: this function's contract.
        unsafe { self.slab.link(node) }
    }

    fn index_of(&self, node: NodeAddr) -> u32 {
        self.slab.index_of(node)
    }

    fn node_of(&self, index: u32) -> NodeAddr {
        self.slab.node_of(index)
    }

    fn shared(&self) -> bool {
        false
    }

    fn held(&self) -> &Held {
        self.slab.held()
    }
}

/// Hands each table of the histories, with a name, to a macro that makes tests.
macro_rules! each_table {
    ($tests:ident) => {
        $tests! {
            compact_g2: Va48, format::Compact, OneWord, Fixed<1>;
            compact_g16: Va48, format::Compact, OneWord, Fixed<4>;
            compact_ga: Va48, format::Compact, OneWord, Adaptive;
            compact32_ga: Va64, format::Compact32, OneWord, Adaptive;
            compact32_g8: Va64, format::Compact32, OneWord, Fixed<3>;
            compact32_va32: Va32, format::Compact32, OneWord, Adaptive;
            compact32_va32_g128: Va32, format::Compact32, OneWord, Fixed<7>;
            pairs_ga: Va32, format::EntryLo, OneWord, Adaptive;
            paper_g2: Va64, format::Paper, TwoWords, Fixed<1>;
            paper_g16: Va64, format::Paper, TwoWords, Fixed<4>;
            paper_ga: Va64, format::Paper, TwoWords, Adaptive;
            paper_ga_signed: Va48, format::Paper, TwoWords, Adaptive;
            paper_g32_va32: Va32, format::Paper, TwoWords, Fixed<5>;
            kseg0_g2: Va32, format::EntryLo, Kseg0<Fixed<1>>, Fixed<1>;
            kseg0_g4: Va32, format::EntryLo, Kseg0<Fixed<2>>, Fixed<2>;
            kseg0_g8: Va32, format::EntryLo, Kseg0<Fixed<3>>, Fixed<3>;
            kseg0_g16: Va32, format::EntryLo, Kseg0<Fixed<4>>, Fixed<4>;
            kseg0_g256: Va32, format::EntryLo, Kseg0<Fixed<8>>, Fixed<8>;
            kseg0_ga: Va32, format::EntryLo, Kseg0<Adaptive>, Adaptive;
        }
    };
}
use each_table;

fn memory(chunks: usize) -> Vec<Chunk> {
    vec![Chunk::ZERO; chunks]
}

impl<G: Geometry, F: Format, N: Nodes<Word = F::Word>, L: Layout<N>, P: NodeSize> Gpt<'_, G, F, N, L, P> {
    /// Checks what holds between any two changes, and returns the leaves in order.
    fn check(&self) -> Vec<Leaf> {
        let mut tally = crate::Footprint::default();
        let mut leaves = Vec::new();
        // SAFETY: no CPU writes meanwhile, and no batch is completed.
        if let Some(root) = unsafe { View::sole(self) }.root().read() {
            root.check(G::VA_BITS, 0, &mut tally, &mut leaves);
        }
        assert_eq!(self.footprint(), tally);
        leaves
    }
}

impl<T: Shape> Node<'_, T> {
    fn check(self, ceiling: u32, start: usize, tally: &mut crate::Footprint, leaves: &mut Vec<Leaf>) {
        assert!(self.top() <= ceiling || T::PAIRS && self.is_leaf(), "a node covers more than its slot");
        let base = self.nearest(start).unwrap() & !guard::low(self.top());
        assert!(
            guard::agree(base, start, ceiling.max(self.top())),
            "a node is under another slot than its own"
        );
        let bytes = T::words(*self) * T::W::BYTES;
        let mut live = 0;
        if self.is_leaf() {
            tally.leaves += 1;
            tally.leaf_bytes += bytes;
            for pte in self.all_ptes(base) {
                leaves.extend(pte.mapped());
                // A mark counts, too.
                live += usize::from(is_taken::<T::F>(pte.read()));
            }
        } else {
            tally.nodes += 1;
            tally.bytes += bytes;
            assert!(self.width >= 1 && self.width <= T::P::WIDTH);
            let mut last = None;
            for (slot, child) in self.children().enumerate() {
                let at = base | slot << self.shift;
                if let Some(child) = child {
                    if self.shares(&child) {
                        self.check_shared(child, at);
                    }
                    if Some(child) != last {
                        child.check(self.shift, at, tally, leaves);
                        live += 1;
                    }
                }
                last = child;
            }
        }
        assert_eq!(live, self.live(), "the live count is wrong");
        assert!(live >= if self.is_leaf() { 1 } else { 2 }, "a node with {live} entries stays");
        if self.is_leaf() {
            tally.ptes += live;
        }
    }

    /// Checks that a larger page's leaf stands in the slots of those of its two pages that it maps, and in no others.
    fn check_shared(self, leaf: Self, at: usize) {
        assert!(leaf.top() <= self.top(), "halves of a pair are in two nodes");
        for half in [0, 1] {
            let start = at & !guard::low(leaf.top()) | half << leaf.shift;
            let mapped = leaf.pte(start).mapped().is_some();
            for slot in self.run(self.index(start), &leaf) {
                assert_eq!(self.child(slot) == Some(leaf), mapped, "half {half} of {:?}", *leaf);
            }
        }
    }
}

#[test]
fn gpt_a_page_that_comes_and_goes_does_not_make_nodes_flap() {
    let mut memory = memory(100);
    let slab = Slab::<u32, Solo>::new(&mut memory, 0).unwrap();
    let mut table = Local::new(PaperGpt::<_, Adaptive>::new(&slab).unwrap(), |_| ());
    for count in 1..if cfg!(miri) { 3 } else { 130 } {
        let page = Pages::one(Vpn::new(2 * count));
        let sizes = |table: &Local<'_, PaperGpt<'_, _, Adaptive>, _>| {
            // SAFETY: no CPU writes meanwhile.
            table.table().node_sizes(unsafe { Pinned::by(table) })
        };
        table.map(page, Pfn::new(1), PageSize::K4, Attr::READ).unwrap();
        let with = sizes(&table);
        table.unmap(page, Holes::Refuse).unwrap();
        let without = sizes(&table);
        for _ in 0..3 {
            table.map(page, Pfn::new(1), PageSize::K4, Attr::READ).unwrap();
            assert_eq!(sizes(&table), with);
            table.unmap(page, Holes::Refuse).unwrap();
            assert_eq!(sizes(&table), without);
        }
        table.map(page, Pfn::new(1), PageSize::K4, Attr::READ).unwrap();
    }
    table.destroy();
}

#[test]
fn gpt_a_table_of_one_page_takes_one_leaf() {
    let mut memory = memory(4);
    let meter = Meter::<u64>::new(&mut memory);
    let mut table = Local::new(Gpt48::new(&meter).unwrap(), |_| ());
    assert_eq!(meter.slab.usage().nodes, 0);
    let page = Vpn::new(0x1234);
    table.map(Pages::one(page), Pfn::new(9), PageSize::K4, Attr::READ).unwrap();
    assert_eq!((meter.slab.usage().nodes, meter.slab.usage().bytes), (1, 16));
    meter.loads.set(0);
    assert_eq!(table.lookup(page.address(PageSize::K4)).unwrap().frame, Pfn::new(9));
    assert_eq!(meter.loads.get(), 2, "the tag and the PTE");
    table.destroy();
    assert_eq!(meter.slab.usage().nodes, 0);
}

#[test]
fn gpt_a_dropped_table_counts_its_nodes_as_lost() {
    let mut memory = memory(4);
    let meter = Meter::<u64>::new(&mut memory);
    let mut table = Local::new(Gpt48::new(&meter).unwrap(), |_| ());
    for page in [1, 1 << 20] {
        table.map(Pages::one(Vpn::new(page)), Pfn::new(9), PageSize::K4, Attr::READ).unwrap();
    }
    drop(table);
    assert_eq!(meter.held().lost(), 3);
}

#[test]
fn gpt_storage_out_of_a_links_reach_is_refused() {
    let mut memory = memory(4);
    // The words of a 32-bit link hold addresses below 8 MiB.
    let slab = Slab::<u32, Solo>::new(&mut memory, 8 << 20).unwrap();
    let refused = Gpt::<Va64, format::Compact32, _, OneWord>::new(&slab).err();
    assert_eq!(refused, Some(Error::OutOfReach { lowest: NodeAddr::new(8 << 20) }));
}
