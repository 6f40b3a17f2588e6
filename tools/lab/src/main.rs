//! The command `tlblab`; all of it is in the library, where the fuzzer reaches it too.

use std::process::ExitCode;

fn main() -> ExitCode {
    tlblab::main()
}
