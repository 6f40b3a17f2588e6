//! A program's references to lines, and what it and its refills take in cycles: the one place where refill handlers and the
//! walks of tables are charged for the caches that they share with the program.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use serde::{Deserialize, Serialize};
use tlbkit_addr::{PageSize, Pfn, Vpn};

use crate::Name;
use crate::cache::{Caches, MACHINES, Machine, Tally};
use crate::trace::{Access, Kind, LINE};

/// Returns the frame of a page, by its place in the order of first references: above 4 GB, where no table is, and no two
/// neighbours. Its lowest bit is the page's: the R4700 takes that bit of an index from the virtual address.
pub(crate) fn frame(place: usize, page: Vpn) -> Pfn {
    // An odd factor permutes the numbers of 19 bits.
    Pfn::new(1 << 20 | (place.wrapping_mul(0x9_e377) & 0x7_ffff) << 1 | page.get() & 1)
}

/// A program's references, in order; as many in a row as are of one kind to one line are one run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Program {
    /// The physical line and three bits of the kind of each run.
    runs: Vec<u64>,
    /// How many references each is.
    counts: Vec<u32>,
}

const KINDS: [Kind; 5] = [Kind::Instr, Kind::Rest, Kind::Load, Kind::Store, Kind::Modify];

impl Program {
    /// Returns the number of runs so far.
    pub(crate) fn len(&self) -> usize {
        self.runs.len()
    }

    /// Appends an access to a line of the page of size `base` with this place.
    pub(crate) fn push(&mut self, access: &Access, base: PageSize, place: usize) {
        let lines = base.shift() - LINE.shift();
        let page = Vpn::new(access.page.get() >> lines);
        let line = (frame(place, page).get() << lines | access.page.get() & ((1 << lines) - 1)) as u64;
        self.runs.push(line << 3 | access.kind as u64);
        self.counts.push(access.count);
    }

    fn run(&self, runs: std::ops::Range<usize>, caches: &mut Caches) {
        for (run, &count) in self.runs[runs.clone()].iter().zip(&self.counts[runs]) {
            caches.refer(KINDS[(run & 7) as usize], run >> 3 << LINE.shift(), count.into());
        }
    }
}

/// What refills and a program take on a machine.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Cycles {
    /// The machine.
    pub machine: Name,
    /// Cycles a refill: instructions, delays of loads, and cache misses; the trap is not counted.
    pub cycles_min: u64,
    /// Their mean.
    pub cycles_mean: f64,
    /// The most.
    pub cycles_max: u64,
    /// Misses of the first caches, for each refill.
    pub misses_per_refill: f64,
    /// The same for each instruction of the handlers (Bala's M_T), if there are handlers.
    pub misses_per_handler_insn: Option<f64>,
    /// Misses of the first caches for each instruction of the program (Bala's M_A).
    pub misses_per_program_insn: f64,
    /// Cycles of the program itself: its instructions at one each, and its cache misses.
    pub program_cycles: u64,
    /// Cycles of all: the program, its traps and its refills.
    pub elapsed_cycles: u64,
}

/// A program that runs on caches, and the sums of its cycles and those of its refills.
#[derive(Debug)]
pub(crate) struct Clock<'p> {
    machine: Machine,
    program: &'p Program,
    next: usize,
    own: Tally,
    refills: Tally,
    count: u64,
    least: u64,
    most: u64,
}

impl<'p> Clock<'p> {
    pub(crate) fn new(machine: Machine, program: &'p Program) -> Self {
        let (own, refills) = Default::default();
        Self { machine, program, next: 0, own, refills, count: 0, least: u64::MAX, most: 0 }
    }

    /// Runs the program until the refill that comes after so many runs.
    pub(crate) fn until(&mut self, run: usize, caches: &mut Caches) {
        self.program.run(self.next..run, caches);
        self.next = run;
        self.own += caches.take();
    }

    /// Counts what has happened since as a refill.
    pub(crate) fn refill(&mut self, caches: &mut Caches) {
        let tally = caches.take();
        self.count += 1;
        self.least = self.least.min(tally.cycles);
        self.most = self.most.max(tally.cycles);
        self.refills += tally;
    }

    /// Runs the program to its end.
    pub(crate) fn finish(mut self, caches: &mut Caches) -> Cycles {
        self.until(self.program.len(), caches);
        let Self { machine, own, refills, count, .. } = self;
        let per = |misses: u64, of: u64| misses as f64 / of.max(1) as f64;
        let misses = refills.code + refills.data;
        Cycles {
            machine: machine.name.into(),
            cycles_min: self.least,
            cycles_mean: per(refills.cycles, count),
            cycles_max: self.most,
            misses_per_refill: per(misses, count),
            misses_per_handler_insn: (refills.instructions > 0).then(|| per(misses, refills.instructions)),
            misses_per_program_insn: per(own.code + own.data, own.instructions),
            program_cycles: own.cycles,
            elapsed_cycles: own.cycles + refills.cycles + count * machine.trap,
        }
    }
}

/// Returns what reads the name of a machine.
pub(crate) fn machines() -> impl TypedValueParser<Value = Machine> {
    let names = PossibleValuesParser::new(MACHINES.map(|machine| machine.name));
    names.try_map(|name| MACHINES.into_iter().find(|machine| machine.name == name).ok_or("no such machine"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_and_its_refill_share_the_caches() {
        let access = |kind, count, line: usize| Access { kind, count, page: Vpn::new(line) };
        let mut program = Program::default();
        // Line 0x40100 is of page 0x401, and both halves of its 32 bytes are one line of the R4700.
        for (kind, count, line) in
            [(Kind::Instr, 300, 0x4_0100), (Kind::Load, 1, 0x4_0100), (Kind::Load, 1, 0x4_0101)]
        {
            program.push(&access(kind, count, line), PageSize::K4, 0);
        }
        assert_eq!(program.len(), 3);
        let at = (frame(0, Vpn::new(0x401)).get() << 12) as u64;
        assert_eq!(at, 0x1_0000_1000);
        let mut larger = Program::default();
        (0..16).for_each(|page| {
            larger.push(&access(Kind::Load, 1, page << 8), PageSize::from_shift(16).unwrap(), 5);
        });
        assert!(larger.runs.windows(2).all(|pair| pair[1] - pair[0] == 0x100 << 3));

        let machine = MACHINES[0];
        let (mut clock, mut caches) = (Clock::new(machine, &program), Caches::new(machine));
        clock.until(2, &mut caches);
        // The refill finds the program's line, and two others take its place: the program misses again.
        caches.refer(Kind::Instr, 0x80, 2);
        for line in [at, 0x1000, 0x3000] {
            caches.refer(Kind::Load, line, 1);
        }
        clock.refill(&mut caches);
        let cycles = clock.finish(&mut caches);
        assert_eq!((cycles.cycles_min, cycles.cycles_max, cycles.misses_per_refill), (92, 92, 3.0));
        assert_eq!(cycles.misses_per_handler_insn, Some(1.5));
        assert_eq!(cycles.misses_per_program_insn, 3.0 / 300.0);
        assert_eq!((cycles.program_cycles, cycles.elapsed_cycles), (390, 390 + 92 + machine.trap));
    }
}
