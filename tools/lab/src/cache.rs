//! Caches between a processor and its memory, and the cycles that references take.
//!
//! ```text
//!   fetch ──────▶ code ─┐
//!   load, store ▶ data ─┴▶ beyond[0] ▶ … ▶ memory      a miss stalls until its line is there
//!                   └─ dirty lines, or stores ─▶ write buffer ▶ memory      a full buffer stalls
//! ```
//!
//! Every cache is set-associative and replaces the line of a set that was used least recently. The processor issues one
//! instruction a cycle, in order. Addresses are physical; so is the index of a cache.
//!
//! What a first-level cache misses, and a second, is what valgrind's cachegrind counts on the same references (`tests`).

use crate::trace::Kind;

/// The size of a cache.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) bytes: u64,
    pub(crate) ways: usize,
}

/// What a store does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stores {
    /// It loads the line, and the line is written when another takes its place.
    Back,
    /// It goes to the write buffer as well, and loads the line or does not.
    Through { allocate: bool },
}

/// A processor with its memory. Times are in cycles.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Machine {
    pub(crate) name: &'static str,
    /// Bytes of a line of each cache.
    pub(crate) line: u64,
    /// The cache of instructions; that of data is as large.
    pub(crate) first: Shape,
    pub(crate) stores: Stores,
    /// The caches beyond, and what a line from there adds to a reference.
    pub(crate) beyond: &'static [(Shape, u64)],
    /// What a line from memory adds.
    pub(crate) memory: u64,
    /// How many lines (or stores, if these go through) the write buffer holds, and what each takes to leave it.
    pub(crate) buffer: (u64, u64),
    /// What an instruction waits that uses the result of the load before it.
    pub(crate) delay: u64,
    /// What a TLB miss takes beside the handler's instructions: the pipeline begins anew, twice.
    pub(crate) trap: u64,
}

/// The machines that are modelled; the first is the one of Elphinstone et al.
///
/// - `r4700`, 100 MHz (Elphinstone et al. 3.1): caches, write-back and a load's delay of one cycle are the data sheet's
///   (IDT79R4700). No paper says what memory takes: 30 cycles are 15 of a bus of 50 MHz, eight bytes wide: an address, 10
///   until the first datum, four data; a line leaves the buffer in 10. Elphinstone et al. 5.5 bound it: five levels of a
///   table take 110 cycles, of which instructions and delays are 35.
/// - `r3000`, 40 MHz, the DECstation 5000/240 of Bala et al.: 24 cycles a miss (OSDI 6.2; thesis 5.4). Caches are the
///   R3000A's of that machine, direct-mapped, stores go through a buffer of six; five cycles a store are chosen.
/// - `alpha`, 225 MHz, the DEC 3000/700 of Romer et al.: a cache of 2 MB off the chip (Table 2). At that clock it is a
///   21064A, with 16 KB on the chip, direct-mapped, stores through a buffer of four lines that do not allocate. 8 and 40
///   cycles (36 and 180 ns) are chosen.
/// - `zen3`, a current core: sizes, ways and the latencies 4, 12 and 46 are those of AMD's Software Optimization Guide for
///   Family 19h (56665), of which 4 are the delay of a load; memory at 80 ns and 4 GHz is chosen. That core executes out of
///   order, several instructions a cycle, and walks its tables in hardware: this is how its caches serve a handler.
pub(crate) const MACHINES: [Machine; 4] = [
    R4700,
    Machine {
        name: "r3000",
        line: 16,
        first: Shape { bytes: 64 << 10, ways: 1 },
        stores: Stores::Through { allocate: true },
        memory: 24,
        buffer: (6, 5),
        ..R4700
    },
    Machine {
        name: "alpha",
        line: 32,
        first: Shape { bytes: 16 << 10, ways: 1 },
        stores: Stores::Through { allocate: false },
        beyond: &[(Shape { bytes: 2 << 20, ways: 1 }, 8)],
        memory: 40,
        buffer: (4, 8),
        delay: 2,
        trap: 10,
    },
    Machine {
        name: "zen3",
        line: 64,
        first: Shape { bytes: 32 << 10, ways: 8 },
        stores: Stores::Back,
        beyond: &[(Shape { bytes: 512 << 10, ways: 8 }, 8), (Shape { bytes: 32 << 20, ways: 16 }, 42)],
        memory: 320,
        buffer: (64, 16),
        delay: 3,
        trap: 20,
    },
];

const R4700: Machine = Machine {
    name: "r4700",
    line: 32,
    first: Shape { bytes: 16 << 10, ways: 2 },
    stores: Stores::Back,
    beyond: &[],
    memory: 30,
    buffer: (1, 10),
    delay: 1,
    trap: 8,
};

/// The lines of a cache, each with its dirty bit as the lowest; those of a set one after the other, the last used first.
#[derive(Clone, Debug)]
struct Cache {
    lines: Vec<u64>,
    ways: usize,
    sets: u64,
}

/// No line.
const EMPTY: u64 = u64::MAX;

/// How a reference ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Hit,
    /// It missed, and took the place of this dirty line.
    Miss(Option<u64>),
}

impl Cache {
    fn new(shape: Shape, line: u64) -> Self {
        let sets = shape.bytes / line / shape.ways as u64;
        Self { lines: vec![EMPTY; sets as usize * shape.ways], ways: shape.ways, sets }
    }

    /// Refers to a line, which is dirty then if `dirty`; one that is not there is loaded if `allocate`.
    fn refer(&mut self, line: u64, dirty: bool, allocate: bool) -> Outcome {
        let first = (line & (self.sets - 1)) as usize * self.ways;
        let set = &mut self.lines[first..first + self.ways];
        // Most references are to the line that was used last.
        if set[0] >> 1 == line {
            set[0] |= u64::from(dirty);
            return Outcome::Hit;
        }
        if let Some(way) = set.iter().position(|known| known >> 1 == line) {
            set[..=way].rotate_right(1);
            set[0] |= u64::from(dirty);
            return Outcome::Hit;
        }
        if !allocate {
            return Outcome::Miss(None);
        }
        set.rotate_right(1);
        let victim = std::mem::replace(&mut set[0], line << 1 | u64::from(dirty));
        Outcome::Miss((victim != EMPTY && victim & 1 == 1).then_some(victim >> 1))
    }
}

/// What has happened so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) instructions: u64,
    pub(crate) cycles: u64,
    /// Misses of the two caches that are first.
    pub(crate) code: u64,
    pub(crate) data: u64,
    /// Lines that came from memory.
    pub(crate) memory: u64,
}

impl std::ops::AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.instructions += other.instructions;
        self.cycles += other.cycles;
        self.code += other.code;
        self.data += other.data;
        self.memory += other.memory;
    }
}

/// The caches of a machine.
#[derive(Clone, Debug)]
pub(crate) struct Caches {
    pub(crate) machine: Machine,
    code: Cache,
    data: Cache,
    beyond: Vec<Cache>,
    now: u64,
    /// When the write buffer will be empty.
    drained: u64,
    tally: Tally,
}

impl Caches {
    /// Returns empty caches.
    pub(crate) fn new(machine: Machine) -> Self {
        let cache = |shape| Cache::new(shape, machine.line);
        let beyond = machine.beyond.iter().map(|&(shape, _)| cache(shape)).collect();
        let (code, data) = (cache(machine.first), cache(machine.first));
        Self { machine, code, data, beyond, now: 0, drained: 0, tally: Tally::default() }
    }

    /// Returns what has happened since the last call.
    pub(crate) fn take(&mut self) -> Tally {
        std::mem::take(&mut self.tally)
    }

    /// Lets time pass.
    pub(crate) fn wait(&mut self, cycles: u64) {
        self.now += cycles;
        self.tally.cycles += cycles;
    }

    /// Makes so many references in a row to the line of an address. An instruction takes a cycle; what it loads and stores is
    /// in the references that follow.
    pub(crate) fn refer(&mut self, kind: Kind, at: u64, times: u64) {
        let line = at / self.machine.line;
        if kind == Kind::Instr {
            self.tally.instructions += times;
            self.wait(times);
        }
        if kind.is_fetch() {
            if self.code.refer(line, false, true) != Outcome::Hit {
                self.tally.code += 1;
                self.fill(line);
            }
            return;
        }
        let stores = matches!(kind, Kind::Store | Kind::Modify);
        let back = self.machine.stores == Stores::Back;
        let allocate = kind != Kind::Store || self.machine.stores != (Stores::Through { allocate: false });
        if let Outcome::Miss(dirty) = self.data.refer(line, stores && back, allocate) {
            // A line that is not loaded is missed by every one of them.
            self.tally.data += if allocate { 1 } else { times };
            if allocate {
                self.fill(line);
            }
            dirty.into_iter().for_each(|dirty| self.put(0, dirty));
        }
        if stores && !back {
            self.write(times);
        }
    }

    /// Waits for a line from beyond.
    fn fill(&mut self, line: u64) {
        for level in 0..self.beyond.len() {
            match self.beyond[level].refer(line, false, true) {
                Outcome::Hit => return self.wait(self.machine.beyond[level].1),
                Outcome::Miss(dirty) => dirty.into_iter().for_each(|dirty| self.put(level + 1, dirty)),
            }
        }
        self.tally.memory += 1;
        self.wait(self.machine.memory);
    }

    /// Writes a line to this level beyond, without waiting.
    fn put(&mut self, level: usize, line: u64) {
        match self.beyond.get_mut(level).map(|cache| cache.refer(line, true, true)) {
            Some(Outcome::Miss(Some(dirty))) => self.put(level + 1, dirty),
            Some(_) => {}
            None => self.write(1),
        }
    }

    /// Puts lines or stores into the write buffer, one after the other, and waits until there is room for the last.
    fn write(&mut self, times: u64) {
        let (places, each) = self.machine.buffer;
        // It is not empty again before the last is in it.
        self.drained = self.drained.max(self.now) + each * times;
        let room = self.drained.saturating_sub(places * each);
        self.wait(room.saturating_sub(self.now));
    }
}

#[cfg(test)]
mod tests;
