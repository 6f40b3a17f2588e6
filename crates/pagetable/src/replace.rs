//! Replacing a leaf by another of the same size: the page gets another frame and stays mapped.
//!
//! ```text
//!   most hardware       old -------------------------------> new        one store; TLBs are flushed after it
//!   break before make   old -> empty -> flush on every CPU -> new       a CPU that faults in between retries
//! ```
//!
//! A change of size does the same, in each table's `resize.rs`.
//!
//! A copy-on-write page needs this: if the page were unmapped and mapped again, an access of another thread in between would find
//! it not mapped.

use tlbkit_addr::{Attr, Flush, FlushScope, Pages, Pfn};

use crate::format::{Format, check_attr};
use crate::geometry::Checked;
use crate::{Error, Leaf, Word};

/// Returns the word of the leaf that replaces `old`.
///
/// # Errors
///
/// [`Error::WrongAttr`], [`Error::MisalignedFrame`] or [`Error::FrameTooLarge`].
#[inline(always)]
pub(crate) fn replacement<G: Checked, F: Format>(
    old: &Leaf,
    frame: Pfn,
    attr: Attr,
    last: bool,
) -> Result<F::Word, Error> {
    check_attr::<F>(attr)?;
    G::SPACE.check_frames(frame, G::SPACE.pages_of(old).len(), old.size)?;
    // An attribute that must not change in a live entry may change if the entry is empty in between.
    let fixed = old.attr.symmetric_difference(attr).intersection(F::FIXED);
    if !F::BREAK_FRAME && !fixed.is_empty() {
        return Err(Error::WrongAttr { attr: fixed });
    }
    F::leaf(frame, old.size, attr, last)
}

/// Replaces a leaf by `new`. `store` stores a word in every slot of the leaf and returns the old word. Where hardware requires
/// break-before-make, this stores zero first, and calls `flush_all_cpus` with a flush of `pages` before it stores `new`. If
/// `flush_all_cpus` unwinds, the old leaf is stored again.
///
/// Returns the old leaf with the status bits that hardware set before the first store.
#[inline(always)]
pub(crate) fn exchange<F: Format>(
    mut store: impl FnMut(F::Word) -> F::Word,
    new: F::Word,
    pages: Pages,
    flush_all_cpus: &mut dyn FnMut(&Flush),
) -> F::Word {
    if !F::BREAK_FRAME {
        return store(new);
    }
    let old = store(F::Word::ZERO);
    let mut flush = Flush::none();
    flush.add(FlushScope::Everywhere, pages);
    let mut filled = Filled { store, word: old };
    flush_all_cpus(&flush);
    filled.word = new;
    drop(filled);
    old
}

/// A guard that stores its word in an emptied leaf when it is dropped, also by an unwinding.
pub(crate) struct Filled<W: Copy, R, S: FnMut(W) -> R> {
    pub(crate) store: S,
    pub(crate) word: W,
}

impl<W: Copy, R, S: FnMut(W) -> R> Drop for Filled<W, R, S> {
    #[inline(always)]
    fn drop(&mut self) {
        (self.store)(self.word);
    }
}
