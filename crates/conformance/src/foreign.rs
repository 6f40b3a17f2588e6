//! The adapter for a page table that has never heard of [`Table`](tlbkit_pagetable::Table): a kernel's own mapper.
//!
//! It asks for [`map`](Foreign::map), [`unmap`](Foreign::unmap) and [`translate`](Foreign::translate) of one page. Whatever
//! else the mapper can do it says by the other functions. [`Want`] names what is not checked for want of them, [`check`]
//! returns it, and the test that [`mapper!`](crate::mapper) writes prints it.
//!
//! The operations are those of the suite, cut into single pages, and the model is the suite's; a mapper is asked only for
//! what its own types can say: aligned pages of sizes that it has, within its space. A page that is mapped, or not, in the
//! way of an operation must make it fail.

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

/// A mapper, as the kernel that owns it would call it. Addresses are bytes; a page is named by its first.
pub trait Foreign {
    /// Returns a new one, with nothing mapped.
    fn new() -> Self;

    /// Returns the addresses and page sizes that the mapper has: see [`Space::new`].
    fn space(&self) -> Space;

    /// Maps one page, and tells whether it did.
    fn map(&mut self, at: usize, to: usize, size: PageSize, writable: bool) -> bool;

    /// Unmaps one page, and tells whether it did.
    fn unmap(&mut self, at: usize, size: PageSize) -> bool;

    /// Returns where an address lies in physical memory.
    fn translate(&self, at: usize) -> Option<usize>;

    /// Makes one page writable or read-only, and tells whether it did; nothing if the mapper has no such function.
    fn protect(&mut self, at: usize, size: PageSize, writable: bool) -> Option<bool> {
        let _ = (at, size, writable);
        None
    }

    /// Tells whether a mapped address can be written; nothing if the mapper does not say.
    fn writable(&self, at: usize) -> Option<bool> {
        let _ = at;
        None
    }

    /// Visits every page, as its first address, its physical one and its size, in any order; returns false if the mapper
    /// cannot.
    fn visit(&self, visit: &mut dyn FnMut(usize, usize, PageSize)) -> bool {
        let _ = visit;
        false
    }

    /// Returns the first address and the bytes of each flush that was asked for since the last call; nothing if the mapper does
    /// not say. A page is flushed if the ranges cover it together; `(0, usize::MAX)` is a flush of everything.
    fn flushed(&mut self) -> Option<Vec<(usize, usize)>> {
        None
    }

    /// Lets `takes` allocations of nodes succeed and those after them fail, or all succeed; returns false if that cannot
    /// be done. A mapper whose nodes are [`frames`] need not say it.
    fn fail_after(&mut self, takes: Option<usize>) -> bool {
        frames::limit(takes)
    }

    /// Tells whether a node that was emptied stays, in the way of a larger page. Then a map that gets no memory may leave its
    /// new nodes in the table, too, for the next map of that page to use.
    fn keeps_empty(&self) -> bool {
        false
    }

    /// Tells whether an unmap and a protect that name another page size than the page has are refused. A mapper whose functions
    /// are told no size does to the page whatever size it has; the test asks such a one for the page's own size alone.
    fn refuses_other_sizes(&self) -> bool {
        false
    }

    /// Returns how many nodes the mapper has of its allocator, after it has freed what it can; nothing if it does not say. A
    /// mapper whose nodes are [`frames`] says it only if it keeps those that are empty, and can free them.
    ///
    /// Unless the mapper [keeps empty nodes](Self::keeps_empty), a map that is refused must leave as many as before: what it
    /// took and does not use comes back by no unmap. So must a map and an unmap of the same page. A mapper that keeps empty
    /// nodes, but exchanges them for a large page, returns nothing here, or frees them first.
    fn nodes(&mut self) -> Option<usize> {
        frames::out().filter(|_| !self.keeps_empty())
    }
}

/// What of a mapper was left unchecked, by the function that would have allowed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Want {
    /// Without [`Foreign::protect`].
    Protect,
    /// Without [`Foreign::writable`].
    Writable,
    /// Without [`Foreign::visit`].
    Visit,
    /// Without [`Foreign::flushed`].
    Flushed,
    /// Without [`Foreign::fail_after`].
    FailAfter,
    /// Where [`Foreign::keeps_empty`] says so.
    KeepsEmpty,
    /// Where [`Foreign::refuses_other_sizes`] does not say that they are.
    OtherSizes,
    /// Without [`Foreign::nodes`].
    Nodes,
}

impl Want {
    /// All of them.
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

/// The fewest operations found after which a mapper was wrong. Displayed, it ends with a test that repeats it.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    /// What was wrong.
    pub what: String,
    /// What the mapper was called for, in words.
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

/// Checks a mapper by `cases` sequences of operations that `seed` draws. Returns what was left unchecked.
///
/// # Errors
///
/// What was wrong, after which operations.
pub fn check<F: Foreign>(cases: u32, seed: u64) -> Result<BTreeSet<Want>, Box<Failure>> {
    let rng_seed = RngSeed::Fixed(seed);
    search::<F>(Config { cases, rng_seed, failure_persistence: None, ..Config::default() })
}

/// Checks a mapper by as many random sequences of operations as `PROPTEST_CASES` says, from the seed that
/// `PROPTEST_RNG_SEED` says; keeps the seed of one that fails beside `source`, the file of the test. Prints what is left
/// unchecked.
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

/// Checks a mapper by one sequence of operations. Returns what was left unchecked.
///
/// # Errors
///
/// What was wrong.
pub fn replay<F: Foreign>(ops: &[Op]) -> Result<BTreeSet<Want>, Box<Failure>> {
    let mapper = type_name::<F>();
    let tell = |seconds: u64, steps: &[Step]| hung::<F>(ops, seconds, steps).to_string();
    hang::guard(tell, || {
        let mut run = Run::<F>::new();
        // A mapper that panics has been called for something, too.
        let done = catch_unwind(AssertUnwindSafe(|| run.all(ops)));
        let Run { unchecked, calls, mapper: tested, frees_all, model, .. } = run;
        // One that was wrong may panic once more.
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

/// Returns the failure of a mapper that hangs: the operations up to the one that it is in.
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

/// Returns what a panic says.
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
            // The largest page alone, every part of which is looked at.
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

/// Returns the map of the largest page that a space has, if it has large ones.
fn largest(space: &Space) -> Option<Op> {
    let base = space.base();
    let size = space.sizes().iter().copied().rfind(|size| *size > base)?;
    let units = size.pages(base)?;
    // The second page of the size, if there is one.
    let pages = [units, 0].into_iter().filter_map(|first| Pages::count(Vpn::new(first), units));
    let pages = pages.into_iter().find(|pages| space.check_pages(*pages).is_ok())?;
    Some(Op::Map { pages, frame: Pfn::new(units), size, attr: Attr::READ | Attr::EXEC })
}

/// Checks a [`Foreign`] mapper: one line in a test of yours.
///
/// `mapper!(name, Mapper)` is a test that prints what it leaves unchecked.
#[macro_export]
macro_rules! mapper {
    ($name:ident, $mapper:ty) => {
        #[test]
        fn $name() {
            $crate::foreign::holds::<$mapper>(file!());
        }
    };
}
