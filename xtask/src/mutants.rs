//! `cargo xtask mutants`: every function changed in small ways, one at a time; the crate's tests must notice.
//!
//! The mutants are those of cargo-mutants, which builds and tests the crate once for each of them: days, for some
//! thousands. Here all of them are woven into one copy of the sources, each behind a switch, which is built once; the
//! tests that come by a mutant then run with its switch on, one by one, until the first fails. Only what is evaluated
//! at compile time has no switch: those mutants are built one by one.
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
use std::fs;
use std::path::Path;

use anyhow::{Context, bail};
use clap::Args;

use self::alone::{ALONE, Alone};
use self::copy::Copy;
use self::list::Mutant;
use self::notes::{Notes, Verdict};
use self::weave::{Cloth, Homeless};
use crate::shell::Shell;
use crate::{places, tools};

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
#[derive(Args, Debug)]
pub(crate) struct MutantsArgs {
    /// Folders of crates [default: addr pagetable stlb superpage shootdown refill]
    #[arg(value_name = "CRATE")]
    crates: Vec<String>,
    /// Only this part of each crate's mutants, as in 0/8
    #[arg(long, value_name = "PART")]
    shard: Option<String>,
    /// Only mutants in these files
    #[arg(long, value_name = "GLOB")]
    file: Vec<String>,
    /// Only those that need no build of their own, as they matter at run time
    #[arg(long)]
    woven: bool,
}

impl MutantsArgs {
    /// Returns what cargo-mutants is to be told of the mutants that are asked for.
    fn only(&self) -> Vec<String> {
        let shard = self.shard.iter().map(|shard| format!("--shard={shard}"));
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

/// Judges the mutants of the crates.
pub(crate) fn run(shell: &Shell, args: &MutantsArgs) -> anyhow::Result<()> {
    tools::cargo(shell, "mutants")?;
    tools::toolchain(shell, tools::NIGHTLY, &[])?;
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

fn score(folder: &str, args: &MutantsArgs) -> anyhow::Result<Score> {
    let place = std::path::absolute(places::target())?.join("mutants").join(folder);
    let asked = list::list(&package(folder), &args.only())?;
    let asked: BTreeSet<_> = asked.into_iter().map(|mutant| mutant.name).collect();
    // The numbers are those of all mutants, whichever are asked for.
    let (cloths, homeless) = cloths(list::list(&package(folder), &[])?)?;
    let copy = copy::copy(place.join("woven"), folder)?;
    let notes = Notes::open(&place, &copy)?;
    for Homeless { mutant, .. } in homeless.iter().filter(|homeless| homeless.ungrammatical) {
        if notes.get(&mutant.name).is_none() {
            notes.add(&mutant.name, Verdict::Unviable, "no Rust")?;
        }
    }
    woven(folder, &copy, &cloths, &asked, &notes)?;

    let mutants = cloths.values().flat_map(Cloth::mutants).map(|(_, mutant, constant)| (mutant, constant));
    let mutants = mutants.chain(homeless.iter().map(|homeless| (&homeless.mutant, true)));
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
    cloths: &BTreeMap<String, Cloth>,
    asked: &BTreeSet<String>,
    notes: &Notes,
) -> anyhow::Result<()> {
    let mutants: Vec<_> = cloths.values().flat_map(Cloth::mutants).collect();
    let verdict = |mutant: &Mutant| notes.get(&mutant.name).map(|(verdict, _)| verdict);
    let unviable = mutants.iter().filter(|(_, mutant, _)| verdict(mutant) == Some(Verdict::Unviable));
    let unviable = unviable.map(|&(number, ..)| number).collect();
    let built = viable::build(&copy.root, &package(folder), cloths, unviable)?;
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
    format!("tlbkit-{folder}")
}

/// Finds the sites of the mutants, file by file.
fn cloths(mutants: Vec<Mutant>) -> anyhow::Result<(BTreeMap<String, Cloth>, Vec<Homeless>)> {
    let mut files: BTreeMap<String, Vec<Mutant>> = BTreeMap::new();
    for mutant in mutants {
        files.entry(mutant.file.clone()).or_default().push(mutant);
    }
    let (mut cloths, mut homeless) = (BTreeMap::new(), Vec::new());
    let mut next = 1;
    for (file, mutants) in files {
        let source = fs::read_to_string(&file).with_context(|| format!("cannot read {file}"))?;
        let (cloth, without) = Cloth::new(source, mutants, &mut next)?;
        cloths.insert(file, cloth);
        homeless.extend(without);
    }
    Ok((cloths, homeless))
}
