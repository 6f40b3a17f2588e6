//! Entries that hold a mark instead of a PTE. A mark is a word in a leaf of base pages. It counts as a PTE when the size of a leaf
//! is chosen.

use tlbkit_addr::{FlushScope, Pages, Pfn, VirtAddr};

use super::Gpt;
use super::job::Ptes;
use super::layout::Layout;
use super::node_size::NodeSize;
use crate::format::{Format, entry_word, fill_word, is_taken};
use crate::geometry::Checked as _;
use crate::nodes::Nodes;
use crate::{Entry, Error, Geometry, Mark, Retired};

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, L: Layout<N>, P: NodeSize> Gpt<'n, G, F, N, L, P> {
    /// See [`Table::mark`](crate::Table::mark).
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and the batch came from this table.
    pub(super) unsafe fn mark_page(
        &self,
        batch: &mut Retired<'n>,
        at: VirtAddr,
        mark: Option<Mark>,
    ) -> Result<Entry, Error> {
        let word = entry_word::<F>(mark)?;
        let page = Pages::one(at.vpn(G::BASE));
        G::SPACE.check_pages(page)?;
        // SAFETY: the caller is the writer.
        unsafe {
            let old = self.find_entry(at.get());
            let reach = match old {
                Entry::Leaf(occupant) if occupant.size != G::BASE => return Err(Error::partial(&occupant)),
                Entry::Leaf(_) => FlushScope::Everywhere,
                Entry::Mark(_) => FlushScope::Nowhere,
                Entry::Empty if mark.is_none() => return Ok(old),
                Entry::Empty => return self.mark_empty(batch, page, word).map(|()| old),
            };
            if mark.is_some() {
                batch.touch(reach, page);
                self.store_over(at, word);
            } else if !self.unmap_one(batch, page, is_taken::<F>, reach) {
                batch.touch(reach, page);
                self.remove(batch, page, &mut None);
            }
            Ok(old)
        }
    }

    /// Stores a mark in an empty entry, with the leaf and the nodes that it needs.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and the batch came from this table.
    #[inline(never)]
    unsafe fn mark_empty(&self, batch: &mut Retired<'n>, page: Pages, word: F::Word) -> Result<(), Error> {
        // SAFETY: by this function's contract the caller is the writer, and the batch came from this table.
        unsafe {
            match self.map_one(batch, page, word, FlushScope::Nowhere) {
                Some(done) => done,
                None => {
                    let span = Self::span(page);
                    let ptes = Ptes::Frames(span.first, word);
                    self.insert_span(batch, span, G::BASE.shift(), false, ptes, &mut |_| ())
                }
            }
        }
    }

    /// Stores the word of a base page in the leaf that covers it.
    ///
    /// # Safety
    ///
    /// The caller is the only writer.
    unsafe fn store_over(&self, at: VirtAddr, word: F::Word) {
        // SAFETY: the caller is the writer; the leaf is live and the index below its slots.
        unsafe {
            if let Some(found) = L::seek(self.nodes, &self.root, G::VA_BITS, Self::TAG, at.get()) {
                let place = Self::pte_at(found.shift, found.index, at.get());
                self.nodes.publish(found.leaf, place, word);
                self.settle_pair(found.edge(), at.get());
            }
        }
    }

    /// See [`Table::fill`](crate::Table::fill).
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and the batch came from this table.
    pub(super) unsafe fn fill_page(
        &self,
        batch: &mut Retired<'n>,
        at: VirtAddr,
        payload: u64,
        frame: Pfn,
    ) -> Result<(), Error> {
        let page = Pages::one(at.vpn(G::BASE));
        G::SPACE.check_pages(page)?;
        G::SPACE.check_frames(frame, 1, G::BASE)?;
        // SAFETY: the caller is the writer.
        unsafe {
            let word = fill_word::<F>(at, self.find_entry(at.get()), payload, frame)?;
            batch.touch(F::APPEARS, page);
            self.store_over(at, word);
        }
        Ok(())
    }
}
