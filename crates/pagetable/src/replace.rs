//! Replacing a leaf by another of the same size: a page gets another frame and is never absent.
//!
//! ```text
//!   most hardware       old -------------------------------> new        one store; TLBs are flushed after it
//!   break before make   old -> empty -> known to every TLB -> new       a CPU that faults in between retries
//! ```
//!
//! A page of copy on write is the case that this is for: unmapping it and mapping it again would show other threads a
//! moment in which it is not mapped.

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
    // An attribute that must not change in a live entry may, by way of an empty one.
    let fixed = old.attr.symmetric_difference(attr).intersection(F::FIXED);
    if !F::BREAK_FRAME && !fixed.is_empty() {
        return Err(Error::WrongAttr { attr: fixed });
    }
    F::leaf(frame, old.size, attr, last)
}

/// Stores `new` over `old` by way of `store`, which stores a word wherever the leaf stands and returns what was there.
/// Where hardware wants break before make, `known` makes known in between that `pages` are gone. If that unwinds, the old
/// leaf is back.
///
/// Returns the last that was there of the old leaf.
#[inline(always)]
pub(crate) fn exchange<F: Format>(
    store: impl Fn(F::Word) -> F::Word,
    new: F::Word,
    pages: Pages,
    known: &mut dyn FnMut(&Flush),
) -> F::Word {
    if !F::BREAK_FRAME {
        return store(new);
    }
    let old = store(F::Word::ZERO);
    let mut flush = Flush::none();
    flush.add(FlushScope::Everywhere, pages);
    let mut filled = Filled { store, word: old };
    known(&flush);
    filled.word = new;
    drop(filled);
    old
}

/// Fills an emptied leaf, whichever way its holder leaves.
pub(crate) struct Filled<W: Copy, R, S: Fn(W) -> R> {
    pub(crate) store: S,
    pub(crate) word: W,
}

impl<W: Copy, R, S: Fn(W) -> R> Drop for Filled<W, R, S> {
    #[inline(always)]
    fn drop(&mut self) {
        (self.store)(self.word);
    }
}
