//! No cache of any form gives what the page table would not, and each kind of invalidation is needed for that.

#[cfg(target_has_atomic = "64")]
use crate::machine::OfMany;
use crate::machine::{Alone, Both, Kind, Machine, Paired, Prefetching, Single, Subject, op};
use proptest::collection::vec;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
#[cfg(target_has_atomic = "64")]
use tlbkit_stlb::Shared;
use tlbkit_stlb::{Assoc, CacheMemory, Direct, EntryLayout, Integrated, Ptlb, Victim};

/// Runs random kernels on fresh subjects; `Err` once one got a stale translation.
fn run<L: EntryLayout<Data = u64>>(
    skip: Option<Kind>,
    with: impl Fn(&mut dyn FnMut(&mut dyn Subject<L>)),
) -> Result<(), String> {
    let (cases, steps) = match (cfg!(miri), skip) {
        (true, _) => (1, 60),
        (false, None) => (64, 600),
        // As many as it takes to catch a kernel that leaves one kind out.
        (false, Some(_)) => (4000, 600),
    };
    let config = Config { cases, max_shrink_iters: 0, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new(config);
    let outcome = runner.run(&vec(op(), steps), |ops| {
        let mut outcome = Ok(());
        with(&mut |subject| {
            let mut machine = Machine::new(subject, skip);
            for (at, &op) in ops.iter().enumerate() {
                if machine.step(op).is_err() {
                    outcome = Err(TestCaseError::fail(format!("stale at step {at}: {op:?}")));
                    return;
                }
            }
        });
        outcome
    });
    outcome.map_err(|error| error.to_string())
}

/// A form of the cache is never stale with all invalidations, and is with any one kind left out.
fn never_stale<L: EntryLayout<Data = u64>>(with: impl Fn(&mut dyn FnMut(&mut dyn Subject<L>))) {
    if let Err(stale) = run(None, &with) {
        panic!("{stale}");
    }
    if cfg!(miri) {
        return; // the negative controls show nothing about memory, and take their time
    }
    // In the form with single pages, mapping what was not mapped makes nothing stale: absence is not cached.
    let needed = Kind::ALL.into_iter().filter(|&kind| kind != Kind::Map || L::UNIT != L::BASE);
    for skip in needed {
        assert!(run(Some(skip), &with).is_err(), "nothing was stale with {skip:?} left out");
    }
}

macro_rules! forms {
    ($($name:ident: $layout:ty, |$memory:ident| $subject:expr;)+) => {$(
        #[test]
        fn $name() {
            never_stale::<$layout>(|run| {
                let mut $memory = CacheMemory::<4096>::new();
                run(&mut $subject);
            });
        }
    )+};
}

forms! {
    direct: Single, |memory| Alone(Direct::<Single, 16>::new(memory.bytes()).unwrap());
    direct_large: Single, |memory| Alone(Direct::<Single, 128>::new(memory.bytes()).unwrap());
    direct_paired: Paired, |memory| Alone(Direct::<Paired, 16>::new(memory.bytes()).unwrap());
    two_ways: Single, |memory| Alone(Assoc::<Single, 8, 2>::new(memory.bytes()).unwrap());
    four_ways: Paired, |memory| Alone(Assoc::<Paired, 8, 4>::new(memory.bytes()).unwrap());
    victim: Single, |memory| Alone(Victim::<Single, 16, 8>::new(memory.bytes()).unwrap());
    victim_paired: Paired, |memory| Alone(Victim::<Paired, 4, 4>::new(memory.bytes()).unwrap());
    ptlb: Single, |memory| Prefetching(Ptlb::<Single, 32>::new(memory.bytes()).unwrap());
    ptlb_paired: Paired, |memory| Prefetching(Ptlb::<Paired, 32>::new(memory.bytes()).unwrap());
    integrated: Single, |memory| Both(Integrated::new(Direct::<Single, 32>::new(memory.bytes()).unwrap()));
    integrated_victim: Paired, |memory|
        Both(Integrated::new(Victim::<Paired, 16, 8>::new(memory.bytes()).unwrap()));
}

// Their entries are two words of 64 bits.
#[cfg(target_has_atomic = "64")]
forms! {
    shared: Single, |memory|
        OfMany::new(Shared::<Single, 16, 1>::new(memory.bytes()).unwrap());
    shared_four_ways: Paired, |memory|
        OfMany::new(Shared::<Paired, 8, 4>::new(memory.bytes()).unwrap());
}
