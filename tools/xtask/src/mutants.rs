//! `cargo xtask mutants`: the program of the folder `mutants`, with what it needs installed.

use std::fs;

use anyhow::Context;
use clap::Args;

use crate::shell::{Line, Shell};
use crate::{misused, near, tools};

/// Change every function in small ways, one at a time; the tests must notice 95 of 100. Goes on where it was
/// interrupted, with what no test has noticed so far
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
pub(crate) struct MutantsArgs {
    /// Arguments of the program: `--help` lists them
    #[arg(value_name = "ARGS", trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<String>,
}

/// Judges the mutants of the crates.
pub(crate) fn run(shell: &Shell, args: &MutantsArgs) -> anyhow::Result<()> {
    let mut known = Vec::new();
    for folder in fs::read_dir("crates").context("cannot list crates")? {
        known.push(folder?.file_name().to_string_lossy().into_owned());
    }
    known.sort();
    check(&args.args, &known)?;
    if !asks(&args.args) {
        tools::cargo(shell, "mutants")?;
        tools::toolchain(shell, tools::NIGHTLY, &[])?;
    }
    shell.run(&Line::new("cargo", "run --quiet -p tlbkit-mutants --").with(&args.args))
}

/// Tells whether the arguments ask what the program is, and not for its work: an answer needs no tools.
fn asks(words: &[String]) -> bool {
    words.iter().any(|word| ["-h", "--help", "-V", "--version"].contains(&word.as_str()))
}

/// Checks the names of crates among the program's arguments, before anything is installed or built for them.
fn check(words: &[String], known: &[String]) -> anyhow::Result<()> {
    let mut is_value = false;
    for word in words {
        let is_name = !is_value && !word.starts_with('-');
        is_value = ["--shard", "--file"].contains(&word.as_str());
        if is_name && !known.contains(word) {
            let hint = near::hint(word, known.iter().map(String::as_str));
            misused!("there is no folder `{word}` of crates{hint}; there are: {}", known.join(" | "));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crate_that_is_none_is_refused() {
        let known = ["addr", "stlb"].map(String::from);
        let check = |line: &str| {
            let words: Vec<_> = line.split(' ').map(String::from).collect();
            check(&words, &known).map_err(|error| error.to_string())
        };
        for line in ["addr stlb", "--shard 0/8 addr", "--file=x.rs addr --woven", "--help"] {
            assert_eq!(check(line), Ok(()), "{line}");
        }
        let refused = check("--shard 0/8 adr").unwrap_err();
        assert_eq!(
            refused,
            "there is no folder `adr` of crates (did you mean `addr`?); there are: addr | stlb"
        );
    }
}
