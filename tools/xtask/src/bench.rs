//! `cargo xtask bench`: every table beside its peers, by criterion or as ratios.

use std::path::PathBuf;

use anyhow::{Context, ensure};
use clap::{Args, ValueEnum};

use crate::shell::{Line, Shell};
use crate::{misused, near, places};

mod against;
mod picture;

/// Time every table, cache and protocol beside its peers
#[derive(Args, Debug)]
pub(crate) struct BenchArgs {
    /// Print only the table of ratios to x86_64, taken round by round in one run, with confidence intervals
    #[arg(long)]
    summary: bool,
    /// Print the table of ratios as one JSON array; each row says where it was measured
    #[arg(long, requires = "summary")]
    json: bool,
    /// Print the names of the jobs, and what each measures
    #[arg(long, exclusive = true)]
    jobs: bool,
    /// Keep what is measured under this name, for --against
    #[arg(long, value_name = "NAME", conflicts_with = "summary")]
    save: Option<String>,
    /// Compare with what was kept under this name, or with a commit, which is built and measured first; with plots
    #[arg(long, value_name = "BASE", conflicts_with_all = ["summary", "save"])]
    against: Option<String>,
    /// Draw the picture of docs/costs.md, of the ratios to this file
    #[arg(long, value_name = "FILE", conflicts_with_all = ["summary", "save", "against", "parts"])]
    picture: Option<PathBuf>,
    /// How what is measured is compiled
    #[arg(long, default_value = "kernel", conflicts_with_all = ["jobs", "picture"])]
    profile: Profile,
    /// Let parts be whole names: of a job, of a subject or `job/subject`
    #[arg(long, requires_all = ["summary", "parts"])]
    exact: bool,
    /// Only what has one of these in its name, as in `map page/x86_64` [default: all]
    #[arg(value_name = "PART")]
    parts: Vec<String>,
}

/// How the benches and what they measure are compiled.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Profile {
    /// As kernels are: fat LTO and one codegen unit
    Kernel,
    /// As `cargo build --release` does
    Default,
}

impl Profile {
    /// Returns the command that runs the benches with these arguments.
    fn line(self, arguments: impl IntoIterator<Item = String>) -> Line {
        let line = Line::new("cargo", "bench --quiet -p tlbkit-benches --bench all --").with(arguments);
        match self {
            Self::Kernel => line,
            Self::Default => {
                line.set("CARGO_PROFILE_BENCH_LTO", "false").set("CARGO_PROFILE_BENCH_CODEGEN_UNITS", "16")
            }
        }
    }
}

/// Lets a command compile in the release profile as kernels are compiled, which the bench profile does by itself.
pub(crate) fn as_kernels_are(line: Line) -> Line {
    line.set("CARGO_PROFILE_RELEASE_LTO", "fat").set("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1")
}

/// Returns the regular expression that matches what has one of the parts in it.
fn expression(parts: &[String]) -> String {
    let escaped = |part: &String| {
        let plain = |c: char| if c.is_ascii_punctuation() { format!("\\{c}") } else { c.to_string() };
        part.chars().map(plain).collect::<String>()
    };
    parts.iter().map(escaped).collect::<Vec<_>>().join("|")
}

/// Runs it.
pub(crate) fn run(shell: &Shell, args: &BenchArgs) -> anyhow::Result<()> {
    let line = |arguments: &[&str]| args.profile.line(arguments.iter().map(|&argument| argument.to_owned()));
    if args.jobs {
        return shell.run(&line(&["--jobs"]));
    }
    if let Some(file) = &args.picture {
        return picture::draw(file, &line(&["--summary", "--json", "--exact"]));
    }
    if let Some(name) = &args.save
        && (name.is_empty() || name.contains(['/', '\\']))
    {
        misused!("--save {name:?} is no name of a file");
    }
    let base = args.against.as_deref().map(against::Base::find).transpose()?;
    known(&args.parts, &names(&line(&["--list"]))?)?;
    if args.summary {
        let options = [(args.json, "--json"), (args.exact, "--exact")];
        let options = options.into_iter().filter_map(|(is_set, option)| is_set.then_some(option));
        return shell.run(&line(&["--summary"]).with(options).with(&args.parts));
    }
    // Criterion takes one regular expression.
    let chosen: Vec<String> = if args.parts.is_empty() { Vec::new() } else { vec![expression(&args.parts)] };
    match base {
        Some(base) => against::run(shell, &base, &args.profile.line(chosen)),
        None => {
            let save = args.save.iter().flat_map(|name| ["--save-baseline".to_owned(), name.clone()]);
            shell.run(&args.profile.line(chosen).with(save))
        }
    }
}

/// Builds the benches and returns the names of what they measure, `job/subject`.
fn names(line: &Line) -> anyhow::Result<Vec<String>> {
    let output = line.command().stderr(std::process::Stdio::inherit()).output();
    let output = output.with_context(|| format!("cannot run `{line}`"))?;
    ensure!(output.status.success(), "failed ({}); to repeat it: {line}", output.status);
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().filter_map(|line| line.strip_suffix(": benchmark").map(String::from)).collect())
}

/// Checks that each part is in a name.
fn known(parts: &[String], names: &[String]) -> anyhow::Result<()> {
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let Some(part) = parts.iter().find(|part| !names.iter().any(|name| name.contains(part.as_str()))) else {
        return Ok(());
    };
    let unique = |at: usize| {
        let mut all: Vec<&str> = Vec::new();
        for one in names.iter().filter_map(|name| name.split('/').nth(at)) {
            if !all.contains(&one) {
                all.push(one);
            }
        }
        all
    };
    let (jobs, subjects) = (unique(0), unique(1));
    let hint = near::hint(part, near::words(jobs.iter().chain(&subjects).copied()));
    misused!(
        "`{part}` is in no name{hint}\nthe jobs are:\n{}\nthe subjects are:\n{}",
        near::lines(&jobs),
        near::lines(&subjects)
    )
}

/// Returns where criterion keeps what it has measured.
fn kept() -> anyhow::Result<PathBuf> {
    Ok(std::path::absolute(places::target())?.join("criterion"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_that_is_in_no_name_is_refused_with_all_names() {
        let names = ["map page/x86_64", "map page/MPT solo", "fork/MPT solo"].map(str::to_owned);
        let check = |part: &str| known(&[part.to_owned()], &names).map_err(|error| error.to_string());
        assert_eq!(check("map"), Ok(()));
        assert_eq!(check("page/MPT"), Ok(()));
        assert_eq!(check("MPT solo"), Ok(()));
        let error = check("frok").unwrap_err();
        assert!(error.contains("did you mean `fork`?"), "{error}");
        assert_eq!(
            error,
            "`frok` is in no name (did you mean `fork`?)\nthe jobs are:\n  map page | fork\nthe subjects are:\n  x86_64 | MPT \
             solo"
        );
        let many: Vec<_> = (0..60).map(|number| format!("job {number}/x86_64")).collect();
        let listed = known(&["nosuch".to_owned()], &many).unwrap_err().to_string();
        assert!(listed.contains("  job 0 | job 1 |") && listed.contains(" | job 59\n"), "{listed}");
        assert!(listed.lines().all(|line| line.len() <= 100), "{listed}");
    }

    #[test]
    fn parts_are_one_expression_for_criterion() {
        assert_eq!(expression(&["map page/MPT".to_owned(), "a.b".to_owned()]), r"map page\/MPT|a\.b");
    }

    #[test]
    fn the_profile_of_a_run_is_that_of_its_compilation() {
        let lto = |profile: Profile| profile.line([]).to_string().contains("CARGO_PROFILE_BENCH_LTO=false");
        assert!(!lto(Profile::Kernel) && lto(Profile::Default));
        let manifest = include_str!("../../../Cargo.toml");
        assert!(manifest.contains("[profile.bench]\ndebug = 1\nlto = \"fat\"\ncodegen-units = 1\n"));
    }
}
