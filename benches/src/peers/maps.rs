//! What a page table would be without a layout to keep: a map from page to frame.

use std::collections::BTreeMap;

use crate::{Iterate, Subject};

/// `hashbrown::HashMap` from page number to frame: what a hashed table would be without a layout to keep.
pub struct HashBrown(hashbrown::HashMap<usize, u64>);

impl Subject for HashBrown {
    const NAME: &'static str = "hashbrown";
    const BITS: u32 = 48;

    fn new() -> Self {
        Self(hashbrown::HashMap::new())
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
        for at in vpn..vpn + pages {
            if let Some(pte) = self.0.get_mut(&at) {
                *pte = *pte & !2 | u64::from(writable) << 1;
            }
        }
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

impl Iterate for HashBrown {
    fn count(&self) -> usize {
        self.0.values().filter(|&&pte| pte & 1 == 1).count()
    }
}

/// `BTreeMap` from page number to frame: what an ordered map of the standard library would be, its ranges used.
pub struct BTree(BTreeMap<usize, u64>);

impl Subject for BTree {
    const NAME: &'static str = "BTreeMap";
    const BITS: u32 = 48;

    fn new() -> Self {
        Self(BTreeMap::new())
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
        for (_, pte) in self.0.range_mut(vpn..vpn + pages) {
            *pte = *pte & !2 | u64::from(writable) << 1;
        }
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

impl Iterate for BTree {
    fn count(&self) -> usize {
        self.0.values().filter(|&&pte| pte & 1 == 1).count()
    }
}
