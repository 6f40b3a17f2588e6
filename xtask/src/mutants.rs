//! `cargo xtask mutants`: every function changed in small ways, one at a time; the crate's tests must notice.

use std::fs;
use std::path::Path;

use anyhow::{Context, bail};
use clap::Args;

use crate::shell::{Line, Shell};
use crate::{places, tools};

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
    caught: usize,
    missed: Vec<String>,
    unviable: usize,
}

/// Runs cargo-mutants over the crates.
pub(crate) fn run(shell: &Shell, args: &MutantsArgs) -> anyhow::Result<()> {
    tools::cargo(shell, "mutants")?;
    let chosen: Vec<_> = match args.crates.as_slice() {
        [] => CRATES.into_iter().filter(|folder| Path::new("crates").join(folder).exists()).collect(),
        crates => crates.iter().map(String::as_str).collect(),
    };
    let mut short = Vec::new();
    for folder in chosen {
        let place = std::path::absolute(places::target())?.join("mutants").join(folder);
        fs::create_dir_all(&place)?;
        let line = Line::new("cargo", "mutants --iterate --package").with([format!("tlbkit-{folder}")]);
        let line = line.with(["--output", &place.to_string_lossy()]);
        let line = line.with(args.shard.iter().flat_map(|shard| ["--shard", shard.as_str()]));
        let line = line.with(args.file.iter().flat_map(|file| ["--file", file.as_str()]));
        // It fails when anything was missed; how much is what counts here.
        let outcome = shell.run(&line);
        let score = score(&place.join("mutants.out")).or_else(|error| outcome.and(Err(error)))?;
        let Score { caught, missed, unviable } = &score;
        let viable = caught + missed.len();
        println!("{folder}: {caught} of {viable} viable mutants noticed, {unviable} more do not compile");
        for mutant in missed {
            println!("  not noticed: {mutant}");
        }
        if caught * 100 < viable * ENOUGH {
            short.push(folder);
        }
    }
    if !short.is_empty() {
        bail!("fewer than {ENOUGH} of 100 mutants were noticed in {}", short.join(", "));
    }
    Ok(())
}

fn score(out: &Path) -> anyhow::Result<Score> {
    let lines = |name: &str| -> anyhow::Result<Vec<String>> {
        let path = out.join(name);
        match fs::read_to_string(&path) {
            Ok(text) => Ok(text.lines().map(String::from).collect()),
            // Written by a second run only.
            Err(_) if name == "previously_caught.txt" => Ok(Vec::new()),
            Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
        }
    };
    let mut caught = lines("caught.txt")?;
    caught.extend(lines("timeout.txt")?);
    caught.extend(lines("previously_caught.txt")?);
    caught.sort();
    caught.dedup();
    Ok(Score { caught: caught.len(), missed: lines("missed.txt")?, unviable: lines("unviable.txt")?.len() })
}
