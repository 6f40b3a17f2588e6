//! Checks a log of a million events of four CPUs, and prints how many seconds of a CPU that takes, and the most memory so far:
//! `cargo run --release -p tlbkit-witness --features check --example million [EVENTS]`.
//!
//! Both are Linux's numbers for this program, which makes the log, too; elsewhere the seconds are those of a clock.
//!
//! Four CPUs map, protect and unmap pages of eight address spaces, with a shootdown for each change that takes something away,
//! and switch between the spaces. On all four architectures the log holds.

use std::time::Instant;
use std::{env, fs};

use tlbkit_witness::check::{Arch, Checker};
use tlbkit_witness::event::{Barrier, Event, Fence, Memory};

const CPUS: usize = 4;
const SPACES: u64 = 8;
/// Pages of a space.
const PAGES: u64 = 64 * 512;

/// Numbers that look random and are the same each time.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// The machine under test: counts its events.
struct Log {
    arch: Arch,
    checker: Checker,
    events: u64,
}

impl Log {
    fn say(&mut self, cpu: usize, event: Event) {
        self.events += 1;
        if let Err(why) = self.checker.event(self.events, cpu, event) {
            panic!("{:?}: {why}", self.arch);
        }
    }

    fn link(&self, node: u64) -> u64 {
        match self.arch {
            Arch::Sv39 => node >> 2 | 1,
            Arch::X86_64 => node | 0x27,
            Arch::Aarch64 => node | 3,
            _ => node | 0x8000_0000,
        }
    }

    fn leaf(&self, frame: u64, write: bool) -> u64 {
        match self.arch {
            Arch::Sv39 => frame >> 2 | 0xd3 | u64::from(write) << 2,
            Arch::X86_64 => frame | 0x65 | u64::from(write) << 1,
            Arch::Aarch64 => frame | 0xf43 | u64::from(!write) << 7,
            _ => frame >> 6 | 2 | u64::from(write) << 2,
        }
    }

    fn root(&self, space: u64) -> u64 {
        let (node, asid) = (node(space, 3), space + 1);
        match self.arch {
            Arch::Sv39 => 8 << 60 | asid << 44 | node >> 12,
            Arch::X86_64 => 1 << 63 | node | asid,
            Arch::Aarch64 => asid << 48 | node,
            _ => node | asid,
        }
    }

    /// Every CPU forgets a page of a space.
    fn shoot(&mut self, cpu: usize, space: u64, va: u64, id: u64) {
        let asid = Some(space as u16 + 1);
        let fence = |broadcast| Event::Fence(Fence { pages: Some((va, va)), asid, leaf: false, broadcast });
        self.say(cpu, Event::Barrier(Barrier::Complete));
        if self.arch == Arch::Aarch64 {
            self.say(cpu, fence(true));
            self.say(cpu, Event::Barrier(Barrier::Complete));
            return self.say(cpu, Event::Barrier(Barrier::Context));
        }
        self.say(cpu, fence(false));
        self.say(cpu, Event::IpiSend { cpus: 0xf & !(1 << cpu), id });
        for other in (0..CPUS).filter(|&other| other != cpu) {
            self.say(other, Event::IpiTake { id });
            self.say(other, fence(false));
        }
    }
}

/// A space has one node in each level but the last, and there 64.
fn node(space: u64, level: u64) -> u64 {
    (1 << 28) + space * 0x10_0000 + level * 0x1000
}

/// Makes a log for Sv39, x86-64 with four levels, AArch64 with 4 KiB, or MIPS32.
fn run(arch: Arch, most: u64) -> Log {
    let (mut log, mut numbers) = (Log { arch, checker: Checker::new(arch), events: 0 }, Numbers(1));
    let (pages, word) = (PAGES, if arch == Arch::Mips32 { 4 } else { 8 });
    let words = 4096 / word;
    for space in 0..SPACES {
        // Node 3 is the root; Sv39 has no node 2, and MIPS32 no node 1.
        let ways: &[[u64; 2]] = match arch {
            Arch::Sv39 => &[[3, 1]],
            Arch::X86_64 | Arch::Aarch64 => &[[3, 2], [2, 1]],
            _ => &[],
        };
        for way in ways {
            log.say(0, Event::Write { at: node(space, way[0]), value: log.link(node(space, way[1])) });
        }
        let middle = node(space, if arch == Arch::Mips32 { 3 } else { 1 });
        for slot in 0..PAGES / words {
            log.say(0, Event::Write { at: middle + slot * word, value: log.link(node(space, 16 + slot)) });
        }
    }
    log.say(0, Event::Barrier(Barrier::Complete));
    for cpu in 0..CPUS {
        log.say(cpu, Event::Root { value: log.root(cpu as u64), high: false });
    }
    let mut mapped = vec![None; (SPACES * pages) as usize];
    let mut free: Vec<u64> = (0..SPACES * pages).map(|frame| (1 << 33) + (frame << 12)).collect();
    let mut id = 0;
    while log.events < most {
        let (cpu, space, page) =
            (numbers.below(CPUS as u64) as usize, numbers.below(SPACES), numbers.below(pages));
        let (at, va) = (node(space, 16 + page / words) + page % words * word, page << 12);
        id += 1;
        if numbers.below(8) == 0 {
            log.say(cpu, Event::Root { value: log.root(space), high: false });
            continue;
        }
        match mapped[(space * pages + page) as usize] {
            None => {
                let frame = free.swap_remove(numbers.below(free.len() as u64) as usize);
                log.say(cpu, Event::Frame(Memory { at: frame, bytes: 4096, free: false }));
                log.say(cpu, Event::Write { at, value: log.leaf(frame, true) });
                mapped[(space * pages + page) as usize] = Some(frame);
            }
            Some(frame) if numbers.below(2) == 0 => {
                log.say(cpu, Event::Write { at, value: log.leaf(frame, numbers.below(2) == 0) });
                log.shoot(cpu, space, va, id);
            }
            Some(frame) => {
                log.say(cpu, Event::Write { at, value: 0 });
                log.shoot(cpu, space, va, id);
                log.say(cpu, Event::Frame(Memory { at: frame, bytes: 4096, free: true }));
                mapped[(space * pages + page) as usize] = None;
                free.push(frame);
            }
        }
    }
    log
}

/// Seconds of a CPU that this thread has taken.
fn seconds() -> Option<f64> {
    let text = fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    Some(text.split(' ').next()?.parse::<f64>().ok()? / 1e9)
}

/// The most memory that this program has had, in MiB.
fn memory() -> Option<u64> {
    let text = fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()?.div_ceil(1024))
}

fn main() {
    let most = env::args().nth(1).map_or(1_000_000, |number| number.parse().expect("a number of events"));
    for arch in [Arch::Sv39, Arch::X86_64, Arch::Aarch64, Arch::Mips32] {
        let (start, before) = (Instant::now(), seconds());
        let log = run(arch, most);
        let taken = before.and_then(|before| Some(seconds()? - before));
        let taken = taken.unwrap_or(start.elapsed().as_secs_f64());
        let memory = memory().map_or(String::new(), |memory| format!("{memory} MiB, "));
        println!("{arch:?}: {taken:.1} s, {memory}{:?}", log.checker.checked());
    }
}
