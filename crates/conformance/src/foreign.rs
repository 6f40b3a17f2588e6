//! The adapter for a page table that does not implement [`Table`](tlbkit_pagetable::Table): a kernel's own mapper.
//!
//! An implementation needs [`map`](Foreign::map), [`unmap`](Foreign::unmap) and [`translate`](Foreign::translate) of one page.
//! The other functions are optional. [`Want`] names the checks that a missing function makes impossible: [`check`] returns them,
//! and the test that [`mapper!`](crate::mapper) writes prints them.
//!
//! The operations are those of the suite, divided into single pages, and the model is the suite's. A mapper gets only arguments
//! that its own types can express: aligned pages of its own sizes, in its space. A map of a page that is mapped must fail, and so
//! must an unmap or a protect of a page that is not.

pub mod frames;
mod run;

use std::any::{Any, type_name};
use std::collections::BTreeSet;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use proptest::test_runner::{Config, RngSeed, TestCaseError, TestError, TestRunner};
use tlbkit_addr::{Attr, PageSize, Pages, Pfn, Vpn};
use tlbkit_pagetable::Space;

use self::run::Run;
use crate::hang::{self, Step};
use crate::{Op, ops, rust, suite};

/// A mapper, with the functions that its kernel would call. An address counts bytes; a page is named by its first address.
pub trait Foreign {
    /// Returns a new mapper, in which no page is mapped.
    fn new() -> Self;

    /// Returns the addresses and page sizes that the mapper has: see [`Space::new`].
    fn space(&self) -> Space;

    /// Maps one page, and tells whether it succeeded.
    fn map(&mut self, at: usize, to: usize, size: PageSize, writable: bool) -> bool;

    /// Unmaps one page, and tells whether it succeeded.
    fn unmap(&mut self, at: usize, size: PageSize) -> bool;

    /// Returns the physical address that `at` is translated to.
    fn translate(&self, at: usize) -> Option<usize>;

    /// Makes one page writable or read-only, and tells whether it succeeded. Returns `None` if the mapper has no such function.
    fn protect(&mut self, at: usize, size: PageSize, writable: bool) -> Option<bool> {
        let _ = (at, size, writable);
        None
    }

    /// Tells whether a mapped address can be written. Returns `None` if the mapper cannot tell.
    fn writable(&self, at: usize) -> Option<bool> {
        let _ = at;
        None
    }

    /// Visits every page with its first address, its physical address and its size, in any order. Returns `false` if the mapper
    /// has no such function.
    fn visit(&self, visit: &mut dyn FnMut(usize, usize, PageSize)) -> bool {
        let _ = visit;
        false
    }

    /// Returns the first address and the number of bytes of each flush that was requested since the last call, or `None` if the
    /// mapper does not tell. A page counts as flushed if the ranges together cover it; `(0, usize::MAX)` is a flush of
    /// everything.
    fn flushed(&mut self) -> Option<Vec<(usize, usize)>> {
        None
    }

    /// Makes the next `takes` allocations of nodes succeed and those after them fail; with `None` all succeed. Returns `false` if
    /// the mapper cannot do that. A mapper whose nodes are [`frames`] need not implement this function.
    fn fail_after(&mut self, takes: Option<usize>) -> bool {
        frames::limit(takes)
    }

    /// Tells whether an empty node stays in the table, so that no larger page can be mapped there. A map that gets no memory may
    /// then also leave its new nodes in the table, for the next map of that page to use.
    fn keeps_empty(&self) -> bool {
        false
    }

    /// Tells whether the mapper refuses an unmap or a protect with a page size that is not the page's. If it does not, as a
    /// mapper whose functions get no size, the test passes only the page's own size.
    fn refuses_other_sizes(&self) -> bool {
        false
    }

    /// Returns the number of nodes that the mapper has allocated, after it has freed every node that it can, or `None` if it
    /// cannot tell. A mapper whose nodes are [`frames`] needs this function only if it keeps empty nodes and can free them.
    ///
    /// Unless the mapper [keeps empty nodes](Self::keeps_empty), a refused map must not change this number, because no unmap
    /// would free its unused nodes; nor may a map followed by an unmap of the same page. A mapper that keeps empty nodes but
    /// replaces them by a large page returns `None` here, or frees them first.
    fn nodes(&mut self) -> Option<usize> {
        frames::out().filter(|_| !self.keeps_empty())
    }
}

/// A check that was not made, named by the function that it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Want {
    /// Not checked without [`Foreign::protect`].
    Protect,
    /// Not checked without [`Foreign::writable`].
    Writable,
    /// Not checked without [`Foreign::visit`].
    Visit,
    /// Not checked without [`Foreign::flushed`].
    Flushed,
    /// Not checked without [`Foreign::fail_after`].
    FailAfter,
    /// Not checked if [`Foreign::keeps_empty`] returns `true`.
    KeepsEmpty,
    /// Not checked if [`Foreign::refuses_other_sizes`] returns `false`.
    OtherSizes,
    /// Not checked without [`Foreign::nodes`].
    Nodes,
}

impl Want {
    /// All variants.
    pub const ALL: [Self; 8] = [
        Self::Protect,
        Self::Writable,
        Self::Visit,
        Self::Flushed,
        Self::FailAfter,
        Self::KeepsEmpty,
        Self::OtherSizes,
        Self::Nodes,
    ];
}

impl fmt::Display for Want {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Protect => "without `protect` it is not checked that a change of rights changes one page, and no frame",
            Self::Writable => "without `writable` it is not checked that a page has the rights that it was given",
            Self::Visit => "without `visit` it is not checked that an iteration meets every page once, and nothing else",
            Self::Flushed => {
                "without `flushed` it is not checked that an unmap, or the loss of a right, asks for a flush of the page"
            }
            Self::FailAfter => "without `fail_after` it is not checked that a map which gets no memory changes nothing",
            Self::KeepsEmpty => {
                "`keeps_empty` says that emptied nodes stay: it is not checked that a large page can be mapped there"
            }
            Self::OtherSizes => {
                "without `refuses_other_sizes` it is not checked that an unmap or a protect of another page size than was mapped \
                 is refused"
            }
            Self::Nodes => {
                "without `nodes` it is not checked that a mapper from which everything was unmapped holds no more nodes after \
                 each round"
            }
        })
    }
}

/// The shortest sequence of operations found that makes a mapper fail. Its `Display` ends with a test that repeats the failure.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    /// The description of the failure.
    pub what: String,
    /// The calls of the mapper, in words.
    pub calls: Vec<String>,
    /// The operations, as [`replay`] takes them.
    pub ops: Vec<Op>,
    mapper: &'static str,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, calls, ops, mapper } = self;
        writeln!(f, "{what}\n  after:\n{}\n\nTo repeat it:\n", calls.join("\n"))?;
        writeln!(
            f,
            "#[test]\nfn repeats() {{\n    use tlbkit_conformance::prelude::*;\n    let ops = {};",
            rust::array(ops)
        )?;
        write!(f, "    foreign::replay::<{}>(&ops).unwrap();\n}}", rust::within_crate(mapper))
    }
}

impl std::error::Error for Failure {}

/// The most operations of a case.
const OPS: usize = 40;

/// Checks a mapper with `cases` random sequences of operations from `seed`. Returns the checks that were not made.
///
/// # Errors
///
/// The failure, with its operations.
pub fn check<F: Foreign>(cases: u32, seed: u64) -> Result<BTreeSet<Want>, Box<Failure>> {
    let rng_seed = RngSeed::Fixed(seed);
    search::<F>(Config { cases, rng_seed, failure_persistence: None, ..Config::default() })
}

/// Checks a mapper with `PROPTEST_CASES` random sequences of operations from the seed `PROPTEST_RNG_SEED`. Keeps the seed of a
/// failing sequence beside `source`, the file of the test. Prints the checks that were not made.
///
/// # Panics
///
/// With the [`Failure`].
pub fn holds<F: Foreign>(source: &'static str) {
    match search::<F>(suite::config(Some(source))) {
        Ok(unchecked) => unchecked.iter().for_each(|want| println!("{want}")),
        Err(failure) => panic!("{failure}"),
    }
}

/// Checks a mapper with one sequence of operations. Returns the checks that were not made.
///
/// # Errors
///
/// The failure.
pub fn replay<F: Foreign>(ops: &[Op]) -> Result<BTreeSet<Want>, Box<Failure>> {
    let mapper = type_name::<F>();
    let tell = |seconds: u64, steps: &[Step]| hung::<F>(ops, seconds, steps).to_string();
    hang::guard(tell, || {
        let mut run = Run::<F>::new();
        // The calls before a panic of the mapper are part of the failure, too.
        let done = catch_unwind(AssertUnwindSafe(|| run.all(ops)));
        let Run { unchecked, calls, mapper: tested, frees_all, model, .. } = run;
        // The drop of a mapper that has failed may panic again.
        let dropped = catch_unwind(AssertUnwindSafe(|| drop(tested)));
        let done = match (done, dropped, frames::out()) {
            (Ok(Ok(())), Ok(()), Some(left)) if left > 0 && frees_all => Ok(Err(format!(
                "the mapper was dropped with {} pages mapped, and {left} of its frames were not given back; a new one gives back all \
                 that it has",
                model.len()
            ))),
            (Ok(Ok(())), dropped, _) => dropped.map(Ok),
            (done, ..) => done,
        };
        let done = done.unwrap_or_else(|panic| Err(format!("the mapper panicked: {}", words(&*panic))));
        done.map(|()| unchecked).map_err(|what| Box::new(Failure { what, calls, ops: ops.to_vec(), mapper }))
    })
}

/// Returns the failure of a mapper that hangs: the operations up to the one that does not return.
fn hung<F>(ops: &[Op], seconds: u64, steps: &[Step]) -> Failure {
    let (mut calls, mut did) = (Vec::new(), Vec::new());
    for step in steps {
        match step {
            Step::Said(call) => calls.push(call.clone()),
            Step::Op(op) => did.push(*op),
        }
    }
    let begun = ops.iter().rposition(|op| did.contains(op)).map_or(0, |last| last + 1);
    let last = "the last of these calls, or a look at the mapper after it";
    let what = format!("the mapper has not come back for {seconds} seconds, from {last}");
    Failure { what, calls, ops: ops[..begun].to_vec(), mapper: type_name::<F>() }
}

/// Returns the message of a panic.
pub(crate) fn words(panic: &dyn Any) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("no words")
}

/// Returns the addresses and page sizes of a mapper.
pub(crate) fn space<F: Foreign>() -> Space {
    Run::<F>::new().mapper.space()
}

fn search<F: Foreign>(config: Config) -> Result<BTreeSet<Want>, Box<Failure>> {
    let mut unchecked = BTreeSet::new();
    let all = std::cell::RefCell::new(&mut unchecked);
    let tell = |seconds: u64, steps: &[Step]| hung::<F>(&[], seconds, steps).to_string();
    let space = hang::guard(tell, space::<F>);
    let found = TestRunner::new(config).run(&ops(space, OPS), |ops| {
        let wants = replay::<F>(&ops).map_err(|failure| TestCaseError::fail(failure.what))?;
        all.borrow_mut().extend(wants);
        Ok(())
    });
    match found {
        Ok(()) => {
            // A sequence of one map of the largest page, every part of which is compared.
            unchecked.extend(largest(&space).map_or(Ok(BTreeSet::new()), |map| replay::<F>(&[map]))?);
            Ok(unchecked)
        }
        Err(TestError::Fail(why, ops)) => {
            Err(suite::again(|| replay::<F>(&ops).err()).unwrap_or_else(|| {
                let (what, mapper) = (why.to_string(), type_name::<F>());
                Box::new(Failure { what, calls: Vec::new(), ops, mapper })
            }))
        }
        Err(TestError::Abort(why)) => panic!("no operations could be drawn: {why}"),
    }
}

/// Returns the map of the largest page of a space, if the space has large pages.
fn largest(space: &Space) -> Option<Op> {
    let base = space.base();
    let size = space.sizes().iter().copied().rfind(|size| *size > base)?;
    let units = size.pages(base)?;
    // The second page of the size, if there is one.
    let pages = [units, 0].into_iter().filter_map(|first| Pages::count(Vpn::new(first), units));
    let pages = pages.into_iter().find(|pages| space.check_pages(*pages).is_ok())?;
    Some(Op::Map { pages, frame: Pfn::new(units), size, attr: Attr::READ | Attr::EXEC })
}

/// Checks a [`Foreign`] mapper: one line in a test file.
///
/// `mapper!(name, Mapper)` writes a test, which prints the checks that it did not make.
#[macro_export]
macro_rules! mapper {
    ($name:ident, $mapper:ty) => {
        #[test]
        fn $name() {
            $crate::foreign::holds::<$mapper>(file!());
        }
    };
}
