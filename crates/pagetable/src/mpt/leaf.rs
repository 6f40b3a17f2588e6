//! Changes of one leaf in a slot that a walk has found: what changes of a single page, and the cursor, stand on. The walk is
//! the dry run: each function checks, then stores, and what fails has changed nothing. Nothing here unwinds, but for `known`.

use tlbkit_addr::{Attr, Flush, Pages, Pfn, Reach, VirtAddr, Vpn};

use super::Mpt;
use super::shape::Shape;
use crate::format::{Format, check_attr, check_change};
use crate::geometry::Checked as _;
use crate::nodes::{NodeAddr, Nodes};
use crate::pairs::stale;
use crate::replace::{exchange, replacement};
use crate::{Change, Error, Leaf, Radix, Retired, Word};

/// The node in which the walk for a page ended.
#[derive(Clone, Copy)]
pub(super) struct Spot {
    pub(super) node: NodeAddr,
    pub(super) level: usize,
}

impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> Mpt<'n, G, F, N> {
    /// Walks to the slot for `at`.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and `at` is in the space; so for the functions beside it, and a spot is the one for `at`
    /// in the table as it is.
    #[inline(always)]
    pub(super) unsafe fn spot(&self, at: VirtAddr) -> Spot {
        // SAFETY: the caller is the writer.
        unsafe { self.descend(at, |_, level, node| Spot { node, level }) }
    }

    /// Returns the last-level node of a page, if there is one and `pages` is that page.
    #[inline(always)]
    pub(super) unsafe fn small_spot(&self, pages: Pages) -> Option<Spot> {
        if pages.first() != pages.last() || G::SPACE.check_pages(pages).is_err() {
            return None;
        }
        // SAFETY: the caller is the writer, and the page is in the space.
        let spot = unsafe { self.spot(pages.first().address(G::BASE)) };
        // The level as a constant, so that shifts and masks are.
        (spot.level + 1 == Self::LEVELS).then_some(Spot { level: Self::LEVELS - 1, ..spot })
    }

    /// Returns the last-level node of a page that is mapped by itself, if `pages` is that page.
    #[inline(always)]
    pub(super) unsafe fn small_leaf(&self, pages: Pages) -> Option<Spot> {
        // SAFETY: the caller's promise.
        unsafe {
            let spot = self.small_spot(pages)?;
            let leaf = self.leaf_at(spot, pages.first().address(G::BASE))?;
            (!Self::REPLICATED || leaf.size == G::BASE).then_some(spot)
        }
    }

    /// Returns the word for `at` and its place in the node.
    #[inline(always)]
    pub(super) unsafe fn word_at(&self, spot: Spot, at: VirtAddr) -> (F::Word, usize) {
        let place = Self::place(spot.level, Self::index(spot.level, at));
        // SAFETY: the place is in the node.
        (unsafe { self.read(spot.node, place) }, place)
    }

    /// Returns the leaf that maps `at`.
    #[inline(always)]
    pub(super) unsafe fn leaf_at(&self, spot: Spot, at: VirtAddr) -> Option<Leaf> {
        // SAFETY: the caller's promise.
        let (word, _) = unsafe { self.word_at(spot, at) };
        F::is_leaf(word, spot.level + 1 == Self::LEVELS).then(|| Self::leaf(word, spot.level, at))
    }

    /// Returns the pages of a leaf, and what a change of it makes stale.
    #[inline(always)]
    fn stale_of(leaf: &Leaf) -> Pages {
        let pages =
            if leaf.size == G::BASE { Pages::one(leaf.at.vpn(G::BASE)) } else { G::SPACE.pages_of(leaf) };
        stale::<G, F>(pages, |_| Some(leaf.size))
    }

    /// Maps one base page, whose last-level node the spot is.
    #[inline(always)]
    pub(super) unsafe fn map_at(
        &self,
        batch: &mut Retired<'n>,
        spot: Spot,
        page: Vpn,
        frame: Pfn,
        attr: Attr,
    ) -> Result<(), Error> {
        let (last, at) = (Self::LEVELS - 1, page.address(G::BASE));
        G::SPACE.check_frames(frame, 1, G::BASE)?;
        self.check_own(Pages::one(page))?;
        check_attr::<F>(attr)?;
        let word = F::leaf(frame, G::BASE, attr, true)?;
        let index = Self::index(last, at);
        // SAFETY: the node is ours to write and the index within it.
        unsafe {
            let old = self.read(spot.node, Self::place(last, index));
            if old != F::Word::ZERO {
                Self::taken(old, at)?;
            }
            self.publish(spot.node, Self::place(last, index), word);
            self.settle_pair(spot.node, last, index);
            self.count(spot.node, last, 1);
        }
        self.tally.ptes(1);
        batch.touch(F::APPEARS, Pages::one(page));
        Ok(())
    }

    /// Unmaps the leaf that maps `at`, and returns it with what hardware has noted up to the store.
    ///
    /// # Errors
    ///
    /// [`Error::NotMapped`] or [`Error::Borrowed`].
    #[inline(always)]
    pub(super) unsafe fn unmap_at(
        &self,
        batch: &mut Retired<'n>,
        spot: Spot,
        at: VirtAddr,
    ) -> Result<Leaf, Error> {
        let Spot { node, level } = spot;
        let (last, index) = (level + 1 == Self::LEVELS, Self::index(level, at));
        let place = Self::place(level, index);
        self.check_own(Pages::one(at.vpn(G::BASE)))?;
        // SAFETY: the slot is in the node, and the caller is the writer.
        unsafe {
            let word = self.read(node, place);
            if !F::is_leaf(word, last) {
                return Err(Error::NotMapped { at });
            }
            let word = if F::STATUS {
                // Hardware may note something up to this moment.
                self.swap(node, place, F::Word::ZERO)
            } else {
                self.put(node, place, F::Word::ZERO);
                word
            };
            self.settle_pair(node, level, index);
            self.tally.ptes(-1);
            let leaf = Self::leaf(word, level, at);
            batch.touch(Reach::Everywhere, Self::stale_of(&leaf));
            if self.count(node, level, -1) == 0 && level > 0 {
                self.prune(batch, level, at);
            }
            Ok(leaf)
        }
    }

    /// Changes the attributes of the leaf that maps `at`, and returns it as it was.
    ///
    /// # Errors
    ///
    /// [`Error::NotMapped`], [`Error::Borrowed`] or [`Error::WrongAttr`].
    #[inline(always)]
    pub(super) unsafe fn protect_at(
        &self,
        batch: &mut Retired<'n>,
        spot: Spot,
        at: VirtAddr,
        change: Change,
    ) -> Result<Leaf, Error> {
        let Spot { node, level } = spot;
        let (last, index) = (level + 1 == Self::LEVELS, Self::index(level, at));
        let place = Self::place(level, index);
        self.check_own(Pages::one(at.vpn(G::BASE)))?;
        check_change::<F>(change)?;
        // SAFETY: the slot is in the node, and the caller is the only writer but hardware.
        unsafe {
            let mut old = self.read(node, place);
            if !F::is_leaf(old, last) {
                return Err(Error::NotMapped { at });
            }
            if F::STATUS {
                // Hardware sets bits alone, each once: it remains a leaf.
                while let Err(now) = F::Word::exchange(self.cell(node, place), old, F::change(old, change)) {
                    old = now;
                }
                self.exchanged(node, place, old, F::change(old, change));
            } else {
                self.put(node, place, F::change(old, change));
                if F::PAIRED && change.set.union(change.clear).contains(Attr::GLOBAL) {
                    self.settle_pair(node, level, index);
                }
            }
            let leaf = Self::leaf(old, level, at);
            batch.touch(change.reach(), Self::stale_of(&leaf));
            Ok(leaf)
        }
    }

    /// Replaces the leaf that maps `at`; see [`Table::replace`](crate::Table::replace).
    #[inline(always)]
    pub(super) unsafe fn replace_at(
        &self,
        batch: &mut Retired<'n>,
        spot: Spot,
        at: VirtAddr,
        frame: Pfn,
        attr: Attr,
        known: &mut dyn FnMut(&Flush),
    ) -> Result<Leaf, Error> {
        let Spot { node, level } = spot;
        let (last, index) = (level + 1 == Self::LEVELS, Self::index(level, at));
        let place = Self::place(level, index);
        self.check_own(Pages::one(at.vpn(G::BASE)))?;
        // SAFETY: the slot is in the node, and the caller is the writer.
        let word = unsafe { self.read(node, place) };
        if !F::is_leaf(word, last) {
            return Err(Error::NotMapped { at });
        }
        let old = Self::leaf(word, level, at);
        let new = replacement::<G, F>(&old, frame, attr, last)?;
        let stale = Self::stale_of(&old);
        batch.touch(if F::BREAK_FRAME { F::APPEARS } else { Reach::Everywhere }, stale);
        // SAFETY: as above.
        let store = |word| unsafe {
            let was = if F::STATUS {
                // Hardware may note an access up to this moment.
                self.swap(node, place, word)
            } else {
                let was = self.read(node, place);
                self.publish(node, place, word);
                was
            };
            self.settle_pair(node, level, index);
            was
        };
        Ok(Self::leaf(exchange::<F>(store, new, stale, known), level, at))
    }
}
