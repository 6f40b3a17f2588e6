//! Maps whose keys are addresses: a multiplication a word, where the standard library's hasher takes a hundred instructions.
//!
//! A log whose keys are made to collide slows down only its own check.

use core::hash::{BuildHasherDefault, Hasher};
use std::collections::{HashMap, HashSet};

pub(super) type Map<K, V> = HashMap<K, V, BuildHasherDefault<Mix>>;
pub(super) type Set<K> = HashSet<K, BuildHasherDefault<Mix>>;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Mix(u64);

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        // The table takes its place from the low bits and its tag from the high ones.
        self.0 ^ self.0 >> 32
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(byte.into()));
    }

    fn write_u32(&mut self, word: u32) {
        self.write_u64(word.into());
    }

    fn write_u64(&mut self, word: u64) {
        // 2^64 divided by the golden ratio.
        self.0 = (self.0.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }
}
