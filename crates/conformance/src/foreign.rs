//! The adapter for a page table that does not implement [`Table`](tlbkit_pagetable::Table): a kernel's own mapper. The adapter
//! makes it one, which the suite's [`Runner`](crate::Runner) compares with the suite's model.
//!
//! An implementation needs [`map`](Foreign::map), [`unmap`](Foreign::unmap) and [`translate`](Foreign::translate) of one page.
//! The other functions are optional. [`Want`] names the checks that a missing function makes impossible: [`check`] returns them,
//! and the test that [`mapper!`](crate::mapper) writes prints them.
//!
//! The operations are those of the suite, divided into single pages. A mapper gets only arguments that its own types can express: aligned pages of its own sizes, in its space. A map of a page that is mapped must fail, and so
//! must an unmap or a protect of a page that is not.

mod adapter;
pub mod frames;
mod run;

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

/// Writes the checks, each named by the function that it needs, and what is not checked without that function.
macro_rules! wants {
    ($($want:ident, $function:ident: $unchecked:literal;)+) => {
        /// A check that was not made, named by the function that it needs.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Want {
            $(#[doc = concat!("Not checked without [`Foreign::", stringify!($function), "`].")] $want,)+
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
    Writable, writable:
        "without `writable` it is not checked that a page has the rights that it was given";
    Visit, visit:
        "without `visit` it is not checked that an iteration meets every page once, and nothing else";
    Flushed, flushed:
        "without `flushed` it is not checked that an unmap, or the loss of a right, asks for a flush of the page";
    FailAfter, fail_after:
        "without `fail_after` it is not checked that a map which gets no memory changes nothing";
    KeepsEmpty, keeps_empty:
        "`keeps_empty` says that emptied nodes stay: it is not checked that a large page can be mapped there";
    OtherSizes, refuses_other_sizes:
        "without `refuses_other_sizes` it is not checked that an unmap or a protect of another page size than was mapped is refused";
    Nodes, nodes:
        "without `nodes` it is not checked that a mapper from which everything was unmapped holds no more nodes after each round";
}

/// Checks a mapper with `cases` random sequences of operations from `seed`. Returns the checks that were not made.
///
/// # Errors
///
/// The failure, with its operations.
pub fn check<F: Foreign>(cases: u32, seed: u64) -> Result<BTreeSet<Want>, Box<Failure>> {
    search(&Kind::of::<F>(), suite::seeded(cases, seed))
}

/// Checks a mapper with `PROPTEST_CASES` random sequences of operations from the seed `PROPTEST_RNG_SEED`. Keeps the seed of a
/// failing sequence beside `source`, the file of the test. Prints the checks that were not made.
///
/// # Panics
///
/// With the [`Failure`].
pub fn holds<F: Foreign>(source: &'static str) {
    let unchecked = suite::expect(search(&Kind::of::<F>(), suite::config(Some(source), 16)));
    unchecked.iter().for_each(|want| println!("{want}"));
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
