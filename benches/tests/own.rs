//! The table of `docs/own-table.md` and a map, as subjects beside the crate's: what `docs/own-tests.md` shows, compiled and run.

use std::collections::BTreeSet;

use tlbkit_benches::Subjects;

/// The bench of an author whose table lies in a library crate, as it does here.
mod page {
    include!("own/bench.rs");

    /// It is a bench's whole program.
    pub(super) const MAIN: fn() -> std::process::ExitCode = main;
    pub(super) const SUBJECTS: fn() -> Subjects = subjects;
}

/// The page shows what is compiled here.
#[test]
fn the_page_shows_this_bench() {
    let (page, shown) = (include_str!("../../docs/own-tests.md"), include_str!("own/bench.rs"));
    assert!(
        page.contains(&format!("```rust,ignore\n{shown}```\n")),
        "docs/own-tests.md does not show:\n{shown}"
    );
    let _ = page::MAIN;
}

// Memory of the author's own, beside that of the subjects: this program links, and runs.
std::arch::global_asm!(".bss", ".globl own_memory", "own_memory:", ".zero 1073741824", ".text");
unsafe extern "C" {
    static own_memory: u8;
}

#[test]
fn an_author_may_have_as_much_memory() {
    // SAFETY: zeroed memory of this program, to which nothing is stored.
    assert_eq!(unsafe { (&raw const own_memory).wrapping_add((1 << 30) - 1).read_volatile() }, 0);
}

/// Every subject does two rounds of every job: the second begins as the first did. A space of 39 bits is as good as one of 48.
#[test]
fn every_subject_does_every_job() {
    let cases = (page::SUBJECTS)().and(tlbkit_benches::others::cases()).cases();
    let jobs: BTreeSet<_> = cases.iter().map(|case| case.job).collect();
    let listed: BTreeSet<_> = tlbkit_benches::jobs::JOBS.iter().map(|&(job, _)| job).collect();
    assert_eq!(jobs, listed);
    for (name, bits) in [("own", 39), ("map", 39), ("Sv39 solo", 39), ("x86_64", 48)] {
        assert!(cases.iter().any(|case| case.subject == name && case.bits == bits), "{name}");
    }
    for case in cases {
        let name = case.name();
        assert!(case.operations > 0, "{name}");
        let mut round = (case.start)();
        (0..2).for_each(|_| _ = round());
    }
}

/// Ratios are to `x86_64` wherever it can do the job, in as many bits.
#[test]
fn the_first_of_a_job_is_the_base() {
    let cases = Subjects::all().cases();
    for (job, (bits, name)) in tlbkit_benches::jobs::JOBS
        .iter()
        .flat_map(|&(job, _)| [(48, "x86_64"), (39, "x86_64, 39 bits")].map(|base| (job, base)))
    {
        let of_job = cases.iter().filter(|case| case.job == job && case.bits == bits);
        let of_job: Vec<_> = of_job.map(|case| case.subject).collect();
        let base = of_job.iter().position(|&subject| subject == name);
        assert!(base.is_none_or(|at| at == 0), "{job}: {of_job:?}");
    }
}
