//! What the kernel does to show that its virtual memory works, and what it costs.
//!
//! Costs are in instructions, counted by time: under QEMU's `-icount shift=6` an instruction takes 64 ns, and a tick of
//! Count 6 ns.

pub mod check;
pub mod corrupt;
pub mod curve;
pub mod exhaust;
pub mod growth;
pub mod mapping;
pub mod report;
pub mod stress;
pub mod sweep;
pub mod tasking;

/// Returns the instructions in so many ticks of Count.
pub fn instructions(ticks: u32) -> u32 {
    // Ticks times 6 over 64, rounded; in 64 bits, for a long time.
    ((u64::from(ticks) * 3 + 16) / 32) as u32
}

/// Counts the instructions of a call.
pub fn counted<T>(call: impl FnOnce() -> T) -> (T, u32) {
    crate::arch::cp0::put_timer_off();
    let start = crate::arch::cp0::count::read();
    let result = call();
    let ticks = crate::arch::cp0::count::read().wrapping_sub(start);
    (result, instructions(ticks))
}

/// Random numbers, good enough and the same in every run (Marsaglia's xorshift).
#[derive(Clone, Debug)]
pub struct Random(u32);

impl Random {
    /// Returns the sequence of a seed.
    pub const fn new(seed: u32) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9) | 1)
    }

    /// Returns the next number below `bound`, which is at most 65536.
    pub const fn below(&mut self, bound: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 17;
        self.0 ^= self.0 << 5;
        ((self.0 >> 16) * bound) >> 16
    }
}
