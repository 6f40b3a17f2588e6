//! What a line says that DynamoRIO's view tool prints of a drmemtrace trace (`drrun -t drmemtrace -tool view`).
//!
//! ```text
//! Output format:
//! <--record#-> <--instr#->: <---tid---> <record details>
//! ------------------------------------------------------------
//!            1           0:     3264503 <marker: version 7>                                   passed over
//!            8           1:     3264503 ifetch       3 byte(s) @ 0x00007fe7a1c3a910 48 89 e7  mov %rsp -> %rdi
//!            9           1:     3264503 write        8 byte(s) @ 0x00007ffe49ad5ec8 by PC 0x00007fe7a1c3a910
//!           10           2:     3264503 pref-r-L1    1 byte(s) @ ...                           passed over: no reference of the program
//!           94           3:     3264503                                              00        the rest of an encoding
//! View tool results:                                                                           the end
//! ```
//!
//! Threads are of one program, in the order in which the tool has them.

use super::Kind;
use super::text::{Said, Syntax, digits};

pub(super) const SYNTAX: Syntax = Syntax { of: "DynamoRIO's view tool", read };

/// How the tool's output begins.
const BEGIN: &[u8] = b"Output format:";

/// Tells whether a text begins as the tool's output does, or a part of it without the head.
pub(super) fn is_view(head: &[u8]) -> bool {
    let line = head.split(|&byte| byte == b'\n').next().unwrap_or(head).trim_ascii();
    line.starts_with(BEGIN) || line.first().is_some_and(u8::is_ascii_digit) && read(line).is_some()
}

fn read(text: &[u8]) -> Option<Said> {
    if text.is_empty() || [BEGIN, b"<--", b"--"].iter().any(|head| text.starts_with(head)) {
        return Some(Said::Nothing);
    }
    if text.starts_with(b"View tool results:") {
        return Some(Said::End);
    }
    let colon = text.iter().position(|&byte| byte == b':')?;
    let mut numbers = words(&text[..colon]).peekable();
    numbers.peek()?;
    if !numbers.all(|number| digits(number, 10).is_some()) {
        return None;
    }
    // A thread's number comes first.
    let mut details = words(&text[colon + 1..]).skip(1).peekable();
    let Some(&what) = details.peek() else { return Some(Said::Nothing) };
    if what.starts_with(b"<") || details.clone().all(|word| word.len() == 2 && digits(word, 16).is_some()) {
        return Some(Said::Nothing);
    }
    let [size, unit, place, at] = [details.nth(1)?, details.next()?, details.next()?, details.next()?];
    if (unit, place) != (&b"byte(s)"[..], &b"@"[..]) {
        return None;
    }
    let (size, at) = (digits(size, 10)?, digits(at.strip_prefix(b"0x")?, 16)?);
    Some(match what {
        b"ifetch" => Said::Reference(Kind::Instr, at, size),
        b"read" => Said::Reference(Kind::Load, at, size),
        b"write" => Said::Reference(Kind::Store, at, size),
        // Prefetches, and flushes of caches.
        _ => Said::Nothing,
    })
}

fn words(text: &[u8]) -> impl Iterator<Item = &[u8]> + Clone {
    text.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty())
}
