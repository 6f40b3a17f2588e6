//! Dry runs: what tables of every kind check and count before the first store of a change.

use core::ops::ControlFlow;

use tlbkit_addr::{Attr, PageSize, Pages, Pfn, VirtAddr, Vpn};

use crate::format::Format;
use crate::geometry::Checked as _;
use crate::{Entry, Error, Geometry, Leaf};

/// The bits that hardware sets in a leaf. Pages that differ only in these bits can become one page.
pub(crate) const STATUS: Attr = Attr::ACCESSED.union(Attr::DIRTY);

/// The content of a range.
#[derive(Default)]
pub(crate) struct Census {
    /// The number of base pages that are mapped.
    pub(crate) pages: usize,
    /// The number of leaves, of any size.
    pub(crate) leaves: usize,
    /// The number of marks.
    pub(crate) marks: usize,
}

impl Census {
    /// Counts an entry.
    #[inline(always)]
    pub(crate) fn add<G: Geometry>(&mut self, entry: Entry) {
        match entry {
            Entry::Leaf(leaf) => {
                self.leaves += 1;
                self.pages += G::SPACE.pages_of(&leaf).len();
            }
            Entry::Mark(_) => self.marks += 1,
            Entry::Empty => {}
        }
    }
}

/// A table's leaves, as the writer finds them.
pub(crate) trait Leaves: Copy {
    /// The geometry.
    type G: Geometry;
    /// The format.
    type F: Format;

    /// Returns the leaf that maps `at`.
    fn leaf_at(self, at: VirtAddr) -> Option<Leaf>;

    /// Visits the leaves of a range in ascending order. A visit may end at the first page that is not mapped.
    fn each_leaf_of(self, pages: Pages, visit: &mut dyn FnMut(Leaf) -> ControlFlow<()>);

    /// Tells whether leaves of a size are in nodes of the last level.
    fn is_last_size(_size: PageSize) -> bool {
        true
    }
}

/// A piece of a range whose pages are to get the size `to`: one leaf of at least that size, or the smaller leaves that fill a page of
/// that size.
#[derive(Clone, Copy)]
pub(crate) struct Piece {
    pub(crate) pages: Pages,
    /// The leaf at its start.
    pub(crate) leaf: Leaf,
}

impl Piece {
    /// Returns the first piece of a range.
    ///
    /// # Errors
    ///
    /// [`Error::NotMapped`].
    pub(crate) fn first<L: Leaves>(table: L, range: Pages, to: PageSize) -> Result<Self, Error> {
        let at = range.first().address(L::G::BASE);
        let leaf = table.leaf_at(at).ok_or(Error::NotMapped { at })?;
        let size = leaf.size.max(to);
        Ok(Self { pages: L::G::SPACE.pages_of(&Leaf { at: at.align_down(size), size, ..leaf }), leaf })
    }

    /// Returns the pages of the range that come after this piece.
    pub(crate) fn rest(&self, range: Pages) -> Option<Pages> {
        after(range, self.pages.last())
    }

    /// Returns the union of the status bits of the leaves.
    pub(crate) fn status<L: Leaves>(&self, table: L) -> Attr {
        let mut status = Attr::empty();
        table.each_leaf_of(self.pages, &mut |leaf| {
            status |= leaf.attr & STATUS;
            ControlFlow::Continue(())
        });
        status
    }

    /// Checks that the leaves continue each other, agree in their rights, and can become one leaf of size `to`.
    fn check_uniform<L: Leaves>(&self, table: L, to: PageSize) -> Result<(), Error> {
        let Self { pages, leaf: first } = *self;
        if !first.frame.is_aligned(to, L::G::BASE) {
            return Err(Error::NotUniform { at: first.at });
        }
        L::F::leaf(first.frame, to, first.attr, L::is_last_size(to))?;
        let (mut seen, mut outcome) = (0, Ok(()));
        table.each_leaf_of(pages, &mut |leaf| {
            // After the pages that have been seen comes this leaf, or a hole.
            if leaf.at.vpn(L::G::BASE).get() - pages.first().get() != seen {
                return ControlFlow::Break(());
            }
            let frame = Pfn::new(first.frame.get() + seen);
            if leaf.frame != frame || leaf.attr.difference(STATUS) != first.attr.difference(STATUS) {
                outcome = Err(Error::NotUniform { at: leaf.at });
                return ControlFlow::Break(());
            }
            seen += L::G::SPACE.pages_of(&leaf).len();
            ControlFlow::Continue(())
        });
        outcome?;
        if seen < pages.len() {
            return Err(Error::NotMapped { at: Vpn::new(pages.first().get() + seen).address(L::G::BASE) });
        }
        Ok(())
    }
}

/// Checks that the pages of a range can get the size `to`, for every [`resize`](crate::Table::resize), and calls `changes` with each
/// piece that has another size. The range is one of the space, and aligned to the size.
///
/// # Errors
///
/// [`Error::NotMapped`], [`Error::NotUniform`] or [`Error::Partial`]; those of [`Format::leaf`].
pub(crate) fn check_resize<L: Leaves>(
    table: L,
    pages: Pages,
    to: PageSize,
    mut changes: impl FnMut(&Piece),
) -> Result<(), Error> {
    let mut rest = Some(pages);
    while let Some(range) = rest {
        let piece = Piece::first(table, range, to)?;
        if piece.leaf.size > to {
            L::G::SPACE.check_whole(piece.leaf, pages)?;
        } else if piece.leaf.size < to {
            piece.check_uniform(table, to)?;
        }
        if piece.leaf.size != to {
            changes(&piece);
        }
        rest = piece.rest(range);
    }
    Ok(())
}

/// Returns the pages of a range that come after `end`. A range ends with its last page, because the last page of the space has no
/// successor.
#[inline(always)]
pub(crate) fn after(pages: Pages, end: Vpn) -> Option<Pages> {
    if end >= pages.last() { None } else { Pages::new(Vpn::new(end.get() + 1), pages.last()) }
}
