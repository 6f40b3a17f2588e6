//! What every bench shares: the subjects under one interface, the jobs that they are given, and how a run is reported.
//!
//! A number here means something only beside the others of the same run: compare ratios. Each peer is set up as its
//! documentation does for a kernel with a direct map, takes its nodes where ours take theirs, and ignores flushes, as ours do.
//! Every job checks what the subject answers, outside of what is timed.
//!
//! A table of another crate is measured beside these ones by a bench of its own, `docs/own-tests.md` shows it:
//! implement [`Subject`] for a struct around it, or [`ours::Make`] for a type that names it if it is a `tlbkit_pagetable::Table`, add
//! that to [`Subjects::all`] and give all to [`main`].
#![allow(missing_docs, missing_debug_implementations)]

use std::time::Duration;

pub mod cases;
mod clock;
mod frames;
mod host;
pub mod jobs;
pub mod others;
pub mod ours;
pub mod peers;
mod run;
pub mod spaces;
mod summary;
pub mod threads;
pub mod work;

pub use cases::{Case, Subjects};
pub use clock::timed;
pub use host::Host;
pub use run::main;

/// Returns criterion as all benches are run: a subject takes about half a second, so that all of them take minutes. Ten
/// samples bear no finer statistics than a few thousand resamples. Five hundred plots are drawn only of a run that is
/// compared with an earlier one (`--baseline`, `--baseline-lenient`).
pub fn criterion() -> criterion::Criterion {
    let criterion = criterion::Criterion::default()
        .nresamples(2000)
        .sample_size(10)
        .warm_up_time(Duration::from_millis(100))
        .measurement_time(Duration::from_millis(300));
    let compared = std::env::args().any(|arg| arg.starts_with("--baseline"));
    if compared { criterion } else { criterion.without_plots() }
}

/// Leaks `bytes` of zeroed memory, aligned to a page, that is touched only as it is used.
pub fn arena(bytes: usize) -> *mut u8 {
    // The allocator zeroes over-aligned memory by hand, so the alignment is ours.
    let memory = vec![0u64; bytes / 8 + 512].leak().as_mut_ptr().cast::<u8>();
    memory.wrapping_add(memory.align_offset(4096))
}

/// A page table, or something that stands in for one, over a space of 4 KiB pages.
///
/// Pages and frames are numbers of 4 KiB. What cannot be done panics: no job maps what is mapped, or unmaps what is not.
pub trait Subject {
    /// How rows are labelled: structure and mode.
    const NAME: &'static str;

    /// The bits of an address, from 32 to 57. Jobs stay in the lower half of that space.
    const BITS: u32;

    /// Returns an empty table.
    fn new() -> Self;

    /// Maps one page for reading and writing; both numbers count 4 KiB. It is accessed and dirty, as the handler of a store's page
    /// fault maps it.
    fn map(&mut self, vpn: usize, pfn: usize);

    /// Maps one page that nothing has accessed or written yet, which hardware may mark at any moment. By default
    /// [`map`](Self::map) does it.
    #[inline(always)]
    fn map_untouched(&mut self, vpn: usize, pfn: usize) {
        self.map(vpn, pfn);
    }

    /// Unmaps one page, and gives back what that empties where the subject can.
    fn unmap(&mut self, vpn: usize);

    /// Translates an address.
    fn translate(&self, va: usize) -> Option<usize>;

    /// Tells whether a page is mapped for writing.
    fn is_writable(&self, vpn: usize) -> bool;

    /// Maps a run of pages, by whatever the subject has for it.
    #[inline(always)]
    fn map_range(&mut self, vpn: usize, pfn: usize, pages: usize) {
        for page in 0..pages {
            self.map(vpn + page, pfn + page);
        }
    }

    /// Unmaps a run of pages.
    #[inline(always)]
    fn unmap_range(&mut self, vpn: usize, pages: usize) {
        for page in 0..pages {
            self.unmap(vpn + page);
        }
    }

    /// Makes a run of pages writable or read-only.
    fn protect_range(&mut self, vpn: usize, pages: usize, writable: bool);

    /// Maps a mapped page to another frame, for reading and writing. By default it unmaps the page and maps it again, which
    /// is what a table without an operation for it offers.
    #[inline(always)]
    fn replace(&mut self, vpn: usize, pfn: usize) {
        self.unmap(vpn);
        self.map(vpn, pfn);
    }

    /// Takes an empty table apart.
    fn destroy(self);
}

/// A subject that visits every mapped page by itself.
pub trait Iterate: Subject {
    /// Returns how many pages are mapped, having looked at each.
    fn count(&self) -> usize;
}

/// A subject that makes large leaves of small ones, and small ones of large.
pub trait Resize: Subject {
    /// The number of neighbouring pages that become one leaf.
    const PAGES: usize;

    /// Makes one leaf of [`PAGES`](Self::PAGES) pages.
    fn promote(&mut self, vpn: usize);

    /// Makes pages of that leaf.
    fn split(&mut self, vpn: usize);
}

/// A subject with page faults and copies of itself.
pub trait Fork: Subject {
    /// Resolves the fault of a store to a page that is not mapped, as a page-fault handler does.
    fn first_use(&mut self, vpn: usize, pfn: usize);

    /// Asks why a store to a page faulted, and tells whether it may be repeated.
    fn fault(&mut self, vpn: usize) -> bool;

    /// Returns a copy that shares its frames until they are written.
    fn fork(&self) -> Self;

    /// Replaces a page, or a mark, by a mark.
    fn mark(&mut self, vpn: usize);

    /// Makes the CPU run the address space, which it runs already or has left for another one.
    fn activate(&self);

    /// Makes pages writable again that a fork has made read-only.
    fn unshare(&mut self, vpn: usize, pages: usize);
}
