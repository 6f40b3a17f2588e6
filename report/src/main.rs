//! The papers' figures, redrawn from the lab's data beside the numbers that the papers print.
//!
//! ```text
//! papers/* ── a figure each: data, printed numbers, a sentence ──┬── lab      runs tlblab and boots the kernel,
//!    │                                                           │            keeps what they printed ── children
//!    │                                                           ├── rows     numbers by name
//!    └── choose: the first page                                  └── printed  the papers' own numbers
//! page: HTML ── chart: SVG ── axis
//! ```
//!
//! `cargo xtask report` builds the lab and this, and starts this.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};

mod axis;
mod chart;
mod children;
mod choose;
mod figure;
mod lab;
mod page;
mod papers;
mod printed;
mod rows;

use children::Children;
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
    /// The program that boots the kernel: xtask [default: none, and figures do without what the kernel says]
    #[arg(long, value_name = "FILE")]
    boot: Option<PathBuf>,
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
    let children = Arc::new(Children::default());
    let outcome = listen(&children).and_then(|()| run(&Cli::parse(), &children));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        // Whatever else went wrong went wrong because of it.
        Err(_) if children.interrupted() => {
            eprintln!(
                "report: interrupted: an earlier report is as it was, and what was measured is kept for the next"
            );
            ExitCode::from(130)
        }
        Err(error) => {
            let line: Vec<_> = format!("{error:#}").split_whitespace().map(str::to_owned).collect();
            eprintln!("report: {}", line.join(" "));
            ExitCode::from(2)
        }
    }
}

/// Ends the programs that are being run when the report is interrupted, and with them the report.
fn listen(children: &Arc<Children>) -> anyhow::Result<()> {
    let children = Arc::clone(children);
    ctrlc::set_handler(move || children.interrupt()).context("cannot listen for interruptions")
}

fn run(args: &Cli, children: &Arc<Children>) -> anyhow::Result<()> {
    let bar = ProgressBar::new(papers::ALL.len() as u64 + 1);
    bar.set_style(ProgressStyle::with_template("{bar:12} {pos} of {len} papers, {elapsed}: {wide_msg}")?);
    bar.enable_steady_tick(Duration::from_millis(200));
    let lab = Lab::new(args, Arc::clone(children), bar.clone())?;
    if let Some(file) = &args.readme {
        let (picture, table) = papers::readme(&lab)?;
        lab::write(file, page::picture(&picture)?.as_bytes())?;
        bar.finish_and_clear();
        println!("{table}");
        return Ok(());
    }
    let (choices, sections) = collect(&lab, &bar)?;
    bar.finish_and_clear();
    let html = page::html(args.quick, &choices, &sections)?;
    // A figure that does without the kernel's data must not do so because of an interruption.
    if children.interrupted() {
        bail!("interrupted");
    }
    let index = args.out.join("index.html");
    lab::write(&index, html.as_bytes())?;
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
