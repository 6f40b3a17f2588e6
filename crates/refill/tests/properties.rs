//! What the handler leaves in the TLB equals what the table says, always.

mod common;

use common::{Base32, Config, Kind, Sabotage, steps, with};
use proptest::prelude::*;
use tlbkit_pagetable::geometry::Va32;
use tlbkit_refill::features::{Endian, Features};
use tlbkit_refill::handler::{Form, Root, Write};

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
