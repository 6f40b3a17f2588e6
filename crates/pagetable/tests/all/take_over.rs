//! Tables that a bootloader has built: what is taken over, what is refused, and that hostile ones have an end.
#![cfg(target_pointer_width = "64")]

use std::cell::Cell;
use std::collections::HashMap;

use tlbkit_addr::{Attr, PageSize, Pages, Pfn, VirtAddr, Vpn};
use tlbkit_pagetable::format::{Aarch64, Aarch64Of, Format, RiscvOf, Sv39, X86, X86Of};
use tlbkit_pagetable::geometry::{Arm, Napot, Runs, UpToM2, Va39, Va48};
use tlbkit_pagetable::mpt::{ForeignTable, Mpt};
use tlbkit_pagetable::nodes::{Chunk, NodeAddr, Slab};
use tlbkit_pagetable::{Error, Leaf, Pinned, Radix, Shared, Table as _, Writer, destroy};

const K4: PageSize = PageSize::K4;
const G1: PageSize = match PageSize::from_shift(30) {
    Some(size) => size,
    None => panic!("1 GiB"),
};
const R: Attr = Attr::READ;
const RW: Attr = Attr::READ.union(Attr::WRITE);
const SEEN: Attr = Attr::ACCESSED;

/// Memory of a bootloader: nodes by number, from the address 16 MiB on.
#[derive(Default)]
struct Boot {
    nodes: HashMap<usize, Vec<u64>>,
    refused: Option<VirtAddr>,
}

const NODES: usize = 16 << 20;

const fn node(number: usize) -> u64 {
    (NODES + number * 4096) as u64
}

impl Boot {
    fn set(&mut self, number: usize, slot: usize, word: u64) {
        let words = self.nodes.entry(node(number) as usize).or_insert_with(|| vec![0; 512]);
        words[slot] = word;
    }

    fn fill(&mut self, number: usize, word: impl Fn(usize) -> u64) {
        (0..512).for_each(|slot| self.set(number, slot, word(slot)));
    }
}

impl<F: Format<Word = u64>> ForeignTable<F> for Boot {
    fn root(&self) -> NodeAddr {
        NodeAddr::new(node(0) as usize)
    }

    fn word(&self, node: NodeAddr, index: usize) -> u64 {
        self.nodes[&node.get()][index]
    }

    fn check(&self, leaf: &Leaf) -> Result<(), Error> {
        if self.refused == Some(leaf.at) { Err(Error::NoRoom) } else { Ok(()) }
    }
}

type Storage<'m> = Slab<'m, u64, Shared>;

fn pages(at: usize, bytes: usize) -> Pages {
    Pages::count(VirtAddr::new(at).vpn(K4), bytes.div_ceil(4096)).unwrap()
}

/// Takes `range` over, and calls `then` with the result and with what a lookup finds.
fn take<G: Radix, F: Format<Word = u64>, T>(
    boot: &Boot,
    range: Pages,
    then: impl FnOnce(Result<usize, Error>, &dyn Fn(usize) -> Option<Leaf>) -> T,
) -> T {
    let mut memory = vec![Chunk::ZERO; 128];
    let slab = Storage::new(&mut memory, 0).unwrap();
    let table = Mpt::<G, F, _>::new(&slab).unwrap();
    let before = table.footprint();
    let mut writer = Writer::new(&table).unwrap();
    let mut shared = 0;
    let taken = writer.take_over(range, boot, |run| shared += run.len);
    // SAFETY: no CPU walks the table.
    unsafe { writer.finish().reclaim() };
    if taken.is_err() {
        assert_eq!(table.footprint(), before, "nothing has changed");
    }
    assert_eq!(taken.unwrap_or(0), shared, "each page is counted");
    // SAFETY: no CPU frees nodes.
    let result = then(taken, &|at| table.lookup(unsafe { Pinned::by(&table) }, VirtAddr::new(at)));
    // SAFETY: no CPU walks the table.
    unsafe { destroy(table).reclaim() };
    assert_eq!(slab.usage().nodes, 0);
    result
}

fn error<G: Radix, F: Format<Word = u64>>(boot: &Boot, range: Pages) -> Result<usize, Error> {
    take::<G, F, _>(boot, range, |taken, look| {
        assert!(taken.is_ok() || look(range.first().address(K4).get()).is_none());
        taken
    })
}

mod x86 {
    pub(super) const P: u64 = 1;
    pub(super) const RW: u64 = 2;
    pub(super) const US: u64 = 4;
    pub(super) const PWT: u64 = 8;
    pub(super) const PCD: u64 = 16;
    pub(super) const A: u64 = 32;
    pub(super) const D: u64 = 64;
    pub(super) const PS: u64 = 128;
    pub(super) const G: u64 = 256;
    pub(super) const XD: u64 = 1 << 63;
}

/// The upper half's first slot has a node of 1 GiB pages, of 2 MiB pages, and of 4 KiB pages.
fn bootloaders_table() -> Boot {
    use x86::{A, D, G, P, PCD, PS, PWT, RW, US, XD};
    let mut boot = Boot::default();
    // The link has a bit that the processor ignores, and does not let user mode in.
    boot.set(0, 256, node(1) | 1 << 52 | A | RW | P);
    boot.set(0, 511, node(1) | RW | US | P);
    boot.set(1, 0, 5 << 30 | PS | G | RW | A | D | P);
    boot.set(1, 1, node(2) | US | P);
    boot.set(2, 7, 9 << 21 | PS | PCD | PWT | RW | XD | US | P);
    boot.set(2, 8, node(3) | RW | US | XD | P);
    boot.set(3, 0, 0xabc << 12 | 7 << 9 | RW | US | A | P);
    boot.set(3, 1, 0xabd << 12 | PCD | P);
    // Not present, whatever else it says.
    boot.set(3, 2, 0xabe << 12 | RW | US);
    boot
}

const HALF: usize = 0xffff_8000_0000_0000;
const M2: usize = 2 << 20;
const GIB: usize = 1 << 30;

#[test]
fn the_pages_of_a_bootloader_keep_their_frames_rights_and_sizes() {
    let boot = bootloaders_table();
    let global = RW | Attr::EXEC | Attr::GLOBAL | SEEN | Attr::DIRTY;
    let check = |largest: PageSize, taken: Result<usize, Error>, look: &dyn Fn(usize) -> Option<Leaf>| {
        assert_eq!(taken, Ok(GIB / 4096 + 512 + 2));
        let leaf = |at: usize, size, frame, attr| {
            let frame = Pfn::new(frame);
            assert_eq!(look(at), Some(Leaf { at: VirtAddr::new(at), size, frame, attr }));
        };
        leaf(HALF, largest, 5 << 18, global);
        let last = GIB - largest.bytes();
        leaf(HALF + last, largest, (5 << 18) + (last >> 12), global);
        // The link above takes the right to write away, and the one of the root user mode's.
        leaf(HALF + GIB + 7 * M2, PageSize::M2, 9 << 9, R | Attr::MEMORY);
        leaf(HALF + GIB + 8 * M2, K4, 0xabc, R | SEEN);
        leaf(HALF + GIB + 8 * M2 + 4096, K4, 0xabd, R | Attr::UNCACHED);
        assert_eq!(look(HALF + GIB + 8 * M2 + 8192), None);
        assert_eq!(look(!0 << 39), None, "outside of the range");
    };
    let range = pages(HALF, 512 * GIB);
    take::<Va48, X86, _>(&boot, range, |taken, look| check(G1, taken, look));
    // A kernel that does not know whether its processors have pages of 1 GiB.
    take::<UpToM2<Va48>, X86, _>(&boot, range, |taken, look| check(PageSize::M2, taken, look));
    // The same node under another link of the root.
    take::<Va48, X86, _>(&boot, pages(!0 << 39, 512 * GIB), |taken, look| {
        assert_eq!(taken, Ok(GIB / 4096 + 512 + 2));
        let at = (!0 << 39) + GIB + 8 * M2;
        assert_eq!(look(at).map(|leaf| leaf.attr), Some(R | Attr::USER | SEEN));
    });
}

#[test]
fn a_page_is_cut_at_the_ends_of_the_range() {
    let boot = bootloaders_table();
    take::<Va48, X86, _>(&boot, pages(HALF + M2 - 4096, GIB - 2 * M2 + 8192), |taken, look| {
        assert_eq!(taken, Ok((GIB - 2 * M2 + 8192) / 4096));
        let sizes = [M2 - 4096, M2, GIB - 2 * M2, GIB - M2].map(|at| look(HALF + at).map(|leaf| leaf.size));
        assert_eq!(sizes, [Some(K4), Some(PageSize::M2), Some(PageSize::M2), Some(K4)]);
        assert_eq!(look(HALF + GIB - M2).unwrap().frame.get(), (5 << 18) + (1 << 18) - 512);
        assert_eq!((look(HALF), look(HALF + GIB - M2 + 4096)), (None, None));
    });
}

#[test]
fn a_page_that_cannot_be_expressed_is_named_and_nothing_is_mapped() {
    use x86::{P, PCD, PS, PWT, RW};
    let at = HALF + GIB + 8 * M2 + 0x5000;
    let foreign = |at| Err(Error::Foreign { at: VirtAddr::new(at) });
    let with = |word: u64| {
        let mut boot = bootloaders_table();
        boot.set(3, 5, word);
        boot
    };
    let range = pages(HALF, 512 * GIB);
    // Write-through; PAT; reserved address bits of a large page; a large page at the wrong level.
    for word in [PWT | P, 1 << 7 | P] {
        assert_eq!(error::<Va48, X86>(&with(word), range), foreign(at));
    }
    // With PAT in the format that page can be expressed, and one with PCD alone cannot.
    let with_pat = |word| {
        let mut boot = with(word);
        boot.set(3, 1, 0);
        error::<Va48, X86Of<true, false>>(&boot, range)
    };
    assert_eq!(with_pat(1 << 7 | P), Ok(GIB / 4096 + 512 + 2));
    assert_eq!(with_pat(PCD | P), foreign(at));
    let mut boot = bootloaders_table();
    boot.set(2, 9, 9 << 21 | 1 << 13 | PS | P);
    assert_eq!(error::<Va48, X86>(&boot, range), foreign(HALF + GIB + 9 * M2));
    let mut boot = bootloaders_table();
    boot.set(0, 300, PS | RW | P);
    let all = Pages::new(range.first(), Vpn::new(usize::MAX >> 12)).unwrap();
    assert_eq!(error::<Va48, X86>(&boot, all), foreign((!0 << 48) + (300 << 39)));
    // Without XD in the format there is none to keep.
    assert_eq!(
        error::<Va48, X86Of<false, false, false>>(&bootloaders_table(), range),
        foreign(HALF + GIB + 7 * M2)
    );
    // What the caller refuses.
    let boot = Boot { refused: Some(VirtAddr::new(HALF + GIB + 8 * M2)), ..bootloaders_table() };
    assert_eq!(error::<Va48, X86>(&boot, range), Err(Error::NoRoom));
}

#[test]
#[cfg_attr(miri, ignore = "four million entries")]
fn a_table_without_an_end_is_refused_soon() {
    use x86::{P, RW};
    let link = |number| node(number) | RW | P;
    let endless = |at| Err(Error::Endless { at: VirtAddr::new(at) });
    // A recursive slot, as of a bootloader; and a link back to a node on the way.
    let mut boot = bootloaders_table();
    boot.set(0, 510, link(0));
    assert_eq!(
        error::<Va48, X86>(&boot, pages((!0 << 48) + (510 << 39), 512 * GIB)),
        endless((!0 << 48) + (510 << 39))
    );
    assert_eq!(error::<Va48, X86>(&boot, pages(HALF, 512 * GIB)), Ok(GIB / 4096 + 512 + 2), "beside it");
    boot.set(2, 9, link(2));
    assert_eq!(error::<Va48, X86>(&boot, pages(HALF, 512 * GIB)), endless(HALF + GIB + 9 * M2));
    // No node is above itself, but 2^36 entries can be reached.
    let mut boot = Boot::default();
    (0..3).for_each(|number| boot.fill(number, |_| link(number + 1)));
    boot.fill(3, |_| 0);
    assert_eq!(error::<Va48, X86>(&boot, pages(0, 1 << 47)), endless((1 << 22) * 4096));
    // With pages they are as many as there is memory for.
    boot.fill(3, |slot| (slot as u64) << 12 | P);
    assert!(matches!(error::<Va48, X86>(&boot, pages(0, 1 << 30)), Err(Error::NoMemory { .. })));
}

#[test]
fn it_takes_the_nodes_that_it_needs_and_no_more() {
    let boot = bootloaders_table();
    let range = pages(HALF, 512 * GIB);
    // One chunk of descriptors, and a root.
    for free in 0..5 {
        let mut memory = vec![Chunk::ZERO; 2 + free];
        let slab = Storage::new(&mut memory, 0).unwrap();
        let table = Mpt::<Va48, X86, _>::new(&slab).unwrap();
        let mut writer = Writer::new(&table).unwrap();
        let taken = writer.take_over(range, &boot, |_| ());
        // SAFETY: no CPU walks the table.
        unsafe { writer.finish().reclaim() };
        match taken {
            Ok(_) => assert_eq!((table.footprint().nodes, slab.usage().nodes), (4, 4)),
            Err(error) => {
                assert_eq!(error, Error::NoMemory { wanted: 3, pending: 0 });
                assert_eq!((table.footprint().nodes, slab.usage().nodes), (1, 1));
            }
        }
        assert_eq!(taken.is_ok(), free >= 3);
        if free >= 3 {
            // All of it is there already.
            let mut writer = Writer::new(&table).unwrap();
            let occupied = Error::Occupied { at: VirtAddr::new(HALF), size: G1 };
            assert_eq!(writer.take_over(range, &boot, |_| ()), Err(occupied));
        }
    }
}

#[test]
fn a_page_of_a_lent_slot_is_made_of_smaller_ones() {
    let mut memory = vec![Chunk::ZERO; 16];
    let slab = Storage::new(&mut memory, 0).unwrap();
    let mut table = Mpt::<Va39, Sv39, _>::new(&slab).unwrap();
    let slot = pages(2 * GIB, GIB);
    table.lend([slot]).unwrap();
    let mut boot = Boot::default();
    // V, R, W, X, G, A, D.
    boot.set(0, 2, 2 << 28 | 0b1110_1111);
    boot.set(0, 3, 3 << 28 | 0b1110_1111);
    let mut writer = Writer::new(&table).unwrap();
    let both = pages(2 * GIB, 2 * GIB);
    assert_eq!(writer.take_over(both, &boot, |_| ()), Ok(both.len()));
    assert!(writer.finish().flush().is_all());
    // SAFETY: no CPU frees nodes.
    let size =
        |at: usize| table.lookup(unsafe { Pinned::by(&table) }, VirtAddr::new(at)).map(|leaf| leaf.size);
    assert_eq!((size(2 * GIB), size(3 * GIB)), (Some(PageSize::M2), Some(G1)));
}

#[test]
fn riscv_entries_are_read_as_the_manual_says() {
    const V: u64 = 1;
    const RX: u64 = 2 | 8;
    let pte = |frame: u64, bits: u64| frame << 10 | bits;
    let link = |number: usize, bits: u64| pte(node(number) >> 12, V | bits);
    let mut boot = Boot::default();
    // G of a link; both bits of RSW, also in a leaf.
    boot.set(0, 1, link(1, 1 << 5 | 3 << 8));
    boot.set(1, 0, link(2, 0));
    boot.set(2, 0, pte(0x80, V | RX | 3 << 8));
    boot.set(2, 1, pte(0x81, RX));
    boot.set(1, 1, pte(0x400, V | RX | 4 | 1 << 6 | 1 << 7));
    let range = pages(GIB, GIB);
    take::<Va39, Sv39, _>(&boot, range, |taken, look| {
        assert_eq!(taken, Ok(513));
        let exec = R | Attr::EXEC | Attr::GLOBAL;
        assert_eq!(look(GIB).map(|leaf| (leaf.frame.get(), leaf.attr)), Some((0x80, exec)));
        assert_eq!(look(GIB + 0x1000), None, "V is clear");
        let large = look(GIB + M2).unwrap();
        assert_eq!((large.size, large.attr), (PageSize::M2, exec | Attr::WRITE | SEEN | Attr::DIRTY));
    });
    let foreign = |at| Err(Error::Foreign { at: VirtAddr::new(at) });
    // Execute-only; write-only, which is reserved; N, PBMT and a reserved bit; a link of the last level.
    for word in [V | 8, V | 4 | 8, V | RX | 1 << 63, V | RX | 1 << 61, V | RX | 1 << 54, V] {
        boot.set(2, 2, pte(0x90, word));
        assert_eq!(error::<Va39, Sv39>(&boot, range), foreign(GIB + 0x2000), "{word:#x}");
    }
    take::<Va39, RiscvOf<true, false, true>, _>(&boot, pages(GIB, 0x2000), |taken, _| {
        assert_eq!(taken, Ok(1));
    });
    boot.set(2, 2, pte(0x90, V | RX | 2 << 61));
    take::<Va39, RiscvOf<true, false, true>, _>(&boot, range, |_, look| {
        assert!(look(GIB + 0x2000).unwrap().attr.contains(Attr::DEVICE));
    });
    boot.set(2, 2, 0);
    // A large page that is not aligned; a link with A, with U, and with a bit above the PPN.
    for word in [pte(0x401, V | RX), link(2, 1 << 6), link(2, 1 << 4), link(2, 1 << 60)] {
        boot.set(1, 2, word);
        assert_eq!(error::<Va39, Sv39>(&boot, range), foreign(GIB + 2 * M2), "{word:#x}");
    }
    boot.set(1, 2, 0);
    // Svnapot: 16 slots, in one of which hardware has set A; and one slot that is something else.
    (16..32).for_each(|slot| boot.set(2, slot, pte(0x1008, V | RX | 1 << 63)));
    boot.set(2, 20, pte(0x1008, V | RX | 1 << 63 | 1 << 6));
    let napot = pages(GIB, M2);
    take::<Napot<Va39>, RiscvOf<true, true, false>, _>(&boot, napot, |taken, look| {
        assert_eq!(taken, Ok(17));
        let leaf = look(GIB + 0x1_5000).unwrap();
        assert_eq!((leaf.size, leaf.frame.get()), (PageSize::K64, 0x1000));
        assert!(leaf.attr.contains(SEEN));
    });
    boot.set(2, 20, pte(0x2008, V | RX | 1 << 63));
    assert_eq!(error::<Napot<Va39>, RiscvOf<true, true, false>>(&boot, napot), foreign(GIB + 0x1_4000));
}

#[test]
fn aarch64_descriptors_are_read_as_the_manual_says() {
    const PAGE: u64 = 3 | 3 << 8 | 1 << 10;
    const RO: u64 = 1 << 7;
    const EL0: u64 = 1 << 6;
    const NG: u64 = 1 << 11;
    const PXN: u64 = 1 << 53;
    const UXN: u64 = 1 << 54;
    let mut boot = Boot::default();
    // PXNTable and AP tables in links; bits for software; a block.
    boot.set(0, 0, node(1) | 3 | 0xff << 51 | 1 << 10);
    boot.set(1, 0, node(2) | 3);
    boot.set(1, 1, node(2) | 3 | 1 << 59 | 1 << 60 | 3 << 61);
    boot.set(1, 2, 0x8000_0000 | PAGE & !2 & !(3 << 8) | 2 << 2);
    // The kernel's, which may be written and executed, as boot code leaves them; text; a user's.
    boot.set(2, 0, 0x1000 | PAGE | 0xf << 55);
    boot.set(2, 1, 0x2000 | PAGE | RO | UXN);
    boot.set(2, 2, 0x3000 | PAGE | EL0 | NG);
    boot.set(2, 3, 0x4000 | 3 << 8 | 1);
    type Geometry = Arm<39, 12>;
    let kernel = RW | SEEN | Attr::DIRTY | Attr::GLOBAL | Attr::EXEC;
    take::<Geometry, Aarch64, _>(&boot, pages(0, GIB), |taken, look| {
        assert_eq!(taken, Ok(3 + 3 + 512));
        let attr = |at: usize| look(at).map(|leaf| leaf.attr);
        assert_eq!(attr(0), Some(kernel));
        assert_eq!(attr(0x1000), Some(R | SEEN | Attr::GLOBAL | Attr::EXEC));
        assert_eq!(attr(0x2000), Some(RW | SEEN | Attr::DIRTY | Attr::USER | Attr::EXEC));
        assert_eq!(attr(0x3000), None, "reserved at the last level");
        // No write, no EL0, no execution.
        let rest = [0, 0x1000, 0x2000].map(|at| attr(M2 + at));
        assert_eq!(rest, [Some(R | SEEN | Attr::GLOBAL), Some(R | SEEN | Attr::GLOBAL), Some(R | SEEN)]);
        let block = look(2 * M2).unwrap();
        assert_eq!((block.size, block.frame.get()), (PageSize::M2, 0x8_0000));
        assert!(block.attr.contains(Attr::DEVICE));
    });
    let foreign = |at| Err(Error::Foreign { at: VirtAddr::new(at) });
    // Memory that is not inner shareable; GP; a user's page that EL1 executes; the contiguous bit, which the format lacks.
    for word in [PAGE & !(3 << 8), PAGE | 1 << 50, PAGE | EL0 | RO, PAGE | EL0 | RO | UXN, PAGE | 1 << 52] {
        boot.set(2, 4, 0x5000 | word);
        assert_eq!(error::<Geometry, Aarch64>(&boot, pages(0, GIB)), foreign(0x4000), "{word:#x}");
    }
    boot.set(2, 4, 0x5000 | PAGE | EL0 | RO | PXN | NG);
    take::<Geometry, Aarch64, _>(&boot, pages(0, M2), |_, look| {
        assert_eq!(look(0x4000).map(|leaf| leaf.attr), Some(R | SEEN | Attr::USER | Attr::EXEC));
    });
    boot.set(2, 4, 0);
    // NSTable, and a link to a node above 2^48.
    for word in [node(2) | 3 | 1 << 63, node(2) | 3 | 1 << 48] {
        boot.set(1, 3, word);
        assert_eq!(error::<Geometry, Aarch64>(&boot, pages(0, GIB)), foreign(3 * M2));
    }
    boot.set(1, 3, 0);
    // A contiguous run, and one that is broken.
    (16..32).for_each(|slot| boot.set(2, slot, (slot as u64 + 16) << 12 | PAGE | UXN | 1 << 52));
    type Run = Aarch64Of<12, true, false>;
    take::<Runs<Geometry>, Run, _>(&boot, pages(0, M2), |taken, look| {
        assert_eq!(taken, Ok(3 + 16));
        let leaf = look(0x1_7000).unwrap();
        assert_eq!((leaf.size, leaf.frame.get()), (PageSize::K64, 32));
    });
    boot.set(2, 23, 39 << 12 | PAGE | UXN | RO | 1 << 52);
    assert_eq!(error::<Runs<Geometry>, Run>(&boot, pages(0, M2)), foreign(0x1_7000));
}

/// Tables of random entries, with nodes that several links lead to, against a walk that is written from the manual.
#[test]
fn random_tables_are_taken_over_as_the_processor_reads_them() {
    use x86::{A, D, G, P, PCD, PS, PWT, RW, US, XD};
    let mut state = 1_u64;
    let mut next = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    for _ in 0..if cfg!(miri) { 1 } else { 200 } {
        let mut boot = Boot::default();
        (0..8).for_each(|number| boot.fill(number, |_| 0));
        // Two nodes of each level: 0 and 1 of the root's, and so on.
        for number in 0..8 {
            let level = number / 2;
            for _ in 0..if level < 2 { 2 } else { 6 } {
                let (slot, rights) =
                    (next(4), [P, RW | P, US | P, RW | US | P, RW | US | XD | P][next(5) as usize]);
                let leaf =
                    rights | [0, A, A | D, G][next(4) as usize] | [0, PCD, PCD | PWT][next(3) as usize];
                let word = match (level, next(4)) {
                    (3, _) => leaf | next(1 << 20) << 12,
                    (1, 0) => leaf | PS | next(64) << 30,
                    (2, 0..=1) => leaf | PS | next(1 << 12) << 21,
                    _ => rights | node(2 * (level + 1) + next(2) as usize),
                };
                boot.set(number, slot as usize, if next(8) == 0 { word & !P } else { word });
            }
        }
        let walk = |at: usize| {
            let (mut from, mut all, mut any) = (node(0), !0, 0);
            for level in 0..4 {
                let shift = 39 - 9 * level;
                let word = boot.nodes[&(from as usize)][at >> shift & 511];
                (all, any) = (all & word, any | word);
                if word & P == 0 {
                    return None;
                }
                if level == 3 || word & PS != 0 {
                    let mut attr = R;
                    attr.set(Attr::WRITE, all & RW != 0);
                    attr.set(Attr::USER, all & US != 0);
                    attr.set(Attr::EXEC, any & XD == 0);
                    attr.set(Attr::GLOBAL, word & G != 0);
                    attr.set(SEEN, word & A != 0);
                    attr.set(Attr::DIRTY, word & D != 0);
                    attr.set(Attr::UNCACHED, word & PCD != 0);
                    attr.set(Attr::DEVICE, word & PWT != 0);
                    let base = word as usize & ((1 << 52) - 1) >> shift << shift;
                    return Some((base | at & ((1 << shift) - 1), 1 << shift, attr));
                }
                from = word & ((1 << 52) - 4096);
            }
            None
        };
        let range = pages(0, 4 << 39);
        take::<Va48, X86, _>(&boot, range, |taken, look| {
            taken.unwrap();
            for slots in 0..625 {
                // Each of the slots that may be in use, and one more.
                let at =
                    [(slots % 5) << 39, (slots / 5 % 5) << 30, (slots / 25 % 5) << 21, (slots / 125) << 12];
                let at = at.iter().sum::<usize>() + 0x123;
                let found = look(at)
                    .map(|leaf| (leaf.phys(VirtAddr::new(at), K4).get(), leaf.size.bytes(), leaf.attr));
                assert_eq!(found, walk(at).filter(|_| at < 4 << 39), "{at:#x}");
            }
        });
    }
}

/// A table that becomes another one once it has been read through, after so many checks.
struct Turned<'b> {
    boots: [&'b Boot; 2],
    checks: Cell<usize>,
}

impl Turned<'_> {
    fn now(&self) -> &Boot {
        self.boots[usize::from(self.checks.get() == 0)]
    }
}

impl ForeignTable<X86> for Turned<'_> {
    fn root(&self) -> NodeAddr {
        ForeignTable::<X86>::root(self.now())
    }

    fn word(&self, node: NodeAddr, index: usize) -> u64 {
        ForeignTable::<X86>::word(self.now(), node, index)
    }

    fn check(&self, leaf: &Leaf) -> Result<(), Error> {
        let checked = ForeignTable::<X86>::check(self.now(), leaf);
        self.checks.set(self.checks.get().saturating_sub(1));
        checked
    }
}

#[test]
fn what_changes_meanwhile_is_told_and_was_checked() {
    use x86::{P, PWT, RW};
    let boot = |third: u64| {
        let mut boot = Boot::default();
        (0..3).for_each(|level| boot.set(level, 0, node(level + 1) | RW | P));
        (0..4).for_each(|slot| boot.set(3, slot, (0x100 + slot as u64) << 12 | RW | P));
        boot.set(3, 2, third);
        boot
    };
    let first = boot(0x102 << 12 | RW | P);
    let mut refusing = boot(0x202 << 12 | RW | P);
    refusing.refused = Some(VirtAddr::new(0x2000));
    // A word that cannot be expressed; a hole; another frame, which is refused.
    for (second, mapped) in [(boot(PWT | P), 2), (boot(0), 3), (refusing, 2)] {
        let mut memory = vec![Chunk::ZERO; 64];
        let slab = Storage::new(&mut memory, 0).unwrap();
        let table = Mpt::<Va48, X86, _>::new(&slab).unwrap();
        let mut writer = Writer::new(&table).unwrap();
        let mut shared = 0;
        let turned = Turned { boots: [&first, &second], checks: Cell::new(4) };
        let taken = writer.take_over(pages(0, 4 << 12), &turned, |run| shared += run.len);
        assert!(matches!(taken, Err(Error::Changed { .. })), "{taken:?}");
        assert_eq!(shared, mapped, "what is mapped is shared");
        // SAFETY: no CPU walks the table.
        unsafe { writer.finish().reclaim() };
        let found = (0..4).filter(|page| {
            // SAFETY: no CPU frees nodes.
            table.lookup(unsafe { Pinned::by(&table) }, VirtAddr::new(page << 12)).is_some()
        });
        assert_eq!(found.count(), mapped);
        // SAFETY: no CPU walks the table.
        unsafe { destroy(table).reclaim() };
    }
}
