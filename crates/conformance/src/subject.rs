//! What the suite holds to what: a kind of table, and the properties.

use tlbkit_pagetable::format::Format;
use tlbkit_pagetable::nodes::{Nodes, Slab};
use tlbkit_pagetable::{Error, Mode, Table};

use crate::{Failing, Tripping, Watching};

/// A kind of table that the suite can make as many of as it likes. [`conformance!`](crate::conformance) writes the
/// implementation.
pub trait Subject {
    /// The encoding of its leaves, and the words of its nodes.
    type Format: Format;
    /// One CPU or several.
    type Mode: Mode;

    /// Whether a table from which everything was unmapped takes no more nodes than a new one.
    const SHRINKS: bool = true;

    /// The file of the test, beside which the seeds of failing cases are kept; nothing keeps none.
    const SOURCE: Option<&'static str> = None;

    /// Returns a new table with nodes from `nodes`.
    ///
    /// # Errors
    ///
    /// Those of the table's constructor.
    fn build<'n, N>(nodes: &'n N) -> Result<impl Table<'n>, Error>
    where
        N: Nodes<Word = <Self::Format as Format>::Word, Mode = Self::Mode>;
}

/// The storage that the suite's tables stand on.
pub(crate) type Storage<'m, S> =
    Watching<Failing<Tripping<Slab<'m, <<S as Subject>::Format as Format>::Word, <S as Subject>::Mode>>>>;

/// The most operations of a case.
pub(crate) const OPS: usize = if cfg!(miri) { 8 } else { 40 };

/// What must hold of every table and every sequence of operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Property {
    /// Results, pages, footprint and flushes are those of the model, and a table that is taken apart while things are
    /// mapped leaves nothing behind. Once in a run a page of up to 262144 base pages (1 GiB of 4 KiB pages) is split into all of
    /// them at once.
    Agrees,
    /// The same holds while retired nodes wait for shootdowns, and a table that is emptied returns its nodes.
    Waits,
    /// No batch completes, and so no node comes back to the storage that a walker may be in.
    HoldsBack,
    /// Wherever an allocation can fail, the operation fails with [`Error::NoMemory`] and changes nothing, or does without
    /// the node.
    FailsCleanly,
    /// A table in memory that is too small for it refuses what does not fit, and keeps the rest right.
    SurvivesExhaustion,
    /// Whichever call to the caller's code unwinds, the table is whole afterwards, and what it leaks is counted. The last
    /// operation of each sequence is the one that does.
    SurvivesUnwinding,
    /// After every single store of an operation a walk finds every page as it was before the operation or as it is after
    /// it, never as before once it was as after. Where the format wants break before make, the entry is empty between the
    /// two. Of a table that no walker is in while it is written ([`Solo`](tlbkit_pagetable::Solo), in a format that no
    /// hardware walks) there is nothing to check.
    PublishesInOrder,
    /// An operation that runs between two loads of a walk shows it what was there before or what is there after, and takes
    /// no node from under it. Only for tables in [`Shared`](tlbkit_pagetable::Shared) mode.
    WalksBeside,
    /// Two tables on one storage know nothing of each other: none comes to a node of the other's, and one that is taken
    /// apart leaves the other whole.
    StaysApart,
    /// A table that is dropped without having been taken apart counts its nodes as lost, and those that it owes by batches that
    /// were dropped ([`Held::bury`](tlbkit_pagetable::nodes::Held::bury)); those of batches that wait come back.
    CountsLost,
}

impl Property {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Agrees,
        Self::Waits,
        Self::HoldsBack,
        Self::FailsCleanly,
        Self::SurvivesExhaustion,
        Self::SurvivesUnwinding,
        Self::PublishesInOrder,
        Self::WalksBeside,
        Self::StaysApart,
        Self::CountsLost,
    ];

    /// Returns what the property's [`find`](crate::suite::find) counts, in words.
    pub(crate) const fn counts(self) -> Option<&'static str> {
        match self {
            Self::Agrees => Some("joins of pages of which one is the odd one out"),
            Self::FailsCleanly => Some("allocations failed"),
            Self::SurvivesUnwinding => Some("calls unwound"),
            Self::PublishesInOrder => Some("looks between two stores"),
            Self::WalksBeside => Some("changes between two loads of a walk"),
            _ => None,
        }
    }
}
