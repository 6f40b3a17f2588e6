//! `cargo xtask mutants`: every function changed in small ways, one at a time; the crate's tests must notice.
//!
//! The mutants are those of cargo-mutants, which builds and tests the crate once for each of them: days, for some
//! thousands. Here all of them are woven into one copy of the sources, each behind a switch, which is built once; the
//! tests that come by a mutant then run with its switch on, one by one, until the first fails.
//!
//! ```text
//! list ── the mutants, as cargo-mutants finds them
//! copy ── the workspace, to be changed
//! sites, weave ── the sources with all mutants in them
//! viable ── built, without those that do not compile
//! tests ── each test's time and the mutants it comes by
//! judge ── which mutants are noticed
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, bail};
use clap::Args;

use self::judge::Notes;
use self::list::Mutant;
use self::weave::{Cloth, Homeless, Number};
use crate::shell::Shell;
use crate::{places, tools};

mod copy;
mod judge;
mod list;
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
}

const CRATES: [&str; 6] = ["addr", "pagetable", "stlb", "superpage", "shootdown", "refill"];

/// Of a hundred mutants, as many must be noticed.
const ENOUGH: usize = 95;

/// What became of a crate's mutants.
#[derive(Debug, Default)]
struct Score {
    noticed: usize,
    missed: Vec<String>,
    unviable: usize,
    unwoven: Vec<String>,
}

/// Judges the mutants of the crates.
pub(crate) fn run(shell: &Shell, args: &MutantsArgs) -> anyhow::Result<()> {
    tools::cargo(shell, "mutants")?;
    tools::toolchain(shell, tools::NIGHTLY, &[])?;
    let chosen: Vec<_> = match args.crates.as_slice() {
        [] => CRATES.into_iter().filter(|folder| Path::new("crates").join(folder).exists()).collect(),
        crates => crates.iter().map(String::as_str).collect(),
    };
    let only: Vec<_> = args.shard.iter().map(|shard| format!("--shard={shard}")).collect();
    let only = [only, args.file.iter().map(|file| format!("--file={file}")).collect()].concat();
    let mut short = Vec::new();
    for folder in chosen {
        let score = score(folder, &only)?;
        let Score { noticed, missed, unviable, unwoven } = &score;
        let viable = noticed + missed.len();
        println!(
            "{folder}: {noticed} of {viable} viable mutants noticed, {unviable} do not compile, {} not woven",
            unwoven.len()
        );
        for mutant in missed {
            println!("  not noticed: {mutant}");
        }
        for mutant in unwoven {
            println!("  not woven: {mutant}");
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

fn score(folder: &str, only: &[String]) -> anyhow::Result<Score> {
    let package = format!("tlbkit-{folder}");
    let place = std::path::absolute(places::target())?.join("mutants").join(folder);
    // The numbers are those of all mutants, whichever are asked for.
    let all = list::list(&package, &[])?;
    let chosen: BTreeSet<_> = list::list(&package, only)?.into_iter().map(|mutant| mutant.name).collect();
    let copy = copy::copy(place.join("copy"), folder)?;
    let (cloths, homeless) = cloths(all)?;

    let noticed = Notes::open(place.join(format!("noticed-{:016x}", copy.sources)))?;
    let missed = Notes::open(place.join(format!("missed-{:016x}", copy.all)))?;
    let built = viable::build(&copy.root, &package, &cloths)?;
    let tests_in = copy.root.join("crates").join(folder);
    let mut tests = tests::tests(&built)?;
    tests::survey(&mut tests, &tests_in, &place.join("reached"))?;

    let names: BTreeMap<Number, &str> = cloths
        .values()
        .flat_map(Cloth::mutants)
        .map(|(number, mutant)| (number, mutant.name.as_str()))
        .filter(|(_, name)| chosen.contains(*name))
        .collect();
    let left_out = &built.unviable | &built.unwoven;
    let trials: Vec<_> = names
        .iter()
        .filter(|(number, _)| !left_out.contains(number))
        .map(|(&number, &name)| (number, name))
        .collect();
    judge::judge(&trials, &tests, &tests_in, &noticed, &missed)?;

    let noticed = Notes::open(place.join(format!("noticed-{:016x}", copy.sources)))?;
    let missed = Notes::open(place.join(format!("missed-{:016x}", copy.all)))?;
    let mut score = Score::default();
    for (number, name) in &names {
        if built.unviable.contains(number) {
            score.unviable += 1;
        } else if noticed.known.contains_key(*name) {
            score.noticed += 1;
        } else if let Some(why) = missed.known.get(*name) {
            score.missed.push(format!("{name} ({why})"));
        } else {
            score.unwoven.push((*name).to_owned());
        }
    }
    for Homeless { name, ungrammatical } in
        homeless.into_iter().filter(|homeless| chosen.contains(&homeless.name))
    {
        if ungrammatical {
            score.unviable += 1;
        } else {
            score.unwoven.push(name);
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
