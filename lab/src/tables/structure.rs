//! The structures by the names that the paper gives them.

use tlbkit_pagetable::format::{Compact, Paper};
use tlbkit_pagetable::geometry::Va64;
use tlbkit_pagetable::mpt::Mpt;
use tlbkit_pagetable::{Error, Table, Word};

use super::measure::{Run, measure};
use super::storage::Storage;
use super::{Layout, Row};

/// A page table to measure.
pub(super) trait Structure {
    /// The words of its nodes.
    type Word: Word;
    /// The table itself.
    type Table<'n>: Table<'n>;

    /// Returns an empty table in `nodes`.
    fn build<'n>(&self, nodes: &'n Storage<'n, Self::Word>) -> Result<Self::Table<'n>, Error>;
}

/// What runs one structure.
type Measure = dyn Fn(&Run<'_>) -> anyhow::Result<Row>;

/// A name, and what runs that structure.
pub(super) struct Named {
    /// As the paper calls it, or the house.
    pub(super) name: String,
    /// Measures it.
    pub(super) run: Box<Measure>,
}

fn named(name: &str, structure: impl Structure + 'static) -> Named {
    let called = name.to_owned();
    Named { name: name.to_owned(), run: Box::new(move |run| measure(&called, &structure, run)) }
}

/// Returns every structure in a layout.
pub(super) fn all(layout: Layout) -> Vec<Named> {
    match layout {
        Layout::Paper => vec![named("MPT", PaperMpt)],
        Layout::Compact => vec![named("MPT", CompactMpt)],
    }
}

/// Six levels, 32-bit entries, mapping-tree words.
struct PaperMpt;

impl Structure for PaperMpt {
    type Word = u32;
    type Table<'n> = Mpt<'n, Va64, Paper, Storage<'n, u32>>;

    fn build<'n>(&self, nodes: &'n Storage<'n, u32>) -> Result<Self::Table<'n>, Error> {
        Mpt::new(nodes)
    }
}

/// Six levels, 64-bit entries.
struct CompactMpt;

impl Structure for CompactMpt {
    type Word = u64;
    type Table<'n> = Mpt<'n, Va64, Compact, Storage<'n, u64>>;

    fn build<'n>(&self, nodes: &'n Storage<'n, u64>) -> Result<Self::Table<'n>, Error> {
        Mpt::new(nodes)
    }
}
