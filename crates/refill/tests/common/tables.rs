//! The tables by name: how each is made, and what its handler walks.

use proptest::test_runner::TestCaseError;
use tlbkit_pagetable::format::EntryLo;
use tlbkit_pagetable::nodes::Chunk;
use tlbkit_pagetable::{Radix, hpt, lpt, mpt};
use tlbkit_refill::handler::{Hashed, Lpt, Mpt, Walk};

use super::{Config, KSEG0, NODES, Sabotage, Seen, Step, Storage, Subject, run};

const AT: usize = 0xc000_0000;

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    Mpt,
    Lpt,
    Hpt,
    /// So few buckets that chains are long.
    HptSmall,
    Cpt,
    CptFour,
    CptSixteen,
}

type Fixed<'n, 'm, G, const C: u32, const B: u32> = hpt::Hashed<'n, G, EntryLo, Storage<'m>, C, B, 0>;

pub(crate) fn with<G: Radix>(
    kind: Kind,
    config: &Config,
    steps: &[Step],
    sabotage: Sabotage,
) -> Result<Seen, TestCaseError> {
    let chunks = 160;
    let mut memory = vec![Chunk::ZERO; chunks];
    // The linear table names nodes by physical addresses, the others by addresses in kseg0.
    let nodes = NODES + if kind == Kind::Lpt { 0 } else { KSEG0 };
    let storage = &Storage::new(&mut memory, nodes).unwrap();
    macro_rules! go {
        ($walk:expr, $table:ty, $root:expr) => {{
            let make = |nodes| <$table>::new(nodes).unwrap();
            run(config, Subject { walk: $walk, storage, nodes, chunks, make, root: $root }, steps, sabotage)
        }};
    }
    macro_rules! hashed {
        ($cluster:literal, $buckets:literal) => {
            go!(
                Walk::Hashed(Hashed::of::<G>($cluster, $buckets, 0).unwrap()),
                Fixed<'_, '_, G, $cluster, $buckets>,
                |table| table.root()
            )
        };
    }
    match kind {
        Kind::Mpt => {
            go!(Walk::Mpt(Mpt::of::<G>().unwrap()), mpt::Mpt<'_, G, EntryLo, _>, |table| {
                table.root().get()
            })
        }
        Kind::Lpt => {
            go!(Walk::Lpt(Lpt::of::<G, AT>().unwrap()), lpt::Lpt<'_, G, EntryLo, _, AT>, |table| {
                table.root().get()
            })
        }
        Kind::Hpt => hashed!(1, 10),
        Kind::HptSmall => hashed!(1, 2),
        Kind::Cpt => hashed!(3, 10),
        Kind::CptFour => hashed!(2, 3),
        Kind::CptSixteen => hashed!(4, 2),
    }
}
