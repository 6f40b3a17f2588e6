//! The structures by the names that the paper gives them.
//!
//! | name | `--layout paper` | `--layout compact` |
//! |-|-|-|
//! | `MPT` | six levels, PTE pairs with mapping-tree words | the same levels, 32-bit PTEs |
//! | `LPT` | the same in virtual memory | six levels of page-sized nodes, 32-bit PTEs |
//! | `G2` .. `G256`, `GA` | 16-byte slots, leaves of a pair | 4-byte slots, leaves of up to 16 PTEs |
//! | `H8k`, `H128k` | 32-byte entries of a pair | 16-byte entries of a page |
//! | `HR` | the same, from 2 entries on | the same, from 16 entries on, twice as many pages before it grows |
//! | `C128k` | 128-byte entries of 8 pages | 64-byte entries of 8 pages |
//! | `CS` | the same, from 2 entries on, with superpages | the same |
//! | `FPT`, `FPT50`, `FPT0` | 64-bit words, six levels of nine bits in three pairs ([`Flat`]): nodes of 2 MiB, or of 4 KiB | the same |
//! | `ECPT` | lines of eight 64-bit words and a tag in three ways, which grow ([`Cuckoo`]) | the same |
//!
//! `CS` is measured only where it is named: aligned runs of pages are mapped in it as superpages, to neighbouring frames,
//! which is another job than the other structures have. So are the flattened tables, which take 2 MiB for each GiB with a page: pages
//! of a sparse workload would take more memory than there is. The elastic cuckoo table is named in the same way, because none of the papers that the others are
//! from has it.
//!
//! The compact layout's 32-bit words hold frames below 4 GB, and guarded nodes in 8 MB: a guarded table of more takes
//! 64-bit words, and so do its PTEs.

use std::marker::PhantomData;

use tlbkit_addr::{PageSize, Vpn};
use tlbkit_names::{
    C128K, CS, ECPT, FPT, FPT0, FPT50, G2, G4, G8, G16, G32, G64, G128, G256, GA, H8K, H128K, HR, LPT, MPT,
};
use tlbkit_pagetable::format::{self, Format};
use tlbkit_pagetable::geometry::Va64;
use tlbkit_pagetable::gpt::{self, Adaptive, Fixed, Gpt, NodeSize};
use tlbkit_pagetable::hpt::{Buckets, Hashed};
use tlbkit_pagetable::lpt::Lpt;
use tlbkit_pagetable::mpt::Mpt;
use tlbkit_pagetable::nodes::LinkRange;
use tlbkit_pagetable::{Error, Geometry, Radix};

use crate::cuckoo::Cuckoo;
use crate::flat::Flat;
use crate::linear::{self, PageNodes};
use crate::storage::Storage;
use crate::structure::{Form, Structure, form};

/// A structure by its name.
#[derive(Debug)]
pub struct Named {
    /// The name that the paper gives it, or this project.
    pub name: &'static str,
    /// Whether it lies in virtual memory and competes for the TLB.
    pub linear: bool,
    /// Whether aligned runs of pages are mapped as superpages. Such a structure is measured only where it is named.
    pub superpages: bool,
    /// Whether it does with other nodes, or keeps those that it has, where there is no memory for one. Such a structure is measured in memory that has all
    /// that it asks for, and only where it is named.
    pub falls_back: bool,
    /// The table in words of 32 bits, if it has such.
    pub form: Option<Form<u32>>,
    /// The table in words of 64 bits, for what needs more nodes than the narrow links can address, or has no narrow links.
    pub wider: Option<Form<u64>>,
}

impl Named {
    /// Tells whether the structure is measured only where it is named.
    pub fn only_if_named(&self) -> bool {
        self.superpages || self.falls_back
    }
}

fn named<S: Structure<Word = u32> + 'static>(name: &'static str) -> Named {
    let (linear, superpages) = (S::LINEAR, S::SUPERPAGES);
    Named { name, linear, superpages, falls_back: false, form: Some(form::<S>()), wider: None }
}

/// Returns the flattened tables and the elastic one, which are the same in each layout.
fn later() -> [Named; 4] {
    fn of<S: Structure<Word = u64> + 'static>(name: &'static str) -> Named {
        let wider = Some(form::<S>());
        Named { name, linear: false, superpages: false, falls_back: true, form: None, wider }
    }
    [of::<Flattened<100>>(FPT), of::<Flattened<50>>(FPT50), of::<Flattened<0>>(FPT0), of::<Elastic>(ECPT)]
}

/// As [`named`], with another structure for what is too large for the first.
fn widening<S, Wider>(name: &'static str) -> Named
where
    S: Structure<Word = u32> + 'static,
    Wider: Structure<Word = u64> + 'static,
{
    Named { wider: Some(form::<Wider>()), ..named::<S>(name) }
}

/// Returns every structure in the paper's layout.
pub fn paper() -> Vec<Named> {
    /// A guarded table of the paper's.
    type G<P> = Guarded<format::Paper, gpt::TwoWords, P>;
    let named = vec![
        named::<MultiLevel<format::Paper>>(MPT),
        named::<Linear<Va64, format::Paper>>(LPT),
        named::<G<Fixed<1>>>(G2),
        named::<G<Fixed<2>>>(G4),
        named::<G<Fixed<3>>>(G8),
        named::<G<Fixed<4>>>(G16),
        named::<G<Fixed<5>>>(G32),
        named::<G<Fixed<6>>>(G64),
        named::<G<Fixed<7>>>(G128),
        named::<G<Fixed<8>>>(G256),
        named::<G<Adaptive>>(GA),
        named::<HashTable<format::Paper, 1, 8, 0>>(H8K),
        named::<HashTable<format::Paper, 1, 12, 0>>(H128K),
        named::<HashTable<format::Paper, 1, 1, 100>>(HR),
        named::<HashTable<format::Paper, 3, 10, 0>>(C128K),
        named::<Superpages<format::Paper>>(CS),
    ];
    named.into_iter().chain(later()).collect()
}

/// Returns every structure in the compact layout.
pub fn compact() -> Vec<Named> {
    fn guarded<P: NodeSize>(name: &'static str) -> Named {
        widening::<Guarded<format::Compact32, gpt::OneWord, P>, Guarded<format::Compact, gpt::OneWord, P>>(
            name,
        )
    }
    let named = vec![
        named::<MultiLevel<format::Compact32>>(MPT),
        named::<Linear<PageNodes, format::Compact32>>(LPT),
        guarded::<Fixed<1>>(G2),
        guarded::<Fixed<2>>(G4),
        guarded::<Fixed<3>>(G8),
        guarded::<Fixed<4>>(G16),
        guarded::<Fixed<5>>(G32),
        guarded::<Fixed<6>>(G64),
        guarded::<Fixed<7>>(G128),
        guarded::<Fixed<8>>(G256),
        guarded::<Adaptive>(GA),
        named::<HashTable<format::Compact32, 0, 9, 0>>(H8K),
        named::<HashTable<format::Compact32, 0, 13, 0>>(H128K),
        named::<HashTable<format::Compact32, 0, 4, 200>>(HR),
        named::<HashTable<format::Compact32, 3, 11, 0>>(C128K),
        named::<Superpages<format::Compact32>>(CS),
    ];
    named.into_iter().chain(later()).collect()
}

/// Returns the pages of the paper's linear table on the way to the PTE of `page`, the one that holds it first.
pub fn paper_way(page: Vpn) -> Vec<Vpn> {
    linear::way::<Va64, format::Paper>(page)
}

/// Returns the same of the compact layout's linear table.
pub fn compact_way(page: Vpn) -> Vec<Vpn> {
    linear::way::<PageNodes, format::Compact32>(page)
}

/// Six levels.
struct MultiLevel<F>(PhantomData<F>);

impl<F: Format> Structure for MultiLevel<F> {
    type Word = F::Word;
    type Table<'n> = Mpt<'n, Va64, F, Storage<'n, F::Word>>;

    fn build<'n>(nodes: &'n Storage<'n, F::Word>) -> Result<Self::Table<'n>, Error> {
        Mpt::new(nodes)
    }
}

/// Six levels in virtual memory.
struct Linear<G, F>(PhantomData<(G, F)>);

impl<G: Radix, F: Format> Structure for Linear<G, F> {
    type Word = F::Word;
    type Table<'n> = Lpt<'n, G, F, Storage<'n, F::Word>, { linear::AT }>;

    const LINEAR: bool = true;

    fn build<'n>(nodes: &'n Storage<'n, F::Word>) -> Result<Self::Table<'n>, Error> {
        Lpt::new(nodes)
    }
}

/// Guarded, with slots by `L` and node sizes by `P`.
struct Guarded<F, L, P>(PhantomData<(F, L, P)>);

impl<F, L, P> Structure for Guarded<F, L, P>
where
    F: Format,
    L: for<'n> gpt::Layout<Storage<'n, F::Word>>,
    P: NodeSize,
{
    type Word = F::Word;
    type Table<'n> = Gpt<'n, Va64, F, Storage<'n, F::Word>, L, P>;

    const REACH: LinkRange = <L as gpt::Layout<Storage<'static, F::Word>>>::REACH;

    fn build<'n>(nodes: &'n Storage<'n, F::Word>) -> Result<Self::Table<'n>, Error> {
        Gpt::new(nodes)
    }
}

/// Hashed, `2^CLUSTER_LOG` pages an entry, `2^BUCKETS_LOG` entries at first. Grows beyond `LOAD` percent, or never.
struct HashTable<F, const CLUSTER_LOG: u32, const BUCKETS_LOG: u32, const LOAD: usize>(PhantomData<F>);

impl<F: Format, const CLUSTER_LOG: u32, const BUCKETS_LOG: u32, const LOAD: usize> Structure
    for HashTable<F, CLUSTER_LOG, BUCKETS_LOG, LOAD>
{
    type Word = F::Word;
    type Table<'n> = Hashed<'n, Va64, F, Storage<'n, F::Word>, Buckets<CLUSTER_LOG, BUCKETS_LOG, LOAD>>;

    fn build<'n>(nodes: &'n Storage<'n, F::Word>) -> Result<Self::Table<'n>, Error> {
        Hashed::new(nodes)
    }

    fn moved_max(table: &Self::Table<'_>) -> Option<usize> {
        (LOAD > 0).then(|| table.most_moved())
    }
}

/// Clustered by eight pages, growing, with superpages: those of up to a block in its bucket, larger ones under a coarser
/// tag.
struct Superpages<F>(PhantomData<F>);

impl<F: Format> Structure for Superpages<F> {
    type Word = F::Word;
    type Table<'n> = Hashed<'n, Va64, F, Storage<'n, F::Word>, Buckets<3, 1, 100>>;

    const SUPERPAGES: bool = true;

    fn build<'n>(nodes: &'n Storage<'n, F::Word>) -> Result<Self::Table<'n>, Error> {
        Hashed::new(nodes)
    }

    fn moved_max(table: &Self::Table<'_>) -> Option<usize> {
        Some(table.most_moved())
    }
}

/// Flattened, where memory has a piece for so many of a hundred nodes of two levels.
struct Flattened<const HAD: usize>;

/// The 64-bit space in six levels whose nodes below the root are pages of 64-bit words.
#[derive(Debug)]
struct WidePageNodes;

impl Geometry for WidePageNodes {
    const VA_BITS: u32 = Va64::VA_BITS;
    const BASE: PageSize = Va64::BASE;
    const SIZES: &'static [PageSize] = Va64::SIZES;
}

impl Radix for WidePageNodes {
    const WIDTHS: &'static [u32] = &[7, 9, 9, 9, 9, 9];
}

impl<const HAD: usize> Structure for Flattened<HAD> {
    type Word = u64;
    type Table<'n> = Flat<'n, WidePageNodes, HAD, Storage<'n, u64>>;

    fn build<'n>(nodes: &'n Storage<'n, u64>) -> Result<Self::Table<'n>, Error> {
        Flat::new(nodes)
    }
}

/// Elastic cuckoo, with the page sizes of the paper's machine.
#[derive(Debug)]
struct Elastic;

impl Geometry for Elastic {
    const VA_BITS: u32 = Va64::VA_BITS;
    const BASE: PageSize = Va64::BASE;
    const SIZES: &'static [PageSize] = &[PageSize::K4, PageSize::M2, PageSize::G1];
}

impl Structure for Elastic {
    type Word = u64;
    type Table<'n> = Cuckoo<'n, Self, Storage<'n, u64>>;

    fn build<'n>(nodes: &'n Storage<'n, u64>) -> Result<Self::Table<'n>, Error> {
        Ok(Cuckoo::new(nodes))
    }

    fn moved_max(table: &Self::Table<'_>) -> Option<usize> {
        Some(table.most_moved())
    }
}
