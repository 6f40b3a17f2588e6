//! Fork: a copy of an address space, which shares its frames with the original until they are written.
//!
//! ```text
//!   before       parent  page -> frame 7, may be written
//!   fork         child   page -> frame 7, read-only, copy on write     built first: no CPU runs the child yet
//!                parent  page -> frame 7, read-only, copy on write     then one shootdown for all pages
//!   a store      fault -> CopyOnWrite: the page gets a copy of the frame, or keeps it if no other space maps it any more
//! ```
//!
//! A supervisor page cannot wait for a fault: the store may be the one that saves the registers of a trap. So its copy is made
//! before any page loses a right, and it stays writable in both.

use core::fmt;
use core::ops::ControlFlow;

use tlbkit_addr::{Attr, Pages, Pfn, VirtAddr};
use tlbkit_pagetable::format::Format;
use tlbkit_pagetable::{Error, Leaf, Run, Table as _, Turn, Writer};

use crate::counted::{pfn, typed};
use crate::edit::after;
use crate::owned::Owned;
use crate::storage::{Copying, Table};
use crate::table::{Copied, is_users};
use crate::{AddressSpace, Edit, FrameOf, Kernel, Machine};

/// What a [fork](AddressSpace::fork) does with the supervisor pages of an address space: pages without [`Attr::USER`], except those
/// that it [shares](AddressSpace::sharing) with the kernel's own. They never become copy-on-write, because a store of the kernel to
/// such a page, with which a trap begins for example, must not fault. `F` numbers frames ([`FrameOf`]).
pub enum SupervisorPages<'f, F = Pfn> {
    /// The child does not map them.
    LeftOut,
    /// The child maps each with the same attributes, except [`Attr::GLOBAL`], to what the function returns for its leaf: a new
    /// frame, or the first of as many new frames as the leaf has, into which the function has copied the contents. For pages that
    /// no CPU writes, such as a trampoline, it may return the leaf's own frame, whose use by the child it counts as
    /// [`Kernel::share`] does. The mapping is [released](Kernel::release) in the end as any other.
    ///
    /// The function runs with interrupts masked, and must not call back into the [`Mmu`](crate::Mmu) or an address space. Its
    /// error ends the fork.
    Copied(&'f mut dyn FnMut(Leaf<F>) -> Result<F, Error>),
}

impl<F> fmt::Debug for SupervisorPages<'_, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LeftOut => "LeftOut",
            Self::Copied(_) => "Copied",
        })
    }
}

impl<K: Kernel, const CPUS: usize> AddressSpace<K, CPUS> {
    /// Returns a copy of the address space. Both map each frame of user pages from now on ([`Kernel::share`]), and a store to a
    /// shared page faults in each of them, until that address space's [`fault`](Self::fault) is resolved
    /// ([`unshare`](Self::unshare)). Pages of devices and uncached pages keep their rights. `supervisor` says what becomes of
    /// pages that are not the user's.
    ///
    /// The child's entries are clean ([`Attr::DIRTY`] is clear): the kernel learns whether a frame was written when the parent's
    /// mapping of it is [released](Kernel::release). (Copies of supervisor pages keep their status bits.) No page of the child is
    /// global. The child has the parent's marks, too: guard pages, and payloads with the rights that they keep
    /// ([`Kernel::share_payload`]).
    ///
    /// Until this call returns, a store by another thread may be visible in both address spaces. The copy is made in parts of about
    /// 8192 entries, in ascending order from the lower half on, and interrupts are unmasked between two parts. A change that another
    /// thread or an interrupt handler makes between two parts is in the child if the part with its pages comes after it. A kernel
    /// whose threads expect a copy of one moment lets none of them change the address space meanwhile. (A [guarded](crate::Guarded)
    /// table is copied in one part.)
    ///
    /// Costs a visit of each leaf, a store for each in the child and one for each writable leaf here, and one shootdown for each
    /// part; with [`SupervisorPages::Copied`] a second visit.
    ///
    /// # Errors
    ///
    /// [`Error::Lent`] for the kernel's own address space ([`lending`](AddressSpace::lending)): a fork would take the right to write
    /// from pages that every address space maps. [`Error::NoMemory`], or the error of the function in `supervisor`;
    /// [`Error::MisalignedFrame`] or [`Error::FrameTooLarge`] if the child cannot map what the function has returned, which is then
    /// [released](Kernel::release). [`Error::WrongAttr`] if the machine's entries have no bit for [`Attr::COPY_ON_WRITE`]; those
    /// of [`edit`](Self::edit). Nothing has changed then.
    ///
    /// A change between two parts can end the fork: with [`Error::NoMemory`] if the table has got more nodes; with [`Error::Occupied`]
    /// or [`Error::Breaks`] if it is one of supervisor pages that are copied. Some pages may then be copy-on-write whose frames no
    /// other address space maps.
    pub fn fork(&self, supervisor: SupervisorPages<'_, FrameOf<K>>) -> Result<Self, Error> {
        if self.0.is_kernels() {
            let at =
                self.0.lent().map_or(VirtAddr::new(0), |lent| lent.hull().first().address(self.0.base()));
            return Err(Error::Lent { at });
        }
        if !<<K::Machine as Machine>::Format as Format>::OPTIONAL.contains(Attr::COPY_ON_WRITE) {
            return Err(Error::WrongAttr { attr: Attr::COPY_ON_WRITE });
        }
        let mmu = self.mmu();
        let child = mmu.kernel().masked(|| Self::beside(mmu, self.0.lender()))?;
        if let SupervisorPages::Copied(copy) = supervisor {
            self.copy_supervisor(&child, copy)?;
        }
        let mut copying = WithNodes { kernel: mmu.kernel(), copying: None };
        let (mut next, mut is_done) = (None, false);
        while !is_done {
            self.change(None, &mut |edit| {
                // SAFETY: no other code knows the child yet.
                let mut writer = Writer::of(unsafe { Turn::sole(&*child.0.table) });
                let copied = edit.copy_on_write(&mut writer, &mut copying.copying, next);
                // SAFETY: no CPU has ever run the child, so no CPU walks its table, and no TLB holds a translation of it.
                unsafe { complete::<K>(&mut writer) };
                match copied? {
                    Copied::Nothing => {}
                    Copied::Until(page) => next = Some(page),
                    Copied::All => is_done = true,
                }
                Ok(0)
            })?;
        }
        Ok(child)
    }

    /// Maps the supervisor pages of this address space in `child`, to what `copy` returns for each leaf.
    fn copy_supervisor(
        &self,
        child: &Self,
        copy: &mut dyn FnMut(Leaf<FrameOf<K>>) -> Result<FrameOf<K>, Error>,
    ) -> Result<(), Error> {
        for own in self.0.own() {
            let mut rest = Some(own);
            while let Some(pages) = rest {
                self.change(None, &mut |edit| {
                    // SAFETY: no other code knows the child yet.
                    let mut writer = Writer::of(unsafe { Turn::sole(&*child.0.table) });
                    let copied = edit.copy_supervisor(&mut writer, pages, copy);
                    // SAFETY: no CPU has ever run the child, so no CPU walks its table, and no TLB holds a translation of it.
                    unsafe { complete::<K>(&mut writer) };
                    rest = copied?;
                    Ok(0)
                })?;
            }
        }
        Ok(())
    }
}

/// Frees the nodes of a writer's changes so far.
///
/// # Safety
///
/// As for [`Retired::reclaim`](tlbkit_pagetable::Retired::reclaim).
unsafe fn complete<K: Kernel>(writer: &mut Writer<'_, 'static, Table<K>>) {
    if let Some(pending) = writer.pending() {
        // SAFETY: this function's contract.
        unsafe { pending.complete() };
    }
}

/// A copy under way. It gives nodes that it has not used back with interrupts masked.
struct WithNodes<'k, K: Kernel> {
    kernel: &'k K,
    copying: Option<Copying<K>>,
}

impl<K: Kernel> Drop for WithNodes<'_, K> {
    fn drop(&mut self) {
        self.kernel.masked(|| drop(self.copying.take()));
    }
}

impl<K: Kernel, const CPUS: usize> Edit<'_, K, CPUS> {
    /// Maps the supervisor pages of the first part of `pages` in `child`, to what `copy` returns for each leaf. Returns the pages after
    /// that part, which has a bounded number of entries.
    fn copy_supervisor(
        &mut self,
        child: &mut Writer<'_, 'static, Table<K>>,
        pages: Pages,
        copy: &mut dyn FnMut(Leaf<FrameOf<K>>) -> Result<FrameOf<K>, Error>,
    ) -> Result<Option<Pages>, Error> {
        let (block, kernel) = (self.space(), self.space().mmu.kernel());
        let space = block.table.space();
        let mut each = |leaf: Leaf| {
            let frame = pfn::<K>(copy(typed::<K, _>(leaf))?);
            let pages = space.pages_of(&leaf);
            let new = Owned::new(kernel, Run { first: frame, len: pages.len(), dirty: false });
            child.map(pages, frame, leaf.size, leaf.attr.difference(Attr::GLOBAL))?;
            new.keep();
            Ok(())
        };
        let part = self.part(pages);
        let mut done = Ok(());
        let _ = self.visit(part, &mut |leaf| {
            if !is_users::<<K::Machine as Machine>::Format>(leaf.attr) {
                done = each(leaf);
            }
            if done.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        done.map(|()| after(pages, part.len()))
    }
}
