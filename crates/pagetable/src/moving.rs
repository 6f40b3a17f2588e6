//! Moves of the entries of a range to another range of the same length: `mremap`.
//!
//! ```text
//!   a table walked by hardware   from: leaf -> empty      to: empty -> leaf      an exchange, then a store: no status bit is lost
//!   its whole nodes              from: link -> empty      to: empty -> link      two stores for a node and all that is below it
//!   other tables                 to: map, mark            from: take out         all that can fail comes first
//! ```
//!
//! A larger page whose new place is not aligned to its size becomes smaller pages there, of the largest size that is aligned.

use core::ops::ControlFlow;

use tlbkit_addr::{Attr, PageSize, Pages, VirtAddr, Vpn};

use crate::table::check_ends;
use crate::{Change, Entry, Error, Holes, Leaf, Pinned, Rest, Right, Space, Table, Uncovered};

/// The old and the new place of a range.
#[derive(Clone, Copy)]
pub(crate) struct Places {
    pub(crate) from: Pages,
    pub(crate) to: Pages,
}

impl Places {
    /// Checks that both places are in the space, and that they have no page in common.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] or [`Error::Overlap`].
    pub(crate) fn new(space: Space, from: Pages, to: Vpn) -> Result<Self, Error> {
        space.check_pages(from)?;
        let to = Pages::count(to, from.len()).ok_or(Error::OutOfRange { at: to.address(space.base()) })?;
        space.check_pages(to)?;
        match from.intersect(to) {
            Some(both) => Err(Error::Overlap { at: both.first().address(space.base()) }),
            None => Ok(Self { from, to }),
        }
    }

    /// Returns the new place of a page of the old one.
    #[inline(always)]
    pub(crate) fn of_page(&self, page: Vpn) -> Vpn {
        Vpn::new(page.get().wrapping_sub(self.from.first().get()).wrapping_add(self.to.first().get()))
    }

    /// Returns the new place of some pages of the old one.
    #[inline(always)]
    pub(crate) fn of(&self, pages: Pages) -> Pages {
        Pages::new(self.of_page(pages.first()), self.of_page(pages.last())).unwrap_or(pages)
    }

    /// Returns the size of the pages that a leaf becomes: its own size, or the largest to which the new place is aligned.
    pub(crate) fn size_of(&self, space: Space, leaf: &Leaf) -> PageSize {
        let to = self.of_page(leaf.at.vpn(space.base()));
        let fits = |size: &PageSize| *size <= leaf.size && to.is_aligned(*size, space.base());
        space.sizes().iter().copied().rfind(fits).unwrap_or(space.base())
    }
}

/// A function that finds the first leaf or mark of a range, and the address of its first page.
pub(crate) type FindFirst<T> = fn(&T, Pinned<'_>, Pages) -> Option<(VirtAddr, Entry)>;

/// Moves the entries of a range one by one, for [`Table::move_pages`]: maps the pages at their new place, then takes them out of the
/// old one.
pub(crate) fn one_by_one<'n, T: Table<'n> + ?Sized>(
    table: &T,
    mut right: Right<'_, 'n>,
    from: Pages,
    to: Vpn,
    find_first: FindFirst<T>,
) -> Result<usize, Error> {
    right.reborrow().batch(table.writer_flag())?;
    let places = Places::new(table.space(), from, to)?;
    {
        // SAFETY: only the table's writer has such a right, which is borrowed: no batch of the table is completed meanwhile.
        let pinned = unsafe { Pinned::by(&right) };
        check_ends(table, pinned, from)?;
        check_vacant(table, pinned, places.to)?;
    }
    let taken = |right: &mut Right<'_, 'n>| {
        let owned = table.footprint();
        owned.nodes + owned.leaves + right.pending().nodes()
    };
    let before = taken(&mut right);
    if let Err(why) = put_all(table, right.reborrow(), &places, find_first) {
        let more = taken(&mut right).saturating_sub(before);
        // The leaves that were mapped are whole, so this does not fail.
        table.unmap(right, places.to, Holes::Skip)?;
        return Err(with_more(why, more));
    }
    take_all(table, right, &places)
}

/// Returns the error of a change that had taken `more` nodes when a step of it found no memory.
fn with_more(why: Error, more: usize) -> Error {
    match why {
        Error::NoMemory { wanted, pending } => {
            let more = u32::try_from(more).unwrap_or(u32::MAX);
            Error::NoMemory { wanted: wanted.saturating_add(more), pending }
        }
        why => why,
    }
}

/// Checks that no page of a range is mapped, marked or borrowed.
///
/// # Errors
///
/// [`Error::Occupied`], [`Error::Marked`] or [`Error::Borrowed`].
fn check_vacant<'n>(
    table: &(impl Table<'n> + ?Sized),
    pinned: Pinned<'_>,
    pages: Pages,
) -> Result<(), Error> {
    if let Some(page) = table.borrowed().and_then(|borrowed| borrowed.first_in(pages)) {
        return Err(Error::Borrowed { at: page.address(table.space().base()) });
    }
    let mut vacant = Ok(());
    let _ = table.for_each_entry(pinned, pages, &mut |at, entry| {
        vacant = Err(Error::taken(at, entry));
        ControlFlow::Break(())
    });
    vacant
}

/// Maps and marks the pages of the new place as those of the old place are.
fn put_all<'n, T: Table<'n> + ?Sized>(
    table: &T,
    mut right: Right<'_, 'n>,
    places: &Places,
    find_first: FindFirst<T>,
) -> Result<(), Error> {
    let space = table.space();
    let mut rest = Rest::of(places.from);
    while let Some(pages) = rest.pages() {
        // SAFETY: only the table's writer has such a right, which is borrowed: no batch of the table is completed meanwhile.
        let Some((at, entry)) = find_first(table, unsafe { Pinned::by(&right) }, pages) else { break };
        let page = at.vpn(space.base());
        match entry {
            Entry::Leaf(leaf) => {
                let (own, size) = (space.pages_of(&leaf), places.size_of(space, &leaf));
                table.map(right.reborrow(), places.of(own), leaf.frame, size, leaf.attr)?;
                rest.go_past(own.last());
            }
            Entry::Mark(mark) => {
                table.mark(right.reborrow(), places.of_page(page).address(space.base()), Some(mark))?;
                rest.go_past(page);
            }
            Entry::Empty => rest.go_past(page),
        }
    }
    Ok(())
}

/// Takes the entries of the old place out. A page that hardware has noted as dirty since it was mapped at its new place is dirty there.
fn take_all<'n, T: Table<'n> + ?Sized>(
    table: &T,
    mut right: Right<'_, 'n>,
    places: &Places,
) -> Result<usize, Error> {
    let space = table.space();
    let (mut moved, mut rest) = (0, Rest::of(places.from));
    while let Some((page, uncovered)) = table.take_next(right.reborrow(), &mut rest)? {
        let Uncovered::Frames(run) = uncovered else { continue };
        moved += run.len;
        let at = places.of_page(page);
        // SAFETY: only the table's writer has such a right, which is borrowed: no batch of the table is completed meanwhile.
        let new = table.lookup(unsafe { Pinned::by(&right) }, at.address(space.base()));
        if run.dirty
            && new.is_some_and(|leaf| !leaf.attr.contains(Attr::DIRTY))
            && let Some(pages) = Pages::count(at, run.len)
        {
            table.protect(right.reborrow(), pages, Holes::Skip, Change::set(Attr::DIRTY))?;
        }
    }
    Ok(moved)
}

/// Returns the first entry of a range, in a table that visits the entries in ascending order.
pub(crate) fn first_of_ascending<'n, T: Table<'n> + ?Sized>(
    table: &T,
    pinned: Pinned<'_>,
    pages: Pages,
) -> Option<(VirtAddr, Entry)> {
    let mut first = None;
    let _ = table.for_each_entry(pinned, pages, &mut |at, entry| {
        first = Some((at, entry));
        ControlFlow::Break(())
    });
    first
}

/// The number of pages that [`first_of_any`] looks up before it visits a range.
const NEAR: usize = 16;

/// Returns the first entry of a range, in a table that visits the entries in any order. Costs a visit of all entries of the range,
/// unless one of the first 16 pages has one.
pub(crate) fn first_of_any<'n, T: Table<'n> + ?Sized>(
    table: &T,
    pinned: Pinned<'_>,
    pages: Pages,
) -> Option<(VirtAddr, Entry)> {
    for page in pages.into_iter().take(NEAR) {
        let at = page.address(table.space().base());
        match table.entry(pinned, at) {
            Entry::Leaf(leaf) => return Some((leaf.at, Entry::Leaf(leaf))),
            Entry::Mark(mark) => return Some((at, Entry::Mark(mark))),
            Entry::Empty => {}
        }
    }
    let mut first: Option<(VirtAddr, Entry)> = None;
    let _ = table.for_each_entry(pinned, pages, &mut |at, entry| {
        first = first.filter(|&(first, _)| first < at).or(Some((at, entry)));
        ControlFlow::Continue(())
    });
    first
}
