//! The page tables by name, and what the kernel must know of each.

use core::marker::PhantomData;

use tlbkit_addr::PageSize;
use tlbkit_pagetable::format::{EntryLo, Format};
use tlbkit_pagetable::geometry::Va32;
use tlbkit_pagetable::gpt::{Adaptive, Fixed, Gpt32};
use tlbkit_pagetable::hpt::{Buckets, Hashed};
use tlbkit_pagetable::nodes::{Chunk, Identity, Offset, Slab, SlabError, Window};
use tlbkit_pagetable::{Error, Leaf, Private, Solo};
use tlbkit_pagetable::{lpt, mpt};
use tlbkit_refill::handler::{self, Walk};

use tlbkit_malta::KSEG0;

/// Node storage of a table on one CPU.
pub type Nodes<A> = Slab<'static, u32, Solo, A>;

/// A kind of page table.
pub trait Structure: 'static {
    /// What the words of the table hold of a node: its address in kseg0, or its physical address.
    type Window: Place;
    /// The table itself.
    type Table<'n>: Private<'n>;

    /// How a refill handler walks it.
    const WALK: Walk;

    /// Returns an empty table.
    ///
    /// # Errors
    ///
    /// [`Error::NoMemory`].
    fn create(nodes: &Nodes<Self::Window>) -> Result<Self::Table<'_>, Error>;

    /// Returns what the table calls its root. It may be another one after a change.
    fn root(table: &Self::Table<'_>) -> usize;

    /// Returns how many first buckets a table that grows has now; `None` for every other table.
    fn buckets(_table: &Self::Table<'_>) -> Option<usize> {
        None
    }

    /// Tells whether a word of a node is what tells a walk that it has found this leaf: a guard or a tag, or where there
    /// is none the leaf itself. All of them change their meaning with bit [`GUARD`].
    fn is_guard(word: u32, leaf: &Leaf) -> bool {
        EntryLo::is_leaf(word, true) && EntryLo::frame(word, leaf.size) == leaf.frame
    }
}

/// A bit of an address, of a tag's block number, and of a leaf's frame number.
pub const GUARD: u32 = 1 << 20;

/// How nodes are addressed.
pub trait Place: Window + 'static {
    /// Returns storage for nodes in this memory, which lies in kseg0.
    ///
    /// # Errors
    ///
    /// If the memory is unsuitable.
    fn nodes(memory: &'static mut [Chunk]) -> Result<Nodes<Self>, SlabError>;
}

/// By their addresses in kseg0.
impl Place for Identity {
    fn nodes(memory: &'static mut [Chunk]) -> Result<Nodes<Self>, SlabError> {
        Slab::identity(memory)
    }
}

/// By their physical addresses.
impl Place for Offset {
    fn nodes(memory: &'static mut [Chunk]) -> Result<Nodes<Self>, SlabError> {
        let base = memory.as_ptr().addr() - KSEG0;
        Slab::new(memory, base)
    }
}

/// Takes what a handler is made of, or stops the build.
const fn fits<T: Copy>(part: Result<T, tlbkit_refill::Error>) -> T {
    match part {
        Ok(part) => part,
        Err(_) => panic!("no handler for this geometry"),
    }
}

/// Two levels: `MPT`.
pub enum MultiLevel {}

impl Structure for MultiLevel {
    type Window = Identity;
    type Table<'n> = mpt::Mpt<'n, Va32, EntryLo, Nodes<Identity>>;

    const WALK: Walk = Walk::Mpt(fits(handler::Mpt::of::<Va32>()));

    fn create(nodes: &Nodes<Identity>) -> Result<Self::Table<'_>, Error> {
        mpt::Mpt::new(nodes)
    }

    fn root(table: &Self::Table<'_>) -> usize {
        table.root().get()
    }
}

/// Where linear tables lie: the bottom of kseg2.
pub const LINEAR: usize = 0xc000_0000;

/// One array in virtual memory: `LPT`.
pub enum Linear {}

impl Structure for Linear {
    type Window = Offset;
    type Table<'n> = lpt::Lpt<'n, Va32, EntryLo, Nodes<Offset>, LINEAR>;

    const WALK: Walk = Walk::Lpt(fits(handler::Lpt::of::<Va32, LINEAR>()));

    fn create(nodes: &Nodes<Offset>) -> Result<Self::Table<'_>, Error> {
        lpt::Lpt::new(nodes)
    }

    fn root(table: &Self::Table<'_>) -> usize {
        table.root().get()
    }
}

/// Hashed, `2^CLUSTER_LOG` pages a bucket, `2^BUCKETS_LOG` buckets: `H8k`, `H128k`, `C128k`; so many at first, where a `LOAD` is
/// the most percent of them that are used before the table grows: `HR`.
pub enum Hash<const CLUSTER_LOG: u32, const BUCKETS_LOG: u32, const LOAD: usize = 0> {}

impl<const CLUSTER_LOG: u32, const BUCKETS_LOG: u32, const LOAD: usize> Structure
    for Hash<CLUSTER_LOG, BUCKETS_LOG, LOAD>
{
    type Window = Identity;
    type Table<'n> = Hashed<'n, Va32, EntryLo, Nodes<Identity>, Buckets<CLUSTER_LOG, BUCKETS_LOG, LOAD>>;

    const WALK: Walk = Walk::Hashed(fits(handler::Hashed::of::<Va32>(CLUSTER_LOG, BUCKETS_LOG, LOAD)));

    fn create(nodes: &Nodes<Identity>) -> Result<Self::Table<'_>, Error> {
        Hashed::new(nodes)
    }

    fn root(table: &Self::Table<'_>) -> usize {
        table.root()
    }

    fn buckets(table: &Self::Table<'_>) -> Option<usize> {
        (LOAD > 0).then(|| table.buckets())
    }

    /// A tag: the pair's number above four bits, and that it is in use.
    fn is_guard(word: u32, leaf: &Leaf) -> bool {
        let pair = leaf.at.get() >> (PageSize::K4.shift() + 1);
        word == 1 << 31 | (pair as u32) << 4
    }
}

/// Guarded, with nodes by policy `P`: `G2` .. `G256`, `GA`.
pub struct Guarded<P>(PhantomData<P>);

impl<const W: u32> Structure for Guarded<Fixed<W>> {
    type Window = Offset;
    type Table<'n> = Gpt32<'n, Nodes<Offset>, Fixed<W>>;

    const WALK: Walk = Walk::Gpt(fits(handler::Gpt::fixed::<Va32>(W)));

    fn create(nodes: &Nodes<Offset>) -> Result<Self::Table<'_>, Error> {
        Gpt32::new(nodes)
    }

    fn root(table: &Self::Table<'_>) -> usize {
        table.root()
    }

    fn is_guard(word: u32, leaf: &Leaf) -> bool {
        is_pair(word, leaf)
    }
}

impl Structure for Guarded<Adaptive> {
    type Window = Offset;
    type Table<'n> = Gpt32<'n, Nodes<Offset>>;

    const WALK: Walk = Walk::Gpt(fits(handler::Gpt::adaptive::<Va32>()));

    fn create(nodes: &Nodes<Offset>) -> Result<Self::Table<'_>, Error> {
        Gpt32::new(nodes)
    }

    fn root(table: &Self::Table<'_>) -> usize {
        table.root()
    }

    fn is_guard(word: u32, leaf: &Leaf) -> bool {
        is_pair(word, leaf)
    }
}

/// Tells whether a word is the guard of a leaf of a guarded table: the number of its pair of 4 KiB pages, above four bits.
fn is_pair(word: u32, leaf: &Leaf) -> bool {
    word as usize == leaf.at.get() >> (PageSize::K4.shift() + 1) << 4
}
