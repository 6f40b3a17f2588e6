//! Taking over what a table of other software maps: that of a bootloader, or of an earlier stage of the boot.
//!
//! The pages are copied, and the other table's nodes stay as they are. A table cannot adopt them: they come from no storage, and have no
//! records; two links may lead to one of them, as in a table whose kernel is also mapped at its physical address; and their links may
//! take rights from the pages below, which the links of a table do not.

use tlbkit_addr::{Attr, PageSize, Pages, Pfn, VirtAddr, Vpn};

use super::Mpt;
use super::leaf::Decode as _;
use super::map::PageRun;
use super::node::{Supply, Writing};
use super::pieces::after;
use super::shape::{MAX, Shape};
use crate::dry_run::STATUS;
use crate::format::{Foreign, Format, appears};
use crate::geometry::Checked as _;
use crate::nodes::{NodeAddr, Nodes};
use crate::{Error, Leaf, Radix, Run, Writer};

/// The most entries of a foreign table that are read for one range: four million. A table of more is one whose links have no end, or
/// maps more than 16 GiB in pages of 4 KiB, and is taken over in several ranges.
const MOST: usize = 1 << 22;

/// A multi-level table that other software has built, in the same format and with the same shape as the table that takes it over.
///
/// Its words may be any: [`Writer::take_over`] reads no node but the root and those that links lead to, takes at most four million
/// entries for a range, and needs no memory for them. While it runs, words may change only as hardware changes status bits.
pub trait ForeignTable<F: Format> {
    /// Returns the address of the root node, in the form that links have.
    fn root(&self) -> NodeAddr;

    /// Loads the word of slot `index` of a node, which is the root, or one to which a link leads.
    fn word(&self, node: NodeAddr, index: usize) -> F::Word;

    /// Refuses a leaf before anything has changed. The leaf may extend beyond the range that is taken over.
    ///
    /// # Errors
    ///
    /// Any, which [`Writer::take_over`] returns.
    fn check(&self, leaf: &Leaf) -> Result<(), Error>;
}

/// The nodes that a copy needs.
struct Plan {
    want: [usize; MAX],
    /// For each level, the number of the last node that has been counted, from the space's first one on.
    last: [Option<usize>; MAX],
    /// The base pages that are mapped.
    pages: usize,
}

impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> Writer<'_, 'n, Mpt<'n, G, F, N>> {
    /// Maps what `foreign` maps of `pages`: the same frames with the same attributes, status bits included, in pages of the same sizes.
    /// A page that this table has no size for, or that extends beyond `pages`, or that would take the place of a
    /// [lent](Mpt::lend) link, is mapped in the largest pages that it can be mapped in. Returns how many base pages that is.
    ///
    /// `share` is called with each run of frames before it is mapped, when nothing can fail any more.
    ///
    /// A right that a link of `foreign` takes away is taken from the pages below. What the other software has stored in bits that hardware
    /// ignores is left out.
    ///
    /// Costs two walks for each entry, and what [`map`](Self::map) costs. The stack does not grow with the other table, and the time has
    /// a bound: see [`ForeignTable`].
    ///
    /// # Errors
    ///
    /// [`Error::Foreign`] with the first page whose entry this table cannot express; [`Error::Endless`]; the error of
    /// [`ForeignTable::check`]; [`Error::OutOfRange`], [`Error::Borrowed`], [`Error::Occupied`], [`Error::Marked`] or
    /// [`Error::NoMemory`]. Nothing has changed then. If words of `foreign` change meanwhile, [`Error::Changed`]: the pages before are
    /// mapped.
    pub fn take_over(
        &mut self,
        pages: Pages,
        foreign: &impl ForeignTable<F>,
        share: impl FnMut(Run),
    ) -> Result<usize, Error> {
        const { assert!(F::EXTRA == 0 && G::LINEAR.is_none(), "a node is its entries") };
        self.writing().or_mend(|writing| writing.take_over(pages, foreign, share))
    }
}

impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> Writing<'_, 'n, G, F, N> {
    #[inline(never)]
    fn take_over(
        mut self,
        pages: Pages,
        foreign: &impl ForeignTable<F>,
        mut share: impl FnMut(Run),
    ) -> Result<usize, Error> {
        let table = self.table();
        self.check(pages)?;
        let mut plan = Plan { want: [0; MAX], last: [None; MAX], pages: 0 };
        self.each_leaf(pages, foreign, |writing, leaf, part| {
            foreign.check(leaf)?;
            writing.each_run(leaf, part, |writing, run| writing.count(&mut plan, run))
        })?;
        let mut supply = Supply::empty(table);
        supply.take(&plan.want)?;
        let largest = G::SIZES.last().copied().unwrap_or(G::BASE);
        self.flush().add_all(appears::<F>(largest));
        // The contents of the frames are visible before the entries that lead to them.
        table.release();
        let (mut left, mut mapped, mut reached) = (plan.want, 0, pages.first());
        let done = self.each_leaf(pages, foreign, |writing, leaf, part| {
            reached = part.first();
            foreign.check(leaf)?;
            writing.each_run(leaf, part, |writing, run| {
                let PageRun { pages, frame, size, attr } = run;
                reached = pages.first();
                let want = writing.survey(pages, size)?;
                for (left, want) in left.iter_mut().zip(want) {
                    *left = left.checked_sub(want).ok_or(Error::OtherTable)?;
                }
                share(Run { first: frame, len: pages.len(), dirty: attr.contains(Attr::DIRTY) });
                writing.store(&mut supply, run)?;
                mapped += pages.len();
                Ok(())
            })
        });
        // What the dry run has accepted is refused, or is no longer there.
        if done.is_err() || mapped != plan.pages {
            return Err(Error::Changed { at: reached.address(G::BASE) });
        }
        Ok(mapped)
    }

    /// Adds the nodes that a run needs to a plan. Runs come in ascending order.
    fn count(&mut self, plan: &mut Plan, run: PageRun) -> Result<(), Error> {
        let (level, pages) = (Self::level_of(run.size), run.pages);
        let want = self.survey(pages, run.size)?;
        plan.pages += pages.len();
        let found = self.node_for(pages.first().address(G::BASE), level).level();
        for at in 1..=level {
            let number = |page: Vpn| page.get() / Self::slot_pages(at - 1);
            // The run before has counted the node with this run's first page, if that page has none yet.
            let again = at > found && plan.last[at] == Some(number(pages.first()));
            plan.want[at] += want[at] - usize::from(again && want[at] > 0);
            plan.last[at] = Some(number(pages.last()));
        }
        Ok(())
    }

    /// Calls `found` with each leaf of a foreign table, in ascending order, and with its pages in `pages`.
    fn each_leaf(
        &mut self,
        pages: Pages,
        foreign: &impl ForeignTable<F>,
        mut found: impl FnMut(&mut Self, &Leaf, Pages) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let (mut rest, mut left) = (Some(pages), MOST);
        while let Some(pages) = rest {
            left = left.checked_sub(1).ok_or(Error::Endless { at: pages.first().address(G::BASE) })?;
            let (end, leaf) = Self::foreign_entry(foreign, pages.first())?;
            let part = Pages::new(pages.first(), end.min(pages.last()));
            if let Some((leaf, part)) = leaf.zip(part) {
                found(self, &leaf, part)?;
            }
            rest = after(pages, end);
        }
        Ok(())
    }

    /// Walks a foreign table to the entry for a page. Returns the leaf there, if there is one, and the last page of the leaf, or of the
    /// slot that is empty.
    fn foreign_entry(foreign: &impl ForeignTable<F>, page: Vpn) -> Result<(Vpn, Option<Leaf>), Error> {
        let va = page.address(G::BASE);
        let (mut node, mut above) = (foreign.root(), 0);
        let mut path = [node; MAX];
        for level in 0..Self::LEVELS {
            let slot = Self::slot_size(level);
            let at = va.align_down(slot);
            let index = Self::index(level, va);
            let word = foreign.word(node, index);
            match F::foreign(word, above, slot, Self::is_last(level)) {
                Foreign::Absent => return Ok((Self::slot_end(level, page), None)),
                Foreign::Link(held) if !Self::is_last(level) => {
                    path[level] = node;
                    above = held;
                    node = NodeAddr::new(F::node(word).get() & !(F::LINK_ALIGN - 1));
                    if path[..=level].contains(&node) {
                        return Err(Error::Endless { at });
                    }
                }
                Foreign::Leaf(attr) => {
                    let leaf = Leaf { attr, ..Self::leaf(word, level, va) };
                    let leaf = Self::foreign_run(foreign, (node, level, above), leaf)?;
                    if !leaf.frame.is_aligned(leaf.size, G::BASE) {
                        return Err(Error::Foreign { at: leaf.at });
                    }
                    return Ok((G::SPACE.pages_of(&leaf).last(), Some(leaf)));
                }
                Foreign::Link(_) | Foreign::Unknown => return Err(Error::Foreign { at }),
            }
        }
        Err(Error::Foreign { at: va })
    }

    /// Checks that all slots of a foreign leaf have the same page, and adds their status bits to the leaf. The leaf was read in a node of
    /// a level below links that hold `above`.
    fn foreign_run(
        foreign: &impl ForeignTable<F>,
        (node, level, above): (NodeAddr, usize, u64),
        mut leaf: Leaf,
    ) -> Result<Leaf, Error> {
        let slot = Self::slot_size(level);
        if !Self::REPLICATED || leaf.size <= slot {
            return Ok(leaf);
        }
        let first = Self::index(level, leaf.at);
        for count in 0..1 << (leaf.size.shift() - slot.shift()) {
            let word = foreign.word(node, first + count);
            let at = VirtAddr::new(leaf.at.get() + (count << slot.shift()));
            let Foreign::Leaf(attr) = F::foreign(word, above, slot, Self::is_last(level)) else {
                return Err(Error::Foreign { at });
            };
            let is_same = F::size(word, slot) == leaf.size
                && F::frame(word, leaf.size) == leaf.frame
                && attr.difference(STATUS) == leaf.attr.difference(STATUS);
            if !is_same {
                return Err(Error::Foreign { at });
            }
            leaf.attr |= attr & STATUS;
        }
        Ok(leaf)
    }

    /// Calls `found` with the part of a leaf, in runs of the largest pages that this table can map there, no larger than the leaf.
    fn each_run(
        &mut self,
        leaf: &Leaf,
        part: Pages,
        mut found: impl FnMut(&mut Self, PageRun) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let whole = G::SPACE.pages_of(leaf).first();
        let mut rest = Some(part);
        while let Some(pages) = rest {
            let frame = Pfn::new(leaf.frame.get() + (pages.first().get() - whole.get()));
            let (pages, size) = self.largest(pages, leaf.size);
            found(self, PageRun { pages, frame, size, attr: leaf.attr })?;
            rest = after(part, pages.last());
        }
        Ok(())
    }

    /// Returns the first pages of `pages` that this table can map in one size, and the size: the largest that fits there, no larger than
    /// `most`. `pages` is a part of a leaf of size `most`, whose frames are aligned as its pages are.
    fn largest(&self, pages: Pages, most: PageSize) -> (Pages, PageSize) {
        let sizes = || {
            let fits = |size: &PageSize| *size <= most && self.table().check_lent(pages, *size).is_ok();
            G::SIZES.iter().copied().filter(fits)
        };
        let count = |size: PageSize| size.pages(G::BASE).unwrap_or(1);
        let first = pages.first();
        let begins = |size: &PageSize| first.is_aligned(*size, G::BASE) && count(*size) <= pages.len();
        let size = sizes().rfind(begins).unwrap_or(G::BASE);
        // Up to the next page of a larger size.
        let larger = sizes().find(|&larger| larger > size).map(count);
        let until = larger.map_or(usize::MAX, |larger| larger - (first.get() & (larger - 1)));
        let len = pages.len().min(until) / count(size) * count(size);
        (Pages::count(first, len).unwrap_or(Pages::one(first)), size)
    }
}
