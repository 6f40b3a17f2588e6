//! The table of `docs/own-table.md` and a map, as subjects beside the crate's: what `docs/own-tests.md` shows, compiled and run.

use std::collections::{BTreeMap, BTreeSet};

use tlbkit_benches::Subjects;

#[path = "../../crates/conformance/tests/all/own/small.rs"]
#[allow(unreachable_pub, reason = "as the page shows it")]
mod table;

use table::Own;

/// What a crate may have instead of a `Table`.
#[derive(Default)]
struct MyTable(BTreeMap<usize, (usize, bool)>);

mod page {
    use super::{MyTable, Own};

    // page
    use tlbkit_benches::ours::{Make, Ours, Storage};
    use tlbkit_benches::{Subject, Subjects};
    use tlbkit_pagetable::{Error, Shared};

    // A `Table`: how it is made, what it is called, and the bits of an address.
    impl Make<Shared> for Own<'static, 9, Storage<Shared>> {
        const NAME: &'static str = "own";
        const BITS: u32 = 39;

        fn make(nodes: &'static Storage<Shared>) -> Result<Self, Error> {
            Own::new(nodes)
        }
    }

    // Anything else: what it does with one page, and with a run.
    impl Subject for MyTable {
        const NAME: &'static str = "mine";
        const BITS: u32 = 39;

        fn new() -> Self {
            Self::default()
        }
        fn map(&mut self, vpn: usize, pfn: usize) {
            assert!(self.0.insert(vpn, (pfn, true)).is_none());
        }
        fn unmap(&mut self, vpn: usize) {
            self.0.remove(&vpn).expect("a mapped page");
        }
        fn translate(&self, va: usize) -> Option<usize> {
            self.0.get(&(va >> 12)).map(|&(pfn, _)| pfn << 12 | va & 0xfff)
        }
        fn is_writable(&self, vpn: usize) -> bool {
            self.0.get(&vpn).is_some_and(|page| page.1)
        }
        fn protect_range(&mut self, vpn: usize, pages: usize, writable: bool) {
            self.0.range_mut(vpn..vpn + pages).for_each(|(_, page)| page.1 = writable);
        }
        fn destroy(self) {}
    }

    pub(super) fn main() -> std::process::ExitCode {
        tlbkit_benches::main(subjects())
    }

    pub(super) fn subjects() -> Subjects {
        Subjects::all().with::<Ours<Own<'static, 9, Storage<Shared>>, Shared>>().with::<MyTable>()
    }
    // end
}

/// The page shows what is compiled here.
#[test]
fn the_page_shows_this_bench() {
    let (_, rest) = include_str!("own.rs").split_once("    // page\n").unwrap();
    let (shown, _) = rest.split_once("    // end\n").unwrap();
    let lines =
        shown.lines().map(|line| line.strip_prefix("    ").unwrap_or(line).replace("pub(super) ", "") + "\n");
    let shown: String = lines.collect();
    let page = include_str!("../../docs/own-tests.md");
    assert!(
        page.contains(&format!("```rust,ignore\n{shown}```\n")),
        "docs/own-tests.md does not show:\n{shown}"
    );
    // It is a bench's whole program.
    let _: fn() -> std::process::ExitCode = page::main;
}

/// Every subject does two rounds of every job: the second begins as the first did. A space of 39 bits is as good as one of 48.
#[test]
fn every_subject_does_every_job() {
    let cases = page::subjects().and(tlbkit_benches::others::cases()).cases();
    let jobs: BTreeSet<_> = cases.iter().map(|case| case.job).collect();
    let listed: BTreeSet<_> = tlbkit_benches::jobs::JOBS.iter().map(|&(job, _)| job).collect();
    assert_eq!(jobs, listed);
    for (name, bits) in [("own", 39), ("mine", 39), ("Sv39 solo", 39), ("x86_64", 48)] {
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
