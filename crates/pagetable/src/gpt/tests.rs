//! What is particular to guarded tables: minimal trees, exact space, sizes that follow the load.

use core::cell::Cell;
use std::collections::BTreeMap;

use proptest::prelude::*;
use tlbkit_addr::{Attr, PageSize, Pages, Pfn, VirtAddr, Vpn};

use super::layout::Edge;
use super::slots::Place;
use super::*;
use crate::format;
use crate::geometry::{Va32, Va48, Va64};
use crate::nodes::{Chunk, Held, NodeAddr, Reclaim, Record, Slab};
use crate::{Change, Error, Holes, Leaf, Local, Solo, Table, Word};

/// A slab that refuses when it is told to, and counts a walker's loads.
#[derive(Debug)]
struct Meter<'m, W: Word> {
    slab: Slab<'m, W, Solo>,
    left: Cell<usize>,
    loads: Cell<usize>,
}

impl<'m, W: Word> Meter<'m, W> {
    fn new(memory: &'m mut [Chunk]) -> Self {
        Self { slab: Slab::new(memory, 0).unwrap(), left: Cell::new(usize::MAX), loads: Cell::new(0) }
    }
}

// SAFETY: the slab does it all.
unsafe impl<W: Word> Nodes for Meter<'_, W> {
    type Word = W;
    type Mode = Solo;

    fn take(&self, words: usize) -> Option<NodeAddr> {
        self.left.set(self.left.get().checked_sub(1)?);
        self.slab.take(words)
    }

    unsafe fn at(&self, node: NodeAddr) -> *const W::Cell {
        // SAFETY: the caller's promise; likewise below.
        unsafe { self.slab.at(node) }
    }

    unsafe fn record(&self, node: NodeAddr, words: usize) -> *const Record {
        // SAFETY: as above.
        unsafe { self.slab.record(node, words) }
    }

    unsafe fn follow(&self, node: NodeAddr, index: usize) -> W {
        self.loads.set(self.loads.get() + 1);
        // SAFETY: as above.
        unsafe { self.slab.follow(node, index) }
    }
}

// SAFETY: the slab does it all.
unsafe impl<W: Word> Reclaim for Meter<'_, W> {
    unsafe fn free(&self, node: NodeAddr, clean: bool) {
        // SAFETY: the caller's promise; likewise below.
        unsafe { self.slab.free(node, clean) }
    }

    unsafe fn link(&self, node: NodeAddr) -> *const Record {
        // SAFETY: as above.
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

fn memory(chunks: usize) -> Vec<Chunk> {
    vec![Chunk::ZERO; chunks]
}

impl<G: Geometry, F: Format, N: Nodes<Word = F::Word>, L: Layout<N>, P: Policy> Gpt<'_, G, F, N, L, P> {
    /// Checks what holds between any two changes, and returns the leaves in order.
    fn check(&self) -> Vec<Leaf> {
        let mut tally = crate::Footprint::default();
        let mut leaves = Vec::new();
        // SAFETY: nobody writes meanwhile.
        unsafe {
            let root = self.edge(Place::Root, G::VA_BITS, 0);
            self.check_edge(root, G::VA_BITS, 0, &mut tally, &mut leaves);
        }
        assert_eq!(self.footprint(), tally);
        leaves
    }

    unsafe fn check_edge(
        &self,
        edge: Edge,
        ceiling: u32,
        start: usize,
        tally: &mut crate::Footprint,
        leaves: &mut Vec<Leaf>,
    ) {
        if edge.is_empty() {
            return;
        }
        assert!(edge.top() <= ceiling || L::PAIRS && edge.leaf, "a node covers more than its slot");
        // SAFETY: the caller's promise.
        unsafe {
            let base = self.nearest(edge, start).unwrap() & !bits::low(edge.top());
            assert!(
                bits::agree(base, start, ceiling.max(edge.top())),
                "a node is under another slot than its own"
            );
            let bytes = Self::WORDS[Self::kind(edge)] * F::Word::BYTES;
            let mut live = 0;
            if edge.leaf {
                tally.leaves += 1;
                tally.leaf_bytes += bytes;
            } else {
                tally.nodes += 1;
                tally.bytes += bytes;
                assert!(edge.width >= 1 && edge.width <= P::WIDTH);
            }
            let mut last = Edge::EMPTY;
            for slot in 0..edge.slots() {
                let at = base | slot << edge.shift;
                if edge.leaf {
                    let word = self.nodes.read(edge.node, Self::pte_of(edge, at));
                    if F::is_leaf(word, true) {
                        leaves.push(Self::leaf(word, edge.shift, at));
                        live += 1;
                    }
                } else {
                    let child = self.edge(Place::In(edge.node, slot), edge.shift, at);
                    if edge.shares(child) {
                        self.check_shared(edge, base, child, at);
                    }
                    if child != last {
                        self.check_edge(child, edge.shift, at, tally, leaves);
                        live += usize::from(!child.is_empty());
                    }
                    last = child;
                }
            }
            assert_eq!(live, self.live(edge), "the live count is wrong");
            assert!(live >= if edge.leaf { 1 } else { 2 }, "a node with {live} entries stays");
            if edge.leaf {
                tally.ptes += live;
            }
        }
    }
}

impl<G: Geometry, F: Format, N: Nodes<Word = F::Word>, L: Layout<N>, P: Policy> Gpt<'_, G, F, N, L, P> {
    /// Checks that a larger page's leaf stands in the slots of those of its two pages that it maps, and in no others.
    unsafe fn check_shared(&self, node: Edge, base: usize, leaf: Edge, at: usize) {
        assert!(leaf.top() <= node.top(), "halves of a pair are in two nodes");
        for half in [0, 1] {
            let start = at & !bits::low(leaf.top()) | half << leaf.shift;
            // SAFETY: nobody writes meanwhile; the slots are within the node, the PTEs within the leaf.
            let (mapped, slots) = unsafe {
                let word = self.nodes.read(leaf.node, Self::pte_of(leaf, start));
                let slots = node.run(node.index(start), leaf).map(|slot| {
                    self.edge(Place::In(node.node, slot), node.shift, base | slot << node.shift) == leaf
                });
                (F::is_leaf(word, true), slots)
            };
            slots.for_each(|stands| assert_eq!(stands, mapped, "half {half} of {leaf:?}"));
        }
    }
}

/// One change of a random history.
#[derive(Clone, Debug)]
enum Op {
    Map { first: usize, count: usize, size: usize, frame: usize },
    Unmap { first: usize, count: usize, skip: bool },
    Protect { first: usize, count: usize, skip: bool },
    Resize { first: usize, count: usize, size: usize },
}

fn ops(len: usize) -> impl Strategy<Value = Vec<Op>> {
    // Small numbers meet often; `place` spreads them over the space.
    let first =
        (0usize..8, 0usize..5, 0usize..40).prop_map(|(region, cell, page)| region << 20 | cell << 9 | page);
    let count = prop_oneof![3 => 1usize..4, 2 => 1usize..40, 1 => 1usize..600];
    let op = prop_oneof![
        6 => (first.clone(), count.clone(), prop_oneof![4 => Just(0usize), 1 => 1usize..3], 0usize..3)
            .prop_map(|(first, count, size, frame)| Op::Map { first, count, size, frame }),
        4 => (first.clone(), count.clone(), any::<bool>())
            .prop_map(|(first, count, skip)| Op::Unmap { first, count, skip }),
        1 => (first.clone(), count.clone(), any::<bool>())
            .prop_map(|(first, count, skip)| Op::Protect { first, count, skip }),
        2 => (first, count, 0usize..3).prop_map(|(first, count, size)| Op::Resize { first, count, size }),
    ];
    prop::collection::vec(op, 1..len)
}

/// The page that a small number stands for: regions at both ends of the space, at either side of its middle, and
/// scattered, each around a boundary of many bits.
fn place<G: Geometry>(number: usize) -> usize {
    let (region, offset) = (number >> 20, number & 0xfffff);
    let [low, high] = G::SPACE.halves();
    let low = low.unwrap();
    let top = high.unwrap_or(low).last().get();
    match region {
        0 => low.first().get() + offset,
        1 => top - offset,
        2 => low.last().get() - offset,
        3 => high.map_or(low.last().get() / 2 + 1, |high| high.first().get()) + offset,
        4 => low.last().get() / 3 - 100 + offset,
        5 => low.last().get() / 4 - 17 + offset,
        6 => low.last().get() / 4 + 1 + offset * 7,
        _ => low.last().get() / 5 * 3 + offset * 513,
    }
}

type Model = BTreeMap<usize, (usize, u32, Attr)>;

/// Runs a history against a map of base pages, and a table whose storage fails at every possible point.
fn run<'m, G, F, L, P>(meter: &'m Meter<'m, F::Word>, history: &[Op])
where
    G: Geometry,
    F: Format,
    L: Layout<Meter<'m, F::Word>>,
    P: Policy,
{
    let mut table = Local::new(Gpt::<G, F, _, L, P>::new(meter), |_| ());
    // By first page: frame, size shift, attributes.
    let mut model = Model::new();
    let rights = Attr::READ | Attr::WRITE | F::IMPLIED;
    let base = G::BASE.shift();
    for op in history {
        let before = (table.footprint(), meter.slab.usage().nodes);
        let range = |first: usize, count: usize, size: PageSize| {
            let pages = size.pages(G::BASE).unwrap();
            let first = place::<G>(first) & !(pages - 1);
            let pages = count.div_ceil(pages) * pages;
            Pages::count(Vpn::new(first), pages).filter(|&pages| G::SPACE.check_pages(pages).is_ok())
        };
        let sizes = G::SPACE.sizes();
        let size_of = |size: usize| sizes[size.min(sizes.len() - 1)];
        match *op {
            Op::Map { first, count, size, frame } => {
                let size = size_of(size);
                let count = count.min(4 * size.pages(G::BASE).unwrap());
                let Some(pages) = range(first, count, size) else { continue };
                let step = size.pages(G::BASE).unwrap();
                let frame = Pfn::new((frame << 8) * step);
                let occupied = overlapping(&model, pages, base).next().is_some();
                // The same change again and again, with one node more each time, until it succeeds.
                let mut allowed = 0;
                let outcome = loop {
                    meter.left.set(allowed);
                    let outcome = table.map(pages, frame, size, rights);
                    meter.left.set(usize::MAX);
                    let Err(Error::NoMemory { wanted, .. }) = outcome else { break outcome };
                    assert!(wanted > allowed, "{wanted} wanted, {allowed} there");
                    assert_eq!((table.footprint(), meter.slab.usage().nodes), before);
                    allowed = if wanted > 20 { wanted.max(allowed + 1) } else { allowed + 1 };
                };
                match outcome {
                    Ok(()) => {
                        assert!(!occupied);
                        for at in pages.iter().step_by(step) {
                            let frame = frame.get() + (at.get() - pages.first().get());
                            model.insert(at.get(), (frame, size.shift(), rights));
                        }
                    }
                    Err(Error::Occupied { occupant }) => {
                        assert!(occupied && model.contains_key(&occupant.at.vpn(G::BASE).get()));
                    }
                    Err(Error::FrameTooLarge { .. }) => {}
                    Err(error) => panic!("{op:?}: {error}"),
                }
            }
            Op::Unmap { first, count, skip } => {
                let Some(pages) = range(first, count, G::BASE) else { continue };
                let holes = if skip { Holes::Skip } else { Holes::Refuse };
                meter.left.set(0);
                let outcome = table.unmap(pages, holes, None);
                meter.left.set(usize::MAX);
                let hit: Vec<_> = overlapping(&model, pages, base).collect();
                if let Some(expected) = census(&model, pages, skip, base) {
                    assert_eq!(outcome, Ok(expected), "{op:?}");
                    for at in hit {
                        model.remove(&at);
                    }
                } else {
                    assert!(
                        matches!(outcome, Err(Error::NotMapped { .. } | Error::Partial { .. })),
                        "{op:?}"
                    );
                }
            }
            Op::Protect { first, count, skip } => {
                let Some(pages) = range(first, count, G::BASE) else { continue };
                let holes = if skip { Holes::Skip } else { Holes::Refuse };
                let outcome = table.protect(pages, holes, Change::clear(Attr::WRITE));
                let hit: Vec<_> = overlapping(&model, pages, base).collect();
                if let Some(expected) = census(&model, pages, skip, base) {
                    assert_eq!(outcome, Ok(expected), "{op:?}");
                    for at in hit {
                        model.get_mut(&at).unwrap().2 = Attr::READ | F::IMPLIED;
                    }
                } else {
                    assert!(
                        matches!(outcome, Err(Error::NotMapped { .. } | Error::Partial { .. })),
                        "{op:?}"
                    );
                }
            }
            Op::Resize { first, count, size } => {
                let size = size_of(size);
                let Some(pages) = range(first, count.min(1200), size) else { continue };
                let mut allowed = 0;
                let outcome = loop {
                    meter.left.set(allowed);
                    let outcome = table.resize(pages, size);
                    meter.left.set(usize::MAX);
                    let Err(Error::NoMemory { wanted, .. }) = outcome else { break outcome };
                    assert!(wanted > allowed, "{wanted} wanted, {allowed} there");
                    assert_eq!((table.footprint(), meter.slab.usage().nodes), before);
                    allowed = if wanted > 20 { wanted.max(allowed + 1) } else { allowed + 1 };
                };
                if outcome.is_ok() {
                    resize(&mut model, pages, size, base);
                }
            }
        }
        let leaves: Vec<_> = table.table().check();
        let expected: Vec<_> = model
            .iter()
            .map(|(&at, &(frame, shift, attr))| Leaf {
                at: Vpn::new(at).address(G::BASE),
                size: PageSize::from_shift(shift).unwrap(),
                frame: Pfn::new(frame),
                attr,
            })
            .collect();
        // In keys the upper half comes after the lower one too.
        assert_eq!(leaves, expected, "{op:?}");
        for leaf in expected.iter().take(40) {
            let last = VirtAddr::new(leaf.at.get() | leaf.size.mask());
            assert_eq!(table.lookup(leaf.at), Some(*leaf));
            assert_eq!(table.lookup(last), Some(*leaf));
            if let Some(next) = last.checked_add(1)
                && !model.contains_key(&next.vpn(G::BASE).get())
            {
                assert_eq!(table.lookup(next), None);
            }
        }
        let stray = VirtAddr::new(0x5a5a_5a5a_5a5a_5000u64 as usize);
        if !G::SPACE.holds(stray) {
            assert_eq!(table.lookup(stray), None);
        }
    }
    table.destroy();
    assert_eq!(meter.slab.usage().nodes, 0);
    assert_eq!(meter.held().lost(), 0);
}

/// The first pages of the leaves that map a page of the range.
fn overlapping(model: &Model, pages: Pages, base: u32) -> impl Iterator<Item = usize> {
    let (first, last) = (pages.first().get(), pages.last().get());
    model
        .range(..=last)
        .rev()
        // No page is larger than 2^18 base pages.
        .take_while(move |(at, _)| **at + (1 << 18) > first)
        .filter(move |(at, leaf)| **at + ((1 << (leaf.1 - base)) - 1) >= first)
        .map(|(at, _)| *at)
        .collect::<Vec<_>>()
        .into_iter()
}

/// How many pages an unmap or protect finds, if it succeeds.
fn census(model: &Model, pages: Pages, skip: bool, base: u32) -> Option<usize> {
    let mut sum = 0;
    for at in overlapping(model, pages, base) {
        let count = 1 << (model[&at].1 - base);
        if at < pages.first().get() || at + (count - 1) > pages.last().get() {
            return None;
        }
        sum += count;
    }
    (skip || sum == pages.len()).then_some(sum)
}

fn resize(model: &mut Model, pages: Pages, size: PageSize, base: u32) {
    let step = 1 << (size.shift() - base);
    for at in pages.iter().map(Vpn::get).step_by(step) {
        let (&start, &(frame, shift, attr)) = model.range(..=at).next_back().unwrap();
        if shift > size.shift() {
            let whole = 1usize << (shift - base);
            for piece in (0..whole).step_by(step) {
                model.insert(start + piece, (frame + piece, size.shift(), attr));
            }
        } else if shift < size.shift() {
            for small in (at..=at + (step - 1)).collect::<Vec<_>>() {
                model.remove(&small);
            }
            model.insert(at, (frame, size.shift(), attr));
        }
    }
}

macro_rules! histories {
    ($($name:ident: $G:ty, $F:ty, $L:ty, $P:ty;)*) => { $(
        #[test]
        fn $name() {
            let (cases, len) = if cfg!(miri) { (2, 6) } else { (60, 40) };
            let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
            proptest!(config, |(history in ops(len))| {
                let mut memory = memory(if cfg!(miri) { 200 } else { 1200 });
                let meter = Meter::new(&mut memory);
                run::<$G, $F, $L, $P>(&meter, &history);
            });
        }
    )* };
}

histories! {
    history_compact_g2: Va48, format::Compact, Compact, Fixed<1>;
    history_compact_g16: Va48, format::Compact, Compact, Fixed<4>;
    history_compact_ga: Va48, format::Compact, Compact, Adaptive;
    history_compact32_ga: Va64, format::Compact32, Compact, Adaptive;
    history_compact32_g8: Va64, format::Compact32, Compact, Fixed<3>;
    history_compact32_va32: Va32, format::Compact32, Compact, Adaptive;
    history_compact32_va32_g128: Va32, format::Compact32, Compact, Fixed<7>;
    history_paper_g2: Va64, format::Paper, Paper, Fixed<1>;
    history_paper_g16: Va64, format::Paper, Paper, Fixed<4>;
    history_paper_ga: Va64, format::Paper, Paper, Adaptive;
    history_paper_ga_signed: Va48, format::Paper, Paper, Adaptive;
    history_paper_g32_va32: Va32, format::Paper, Paper, Fixed<5>;
    history_kseg0_g2: Va32, format::EntryLo, Kseg0<Fixed<1>>, Fixed<1>;
    history_kseg0_g4: Va32, format::EntryLo, Kseg0<Fixed<2>>, Fixed<2>;
    history_kseg0_g8: Va32, format::EntryLo, Kseg0<Fixed<3>>, Fixed<3>;
    history_kseg0_g16: Va32, format::EntryLo, Kseg0<Fixed<4>>, Fixed<4>;
    history_kseg0_g256: Va32, format::EntryLo, Kseg0<Fixed<8>>, Fixed<8>;
    history_kseg0_ga: Va32, format::EntryLo, Kseg0<Adaptive>, Adaptive;
}

/// Maps single pages in this order, unmaps every other, and checks the tree and every answer after each.
fn one_by_one<F, L>(pages: &[usize])
where
    F: Format,
    L: for<'m> Layout<Slab<'m, F::Word, Solo>>,
{
    let mut memory = memory(400);
    let slab = Slab::<F::Word, Solo>::new(&mut memory, 0).unwrap();
    let mut table = Local::new(Gpt::<Va64, F, _, L>::new(&slab), |_| ());
    let mut mapped = std::collections::BTreeSet::new();
    let unmapped = pages.iter().step_by(2).map(|page| (page, false));
    for (&page, map) in pages.iter().map(|page| (page, true)).chain(unmapped) {
        let one = Pages::one(Vpn::new(page));
        if map {
            table.map(one, Pfn::new(page & 0xff), PageSize::K4, Attr::READ).unwrap();
            mapped.insert(page);
        } else {
            table.unmap(one, Holes::Refuse, None).unwrap();
            mapped.remove(&page);
        }
        let leaves = table.table().check();
        assert!(leaves.iter().map(|leaf| leaf.at.vpn(PageSize::K4).get()).eq(mapped.iter().copied()));
        for &page in pages {
            let found = table.lookup(Vpn::new(page).address(PageSize::K4)).map(|leaf| leaf.frame);
            assert_eq!(found, mapped.contains(&page).then_some(Pfn::new(page & 0xff)), "page {page:#x}");
        }
    }
    table.destroy();
    assert_eq!(slab.usage().nodes, 0);
}

/// The second node below reaches half as high as its slot. When the others fill up, the upper node would gain by two
/// bits more, but not for that one, whose two leaves would share one slot.
#[test]
fn gpt_a_node_grows_no_deeper_than_the_nodes_behind_guards() {
    let leaves = [0x2, 0x3, 0x4, 0x5, 0x7, 0x8, 0x9, 0xa, 0xb, 0xc, 0xd, 0xe];
    one_by_one::<format::Compact32, Compact>(&leaves.map(|leaf| 0x213_add1_3f58 << 8 | leaf << 2));
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 2 } else { 100 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Crowded neighbourhoods with holes, where nodes grow by several bits.
    #[test]
    fn gpt_crowds_with_holes(
        holes in prop::collection::vec(0usize..128, 0..100),
        spread in 0u32..4,
        order in 0usize..64,
    ) {
        // An odd factor permutes the numbers.
        let place = |number: usize| number.wrapping_mul(2 * order + 1) % 128;
        let pages = (0..128).map(place).filter(|page| !holes.contains(page)).map(|page| 0x5a00_0000 | page << spread);
        let pages: Vec<_> = if cfg!(miri) { pages.take(12).collect() } else { pages.collect() };
        one_by_one::<format::Compact32, Compact>(&pages);
        one_by_one::<format::Compact, Compact>(&pages);
        one_by_one::<format::Paper, Paper>(&pages);
    }
}

/// Pseudo-random numbers (xorshift64*), so that a seed gives the same load everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number between 0 and 1, both excluded.
    fn unit(&mut self) -> f64 {
        ((self.next() >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    }

    /// A normally distributed number (Box and Muller).
    fn normal(&mut self) -> f64 {
        (-2.0 * self.unit().ln()).sqrt() * (std::f64::consts::TAU * self.unit()).cos()
    }
}

/// Single pages at uniform addresses.
fn uniform(pages: usize, seed: u64) -> Vec<usize> {
    let mut random = Random(seed);
    let mut set = std::collections::BTreeSet::new();
    let mut order = Vec::new();
    while order.len() < pages {
        let page = (random.next() >> 12) as usize;
        // No two in a pair: single pages.
        if set.insert(page / 2) {
            order.push(page);
        }
    }
    order
}

/// Objects at uniform addresses, sizes lognormal with median 3 KB and sigma 2.
fn file(pages: usize, seed: u64) -> Vec<usize> {
    let mut random = Random(seed);
    let mut set = std::collections::BTreeSet::new();
    let mut order = Vec::new();
    while order.len() < pages {
        let first = (random.next() >> 12) as usize;
        let bytes = (3072f64.ln() + 2.0 * random.normal()).exp();
        for page in first..first + (bytes / 4096.0).ceil().max(1.0) as usize {
            if order.len() < pages && set.insert(page) {
                order.push(page);
            }
        }
    }
    order
}

/// The fewest bytes of indexing nodes that any choice of node sizes needs for these leaves, which are in order: a
/// dynamic programme over the trie. `cost[w]` is what a node of `2^w` slots takes.
fn optimum(keys: &[usize], cost: &[isize]) -> isize {
    fn best(
        keys: &[usize],
        range: (usize, usize),
        cost: &[isize],
        known: &mut std::collections::HashMap<(usize, usize), isize>,
    ) -> isize {
        let (first, last) = range;
        if last - first < 1 {
            return 0;
        }
        if let Some(&known) = known.get(&range) {
            return known;
        }
        let bit = (keys[first] ^ keys[last]).ilog2();
        let mut least = isize::MAX;
        for width in 1..cost.len().min(bit as usize + 2) {
            let shift = bit + 1 - width as u32;
            let mut sum = cost[width];
            let mut start = first;
            while start <= last {
                let mut end = start;
                while end < last && keys[end + 1] >> shift == keys[start] >> shift {
                    end += 1;
                }
                sum += best(keys, (start, end), cost, known);
                start = end + 1;
            }
            least = least.min(sum);
        }
        known.insert(range, least);
        least
    }
    let mut known = std::collections::HashMap::new();
    best(keys, (0, keys.len() - 1), cost, &mut known)
}

/// Maps pages one by one and returns the footprint and the node sizes.
fn load<P: Policy>(pages: &[usize]) -> (crate::Footprint, [usize; MAX_WIDTH + 1]) {
    let mut memory = memory(if cfg!(miri) { 40 } else { 4000 });
    let slab = Slab::<u32, Solo>::new(&mut memory, 0).unwrap();
    let mut table = Local::new(Gpt::<Va64, format::Paper, _, Paper, P>::new(&slab), |_| ());
    for (frame, &page) in pages.iter().enumerate() {
        let page = Pages::one(Vpn::new(page));
        table.map(page, Pfn::new(frame), PageSize::K4, Attr::READ).unwrap();
    }
    table.table().check();
    // SAFETY: nobody writes meanwhile.
    let sizes = table.table().node_sizes(unsafe { Pinned::by(&table) });
    let footprint = table.footprint();
    table.destroy();
    (footprint, sizes)
}

#[test]
fn gpt_g2_takes_48_bytes_a_page_less_32() {
    for pages in if cfg!(miri) { vec![1, 2, 7] } else { vec![1, 2, 64, 1000, 8192] } {
        let (footprint, _) = load::<Fixed<1>>(&uniform(pages, 7));
        assert_eq!(footprint.total(), 48 * pages - 32);
        assert_eq!(footprint.bytes, 32 * pages - 32);
        assert_eq!(footprint.leaf_bytes, 16 * pages);
    }
}

/// Bytes of indexing nodes by width, as the table counts them in the paper's layout.
const PAPER_COST: [isize; 9] = [0, 32, 64, 128, 256, 512, 1024, 2048, 4096];

fn best_of(pages: &[usize]) -> isize {
    let keys: std::collections::BTreeSet<_> = pages.iter().map(|page| page / 2).collect();
    optimum(&keys.into_iter().collect::<Vec<_>>(), &PAPER_COST)
}

#[test]
fn gpt_adaptive_sizes_are_near_the_optimum() {
    if cfg!(miri) {
        return;
    }
    type Load = fn(usize, u64) -> Vec<usize>;
    let dense: Load = |count, seed| (seed as usize * 0x1234_5678..).take(count).collect();
    for (name, make) in [("uniform", uniform as Load), ("file", file as Load), ("dense", dense)] {
        for (count, seed) in [(64, 1), (500, 2), (1024, 3), (8192, 4), (6000, 5)] {
            let pages = make(count, seed);
            let (adaptive, sizes) = load::<Adaptive>(&pages);
            let fixed = [
                load::<Fixed<1>>(&pages).0.total(),
                load::<Fixed<2>>(&pages).0.total(),
                load::<Fixed<4>>(&pages).0.total(),
                load::<Fixed<8>>(&pages).0.total(),
            ];
            let least = best_of(&pages) as usize + adaptive.leaf_bytes;
            assert!(adaptive.total() * 100 <= least * 104, "{name} {count}: {} of {least}", adaptive.total());
            assert!(fixed.iter().all(|&fixed| adaptive.total() <= fixed));
            if name == "file" {
                assert!(sizes.iter().filter(|&&count| count > 0).count() >= 3);
            }
        }
    }
}

/// Maps pages one by one in the 32-bit compact format and returns all bytes that the storage takes.
fn compact_bytes(pages: &[usize]) -> usize {
    let mut memory = memory(2000);
    let slab = Slab::<u32, Solo>::new(&mut memory, 0).unwrap();
    let mut table = Local::new(Gpt::<Va64, format::Compact32, _, Compact>::new(&slab), |_| ());
    for (frame, &page) in pages.iter().enumerate() {
        table.map(Pages::one(Vpn::new(page)), Pfn::new(frame), PageSize::K4, Attr::READ).unwrap();
    }
    let chunks = slab.usage().chunks;
    table.destroy();
    chunks
}

#[test]
fn gpt_compact_space_of_a_range() {
    let pages = if cfg!(miri) { 64 } else { 16384 };
    let mut memory = memory(100);
    let slab = Slab::<u32, Solo>::new(&mut memory, 0).unwrap();
    let mut table = Local::new(Gpt::<Va64, format::Compact32, _, Compact>::new(&slab), |_| ());
    let run = Pages::count(Vpn::new(0x1234_5678), pages).unwrap();
    table.map(run, Pfn::new(0), PageSize::K4, Attr::READ).unwrap();
    assert!(cfg!(miri) || slab.usage().chunks <= pages * 88 / 10, "{:?}", slab.usage());
    table.table().check();
    table.unmap(run, Holes::Refuse, None).unwrap();
    assert_eq!(slab.usage().nodes, 0);
    table.destroy();
}

#[test]
fn gpt_compact_space() {
    if cfg!(miri) {
        return;
    }
    for seed in 1..4 {
        let per_page = |pages: Vec<usize>| compact_bytes(&pages) as f64 / pages.len() as f64;
        let (file, uniform) = (per_page(file(8192, seed)), per_page(uniform(8192, seed)));
        let dense = per_page((0x1234_5678..).take(16384).collect());
        eprintln!("bytes a page: file {file:.2}, uniform {uniform:.2}, dense {dense:.2}");
        assert!(file <= 15.0 && uniform <= 28.0 && dense <= 10.5);
    }
}

#[test]
fn gpt_adaptive_stays_below_its_bound_while_it_changes() {
    let count = if cfg!(miri) { 30 } else { 3000 };
    let mut memory = memory(1000);
    let slab = Slab::<u32, Solo>::new(&mut memory, 0).unwrap();
    let mut table = Local::new(PaperGpt::<_, Adaptive>::new(&slab), |_| ());
    let mut random = Random(11);
    let mut mapped: Vec<usize> = Vec::new();
    let pages = file(count, 9);
    // Up, then a long random mixture, then down.
    for step in 0..4 * count {
        let map = step < count || (step < 3 * count && random.next().is_multiple_of(2));
        if map {
            let page = pages[(random.next() as usize) % pages.len()];
            if table.map(Pages::one(Vpn::new(page)), Pfn::new(1), PageSize::K4, Attr::READ).is_ok() {
                mapped.push(page);
            }
        } else if !mapped.is_empty() {
            let page = mapped.swap_remove(random.next() as usize % mapped.len());
            table.unmap(Pages::one(Vpn::new(page)), Holes::Refuse, None).unwrap();
        }
        let now = table.footprint();
        assert!(now.bytes <= 64 * now.leaves.saturating_sub(1), "{now:?}");
    }
    table.table().check();
    table.destroy();
    assert_eq!(slab.usage().nodes, 0);
}

#[test]
fn gpt_a_page_that_comes_and_goes_does_not_make_nodes_flap() {
    let mut memory = memory(100);
    let slab = Slab::<u32, Solo>::new(&mut memory, 0).unwrap();
    let mut table = Local::new(PaperGpt::<_, Adaptive>::new(&slab), |_| ());
    for count in 1..if cfg!(miri) { 6 } else { 130 } {
        let page = Pages::one(Vpn::new(2 * count));
        let sizes = |table: &Local<'_, PaperGpt<'_, _, Adaptive>, _>| {
            // SAFETY: nobody writes meanwhile.
            table.table().node_sizes(unsafe { Pinned::by(table) })
        };
        table.map(page, Pfn::new(1), PageSize::K4, Attr::READ).unwrap();
        let with = sizes(&table);
        table.unmap(page, Holes::Refuse, None).unwrap();
        let without = sizes(&table);
        for _ in 0..3 {
            table.map(page, Pfn::new(1), PageSize::K4, Attr::READ).unwrap();
            assert_eq!(sizes(&table), with);
            table.unmap(page, Holes::Refuse, None).unwrap();
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
    let mut table = Local::new(Gpt48::new(&meter), |_| ());
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
    let mut table = Local::new(Gpt48::new(&meter), |_| ());
    for page in [1, 1 << 20] {
        table.map(Pages::one(Vpn::new(page)), Pfn::new(9), PageSize::K4, Attr::READ).unwrap();
    }
    drop(table);
    assert_eq!(meter.held().lost(), 3);
}

#[test]
fn gpt_a_node_out_of_a_links_reach_is_no_memory() {
    let mut memory = memory(4);
    // The words of a 32-bit link hold addresses below 8 MiB.
    let slab = Slab::<u32, Solo>::new(&mut memory, 8 << 20).unwrap();
    let mut table = Local::new(Gpt::<Va64, format::Compact32, _, Compact>::new(&slab), |_| ());
    let refused = table.map(Pages::one(Vpn::new(1)), Pfn::new(9), PageSize::K4, Attr::READ);
    assert!(matches!(refused, Err(Error::NoMemory { wanted: 1, .. })));
    assert_eq!(slab.usage().nodes, 0);
}
