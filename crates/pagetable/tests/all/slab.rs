//! The slab against a model of what node storage is.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::Ordering;

use proptest::prelude::*;
use tlbkit_pagetable::nodes::{Chunk, NodeAddr, Nodes, Reclaim, Slab, SlabError, Stock};
use tlbkit_pagetable::{Error, Retired, Shared, Solo};

const CHUNK: usize = 4096;
const CHUNKS: usize = if cfg!(miri) { 24 } else { 96 };
/// The words of the largest nodes that are taken.
const LARGE: usize = if cfg!(miri) { 3000 } else { 20_000 };
/// No multiple of more than a chunk: runs are aligned all the same.
const BASE: usize = 0x8000_3000;

type Solo32<'m> = Slab<'m, u32, Solo>;

/// What is known of a node that was taken.
#[derive(Clone, Copy, Debug)]
struct Taken {
    words: usize,
    /// What the ends of the node and its record were filled with.
    mark: u32,
}

/// The slab and every node that it handed out, by address.
#[derive(Debug)]
struct Model<'s, 'm> {
    slab: &'s Solo32<'m>,
    taken: BTreeMap<usize, Taken>,
    marks: u32,
}

impl<'s, 'm> Model<'s, 'm> {
    fn new(slab: &'s Solo32<'m>) -> Self {
        Self { slab, taken: BTreeMap::new(), marks: 0 }
    }

    /// Takes a node, and checks everything that storage promises of it.
    fn take(&mut self, words: usize) -> Option<NodeAddr> {
        let node = self.slab.take(words)?;
        // SAFETY: the node was just taken.
        assert_eq!(unsafe { self.slab.record(node, words) }.load(Ordering::Relaxed), 0);
        self.check_new(node, words);
        Some(node)
    }

    /// Takes a list of nodes, and checks what storage promises of it and of each of them.
    fn take_list(&mut self, words: usize, count: usize) {
        let before = self.taken.len();
        let mut head = 0;
        let all = self.slab.take_list(words, count, usize::MAX, &mut head);
        while head != 0 {
            let node = self.slab.node_of(head);
            // SAFETY: the node was just taken.
            head = unsafe { self.slab.record(node, words) }.load(Ordering::Relaxed);
            self.check_new(node, words);
        }
        let took = self.taken.len() - before;
        assert!(if all { took == count } else { took < count }, "{took} of {count} nodes, {all}");
    }

    /// Checks everything that storage promises of a new node but its record.
    fn check_new(&mut self, node: NodeAddr, words: usize) {
        let (at, bytes) = (node.get(), words * 4);
        assert!(at >= BASE && at + bytes <= BASE + CHUNKS * CHUNK, "node {at:#x} is outside");
        let align = if bytes == 0 { 1 } else { 1 << bytes.trailing_zeros() };
        assert!(at.is_multiple_of(align), "a node of {bytes} bytes at {at:#x}");
        if let Some((below, other)) = self.taken.range(..=at).next_back() {
            assert!(below + other.words * 4 <= at, "{at:#x} is in the node at {below:#x}");
        }
        if let Some((above, _)) = self.taken.range(at..).next() {
            assert!(at + bytes <= *above, "{at:#x} reaches into the node at {above:#x}");
        }
        // SAFETY: the node was just taken, and the indexes are below its words.
        unsafe {
            // An interpreter is slow.
            for index in (0..words).step_by(if cfg!(miri) { 61 } else { 1 }) {
                assert_eq!(
                    self.slab.word_mut(node, index).read(),
                    0,
                    "word {index} of a new node of {words}"
                );
            }
            assert_eq!(self.slab.record_at(node, words), self.slab.link(node));
        }
        let index = self.slab.index_of(node);
        assert!(index > 0 && index < 1 << 31 && self.slab.node_of(index) == node);
        self.marks += 1;
        self.taken.insert(at, Taken { words, mark: self.marks });
        self.fill(node, words, self.marks);
    }

    /// Writes the first and the last word, and the record.
    fn fill(&self, node: NodeAddr, words: usize, mark: u32) {
        // SAFETY: the node is taken, and the indexes are below its words.
        unsafe {
            if words > 0 {
                self.slab.word_mut(node, words - 1).store_relaxed(!mark);
                self.slab.word_mut(node, 0).store_relaxed(mark);
            }
            (*self.slab.record(node, words)).store(mark, Ordering::Relaxed);
        }
    }

    /// Frees a node, zeroed by hand if `clean`, after checking that no other code has written it.
    fn free(&mut self, at: usize, clean: bool) {
        let node = self.forget(at, clean);
        // SAFETY: the node is taken, the model has forgotten it, and it is zero if it is clean.
        unsafe { self.slab.free(node, clean) };
    }

    /// Frees nodes as those of a batch. Every third is zeroed by hand.
    fn free_list(&mut self, nodes: impl Iterator<Item = usize>) {
        let mut batch = Retired::new(self.slab);
        for (number, at) in nodes.enumerate() {
            let clean = number % 3 == 0;
            let node = self.forget(at, clean);
            // SAFETY: the node is taken, the model has forgotten it, and it is zero if it is clean.
            unsafe { batch.push(node, clean) };
        }
        // SAFETY: no code walks the nodes.
        unsafe { batch.reclaim() };
    }

    /// Forgets a node, zeroed by hand if `clean`, after checking that no other code has written it.
    fn forget(&mut self, at: usize, clean: bool) -> NodeAddr {
        let node = NodeAddr::new(at);
        let Taken { words, mark } = self.taken.remove(&at).unwrap();
        // SAFETY: the node is taken, and the indices are below its words.
        unsafe {
            if words > 0 {
                assert_eq!(self.slab.word_mut(node, 0).read(), mark);
            }
            if words > 1 {
                assert_eq!(self.slab.word_mut(node, words - 1).read(), !mark);
            }
            assert_eq!((*self.slab.record(node, words)).load(Ordering::Relaxed), mark);
            if clean && words > 0 {
                self.slab.word_mut(node, 0).store_relaxed(0);
                self.slab.word_mut(node, words - 1).store_relaxed(0);
            }
        }
        node
    }

    fn check(&self) {
        let usage = self.slab.usage();
        assert_eq!(usage.nodes, self.taken.len());
        let bytes: usize = self.taken.values().map(|taken| taken.words * 4).sum();
        assert!(
            bytes <= usage.bytes && usage.bytes <= usage.chunks && usage.chunks <= usage.peak,
            "{usage:?}"
        );
    }

    fn free_all(&mut self) {
        while let Some((&at, _)) = self.taken.first_key_value() {
            self.free(at, false);
        }
        self.check();
    }
}

fn memory() -> Vec<Chunk> {
    vec![Chunk::ZERO; CHUNKS]
}

/// Words of nodes: every class and its neighbours, chunks and more.
fn words() -> impl Strategy<Value = usize> {
    prop_oneof![4 => 0..40usize, 3 => 40..600usize, 2 => 600..2100usize, 1 => 2100..LARGE]
}

#[derive(Clone, Copy, Debug)]
enum Act {
    Take(usize),
    TakeList(usize, usize),
    Free(prop::sample::Index, bool),
    FreeList(prop::sample::Index, usize),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        3 => words().prop_map(Act::Take),
        1 => (words(), 0..200usize).prop_map(|(words, count)| Act::TakeList(words, count)),
        2 => (any::<prop::sample::Index>(), any::<bool>()).prop_map(|(at, clean)| Act::Free(at, clean)),
        1 => (any::<prop::sample::Index>(), 0..200usize).prop_map(|(at, count)| Act::FreeList(at, count)),
    ];
    prop::collection::vec(act, 1..if cfg!(miri) { 12 } else { 200 })
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 4 } else { 192 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Nodes are aligned, zeroed, apart from each other and from all records, whatever was taken and freed before.
    #[test]
    fn nodes_are_what_storage_promises(acts in acts()) {
        let mut memory = memory();
        let slab = Solo32::new(&mut memory, BASE).unwrap();
        let mut model = Model::new(&slab);
        for act in acts {
            match act {
                Act::Take(words) => {
                    model.take(words);
                }
                Act::Free(index, clean) => {
                    if !model.taken.is_empty() {
                        let at = *model.taken.keys().nth(index.index(model.taken.len())).unwrap();
                        model.free(at, clean);
                    }
                }
                Act::TakeList(words, count) => model.take_list(words, count),
                Act::FreeList(index, count) => {
                    if !model.taken.is_empty() {
                        let first = index.index(model.taken.len());
                        let nodes: Vec<_> = model.taken.keys().copied().skip(first).take(count).collect();
                        model.free_list(nodes.into_iter());
                    }
                }
            }
            model.check();
        }
        model.free_all();
        // One empty span of a class may stay.
        let once = slab.usage();
        prop_assert_eq!((once.nodes, once.bytes), (0, 0));
    }

    /// However runs of chunks were cut up, they join again.
    #[test]
    fn buddies_join_again(sizes in prop::collection::vec(1025..LARGE, 1..if cfg!(miri) { 5 } else { 30 }), seed in any::<u64>()) {
        let mut memory = memory();
        let slab = Solo32::new(&mut memory, BASE).unwrap();
        let whole = largest_runs(&slab);
        let mut model = Model::new(&slab);
        let mut taken: Vec<_> = sizes.into_iter().filter_map(|words| model.take(words)).collect();
        let mut random = seed;
        while !taken.is_empty() {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let node = taken.swap_remove((random >> 33) as usize % taken.len());
            model.free(node.get(), random & 1 == 0);
        }
        prop_assert_eq!(slab.usage().chunks, 0);
        prop_assert_eq!(largest_runs(&slab), whole);
    }
}

/// Takes the largest runs that there are until memory is exhausted; returns their sizes in chunks, and frees them.
fn largest_runs(slab: &Solo32<'_>) -> Vec<usize> {
    let mut taken = Vec::new();
    let mut runs = Vec::new();
    let mut chunks = CHUNKS.next_power_of_two();
    while chunks > 0 {
        match slab.take(chunks * CHUNK / 4) {
            Some(node) => {
                taken.push(node);
                runs.push(chunks);
            }
            None => chunks /= 2,
        }
    }
    for node in taken {
        // SAFETY: just taken, and nothing was written to it.
        unsafe { slab.free(node, true) };
    }
    runs
}

/// Every size up to two chunks can be taken until memory is full, and all of it again after it was freed.
#[test]
fn memory_can_be_used_up_and_used_again() {
    // An interpreter takes too long over thousands of nodes.
    let (least, step) = if cfg!(miri) { (173, 509) } else { (1, 7) };
    for words in (least..2 * CHUNK / 4).step_by(step) {
        let mut memory = vec![Chunk::ZERO; 40];
        let slab = Slab::<u32, Solo>::new(&mut memory, 0).unwrap();
        let fill = || -> Vec<_> { std::iter::from_fn(|| slab.take(words)).collect() };
        let first = fill();
        assert!(!first.is_empty(), "no node of {words} words");
        assert_eq!(slab.usage().nodes, first.len());
        for &node in first.iter().rev() {
            // SAFETY: just taken, and nothing was written to it.
            unsafe { slab.free(node, true) };
        }
        assert_eq!((slab.usage().nodes, slab.usage().bytes), (0, 0));
        let second = fill();
        assert_eq!(second.len(), first.len(), "nodes of {words} words");
        for node in second {
            // SAFETY: just taken again, and nothing was written to it.
            unsafe { slab.free(node, true) };
        }
    }
}

/// Nodes cost little more than their size: 4 bytes of record, and what the short spans have no use for at their ends.
#[test]
fn overhead_is_small() {
    let sizes = if cfg!(miri) { &[128, 1024][..] } else { &[2, 3, 4, 8, 16, 64, 128, 1024] };
    for &words in sizes {
        let mut memory = vec![Chunk::ZERO; 40];
        let slab = Slab::<u32, Solo>::new(&mut memory, 0).unwrap();
        let nodes: Vec<_> = std::iter::from_fn(|| slab.take(words)).collect();
        let each = slab.usage().chunks as f64 / nodes.len() as f64;
        let bound = (words * 4) as f64 * 1.07 + 5.0;
        assert!(each <= bound, "a node of {} bytes takes {each:.1}", words * 4);
        for node in nodes {
            // SAFETY: just taken, and nothing was written to it.
            unsafe { slab.free(node, true) };
        }
    }
}

/// Memory that is handed over is counted in pages.
#[test]
fn a_chunk_is_a_page() {
    assert_eq!((size_of::<Chunk>(), align_of::<Chunk>()), (CHUNK, CHUNK));
}

/// A word that holds any address.
#[cfg(target_pointer_width = "64")]
type Any = u64;
#[cfg(target_pointer_width = "32")]
type Any = u32;

#[test]
fn memory_that_does_not_do_is_refused() {
    let error = |chunks: usize, base| Slab::<Any, Solo>::new(&mut vec![Chunk::ZERO; chunks], base).err();
    assert_eq!(error(0, 0), Some(SlabError::TooSmall));
    assert_eq!(error(1, 0), Some(SlabError::TooSmall));
    assert_eq!(error(2, 0), None);
    assert_eq!(error(2, 64), Some(SlabError::Misaligned));
    assert_eq!(error(2, usize::MAX - 4095), Some(SlabError::TooLarge));
    // The very top of the addresses, but for the chunk whose end no `usize` holds.
    assert_eq!(error(2, usize::MAX - 3 * 4096 + 1), None);
    for error in [SlabError::TooSmall, SlabError::TooLarge, SlabError::Misaligned] {
        assert!(error.to_string().contains("slab"), "{error}");
    }
}

/// A word of 32 bits holds the addresses of nodes below 4 GiB, the last chunk's too.
#[test]
#[cfg(target_pointer_width = "64")]
fn addresses_end_with_the_words_that_hold_them() {
    let end = 1 << 32;
    for base in [end - CHUNK, end] {
        assert_eq!(Solo32::new(&mut vec![Chunk::ZERO; 2], base).err(), Some(SlabError::TooLarge));
    }
    let mut memory = vec![Chunk::ZERO; 2];
    let slab = Solo32::new(&mut memory, end - 2 * CHUNK).unwrap();
    assert_eq!(slab.take(CHUNK / 4), Some(NodeAddr::new(0xffff_f000)));
}

/// Descriptors have chunks of their own, as many as they fill, and it does not matter what was in memory before.
#[test]
fn memory_may_have_been_used() {
    for (chunks, descriptors) in [(256, 1), (257, 2), (513, 3)] {
        let mut memory = vec![Chunk::ZERO; chunks];
        // SAFETY: a chunk is numbers, of which any bytes are some.
        unsafe { memory.as_mut_ptr().write_bytes(1, chunks) };
        let slab = Solo32::new(&mut memory, BASE).unwrap();
        let nodes: Vec<_> = std::iter::from_fn(|| slab.take(CHUNK / 4)).collect();
        assert_eq!(nodes.len(), chunks - descriptors);
        for node in nodes {
            assert!(node.get() >= BASE + descriptors * CHUNK, "{node:?} is among the descriptors");
            // SAFETY: the node was just taken, and the indexes are below its words.
            let words = [0, 511, 1023].map(|index| unsafe { slab.word_mut(node, index).read() });
            assert_eq!(words, [0; 3], "{node:?} of {chunks} chunks");
        }
    }
}

/// Runs are as long as their alignment and the end of memory allow, and are so again when all of them have come back.
#[test]
fn runs_reach_to_the_end_of_memory() {
    let memories: [(usize, usize, &[usize]); 4] =
        [(0, 64, &[32, 16, 8, 4, 2, 1]), (0, 6, &[2, 2, 1]), (0x3000, 7, &[4, 2]), (0x3000, 8, &[4, 2, 1])];
    for (base, chunks, runs) in memories {
        let mut memory = vec![Chunk::ZERO; chunks];
        let slab = Solo32::new(&mut memory, base).unwrap();
        assert_eq!(largest_runs(&slab), runs);
        // Cut to pieces, which come back from either end.
        for upwards in [true, false] {
            let mut nodes: Vec<_> = std::iter::from_fn(|| slab.take(CHUNK / 4)).collect();
            assert_eq!(nodes.len(), chunks - 1);
            nodes.sort_unstable_by_key(|node| if upwards { node.get() } else { usize::MAX - node.get() });
            for node in nodes {
                // SAFETY: just taken, and nothing was written to it.
                unsafe { slab.free(node, true) };
            }
            assert_eq!(largest_runs(&slab), runs, "{chunks} chunks from {base:#x}");
        }
    }
}

/// One node takes a span, which is a chunk, two or four as nodes get larger; then whole chunks, a power of two.
#[test]
fn a_node_takes_no_longer_a_span_than_its_size_asks_for() {
    let sizes =
        [(1, 1), (96, 1), (97, 2), (256, 2), (257, 4), (512, 4), (513, 1), (1024, 1), (1025, 2), (2049, 4)];
    for (words, chunks) in sizes {
        let mut memory = vec![Chunk::ZERO; 16];
        let slab = Solo32::new(&mut memory, 0).unwrap();
        slab.take(words).unwrap();
        // Each chunk has a descriptor of 16 bytes.
        assert_eq!(slab.usage().chunks, chunks * (CHUNK + 16), "one node of {words} words");
    }
}

/// As in kseg0, or under an identity map.
#[test]
#[cfg(all(target_pointer_width = "64", not(miri)))]
fn an_address_may_be_the_pointer_itself() {
    let mut memory = vec![Chunk::ZERO; 8];
    let within = memory.as_ptr_range();
    let within = within.start.addr()..within.end.addr();
    let slab = Slab::<u64, Solo, _>::identity(&mut memory).unwrap();
    let nodes: Vec<_> = std::iter::from_fn(|| slab.take(64)).collect();
    for (mark, &node) in nodes.iter().enumerate() {
        assert!(within.contains(&node.get()) && within.contains(&(node.get() + 511)), "{node:?}");
        // SAFETY: the node was just taken, and the indexes are below its words.
        unsafe {
            assert_eq!((slab.at(node).addr(), slab.word_mut(node, 63).read()), (node.get(), 0));
            slab.word_mut(node, 63).store_relaxed(mark as u64);
        }
    }
    for (mark, &node) in nodes.iter().enumerate() {
        // SAFETY: the node is taken, and the index is below its words.
        assert_eq!(unsafe { slab.word_mut(node, 63).read() }, mark as u64);
    }
}

#[test]
fn nodes_beyond_all_memory_are_refused() {
    let mut memory = vec![Chunk::ZERO; 8];
    let slab = Slab::<u32, Solo>::new(&mut memory, 0).unwrap();
    for words in [8 * 1024, 1 << 29, usize::MAX / 4, usize::MAX / 2, usize::MAX] {
        assert_eq!(slab.take(words), None, "{words} words");
    }
    assert_eq!(slab.usage().nodes, 0);
}

/// Several CPUs take, write and free at once, and never get each other's nodes.
#[test]
fn threads_share_a_slab() {
    let (rounds, held) = if cfg!(miri) { (12, 3) } else { (20_000, 30) };
    let mut memory = vec![Chunk::ZERO; 256];
    let slab = Slab::<u32, Shared>::new(&mut memory, 0).unwrap();
    std::thread::scope(|scope| {
        for me in 1..=3u32 {
            let slab = &slab;
            scope.spawn(move || {
                let mut mine = VecDeque::new();
                for round in 0..rounds {
                    let words = [2, 3, 8, 24, 65, 300, 700][(round + me as usize) % 7];
                    let node = slab.take(words).unwrap();
                    // SAFETY: the node is this thread's until it frees it.
                    unsafe {
                        assert_eq!(slab.word_mut(node, words - 1).read(), 0);
                        slab.word_mut(node, words - 1).store_relaxed(me << 24 | round as u32);
                    }
                    mine.push_back((node, words, me << 24 | round as u32));
                    if mine.len() > held {
                        let (node, words, mark) = mine.pop_front().unwrap();
                        // SAFETY: the node is this thread's, which forgets it here.
                        unsafe {
                            assert_eq!(slab.word_mut(node, words - 1).read(), mark);
                            slab.free(node, false);
                        }
                    }
                }
                for (node, ..) in mine {
                    // SAFETY: the node is this thread's, which forgets it here.
                    unsafe { slab.free(node, false) };
                }
            });
        }
    });
    assert_eq!((slab.usage().nodes, slab.usage().bytes), (0, 0));
}

/// The sum of the counts may exceed a `usize`.
#[test]
fn a_stock_of_too_many_nodes_is_refused() {
    let mut memory = vec![Chunk::ZERO; 4];
    let slab = Solo32::new(&mut memory, 0).unwrap();
    let refused = Stock::take(&slab, &[512, 512], [usize::MAX, 2]).map(drop);
    assert_eq!(refused, Err(Error::NoMemory { wanted: u32::MAX, pending: 0 }));
    assert_eq!(slab.usage().nodes, 0);
}
