//! The properties of an entry format that the model needs.

use tlbkit_addr::{Attr, FlushScope, PageSize, Pfn, WalkCache};
use tlbkit_pagetable::format::Format;
use tlbkit_pagetable::{Change, Error, Word as _};

/// The rights that allow an access.
const ACCESS: Attr = Attr::READ.union(Attr::WRITE).union(Attr::EXEC);

/// A [`Format`] as a value: the attributes that its leaf words can hold.
///
/// The model calls the format's own functions to encode one leaf at a time. It predicts the behaviour of a *table* without them.
#[derive(Clone, Copy, Debug)]
pub struct Profile {
    /// Attributes that every leaf has.
    pub implied: Attr,
    /// Whether a leaf can be closed. A closed leaf lacks the implied attributes that allow an access.
    pub closes: bool,
    /// Attributes that a leaf can have or lack.
    pub optional: Attr,
    /// Attributes that no change may touch.
    pub fixed: Attr,
    /// The flush scope of a new mapping.
    pub appears: FlushScope,
    /// How hardware caches links.
    pub cache: WalkCache,
    /// Whether a change of size needs break-before-make.
    pub breaks: bool,
    /// Whether a change of frame needs break-before-make.
    pub breaks_frames: bool,
    /// Whether hardware sets status bits in leaves.
    pub notes: bool,
    continues: fn(Pfn, Pfn, PageSize, Attr, bool) -> bool,
    encode: fn(Pfn, PageSize, Attr, bool) -> Result<Attr, Error>,
    change: fn(PageSize, Attr, bool, Change) -> Attr,
}

/// Tells whether leaves of a size are at the last level: those of base pages, and runs of them.
fn is_last<F: Format>(size: PageSize, attr: Attr, is_base: bool) -> bool {
    let is_refused = |last| matches!(F::leaf(Pfn::new(0), size, attr, last), Err(Error::WrongSize { .. }));
    is_base || is_refused(false) && !is_refused(true)
}

impl Profile {
    /// Returns the profile of format `F`.
    pub fn of<F: Format>() -> Self {
        Self {
            implied: F::IMPLIED,
            closes: F::CLOSES,
            optional: F::OPTIONAL,
            fixed: F::FIXED,
            appears: F::APPEARS,
            cache: F::WALK_CACHE,
            breaks: F::BREAK,
            breaks_frames: F::BREAK_FRAME,
            notes: F::STATUS,
            continues: |frame, end, size, attr, is_base| {
                let last = is_last::<F>(size, attr, is_base);
                let [Ok(frame_word), Ok(end_word)] =
                    [frame, end].map(|frame| F::leaf(frame, size, attr, last))
                else {
                    return true;
                };
                frame_word.advance(F::STEP, end.get() - frame.get()) == end_word
            },
            encode: |frame, size, attr, is_base| {
                let last = is_last::<F>(size, attr, is_base);
                F::leaf(frame, size, attr, last).map(|leaf| F::attr(leaf, last))
            },
            change: |size, attr, is_base, change| {
                let last = is_last::<F>(size, attr, is_base);
                F::leaf(Pfn::new(0), size, attr, last)
                    .map_or(attr, |leaf| F::attr(F::change(leaf, change, last), last))
            },
        }
    }

    /// Returns the profile of a mapper of any format, whose pages can all be read, and have or lack the attributes `optional`.
    pub(crate) fn plain(optional: Attr) -> Self {
        let implied = Attr::READ | (Attr::EXEC - optional);
        Self {
            implied,
            closes: false,
            optional: optional - Attr::READ,
            fixed: Attr::empty(),
            appears: FlushScope::Nowhere,
            cache: WalkCache::Nothing,
            breaks: false,
            breaks_frames: false,
            notes: false,
            continues: |_, _, _, _, _| true,
            encode: |_, _, attr, _| Ok(attr),
            change: |_, attr, _, change| change.apply(attr),
        }
    }

    /// Tells whether a leaf can be mapped with these attributes.
    pub fn takes(&self, attr: Attr) -> bool {
        self.implied.union(self.optional).contains(attr) && (self.closes || attr.intersects(ACCESS))
    }

    /// Returns the attributes that a lookup finds after a leaf was mapped with `attr`, which it
    /// [`takes`](Self::takes). `is_base` tells whether it is the space's base page.
    ///
    /// # Errors
    ///
    /// The format's refusal.
    pub fn stored(&self, frame: Pfn, size: PageSize, attr: Attr, is_base: bool) -> Result<Attr, Error> {
        (self.encode)(frame, size, attr, is_base)
    }

    /// Tells whether one range can map the frames from `first` to `last`: whether their entries differ only in one field.
    pub(crate) fn continues(&self, first: Pfn, last: Pfn, size: PageSize, attr: Attr, is_base: bool) -> bool {
        (self.continues)(first, last, size, attr, is_base)
    }

    /// Returns the attributes of a leaf after a change that the format accepts.
    pub fn changed(&self, size: PageSize, attr: Attr, is_base: bool, change: Change) -> Attr {
        (self.change)(size, attr, is_base, change)
    }

    /// Returns the attributes of a change that the format cannot express.
    pub fn refused(&self, change: Change) -> Attr {
        let foreign = change.set.difference(self.implied.union(self.optional));
        let lost = change.clear.difference(change.set);
        // A closed leaf loses all attributes that allow an access.
        let kept = if self.closes && lost.contains(ACCESS) { self.implied - ACCESS } else { self.implied };
        foreign.union(lost.intersection(kept)).union(change.set.union(change.clear).intersection(self.fixed))
    }
}
