//! The manuals' tables, written down a second time: walks that know nothing of [`Format`], beside a model of what is mapped.
//!
//! Whatever the table holds after an operation, the walk by the manual finds what the model says: the frame, the rights, the
//! memory type, no reserved bit. What is refused changes no word.
#![cfg(all(target_pointer_width = "64", not(miri)))]

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use tlbkit_addr::{Attr, PageSize, Pages, Pfn, VirtAddr, Vpn};
use tlbkit_pagetable::format::{Aarch64, Aarch64Of, Ept, Format, RiscvOf, Sv39, X86, X86Of};
use tlbkit_pagetable::geometry::{GuestEpt, Napot, Runs, UpToM2, Va39, Va48, Va48K16, Va53, Va53K64, Va57};
use tlbkit_pagetable::mpt::Mpt;
use tlbkit_pagetable::nodes::{Chunk, NodeAddr, Nodes as _, Slab};
use tlbkit_pagetable::{
    Change, Entry, Error, FlushAll, Geometry, Holes, Local, Mark, Radix, Solo, Space, Uncovered,
};

const ACCESS: Attr = Attr::READ.union(Attr::WRITE).union(Attr::EXEC);

/// What an MMU makes of a word at which it has come, `above` levels above the last.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    Absent,
    Table(usize),
    /// A page of `1 << shift` bytes, or one of such a run, that begins at a physical address.
    Page {
        start: usize,
        shift: u32,
        attr: Attr,
    },
}

/// A processor, with what it has.
#[derive(Clone, Copy, Debug)]
enum Mmu {
    Riscv {
        napot: bool,
        pbmt: bool,
    },
    X86 {
        pat: bool,
        keys: bool,
        nx: bool,
    },
    Arm {
        granule: u32,
        wide: bool,
    },
    /// The second stages.
    #[cfg_attr(not(tlbkit_full), expect(dead_code, reason = "`cargo xtask judge` asks QEMU's in the gate"))]
    RiscvGuest,
    Ept {
        ipat: bool,
    },
    #[cfg_attr(not(tlbkit_full), expect(dead_code, reason = "as above"))]
    ArmGuest,
}

fn bit(word: u64, at: u32) -> bool {
    word >> at & 1 != 0
}

/// Returns the bits of a word from `low` to `high`, in their places.
fn field(word: u64, high: u32, low: u32) -> u64 {
    word & (u64::MAX >> (63 - high)) & (u64::MAX << low)
}

fn flags<const N: usize>(all: [(bool, Attr); N]) -> Attr {
    all.into_iter().filter(|&(is, _)| is).fold(Attr::empty(), |all, (_, attr)| all | attr)
}

impl Mmu {
    /// Reads a word. `at` is where it stands among those of its node.
    fn step(self, word: u64, above: u32, at: usize) -> Step {
        match self {
            Self::Riscv { napot, pbmt } => riscv(word, above, napot, pbmt),
            Self::X86 { pat, keys, nx } => x86(word, above, pat, keys, nx),
            Self::Arm { granule, wide } => arm(word, above, at, granule, wide),
            Self::RiscvGuest => riscv_guest(word, above),
            Self::Ept { ipat } => ept(word, above, ipat),
            Self::ArmGuest => arm_guest(word, above),
        }
    }

    /// Sets what hardware notes of an access, in the word that it has come to.
    fn note(self, word: u64, store: bool) -> u64 {
        match (self, store) {
            (Self::Riscv { .. } | Self::RiscvGuest, false) => word | 1 << 6,
            (Self::Riscv { .. } | Self::RiscvGuest, true) => word | 3 << 6,
            (Self::X86 { .. }, false) => word | 1 << 5,
            (Self::X86 { .. }, true) => word | 3 << 5,
            (Self::Ept { .. }, false) => word | 1 << 8,
            (Self::Ept { .. }, true) => word | 3 << 8,
            (Self::Arm { .. } | Self::ArmGuest, false) => word | 1 << 10,
            // S2AP[1] is set where DBM is set.
            (Self::ArmGuest, true) => word | 1 << 10 | 1 << 7,
            // AP[2] is cleared where DBM is set.
            (Self::Arm { .. }, true) => (word | 1 << 10) & !(1 << 7),
        }
    }
}

/// RISC-V Privileged Architecture, 12.3 to 12.7, and Svnapot and Svpbmt.
fn riscv(word: u64, above: u32, napot: bool, pbmt: bool) -> Step {
    if !bit(word, 0) {
        return Step::Absent;
    }
    let (n, kind, ppn) = (bit(word, 63), word >> 61 & 3, word >> 10 & ((1 << 44) - 1));
    assert_eq!(field(word, 60, 54), 0, "reserved");
    assert!(kind != 3 && (pbmt || kind == 0), "PBMT is reserved");
    let [r, w, x, u, g, a, d] = [1, 2, 3, 4, 5, 6, 7].map(|at| bit(word, at));
    if !(r || w || x) {
        assert!(above > 0, "a pointer at the last level");
        assert!(!u && !a && !d && !n && kind == 0 && !g, "reserved in a pointer, or global");
        return Step::Table((ppn << 12) as usize);
    }
    assert!(r || !w, "W without R is reserved");
    assert_eq!(ppn & ((1 << (9 * above)) - 1), 0, "a misaligned superpage");
    assert!(above <= 2, "no size that the tables have");
    let (ppn, shift) = if n {
        assert!(napot && above == 0 && ppn & 15 == 8, "N is reserved");
        (ppn & !15, 16)
    } else {
        (ppn, 12 + 9 * above)
    };
    let soft = if pbmt { Attr::SOFT_1 } else { Attr::DEVICE };
    let attr = flags([
        (r, Attr::READ),
        (w, Attr::WRITE),
        (x, Attr::EXEC),
        (u, Attr::USER),
        (g, Attr::GLOBAL),
        (a, Attr::ACCESSED),
        (d, Attr::DIRTY),
        (bit(word, 8), Attr::COPY_ON_WRITE),
        (bit(word, 9), soft),
        (kind == 1, Attr::UNCACHED),
        (kind == 2, Attr::UNCACHED | Attr::DEVICE),
    ]);
    Step::Page { start: (ppn << 12) as usize, shift, attr }
}

/// RISC-V Privileged Architecture, *Guest Physical Address Translation*: every access is one of user mode.
fn riscv_guest(word: u64, above: u32) -> Step {
    match riscv(word, above, false, false) {
        Step::Page { start, shift, attr } => {
            assert!(attr.contains(Attr::USER), "no access to the page is allowed");
            assert!(!attr.contains(Attr::GLOBAL), "G is reserved");
            Step::Page { start, shift, attr: attr - Attr::USER }
        }
        other => other,
    }
}

/// Intel SDM volume 3, *The Extended Page Table Mechanism*, with MAXPHYADDR = 52 and without the controls that give bits 10 and 57
/// to 63 a meaning; execute-only pages are not supported.
fn ept(word: u64, above: u32, ipat: bool) -> Step {
    if word & 7 == 0 {
        return Step::Absent;
    }
    let [r, w, x, ignore_pat, page, a, d] = [0, 1, 2, 6, 7, 8, 9].map(|at| bit(word, at));
    assert!(r, "a misconfiguration: stores or fetches without loads");
    assert!(!bit(word, 10), "execute access for user mode");
    assert_eq!(field(word, 63, 57), 0, "bits that controls give a meaning");
    if above > 0 && !page {
        assert!(w && x, "a table takes rights away");
        assert_eq!(field(word, 7, 3), 0, "a misconfiguration: reserved in a link");
        return Step::Table(field(word, 51, 12) as usize);
    }
    assert!(above <= 2, "a misconfiguration: a page at this level");
    let shift = 12 + 9 * above;
    if above > 0 {
        assert_eq!(field(word, shift - 1, 12), 0, "a misconfiguration: reserved in a large page");
    }
    let memory = match word >> 3 & 7 {
        0 => Attr::UNCACHED | Attr::DEVICE,
        1 => Attr::UNCACHED,
        6 => Attr::empty(),
        other => panic!("a misconfiguration, or no type that is asked for: {other}"),
    };
    assert_eq!(ignore_pat, ipat);
    let attr = flags([
        (r, Attr::READ | memory),
        (w, Attr::WRITE),
        (x, Attr::EXEC),
        (a, Attr::ACCESSED),
        (d, Attr::DIRTY),
        (bit(word, 52), Attr::COPY_ON_WRITE),
        (bit(word, 53), Attr::SOFT_1),
        (bit(word, 54), Attr::SOFT_2),
    ]);
    Step::Page { start: field(word, 51, shift) as usize, shift, attr }
}

/// Arm ARM, D8.3.1 and D8.3.2, stage 2 with granules of 4 KiB, without FEAT_S2FWB, with VTCR_EL2.HA and HD.
fn arm_guest(word: u64, above: u32) -> Step {
    if !bit(word, 0) {
        return Step::Absent;
    }
    assert_eq!(field(word, 50, 48), 0, "RES0");
    if above > 0 && bit(word, 1) {
        assert_eq!((field(word, 63, 51), field(word, 11, 2)), (0, 0), "a table descriptor has no attributes");
        return Step::Table(field(word, 47, 12) as usize);
    }
    assert!(above > 0 || bit(word, 1), "reserved at the last level");
    assert!(above <= 2, "no block at this level");
    let shift = 12 + 9 * above;
    if above > 0 {
        assert_eq!(field(word, shift - 1, 12), 0, "RES0 in a block");
    }
    assert!(!bit(word, 11) && !bit(word, 52), "FnXS and the contiguous bit");
    assert_eq!((field(word, 63, 59), word >> 8 & 3), (0, 3), "PBHA, and inner shareable");
    let (read, write, af, dbm) = (bit(word, 6), bit(word, 7), bit(word, 10), bit(word, 51));
    assert!(read && !bit(word, 53), "no loads, or EL0 and EL1 differ");
    assert!(dbm || !write, "stores without DBM");
    let memory = match word >> 2 & 15 {
        0b1111 => Attr::empty(),
        0b0101 => Attr::UNCACHED,
        0b1010 => Attr::WRITE_THROUGH,
        0b0001 => Attr::UNCACHED | Attr::DEVICE,
        0b0000 => Attr::STRICT,
        0b0010 => Attr::REORDERED,
        0b0011 => Attr::GATHERED,
        other => unreachable!("MemAttr {other:#b}"),
    };
    let attr = flags([
        (read, Attr::READ | memory),
        (dbm, Attr::WRITE),
        (write || bit(word, 55), Attr::DIRTY),
        (!bit(word, 54), Attr::EXEC),
        (af, Attr::ACCESSED),
        (bit(word, 56), Attr::COPY_ON_WRITE),
        (bit(word, 57), Attr::SOFT_1),
        (bit(word, 58), Attr::SOFT_2),
    ]);
    Step::Page { start: field(word, 47, shift) as usize, shift, attr }
}

/// Intel SDM volume 3, tables 4-14 to 4-20, with MAXPHYADDR = 52, and EFER.NXE if there is XD.
fn x86(word: u64, above: u32, pat: bool, keys: bool, nx: bool) -> Step {
    if !bit(word, 0) {
        return Step::Absent;
    }
    assert!(nx || !bit(word, 63), "XD is reserved");
    let [rw, us, pwt, pcd, a, d, ps, g] = [1, 2, 3, 4, 5, 6, 7, 8].map(|at| bit(word, at));
    if above > 0 && !ps {
        assert!(rw && us && !bit(word, 63), "a table takes rights away");
        assert!(!pwt && !pcd, "a table that is not cached");
        return Step::Table(field(word, 51, 12) as usize);
    }
    assert!(above <= 2, "PS is reserved");
    let shift = 12 + 9 * above;
    let moved = if above == 0 { ps } else { bit(word, 12) };
    if above > 0 {
        assert_eq!(field(word, shift - 1, 13), 0, "reserved in a large page");
    }
    let memory = match (moved, pcd, pwt) {
        (false, false, false) => Attr::empty(),
        (false, true, false) if !pat => Attr::UNCACHED,
        (true, false, false) if pat => Attr::UNCACHED,
        (false, true, true) => Attr::UNCACHED | Attr::DEVICE,
        other => panic!("{other:?} is no memory type"),
    };
    let key = (word >> 59 & 15) as u8;
    assert!(keys || key == 0, "a key where there are none");
    let attr = flags([
        (true, Attr::READ),
        (rw, Attr::WRITE),
        (!bit(word, 63), Attr::EXEC),
        (us, Attr::USER),
        (g, Attr::GLOBAL),
        (a, Attr::ACCESSED),
        (d, Attr::DIRTY),
        (bit(word, 9), Attr::COPY_ON_WRITE),
        (bit(word, 10), Attr::SOFT_1),
        (bit(word, 52), Attr::SOFT_2),
        (true, memory | Attr::of_key(key)),
    ]);
    Step::Page { start: field(word, 51, shift) as usize, shift, attr }
}

/// Arm ARM, D8.3.1 (descriptors), D8.3.2 (attributes), D8.7 (contiguous runs), with TCR.HA and TCR.HD.
fn arm(word: u64, above: u32, at: usize, granule: u32, wide: bool) -> Step {
    if !bit(word, 0) {
        return Step::Absent;
    }
    let ds = wide && granule < 16;
    let address = |low: u32| {
        let high = match (wide, ds) {
            (true, true) => (word >> 8 & 3) << 50,
            (true, false) => (word >> 12 & 15) << 48,
            (false, _) => 0,
        };
        (high | field(word, if ds { 49 } else { 47 }, low)) as usize
    };
    if !ds {
        assert_eq!(field(word, 50, 48), 0, "RES0");
    }
    if above > 0 && bit(word, 1) {
        assert_eq!(field(word, 63, 59), 0, "a table takes rights away");
        return Step::Table(address(granule));
    }
    assert!(above > 0 || bit(word, 1), "reserved at the last level");
    let blocks = match (granule, wide) {
        (12, false) => 1..=2,
        (12, true) => 1..=3,
        (_, false) => 1..=1,
        (_, true) => 1..=2,
    };
    assert!(above == 0 || blocks.contains(&above), "no block at this level");
    let shift = granule + (granule - 3) * above;
    // Of a block: below its address nothing but the attributes; bit 16 would be nT.
    let below = if granule == 16 && wide { 16 } else { 12 };
    if above > 0 {
        assert_eq!(field(word, shift - 1, below), 0, "RES0 in a block");
    } else if granule == 14 {
        assert_eq!(field(word, 13, 12), 0, "RES0");
    } else if granule == 16 && !wide {
        assert_eq!(field(word, 15, 12), 0, "RES0");
    }
    assert!(!bit(word, 5), "NS");
    assert_eq!(field(word, 63, 59), 0, "PBHA");
    assert!(!ds || !bit(word, 50) || wide, "GP");
    if !ds {
        assert_eq!(word >> 8 & 3, 3, "inner shareable");
    }
    let (user, read_only, af, ng, dbm) =
        (bit(word, 6), bit(word, 7), bit(word, 10), bit(word, 11), bit(word, 51));
    let (run, pxn, uxn) = (bit(word, 52), bit(word, 53), bit(word, 54));
    assert!(if user { pxn } else { uxn }, "the kernel executes what the user can, or the other way round");
    let memory = match Aarch64::MAIR >> (8 * (word >> 2 & 7)) & 0xff {
        0xff => Attr::empty(),
        0x44 => Attr::UNCACHED,
        0x04 => Attr::UNCACHED | Attr::DEVICE,
        0xbb => Attr::WRITE_THROUGH,
        0xf0 => Attr::TAGGED,
        0x00 => Attr::STRICT,
        0x08 => Attr::REORDERED,
        0x0c => Attr::GATHERED,
        other => unreachable!("MAIR {other:#x}"),
    };
    let attr = flags([
        (true, Attr::READ | memory),
        (dbm || !read_only, Attr::WRITE),
        (!read_only || bit(word, 55), Attr::DIRTY),
        (if user { !uxn } else { !pxn }, Attr::EXEC),
        (user, Attr::USER),
        (!ng, Attr::GLOBAL),
        (af, Attr::ACCESSED),
        (bit(word, 56), Attr::COPY_ON_WRITE),
        (bit(word, 57), Attr::SOFT_1),
        (bit(word, 58), Attr::SOFT_2),
    ]);
    if !run {
        return Step::Page { start: address(shift), shift, attr };
    }
    // How many of them, by granule and level.
    let count = match (granule, above) {
        (12, 0..=2) => 4,
        (14, 0) => 7,
        (14, 1) | (16, 0 | 1) => 5,
        _ => panic!("the contiguous bit is RES0"),
    };
    let start = address(shift) - ((at & ((1 << count) - 1)) << shift);
    assert_eq!(
        start & ((1 << (shift + count)) - 1),
        0,
        "the run is not aligned, or does not continue: {word:#x} at {at}"
    );
    Step::Page { start, shift: shift + count, attr }
}

/// What the model knows of a leaf that begins at a page.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Known {
    pages: usize,
    frame: usize,
    attr: Attr,
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> 11
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
}

/// A table that flushes nothing.
type Table<'n, G, F> = Local<'n, Mpt<'n, G, F, Slab<'n, u64, Solo>>, fn(&tlbkit_addr::Flush)>;

struct Rig<'n, G: Radix, F: Format<Word = u64>> {
    mmu: Mmu,
    slab: &'n Slab<'n, u64, Solo>,
    table: Table<'n, G, F>,
    leaves: BTreeMap<usize, Known>,
    marks: BTreeMap<usize, Mark>,
}

impl<G: Radix, F: Format<Word = u64>> Rig<'_, G, F> {
    const BASE: u32 = G::BASE.shift();

    /// What a leaf has beside what it was asked for.
    fn normal(&self, attr: Attr) -> Attr {
        let read = if attr.intersects(ACCESS) { Attr::READ | F::IMPLIED } else { Attr::empty() };
        let typed = !matches!(self.mmu, Mmu::Riscv { pbmt: false, .. } | Mmu::RiscvGuest);
        let memory = if typed && attr.contains(Attr::DEVICE) { Attr::UNCACHED } else { Attr::empty() };
        attr | read | memory
    }

    /// Walks as the manual says; the place of the last word, and what it says.
    fn walk(&self, page: usize) -> (NodeAddr, usize, Step) {
        let (mut node, mut shift) = (self.table.table().root(), G::VA_BITS);
        for (level, width) in G::WIDTHS.iter().enumerate() {
            shift -= width;
            let index = ((page << Self::BASE) >> shift) & ((1 << width) - 1);
            // SAFETY: the node is linked, and the index within it.
            let word = unsafe { (*self.slab.at(node).add(index)).load(Ordering::Relaxed) };
            let step = self.mmu.step(word, (G::WIDTHS.len() - 1 - level) as u32, index);
            let Step::Table(next) = step else { return (node, index, step) };
            assert_eq!(next & ((1 << Self::BASE) - 1), 0, "a node that begins no granule");
            node = NodeAddr::new(next);
        }
        unreachable!("the last level has no tables")
    }

    /// Returns all words of the nodes.
    fn words(&self) -> Vec<u64> {
        let mut words = Vec::new();
        let mut open = vec![(self.table.table().root(), 0)];
        while let Some((node, level)) = open.pop() {
            for index in 0..1usize << G::WIDTHS[level] {
                // SAFETY: a link leads to the node, and the index is within it.
                let word = unsafe { (*self.slab.at(node).add(index)).load(Ordering::Relaxed) };
                words.push(word);
                if level + 1 < G::WIDTHS.len()
                    && let Step::Table(next) =
                        self.mmu.step(word, (G::WIDTHS.len() - 1 - level) as u32, index)
                {
                    open.push((NodeAddr::new(next), level + 1));
                }
            }
        }
        words
    }

    fn known(&self, page: usize) -> Option<(usize, Known)> {
        let (&first, &known) = self.leaves.range(..=page).next_back()?;
        (page - first < known.pages).then_some((first, known))
    }

    /// Compares the walk, a lookup and the model at a page.
    fn compare(&self, page: usize) {
        let at = VirtAddr::new(page << Self::BASE | 0x123);
        if !Space::of::<G>().holds(at) {
            assert_eq!((self.table.lookup(at), self.table.entry(at)), (None, Entry::Empty));
            return;
        }
        let (_, _, step) = self.walk(page);
        let Some((first, known)) = self.known(page) else {
            assert_eq!(step, Step::Absent, "{at}");
            assert_eq!(self.table.entry(at).mark(), self.marks.get(&page).copied(), "{at}");
            assert_eq!(self.table.lookup(at), None, "{at}");
            return;
        };
        let shift = Self::BASE + known.pages.trailing_zeros();
        let leaf = self.table.lookup(at).unwrap();
        let wanted = (VirtAddr::new(first << Self::BASE), shift, Pfn::new(known.frame), known.attr);
        assert_eq!((leaf.at, leaf.size.shift(), leaf.frame, leaf.attr), wanted, "{at}");
        let start = known.frame << Self::BASE;
        match step {
            Step::Absent => assert!(!known.attr.intersects(ACCESS), "{at}: {known:?} is not there"),
            Step::Table(_) => unreachable!(),
            Step::Page { start: found, shift: by, attr } => {
                assert_eq!((found, by), (start, shift), "{at}: {known:?}");
                let status = Attr::ACCESSED | Attr::DIRTY;
                // A run has the status of all its slots.
                assert_eq!(attr - status, known.attr - status, "{at}");
                assert!(known.attr.contains(attr), "{at}: {attr:?} of {known:?}");
            }
        }
    }
}

/// Pages that follow one another, with their frames.
#[derive(Debug, PartialEq)]
struct Stretch {
    page: usize,
    frame: usize,
    len: usize,
    dirty: bool,
}

/// Adds pages to the last stretch, if they go on where it ends.
fn append(stretches: &mut Vec<Stretch>, page: usize, frame: usize, len: usize, dirty: bool) {
    match stretches.last_mut() {
        Some(last) if (last.page + last.len, last.frame + last.len, last.dirty) == (page, frame, dirty) => {
            last.len += len;
        }
        _ => stretches.push(Stretch { page, frame, len, dirty }),
    }
}

/// Fewer where nodes are larger, all words of which are compared.
const fn rounds<G: Geometry>() -> usize {
    1200 >> ((G::BASE.shift() - 12) / 2)
}

/// Drives a table through everything, and compares.
fn judge<G: Radix, F: Format<Word = u64>>(mmu: Mmu, phys: usize, frame_bits: u32, seed: u64) -> [usize; 2] {
    let mut memory = vec![Chunk::ZERO; 6144];
    let slab = Slab::<u64, Solo>::new(&mut memory, phys).unwrap();
    let table = Local::new(Mpt::new(&slab).unwrap(), (|_| ()) as fn(&tlbkit_addr::Flush));
    let mut rig = Rig::<G, F> { mmu, slab: &slab, table, leaves: BTreeMap::new(), marks: BTreeMap::new() };
    let mut random = Random(seed);
    let base = G::BASE.shift();
    let pages_of = |size: PageSize| size.bytes() >> base;
    let largest = pages_of(G::SIZES[G::SIZES.len() - 1]);
    let [Some(low), high] = Space::of::<G>().halves() else { panic!("no pages") };
    // A space without an upper half is divided in the middle.
    let [low, high] = match (high, low.last().get() / 2 + 1) {
        (Some(high), _) => [low, high],
        (None, half) => {
            [(0, half), (half, half)].map(|(at, count)| Pages::count(Vpn::new(at), count).unwrap())
        }
    };
    let places =
        [0, low.last().get() + 1 - 4 * largest, high.first().get(), high.last().get() + 1 - 4 * largest];
    let mut tally = [0; 2];
    for _ in 0..rounds::<G>() {
        let unit = G::SIZES[random.below(G::SIZES.len())];
        let each = pages_of(unit);
        let slots = (4 * largest / each).min(12);
        // From the beginning of a place, or up to its end; at times off, or across the hole.
        let slot = random.below(slots);
        let count = 1 + random.below(3);
        let start = if random.below(2) == 0 { slot * each } else { 4 * largest - (slot + 1) * each };
        let mut first = places[random.below(4)] + start;
        let mut count = count * each;
        match random.below(24) {
            0 => first = first.wrapping_add(random.below(each)),
            1 => count += random.below(each),
            2 => first = low.last().get() - random.below(3),
            3 => first = high.first().get() - 1 - random.below(2),
            _ => {}
        }
        let count = count.min((usize::MAX >> base).saturating_sub(first).saturating_add(1)).max(1);
        let Some(pages) = Pages::count(Vpn::new(first), count) else { continue };
        let any = |random: &mut Random| {
            let attr = Attr::from_bits_truncate(random.next() as _) & F::OPTIONAL;
            let is_typed = F::leaf(Pfn::new(0), G::BASE, attr, true).is_ok();
            if is_typed || random.below(16) == 0 { attr } else { attr - Attr::VARIETY }
        };
        let attr = match random.below(4) {
            0 => any(&mut random) - ACCESS,
            1 => any(&mut random),
            _ => any(&mut random) | Attr::READ,
        };
        let frames = 1usize << frame_bits;
        let mut frame = match random.below(6) {
            0 => frames.wrapping_sub(count),
            1 => frames - random.below(4 * each).min(frames),
            2 => random.next() as usize,
            3 => random.next() as usize & (frames - 1),
            4 => (random.next() as usize & (frames - 1)) & !(largest - 1) | first & (largest - 1),
            _ => first & (4 * largest - 1),
        };
        if random.below(8) != 0 {
            frame &= !(each - 1);
        }
        let before = rig.words();
        let footprint = rig.table.footprint();
        let overlapping: Vec<(usize, Known)> = rig
            .leaves
            .range(..first + count)
            .rev()
            .take_while(|&(&at, known)| at + known.pages > first || at + largest > first)
            .filter(|&(&at, known)| at + known.pages > first)
            .map(|(&at, &known)| (at, known))
            .collect();
        let done = match random.below(10) {
            0..=3 => {
                let done = rig.table.map(pages, Pfn::new(frame), unit, attr);
                if done.is_ok() {
                    for at in (0..count).step_by(each) {
                        let known = Known { pages: each, frame: frame + at, attr: rig.normal(attr) };
                        assert!(rig.leaves.insert(first + at, known).is_none());
                    }
                } else if overlapping.is_empty()
                    && rig.marks.range(first..first + count).next().is_none()
                    && Space::of::<G>().check_sized(pages, unit).is_ok()
                    && frame & (each - 1) == 0
                    && frame.checked_add(count).is_some_and(|end| end <= frames)
                {
                    let crosses = matches!(done, Err(Error::FrameTooLarge { .. }))
                        && matches!(mmu, Mmu::Arm { wide: true, .. });
                    let untyped = matches!(done, Err(Error::WrongAttr { .. }))
                        && F::leaf(Pfn::new(0), G::BASE, attr, true).is_err();
                    assert!(
                        crosses || untyped || matches!(done, Err(Error::NoMemory { .. })),
                        "{done:?} {pages:?} {unit}"
                    );
                }
                done
            }
            4 => {
                let (mut frames, mut marked) = (Vec::new(), Vec::new());
                rig.table
                    .drain(pages)
                    .map(|drain| {
                        for (page, uncovered) in drain {
                            match uncovered {
                                Uncovered::Frames(run) => {
                                    append(&mut frames, page.get(), run.first.get(), run.len, run.dirty);
                                }
                                Uncovered::Mark(mark) => marked.push((page.get(), mark)),
                            }
                        }
                    })
                    .map(|()| {
                        // Each page once, with whether it is dirty, and each mark.
                        let mut known = Vec::new();
                        for (at, leaf) in overlapping.iter().rev() {
                            let dirty = leaf.attr.contains(Attr::DIRTY);
                            append(&mut known, *at, leaf.frame, leaf.pages, dirty);
                        }
                        assert_eq!(frames, known);
                        let marks: Vec<(usize, Mark)> = rig
                            .marks
                            .range(first..first + count)
                            .map(|(&page, &mark)| (page, mark))
                            .collect();
                        assert_eq!(marked, marks);
                        for (at, _) in &overlapping {
                            rig.leaves.remove(at);
                        }
                        rig.marks.retain(|&page, _| page < first || page - first >= count);
                    })
            }
            5 | 6 => {
                let change = Change { clear: any(&mut random), set: any(&mut random) & any(&mut random) };
                let change = Change { clear: change.clear - F::FIXED, set: change.set - F::FIXED };
                rig.table.protect(pages, Holes::Skip, change).map(|_| {
                    for &(at, known) in &overlapping {
                        let attr = rig.normal(change.apply(known.attr));
                        rig.leaves.insert(at, Known { attr, ..known });
                    }
                    for (page, mark) in rig.marks.clone().range(first..first + count) {
                        if let &Mark::Payload(payload, attr) = mark {
                            let attr = rig.normal(change.apply(attr) & Mark::KEPT);
                            rig.marks.insert(*page, Mark::Payload(payload, attr));
                        }
                    }
                })
            }
            7 => {
                let many = overlapping.iter().any(|(_, known)| known.pages / each > 600);
                if many {
                    continue;
                }
                // SAFETY: nothing runs on these pages.
                rig.table.resize(pages, unit, |flush| unsafe { FlushAll::breaking(flush) }).map(|()| {
                    let mut status = BTreeMap::new();
                    for (at, known) in &overlapping {
                        rig.leaves.remove(at);
                        for piece in (0..known.pages).step_by(each.min(known.pages)) {
                            let page = (at + piece) & !(each - 1);
                            let frame = (known.frame + piece) & !(each - 1);
                            let entry =
                                status.entry(page).or_insert(Known { pages: each, frame, attr: known.attr });
                            entry.attr |= known.attr;
                        }
                    }
                    rig.leaves.extend(status);
                })
            }
            8 => {
                let at = VirtAddr::new(first << base);
                let mark = match random.below(3) {
                    0 => None,
                    1 => Some(Mark::Guard),
                    _ => Some(Mark::Payload(random.next() << random.below(6), rig.normal(attr & Mark::KEPT))),
                };
                rig.table.mark(at, mark).map(|_| {
                    rig.leaves.remove(&first);
                    rig.marks.remove(&first);
                    if let Some(mark) = mark {
                        rig.marks.insert(first, mark);
                    }
                })
            }
            _ => {
                let at = VirtAddr::new(first << base);
                let old = overlapping.iter().find(|(at, known)| (*at..at + known.pages).contains(&first));
                if let Some(&(at_page, known)) = old {
                    let fixed = known.attr & F::FIXED;
                    let attr = if F::BREAK_FRAME { attr } else { (attr - F::FIXED) | fixed };
                    // SAFETY: nothing runs on the page.
                    rig.table
                        .replace(at, Pfn::new(frame), attr, |flush| unsafe { FlushAll::breaking(flush) })
                        .map(|_| {
                            let attr = rig.normal(attr);
                            rig.leaves.insert(at_page, Known { frame, attr, ..known });
                        })
                } else {
                    let there = match rig.marks.get(&first) {
                        Some(&Mark::Payload(payload, attr)) => Some((payload, attr)),
                        _ => None,
                    };
                    // Now and then the payload of another page.
                    let payload = there.map_or(0, |(payload, _)| payload ^ u64::from(random.below(4) == 0));
                    rig.table.fill(at, payload, Pfn::new(frame)).map(|()| {
                        let (named, attr) = there.unwrap();
                        assert_eq!(payload, named);
                        rig.marks.remove(&first);
                        rig.leaves.insert(first, Known { pages: 1, frame, attr });
                    })
                }
            }
        };
        if done.is_err() {
            assert_eq!(rig.table.footprint(), footprint, "{done:?}");
            assert!(rig.words() == before, "{done:?} changed the table");
        }
        tally[usize::from(done.is_err())] += 1;
        // What hardware notes of accesses.
        for _ in 0..4 {
            let page = first.wrapping_add(random.below(count));
            if F::STATUS
                && let Some((at, known)) = rig.known(page)
                && known.attr.intersects(ACCESS)
            {
                let (node, index, step) = rig.walk(page);
                assert!(matches!(step, Step::Page { .. }), "{page:#x}: {known:?}");
                let store = random.below(2) == 0 && known.attr.contains(Attr::WRITE);
                // SAFETY: the walk has ended at this place in a node of the table.
                let cell = unsafe { &*slab.at(node).add(index) };
                cell.store(mmu.note(cell.load(Ordering::Relaxed), store), Ordering::Relaxed);
                let noted = Attr::ACCESSED | if store { Attr::DIRTY } else { Attr::empty() };
                rig.leaves.insert(at, Known { attr: known.attr | noted, ..known });
            }
        }
        let ends = [first, first.wrapping_add(count - 1), first.wrapping_sub(1), first.wrapping_add(count)];
        for page in ends.into_iter().chain((0..4).map(|_| first.wrapping_add(random.below(count)))) {
            rig.compare(page & (usize::MAX >> base));
        }
        let old = overlapping.iter().flat_map(|(at, known)| [*at, at + known.pages - 1]);
        old.for_each(|page| rig.compare(page));
    }
    // All that is there, at the end.
    for (&at, known) in &rig.leaves {
        rig.compare(at);
        rig.compare(at + known.pages - 1);
    }
    rig.marks.keys().for_each(|&page| rig.compare(page));
    rig.table.destroy();
    tally
}

macro_rules! judged {
    ($($name:ident: $geometry:ty, $format:ty, $mmu:expr, $phys:expr, $bits:expr;)*) => { $(
        #[test]
        fn $name() {
            for seed in 1..=if cfg!(tlbkit_full) { 2 } else { 1 } {
                let [done, refused] = judge::<$geometry, $format>($mmu, $phys, $bits, 0x9e37_79b9_7f4a_7c15u64.wrapping_mul(seed));
                let enough = rounds::<$geometry>() / 16;
                assert!(done > 4 * enough && refused > enough, "{done} are done, {refused} refused");
            }
        }
    )* };
}

const PLAIN: Mmu = Mmu::Riscv { napot: false, pbmt: false };
const PHYS: usize = 0x8020_0000;
const HIGH_55: usize = 0x80_0000_8020_0000;
const HIGH_51: usize = 0xd_0000_8020_0000;

const fn arm_of(granule: u32, wide: bool) -> Mmu {
    Mmu::Arm { granule, wide }
}

judged! {
    sv39: Va39, Sv39, PLAIN, HIGH_55, 44;
    sv57: Va57, Sv39, PLAIN, HIGH_55, 44;
    svnapot_svpbmt: Napot<Va57>, RiscvOf<true, true, true>, Mmu::Riscv { napot: true, pbmt: true }, HIGH_55, 44;
    svade: Napot<Va48>, RiscvOf<false, true, true>, Mmu::Riscv { napot: true, pbmt: true }, PHYS, 44;
    x86_64: Va48, X86, Mmu::X86 { pat: false, keys: false, nx: true }, HIGH_51, 40;
    x86_64_pat_keys: Va57, X86Of<true, true>, Mmu::X86 { pat: true, keys: true, nx: true }, HIGH_51, 40;
    x86_64_ept: GuestEpt, Ept, Mmu::Ept { ipat: false }, HIGH_51, 40;
    x86_64_old: UpToM2<Va48>, X86Of<false, false, false>, Mmu::X86 { pat: false, keys: false, nx: false }, PHYS, 40;
    aarch64: Va48, Aarch64, arm_of(12, false), 0x8000_8020_0000, 36;
    aarch64_runs: Runs<Va48>, Aarch64Of<12, true, false>, arm_of(12, false), PHYS, 36;
    aarch64_bbm2: Runs<Va48>, Aarch64Of<12, true, true>, arm_of(12, false), PHYS, 36;
    aarch64_16k: Runs<Va48K16>, Aarch64Of<14, true, false>, arm_of(14, false), PHYS, 34;
    aarch64_lpa2: Runs<Va53>, Aarch64Of<12, true, false, true>, arm_of(12, true), HIGH_51, 40;
    aarch64_lpa: Runs<Va53K64>, Aarch64Of<16, true, false, true>, arm_of(16, true), HIGH_51, 36;
}

/// What `cargo xtask judge` compares with a processor in the gate, and parts of what is above: `cargo xtask test --full`.
#[cfg(tlbkit_full)]
mod full {
    use super::*;
    use tlbkit_pagetable::format::{Aarch64Guest, EptOf, Sv39x4};
    use tlbkit_pagetable::geometry::{GuestIpa, GuestX4, Va48K64, Va53K16};

    judged! {
        sv39x4: GuestX4<Va39>, Sv39x4, Mmu::RiscvGuest, HIGH_55, 44;
        x86_64_ept_old: UpToM2<GuestEpt<5>>, EptOf<false, true>, Mmu::Ept { ipat: true }, PHYS, 40;
        aarch64_guest: GuestIpa<40, 3>, Aarch64Guest, Mmu::ArmGuest, PHYS, 36;
        sv48: Va48, Sv39, PLAIN, PHYS, 44;
        svpbmt: Va39, RiscvOf<true, false, true>, Mmu::Riscv { napot: false, pbmt: true }, HIGH_55, 44;
        svnapot: Napot<Va39>, RiscvOf<true, true, false>, Mmu::Riscv { napot: true, pbmt: false }, PHYS, 44;
        x86_64_la57: Va57, X86, Mmu::X86 { pat: false, keys: false, nx: true }, PHYS, 40;
        x86_64_pat: Va48, X86Of<true, false>, Mmu::X86 { pat: true, keys: false, nx: true }, PHYS, 40;
        aarch64_64k: Runs<Va48K64>, Aarch64Of<16, true, false>, arm_of(16, false), PHYS, 32;
        aarch64_lpa2_16k: Runs<Va53K16>, Aarch64Of<14, true, true, true>, arm_of(14, true), HIGH_51, 38;
    }
}
