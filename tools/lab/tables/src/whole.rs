//! The checks that tables of whole leaves share: each takes what it asks the table for as leaves in ascending order.

use tlbkit_addr::{Attr, PageSize, Pages, Pfn, Vpn};
use tlbkit_pagetable::format::{Compact, Format, check_attr};
use tlbkit_pagetable::{Error, Holes, Leaf, Space};

/// The base page.
pub(crate) const BASE: PageSize = PageSize::K4;
/// The attributes that a join unites.
pub(crate) const STATUS: Attr = Attr::ACCESSED.union(Attr::DIRTY);

/// Returns the base pages of a size.
pub(crate) fn span(size: PageSize) -> usize {
    1 << (size.shift() - BASE.shift())
}

/// Checks a map, up to whether the pages are free. Returns the word of the first page.
pub(crate) fn check_map(
    space: Space,
    pages: Pages,
    frame: Pfn,
    size: PageSize,
    attr: Attr,
) -> Result<u64, Error> {
    space.check_sized(pages, size)?;
    check_attr::<Compact>(attr)?;
    space.check_frames(frame, pages.len(), size)?;
    Compact::leaf(Pfn::new(frame.get() + pages.len() - span(size)), size, attr, true)?;
    Compact::leaf(frame, size, attr, true)
}

/// Checks that a range cuts no leaf and has no holes that are refused. Returns how many of its pages are mapped.
pub(crate) fn check_whole(
    space: Space,
    leaves: impl Iterator<Item = Leaf>,
    pages: Pages,
    holes: Holes,
) -> Result<usize, Error> {
    space.check_pages(pages)?;
    let (mut mapped, mut next) = (0, pages.first().get());
    let hole = |next| match holes {
        Holes::Refuse => Err(Error::NotMapped { at: Vpn::new(next).address(BASE) }),
        Holes::Skip => Ok(()),
    };
    for leaf in leaves {
        let whole = space.pages_of(&leaf);
        if whole.intersect(pages) != Some(whole) {
            return Err(Error::Partial { at: leaf.at, size: leaf.size });
        }
        if whole.first().get() > next {
            hole(next)?;
        }
        next = whole.last().get() + 1;
        mapped += whole.len();
    }
    if next <= pages.last().get() {
        hole(next)?;
    }
    Ok(mapped)
}

/// Checks a change of size of a range, which is mapped whole.
pub(crate) fn check_resize(leaves: impl Iterator<Item = Leaf>, to: PageSize) -> Result<(), Error> {
    let mut begun = None;
    for leaf in leaves {
        let offset = leaf.at.offset(to);
        let first = if offset == 0 { leaf } else { begun.unwrap_or(leaf) };
        begun = Some(first);
        let follows = leaf.frame.get() == first.frame.get() + (offset >> BASE.shift());
        let differs = (leaf.attr ^ first.attr).difference(STATUS);
        if !follows || !differs.is_empty() || !first.frame.is_aligned(to, BASE) {
            return Err(Error::NotUniform { at: leaf.at });
        }
        Compact::leaf(first.frame, to, first.attr, true)?;
    }
    Ok(())
}
