//! A small assembler: the instructions that refill handlers consist of, and labels as targets of branches.
//!
//! Everything is `const`, so that a handler can be assembled at compile time as well as at boot. Instructions are
//! methods named as in the manual, with operands in the order of assembly language. They return nothing. The assembler
//! records the first error (an instruction that the CPU does not have, a branch that does not reach its target, code that is
//! too long), and [`finish`](Asm::finish) returns it.
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

/// The most words (of 32 bits) that an [`Asm`] can hold, its tail included.
pub const MOST: usize = 448;
const LABELS: usize = 64;
const FIXUPS: usize = 128;
/// The position of a label that is not bound yet.
const UNBOUND: i32 = i32::MIN;

/// A position in the code. Branches to it may come before or after it is [bound](Asm::bind).
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct Label(usize);

/// Code under construction.
#[derive(Clone, Debug)]
pub struct Asm {
    isa: Isa,
    words: [u32; MOST],
    len: usize,
    /// The position of each label, in words from the start.
    labels: [i32; LABELS],
    label_count: usize,
    /// The branches whose offsets are filled in at the end: the index of the word, and the label.
    fixups: [(usize, usize); FIXUPS],
    fixup_count: usize,
    /// The index of the tail's first word. `tail_at` is the position of that word, in words from the start.
    tail: usize,
    tail_at: i32,
    error: Option<Error>,
}

/// Finished code. The kernel stores each word as a `u32`, in the machine's byte order.
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
    /// Returns an assembler without code, for a CPU with these instructions.
    pub const fn new(isa: Isa) -> Self {
        Self {
            isa,
            words: [0; MOST],
            len: 0,
            labels: [UNBOUND; LABELS],
            label_count: 0,
            fixups: [(0, 0); FIXUPS],
            fixup_count: 0,
            tail: usize::MAX,
            tail_at: 0,
            error: None,
        }
    }

    /// Returns the instructions that the CPU has.
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

    /// Records an error, if it is the first.
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

    /// Returns a new label that is not bound.
    pub const fn label(&mut self) -> Label {
        if self.label_count == LABELS {
            self.fail(Error::TooManyLabels);
            return Label(0);
        }
        self.label_count += 1;
        Label(self.label_count - 1)
    }

    /// Begins the tail: the next word will be at position `words`, in words from the start of the code, wherever the words
    /// before it end. Only the first call has an effect.
    pub const fn split(&mut self, words: i32) {
        if self.tail == usize::MAX {
            self.tail = self.len;
            self.tail_at = words;
        }
    }

    /// Returns the position of the word with this index, in words from the start.
    const fn place(&self, word: usize) -> i32 {
        if word < self.tail { word as i32 } else { self.tail_at + (word - self.tail) as i32 }
    }

    /// Binds a label to the next word.
    pub const fn bind(&mut self, label: Label) {
        self.labels[label.0] = self.place(self.len);
    }

    /// Binds a label to a position outside of this code, in words from its start, such as the general exception vector. The
    /// position may be negative.
    pub const fn bind_at(&mut self, label: Label, words: i32) {
        self.labels[label.0] = words;
    }

    /// Returns a new label that is bound to the next word.
    pub const fn here(&mut self) -> Label {
        let label = self.label();
        self.bind(label);
        label
    }

    /// Appends a branch, whose offset [`finish_parts`](Self::finish_parts) fills in.
    const fn branch(&mut self, word: u32, to: Label) {
        if self.fixup_count == FIXUPS {
            return self.fail(Error::TooManyLabels);
        }
        self.fixups[self.fixup_count] = (self.len, to.0);
        self.fixup_count += 1;
        self.word(word);
    }

    /// Returns the code, if there was no error and it has at most `room` words.
    ///
    /// # Errors
    ///
    /// The first error.
    pub const fn finish(self, room: usize) -> Result<Code, Error> {
        match self.finish_parts(room, 0) {
            Ok((code, _)) => Ok(code),
            Err(error) => Err(error),
        }
    }

    /// Returns the code and its tail, if there was no error and they have at most `room` and `tail_room` words.
    ///
    /// # Errors
    ///
    /// The first error.
    pub const fn finish_parts(mut self, room: usize, tail_room: usize) -> Result<(Code, Code), Error> {
        if let Some(error) = self.error {
            return Err(error);
        }
        if self.len > MOST {
            return Err(Error::TooLong { words: self.len, room: MOST });
        }
        let mut at = 0;
        while at < self.fixup_count {
            let (word, label) = self.fixups[at];
            let target = self.labels[label];
            if target == UNBOUND {
                return Err(Error::UnboundLabel { word });
            }
            // Offsets count from the delay slot.
            let offset = target - (self.place(word) + 1);
            if offset < i16::MIN as i32 || offset > i16::MAX as i32 {
                return Err(Error::TooFar { word });
            }
            self.words[word] |= offset as u32 & 0xffff;
            at += 1;
        }
        let first = match self.tail {
            usize::MAX => self.len,
            tail => tail,
        };
        match (self.part(0, first, room), self.part(first, self.len, tail_room)) {
            (Ok(code), Ok(tail)) => Ok((code, tail)),
            (Err(error), _) | (_, Err(error)) => Err(error),
        }
    }

    const fn part(&self, from: usize, to: usize, room: usize) -> Result<Code, Error> {
        let mut part = Code { words: [0; MOST], len: to - from };
        if part.len > room {
            return Err(Error::TooLong { words: part.len, room });
        }
        let mut at = from;
        while at < to {
            part.words[at - from] = self.words[at];
            at += 1;
        }
        Ok(part)
    }
}
