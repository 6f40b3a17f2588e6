//! What a line says that `valgrind --tool=lackey --trace-mem=yes` prints.
//!
//! ```text
//! ==6678== Lackey, an example Valgrind tool      valgrind's own messages: passed over
//! I  0401ab70,3                                  an instruction: address, size
//!  L 1fff000688,8                                a load
//!  S 1fff000688,8                                a store
//!  M 04033e06,1                                  a load and a store
//! @1                                             ours: what follows is of program 1, until the next of these
//! ```

use super::Kind;
use super::text::{Said, Syntax, digits};

pub(super) const SYNTAX: Syntax = Syntax { of: "lackey's", read };

fn read(text: &[u8]) -> Option<Said> {
    // Messages, `==process==` or `--process--`, and empty lines.
    if text.is_empty() || text.starts_with(b"==") || text.starts_with(b"--") {
        return Some(Said::Message);
    }
    if let Some(number) = text.strip_prefix(b"@") {
        return digits(number, 10).filter(|&program| program <= u8::MAX.into()).map(Said::Program);
    }
    let (kind, rest) = text.split_at_checked(3)?;
    let kind = match kind {
        b"I  " => Kind::Instr,
        b" L " => Kind::Load,
        b" S " => Kind::Store,
        b" M " => Kind::Modify,
        _ => return None,
    };
    let comma = rest.iter().position(|&byte| byte == b',')?;
    Some(Said::Reference(kind, digits(&rest[..comma], 16)?, digits(&rest[comma + 1..], 10)?))
}
