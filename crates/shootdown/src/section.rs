//! The word by which a CPU announces that it walks a page table in software, where flushes are [broadcast](crate::Broadcast).

/// The kind of a section.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum SectionKind {
    /// A walk that ends with what it has found. Each section is also one of this kind.
    Walk = 1,
    /// A walk, and the use of what it has found, as a TLB uses it.
    Use = 2 | 1,
}

/// The word of one CPU: whether the CPU is in a section, of which kind, and in which epoch the section began.
///
/// ```text
///   walker      word = begun(epoch, kind)    fence    walk the table, use what was found    word = OUTSIDE, release
///   initiator   change the table    fence    load the words, acquire; perhaps epoch += STEP, and load them again
/// ```
///
/// The rule of [`may_be_inside`](Self::may_be_inside) needs the two fences, and an initiator that begins an epoch only after its change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SectionWord(usize);

impl SectionWord {
    /// The word of a CPU that is in no section.
    pub const OUTSIDE: Self = Self(0);
    /// The step from an epoch to the next one. The first epoch is 0, and epochs wrap around: the low bits of a word are the kind.
    pub const STEP: usize = 4;

    /// Returns the word of a CPU whose section of this kind has begun in this epoch.
    #[inline(always)]
    pub const fn begun(epoch: usize, kind: SectionKind) -> Self {
        Self(epoch | kind as usize)
    }

    /// Returns the word with these [bits](Self::bits).
    #[inline(always)]
    pub const fn from_bits(bits: usize) -> Self {
        Self(bits)
    }

    /// Returns the word as an atomic holds it.
    #[inline(always)]
    pub const fn bits(self) -> usize {
        self.0
    }

    /// Tells whether the CPU may be in a section of this kind that began in the epoch `since` or before; with `None`, in any epoch.
    ///
    /// Of two epochs that are less than half of all apart, the one behind is the later one.
    #[inline(always)]
    pub const fn may_be_inside(self, kind: SectionKind, since: Option<usize>) -> bool {
        let is_later = match since {
            Some(since) => (self.0 & !(Self::STEP - 1)).wrapping_sub(since).cast_signed() > 0,
            None => false,
        };
        self.0 & kind as usize == kind as usize && !is_later
    }
}
