//! Replacing a leaf.

use tlbkit_addr::{Attr, Flush, FlushScope, Pages, Pfn, VirtAddr};

use super::node::Writing;
use super::shape::Shape;
use crate::format::Format;
use crate::pairs::stale;
use crate::replace::{exchange, replacement};
use crate::{Error, Leaf};

impl<T: Shape> Writing<'_, '_, T> {
    /// See [`Table::replace`](crate::Table::replace).
    ///
    /// # Safety
    ///
    /// If the format breaks, nothing that runs until the call returns needs the page.
    pub(super) unsafe fn replace(
        mut self,
        at: VirtAddr,
        frame: Pfn,
        attr: Attr,
        flush_all_cpus: &mut dyn FnMut(&Flush),
    ) -> Result<Leaf, Error> {
        T::SPACE.check_pages(Pages::one(at.vpn(T::PAGE)))?;
        let pte = self.seek(at.get()).ok_or(Error::NotMapped { at })?;
        let old = pte.mapped().ok_or(Error::NotMapped { at })?;
        let new = replacement::<T::G, T::F>(&old, frame, attr, true)?;
        let stale = stale::<T::G, T::F>(T::SPACE.pages_of(&old), |_| Some(old.size));
        self.touch(if T::F::BREAK_FRAME { T::F::APPEARS } else { FlushScope::Everywhere }, stale);
        // A page has one PTE, whichever slots lead to it.
        let store = |word| {
            let was = pte.read();
            pte.publish(word);
            was
        };
        exchange::<T::F>(store, new, stale, flush_all_cpus);
        Ok(old)
    }
}
