//! `cargo xtask bench`: every table beside its peers, by criterion or as ratios.

use std::path::PathBuf;

use anyhow::{Context, ensure};
use clap::Args;

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
    /// Print the names of the tables' jobs, and what each measures
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
    /// Only what has one of these in its name, as in `map page/x86_64` [default: all]
    #[arg(value_name = "PART")]
    parts: Vec<String>,
}

/// A bench and how it chooses.
struct Bench {
    name: &'static str,
    /// Criterion takes one regular expression; the others take words.
    criterion: bool,
}

const BENCHES: [Bench; 5] = [
    Bench { name: "tables", criterion: true },
    Bench { name: "stlb", criterion: true },
    Bench { name: "superpage", criterion: true },
    Bench { name: "yardsticks", criterion: true },
    Bench { name: "shootdown", criterion: false },
];

impl Bench {
    /// Returns the command that runs it with these arguments.
    fn line(&self, arguments: impl IntoIterator<Item = String>) -> Line {
        let line = Line::new("cargo", "bench --quiet -p tlbkit-benches --bench").with([self.name, "--"]);
        line.with(arguments)
    }

    /// Returns its arguments that choose the parts.
    fn choose(&self, parts: &[String]) -> Vec<String> {
        match parts {
            [] => Vec::new(),
            parts if self.criterion => vec![expression(parts)],
            parts => parts.to_vec(),
        }
    }
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
    let tables = &BENCHES[0];
    if args.jobs {
        return shell.run(&tables.line(["--jobs".to_owned()]));
    }
    if let Some(file) = &args.picture {
        return picture::draw(file, &tables.line(["--summary".to_owned(), "--json".to_owned()]));
    }
    if args.summary {
        known(&args.parts, &[names(tables)?])?;
        let options = ["--summary"].into_iter().chain(args.json.then_some("--json")).map(String::from);
        return shell.run(&tables.line(options.chain(args.parts.iter().cloned())));
    }
    if let Some(name) = &args.save
        && (name.is_empty() || name.contains(['/', '\\']))
    {
        misused!("--save {name:?} is no name of a file");
    }
    let base = args.against.as_deref().map(against::Base::find).transpose()?;
    let names: Vec<_> = BENCHES.iter().map(names).collect::<Result<_, _>>()?;
    known(&args.parts, &names)?;
    let has = |names: &Vec<String>| {
        args.parts.is_empty() || names.iter().any(|name| args.parts.iter().any(|part| name.contains(part)))
    };
    let chosen: Vec<&Bench> =
        BENCHES.iter().zip(&names).filter(|(_, names)| has(names)).map(|(bench, _)| bench).collect();
    if let Some(base) = base {
        return against::run(shell, &base, &chosen, &args.parts);
    }
    for bench in chosen {
        let save = args.save.iter().filter(|_| bench.criterion);
        let save = save.flat_map(|name| ["--save-baseline".to_owned(), name.clone()]);
        shell.run(&bench.line(bench.choose(&args.parts).into_iter().chain(save)))?;
    }
    Ok(())
}

/// Builds a bench and returns the names of what it measures, `job/subject`.
fn names(bench: &Bench) -> anyhow::Result<Vec<String>> {
    let line = bench.line(["--list".to_owned()]);
    let output = line.command().stderr(std::process::Stdio::inherit()).output();
    let output = output.with_context(|| format!("cannot run `{line}`"))?;
    ensure!(output.status.success(), "failed ({}); to repeat it: {line}", output.status);
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().filter_map(|line| line.strip_suffix(": benchmark").map(String::from)).collect())
}

/// Checks that each part is in a name.
fn known(parts: &[String], names: &[Vec<String>]) -> anyhow::Result<()> {
    let names: Vec<&str> = names.iter().flatten().map(String::as_str).collect();
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
        let names = [
            vec!["map page/x86_64".to_owned(), "map page/MPT solo".to_owned()],
            vec!["fork/MPT solo".into()],
        ];
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
        let many = [(0..60).map(|number| format!("job {number}/x86_64")).collect::<Vec<_>>()];
        let listed = known(&["nosuch".to_owned()], &many).unwrap_err().to_string();
        assert!(listed.contains("  job 0 | job 1 |") && listed.contains(" | job 59\n"), "{listed}");
        assert!(listed.lines().all(|line| line.len() <= 100), "{listed}");
    }

    #[test]
    fn parts_are_one_expression_for_criterion_and_words_for_the_others() {
        let parts = ["map page/MPT".to_owned(), "a.b".to_owned()];
        assert_eq!(BENCHES[0].choose(&parts), [r"map page\/MPT|a\.b"]);
        assert_eq!(BENCHES[4].choose(&parts), parts);
        assert!(BENCHES[0].choose(&[]).is_empty());
    }
}
