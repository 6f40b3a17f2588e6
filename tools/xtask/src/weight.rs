//! `cargo xtask weight`: how many lines of code, of tests and of documentation there are, by package.
//!
//! A line that is not blank is one of three things:
//!
//! - a *test*, in a folder `tests`, in a file `tests.rs`, or from `#[cfg(test)]` before a module with a body to the end of a file;
//! - *documentation*, a comment of the rest, or a line of a page (`.md`);
//! - *code*, everything else that is Rust.
//!
//! What each folder may weigh is decided in `weight.txt`, and a test compares.

use std::collections::BTreeMap;
use std::fs;
use std::ops::AddAssign;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};
use clap::Args;
use serde_json::json;

/// Count the lines of code, tests and documentation by package, beside what is allowed
#[derive(Args, Debug)]
pub(crate) struct WeightArgs {
    /// Print one JSON array
    #[arg(long)]
    json: bool,
}

/// Lines, of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Lines {
    code: usize,
    tests: usize,
    docs: usize,
}

impl AddAssign for Lines {
    fn add_assign(&mut self, more: Self) {
        self.code += more.code;
        self.tests += more.tests;
        self.docs += more.docs;
    }
}

impl Lines {
    /// Counts the lines of a file.
    fn of(path: &Path, text: &str) -> Self {
        let mut lines = Self::default();
        let mut in_tests =
            path.components().any(|part| part.as_os_str() == "tests") || path.ends_with("tests.rs");
        let page = path.extension().is_some_and(|extension| extension == "md");
        let mut rest = text.lines().map(str::trim).filter(|line| !line.is_empty()).peekable();
        while let Some(line) = rest.next() {
            in_tests |= line == "#[cfg(test)]"
                && rest.peek().is_some_and(|next| next.starts_with("mod ") && next.ends_with('{'));
            let kind = match () {
                () if in_tests => &mut lines.tests,
                () if page || line.starts_with("//") => &mut lines.docs,
                () => &mut lines.code,
            };
            *kind += 1;
        }
        lines
    }

    fn all(self) -> [usize; 3] {
        [self.code, self.tests, self.docs]
    }
}

/// Prints the table.
pub(crate) fn run(args: &WeightArgs) -> anyhow::Result<()> {
    let packages = packages(Path::new("."))?;
    if args.json {
        let row = |(folder, lines): (&String, &Lines)| {
            let Lines { code, tests, docs } = lines;
            json!({ "folder": folder, "code": code, "tests": tests, "docs": docs })
        };
        println!("{:#}", packages.iter().map(row).collect::<serde_json::Value>());
        return Ok(());
    }
    println!("{:32}{:>8}{:>8}{:>8}", "", "code", "tests", "docs");
    let print =
        |name: &str, [code, tests, docs]: [usize; 3]| println!("{name:32}{code:>8}{tests:>8}{docs:>8}");
    packages.iter().for_each(|(folder, lines)| print(folder, lines.all()));
    println!();
    for (folder, limits) in limits()? {
        print(&folder, within(&packages, &folder).all());
        print("  at most", limits);
    }
    Ok(())
}

/// Counts the lines of each package: those below its folder which are not below the folder of another.
fn packages(root: &Path) -> anyhow::Result<BTreeMap<String, Lines>> {
    let known = ["ls-files", "--", "*.rs", "*.md", "*Cargo.toml"];
    let output = Command::new("git").args(known).current_dir(root).output().context("cannot run git")?;
    ensure!(output.status.success(), "git cannot list the files");
    let files = String::from_utf8(output.stdout)?;
    let mut packages: BTreeMap<String, Lines> = files
        .lines()
        .filter_map(|file| file.strip_suffix("/Cargo.toml"))
        .map(|folder| (folder.into(), Lines::default()))
        .collect();
    for file in files.lines().filter(|file| !file.ends_with("Cargo.toml")) {
        let path = root.join(file);
        // A file that git knows may have been deleted since.
        let Ok(text) = fs::read_to_string(&path) else { continue };
        let own = Path::new(file).ancestors().skip(1).find_map(|folder| {
            let folder = folder.to_str()?;
            packages.contains_key(folder).then(|| folder.to_owned())
        });
        let top = || file.split_once('/').map_or(".", |(top, _)| top).to_owned();
        *packages.entry(own.unwrap_or_else(top)).or_default() += Lines::of(Path::new(file), &text);
    }
    Ok(packages)
}

/// Adds up the packages in a folder.
fn within(packages: &BTreeMap<String, Lines>, folder: &str) -> Lines {
    let mut sum = Lines::default();
    packages
        .iter()
        .filter(|(package, _)| Path::new(package).starts_with(folder))
        .for_each(|(_, lines)| sum += *lines);
    sum
}

/// Reads what each folder may weigh: the most lines of code, of tests and of documentation.
fn limits() -> anyhow::Result<Vec<(String, [usize; 3])>> {
    let rows = include_str!("weight.txt").lines().filter(|line| !line.starts_with('#'));
    rows.map(|line| {
        let mut words = line.split_whitespace();
        let folder = words.next().context("a line without a folder")?.to_owned();
        let numbers = words.map(str::parse).collect::<Result<Vec<_>, _>>()?;
        Ok((folder, numbers.try_into().ok().context("a folder has three numbers")?))
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_of_one_kind() {
        let text = "//! Page.\n\nuse a;\n/// Doc.\nfn b() {}\n#[cfg(test)]\nuse c;\n#[cfg(test)]\nmod tests {\n    // why\n}\n";
        assert_eq!(Lines::of(Path::new("src/a.rs"), text), Lines { code: 4, tests: 4, docs: 2 });
        assert_eq!(
            Lines::of(Path::new("crates/a/tests/all/b.rs"), text),
            Lines { tests: 10, ..Lines::default() }
        );
        assert_eq!(Lines::of(Path::new("docs/a.md"), "# A\n\nb\n"), Lines { docs: 2, ..Lines::default() });
    }

    /// Weight is decided: whoever adds more than was allowed says so in `weight.txt`, and whoever deletes lowers it.
    #[test]
    fn nothing_weighs_more_than_was_decided() {
        let packages = packages(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")).unwrap();
        for (folder, limits) in limits().unwrap() {
            let lines = within(&packages, &folder).all();
            for ((kind, lines), limit) in ["code", "tests", "docs"].into_iter().zip(lines).zip(limits) {
                assert!(lines <= limit, "{folder}: {lines} lines of {kind}, and {limit} are allowed");
                assert!(
                    lines + limit / 10 >= limit,
                    "{folder}: only {lines} lines of {kind}: lower the limit of {limit}"
                );
            }
        }
    }
}
