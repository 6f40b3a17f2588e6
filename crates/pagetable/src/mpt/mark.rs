//! Entries that hold a mark instead of a leaf.
//!
//! ```text
//!             mark                     fill
//!   leaf ------------> mark --------------------> leaf       one store each
//!     one store; TLBs are flushed      no TLB has it, as if it were mapped where nothing was
//! ```

use tlbkit_addr::{FlushScope, Pages, Pfn, VirtAddr};

use super::leaf::Decode as _;
use super::node::{NodeMut, Supply, Writing};
use super::own_pages;
use super::shape::{MAX, Shape};
use crate::format::{Format, entry_word, fill_word, is_gone, walked};
use crate::geometry::Checked as _;
use crate::nodes::Nodes;
use crate::{Entry, Error, Mark, Radix};

impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> Writing<'_, 'n, G, F, N> {
    /// See [`Table::mark`](crate::Table::mark).
    #[inline(never)]
    pub(super) fn mark(self, at: VirtAddr, mark: Option<Mark>) -> Result<Entry, Error> {
        self.or_mend(|mut writing| {
            let page = Pages::one(at.vpn(G::BASE));
            G::SPACE.check_pages(page)?;
            let word = entry_word::<F>(mark)?;
            writing.check_part(page)?;
            writing.table().check_own(page)?;
            let mut node = writing.node_for(at, Self::LEVELS - 1);
            let (level, index) = (node.level(), node.index_of(at));
            let old = node.read(index).content(at);
            match old {
                Entry::Leaf(occupant) if occupant.size != G::BASE => return Err(Error::partial(&occupant)),
                Entry::Empty if mark.is_none() => return Ok(old),
                Entry::Empty if is_gone::<F>(node.read(index).word()) => return Err(Error::Marked { at }),
                Entry::Empty => return writing.mark_empty(level, at, word).map(|()| old),
                Entry::Leaf(_) | Entry::Mark(_) => {}
            }
            let place = node.at(index);
            let was = if let Entry::Leaf(_) = old {
                let was = place.exchange_leaf(place.read(), word);
                place.settle_pair();
                node.touch(FlushScope::Everywhere, page, false);
                Entry::Leaf(Self::leaf(was, level, at))
            } else {
                place.store_relaxed(word);
                place.settle_pair();
                old
            };
            if mark.is_none() {
                node.table().count_ptes(-1);
                if node.sub_live(1) == 0 && level > 0 {
                    writing.root().prune(level, at);
                }
            }
            Ok(was)
        })
    }

    /// Stores a mark in an empty slot of `level`, and links the nodes that are missing on the way to it.
    fn mark_empty(&mut self, level: usize, at: VirtAddr, word: F::Word) -> Result<(), Error> {
        let (last, page) = (Self::LEVELS - 1, Pages::one(at.vpn(G::BASE)));
        let mut want = [0; MAX];
        want.iter_mut().take(Self::LEVELS).skip(level + 1).for_each(|want| *want = 1);
        let mut supply = Supply::empty(self.table());
        supply.take(&want)?;
        for level in level + 1..Self::LEVELS {
            if let Some(own) = own_pages::<G>(level, page) {
                self.touch(F::APPEARS, own, false);
            }
        }
        if walked::<F>() && level < last {
            self.touch(F::APPEARS, page, true);
        }
        let node = self.reach(&mut supply, at, last);
        let place = node.at(node.index_of(at));
        place.store_relaxed(word);
        place.settle_pair();
        place.count_in();
        self.table().count_ptes(1);
        Ok(())
    }

    /// See [`Table::fill`](crate::Table::fill).
    pub(super) fn fill(mut self, at: VirtAddr, payload: u64, frame: Pfn) -> Result<(), Error> {
        let page = Pages::one(at.vpn(G::BASE));
        G::SPACE.check_pages(page)?;
        self.check_part(page)?;
        self.node_for(at, Self::LEVELS - 1).fill_mark(at, payload, frame)
    }
}

impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> NodeMut<'_, 'n, G, F, N> {
    /// Stores a leaf in place of the mark for `at`, which this node holds; see [`Table::fill`](crate::Table::fill).
    #[inline(always)]
    pub(super) fn fill_mark(&mut self, at: VirtAddr, payload: u64, frame: Pfn) -> Result<(), Error> {
        let page = Pages::one(at.vpn(G::BASE));
        G::SPACE.check_frames(frame, 1, G::BASE)?;
        self.table().check_own(page)?;
        let place = self.at(self.index_of(at));
        let word = fill_word::<F>(at, self.read(self.index_of(at)).content(at), payload, frame)?;
        place.publish(word);
        place.settle_pair();
        self.flush().add(F::APPEARS, page);
        Ok(())
    }
}
