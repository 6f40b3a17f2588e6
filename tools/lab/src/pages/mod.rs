//! `tlblab pages`: the pages that a program touched, as runs of neighbours.
//!
//! What the benches map of the captured programs was made by this:
//! `tlblab pages --trace tools/lab/traces/cc1.tlbt --first-touches --json`.

use std::collections::BTreeSet;

use clap::Args;
use serde::Serialize;

use crate::trace::{self, Input, TraceError};
use crate::{progress, rows};

/// Print the pages that a program touched, as runs of neighbours
#[derive(Args, Debug)]
pub(crate) struct PagesArgs {
    /// A trace (recorded, lackey's or DynamoRIO's text, ChampSim's records; plain or packed), or - for standard input
    #[arg(long, value_name = "FILE")]
    trace: Input,
    /// In the order in which the program first touched them, as its page faults come [default: in the order of addresses]
    #[arg(long)]
    first_touches: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A run: the number of its first page of 4 KiB, and how many pages it has.
#[derive(Debug, Serialize)]
struct Row {
    first: usize,
    pages: usize,
}

/// Runs the command.
///
/// # Errors
///
/// What is wrong with the trace, in one line.
pub(crate) fn run(args: &PagesArgs) -> anyhow::Result<()> {
    let (mut known, mut pages) = (BTreeSet::new(), Vec::new());
    for access in trace::open(&args.trace, &progress::bar(None))? {
        let page = access?.page.get();
        if known.insert(page) {
            pages.push(page);
        }
    }
    if pages.is_empty() {
        return Err(TraceError::NoReference.into());
    }
    if !args.first_touches {
        pages.sort_unstable();
    }
    rows::print(args.json, &runs(&pages))
}

/// Joins each page to the run before it that it continues.
fn runs(pages: &[usize]) -> Vec<Row> {
    let mut runs: Vec<Row> = Vec::new();
    for &page in pages {
        match runs.last_mut() {
            Some(run) if run.first + run.pages == page => run.pages += 1,
            _ => runs.push(Row { first: page, pages: 1 }),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use indicatif::ProgressBar;

    use super::*;

    #[test]
    fn neighbours_are_one_run() {
        let runs = runs(&[3, 4, 5, 9, 11, 12, 10]);
        let runs: Vec<_> = runs.iter().map(|run| (run.first, run.pages)).collect();
        assert_eq!(runs, [(3, 3), (9, 1), (11, 2), (10, 1)]);
    }

    #[test]
    fn the_benches_have_the_shipped_programs_first_touches() {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
        // Each takes seconds to read.
        let names: &[_] = if cfg!(tlbkit_full) { &["cc1", "perl", "sqlite"] } else { &["sqlite"] };
        for name in names {
            let input: Input = format!("{root}/tools/lab/traces/{name}.tlbt").parse().unwrap();
            let trace = trace::open(&input, &ProgressBar::hidden()).unwrap();
            let mut known = BTreeSet::new();
            let pages = trace.map(|access| access.unwrap().page.get()).filter(|&page| known.insert(page));
            let made = serde_json::to_value(runs(&Vec::from_iter(pages))).unwrap();
            let kept = std::fs::read_to_string(format!("{root}/benches/pages/{name}.json")).unwrap();
            assert_eq!(
                made,
                serde_json::from_str::<serde_json::Value>(&kept).unwrap(),
                "{name}: make it anew"
            );
        }
    }
}
