//! The command line of `tlblab`: what is refused is refused in one line, and nothing panics.
#![no_main]

use std::ffi::OsString;

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
struct Input {
    command: u8,
    words: Vec<Word>,
}

/// An option that there is, mostly; or anything.
#[derive(Arbitrary, Debug)]
enum Word {
    Known(u8),
    Value(u8, u8),
    Any(String),
}

const COMMANDS: [&str; 9] =
    ["capture", "explore", "mach", "model", "sweep", "shootdown", "superpage", "tables", "help"];

const WORDS: [&str; 40] = [
    "--json",
    "--help",
    "--algorithm",
    "--hardware",
    "--cpus",
    "--fewer",
    "--limit",
    "--servers",
    "--clients",
    "--scheme",
    "--granularity",
    "--seed",
    "--seeds",
    "--policy",
    "--policies",
    "--tlb",
    "--tlb-pages",
    "--tlb-entries",
    "--trace",
    "--trace-file",
    "--workload",
    "--layout",
    "--threshold",
    "--thresholds",
    "--capacity",
    "--pages",
    "--table",
    "--rate",
    "--update",
    "--measure",
    "--speed",
    "--end-to-end",
    "--check",
    "--hazards",
    "--damages",
    "-o",
    "-",
    "--",
    "ls",
    "approx-online",
];

/// The characters of numbers, ranges and lists.
const CHARACTERS: &[u8] = b"0123456789.,=+-:/%kKmMgG eE";

fn spell(word: Word) -> OsString {
    match word {
        Word::Known(at) => WORDS[usize::from(at) % WORDS.len()].into(),
        Word::Value(one, other) => {
            let character = |at: u8| char::from(CHARACTERS[usize::from(at) % CHARACTERS.len()]);
            let low = u32::from(one) << (other % 24);
            format!("{}{}{low}", u32::from(one), character(other)).into()
        }
        Word::Any(text) => text.into(),
    }
}

fuzz_target!(|input: Input| {
    let command = COMMANDS[usize::from(input.command) % COMMANDS.len()];
    tlblab::fuzzing::command_line(
        [command.into()].into_iter().chain(input.words.into_iter().take(12).map(spell)),
    );
});
