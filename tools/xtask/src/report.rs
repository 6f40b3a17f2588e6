//! `cargo xtask report`: the papers' figures from the lab's data, as one HTML file.

use std::path::PathBuf;
use std::{env, fs};

use anyhow::Context;
use clap::Args;

use crate::shell::{Line, Shell};
use crate::{misused, places};

/// Redraw the papers' figures from the lab's data, beside the numbers that they print
#[derive(Args, Debug)]
pub(crate) struct ReportArgs {
    /// A few minutes: parts of the traces, fewer messages, fewer simulated seconds
    #[arg(long)]
    quick: bool,
    /// Print every figure's data as one JSON array, too
    #[arg(long)]
    json: bool,
    /// Where to write index.html [default: report, where cargo builds]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Write instead the picture of docs/costs.md to this file, and print its table
    #[arg(long, value_name = "FILE", conflicts_with_all = ["json", "out"])]
    costs: Option<PathBuf>,
    /// Draw one figure, or one paper's, beside index.html: `Romer Figure 3`, `Tzou`
    #[arg(long, value_name = "NAME", conflicts_with = "costs")]
    figure: Option<String>,
}

/// Builds the report's program, and becomes that.
pub(crate) fn run(shell: &Shell, args: &ReportArgs) -> anyhow::Result<()> {
    let out = args.out.clone().unwrap_or_else(|| places::target().join("report"));
    match &args.costs {
        Some(file) => places::can_write("--costs", file)?,
        None => {
            let option = if args.out.is_some() { "--out" } else { "without --out," };
            if let Err(error) = fs::create_dir_all(&out) {
                misused!("{option} {} cannot be made: {error}", out.display());
            }
            places::can_write(option, &out.join("index.html"))?;
        }
    }
    shell.run(&Line::new("cargo", "build --release -p tlbkit-report"))?;
    let text = |path: PathBuf| path.to_string_lossy().into_owned();
    let program = places::target().join("release").join("tlbkit-report");
    let mut line = Line::new(&text(program), "--out").with([text(out)]);
    let own = env::current_exe().context("this program does not know where it is")?;
    line = line.with(["--boot".to_owned(), text(own)]);
    if let Some(file) = &args.costs {
        line = line.with(["--costs".to_owned(), text(file.clone())]);
    }
    if let Some(name) = &args.figure {
        line = line.with(["--figure", name]);
    }
    line = line.with(args.quick.then_some("--quick")).with(args.json.then_some("--json"));
    become_it(&line)
}

/// Lets the report take this program's place, so that a signal that interrupts the one interrupts the other.
#[cfg(unix)]
fn become_it(line: &Line) -> anyhow::Result<()> {
    use std::os::unix::process::CommandExt;
    Err(line.command().exec()).with_context(|| format!("cannot run `{line}`"))
}

/// Runs the report. It says itself, in one line, what is wrong.
#[cfg(not(unix))]
fn become_it(line: &Line) -> anyhow::Result<()> {
    let status = line.command().status().with_context(|| format!("cannot run `{line}`"))?;
    std::process::exit(status.code().unwrap_or(1))
}
