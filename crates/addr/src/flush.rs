//! What a change to a page table asks of the TLBs.

use heapless::Vec;

use crate::{Attr, Pages, Vpn};

/// How far a change must be made known before its promise holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FlushScope {
    /// No TLB can hold anything that the change made wrong, and hardware sees its stores: nothing to do.
    #[default]
    Nowhere,
    /// No TLB can hold anything that the change made wrong, but a hardware walker may not see its stores yet. The CPU
    /// that made the change executes the architecture's barrier before anything relies on the new translation:
    /// `dsb ishst; isb` on AArch64.
    Barrier,
    /// A TLB may hold a translation that allows less than the new one, or the record that there was no translation (Tzou
    /// 5.1.1, safe inconsistency). The CPU that made the change flushes its own copy.
    ///
    /// Another CPU finds out by a fault, and **flushes its own copy, of the links too, before it tries again**: no
    /// architecture but x86-64 promises that a fault evicts the entry that caused it. AArch64 keeps an entry after a
    /// permission fault, and a cached link after a translation fault (`TLBI VAE1`); RISC-V may keep an invalid entry
    /// or link (`SFENCE.VMA` without an address); a MIPS TLB keeps everything.
    Local,
    /// A TLB may hold a translation that allows what is no longer allowed: every CPU that may have loaded it must
    /// flush before the change counts as done.
    Everywhere,
}

impl FlushScope {
    /// Returns the flush scope of a change that removes `lost` from a page's attributes and adds `gained`; the frame stays
    /// the same.
    ///
    /// - Rights that are added are Tzou's safe inconsistency (5.1.1): a CPU that still has the old entry faults,
    ///   forgets it ([`FlushScope::Local`]) and finds the new one.
    /// - Rights that are taken away must reach every CPU, and so must whatever else a stale entry would do wrongly: a
    ///   cleared status bit that the next access must set again, another memory type, another protection key, or another tag of the
    ///   address space.
    /// - Adding [`Attr::USER`] has the same scope: under PXN, SUM or SMAP the kernel loses an access.
    /// - The kernel's own bits, [`Attr::SOFTWARE`], are in no TLB.
    ///
    /// The one rule for both tables and protocols. Costs a few instructions.
    #[inline(always)]
    pub const fn of_change(lost: Attr, gained: Attr) -> Self {
        let (lost, gained) = (lost.difference(Attr::SOFTWARE), gained.difference(Attr::SOFTWARE));
        let strict = Attr::MEMORY.union(Attr::VARIETY).union(Attr::GLOBAL).union(Attr::USER).union(Attr::KEY);
        if !lost.is_empty() || gained.intersects(strict) {
            Self::Everywhere
        } else if !gained.is_empty() {
            Self::Local
        } else {
            Self::Nowhere
        }
    }
}

/// What a hardware walker may cache of a table's links, the entries above the leaves, and what makes it forget them.
///
/// An entry format says which of the three its hardware is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WalkCache {
    /// No link is cached: software walks the table.
    Nothing,
    /// A flush by address forgets the links on the way to the address: `INVLPG` on x86-64, `TLBI VAE1` on AArch64, and
    /// not those forms that name the last level alone (`TLBI VALE1`).
    ByAddress,
    /// Only a flush without an address forgets links: `SFENCE.VMA` with an address orders leaf entries alone.
    Whole,
}

/// The pages whose translations a batch of changes made stale, and how far that must be made known.
///
/// Holds up to [`RANGES`](Self::RANGES) separate ranges and merges what touches; with one range more it degrades to
/// the whole address space ([`is_all`](Self::is_all)): it may ask for more than needed, never for less.
///
/// ```
/// use tlbkit_addr::{Flush, FlushScope, Pages, Vpn, WalkCache};
///
/// // What a kernel for RISC-V does with a flush, in the hart that executes it.
/// fn forget(flush: &Flush) -> Vec<String> {
///     match flush.by_address(WalkCache::Whole, 64) {
///         Some(pages) => pages.map(|page| format!("sfence.vma {:#x}", page.get() << 12)).collect(),
///         None => vec!["sfence.vma".into()],
///     }
/// }
///
/// let mut flush = Flush::none();
/// assert_eq!(forget(&flush), [""; 0]);
/// flush.add(FlushScope::Everywhere, Pages::one(Vpn::new(0x80)));
/// assert_eq!(forget(&flush), ["sfence.vma 0x80000"]);
/// // A node was taken out: an address would not do.
/// flush.add_links(FlushScope::Everywhere, Pages::one(Vpn::new(0x80)));
/// assert_eq!(forget(&flush), ["sfence.vma"]);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flush {
    scope: FlushScope,
    all: bool,
    links: bool,
    // The unused part of the array is not initialized.
    ranges: Vec<Pages, 8, u8>,
}

impl Flush {
    /// The most ranges that are kept apart.
    pub const RANGES: usize = 8;

    /// Returns the flush that asks for nothing.
    #[inline(always)]
    pub const fn none() -> Self {
        Self { scope: FlushScope::Nowhere, all: false, links: false, ranges: Vec::new() }
    }

    /// Adds a change of the leaf entries of `pages`, to be made known as far as `scope`. [`FlushScope::Nowhere`] adds
    /// nothing, and [`FlushScope::Barrier`] adds no pages.
    ///
    /// The scope of the whole is the widest of its parts. Costs one comparison for a run of neighbours, a few
    /// for each separate range otherwise.
    #[inline(always)]
    pub fn add(&mut self, scope: FlushScope, pages: Pages) {
        self.scope = self.scope.max(scope);
        if scope < FlushScope::Local || self.all {
            return;
        }
        // The common cases: the first range, and a run of neighbours. With more ranges a new one may close a gap.
        match &mut *self.ranges {
            [] => {
                let _ = self.ranges.push(pages);
            }
            [only] => match only.merge(pages) {
                Some(merged) => *only = merged,
                None => self.add_apart(pages),
            },
            _ => self.add_apart(pages),
        }
    }

    #[cold]
    fn add_apart(&mut self, mut pages: Pages) {
        // Whatever the new range touches becomes part of it, and then what the wider one touches.
        while let Some(at) = self.ranges.iter().position(|range| range.merge(pages).is_some()) {
            pages = self.ranges.swap_remove(at).merge(pages).unwrap_or(pages);
        }
        if self.ranges.push(pages).is_err() {
            self.widen();
        }
    }

    /// Adds a change of links on the way to `pages`: a node was linked, unlinked, or replaced by a leaf or another node.
    /// Asks for all that [`add`](Self::add) asks for, and for the links.
    #[inline]
    pub fn add_links(&mut self, scope: FlushScope, pages: Pages) {
        self.add(scope, pages);
        self.links |= scope >= FlushScope::Local;
    }

    /// Asks for the whole address space, links included, to be made known as far as `scope`.
    #[inline]
    pub fn add_all(&mut self, scope: FlushScope) {
        self.scope = self.scope.max(scope);
        if scope >= FlushScope::Local {
            self.links = true;
            self.widen();
        }
    }

    #[inline]
    fn widen(&mut self) {
        self.all = true;
        self.ranges.clear();
    }

    /// Adds everything that `other` asks for.
    pub fn merge(&mut self, other: &Self) {
        self.scope = self.scope.max(other.scope);
        self.links |= other.links;
        if other.all {
            self.widen();
        }
        for &pages in &other.ranges {
            self.add(other.scope, pages);
        }
    }

    /// Empties the flush.
    #[inline]
    pub fn clear(&mut self) {
        self.scope = FlushScope::Nowhere;
        self.all = false;
        self.links = false;
        self.ranges.clear();
    }

    /// Returns how far the flush must be made known.
    #[inline]
    pub const fn scope(&self) -> FlushScope {
        self.scope
    }

    /// Tells whether there is nothing to do: no TLB to flush, and no barrier to execute.
    #[inline]
    pub fn is_none(&self) -> bool {
        self.scope == FlushScope::Nowhere
    }

    /// Tells whether the whole address space is to be flushed; [`ranges`](Self::ranges) is empty then.
    #[inline]
    pub const fn is_all(&self) -> bool {
        self.all
    }

    /// Tells whether links changed that hardware may have cached, so that a flush of leaf entries alone is too little:
    /// see [`by_address`](Self::by_address).
    #[inline]
    pub const fn links(&self) -> bool {
        self.links
    }

    /// Returns the pages to flush one at a time, or `None` if the flush is to name no address: the whole address space
    /// was asked for, there are more than `most` pages, or links changed and `cache` forgets them no other way.
    ///
    /// No page is returned twice, and none where the TLBs hold nothing wrong ([`FlushScope::Barrier`]). A page larger than
    /// the base page is returned as all base pages in it, though one of them would do. `most` is the number from which
    /// on one flush of everything costs the kernel less; it bounds the cost of the iteration. Costs a few additions for
    /// each range.
    #[inline]
    pub fn by_address(
        &self,
        cache: WalkCache,
        most: usize,
    ) -> Option<impl Iterator<Item = Vpn> + Clone + '_> {
        if self.all || (self.links && cache == WalkCache::Whole) {
            return None;
        }
        let left = self.pages();
        (left <= most).then(|| Named { left, page: 0, behind: 0, rest: self.ranges.iter() })
    }

    /// Counts the pages of the ranges. One range, the common case, costs no loop.
    #[inline(always)]
    fn pages(&self) -> usize {
        match &*self.ranges {
            [] => 0,
            [only] => only.len(),
            many => many.iter().fold(0, |pages, range| pages.saturating_add(range.len())),
        }
    }

    /// Returns the ranges to flush, disjoint and in no order.
    #[inline]
    pub fn ranges(&self) -> &[Pages] {
        &self.ranges
    }

    /// Tells whether the flush covers every page of `pages`.
    pub fn covers(&self, pages: Pages) -> bool {
        self.all || self.ranges.iter().any(|range| range.intersect(pages) == Some(pages))
    }
}

/// The pages of ranges, one after the other.
#[derive(Clone, Debug)]
struct Named<'f> {
    /// How many are left, of all ranges.
    left: usize,
    /// The page returned last, and how many of its range come behind it.
    page: usize,
    behind: usize,
    rest: core::slice::Iter<'f, Pages>,
}

impl Iterator for Named<'_> {
    type Item = Vpn;

    #[inline]
    fn next(&mut self) -> Option<Vpn> {
        self.left = self.left.checked_sub(1)?;
        match self.behind.checked_sub(1) {
            Some(behind) => (self.page, self.behind) = (self.page + 1, behind),
            None => {
                let range = self.rest.next()?;
                (self.page, self.behind) = (range.first().get(), range.last().get() - range.first().get());
            }
        }
        Some(Vpn::new(self.page))
    }
}
