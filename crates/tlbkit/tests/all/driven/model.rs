//! What an address space is to be: its pages, by number.

use std::collections::BTreeMap;

use tlbkit::pagetable::format::Format;
use tlbkit::pagetable::{Geometry, Half, Radix};
use tlbkit::{Attr, Change, Machine, Mark};

use super::kernel::Arch;

pub const ACCESS: Attr = Attr::READ.union(Attr::WRITE).union(Attr::EXEC);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page {
    pub frame: usize,
    /// How many base pages it is.
    pub pages: usize,
    pub attr: Attr,
    pub dirty: bool,
}

#[derive(Clone, Debug, Default)]
pub struct Model {
    pub leaves: BTreeMap<usize, Page>,
    pub marks: BTreeMap<usize, Mark>,
}

impl Model {
    /// Returns the leaf that maps a page, and its first page.
    pub fn find(&self, page: usize) -> Option<(usize, Page)> {
        let (&first, &leaf) = self.leaves.range(..=page).next_back()?;
        (page - first < leaf.pages).then_some((first, leaf))
    }

    /// Tells whether nothing is mapped or marked there.
    pub fn is_free(&self, first: usize, last: usize) -> bool {
        self.find(first).is_none()
            && self.leaves.range(first..=last).next().is_none()
            && self.marks.range(first..=last).next().is_none()
    }

    pub fn is_used(&self, page: usize) -> bool {
        self.find(page).is_some() || self.marks.contains_key(&page)
    }

    /// Returns the first page of a range that is neither mapped nor marked.
    pub fn hole(&self, first: usize, last: usize) -> Option<usize> {
        (first..=last).find(|&page| !self.is_used(page))
    }

    pub fn maps_frame(&self, frame: usize) -> bool {
        self.leaves.values().any(|leaf| (leaf.frame..leaf.frame + leaf.pages).contains(&frame))
    }

    /// Splits the larger pages that reach over an end.
    pub fn split(&mut self, first: usize, last: usize) {
        for end in [first, last] {
            if let Some((at, leaf)) = self.find(end)
                && (at < first || at + leaf.pages - 1 > last)
            {
                self.leaves.remove(&at);
                for page in 0..leaf.pages {
                    self.leaves.insert(at + page, Page { frame: leaf.frame + page, pages: 1, ..leaf });
                }
            }
        }
    }

    /// Changes the attributes of all leaves in a range, which no leaf reaches over.
    pub fn protect<A: Arch>(&mut self, first: usize, last: usize, change: Change) {
        for page in self.leaves.range_mut(first..=last).map(|(_, page)| page) {
            page.attr = effective::<A>(change.apply(page.attr));
            page.dirty = page.attr.contains(Attr::DIRTY) && has_dirty::<A>();
        }
        for (_, mark) in self.marks.range_mut(first..=last) {
            if let Mark::Payload(_, attr) = mark {
                *attr = kept::<A>(change.apply(*attr));
            }
        }
    }
}

/// What a page that is out has when it comes back, of attributes that it is given.
pub fn kept<A: Machine>(attr: Attr) -> Attr {
    let known = A::Format::OPTIONAL.union(A::Format::IMPLIED);
    effective::<A>(effective::<A>(attr).intersection(Mark::KEPT).intersection(known))
}

impl Page {
    pub fn new<A: Arch>(frame: usize, pages: usize, attr: Attr) -> Self {
        let attr = effective::<A>(attr);
        Self { frame, pages, attr, dirty: attr.contains(Attr::DIRTY) }
    }
}

fn has_dirty<A: Machine>() -> bool {
    A::Format::OPTIONAL.contains(Attr::DIRTY)
}

/// What a page has of attributes that it is given: what can be written or executed can be read.
pub fn effective<A: Machine>(attr: Attr) -> Attr {
    let closed = A::Format::CLOSES && !attr.intersects(ACCESS);
    let implied = if closed { A::Format::IMPLIED - ACCESS } else { A::Format::IMPLIED };
    let mut attr = attr.union(implied);
    attr.set(Attr::READ, attr.intersects(ACCESS));
    attr
}

/// The attributes that are compared.
pub fn mask<A: Machine>() -> Attr {
    let compared = ACCESS.union(Attr::USER).union(Attr::COPY_ON_WRITE);
    compared.intersection(A::Format::OPTIONAL.union(A::Format::IMPLIED))
}

/// The pages of the lower half and those of the upper one, if there is one.
pub fn halves<A: Arch>() -> Vec<(usize, usize)> {
    let bits = A::Geometry::VA_BITS - A::SHIFT;
    let top = usize::MAX >> A::SHIFT;
    match A::Geometry::HALF {
        Half::Lower => vec![(0, usize::MAX >> (usize::BITS - A::Geometry::VA_BITS) >> A::SHIFT)],
        Half::Upper => vec![(top - ((1 << bits) - 1), top)],
        Half::Both => vec![(0, (1 << (bits - 1)) - 1), (top - ((1 << (bits - 1)) - 1), top)],
    }
}

/// Tells whether all pages of a range are in one half.
pub fn fits<A: Arch>(first: usize, last: usize) -> bool {
    halves::<A>().iter().any(|&(begin, end)| first >= begin && last <= end && first <= last)
}

/// How many base pages the second size has.
pub fn large<A: Arch>() -> usize {
    A::Geometry::SIZES[1].bytes() >> A::SHIFT
}

/// Pages that operations meet at: the ends of nodes and of halves.
pub fn spots<A: Arch>() -> Vec<usize> {
    let slots = 1 << A::Geometry::WIDTHS[A::Geometry::WIDTHS.len() - 1];
    let mut spots = vec![0, 2, slots - 2, slots, 2 * slots, 3 * large::<A>()];
    for (first, last) in halves::<A>() {
        spots.extend([first, last - 3, last]);
    }
    spots
}
