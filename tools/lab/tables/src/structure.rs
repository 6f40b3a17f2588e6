//! What a structure is to the measurements.

use tlbkit_pagetable::nodes::LinkRange;
use tlbkit_pagetable::{Error, Retired, Table, Word, destroy};

use crate::storage::Storage;

/// A kind of page table.
pub(crate) trait Structure {
    /// The words of its nodes.
    type Word: Word;
    /// The table itself.
    type Table<'n>: Table<'n>;

    /// Whether it lies in virtual memory and competes for the TLB.
    const LINEAR: bool = false;
    /// Whether aligned runs of pages are mapped as superpages.
    const SUPERPAGES: bool = false;
    /// The node addresses that its links can hold.
    const REACH: LinkRange = LinkRange::unsigned(32);

    /// Returns an empty table in `nodes`.
    fn build<'n>(nodes: &'n Storage<'n, Self::Word>) -> Result<Self::Table<'n>, Error>;

    /// Returns the most entries that one operation has moved, if the table moves any.
    fn moved_max(_table: &Self::Table<'_>) -> Option<usize> {
        None
    }
}

/// A page table to measure.
pub trait Built<'n> {
    /// Returns the table.
    fn table(&self) -> &dyn Table<'n>;

    /// Returns the most entries that one operation has moved, if the table moves any.
    fn moved_max(&self) -> Option<usize>;

    /// Destroys the table, and returns its nodes.
    fn destroy(self: Box<Self>) -> Retired<'n>;
}

/// Makes an empty table in node storage.
///
/// # Errors
///
/// [`Error::NoMemory`].
pub type Build<W> = for<'n> fn(&'n Storage<'n, W>) -> Result<Box<dyn Built<'n> + 'n>, Error>;

/// A form of a structure: one width of the words.
#[derive(Clone, Copy, Debug)]
pub struct Form<W: Word> {
    /// Makes the table.
    pub build: Build<W>,
    /// The node addresses that its links can hold.
    pub reach: LinkRange,
}

/// Returns the form of a structure.
pub(crate) fn form<S: Structure + 'static>() -> Form<S::Word> {
    Form { build: build::<S>, reach: S::REACH }
}

/// A table of a structure.
struct Of<'n, S: Structure>(S::Table<'n>);

impl<'n, S: Structure> Built<'n> for Of<'n, S> {
    fn table(&self) -> &dyn Table<'n> {
        &self.0
    }

    fn moved_max(&self) -> Option<usize> {
        S::moved_max(&self.0)
    }

    fn destroy(self: Box<Self>) -> Retired<'n> {
        destroy(self.0)
    }
}

/// Makes an empty table of a structure.
fn build<'n, S: Structure + 'static>(
    nodes: &'n Storage<'n, S::Word>,
) -> Result<Box<dyn Built<'n> + 'n>, Error> {
    Ok(Box::new(Of::<S>(S::build(nodes)?)))
}
