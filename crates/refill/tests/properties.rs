//! What the handler leaves in the TLB equals what the table says, always.

mod common;

use common::{Base32, Config, KSEG0, NODES, Sabotage, Seen, Step, Storage, Subject, run, steps};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use tlbkit_pagetable::Radix;
use tlbkit_pagetable::format::EntryLo;
use tlbkit_pagetable::geometry::Va32;
use tlbkit_pagetable::hpt;
use tlbkit_pagetable::lpt;
use tlbkit_pagetable::mpt;
use tlbkit_pagetable::nodes::Chunk;
use tlbkit_refill::features::{Endian, Features};
use tlbkit_refill::handler::{Form, Hashed, Lpt, Mpt, Root, Walk, Write};

const AT: usize = 0xc000_0000;

/// The tables by name: how each is made, and what its handler walks.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
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

fn with<G: Radix>(
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

fn config(forms: &'static [Form]) -> impl Strategy<Value = Config> {
    let features = prop_oneof![Just(Features::R1), Just(Features::R2), Just(Features::P5600)];
    let endian = prop_oneof![Just(Endian::Little), Just(Endian::Big)];
    let root = prop_oneof![Just(Root::Block), Just(Root::ErrorEpc), Just(Root::KScratch(3))];
    let write = prop_oneof![Just(Write::Random), Just(Write::Index)];
    let form = prop::sample::select(forms);
    (features, endian, root, any::<bool>(), form, write).prop_map(
        |(features, endian, root, stlb, form, write)| {
            let has = match root {
                Root::KScratch(select) => features.has_kscratch(select),
                _ => true,
            };
            Config {
                features: features.with_endian(endian),
                root: if has { root } else { Root::Block },
                stlb,
                form,
                write: if form.reporting { Write::Index } else { write },
            }
        },
    )
}

macro_rules! equals {
    ($($name:ident $kind:ident)*) => { $(
        proptest! {
            #![proptest_config(ProptestConfig::with_cases(256))]
            #[test]
            fn $name(config in config(&[Form::PLAIN, Form::REPORTING]), steps in steps(1)) {
                with::<Base32>(Kind::$kind, &config, &steps, Sabotage::default())?;
            }
        }
    )* };
}

equals! {
    mpt_equals_lookup Mpt
    lpt_equals_lookup Lpt
    hpt_equals_lookup Hpt
    hpt_chains_equal_lookup HptSmall
    cpt_equals_lookup Cpt
    cpt_of_four_equals_lookup CptFour
    cpt_of_sixteen_equals_lookup CptSixteen
}

macro_rules! larger {
    ($($name:ident $kind:ident)*) => { $(
        proptest! {
            #![proptest_config(ProptestConfig::with_cases(256))]
            #[test]
            fn $name(config in config(&[Form::SIZED, Form::BOTH]), steps in steps(7)) {
                with::<Va32>(Kind::$kind, &config, &steps, Sabotage::default())?;
            }
        }
    )* };
}

larger! {
    mpt_of_all_sizes_equals_lookup Mpt
    lpt_of_all_sizes_equals_lookup Lpt
    hpt_of_all_sizes_equals_lookup Hpt
    hpt_chains_of_all_sizes_equal_lookup HptSmall
    cpt_of_all_sizes_equals_lookup Cpt
    cpt_of_four_of_all_sizes_equals_lookup CptFour
    cpt_of_sixteen_of_all_sizes_equals_lookup CptSixteen
}
