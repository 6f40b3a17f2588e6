//! Formats in which the bits of a frame's number are in two fields, AArch64's with 52 bits: in each kind of table that
//! takes such formats, a page that is mapped alone and one that is mapped in a range lead to the same frame, and no range leads across the split.
#![cfg(target_pointer_width = "64")]

use tlbkit_addr::{Attr, Flush, PageSize, Pages, Pfn, VirtAddr};
use tlbkit_pagetable::format::Aarch64Of;
use tlbkit_pagetable::lpt::Lpt;
use tlbkit_pagetable::mpt::Mpt;
use tlbkit_pagetable::nodes::{Chunk, Slab};
use tlbkit_pagetable::{Error, Geometry, Local, Private, Radix, Solo};

/// Pages of one size, that of a granule, as a linear table of a format with status bits must have.
#[derive(Debug)]
struct Only<const SHIFT: u32>;

impl<const SHIFT: u32> Geometry for Only<SHIFT> {
    const VA_BITS: u32 = SHIFT + 2 * (SHIFT - 3);
    const BASE: PageSize = Self::SIZES[0];
    const SIZES: &'static [PageSize] = match SHIFT {
        12 => &[PageSize::K4],
        14 => &[PageSize::K16],
        _ => &[PageSize::K64],
    };
}

impl<const SHIFT: u32> Radix for Only<SHIFT> {
    const WIDTHS: &'static [u32] = &[SHIFT - 3, SHIFT - 3];
}

type Wide<const SHIFT: u32> = Aarch64Of<SHIFT, false, false, true>;

const RW: Attr = Attr::READ.union(Attr::WRITE).union(Attr::USER);

fn check<'n, G: Radix>(name: &str, table: impl Private<'n>) {
    let mut table = Local::new(table, |_: &Flush| ());
    let base = G::BASE;
    // The number of the first frame whose high bits are in the second field.
    let split = 1usize << (if base.shift() == 16 { 48 } else { 50 } - base.shift());
    let page =
        |at: usize, count: usize| Pages::count(VirtAddr::new(at << base.shift()).vpn(base), count).unwrap();
    // The first pages make the node, so that the next ones are changes of one slot.
    table.map(page(0x40, 2), Pfn::new(3), base, RW).unwrap();
    for (at, frame) in [1, split - 1, split, split + 5, 2 * split + 7, 4 * split - 1].into_iter().enumerate()
    {
        table.map(page(0x44 + at, 1), Pfn::new(frame), base, RW).unwrap();
        let found = table.lookup(VirtAddr::new((0x44 + at) << base.shift())).unwrap();
        assert_eq!(found.frame, Pfn::new(frame), "{name}: one page");
        if frame % split > 0 && frame % split < split - 1 {
            table.map(page(0x60 + 2 * at, 2), Pfn::new(frame), base, RW).unwrap();
            for more in 0..2 {
                let found = table.lookup(VirtAddr::new((0x60 + 2 * at + more) << base.shift())).unwrap();
                assert_eq!(found.frame, Pfn::new(frame + more), "{name}: a range");
            }
        }
    }
    // A range on both sides of the split.
    let across = table.map(page(0x80, 4), Pfn::new(split - 2), base, RW);
    assert_eq!(across, Err(Error::FrameTooLarge { frame: Pfn::new(split + 1) }), "{name}");
    for at in 0x80..0x84 {
        assert_eq!(table.lookup(VirtAddr::new(at << base.shift())), None, "{name}");
    }
    table.map(page(0x80, 2), Pfn::new(split - 2), base, RW).unwrap();
    table.map(page(0x82, 2), Pfn::new(split), base, RW).unwrap();
    for at in 0..4 {
        let found = table.lookup(VirtAddr::new((0x80 + at) << base.shift())).unwrap();
        assert_eq!(found.frame, Pfn::new(split - 2 + at), "{name}");
    }
    table.destroy();
}

macro_rules! check {
    ($shift:literal) => {{
        type F = Wide<$shift>;
        type G = Only<$shift>;
        let mut memory = vec![Chunk::ZERO; 1 << 10];
        let slab = Slab::<u64, Solo>::new(&mut memory, 1 << 30).unwrap();
        check::<G>("multi-level", Mpt::<G, F, _>::new(&slab).unwrap());
        check::<G>("linear", Lpt::<G, F, _, 0x1_0000_0000_0000>::new(&slab).unwrap());
    }};
}

#[test]
fn a_page_alone_and_one_in_a_range_have_the_same_frame() {
    check!(12);
    check!(14);
    check!(16);
}
