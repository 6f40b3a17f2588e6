//! A copy of an address space whose frames are shared until they are written.
//!
//! ```text
//!   before       parent  page -> frame 7, may be written
//!   fork         child   page -> frame 7, read-only, copy on write     built first: no CPU runs the child yet
//!                parent  page -> frame 7, read-only, copy on write     then one shootdown for all pages
//!   a store      fault -> CopyOnWrite: a frame of its own, or if no other space has it any more, this one again
//! ```

use tlbkit_addr::Attr;
use tlbkit_pagetable::format::Format;
use tlbkit_pagetable::{Error, Writer};

use crate::edit::Edit;
use crate::{AddressSpace, Kernel, Machine};

impl<K: Kernel, const CPUS: usize> AddressSpace<K, CPUS> {
    /// Returns a copy of the address space: each frame is mapped in both from now on ([`Kernel::share`]), and no page is
    /// writable in either before its own [`fault`](Self::fault). Pages of devices and uncached pages are shared as they
    /// are.
    ///
    /// The child's entries are clean ([`Attr::DIRTY`] is clear): that a frame has been written is told when the parent's mapping
    /// of it is [released](Kernel::release). No page of the child is global.
    ///
    /// A store by another thread may land in both copies until this returns.
    ///
    /// Costs a visit of each leaf, a store for each in the child and one for each writable leaf here, and one shootdown.
    ///
    /// # Errors
    ///
    /// [`Error::NoMemory`], and nothing has changed; [`Error::WrongAttr`] if the machine's entries have no room for
    /// [`Attr::COPY_ON_WRITE`]; [`Error::Busy`] inside of an edit or a visit on this CPU.
    pub fn fork(&self) -> Result<Self, Error> {
        if !<<K::Machine as Machine>::Format as Format>::OPTIONAL.contains(Attr::COPY_ON_WRITE) {
            return Err(Error::WrongAttr { attr: Attr::COPY_ON_WRITE });
        }
        let mmu = self.mmu();
        let child = mmu.kernel().masked(|| Self::beside(mmu, self.0.lender()))?;
        self.mmu().here(|here| {
            // No CPU changes the parent meanwhile.
            let mut edit = Edit::new(&self.0, here);
            let mut writer = Writer::new(&*child.0.table)?;
            let done = edit.run(|edit| edit.copy_on_write(&mut writer));
            // SAFETY: no CPU runs the child, or has ever: none walks it, and no TLB holds anything of it.
            unsafe { writer.finish().reclaim() };
            done
        })?;
        Ok(child)
    }
}
