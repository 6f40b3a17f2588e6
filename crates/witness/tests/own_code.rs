//! A kernel's own page-table code under the checker: the property "no interleaving of walks can be wrong", in ten lines.

mod own;

use own::{CPUS, Own};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRng, TestRunner};

/// Changes by any CPU of any page, as the code under test is driven.
fn changes() -> impl Strategy<Value = Vec<(usize, u64)>> {
    vec((0..CPUS, 0..4_u64), 0..40)
}

fn holds(forgets: bool, changes: Vec<(usize, u64)>) -> Result<(), TestCaseError> {
    let mut own = Own::new(forgets).map_err(|why| TestCaseError::fail(why.to_string()))?;
    for (cpu, page) in changes {
        own.toggle(cpu, page).map_err(|why| TestCaseError::fail(why.to_string()))?;
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_interleaving_of_walks_is_wrong(changes in changes()) {
        holds(false, changes)?;
    }
}

/// The control: code that leaves the other CPUs' flushes out is found, and the changes are made few.
#[test]
fn code_that_forgets_other_cpus_is_found() {
    let config = Config { failure_persistence: None, ..Config::default() };
    let rng = TestRng::deterministic_rng(config.rng_algorithm);
    let found = TestRunner::new_with_rng(config, rng).run(&changes(), |changes| holds(true, changes));
    let Err(proptest::test_runner::TestError::Fail(why, changes)) = found else { panic!("{found:?}") };
    assert_eq!(changes.len(), 2, "mapped, and unmapped");
    assert!(why.message().contains("may still reach it"), "{why}");
}
