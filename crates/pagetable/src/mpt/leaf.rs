//! What the words of a table's slots mean.

use tlbkit_addr::{Attr, Pages, Pfn, VirtAddr, Vpn};

use super::shape::Shape;
use crate::format::{Format, mark_of};
use crate::{Entry, Geometry as _, Half, Leaf, Run, Word as _};

/// The words of a table.
pub(super) type WordOf<S> = <<S as Shape>::F as Format>::Word;

/// Decodes the words of a table of this shape.
pub(super) trait Decode: Shape {
    /// Tells whether a node of `level` is of the last level.
    #[inline(always)]
    fn is_last(level: usize) -> bool {
        level + 1 == Self::LEVELS
    }

    /// Tells whether a word in a slot of `level` is a link to a node.
    #[inline(always)]
    fn is_link(word: WordOf<Self>, level: usize) -> bool {
        !Self::is_last(level) && Self::F::is_link(word)
    }

    /// Tells whether a word in a slot of `level` is a leaf.
    #[inline(always)]
    fn is_leaf(word: WordOf<Self>, level: usize) -> bool {
        Self::F::is_leaf(word, Self::is_last(level))
    }

    /// Tells whether a word in a slot of `level` is a mark.
    #[inline(always)]
    fn is_mark(word: WordOf<Self>, level: usize) -> bool {
        // An empty word is the common case.
        word != WordOf::<Self>::ZERO && Self::entry(word, level, VirtAddr::new(0)).mark().is_some()
    }

    /// Decodes the leaf in a slot of `level` that maps `at`.
    #[inline(always)]
    fn leaf(word: WordOf<Self>, level: usize, at: VirtAddr) -> Leaf {
        let slot = Self::slot_size(level);
        let size = if Self::REPLICATED { Self::F::size(word, slot) } else { slot };
        let attr = Self::F::attr(word, Self::is_last(level));
        Leaf { at: at.align_down(size), size, frame: Self::F::frame(word, size), attr }
    }

    /// Decodes a word in a slot of `level` that is no link.
    #[inline(always)]
    fn entry(word: WordOf<Self>, level: usize, at: VirtAddr) -> Entry {
        if Self::is_leaf(word, level) {
            Entry::Leaf(Self::leaf(word, level, at))
        } else if Self::is_last(level) {
            mark_of::<Self::F>(word).into()
        } else {
            Entry::Empty
        }
    }

    /// Returns the leaf in the slot `index` of a node of `level`, and of a page in several slots the number of pages before that
    /// slot's.
    #[inline(always)]
    fn part_of(word: WordOf<Self>, level: usize, index: usize) -> (Leaf, usize) {
        let at = VirtAddr::new(index << (Self::cover(level) + Self::G::BASE.shift()));
        let leaf = Self::leaf(word, level, at);
        (leaf, (at.get() & leaf.size.mask()) >> Self::G::BASE.shift())
    }

    /// Returns the frames of the slot `index` of a node of `level`, which holds a leaf: of a page in several slots, the part.
    #[inline(always)]
    fn run_of(word: WordOf<Self>, level: usize, index: usize) -> Run {
        if !Self::REPLICATED {
            let dirty = Self::F::attr(word, Self::is_last(level)).contains(Attr::DIRTY);
            let first = Self::F::frame(word, Self::slot_size(level));
            return Run { first, len: Self::slot_pages(level), dirty };
        }
        let (leaf, part) = Self::part_of(word, level, index);
        Run {
            first: Pfn::new(leaf.frame.get() + part),
            len: Self::slot_pages(level),
            dirty: leaf.attr.contains(Attr::DIRTY),
        }
    }

    /// Tells whether `count` words, each of which is the one before it plus one [`STEP`](Format::STEP), have consecutive frames.
    /// They do not if the highest frame that an entry can hold comes before the last word.
    #[inline(always)]
    fn counts_on(word: WordOf<Self>, count: usize) -> bool {
        let frame = |word| Self::F::frame(word, Self::G::BASE).get();
        frame(word).checked_add(count - 1) == Some(frame(word.advance(Self::F::STEP, count - 1)))
    }

    /// Returns the last page that the slot of `level` for `page` covers.
    #[inline(always)]
    fn slot_end(level: usize, page: Vpn) -> Vpn {
        Vpn::new(page.get() | (Self::slot_pages(level) - 1))
    }

    /// Returns the last page that the node of `level` for `page` covers.
    #[inline(always)]
    fn node_end(level: usize, page: Vpn) -> Vpn {
        Vpn::new(page.get() | ((Self::slot_pages(level) << Self::width(level)) - 1))
    }

    /// Returns the page numbers, with the bits above those that the table translates, of a range that was counted from the table's
    /// first slot.
    fn canonical(pages: Pages) -> Pages {
        let page = |page: Vpn| {
            let bits = Self::G::VA_BITS - Self::G::BASE.shift();
            let high = match Self::G::HALF {
                Half::Lower => false,
                Half::Upper => true,
                Half::Both => page.get() >> (bits - 1) & 1 == 1,
            };
            // The bits of a page number above those that the table translates.
            let above = if high { (usize::MAX >> Self::G::BASE.shift()) & !((1 << bits) - 1) } else { 0 };
            Vpn::new(page.get() | above)
        };
        Pages::new(page(pages.first()), page(pages.last())).unwrap_or(pages)
    }
}

impl<S: Shape> Decode for S {}
