//! A small kernel's page-table code for each architecture, to test [`drive`](super::drive).

use std::vec;
use std::vec::Vec;

use super::arch::{Arch, Family};
use super::drive::{Kernel, Log, Page};
use crate::event::{Barrier, Event, Fence, Memory};

const CPUS: usize = 3;
const SPACES: usize = 2;
const PAGES: usize = 4;

/// Page-table code of a kernel with three CPUs and two address spaces of four pages, which share one node of the last level.
///
/// The node is taken with the first page that is mapped in it, and given back with the last. Each change that takes a page or a right
/// away is flushed on all CPUs.
#[derive(Debug)]
pub struct Sample {
    arch: Arch,
    log: Log,
    without: Option<Without>,
    pages: Vec<Page>,
    frames: Vec<u64>,
    free: Vec<u64>,
}

/// A step that a [`Sample`] leaves out, so that a test can check that the checker finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Without {
    /// The flush on the CPU that makes a change.
    Own,
    /// The flush on the other CPUs.
    Others,
    /// The barrier before a flush.
    Barrier,
    /// The barrier between the words of a new node and its link.
    Release,
    /// Waiting for the flush before a frame goes back.
    Hold,
    /// Waiting for the flush before a node goes back.
    NodeHold,
}

impl Without {
    /// All steps that can be left out.
    pub const ALL: [Self; 6] =
        [Self::Own, Self::Others, Self::Barrier, Self::Release, Self::Hold, Self::NodeHold];
}

impl Sample {
    /// Returns the code, and passes the events of its first tables to `log`.
    #[must_use]
    pub fn new(arch: Arch, log: Log) -> Self {
        let free =
            (0..2 * (SPACES * PAGES) as u64).map(|frame| 0x100_0000 + frame * arch.granule()).collect();
        let sample = Self {
            arch,
            log,
            without: None,
            pages: vec![Page::Absent; SPACES * PAGES],
            frames: vec![0; SPACES * PAGES],
            free,
        };
        for space in 0..SPACES {
            for level in 0..sample.last() - 1 {
                let value = sample.link(sample.node_of(space, level + 1));
                sample.log.say(0, Event::Write { at: sample.node_of(space, level), value });
            }
        }
        sample.log.say(0, Event::Barrier(Barrier::Complete));
        sample
    }

    /// Returns the code without one of its steps.
    #[must_use]
    pub fn without(self, what: Without) -> Self {
        Self { without: Some(what), ..self }
    }

    fn leaves_out(&self, what: Without) -> bool {
        self.without == Some(what)
    }

    /// Returns the index of the last level's node.
    fn last(&self) -> usize {
        self.arch.levels().len() - 1
    }

    /// Returns the node of a level of a space's table; the root is level 0.
    fn node_of(&self, space: usize, level: usize) -> u64 {
        self.arch.granule() * (16 * (space as u64 + 1) + level as u64)
    }

    fn link(&self, node: u64) -> u64 {
        match self.arch.family() {
            Family::RiscV => node >> 2 | 1,
            Family::X86 => node | 7,
            Family::Arm => node | 3,
            Family::Mips => node | 0x8000_0000,
        }
    }

    fn leaf(&self, frame: u64, page: Page) -> u64 {
        let write = u64::from(page == Page::Write);
        match self.arch.family() {
            Family::RiscV => frame >> 2 | 0xd3 | write << 2,
            Family::X86 => frame | 0x65 | write << 1,
            Family::Arm => frame | 0xf43 | (1 - write) << 7,
            Family::Mips => frame >> 6 | 0x1a | write << 2,
        }
    }

    fn write(&self, cpu: usize, at: u64, value: u64) {
        self.log.say(cpu, Event::Write { at, value });
    }

    /// Makes all CPUs flush a page of a space, or, if `page` is `None`, the whole space.
    fn flush(&self, cpu: usize, space: usize, page: Option<usize>) {
        let pages = page.map(|page| (self.va(page), self.va(page)));
        let fence = Fence { pages, asid: Some(space as u16 + 1), ..Fence::default() };
        if !self.leaves_out(Without::Barrier) {
            self.log.say(cpu, Event::Barrier(Barrier::Complete));
        }
        let others = !self.leaves_out(Without::Others);
        if self.arch.family() == Family::Arm {
            if others || !self.leaves_out(Without::Own) {
                self.log.say(cpu, Event::Fence(Fence { broadcast: others, ..fence }));
            }
            self.log.say(cpu, Event::Barrier(Barrier::Complete));
            return self.log.say(cpu, Event::Barrier(Barrier::Context));
        }
        if !self.leaves_out(Without::Own) {
            self.log.say(cpu, Event::Fence(fence));
        }
        for other in (0..CPUS).filter(|&other| other != cpu && others) {
            self.log.say(cpu, Event::IpiSend { cpus: 1 << other, id: 0 });
            self.log.say(other, Event::IpiTake { id: 0 });
            self.log.say(other, Event::Fence(fence));
        }
    }

    fn frame(&self, cpu: usize, at: u64, free: bool) {
        self.log.say(cpu, Event::Frame(Memory { at, bytes: self.arch.granule(), free }));
    }

    fn node(&self, cpu: usize, space: usize, free: bool) {
        self.log.say(
            cpu,
            Event::Node(Memory { at: self.node_of(space, self.last()), bytes: self.arch.granule(), free }),
        );
    }

    fn is_empty(&self, space: usize) -> bool {
        self.pages[space * PAGES..][..PAGES].iter().all(|&page| page == Page::Absent)
    }
}

impl Kernel for Sample {
    fn cpus(&self) -> usize {
        CPUS
    }

    fn spaces(&self) -> usize {
        SPACES
    }

    fn pages(&self) -> usize {
        PAGES
    }

    fn va(&self, page: usize) -> u64 {
        page as u64 * self.arch.granule()
    }

    fn run(&mut self, cpu: usize, space: usize) {
        let (root, asid) = (self.node_of(space, 0), space as u64 + 1);
        let value = match self.arch {
            Arch::Sv32 => 1 << 31 | asid << 22 | root >> 12,
            Arch::Sv39 => 8 << 60 | asid << 44 | root >> 12,
            Arch::Sv48 => 9 << 60 | asid << 44 | root >> 12,
            Arch::Sv57 => 10 << 60 | asid << 44 | root >> 12,
            Arch::X86_64 | Arch::X86_64La57 => 1 << 63 | root | asid,
            Arch::Aarch64 | Arch::Aarch64B39 | Arch::Aarch64B42 | Arch::Aarch64K16 | Arch::Aarch64K64 => {
                asid << 48 | root
            }
            Arch::Mips32 => root | asid,
        };
        self.log.say(cpu, Event::Root { value, high: false });
    }

    fn set(&mut self, cpu: usize, space: usize, page: usize, to: Page) {
        let (slot, first) = (space * PAGES + page, self.is_empty(space));
        let was = core::mem::replace(&mut self.pages[slot], to);
        let (last, parent) = (self.node_of(space, self.last()), self.node_of(space, self.last() - 1));
        let at = last + page as u64 * self.arch.word();
        match (was, to) {
            _ if was == to => {}
            (Page::Absent, _) => {
                let Some(frame) = self.free.pop() else { return };
                self.frames[slot] = frame;
                self.frame(cpu, frame, false);
                if first {
                    self.node(cpu, space, false);
                }
                self.write(cpu, at, self.leaf(frame, to));
                if first {
                    if !self.leaves_out(Without::Release) {
                        self.log.say(cpu, Event::Barrier(Barrier::Release));
                    }
                    self.write(cpu, parent, self.link(last));
                }
            }
            (_, Page::Absent) => {
                let (frame, empty) = (self.frames[slot], self.is_empty(space));
                self.write(cpu, at, 0);
                if empty {
                    self.write(cpu, parent, 0);
                }
                let (hold, node_hold) =
                    (!self.leaves_out(Without::Hold), !self.leaves_out(Without::NodeHold));
                if !hold {
                    self.frame(cpu, frame, true);
                }
                if empty && !node_hold {
                    self.node(cpu, space, true);
                }
                self.flush(cpu, space, (!empty).then_some(page));
                if hold {
                    self.frame(cpu, frame, true);
                }
                if empty && node_hold {
                    self.node(cpu, space, true);
                }
                self.free.insert(0, frame);
            }
            _ => {
                self.write(cpu, at, self.leaf(self.frames[slot], to));
                if to < was {
                    self.flush(cpu, space, Some(page));
                }
            }
        }
    }
}
