//! Second stages of translation: their words, their roots of several pages, and what has no meaning there.
#![cfg(target_pointer_width = "64")]

use std::sync::Mutex;

use tlbkit_addr::{Attr, FlushScope, PageSize, Pages, Pfn, PhysAddr, VirtAddr, Vpn, WalkCache};
use tlbkit_pagetable::format::{Aarch64Guest, Ept, EptOf, Format, RiscvOf, Sv39x4, check_attr, check_change};
use tlbkit_pagetable::geometry::{GuestEpt, GuestIpa, GuestX4, Napot, UpToM2, Va39, Va48, Va57};
use tlbkit_pagetable::mpt::Mpt;
use tlbkit_pagetable::nodes::{Chunk, Direct, FrameSource, NodeAddr, Record, Slab};
use tlbkit_pagetable::{Change, Error, Geometry, Half, Holes, Local, Radix, Shared, Solo, Space, Stage};

const RW: Attr = Attr::READ.union(Attr::WRITE);
const RX: Attr = Attr::READ.union(Attr::EXEC);
const RWX: Attr = RW.union(Attr::EXEC);
const USED: Attr = Attr::ACCESSED.union(Attr::DIRTY);

conformance!(sv39x4_shared, Sv39x4, Shared, |nodes| Mpt::<GuestX4<Va39>, Sv39x4, _>::new(nodes));

fn word<F: Format<Word = u64>>(frame: usize, shift: u32, attr: Attr) -> u64 {
    F::leaf(Pfn::new(frame), PageSize::from_shift(shift).unwrap(), attr, shift < 21).unwrap()
}

#[test]
fn riscv_golden_words() {
    let word = word::<Sv39x4>;
    // U is 0x10, in every leaf.
    assert_eq!(word(0x12345, 12, Attr::READ), 0x048d_1413);
    assert_eq!(word(0x12345, 12, RW | USED), 0x048d_14d7);
    assert_eq!(word(0x200, 21, RWX), 0x0008_001f);
    assert_eq!(
        (word(0x12345, 12, Attr::empty()), Sv39x4::attr(0x048d_1412, true)),
        (0x048d_1412, Attr::empty())
    );
    assert_eq!(Sv39x4::link(NodeAddr::new(0x8020_1000)), 0x2008_0401);
    type Typed = RiscvOf<true, true, true, true>;
    assert_eq!(self::word::<Typed>(0x12345, 12, RW | Attr::UNCACHED), 1 << 61 | 0x048d_1417);
    assert_eq!(self::word::<Typed>(0x12340, 16, RW), 1 << 63 | 0x048d_2017);
}

#[test]
fn ept_golden_words() {
    let word = word::<Ept>;
    // R 1, W 2, X 4; write-back 0x30; A 0x100, D 0x200.
    assert_eq!(word(0x12345, 12, Attr::READ), 0x1234_5031);
    assert_eq!(word(0x12345, 12, RW | USED), 0x1234_5333);
    assert_eq!(word(0x12345, 12, RWX), 0x1234_5037);
    assert_eq!(word(0x12345, 12, RW | Attr::UNCACHED), 0x1234_500b);
    assert_eq!(word(0xfee00, 12, RW | Attr::DEVICE), 0xfee0_0003);
    assert_eq!(word(0x200, 21, RX), 0x0020_00b5);
    assert_eq!(word(0x40000, 30, RWX | Attr::SOFTWARE), 7 << 52 | 0x4000_00b7);
    assert_eq!(word(0x12345, 12, Attr::DIRTY), 0x1234_5a30);
    assert_eq!(self::word::<EptOf<false, true>>(0x200, 21, RX), 0x0020_00f5);
    assert_eq!(Ept::link(NodeAddr::new(0x1000)), 0x1007);
    // Hardware sets A in links.
    assert_eq!((Ept::node(0x1107), Ept::is_link(0x1107)), (NodeAddr::new(0x1000), true));
    // Small marks are addresses of memory that no machine has; no bit of R, W and X is set, nor bit 11.
    assert_eq!(Ept::absent(0x1234 << 1 | 1), 0xffff_ffff_fffd_b348);
    assert_eq!(Ept::absent((1 << Ept::ABSENT) - 1), 0x7f8);
}

/// Whatever is asked for, and whatever changes: no W and no X without R, and no reserved memory type.
#[test]
fn no_ept_leaf_is_misconfigured() {
    let rights = [Attr::READ, Attr::WRITE, Attr::EXEC, Attr::UNCACHED, Attr::DEVICE];
    let some = |bits: usize| {
        let chosen = rights.iter().enumerate().filter(move |(at, _)| bits >> at & 1 == 1);
        chosen.fold(Attr::empty(), |all, (_, &one)| all | one)
    };
    let is_right = |word: u64| matches!(word & 7, 0 | 1 | 3 | 5 | 7) && matches!(word >> 3 & 7, 0 | 1 | 6);
    for (attr, set) in (0..32).flat_map(|attr| (0..32).map(move |set| (attr, set))) {
        let leaf = word::<Ept>(0x12345, 12, some(attr));
        assert!(is_right(leaf), "{:?} is {leaf:#x}", some(attr));
        for clear in 0..32 {
            let changed = Ept::change(leaf, Change { clear: some(clear), set: some(set) }, true);
            assert!(is_right(changed), "{leaf:#x} becomes {changed:#x}");
        }
    }
}

#[test]
fn aarch64_golden_words() {
    let word = word::<Aarch64Guest>;
    let (dbm, xn, was_dirty) = (1 << 51, 1 << 54, 1 << 55);
    // AF 0x400, inner shareable 0x300, S2AP 0x80 and 0x40, write-back 0x3c.
    assert_eq!(word(0x12345, 12, Attr::READ), xn | 0x1234_537f);
    assert_eq!(word(0x12345, 12, RX | Attr::ACCESSED), 0x1234_577f);
    assert_eq!(word(0x12345, 12, RWX | Attr::ACCESSED), dbm | 0x1234_577f);
    assert_eq!(word(0x12345, 12, RWX | USED), dbm | 0x1234_57ff);
    assert_eq!(word(0x12345, 12, RX | USED), was_dirty | 0x1234_577f);
    assert_eq!(word(0x200, 21, RWX | USED), dbm | 0x0020_07fd);
    assert_eq!(word(0x12345, 12, RX | Attr::SOFTWARE), 7 << 56 | 0x1234_537f);
    let typed = |memory| word(0x9000, 12, RX | memory) & 0x3c;
    assert_eq!([Attr::UNCACHED, Attr::WRITE_THROUGH, Attr::DEVICE].map(typed), [0x14, 0x28, 0x04]);
    assert_eq!([Attr::STRICT, Attr::REORDERED, Attr::GATHERED].map(typed), [0x00, 0x08, 0x0c]);
    let tagged = RX | Attr::TAGGED;
    let refused = Aarch64Guest::leaf(Pfn::new(0), PageSize::K4, tagged, true);
    assert_eq!(refused, Err(Error::WrongAttr { attr: tagged }));
    assert_eq!(Aarch64Guest::link(NodeAddr::new(0x4008_0000)), 0x4008_0003);
}

/// Modes of the guest, and spaces of the guest, are the guest's.
#[test]
fn user_and_global_are_refused() {
    fn refuses<F: Format>() {
        for none in [Attr::USER, Attr::GLOBAL] {
            let attr = Attr::READ | none;
            assert_eq!(check_attr::<F>(attr), Err(Error::WrongAttr { attr }));
            assert_eq!(check_change::<F>(Change::set(none)), Err(Error::WrongAttr { attr: none }));
        }
        for rights in [Attr::empty(), Attr::READ, RW, RX, RWX] {
            assert_eq!(check_attr::<F>(rights), Ok(()));
        }
    }
    refuses::<Sv39x4>();
    refuses::<Ept>();
    refuses::<Aarch64Guest>();
}

#[test]
fn each_geometry_has_its_root() {
    fn check<G: Radix>(bits: u32, widths: &[u32], stage: Stage) {
        assert_eq!((G::VA_BITS, G::WIDTHS, G::STAGE, G::HALF), (bits, widths, stage, Half::Lower));
        // Addresses are zero-extended.
        let space = Space::of::<G>();
        for (at, held) in [(0, true), (1 << (bits - 1), true), ((1 << bits) - 1, true), (1 << bits, false)] {
            assert_eq!(space.holds(VirtAddr::new(at)), held, "{at:#x}");
        }
        assert!(!space.holds(VirtAddr::new(usize::MAX)));
    }
    check::<GuestX4<Va39>>(41, &[11, 9, 9], Stage::Riscv);
    check::<GuestX4<Va48>>(50, &[11, 9, 9, 9], Stage::Riscv);
    check::<GuestX4<Va57>>(59, &[11, 9, 9, 9, 9], Stage::Riscv);
    check::<Napot<GuestX4<Va39>>>(41, &[11, 9, 9], Stage::Riscv);
    check::<GuestEpt>(48, &[9, 9, 9, 9], Stage::Ept);
    check::<GuestEpt<5>>(57, &[9, 9, 9, 9, 9], Stage::Ept);
    check::<UpToM2<GuestEpt>>(48, &[9, 9, 9, 9], Stage::Ept);
    check::<GuestIpa<40, 3>>(40, &[10, 9, 9], Stage::Aarch64);
    check::<GuestIpa<43, 3>>(43, &[13, 9, 9], Stage::Aarch64);
    check::<GuestIpa<34, 2>>(34, &[13, 9], Stage::Aarch64);
    check::<GuestIpa<44, 4>>(44, &[5, 9, 9, 9], Stage::Aarch64);
    assert_eq!(GuestIpa::<34, 2>::SIZES.len(), 2, "a gigabyte would be in 512 slots of the root");
}

/// A root of several pages is aligned to its size, and all of it is walked.
#[test]
fn a_root_of_several_pages_is_aligned_to_its_size() {
    fn check<G: Radix, F: Format<Word = u64>>(bytes: usize) {
        let mut memory = vec![Chunk::ZERO; 64];
        let slab = Slab::<u64, Solo>::new(&mut memory, 0x8020_3000).unwrap();
        let mut table = Local::new(Mpt::<G, F, _>::new(&slab).unwrap(), |_: &_| ());
        assert_eq!((table.table().root().get() % bytes, slab.usage().bytes), (0, bytes));
        let last = Space::of::<G>().halves()[0].unwrap().last();
        for (frame, page) in [(5, Vpn::new(0)), (6, Vpn::new(last.get() / 2 + 1)), (7, last)] {
            table.map(Pages::one(page), Pfn::new(frame), PageSize::K4, RW).unwrap();
            assert_eq!(table.lookup(page.address(PageSize::K4)).unwrap().frame, Pfn::new(frame));
        }
        let beyond = Pages::one(Vpn::new(last.get() + 1));
        assert!(matches!(table.map(beyond, Pfn::new(8), PageSize::K4, RW), Err(Error::OutOfRange { .. })));
        table.destroy();
        assert_eq!(slab.usage().nodes, 0);
    }
    check::<GuestX4<Va39>, Sv39x4>(16 << 10);
    check::<GuestIpa<40, 3>, Aarch64Guest>(8 << 10);
    check::<GuestIpa<43, 3>, Aarch64Guest>(64 << 10);
}

/// A change of EPT entries is never flushed by address; a new page needs nothing.
#[test]
fn an_ept_flush_names_no_address() {
    let mut memory = vec![Chunk::ZERO; 16];
    let slab = Slab::<u64, Solo>::new(&mut memory, 0x8020_0000).unwrap();
    let flushes = std::cell::RefCell::new(Vec::new());
    let mut table = Local::new(Mpt::<GuestEpt, Ept, _>::new(&slab).unwrap(), |flush: &tlbkit_addr::Flush| {
        let named = flush.by_address(Ept::WALK_CACHE, 64).map(Iterator::count);
        flushes.borrow_mut().push((flush.scope(), named));
    });
    let page = Pages::count(Vpn::new(0x123), 2).unwrap();
    table.map(page, Pfn::new(7), PageSize::K4, RW).unwrap();
    assert!(flushes.take().iter().all(|&(scope, named)| scope == FlushScope::Nowhere && named == Some(0)));
    table.protect(page, Holes::Refuse, Change::clear(Attr::WRITE)).unwrap();
    assert_eq!(flushes.take(), [(FlushScope::Everywhere, None)]);
    assert_eq!(Ept::WALK_CACHE, WalkCache::NoAddress);
    table.destroy();
}

/// Frames, of which several that begin at a multiple of their number can be taken as a block.
#[derive(Debug)]
struct Blocks {
    /// The memory of the frames, aligned as their addresses are.
    memory: *mut u8,
    /// Which frames are free.
    free: Mutex<Vec<bool>>,
    /// How many frames were taken from here on, or 0.
    sizes: Mutex<Vec<usize>>,
    records: Vec<Record>,
}

const FIRST: usize = 0x8020_0000;
const FRAMES: usize = 16;

// SAFETY: the memory is the test's, and only the code that took a frame uses it.
unsafe impl Sync for Blocks {}

impl Blocks {
    fn new(memory: &mut [u8; (2 * FRAMES) << 12]) -> Self {
        let begin = memory.as_mut_ptr();
        Self {
            memory: begin.wrapping_add(begin.align_offset(FRAMES << 12)),
            free: Mutex::new(vec![true; FRAMES]),
            sizes: Mutex::new(vec![0; FRAMES]),
            records: (0..FRAMES).map(|_| Record::new(7)).collect(),
        }
    }

    fn take_frames(&self, count: usize) -> Option<PhysAddr> {
        let mut free = self.free.lock().unwrap();
        let at = (0..FRAMES).step_by(count).find(|&at| free[at..at + count].iter().all(|&is| is))?;
        free[at..at + count].fill(false);
        self.sizes.lock().unwrap()[at] = count;
        Some(PhysAddr::new(FIRST + (at << 12)))
    }

    fn used(&self) -> usize {
        self.free.lock().unwrap().iter().filter(|&&is| !is).count()
    }
}

// SAFETY: a frame belongs to one taker at a time; a block is given back whole, because `sizes` knows how large it is; `memory` maps
// frame after frame, aligned to 64 KiB as `FIRST` is.
unsafe impl FrameSource for &Blocks {
    fn take(&self) -> Option<PhysAddr> {
        self.take_frames(1)
    }

    fn take_block(&self, size: PageSize) -> Option<PhysAddr> {
        self.take_frames(size.pages(PageSize::K4)?)
    }

    fn give(&self, frame: PhysAddr) {
        let at = (frame.get() - FIRST) >> 12;
        let count = std::mem::take(&mut self.sizes.lock().unwrap()[at]);
        assert!(count > 0, "{frame} is no frame that was taken");
        self.free.lock().unwrap()[at..at + count].fill(true);
    }

    fn memory(&self, frame: PhysAddr) -> *mut u8 {
        self.memory.wrapping_add(frame.get() - FIRST)
    }

    fn record(&self, frame: PhysAddr) -> Option<&Record> {
        self.records.get(frame.get().wrapping_sub(FIRST) >> 12)
    }
}

#[test]
#[cfg_attr(miri, ignore = "the alignment of the frames is found by arithmetic on addresses")]
fn a_root_of_several_frames_is_one_block_of_the_source() {
    let mut memory = Box::new([0xff; (2 * FRAMES) << 12]);
    let blocks = Blocks::new(&mut memory);
    let nodes = Direct::<u64, Solo, _>::new(&blocks);
    let mut table = Local::new(Mpt::<GuestX4<Va39>, Sv39x4, _>::new(&nodes).unwrap(), |_: &_| ());
    assert_eq!(blocks.used(), 4);
    let page = Pages::one(Vpn::new((1 << 29) - 1));
    // A root that was not cleared would have entries.
    assert!(table.lookup(page.first().address(PageSize::K4)).is_none());
    table.map(page, Pfn::new(7), PageSize::K4, RW).unwrap();
    assert_eq!(blocks.used(), 6, "the other nodes are single frames");
    assert_eq!(table.lookup(page.first().address(PageSize::K4)).unwrap().frame, Pfn::new(7));
    table.unmap(page, Holes::Refuse).unwrap();
    assert_eq!(blocks.used(), 4);
    table.destroy();
    assert_eq!(blocks.used(), 0);
    // Where no block is free, there is no table.
    let singles: Vec<_> = (0..FRAMES).filter_map(|_| blocks.take_frames(1)).step_by(3).collect();
    singles.into_iter().for_each(|frame| (&blocks).give(frame));
    assert!(blocks.used() < FRAMES);
    let refused = Mpt::<GuestX4<Va39>, Sv39x4, _>::new(&nodes).map(drop);
    assert_eq!(refused, Err(Error::NoMemory { wanted: 1, pending: 0 }));
}
