//! How a run went.

use core::fmt;
use core::sync::atomic::{AtomicUsize, Ordering};

use heapless::Vec;
use tlbkit_shootdown::{Plan, Rendezvous};

/// A run's numbers. Displayed, they are a line for `cargo xtask boot`.
#[derive(Debug)]
pub(super) struct Report {
    run: &'static str,
    plan: Plan,
    cpus: usize,
    counts: Vec<(&'static str, usize), 16>,
    failures: usize,
}

impl Report {
    /// Returns an empty one of a run of this kind.
    pub(super) const fn of(run: &'static str, plan: Plan, cpus: usize) -> Self {
        Self { run, plan, cpus, counts: Vec::new(), failures: 0 }
    }

    /// Adds a number.
    pub(super) fn count(&mut self, name: &'static str, number: usize) {
        if self.counts.push((name, number)).is_err() {
            panic!("a report has no room for {name}");
        }
    }

    /// Adds what a run has counted.
    pub(super) fn counted(&mut self, name: &'static str, count: &AtomicUsize) {
        self.count(name, count.load(Ordering::Relaxed));
    }

    /// Adds how often something was that must not be.
    pub(super) fn failed(&mut self, name: &'static str, number: usize) {
        self.count(name, number);
        self.failures += number;
    }

    /// Returns how many things went wrong.
    pub(super) const fn failures(&self) -> u32 {
        self.failures as u32
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let serving = if self.plan.rendezvous() == Rendezvous::Serve { "/serving" } else { "" };
        write!(f, "{} protocol={}{serving} cpus={}", self.run, self.plan.algorithm(), self.cpus)?;
        for (name, number) in &self.counts {
            write!(f, " {name}={number}")?;
        }
        write!(f, " failures={}", self.failures)
    }
}
