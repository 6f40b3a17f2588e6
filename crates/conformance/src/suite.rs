//! The suite: checks each property on many random sequences of operations, and shrinks a failing sequence.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::panic::{self, AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use proptest::test_runner::{Config, FileFailurePersistence, RngSeed, TestCaseError, TestError, TestRunner};
use tlbkit_pagetable::Space;
use tlbkit_pagetable::nodes::Chunk;

use crate::hang::{self, Step};
use crate::properties::{check, new_space};
use crate::subject::{Kind, OPS, Property, Subject};
use crate::words::words;
use crate::{Mismatch, Op, ops, rust, whole};

/// The memory of the storage: enough for the operations of one case.
const CHUNKS: usize = if cfg!(miri) { 192 } else { 2048 };

/// The smallest sequence of operations found that fails a check. Its `Display` ends with a test that repeats the failure.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The operations.
    pub ops: Vec<Op>,
    /// The difference that was found.
    pub mismatch: Mismatch,
    /// What was checked.
    pub(crate) check: String,
    /// The body of the test.
    pub(crate) test: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { mismatch, check, test, .. } = self;
        write!(f, "{check}: {mismatch}\n\nTo repeat it:\n\n#[test]\nfn repeats() {{\n{test}\n}}")
    }
}

impl std::error::Error for Failure {}

thread_local! {
    /// Whether a search runs, and whether one of its checks has panicked.
    static QUIET: Cell<Option<bool>> = const { Cell::new(None) };
}

/// A search: of the panics of its checks only the first is printed, because shrinking repeats them hundreds of times.
struct Quiet;

impl Quiet {
    fn begin() -> Self {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let before = panic::take_hook();
            panic::set_hook(Box::new(move |info| {
                let is_again = QUIET.get() == Some(true);
                if QUIET.get().is_some() {
                    QUIET.set(Some(true));
                }
                if !is_again {
                    before(info);
                }
            }));
        });
        QUIET.set(Some(false));
        Self
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        QUIET.set(None);
    }
}

/// The names of a check in messages.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    /// What is tested: a table or a mapper.
    pub(crate) tested: &'static str,
    pub(crate) check: String,
    /// The call that repeats the check on `ops`.
    pub(crate) call: String,
    /// Whether the last operation is the one that can hang.
    pub(crate) at_last: bool,
}

impl Names {
    fn of(kind: &Kind, property: Property) -> Self {
        let subject = rust::within_crate(kind.name);
        Self {
            tested: "table",
            check: format!("{property:?}"),
            call: format!("replay::<{subject}>(Property::{property:?}, &ops)"),
            at_last: property == Property::SurvivesUnwinding,
        }
    }

    pub(crate) fn failure(&self, ops: &[Op], mismatch: Mismatch) -> Box<Failure> {
        let (array, call) = (rust::array(ops), &self.call);
        let test =
            format!("    use tlbkit_conformance::prelude::*;\n    let ops = {array};\n    {call}.unwrap();");
        Box::new(Failure { ops: ops.to_vec(), mismatch, check: self.check.clone(), test })
    }

    /// Returns the failure of a case that hangs: its operations up to the one that does not return.
    fn hung(&self, ops: &[Op], seconds: u64, steps: &[Step]) -> Box<Failure> {
        let did: Vec<Op> =
            steps.iter().filter_map(|step| if let Step::Op(op) = step { Some(*op) } else { None }).collect();
        let begun = ops.iter().rposition(|op| self.at_last || did.contains(op)).map_or(0, |last| last + 1);
        let when = match steps.last() {
            Some(Step::Said(what)) => format!(" when {what}"),
            _ => format!(", in operation {} of the case or in a walk after it", did.len()),
        };
        let what = format!("the {} has not come back for {seconds} seconds{when}", self.tested);
        self.failure(&ops[..begun], Mismatch { op: did.last().copied(), outcome: None, what })
    }

    /// Runs a check of one sequence of operations, and reports a hang.
    pub(crate) fn guard<T>(&self, ops: &[Op], check: impl FnOnce() -> T) -> T {
        hang::guard(|seconds, steps| self.hung(ops, seconds, steps).to_string(), check)
    }

    /// Runs a check on random sequences of operations.
    pub(crate) fn search(
        &self,
        space: Space,
        config: Config,
        check: &dyn Fn(&[Op]) -> Result<(), Mismatch>,
    ) -> Result<(), Box<Failure>> {
        let _quiet = Quiet::begin();
        let guarded = |ops: &[Op]| self.guard(ops, || check(ops));
        let found = TestRunner::new(config).run(&ops(space, OPS), |ops| {
            guarded(&ops).map_err(|mismatch| TestCaseError::fail(mismatch.to_string()))
        });
        match found {
            Ok(()) => Ok(()),
            Err(TestError::Fail(why, ops)) => {
                // The repeated check may panic.
                let again = catch_unwind(AssertUnwindSafe(|| guarded(&ops).err())).ok().flatten();
                Err(self.failure(&ops, again.unwrap_or_else(|| Mismatch::of(why.to_string()))))
            }
            Err(TestError::Abort(why)) => panic!("no operations could be drawn: {why}"),
        }
    }
}

/// Checks a property on `PROPTEST_CASES` random sequences of operations, 16 if it is not set, from the seed `PROPTEST_RNG_SEED`.
///
/// # Panics
///
/// With the [`Failure`].
pub fn holds<S: Subject>(property: Property) {
    let kind = Kind::of::<S>();
    expect(search(&kind, property, config(kind.source, kind.cases)));
}

/// Panics with a failure.
pub(crate) fn expect<T>(checked: Result<T, Box<Failure>>) -> T {
    checked.unwrap_or_else(|failure| panic!("{failure}"))
}

/// Returns the configuration of proptest, which keeps the seeds of failing cases beside the file of the test.
pub(crate) fn config(source: Option<&'static str>, cases: u32) -> Config {
    let mut config = Config::default();
    if std::env::var_os("PROPTEST_CASES").is_none() {
        config.cases = if cfg!(miri) { 1 } else { cases };
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

/// Returns the configuration for `cases` sequences from `seed`.
pub(crate) fn seeded(cases: u32, seed: u64) -> Config {
    Config { cases, rng_seed: RngSeed::Fixed(seed), failure_persistence: None, ..Config::default() }
}

/// Checks a property on `cases` random sequences of operations from `seed`.
///
/// # Errors
///
/// The smallest sequence for which it does not hold.
pub fn find<S: Subject>(property: Property, cases: u32, seed: u64) -> Result<(), Box<Failure>> {
    search(&Kind::of::<S>(), property, seeded(cases, seed))
}

/// Tells whether a run of `cases` sequences from `seed` fails. The failing sequence is not shrunk.
#[doc(hidden)]
pub fn fails<S: Subject>(property: Property, cases: u32, seed: u64) -> bool {
    let config = Config { max_shrink_iters: 0, ..seeded(cases, seed) };
    let failed = || search(&Kind::of::<S>(), property, config).is_err();
    catch_unwind(AssertUnwindSafe(failed)).unwrap_or(true)
}

/// Checks a property on one sequence of operations.
///
/// # Errors
///
/// The failure, if the property does not hold.
pub fn replay<S: Subject>(property: Property, ops: &[Op]) -> Result<(), Box<Failure>> {
    let kind = Kind::of::<S>();
    let (names, mut memory) = (Names::of(&kind, property), vec![Chunk::ZERO; CHUNKS]);
    names
        .guard(ops, || check(&kind, property, &mut memory, ops, &Cell::new(0)))
        .map_err(|mismatch| names.failure(ops, mismatch))
}

fn search(kind: &Kind, property: Property, config: Config) -> Result<(), Box<Failure>> {
    let names = Names::of(kind, property);
    // All cases share one allocation, because the storage does not need zeroed memory.
    let memory = RefCell::new(vec![Chunk::ZERO; CHUNKS]);
    let space = names.guard(&[], || new_space(kind, &mut memory.borrow_mut())).expect("a new table");
    let count = Cell::new(0);
    names.search(space, config, &|ops| check(kind, property, &mut memory.borrow_mut(), ops, &count))?;
    if let Some(what) = property.counts() {
        println!("{} {what}", count.get());
    }
    match whole::case(&space, &kind.profile).filter(|_| property == Property::Agrees) {
        Some(ops) => splits_whole(kind, &names, &ops),
        None => Ok(()),
    }
}

/// Checks the case that splits a large page into base pages at once.
fn splits_whole(kind: &Kind, names: &Names, ops: &[Op]) -> Result<(), Box<Failure>> {
    let done = Cell::new(0);
    let split = || names.guard(ops, || check(kind, Property::Agrees, &mut [], ops, &done));
    let checked = catch_unwind(AssertUnwindSafe(split));
    let checked = checked.unwrap_or_else(|panic| Err(Mismatch::of(words(&*panic)).after(&ops[1], None)));
    checked.map_err(|mismatch| names.failure(ops, mismatch))?;
    if let Op::Map { pages, size, .. } = ops[0] {
        let was = if done.get() == 1 { "was split" } else { "found no memory to be split" };
        println!("a page of {size} {was} into {} at once", pages.len());
    }
    Ok(())
}

/// Runs the whole suite on a kind of table: one line in a test file.
///
/// `conformance!(name, Format, Mode, |nodes| constructor)` makes a module `name` with a test for each [`Property`]. The
/// constructor gets [`&'n Nodes`](crate::Nodes), node storage for the format's words in the mode, and returns a `Result`; the
/// table's geometry is one of its parameters. Add `, keeps` at the end for a table that keeps nodes after all pages were unmapped. Write
/// `@cases 8, ` before the name where several lines check the same code, and each needs fewer cases than 16.
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
        $crate::conformance!(@cases 16, $name, $format, $mode, |$nodes| $new);
    };
    ($name:ident, $format:ty, $mode:ty, |$nodes:ident| $new:expr, keeps) => {
        $crate::conformance!(@cases 16, $name, $format, $mode, |$nodes| $new, keeps);
    };
    (@cases $cases:expr, $name:ident, $format:ty, $mode:ty, |$nodes:ident| $new:expr) => {
        $crate::conformance!(@ $name, $format, $mode, $nodes, $new, true, $cases);
    };
    (@cases $cases:expr, $name:ident, $format:ty, $mode:ty, |$nodes:ident| $new:expr, keeps) => {
        $crate::conformance!(@ $name, $format, $mode, $nodes, $new, false, $cases);
    };
    (@ $name:ident, $format:ty, $mode:ty, $nodes:ident, $new:expr, $shrinks:literal, $cases:expr) => {
        mod $name {
            #[allow(unused_imports, reason = "the table's parameters are named as where the macro is called")]
            use super::*;

            $crate::subject!(@ Tested, $format, $mode, $nodes, $new, $shrinks, $cases);

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
        $crate::subject!(@ $name, $format, $mode, $nodes, $new, true, 16);
    };
    (@ $name:ident, $format:ty, $mode:ty, $nodes:ident, $new:expr, $shrinks:literal, $cases:expr) => {
        #[doc(hidden)]
        pub(crate) struct $name;

        impl $crate::Subject for $name {
            type Format = $format;
            type Mode = $mode;

            const SHRINKS: bool = $shrinks;
            const CASES: u32 = $cases;
            const SOURCE: ::core::option::Option<&'static str> = ::core::option::Option::Some(file!());

            fn build<'n>(
                $nodes: &'n $crate::Nodes<'_, Self>,
            ) -> ::core::result::Result<impl $crate::pagetable::Table<'n> + 'n, $crate::pagetable::Error> {
                $new
            }
        }
    };
}
