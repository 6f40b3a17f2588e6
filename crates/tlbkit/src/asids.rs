//! Address-space identifiers, in generations.
//!
//! An address space gets a number when a CPU first runs it, and keeps the number for a generation. When the numbers run out,
//! a new generation begins: every CPU flushes its whole TLB before it runs another address space, and an address space gets a
//! new number when a CPU runs it next. The address spaces that CPUs run at that moment keep their numbers, because their CPUs
//! go on using them. Those numbers stay reserved for the whole generation, because other CPUs may use them in it, too.
//!
//! So the end of an address space needs no flush: no other address space gets its number before every CPU has flushed its TLB.

use core::cell::Cell;
use core::sync::atomic::{AtomicU32, Ordering};

use tlbkit_addr::Asid;

use crate::lock::Lock;

/// A number and its generation. Generation 0 means that there is no number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tag {
    generation: u64,
    asid: u16,
}

/// The number of an address space. Only [`Asids`] reads `tag`, under its lock.
#[derive(Debug, Default)]
pub(crate) struct Number {
    tag: Cell<Tag>,
    /// The value of [`held`](Self::held): 0 for [`Held::Never`], else the number plus [`HELD`].
    held: AtomicU32,
    /// Whether `held` never changes.
    every: bool,
}

// SAFETY: only `Asids` uses the cell, under the lock of the only `Asids` that numbers the address space.
unsafe impl Sync for Number {}

/// The bit of [`Number::held`] that tells a number from [`Held::Never`].
const HELD: u32 = 1 << 16;

/// Where TLBs may hold translations of an address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Held {
    /// Nowhere: no CPU has ever run the address space.
    Never,
    /// Under this number; 0 if the machine has no numbers.
    Under(Asid),
}

impl Number {
    pub(crate) const fn new() -> Self {
        Self { tag: Cell::new(Tag { generation: 0, asid: 0 }), held: AtomicU32::new(0), every: false }
    }

    /// Returns the number of the kernel's own address space, whose translations TLBs may hold under any number. It is 0, which
    /// means any number.
    pub(crate) const fn every() -> Self {
        Self { held: AtomicU32::new(HELD), every: true, ..Self::new() }
    }

    /// Tells where TLBs may hold translations of the address space. A CPU that begins to run it later, or under another number,
    /// enters the address space's sets of CPUs first, and holds no translation before that.
    #[inline]
    pub(crate) fn held(&self) -> Held {
        match self.held.load(Ordering::Relaxed) {
            0 => Held::Never,
            // The check passes with the largest number of bits: `run` has assigned a number that fits the machine's.
            held => Held::Under(Asid::new(held as u16, u16::BITS).unwrap_or_default()),
        }
    }

    fn hold(&self, asid: Asid) {
        if !self.every {
            self.held.store(HELD | u32::from(asid.get()), Ordering::Relaxed);
        }
    }
}

/// The numbers of one machine, for up to `CPUS` CPUs that share them.
#[derive(Debug)]
pub(crate) struct Asids<const CPUS: usize>(Lock<State<CPUS>>);

#[derive(Debug)]
struct State<const CPUS: usize> {
    generation: u64,
    /// The number that was assigned last.
    last: u16,
    cpus: [PerCpu; CPUS],
}

#[derive(Clone, Copy, Debug)]
struct PerCpu {
    /// The number of the address space that the CPU runs, in any generation.
    runs: Tag,
    /// The number of the address space that the CPU ran when this generation began, or 0.
    reserved: u16,
    /// Whether the CPU must flush everything before it runs another address space.
    flush: bool,
}

/// The ASID under which a CPU runs an address space, and whether the CPU must flush before it uses that ASID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Given {
    /// The number.
    pub(crate) asid: Asid,
    /// Whether the CPU must flush everything first.
    pub(crate) flush: bool,
}

impl<const CPUS: usize> Asids<CPUS> {
    pub(crate) const fn new() -> Self {
        let cpu = PerCpu { runs: Tag { generation: 0, asid: 0 }, reserved: 0, flush: false };
        Self(Lock::new(State { generation: 1, last: 0, cpus: [cpu; CPUS] }))
    }

    /// Records that `cpu` runs the address space of `number` from now on, and returns its number. If `bits` are too few for each
    /// CPU to run a different address space, all have the number 0, and every switch flushes.
    ///
    /// Costs a lock and a few loads. To assign a number also costs a load for each CPU, once for each number that is reserved.
    pub(crate) fn run(&self, number: &Number, cpu: usize, bits: u32) -> Given {
        self.0.with(|state| {
            let none = Given { asid: Asid::default(), flush: true };
            let Some(highest) = highest(bits, CPUS) else {
                number.hold(none.asid);
                return none;
            };
            let tag = state.current(number, highest);
            number.hold(asid(tag));
            let Some(at) = state.cpus.get_mut(cpu) else { return none };
            at.runs = tag;
            Given { asid: asid(tag), flush: core::mem::replace(&mut at.flush, false) }
        })
    }

    /// Records that `cpu` runs no address space, and tells whether it must flush everything.
    pub(crate) fn idle(&self, cpu: usize, bits: u32) -> bool {
        self.0.with(|state| {
            if let Some(at) = state.cpus.get_mut(cpu) {
                at.runs = Tag::default();
            }
            highest(bits, CPUS).is_none()
        })
    }
}

/// Returns the highest number of `bits` bits, if there are enough numbers for each CPU to run a different address space.
fn highest(bits: u32, cpus: usize) -> Option<u16> {
    let highest = u16::try_from((1_u32 << bits.min(u16::BITS)) - 1).unwrap_or(u16::MAX);
    (usize::from(highest) > cpus).then_some(highest)
}

fn asid(tag: Tag) -> Asid {
    // The check passes with the largest number of bits: `run` has assigned a number that fits the machine's.
    Asid::new(tag.asid, u16::BITS).unwrap_or_default()
}

impl<const CPUS: usize> State<CPUS> {
    /// Returns the number of this generation, which the address space gets if it has none.
    fn current(&mut self, number: &Number, highest: u16) -> Tag {
        let old = number.tag.get();
        if old.generation == self.generation {
            return old;
        }
        let tag = if old.generation != 0 && self.cpus.iter().any(|cpu| cpu.runs == old) {
            // A CPU has run the address space since before this generation began, so every CPU that runs it keeps that number.
            let kept = Tag { generation: self.generation, asid: old.asid };
            self.cpus.iter_mut().filter(|cpu| cpu.runs == old).for_each(|cpu| cpu.runs = kept);
            kept
        } else {
            self.give(highest)
        };
        number.tag.set(tag);
        tag
    }

    /// Returns the next number that is not reserved. There is always one, because there are more numbers than CPUs.
    fn give(&mut self, highest: u16) -> Tag {
        loop {
            if self.last >= highest {
                self.generation += 1;
                self.last = 0;
                for cpu in &mut self.cpus {
                    (cpu.reserved, cpu.flush) = (cpu.runs.asid, true);
                }
            }
            self.last += 1;
            if !self.cpus.iter().any(|cpu| cpu.reserved == self.last) {
                return Tag { generation: self.generation, asid: self.last };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Asids, Held, Number};
    use tlbkit_addr::Asid;

    fn asid(number: &Number) -> Asid {
        match number.held() {
            Held::Under(asid) => asid,
            Held::Never => panic!("no CPU has run it"),
        }
    }

    #[test]
    fn a_number_is_given_again_only_after_every_cpu_has_flushed() {
        let asids = Asids::<2>::new();
        let spaces: [Number; 9] = Default::default();
        // Three bits: the numbers 1 to 7. CPU 1 runs the first address space all the time.
        assert_eq!(asids.run(&spaces[0], 1, 3).asid.get(), 1);
        for (space, number) in spaces[1..7].iter().zip(2..) {
            let given = asids.run(space, 0, 3);
            assert_eq!((given.asid.get(), given.flush), (number, false));
        }
        // The next one begins a generation. 1 is CPU 1's, and 7 what CPU 0 runs up to now.
        let given = asids.run(&spaces[7], 0, 3);
        assert_eq!((given.asid.get(), given.flush), (2, true));
        assert_eq!(asids.run(&spaces[8], 0, 3).asid.get(), 3);
        // The address space that CPU 1 runs keeps its number, on CPU 0 too; CPU 1 has still to flush.
        assert_eq!(asids.run(&spaces[0], 0, 3), super::Given { asid: asid(&spaces[0]), flush: false });
        assert_eq!(asid(&spaces[0]).get(), 1);
        assert!(asids.run(&spaces[0], 1, 3).flush);
        assert!(!asids.run(&spaces[0], 1, 3).flush);
    }

    #[test]
    fn a_number_that_is_kept_is_given_to_nobody_else() {
        let asids = Asids::<2>::new();
        let spaces: [Number; 16] = Default::default();
        for space in &spaces[..4] {
            let _ = asids.run(space, 0, 3);
        }
        // CPU 1 runs one that has number 5, and CPU 0 uses the others up.
        assert_eq!(asids.run(&spaces[4], 1, 3).asid.get(), 5);
        for space in &spaces[5..7] {
            let _ = asids.run(space, 0, 3);
        }
        assert!(asids.run(&spaces[7], 0, 3).flush);
        // In the new generation CPU 0 runs it too, and then neither does.
        let kept = super::Given { asid: asid(&spaces[4]), flush: false };
        assert_eq!(asids.run(&spaces[4], 0, 3), kept);
        let _ = asids.idle(1, 3);
        // CPU 0 has its translations until it flushes everything.
        for space in &spaces[8..] {
            let given = asids.run(space, 0, 3);
            if given.flush {
                return;
            }
            assert_ne!(given.asid, kept.asid);
        }
        panic!("no generation ends");
    }

    #[test]
    fn with_fewer_numbers_than_cpus_every_switch_flushes() {
        let asids = Asids::<4>::new();
        let space = Number::new();
        for bits in [0, 2] {
            let given = asids.run(&space, 0, bits);
            assert_eq!((given.asid.get(), given.flush), (0, true));
        }
    }
}
