//! CONTRIBUTING names every file that a new table, format, policy, machine or algorithm joins, and no file that is not there.

use std::fs;
use std::path::{Path, PathBuf};

/// A section of CONTRIBUTING, and what is there of its kind: for each, the words of which a file that names it has one.
const KINDS: [(&str, &[&[&str]]); 5] = [
    ("A table", &[&["mpt::"], &["lpt::"], &["gpt::"], &["hpt::"], &["cpt::"]]),
    (
        "An entry format",
        &[&["entrylo", "EntryLo"], &["riscv"], &["x86_64", "X86_64"], &["aarch64", "Aarch64"]],
    ),
    (
        "A promotion policy",
        &[
            &["ApproxOnline"],
            &["Online"],
            &["Asap"],
            &["Asap464"],
            &["Thrift"],
            &["Reservation"],
            &["Background"],
            &["Coverage"],
            &["Runs"],
        ],
    ),
    (
        "A machine",
        &[&["riscv64", "Riscv64"], &["x86_64", "X86_64"], &["aarch64", "Aarch64"], &["mips32", "Mips32"]],
    ),
    (
        "A shootdown algorithm",
        &[
            &["PteFirst"],
            &["TlbFirst"],
            &["TwoPhase"],
            &["Optimistic"],
            &["PteFirstAsync"],
            &["TlbFirstAsync"],
            &["OptimisticAsync"],
            &["PteFirstRemote"],
            &["TlbFirstRemote"],
            &["OptimisticRemote"],
        ],
    ),
];

/// Where code is.
const PLACES: [&str; 10] = [
    "benches/examples",
    "benches/src",
    "crates",
    "examples/embed/src",
    "examples/kernel",
    "examples/mips32/src",
    "fuzz/targets",
    "tools/boot/src",
    "tools/lab/src",
    "tools/xtask/src",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Adds the Rust files below a folder, as paths from the root.
fn sources(folder: &str, all: &mut Vec<String>) {
    for entry in fs::read_dir(root().join(folder)).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let path = format!("{folder}/{name}");
        if name.ends_with(".rs") && name != "contributing.rs" {
            all.push(path);
        } else if name != "target" && root().join(&path).is_dir() {
            sources(&path, all);
        }
    }
}

/// Tells whether a text has a word that no letter, digit or underscore continues on either side.
fn names(text: &str, word: &str) -> bool {
    let of_a_word = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word).any(|(at, _)| {
        let (before, after) = (&text[..at], &text[at + word.len()..]);
        !before.ends_with(of_a_word) && (word.ends_with(':') || !after.starts_with(of_a_word))
    })
}

/// Returns what stands between a heading and the next.
fn section<'a>(text: &'a str, heading: &str) -> &'a str {
    let (_, rest) = text.split_once(&format!("\n## {heading}\n")).unwrap();
    rest.split("\n## ").next().unwrap()
}

#[test]
fn a_file_that_names_nearly_all_of_a_kind_is_in_its_list() {
    let text = fs::read_to_string(root().join("CONTRIBUTING.md")).unwrap();
    let mut files = Vec::new();
    PLACES.iter().for_each(|place| sources(place, &mut files));
    for (heading, members) in KINDS {
        let list = section(&text, heading);
        let mut missing = Vec::new();
        for file in &files {
            let code = fs::read_to_string(root().join(file)).unwrap();
            // A file's own tests name what they need.
            let code = code.split("#[cfg(test)]\nmod tests {").next().unwrap();
            let named = members.iter().filter(|words| words.iter().any(|word| names(code, word))).count();
            let (_, name) = file.rsplit_once('/').unwrap();
            // The list names a file by its path, or by its name beside one of the same folder.
            let folder = &file[..file.len() - name.len() - 1];
            let listed = list.contains(&format!("`{file}`"))
                || list.contains(folder) && list.contains(&format!("`{name}`"));
            if named + 1 >= members.len() && named >= 4 && !listed {
                missing.push(file);
            }
        }
        assert!(missing.is_empty(), "\"{heading}\" does not speak of {missing:?}");
    }
}

#[test]
fn every_file_that_contributing_names_is_there() {
    let text = fs::read_to_string(root().join("CONTRIBUTING.md")).unwrap();
    let mut count = 0;
    let is_path = |word: &&str| word.contains('/') && !word.contains(' ') && !word.starts_with("target/");
    for path in text.split('`').skip(1).step_by(2).filter(is_path) {
        assert!(root().join(path).exists(), "{path}");
        count += 1;
    }
    assert!(count > 30, "{count} paths");
}
