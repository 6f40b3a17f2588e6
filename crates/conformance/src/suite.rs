//! The suite: each property over many random sequences of operations, shrunk to the smallest that fails.

use std::cell::{Cell, RefCell};

use proptest::test_runner::{Config, TestCaseError, TestRunner};
use tlbkit_addr::Reach;
use tlbkit_pagetable::format::Format;
use tlbkit_pagetable::nodes::{Chunk, Nodes, Reclaim, Slab};
use tlbkit_pagetable::{Error, Mode, Table, destroy};

use crate::{Failing, Mismatch, Op, Outcome, Profile, Runner, Tripping, ops};

/// A kind of table that the suite can make as many of as it likes. [`conformance!`](crate::conformance) writes the
/// implementation.
pub trait Subject {
    /// The encoding of its leaves, and the words of its nodes.
    type Format: Format;
    /// One CPU or several.
    type Mode: Mode;

    /// Whether a table from which everything was unmapped takes no more nodes than a new one.
    const SHRINKS: bool = true;

    /// Returns a new table with nodes from `nodes`.
    ///
    /// # Errors
    ///
    /// Those of the table's constructor.
    fn build<'n, N>(nodes: &'n N) -> Result<impl Table<'n>, Error>
    where
        N: Nodes<Word = <Self::Format as Format>::Word, Mode = Self::Mode>;
}

/// The storage that the suite's tables stand on.
pub type Storage<'m, S> =
    Failing<Tripping<Slab<'m, <<S as Subject>::Format as Format>::Word, <S as Subject>::Mode>>>;

/// Memory for the storage: enough for what the operations of one case can map.
const CHUNKS: usize = if cfg!(miri) { 192 } else { 2048 };

/// The most operations of a case.
const OPS: usize = if cfg!(miri) { 8 } else { 40 };

/// Results, pages, footprint and flushes of random operations are those of the model, and a table that is taken
/// apart while things are mapped leaves nothing behind.
///
/// # Panics
///
/// With the smallest sequence found for which that is not so; likewise for all that follow.
pub fn agrees<S: Subject>() {
    each_case::<S>(|nodes, table, ops| {
        let mut runner = Runner::new(table, Profile::of::<S::Format>(), 0);
        runner.run(table, ops)?;
        check_pending(nodes, &runner)
    });
}

/// The same holds while retired nodes wait for shootdowns, and a table that is emptied returns its nodes.
///
/// # Panics
///
/// If not.
pub fn waits<S: Subject>() {
    each_case::<S>(|nodes, table, ops| {
        let mut runner = Runner::new(table, Profile::of::<S::Format>(), 3);
        for op in ops {
            runner.run(table, &[*op])?;
            check_pending(nodes, &runner)?;
        }
        runner.clear(table, S::SHRINKS)?;
        check_pending(nodes, &runner)
    });
}

/// Wherever an allocation can fail, the operation fails with [`Error::NoMemory`] and changes nothing, or does without
/// the node. Prints how many have failed.
///
/// # Panics
///
/// If not.
pub fn fails_cleanly<S: Subject>() {
    let failures = Cell::new(0_u64);
    each_case::<S>(|nodes, table, ops| {
        let mut runner = Runner::new(table, Profile::of::<S::Format>(), 0);
        for op in ops {
            for takes in 0.. {
                let before = (nodes.out(), nodes.inner().inner().usage().nodes, table.footprint());
                nodes.fail_at(takes);
                let outcome = runner.step(table, op);
                let failed = nodes.failed();
                failures.set(failures.get() + u64::from(failed));
                let Outcome::NoMemory { wanted, .. } = outcome? else { break };
                let after = (nodes.out(), nodes.inner().inner().usage().nodes, table.footprint());
                if !failed || wanted <= takes || before != after {
                    return Err(Mismatch {
                        op: Some(*op),
                        what: format!(
                            "take {takes} failed ({failed}), {wanted} wanted: {before:?} -> {after:?}"
                        ),
                    });
                }
            }
        }
        Ok(())
    });
    println!("{} allocations failed", failures.get());
}

/// A table in memory that is too small for it refuses what does not fit, and keeps the rest right.
///
/// # Panics
///
/// If not.
pub fn survives_exhaustion<S: Subject>() {
    each_case::<S>(|nodes, table, ops| {
        nodes.limit(nodes.out() + 7);
        let mut runner = Runner::new(table, Profile::of::<S::Format>(), 2);
        for op in ops {
            runner.step(table, op)?;
            check_pending(nodes, &runner)?;
        }
        runner.settle();
        Ok(())
    });
}

/// Whichever call to the caller's code unwinds, the table is whole afterwards, and what it leaks is counted. The last
/// operation of each sequence is the one that does. Prints how many have.
///
/// # Panics
///
/// If not.
pub fn survives_unwinding<S: Subject>() {
    let unwound = Cell::new(0_u64);
    let memory = RefCell::new(vec![Chunk::ZERO; CHUNKS]);
    each_sequence::<S>(OPS.min(16), |ops| {
        let Some((last, first)) = ops.split_last() else { return Ok(()) };
        for calls in 0.. {
            let mut memory = memory.borrow_mut();
            let nodes = storage::<S>(&mut memory);
            let mut table = S::build(&nodes).map_err(Mismatch::no_table)?;
            let mut runner = Runner::new(&table, Profile::of::<S::Format>(), 0);
            runner.replay(&table, first)?;
            if runner.model().weight(last) > Runner::MOST {
                // SAFETY: nobody walks the table any more.
                unsafe { destroy(table).reclaim() };
                return Ok(());
            }
            let trip = nodes.inner().trip();
            trip.set(calls);
            let stopped = runner.unwind(&table, last, trip, calls % 2 == 0)?;
            unwound.set(unwound.get() + u64::from(stopped));
            let mismatch = |what| Mismatch { op: Some(*last), what };
            let (out, lost, left) = (nodes.out(), nodes.held().lost(), table.footprint());
            if out != left.nodes + left.leaves + runner.pending() + lost {
                let pending = runner.pending();
                let what =
                    format!("call {calls}: {out} nodes are out, {lost} lost, {pending} pending, of {left:?}");
                return Err(mismatch(what));
            }
            check_pending(&nodes, &runner)?;
            // Goes on with it as with any other table.
            runner.settle();
            runner.compare(&table, last.pages())?;
            runner.run(&mut table, ops)?;
            runner.clear(&mut table, false)?;
            // SAFETY: nobody walks the table any more.
            unsafe { destroy(table).reclaim() };
            if nodes.out() != lost || nodes.held().lost() != lost || nodes.held().pending() != 0 {
                let what = format!("call {calls}: {lost} nodes were lost, and {} are out", nodes.out());
                return Err(mismatch(what));
            }
            if !stopped {
                return Ok(());
            }
        }
        Ok(())
    });
    println!("{} calls unwound", unwound.get());
}

/// Checks that the storage agrees about the nodes that wait.
fn check_pending<N: Nodes>(nodes: &Failing<N>, runner: &Runner<'_>) -> Result<(), Mismatch> {
    let (pending, held) = (nodes.held().pending(), runner.pending());
    if pending == held {
        Ok(())
    } else {
        Err(Mismatch { op: None, what: format!("{pending} nodes pending, but {held} in batches") })
    }
}

/// Runs a property on a new table for each of many sequences of operations, then takes the table apart.
fn each_case<S: Subject>(
    property: impl Fn(&Storage<'_, S>, &mut dyn Table<'_>, &[Op]) -> Result<(), Mismatch>,
) {
    // One allocation for all cases; storage does not ask for clean memory.
    let memory = RefCell::new(vec![Chunk::ZERO; CHUNKS]);
    each_sequence::<S>(OPS, |ops| {
        let mut memory = memory.borrow_mut();
        let nodes = storage::<S>(&mut memory);
        one_case::<S>(&nodes, &property, ops)
    });
}

/// Runs a property for each of many sequences of operations.
fn each_sequence<S: Subject>(most: usize, property: impl Fn(&[Op]) -> Result<(), Mismatch>) {
    let space = {
        let mut memory = vec![Chunk::ZERO; CHUNKS];
        let nodes = storage::<S>(&mut memory);
        let table = S::build(&nodes).expect("a new table");
        let space = table.space();
        // SAFETY: nobody else knows the table.
        unsafe { destroy(table).reclaim() };
        space
    };
    let mut config = Config { failure_persistence: None, ..Config::default() };
    if std::env::var_os("PROPTEST_CASES").is_none() {
        config.cases = if cfg!(miri) { 1 } else { 32 };
    }
    let outcome = TestRunner::new(config).run(&ops(space, most), |ops| {
        property(&ops).map_err(|mismatch| TestCaseError::fail(mismatch.to_string()))
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
}

fn storage<S: Subject>(memory: &mut [Chunk]) -> Storage<'_, S> {
    Failing::new(Tripping::new(Slab::new(memory, 0).expect("memory for a slab")))
}

fn one_case<S: Subject>(
    nodes: &Storage<'_, S>,
    property: impl Fn(&Storage<'_, S>, &mut dyn Table<'_>, &[Op]) -> Result<(), Mismatch>,
    ops: &[Op],
) -> Result<(), Mismatch> {
    let mut table = S::build(nodes).map_err(Mismatch::no_table)?;
    property(nodes, &mut table, ops)?;
    let batch = destroy(table);
    let flush = batch.flush();
    if !(flush.is_all() && flush.links() && flush.reach() == Reach::Everywhere) {
        return Err(Mismatch { op: None, what: format!("a table was taken apart with {:?}", batch.flush()) });
    }
    if batch.nodes() != nodes.out() {
        let what = format!("a table of {} nodes left {} behind", nodes.out(), nodes.out() - batch.nodes());
        return Err(Mismatch { op: None, what });
    }
    // SAFETY: the table is gone, and nobody walks.
    unsafe { batch.reclaim() };
    let left =
        (nodes.out(), nodes.inner().inner().usage().nodes, nodes.held().pending(), nodes.held().lost());
    if left == (0, 0, 0, 0) {
        Ok(())
    } else {
        Err(Mismatch { op: None, what: format!("storage is not empty (out, used, pending, lost): {left:?}") })
    }
}

/// Runs the whole suite over a kind of table: one line in a test of yours.
///
/// `conformance!(name, Format, Mode, |nodes| constructor)` makes a module `name` with a test for each property. The
/// constructor is given `&'n N`, any node storage for the format's words in the mode, and returns a `Result`; the
/// table's geometry is one of its parameters. A table that keeps nodes when everything is unmapped says so with
/// `, keeps` at the end.
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

            struct Tested;

            impl $crate::Subject for Tested {
                type Format = $format;
                type Mode = $mode;

                const SHRINKS: bool = $shrinks;

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

            #[test]
            fn agrees() {
                $crate::suite::agrees::<Tested>();
            }

            #[test]
            fn waits() {
                $crate::suite::waits::<Tested>();
            }

            #[test]
            fn fails_cleanly() {
                $crate::suite::fails_cleanly::<Tested>();
            }

            #[test]
            fn survives_exhaustion() {
                $crate::suite::survives_exhaustion::<Tested>();
            }

            #[test]
            fn survives_unwinding() {
                $crate::suite::survives_unwinding::<Tested>();
            }
        }
    };
}
