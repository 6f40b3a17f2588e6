//! The names of what the benches measure, known before they are built.

use std::fs;

/// Each line is a bench, or the program of `cargo xtask instructions`, and a name of its own. `benches/tests/names.rs` keeps it.
const FILE: &str = "benches/names.txt";

/// Returns the names of a bench that the file lists: none, if it is not there.
pub(crate) fn listed(bench: &str) -> Vec<String> {
    let text = fs::read_to_string(FILE).unwrap_or_default();
    of(&text, bench)
}

/// Says on the error output that the file lists other names than a bench has.
pub(super) fn compare(bench: &str, names: &[String]) {
    let listed = listed(bench);
    if !listed.is_empty() && listed != names {
        eprintln!("xtask: {FILE} lists other names of the bench `{bench}` than it has: write it anew");
    }
}

fn of(text: &str, bench: &str) -> Vec<String> {
    let name = |line: &str| Some(line.strip_prefix(bench)?.strip_prefix('\t')?.to_owned());
    text.lines().filter_map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_one_bench() {
        let text = "stlb\thit/direct\nstlb_hit\tx\ninstructions\tx86_64\tmap 1\n";
        assert_eq!(of(text, "stlb"), ["hit/direct"]);
        assert_eq!(of(text, "instructions"), ["x86_64\tmap 1"]);
    }
}
