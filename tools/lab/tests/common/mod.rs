//! What the tests of the binary share.
#![allow(dead_code, reason = "each test uses a part")]

use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// The structures, in the order in which they are printed.
pub(crate) const NAMES: [&str; 15] = [
    "MPT", "LPT", "G2", "G4", "G8", "G16", "G32", "G64", "G128", "G256", "GA", "H8k", "H128k", "HR", "C128k",
];

/// Returns the command, without input.
pub(crate) fn tlblab(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tlblab"));
    command.args(args).stdin(Stdio::null());
    command
}

/// Returns the rows that it printed.
pub(crate) fn rows(output: &Output) -> Vec<Value> {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    match serde_json::from_slice(&output.stdout) {
        Ok(Value::Array(rows)) => rows,
        other => panic!("standard output is no array: {other:?}; {errors}"),
    }
}

/// Returns the names of the rows.
pub(crate) fn names(rows: &[Value]) -> Vec<&str> {
    rows.iter().filter_map(|row| row["name"].as_str()).collect()
}
