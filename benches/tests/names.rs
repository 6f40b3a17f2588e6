//! The names of what the benches of tables measure and what `instructions` counts.

use std::collections::BTreeSet;
use std::process::Command;

use tlbkit_benches::Subjects;

/// A name chooses one case: of no two are the names the same.
#[test]
fn no_two_have_one_name() {
    let output = Command::new(env!("CARGO_BIN_EXE_instructions")).output().expect("the program runs");
    let counted = String::from_utf8(output.stdout).expect("names");
    let timed: Vec<_> = Subjects::all().cases().iter().map(|case| case.name()).collect();
    for names in [timed, counted.lines().map(String::from).collect()] {
        let unique: BTreeSet<_> = names.iter().collect();
        assert!(names.len() > 100 && unique.len() == names.len(), "{names:?}");
    }
}

#[test]
fn each_of_our_tables_has_the_name_that_every_program_uses() {
    let cases = Subjects::all().cases();
    let ours = cases.iter().filter_map(|case| {
        let (table, mode) = case.subject.split_once(' ')?;
        (["solo", "shared"].contains(&mode) && !["X86", "Sv39"].contains(&table)).then_some(table)
    });
    let ours: BTreeSet<_> = ours.collect();
    assert!(ours.len() > 5, "{ours:?}");
    assert!(ours.iter().all(|table| tlbkit_names::ALL.contains(table)), "{ours:?}");
}
