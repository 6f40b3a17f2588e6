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
    let package = format!("tlbkit-{folder}");
    let place = std::path::absolute(places::target())?.join("mutants").join(folder);
    // The numbers are those of all mutants, whichever are asked for.
    let all = list::list(&package, &[])?;
    let shard = args.shard.iter().map(|shard| format!("--shard={shard}"));
    let only: Vec<_> = shard.chain(args.file.iter().map(|file| format!("--file={file}"))).collect();
    let asked: BTreeSet<_> = list::list(&package, &only)?.into_iter().map(|mutant| mutant.name).collect();
    let copy = copy::copy(place.join("woven"), folder)?;
    let notes = Notes::open(&place, &copy)?;
    let (cloths, homeless) = cloths(all)?;
    let is_unviable = |name: &str| matches!(notes.get(name), Some((Verdict::Unviable, _)));
    let unviable =
        cloths.values().flat_map(Cloth::mutants).filter(|(_, mutant, _)| is_unviable(&mutant.name));
    let unviable = unviable.map(|(number, ..)| number).collect();
    let built = viable::build(&copy.root, &package, &cloths, unviable)?;

    let woven: Vec<_> = cloths
        .values()
        .flat_map(Cloth::mutants)
        .filter(|(_, mutant, _)| asked.contains(&mutant.name))
        .collect();
    let homeless: Vec<_> = homeless.iter().filter(|homeless| asked.contains(&homeless.mutant.name)).collect();
    let left_out = &built.unviable | &built.unwoven;
    let mut trials = Vec::new();
    for &(number, mutant, _) in &woven {
        if !left_out.contains(&number) {
            trials.push((number, mutant.name.as_str()));
        } else if built.unviable.contains(&number) && notes.get(&mutant.name).is_none() {
            notes.add(&mutant.name, Verdict::Unviable, "")?;
        }
    }
    for Homeless { mutant, ungrammatical } in &homeless {
        if *ungrammatical && notes.get(&mutant.name).is_none() {
            notes.add(&mutant.name, Verdict::Unviable, "")?;
        }
    }
    let folder_of_tests = copy.root.join("crates").join(folder);
    let mut tests = tests::tests(&built)?;
    tests::survey(&mut tests, &folder_of_tests, &place.join("reached"))?;
    judge::judge(&trials, &tests, &folder_of_tests, &notes)?;

    // What was missed may matter at compile time only.
    let alone = |mutant: &Mutant, constant: bool| match notes.get(&mutant.name) {
        None => true,
        Some((Verdict::Missed, why)) => constant && why != ALONE,
        Some(_) => false,
    };
    let mutants = woven.iter().map(|&(_, mutant, constant)| (mutant, constant));
    let mutants: Vec<_> = mutants.chain(homeless.iter().map(|homeless| (&homeless.mutant, true))).collect();
    let alone: Vec<_> = mutants
        .iter()
        .filter(|(mutant, constant)| alone(mutant, *constant))
        .map(|(mutant, _)| *mutant)
        .collect();
    if !alone.is_empty() && !args.woven {
        Alone::new(place.join("alone"), folder, &alone)?.judge(&alone, &notes)?;
    }

    let mut score = Score::default();
    for (mutant, _) in mutants {
        let name = &mutant.name;
        match notes.get(name) {
            Some((Verdict::Noticed, _)) => score.noticed += 1,
            Some((Verdict::Unviable, _)) => score.unviable += 1,
            Some((Verdict::Missed, why)) => score.missed.push(format!("{name} ({why})")),
            None => score.open.push(name.clone()),
        }
    }
    Ok(score)
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
