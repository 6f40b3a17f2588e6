//! Simulated time: what happens when, and by what chance.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Xorshift64*: small, and good enough for waiting times.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(super) fn unit(&mut self) -> f64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        ((self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    }

    pub(super) fn exponential(&mut self, mean: f64) -> f64 {
        -mean * self.unit().ln()
    }

    pub(super) fn draw(&mut self, shape: Shape, mean: f64) -> f64 {
        match shape {
            Shape::Constant => mean,
            Shape::Uniform => 2.0 * mean * self.unit(),
            Shape::Exponential => self.exponential(mean),
            Shape::Bursty => {
                let of = if self.unit() < 0.1 { 5.5 } else { 0.5 };
                self.exponential(of * mean)
            }
        }
    }
}

/// The distribution of a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Shape {
    /// Always the mean
    Constant,
    /// Anything up to twice the mean
    Uniform,
    /// As in 4.1.2
    #[default]
    Exponential,
    /// One in ten has 5.5 times the mean, the others half of it: a variance of 5.5 where the exponential one has 1
    Bursty,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Event {
    /// A CPU's computation is over, if it is still this one.
    Ready { cpu: usize, turn: u64 },
    /// A CPU wants to unmap, if it has been idle since.
    Unmap { cpu: usize, turn: u64 },
    /// An interrupt-disabling event arrives.
    Disable { cpu: usize },
    /// A time slice ends.
    Slice { cpu: usize },
}

/// The events that are to come, and the time.
#[derive(Default)]
pub(super) struct Clock {
    now: f64,
    number: u64,
    /// Times and places in `pending`.
    order: BinaryHeap<Reverse<(u64, u64)>>,
    pending: Vec<Option<Event>>,
    free: Vec<usize>,
}

impl Clock {
    pub(super) fn now(&self) -> f64 {
        self.now
    }

    /// Returns how many events there have been: no two of them have the same number.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn after(&mut self, delay: f64, event: Event) {
        let place = self.free.pop().unwrap_or_else(|| {
            self.pending.push(None);
            self.pending.len() - 1
        });
        self.pending[place] = Some(event);
        self.number += 1;
        // Times are not negative, so their bits are in their order; the number breaks ties.
        let which = (self.number << 32) | place as u64;
        self.order.push(Reverse(((self.now + delay).to_bits(), which)));
    }

    /// Goes on to the next event.
    pub(super) fn next(&mut self) -> Option<Event> {
        let Reverse((time, which)) = self.order.pop()?;
        self.now = f64::from_bits(time);
        let place = (which & 0xffff_ffff) as usize;
        self.free.push(place);
        self.pending[place].take()
    }
}
