//! `cargo xtask bare`: runs the commands of the documentation on a Debian machine that has Rust, and nothing else.
//!
//! ```text
//! target/bare/debian     the machine: `bare/make.sh` says what it has
//!   root/tlbkit          a clone of the last commit
//! target/bare/fresh      one command's copy of it: `bare/enter.sh`
//! ```
//!
//! The machine has this one's ways to the mirrors: apt's sources and options, cargo's configuration, certificates, and variables
//! such as `https_proxy`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;
use std::{env, fmt, fs};

use anyhow::{Context, ensure};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};

use crate::shell::{Line, Shell, progress};
use crate::{misused, places};

/// Run each command that the documentation shows on a Debian machine that has nothing but Rust, up to the first that fails
#[derive(Args, Debug)]
pub(crate) struct BareArgs {
    /// Print the commands and run none
    #[arg(long)]
    list: bool,
    /// Only the commands that contain one of these texts, also if they take long
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// Make the machine anew
    #[arg(long, conflicts_with = "list")]
    anew: bool,
}

/// Commands that take more than ten minutes, as the pages show them.
const SLOW: [&str; 3] = [
    "cargo xtask test",
    "cargo run --release -p tlblab -- explore --cpus 3",
    "cargo run --release -p tlblab -- explore --cpus 2 --unreduced",
];

/// A command that a page shows.
#[derive(Debug, PartialEq, Eq)]
struct Shown {
    page: String,
    line: usize,
    text: String,
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.page, self.line, self.text)
    }
}

/// Runs the commands, each on a machine of its own.
///
/// # Errors
///
/// If the machine cannot be made, or a command fails: its output is shown, and the error names its page and line.
pub(crate) fn run(args: &BareArgs) -> anyhow::Result<()> {
    let mut all = all(Path::new("."))?;
    all.retain(|shown| args.only.is_empty() || args.only.iter().any(|text| shown.text.contains(text)));
    if all.is_empty() {
        misused!("no page shows such a command: `cargo xtask bare --list` prints them");
    }
    let is_skipped = |shown: &Shown| args.only.is_empty() && SLOW.contains(&shown.text.as_str());
    let (skipped, run): (Vec<_>, Vec<_>) = all.into_iter().partition(is_skipped);
    let begin = Instant::now();
    if args.list {
        run.iter().for_each(|shown| println!("{shown}"));
    } else {
        let place = make(args.anew)?;
        for shown in &run {
            let begin = Instant::now();
            run_one(&place, shown).with_context(|| format!("{shown}"))?;
            println!("{:>6} s  {shown}", begin.elapsed().as_secs());
        }
    }
    skipped.iter().for_each(|shown| println!(" skipped  {shown} (takes more than ten minutes)"));
    if !args.list {
        let took = begin.elapsed().as_secs();
        println!("{} commands passed, {} skipped, in {took} s", run.len(), skipped.len());
    }
    Ok(())
}

/// Returns the pages that may show commands, as paths from the tree's root: README, CONTRIBUTING and those of `docs`.
///
/// # Errors
///
/// If the folder cannot be listed.
pub(crate) fn pages(root: &Path) -> anyhow::Result<Vec<String>> {
    let mut pages = Vec::new();
    for entry in fs::read_dir(root.join("docs")).context("cannot list docs")? {
        pages.push(format!("docs/{}", entry?.file_name().to_string_lossy()));
    }
    pages.retain(|page| page.ends_with(".md"));
    pages.sort();
    pages.splice(..0, ["README.md", "CONTRIBUTING.md"].map(String::from));
    Ok(pages)
}

/// Returns the commands of all pages.
fn all(root: &Path) -> anyhow::Result<Vec<Shown>> {
    let mut all = Vec::new();
    for page in pages(root)? {
        let text = fs::read_to_string(root.join(&page)).with_context(|| format!("cannot read {page}"))?;
        all.extend(commands(&page, &text));
    }
    Ok(all)
}

/// Returns the commands of a page: in a block `console` what follows a `$`, in a block `sh` each line, without comments. A line
/// that ends in a backslash goes on in the next.
fn commands(page: &str, text: &str) -> Vec<Shown> {
    let mut all: Vec<Shown> = Vec::new();
    let (mut block, mut goes_on) = (None, false);
    for (line, text) in (1..).zip(text.lines()) {
        if let Some(kind) = text.strip_prefix("```") {
            (block, goes_on) = (block.is_none().then_some(kind), false);
            continue;
        }
        let text = match block {
            Some("console") if !goes_on => text.strip_prefix("$ "),
            Some("console" | "sh") => Some(text),
            _ => None,
        };
        let Some(text) = text else { continue };
        let text = text.split_once(" # ").map_or(text, |(command, _)| command).trim();
        if text.is_empty() || text.starts_with('#') {
            continue;
        }
        let part = text.trim_end_matches('\\').trim_end();
        match all.last_mut().filter(|_| goes_on) {
            Some(shown) => shown.text += &format!(" {part}"),
            None => all.push(Shown { page: page.to_owned(), line, text: part.to_owned() }),
        }
        goes_on = text.ends_with('\\');
    }
    all
}

/// Makes the machine if it is not there, clones this tree into it, and returns the folder that it is in.
fn make(anew: bool) -> anyhow::Result<PathBuf> {
    let is_root = Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout == b"0\n");
    ensure!(is_root, "only root can make a machine of its own and change to it");
    fs::create_dir_all(places::target().join("bare"))?;
    let place = fs::canonicalize(places::target().join("bare"))?;
    let debian = place.join("debian");
    let begin = Instant::now();
    if anew || !debian.join("root/.is-made").exists() {
        quiet("a machine").run(&Line::new("bash", "-c").with([
            include_str!("bare/make.sh"),
            "make",
            &text(&debian),
        ]))?;
        println!("{:>6} s  the machine: {}", begin.elapsed().as_secs(), debian.display());
    }
    let clone = debian.join("root/tlbkit");
    remove(&clone)?;
    quiet("a clone").run(&Line::new("git", "clone --quiet .").with([text(&clone)]))?;
    let status = Command::new("git").args(["status", "--porcelain"]).output().context("cannot run git")?;
    if !status.stdout.is_empty() {
        println!("the machine has the last commit, without what has changed since");
    }
    Ok(place)
}

/// Names of variables, or their beginnings, that lead programs to mirrors, and how many jobs a build may have.
const WAYS: [&str; 10] = [
    "http_proxy",
    "https_proxy",
    "all_proxy",
    "no_proxy",
    "cargo_http_",
    "cargo_net_",
    "cargo_registries_",
    "cargo_build_jobs",
    "rustup_dist_server",
    "rustup_update_root",
];

/// Runs a command on a new copy of the machine.
fn run_one(place: &Path, shown: &Shown) -> anyhow::Result<()> {
    let fresh = place.join("fresh");
    remove(&fresh)?;
    let is_way = |name: &str| WAYS.iter().any(|way| name.to_lowercase().starts_with(way));
    let ways = env::vars().filter(|(name, _)| is_way(name)).map(|(name, value)| format!("{name}={value}"));
    let line = Line::new("env", "--ignore-environment HOME=/root TERM=dumb")
        .with(["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"])
        .with(ways)
        .with("unshare --mount --pid --fork --kill-child sh -c".split(' '))
        .with([
            include_str!("bare/enter.sh"),
            "enter",
            &text(&place.join("debian")),
            &text(&fresh),
            &shown.text,
        ]);
    let outcome = quiet(&shown.text).watch(&line, |_| ());
    remove(&fresh)?;
    outcome.ok().with_context(|| format!("fails; to repeat it: cargo xtask bare --only '{}'", shown.text))
}

/// Returns a shell that says on a terminal what it does, and shows the output of what fails.
fn quiet(what: &str) -> Shell {
    let style = ProgressStyle::with_template("{spinner} {elapsed:>4} {prefix}: {wide_msg}");
    let bar = progress::watch(ProgressBar::new_spinner().with_prefix(what.to_owned()));
    if let Ok(style) = style {
        bar.set_style(style);
    }
    Shell::Quiet { bar, tests: std::cell::Cell::new(0) }
}

/// Removes a folder with all that is in it, if it is there.
fn remove(folder: &Path) -> anyhow::Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    Ok(())
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commands_of_a_page_are_found() {
        let page = [
            "In the text `$ cargo no`.",
            "```console",
            "$ cargo one  --json   # what it does",
            "its output",
            "$ RUSTFLAGS='--cfg x' cargo \\",
            "    two",
            "$ cargo three # four",
            "```",
            "$ cargo no",
            "```sh",
            "# what follows",
            "cargo five | fold",
            "",
            "cargo six \\",
            "```",
            "```rust",
            "$ cargo no",
            "```",
        ];
        let found: Vec<_> = commands("page.md", &page.join("\n")).iter().map(ToString::to_string).collect();
        let wanted = [
            "page.md:3: cargo one  --json",
            "page.md:5: RUSTFLAGS='--cfg x' cargo two",
            "page.md:7: cargo three",
            "page.md:12: cargo five | fold",
            "page.md:14: cargo six",
        ];
        assert_eq!(found, wanted);
    }

    fn all_of_the_tree() -> Vec<Shown> {
        all(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))).unwrap()
    }

    #[test]
    fn every_slow_command_is_one_that_a_page_shows() {
        let all = all_of_the_tree();
        assert!(all.len() > 10, "{} commands", all.len());
        for slow in SLOW {
            assert!(all.iter().any(|shown| shown.text == slow), "no page shows `{slow}`");
        }
    }

    #[test]
    fn every_command_can_be_typed_as_it_is_shown() {
        for shown in all_of_the_tree() {
            let is_placeholder = |word: &str| word == "..." || word == "FILE" || word.starts_with('<');
            assert!(!shown.text.split(' ').any(is_placeholder), "{shown}");
        }
    }
}
