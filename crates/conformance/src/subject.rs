//! The subject of the suite, which is a kind of table, and the properties.

use tlbkit_pagetable::format::Format;
use tlbkit_pagetable::nodes::{Nodes, Slab};
use tlbkit_pagetable::{Error, Mode, Table};

use crate::{Failing, Tripping, Watching};

/// A kind of table, of which the suite makes any number. [`conformance!`](crate::conformance) writes the implementation.
pub trait Subject {
    /// The entry format, which also determines the words of the nodes.
    type Format: Format;
    /// The mode: one CPU or several.
    type Mode: Mode;

    /// Whether a table has no more nodes than a new one after all pages were unmapped.
    const SHRINKS: bool = true;

    /// The file of the test, beside which the seeds of failing cases are kept; `None` keeps no seeds.
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

/// The node storage of the suite's tables.
pub(crate) type Storage<'m, S> =
    Watching<Failing<Tripping<Slab<'m, <<S as Subject>::Format as Format>::Word, <S as Subject>::Mode>>>>;

/// The largest number of operations of a case.
pub(crate) const OPS: usize = if cfg!(miri) { 8 } else { 40 };

/// A property of every table, for every sequence of operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Property {
    /// Results, pages, footprint and flushes are those of the model, and a table that is destroyed with mapped pages frees every
    /// node. Once in a run a page of up to 262144 base pages (1 GiB of 4 KiB pages) is split into all of them at once.
    Agrees,
    /// `Agrees` also holds while retired nodes wait for shootdowns, and a table returns its nodes after all pages were unmapped.
    Waits,
    /// While no batch completes, no node that a walker may be in comes back to the storage.
    HoldsBack,
    /// If an allocation fails, the operation fails with [`Error::NoMemory`] and changes nothing, or succeeds without the node.
    FailsCleanly,
    /// A table in memory that is too small refuses the changes that do not fit, and remains correct.
    SurvivesExhaustion,
    /// After any call to the caller's code unwinds, the table is consistent, and leaked nodes are counted. Calls of the last
    /// operation of each sequence unwind.
    SurvivesUnwinding,
    /// After every store of an operation a walk finds every page as it was before the operation or as it is after it, and never
    /// the old state after the new one. Where the format requires break-before-make, the entry is empty between the two. Not
    /// checked for a table that has no walker during a change ([`Solo`](tlbkit_pagetable::Solo), in a format that no hardware
    /// walks).
    PublishesInOrder,
    /// A walk, between two loads of which an operation runs, finds the state from before or from after the operation, and meets
    /// no freed node. Only for tables in [`Shared`](tlbkit_pagetable::Shared) mode.
    WalksBeside,
    /// Two tables on one storage do not affect each other: neither accesses a node of the other, and destroying one leaves the
    /// other intact.
    StaysApart,
    /// A table that is dropped without being destroyed counts its nodes as lost, and also the nodes of its dropped batches
    /// ([`Held::bury`](tlbkit_pagetable::nodes::Held::bury)). The nodes of waiting batches come back.
    CountsLost,
}

impl Property {
    /// All properties.
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

    /// Returns a description of what the property's [`find`](crate::suite::find) counts.
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
