//! Pairs of larger pages in nodes of smaller slots, where one page of a pair is split and the other stays.

use tlbkit_addr::{Attr, Flush, PageSize, Pages, Pfn, Vpn};
use tlbkit_pagetable::geometry::Va32;
use tlbkit_pagetable::gpt::{Adaptive, Digits, Fixed, Gpt32};
use tlbkit_pagetable::nodes::{Chunk, Slab};
use tlbkit_pagetable::{FlushAll, Geometry, Holes, Local, Solo};

const BASE: PageSize = PageSize::K4;

fn pages(size: PageSize) -> usize {
    size.pages(BASE).unwrap()
}

/// Maps a pair of `large` pages, with single pages around it, splits one of the two to `small`, and joins it again.
fn split_one<P: Digits>(large: PageSize, small: PageSize, which: usize, around: &[usize]) {
    let mut memory = vec![Chunk::ZERO; 64];
    let slab = Slab::<u32, Solo>::new(&mut memory, 0).unwrap();
    let mut table = Local::new(Gpt32::<_, P>::new(&slab).unwrap(), |_: &Flush| ());
    let pair = Pages::count(Vpn::new(0), 2 * pages(large)).unwrap();
    let mut single = 0;
    for &vpn in around {
        let vpn = 2 * pages(large) + vpn;
        table.map(Pages::one(Vpn::new(vpn)), Pfn::new(7), BASE, Attr::READ).unwrap();
        single += 1;
    }
    table.map(pair, Pfn::new(pages(large)), large, Attr::READ).unwrap();
    let one = Pages::count(Vpn::new(which * pages(large)), pages(large)).unwrap();
    let case = format!("{} to {}, page {which}, around {around:?}", large.bytes(), small.bytes());
    for to in [small, large, small] {
        // SAFETY: no code uses the pages.
        table.resize(one, to, |flush| unsafe { FlushAll::breaking(flush) }).unwrap();
        for vpn in 0..pair.len() {
            let at = Vpn::new(vpn).address(BASE);
            let leaf = table.lookup(at).unwrap_or_else(|| panic!("{case}: page {vpn} is lost"));
            let is_split = vpn / pages(large) == which;
            assert_eq!(leaf.size, if is_split { to } else { large }, "{case}: page {vpn}");
            let within = vpn & (pages(leaf.size) - 1);
            assert_eq!(leaf.frame.get() + within, pages(large) + vpn, "{case}: page {vpn}");
        }
        assert_eq!(table.footprint().ptes, single + 1 + pages(large) / pages(to), "{case}");
    }
    table.unmap(pair, Holes::Refuse).unwrap();
    assert_eq!(table.footprint().ptes, single, "{case}");
    table.destroy();
    assert_eq!(slab.usage().nodes, 0, "{case}");
}

fn split_all<P: Digits>() {
    let sizes = &Va32::SIZES[..if cfg!(miri) { 3 } else { 5 }];
    for (index, &large) in sizes.iter().enumerate().skip(1) {
        for &small in &sizes[..index] {
            for which in 0..2 {
                for around in [&[][..], &[0], &[3, 40], &[0, 40, 80, 120, 160, 200]] {
                    split_one::<P>(large, small, which, around);
                }
            }
        }
    }
}

#[test]
fn a_page_of_a_pair_is_split_and_the_other_stays() {
    split_all::<Fixed<1>>();
    split_all::<Fixed<4>>();
    split_all::<Adaptive>();
    #[cfg(tlbkit_full)]
    {
        split_all::<Fixed<3>>();
        split_all::<Fixed<6>>();
        split_all::<Fixed<8>>();
    }
}

/// Maps two ranges of large pages, one after the other, and looks every page up; then the table gives all its nodes back.
fn two_ranges<P: Digits>(size: PageSize, start: usize, [first, second]: [(usize, usize); 2]) {
    let mut memory = vec![Chunk::ZERO; 64];
    let slab = Slab::<u32, Solo>::new(&mut memory, 0).unwrap();
    let mut table = Local::new(Gpt32::<_, P>::new(&slab).unwrap(), |_: &Flush| ());
    let case = format!("{} bytes from {start:#x}: {first:?}, then {second:?}", size.bytes());
    for (at, count) in [first, second] {
        let range = Pages::count(Vpn::new(start + at * pages(size)), count * pages(size)).unwrap();
        table.map(range, Pfn::new(at * pages(size)), size, Attr::READ).unwrap();
    }
    for page in 0..8 {
        let leaf = table.lookup(Vpn::new(start + page * pages(size)).address(BASE));
        let is_mapped = [first, second].iter().any(|&(at, count)| (at..at + count).contains(&page));
        let frame = leaf.map(|leaf| leaf.frame.get());
        assert_eq!(frame, is_mapped.then_some(page * pages(size)), "{case}: page {page}");
    }
    assert_eq!(table.footprint().ptes, first.1 + second.1, "{case}");
    table.destroy();
    assert_eq!(slab.usage().nodes, 0, "{case}");
}

fn all_ranges<P: Digits>() {
    let large = &Va32::SIZES[1..if cfg!(miri) { 2 } else { 4 }];
    let ranges = || (0..8).flat_map(|at| (1..=8 - at).map(move |count| (at, count)));
    for &size in large {
        for start in [0, (1 << 20) - 8 * pages(size)] {
            for first in ranges() {
                let apart = |&(at, count): &(usize, usize)| at + count <= first.0 || first.0 + first.1 <= at;
                for second in ranges().filter(apart) {
                    two_ranges::<P>(size, start, [first, second]);
                }
            }
        }
    }
}

#[test]
fn a_range_that_ends_in_half_a_pair_takes_the_other_half_over() {
    all_ranges::<Fixed<1>>();
    all_ranges::<Fixed<4>>();
    all_ranges::<Adaptive>();
    #[cfg(tlbkit_full)]
    {
        all_ranges::<Fixed<3>>();
        all_ranges::<Fixed<8>>();
    }
}
