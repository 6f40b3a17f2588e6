//! A copy of an address space whose frames are shared until they are written.
//!
//! ```text
//!   before       parent  page -> frame 7, may be written
//!   fork         child   page -> frame 7, read-only, copy on write     built first: nobody runs the child yet
//!                parent  page -> frame 7, read-only, copy on write     then one shootdown for all pages
//!   a store      fault -> CopyOnWrite: a frame of its own, or if nobody else has it any more, this one again
//! ```

use core::ops::ControlFlow;

use tlbkit_addr::{Attr, PageSize, Pages, Pfn};
use tlbkit_pagetable::format::Format;
use tlbkit_pagetable::{Change, Error, Leaf, Pinned, Run, Table as _, Writer};

use crate::block::{Block, Handle};
use crate::edit::Edit;
use crate::here::Here;
use crate::{AddressSpace, Kernel, Machine};

impl<K: Kernel, const CPUS: usize> AddressSpace<K, CPUS> {
    /// Returns a copy of the address space: each frame is mapped in both from now on ([`Kernel::share`]), and no page is
    /// writable in either before its own [`fault`](Self::fault). Pages of devices and uncached pages are shared as they
    /// are.
    ///
    /// A store by another thread may land in both copies until this returns.
    ///
    /// Costs two visits of each leaf, a store for each in the child and one for each writable leaf here, and one shootdown.
    ///
    /// # Errors
    ///
    /// [`Error::NoMemory`], and nothing has changed; [`Error::WrongAttr`] if the machine's entries have no room for
    /// [`Attr::COPY_ON_WRITE`]; [`Error::Busy`] inside of an edit or a visit on this CPU.
    pub fn fork(&self) -> Result<Self, Error> {
        if !<<K::Machine as Machine>::Format as Format>::OPTIONAL.contains(Attr::COPY_ON_WRITE) {
            return Err(Error::WrongAttr { attr: Attr::COPY_ON_WRITE });
        }
        let child = match self.0.lender() {
            Some(lender) => Self::sharing(&Self(lender.clone()))?,
            None => Self::new(self.mmu())?,
        };
        self.mmu().here(|here| copy(&self.0, &child.0, here))?;
        Ok(child)
    }
}

/// Maps in `child`, which nobody runs, what `parent` maps, then takes the right to write away here.
fn copy<K: Kernel, const CPUS: usize>(
    parent: &Handle<K, CPUS>,
    child: &Block<K, CPUS>,
    here: &mut Here<K, CPUS>,
) -> Result<(), Error> {
    // Nobody changes the parent meanwhile.
    let mut edit = Edit::new(parent, here);
    let mut writer = Writer::new(&*child.table)?;
    let shared = stretches(
        parent,
        |leaf| Some(child_attr(leaf.attr)),
        |part| {
            let pages = part.pages(parent.base());
            writer.map(pages, part.frame, part.size, part.attr)?;
            parent.mmu.kernel().share(Run { first: part.frame, len: pages.len(), dirty: false });
            Ok(())
        },
    );
    // SAFETY: no CPU runs the child, or has ever: none walks it, and no TLB holds anything of it.
    unsafe { writer.finish().reclaim() };
    shared?;
    let writable = |leaf: &Leaf| is_private(leaf.attr).then_some(Attr::empty());
    let change = Change { clear: Attr::WRITE, set: Attr::COPY_ON_WRITE };
    stretches(parent, writable, |part| edit.protect_leaves(part.pages(parent.base()), change))
}

/// Tells whether a page must not be written any more by who has it: a writable one of memory.
fn is_private(attr: Attr) -> bool {
    attr.contains(Attr::WRITE) && !attr.intersects(Attr::MEMORY)
}

/// Returns the attributes that a page has in the child. What has been written is the parent's affair, and what is global
/// in the kernel's own address space is not in a copy of it.
fn child_attr(attr: Attr) -> Attr {
    let attr = attr.difference(Attr::DIRTY | Attr::GLOBAL);
    if is_private(attr) { attr.difference(Attr::WRITE).union(Attr::COPY_ON_WRITE) } else { attr }
}

/// Leaves of one size that continue each other, in addresses and in frames.
struct Stretch {
    first: Leaf,
    leaves: usize,
    frame: Pfn,
    size: PageSize,
    attr: Attr,
}

impl Stretch {
    fn of(leaf: &Leaf, attr: Attr) -> Self {
        Self { first: *leaf, leaves: 1, frame: leaf.frame, size: leaf.size, attr }
    }

    /// Takes a leaf in, if it continues the stretch.
    fn extend(&mut self, leaf: &Leaf, attr: Attr, base: PageSize) -> bool {
        let pages = self.pages(base);
        let next = pages.last().checked_add(1) == Some(leaf.at.vpn(base))
            && self.frame.checked_add(pages.len()) == Some(leaf.frame)
            && self.size == leaf.size
            && self.attr == attr;
        self.leaves += usize::from(next);
        next
    }

    fn pages(&self, base: PageSize) -> Pages {
        let first = self.first.at.vpn(base);
        let len = self.size.pages(base).unwrap_or(1) * self.leaves;
        Pages::count(first, len).unwrap_or(Pages::one(first))
    }
}

/// Calls `each` with the stretches of an address space's own leaves, those that `wanted` gives attributes for. The caller
/// is its writer.
fn stretches<K: Kernel, const CPUS: usize>(
    space: &Block<K, CPUS>,
    wanted: impl Fn(&Leaf) -> Option<Attr>,
    mut each: impl FnMut(&Stretch) -> Result<(), Error>,
) -> Result<(), Error> {
    let base = space.base();
    let mut pending: Option<Stretch> = None;
    let mut result = Ok(());
    for own in space.own() {
        // SAFETY: the caller is the writer: nobody takes a node out during the walk but `each`, whose batch keeps it.
        let _ = space.table.for_each(unsafe { Pinned::by(space) }, own, &mut |leaf| {
            let Some(attr) = wanted(&leaf) else { return ControlFlow::Continue(()) };
            if pending.as_mut().is_some_and(|pending| pending.extend(&leaf, attr, base)) {
                return ControlFlow::Continue(());
            }
            if let Some(before) = pending.replace(Stretch::of(&leaf, attr)) {
                result = each(&before);
            }
            if result.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        result?;
    }
    pending.map_or(Ok(()), |last| each(&last))
}
