//! The papers' figures, redrawn from the lab's data beside the numbers that the papers print.
//!
//! ```text
//! papers/* ── a figure each: data, printed numbers, a sentence ──┬── lab      calls tlblab, boots the kernel,
//!    │                                                           │            keeps what they gave ── children
//!    │                                                           ├── rows     of tlblab, typed
//!    │                                                           ├── kernel   rows of the kernel, by name
//!    └── choose: the first page                                  └── printed  the papers' own numbers
//! page: HTML ── chart: SVG ── axis
//! ```
//!
//! `cargo xtask report` builds this and starts it. All work is done by threads that `main` does not wait for once the
//! report is interrupted or cannot be made: an experiment that runs ends with the process, a booted kernel is killed.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use tlbkit_shell::{output, progress};

mod axis;
mod chart;
mod children;
mod choose;
mod figure;
mod html;
mod kernel;
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
    /// A few minutes: parts of the traces, fewer messages, fewer simulated seconds
    #[arg(long)]
    quick: bool,
    /// Print every figure's data as one JSON array, too
    #[arg(long)]
    json: bool,
    /// Where to write index.html
    #[arg(long, value_name = "DIR", default_value = "target/report")]
    out: PathBuf,
    /// The program that boots the kernel: xtask [default: none, and figures do without what the kernel says]
    #[arg(long, value_name = "FILE")]
    boot: Option<PathBuf>,
    /// The shipped traces
    #[arg(long, value_name = "DIR", default_value = "tools/lab/traces")]
    traces: PathBuf,
    /// Where the lab's data are kept from run to run [default: cache, where index.html is written]
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,
    /// Write instead the picture of docs/costs.md to this file, and print its table
    #[arg(long, value_name = "FILE", conflicts_with = "json")]
    costs: Option<PathBuf>,
    /// Draw one figure, or one paper's, beside index.html: `Romer Figure 3`, `Tzou`
    #[arg(long, value_name = "NAME", conflicts_with = "costs")]
    figure: Option<String>,
}

/// A part of the report, from the thread that collects it.
enum Piece {
    Choices(Vec<choose::Choice>),
    /// A paper, and its place.
    Section(usize, Section),
}

/// How the report ends.
enum Ended {
    Interrupted,
    Done(anyhow::Result<()>),
}

fn main() -> ExitCode {
    output::end_when_unread();
    let args = Cli::parse();
    let children = Arc::new(Children::default());
    let bar = progress::watch(ProgressBar::new(papers::ALL.len() as u64 + 1).with_prefix("papers"));
    let outcome = match begin(args, &children, &bar).map(|hear| hear.recv()) {
        Ok(Ok(Ended::Interrupted)) => None,
        Ok(Ok(Ended::Done(outcome))) => Some(outcome),
        // The handler of interruptions keeps its end of the channel.
        Ok(Err(error)) => Some(Err(error.into())),
        Err(error) => Some(Err(error)),
    };
    // A figure that does without the kernel's data must not do so because the kernel is killed here.
    let _last = lab::write_no_more();
    children.end();
    bar.finish_and_clear();
    match outcome {
        Some(Ok(())) => ExitCode::SUCCESS,
        Some(Err(error)) => {
            let line: Vec<_> = format!("{error:#}").split_whitespace().map(str::to_owned).collect();
            eprintln!("report: {}", line.join(" "));
            ExitCode::from(2)
        }
        None => {
            eprintln!(
                "report: interrupted: an earlier report is as it was, and what was measured is kept for the next"
            );
            ExitCode::from(130)
        }
    }
}

/// Begins the work on a thread of its own, and returns where its end, or an interruption before, is heard.
fn begin(args: Cli, children: &Arc<Children>, bar: &ProgressBar) -> anyhow::Result<mpsc::Receiver<Ended>> {
    let (say, hear) = mpsc::channel();
    let interrupted = say.clone();
    // Whatever comes after the first is not heard.
    let interrupt = move || drop(interrupted.send(Ended::Interrupted));
    ctrlc::set_handler(interrupt).context("cannot listen for interruptions")?;
    bar.set_style(ProgressStyle::with_template("{bar:12} {pos} of {len} papers, {elapsed}: {wide_msg}")?);
    bar.enable_steady_tick(Duration::from_millis(200));
    let (children, bar) = (Arc::clone(children), bar.clone());
    std::thread::spawn(move || {
        let outcome = catch_unwind(AssertUnwindSafe(|| run(&args, children, &bar)));
        let outcome = outcome.unwrap_or_else(|_| Err(anyhow!("a figure panicked")));
        drop(say.send(Ended::Done(outcome)));
    });
    Ok(hear)
}

fn run(args: &Cli, children: Arc<Children>, bar: &ProgressBar) -> anyhow::Result<()> {
    let asked = args.figure.as_deref().map(|name| anyhow::Ok((name, select::paper(name)?))).transpose()?;
    let lab = Arc::new(Lab::new(args, children, bar.clone())?);
    if let Some(file) = &args.costs {
        let (picture, table) = papers::costs(&lab)?;
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
    let (choices, sections) = collect(&lab, bar)?;
    bar.finish_and_clear();
    let html = page::html(args.quick, Some(&choices), &sections)?;
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
    let sections = [Section { title, figures }];
    let file = args.out.join(format!("{name}.html"));
    lab::write(&file, page::html(args.quick, None, &sections)?.as_bytes())?;
    if args.json {
        println!("{}", page::json(&sections)?);
    }
    for figure in sections.iter().flat_map(|section| &section.figures) {
        eprintln!("{} {}: {}: {}", figure.paper, figure.at, figure.verdict.word(), figure.agreement);
    }
    eprintln!("wrote {}", file.display());
    Ok(())
}

/// Returns how many figures have each verdict, in words.
fn counted(counts: [usize; Verdict::ALL.len()]) -> String {
    let words = Verdict::ALL.iter().zip(counts).map(|(verdict, count)| format!("{count} {}", verdict.word()));
    words.collect::<Vec<_>>().join(", ")
}

/// Collects the papers side by side: experiments mostly use one CPU each. What goes wrong first ends all.
fn collect(lab: &Arc<Lab>, bar: &ProgressBar) -> anyhow::Result<(Vec<choose::Choice>, Vec<Section>)> {
    let (say, hear) = mpsc::channel();
    for (at, (title, figures)) in papers::ALL.into_iter().enumerate() {
        let (lab, say) = (Arc::clone(lab), say.clone());
        std::thread::spawn(move || {
            let figures = figures(&lab).with_context(|| title.split(':').next().unwrap_or_default());
            // After an error nothing more is heard.
            drop(say.send(figures.map(|figures| Piece::Section(at, Section { title, figures }))));
        });
    }
    let lab = Arc::clone(lab);
    std::thread::spawn(move || drop(say.send(choose::choices(&lab).map(Piece::Choices))));
    let (mut chosen, mut sections) = (None, Vec::new());
    for part in hear {
        match part? {
            Piece::Choices(choices) => chosen = Some(choices),
            Piece::Section(at, section) => sections.push((at, section)),
        }
        bar.inc(1);
    }
    sections.sort_by_key(|(at, _)| *at);
    match chosen {
        Some(choices) if sections.len() == papers::ALL.len() => {
            Ok((choices, sections.into_iter().map(|(_, section)| section).collect()))
        }
        _ => bail!("a section panicked"),
    }
}
