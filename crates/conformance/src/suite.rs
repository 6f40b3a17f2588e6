//! The suite: checks each property on many random sequences of operations, and shrinks a failing sequence.

use std::any::type_name;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use proptest::test_runner::{Config, FileFailurePersistence, RngSeed, TestCaseError, TestError, TestRunner};
use tlbkit_pagetable::nodes::Chunk;

use crate::foreign::words;
use crate::hang::{self, Step};
use crate::properties::{check, new_space};
use crate::subject::{OPS, Property, Subject};
use crate::{Mismatch, Op, Profile, ops, rust, whole};

/// The memory of the storage: enough for the operations of one case.
const CHUNKS: usize = if cfg!(miri) { 192 } else { 2048 };

/// The smallest sequence of operations found for which a property does not hold. Its `Display` ends with a test that repeats the
/// failure.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The property.
    pub property: Property,
    /// The operations.
    pub ops: Vec<Op>,
    /// The difference that was found.
    pub mismatch: Mismatch,
    subject: &'static str,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { property, ops, mismatch, subject } = self;
        let subject = rust::within_crate(subject);
        writeln!(f, "{property:?}: {mismatch}\n\nTo repeat it:\n")?;
        writeln!(
            f,
            "#[test]\nfn repeats() {{\n    use tlbkit_conformance::prelude::*;\n    let ops = {};",
            rust::array(ops)
        )?;
        write!(f, "    replay::<{subject}>(Property::{property:?}, &ops).unwrap();\n}}")
    }
}

impl std::error::Error for Failure {}

/// Checks a property on `PROPTEST_CASES` random sequences of operations, 16 if it is not set, from the seed `PROPTEST_RNG_SEED`.
///
/// # Panics
///
/// With the [`Failure`].
pub fn holds<S: Subject>(property: Property) {
    if let Err(failure) = search::<S>(property, config(S::SOURCE)) {
        panic!("{failure}");
    }
}

/// Returns the configuration of proptest, which keeps the seeds of failing cases beside the file of the test.
pub(crate) fn config(source: Option<&'static str>) -> Config {
    let mut config = Config::default();
    if std::env::var_os("PROPTEST_CASES").is_none() {
        config.cases = if cfg!(miri) { 1 } else { 16 };
    }
    config.max_shrink_iters = 600;
    config.max_shrink_time = 15_000;
    config.failure_persistence = None;
    if let Some(source) = source
        && !cfg!(miri)
    {
        config.source_file = Some(source);
        config.failure_persistence = Some(Box::new(FileFailurePersistence::WithSource("failures")));
    }
    config
}

/// Repeats a failed check. Returns `None` if it panics instead.
pub(crate) fn again<T>(check: impl FnOnce() -> Option<T>) -> Option<T> {
    catch_unwind(AssertUnwindSafe(check)).ok().flatten()
}

/// Checks a property on `cases` random sequences of operations from `seed`.
///
/// # Errors
///
/// The smallest sequence for which it does not hold.
pub fn find<S: Subject>(property: Property, cases: u32, seed: u64) -> Result<(), Box<Failure>> {
    let rng_seed = RngSeed::Fixed(seed);
    search::<S>(property, Config { cases, rng_seed, failure_persistence: None, ..Config::default() })
}

/// Checks a property on one sequence of operations.
///
/// # Errors
///
/// The failure, if the property does not hold.
pub fn replay<S: Subject>(property: Property, ops: &[Op]) -> Result<(), Box<Failure>> {
    let mut memory = vec![Chunk::ZERO; CHUNKS];
    guarded::<S>(property, &mut memory, ops, &Cell::new(0)).map_err(|mismatch| {
        Box::new(Failure { property, ops: ops.to_vec(), mismatch, subject: type_name::<S>() })
    })
}

/// Checks a property on one sequence of operations, and reports a hang.
fn guarded<S: Subject>(
    property: Property,
    memory: &mut [Chunk],
    ops: &[Op],
    count: &Cell<u64>,
) -> Result<(), Mismatch> {
    let subject = type_name::<S>();
    let tell = |seconds: u64, steps: &[Step]| hung(property, ops, subject, seconds, steps).to_string();
    hang::guard(tell, || check::<S>(property, memory, ops, count))
}

/// Returns the failure of a case that hangs: its operations up to the one that does not return.
fn hung(property: Property, ops: &[Op], subject: &'static str, seconds: u64, steps: &[Step]) -> Failure {
    let did: Vec<Op> =
        steps.iter().filter_map(|step| if let Step::Op(op) = step { Some(*op) } else { None }).collect();
    // The last operation is the one that unwinds, so all operations are kept.
    let all = property == Property::SurvivesUnwinding;
    let begun = ops.iter().rposition(|op| all || did.contains(op)).map_or(0, |last| last + 1);
    let what = match steps.last() {
        Some(Step::Said(what)) => format!("the table has not come back for {seconds} seconds when {what}"),
        _ => format!(
            "the table has not come back for {seconds} seconds, in operation {} of the case or in a walk after it",
            did.len()
        ),
    };
    let mismatch = Mismatch { op: did.last().copied(), outcome: None, what };
    Failure { property, ops: ops[..begun].to_vec(), mismatch, subject }
}

/// Checks the case that splits a large page into base pages at once.
fn splits_whole<S: Subject>(ops: &[Op]) -> Result<(), Box<Failure>> {
    let (property, done) = (Property::Agrees, Cell::new(0));
    let checked = catch_unwind(AssertUnwindSafe(|| guarded::<S>(property, &mut [], ops, &done)));
    let checked = checked.unwrap_or_else(|panic| Err(Mismatch::of(words(&*panic)).after(&ops[1], None)));
    checked.map_err(|mismatch| {
        Box::new(Failure { property, ops: ops.to_vec(), mismatch, subject: type_name::<S>() })
    })?;
    if let Op::Map { pages, size, .. } = ops[0] {
        let was = if done.get() == 1 { "was split" } else { "found no memory to be split" };
        println!("a page of {size} {was} into {} at once", pages.len());
    }
    Ok(())
}

fn search<S: Subject>(property: Property, config: Config) -> Result<(), Box<Failure>> {
    // All cases share one allocation, because the storage does not need zeroed memory.
    let memory = RefCell::new(vec![Chunk::ZERO; CHUNKS]);
    let space = {
        let mut memory = memory.borrow_mut();
        let tell =
            |seconds: u64, steps: &[Step]| hung(property, &[], type_name::<S>(), seconds, steps).to_string();
        hang::guard(tell, || new_space::<S>(&mut memory)).expect("a new table")
    };
    let count = Cell::new(0);
    let found = TestRunner::new(config).run(&ops(space, OPS), |ops| {
        guarded::<S>(property, &mut memory.borrow_mut(), &ops, &count)
            .map_err(|mismatch| TestCaseError::fail(mismatch.to_string()))
    });
    match found {
        Ok(()) => {
            if let Some(what) = property.counts() {
                println!("{} {what}", count.get());
            }
            match whole::case(&space, &Profile::of::<S::Format>()).filter(|_| property == Property::Agrees) {
                Some(ops) => splits_whole::<S>(&ops),
                None => Ok(()),
            }
        }
        Err(TestError::Fail(why, ops)) => {
            // The table may panic in the repeated check.
            let mismatch = again(|| guarded::<S>(property, &mut memory.borrow_mut(), &ops, &count).err());
            let mismatch = mismatch.unwrap_or_else(|| Mismatch::of(why.to_string()));
            Err(Box::new(Failure { property, ops, mismatch, subject: type_name::<S>() }))
        }
        Err(TestError::Abort(why)) => panic!("no operations could be drawn: {why}"),
    }
}

/// Runs the whole suite on a kind of table: one line in a test file.
///
/// `conformance!(name, Format, Mode, |nodes| constructor)` makes a module `name` with a test for each [`Property`]. The
/// constructor gets `&'n N`, any node storage for the format's words in the mode, and returns a `Result`; the table's geometry is
/// one of its parameters. Add `, keeps` at the end for a table that keeps nodes after all pages were unmapped.
///
/// ```
/// use tlbkit_conformance::conformance;
/// use tlbkit_pagetable::format::Compact;
/// use tlbkit_pagetable::geometry::Va39;
/// use tlbkit_pagetable::mpt::Mpt;
/// use tlbkit_pagetable::{Shared, Solo};
///
/// conformance!(sv39_solo, Compact, Solo, |nodes| Mpt::<Va39, Compact, _>::new(nodes));
/// conformance!(sv39_shared, Compact, Shared, |nodes| Mpt::<Va39, Compact, _>::new(nodes));
/// # fn main() {}
/// ```
#[macro_export]
macro_rules! conformance {
    ($name:ident, $format:ty, $mode:ty, |$nodes:ident| $new:expr) => {
        $crate::conformance!(@ $name, $format, $mode, $nodes, $new, true);
    };
    ($name:ident, $format:ty, $mode:ty, |$nodes:ident| $new:expr, keeps) => {
        $crate::conformance!(@ $name, $format, $mode, $nodes, $new, false);
    };
    (@ $name:ident, $format:ty, $mode:ty, $nodes:ident, $new:expr, $shrinks:literal) => {
        mod $name {
            #[allow(unused_imports, reason = "the table's parameters are named as where the macro is called")]
            use super::*;

            $crate::subject!(@ Tested, $format, $mode, $nodes, $new, $shrinks);

            $crate::conformance! { @tests
                agrees Agrees, waits Waits, holds_back HoldsBack, fails_cleanly FailsCleanly,
                survives_exhaustion SurvivesExhaustion, survives_unwinding SurvivesUnwinding,
                publishes_in_order PublishesInOrder, walks_beside WalksBeside, stays_apart StaysApart, counts_lost CountsLost
            }
        }
    };
    (@tests $($test:ident $property:ident),+) => {
        $(
            #[test]
            fn $test() {
                $crate::suite::holds::<Tested>($crate::Property::$property);
            }
        )+
    };
}

/// Writes a [`Subject`]: `subject!(Name, Format, Mode, |nodes| constructor)`, as for [`conformance!`](crate::conformance).
#[macro_export]
macro_rules! subject {
    ($name:ident, $format:ty, $mode:ty, |$nodes:ident| $new:expr) => {
        $crate::subject!(@ $name, $format, $mode, $nodes, $new, true);
    };
    (@ $name:ident, $format:ty, $mode:ty, $nodes:ident, $new:expr, $shrinks:literal) => {
        #[doc(hidden)]
        pub(crate) struct $name;

        impl $crate::Subject for $name {
            type Format = $format;
            type Mode = $mode;

            const SHRINKS: bool = $shrinks;
            const SOURCE: ::core::option::Option<&'static str> = ::core::option::Option::Some(file!());

            fn build<'n, N>(
                $nodes: &'n N,
            ) -> ::core::result::Result<impl $crate::pagetable::Table<'n>, $crate::pagetable::Error>
            where
                N: $crate::pagetable::nodes::Nodes<
                        Word = <$format as $crate::pagetable::format::Format>::Word,
                        Mode = $mode,
                    >,
            {
                $new
            }
        }
    };
}
