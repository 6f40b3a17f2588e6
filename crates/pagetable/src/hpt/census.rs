//! Dry runs: the checks and counts of a range before a change of it begins.

use core::ops::ControlFlow;
use core::sync::atomic::Ordering;

use tlbkit_addr::{Pages, VirtAddr, Vpn};

use super::part::Part;
use super::visit::Visitor;
use super::{Hashed, MOVE, Sizes};
use crate::format::Format;
use crate::geometry::Checked as _;
use crate::nodes::Nodes;
use crate::pairs::stale;
use crate::{Entry, Error, Geometry, Holes};

/// The content of a range.
pub(super) struct Census {
    /// The number of base pages that are mapped.
    pub(super) pages: usize,
    /// The number of leaves, of any size.
    pub(super) leaves: usize,
    /// The number of marks.
    pub(super) marks: usize,
}

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Hashed<'n, G, F, N, S> {
    /// Tells whether only the finest grain is in use, so that no larger page can occupy a range.
    #[inline(always)]
    pub(super) fn is_finest(&self) -> bool {
        Self::GRAINS == 1 || self.grains.load(Ordering::Relaxed).is_multiple_of(MOVE)
    }

    /// Refuses a range that has more blocks than the table can have buckets, without a search of the range. Each block needs
    /// its own bucket: one in use, a first bucket, or a new one that the storage can provide.
    pub(super) fn check_room(&self, grain: usize, pages: Pages) -> Result<(), Error> {
        let (first, last) = Self::blocks_of(grain, pages);
        let there = self.used() + self.buckets();
        // One less than the number of blocks, which may exceed a `usize` by one.
        let wanted = (last - first).saturating_sub(there);
        if wanted > 0 && wanted > self.nodes.room(Self::NODE) {
            return Err(Error::no_memory(wanted, self.nodes.held()));
        }
        Ok(())
    }

    /// Returns an error if an entry occupies a page of a new mapping: that of the first such page.
    ///
    /// # Safety
    ///
    /// The caller is the only writer.
    pub(super) unsafe fn check_empty(&self, pages: Pages) -> Result<(), Error> {
        let mut first: Option<(VirtAddr, Entry)> = None;
        // The parts come in the order of their grains, or of their hashes.
        // SAFETY: by this function's contract the caller is the only writer.
        let _ = unsafe {
            self.parts(pages, Visitor::Writer, |part| {
                let _ = self.each_taken(part, |_, at, occupant| {
                    if first.is_none_or(|(before, _)| at < before) {
                        first = Some((at, occupant));
                    }
                    ControlFlow::Break(())
                });
                ControlFlow::Continue(())
            })
        };
        first.map_or(Ok(()), |(at, occupant)| Err(Error::taken(at, occupant)))
    }

    /// Returns an error if an entry occupies a slot of a part of a new mapping.
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - the caller is the only writer;
    /// - `part` is a part of a bucket of the table.
    #[inline(always)]
    pub(super) unsafe fn check_part(&self, part: Part) -> Result<(), Error> {
        let mut result = Ok(());
        // SAFETY: by this function's contract the caller is the only writer.
        let _ = unsafe {
            self.each_taken(part, |_, at, occupant| {
                result = Err(Error::taken(at, occupant));
                ControlFlow::Break(())
            })
        };
        result
    }

    /// Makes the dry run of an unmap or protect: counts the entries of a range, and refuses holes and pages that are only
    /// partly in the range. Counts marks only if `marks` is true.
    ///
    /// # Safety
    ///
    /// The caller is the only writer.
    pub(super) unsafe fn census(&self, pages: Pages, holes: Holes, marks: bool) -> Result<Census, Error> {
        let mut census = Census { pages: 0, leaves: 0, marks: 0 };
        // SAFETY: by this function's contract the caller is the only writer.
        unsafe {
            for end in [pages.first(), pages.last()] {
                if let Some(leaf) = self.find(end.address(G::BASE)) {
                    G::SPACE.check_whole(leaf, pages)?;
                } else if holes == Holes::Refuse && end == pages.first() {
                    return Err(Error::NotMapped { at: end.address(G::BASE) });
                }
            }
            if self.is_by_block(pages) {
                census =
                    if marks { self.count_blocks::<true>(pages) } else { self.count_blocks::<false>(pages) };
                return self.check_holes(census, pages, holes);
            }
            let _ = self.parts(pages, Visitor::Writer, |part| {
                let part = Self::known(part);
                if part.grain == 0 && !Self::REPLICATED {
                    self.count_part(&mut census, part, marks);
                    return ControlFlow::Continue(());
                }
                self.each_taken(part, |_, _, entry| {
                    match entry {
                        Entry::Leaf(leaf) => {
                            census.leaves += 1;
                            census.pages += leaf.size.pages(G::BASE).unwrap_or(1);
                        }
                        Entry::Mark(_) => census.marks += 1,
                        Entry::Empty => {}
                    }
                    ControlFlow::Continue(())
                })
            });
            self.check_holes(census, pages, holes)
        }
    }

    /// Refuses holes in a range of which `census` is the content.
    ///
    /// # Safety
    ///
    /// The caller is the only writer.
    #[inline(always)]
    unsafe fn check_holes(&self, census: Census, pages: Pages, holes: Holes) -> Result<Census, Error> {
        if holes == Holes::Refuse && census.pages < pages.len() {
            // SAFETY: by this function's contract the caller is the only writer.
            return Err(unsafe { self.first_hole(pages) });
        }
        Ok(census)
    }

    /// Tells whether a change of a range may go from block to block, with one probe for each: only base pages are mapped, each
    /// in one slot, and the table has more buckets than the range has blocks.
    #[inline(always)]
    pub(super) fn is_by_block(&self, pages: Pages) -> bool {
        let (first, last) = Self::blocks_of(0, pages);
        !Self::REPLICATED && self.is_finest() && last - first < self.buckets()
    }

    /// Counts the entries of a range that [`is_by_block`](Self::is_by_block); marks only if `MARKS` is true.
    ///
    /// # Safety
    ///
    /// The caller is the only writer.
    #[inline(always)]
    unsafe fn count_blocks<const MARKS: bool>(&self, pages: Pages) -> Census {
        let (first, last) = Self::blocks_of(0, pages);
        let mut census = Census { pages: 0, leaves: 0, marks: 0 };
        // No block's number is the largest `usize`, and this range compiles to a simpler loop than `first..=last`.
        for block in first..last + 1 {
            // SAFETY: by this function's contract the caller is the only writer; the slots of a part are in its bucket.
            unsafe {
                let Some(spot) = self.seek(self.head(block), Self::tag_of(0, block)) else { continue };
                if Self::SLOTS == 1 || block > first && block < last {
                    self.count_part(&mut census, Self::whole(spot, 0, block), MARKS);
                } else if let Some(part) = Self::part(spot, 0, block, pages) {
                    self.count_part(&mut census, part, MARKS);
                }
            }
        }
        census
    }

    /// Adds the entries of a part of a bucket of base pages; marks only if `marks` is true.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and `part` is a part of a bucket of the table.
    #[inline(always)]
    unsafe fn count_part(&self, census: &mut Census, part: Part, marks: bool) {
        // SAFETY: by this function's contract the caller is the only writer, and the slots are in the bucket.
        unsafe {
            let leaves = self.count_leaves(part.spot, part.block, part.slot, part.slots);
            census.leaves += leaves;
            census.pages += leaves;
            if marks && leaves < part.slots {
                census.marks += self.count_taken(part.spot, part.block, part.slot, part.slots) - leaves;
            }
        }
    }

    /// Returns the error for the first page of a range that is not mapped. There must be such a page.
    ///
    /// # Safety
    ///
    /// The caller is the only writer.
    #[cold]
    pub(super) unsafe fn first_hole(&self, pages: Pages) -> Error {
        let mut page = pages.first();
        // SAFETY: by this function's contract the caller is the only writer.
        while let Some(leaf) = unsafe { self.find(page.address(G::BASE)) }
            && G::SPACE.pages_of(&leaf).last() < pages.last()
        {
            page = Vpn::new(G::SPACE.pages_of(&leaf).last().get() + 1);
        }
        Error::NotMapped { at: page.address(G::BASE) }
    }

    /// Returns the pages whose translations become stale by a change of the leaves in `pages`, all of which are whole.
    ///
    /// # Safety
    ///
    /// The caller is the only writer.
    pub(super) unsafe fn stale(&self, pages: Pages) -> Pages {
        // SAFETY: by this function's contract the caller is the only writer.
        stale::<G, F>(pages, |page| unsafe { self.find(page.address(G::BASE)) }.map(|leaf| leaf.size))
    }
}
