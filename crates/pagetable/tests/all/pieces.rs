//! Nodes that are cut from a kernel's frames, on a host: "physical" memory is an array.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::Ordering;

use tlbkit_addr::{Attr, PageSize, Pages, Pfn, PhysAddr, Vpn};
use tlbkit_pagetable::cpt::Cpt32;
use tlbkit_pagetable::gpt::{Fixed, Gpt32};
use tlbkit_pagetable::hpt::Hpt32;
use tlbkit_pagetable::nodes::{Chunk, FrameSource, NodeAddr, Nodes, Pieces, Reclaim, Record};
use tlbkit_pagetable::{Error, Writer};

/// A stack of free frames, counted from 1, the memory of all, and a record for each.
#[derive(Debug)]
struct Frames {
    free: Mutex<Vec<usize>>,
    memory: *mut Chunk,
    records: Vec<Record>,
}

// SAFETY: the memory is the test's, and only the code that took a frame uses it.
unsafe impl Send for Frames {}
// SAFETY: the list is behind a mutex, the records are atomic, and only the code that took a frame uses its memory.
unsafe impl Sync for Frames {}

impl Frames {
    fn new(memory: &mut [Chunk]) -> Self {
        let frames = memory.len();
        Self {
            free: Mutex::new((1..frames).rev().collect()),
            memory: memory.as_mut_ptr(),
            records: (0..frames).map(|_| Record::new(7)).collect(),
        }
    }

    fn free(&self) -> usize {
        self.free.lock().unwrap().len()
    }
}

// SAFETY: every frame is on the stack once, and its memory in the array.
unsafe impl FrameSource for &Frames {
    fn take(&self) -> Option<PhysAddr> {
        self.free.lock().unwrap().pop().map(|frame| PhysAddr::new(frame << 12))
    }

    fn give(&self, frame: PhysAddr) {
        self.free.lock().unwrap().push(frame.get() >> 12);
    }

    fn memory(&self, frame: PhysAddr) -> *mut u8 {
        self.memory.wrapping_add(frame.get() >> 12).cast()
    }

    fn record(&self, frame: PhysAddr) -> Option<&Record> {
        self.records.get(frame.get() >> 12)
    }
}

type Storage<'f> = Pieces<u32, &'f Frames>;

/// A node that was taken, the words that it was taken with, and what is written all over it, and into its record.
struct Taken {
    node: NodeAddr,
    words: usize,
    mark: u32,
}

/// Takes a node, which must be as the promise of [`Nodes`] says, and writes all over it.
fn take(nodes: &Storage<'_>, taken: &BTreeMap<usize, usize>, words: usize, mark: u32) -> Option<Taken> {
    let node = nodes.take(words)?;
    let (at, bytes) = (node.get(), 4 * words);
    assert!(at.is_multiple_of(1 << bytes.trailing_zeros().min(12)), "{words} words at {at:#x}");
    assert_eq!(at >> 12, (at + bytes - 1) >> 12, "a node is in one frame");
    let before = taken.range(..at + bytes).next_back();
    assert!(before.is_none_or(|(&other, len)| other + len <= at), "{at:#x} is in another node");
    assert_eq!(nodes.node_of(nodes.index_of(node)), node);
    // SAFETY: the node is taken, and the indices are below its words.
    unsafe {
        let record = nodes.record_at(node, words);
        assert_eq!((nodes.record(node, words).swap(mark, Ordering::Relaxed), record), (0, nodes.link(node)));
        for word in 0..words {
            assert_eq!(nodes.word_mut(node, word).read(), 0, "word {word} of {words}");
            nodes.word_mut(node, word).store_relaxed(mark);
        }
    }
    Some(Taken { node, words, mark })
}

/// Frees a node, which must still hold what was written.
fn free(nodes: &Storage<'_>, Taken { node, words, mark }: Taken) {
    // SAFETY: the node is taken, the indices are below its words, and no code knows it after this.
    unsafe {
        assert!(
            (0..words).all(|word| nodes.word_mut(node, word).read() == mark),
            "{node:x?} was written over"
        );
        assert_eq!(nodes.record(node, words).load(Ordering::Relaxed), mark);
        nodes.free(node, false);
    }
}

fn next(state: &mut u64) -> usize {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    (*state >> 20) as usize
}

#[test]
fn nodes_of_all_sizes_are_apart_and_cleared_and_their_frames_go_back() {
    const FRAMES: usize = if cfg!(miri) { 12 } else { 40 };
    const SIZES: [usize; 12] = [1, 2, 3, 3, 3, 4, 16, 16, 17, 256, 500, 1024];
    let mut memory = vec![Chunk::ZERO; FRAMES];
    let frames = Frames::new(&mut memory);
    let nodes = Storage::new(&frames);
    assert_eq!(nodes.take(1025), None, "no node is larger than a frame");
    let (mut state, mut all, mut places) = (0x1234_5678_u64, Vec::<Taken>::new(), BTreeMap::new());
    let mut refused = 0;
    for round in 0..if cfg!(miri) { 60 } else { 100_000 } {
        // Phases in which more come than go, and the other way round.
        let grows = (round / (FRAMES * 40)).is_multiple_of(2);
        if next(&mut state) % 8 < if grows { 5 } else { 3 } {
            let words = SIZES[next(&mut state) % if cfg!(miri) { 8 } else { SIZES.len() }];
            match take(&nodes, &places, words, round as u32 + 1) {
                None => refused += 1,
                Some(node) => {
                    places.insert(node.node.get(), 4 * words);
                    all.push(node);
                }
            }
        } else if !all.is_empty() {
            let node = all.swap_remove(next(&mut state) % all.len());
            places.remove(&node.node.get());
            free(&nodes, node);
        }
    }
    assert!(cfg!(miri) || refused > 0, "memory was never exhausted");
    all.into_iter().for_each(|node| free(&nodes, node));
    assert_eq!(frames.free(), FRAMES - 1);
}

#[test]
fn small_nodes_share_a_frame() {
    let mut memory = vec![Chunk::ZERO; 3];
    let frames = Frames::new(&mut memory);
    let nodes = Storage::new(&frames);
    // A pair of pages in a guarded table: 12 bytes, and a record.
    let all: Vec<_> = (0..255).map(|_| take(&nodes, &BTreeMap::new(), 3, 9).unwrap()).collect();
    assert_eq!(frames.free(), 1, "as many as a frame has room for");
    let more = take(&nodes, &BTreeMap::new(), 3, 9).unwrap();
    assert_eq!((frames.free(), nodes.take(3).is_some()), (0, true));
    free(&nodes, more);
    assert_eq!(nodes.take_within(3, 0xfff), None, "no frame ends there");
    all.into_iter().for_each(|node| free(&nodes, node));
    assert_eq!(frames.free(), 1, "one node is left");
}

#[test]
#[cfg(not(miri))]
fn several_threads_take_and_free() {
    const FRAMES: usize = 24;
    let mut memory = vec![Chunk::ZERO; FRAMES];
    let frames = Frames::new(&mut memory);
    let nodes = Storage::new(&frames);
    std::thread::scope(|scope| {
        for thread in 0..4_u32 {
            let nodes = &nodes;
            scope.spawn(move || {
                let (mut state, mut own) = (0x9876_5432 + u64::from(thread), Vec::new());
                for round in 0..20_000_u32 {
                    if next(&mut state).is_multiple_of(2) {
                        let words = [3, 16, 1024][next(&mut state) % 3];
                        own.extend(take(nodes, &BTreeMap::new(), words, thread << 24 | round));
                    } else if !own.is_empty() {
                        free(nodes, own.swap_remove(next(&mut state) % own.len()));
                    }
                }
                own.into_iter().for_each(|node| free(nodes, node));
            });
        }
    });
    assert_eq!(frames.free(), FRAMES - 1);
}

#[test]
fn exhaustion_is_an_error_of_the_table() {
    let mut memory = vec![Chunk::ZERO; 1];
    let frames = Frames::new(&mut memory);
    let nodes = Storage::new(&frames);
    let table = Gpt32::<_, Fixed<4>>::new(&nodes).unwrap();
    let mut writer = Writer::new(&table).unwrap();
    let refused = writer.map(Pages::one(Vpn::new(5)), Pfn::new(7), PageSize::K4, Attr::READ | Attr::EXEC);
    assert!(matches!(refused, Err(Error::NoMemory { .. })), "{refused:?}");
}

/// The reason why the address spaces of `tlbkit` have no hashed tables: see the first page of `tlbkit::arch`.
#[test]
#[cfg_attr(miri, ignore = "it is about bytes; the tests above take the same ways")]
fn hashed_tables_need_more_than_single_frames() {
    let mut memory = vec![Chunk::ZERO; 16];
    let frames = Frames::new(&mut memory);
    let nodes = Storage::new(&frames);
    let array = Hpt32::<_>::new(&nodes).map(drop);
    assert!(matches!(array, Err(Error::NoMemory { .. })), "16 KiB: {array:?}");
    let table = Cpt32::<_>::new(&nodes).unwrap();
    let mut writer = Writer::new(&table).unwrap();
    let pages = Pages::count(Vpn::new(0), 1024).unwrap();
    writer.map(pages, Pfn::new(7), PageSize::K4, Attr::READ).unwrap();
    // There would be 256 buckets, twice as many as blocks, but a segment of 64 fills a frame.
    assert_eq!((table.blocks(), table.buckets()), (128, 64));
}
