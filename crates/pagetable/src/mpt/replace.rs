//! Replacing a leaf.

use tlbkit_addr::{Attr, FlushScope, Pages, Pfn, VirtAddr};

use super::Encoded;
use super::leaf::Decode as _;
use super::node::Writing;
use super::shape::Shape;
use crate::dry_run::STATUS;
use crate::format::Format;
use crate::geometry::Checked as _;
use crate::nodes::Nodes;
use crate::pairs::stale;
use crate::replace::{exchange, replacement};
use crate::{Change, Error, FlushAll, Leaf, Radix, Word};

impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> Writing<'_, 'n, G, F, N> {
    /// See [`Table::replace`](crate::Table::replace).
    #[inline(always)]
    pub(super) fn replace(
        mut self,
        at: VirtAddr,
        frame: Pfn,
        attr: Attr,
        flush_all_cpus: FlushAll<'_>,
    ) -> Result<Leaf, Error> {
        if !F::BREAK_FRAME
            && let Some(slot) = self.slot(at.vpn(G::BASE))
            && let Some(attr) = Encoded::new(attr)
            && let Some((leaf, stale)) = slot.replace(frame, attr, FlushAll::in_place(&mut |_| ()))
        {
            self.flush().add(stale.scope, stale.pages);
            return Ok(leaf);
        }
        self.replace_leaf(at, frame, attr, flush_all_cpus)
    }

    /// Replaces a leaf in any number of slots.
    #[inline(never)]
    pub(super) fn replace_leaf(
        self,
        at: VirtAddr,
        frame: Pfn,
        attr: Attr,
        flush_all_cpus: FlushAll<'_>,
    ) -> Result<Leaf, Error> {
        let flush_all_cpus = flush_all_cpus.of(F::BREAK_FRAME)?;
        self.or_mend(|mut writing| {
            writing.check(Pages::one(at.vpn(G::BASE)))?;
            let seen = writing.view().last_seen(at);
            let (word, level) = (seen.word(), seen.node().level());
            let last = Self::is_last(level);
            if !F::is_leaf(word, last) {
                return Err(Error::NotMapped { at });
            }
            let old = Self::leaf(word, level, at);
            let new = replacement::<G, F>(&old, frame, attr, last)?;
            let pages = G::SPACE.pages_of(&old);
            let stale = stale::<G, F>(pages, |_| Some(old.size));
            writing.touch(if F::BREAK_FRAME { F::APPEARS } else { FlushScope::Everywhere }, stale, false);
            // The parts of a leaf's pages are the slots that the leaf occupies.
            let store = |word| {
                let mut was = F::Word::ZERO;
                let mut noted = Attr::empty();
                let _ = writing.sweep(pages, &mut |part| {
                    for slot in 0..part.slots {
                        // Above the last level each slot of a run is a part.
                        let from_first =
                            part.first.get() - pages.first().get() + slot * Self::slot_pages(level);
                        let each = if F::SPREAD && F::is_leaf(word, last) { from_first } else { 0 };
                        let place = part.at(slot);
                        let old = place.exchange_leaf(place.read(), word.advance(F::STEP, each));
                        place.settle_pair();
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
        })
    }
}
