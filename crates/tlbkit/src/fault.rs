//! Page faults: why an access was refused, and what the kernel does about it.

use tlbkit_addr::Attr;
use tlbkit_pagetable::Leaf;

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

    /// Tells whether a page with these attributes allows the access. A page without [`Attr::USER`] allows user mode
    /// nothing. What supervisor mode may do to a user page is the kernel's decision (SUM, SMAP, PAN), and allowed here.
    #[inline]
    pub const fn allowed(self, attr: Attr) -> bool {
        attr.contains(self.right) && (!self.user || attr.contains(Attr::USER))
    }

    /// Returns the status bits that the access needs in the leaf entry.
    pub(crate) const fn status(self) -> Attr {
        if self.right.contains(Attr::WRITE) { Attr::ACCESSED.union(Attr::DIRTY) } else { Attr::ACCESSED }
    }
}

/// Why an access faulted, from [`AddressSpace::fault`](crate::AddressSpace::fault).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The page allows the access, so repeat it: this CPU's TLB held an older entry (Tzou 5.1.1, safe inconsistency), or
    /// the entry lacked a status bit that this hardware leaves to software. Both are mended.
    Retry,
    /// No page is mapped there: map one, or kill the process.
    NotMapped,
    /// No page is mapped there, and the entry has this payload: bring back what it names, and
    /// [`fill`](crate::Edit::fill) the place.
    Swapped(u64),
    /// The page is a guard: nothing is to be mapped there.
    Guard,
    /// A store to a page that [`fork`](crate::AddressSpace::fork) has made read-only, and that allows the access but for
    /// that. Copy the frame and
    /// [`replace`](crate::AddressSpace::replace) the leaf; or, if the frame is mapped nowhere else,
    /// [`protect`](crate::AddressSpace::protect) it: set [`Attr::WRITE`], and clear [`Attr::COPY_ON_WRITE`].
    CopyOnWrite(Leaf),
    /// The page does not allow the access.
    NoRight(Leaf),
    /// The page allows nothing, and keeps its frame: it is mapped without [`Attr::READ`], [`Attr::WRITE`] and
    /// [`Attr::EXEC`] (`PROT_NONE`).
    Closed(Leaf),
}
