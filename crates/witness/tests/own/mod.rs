//! A kernel's page-table code, as a test or a fuzzer drives it under the checker.

use tlbkit_witness::check::{Arch, Checker, Refusal};
use tlbkit_witness::event::{Barrier, Event, Fence, Memory};

pub(crate) const CPUS: usize = 3;

/// The code under test: a page table of Sv39 that all CPUs run, and that any of them changes.
pub(crate) struct Own {
    checker: Checker,
    words: [u64; 4],
    /// Leaves the other CPUs' flushes out.
    forgets: bool,
}

impl Own {
    pub(crate) fn new(forgets: bool) -> Result<Self, Refusal> {
        let mut own = Self { checker: Checker::new(Arch::Sv39), words: [0; 4], forgets };
        own.checker.say(0, Event::Write { at: 0x1000, value: 0x801 })?;
        own.checker.say(0, Event::Write { at: 0x2000, value: 0xc01 })?;
        own.checker.say(0, Event::Barrier(Barrier::Complete))?;
        for cpu in 0..CPUS {
            own.checker.say(cpu, Event::Root { value: 0x8000_0000_0000_0001, high: false })?;
        }
        Ok(own)
    }

    fn store(&mut self, cpu: usize, page: u64, value: u64) -> Result<(), Refusal> {
        self.words[page as usize] = value;
        self.checker.say(cpu, Event::Write { at: 0x3000 + page * 8, value })
    }

    fn flush(&mut self, cpu: usize, page: u64) -> Result<(), Refusal> {
        let fence = Event::Fence(Fence { pages: Some((page << 12, page << 12)), ..Fence::default() });
        self.checker.say(cpu, Event::Barrier(Barrier::Complete))?;
        self.checker.say(cpu, fence)?;
        for other in (0..CPUS).filter(|&other| other != cpu && !self.forgets) {
            self.checker.say(cpu, Event::IpiSend { cpus: 1 << other, id: 0 })?;
            self.checker.say(other, Event::IpiTake { id: 0 })?;
            self.checker.say(other, fence)?;
        }
        Ok(())
    }

    /// Maps a page if it is not mapped, or else takes it away and gives its frame back.
    pub(crate) fn toggle(&mut self, cpu: usize, page: u64) -> Result<(), Refusal> {
        let frame = |free| Event::Frame(Memory { at: 0x8000_0000 + (page << 12), bytes: 4096, free });
        if self.words[page as usize] == 0 {
            self.checker.say(cpu, frame(false))?;
            return self.store(cpu, page, (0x8000_0000 + (page << 12)) >> 2 | 0xcf);
        }
        self.store(cpu, page, 0)?;
        self.flush(cpu, page)?;
        self.checker.say(cpu, frame(true))
    }
}
