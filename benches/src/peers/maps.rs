//! What a page table would be without a layout to keep: a map from page to frame.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::{Iterate, Subject};

/// Makes a subject of a map from page number to entry. `$each` changes the entries of a run of pages.
macro_rules! subject {
    ($(#[$doc:meta])* $subject:ident, $name:literal, $map:ty, $each:expr) => {
        $(#[$doc])*
        pub struct $subject($map);

        impl Subject for $subject {
            const NAME: &'static str = $name;
            const BITS: u32 = 48;

            fn new() -> Self {
                Self(<$map>::new())
            }

            #[inline(always)]
            fn map(&mut self, vpn: usize, pfn: usize) {
                self.0.insert(vpn, (pfn as u64) << 12 | 3);
            }

            #[inline(always)]
            fn unmap(&mut self, vpn: usize) {
                self.0.remove(&vpn);
            }

            #[inline(always)]
            fn translate(&self, va: usize) -> Option<usize> {
                self.0.get(&(va >> 12)).map(|&pte| pte as usize & !0xfff | va & 0xfff)
            }

            #[inline(always)]
            fn protect_range(&mut self, vpn: usize, pages: usize, writable: bool) {
                let change = |pte: &mut u64| *pte = *pte & !2 | u64::from(writable) << 1;
                $each(&mut self.0, vpn..vpn + pages, change);
            }

            #[inline(always)]
            fn replace(&mut self, vpn: usize, pfn: usize) {
                self.map(vpn, pfn);
            }

            fn is_writable(&self, vpn: usize) -> bool {
                self.0.get(&vpn).is_some_and(|pte| pte & 2 != 0)
            }

            fn destroy(self) {}
        }

        impl Iterate for $subject {
            fn count(&self) -> usize {
                self.0.values().filter(|&&pte| pte & 1 == 1).count()
            }
        }
    };
}

type Hashed = hashbrown::HashMap<usize, u64>;
type Ordered = BTreeMap<usize, u64>;

#[inline(always)]
fn one_by_one(map: &mut Hashed, pages: Range<usize>, change: impl Fn(&mut u64)) {
    for vpn in pages {
        map.get_mut(&vpn).map(&change);
    }
}

#[inline(always)]
fn by_range(map: &mut Ordered, pages: Range<usize>, change: impl Fn(&mut u64)) {
    map.range_mut(pages).for_each(|(_, pte)| change(pte));
}

subject! {
    /// `hashbrown::HashMap` from page number to frame: what a hashed table would be without a layout to keep.
    HashBrown, "hashbrown", Hashed, one_by_one
}

subject! {
    /// `BTreeMap` from page number to frame: what an ordered map of the standard library would be, its ranges used.
    BTree, "BTreeMap", Ordered, by_range
}
