//! `cargo bench`: every table, cache, policy and protocol beside its peers. The program's arguments are those of [`tlbkit_benches::main`].
#![allow(missing_docs)]

use std::process::ExitCode;

use tlbkit_benches::{Subjects, others};

fn main() -> ExitCode {
    tlbkit_benches::main(Subjects::all().and(others::cases()))
}
