//! The woven sources built, without the mutants that do not compile.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use serde_json::Value;

use super::copy;
use super::weave::{Number, SourceFile, Woven};

/// What was built.
#[derive(Debug, Default)]
pub(crate) struct Built {
    /// Mutants that do not compile.
    pub(crate) unviable: BTreeSet<Number>,
    /// Mutants that were left out because something else does not compile with them.
    pub(crate) unwoven: BTreeSet<Number>,
    /// The programs of the tests, with their names.
    pub(crate) programs: Vec<(String, PathBuf)>,
    /// The programs of the examples in the documentation.
    pub(crate) examples: Vec<PathBuf>,
}

/// What cargo said.
#[derive(Debug, Default)]
pub(crate) struct Said {
    pub(crate) errors: Vec<Value>,
    pub(crate) programs: Vec<(String, PathBuf)>,
}

/// Weaves and builds until it compiles, without those that are known not to from the beginning.
pub(crate) fn build(
    root: &Path,
    package: &str,
    files: &BTreeMap<String, SourceFile>,
    unviable: BTreeSet<Number>,
) -> anyhow::Result<Built> {
    let mut built = Built { unviable, ..Built::default() };
    // The programs of examples stay where they are told to.
    let place = root.join("examples-built");
    if place.exists() {
        fs::remove_dir_all(&place)?;
    }
    for step in ["check --lib", "test --no-run", "test --doc"] {
        loop {
            let without = &built.unviable | &built.unwoven;
            let mut woven = BTreeMap::new();
            for (path, file) in files {
                let text = file.weave(&without);
                copy::write(&root.join(path), text.text.as_bytes())?;
                woven.insert(path.as_str(), text);
            }
            let said = cargo(root, step, package, &place)?;
            if said.errors.is_empty() {
                built.programs.extend(said.programs);
                break;
            }
            let before = without.len();
            for error in &said.errors {
                blame(error, &woven, &mut built);
            }
            let now = built.unviable.union(&built.unwoven).count();
            eprintln!("  {} errors; {} mutants do not compile", said.errors.len(), now);
            if now == before {
                bail!("the woven sources do not compile:\n{}", rendered(&said.errors[0]));
            }
        }
    }
    for entry in fs::read_dir(place).into_iter().flatten() {
        let program = entry?.path().join("rust_out");
        built.examples.extend(program.exists().then_some(program));
    }
    built.examples.sort();
    Ok(built)
}

/// Finds the mutants that an error comes from.
fn blame(error: &Value, woven: &BTreeMap<&str, Woven>, built: &mut Built) {
    let spans = error["spans"].as_array().map_or(&[][..], Vec::as_slice);
    for primary in [true, false] {
        for span in spans.iter().filter(|span| span["is_primary"] == primary) {
            let Some((woven, start, end)) = place(span, woven) else { continue };
            let around = woven.mutants.iter().filter(|(range, _)| range.start <= start && end <= range.end);
            if let Some((_, number)) = around.min_by_key(|(range, _)| range.len()) {
                built.unviable.insert(*number);
                return;
            }
            let inside = woven.mutants.iter().filter(|(range, _)| start <= range.start && range.end <= end);
            let before = built.unwoven.len();
            built.unwoven.extend(inside.map(|(_, number)| number));
            if built.unwoven.len() > before {
                eprintln!("  left out for:\n{}", rendered(error));
                return;
            }
        }
    }
    // An error in a function's signature comes from a mutant of its body, as a constant function that no longer moves its argument.
    let primary = spans.iter().find(|span| span["is_primary"] == true);
    if let Some((woven, _, end)) = primary.and_then(|span| place(span, woven)) {
        let behind = woven.mutants.iter().filter(|(range, _)| end <= range.start);
        if let Some((_, number)) = behind.min_by_key(|(range, _)| range.start) {
            built.unwoven.insert(*number);
            eprintln!("  left out for:\n{}", rendered(error));
        }
    }
}

/// Returns where a span of an error is, or where the macro was called that it is in.
fn place<'a>(mut span: &Value, woven: &'a BTreeMap<&str, Woven>) -> Option<(&'a Woven, usize, usize)> {
    loop {
        if let Some(woven) = span["file_name"].as_str().and_then(|file| woven.get(file)) {
            let byte = |name: &str| span[name].as_u64().map(|byte| byte as usize);
            return Some((woven, byte("byte_start")?, byte("byte_end")?));
        }
        span = span["expansion"].get("span")?;
    }
}

fn rendered(error: &Value) -> &str {
    error["rendered"].as_str().unwrap_or_default()
}

/// Lets cargo check or build the package's tests, the documentation's programs at a place of their own.
pub(crate) fn cargo(root: &Path, step: &str, package: &str, place: &Path) -> anyhow::Result<Said> {
    // A place for each crate, so that several can be judged at once.
    let target = root.with_file_name("build");
    let mut command = Command::new("cargo");
    command.arg("+nightly").args(step.split(' ')).args(["--package", package]);
    command.args(["--quiet", "--message-format", "json", "--target-dir"]).arg(target);
    // Errors only, which lints that are errors by themselves are as well.
    command.env("RUSTFLAGS", "-Awarnings");
    // All those switches take the optimizer longer than they take the tests.
    command.env("CARGO_PROFILE_TEST_OPT_LEVEL", "1").env("CARGO_PROFILE_TEST_DEBUG", "0");
    // With switches in it, what the examples evaluate at compile time takes longer.
    let flags = format!(
        "-Awarnings -Along_running_const_eval -Zunstable-options --persist-doctests {}",
        place.display()
    );
    command.env("RUSTDOCFLAGS", &flags);
    command.current_dir(root).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().context("cannot run cargo")?;
    let mut said = Said::default();
    for text in BufReader::new(child.stdout.take().context("cargo has no output")?).lines() {
        let Ok(value) = serde_json::from_str::<Value>(&text?) else { continue };
        let message = &value["message"];
        if message["level"] == "error" && message["spans"].as_array().is_some_and(|spans| !spans.is_empty()) {
            said.errors.push(message.clone());
        }
        if let (Some(path), true) = (value["executable"].as_str(), value["profile"]["test"] == true) {
            said.programs.push((value["target"]["name"].as_str().unwrap_or("").into(), path.into()));
        }
    }
    if !child.wait()?.success() && said.errors.is_empty() {
        bail!("failed; to repeat it in {}: {command:?}", root.display());
    }
    Ok(said)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Returns the mutants that an error at some bytes is blamed on: those that do not compile, and those that are left out.
    fn blamed(start: usize, end: usize) -> (Vec<Number>, Vec<Number>) {
        let woven = Woven { text: String::new(), mutants: vec![(30..32, 7), (31..32, 8), (50..52, 9)] };
        let span = json!({ "is_primary": true, "file_name": "a.rs", "byte_start": start, "byte_end": end });
        let mut built = Built::default();
        blame(&json!({ "spans": [span], "rendered": "" }), &BTreeMap::from([("a.rs", woven)]), &mut built);
        (built.unviable.into_iter().collect(), built.unwoven.into_iter().collect())
    }

    #[test]
    fn an_error_is_blamed_on_the_mutant_around_it_or_inside_or_behind() {
        assert_eq!(blamed(31, 32), (vec![8], vec![]));
        assert_eq!(blamed(30, 31), (vec![7], vec![]));
        assert_eq!(blamed(20, 40), (vec![], vec![7, 8]));
        assert_eq!(blamed(10, 14), (vec![], vec![7]));
        assert_eq!(blamed(60, 61), (vec![], vec![]));
    }
}
