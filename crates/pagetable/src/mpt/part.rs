//! The part of a table that one of several writers may change: a node, and all nodes below it.
//!
//! Which nodes a change stores in is known when its part is: those below the lowest node that covers its pages and keeps an entry that is
//! not the part's. For such a node exists while the part has a writer, whatever the writer unmaps; so no change of the part stores in the
//! node above.

use tlbkit_addr::Pages;

use super::Mpt;
use super::leaf::Decode as _;
use super::node::NodeRef;
use super::shape::Shape;
use crate::format::Format;
use crate::geometry::Checked as _;
use crate::nodes::Nodes;
use crate::{Part, Radix, Word as _};

impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> Mpt<'n, G, F, N> {
    /// See [`Table::whole_part`](crate::Table::whole_part).
    ///
    /// # Safety
    ///
    /// The contract of that function.
    pub(super) unsafe fn find_part(&self, part: Part) -> Option<Part> {
        let level = (Self::LEVELS - 1).checked_sub(part.above)?;
        // A debt is taken up by a writer of the whole table, which flushes everything.
        // A page number that no address has would lead to the node of another page, whose writers its block does not exclude.
        if level == 0 || G::SPACE.check_pages(part.pages).is_err() || self.nodes.held().has_debt(&self.flag) {
            return None;
        }
        // SAFETY: by this function's contract nobody writes the part's node, those below it, or the words on the way to it, and nobody
        // unlinks them. This function completes no batch.
        let root = unsafe { NodeRef::sole_root(self) };
        let node = root.down_to(level, part.pages.first().address(G::BASE));
        if node.level() != level {
            return None;
        }
        let whole = |page| root.leaf_for(page).map_or(Pages::one(page), |leaf| G::SPACE.pages_of(&leaf));
        let [first, last] = [whole(part.pages.first()).first(), whole(part.pages.last()).last()];
        let block = NodeRef::<'_, 'n, G, F, N>::node_end(level, part.pages.first());
        if [first, last].map(|page| NodeRef::<'_, 'n, G, F, N>::node_end(level, page)) != [block; 2] {
            return None;
        }
        let [from, to] = [first, last].map(|page| node.index_of(page.address(G::BASE)));
        let live = node.live() as usize;
        let used = || (from..=to).filter(|&index| node.read(index).word() != F::Word::ZERO).count();
        let keeps_others = live > to - from + 1 || live > used();
        if keeps_others { Some(Part { pages: Pages::new(first, last)?, ..part }) } else { None }
    }
}
