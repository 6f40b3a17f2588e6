//! Splitting a page into smaller ones, and promoting small ones to a larger.

use core::ops::ControlFlow;

use tlbkit_addr::{Attr, Flush, FlushScope, PageSize, Pages, Pfn, VirtAddr};

use super::leaf::Decode as _;
use super::node::{NodeMut, NodeRef, Seen, Subtree, Supply, Writing};
use super::shape::{MAX, Shape};
pub(super) use crate::dry_run::STATUS;
use crate::dry_run::{Leaves, Piece, check_resize};
use crate::format::{Format, walked};
use crate::geometry::Checked as _;
use crate::nodes::Nodes;
use crate::pairs::stale;
use crate::{Change, Error, FlushAll, Leaf, Radix, Word};

/// The slots of one piece of a node, which are to become leaves of size `to`.
pub(super) struct Remade {
    pub(super) index: usize,
    pub(super) slots: usize,
    pub(super) to: PageSize,
}

impl Remade {
    /// Returns the first frame of a slot of `node`, where `leaf` begins in the first slot of the piece.
    pub(super) fn frame_of<G: Radix, F: Format, N: Nodes<Word = F::Word>>(
        &self,
        node: NodeRef<'_, '_, G, F, N>,
        leaf: Leaf,
        index: usize,
    ) -> Pfn {
        let cover = NodeRef::<'_, '_, G, F, N>::slot_pages(node.level());
        Pfn::new(leaf.frame.get() + (index - self.index) * cover)
    }
}

/// A guard for slots that have been emptied: its drop, also by an unwinding, stores in them again what they held.
struct Emptied<'g, 'w, 'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> {
    node: &'g NodeMut<'w, 'n, G, F, N>,
    index: usize,
    slots: usize,
    /// What the first slot held; the others held the same leaf.
    old: Option<Subtree<'w, 'n, G, F, N>>,
}

impl<G: Radix, F: Format, N: Nodes<Word = F::Word>> Drop for Emptied<'_, '_, '_, G, F, N> {
    fn drop(&mut self) {
        if let Some(old) = self.old.take() {
            let word = old.seen().word();
            (self.index + 1..self.index + self.slots).for_each(|index| self.node.at(index).publish(word));
            self.node.put(self.index, old);
            self.node.settle_ends(self.index, self.slots);
        }
    }
}

impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> Writing<'_, 'n, G, F, N> {
    /// See [`Table::resize`](crate::Table::resize).
    #[inline(never)]
    pub(super) fn resize(
        self,
        pages: Pages,
        to: PageSize,
        flush_all_cpus: FlushAll<'_>,
    ) -> Result<(), Error> {
        let flush_all_cpus = flush_all_cpus.of(F::BREAK)?;
        self.or_mend(|mut writing| {
            G::SPACE.check_sized(pages, to)?;
            let table = writing.table();
            writing.check(pages)?;
            table.check_lent(pages, to)?;
            let mut supply = Supply::empty(table);
            Self::plan(writing.view(), pages, to, &mut supply)?;
            let mut rest = Some(pages);
            while let Some(pages) = rest {
                let piece = Piece::first(writing.view(), pages, to)?;
                if piece.leaf.size != to {
                    writing.remake(&mut supply, &piece, to, flush_all_cpus);
                }
                rest = piece.rest(pages);
            }
            Ok(())
        })
    }

    /// Checks every piece, as the dry run, and takes the nodes that splits need at each level. The pages are in the space and not
    /// borrowed.
    #[inline(never)]
    fn plan(
        root: NodeRef<'_, 'n, G, F, N>,
        pages: Pages,
        to: PageSize,
        supply: &mut Supply<'n, G, F, N>,
    ) -> Result<(), Error> {
        let mut want = [0; MAX];
        check_resize(root, pages, to, |piece| {
            let (level, bottom) = (Self::level_of(piece.leaf.size), Self::level_of(to));
            for below in level + 1..=bottom {
                want[below] += piece.pages.len() / Self::slot_pages(below - 1);
            }
        })?;
        supply.take(&want)
    }

    /// Replaces the leaves of a piece, which the dry run has accepted, by leaves of size `to`. The supply has the nodes that the dry
    /// run has counted.
    #[inline(never)]
    fn remake(
        &mut self,
        supply: &mut Supply<'n, G, F, N>,
        whole: &Piece,
        to: PageSize,
        flush_all_cpus: &mut dyn FnMut(&Flush),
    ) {
        let Piece { pages: piece, leaf } = *whole;
        let at = piece.first().address(G::BASE);
        // The slots that change: those of the larger of the two sizes.
        let level = Self::level_of(leaf.size.max(to));
        let slots = piece.len() / Self::slot_pages(level).min(piece.len());
        let stale = stale::<G, F>(piece, |_| Some(leaf.size.max(to)));
        // Hardware may set A and D until the exchange; the exchange returns them.
        let noted = if F::STATUS { Attr::empty() } else { whole.status(self.view()) };
        let leaf = Leaf { attr: leaf.attr.union(noted), ..leaf };
        let mut node = self.node_for(at, level);
        let part = Remade { index: node.index_of(at), slots, to };
        let mut flush = Flush::none();
        // The slots of a run may be leaves and links, whatever its first one is.
        let mut was_link = (part.index..part.index + slots).map(|index| node.read(index).link().is_some());
        if walked::<F>() && (level != Self::level_of(to) || was_link.any(|was| was)) {
            flush.add_links(FlushScope::Everywhere, stale);
        } else {
            flush.add(FlushScope::Everywhere, stale);
        }
        node.flush().merge(&flush);
        let flush_all_cpus = &mut || flush_all_cpus(&flush);
        if Self::RUNS && slots > 1 {
            node.remake_run(supply, &part, leaf, flush_all_cpus);
        } else if F::BREAK {
            node.break_and_make(supply, &part, leaf, flush_all_cpus);
        } else if F::STATUS {
            node.exchange(supply, &part, leaf, flush_all_cpus);
        } else {
            for index in part.index..part.index + slots {
                let new =
                    Subtree::build(*node, index, supply, part.frame_of(*node, leaf, index), to, leaf.attr);
                let old = node.replace(index, new);
                node.discard(old);
            }
            node.settle_ends(part.index, slots);
        }
        let entries = piece.len() / Self::slot_pages(Self::level_of(to)).min(piece.len());
        self.table().count_ptes(entries as isize);
    }
}

impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> Leaves for NodeRef<'_, 'n, G, F, N> {
    type G = G;
    type F = F;

    fn leaf_at(self, at: VirtAddr) -> Option<Leaf> {
        let seen = self.last_seen(at);
        let level = seen.node().level();
        Self::is_leaf(seen.word(), level).then(|| Self::leaf(seen.word(), level, at))
    }

    fn each_leaf_of(self, pages: Pages, visit: &mut dyn FnMut(Leaf) -> ControlFlow<()>) {
        let _ = self.visit(pages, visit);
    }

    fn is_last_size(size: PageSize) -> bool {
        Self::is_last(Self::level_of(size))
    }
}

impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> NodeMut<'_, 'n, G, F, N> {
    /// Makes the two words of each TLB entry at the ends of a run of slots agree.
    #[inline(always)]
    pub(super) fn settle_ends(&self, index: usize, slots: usize) {
        self.at(index).settle_pair();
        self.at(index + slots - 1).settle_pair();
    }

    /// Replaces a slot in place while hardware may set status bits in it. Until the flush, CPUs use the old or the new
    /// translation.
    ///
    /// *No status bit is lost.* If hardware sets a bit in the slot before the exchange, the exchange fails and is repeated with
    /// that bit. (Hardware sets each of two bits once, so there are three attempts at most.) After the exchange hardware sets
    /// bits in the new word, also for a TLB entry that it loaded from the old leaf without D: it sets D with another walk or with
    /// a compare-and-exchange of its own, as the manuals say that the format's module quotes. One case remains. When small pages
    /// become a larger one, a CPU that has cached the old link may set bits in the old node until that CPU has flushed. So unless
    /// the new leaf has all status bits, `flush_all_cpus` is called, and then the old node is read again.
    ///
    /// The part has one slot, and the supply has the nodes for it.
    fn exchange(
        &mut self,
        supply: &mut Supply<'n, G, F, N>,
        part: &Remade,
        leaf: Leaf,
        flush_all_cpus: &mut dyn FnMut(),
    ) {
        let &Remade { index, to, .. } = part;
        let mut seen = self.peek(index);
        let attr = leaf.attr.union(seen.status());
        let mut new = Subtree::build(**self, index, supply, leaf.frame, to, attr);
        let stored = loop {
            let word = new.seen().word();
            if self.swap_seen(&mut seen, &mut new) {
                break word;
            }
            new.note(seen.status());
        };
        let old = self.discard(new);
        let last = Self::is_last(self.level());
        let all = F::OPTIONAL.intersection(STATUS);
        if old.link().is_some() && !F::attr(stored, last).contains(all) {
            flush_all_cpus();
            let noted = Change::set(old.status());
            self.at(index).change_live(|word| F::change(word, noted, last));
        }
    }

    /// Empties the slots of a piece, calls `flush_all_cpus`, and then fills the slots.
    ///
    /// If `flush_all_cpus` unwinds, a TLB may still hold the old leaves, so new leaves must not be stored: the old leaves are put
    /// back. Small pages in several slots, which were to become a larger page, stay unmapped.
    ///
    /// The new leaves get the status bits that hardware sets until `flush_all_cpus` returns. Below an old link hardware sets bits
    /// until every CPU has flushed the link.
    ///
    /// The supply has the nodes for the part. In a format whose hardware sets status bits the part has one slot, and
    /// [`remake_run`](Self::remake_run) handles several.
    fn break_and_make(
        &mut self,
        supply: &mut Supply<'n, G, F, N>,
        part: &Remade,
        leaf: Leaf,
        flush_all_cpus: &mut dyn FnMut(),
    ) {
        let &Remade { index: first, slots, to } = part;
        // The slots of a larger page that is split all hold the same word.
        let alike = slots == 1 || leaf.size > to;
        let mut old = None;
        for index in first..first + slots {
            let taken = self.take_out(index);
            if !alike {
                self.discard(taken);
            } else if index == first {
                old = Some(taken);
            }
        }
        self.settle_ends(first, slots);
        let mut emptied = Emptied { node: self, index: first, slots, old };
        flush_all_cpus();
        let old = emptied.old.take();
        drop(emptied);
        let mut attr = leaf.attr;
        if let Some(old) = old {
            attr |= if F::STATUS { old.seen().status() } else { Attr::empty() };
            self.discard(old);
            // The other slots held a leaf each.
            self.table().count_ptes(1 - slots as isize);
        }
        for index in first..first + slots {
            let frame = part.frame_of(**self, leaf, index);
            self.put(index, Subtree::build(**self, index, supply, frame, to, attr));
        }
        self.settle_ends(first, slots);
    }
}

impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> Seen<'_, 'n, G, F, N> {
    /// Returns the status bits of the word, or the union of those of all leaves below it. The word may have been taken out of the
    /// table.
    pub(super) fn status(self) -> Attr {
        let level = self.node().level();
        if Self::is_leaf(self.word(), level) {
            return Self::leaf(self.word(), level, VirtAddr::new(0)).attr & STATUS;
        }
        let mut status = Attr::empty();
        if let Some(below) = self.link() {
            for index in 0..Self::slots(below.level()) {
                status |= below.seen(index).status();
            }
        }
        status
    }
}

impl<'w, 'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> Subtree<'w, 'n, G, F, N> {
    /// Returns the entry for the slot `index` of a node that maps the frames from `frame` on with pages of size `to`: a leaf, or a
    /// link to a complete subtree, of nodes from the supply.
    pub(super) fn build(
        node: NodeRef<'w, 'n, G, F, N>,
        index: usize,
        supply: &mut Supply<'n, G, F, N>,
        frame: Pfn,
        to: PageSize,
        attr: Attr,
    ) -> Self {
        let level = node.level();
        if level == Self::level_of(to) {
            let first = Pfn::new(frame.get() & !(to.pages(G::BASE).unwrap_or(1) - 1));
            // The encoding cannot fail: the dry run has tried it, or the leaf that is split has these attributes and frames.
            let word = F::leaf(first, to, attr, Self::is_last(level)).unwrap_or(F::Word::ZERO);
            let part = if F::SPREAD { frame.get() - first.get() } else { 0 };
            return Self::leaf_of(node, index, word.advance(F::STEP, part));
        }
        let Some(new) = Self::take(node, index, supply, level + 1) else {
            return Self::leaf_of(node, index, F::Word::ZERO);
        };
        new.filled(|below, index| {
            let frame = Pfn::new(frame.get() + index * Self::slot_pages(level + 1));
            Self::build(below, index, supply, frame, to, attr)
        })
    }

    /// Adds status bits to the entry, which no walker can reach yet, or to every leaf below it.
    pub(super) fn note(&mut self, status: Attr) {
        if !status.is_empty() {
            self.edit(&|word, last| F::change(word, Change::set(status), last));
        }
    }
}
