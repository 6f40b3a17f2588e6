//! A kernel's log as the witness records it (`docs/witness.md`): when each CPU lowered rights, of how many pages, and how many
//! CPUs it interrupted for that.
//!
//! A log has no clock: the time between a CPU's changes is the number of events of all CPUs between them, over the mean.

use std::fs::File;
use std::io::BufRead;
use std::path::Path;

use anyhow::{Context, ensure};
use tlbkit_witness::event::{CPUS, Event};

use crate::trace;

/// A page has as many bytes, on every architecture of the examples.
const PAGE: u64 = 4096;

/// A change of a CPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Change {
    /// Time since the end of the CPU's last change, in means.
    pub(crate) gap: f64,
    pub(crate) pages: usize,
    /// The share of the other CPUs that was interrupted, from 0 to 1.
    pub(crate) asked: f64,
}

/// The changes of each CPU that made any.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Recorded(Vec<Vec<Change>>);

/// A change that has begun.
#[derive(Clone, Copy, Default)]
struct Open {
    /// How many of its parts have begun and not ended.
    parts: usize,
    gap: u64,
    pages: u64,
    asked: u64,
}

impl Recorded {
    /// Reads a log's file, plain or packed by gzip, xz or zstd.
    ///
    /// # Errors
    ///
    /// If it cannot be read, a line is no event, or no change is in it.
    pub(crate) fn open(path: &Path) -> anyhow::Result<Self> {
        let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
        let (_, log) = trace::unpacked(file)?;
        Self::read(log).with_context(|| format!("{} is no use", path.display()))
    }

    pub(super) fn read(log: impl BufRead) -> anyhow::Result<Self> {
        let (mut open, mut last) = ([Open::default(); CPUS], [0; CPUS]);
        let (mut changes, mut now, mut cpus) = (vec![Vec::new(); CPUS], 0, 1);
        for (number, line) in (1..).zip(log.lines()) {
            let event = tlbkit_witness::parse(&line.context("the log cannot be read")?);
            let event = event.map_err(anyhow::Error::new).with_context(|| format!("line {number}"));
            let Some((cpu, event)) = event? else { continue };
            (now, cpus) = (now + 1, cpus.max(cpu + 1));
            let at = &mut open[cpu];
            match event {
                Event::Lower { first, last: end, .. } => {
                    if at.parts == 0 {
                        *at = Open { gap: now - last[cpu], ..Open::default() };
                    }
                    at.parts += 1;
                    at.pages += (end / PAGE).saturating_sub(first / PAGE).saturating_add(1);
                }
                Event::IpiSend { cpus, .. } if at.parts > 0 => at.asked |= cpus & !(1 << cpu),
                Event::Done { .. } if at.parts > 0 => {
                    at.parts -= 1;
                    if at.parts == 0 {
                        changes[cpu].push(*at);
                        last[cpu] = now;
                    }
                }
                _ => {}
            }
        }
        let others = (cpus as f64 - 1.0).max(1.0);
        let all = changes.iter().flatten();
        let (count, gaps) = (all.clone().count(), all.map(|open| open.gap as f64).sum::<f64>());
        ensure!(count > 0, "no change that ends is in the log: record a kernel that lowers rights");
        let change = |open: Open| Change {
            gap: open.gap as f64 * count as f64 / gaps,
            pages: usize::try_from(open.pages).unwrap_or(usize::MAX),
            asked: f64::from(open.asked.count_ones()) / others,
        };
        let changes = changes.into_iter().filter(|changes| !changes.is_empty());
        Ok(Self(changes.map(|changes| changes.into_iter().map(change).collect()).collect()))
    }

    /// Returns the change number `at` of a simulated CPU. If there are more CPUs than in the log, several make a recorded CPU's
    /// changes, from different ones on; after the last comes the first.
    pub(crate) fn change(&self, cpu: usize, at: usize) -> Change {
        let changes = &self.0[cpu % self.0.len()];
        changes[(at + cpu / self.0.len() * 7919) % changes.len()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_read_with_their_gaps_pages_and_cpus() {
        let log = "1 barrier fence\n0 lower 7 0x1000 0x2fff\n0 ipi send 1,2 9\n1 ipi take 9\n0 done 7\n\
                   0 barrier fence\n2 barrier fence\n1 barrier fence\n0 lower 8 0x1000\n0 lower 9 0x5000\n0 done 8\n0 done 9\n";
        let recorded = Recorded::read(log.as_bytes()).unwrap();
        let change = |gap, pages, asked| Change { gap, pages, asked };
        // Two events before the first, and four before the second: the mean is three.
        let [first, second] = [change(2.0 / 3.0, 2, 1.0), change(4.0 / 3.0, 2, 0.0)];
        assert_eq!(recorded, Recorded(vec![vec![first, second]]));
        assert_eq!([0, 1, 2].map(|at| recorded.change(0, at)), [first, second, first]);
        assert_eq!(recorded.change(1, 0), second);
    }

    #[test]
    fn a_log_without_a_change_is_refused() {
        for log in ["", "0 barrier fence\n", "0 lower 1 0x1000\n", "0 done 1\n"] {
            let why = Recorded::read(log.as_bytes()).unwrap_err().to_string();
            assert!(why.contains("no change"), "{why}");
        }
        assert!(Recorded::read("0 lowers 1\n".as_bytes()).unwrap_err().to_string().contains("line 1"));
    }
}
