//! What a fuzzer drives: the parsers, and the explorer's world under one schedule.
//!
//! Not an interface: `fuzz/` and the tests below call it, no other code should.

use std::ffi::OsString;
use std::io::{Cursor, Read};

use clap::CommandFactory;
use tlbkit_shootdown::Algorithm;

use crate::explore::{self, Choice};
use crate::trace::{self, Access, Header, TraceError, Writer};
use crate::{Cli, parse};

/// The most that is unpacked of one input: a few bytes of xz can stand for gigabytes.
const ACCESSES: usize = 1 << 16;

/// Reads a trace, whatever it is. What was read without an error is recorded and read again, and must be the same.
///
/// # Panics
///
/// If it is not the same, or the reader goes on after its end.
pub fn trace(bytes: &[u8]) {
    let Ok(mut trace) = trace::read(Cursor::new(bytes.to_vec())) else { return };
    let mut good = Vec::new();
    for access in trace.by_ref().take(ACCESSES) {
        match access {
            Ok(access) => {
                assert!(access.count > 0, "an access that is none");
                good.push(access);
            }
            Err(error) => assert!(!error.to_string().contains('\n'), "an error of many lines: {error}"),
        }
    }
    let mut file = Cursor::new(Vec::new());
    record(&mut file, &good);
    file.set_position(0);
    assert!(expand(&good).eq(expand(&replay(file).expect("what was just written"))), "another trace");
}

/// Reads lackey's text line by line of `bytes`, each with one of lackey's beginnings, so that most lines get past the
/// first look.
pub fn lackey(lines: &[(u8, Vec<u8>)]) {
    let mut text = Vec::new();
    for (kind, rest) in lines {
        const BEGINNINGS: [&[u8]; 6] = [b"I  ", b" L ", b" S ", b" M ", b"==", b""];
        text.extend_from_slice(BEGINNINGS[usize::from(*kind) % BEGINNINGS.len()]);
        text.extend_from_slice(rest);
        text.push(b'\n');
    }
    trace(&text);
}

fn record(file: &mut Cursor<Vec<u8>>, accesses: &[Access]) {
    let mut writer =
        Writer::create(file, Header::new("fuzz", &[], tlbkit_addr::PageSize::K4)).expect("memory");
    for &access in accesses {
        writer.push(access).expect("memory");
    }
    writer.finish().expect("memory");
}

fn replay(file: impl Read + 'static) -> Result<Vec<Access>, TraceError> {
    trace::read(file)?.collect()
}

/// Returns runs with neighbours joined: how a sequence of references is cut into runs makes no difference.
fn expand(accesses: &[Access]) -> impl Iterator<Item = (trace::Kind, usize, u64)> {
    let mut runs: Vec<(trace::Kind, usize, u64)> = Vec::new();
    for access in accesses {
        match runs.last_mut() {
            Some((kind, page, count)) if (*kind, *page) == (access.kind, access.page.get()) => {
                *count += u64::from(access.count);
            }
            _ => runs.push((access.kind, access.page.get(), access.count.into())),
        }
    }
    runs.into_iter()
}

/// Parses a command line. What is refused is refused in one line.
///
/// # Panics
///
/// If it takes more lines.
pub fn command_line(words: impl IntoIterator<Item = OsString>) {
    let words: Vec<_> = [OsString::from("tlblab")].into_iter().chain(words).collect();
    // Help and version end the program.
    match Cli::command().try_get_matches_from(words.clone()) {
        Err(error) if !error.use_stderr() => return,
        _ => {}
    }
    if let Err(error) = parse(words) {
        let line = error.to_string();
        assert!(!line.contains('\n') && !line.is_empty(), "{line}");
    }
}

/// Runs one algorithm on one kind of hardware under one schedule: each of `choices` takes one of the steps that can
/// be taken next, an interrupt that is not chosen is late or lost, and when they are used up everything must come
/// to its end.
///
/// # Panics
///
/// With the way to it, if a sound pairing is found wrong or cannot end.
pub fn schedule(algorithm: u8, hardware: u8, case: u8, cpus: u8, choices: &[u8]) {
    let algorithm = Algorithm::ALL[usize::from(algorithm) % Algorithm::ALL.len()];
    let choice =
        Choice { algorithm, hardware: hardware.into(), case: case.into(), cpus: 2 + usize::from(cpus % 3) };
    if let Err(why) = explore::one_schedule(&choice, choices) {
        panic!("{why}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_trace_is_refused() {
        for bytes in
            [&b""[..], b"TLBT", b"\x1f\x8b", b"\xfd7zXZ\0", b"I  0401ab70,3\nI  ffffffffffffffff,2\n"]
        {
            trace(bytes);
        }
        lackey(&[(0, b"0401ab70,3".to_vec()), (1, b"1fff000fff,8".to_vec()), (4, b"6678== Lackey".to_vec())]);
    }

    #[test]
    fn what_is_no_command_is_refused_in_one_line() {
        for words in
            [&["mach", "--servers", "1..0"][..], &["superpage", "\n"], &["explore", "--cpus", "5"], &[]]
        {
            command_line(words.iter().map(OsString::from));
        }
    }

    #[test]
    fn every_algorithm_ends_under_a_schedule() {
        for algorithm in 0..Algorithm::ALL.len() as u8 {
            for hardware in 0..13 {
                for case in 0..9 {
                    schedule(algorithm, hardware, case, case, &[0, 3, 1, 4, 1, 5, 9, 2, 6]);
                }
            }
        }
    }
}
