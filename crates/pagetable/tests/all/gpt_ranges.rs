//! Ranges that end in a small node: one whose digit a larger page has parted, beside the node that the range begins with.
#![cfg(target_pointer_width = "64")]

use tlbkit_addr::{Attr, Flush, PageSize, Pages, Pfn, Vpn};
use tlbkit_pagetable::format::Compact;
use tlbkit_pagetable::geometry::Va64;
use tlbkit_pagetable::gpt::{Adaptive, Fixed, Gpt, OneWord, PaperGpt};
use tlbkit_pagetable::nodes::{Chunk, Slab};
use tlbkit_pagetable::{Local, Solo};

const BASE: PageSize = PageSize::K4;

fn pages(first: usize, last: usize) -> Pages {
    Pages::new(Vpn::new(first), Vpn::new(last)).unwrap()
}

/// Maps one base page and one of 16 KiB among the pages from 0x300 on, then a range that begins before them and ends in each
/// page between: each page of each table is found, and its frame.
macro_rules! ends_anywhere {
    ($name:ident, $word:ty, |$nodes:ident| $new:expr) => {
        #[test]
        fn $name() {
            let mut memory = vec![Chunk::ZERO; 4096];
            for large in [0x308, 0x310, 0x31c] {
                for lone in (0x300..0x320).filter(|page| !(large..large + 4).contains(page)) {
                    for last in 0x300..large.min(lone) {
                        let slab = Slab::<$word, Solo>::new(&mut memory, 0).unwrap();
                        let $nodes = &slab;
                        let mut table = Local::new($new.unwrap(), |_: &Flush| ());
                        table.map(pages(lone, lone), Pfn::new(1), BASE, Attr::READ).unwrap();
                        table.map(pages(large, large + 3), Pfn::new(4), PageSize::K16, Attr::READ).unwrap();
                        table.map(pages(0x2f1, last), Pfn::new(0x100), BASE, Attr::READ).unwrap();
                        let found = |page: usize| {
                            table.lookup(Vpn::new(page).address(BASE)).map(|leaf| leaf.frame.get())
                        };
                        for page in 0x2f1..0x320 {
                            let wanted = match page {
                                _ if page <= last => Some(0x100 + page - 0x2f1),
                                _ if page == lone => Some(1),
                                _ if (large..large + 4).contains(&page) => Some(4),
                                _ => None,
                            };
                            assert_eq!(
                                found(page),
                                wanted,
                                "page {page:#x} with {lone:#x}, 16K at {large:#x}, and a range to {last:#x}"
                            );
                        }
                        assert_eq!(table.footprint().ptes, last - 0x2f1 + 3);
                        table.destroy();
                        assert_eq!(slab.usage().nodes, 0);
                    }
                }
            }
        }
    };
}

ends_anywhere!(paper_g16, u32, |nodes| PaperGpt::<_, Fixed<4>>::new(nodes));
ends_anywhere!(paper_ga, u32, |nodes| PaperGpt::<_, Adaptive>::new(nodes));
ends_anywhere!(g8, u64, |nodes| Gpt::<Va64, Compact, _, OneWord, Fixed<3>>::new(nodes));
ends_anywhere!(ga, u64, |nodes| Gpt::<Va64, Compact, _, OneWord, Adaptive>::new(nodes));

/// More node sizes: `cargo xtask test --full`.
#[cfg(tlbkit_full)]
mod wide {
    use super::*;

    ends_anywhere!(paper_g4, u32, |nodes| PaperGpt::<_, Fixed<2>>::new(nodes));
    ends_anywhere!(paper_g256, u32, |nodes| PaperGpt::<_, Fixed<8>>::new(nodes));
    ends_anywhere!(g16, u64, |nodes| Gpt::<Va64, Compact, _, OneWord, Fixed<4>>::new(nodes));
    ends_anywhere!(g256, u64, |nodes| Gpt::<Va64, Compact, _, OneWord, Fixed<8>>::new(nodes));
}
