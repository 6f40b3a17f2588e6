//! `benches/names.txt` says what the benches of tables measure and what `instructions` counts, so that `cargo xtask` knows a
//! name that is wrong before it builds them.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use tlbkit_benches::Subjects;

/// The benches whose names are listed by hand: `cargo xtask bench` says when they are others.
const BY_HAND: [&str; 4] = ["stlb", "superpage", "yardsticks", "shootdown"];

#[test]
fn the_names_are_those_of_the_benches() {
    let cases = Subjects::all().cases();
    let mut names: Vec<_> = cases.iter().map(|case| format!("tables\t{}", case.name())).collect();
    let output = Command::new(env!("CARGO_BIN_EXE_instructions")).output().expect("the program runs");
    let text = String::from_utf8(output.stdout).expect("names");
    names.extend(text.lines().map(|line| format!("instructions\t{line}")));
    let unique: BTreeSet<_> = names.iter().collect();
    assert_eq!(unique.len(), names.len());
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("names.txt");
    let listed = std::fs::read_to_string(&path).unwrap_or_default();
    let by_hand = listed.lines().filter(|line| BY_HAND.iter().any(|bench| line.starts_with(bench)));
    let wanted: String =
        names.iter().map(String::as_str).chain(by_hand).map(|line| format!("{line}\n")).collect();
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, wanted).expect("the file can be written");
    } else {
        assert!(
            listed == wanted,
            "benches/names.txt is not what the benches measure: run this test with BLESS=1"
        );
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
