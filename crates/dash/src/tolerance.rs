//! Inconsistencies that need no flush, or no immediate flush (Tzou 5.1).
//!
//! | kind | a stale TLB entry | so the kernel |
//! |-|-|-|
//! | safe (5.1.1) | allows less than the new entry | skips the flush; a CPU that faults flushes its own TLB entry |
//! | transient (5.1.2) | allows more, during a time in which the kernel does not use the page | defers the flush |
//! | trusted (5.1.3) | allows more, but a rule forbids its use, and the spaces that it could harm trust the others | skips the flush |
//! | intolerable | allows an access that must fault, or loses a status bit that the kernel needs | flushes |

use tlbkit_addr::{Attr, FlushScope, Pfn};

/// The content of a page-table entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    /// The frame.
    pub frame: Pfn,
    /// The rights, the status bits and the memory type.
    pub attr: Attr,
}

/// The reason for a change of an entry, which says what the rest of the system guarantees until the operation has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Context {
    /// There is no guarantee.
    Plain,
    /// Page-out: the kernel does not use the frame until the operation has ended, and references until then are legal
    /// (5.3.3).
    PageOut,
    /// The page has been sent and not yet received. A write of the sender counts as a write before the send (5.3.4).
    Sent {
        /// Whether the receiver trusts the sender not to access the page.
        trusted: bool,
    },
    /// The kernel's own mapping, which the kernel will not use again (5.1.3).
    KernelOwn,
    /// Reprotection for copy-on-write: a legal write must fault (5.3.5).
    CopyOnWrite,
}

/// The kind of an inconsistency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tolerance {
    /// Harmless: the TLB entry allows less, or has a referenced bit that the page-table entry lacks.
    Safe,
    /// Harmless until the operation is done.
    Transient,
    /// Harmless among spaces that trust each other.
    Trusted,
    /// Harmful.
    Intolerable,
}

/// The flush that an inconsistency needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Advice {
    /// No other CPU needs to flush.
    Skip,
    /// An asynchronous operation is sufficient. The kernel must not use the page before the operation has ended.
    Defer,
    /// A synchronous operation is needed.
    Flush,
}

impl Tolerance {
    /// Returns the flush that this kind of inconsistency needs.
    pub const fn advice(self) -> Advice {
        match self {
            Self::Safe | Self::Trusted => Advice::Skip,
            Self::Transient => Advice::Defer,
            Self::Intolerable => Advice::Flush,
        }
    }
}

/// Classifies the change of an entry from `old` to `new`; `None` means that no page is mapped.
///
/// [`FlushScope::of_change`] says which changes of attributes are safe, as for page tables, with two exceptions: a lost
/// referenced bit is safe, and so is a lost dirty bit if the page was not writable, because such a page cannot have become
/// dirty.
///
/// On hardware that caches the absence of a page (RISC-V may), a safe change can cost one fault on each CPU.
pub fn classify(old: Option<Entry>, new: Option<Entry>, context: Context) -> Tolerance {
    let Some(old) = old.filter(|old| old.attr.intersects(Attr::RIGHTS)) else {
        return Tolerance::Safe;
    };
    let same_page = new.is_none_or(|new| new.frame == old.frame);
    if let Some(new) = new
        && same_page
    {
        let (lost, gained) = (old.attr.difference(new.attr), new.attr.difference(old.attr));
        // A TLB entry with the dirty bit sets no dirty bit in the page-table entry, so the kernel would not notice writes by
        // it. Without the right to write there are no such writes. An unnoticed reference is safe (5.1.1).
        let unseen =
            if old.attr.contains(Attr::WRITE) { Attr::ACCESSED } else { Attr::ACCESSED.union(Attr::DIRTY) };
        if FlushScope::of_change(lost.difference(unseen), gained) != FlushScope::Everywhere {
            return Tolerance::Safe;
        }
        // Accesses to one frame with two memory types are harmful in every context.
        if lost.union(gained).intersects(Attr::MEMORY.union(Attr::VARIETY)) {
            return Tolerance::Intolerable;
        }
    }
    match context {
        Context::Plain | Context::CopyOnWrite => Tolerance::Intolerable,
        Context::PageOut | Context::Sent { trusted: false } if same_page => Tolerance::Transient,
        Context::PageOut | Context::Sent { trusted: false } => Tolerance::Intolerable,
        Context::Sent { trusted: true } | Context::KernelOwn => Tolerance::Trusted,
    }
}
