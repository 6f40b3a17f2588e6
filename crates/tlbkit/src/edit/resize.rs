//! Changes of page sizes: larger pages are split at the ends of a range, and joined again if the change fails.

use tlbkit_addr::{Flush, PageSize, Pages};
use tlbkit_pagetable::{Error, FlushAll, Leaf, Table as _};

use super::Edit;
use crate::counted::{counted, to_pages};
use crate::storage::Table;
use crate::table::SpaceTable as _;
use crate::{Kernel, PagesOf};

impl<K: Kernel, const CPUS: usize> Edit<'_, K, CPUS> {
    /// Splits larger pages that extend beyond an end of `pages`. Returns the leaf that was split at each end, as it was before.
    pub(super) fn split_ends(&mut self, pages: Pages) -> Result<[Option<Leaf>; 2], Error> {
        let space = self.space.table.space();
        if !self.writer.may_write(pages) {
            return Err(Error::OutsideRight { at: pages.first().address(space.base()) });
        }
        let mut split: [Option<Leaf>; 2] = [None; 2];
        for at in 0..2 {
            let end = [pages.first(), pages.last()][at];
            while let Some(leaf) = self.find(end.address(space.base()))
                && let whole = space.pages_of(&leaf)
                && whole.intersect(pages) != Some(whole)
                && let Some(&smaller) = space.sizes().iter().rev().find(|&&size| size < leaf.size)
            {
                split[at].get_or_insert(leaf);
                if let Err(why) = self.resize(to_pages::<K>(whole), smaller) {
                    self.join(split);
                    return Err(why);
                }
            }
        }
        Ok(split)
    }

    /// Joins pages that were split. This takes no node. If it fails nevertheless, the translations are still those from before,
    /// in smaller pages.
    #[cold]
    pub(super) fn join(&mut self, split: [Option<Leaf>; 2]) {
        for leaf in split.into_iter().rev().flatten() {
            let _ = self.resize(to_pages::<K>(self.space.table.space().pages_of(&leaf)), leaf.size);
        }
    }

    /// Makes every leaf of `pages` one of size `to`: splits larger ones, promotes smaller ones.
    ///
    /// # Errors
    ///
    /// Those of [`Table::resize`](tlbkit_pagetable::Table::resize); [`Error::Breaks`] if the architecture requires
    /// break-before-make (AArch64) and a page is not a user's.
    pub fn resize(&mut self, pages: PagesOf<K>, to: PageSize) -> Result<(), Error> {
        let pages = counted::<K>(pages);
        // The kernel may be using a page that is not a user's: break-before-make would unmap it for a while.
        let may_break = self.space.table.breaks() && Table::<K>::are_users(&mut self.writer, pages);
        let (space, call) = (self.space, &mut *self.call);
        let flush = &mut |flush: &Flush| call.shoot(space, flush);
        // SAFETY: the pages are a user's.
        let flush = if may_break { unsafe { FlushAll::breaking(flush) } } else { FlushAll::in_place(flush) };
        self.writer.resize(pages, to, flush)
    }
}
