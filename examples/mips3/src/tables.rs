//! The page tables by name: those of Elphinstone et al. 3.2, alone and behind a software TLB cache.

use tlbkit_malta::KSEG0;
use tlbkit_malta::check::Checks;
use tlbkit_names::{C128K, G2, G16, G256, H8K, H128K, MPT};
use tlbkit_pagetable::geometry::Va64;
use tlbkit_pagetable::gpt::{self, Gpt};
use tlbkit_pagetable::hpt::{Buckets, Hashed};
use tlbkit_pagetable::mpt::Mpt;
use tlbkit_pagetable::nodes::{Chunk, Slab};
use tlbkit_pagetable::{Private, Solo};
use tlbkit_refill::mips3::{self, Block, PaperLo, Walk};

use crate::arch;
use crate::work::{self, CACHE, Inject};

/// Node storage. Nodes have the low 32 bits of their addresses in kseg0, as the handlers sign-extend them.
pub type Nodes = Slab<'static, u32, Solo>;

/// The caches that stand in front, by name.
const CACHES: [(&str, Option<u32>); 3] = [("", None), ("S8k/", Some(8 << 10)), ("S128k/", Some(128 << 10))];

fn fits<T>(part: Result<T, tlbkit_refill::Error>) -> T {
    match part {
        Ok(part) => part,
        Err(error) => panic!("no handler: {error}"),
    }
}

/// The fault that is planted, and all that was checked.
struct All {
    inject: Option<Inject>,
    checks: Checks,
}

/// Works every table.
pub fn all(inject: Option<Inject>) -> Checks {
    let nodes = storage();
    let mut all = All { inject, checks: Checks::default() };
    let checks = &mut all;
    let root = |table: &Mpt<'_, Va64, PaperLo, Nodes>| [table.root().get() as u32, 0, 0, 0];
    each(MPT, nodes, Mpt::<Va64, PaperLo, _>::new, root, Walk::Mpt(fits(mips3::Mpt::of::<Va64>())), checks);
    guarded::<1>(G2, nodes, checks);
    guarded::<4>(G16, nodes, checks);
    guarded::<8>(G256, nodes, checks);
    hashed::<1, 8>(H8K, nodes, checks);
    hashed::<1, 12>(H128K, nodes, checks);
    hashed::<3, 10>(C128K, nodes, checks);
    all.checks
}

fn guarded<const W: u32>(name: &str, nodes: &'static Nodes, all: &mut All) {
    type Guarded<const W: u32> = Gpt<'static, Va64, PaperLo, Nodes, gpt::TwoWords, gpt::Fixed<W>>;
    let walk = Walk::Gpt(fits(mips3::Gpt::fixed(W)));
    each(name, nodes, Guarded::<W>::new, |table| table.root_slot(), walk, all);
}

fn hashed<const C: u32, const B: u32>(name: &str, nodes: &'static Nodes, all: &mut All) {
    let walk = Walk::Hashed(fits(mips3::Hashed::of(C, B)));
    // The low bits are the number of the buckets.
    let root =
        |table: &Hashed<'_, Va64, PaperLo, Nodes, Buckets<C, B, 0>>| [table.root() as u32 & !31, 0, 0, 0];
    each(name, nodes, Hashed::<Va64, PaperLo, _, Buckets<C, B, 0>>::new, root, walk, all);
}

/// Works a table alone, then behind each cache.
fn each<T: Private<'static>>(
    name: &str,
    nodes: &'static Nodes,
    make: fn(&'static Nodes) -> Result<T, tlbkit_pagetable::Error>,
    root: fn(&T) -> Block,
    walk: Walk,
    all: &mut All,
) {
    for (front, bytes) in CACHES {
        let cache = bytes.map(|bytes| fits(mips3::Stlb::new((KSEG0 + CACHE) as u32, bytes)));
        let spec = mips3::Spec { block: (KSEG0 + arch::BLOCK) as u32, cache, walk };
        let (handler, bytes) = (fits(spec.assemble()), bytes.unwrap_or(0) as usize);
        let checks = work::run((front, name), nodes, make, root, handler, bytes, all.inject);
        all.checks.done += checks.done;
        all.checks.failed += checks.failed;
    }
}

/// Builds the storage, in the memory between the image and the cache.
fn storage() -> &'static Nodes {
    static mut NODES: Option<Nodes> = None;
    let first = arch::image_end();
    let count = (KSEG0 + CACHE - first) / size_of::<Chunk>();
    // SAFETY: this function is called once; the memory has no other owner, and any bytes are chunks.
    unsafe {
        let memory = core::slice::from_raw_parts_mut(core::ptr::with_exposed_provenance_mut(first), count);
        let nodes = match Nodes::new(memory, first as u32 as usize) {
            Ok(nodes) => nodes,
            Err(error) => panic!("no memory for nodes: {error}"),
        };
        (*(&raw mut NODES)).insert(nodes)
    }
}
