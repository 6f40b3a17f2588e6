//! Replacing a leaf.

use tlbkit_addr::{Attr, Flush, FlushScope, Pages, Pfn, VirtAddr};

use super::Mpt;
use super::resize::STATUS;
use super::shape::Shape;
use crate::format::Format;
use crate::geometry::Checked as _;
use crate::nodes::Nodes;
use crate::pairs::stale;
use crate::replace::{exchange, replacement};
use crate::{Change, Error, Leaf, Radix, Retired, Word};

impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> Mpt<'n, G, F, N> {
    /// See [`Table::replace`](crate::Table::replace). The leaf may occupy several slots.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and the batch came from this table.
    pub(super) unsafe fn replace_leaf(
        &self,
        batch: &mut Retired<'n>,
        at: VirtAddr,
        frame: Pfn,
        attr: Attr,
        flush_all_cpus: &mut dyn FnMut(&Flush),
    ) -> Result<Leaf, Error> {
        G::SPACE.check_pages(Pages::one(at.vpn(G::BASE)))?;
        self.check_own(Pages::one(at.vpn(G::BASE)))?;
        // SAFETY: the caller is the writer.
        let (word, level) = unsafe { self.descend(at, |word, level, _| (word, level)) };
        let last = level + 1 == Self::LEVELS;
        if !F::is_leaf(word, last) {
            return Err(Error::NotMapped { at });
        }
        let old = Self::leaf(word, level, at);
        let new = replacement::<G, F>(&old, frame, attr, last)?;
        let pages = G::SPACE.pages_of(&old);
        let stale = stale::<G, F>(pages, |_| Some(old.size));
        batch.touch(if F::BREAK_FRAME { F::APPEARS } else { FlushScope::Everywhere }, stale);
        // SAFETY: the caller is the writer; the parts of a leaf's pages are the slots that the leaf occupies.
        let store = |word| unsafe {
            let mut was = F::Word::ZERO;
            let mut noted = Attr::empty();
            let _ = self.sweep(pages, |part| {
                for slot in 0..part.slots {
                    let (node, index) = (part.path.node(level), part.index + slot);
                    // Above the last level each slot of a run is a part.
                    let from_first = part.first.get() - pages.first().get() + slot * Self::slot_pages(level);
                    let each = if F::SPREAD && F::is_leaf(word, last) { from_first } else { 0 };
                    let (place, word) = (Self::place(level, index), word.advance(F::STEP, each));
                    let old = self.exchange_leaf(node, place, self.read(node, place), word);
                    self.settle_pair(node, level, index);
                    if Self::RUNS && F::is_leaf(old, last) {
                        noted |= F::attr(old, last) & STATUS;
                    }
                    if !F::SPREAD || from_first == 0 {
                        was = old;
                    }
                }
                Ok(())
            });
            if Self::RUNS && !noted.is_empty() {
                was = F::change(was, Change::set(noted), last);
            }
            was
        };
        let was = exchange::<F>(store, new, stale, flush_all_cpus);
        Ok(Self::leaf(was, level, at))
    }
}
