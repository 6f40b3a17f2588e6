//! Page tables: under criterion one group a job, one function a subject; with `--summary` as ratios within one run.
#![allow(missing_docs)]

use std::process::ExitCode;

use tlbkit_benches::Subjects;

fn main() -> ExitCode {
    tlbkit_benches::main(Subjects::all())
}
