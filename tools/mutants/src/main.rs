//! Changes every function of a crate in small ways, one at a time; the crate's tests must notice. `README.md` beside this
//! file says why and how.
//!
//! ```text
//! list ── the mutants, as cargo-mutants finds them
//! copy ── the workspace, to be changed
//! sites, weave ── the sources with all mutants in them
//! viable ── built, without those that do not compile
//! tests ── each test's time and the mutants it comes by
//! judge ── which mutants are noticed
//! alone ── those that are built one by one
//! notes ── what is known so far
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{env, fs};

use anyhow::{Context, bail};
use clap::Parser;

use self::alone::{ALONE, Alone};
use self::copy::Copy;
use self::list::Mutant;
use self::notes::{Notes, Verdict};
use self::weave::{SourceFile, Unplaced};

mod alone;
mod copy;
mod judge;
mod list;
mod notes;
mod sites;
mod tests;
mod viable;
mod weave;

/// Change every function in small ways, one at a time; the tests must notice 95 of 100. Goes on where it was
/// interrupted, with what no test has noticed so far
#[derive(Parser, Debug)]
#[command(name = "cargo xtask mutants", version)]
struct Args {
    /// Folders of crates [default: addr pagetable stlb superpage shootdown refill]
    #[arg(value_name = "CRATE")]
    crates: Vec<String>,
    /// Only this part of each crate's mutants, as in 0/8: every eighth, from all files
    #[arg(long, value_name = "PART")]
    shard: Option<String>,
    /// Only mutants in these files
    #[arg(long, value_name = "GLOB")]
    file: Vec<String>,
    /// Only those that need no build of their own, as they matter at run time
    #[arg(long)]
    woven: bool,
}

impl Args {
    /// Returns what cargo-mutants is to be told of the mutants that are asked for.
    fn only(&self) -> Vec<String> {
        let shard = self.shard.iter().flat_map(|shard| {
            // A part is a sample of the whole crate, and not its first files.
            [format!("--shard={shard}"), "--sharding=round-robin".into()]
        });
        shard.chain(self.file.iter().map(|file| format!("--file={file}"))).collect()
    }
}

const CRATES: [&str; 6] = ["addr", "pagetable", "stlb", "superpage", "shootdown", "refill"];

/// Of a hundred mutants, as many must be noticed.
const ENOUGH: usize = 95;

/// What became of a crate's mutants.
#[derive(Debug, Default)]
struct Score {
    noticed: usize,
    unviable: usize,
    missed: Vec<String>,
    open: Vec<String>,
}

fn main() -> ExitCode {
    tlbkit_shell::output::end_when_unread();
    match enter_root().and_then(|()| run(&Args::parse())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mutants: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Makes the workspace's root the working directory, wherever the command was given.
fn enter_root() -> anyhow::Result<()> {
    let own = env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    let root = Path::new(&own).ancestors().nth(2).context("the package is in no workspace")?;
    env::set_current_dir(root).with_context(|| format!("cannot enter {}", root.display()))
}

/// Judges the mutants of the crates.
fn run(args: &Args) -> anyhow::Result<()> {
    let chosen: Vec<_> = match args.crates.as_slice() {
        [] => CRATES.into_iter().filter(|folder| Path::new("crates").join(folder).exists()).collect(),
        crates => crates.iter().map(String::as_str).collect(),
    };
    let mut short = Vec::new();
    for folder in chosen {
        let Score { noticed, unviable, missed, open } = score(folder, args)?;
        let viable = noticed + missed.len();
        print!("{folder}: {noticed} of {viable} viable mutants noticed, {unviable} more do not compile");
        println!(", {} are evaluated at compile time and not judged", open.len());
        for (state, mutants) in [("not noticed", &missed), ("not judged", &open)] {
            for mutant in mutants {
                println!("  {state}: {mutant}");
            }
        }
        if noticed * 100 < viable * ENOUGH {
            short.push(folder);
        }
    }
    if !short.is_empty() {
        bail!("fewer than {ENOUGH} of 100 mutants were noticed in {}", short.join(", "));
    }
    Ok(())
}

fn score(folder: &str, args: &Args) -> anyhow::Result<Score> {
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from);
    let place = std::path::absolute(target)?.join("mutants").join(folder);
    let asked = list::list(&package(folder), &args.only())?;
    let asked: BTreeSet<_> = asked.into_iter().map(|mutant| mutant.name).collect();
    // The numbers are those of all mutants, whichever are asked for.
    let (files, unplaced) = files(list::list(&package(folder), &[])?)?;
    let copy = copy::copy(place.join("woven"), folder)?;
    let notes = Notes::open(&place, &copy)?;
    for Unplaced { mutant, .. } in unplaced.iter().filter(|unplaced| unplaced.ungrammatical) {
        if notes.get(&mutant.name).is_none() {
            notes.add(&mutant.name, Verdict::Unviable, "no Rust")?;
        }
    }
    woven(folder, &copy, &files, &asked, &notes)?;

    let mutants =
        files.values().flat_map(SourceFile::mutants).map(|(_, mutant, constant)| (mutant, constant));
    let mutants = mutants.chain(unplaced.iter().map(|unplaced| (&unplaced.mutant, true)));
    let mutants: Vec<_> = mutants.filter(|(mutant, _)| asked.contains(&mutant.name)).collect();
    let is_open = |mutant: &Mutant, constant: bool| match notes.get(&mutant.name) {
        None => true,
        // It may matter at compile time only.
        Some((Verdict::Missed, why)) => constant && why != ALONE,
        Some(_) => false,
    };
    let open = mutants.iter().filter(|(mutant, constant)| is_open(mutant, *constant));
    let open: Vec<_> = open.map(|(mutant, _)| *mutant).collect();
    if !open.is_empty() && !args.woven {
        Alone::new(place.join("alone"), folder, &open)?.judge(&open, &notes)?;
    }

    let mut score = Score::default();
    for (Mutant { name, .. }, _) in mutants {
        match notes.get(name) {
            Some((Verdict::Noticed, _)) => score.noticed += 1,
            Some((Verdict::Unviable, _)) => score.unviable += 1,
            Some((Verdict::Missed, why)) => score.missed.push(format!("{name} ({why})")),
            None => score.open.push(name.clone()),
        }
    }
    Ok(score)
}

/// Judges the mutants that can be woven into the sources.
fn woven(
    folder: &str,
    copy: &Copy,
    files: &BTreeMap<String, SourceFile>,
    asked: &BTreeSet<String>,
    notes: &Notes,
) -> anyhow::Result<()> {
    let mutants: Vec<_> = files.values().flat_map(SourceFile::mutants).collect();
    let verdict = |mutant: &Mutant| notes.get(&mutant.name).map(|(verdict, _)| verdict);
    let unviable = mutants.iter().filter(|(_, mutant, _)| verdict(mutant) == Some(Verdict::Unviable));
    let unviable = unviable.map(|&(number, ..)| number).collect();
    let built = viable::build(&copy.root, &package(folder), files, unviable)?;
    for (_, mutant, _) in mutants.iter().filter(|(number, ..)| built.unviable.contains(number)) {
        if verdict(mutant).is_none() {
            notes.add(&mutant.name, Verdict::Unviable, "as the compiler says")?;
        }
    }
    let tests_in = copy.root.join("crates").join(folder);
    let mut tests = tests::tests(&built)?;
    tests::survey(&mut tests, &tests_in, &copy.root.join("reached"))?;
    let trials = mutants.iter().filter(|(number, mutant, _)| {
        asked.contains(&mutant.name) && verdict(mutant).is_none() && !built.unwoven.contains(number)
    });
    let mut trials: Vec<_> = trials.map(|&(number, mutant, _)| (number, mutant)).collect();
    judge::judge(&mut trials, &tests, &tests_in, notes)
}

fn package(folder: &str) -> String {
    if folder == "tlbkit" { folder.into() } else { format!("tlbkit-{folder}") }
}

/// Finds the sites of the mutants in each source file, and the mutants that have none.
fn files(mutants: Vec<Mutant>) -> anyhow::Result<(BTreeMap<String, SourceFile>, Vec<Unplaced>)> {
    let mut by_path: BTreeMap<String, Vec<Mutant>> = BTreeMap::new();
    for mutant in mutants {
        by_path.entry(mutant.file.clone()).or_default().push(mutant);
    }
    let (mut files, mut unplaced) = (BTreeMap::new(), Vec::new());
    let mut next = 1;
    for (path, mutants) in by_path {
        let source = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        let (file, without) = SourceFile::new(source, mutants, &mut next)?;
        files.insert(path, file);
        unplaced.extend(without);
    }
    Ok((files, unplaced))
}
