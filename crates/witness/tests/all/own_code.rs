//! Page-table code under the checker: the property "no interleaving of walks can be wrong", in ten lines, on each architecture.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestError, TestRng, TestRunner};
use tlbkit_witness::check::{Arch, Sample, Without, drive};

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_interleaving_of_walks_is_wrong(changes in vec(any::<[u8; 3]>(), 0..60)) {
        for arch in Arch::ALL {
            drive(arch, &changes, |log| Sample::new(arch, log))?;
        }
    }
}

/// Looks for changes that show what the code is without.
fn found(arch: Arch, what: Without) -> Option<(String, Vec<[u8; 3]>)> {
    let config = Config { failure_persistence: None, cases: 1000, ..Config::default() };
    let rng = TestRng::deterministic_rng(config.rng_algorithm);
    let outcome = TestRunner::new_with_rng(config, rng).run(&vec(any::<[u8; 3]>(), 0..60), |changes| {
        drive(arch, &changes, |log| Sample::new(arch, log).without(what))?;
        Ok(())
    });
    match outcome {
        Ok(()) => None,
        Err(TestError::Fail(why, changes)) => Some((why.to_string(), changes)),
        Err(why) => panic!("{arch:?} {what:?}: {why}"),
    }
}

/// The control: whatever the code leaves out is found, by changes that are made few; and what it needs not is not.
#[test]
fn code_that_leaves_something_out_is_found() {
    for arch in Arch::ALL {
        for what in Without::ALL {
            let needs = match (arch, what) {
                // Stores are ordered.
                (Arch::X86_64 | Arch::X86_64La57, Without::Barrier | Without::Release) => false,
                // A broadcast reaches the CPU itself, too.
                (
                    Arch::Aarch64 | Arch::Aarch64B39 | Arch::Aarch64B42 | Arch::Aarch64K16 | Arch::Aarch64K64,
                    Without::Own,
                ) => false,
                // The interrupt is a barrier, and a CPU's own fence orders its own stores.
                (Arch::Sv32 | Arch::Sv39 | Arch::Sv48 | Arch::Sv57 | Arch::Mips32, Without::Barrier) => false,
                _ => true,
            };
            match found(arch, what) {
                Some((why, changes)) => {
                    assert!(needs, "{arch:?} {what:?}: {why}");
                    assert!(changes.len() <= 8, "{arch:?} {what:?}: {} changes: {why}", changes.len());
                }
                None => assert!(!needs, "{arch:?} {what:?} is not found"),
            }
        }
    }
}
