//! What became of mutants, kept as it is found, so that a run goes on where one was interrupted.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::Context;

use super::copy::Copy;

/// What became of a mutant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// A test fails.
    Noticed,
    /// It does not compile.
    Unviable,
    /// All tests pass.
    Missed,
}

/// The verdicts on a crate's mutants, by name, each with the reason: a file for each verdict. A mutant that was noticed
/// is so until the crate's sources change; one that was missed, until anything does.
#[derive(Debug)]
pub(crate) struct Notes {
    verdicts: Mutex<BTreeMap<String, (Verdict, String)>>,
    files: Vec<(Verdict, File)>,
}

impl Notes {
    /// Opens the notes in a folder that are about what was copied.
    pub(crate) fn open(folder: &Path, copy: &Copy) -> anyhow::Result<Self> {
        let names = [
            (Verdict::Missed, format!("missed-{:016x}", copy.all)),
            (Verdict::Unviable, format!("unviable-{:016x}", copy.sources)),
            (Verdict::Noticed, format!("noticed-{:016x}", copy.sources)),
        ];
        let (mut verdicts, mut files) = (BTreeMap::new(), Vec::new());
        for (verdict, name) in names {
            let path = folder.join(name);
            let text = fs::read_to_string(&path).unwrap_or_default();
            let lines = text.lines().filter_map(|line| line.split_once('\t'));
            verdicts.extend(lines.map(|(name, why)| (name.to_owned(), (verdict, why.to_owned()))));
            let file = File::options().create(true).append(true).open(&path);
            files.push((verdict, file.with_context(|| format!("cannot write {}", path.display()))?));
        }
        Ok(Self { verdicts: Mutex::new(verdicts), files })
    }

    /// Notes a verdict.
    pub(crate) fn add(&self, name: &str, verdict: Verdict, why: &str) -> anyhow::Result<()> {
        for (_, file) in self.files.iter().filter(|(other, _)| *other == verdict) {
            let mut file = file;
            file.write_all(format!("{name}\t{why}\n").as_bytes()).context("cannot write the notes")?;
        }
        self.verdicts().insert(name.to_owned(), (verdict, why.to_owned()));
        Ok(())
    }

    /// Returns what became of a mutant, and why, if it is known.
    pub(crate) fn get(&self, name: &str) -> Option<(Verdict, String)> {
        self.verdicts().get(name).cloned()
    }

    /// Returns how many mutants of a file a test noticed whose name begins so.
    pub(crate) fn noticed_by(&self, file: &str, test: &str) -> usize {
        let verdicts = self.verdicts();
        let noticed = verdicts.iter().filter(|(_, (verdict, _))| *verdict == Verdict::Noticed);
        noticed.filter(|(name, (_, why))| name.starts_with(file) && why.starts_with(test)).count()
    }

    fn verdicts(&self) -> MutexGuard<'_, BTreeMap<String, (Verdict, String)>> {
        self.verdicts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
