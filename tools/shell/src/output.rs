//! What becomes of a program whose output nobody takes: it ends, without a panic's message and backtrace.

use std::io::{self, Write};
use std::{panic, process};

/// The exit code of a program whose reader has stopped reading, as `head` does: a shell's for SIGPIPE.
pub const UNREAD: i32 = 128 + 13;

/// Lets a `println!` or `eprintln!` that cannot print end the program. That a reader has stopped reading is the reader's wish,
/// and is not said; what else is wrong (no room for a file) is one line, and exit code 1.
pub fn end_when_unread() {
    let usual = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        // The text is the standard library's, which has no other sign of this.
        match info.payload().downcast_ref::<String>() {
            Some(text) if text.starts_with("failed printing to ") => {
                if text.contains("Broken pipe") {
                    process::exit(UNREAD);
                }
                // Not by a macro that panics.
                let _ = writeln!(io::stderr(), "{text}");
                process::exit(1);
            }
            _ => usual(info),
        }
    }));
}

#[cfg(all(test, unix))]
mod tests {
    use std::env;
    use std::fs::File;
    use std::process::{Command, Stdio};

    use super::*;

    const INNER: &str = "TLBKIT_TEST_PRINTS";

    /// Runs the test below once more as a program that prints, on standard error: the harness prints on the other.
    fn code(output: impl Into<Stdio>) -> Option<i32> {
        let name = "output::tests::what_nobody_takes_ends_the_program";
        let mut program = Command::new(env::current_exe().unwrap());
        program.args(["--exact", name, "--nocapture"]).env(INNER, "").stdout(Stdio::null()).stderr(output);
        program.status().unwrap().code()
    }

    #[test]
    fn what_nobody_takes_ends_the_program() {
        if env::var_os(INNER).is_some() {
            end_when_unread();
            loop {
                eprintln!("a line");
            }
        }
        let (reader, unread) = io::pipe().unwrap();
        drop(reader);
        assert_eq!(code(unread), Some(UNREAD));
        assert_eq!(code(File::options().write(true).open("/dev/full").unwrap()), Some(1));
    }
}
