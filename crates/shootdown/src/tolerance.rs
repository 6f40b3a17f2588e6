//! Which inconsistencies need no flush, or no flush now (Tzou 5.1).
//!
//! | kind | a stale TLB entry | so the kernel |
//! |-|-|-|
//! | safe (5.1.1) | allows less than the new entry | skips the flush; a CPU that faults flushes its own copy |
//! | transient (5.1.2) | allows more, for a while in which nothing is done with the page | defers it |
//! | trusted (5.1.3) | allows more, but a rule forbids to use it, and those it could harm trust the others | skips it |
//! | intolerable | allows what must not be, or hides what must be known | flushes |

use tlbkit_addr::{Attr, FlushScope, Pfn};

/// What an entry says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    /// The frame.
    pub frame: Pfn,
    /// Rights, status, memory type.
    pub attr: Attr,
}

/// Why an entry is changed: what the rest of the system promises meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Context {
    /// Nothing is promised.
    Plain,
    /// Page-out: the frame is left alone until the operation is done, and a reference meanwhile is legal (5.3.3).
    PageOut,
    /// The page has been sent, and not been received: the sender may still write to it as if before (5.3.4).
    Sent {
        /// The receiver trusts the sender not to touch it.
        trusted: bool,
    },
    /// The kernel's own mapping, which the kernel will not use again (5.1.3).
    KernelOwn,
    /// Reprotection for copy-on-write: a legal write must fault (5.3.5).
    CopyOnWrite,
}

/// What an inconsistency is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tolerance {
    /// Harmless: the TLB allows less, or has a referenced bit too many.
    Safe,
    /// Harmless until the operation is done.
    Transient,
    /// Harmless among spaces that trust each other.
    Trusted,
    /// Harmful.
    Intolerable,
}

/// What to do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Advice {
    /// No other CPU needs to flush.
    Skip,
    /// An asynchronous operation; nothing may be done with the page before it has completed.
    Defer,
    /// A synchronous one.
    Flush,
}

impl Tolerance {
    /// Returns what to do.
    pub const fn advice(self) -> Advice {
        match self {
            Self::Safe | Self::Trusted => Advice::Skip,
            Self::Transient => Advice::Defer,
            Self::Intolerable => Advice::Flush,
        }
    }
}

/// Classifies the change of an entry from `old` to `new`, `None` being no page.
///
/// Which changes of attributes are safe is [`FlushScope::of_change`]'s rule, which page tables go by, too, with two
/// exceptions that a table cannot make: nothing depends on the referenced bit here, and a page that was not writable
/// cannot have become dirty.
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
        // A copy that says "dirty" sets no dirty bit, so writes through it are lost to the kernel. Without the right to write
        // there are none. References that are lost with the other status bit are safe (5.1.1).
        let unseen =
            if old.attr.contains(Attr::WRITE) { Attr::ACCESSED } else { Attr::ACCESSED.union(Attr::DIRTY) };
        if FlushScope::of_change(lost.difference(unseen), gained) != FlushScope::Everywhere {
            return Tolerance::Safe;
        }
        // Two memory types of one frame are harmful whatever is promised.
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
