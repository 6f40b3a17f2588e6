//! Entry formats: how a leaf, or a link to a node, is encoded in a word.
//!
//! A format is data: encodings and what the hardware that reads them does, no instruction of any architecture.
//!
//! | format | word | walked by | pages |
//! |-|-|-|-|
//! | [`Compact`] | 64 bits | software | any size, every attribute |
//! | [`Compact32`] | 32 bits | software | any size, every attribute, 4 GiB of physical memory |
//! | [`EntryLo`], [`EntryLoCoherent`], [`EntryLoCow`], [`EntryLoCowCoherent`] | 32 bits | a MIPS32 refill handler, which loads leaves as they are | PageMask sizes, in pairs |
//! | [`Paper`] | 32 bits | software | Elphinstone et al. 3.2: PTE pairs with mapping-tree words |
//! | [`RiscvOf`], [`X86Of`], [`Aarch64Of`] | 64 bits | hardware | the sizes of their levels, and contiguous runs |
//! | [`Sv32`] | 32 bits | hardware | the sizes of its levels |

#[cfg(target_has_atomic = "64")]
mod aarch64;
mod compact;
mod entrylo;
mod paper;
mod riscv;
#[cfg(target_has_atomic = "64")]
mod x86_64;

use core::fmt::Debug;

use tlbkit_addr::{Attr, FlushScope, PageSize, Pfn, WalkCache};

#[cfg(target_has_atomic = "64")]
pub use aarch64::{Aarch64, Aarch64Of};
#[cfg(target_has_atomic = "64")]
pub use compact::Compact;
pub use compact::Compact32;
pub use entrylo::{EntryLo, EntryLoCoherent, EntryLoCow, EntryLoCowCoherent, EntryLoOf, KSEG0};
pub use paper::Paper;
pub use riscv::Sv32;
#[cfg(target_has_atomic = "64")]
pub use riscv::{RiscvOf, Sv39};
#[cfg(target_has_atomic = "64")]
pub use x86_64::{X86, X86Of};

use crate::nodes::{LinkRange, NodeAddr};
use crate::word::Word;
use crate::{Change, Entry, Error, Leaf, Mark};

/// The encoding of leaves and links in the words of one machine.
///
/// The zero word is always empty: neither a leaf nor a link.
///
/// # Safety
///
/// Walkers go where a link leads. So no word is both a leaf and a link where links may stand, [`link`](Format::link) of
/// a node whose address is aligned to [`LINK_ALIGN`](Format::LINK_ALIGN) and within [`REACH`](Format::REACH) is a link,
/// [`node`](Format::node) of it is the same address, whatever status bits hardware has set meanwhile, and
/// [`leaf`](Format::leaf), [`change`](Format::change) and [`beside`](Format::beside) make no link of what was none.
pub unsafe trait Format: Debug + 'static {
    /// What an entry is loaded and stored as, in one access.
    type Word: Word;

    /// The size of the frames that leaves count: a table's base page. 4 KiB in all formats here.
    const BASE: PageSize = PageSize::K4;

    /// What a leaf word grows by from one base frame to the next. If some bits of a frame's number stand apart from the others,
    /// that is so as long as these do not change: [`map`](crate::Table::map) refuses a range that changes
    /// them ([`Error::FrameTooLarge`]), in the tables that hardware walks.
    const STEP: Self::Word;

    /// The alignment in bytes that a node's address needs, so that its low bits can be something else.
    const LINK_ALIGN: usize;

    /// The node addresses that a link can hold, if the word itself can: a table takes no node beyond them.
    const REACH: LinkRange = LinkRange::ALL;

    /// Attributes that a leaf always has, whether asked for or not; of [`Attr::READ`], [`Attr::WRITE`] and [`Attr::EXEC`] a closed
    /// page ([`CLOSES`](Self::CLOSES)) has none.
    const IMPLIED: Attr;

    /// Attributes that a leaf can have or lack. A format may give [`Attr::READ`] to each leaf with [`Attr::WRITE`] or
    /// [`Attr::EXEC`].
    const OPTIONAL: Attr;

    /// Whether a leaf can be closed: without any of [`Attr::READ`], [`Attr::WRITE`] and [`Attr::EXEC`] it is a page that keeps its
    /// frame and allows nothing (`PROT_NONE`). Hardware finds it not present; to software it is a leaf of any size like others.
    ///
    /// Where one of the three is [`IMPLIED`](Self::IMPLIED), a change that takes it away takes all three away, and one that adds
    /// any of them brings it back. In a format without closed pages a mapping asks for at least one of the three
    /// ([`Error::WrongAttr`]).
    const CLOSES: bool = !Self::IMPLIED.contains(Attr::READ);

    /// How many bits software has in an entry that is neither a leaf nor a link, where only leaves stand: 62 at most. What
    /// stands there is a [`Mark`]. With 0 the format holds none.
    const ABSENT: u32 = 0;

    /// Attributes of a live leaf that no change may touch: it must be unmapped and mapped anew.
    const FIXED: Attr = Attr::empty();

    /// The flush scope of a mapping that appears where there was none. Not free where hardware may cache the absence.
    const APPEARS: FlushScope = FlushScope::Nowhere;

    /// What hardware may cache of links. Anything but [`WalkCache::Nothing`] says that hardware walks the table beside
    /// the CPU: then every store to it is one atomic store, one that links a node releases what the node holds, and a
    /// change of links is told to the batch ([`Retired::relink`](crate::Retired::relink)).
    const WALK_CACHE: WalkCache = WalkCache::Nothing;

    /// Whether hardware sets [`Attr::ACCESSED`] or [`Attr::DIRTY`] in the word. Edits then swap.
    const STATUS: bool = false;

    /// Whether a [`change`](Self::change) of other attributes changes the same bits of a leaf whatever hardware notes in it
    /// meanwhile. Then they are flipped in one instruction, which cannot fail.
    const FLIPS: bool = false;

    /// Whether a valid entry may be replaced by one of another size only by way of an empty one that every TLB has
    /// seen (break before make). Else a change of size is one store or exchange, and either translation may be used until
    /// the flush. Where it is, a page must not be unmapped and mapped to something else in one batch either.
    const BREAK: bool = false;

    /// Whether a valid entry may be replaced by one that leads to another frame only by way of an empty one.
    const BREAK_FRAME: bool = Self::BREAK;

    /// Whether each of the slots of a page that stands in several holds the frame of that slot, instead of the same word as
    /// the others.
    const SPREAD: bool = false;

    /// Whether two neighbouring leaves are one TLB entry. A change to one can concern the other's word then (see
    /// [`beside`](Format::beside)), and what it makes stale is the entry: where pages are larger than the base size,
    /// flushes name whole pairs of them.
    const PAIRED: bool = false;

    /// Words beside each leaf word in a leaf node, which the table keeps room for and leaves to the kernel: the
    /// mapping-tree pointers of Elphinstone et al. A pair of pages has its two leaf words first, then these.
    const EXTRA: usize = 0;

    /// Encodes a leaf of `size`, to which `frame` is aligned. `last` tells whether it stands where only leaves stand.
    ///
    /// # Errors
    ///
    /// [`Error::FrameTooLarge`], or [`Error::WrongSize`] where hardware has no such page.
    ///
    /// # Panics
    ///
    /// With debug assertions, if `frame` is not aligned and would overflow into another field. Tables check that first
    /// ([`Error::MisalignedFrame`]).
    fn leaf(frame: Pfn, size: PageSize, attr: Attr, last: bool) -> Result<Self::Word, Error>;

    /// Returns the leaf that leads to `frame`, which the format has bits for, where `first` leads to frame 0.
    ///
    /// By default [`STEP`](Format::STEP) says what to add, which a format overrides whose bits of a frame's number are not all in a
    /// row.
    #[inline(always)]
    fn leading_to(first: Self::Word, frame: Pfn) -> Self::Word {
        first.advance(Self::STEP, frame.get())
    }

    /// Encodes a link to a node, whose address is aligned to [`LINK_ALIGN`](Format::LINK_ALIGN).
    ///
    /// # Panics
    ///
    /// With debug assertions, if it is not.
    fn link(node: NodeAddr) -> Self::Word;

    /// Tells whether the word is a leaf. `last` as for [`leaf`](Format::leaf).
    fn is_leaf(word: Self::Word, last: bool) -> bool;

    /// Tells whether the word, which stands where links may stand, is a link.
    fn is_link(word: Self::Word) -> bool;

    /// Returns the node that a link leads to.
    fn node(link: Self::Word) -> NodeAddr;

    /// Returns the first frame of a leaf of `size`.
    fn frame(leaf: Self::Word, size: PageSize) -> Pfn;

    /// Returns the attributes of a leaf. `last` as for [`leaf`](Format::leaf).
    fn attr(leaf: Self::Word, last: bool) -> Attr;

    /// Returns the size of a leaf that stands in a slot for pages of `slot`. Formats that do not encode the size
    /// return `slot`.
    #[inline(always)]
    fn size(leaf: Self::Word, slot: PageSize) -> PageSize {
        let _ = leaf;
        slot
    }

    /// Returns the leaf with changed attributes. The change touches none that are [`FIXED`](Format::FIXED), clears
    /// none that are [`IMPLIED`](Format::IMPLIED), and sets none that the format does not have. `last` as for
    /// [`leaf`](Format::leaf): a bit may stand elsewhere in a larger page.
    fn change(leaf: Self::Word, change: Change, last: bool) -> Self::Word;

    /// Returns the masks of a [`change`](Self::change) that clears and sets the same bits in every leaf, so that a range needs
    /// them once; `None` if what it does depends on the leaf. By default every change does.
    #[inline(always)]
    fn masks(change: Change, last: bool) -> Option<Masks<Self::Word>> {
        let _ = (change, last);
        None
    }

    /// Encodes the bits of an entry that is neither a leaf nor a link, where only leaves stand. They are fewer than
    /// [`ABSENT`](Format::ABSENT), and unless none is set one of the lowest two is, as in every [mark](mark_word); no bits are the
    /// zero word, and nothing else is.
    ///
    /// By default they are the bits above the lowest two, which tell leaves.
    #[inline(always)]
    fn absent(bits: u64) -> Self::Word {
        if Self::ABSENT == 0 { Self::Word::ZERO } else { Self::Word::from_u64(bits << 2) }
    }

    /// Returns the bits of an entry that is no leaf where only leaves stand: the inverse of [`absent`](Format::absent).
    #[inline(always)]
    fn absent_bits(word: Self::Word) -> u64 {
        if Self::ABSENT == 0 { 0 } else { word.to_u64() >> 2 }
    }

    /// Returns what the word beside `changed` must be now, if two words are one TLB entry. `beside` may be a leaf,
    /// empty or a link.
    #[inline(always)]
    fn beside(changed: Self::Word, beside: Self::Word) -> Self::Word {
        let _ = changed;
        beside
    }
}

/// What a change of attributes does to the bits of every leaf, from [`Format::masks`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Masks<W> {
    /// The bits that it clears.
    pub clear: W,
    /// The bits that it sets, those that it clears among them.
    pub set: W,
}

impl<W: Word> Masks<W> {
    /// Returns the leaf with changed attributes.
    #[inline(always)]
    pub fn apply(self, leaf: W) -> W {
        leaf & !self.clear | self.set
    }
}

/// Tells whether hardware walks tables of a format.
#[inline(always)]
pub(crate) const fn walked<F: Format>() -> bool {
    !matches!(F::WALK_CACHE, WalkCache::Nothing)
}

/// Returns how many bits a [`Mark::Payload`] may have in a format; `None` if the format holds no marks.
pub const fn payload_bits<F: Format>() -> Option<u32> {
    F::ABSENT.checked_sub(1)
}

/// Encodes a mark, as an entry of the base size that no hardware takes for a leaf. Payloads are the odd numbers of
/// [`Format::absent`]; the word is never zero.
///
/// # Errors
///
/// [`Error::WrongMark`] if the format has too few bits for it.
#[inline(always)]
pub fn mark_word<F: Format>(mark: Mark) -> Result<F::Word, Error> {
    let bits = match mark {
        Mark::Payload(payload) if payload < 1 << F::ABSENT.saturating_sub(1) => payload << 1 | 1,
        Mark::Guard => GUARD,
        Mark::Payload(_) => return Err(Error::WrongMark),
    };
    if F::ABSENT > 1 { Ok(F::absent(bits)) } else { Err(Error::WrongMark) }
}

/// The even number that stands for a guard mark.
const GUARD: u64 = 2;

/// Decodes the mark in a word of the base size that is no leaf, and stands where only leaves stand: a table asks
/// [`Format::is_leaf`] first. Zero is no mark.
#[inline(always)]
pub fn mark_of<F: Format>(word: F::Word) -> Option<Mark> {
    match F::absent_bits(word) {
        0 => None,
        bits if bits & 1 == 1 => Some(Mark::Payload(bits >> 1)),
        _ => Some(Mark::Guard),
    }
}

/// Tells whether a word, which stands where only leaves stand, is a leaf or a mark.
#[inline(always)]
pub(crate) fn is_taken<F: Format>(word: F::Word) -> bool {
    F::is_leaf(word, true) || F::ABSENT > 0 && F::absent_bits(word) != 0
}

/// Decodes a word that stands where only leaves stand, with `leaf` if it is one.
#[inline(always)]
pub(crate) fn entry_of<F: Format>(word: F::Word, leaf: impl FnOnce(F::Word) -> Leaf) -> Entry {
    if F::is_leaf(word, true) { Entry::Leaf(leaf(word)) } else { mark_of::<F>(word).into() }
}

/// Returns the word that says what `mark` does; the empty one if that is nothing.
///
/// # Errors
///
/// [`Error::WrongMark`] if the format has too few bits for it, or holds no marks.
#[inline(always)]
pub(crate) fn entry_word<F: Format>(mark: Option<Mark>) -> Result<F::Word, Error> {
    let word = mark_word::<F>(mark.unwrap_or(Mark::Guard))?;
    Ok(if mark.is_some() { word } else { F::Word::ZERO })
}

/// Returns what the absent half of a TLB entry is beside a half that has changed, whether it is empty or a mark.
#[inline(always)]
pub(crate) fn absent_beside<F: Format>(changed: F::Word, absent: F::Word) -> F::Word {
    F::absent(F::absent_bits(absent)) | F::beside(changed, F::Word::ZERO)
}

/// Checks that a format can encode a leaf's attributes: what every [`map`](crate::Table::map) and
/// [`replace`](crate::Table::replace) checks.
///
/// # Errors
///
/// [`Error::WrongAttr`] with `attr`, all of it, if it has what the format cannot express (an attribute that is neither
/// [`IMPLIED`](Format::IMPLIED) nor [`OPTIONAL`](Format::OPTIONAL)), or if it has none of [`Attr::READ`], [`Attr::WRITE`] and
/// [`Attr::EXEC`], and no leaf can be [closed](Format::CLOSES).
#[inline(always)]
pub fn check_attr<F: Format>(attr: Attr) -> Result<(), Error> {
    let known = F::IMPLIED.union(F::OPTIONAL);
    if known.contains(attr) && (F::CLOSES || attr.intersects(ACCESS)) {
        Ok(())
    } else {
        Err(Error::WrongAttr { attr })
    }
}

/// Checks that a format can express a change of attributes, whatever they are now: what every
/// [`protect`](crate::Table::protect) checks.
///
/// # Errors
///
/// [`Error::WrongAttr`] with only those attributes that the format cannot set (it does not have them), cannot clear (they
/// are [`IMPLIED`](Format::IMPLIED), and the change does not [close](Format::CLOSES) the leaf), or lets no change touch
/// ([`FIXED`](Format::FIXED)).
#[inline(always)]
pub fn check_change<F: Format>(change: Change) -> Result<(), Error> {
    let lost = change.clear.difference(change.set);
    let closes = F::CLOSES && lost.contains(ACCESS);
    let kept = if closes { F::IMPLIED.difference(ACCESS) } else { F::IMPLIED };
    let refused = change
        .set
        .difference(F::IMPLIED.union(F::OPTIONAL))
        .union(lost.intersection(kept))
        .union(change.set.union(change.clear).intersection(F::FIXED));
    if refused.is_empty() { Ok(()) } else { Err(Error::WrongAttr { attr: refused }) }
}

/// What an access can do.
const ACCESS: Attr = Attr::READ.union(Attr::WRITE).union(Attr::EXEC);

/// What a change does to the bit that says that hardware finds a leaf present, where a leaf that allows any access can be
/// read.
enum Presence {
    /// It stays.
    Kept,
    /// It is set: the leaf allows something now.
    Set,
    /// It is clear: the leaf allows nothing now.
    Clear,
    /// It is clear if the leaf allows neither stores nor fetches after the change.
    Depends,
}

/// Returns what a change does to the bit for presence. The compiler folds it for a change that it knows.
#[inline(always)]
const fn presence(change: Change) -> Presence {
    if change.set.intersects(ACCESS) {
        Presence::Set
    } else if !change.clear.contains(Attr::READ) {
        Presence::Kept
    } else if change.clear.contains(ACCESS) {
        Presence::Clear
    } else {
        Presence::Depends
    }
}

/// Returns the bits that stand for the attributes of `attr`.
#[inline(always)]
fn bits_of(attr: Attr, table: &[(Attr, u64)]) -> u64 {
    table.iter().fold(0, |bits, &(which, bit)| if attr.contains(which) { bits | bit } else { bits })
}

/// Returns the attributes all of whose bits are set: the inverse of [`bits_of`].
#[inline(always)]
fn has(word: u64, table: &[(Attr, u64)]) -> Attr {
    table
        .iter()
        .fold(Attr::empty(), |attr, &(which, bit)| if word & bit == bit { attr.union(which) } else { attr })
}

/// Checks the size of a page that hardware finds by level: 4 KiB at the last, 2 MiB or 1 GiB above it.
///
/// # Errors
///
/// [`Error::WrongSize`].
#[cfg(target_has_atomic = "64")]
#[inline(always)]
fn check_level(size: PageSize, last: bool) -> Result<(), Error> {
    match (last, size.shift()) {
        (true, 12) | (false, 21 | 30) => Ok(()),
        _ => Err(Error::WrongSize { size }),
    }
}
