//! What the mutants are: cargo-mutants says.

use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use serde_json::Value;

/// A change to one place of the sources.
#[derive(Clone, Debug)]
pub(crate) struct Mutant {
    /// As cargo-mutants calls it: file, line, column, and what is changed.
    pub(crate) name: String,
    pub(crate) file: String,
    pub(crate) kind: Kind,
    /// What is replaced, lines and columns from 1.
    pub(crate) from: (usize, usize),
    pub(crate) to: (usize, usize),
    pub(crate) replacement: String,
}

/// What is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A function's body becomes a value.
    Body,
    /// An operator becomes another one.
    Binary,
    /// An operator is left out.
    Unary,
    /// An arm of a match is left out.
    Arm,
    /// The condition of an arm becomes true or false.
    Guard,
    /// A field is left to the base of a struct expression.
    Field,
}

/// What cargo-mutants does not know to be tests where there is more than `test` to their condition.
const TESTS: [&str; 4] = ["--exclude", "**/src/**/tests/**", "--exclude", "**/src/**/tests.rs"];

/// Asks cargo-mutants for the mutants of a package, or those of them that `only` chooses.
pub(crate) fn list(package: &str, only: &[String]) -> anyhow::Result<Vec<Mutant>> {
    let mut line = Command::new("cargo");
    line.args(["mutants", "--list", "--json", "--package", package]).args(TESTS).args(only);
    let output = line.stderr(Stdio::inherit()).output().context("cannot run cargo")?;
    if !output.status.success() {
        bail!("failed ({}); to repeat it: {line:?}", output.status);
    }
    let Value::Array(values) = serde_json::from_slice(&output.stdout)? else {
        bail!("`{line:?}` prints no list");
    };
    values
        .iter()
        .map(|value| read(value).with_context(|| format!("`{line:?}` prints what is no mutant: {value}")))
        .collect()
}

fn read(value: &Value) -> Option<Mutant> {
    let text = |name: &str| value[name].as_str().map(String::from);
    let place = |end: &str| {
        let number = |name: &str| value["span"][end][name].as_u64().map(|number| number as usize);
        Some((number("line")?, number("column")?))
    };
    let kind = match value["genre"].as_str()? {
        "FnValue" => Kind::Body,
        "BinaryOperator" => Kind::Binary,
        "UnaryOperator" => Kind::Unary,
        "MatchArm" => Kind::Arm,
        "MatchArmGuard" => Kind::Guard,
        "StructField" => Kind::Field,
        _ => return None,
    };
    Some(Mutant {
        name: text("name")?,
        file: text("file")?,
        kind,
        from: place("start")?,
        to: place("end")?,
        replacement: text("replacement")?,
    })
}
