//! Page faults: the access, and the reason why it faulted. The kernel resolves a copy-on-write fault with `Edit::unshare`: see
//! `page_fault` in `docs/embedding.md`.

use tlbkit_addr::{Attr, Pfn};
use tlbkit_pagetable::{Leaf, Mark};

/// An access to memory, as the fault register of the machine describes it.
///
/// A page-fault handler passes the register to [`from_x86_64`](Self::from_x86_64), [`from_riscv`](Self::from_riscv),
/// [`from_aarch64`](Self::from_aarch64) or [`from_mips32`](Self::from_mips32), because the register says more than what the access
/// does: also why the hardware refused it. The constants describe an access that the kernel makes by software.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// The rights of which the access needs one: [`Attr::READ`], [`Attr::WRITE`] or [`Attr::EXEC`].
    pub(crate) right: Attr,
    pub(crate) user: bool,
    pub(crate) report: Report,
}

/// What the machine has reported besides the access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Report {
    /// No machine has reported this access: the kernel has described it.
    Nothing,
    /// A fault.
    Fault,
    /// A fault, because the walk found no translation.
    #[cfg_attr(
        not(target_pointer_width = "64"),
        allow(dead_code, reason = "the machines that tell this have 64 bits")
    )]
    Absent,
    /// A fault, because several TLB entries match the address.
    Conflict,
    /// A fault for a reason that no flush removes.
    Refused(Reason),
}

impl Access {
    /// A load in supervisor mode.
    pub const LOAD: Self = Self::by_software(Attr::READ);
    /// A store in supervisor mode.
    pub const STORE: Self = Self::by_software(Attr::WRITE);
    /// An instruction fetch in supervisor mode.
    pub const FETCH: Self = Self::by_software(Attr::EXEC);

    const fn by_software(right: Attr) -> Self {
        Self { right, user: false, report: Report::Nothing }
    }

    /// Returns the access that a machine's fault register describes, which the machine's file decodes.
    pub(crate) const fn reported_by(right: Attr, user: bool, report: Report) -> Self {
        Self { right, user, report }
    }

    /// Returns the same access from user mode.
    #[must_use]
    pub const fn by_user(self) -> Self {
        Self { user: true, ..self }
    }

    /// Tells whether a page with these attributes allows the access. A page without [`Attr::USER`] allows no access from user
    /// mode. This function allows supervisor mode to access user pages: the kernel decides whether it may (SUM, SMAP, PAN).
    #[inline]
    pub const fn allowed(self, attr: Attr) -> bool {
        attr.intersects(self.right) && (!self.user || attr.contains(Attr::USER))
    }

    /// Returns the reason of a fault that does not depend on the page's entry.
    #[inline(always)]
    pub(crate) const fn hopeless(self) -> Option<Fault> {
        match self.report {
            Report::Refused(reason @ (Reason::Alignment | Reason::Memory | Reason::Unknown)) => {
                Some(Fault::Refused(reason))
            }
            _ => None,
        }
    }

    /// Returns the reason that the machine has reported for a fault on a page whose entry allows the access.
    const fn reported(self, leaf: &Leaf) -> Option<Reason> {
        match self.report {
            Report::Refused(Reason::UserPage) if !leaf.attr.contains(Attr::USER) => None,
            Report::Refused(reason) => Some(reason),
            _ => None,
        }
    }

    /// Returns the most probable reason of a fault that a flush of the page has not removed, and that the page's entry does not
    /// explain. `users` tells whether the page is the user's.
    pub(crate) const fn repeated(self, users: bool) -> Reason {
        match self.report {
            Report::Absent => Reason::OtherRoot,
            _ if !self.user && users => Reason::UserPage,
            _ => Reason::Unknown,
        }
    }

    /// Returns the fault that the access causes on the page of `leaf`, or `None` if the page allows the access and the machine has
    /// reported no other reason.
    #[inline(always)]
    pub(crate) fn refused(self, leaf: &Leaf) -> Option<Fault> {
        if self.allowed(leaf.attr) {
            return self.reported(leaf).map(Fault::Refused);
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
/// [`lookup`](crate::AddressSpace::lookup) returns the whole leaf, if that is larger. `F` numbers frames ([`FrameOf`](crate::FrameOf)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault<F = Pfn> {
    /// The page allows the access, so repeat it. Never the answer to the same fault twice in a row
    /// ([`AddressSpace::fault`](crate::AddressSpace::fault)). Either this CPU's TLB held an older entry (Tzou 5.1.1, safe inconsistency),
    /// which is flushed now, or the entry lacked a status bit that this hardware leaves to software, which is set now.
    Retry,
    /// No page is mapped there: map one, or kill the process.
    NotMapped,
    /// No page is mapped there, and the entry holds this payload. Read the contents that the payload names into a frame, and
    /// [`fill`](crate::Edit::fill) the entry. Hold the payload meanwhile, from the edit on that finds it: `swap.rs` in
    /// `docs/embedding.md`. Whether the page allows the access is found when the access is repeated.
    Swapped(u64),
    /// The page is a guard page: the access is an error.
    Guard,
    /// A store to a page with [`Attr::COPY_ON_WRITE`] that lacks only [`Attr::WRITE`]: [`fork`](crate::AddressSpace::fork) has
    /// made it read-only, or a [`protect`](crate::AddressSpace::protect) with [`Change::COPY_ON_WRITE`].
    /// [`unshare`](crate::AddressSpace::unshare) resolves it. A change that forbids stores for good is [`Change::READ_ONLY`].
    ///
    /// [`Change::COPY_ON_WRITE`]: crate::Change::COPY_ON_WRITE
    /// [`Change::READ_ONLY`]: crate::Change::READ_ONLY
    CopyOnWrite(Leaf<F>),
    /// The page allows the access, and the hardware refuses it for another reason, which no flush removes: the access would fault
    /// again for ever. What to do depends on the reason: correct the kernel, or end the process.
    Refused(Reason),
    /// The page does not allow the access.
    NoRight(Leaf<F>),
    /// The page allows no access and keeps its frame: it is mapped without [`Attr::READ`], [`Attr::WRITE`] and [`Attr::EXEC`]
    /// (`PROT_NONE`).
    Closed(Leaf<F>),
}

/// Why the hardware refuses an access that the page's entry allows; see [`Fault::Refused`].
///
/// The reason is the machine's own if the [`Access`] has been decoded from its fault register and the register tells; otherwise it is
/// the most probable one for a fault that has come twice in a row ([`AddressSpace::fault`](crate::AddressSpace::fault)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// The kernel has accessed a user's page where the CPU forbids that: SMAP or SMEP (x86-64), SUM or a fetch (RISC-V), PAN or
    /// PXN (AArch64).
    UserPage,
    /// The CPU walks another table: its root register does not have the root of this address space, or another address space has
    /// been [activated](crate::AddressSpace::activate) on it.
    OtherRoot,
    /// The CPU does not accept an entry on the way: a reserved bit is set, a page has a size that this CPU does not have, or an
    /// address lies beyond its physical memory.
    Entry,
    /// The page's protection key (x86-64) or overlay (AArch64) forbids the access.
    ProtectionKey,
    /// The access is one of a shadow stack, and the page is none; or the other way round.
    ShadowStack,
    /// The address is not aligned as the access needs it, or lies in a segment that the mode may not use (MIPS32).
    Alignment,
    /// The memory system has refused the access, or has failed: PMP and PMA (RISC-V), an external abort, a granule protection check
    /// or an uncorrectable error (AArch64), a bus error (MIPS32), the EPCM or the RMP (x86-64).
    Memory,
    /// None of the others.
    Unknown,
}

impl Fault {
    /// Returns the fault of an access to a page that is not mapped, whose entry has `mark`.
    #[inline]
    pub(crate) const fn absent(mark: Option<Mark>) -> Self {
        match mark {
            Some(Mark::Payload(payload, _)) => Self::Swapped(payload),
            Some(Mark::Guard) => Self::Guard,
            None => Self::NotMapped,
        }
    }
}
