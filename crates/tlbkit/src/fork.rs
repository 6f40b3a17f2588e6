//! Fork: a copy of an address space, which shares its frames with the original until they are written.
//!
//! ```text
//!   before       parent  page -> frame 7, may be written
//!   fork         child   page -> frame 7, read-only, copy on write     built first: no CPU runs the child yet
//!                parent  page -> frame 7, read-only, copy on write     then one shootdown for all pages
//!   a store      fault -> CopyOnWrite: the page gets a copy of the frame, or keeps it if no other space maps it any more
//! ```

use tlbkit_addr::Attr;
use tlbkit_pagetable::format::Format;
use tlbkit_pagetable::{Error, Writer};

use crate::{AddressSpace, Kernel, Machine};

impl<K: Kernel, const CPUS: usize> AddressSpace<K, CPUS> {
    /// Returns a copy of the address space. Both map each frame from now on ([`Kernel::share`]), and a store to a shared page
    /// faults in each of them, until that address space's [`fault`](Self::fault) is resolved. Pages of devices and uncached pages
    /// keep their rights.
    ///
    /// The child's entries are clean ([`Attr::DIRTY`] is clear): the kernel learns whether a frame was written when the parent's
    /// mapping of it is [released](Kernel::release). No page of the child is global.
    ///
    /// Until this call returns, a store by another thread may be visible in both address spaces.
    ///
    /// Costs a visit of each leaf, a store for each in the child and one for each writable leaf here, and one shootdown.
    ///
    /// # Errors
    ///
    /// [`Error::NoMemory`], after which nothing has changed; [`Error::WrongAttr`] if the machine's entries have no bit for
    /// [`Attr::COPY_ON_WRITE`]; those of [`edit`](Self::edit).
    pub fn fork(&self) -> Result<Self, Error> {
        if !<<K::Machine as Machine>::Format as Format>::OPTIONAL.contains(Attr::COPY_ON_WRITE) {
            return Err(Error::WrongAttr { attr: Attr::COPY_ON_WRITE });
        }
        let mmu = self.mmu();
        let child = mmu.kernel().masked(|| Self::beside(mmu, self.0.lender()))?;
        self.edit(|edit| {
            let mut writer = Writer::new(&*child.0.table)?;
            let done = edit.copy_on_write(&mut writer);
            // SAFETY: no CPU has ever run the child, so no CPU walks its table, and no TLB holds a translation of it.
            unsafe { writer.finish().reclaim() };
            done
        })?;
        Ok(child)
    }
}
