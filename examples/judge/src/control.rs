//! Controls: formats that lie, and flushes that are not made, which a judge must find.
//!
//! A judge that finds nothing has judged only if it would have found something. So after it has, each control is switched
//! on in turn, with the same operations and the same looks, until the first difference.

use core::sync::atomic::{AtomicUsize, Ordering};

use tlbkit_addr::{Attr, FlushScope, PageSize, Pfn, WalkCache};
use tlbkit_pagetable::format::Format;
use tlbkit_pagetable::nodes::{LinkRange, NodeAddr};
use tlbkit_pagetable::{Change, Error, Stage};

/// What is wrong. The lies are about pages with [`MARKED`] alone, so that the kernel goes on running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Control {
    Nothing,
    /// The user's pages are encoded as the kernel's, and the other way round; of a guest, those that can be executed as those that
    /// cannot.
    Rights,
    /// A base page is encoded with the frame before its own.
    Frame,
    /// What the MMU notes in an entry is not seen.
    Status,
    /// No flush is made.
    Flush,
    /// A space is left where it should be changed for another.
    Switch,
    /// A number goes to another space, and is not forgotten.
    Reuse,
}

/// The attribute of the pages that are lied about.
const MARKED: Attr = Attr::COPY_ON_WRITE;
const STATUS: Attr = Attr::ACCESSED.union(Attr::DIRTY);

static CONTROL: AtomicUsize = AtomicUsize::new(Control::Nothing as usize);

/// Switches a control on, and any other off.
pub(crate) fn switch_to(control: Control) {
    CONTROL.store(control as usize, Ordering::Relaxed);
}

/// Tells whether a control is on.
pub(crate) fn is_on(control: Control) -> bool {
    CONTROL.load(Ordering::Relaxed) == control as usize
}

/// A format that says of the words of `F` what the control makes of them: the truth if none is on.
#[derive(Debug)]
pub(crate) struct Controlled<F>(F);

/// Returns the rights that are said of those in a word, or stand in a word for those that were asked for.
fn twisted<F: Format>(attr: Attr) -> Attr {
    let right = if F::OPTIONAL.contains(Attr::USER) { Attr::USER } else { Attr::EXEC };
    if is_on(Control::Rights) && attr.contains(MARKED) { attr ^ right } else { attr }
}

fn steps_back(attr: Attr, size: PageSize, base: PageSize) -> usize {
    usize::from(is_on(Control::Frame) && attr.contains(MARKED) && size == base)
}

// SAFETY: links are those of `F`, and so is what is a leaf.
unsafe impl<F: Format> Format for Controlled<F> {
    type Word = F::Word;

    const BASE: PageSize = F::BASE;
    const STEP: F::Word = F::STEP;
    const LINK_ALIGN: usize = F::LINK_ALIGN;
    const REACH: LinkRange = F::REACH;
    const IMPLIED: Attr = F::IMPLIED;
    const OPTIONAL: Attr = F::OPTIONAL;
    const CLOSES: bool = F::CLOSES;
    const ABSENT: u32 = F::ABSENT;
    const FIXED: Attr = F::FIXED;
    const APPEARS: FlushScope = F::APPEARS;
    const WALK_CACHE: WalkCache = F::WALK_CACHE;
    const STAGE: Stage = F::STAGE;
    const STATUS: bool = F::STATUS;
    const SPREAD: bool = F::SPREAD;
    const BREAK: bool = F::BREAK;
    const BREAK_FRAME: bool = F::BREAK_FRAME;

    fn leaf(frame: Pfn, size: PageSize, attr: Attr, last: bool) -> Result<F::Word, Error> {
        // Attributes are encoded at frame 0, too: those of a mark, for example.
        let frame = Pfn::new(frame.get().saturating_sub(steps_back(attr, size, F::BASE)));
        F::leaf(frame, size, twisted::<F>(attr), last)
    }

    fn leading_to(first: F::Word, frame: Pfn) -> F::Word {
        F::leading_to(first, frame)
    }

    fn link(node: NodeAddr) -> F::Word {
        F::link(node)
    }

    fn is_leaf(word: F::Word, last: bool) -> bool {
        F::is_leaf(word, last)
    }

    fn is_link(word: F::Word) -> bool {
        F::is_link(word)
    }

    fn node(link: F::Word) -> NodeAddr {
        F::node(link)
    }

    fn frame(leaf: F::Word, size: PageSize) -> Pfn {
        Pfn::new(F::frame(leaf, size).get() + steps_back(F::attr(leaf, size == F::BASE), size, F::BASE))
    }

    fn attr(leaf: F::Word, last: bool) -> Attr {
        let attr = twisted::<F>(F::attr(leaf, last));
        if is_on(Control::Status) && attr.contains(MARKED) { attr - STATUS } else { attr }
    }

    fn size(leaf: F::Word, slot: PageSize) -> PageSize {
        F::size(leaf, slot)
    }

    fn change(leaf: F::Word, change: Change, last: bool) -> F::Word {
        if is_on(Control::Nothing) {
            return F::change(leaf, change, last);
        }
        let attr = twisted::<F>(change.apply(twisted::<F>(F::attr(leaf, last))));
        F::change(leaf, Change { clear: F::OPTIONAL - attr, set: attr }, last)
    }

    fn absent(bits: u64) -> F::Word {
        F::absent(bits)
    }

    fn absent_bits(word: F::Word) -> u64 {
        F::absent_bits(word)
    }
}
