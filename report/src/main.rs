//! The papers' figures, redrawn from the lab's data beside the numbers that the papers print.
//!
//! ```text
//! papers/* ── a figure each: data, printed numbers, a sentence ──┬── lab      runs tlblab, keeps what it printed
//!    │                                                           ├── rows     numbers by name
//!    └── choose: the first page                                  └── printed  the papers' own numbers
//! page: HTML ── chart: SVG ── axis
//! ```
//!
//! `cargo xtask report` builds the lab and this, and starts this.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};

mod axis;
mod chart;
mod choose;
mod figure;
mod lab;
mod page;
mod papers;
mod printed;
mod rows;

use lab::Lab;
use page::Section;

/// Redraw the papers' figures from the lab's data, beside the numbers that they print
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100)]
struct Cli {
    /// A few minutes: fewer messages, fewer simulated seconds; what takes longer is taken from an earlier full run
    #[arg(long)]
    quick: bool,
    /// Print every figure's data as one JSON array, too
    #[arg(long)]
    json: bool,
    /// Where to write index.html
    #[arg(long, value_name = "DIR", default_value = "target/report")]
    out: PathBuf,
    /// The lab's program
    #[arg(long, value_name = "FILE", default_value = "target/release/tlblab")]
    lab: PathBuf,
    /// The shipped traces
    #[arg(long, value_name = "DIR", default_value = "lab/traces")]
    traces: PathBuf,
    /// Where the lab's data are kept from run to run [default: cache, where index.html is written]
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,
    /// Write instead the README's picture to this file, and print the README's table
    #[arg(long, value_name = "FILE", conflicts_with = "json")]
    readme: Option<PathBuf>,
}

fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let line: Vec<_> = format!("{error:#}").split_whitespace().map(str::to_owned).collect();
            eprintln!("report: {}", line.join(" "));
            ExitCode::from(2)
        }
    }
}

fn run(args: &Cli) -> anyhow::Result<()> {
    let bar = ProgressBar::new(papers::ALL.len() as u64 + 1);
    bar.set_style(ProgressStyle::with_template("{bar:12} {pos} of {len} papers, {elapsed}: {wide_msg}")?);
    bar.enable_steady_tick(Duration::from_millis(200));
    let cache = args.cache.clone().unwrap_or_else(|| args.out.join("cache"));
    let lab = Lab::new(&args.lab, &args.traces, &cache, args.quick, bar.clone())?;
    if let Some(file) = &args.readme {
        let (picture, table) = papers::readme(&lab)?;
        lab::write(file, page::picture(&picture)?.as_bytes())?;
        bar.finish_and_clear();
        println!("{table}");
        return Ok(());
    }
    let (choices, sections) = collect(&lab, &bar)?;
    bar.finish_and_clear();
    let index = args.out.join("index.html");
    lab::write(&index, page::html(args.quick, &choices, &sections)?.as_bytes())?;
    if args.json {
        println!("{}", page::json(&sections)?);
    }
    eprintln!("wrote {}", index.display());
    Ok(())
}

/// Collects the papers side by side: the lab's programs mostly use one CPU each.
fn collect(lab: &Lab, bar: &ProgressBar) -> anyhow::Result<(Vec<choose::Choice>, Vec<Section>)> {
    std::thread::scope(|scope| {
        let sections: Vec<_> = papers::ALL
            .iter()
            .map(|&(title, figures)| {
                scope.spawn(move || {
                    let figures = figures(lab).with_context(|| title.split(':').next().unwrap_or_default());
                    bar.inc(1);
                    Ok(Section { title, figures: figures? })
                })
            })
            .collect();
        let choices = choose::choices(lab)?;
        bar.inc(1);
        let sections = sections.into_iter().map(|section| match section.join() {
            Ok(section) => section,
            Err(_) => bail!("a section panicked"),
        });
        Ok((choices, sections.collect::<anyhow::Result<_>>()?))
    })
}
