//! The tables by name: how each is made, and what its handler walks.

use proptest::test_runner::TestCaseError;
use tlbkit_pagetable::format::EntryLo;
use tlbkit_pagetable::gpt::{self, Adaptive, Digits, Kseg0};
use tlbkit_pagetable::nodes::Chunk;
use tlbkit_pagetable::{Geometry, Radix, hpt, lpt, mpt};
use tlbkit_refill::handler::{Gpt, Hashed, Lpt, Mpt, Walk};

use super::{Base32, Config, KSEG0, MORE, NODES, Sabotage, Seen, Step, Storage, Subject, run};

const AT: usize = 0xc000_0000;

/// The tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Mpt,
    Lpt,
    Hpt,
    /// So few buckets that chains are long.
    HptSmall,
    HptGrows,
    /// As many buckets as no immediate masks.
    HptLarge,
    Cpt,
    CptFour,
    CptSixteen,
    CptGrows,
    G2,
    G8,
    G16,
    G256,
    Ga,
}

impl Kind {
    pub(crate) const ALL: [Self; 15] = [
        Self::Mpt,
        Self::Lpt,
        Self::Hpt,
        Self::HptSmall,
        Self::HptGrows,
        Self::HptLarge,
        Self::Cpt,
        Self::CptFour,
        Self::CptSixteen,
        Self::CptGrows,
        Self::G2,
        Self::G8,
        Self::G16,
        Self::G256,
        Self::Ga,
    ];

    /// Returns what the handler walks.
    pub(crate) fn walk<G: Radix>(self) -> Walk {
        let hashed = |cluster, buckets, load| Walk::Hashed(Hashed::of::<G>(cluster, buckets, load).unwrap());
        match self {
            Self::Mpt => Walk::Mpt(Mpt::of::<G>().unwrap()),
            Self::Lpt => Walk::Lpt(Lpt::of::<G, AT>().unwrap()),
            Self::Hpt => hashed(1, 10, 0),
            Self::HptSmall => hashed(1, 2, 0),
            Self::HptGrows => hashed(1, 1, 50),
            Self::HptLarge => hashed(1, 13, 0),
            Self::Cpt => hashed(3, 10, 0),
            Self::CptFour => hashed(2, 3, 0),
            Self::CptSixteen => hashed(4, 2, 0),
            Self::CptGrows => hashed(3, 1, 50),
            Self::G2 => gpt::Fixed::<1>::walk::<G>(),
            Self::G8 => gpt::Fixed::<3>::walk::<G>(),
            Self::G16 => gpt::Fixed::<4>::walk::<G>(),
            Self::G256 => gpt::Fixed::<8>::walk::<G>(),
            Self::Ga => Adaptive::walk::<G>(),
        }
    }

    /// Returns how many words the handler has at the refill vector.
    pub(crate) fn words(self, config: &Config) -> usize {
        config.spec(self.walk::<Base32>()).assemble().unwrap().refill.words().len()
    }
}

/// A policy of a guarded table's node sizes, and its handler.
pub(crate) trait Guarded: Digits {
    fn walk<G: Geometry>() -> Walk;
}

impl<const W: u32> Guarded for gpt::Fixed<W> {
    fn walk<G: Geometry>() -> Walk {
        Walk::Gpt(Gpt::fixed::<G>(W).unwrap())
    }
}

impl Guarded for Adaptive {
    fn walk<G: Geometry>() -> Walk {
        Walk::Gpt(Gpt::adaptive::<G>().unwrap())
    }
}

/// A guarded table. It names nodes by physical addresses.
pub(crate) type GuardedTable<'n, 'm, G, P> = gpt::Gpt<'n, G, EntryLo, Storage<'m>, Kseg0<P>, P>;

/// As [`with`], for a guarded table of this policy.
pub(crate) fn guarded<G: Geometry, P: Guarded>(
    config: &Config,
    steps: &[Step],
    sabotage: Sabotage,
) -> Result<Seen, TestCaseError> {
    let chunks = 160;
    let mut memory = vec![Chunk::ZERO; chunks];
    let subject = Subject {
        walk: P::walk::<G>(),
        storage: &Storage::new(&mut memory, NODES).unwrap(),
        nodes: NODES,
        chunks,
        make: |nodes| GuardedTable::<G, P>::new(nodes).unwrap(),
        root: |table| table.root(),
    };
    run(config, subject, steps, sabotage)
}

/// As [`with`], for a hashed table of any shape: clusters, buckets, load, and how much memory it has.
pub(crate) fn hashed<G: Geometry, const C: u32, const B: u32, const L: usize>(
    chunks: usize,
    config: &Config,
    steps: &[Step],
) -> Result<Seen, TestCaseError> {
    let mut memory = vec![Chunk::ZERO; chunks];
    let nodes = KSEG0 + MORE;
    let subject = Subject {
        walk: Walk::Hashed(Hashed::of::<G>(C, B, L).unwrap()),
        storage: &Storage::new(&mut memory, nodes).unwrap(),
        nodes,
        chunks,
        make: |nodes| hpt::Hashed::<G, EntryLo, _, hpt::Buckets<C, B, L>>::new(nodes).unwrap(),
        root: |table| table.root(),
    };
    run(config, subject, steps, Sabotage::default())
}

type Fixed<'n, 'm, G, const C: u32, const B: u32> =
    hpt::Hashed<'n, G, EntryLo, Storage<'m>, hpt::Buckets<C, B, 0>>;

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
        ($table:ty, $root:expr) => {{
            let make = |nodes| <$table>::new(nodes).unwrap();
            run(
                config,
                Subject { walk: kind.walk::<G>(), storage, nodes, chunks, make, root: $root },
                steps,
                sabotage,
            )
        }};
    }
    macro_rules! hashed {
        ($cluster:literal, $buckets:literal) => {
            go!(Fixed<'_, '_, G, $cluster, $buckets>, |table| table.root())
        };
    }
    match kind {
        Kind::Mpt => {
            go!(mpt::Mpt<'_, G, EntryLo, _>, |table| { table.root().get() })
        }
        Kind::Lpt => {
            go!(lpt::Lpt<'_, G, EntryLo, _, AT>, |table| { table.root().get() })
        }
        Kind::Hpt => hashed!(1, 10),
        Kind::HptSmall => hashed!(1, 2),
        Kind::HptLarge => hashed!(1, 13),
        Kind::HptGrows => go!(hpt::Hashed<'_, G, EntryLo, _, hpt::Buckets<1, 1, 50>>, |table| table.root()),
        Kind::Cpt => hashed!(3, 10),
        Kind::CptFour => hashed!(2, 3),
        Kind::CptSixteen => hashed!(4, 2),
        Kind::G2 => guarded::<G, gpt::Fixed<1>>(config, steps, sabotage),
        Kind::G8 => guarded::<G, gpt::Fixed<3>>(config, steps, sabotage),
        Kind::G16 => guarded::<G, gpt::Fixed<4>>(config, steps, sabotage),
        Kind::G256 => guarded::<G, gpt::Fixed<8>>(config, steps, sabotage),
        Kind::Ga => guarded::<G, Adaptive>(config, steps, sabotage),
        Kind::CptGrows => go!(hpt::Hashed<'_, G, EntryLo, _, hpt::Buckets<3, 1, 50>>, |table| table.root()),
    }
}
