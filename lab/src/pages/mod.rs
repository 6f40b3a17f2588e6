//! `tlblab pages`: the pages that a program touched, as runs of neighbours.
//!
//! What the benches map of the captured programs was made by this: `tlblab pages --trace lab/traces/cc1.tlbt --json`.

use std::collections::BTreeSet;

use clap::Args;
use indicatif::ProgressBar;
use serde::Serialize;

use crate::rows;
use crate::trace::{self, Input};

/// Print the pages that a program touched, as runs of neighbours
#[derive(Args, Debug)]
pub(crate) struct PagesArgs {
    /// A trace (recorded, or lackey's text, plain or packed), or - for standard input
    #[arg(long, value_name = "FILE")]
    trace: Input,
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
    let mut pages = BTreeSet::new();
    for access in trace::open(&args.trace, &ProgressBar::hidden())? {
        pages.insert(access?.page.get());
    }
    rows::print(args.json, &runs(&pages))
}

fn runs(pages: &BTreeSet<usize>) -> Vec<Row> {
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
    use super::*;

    #[test]
    fn neighbours_are_one_run() {
        let runs = runs(&[3, 4, 5, 9, 11, 12].into());
        let runs: Vec<_> = runs.iter().map(|run| (run.first, run.pages)).collect();
        assert_eq!(runs, [(3, 3), (9, 1), (11, 2)]);
    }

    #[test]
    fn the_benches_have_the_shipped_programs_pages() {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
        for name in ["cc1", "perl", "sqlite"] {
            let input: Input = format!("{root}/lab/traces/{name}.tlbt").parse().unwrap();
            let trace = trace::open(&input, &ProgressBar::hidden()).unwrap();
            let pages = trace.map(|access| access.unwrap().page.get()).collect();
            let made = serde_json::to_value(runs(&pages)).unwrap();
            let kept = std::fs::read_to_string(format!("{root}/benches/pages/{name}.json")).unwrap();
            assert_eq!(
                made,
                serde_json::from_str::<serde_json::Value>(&kept).unwrap(),
                "{name}: make it anew"
            );
        }
    }
}
