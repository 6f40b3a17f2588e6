//! What the handler leaves in the TLB equals what the table says, always.

use crate::common::steps::{config, steps};
use crate::common::tables::{Kind, with};
use crate::common::{Base32, Sabotage};
use proptest::prelude::*;
use tlbkit_pagetable::geometry::Va32;
use tlbkit_refill::handler::Form;

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
    hpt_that_grows_equals_lookup HptGrows
    hpt_of_128_kib_equals_lookup HptLarge
    cpt_equals_lookup Cpt
    cpt_of_four_equals_lookup CptFour
    cpt_of_sixteen_equals_lookup CptSixteen
    cpt_that_grows_equals_lookup CptGrows
    g2_equals_lookup G2
    g8_equals_lookup G8
    g16_equals_lookup G16
    g256_equals_lookup G256
    ga_equals_lookup Ga
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
    hpt_that_grows_of_all_sizes_equals_lookup HptGrows
    hpt_of_128_kib_of_all_sizes_equals_lookup HptLarge
    cpt_of_all_sizes_equals_lookup Cpt
    cpt_of_four_of_all_sizes_equals_lookup CptFour
    cpt_of_sixteen_of_all_sizes_equals_lookup CptSixteen
    cpt_that_grows_of_all_sizes_equals_lookup CptGrows
    g2_of_all_sizes_equals_lookup G2
    g8_of_all_sizes_equals_lookup G8
    g16_of_all_sizes_equals_lookup G16
    g256_of_all_sizes_equals_lookup G256
    ga_of_all_sizes_equals_lookup Ga
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]
    #[test]
    fn mpt_of_all_sizes_beside_other_cpus_equals_lookup(config in config(&[Form::SHARED, SHARED_REPORTING]), steps in steps(7)) {
        // No entry takes in a second page, so that a flush need not name the neighbour.
        for narrow in [false, true] {
            let sabotage = Sabotage { narrow: narrow && !config.stlb, ..Sabotage::default() };
            let seen = with::<Va32>(Kind::Mpt, &config, &steps, sabotage)?;
            prop_assert_eq!(seen.whole, 0);
        }
    }
}

const SHARED_REPORTING: Form = Form { shared: true, ..Form::BOTH };

/// A space with pages of 4 KiB alone has nothing for the form to find beside them.
macro_rules! only_small {
    ($($name:ident $kind:ident)*) => { $(
        proptest! {
            #![proptest_config(ProptestConfig::with_cases(32))]
            #[test]
            fn $name(config in config(&[Form::SIZED, Form::BOTH]), steps in steps(1)) {
                with::<Base32>(Kind::$kind, &config, &steps, Sabotage::default())?;
            }
        }
    )* };
}

only_small! {
    mpt_of_one_size_equals_lookup Mpt
    lpt_of_one_size_equals_lookup Lpt
    hpt_of_one_size_equals_lookup HptSmall
    cpt_of_one_size_equals_lookup CptFour
    g16_of_one_size_equals_lookup G16
}
