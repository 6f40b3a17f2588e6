//! The pieces of a range at boundaries of slots and nodes.

use core::iter;

use tlbkit_addr::{Pages, Vpn};

use super::leaf::Decode;
use crate::Geometry as _;
pub(super) use crate::dry_run::after;

/// Returns the pieces of a range, each of which ends where `end` says for its first page, or with the range.
#[inline(always)]
fn pieces(pages: Pages, end: impl Fn(Vpn) -> Vpn) -> impl Iterator<Item = Pages> {
    let mut rest = Some(pages);
    iter::from_fn(move || {
        let pages = rest?;
        let end = end(pages.first()).min(pages.last());
        rest = after(pages, end);
        Pages::new(pages.first(), end)
    })
}

/// The pieces of a range in a table of this shape.
pub(super) trait InPieces: Decode {
    /// Returns the part of a range that each node of `level` covers.
    #[inline(always)]
    fn by_node(level: usize, pages: Pages) -> impl Iterator<Item = Pages> {
        pieces(pages, move |page| Self::node_end(level, page))
    }

    /// Returns the slots of a node of `level` that a range covers, which is in the node, and the part of the range in each.
    #[inline(always)]
    fn by_slot(level: usize, pages: Pages) -> impl Iterator<Item = (usize, Pages)> {
        pieces(pages, move |page| Self::slot_end(level, page))
            .map(move |piece| (Self::index(level, piece.first().address(Self::G::BASE)), piece))
    }
}

impl<S: Decode> InPieces for S {}
