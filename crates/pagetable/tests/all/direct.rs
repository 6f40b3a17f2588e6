//! Nodes that are a kernel's frames, on a host: "physical" memory is an array, mapped further up.
#![cfg(all(target_pointer_width = "64", not(miri)))]

use std::sync::Mutex;
use std::sync::atomic::Ordering;

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use tlbkit_addr::{Attr, PageSize, Pages, Pfn, PhysAddr, Vpn};
use tlbkit_conformance::{Profile, Runner, ops};
use tlbkit_pagetable::format::{Compact, Compact32, EntryLo};
use tlbkit_pagetable::geometry::Va32;
use tlbkit_pagetable::gpt::{Fixed, Gpt32};
use tlbkit_pagetable::nodes::{Chunk, Direct, FrameSource, NodeAddr, Nodes, Pieces, Reclaim, Record};
use tlbkit_pagetable::{Error, Holes, Local, Retired, Shared, Solo, Table, destroy, mpt};

/// A stack of free frames, the memory of those from `first` on, and a record for each.
#[derive(Debug)]
struct Frames {
    free: Mutex<Vec<PhysAddr>>,
    first: usize,
    memory: *mut Chunk,
    records: Vec<Record>,
}

// SAFETY: the memory is the test's, and only the code that took a frame uses it.
unsafe impl Sync for Frames {}

impl Frames {
    fn new(
        memory: &mut [Chunk],
        first: usize,
        records: usize,
        numbers: impl DoubleEndedIterator<Item = usize>,
    ) -> Self {
        let free = numbers.rev().map(|number| PhysAddr::new(number << 12)).collect();
        let records = (0..records).map(|_| Record::new(7)).collect();
        Self { free: Mutex::new(free), first: first >> 12, memory: memory.as_mut_ptr(), records }
    }

    fn free(&self) -> usize {
        self.free.lock().unwrap().len()
    }
}

// SAFETY: every frame is on the stack once; the tests put only such there that their memory holds, or that no test's table
// can use.
unsafe impl FrameSource for &Frames {
    fn take(&self) -> Option<PhysAddr> {
        self.free.lock().unwrap().pop()
    }

    fn give(&self, frame: PhysAddr) {
        self.free.lock().unwrap().push(frame);
    }

    fn memory(&self, frame: PhysAddr) -> *mut u8 {
        self.memory.wrapping_add((frame.get() >> 12).wrapping_sub(self.first)).cast()
    }

    fn record(&self, frame: PhysAddr) -> Option<&Record> {
        self.records.get((frame.get() >> 12).wrapping_sub(self.first))
    }
}

type Storage<'f, M> = Direct<u64, M, &'f Frames>;

#[test]
fn a_node_is_a_cleared_frame_and_its_record() {
    let mut memory = vec![Chunk::ZERO; 8];
    let frames = Frames::new(&mut memory, 0, 8, 1..8);
    let nodes = Storage::<Shared>::new(&frames);
    {
        assert_eq!(nodes.take(513), None, "no node is larger than a frame");
        let node = nodes.take(512).unwrap();
        assert_eq!(node, NodeAddr::new(0x1000));
        // SAFETY: the node is taken, and the index below its words.
        unsafe {
            let record = nodes.record_at(node, 512);
            assert_eq!((nodes.record(node, 512).load(Ordering::Relaxed), record), (0, nodes.link(node)));
            nodes.word_mut(node, 511).store_relaxed(u64::MAX);
            nodes.free(node, false);
        }
        let again = nodes.take(512).unwrap();
        assert_eq!((again, nodes.node_of(nodes.index_of(again))), (node, node));
        // SAFETY: the node is taken, and the index below its words.
        assert_eq!(unsafe { nodes.word_mut(again, 511) }.read(), 0, "a frame comes back cleared");
        // SAFETY: the node is taken, and no code uses it after this; nothing was written to it.
        unsafe { nodes.free(again, true) };
    }
    assert_eq!(frames.free(), 7);
}

/// Frames that come back zeroed are kept apart, and handed out first.
#[derive(Debug)]
struct Kept<'f>(&'f Frames, Mutex<Vec<PhysAddr>>);

// SAFETY: the frames, their memory and their records are those of `Frames`; what is given back zeroed is zero as long as no code
// has it.
unsafe impl FrameSource for Kept<'_> {
    fn take(&self) -> Option<PhysAddr> {
        self.0.take()
    }

    fn give(&self, frame: PhysAddr) {
        self.0.give(frame);
    }

    fn take_zeroed(&self) -> Option<PhysAddr> {
        self.1.lock().unwrap().pop()
    }

    fn give_zeroed(&self, frame: PhysAddr) {
        self.1.lock().unwrap().push(frame);
    }

    fn memory(&self, frame: PhysAddr) -> *mut u8 {
        self.0.memory(frame)
    }

    fn record(&self, frame: PhysAddr) -> Option<&Record> {
        self.0.record(frame)
    }
}

#[test]
fn a_frame_that_is_known_to_be_zero_is_not_cleared_again() {
    let mut memory = vec![Chunk::ZERO; 8];
    let frames = Frames::new(&mut memory, 0, 8, 1..8);
    let source = Kept(&frames, Mutex::default());
    let nodes = Direct::<u64, Solo, _>::new(source);
    let zeroed = || nodes.source().1.lock().unwrap().len();
    let mut table = Local::with(mpt::Mpt4::new(&nodes).unwrap(), |_: &_| ());
    let page = Pages::one(Vpn::new(5));
    for round in 0..3 {
        table.map(page, Pfn::new(7), PageSize::K4, Attr::READ).unwrap();
        assert_eq!((frames.free(), zeroed()), (3, 0), "the same frames again, in round {round}");
        table.unmap(page, Holes::Refuse).unwrap();
        assert_eq!((frames.free(), zeroed()), (3, 3), "they were empty when they went");
    }
    for frame in &*nodes.source().1.lock().unwrap() {
        // SAFETY: the frame is free, and its memory the test's.
        let words = unsafe { std::slice::from_raw_parts((&frames).memory(*frame).cast::<u64>(), 512) };
        assert!(words.iter().all(|&word| word == 0));
    }
    // A frame is handed out as it is: were it cleared all the same, this would be gone.
    let kept = *nodes.source().1.lock().unwrap().last().unwrap();
    // SAFETY: the frame is free, and its memory the test's.
    unsafe { (&frames).memory(kept).cast::<u64>().add(511).write(9) };
    let node = nodes.take(512).unwrap();
    // SAFETY: the node is taken, and the index below its words.
    unsafe {
        assert_eq!((node.get(), nodes.word_mut(node, 511).read()), (kept.get(), 9));
        nodes.word_mut(node, 511).store_relaxed(0);
        nodes.free(node, false);
    }
    table.destroy();
    assert_eq!(frames.free() + zeroed(), 7);
}

#[test]
fn frames_that_cannot_be_nodes_go_back() {
    let mut memory = vec![Chunk::ZERO; 8];
    // Frame 0 cannot be told from no node, and frame 7 has no record.
    for number in [0, 7] {
        let frames = Frames::new(&mut memory, 0, 7, number..number + 1);
        assert_eq!(Storage::<Shared>::new(&frames).take(512), None);
        assert_eq!(frames.free(), 1);
    }
}

/// RAM seldom begins at physical address 0: a record is needed for each frame of it, and for nothing below.
#[test]
fn records_begin_where_memory_does() {
    const RAM: usize = 0x8000_0000;
    let mut memory = vec![Chunk::ZERO; 8];
    // The frame below and the one above have no record, so that no code touches their memory.
    let frames = Frames::new(&mut memory, RAM, 8, (RAM >> 12) - 1..(RAM >> 12) + 9);
    let nodes = Storage::<Solo>::new(&frames);
    assert_eq!(nodes.take(512), None, "a frame below has no record");
    assert_eq!(frames.free.lock().unwrap().pop().unwrap().get(), RAM - 0x1000);
    let taken: Vec<_> = (0..8).map(|_| nodes.take(512).unwrap()).collect();
    assert_eq!((taken[0].get(), taken[7].get()), (RAM, RAM + 0x7000));
    assert_eq!(nodes.take(512), None, "nor has one above");
    for (nth, &node) in taken.iter().enumerate() {
        let index = nodes.index_of(node);
        assert!(index != 0 && nodes.node_of(index) == node);
        // SAFETY: the node is taken; it is forgotten when it is free.
        unsafe {
            assert_eq!(nodes.link(node), &raw const frames.records[nth]);
            assert_eq!(nodes.record(node, 512).load(Ordering::Relaxed), 0);
            nodes.word_mut(node, 511).store_relaxed(nth as u64);
            assert_eq!(nodes.word_mut(node, 511).read(), nth as u64);
            nodes.free(node, false);
        }
    }
    // All of a table, of which every node has its place below another.
    let mut table = Local::new(mpt::Mpt4::new(&nodes).unwrap(), |_| ());
    table.map(Pages::one(Vpn::new(5)), Pfn::new(7), PageSize::K4, Attr::READ).unwrap();
    assert_eq!(table.lookup(Vpn::new(5).address(PageSize::K4)).unwrap().frame, Pfn::new(7));
    table.destroy();
    assert_eq!(frames.free(), 9);
}

#[test]
fn batches_of_shared_storage_alone_leave_their_cpu() {
    let frames = Frames::new(&mut [], 0, 0, 1..1);
    let (solo, shared) = (Storage::<Solo>::new(&frames), Storage::<Shared>::new(&frames));
    assert!(Retired::new(&solo).across_cpus().is_err());
    assert!(Retired::new(&shared).across_cpus().is_ok());
}

#[test]
fn exhaustion_is_an_error_of_the_table() {
    let frames = Frames::new(&mut [], 0, 2, 1..1);
    let nodes = Storage::<Shared>::new(&frames);
    let error = mpt::Mpt4::new(&nodes).unwrap_err();
    assert_eq!(error, Error::NoMemory { wanted: 1, pending: 0 });
}

/// A frame that a word of 32 bits cannot lead to goes back to where it came from.
#[test]
fn no_node_lies_beyond_what_a_word_holds() {
    const HIGH: usize = 1 << 32;
    let mut memory = vec![Chunk::ZERO; 4];
    // The high one goes back untouched.
    let frames = Frames::new(&mut memory, 0, (HIGH >> 12) + 1, [1, HIGH >> 12].into_iter());
    let nodes = Direct::<u32, Solo, _>::new(&frames);
    let mut table = Local::new(mpt::Mpt::<Va32, Compact32, _>::new(&nodes).unwrap(), |_| ());
    let refused = table.map(Pages::one(Vpn::new(5)), Pfn::new(7), PageSize::K4, Attr::READ);
    assert_eq!(refused, Err(Error::NoMemory { wanted: 1, pending: 0 }));
    assert_eq!(frames.free(), 1);
    table.destroy();
    assert_eq!(frames.free(), 2);
}

/// A table in frames behaves like one in a slab.
#[test]
fn a_table_lives_in_frames() {
    const FRAMES: usize = 1024;
    let mut memory = vec![Chunk::ZERO; FRAMES];
    let frames = Frames::new(&mut memory, 0, FRAMES, 1..FRAMES);
    let nodes = Storage::<Shared>::new(&frames);
    let mut random = TestRunner::deterministic();
    for _ in 0..20 {
        let table = mpt::Mpt4::new(&nodes).unwrap();
        let ops = ops(table.space(), 40).new_tree(&mut random).unwrap().current();
        Runner::new(&table, Profile::of::<Compact>(), 0).run(&table, &ops).unwrap();
        // SAFETY: no CPU walks the table any more.
        unsafe { destroy(table).reclaim() };
        assert_eq!((frames.free(), nodes.held().pending(), nodes.held().lost()), (FRAMES - 1, 0, 0));
    }
}

/// A guarded table, whose nodes are small, lives in frames that are cut.
#[test]
fn a_guarded_table_lives_in_frames() {
    const FRAMES: usize = 1024;
    let mut memory = vec![Chunk::ZERO; FRAMES];
    let frames = Frames::new(&mut memory, 0, FRAMES, 1..FRAMES);
    let nodes = Pieces::<u32, _>::new(&frames);
    let mut random = TestRunner::deterministic();
    for _ in 0..20 {
        let table = Gpt32::<_, Fixed<4>>::new(&nodes).unwrap();
        let ops = ops(table.space(), 40).new_tree(&mut random).unwrap().current();
        Runner::new(&table, Profile::of::<EntryLo>(), 0).run(&table, &ops).unwrap();
        // SAFETY: no CPU walks the table any more.
        unsafe { destroy(table).reclaim() };
        assert_eq!((frames.free(), nodes.held().pending(), nodes.held().lost()), (FRAMES - 1, 0, 0));
    }
}
