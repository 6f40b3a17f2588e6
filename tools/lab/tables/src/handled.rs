//! The structures that have a refill handler in MIPS III words, their tables and their handlers.

use tlbkit_names::{
    C128K, G2, G4, G8, G16, G32, G64, G128, G256, H8K, H128K, MPT, S8K_G16, S8K_MPT, S128K_G16, S128K_MPT,
    split,
};
use tlbkit_pagetable::geometry::Va64;
use tlbkit_pagetable::gpt::{self, Fixed, Gpt};
use tlbkit_pagetable::hpt::{Buckets, Hashed};
use tlbkit_pagetable::mpt::Mpt;
use tlbkit_pagetable::nodes::Slab;
use tlbkit_pagetable::{Error, Retired, Solo, Table, destroy};
use tlbkit_refill::mips3::{self, Block, PaperLo, Walk};

/// Node storage for tables with a handler.
pub type Nodes<'m> = Slab<'m, u32, Solo>;

/// A structure with a handler.
#[derive(Clone, Copy, Debug)]
pub struct Named {
    /// The name that the paper gives it.
    pub name: &'static str,
    /// The bytes of the software TLB in front.
    pub cache: Option<u32>,
    /// Returns what the handler walks.
    pub walk: fn() -> Result<Walk, tlbkit_refill::Error>,
    /// Returns an empty table.
    pub build: for<'n> fn(&'n Nodes<'n>) -> Result<Box<dyn Handled<'n> + 'n>, Error>,
}

/// A table with a handler.
pub trait Handled<'n> {
    /// Returns the table.
    fn table(&self) -> &dyn Table<'n>;

    /// Returns the block that the handler starts from.
    fn root(&self) -> Block;

    /// Destroys the table, and returns its nodes.
    fn destroy(self: Box<Self>) -> Retired<'n>;
}

/// Returns every structure with a handler.
pub fn all() -> Vec<Named> {
    fn named<S: Structure>(name: &'static str) -> Named {
        let cache = split(name).map(|(bytes, _)| bytes as u32).filter(|&bytes| bytes > 0);
        Named { name, cache, walk: S::walk, build: |nodes| Ok(Box::new(Of::<S>(S::build(nodes)?))) }
    }
    vec![
        named::<MultiLevel>(MPT),
        named::<Guarded<1>>(G2),
        named::<Guarded<2>>(G4),
        named::<Guarded<3>>(G8),
        named::<Guarded<4>>(G16),
        named::<Guarded<5>>(G32),
        named::<Guarded<6>>(G64),
        named::<Guarded<7>>(G128),
        named::<Guarded<8>>(G256),
        named::<HashTable<1, 8>>(H8K),
        named::<HashTable<1, 12>>(H128K),
        named::<HashTable<3, 10>>(C128K),
        named::<Guarded<4>>(S8K_G16),
        named::<Guarded<4>>(S128K_G16),
        named::<MultiLevel>(S8K_MPT),
        named::<MultiLevel>(S128K_MPT),
    ]
}

/// What a structure is to the machine that runs its handler: a table, and what the handler walks.
trait Structure: 'static {
    /// The table.
    type Table<'n>: Table<'n>;

    /// Returns an empty table in `nodes`.
    fn build<'n>(nodes: &'n Nodes<'n>) -> Result<Self::Table<'n>, Error>;

    /// Returns what its handler walks.
    fn walk() -> Result<Walk, tlbkit_refill::Error>;

    /// Returns what its handler starts from.
    fn root(table: &Self::Table<'_>) -> Block;
}

/// A table of a structure.
struct Of<'n, S: Structure>(S::Table<'n>);

impl<'n, S: Structure> Handled<'n> for Of<'n, S> {
    fn table(&self) -> &dyn Table<'n> {
        &self.0
    }

    fn root(&self) -> Block {
        S::root(&self.0)
    }

    fn destroy(self: Box<Self>) -> Retired<'n> {
        destroy(self.0)
    }
}

/// Six levels.
struct MultiLevel;

impl Structure for MultiLevel {
    type Table<'n> = Mpt<'n, Va64, PaperLo, Nodes<'n>>;

    fn build<'n>(nodes: &'n Nodes<'n>) -> Result<Self::Table<'n>, Error> {
        Mpt::new(nodes)
    }

    fn walk() -> Result<Walk, tlbkit_refill::Error> {
        Ok(Walk::Mpt(mips3::Mpt::of::<Va64>()?))
    }

    fn root(table: &Self::Table<'_>) -> Block {
        [table.root().get() as u32, 0, 0, 0]
    }
}

/// Guarded, in nodes of `2^W` slots.
struct Guarded<const W: u32>;

impl<const W: u32> Structure for Guarded<W> {
    type Table<'n> = Gpt<'n, Va64, PaperLo, Nodes<'n>, gpt::TwoWords, Fixed<W>>;

    fn build<'n>(nodes: &'n Nodes<'n>) -> Result<Self::Table<'n>, Error> {
        Gpt::new(nodes)
    }

    fn walk() -> Result<Walk, tlbkit_refill::Error> {
        Ok(Walk::Gpt(mips3::Gpt::fixed(W)?))
    }

    fn root(table: &Self::Table<'_>) -> Block {
        table.root_slot()
    }
}

/// Hashed, `2^C` pages an entry, `2^B` entries.
struct HashTable<const C: u32, const B: u32>;

impl<const C: u32, const B: u32> Structure for HashTable<C, B> {
    type Table<'n> = Hashed<'n, Va64, PaperLo, Nodes<'n>, Buckets<C, B, 0>>;

    fn build<'n>(nodes: &'n Nodes<'n>) -> Result<Self::Table<'n>, Error> {
        Hashed::new(nodes)
    }

    fn walk() -> Result<Walk, tlbkit_refill::Error> {
        Ok(Walk::Hashed(mips3::Hashed::of(C, B)?))
    }

    fn root(table: &Self::Table<'_>) -> Block {
        // The low bits are the number of the buckets.
        [table.root() as u32 & !31, 0, 0, 0]
    }
}
