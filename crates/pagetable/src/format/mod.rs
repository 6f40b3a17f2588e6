//! Entry formats: how a leaf, or a link to a node, is encoded in a word.
//!
//! A format is data: the encodings, and the behaviour of the hardware that reads them. It contains no instruction of any
//! architecture.
//!
//! | format | word | walked by | pages |
//! |-|-|-|-|
//! | [`Compact`] | 64 bits | software | any size, every attribute |
//! | [`Compact32`] | 32 bits | software | any size, every attribute, 4 GiB of physical memory |
//! | [`EntryLo`], [`EntryLoCoherent`], [`EntryLoCow`], [`EntryLoCowCoherent`] | 32 bits | a MIPS32 refill handler, which loads leaves as they are | PageMask sizes, in pairs |
//! | [`Paper`] | 32 bits | software | Elphinstone et al. 3.2: PTE pairs with mapping-tree words |
//! | [`RiscvOf`], [`X86Of`], [`Aarch64Of`] | 64 bits | hardware | the sizes of their levels, and contiguous runs |
//! | [`Sv32`] | 32 bits | hardware | the sizes of its levels |
//! | [`RiscvOf`] with `GUEST`, [`EptOf`], [`Aarch64Guest`] | 64 bits | hardware, as a second stage of translation | the sizes of their levels |
//!
//! # Second stages
//!
//! A hypervisor's table of a guest's physical addresses has a format and a geometry of its own. Each format has a [`Format::STAGE`], and
//! so has each geometry: a table of two that differ does not compile. The rules are the same for the three:
//!
//! - [`READ`](Attr::READ), [`WRITE`](Attr::WRITE) and [`EXEC`](Attr::EXEC) are what the guest may do with its memory at most, in any
//!   mode; the guest's own tables take rights away. What can be written or executed can be read. A page without any of the three is
//!   closed: it keeps its frame.
//! - [`USER`](Attr::USER) and [`GLOBAL`](Attr::GLOBAL) have no meaning and are refused ([`Error::WrongAttr`]).
//! - A fault of the guest is a fault of the second stage if the table that `lookup` reads does not allow the access. If it does,
//!   another CPU has made the change, and the CPU that runs the guest flushes its own TLB before it resumes it.
//!
//! | | [`Sv39x4`], [`RiscvOf`] with `GUEST` | [`EptOf`] | [`Aarch64Guest`] |
//! |-|-|-|-|
//! | geometry | [`GuestX4`](crate::geometry::GuestX4) | [`GuestEpt`](crate::geometry::GuestEpt) | [`GuestIpa`](crate::geometry::GuestIpa) |
//! | the root | 16 KiB, in `hgatp` | 4 KiB, in EPTP | up to 64 KiB, in `VTTBR_EL2` |
//! | a guest's number | VMID | EPTP itself | VMID |
//! | flush of a page | `hfence.gvma gpa >> 2, vmid` | none takes an address | `tlbi ipas2e1is, gpa >> 12` (without links `ipas2le1is`); `dsb ish`; `tlbi vmalle1is` |
//! | flush of everything | `hfence.gvma zero, vmid` | `invept`, type 1 | `tlbi vmalls12e1is` |
//! | around it | - | - | `dsb ishst` before; `dsb ish`, `isb` after |
//! | links | no address ([`WalkCache::Whole`]) | no address ([`WalkCache::NoAddress`]) | the same ([`WalkCache::ByAddress`]) |
//! | a new page | a flush on this CPU | nothing | `dsb ishst`, `isb` |

#[cfg(target_has_atomic = "64")]
mod aarch64;
#[cfg(target_has_atomic = "64")]
mod aarch64_guest;
mod compact;
mod entrylo;
#[cfg(target_has_atomic = "64")]
mod ept;
mod paper;
mod riscv;
#[cfg(target_has_atomic = "64")]
mod x86_64;

use core::fmt::Debug;

use tlbkit_addr::{Attr, FlushScope, PageSize, Pfn, VirtAddr, WalkCache};

#[cfg(target_has_atomic = "64")]
pub use aarch64::{Aarch64, Aarch64Of};
#[cfg(target_has_atomic = "64")]
pub use aarch64_guest::Aarch64Guest;
#[cfg(target_has_atomic = "64")]
pub use compact::Compact;
pub use compact::Compact32;
pub use entrylo::{EntryLo, EntryLoCoherent, EntryLoCow, EntryLoCowCoherent, EntryLoOf, KSEG0};
#[cfg(target_has_atomic = "64")]
pub use ept::{Ept, EptOf};
pub use paper::Paper;
pub use riscv::Sv32;
#[cfg(target_has_atomic = "64")]
pub use riscv::{RiscvOf, Sv39, Sv39x4};
#[cfg(target_has_atomic = "64")]
pub use x86_64::{X86, X86Of};

use crate::nodes::{LinkRange, NodeAddr};
use crate::word::Word;
use crate::{Change, Entry, Error, Leaf, Mark, Stage};

/// The encoding of leaves and links in the words of one machine.
///
/// The zero word is always empty: neither a leaf nor a link.
///
/// # Safety
///
/// Walkers follow links. So an implementation ensures:
///
/// - no word is both a leaf and a link, at a level with links;
/// - for a node whose address is aligned to [`LINK_ALIGN`](Format::LINK_ALIGN) and within [`REACH`](Format::REACH),
///   [`link`](Format::link) returns a link, and [`node`](Format::node) of that link returns the same address, also after
///   hardware has set status bits in it;
/// - [`leaf`](Format::leaf), [`change`](Format::change) and [`beside`](Format::beside) return no link, unless `beside` was
///   given one.
pub unsafe trait Format: Debug + 'static {
    /// The word of an entry, which one access loads or stores.
    type Word: Word;

    /// The size of the frames that a frame number counts, which is a table's base page.
    const BASE: PageSize = PageSize::K4;

    /// The difference of the leaf words of one base frame and the next. If some bits of a frame's number are in another
    /// field, the difference holds only while these bits do not change: [`map`](crate::Table::map) refuses a range that changes them
    /// ([`Error::FrameTooLarge`]).
    const STEP: Self::Word;

    /// The alignment, in bytes, that a node's address needs, so that a link can use its low bits.
    const LINK_ALIGN: usize;

    /// The node addresses that a link can hold. A table takes no other nodes.
    const REACH: LinkRange = LinkRange::ALL;

    /// Attributes that every leaf has, whether the caller asks for them or not. A closed page ([`CLOSES`](Self::CLOSES)) has
    /// none of [`Attr::READ`], [`Attr::WRITE`] and [`Attr::EXEC`].
    const IMPLIED: Attr;

    /// Attributes that a leaf can have or lack. A format may give [`Attr::READ`] to each leaf with [`Attr::WRITE`] or
    /// [`Attr::EXEC`].
    const OPTIONAL: Attr;

    /// Whether a leaf can be closed: a leaf without [`Attr::READ`], [`Attr::WRITE`] and [`Attr::EXEC`] is a page that keeps
    /// its frame and allows no access (`PROT_NONE`). For hardware it is not present; for software it is a leaf like others,
    /// of any size.
    ///
    /// If one of the three is [`IMPLIED`](Self::IMPLIED), a change that removes it must remove all three, and a change that
    /// adds any of them restores it. In a format without closed pages, a mapping must have at least one of the three
    /// ([`Error::WrongAttr`]).
    const CLOSES: bool = !Self::IMPLIED.contains(Attr::READ);

    /// The number of bits for software in an entry of the last level that is no leaf, at most 62. They hold a [`Mark`], or the
    /// frame of an entry that a detachment has taken out. With 0 the format holds no marks.
    const ABSENT: u32 = 0;

    /// Attributes that no change of a leaf may affect: the page must be unmapped and mapped again.
    const FIXED: Attr = Attr::empty();

    /// The flush scope of a new mapping of a page of the base size that was not mapped. It is not `Nowhere` if hardware may cache the
    /// absence of a mapping. In a format that is [`PAIRED`](Self::PAIRED) and caches absence, a larger page is flushed on every CPU: a
    /// TLB may hold invalid entries of small pairs in it, and no fault evicts them before the next miss loads an entry that overlaps.
    const APPEARS: FlushScope = FlushScope::Nowhere;

    /// The caching of links by hardware. Any value other than [`WalkCache::Nothing`] means that hardware walks the table.
    /// Then every store to the table is one atomic store, a store of a link is a release of the node's content, and a table
    /// reports a change of links to the batch ([`Retired::relink`](crate::Retired::relink)).
    const WALK_CACHE: WalkCache = WalkCache::Nothing;

    /// The walker that reads the words: that of a geometry of the same [`Stage`].
    const STAGE: Stage = Stage::One;

    /// Whether hardware sets [`Attr::ACCESSED`] or [`Attr::DIRTY`] in the word. If so, edits are atomic read-modify-writes,
    /// except of leaves that [have all status bits](Self::has_all_status).
    const STATUS: bool = false;

    /// Whether a [`change`](Self::change) of other attributes changes the same bits of a leaf, whatever status bits hardware
    /// sets in between. If so, one XOR instruction changes them, which cannot fail.
    const FLIPS: bool = false;

    /// Whether a change of a valid entry's size needs an empty entry in between, and a flush of every TLB (break before
    /// make). If so, a page must also not be unmapped and mapped again in one batch. A slot may link another node in the same batch that
    /// has emptied it: the node before holds no entry, and is freed after the flush. Otherwise a change of size is one store
    /// or exchange, and either translation may be used until the flush.
    const BREAK: bool = false;

    /// Whether a change of a valid entry's frame needs an empty entry in between, and a flush of every TLB.
    const BREAK_FRAME: bool = Self::BREAK;

    /// Whether each slot of a page that occupies several slots holds the frame of that slot, instead of the same word in all
    /// slots.
    const SPREAD: bool = false;

    /// Whether two adjacent leaves are one TLB entry. If so, a change of one can change the other's word
    /// ([`beside`](Format::beside)), and makes the whole TLB entry stale: flushes of pages larger than the base size name
    /// whole pairs.
    const PAIRED: bool = false;

    /// The number of words for the kernel for each leaf word in a leaf node, which the table reserves and does not use: the
    /// mapping-tree pointers of Elphinstone et al. A pair of pages has its two leaf words first, then these.
    const EXTRA: usize = 0;

    /// Encodes a leaf of `size`, to which `frame` must be aligned. `last` says whether the leaf is at the last level, which
    /// has no links.
    ///
    /// # Errors
    ///
    /// [`Error::FrameTooLarge`]; [`Error::WrongSize`] if there is no page of this size at this level.
    ///
    /// # Panics
    ///
    /// With debug assertions, if `frame` is not aligned and would overflow into another field. Tables check that first
    /// ([`Error::MisalignedFrame`]).
    fn leaf(frame: Pfn, size: PageSize, attr: Attr, last: bool) -> Result<Self::Word, Error>;

    /// Returns the leaf for `frame`, which the format must have bits for. `first` is the same leaf for frame 0.
    ///
    /// It is `first.advance(Self::STEP, frame.get())`, unless the bits of a frame's number are in several fields. There is no default,
    /// because a format that is made from another one must ask that one.
    fn leading_to(first: Self::Word, frame: Pfn) -> Self::Word;

    /// Encodes a link to a node, whose address must be aligned to [`LINK_ALIGN`](Format::LINK_ALIGN).
    ///
    /// # Panics
    ///
    /// With debug assertions, if the address is not aligned.
    fn link(node: NodeAddr) -> Self::Word;

    /// Tells whether the word is a leaf. `last` as for [`leaf`](Format::leaf).
    fn is_leaf(word: Self::Word, last: bool) -> bool;

    /// Tells whether a word of a level with links is a link.
    fn is_link(word: Self::Word) -> bool;

    /// Returns the node that a link leads to.
    fn node(link: Self::Word) -> NodeAddr;

    /// Returns the first frame of a leaf of `size`.
    fn frame(leaf: Self::Word, size: PageSize) -> Pfn;

    /// Returns the attributes of a leaf. `last` as for [`leaf`](Format::leaf).
    fn attr(leaf: Self::Word, last: bool) -> Attr;

    /// Returns the size of a leaf in a slot for pages of `slot`. Formats that do not encode the size return `slot`.
    #[inline(always)]
    fn size(leaf: Self::Word, slot: PageSize) -> PageSize {
        let _ = leaf;
        slot
    }

    /// Tells whether hardware can set no further status bit in a leaf, so that no bit is lost between the writer's load and
    /// its store. The default is `false`, which is always correct.
    #[inline(always)]
    fn has_all_status(leaf: Self::Word) -> bool {
        let _ = leaf;
        false
    }

    /// Returns the leaf with changed attributes. [`check_change`] must have accepted the change. `last` as for
    /// [`leaf`](Format::leaf), because a bit may have another place in a larger page.
    fn change(leaf: Self::Word, change: Change, last: bool) -> Self::Word;

    /// Returns the masks of a [`change`](Self::change) that clears and sets the same bits in every leaf, so that a change of
    /// a range computes them once. Returns `None` if the bits depend on the leaf, which is the default.
    #[inline(always)]
    fn masks(change: Change, last: bool) -> Option<Masks<Self::Word>> {
        let _ = (change, last);
        None
    }

    /// Encodes the bits for software of an entry of the last level that is no leaf. `bits` has at most
    /// [`ABSENT`](Format::ABSENT) bits, and is zero or has one of the lowest two bits set, as every [mark](mark_word) has.
    /// The result is the zero word exactly if `bits` is zero.
    ///
    /// By default the bits are above the lowest two bits of the word, which distinguish leaves.
    #[inline(always)]
    fn absent(bits: u64) -> Self::Word {
        if Self::ABSENT == 0 { Self::Word::ZERO } else { Self::Word::from_u64(bits << 2) }
    }

    /// Returns the bits for software of an entry of the last level that is no leaf: the inverse of
    /// [`absent`](Format::absent).
    #[inline(always)]
    fn absent_bits(word: Self::Word) -> u64 {
        if Self::ABSENT == 0 { 0 } else { word.to_u64() >> 2 }
    }

    /// Reads an entry as hardware does, in a table that other software has built, such as a bootloader. `above` says what the links on
    /// the way from the root change in the pages below them: it is 0 for an entry of the root. `slot` is the size of a page in this
    /// slot. Bits that hardware leaves to software say nothing.
    ///
    /// The default reads empty entries only. A format that hardware walks reads all that it can express itself, and nothing else:
    /// [`Foreign::Unknown`] is an entry that would mean something else as one of this format.
    fn foreign(word: Self::Word, above: u64, slot: PageSize, last: bool) -> Foreign {
        let _ = (above, slot, last);
        if word == Self::Word::ZERO { Foreign::Absent } else { Foreign::Unknown }
    }

    /// Returns the new value of the word `beside`, which forms one TLB entry with `changed`, after a change of `changed`.
    /// `beside` may be a leaf, empty or a link.
    #[inline(always)]
    fn beside(changed: Self::Word, beside: Self::Word) -> Self::Word {
        let _ = changed;
        beside
    }
}

/// What hardware finds in an entry that other software has written, from [`Format::foreign`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Foreign {
    /// No page and no node.
    Absent,
    /// A link to a [node](Format::node). The value is `above` for the entries of that node, whose bits only the format knows.
    Link(u64),
    /// A page with these attributes, of the [size](Format::size) and with the [frame](Format::frame) that the word says.
    Leaf(Attr),
    /// Something that the format cannot express: another memory type, rights that it does not tell apart, reserved bits.
    Unknown,
}

/// Reads a word that hardware takes for a page, without the bits that hardware leaves to software. `low` are address bits in which the
/// slots of one page differ.
fn foreign_leaf<F: Format>(word: F::Word, low: F::Word, slot: PageSize, last: bool) -> Foreign {
    let size = F::size(word, slot);
    let attr = F::attr(word, last);
    match F::leaf(F::frame(word, size), size, attr, last) {
        Ok(own) if own & !low == word & !low => Foreign::Leaf(attr),
        _ => Foreign::Unknown,
    }
}

/// The bits that a change of attributes clears and sets in every leaf, from [`Format::masks`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Masks<W> {
    /// The bits that the change clears.
    pub clear: W,
    /// The bits that the change sets, also if `clear` has them.
    pub set: W,
}

impl<W: Word> Masks<W> {
    /// Returns the leaf with changed attributes.
    #[inline(always)]
    pub fn apply(self, leaf: W) -> W {
        leaf & !self.clear | self.set
    }
}

/// Returns the flush scope of a new mapping of pages of `size` that were not mapped: see [`Format::APPEARS`].
#[inline(always)]
pub(crate) fn appears<F: Format>(size: PageSize) -> FlushScope {
    let cached = F::PAIRED && F::APPEARS >= FlushScope::Local;
    if cached && size > F::BASE { FlushScope::Everywhere } else { F::APPEARS }
}

/// Encodes the first leaf of a range of `frames` base frames from `frame` on, in leaves of `size`. The words of the others follow from
/// it by [`STEP`](Format::STEP). `Space::check_frames` has checked that the last frame exists.
///
/// # Errors
///
/// Those of [`Format::leaf`] for the first and the last leaf; [`Error::FrameTooLarge`] if the entry's frame field is split, and the
/// frames are on both sides of the split: adding to the word does not carry from one part to the next.
#[inline]
pub(crate) fn first_leaf<F: Format>(
    frame: Pfn,
    frames: usize,
    size: PageSize,
    attr: Attr,
    last: bool,
) -> Result<F::Word, Error> {
    let lowest = F::leaf(frame, size, attr, last)?;
    let more = frames - size.pages(F::BASE).unwrap_or(1);
    let highest = Pfn::new(frame.get() + more);
    if F::leaf(highest, size, attr, last)? == lowest.advance(F::STEP, more) {
        Ok(lowest)
    } else {
        Err(Error::FrameTooLarge { frame: highest })
    }
}

/// Tells whether hardware walks tables of this format.
#[inline(always)]
pub(crate) const fn walked<F: Format>() -> bool {
    !matches!(F::WALK_CACHE, WalkCache::Nothing)
}

/// Returns the attributes that a mark keeps in a format, and that are not the same in every leaf.
const fn kept<F: Format>() -> Attr {
    let closed = if F::CLOSES { Attr::READ } else { Attr::empty() };
    Mark::KEPT.intersection(F::OPTIONAL.union(closed))
}

/// Returns how many bits a [`Mark::Payload`] may have in a format; `None` if the format holds no marks. An entry has
/// [`Format::ABSENT`] bits: one distinguishes a payload from a guard, and one is for each attribute that the mark
/// [keeps](Mark::KEPT).
pub const fn payload_bits<F: Format>() -> Option<u32> {
    if F::ABSENT > 1 { F::ABSENT.checked_sub(1 + kept::<F>().bits().count_ones()) } else { None }
}

/// Encodes a mark as an entry of the base size that hardware finds not present. The word is never zero.
///
/// ```text
///   bits for Format::absent   | payload | attributes | 1 |         a guard is 2
/// ```
///
/// # Errors
///
/// [`Error::WrongMark`] if the format has too few bits for the payload; [`Error::WrongAttr`] if no leaf has the attributes, or
/// with those that a mark does not [keep](Mark::KEPT).
#[inline(always)]
pub fn mark_word<F: Format>(mark: Mark) -> Result<F::Word, Error> {
    let room = payload_bits::<F>().ok_or(Error::WrongMark)?;
    match mark {
        Mark::Guard => Ok(F::absent(GUARD)),
        Mark::Payload(payload, attr) => payload_word::<F>(payload, attr, room),
    }
}

/// Encodes a payload of at most `room` bits, and the attributes of its page.
fn payload_word<F: Format>(payload: u64, attr: Attr, room: u32) -> Result<F::Word, Error> {
    if payload >> room != 0 {
        return Err(Error::WrongMark);
    }
    let lost = attr.difference(Mark::KEPT);
    if !lost.is_empty() {
        return Err(Error::WrongAttr { attr: lost });
    }
    check_attr::<F>(attr)?;
    // The attributes of the leaf that a fill makes: a format may imply some.
    let attr = F::attr(F::leaf(Pfn::new(0), F::BASE, attr, true)?, true);
    let (mut rest, mut bits) = (kept::<F>(), payload);
    while let Some(one) = highest(rest) {
        rest = rest.difference(one);
        bits = bits << 1 | u64::from(attr.contains(one));
    }
    Ok(F::absent(bits << 1 | 1))
}

/// Returns the last of some attributes.
const fn highest(attr: Attr) -> Option<Attr> {
    match attr.bits().checked_ilog2() {
        Some(at) => Some(Attr::from_bits_retain(1 << at)),
        None => None,
    }
}

/// The even number that encodes a guard mark.
const GUARD: u64 = 2;

/// Decodes the mark in a word of the last level that is no leaf, which the caller has checked by [`Format::is_leaf`]. Zero
/// is no mark.
#[inline(always)]
pub fn mark_of<F: Format>(word: F::Word) -> Option<Mark> {
    match F::absent_bits(word) {
        bits if bits & 1 == 1 => Some(payload_of::<F>(bits >> 1)),
        GUARD => Some(Mark::Guard),
        _ => None,
    }
}

/// Decodes a payload and the attributes of its page.
fn payload_of<F: Format>(mut bits: u64) -> Mark {
    let (mut rest, mut attr) = (kept::<F>().bits(), Attr::empty());
    while rest != 0 {
        let one = rest & rest.wrapping_neg();
        attr.set(Attr::from_bits_retain(one), bits & 1 == 1);
        (rest, bits) = (rest & !one, bits >> 1);
    }
    let closed = F::CLOSES && !attr.intersects(ACCESS);
    Mark::Payload(bits, attr.union(if closed { F::IMPLIED.difference(ACCESS) } else { F::IMPLIED }))
}

/// Returns a word of the last level that is no leaf, after a change of attributes that [`check_change`] has accepted, for every
/// [`protect`](crate::Table::protect). If the word is a mark with a payload, the attributes that the mark [keeps](Mark::KEPT)
/// change as those of a leaf. Any other word stays as it is.
pub fn change_mark<F: Format>(word: F::Word, change: Change) -> F::Word {
    let Some(Mark::Payload(payload, attr)) = mark_of::<F>(word) else { return word };
    let changed = || {
        let leaf = F::change(F::leaf(Pfn::new(0), F::BASE, attr, true)?, change, true);
        mark_word::<F>(Mark::Payload(payload, F::attr(leaf, true).intersection(Mark::KEPT)))
    };
    // A leaf can have the attributes of a mark, so there is a word. It keeps the bits that are not those of the mark.
    changed().map_or(word, |new| word ^ F::absent(F::absent_bits(word)) ^ new)
}

/// Returns the leaf that a [`fill`](crate::Table::fill) stores in place of `entry`, the entry for the page at `at`.
///
/// # Errors
///
/// [`Error::Occupied`] if a leaf is there, [`Error::NotMapped`] if there is no payload, [`Error::Changed`] if there is another
/// payload; [`Error::FrameTooLarge`].
pub fn fill_word<F: Format>(at: VirtAddr, entry: Entry, payload: u64, frame: Pfn) -> Result<F::Word, Error> {
    match entry {
        Entry::Mark(Mark::Payload(there, attr)) if there == payload => F::leaf(frame, F::BASE, attr, true),
        Entry::Mark(Mark::Payload(..)) => Err(Error::Changed { at }),
        Entry::Mark(Mark::Guard) | Entry::Empty => Err(Error::NotMapped { at }),
        Entry::Leaf(occupant) => Err(Error::occupied(&occupant)),
    }
}

/// The lowest bits of the even number that encodes a frame which waits for a shootdown: no mark has them. The bit above says
/// whether the page was dirty, and the others are the frame's number.
const GONE: u64 = 0b110;
const GONE_DIRTY: u64 = 1 << 3;
const GONE_SHIFT: u32 = 4;

/// Encodes the first frame of an entry that has been unmapped, while the entry waits for a shootdown: to hardware and to every
/// walk the entry is empty. `last` as for [`Format::leaf`]. Returns `None` if the format has too few bits, or if such a word is
/// something else at this level.
#[inline(always)]
pub(crate) fn gone_word<F: Format>(frame: Pfn, dirty: bool, last: bool) -> Option<F::Word> {
    let frame = frame.get() as u64;
    if F::ABSENT <= GONE_SHIFT || frame >> (F::ABSENT - GONE_SHIFT) != 0 {
        return None;
    }
    let word = F::absent(frame << GONE_SHIFT | if dirty { GONE_DIRTY } else { 0 } | GONE);
    let is_free = !F::is_leaf(word, last) && (last || !F::is_link(word));
    is_free.then_some(word)
}

/// Decodes the frame of a word that is no leaf and no link, and whether the page was dirty: the inverse of [`gone_word`].
#[inline(always)]
pub(crate) fn gone_of<F: Format>(word: F::Word) -> Option<(Pfn, bool)> {
    let bits = F::absent_bits(word);
    (bits & 0b111 == GONE).then_some((Pfn::new((bits >> GONE_SHIFT) as usize), bits & GONE_DIRTY != 0))
}

/// Tells whether a word that is no leaf and no link holds a frame that waits for its flush.
#[inline(always)]
pub(crate) fn is_gone<F: Format>(word: F::Word) -> bool {
    word != F::Word::ZERO && gone_of::<F>(word).is_some()
}

/// Tells whether a word of the last level is a leaf or a mark.
#[inline(always)]
pub(crate) fn is_taken<F: Format>(word: F::Word) -> bool {
    F::is_leaf(word, true) || F::ABSENT > 0 && F::absent_bits(word) != 0
}

/// Decodes a word of the last level. `leaf` decodes it if it is a leaf.
#[inline(always)]
pub(crate) fn entry_of<F: Format>(word: F::Word, leaf: impl FnOnce(F::Word) -> Leaf) -> Entry {
    if F::is_leaf(word, true) { Entry::Leaf(leaf(word)) } else { mark_of::<F>(word).into() }
}

/// Returns the word of a mark, or the zero word if there is none.
///
/// # Errors
///
/// [`Error::WrongMark`] if the format has too few bits for the mark, or holds no marks.
#[inline(always)]
pub(crate) fn entry_word<F: Format>(mark: Option<Mark>) -> Result<F::Word, Error> {
    let word = mark_word::<F>(mark.unwrap_or(Mark::Guard))?;
    Ok(if mark.is_some() { word } else { F::Word::ZERO })
}

/// Returns the new value of the absent half of a TLB entry, which is empty or a mark, after a change of the other half.
#[inline(always)]
pub(crate) fn absent_beside<F: Format>(changed: F::Word, absent: F::Word) -> F::Word {
    F::absent(F::absent_bits(absent)) | F::beside(changed, F::Word::ZERO)
}

/// Checks that a format can encode a leaf's attributes, for every [`map`](crate::Table::map) and
/// [`replace`](crate::Table::replace).
///
/// # Errors
///
/// [`Error::WrongAttr`] with all of `attr`, if it has an attribute that is neither [`IMPLIED`](Format::IMPLIED) nor
/// [`OPTIONAL`](Format::OPTIONAL), or if it has none of [`Attr::READ`], [`Attr::WRITE`] and [`Attr::EXEC`] and the format
/// cannot [close](Format::CLOSES) a leaf.
#[inline(always)]
pub fn check_attr<F: Format>(attr: Attr) -> Result<(), Error> {
    let known = F::IMPLIED.union(F::OPTIONAL);
    if known.contains(attr) && (F::CLOSES || attr.intersects(ACCESS)) {
        Ok(())
    } else {
        Err(Error::WrongAttr { attr })
    }
}

/// Checks that a format can make a change of attributes in any leaf, for every [`protect`](crate::Table::protect).
///
/// # Errors
///
/// [`Error::WrongAttr`] with the attributes that the format cannot set (it does not have them), cannot clear (they are
/// [`IMPLIED`](Format::IMPLIED), and the change does not [close](Format::CLOSES) the leaf), or cannot change
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

/// The attributes that allow an access.
const ACCESS: Attr = Attr::READ.union(Attr::WRITE).union(Attr::EXEC);

/// The effect of a change on the bit for presence, in formats in which every leaf that allows any access can be read.
enum Presence {
    /// The bit does not change.
    Kept,
    /// The bit is set: the leaf allows some access after the change.
    Set,
    /// The bit is cleared: the leaf allows no access after the change.
    Clear,
    /// The bit is cleared if the leaf allows neither stores nor fetches after the change.
    Depends,
}

/// Returns the effect of a change on the bit for presence. The compiler evaluates it for a constant change.
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

/// Returns the bits of the attributes in `attr`, from a table of attributes and bits.
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

/// Checks the size of a page whose level determines its size: 4 KiB at the last level, 2 MiB or 1 GiB above it.
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
