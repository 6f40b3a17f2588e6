//! Mutants that no switch can choose, as they are evaluated at compile time: each is built by itself.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use super::list::Mutant;
use super::notes::{Notes, Verdict};
use super::tests::{self, Test};
use super::{copy, viable, weave};

/// Why a mutant that was built by itself was missed.
pub(crate) const ALONE: &str = "built by itself";

/// A copy of the workspace with the sources as they are.
#[derive(Debug)]
pub(crate) struct Alone {
    root: PathBuf,
    package: String,
    /// Where the tests run.
    folder: PathBuf,
    /// The names of the tests' programs.
    programs: Vec<String>,
    tests: Vec<Test>,
}

impl Alone {
    /// Copies and builds them, files that have mutants anew; the tests must pass.
    pub(crate) fn new(root: PathBuf, crate_folder: &str, mutants: &[&Mutant]) -> anyhow::Result<Self> {
        let package = crate::package(crate_folder);
        copy::copy(root.clone(), crate_folder)?;
        for mutant in mutants {
            copy::write(&root.join(&mutant.file), &fs::read(&mutant.file)?)?;
        }
        let folder = root.join("crates").join(crate_folder);
        let built = viable::build(&root, &package, &BTreeMap::new(), BTreeSet::new())?;
        let mut tests = tests::tests(&built)?;
        tests::survey(&mut tests, &folder, &root.join("reached"))?;
        let programs = built.programs.into_iter().map(|(name, _)| name).collect();
        Ok(Self { root, package, folder, programs, tests })
    }

    /// Lets the tests judge each mutant.
    pub(crate) fn judge(&self, mutants: &[&Mutant], notes: &Notes) -> anyhow::Result<()> {
        let bar = tests::bar(mutants.len(), "mutants, each built")?;
        for mutant in mutants {
            let (path, source) = (self.root.join(&mutant.file), fs::read_to_string(&mutant.file)?);
            fs::write(&path, weave::mutated(&source, mutant))?;
            let verdict = self.verdict(&self.likely(&mutant.file, notes));
            fs::write(&path, source)?;
            let (verdict, why) = verdict?;
            notes.add(&mutant.name, verdict, &why)?;
            bar.inc(1);
        }
        bar.finish_and_clear();
        Ok(())
    }

    /// Returns the programs, first those that noticed most mutants in a file so far.
    fn likely(&self, file: &str, notes: &Notes) -> Vec<&str> {
        let mut programs: Vec<_> = self.programs.iter().map(String::as_str).collect();
        programs.sort_by_cached_key(|program| Reverse(notes.noticed_by(file, program)));
        programs
    }

    fn verdict(&self, programs: &[&str]) -> anyhow::Result<(Verdict, String)> {
        for &program in programs {
            let library = program == self.package.replace('-', "_");
            let target = if library { "--lib".into() } else { format!("--test {program}") };
            let step = format!("test --no-run {target}");
            let said = viable::cargo(&self.root, &step, &self.package, Path::new("examples"))?;
            if !said.errors.is_empty() {
                return Ok((Verdict::Unviable, ALONE.into()));
            }
            for test in self.tests.iter().filter(|test| test.is_in(program)) {
                if !test.passes(&self.folder, ("MUTANT", "0"))? {
                    return Ok((Verdict::Noticed, test.name.clone()));
                }
            }
        }
        Ok((Verdict::Missed, ALONE.into()))
    }
}
