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

use std::any::{Any, type_name};
use std::collections::BTreeSet;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use proptest::test_runner::{Config, RngSeed, TestCaseError, TestError, TestRunner};
use tlbkit_addr::{Attr, PageSize, Pages, Pfn, VirtAddr, Vpn};
use tlbkit_pagetable::{Change, Error, Holes, Leaf, Space};

use crate::hang::{self, Step};
use crate::moments::place;
use crate::run::ENDLESS;
use crate::{Effect, Model, Op, Profile, ops, rust, suite};

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

/// The most pages of one operation.
const MOST: usize = 24;

/// The most operations of a case.
const OPS: usize = 40;

/// The most places that are looked at in a large page: every page of 4 KiB in one of 2 MiB.
const PLACES: usize = if cfg!(miri) { 8 } else { 512 };

/// The most places that are looked at once in a run: every page of 4 KiB in one of 1 GiB.
const ALL_PLACES: usize = if cfg!(miri) { 64 } else { 1 << 18 };

/// The operations of a case, the first ones, that leave pages mapped when the mapper is dropped.
const LEFT: usize = 4;

/// How often a map is tried that gets no memory: more nodes than any page needs.
const TRIES: usize = 8;

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

/// Tells whether ranges, each a first address and bytes, cover every address from `first` to `last` together. As many bytes as a
/// `usize` can say are all that follow.
fn covers(ranges: &[(usize, usize)], first: usize, last: usize) -> bool {
    let mut ranges = ranges.to_vec();
    ranges.sort_unstable();
    // The first address that is not covered yet.
    let mut open = first;
    for (from, bytes) in ranges {
        let Some(more) = bytes.checked_sub(1) else { continue };
        let to = if bytes == usize::MAX { bytes } else { from.saturating_add(more) };
        if from <= open && open <= to {
            if to >= last {
                return true;
            }
            open = to + 1;
        }
    }
    false
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

struct Run<F> {
    mapper: F,
    model: Model,
    unchecked: BTreeSet<Want>,
    /// Where nodes may be that were emptied, by first address and size.
    kept: BTreeSet<(usize, PageSize)>,
    /// What was called, in words.
    calls: Vec<String>,
    /// Whether a mapper that is dropped gives its [`frames`] back: a new one does.
    frees_all: bool,
}

impl<F: Foreign> Run<F> {
    fn new() -> Self {
        frames::reset();
        drop(F::new());
        let frees_all = frames::out() == Some(0);
        frames::reset();
        let mapper = F::new();
        let model = Model::new(mapper.space(), Profile::plain());
        Self {
            mapper,
            model,
            unchecked: BTreeSet::new(),
            kept: BTreeSet::new(),
            calls: Vec::new(),
            frees_all,
        }
    }

    /// Writes down what the mapper is called for next.
    fn call(&mut self, call: String) {
        hang::say(&call);
        self.calls.push(call);
    }

    fn all(&mut self, ops: &[Op]) -> Result<(), String> {
        for op in ops {
            self.one(op)?;
        }
        self.clear()?;
        let empty = self.mapper.nodes();
        for op in ops {
            self.one(op)?;
        }
        self.clear()?;
        let full = self.mapper.nodes();
        // A mapper is dropped with pages mapped.
        for op in ops.iter().filter(|op| matches!(op, Op::Map { .. })).take(LEFT) {
            self.one(op)?;
        }
        let leaf = self.model.leaves().next().filter(|_| ops.len() == 1);
        if let Some(leaf) = leaf {
            self.look_within(leaf, ALL_PLACES)?;
        }
        match (empty, full) {
            (Some(before), Some(after)) if after > before => Err(format!(
                "emptied, it holds {after} nodes; emptied before the same operations it held {before}"
            )),
            (None, _) => {
                self.unchecked.insert(Want::Nodes);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn one(&mut self, op: &Op) -> Result<(), String> {
        hang::step(|| Step::Op(*op));
        let base = self.model.space().base();
        match *op {
            Op::Map { pages, frame, size, attr } => {
                let Some(units) = size.pages(base).filter(|_| self.model.space().sizes().contains(&size))
                else {
                    return Ok(());
                };
                // Physical addresses of 40 bits.
                let frame = frame.get() & ((1 << (40 - base.shift())) - 1) & !(units - 1);
                for page in 0..(pages.len() / units).min(MOST) {
                    let Some(pages) =
                        pages.first().checked_add(page * units).and_then(|at| Pages::count(at, units))
                    else {
                        break;
                    };
                    let frame = Pfn::new((frame + page * units) & ((1 << (40 - base.shift())) - 1));
                    let attr = Attr::READ | Attr::EXEC | attr & Attr::WRITE;
                    self.step(&Op::Map { pages, frame, size, attr })?;
                    if page == 0 && units > 1 {
                        self.large(pages)?;
                    }
                }
                Ok(())
            }
            Op::Unmap { pages, .. } => {
                self.each(pages, |pages| Op::Unmap { pages, holes: Holes::Refuse, room: None })
            }
            Op::Protect { pages, change, .. } => {
                // What the change leaves alone becomes what it was not.
                let first = self.model.overlap(pages).next();
                let is_writable = first.is_some_and(|leaf| leaf.attr.contains(Attr::WRITE));
                let writable =
                    change.set.contains(Attr::WRITE) || !change.clear.contains(Attr::WRITE) && !is_writable;
                let change = if writable { Change::set(Attr::WRITE) } else { Change::clear(Attr::WRITE) };
                self.each(pages, |pages| Op::Protect { pages, holes: Holes::Refuse, change })
            }
            Op::Lookup { at } => self.look(at.get()),
            Op::ForEach { .. } => self.visit(),
            Op::Resize { .. } | Op::Replace { .. } | Op::Mark { .. } | Op::Fill { .. } => Ok(()),
        }
    }

    /// Looks at pages in the midst of a large one, takes the right to write from it or gives it, and takes that back.
    fn large(&mut self, pages: Pages) -> Result<(), String> {
        let Some(leaf) =
            self.model.overlap(pages).next().filter(|leaf| self.model.space().pages_of(leaf) == pages)
        else {
            return Ok(());
        };
        self.look_within(leaf, PLACES)?;
        let is_writable = leaf.attr.contains(Attr::WRITE);
        for writable in [!is_writable, is_writable] {
            let change = if writable { Change::set(Attr::WRITE) } else { Change::clear(Attr::WRITE) };
            self.step(&Op::Protect { pages, holes: Holes::Refuse, change })?;
            self.look_within(leaf, PLACES / 8)?;
        }
        Ok(())
    }

    /// Looks at up to `most` base pages of a page, as far from each other as the next.
    fn look_within(&mut self, leaf: Leaf, most: usize) -> Result<(), String> {
        let base = self.model.space().base();
        let units = leaf.size.pages(base).unwrap_or(1);
        let step = units.div_ceil(most);
        // Another page of each part each time.
        for page in (self.calls.len() * 7 % step..units).step_by(step) {
            self.look(leaf.at.get() + page * base.bytes() + self.calls.len() % base.bytes())?;
        }
        Ok(())
    }

    /// Does something to every page that a range meets, and to the first of the range if there is none.
    fn each(&mut self, pages: Pages, op: impl Fn(Pages) -> Op) -> Result<(), String> {
        let space = *self.model.space();
        let mut leaves: Vec<_> =
            self.model.overlap(pages).take(MOST).map(|leaf| space.pages_of(&leaf)).collect();
        if leaves.is_empty() {
            leaves.push(Pages::one(pages.first()));
        }
        for pages in leaves {
            self.others(pages, &op)?;
            self.step(&op(pages))?;
        }
        Ok(())
    }

    /// Asks for what is to be done to a page by every other size that the space has, which must be refused.
    fn others(&mut self, pages: Pages, op: &impl Fn(Pages) -> Op) -> Result<(), String> {
        let space = *self.model.space();
        let base = space.base();
        for size in space.sizes() {
            let units = size.pages(base).unwrap_or(1);
            let first = Vpn::new(pages.first().get() & !(units - 1));
            let Some(other) = Pages::count(first, units).filter(|other| other.len() != pages.len()) else {
                continue;
            };
            let Some(leaf) = self.model.overlap(other).next() else { continue };
            if !self.mapper.refuses_other_sizes() {
                self.unchecked.insert(Want::OtherSizes);
                continue;
            }
            let at = first.address(base).get();
            let done = match op(other) {
                Op::Protect { change, .. } => {
                    let writable = change.set.contains(Attr::WRITE);
                    let Some(done) = self.mapper.protect(at, *size, writable) else { continue };
                    self.call(format!("    protect({at:#x}, {size}, writable: {writable})"));
                    done
                }
                _ => {
                    self.call(format!("    unmap({at:#x}, {size})"));
                    self.mapper.unmap(at, *size)
                }
            };
            if done {
                return Err(format!(
                    "it was done, and should have been refused: no page of {size} is mapped at {at:#x}, but the {leaf}"
                ));
            }
            self.compare(at, *size)?;
        }
        Ok(())
    }

    fn clear(&mut self) -> Result<(), String> {
        let space = *self.model.space();
        let leaves: Vec<_> = self.model.leaves().collect();
        for leaf in leaves {
            self.step(&Op::Unmap { pages: space.pages_of(&leaf), holes: Holes::Refuse, room: None })?;
        }
        Ok(())
    }

    /// Performs an operation on one page.
    fn step(&mut self, op: &Op) -> Result<(), String> {
        let refusals = self.model.refusals(op);
        // The mapper's own types rule the others out.
        let said = |error: &Error| matches!(error, Error::Occupied { .. } | Error::NotMapped { .. });
        if !refusals.iter().all(said) {
            return Ok(());
        }
        let Some(pages) = op.pages() else { return Ok(()) };
        let base = self.model.space().base();
        let at = pages.first().address(base).get();
        let size = PageSize::from_shift((pages.len() * base.bytes()).trailing_zeros()).unwrap_or(base);
        self.mapper.flushed();
        let done = match *op {
            Op::Map { frame, attr, .. } => {
                let (to, writable) = (frame.address(base).get(), attr.contains(Attr::WRITE));
                self.call(format!("    map({at:#x}, {to:#x}, {size}, writable: {writable})"));
                if self.kept.contains(&(at, size)) {
                    self.unchecked.insert(Want::KeepsEmpty);
                    return Ok(());
                }
                if self.mapper.keeps_empty() {
                    let larger = self.model.space().sizes().iter().filter(|larger| **larger > size);
                    self.kept.extend(larger.map(|larger| (at & !larger.mask(), *larger)));
                }
                if refusals.is_empty() {
                    let failed = self.fail(op, at, to, size, writable)?;
                    let done = self.mapper.map(at, to, size, writable);
                    // A mapper that takes its first node now is limited from the next map on.
                    if !failed && !self.mapper.fail_after(None) {
                        self.unchecked.insert(Want::FailAfter);
                    }
                    done
                } else {
                    self.map_in_the_way(at, to, size, writable)?
                }
            }
            Op::Unmap { .. } => {
                self.call(format!("    unmap({at:#x}, {size})"));
                self.mapper.unmap(at, size)
            }
            Op::Protect { change, .. } => {
                let writable = change.set.contains(Attr::WRITE);
                let Some(done) = self.mapper.protect(at, size, writable) else {
                    self.unchecked.insert(Want::Protect);
                    return Ok(());
                };
                self.call(format!("    protect({at:#x}, {size}, writable: {writable})"));
                done
            }
            _ => return Ok(()),
        };
        match (done, refusals.first()) {
            (true, Some(refusal)) => {
                return Err(format!("it was done, and should have been refused: {refusal}"));
            }
            (false, None) => {
                return Err(format!("it was refused, and nothing was in the way{}", self.if_last(at, size)));
            }
            _ => {}
        }
        if done {
            self.check_flush(op, at, size)?;
            let effect = self.model.effect(op);
            self.model.commit(&effect);
        }
        self.compare(at, size)
    }

    /// Says of a page whether it is the last of its half of the space.
    fn if_last(&self, at: usize, size: PageSize) -> &'static str {
        let last = VirtAddr::new(at | size.mask()).vpn(self.model.space().base());
        let is_last = self.model.space().halves().into_iter().flatten().any(|half| half.last() == last);
        if is_last {
            ": it ends with the last page of its half of the space, which is a page like any other"
        } else {
            ""
        }
    }

    /// Returns how many nodes the mapper has, if each that is empty goes back at once.
    fn nodes(&mut self) -> Option<usize> {
        if self.mapper.keeps_empty() { None } else { self.mapper.nodes() }
    }

    /// Checks that the mapper has the nodes that it had before `what`.
    fn check_nodes(&mut self, before: Option<usize>, what: impl FnOnce() -> String) -> Result<(), String> {
        match (before, self.nodes()) {
            (Some(before), Some(after)) if before != after => {
                Err(format!("{}: the mapper holds {after} nodes, and before it held {before}", what()))
            }
            _ => Ok(()),
        }
    }

    /// Asks for a map of what is mapped, and tells whether it was done. It must keep no node.
    fn map_in_the_way(
        &mut self,
        at: usize,
        to: usize,
        size: PageSize,
        writable: bool,
    ) -> Result<bool, String> {
        let before = self.nodes();
        let mut done = self.mapper.map(at, to, size, writable);
        self.check_nodes(before.filter(|_| !done), || {
            "a page was in the way, and the map was refused, which gives back what it took".to_owned()
        })?;
        // What a mapper keeps that keeps empty nodes is there the next time.
        let kept = frames::out();
        done = done || self.mapper.map(at, to, size, writable);
        if !done && frames::out() > kept {
            return Err(format!(
                "a page was in the way, and the map was refused; asked once more, it keeps more nodes: {} frames are out, and \
                 {} were",
                frames::out().unwrap_or(0),
                kept.unwrap_or(0)
            ));
        }
        Ok(done)
    }

    /// Lets every allocation of a map fail, one after the other. Returns whether that can be done.
    fn fail(
        &mut self,
        op: &Op,
        at: usize,
        to: usize,
        size: PageSize,
        writable: bool,
    ) -> Result<bool, String> {
        let before = self.nodes();
        // The frame says whether nodes that a refused map has kept are looked for: that takes them for the rest of the test.
        let most = if (to >> size.shift()).is_multiple_of(2) { TRIES } else { 1 };
        for takes in 0..TRIES {
            let had = frames::out();
            for tries in 1..=most {
                if !self.mapper.fail_after(Some(takes)) {
                    return Ok(false);
                }
                let done = self.mapper.map(at, to, size, writable);
                self.mapper.fail_after(None);
                if done {
                    // No more to fail: as it was, for the real one. What is wrong once may be so now.
                    let effect = self.model.effect(op);
                    self.model.commit(&effect);
                    self.compare(at, size)?;
                    if !self.mapper.unmap(at, size) {
                        return Err("a page that was just mapped cannot be unmapped".to_owned());
                    }
                    self.model.commit(&Effect { removed: effect.added, ..Effect::default() });
                    self.compare(at, size)?;
                    self.check_nodes(before, || {
                        "the page was mapped and unmapped, and `keeps_empty` says that no empty node stays"
                            .to_owned()
                    })?;
                    return Ok(true);
                }
                let failed = || format!("allocation {takes} failed, and the map with it");
                self.compare(at, size).map_err(|what| format!("{}: {what}", failed()))?;
                self.check_nodes(before, || format!("{}, which gives back what it took", failed()))?;
                let (had, has) = (had.unwrap_or(0), frames::out().unwrap_or(0));
                if has <= had {
                    break;
                }
                if tries == TRIES {
                    return Err(format!(
                        "{}, {TRIES} times: {} more frames are out than before, and the next map does not use what the refused \
                         ones have kept",
                        failed(),
                        has - had
                    ));
                }
            }
        }
        Err(format!(
            "it was refused, though it could take {} nodes and nothing was in the way{}",
            TRIES - 1,
            self.if_last(at, size)
        ))
    }

    fn check_flush(&mut self, op: &Op, at: usize, size: PageSize) -> Result<(), String> {
        let Some(flushed) = self.mapper.flushed() else {
            self.unchecked.insert(Want::Flushed);
            return Ok(());
        };
        let lost = match *op {
            Op::Unmap { .. } => true,
            Op::Protect { change, .. } => {
                let was =
                    self.model.lookup(VirtAddr::new(at)).is_some_and(|leaf| leaf.attr.contains(Attr::WRITE));
                was && change.clear.contains(Attr::WRITE)
            }
            _ => false,
        };
        if lost && !covers(&flushed, at, at + size.mask()) {
            let ranges: Vec<_> =
                flushed.iter().map(|(first, bytes)| format!("{bytes:#x} bytes from {first:#x}")).collect();
            let ranges = if ranges.is_empty() { "nothing".to_owned() } else { ranges.join(", ") };
            return Err(format!(
                "the {size} page at {at:#x} must be flushed; a flush was asked for of {ranges}"
            ));
        }
        Ok(())
    }

    /// Compares every page with the model, and what lies around one.
    fn compare(&mut self, at: usize, size: PageSize) -> Result<(), String> {
        for at in [at, at + size.mask(), at.wrapping_sub(1), at.wrapping_add(size.mask() + 1)] {
            self.look(at)?;
        }
        let some = self.model.len() / 32 + 1;
        let leaves: Vec<Leaf> = self.model.leaves().skip(self.calls.len() % some).step_by(some).collect();
        for leaf in leaves {
            self.look(leaf.at.get())?;
            self.look(leaf.at.get() + leaf.size.mask())?;
        }
        if self.calls.len().is_multiple_of(8) { self.visit() } else { Ok(()) }
    }

    fn look(&mut self, at: usize) -> Result<(), String> {
        let at = VirtAddr::new(at);
        let space = self.model.space();
        if !space.holds(at) {
            return Ok(());
        }
        let leaf = self.model.lookup(at);
        let wanted = leaf.map(|leaf| leaf.phys(at, space.base()).get());
        let found = self.mapper.translate(at.get());
        if found != wanted {
            return Err(format!("{at} is translated {}, and should be {}", place(found), place(wanted)));
        }
        let Some(leaf) = leaf else { return Ok(()) };
        match self.mapper.writable(at.get()) {
            None => {
                self.unchecked.insert(Want::Writable);
            }
            Some(writable) if writable != leaf.attr.contains(Attr::WRITE) => {
                let (is, should) =
                    if writable { ("writable", "read-only") } else { ("read-only", "writable") };
                return Err(format!("{at} is {is}, and should be {should}"));
            }
            Some(_) => {}
        }
        Ok(())
    }

    fn visit(&mut self) -> Result<(), String> {
        let mut found = Vec::new();
        let mut meet = |at, to, size| {
            assert!(
                found.len() < ENDLESS,
                "a visit has met {ENDLESS} pages, and does not end: fewer are mapped"
            );
            found.push((at, to, size));
        };
        if !self.mapper.visit(&mut meet) {
            self.unchecked.insert(Want::Visit);
            return Ok(());
        }
        found.sort_unstable();
        let base = self.model.space().base();
        let wanted =
            self.model.leaves().map(|leaf| (leaf.at.get(), leaf.frame.address(base).get(), leaf.size));
        let wanted: Vec<_> = wanted.collect();
        if found == wanted {
            return Ok(());
        }
        let show = |page: Option<&(usize, usize, PageSize)>| match page {
            Some((at, to, size)) => format!("the {size} page at {at:#x} -> {to:#x}"),
            None => "no page".to_owned(),
        };
        let same = found.iter().zip(&wanted).take_while(|(found, wanted)| found == wanted).count();
        Err(format!(
            "a visit met {} pages, and {} are mapped; in ascending order, after {same} that are the same, it met {} and \
             should have met {}",
            found.len(),
            wanted.len(),
            show(found.get(same)),
            show(wanted.get(same))
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::covers;

    #[test]
    fn ranges_cover_together() {
        let (last_page, top) = (usize::MAX - 0xfff, usize::MAX);
        assert!(covers(&[(0, usize::MAX)], last_page, top));
        assert!(!covers(&[(0, usize::MAX - 1)], last_page, top));
        assert!(covers(&[(last_page, 0x1000)], last_page, top));
        assert!(covers(&[(0x30_0000, 0x10_0000), (0x20_0000, 0x10_0000)], 0x20_0000, 0x3f_ffff));
        assert!(!covers(&[(0x30_0000, 0x10_0000), (0x20_0000, 0xf_ffff)], 0x20_0000, 0x3f_ffff));
        assert!(!covers(&[(0x20_0000, 0x1f_ffff)], 0x20_0000, 0x3f_ffff));
        assert!(!covers(&[], 0, 0xfff) && !covers(&[(0, 0)], 0, 0xfff));
    }
}
