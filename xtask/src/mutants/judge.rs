//! Which of the woven mutants the tests notice.

use std::path::Path;

use super::notes::{Notes, Verdict};
use super::tests::{self, Test};
use super::weave::Number;

/// Lets the tests that come by a mutant judge it, the quickest first.
pub(super) fn judge(
    mutants: &mut [(Number, &str)],
    tests: &[Test],
    folder: &Path,
    notes: &Notes,
) -> anyhow::Result<()> {
    tests::each("mutants", mutants, |_, (number, name)| {
        let mut reach = 0;
        for test in tests.iter().filter(|test| test.reaches.contains(number)) {
            reach += 1;
            if !test.passes(folder, ("MUTANT", &number.to_string()))? {
                return notes.add(name, Verdict::Noticed, &test.name);
            }
        }
        notes.add(name, Verdict::Missed, &format!("{reach} tests come by"))
    })
}
