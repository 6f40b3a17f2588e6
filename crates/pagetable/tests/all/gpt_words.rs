//! Guarded tables word for word: what refill handlers and the papers' figures find in memory.
#![cfg(target_pointer_width = "64")]

#[cfg(target_pointer_width = "64")]
use tlbkit_addr::{Attr, PageSize, Pages, Pfn, Vpn};
use tlbkit_pagetable::gpt::{Adaptive, Digits, Fixed, Gpt32};
use tlbkit_pagetable::nodes::{Chunk, NodeAddr, Nodes, Slab};
use tlbkit_pagetable::{Holes, Local, Solo};

fn page(vpn: usize) -> Pages {
    Pages::one(Vpn::new(vpn))
}

/// Pages of a 32-bit space, two of them a pair.
const PAGES: [usize; 5] = [0x400, 0x401, 0x1_0000, 0x7_ffff, 0xf_fffc];

/// Walks as a MIPS32 handler does, from the root word on: `way` says which slot of which node a link means. The sign
/// ends the loop, and the tag is compared with Context.
fn walk(
    slab: &Slab<'_, u32, Solo>,
    root: usize,
    way: fn(u32, u32) -> (u32, u32),
    vpn: usize,
) -> Option<usize> {
    // SAFETY: the nodes are live, and the slots within them.
    let load =
        |node: u32, word: u32| unsafe { slab.word_mut(NodeAddr::new(node as usize), word as usize).read() };
    let mut link = u32::try_from(root).unwrap();
    while (link as i32) < 0 {
        let (node, slot) = way(link, (vpn as u32) << 12);
        link = load(node, slot);
    }
    if link == 0 {
        return None;
    }
    assert_eq!(link & 1, 1, "a link to a leaf is odd");
    let context = (vpn as u32 >> 1) << 4;
    let entry = load(link - 1, 1 + (vpn as u32 & 1));
    // The highest bits are the kernel's, the lowest six flags: V is one of them.
    (load(link - 1, 0) == context && entry & 2 != 0).then_some((entry << 2 >> 8) as usize)
}

fn a_handler_walks_from_the_root<P: Digits>(way: fn(u32, u32) -> (u32, u32)) {
    let mut memory = vec![Chunk::ZERO; 16];
    let slab = Slab::<u32, Solo>::new(&mut memory, 0).unwrap();
    let mut table = Local::new(Gpt32::<_, P>::new(&slab).unwrap(), |_| ());
    let finds = |root: usize, mapped: &[usize]| {
        for vpn in PAGES {
            assert_eq!(walk(&slab, root, way, vpn), mapped.contains(&vpn).then_some(vpn), "{vpn:#x}");
        }
    };
    assert_eq!(table.table().root(), 0);
    for (at, &vpn) in PAGES.iter().enumerate() {
        table.map(page(vpn), Pfn::new(vpn), PageSize::K4, Attr::READ).unwrap();
        finds(table.table().root(), &PAGES[..=at]);
    }
    for (at, &vpn) in PAGES.iter().enumerate() {
        table.unmap(page(vpn), Holes::Refuse).unwrap();
        finds(table.table().root(), &PAGES[at + 1..]);
    }
    assert_eq!(table.table().root(), 0);
    table.destroy();
}

/// Shift, insert, load: the node of 16 slots is aligned to their 64 bytes.
#[test]
fn a_handler_walks_g16_from_the_root() {
    a_handler_walks_from_the_root::<Fixed<4>>(|link, at| (link & 0x1fff_ffff & !63, at >> (link & 31) & 15));
}

/// A shift to the left by what is above the digit, one to the right by what is then below.
#[test]
fn a_handler_walks_ga_from_the_root() {
    a_handler_walks_from_the_root::<Adaptive>(|link, at| {
        ((link & !(1 << 31)) >> 10 << 2, at << (link & 31) >> (link >> 5 & 31))
    });
}

#[cfg(target_pointer_width = "64")]
mod wide {
    use super::*;
    use tlbkit_addr::VirtAddr;
    use tlbkit_conformance::Instrumented;
    use tlbkit_pagetable::format;
    use tlbkit_pagetable::geometry::Va48;
    use tlbkit_pagetable::gpt::{Gpt, OneWord, PaperGpt, TwoWords};

    /// Reads a double word, the low word first.
    fn double(slot: [u32; 4], first: usize) -> u64 {
        u64::from(slot[first]) | u64::from(slot[first + 1]) << 32
    }

    /// Reads 16 bytes of a node.
    fn slot(slab: &Slab<'_, u32, Solo>, node: u64, slot: u64) -> [u32; 4] {
        // SAFETY: the node is live, and the slot within it.
        core::array::from_fn(|word| unsafe {
            slab.word_mut(NodeAddr::new(node as usize), slot as usize * 4 + word).read()
        })
    }

    /// Elphinstone et al. 3.2: a guard and a pointer of 64 bits each; a leaf is two PTEs and two words of the kernel's.
    #[test]
    fn the_papers_slots() {
        let mut memory = vec![Chunk::ZERO; 16];
        let slab = Slab::<u32, Solo>::new(&mut memory, 0).unwrap();
        let mut table = Local::new(PaperGpt::<_, Fixed<4>>::new(&slab).unwrap(), |_| ());
        assert_eq!(table.table().root_slot(), [0; 4]);

        // The right page of a pair: 13 bits are left behind the guard, the highest of them for the leaf.
        let right = 0x1_2345;
        table.map(page(right), Pfn::new(0xabc), PageSize::K4, Attr::READ).unwrap();
        let root = table.table().root_slot();
        assert_eq!(double(root, 0), 0x1234_4000 | 13);
        assert_eq!(root[3], 1 << 8 | 12, "one bit from bit 12 on");
        let leaf = slot(&slab, root[2].into(), 0);
        assert_eq!((leaf[0], leaf[1] >> 12, leaf[2], leaf[3]), (0, 0xabc, 0, 0));

        // The left page of another, which differs in bit 47: digits of four bits begin at 13, 17, .., 45.
        let left = 0x8_0001_2344;
        table.map(page(left), Pfn::new(0xdef), PageSize::K4, Attr::READ).unwrap();
        let root = table.table().root_slot();
        assert_eq!(double(root, 0), 49, "no bit of the guard is set, and it ends at 49");
        let pointer = double(root, 2);
        assert_eq!(pointer >> 44, 0xf_ffff);
        assert_eq!(pointer & 0xfff, 4 << 8 | 45, "four bits from bit 45 on");
        let node = pointer >> 12 & 0xffff_ffff;
        for digit in 0..16 {
            let entry = slot(&slab, node, digit);
            match digit {
                0 => assert_eq!(entry, [0x1234_4000 | 13, 0, entry[2], 1 << 8 | 12]),
                4 => assert_eq!(entry, [0x1234_4000 | 13, 0x8000, entry[2], 1 << 8 | 12]),
                _ => assert_eq!(entry, [0; 4]),
            }
        }
        let leaf = slot(&slab, slot(&slab, node, 4)[2].into(), 0);
        assert_eq!((leaf[0] >> 12, leaf[1], leaf[2], leaf[3]), (0xdef, 0, 0, 0));
        table.destroy();
    }

    /// In a leaf with a tag, of 16 pages here, each pair has its two PTEs first and then the kernel's two words.
    #[test]
    fn the_kernels_words_stand_behind_each_pair() {
        let mut memory = vec![Chunk::ZERO; 8];
        let nodes = Instrumented::new(Slab::<u32, Solo>::new(&mut memory, 0).unwrap());
        let mut table = Local::new(Gpt::<Va48, format::Paper, _, OneWord>::new(&nodes).unwrap(), |_| ());
        let run = Pages::count(Vpn::new(0x50), 16).unwrap();
        table.map(run, Pfn::new(0), PageSize::K4, Attr::READ).unwrap();
        assert_eq!((table.footprint().leaves, table.footprint().total()), (1, (2 + 16 * 2) * 4));
        for at in 0..16 {
            assert_eq!(table.lookup(VirtAddr::new((0x50 + at) << 12)).unwrap().frame, Pfn::new(at));
            assert_eq!(nodes.last().1, 2 + at / 2 * 4 + at % 2);
        }
        table.destroy();
    }

    /// The paper's guards are compared in the bits of the space. Others than it has reach no page.
    #[test]
    fn addresses_beyond_the_space_reach_no_page() {
        let mut memory = vec![Chunk::ZERO; 8];
        let slab = Slab::<u32, Solo>::new(&mut memory, 0).unwrap();
        let mut table =
            Local::new(Gpt::<Va48, format::Paper, _, TwoWords, Fixed<4>>::new(&slab).unwrap(), |_| ());
        let (low, high) = (0x1000, 0xffff_ffff_ffff_e000);
        for at in [low, high] {
            let page = VirtAddr::new(at).vpn(PageSize::K4);
            table.map(Pages::one(page), Pfn::new(5), PageSize::K4, Attr::READ).unwrap();
        }
        for at in [low, high] {
            assert!(table.lookup(VirtAddr::new(at)).is_some());
            for bit in 48..64 {
                assert_eq!(table.lookup(VirtAddr::new(at ^ 1 << bit)), None, "{at:#x}, bit {bit}");
            }
        }
        table.destroy();
    }
}
