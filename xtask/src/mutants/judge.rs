//! Which mutants the tests notice, kept as it is found.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use anyhow::Context;

use super::tests::{self, Test};
use super::weave::Number;

/// What is known of mutants, by name: lines of a file, each with a tab and more of it.
#[derive(Debug)]
pub(super) struct Notes {
    pub(super) known: BTreeMap<String, String>,
    file: Mutex<File>,
}

impl Notes {
    /// Opens the file.
    pub(super) fn open(path: PathBuf) -> anyhow::Result<Self> {
        let text = fs::read_to_string(&path).unwrap_or_default();
        let known = text.lines().filter_map(|line| line.split_once('\t'));
        let known = known.map(|(name, more)| (name.to_owned(), more.to_owned())).collect();
        let file = File::options().create(true).append(true).open(&path);
        let file = file.with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self { known, file: Mutex::new(file) })
    }

    fn add(&self, name: &str, more: &str) -> anyhow::Result<()> {
        let Ok(mut file) = self.file.lock() else { return Ok(()) };
        Ok(file.write_all(format!("{name}\t{more}\n").as_bytes())?)
    }
}

/// What one mutant comes to.
#[derive(Debug)]
struct Trial<'a> {
    number: Number,
    name: &'a str,
}

/// Lets the tests that come by a mutant judge it, the quickest first, for each that is not noted yet.
pub(super) fn judge(
    mutants: &[(Number, &str)],
    tests: &[Test],
    folder: &Path,
    noticed: &Notes,
    missed: &Notes,
) -> anyhow::Result<()> {
    let known = |name: &str| noticed.known.contains_key(name) || missed.known.contains_key(name);
    let mut trials: Vec<_> = mutants
        .iter()
        .filter(|(_, name)| !known(name))
        .map(|&(number, name)| Trial { number, name })
        .collect();
    tests::each("mutants", &mut trials, |_, trial| {
        let mut reach = 0;
        for test in tests.iter().filter(|test| test.reaches.contains(&trial.number)) {
            reach += 1;
            if !test.passes(folder, ("MUTANT", &trial.number.to_string()))? {
                return noticed.add(trial.name, &test.name);
            }
        }
        missed.add(trial.name, &format!("{reach} tests come by"))
    })
}
