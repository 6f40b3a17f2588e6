//! Page sets, the same for every subject of one address width and every run.

use std::collections::BTreeSet;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};

use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::Subject;

/// Returns how many pages the lower half of a space with addresses of `bits` bits has.
pub const fn half(bits: u32) -> usize {
    assert!(32 <= bits && bits <= 57, "addresses have from 32 to 57 bits");
    1 << (bits - 13)
}

/// `pages` neighbouring pages, somewhere in the lower half.
pub fn dense(bits: u32, pages: usize) -> Vec<usize> {
    let first = 0x1_2345_6000 & (half(bits) - 1);
    (first..first + pages).collect()
}

/// `pages` single pages anywhere in the lower half.
pub fn sparse(bits: u32, pages: usize) -> Vec<usize> {
    let mut random = ChaCha8Rng::seed_from_u64(1999);
    let mut set = BTreeSet::new();
    while set.len() < pages {
        set.insert(random.random_range(1..half(bits)));
    }
    set.into_iter().collect()
}

/// `pages` pages in runs as long as files are: half of them of a page, a quarter of two, and so on, anywhere in the
/// lower half.
pub fn file(bits: u32, pages: usize) -> Vec<usize> {
    let mut random = ChaCha8Rng::seed_from_u64(1993);
    let mut set = BTreeSet::new();
    while set.len() < pages {
        let first = random.random_range(1..half(bits) / 2);
        let run = 1usize << random.random::<u32>().leading_zeros().min(8);
        set.extend(first..first + run.min(pages - set.len()));
    }
    set.into_iter().collect()
}

/// Pages in their order, as runs of neighbours: the first of each and how many.
pub fn runs(pages: &[usize]) -> Vec<(usize, usize)> {
    let runs = pages.chunk_by(|&one, &next| one + 1 == next);
    runs.map(|run| (run[0], run.len())).collect()
}

/// The pages that a real program touched, in the order of its first touches, as `tlblab pages --first-touches` prints them
/// of a shipped trace. In a space that is too narrow for them the upper bits of their numbers are dropped.
pub fn captured(bits: u32, json: &str) -> Vec<usize> {
    let numbers = json.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok());
    let numbers: Vec<usize> = numbers.collect();
    let touched = numbers.as_chunks().0.iter().flat_map(|&[first, len]| first..first + len);
    let mut known = BTreeSet::new();
    touched.map(|vpn| vpn % half(bits)).filter(|&vpn| known.insert(vpn)).collect()
}

/// The compiler's, the database's and the interpreter's.
pub const CC1: &str = include_str!("../pages/cc1.json");
pub const SQLITE: &str = include_str!("../pages/sqlite.json");
pub const PERL: &str = include_str!("../pages/perl.json");

/// The pages in an order that no prefetcher follows.
pub fn shuffled(mut pages: Vec<usize>) -> Vec<usize> {
    pages.shuffle(&mut ChaCha8Rng::seed_from_u64(64));
    pages
}

/// Checks that a page is mapped to a frame, or not mapped.
///
/// # Panics
///
/// If the subject says otherwise: then its times mean nothing.
pub fn check<S: Subject>(table: &S, vpn: usize, frame: Option<usize>) {
    let at = |number: usize| number << 12 | 0x123;
    let (said, wanted) = (table.translate(at(vpn)), frame.map(at));
    assert!(said == wanted, "{}: {:#x} translates to {said:x?}, not to {wanted:x?}", S::NAME, at(vpn));
}

/// Checks that a page may be written, or may not.
///
/// # Panics
///
/// If the subject says otherwise.
pub fn check_writable<S: Subject>(table: &S, vpn: usize, writable: bool) {
    let said = table.is_writable(vpn);
    assert!(said == writable, "{}: page {vpn:#x} is writable: {said}, not {writable}", S::NAME);
}

/// A table and the pages that are mapped in it. They are unmapped when it is dropped, and the table is taken apart, so that
/// the next job has the memory.
pub struct Mapped<S: Subject> {
    table: ManuallyDrop<S>,
    pages: Vec<usize>,
}

impl<S: Subject> Mapped<S> {
    /// Maps pages one by one, each to the frame that `frame` returns for its place in the list, and checks that they are.
    pub fn new(pages: Vec<usize>, frame: impl Fn(usize) -> usize) -> Self {
        let mut table = S::new();
        pages.iter().enumerate().for_each(|(at, &vpn)| table.map(vpn, frame(at)));
        pages.iter().enumerate().for_each(|(at, &vpn)| check(&table, vpn, Some(frame(at))));
        Self { table: ManuallyDrop::new(table), pages }
    }

    /// Returns the pages, in the order in which they were mapped.
    pub fn pages(&self) -> &[usize] {
        &self.pages
    }
}

impl<S: Subject> Deref for Mapped<S> {
    type Target = S;

    #[inline(always)]
    fn deref(&self) -> &S {
        &self.table
    }
}

impl<S: Subject> DerefMut for Mapped<S> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut S {
        &mut self.table
    }
}

impl<S: Subject> Drop for Mapped<S> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.pages.iter().for_each(|&vpn| self.table.unmap(vpn));
            // SAFETY: the table is not used again.
            unsafe { ManuallyDrop::take(&mut self.table) }.destroy();
        }
    }
}

/// Maps the pages so that each one's frame number is the next one's page number, in a shuffled cycle: a chain of
/// translations each of which needs the one before. The table has the pages in the cycle's order.
pub fn chain<S: Subject>(pages: &[usize]) -> Mapped<S> {
    let order = shuffled(pages.to_vec());
    let next = order.clone();
    Mapped::new(order, |at| next[(at + 1) % next.len()])
}

/// Follows a chain of `steps` translations from an address.
#[inline(always)]
pub fn follow<S: Subject>(table: &S, start: usize, steps: usize) -> usize {
    (0..steps).fold(start, |va, _| table.translate(va).unwrap_or(0))
}
