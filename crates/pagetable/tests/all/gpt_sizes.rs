//! How large the nodes and leaves of a guarded table are, for pages that are few enough to count by hand.
#![cfg(target_pointer_width = "64")]

use tlbkit_addr::{Attr, Flush, PageSize, Pages, Pfn, Vpn};
use tlbkit_pagetable::geometry::Va48;
use tlbkit_pagetable::gpt::{Adaptive, Fixed, Gpt, Gpt48, MAX_WIDTH, OneWord, PaperGpt};
use tlbkit_pagetable::nodes::{Chunk, Slab};
use tlbkit_pagetable::{Holes, Local, Pinned, Solo, format};

fn page(vpn: usize) -> Pages {
    Pages::one(Vpn::new(vpn))
}

fn run(vpn: usize, pages: usize) -> Pages {
    Pages::count(Vpn::new(vpn), pages).unwrap()
}

/// Counts of nodes: `(w, n)` says that there are `n` of `2^w` slots.
fn sizes<const N: usize>(counts: [(usize, usize); N]) -> [usize; MAX_WIDTH + 1] {
    let mut sizes = [0; MAX_WIDTH + 1];
    for (width, count) in counts {
        sizes[width] = count;
    }
    sizes
}

/// Returns the node sizes of a table that no CPU changes meanwhile.
macro_rules! sizes_of {
    ($table:expr) => {
        // SAFETY: no CPU writes meanwhile.
        $table.table().node_sizes(unsafe { Pinned::by(&$table) })
    };
}

/// Pages that are mapped one by one, in a region of 16, are in one leaf of 1, 4 or 16 PTEs; a range alone there is in the smallest.
#[test]
fn a_leaf_grows_to_four_times_its_size() {
    for (pages, range, room) in [
        (&[0][..], 0, 1),
        (&[0, 1], 0, 4),
        (&[2, 1, 0, 3], 0, 4),
        (&[3, 4], 0, 16),
        (&[15, 0], 0, 16),
        (&[8, 9, 10, 6, 7], 0, 16),
        (&[], 2, 2),
        (&[2], 2, 4),
        (&[4], 4, 16),
        (&[9], 4, 16),
    ] {
        let mut memory = vec![Chunk::ZERO; 8];
        let slab = Slab::<u64, Solo>::new(&mut memory, 0).unwrap();
        let mut table = Local::new(Gpt48::new(&slab).unwrap(), |_| ());
        for &vpn in pages {
            table.map(page(0x40 + vpn), Pfn::new(vpn), PageSize::K4, Attr::READ).unwrap();
        }
        if range > 0 {
            table.map(run(0x40, range), Pfn::new(0), PageSize::K4, Attr::READ).unwrap();
        }
        let footprint = table.footprint();
        // The tag and the PTEs.
        assert_eq!((footprint.leaves, footprint.leaf_bytes), (1, (1 + room) * 8), "{pages:?} and {range}");
        table.destroy();
    }
}

/// The leaf of a page has 16 PTEs at once if the page before is mapped in one of 16. Otherwise it has one.
#[test]
fn a_run_goes_on_in_a_large_leaf() {
    // So many pages from 0x30 on, a page, and the PTEs of its leaf.
    for (beside, vpn, room) in [(16, 0x40, 16), (15, 0x40, 1), (16, 0x41, 1), (16, 0x2f, 1)] {
        let mut memory = vec![Chunk::ZERO; 8];
        let slab = Slab::<u64, Solo>::new(&mut memory, 0).unwrap();
        let mut table =
            Local::new(Gpt::<Va48, format::Compact, _, OneWord, Fixed<4>>::new(&slab).unwrap(), |_| ());
        // A page far away in the same node, so that there is a node.
        table.map(page(0xf0), Pfn::new(0), PageSize::K4, Attr::READ).unwrap();
        table.map(run(0x30, beside), Pfn::new(0), PageSize::K4, Attr::READ).unwrap();
        let before = table.footprint().leaf_bytes;
        table.map(page(vpn), Pfn::new(0), PageSize::K4, Attr::READ).unwrap();
        assert_eq!(table.footprint().leaf_bytes - before, (1 + room) * 8, "{vpn:#x} behind {beside} pages");
        table.destroy();
    }
}

/// A run that is mapped page by page gets a node of 16 slots above its leaves of 16 pages, which stays while two of these are there.
#[test]
fn a_run_gets_a_node_of_16_slots() {
    let mut memory = vec![Chunk::ZERO; 16];
    let slab = Slab::<u64, Solo>::new(&mut memory, 0).unwrap();
    let mut table = Local::new(Gpt48::new(&slab).unwrap(), |_| ());
    for vpn in 0..49 {
        table.map(page(0x100 + vpn), Pfn::new(vpn), PageSize::K4, Attr::READ).unwrap();
        let expected = if vpn < 16 { sizes([]) } else { sizes([(4, 1)]) };
        assert_eq!((sizes_of!(table), table.footprint().leaves), (expected, vpn / 16 + 1));
    }
    table.unmap(run(0x120, 17), Holes::Refuse).unwrap();
    assert_eq!(sizes_of!(table), sizes([(4, 1)]));
    // Of three leaves one is of 16 pages then.
    table.map(page(0x130), Pfn::new(0), PageSize::K4, Attr::READ).unwrap();
    table.unmap(run(0x110, 15), Holes::Refuse).unwrap();
    assert_eq!(sizes_of!(table), sizes([(2, 1)]));
    table.destroy();
}

/// A leaf of four pages or more stays while two are mapped. The last one then has a leaf of its own.
#[test]
fn a_leaf_shrinks_when_one_page_is_left() {
    // For leaves of 1, 2, 4, 8 and 16 pages, how many PTEs there is room for when so many are left: 1, 2, ...
    let room: [&[usize]; 5] = [
        &[1],
        &[2, 2],
        &[1, 4, 4, 4],
        &[1, 8, 8, 8, 8, 8, 8, 8],
        &[1, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16],
    ];
    for room in room {
        let mut memory = vec![Chunk::ZERO; 8];
        let slab = Slab::<u64, Solo>::new(&mut memory, 0).unwrap();
        let mut table = Local::new(Gpt48::new(&slab).unwrap(), |_| ());
        table.map(run(0x40, room.len()), Pfn::new(0), PageSize::K4, Attr::READ).unwrap();
        for left in (1..=room.len()).rev() {
            // The tag and the PTEs.
            assert_eq!(table.footprint().leaf_bytes, (1 + room[left - 1]) * 8, "{left} of {}", room.len());
            assert_eq!((table.footprint().nodes, table.footprint().leaves), (0, 1));
            table.unmap(page(0x40 + left - 1), Holes::Refuse).unwrap();
        }
        assert_eq!(table.footprint().total(), 0);
        table.destroy();
    }
}

/// The node sizes and the leaves of seven times `pages` pages, 5 to 11 times `pages`, that are mapped at once.
fn seven_times<F: format::Format<Word = u32>>(pages: usize) -> ([usize; MAX_WIDTH + 1], usize) {
    let mut memory = vec![Chunk::ZERO; 8];
    let slab = Slab::<u32, Solo>::new(&mut memory, 0).unwrap();
    let mut table = Local::new(Gpt::<Va48, F, _, OneWord, Adaptive>::new(&slab).unwrap(), |_| ());
    table.map(run(5 * pages, 7 * pages), Pfn::new(5), PageSize::K4, Attr::READ).unwrap();
    let now = (sizes_of!(table), table.footprint().leaves);
    table.destroy();
    now
}

/// A range gets the largest node that takes no more bytes than nodes of two slots, whose slots are no smaller than
/// leaves. With its record, a node of `2^w` slots takes `4 * 2^w + 4` bytes.
#[test]
fn a_range_gets_a_node_of_the_size_that_pays() {
    // Leaves of 16 pages. Seven slots of 16, for 68 bytes; six nodes of two take 72.
    assert_eq!(seven_times::<format::Compact32>(16), (sizes([(4, 1)]), 7));
    // Four leaves of 16 pages: four slots of eight, for 36 bytes; three nodes of two take 36.
    assert_eq!(seven_times::<format::Paper>(8), (sizes([(3, 1)]), 4));
}

/// A leaf of a pair of pages is one node in the paper's layout: 32 pairs are five bits.
fn pair(number: usize) -> Pages {
    page(2 * number)
}

fn set<'n>(
    table: &mut Local<'n, PaperGpt<'n, Slab<'_, u32, Solo>, Adaptive>, impl FnMut(&Flush)>,
    numbers: &[usize],
) {
    for &number in numbers {
        table.map(pair(number), Pfn::new(number), PageSize::K4, Attr::READ).unwrap();
    }
}

/// A node gives a bit to the nodes below it, where that saves an eighth of it: two neighbours become one.
///
/// ```text
///   (8 slots)  0..3  4..7   8   12   16  20  24  28      four of two would take 128 bytes, as it does
///   without 12 and 20:
///   (4 slots)  (8 slots) 0..7    8    16    (2 slots) 24 28     64 + 128 + 32 bytes; 128 + 2 * 64 before
/// ```
#[test]
fn halving_merges_neighbours() {
    let mut memory = vec![Chunk::ZERO; 8];
    let slab = Slab::<u32, Solo>::new(&mut memory, 0).unwrap();
    let mut table = Local::new(PaperGpt::<_, Adaptive>::new(&slab).unwrap(), |_| ());
    set(&mut table, &[0, 4, 8, 12, 16, 20, 24, 28]);
    assert_eq!(sizes_of!(table), sizes([(3, 1)]));
    set(&mut table, &[1, 2, 3, 5, 6, 7]);
    assert_eq!(sizes_of!(table), sizes([(2, 2), (3, 1)]));
    table.unmap(pair(12), Holes::Refuse).unwrap();
    assert_eq!(sizes_of!(table), sizes([(2, 2), (3, 1)]));
    table.unmap(pair(20), Holes::Refuse).unwrap();
    assert_eq!(sizes_of!(table), sizes([(1, 1), (2, 1), (3, 1)]));
    assert_eq!(table.footprint().bytes, 32 + 64 + 128);
    table.destroy();
}
