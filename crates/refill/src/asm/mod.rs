//! A small assembler: the instructions that refill handlers are made of, and labels to branch to.
//!
//! Everything is `const`, so that a handler can be assembled at compile time as well as at boot. Instructions are
//! methods named as in the manual, with operands in the order of assembly language. They return nothing: what goes
//! wrong (an instruction that the CPU does not have, a branch too far, no room) is remembered, and
//! [`finish`](Asm::finish) reports the first of it.
//!
//! ```
//! use tlbkit_refill::asm::{Asm, Code, Cp0, K0, K1};
//! use tlbkit_refill::features::Isa;
//!
//! const CODE: Code = {
//!     let mut a = Asm::new(Isa::R2);
//!     let nothing = a.label();
//!     a.mfc0(K0, Cp0::BadVAddr);
//!     a.bltz(K0, nothing);
//!     a.srl(K1, K0, 12); // in the delay slot
//!     a.bind(nothing);
//!     a.eret();
//!     match a.finish(64) {
//!         Ok(code) => code,
//!         Err(_) => panic!("the handler does not fit"),
//!     }
//! };
//! assert_eq!(CODE.words(), [0x401a_4000, 0x0740_0001, 0x001a_db02, 0x4200_0018]);
//! ```

mod encode;
mod reg;

pub use reg::{Cp0, K0, K1, Reg, ZERO};

use crate::Error;
use crate::features::Isa;

/// The most words that a piece of code can have.
pub const MOST: usize = 256;
const LABELS: usize = 64;
const FIXUPS: usize = 128;
/// The place of a label that is not bound yet.
const UNBOUND: i32 = i32::MIN;

/// A place in the code, to branch to before or after it is [bound](Asm::bind).
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct Label(usize);

/// Code under construction.
#[derive(Clone, Debug)]
pub struct Asm {
    isa: Isa,
    words: [u32; MOST],
    len: usize,
    /// Where each label is, in words from the start.
    labels: [i32; LABELS],
    label_count: usize,
    /// Branches whose offset is filled in at the end: the word, and its label.
    fixups: [(usize, usize); FIXUPS],
    fixup_count: usize,
    error: Option<Error>,
}

/// Finished code: words for the machine's own byte order, to be stored as `u32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code {
    words: [u32; MOST],
    len: usize,
}

impl Code {
    /// Returns the words.
    pub const fn words(&self) -> &[u32] {
        self.words.split_at(self.len).0
    }
}

impl Asm {
    /// Returns no code, for a CPU with these instructions.
    pub const fn new(isa: Isa) -> Self {
        Self {
            isa,
            words: [0; MOST],
            len: 0,
            labels: [UNBOUND; LABELS],
            label_count: 0,
            fixups: [(0, 0); FIXUPS],
            fixup_count: 0,
            error: None,
        }
    }

    /// Returns which instructions the CPU has.
    pub const fn isa(&self) -> Isa {
        self.isa
    }

    /// Returns the number of words so far.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Tells whether there is no word yet.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Notes the first error.
    pub const fn fail(&mut self, error: Error) {
        if self.error.is_none() {
            self.error = Some(error);
        }
    }

    /// Appends a word.
    pub const fn word(&mut self, word: u32) {
        if self.len < MOST {
            self.words[self.len] = word;
        }
        self.len += 1;
    }

    /// Returns a new label, which is nowhere yet.
    pub const fn label(&mut self) -> Label {
        if self.label_count == LABELS {
            self.fail(Error::TooManyLabels);
            return Label(0);
        }
        self.label_count += 1;
        Label(self.label_count - 1)
    }

    /// Puts a label here.
    pub const fn bind(&mut self, label: Label) {
        self.labels[label.0] = self.len as i32;
    }

    /// Puts a label at a distance in words from the start of the code, before or behind it: a place that somebody else
    /// fills, such as the general exception vector.
    pub const fn bind_at(&mut self, label: Label, words: i32) {
        self.labels[label.0] = words;
    }

    /// Returns a label that is here.
    pub const fn here(&mut self) -> Label {
        let label = self.label();
        self.bind(label);
        label
    }

    /// Appends a branch, whose offset is not known yet.
    const fn branch(&mut self, word: u32, to: Label) {
        if self.fixup_count == FIXUPS {
            return self.fail(Error::TooManyLabels);
        }
        self.fixups[self.fixup_count] = (self.len, to.0);
        self.fixup_count += 1;
        self.word(word);
    }

    /// Returns the code, if all went well and it has at most `room` words.
    ///
    /// # Errors
    ///
    /// The first thing that went wrong.
    pub const fn finish(mut self, room: usize) -> Result<Code, Error> {
        if let Some(error) = self.error {
            return Err(error);
        }
        let most = if room < MOST { room } else { MOST };
        if self.len > most {
            return Err(Error::TooLong { words: self.len, room: most });
        }
        let mut at = 0;
        while at < self.fixup_count {
            let (word, label) = self.fixups[at];
            let target = self.labels[label];
            if target == UNBOUND {
                return Err(Error::UnboundLabel { word });
            }
            // Offsets count from the delay slot.
            let offset = target - (word as i32 + 1);
            if offset < i16::MIN as i32 || offset > i16::MAX as i32 {
                return Err(Error::TooFar { word });
            }
            self.words[word] |= offset as u32 & 0xffff;
            at += 1;
        }
        Ok(Code { words: self.words, len: self.len })
    }
}
