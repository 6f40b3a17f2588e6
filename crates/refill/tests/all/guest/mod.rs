//! A CPU with a few words of code and of memory: what runs in it is written by the test.
#![allow(dead_code, reason = "each test uses some of it")]

use std::sync::atomic::{AtomicU32, Ordering};

use tlbkit_refill::asm::{Asm, Code, MOST};
use tlbkit_refill::features::Features;
use tlbkit_refill::interp::{Machine, Stop, Window, Windows};

/// Where kseg0 begins; physical address 0 is there.
pub(crate) const KSEG0: u64 = 0xffff_ffff_8000_0000;
/// Where the code is in memory, behind the vectors.
pub(crate) const CODE: usize = 0x1000;
/// Where memory ends.
pub(crate) const END: usize = 0x1800;
/// k0 and k1, among the general registers.
pub(crate) const K: [usize; 2] = [26, 27];

pub(crate) type Cpu<'m> = Machine<Windows<'m, 1>, 8>;

/// A CPU of each kind.
pub(crate) const CPUS: [Features; 3] = [Features::R1, Features::P5600, Features::MIPS3];

/// Memory from physical address 0 on.
#[derive(Debug)]
pub(crate) struct Ram(Vec<AtomicU32>);

impl Ram {
    pub(crate) fn new() -> Self {
        Self((0..END / 4).map(|_| AtomicU32::new(0)).collect())
    }

    pub(crate) fn put(&self, at: usize, words: &[u32]) {
        for (cell, &word) in self.0[at / 4..].iter().zip(words) {
            cell.store(word, Ordering::Relaxed);
        }
    }

    pub(crate) fn word(&self, at: usize) -> u32 {
        self.0[at / 4].load(Ordering::Relaxed)
    }

    /// Shows the memory elsewhere.
    pub(crate) fn window(&self, at: u64) -> Window<'_> {
        Window::new(at, &self.0)
    }

    /// Returns a CPU about to execute these words in kseg0, which stops behind them.
    pub(crate) fn cpu(&self, features: Features, words: &[u32]) -> Cpu<'_> {
        self.put(CODE, words);
        let mut cpu = Machine::new(features, Windows([self.window(0)]));
        cpu.pc = KSEG0 + CODE as u64;
        cpu.stop = cpu.pc + 4 * words.len() as u64;
        cpu
    }
}

/// Returns the address of an instruction of the code, counted from 0.
pub(crate) fn nth(instruction: u64) -> u64 {
    KSEG0 + CODE as u64 + 4 * instruction
}

/// Assembles code for a CPU.
pub(crate) fn assemble(features: Features, code: impl FnOnce(&mut Asm)) -> Code {
    let mut asm = Asm::new(features.isa);
    code(&mut asm);
    asm.finish(MOST).unwrap()
}

/// Runs code with these values in k0 and k1; returns both afterwards, and why the CPU stopped.
pub(crate) fn run(features: Features, k: [u64; 2], code: impl FnOnce(&mut Asm)) -> ([u64; 2], Stop) {
    let ram = Ram::new();
    let mut cpu = ram.cpu(features, assemble(features, code).words());
    for (register, value) in K.into_iter().zip(k) {
        cpu.gpr[register] = value;
    }
    let stop = cpu.run(1000);
    assert_eq!(cpu.gpr[0], 0, "register 0 is zero");
    (K.map(|register| cpu.gpr[register]), stop)
}
