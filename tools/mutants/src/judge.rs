//! Which of the woven mutants the tests notice.

use std::path::Path;

use super::list::Mutant;
use super::notes::{Notes, Verdict};
use super::tests::{self, Test};
use super::weave::Number;

/// Lets the tests that come by a mutant judge it.
pub(crate) fn judge(
    mutants: &mut [(Number, &Mutant)],
    tests: &[Test],
    folder: &Path,
    notes: &Notes,
) -> anyhow::Result<()> {
    tests::each("mutants", mutants, |_, (number, mutant)| {
        let mut reaching: Vec<_> = tests.iter().filter(|test| test.reaches.contains(number)).collect();
        // The quickest first, and those that noticed others in the file: a test that fails is soon at its end.
        reaching.sort_by_cached_key(|test| {
            test.time / (1 + notes.noticed_by(&mutant.file, &test.name)).try_into().unwrap_or(u32::MAX)
        });
        for test in &reaching {
            if !test.passes(folder, ("MUTANT", &number.to_string()))? {
                return notes.add(&mutant.name, Verdict::Noticed, &test.name);
            }
        }
        notes.add(&mutant.name, Verdict::Missed, &format!("{} tests come by", reaching.len()))
    })
}
