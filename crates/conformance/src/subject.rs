//! The subject of the suite, which is a kind of table, and the properties.

use std::any::type_name;
use std::fmt;

use tlbkit_addr::WalkCache;
use tlbkit_pagetable::format::Format;
use tlbkit_pagetable::nodes::{Chunk, Held, Reclaim, Slab};
use tlbkit_pagetable::{Error, Mode, Retired, Table, destroy};

use crate::{Instrumented, Instruments, Mismatch, Profile};

/// A kind of table, of which the suite makes any number. [`conformance!`](crate::conformance) writes the implementation.
pub trait Subject: 'static {
    /// The entry format, which also determines the words of the nodes.
    type Format: Format;
    /// The mode: one CPU or several.
    type Mode: Mode;

    /// Whether a table has no more nodes than a new one after all pages were unmapped.
    const SHRINKS: bool = true;

    /// The number of cases of each property, unless `PROPTEST_CASES` is set.
    const CASES: u32 = 16;

    /// The file of the test, beside which the seeds of failing cases are kept; `None` keeps no seeds.
    const SOURCE: Option<&'static str> = None;

    /// Returns a new table with nodes from `nodes`.
    ///
    /// # Errors
    ///
    /// Those of the table's constructor.
    fn build<'n>(nodes: &'n Nodes<'_, Self>) -> Result<impl Table<'n> + 'n, Error>;
}

/// The node storage of a subject's tables.
pub type Nodes<'m, S> = Instrumented<'m, <<S as Subject>::Format as Format>::Word, <S as Subject>::Mode>;

/// A [`Subject`] as a value. The suite is compiled once, for all subjects; only [`of`](Self::of) is compiled for each.
#[derive(Clone, Copy)]
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    pub(crate) source: Option<&'static str>,
    pub(crate) cases: u32,
    pub(crate) shrinks: bool,
    pub(crate) profile: Profile,
    /// Whether other CPUs may walk a table.
    pub(crate) is_shared: bool,
    open: for<'m> fn(&'m mut [Chunk], bool) -> Box<dyn Stage + 'm>,
}

impl fmt::Debug for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Kind").field(&self.name).finish()
    }
}

impl Kind {
    /// Returns a subject as a value.
    pub(crate) fn of<S: Subject>() -> Self {
        Self {
            name: type_name::<S>(),
            source: S::SOURCE,
            cases: S::CASES,
            shrinks: S::SHRINKS,
            profile: Profile::of::<S::Format>(),
            is_shared: S::Mode::SHARED,
            open: |memory, watched| {
                let slab = Slab::new(memory, 0).expect("memory for a slab");
                Box::new(Tables::<S>(if watched {
                    Instrumented::watched(slab)
                } else {
                    Instrumented::new(slab)
                }))
            },
        }
    }

    /// Returns a storage for tables, in memory that an earlier one may have used.
    pub(crate) fn open<'m>(&self, memory: &'m mut [Chunk], watched: bool) -> Box<dyn Stage + 'm> {
        (self.open)(memory, watched)
    }

    /// Tells whether a walk may run during a change: that of another CPU, or of the MMU.
    pub(crate) fn is_walked(&self) -> bool {
        self.is_shared || self.profile.cache != WalkCache::Nothing
    }
}

/// A storage, and the kind of tables that it has nodes for.
pub(crate) trait Stage {
    /// Returns a new table.
    fn build(&self) -> Result<Box<dyn Made<'_> + '_>, Error>;

    /// Returns the instruments of the storage.
    fn tools(&self) -> &Instruments;

    /// Returns the storage's tally of nodes.
    fn held(&self) -> &Held;

    /// Returns the number of nodes in use, by the storage's own count.
    fn used(&self) -> usize;
}

impl dyn Stage + '_ {
    /// Returns a new table.
    pub(crate) fn table(&self) -> Result<Box<dyn Made<'_> + '_>, Mismatch> {
        self.build().map_err(|error| Mismatch::of(format!("no new table: {error}")))
    }

    /// Returns the first fault of a node as an error.
    pub(crate) fn check(&self) -> Result<(), Mismatch> {
        self.tools().fault().map_or(Ok(()), |fault| Err(Mismatch::of(fault)))
    }
}

/// A table that was made, of any kind.
pub(crate) trait Made<'n>: Table<'n> {
    /// Destroys the table: [`destroy`].
    fn destroy(self: Box<Self>) -> Retired<'n>;
}

impl<'n, T: Table<'n>> Made<'n> for T {
    fn destroy(self: Box<Self>) -> Retired<'n> {
        destroy(*self)
    }
}

/// The storage of a subject's tables.
struct Tables<'m, S: Subject>(Nodes<'m, S>);

impl<S: Subject> Stage for Tables<'_, S> {
    fn build(&self) -> Result<Box<dyn Made<'_> + '_>, Error> {
        Ok(Box::new(S::build(&self.0)?))
    }

    fn tools(&self) -> &Instruments {
        &self.0
    }

    fn held(&self) -> &Held {
        self.0.held()
    }

    fn used(&self) -> usize {
        self.0.slab().usage().nodes
    }
}

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
    /// ([`Held::count_dropped_table`](tlbkit_pagetable::nodes::Held::count_dropped_table)). The nodes of waiting batches come back.
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
