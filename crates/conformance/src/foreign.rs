//! The adapter for a page table that does not implement [`Table`](tlbkit_pagetable::Table): a kernel's own mapper. The adapter
//! makes it one, which the suite's [`Runner`](crate::Runner) compares with the suite's model.
//!
//! An implementation needs [`map`](Foreign::map), [`unmap`](Foreign::unmap) and [`translate`](Foreign::translate) of one page.
//! The other functions are optional. [`Want`] names the checks that a missing function makes impossible: [`check`] returns them,
//! and the test that [`mapper!`](crate::mapper) writes prints them.
//!
//! The operations are those of the suite, divided into single pages, or into ranges for a mapper that has functions for these. A
//! mapper gets only arguments that its own types can express: aligned pages of its own sizes, in its space. A map of a page that is
//! mapped must fail, and so must an unmap or a protect of a page that is not. [`UNCHECKED`] is what no function lets the test check.

mod adapter;
pub mod frames;
mod run;
mod watch;

use std::any::type_name;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt;

use proptest::test_runner::Config;
use tlbkit_addr::{Attr, PageSize, Pages, Pfn, Vpn};
use tlbkit_pagetable::Space;

use crate::suite::{self, Failure, Names};
use crate::{Op, rust};

/// A mapper, with the functions that its kernel would call. An address counts bytes; a page is named by its first address.
pub trait Foreign: 'static {
    /// Returns a new mapper, in which no page is mapped.
    fn new() -> Self
    where
        Self: Sized;

    /// Returns the addresses and page sizes that the mapper has: see [`Space::new`].
    fn space(&self) -> Space;

    /// Maps one page with some of the [`optional`](Self::optional) rights, and tells whether it succeeded.
    fn map(&mut self, at: usize, to: usize, size: PageSize, attr: Attr) -> bool;

    /// Unmaps one page, and tells whether it succeeded.
    fn unmap(&mut self, at: usize, size: PageSize) -> bool;

    /// Returns the physical address that `at` is translated to.
    fn translate(&self, at: usize) -> Option<usize>;

    /// Returns the attributes that a page can have or lack: rights, and status bits if [`note`](Self::note) sets them. All pages can be
    /// read, and executed unless `EXEC` is among these.
    fn optional(&self) -> Attr {
        Attr::WRITE
    }

    /// Gives one page these rights and no others, and tells whether it succeeded. Status bits stay as they are. Returns `None` if the
    /// mapper has no such function.
    fn protect(&mut self, at: usize, size: PageSize, attr: Attr) -> Option<bool> {
        let _ = (at, size, attr);
        None
    }

    /// Returns the attributes of a mapped address; those that are not [`optional`](Self::optional) are ignored. Returns `None` if the
    /// mapper cannot tell.
    fn attr(&self, at: usize) -> Option<Attr> {
        let _ = at;
        None
    }

    /// Sets status bits in the entry of a mapped address, as hardware does. Returns `false` if that cannot be done.
    fn note(&mut self, at: usize, status: Attr) -> bool {
        let _ = (at, status);
        false
    }

    /// Gives a mapped page another frame and other rights, and clears its status bits; tells whether it succeeded. Returns `None` if the
    /// mapper has no such function.
    fn replace(&mut self, at: usize, to: usize, size: PageSize, attr: Attr) -> Option<bool> {
        let _ = (at, to, size, attr);
        None
    }

    /// Splits a page of `size` into pages of the smaller size `to`, or joins pages to one of the larger size `to`, which begins at
    /// `at`. Tells whether it succeeded: a join of pages whose frames do not follow each other or whose rights differ must not.
    /// Returns `None` if the mapper has no such function.
    fn resize(&mut self, at: usize, size: PageSize, to: PageSize) -> Option<bool> {
        let _ = (at, size, to);
        None
    }

    /// Maps `count` pages of which none is mapped to frames that follow each other, and tells whether it succeeded. Returns `None` if
    /// the mapper has no such function.
    fn map_range(&mut self, at: usize, to: usize, size: PageSize, count: usize, attr: Attr) -> Option<bool> {
        let _ = (at, to, size, count, attr);
        None
    }

    /// Unmaps a range of pages, all of which are mapped, and tells whether it succeeded. Returns `None` if the mapper has no such
    /// function.
    fn unmap_range(&mut self, at: usize, bytes: usize) -> Option<bool> {
        let _ = (at, bytes);
        None
    }

    /// Does what [`protect`](Self::protect) does to a range of pages, all of which are mapped. Returns `None` if the mapper has no such
    /// function.
    fn protect_range(&mut self, at: usize, bytes: usize, attr: Attr) -> Option<bool> {
        let _ = (at, bytes, attr);
        None
    }

    /// Visits every page with its first address, its physical address and its size, in any order. Returns `false` if the mapper
    /// has no such function.
    fn visit(&self, visit: &mut dyn FnMut(usize, usize, PageSize)) -> bool {
        let _ = visit;
        false
    }

    /// Returns the flushes that were requested since the last call, or `None` if the mapper does not tell. A mapper that calls
    /// [`frames::flush`] where it flushes need not implement this function.
    fn flushed(&mut self) -> Option<Vec<Flushed>> {
        frames::flushes()
    }

    /// Returns how hardware walks the tables, if these are [`frames`]. The walk then runs after each store of which the mapper tells
    /// [`frames::stored`], and around calls.
    fn mmu(&self) -> Option<Mmu> {
        None
    }

    /// Tells whether a page is unmapped for a while when it gets another frame or size, because the architecture asks for it.
    fn breaks(&self) -> bool {
        false
    }

    /// Makes the next `takes` allocations of nodes succeed and those after them fail; with `None` all succeed. Returns `false` if
    /// the mapper cannot do that. A mapper whose nodes are [`frames`] need not implement this function.
    fn fail_after(&mut self, takes: Option<usize>) -> bool {
        frames::limit(takes)
    }

    /// Tells whether a node that an unmap empties stays in the table, so that no larger page can be mapped there.
    fn keeps_empty(&self) -> bool {
        false
    }

    /// Tells whether a map that is refused may leave its new nodes in the table, for the next map of that page to use.
    fn keeps_refused(&self) -> bool {
        false
    }

    /// Tells whether the mapper refuses the last page of each half of its space. The test then leaves that page alone.
    fn refuses_last(&self) -> bool {
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
    /// Unless the mapper [keeps empty nodes](Self::keeps_empty), a map followed by an unmap of the same page must not change this
    /// number; nor may a refused map, unless the mapper [keeps its nodes](Self::keeps_refused). A mapper that keeps empty nodes but
    /// replaces them by a large page returns `None` here, or frees them first.
    fn nodes(&mut self) -> Option<usize> {
        frames::out().filter(|_| !self.keeps_empty())
    }
}

/// What a flush names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flushed {
    /// A first address and a number of bytes. Ranges may cover a page together.
    Bytes(usize, usize),
    /// The page that holds this address, whatever its size.
    Page(usize),
    /// Everything.
    All,
}

/// How hardware walks a mapper's tables.
#[derive(Clone, Copy, Debug)]
pub struct Mmu {
    /// The physical address of the root, which is passed to `walk`.
    pub root: usize,
    /// The walk.
    pub walk: Walk,
}

/// Translates an address, given a root, with words that the function loads: the eight bytes at an address that is a multiple of eight.
/// Returns the physical address and the attributes.
pub type Walk = fn(root: usize, at: usize, load: &mut dyn FnMut(usize) -> u64) -> Option<(usize, Attr)>;

/// Writes the checks, each named by the function that it needs, and what is not checked without that function.
macro_rules! wants {
    ($($want:ident, $function:ident: $unchecked:literal;)+) => {
        /// A check that was not made, named by the function that it needs.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Want {
            $(#[doc = concat!("What `", stringify!($function), "` is for.")] $want,)+
        }

        impl Want {
            /// All variants.
            pub const ALL: [Self; [$(Self::$want),+].len()] = [$(Self::$want),+];
        }

        impl fmt::Display for Want {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self {
                    $(Self::$want => $unchecked,)+
                })
            }
        }
    };
}

wants! {
    Protect, protect:
        "without `protect` it is not checked that a change of rights changes one page, and no frame";
    Rights, optional:
        "`optional` does not name the rights to write and to execute and that of user code: it is not checked that each page has its own";
    Attr, attr:
        "without `attr` it is not checked that a page has the rights that it was given";
    Note, note:
        "without `note`, and status bits in `optional`, it is not checked that a page stays dirty when it is protected, split or joined";
    Replace, replace:
        "without `replace` it is not checked that a page gets another frame";
    Resize, resize:
        "without `resize` it is not checked that a split or a join changes no address, and that unlike pages are not joined";
    MapRange, map_range:
        "without `map_range` pages are mapped one by one";
    UnmapRange, unmap_range:
        "without `unmap_range` pages are unmapped one by one";
    ProtectRange, protect_range:
        "without `protect_range` pages are protected one by one";
    Halves, space:
        "`space` has one half: it is not checked that the halves are not mistaken for each other";
    Visit, visit:
        "without `visit` it is not checked that an iteration meets every page once, and nothing else";
    Flushed, flushed:
        "without `flushed` it is not checked that an unmap, or the loss of a right, asks for a flush of the page";
    Order, flush:
        "without `frames::flush` it is not checked that a node is given back after the flush, and not before";
    Mmu, mmu:
        "without `mmu` it is not checked that hardware finds what `translate` finds, nor what it finds during a call";
    Stored, stored:
        "without `mmu` and `frames::stored` it is not checked that hardware finds each page as it was or as it will be after every store";
    FailAfter, fail_after:
        "without `fail_after` it is not checked that a map which gets no memory changes nothing";
    KeepsEmpty, keeps_empty:
        "`keeps_empty` says that emptied nodes stay: it is not checked that a large page can be mapped there";
    KeepsRefused, keeps_refused:
        "`keeps_refused` says that a refused map may leave nodes: it is checked only that the next map uses them";
    RefusesLast, refuses_last:
        "`refuses_last` says that the last page is refused: nothing of it is checked";
    OtherSizes, refuses_other_sizes:
        "without `refuses_other_sizes` it is not checked that an unmap or a protect of another page size than was mapped is refused";
    Nodes, nodes:
        "without `nodes` it is not checked that a mapper from which everything was unmapped holds no more nodes after each round";
}

/// What no function of a mapper lets the test check.
pub const UNCHECKED: [&str; 5] = [
    "of no mapper it is checked that its own `translate` and `visit` can run beside a call that changes the table, as by loading each word once",
    "of no mapper it is checked that a call which unwinds, out of an allocator or a flush, leaves the table as it was",
    "of no mapper it is checked that two of its tables share no node",
    "of no mapper it is checked that a range call which is refused has changed nothing",
    "of no mapper it is checked that its stores and flushes are ordered by the fences that the architecture needs",
];

/// Checks a mapper with `cases` random sequences of operations from `seed`. Returns the checks that were not made.
///
/// # Errors
///
/// The failure, with its operations.
pub fn check<F: Foreign>(cases: u32, seed: u64) -> Result<BTreeSet<Want>, Box<Failure>> {
    search(&Kind::of::<F>(), suite::seeded(cases, seed))
}

/// Does what [`check`] does, and does not shrink a failure.
#[doc(hidden)]
pub fn first<F: Foreign>(cases: u32, seed: u64) -> Result<BTreeSet<Want>, Box<Failure>> {
    search(&Kind::of::<F>(), Config { max_shrink_iters: 0, ..suite::seeded(cases, seed) })
}

/// Checks a mapper with `PROPTEST_CASES` random sequences of operations from the seed `PROPTEST_RNG_SEED`. Keeps the seed of a
/// failing sequence beside `source`, the file of the test. Prints the checks that were not made, and [`UNCHECKED`].
///
/// # Panics
///
/// With the [`Failure`].
pub fn holds<F: Foreign>(source: &'static str) {
    let unchecked = suite::expect(search(&Kind::of::<F>(), suite::config(Some(source), 16)));
    unchecked.iter().for_each(|want| println!("{want}"));
    UNCHECKED.iter().for_each(|what| println!("{what}"));
}

/// Checks a mapper with one sequence of operations. Returns the checks that were not made.
///
/// # Errors
///
/// The failure.
pub fn replay<F: Foreign>(ops: &[Op]) -> Result<BTreeSet<Want>, Box<Failure>> {
    replay_of(&Kind::of::<F>(), ops)
}

/// A kind of mapper. The checks are compiled once, for all mappers.
struct Kind {
    name: &'static str,
    new: fn() -> Box<dyn Foreign>,
}

impl Kind {
    fn of<F: Foreign>() -> Self {
        Self { name: type_name::<F>(), new: || Box::new(F::new()) }
    }

    fn names(&self) -> Names {
        let call = format!("foreign::replay::<{}>(&ops)", rust::within_crate(self.name));
        Names { tested: "mapper", check: "as a table".to_owned(), call, at_last: false }
    }
}

/// Returns the addresses and page sizes of a mapper.
pub(crate) fn space<F: Foreign>() -> Space {
    frames::reset();
    F::new().space()
}

fn replay_of(kind: &Kind, ops: &[Op]) -> Result<BTreeSet<Want>, Box<Failure>> {
    let names = kind.names();
    names.guard(ops, || run::check(kind.new, ops)).map_err(|mismatch| names.failure(ops, mismatch))
}

fn search(kind: &Kind, config: Config) -> Result<BTreeSet<Want>, Box<Failure>> {
    let names = kind.names();
    let space = names.guard(&[], || {
        frames::reset();
        (kind.new)().space()
    });
    let unchecked = RefCell::new(BTreeSet::new());
    names.search(space, config, &|ops| {
        run::check(kind.new, ops).map(|wants| unchecked.borrow_mut().extend(wants))
    })?;
    let mut unchecked = unchecked.into_inner();
    if let Some(map) = largest(&space) {
        unchecked.extend(replay_of(kind, &[map])?);
    }
    Ok(unchecked)
}

/// Returns the map of the largest page of a space, if the space has large pages: as the only operation of a case, every part of
/// the page is compared.
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
