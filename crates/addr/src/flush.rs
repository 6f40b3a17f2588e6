//! The TLB flush that a change to a page table needs.

use crate::{Attr, Pages, Vpn};

/// The scope of a flush: which CPUs must execute it before the change is complete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FlushScope {
    /// No TLB can hold a translation that the change made stale, and hardware sees its stores: no CPU flushes.
    #[default]
    Nowhere,
    /// No TLB can hold a translation that the change made stale, but a hardware walker may not see its stores yet. The CPU that
    /// made the change executes the architecture's barrier before any access relies on the new translation: `dsb ishst; isb` on
    /// AArch64.
    Barrier,
    /// A TLB may hold a translation that allows less than the new one, or a cached absence of a translation (Tzou 5.1.1, safe
    /// inconsistency). Only the CPU that made the change flushes.
    ///
    /// Another CPU that uses the old entry faults, and **flushes that page and the links to it on its own TLB before it repeats
    /// the access**: only x86-64 promises that a fault evicts the entry that caused it. AArch64 keeps an entry after a permission
    /// fault, and a cached link after a translation fault (`TLBI VAE1`); RISC-V may keep an invalid entry or link (`SFENCE.VMA`
    /// without an address); a MIPS TLB keeps everything.
    Local,
    /// A TLB may hold a translation that allows an access which is no longer allowed: every CPU that may have loaded it must
    /// flush before the change is complete.
    Everywhere,
}

impl FlushScope {
    /// Returns the flush scope of a change that removes `lost` from a page's attributes and adds `gained`; the frame stays
    /// the same.
    ///
    /// - Rights that are added are Tzou's safe inconsistency (5.1.1): a CPU that still has the old entry faults, flushes it
    ///   ([`FlushScope::Local`]) and loads the new one.
    /// - Removed rights need a flush on every CPU, and so does every other change after which a stale entry would be wrong: a
    ///   cleared status bit that the next access must set again, another memory type, another protection key, or
    ///   [`Attr::GLOBAL`].
    /// - Adding [`Attr::USER`] has the same scope: under PXN, SUM or SMAP the kernel loses an access.
    /// - The kernel's own bits, [`Attr::SOFTWARE`], are in no TLB.
    ///
    /// Tables and shootdown protocols both use this rule. Costs a few instructions.
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

/// Whether a hardware walker caches a table's links, which are the entries above the leaves, and which flush evicts them.
///
/// An entry format states which of the four applies to its hardware.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WalkCache {
    /// No link is cached: software walks the table.
    Nothing,
    /// A flush by address evicts the links on the way to the address: `INVLPG` on x86-64, `TLBI VAE1` on AArch64, but not the
    /// forms for the last level only (`TLBI VALE1`).
    ByAddress,
    /// Only a flush without an address evicts links: `SFENCE.VMA` with an address orders only leaf entries.
    Whole,
    /// No flush takes an address, neither for links nor for leaf entries: `INVEPT` on x86-64.
    NoAddress,
}

/// The pages whose translations a batch of changes made stale, and the scope of the flush.
///
/// Holds up to [`RANGES`](Self::RANGES) separate ranges, and merges ranges that touch. With one range more it becomes a flush of
/// the whole address space ([`is_all`](Self::is_all)). So it may name more pages than needed, never fewer.
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
    links: bool,
    stale: Stale,
}

/// Which pages are stale. Each set of ranges has one form, so that equal flushes compare equal. A change of one page writes a tag
/// and a range: no array is initialized.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Stale {
    #[default]
    Nothing,
    One(Pages),
    /// Two ranges or more.
    Many(Ranges),
    All,
}

/// Up to [`Flush::RANGES`] ranges. A place behind them holds some range.
#[derive(Clone, Debug)]
struct Ranges {
    ranges: [Pages; Flush::RANGES],
    len: usize,
}

impl Ranges {
    fn as_slice(&self) -> &[Pages] {
        self.ranges.get(..self.len).unwrap_or_default()
    }

    /// Adds a range. Returns whether there was room.
    fn push(&mut self, pages: Pages) -> bool {
        let place = self.ranges.get_mut(self.len);
        let has_room = place.is_some();
        if let Some(place) = place {
            *place = pages;
            self.len += 1;
        }
        has_room
    }

    /// Removes a range that touches `pages`, if there is one, and returns both as one.
    fn take_merged(&mut self, pages: Pages) -> Option<Pages> {
        let (at, merged) =
            self.as_slice().iter().enumerate().find_map(|(at, range)| Some((at, range.merge(pages)?)))?;
        // The last one takes its place, without a check of bounds that could panic.
        let last = self.as_slice().last().copied()?;
        *self.ranges.get_mut(at)? = last;
        self.len -= 1;
        Some(merged)
    }
}

impl PartialEq for Ranges {
    fn eq(&self, other: &Self) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl Eq for Ranges {}

impl Flush {
    /// The largest number of separate ranges.
    pub const RANGES: usize = 8;

    /// Returns the empty flush.
    #[inline(always)]
    pub const fn none() -> Self {
        Self { scope: FlushScope::Nowhere, links: false, stale: Stale::Nothing }
    }

    /// Returns a flush of pages and of the links to them, of a scope that flushes: [`FlushScope::Local`] or
    /// [`FlushScope::Everywhere`].
    #[inline(always)]
    pub const fn of_links(scope: FlushScope, pages: Pages) -> Self {
        Self { scope, links: true, stale: Stale::One(pages) }
    }

    /// Returns a flush of the whole address space, links included, by every CPU.
    #[inline(always)]
    pub const fn everything() -> Self {
        Self { scope: FlushScope::Everywhere, links: true, stale: Stale::All }
    }

    /// Adds a change of the leaf entries of `pages` with a flush scope. [`FlushScope::Nowhere`] adds nothing, and
    /// [`FlushScope::Barrier`] adds no pages.
    ///
    /// The scope of the flush is the widest scope that was added. Costs one comparison for a run of neighbouring pages, otherwise
    /// a few for each separate range.
    #[inline(always)]
    pub fn add(&mut self, scope: FlushScope, pages: Pages) {
        self.scope = self.scope.max(scope);
        if scope < FlushScope::Local {
            return;
        }
        // The first page of a batch, the common case, costs one comparison.
        if let Stale::Nothing = self.stale {
            self.stale = Stale::One(pages);
            return;
        }
        if let Stale::One(only) = &mut self.stale
            && let Some(merged) = only.merge(pages)
        {
            *only = merged;
            return;
        }
        self.add_apart(pages);
    }

    #[cold]
    fn add_apart(&mut self, mut pages: Pages) {
        if let Stale::One(only) = self.stale {
            self.stale = Stale::Many(Ranges { ranges: [only; Flush::RANGES], len: 1 });
        }
        let Stale::Many(ranges) = &mut self.stale else { return };
        // Merges every range that touches the new one, and repeats that with the wider range.
        while let Some(merged) = ranges.take_merged(pages) {
            pages = merged;
        }
        if ranges.len == 0 {
            self.stale = Stale::One(pages);
        } else if !ranges.push(pages) {
            self.stale = Stale::All;
        }
    }

    /// Adds a change of links on the way to `pages`: a node was linked, unlinked, or replaced by a leaf or another node. Adds
    /// what [`add`](Self::add) adds, and the links.
    #[inline]
    pub fn add_links(&mut self, scope: FlushScope, pages: Pages) {
        self.add(scope, pages);
        self.links |= scope >= FlushScope::Local;
    }

    /// Adds the whole address space, links included, with a flush scope.
    #[inline]
    pub fn add_all(&mut self, scope: FlushScope) {
        self.scope = self.scope.max(scope);
        if scope >= FlushScope::Local {
            self.links = true;
            self.stale = Stale::All;
        }
    }

    /// Adds everything that `other` names.
    pub fn merge(&mut self, other: &Self) {
        self.scope = self.scope.max(other.scope);
        self.links |= other.links;
        if other.is_all() {
            self.stale = Stale::All;
        }
        for &pages in other.ranges() {
            self.add(other.scope, pages);
        }
    }

    /// Empties the flush.
    #[inline]
    pub fn clear(&mut self) {
        self.scope = FlushScope::Nowhere;
        self.links = false;
        self.stale = Stale::Nothing;
    }

    /// Returns the scope of the flush.
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
        matches!(self.stale, Stale::All)
    }

    /// Tells whether links changed that hardware may have cached, so that a flush of only leaf entries is not enough: see
    /// [`by_address`](Self::by_address).
    #[inline]
    pub const fn links(&self) -> bool {
        self.links
    }

    /// Returns the pages to flush one at a time. Returns `None` if the flush must name no address: it is of the whole address
    /// space, it has more than `most` pages, links changed and `cache` evicts links only without an address, or there is a page to
    /// flush and no flush takes an address.
    ///
    /// No page is returned twice, and none for a [`FlushScope::Barrier`]. A page larger than the base page is returned as all its
    /// base pages, although one of them would be enough. `most` is the largest number of pages for which single flushes cost the
    /// kernel less than a flush of everything; it bounds the cost of the iteration. Costs a few additions for each range.
    #[inline(always)]
    pub fn by_address(
        &self,
        cache: WalkCache,
        most: usize,
    ) -> Option<impl Iterator<Item = Vpn> + Clone + use<'_>> {
        if self.links && cache == WalkCache::Whole {
            return None;
        }
        let rest: &[Pages] = match &self.stale {
            Stale::All => return None,
            Stale::Nothing => &[],
            _ if cache == WalkCache::NoAddress => return None,
            // The common case: one range, and no loop.
            Stale::One(only) => {
                return Some(Named { run: run_of(*only, most)?, rest: [].iter() });
            }
            Stale::Many(many) => {
                if !are_within(many.as_slice(), most) {
                    return None;
                }
                many.as_slice()
            }
        };
        Some(Named { run: (Vpn::new(0), 0), rest: rest.iter() })
    }

    /// Returns the ranges to flush, disjoint and in no order.
    #[inline]
    pub fn ranges(&self) -> &[Pages] {
        match &self.stale {
            Stale::Nothing | Stale::All => &[],
            Stale::One(only) => core::slice::from_ref(only),
            Stale::Many(many) => many.as_slice(),
        }
    }

    /// Tells whether the flush covers every page of `pages`.
    pub fn covers(&self, pages: Pages) -> bool {
        self.is_all() || self.ranges().iter().any(|range| range.intersect(pages) == Some(pages))
    }
}

/// Returns the first page of a range and the number of its pages, or `None` if there are more than `most`.
#[inline(always)]
fn run_of(range: Pages, most: usize) -> Option<(Vpn, usize)> {
    let behind = range.last().get() - range.first().get();
    (behind < most).then_some((range.first(), behind + 1))
}

/// Tells whether ranges have `most` pages or fewer.
#[cold]
fn are_within(ranges: &[Pages], most: usize) -> bool {
    let rest = ranges.iter().try_fold(most, |rest, &range| run_of(range, rest).map(|run| rest - run.1));
    rest.is_some()
}

/// The pages of ranges, one after the other.
#[derive(Clone, Debug)]
struct Named<'f> {
    /// The rest of the current range: its first page and the number of its pages.
    run: (Vpn, usize),
    rest: core::slice::Iter<'f, Pages>,
}

impl Iterator for Named<'_> {
    type Item = Vpn;

    #[inline]
    fn next(&mut self) -> Option<Vpn> {
        loop {
            let (page, left) = self.run;
            if let Some(left) = left.checked_sub(1) {
                self.run = (Vpn::new(page.get().wrapping_add(1)), left);
                return Some(page);
            }
            self.run = run_of(*self.rest.next()?, usize::MAX)?;
        }
    }

    /// One loop for a range, so that a flush of one page costs no more than its instruction and a comparison.
    #[inline(always)]
    fn fold<B, F: FnMut(B, Vpn) -> B>(self, init: B, mut f: F) -> B {
        let mut of_run = |so_far: B, (first, left): (Vpn, usize)| {
            (0..left).fold(so_far, |so_far, page| f(so_far, Vpn::new(first.get().wrapping_add(page))))
        };
        let so_far = of_run(init, self.run);
        self.rest.filter_map(|&range| run_of(range, usize::MAX)).fold(so_far, of_run)
    }
}
