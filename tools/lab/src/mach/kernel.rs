//! Mach 3.0 on the R3000: page tables in virtual memory, misses within misses, and what the schemes do about them.
//!
//! ```text
//!   L1U  maps a page of a process          stored in its user page table, in kernel virtual memory
//!   L2   maps a page of a user page table  stored in the kernel page table, in kernel virtual memory
//!   L1K  maps a page of kernel data        stored in the kernel page table
//!   L3   maps a page of the kernel page table, stored in physical memory
//! ```
//!
//! An L1U miss loads from the user page table and may so miss on L2; that, like a miss on L1K, is resolved by the
//! generic handler, which loads from the kernel page table and may so miss on L3: the cascade.

use std::collections::HashMap;

use tlbkit_addr::{PageSize, Pages, VirtAddr, Vpn};
use tlbkit_stlb::Rank;

use super::costs::Costs;
use super::level::Level;
use super::rng::Rng;
use super::scheme::Software;
use super::tlb::{Loaded, Page, Tlb};

/// Kernel virtual memory, in pages. The thesis leaves the layout open. What matters to a direct-mapped STLB is that
/// user page tables lie 512 pages apart (2 GiB of user memory, 4 bytes for each 4 KiB): eight of them fill the index
/// of 4096 entries.
pub(crate) const KSEG2: usize = 0xc_0000;
/// The user page tables, 64 MiB into kernel memory, one after the other.
const USER_TABLES: usize = 0xc_4000;
pub(crate) const TABLE_PAGES: usize = 512;
/// The kernel page table: four bytes for each of the 2^18 pages of kernel memory, in 256 pages.
const KERNEL_TABLE: usize = 0xf_fd00;
/// Page table entries in a page.
const PER_PAGE: usize = 1024;

/// What an access is for: the rows of Table 3.1, and the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum For {
    KernelIpc,
    Pc,
    Sp,
    Message,
    Data,
    OtherKernel,
}

/// When the STLB takes an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Fill {
    /// When it is loaded into the TLB (thesis 3.2).
    Load,
    /// When it is evicted from the TLB (OSDI paper, section 4).
    Eviction,
}

/// What happened, and what it cost.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) ipcs: u64,
    pub(crate) l1u: u64,
    pub(crate) l1k: u64,
    pub(crate) l2: u64,
    pub(crate) l3: u64,
    pub(crate) cascaded: u64,
    /// Cycles spent in kernel misses, in L1U misses, and in what the schemes add elsewhere.
    pub(crate) penalty: u64,
    pub(crate) user_penalty: u64,
    pub(crate) overhead: u64,
    /// Cycles of everything else.
    pub(crate) work: u64,
    pub(crate) stale: u64,
    /// TLB-invalid misses: a process's first touch of a page, which the VM system maps then.
    pub(crate) invalid: u64,
    /// TLB-modify misses: the first store to a page that was mapped at a load.
    pub(crate) modify: u64,
    /// Kernel misses by what the access was for, and whether it was for L3.
    pub(crate) by: HashMap<(For, bool), u64>,
}

impl Tally {
    pub(crate) fn kernel_misses(&self) -> u64 {
        self.l1k + self.l2 + self.l3
    }
}

/// One machine, one scheme.
pub(crate) struct Kernel<'s> {
    pub(crate) costs: Costs,
    pub(crate) tally: Tally,
    fill: Fill,
    tlb: Tlb,
    pub(crate) software: &'s mut dyn Software,
    /// How often each kernel page was mapped anew; its entry is made of the page and that number.
    versions: HashMap<usize, u64>,
    /// The pages that processes have touched, and whether they have stored there.
    mapped: HashMap<Page, bool>,
}

impl<'s> Kernel<'s> {
    pub(crate) fn new(software: &'s mut dyn Software, costs: Costs, fill: Fill, seed: u64) -> Self {
        Self {
            costs,
            tally: Tally::default(),
            fill,
            tlb: Tlb::new(Rng::new(seed)),
            software,
            versions: HashMap::new(),
            mapped: HashMap::new(),
        }
    }

    /// Returns the page of kernel memory that holds the L1U entry of a process's page.
    pub(crate) fn table_page(process: usize, page: usize) -> usize {
        USER_TABLES + process * TABLE_PAGES + page / PER_PAGE
    }

    /// Returns the page of kernel memory that holds the entry for another page of kernel memory.
    pub(crate) fn kernel_table_page(page: usize) -> usize {
        KERNEL_TABLE + (page - KSEG2) / PER_PAGE
    }

    /// Returns the entry that the page table has today.
    fn entry(&self, page: usize) -> u64 {
        (page as u64) << 32 | self.versions.get(&page).copied().unwrap_or(0)
    }

    /// A process, or the kernel on its behalf, touches one of the process's pages.
    pub(crate) fn user(&mut self, process: usize, page: usize, what: For, in_kernel: bool) {
        self.touch(process, page, what, in_kernel, false);
    }

    /// The same, and whether it stores there.
    pub(crate) fn touch(&mut self, process: usize, page: usize, what: For, in_kernel: bool, stores: bool) {
        let tag = Page::of_user(process, page);
        let there = self.tlb.lookup(tag).is_some();
        if stores || !there {
            match self.mapped.get_mut(&tag) {
                Some(stored) if stores && !*stored => {
                    self.tally.modify += 1;
                    *stored = true;
                }
                Some(_) => {}
                // A store that finds no page makes one that may be stored to.
                None => {
                    self.tally.invalid += 1;
                    self.mapped.insert(tag, stores);
                }
            }
        }
        if there {
            return;
        }
        self.tally.l1u += 1;
        // A random word's entry lies anywhere in a page of entries; the others' are always the same few.
        self.tally.user_penalty +=
            if what == For::Data { self.costs.l1u_uncached } else { self.costs.l1u_cached };
        self.kernel(Self::table_page(process, page), Level::L2 { in_kernel }, what, false);
        self.load(tag, false, Loaded { data: 0, ahead: false });
    }

    /// The kernel touches a page of its own: data, or a page table.
    pub(crate) fn kernel(&mut self, page: usize, level: Level, what: For, nested: bool) {
        let now = self.entry(page);
        if let Some(held) = self.tlb.lookup(Page::of_kernel(page)) {
            if std::mem::take(&mut held.ahead) {
                self.software.prefetch_used();
            }
            self.tally.stale += u64::from(held.data != now);
            return;
        }
        match level {
            Level::L1K => self.tally.l1k += 1,
            Level::L2 { .. } => self.tally.l2 += 1,
            Level::L3 => self.tally.l3 += 1,
        }
        self.tally.cascaded += u64::from(nested);
        *self.tally.by.entry((what, level == Level::L3)).or_default() += 1;

        let at = address(page);
        let data = match self.software.find(at, &self.costs) {
            Some(hit) => {
                self.tally.penalty += self.costs.hit(level, hit.search);
                self.tally.stale += u64::from(hit.data != now);
                hit.data
            }
            None => {
                self.tally.penalty += self.costs.generic(level) + self.software.miss(&self.costs);
                if level != Level::L3 {
                    self.kernel(Self::kernel_table_page(page), Level::L3, what, true);
                }
                if self.fill == Fill::Load {
                    self.software.fill(at, now);
                }
                now
            }
        };
        self.load(Page::of_kernel(page), is_l2(level), Loaded { data, ahead: false });
    }

    fn load(&mut self, page: Page, is_l2: bool, loaded: Loaded) {
        let evicted = self.tlb.load(page, is_l2, loaded);
        if let (Fill::Eviction, Some((old, data))) = (self.fill, evicted)
            && let Some(page) = old.in_kernel()
        {
            self.software.fill(address(page), data);
        }
    }

    /// On the IPC path: records an entry that will be wanted.
    pub(crate) fn record(&mut self, page: usize, level: Level) {
        self.software.record(address(page), rank(level), &mut self.tlb);
    }

    /// On the IPC path: loads an entry ahead, if it is known and not there.
    pub(crate) fn prefetch(&mut self, page: usize, level: Level) {
        if !self.software.has_ptlb() || (level == Level::L3 && self.software.has_stlb()) {
            return;
        }
        match self.software.prefetch(address(page), rank(level), &mut self.tlb) {
            Some(data) => {
                self.tally.overhead += self.costs.prefetch;
                self.tally.stale += u64::from(data != self.entry(page));
                self.load(Page::of_kernel(page), is_l2(level), Loaded { data, ahead: true });
            }
            None => self.tally.overhead += self.costs.probe,
        }
    }

    /// The kernel maps these pages anew, and tells the caches that remember them, unless it forgets to.
    pub(crate) fn remap(&mut self, first: usize, pages: usize, tell: bool) {
        for page in first..first + pages {
            *self.versions.entry(page).or_default() += 1;
        }
        if tell {
            self.tlb
                .flush(|page| page.in_kernel().is_some_and(|page| (first..first + pages).contains(&page)));
            let pages = Pages::count(Vpn::new(first), pages);
            self.software.invalidate_pages(pages.expect("kernel memory does not reach the top"));
        }
    }

    /// The numbers of address spaces start anew, with everything mapped anew: every cache forgets everything.
    pub(crate) fn restart(&mut self, pages: &[usize], tell: bool) {
        for &page in pages {
            *self.versions.entry(page).or_default() += 1;
        }
        if tell {
            self.tlb.flush(|_| true);
            self.software.invalidate_all();
        }
    }

    /// A process's own pages leave the TLB with it.
    pub(crate) fn exit(&mut self, process: usize) {
        self.tlb.flush(|page| page.is_of(process));
        self.mapped.retain(|page, _| !page.is_of(process));
    }
}

fn address(page: usize) -> VirtAddr {
    Vpn::new(page).address(PageSize::K4)
}

fn is_l2(level: Level) -> bool {
    matches!(level, Level::L2 { .. })
}

fn rank(level: Level) -> Rank {
    if level == Level::L3 { Rank::Top } else { Rank::Lower }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mach::scheme::Scheme;

    #[test]
    fn a_page_is_invalid_at_its_first_touch_and_modified_at_the_first_store_after_that() {
        Scheme::Mach.with(|software| {
            let mut kernel = Kernel::new(software, Costs::default(), Fill::Load, 1);
            let classes = |kernel: &mut Kernel<'_>, process, page, stores| {
                kernel.touch(process, page, For::Data, false, stores);
                (kernel.tally.invalid, kernel.tally.modify)
            };
            assert_eq!(classes(&mut kernel, 0, 7, false), (1, 0));
            assert_eq!(classes(&mut kernel, 0, 7, false), (1, 0));
            // Its entry is there, and does not let it store.
            assert_eq!(classes(&mut kernel, 0, 7, true), (1, 1));
            assert_eq!(classes(&mut kernel, 0, 7, true), (1, 1));
            assert_eq!(classes(&mut kernel, 0, 8, true), (2, 1));
            assert_eq!(classes(&mut kernel, 1, 7, true), (3, 1));
            kernel.exit(0);
            assert_eq!(classes(&mut kernel, 0, 7, true), (4, 1));
            assert_eq!(classes(&mut kernel, 1, 7, true), (4, 1));
        });
    }
}
