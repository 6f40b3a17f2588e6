//! The structures that have a refill handler in MIPS III words, their tables and their handlers.

use std::marker::PhantomData;

use tlbkit_names::{
    C128K, CS, G2, G4, G8, G16, G32, G64, G128, G256, GA, H8K, H128K, HR, LPT, MPT, S8K_G16, S8K_MPT,
    S128K_G16, S128K_MPT, split,
};
use tlbkit_pagetable::geometry::Va64;
use tlbkit_pagetable::gpt::{self, Adaptive, Fixed, Gpt, NodeSize};
use tlbkit_pagetable::hpt::{Buckets, Hashed};
use tlbkit_pagetable::lpt::Lpt;
use tlbkit_pagetable::mpt::Mpt;
use tlbkit_pagetable::nodes::Slab;
use tlbkit_pagetable::{Error, Retired, Solo, Table, destroy};
use tlbkit_refill::mips3::{self, Block, PaperLo, Walk};

use crate::linear;

/// Node storage for tables with a handler.
pub type Nodes<'m> = Slab<'m, u32, Solo>;

/// A structure with a handler.
#[derive(Clone, Copy, Debug)]
pub struct Named {
    /// The name that the paper gives it.
    pub name: &'static str,
    /// The bytes of the software TLB in front.
    pub cache: Option<u32>,
    /// Whether it lies in virtual memory, with physical addresses of its nodes, and competes for the TLB.
    pub linear: bool,
    /// Whether aligned runs of pages are mapped as superpages.
    pub superpages: bool,
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
        let build: for<'n> fn(&'n Nodes<'n>) -> Result<Box<dyn Handled<'n> + 'n>, Error> =
            |nodes| Ok(Box::new(Of::<S>(S::build(nodes)?)));
        Named { name, cache, linear: S::LINEAR, superpages: S::SUPERPAGES, walk: S::walk, build }
    }
    vec![
        named::<MultiLevel>(MPT),
        named::<Guarded<Fixed<1>>>(G2),
        named::<Guarded<Fixed<2>>>(G4),
        named::<Guarded<Fixed<3>>>(G8),
        named::<Guarded<Fixed<4>>>(G16),
        named::<Guarded<Fixed<5>>>(G32),
        named::<Guarded<Fixed<6>>>(G64),
        named::<Guarded<Fixed<7>>>(G128),
        named::<Guarded<Fixed<8>>>(G256),
        named::<HashTable<1, 8, 0>>(H8K),
        named::<HashTable<1, 12, 0>>(H128K),
        named::<HashTable<3, 10, 0>>(C128K),
        named::<Guarded<Fixed<4>>>(S8K_G16),
        named::<Guarded<Fixed<4>>>(S128K_G16),
        named::<MultiLevel>(S8K_MPT),
        named::<MultiLevel>(S128K_MPT),
        named::<Linear>(LPT),
        named::<Guarded<Adaptive>>(GA),
        named::<HashTable<1, 1, 100>>(HR),
        named::<HashTable<3, 1, 100>>(CS),
    ]
}

/// What a structure is to the machine that runs its handler: a table, and what the handler walks.
trait Structure: 'static {
    /// The table.
    type Table<'n>: Table<'n>;

    /// Whether it lies in virtual memory.
    const LINEAR: bool = false;
    /// Whether aligned runs of pages are mapped as superpages.
    const SUPERPAGES: bool = false;

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

/// The same in virtual memory.
struct Linear;

impl Structure for Linear {
    type Table<'n> = Lpt<'n, Va64, PaperLo, Nodes<'n>, { linear::AT }>;

    const LINEAR: bool = true;

    fn build<'n>(nodes: &'n Nodes<'n>) -> Result<Self::Table<'n>, Error> {
        Lpt::new(nodes)
    }

    fn walk() -> Result<Walk, tlbkit_refill::Error> {
        Ok(Walk::Lpt(mips3::Lpt::of::<Va64, { linear::AT }>()?))
    }

    fn root(table: &Self::Table<'_>) -> Block {
        [KSEG0 | table.root().get() as u32, 0, 0, 0]
    }
}

/// Where physical memory begins in the kernel's part.
const KSEG0: u32 = 0x8000_0000;

/// Guarded, with nodes of this size.
struct Guarded<P>(PhantomData<P>);

impl<P: NodeSize> Structure for Guarded<P> {
    type Table<'n> = Gpt<'n, Va64, PaperLo, Nodes<'n>, gpt::TwoWords, P>;

    fn build<'n>(nodes: &'n Nodes<'n>) -> Result<Self::Table<'n>, Error> {
        Gpt::new(nodes)
    }

    fn walk() -> Result<Walk, tlbkit_refill::Error> {
        Ok(Walk::Gpt(if P::ADAPTIVE { mips3::Gpt::adaptive() } else { mips3::Gpt::fixed(P::WIDTH)? }))
    }

    fn root(table: &Self::Table<'_>) -> Block {
        table.root_slot()
    }
}

/// Hashed, `2^C` pages an entry, `2^B` entries at first. Grows beyond `LOAD` percent, with superpages if an entry is of more
/// than a pair, or never.
struct HashTable<const C: u32, const B: u32, const LOAD: usize>;

impl<const C: u32, const B: u32, const LOAD: usize> Structure for HashTable<C, B, LOAD> {
    type Table<'n> = Hashed<'n, Va64, PaperLo, Nodes<'n>, Buckets<C, B, LOAD>>;

    const SUPERPAGES: bool = LOAD > 0 && C > 1;

    fn build<'n>(nodes: &'n Nodes<'n>) -> Result<Self::Table<'n>, Error> {
        Hashed::new(nodes)
    }

    fn walk() -> Result<Walk, tlbkit_refill::Error> {
        Ok(Walk::Hashed(match (LOAD, Self::SUPERPAGES) {
            (0, _) => mips3::Hashed::of(C, B)?,
            (_, false) => mips3::Hashed::growing(C)?,
            (_, true) => mips3::Hashed::growing(C)?.with_larger_pages()?,
        }))
    }

    fn root(table: &Self::Table<'_>) -> Block {
        // The low bits are the number of the buckets of a table that does not grow.
        [table.root() as u32 & !31, 0, 0, 0]
    }
}
