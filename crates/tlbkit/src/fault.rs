//! Page faults: the access, and the reason why it faulted. The kernel resolves a copy-on-write fault with `Edit::unshare`: see
//! `page_fault` in `docs/embedding.md`.

use tlbkit_addr::Attr;
use tlbkit_pagetable::{Leaf, Mark};

/// An access to memory, as the fault register of the machine describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// What the access does: one of [`Attr::READ`], [`Attr::WRITE`] and [`Attr::EXEC`].
    right: Attr,
    user: bool,
}

impl Access {
    /// A load in supervisor mode.
    pub const LOAD: Self = Self { right: Attr::READ, user: false };
    /// A store in supervisor mode.
    pub const STORE: Self = Self { right: Attr::WRITE, user: false };
    /// An instruction fetch in supervisor mode.
    pub const FETCH: Self = Self { right: Attr::EXEC, user: false };

    /// Returns the same access from user mode.
    #[must_use]
    pub const fn by_user(self) -> Self {
        Self { user: true, ..self }
    }

    /// Tells whether a page with these attributes allows the access. A page without [`Attr::USER`] allows no access from user
    /// mode. This function allows supervisor mode to access user pages: the kernel decides whether it may (SUM, SMAP, PAN).
    #[inline]
    pub const fn allowed(self, attr: Attr) -> bool {
        attr.contains(self.right) && (!self.user || attr.contains(Attr::USER))
    }

    /// Returns the fault that the access causes on the page of `leaf`, or `None` if the page allows the access.
    #[inline(always)]
    pub(crate) fn refused(self, leaf: &Leaf) -> Option<Fault> {
        if self.allowed(leaf.attr) {
            return None;
        }
        if !leaf.attr.intersects(Attr::READ.union(Attr::WRITE).union(Attr::EXEC)) {
            return Some(Fault::Closed(*leaf));
        }
        // A page is copied only if the right to write is all that is missing: a user's store to a supervisor page is refused.
        let copy = leaf.attr.contains(Attr::COPY_ON_WRITE) && self.allowed(leaf.attr.union(Attr::WRITE));
        Some(if copy { Fault::CopyOnWrite(*leaf) } else { Fault::NoRight(*leaf) })
    }

    /// Returns the status bits that the access needs in the leaf entry.
    pub(crate) const fn status(self) -> Attr {
        if self.right.contains(Attr::WRITE) { Attr::ACCESSED.union(Attr::DIRTY) } else { Attr::ACCESSED }
    }
}

/// Why an access faulted, from [`AddressSpace::fault`](crate::AddressSpace::fault).
///
/// The [`Leaf`] in it is that of the base page which faulted: the page's own address and frame, and the attributes of its entry.
/// [`lookup`](crate::AddressSpace::lookup) returns the whole leaf, if that is larger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The page allows the access, so repeat it. Either this CPU's TLB held an older entry (Tzou 5.1.1, safe inconsistency),
    /// which is flushed now, or the entry lacked a status bit that this hardware leaves to software, which is set now.
    Retry,
    /// No page is mapped there: map one, or kill the process.
    NotMapped,
    /// No page is mapped there, and the entry holds this payload. Read the contents that the payload names into a frame, and
    /// [`fill`](crate::Edit::fill) the entry.
    Swapped(u64),
    /// The page is a guard page: the access is an error.
    Guard,
    /// A store to a page with [`Attr::COPY_ON_WRITE`] that lacks only [`Attr::WRITE`]: [`fork`](crate::AddressSpace::fork) has
    /// made it read-only, or a [`protect`](crate::AddressSpace::protect) with [`Change::COPY_ON_WRITE`].
    /// [`unshare`](crate::AddressSpace::unshare) resolves it. A change that forbids stores for good is [`Change::READ_ONLY`].
    ///
    /// [`Change::COPY_ON_WRITE`]: crate::Change::COPY_ON_WRITE
    /// [`Change::READ_ONLY`]: crate::Change::READ_ONLY
    CopyOnWrite(Leaf),
    /// The page does not allow the access.
    NoRight(Leaf),
    /// The page allows no access and keeps its frame: it is mapped without [`Attr::READ`], [`Attr::WRITE`] and [`Attr::EXEC`]
    /// (`PROT_NONE`).
    Closed(Leaf),
}

impl Fault {
    /// Returns the fault of an access to a page that is not mapped, whose entry has `mark`.
    #[inline]
    pub(crate) const fn absent(mark: Option<Mark>) -> Self {
        match mark {
            Some(Mark::Payload(payload)) => Self::Swapped(payload),
            Some(Mark::Guard) => Self::Guard,
            None => Self::NotMapped,
        }
    }
}
