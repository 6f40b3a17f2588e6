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
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
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
mod select;

use children::Children;
use figure::{Figure, Verdict};
use lab::Lab;
use page::Section;

/// Redraw the papers' figures from the lab's data, beside the numbers that they print
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100)]
struct Cli {
    /// A few minutes: fewer messages, fewer simulated seconds
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
    /// Draw one figure, or one paper's, beside index.html: `Romer Figure 3`, `Tzou`
    #[arg(long, value_name = "NAME", conflicts_with = "readme")]
    figure: Option<String>,
}

fn main() -> ExitCode {
    let children = Arc::new(Children::default());
    let interrupted = Arc::new(AtomicBool::new(false));
    let outcome = listen(&children, &interrupted).and_then(|()| run(&Cli::parse(), &children));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        // Whatever else went wrong went wrong because of it.
        Err(_) if interrupted.load(Ordering::Relaxed) => {
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
fn listen(children: &Arc<Children>, interrupted: &Arc<AtomicBool>) -> anyhow::Result<()> {
    let (children, interrupted) = (Arc::clone(children), Arc::clone(interrupted));
    let end = move || {
        interrupted.store(true, Ordering::Relaxed);
        children.end();
    };
    ctrlc::set_handler(end).context("cannot listen for interruptions")
}

fn run(args: &Cli, children: &Arc<Children>) -> anyhow::Result<()> {
    let asked = args.figure.as_deref().map(|name| anyhow::Ok((name, select::paper(name)?))).transpose()?;
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
    if let Some((name, (title, collected))) = asked {
        bar.set_length(1);
        let figures = select::figures(name, collected(&lab)?)?;
        bar.finish_and_clear();
        return one(args, title, figures);
    }
    let (choices, sections) = collect(&lab, children, &bar)?;
    bar.finish_and_clear();
    let html = page::html(args.quick, Some(&choices), &sections)?;
    // A figure that does without the kernel's data must not do so because of an interruption.
    if children.ended() {
        bail!("interrupted");
    }
    let index = args.out.join("index.html");
    lab::write(&index, html.as_bytes())?;
    if args.json {
        println!("{}", page::json(&sections)?);
    }
    for section in &sections {
        eprintln!("{}: {}", section.paper(), counted(section.counts()));
    }
    let all = Verdict::ALL.map(|verdict| sections.iter().map(|section| section.count(verdict)).sum());
    eprintln!("all: {}", counted(all));
    eprintln!("wrote {}", index.display());
    Ok(())
}

/// Writes the chosen figures of one paper as a page of their own, named after the first.
fn one(args: &Cli, title: &'static str, figures: Vec<Figure>) -> anyhow::Result<()> {
    let name = figures.first().map(Figure::anchor).unwrap_or_default();
    for figure in &figures {
        eprintln!("{} {}: {}: {}", figure.paper, figure.at, figure.verdict.word(), figure.agreement);
    }
    let sections = [Section { title, figures }];
    if args.json {
        println!("{}", page::json(&sections)?);
    }
    let file = args.out.join(format!("{name}.html"));
    lab::write(&file, page::html(args.quick, None, &sections)?.as_bytes())?;
    eprintln!("wrote {}", file.display());
    Ok(())
}

/// Returns how many figures have each verdict, in words.
fn counted(counts: [usize; Verdict::ALL.len()]) -> String {
    let words = Verdict::ALL.iter().zip(counts).map(|(verdict, count)| format!("{count} {}", verdict.word()));
    words.collect::<Vec<_>>().join(", ")
}

/// Collects the papers side by side: the lab's programs mostly use one CPU each. What goes wrong first ends all.
fn collect(
    lab: &Lab,
    children: &Children,
    bar: &ProgressBar,
) -> anyhow::Result<(Vec<choose::Choice>, Vec<Section>)> {
    let first = OnceLock::new();
    let or_end = |error: anyhow::Error| {
        // That it has been ended by another is no reason.
        if !children.ended() {
            let _ = first.set(error);
            children.end();
        }
    };
    let (choices, sections) = std::thread::scope(|scope| {
        let section = |&(title, figures): &(&'static str, papers::Figures)| {
            scope.spawn(move || {
                let figures = figures(lab).with_context(|| title.split(':').next().unwrap_or_default());
                bar.inc(1);
                figures.map(|figures| Section { title, figures }).map_err(or_end)
            })
        };
        let sections: Vec<_> = papers::ALL.iter().map(section).collect();
        let choices = choose::choices(lab).map_err(or_end);
        bar.inc(1);
        (choices, sections.into_iter().map(|section| section.join()).collect::<Vec<_>>())
    });
    if let Some(error) = first.into_inner() {
        return Err(error);
    }
    let sections = sections.into_iter().map(|section| match section {
        Ok(Ok(section)) => Ok(section),
        Ok(Err(())) => bail!("interrupted"),
        Err(_) => bail!("a section panicked"),
    });
    let sections = sections.collect::<anyhow::Result<_>>()?;
    match choices {
        Ok(choices) => Ok((choices, sections)),
        Err(()) => bail!("interrupted"),
    }
}
