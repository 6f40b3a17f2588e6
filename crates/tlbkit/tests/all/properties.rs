//! Address spaces against a model of their pages, on every machine, with one CPU and with several: results, frames, nodes,
//! marks, copies, and what TLBs hold.

use crate::driven::kernel::Arch;
use crate::driven::{Fault, STEP, run};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use tlbkit::{Guarded, arch};

const SEVERAL: usize = 3;

/// A generator of bytes.
struct Bytes(u64);

impl Bytes {
    fn step(&mut self) -> [u8; STEP] {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d).to_be_bytes()
    }
}

/// Histories of `steps` steps on one machine.
fn hold<A: Arch, const CPUS: usize>(steps: usize) {
    let bits = prop_oneof![4 => Just(16_u32), 1 => Just(0), 1 => 2..4_u32];
    let cases = if cfg!(tlbkit_full) { 40 } else { 16 };
    let mut runner = TestRunner::new(ProptestConfig { cases, ..ProptestConfig::default() });
    let histories = (bits, vec(any::<[u8; STEP]>(), 1..steps));
    let held = runner.run(&histories, |(bits, steps)| {
        run::<A, CPUS>(bits, &steps, Fault::default());
        Ok(())
    });
    held.unwrap_or_else(|why| panic!("{why}"));
}

/// The beginning of a history: all CPUs run an address space with two pages. One waits for its flush, and is mapped again by another CPU.
/// Then both wait, with their node, and the third CPU flushes.
const WAITS: [[u8; STEP]; 11] = [
    [0, 0, 0, 0, 0, 0, 255, 0],
    [3, 0, 0, 0, 0, 0, 255, 1],
    [3, 0, 0, 0, 0, 0, 255, 2],
    [3, 0, 0, 0, 0, 0, 255, 0],
    [11, 0, 0, 0, 0, 200, 255, 0],
    [11, 0, 1, 0, 0, 200, 255, 0],
    [16, 0, 1, 0, 0, 255, 255, 0],
    [11, 0, 64, 0, 0, 200, 255, 1],
    [16, 0, 1, 0, 0, 255, 255, 1],
    [16, 0, 0, 0, 0, 255, 255, 0],
    [6, 0, 0, 0, 0, 100, 255, 2],
];

/// The same histories every time: what Miri interprets.
fn few<A: Arch, const CPUS: usize>(seed: u64) {
    let mut bytes = Bytes(seed);
    let steps = if cfg!(miri) { 12 } else { 400 };
    let random = (0..steps).map(|_| bytes.step());
    let history: Vec<_> = WAITS.into_iter().filter(|_| CPUS > 1).chain(random).collect();
    run::<A, CPUS>(16, &history, Fault::default());
}

/// Writes the tests of a machine: with one CPU, and with several.
macro_rules! properties {
    ($name:ident, $machine:ty, few) => {
        mod $name {
            use super::*;

            properties!(@ $machine);

            #[test]
            fn a_history() {
                few::<$machine, 1>(1);
            }

            #[test]
            fn a_history_of_cpus() {
                few::<$machine, SEVERAL>(2);
            }
        }
    };
    ($name:ident, $machine:ty, always) => {
        #[cfg(not(miri))]
        mod $name {
            use super::*;

            properties!(@ $machine);
        }
    };
    ($name:ident, $machine:ty, full) => {
        #[cfg(tlbkit_full)]
        properties!($name, $machine, always);
    };
    // Miri would take minutes for each.
    (@ $machine:ty) => {
        #[test]
        #[cfg(not(miri))]
        fn one_cpu() {
            hold::<$machine, 1>(120);
        }

        #[test]
        #[cfg(not(miri))]
        fn several_cpus() {
            hold::<$machine, SEVERAL>(120);
        }
    };
}

each_machine!(properties);

/// Whether some histories with a fault end in a panic.
#[cfg(all(not(miri), target_pointer_width = "64"))]
fn is_found<A: Arch, const CPUS: usize>(fault: Fault) -> bool {
    (1..9).any(|seed| {
        let mut bytes = Bytes(seed);
        let history: Vec<_> = (0..400).map(|_| bytes.step()).collect();
        std::panic::catch_unwind(|| run::<A, CPUS>(16, &history, fault)).is_err()
    })
}

/// The controls: a machine that flushes nothing, and a model that is wrong.
#[test]
#[cfg(all(not(miri), target_pointer_width = "64"))]
fn what_is_wrong_is_found() {
    let forgets = Fault { forgets: true, ..Fault::default() };
    let misses = Fault { misses: true, ..Fault::default() };
    assert!(is_found::<arch::Sv39, 1>(forgets) && is_found::<arch::X86_64, SEVERAL>(forgets));
    assert!(is_found::<arch::AArch64, 1>(misses) && is_found::<arch::Mips32, SEVERAL>(misses));
    assert!(is_found::<arch::Mips32<Guarded>, SEVERAL>(forgets));
}
