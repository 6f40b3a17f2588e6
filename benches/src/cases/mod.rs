//! The measured work: one list of jobs and subjects, which criterion and the ratios both run.

use std::hint::black_box;
use std::time::{Duration, Instant};

use crate::work::half;
use crate::{Fork, Iterate, Resize, Subject, jobs, ours, peers, spaces};

mod edits;
mod lookups;
mod programs;

/// One subject at one job.
pub struct Case {
    /// The job, one of [`JOBS`](jobs::JOBS).
    pub job: &'static str,
    /// The subject.
    pub subject: &'static str,
    /// The bits of the subject's addresses.
    pub bits: u32,
    /// How many operations one round has.
    pub operations: u64,
    /// Sets the subject up.
    pub start: Box<dyn FnOnce() -> Round>,
}

/// Does a round of a case and returns the time of what counts.
pub type Round = Box<dyn FnMut() -> Duration>;

impl Case {
    /// Returns the name by which a command line chooses the case.
    pub fn name(&self) -> String {
        format!("{}/{}", self.job, self.subject)
    }
}

/// Returns so many pages, or with debug assertions, where times mean nothing and the tests do every job, an eighth of them.
const fn scaled(pages: usize) -> usize {
    if cfg!(debug_assertions) { pages / 8 } else { pages }
}

fn timed<T>(work: impl FnOnce() -> T) -> Duration {
    let start = Instant::now();
    black_box(work());
    start.elapsed()
}

fn case<S: Subject, R: FnMut() -> Duration + 'static>(
    job: &'static str,
    operations: usize,
    start: impl FnOnce() -> R + 'static,
) -> Case {
    let start: Box<dyn FnOnce() -> Round> = Box::new(|| Box::new(start()));
    Case { job, subject: S::NAME, bits: S::BITS, operations: operations as u64, start }
}

/// Evicts what the caches hold: a line of each 64 bytes of 8 MiB is written.
struct Evict(Vec<u64>);

impl Evict {
    fn new() -> Self {
        Self(vec![0; 1 << 20])
    }

    fn run(&mut self) {
        self.0.iter_mut().step_by(8).for_each(|line| *line += 1);
        black_box(&self.0);
    }
}

/// The subjects of a run with all that they can do. The first that does a job is what the job's ratios are to.
#[derive(Default)]
pub struct Subjects {
    cases: Vec<Case>,
}

impl ours::Each for Subjects {
    fn table<S: Subject + Iterate + Resize + 'static>(&mut self) {
        *self = std::mem::take(self).with::<S>().freeing::<S>().iterating::<S>().resizing::<S>();
    }
}

impl Subjects {
    /// Returns no subject.
    pub fn none() -> Self {
        Self::default()
    }

    /// Returns every subject of this crate; ratios are to `x86_64` wherever that can do the job.
    pub fn all() -> Self {
        let peers = Self::none()
            .with::<peers::X86>()
            .freeing::<peers::X86Freeing>()
            .with::<peers::Multiarch>()
            .with::<peers::Generic>()
            .with::<peers::Aarch64>()
            .iterating::<peers::Aarch64>()
            .with::<peers::HashBrown>()
            .freeing::<peers::HashBrown>()
            .iterating::<peers::HashBrown>()
            .with::<peers::BTree>()
            .freeing::<peers::BTree>()
            .iterating::<peers::BTree>();
        let mut all = peers
            .with::<spaces::X86Solo>()
            .freeing::<spaces::X86Solo>()
            .with::<spaces::X86Shared>()
            .freeing::<spaces::X86Shared>()
            .with::<spaces::X86Space>()
            .forking::<spaces::X86Space>()
            .with::<spaces::X86Space4>()
            .forking::<spaces::X86Space4>()
            .with::<spaces::Sv39Solo>()
            .freeing::<spaces::Sv39Solo>()
            .with::<spaces::Sv39Shared>()
            .freeing::<spaces::Sv39Shared>()
            .with::<spaces::Sv39Space>()
            .forking::<spaces::Sv39Space>()
            .with::<spaces::Sv39Space4>()
            .forking::<spaces::Sv39Space4>();
        ours::each(&mut all);
        all
    }

    /// Adds a subject, with every job that [`Subject`] is enough for.
    pub fn with<S: Subject + 'static>(mut self) -> Self {
        const { assert!(half(S::BITS) > 0) };
        lookups::add::<S>(&mut self.cases);
        edits::add::<S>(&mut self.cases);
        programs::add::<S>(&mut self.cases);
        self
    }

    /// Adds the job of a subject whose [`unmap`](Subject::unmap) gives nodes back that it has emptied.
    pub fn freeing<S: Subject + 'static>(mut self) -> Self {
        edits::freeing::<S>(&mut self.cases);
        self
    }

    /// Adds the jobs of a subject that visits its pages.
    pub fn iterating<S: Iterate + 'static>(mut self) -> Self {
        lookups::iterating::<S>(&mut self.cases);
        self
    }

    /// Adds the jobs of a subject with leaves of several sizes.
    pub fn resizing<S: Resize + 'static>(mut self) -> Self {
        edits::resizing::<S>(&mut self.cases);
        self
    }

    /// Adds the job of a subject that makes copies of itself.
    pub fn forking<S: Fork + 'static>(mut self) -> Self {
        programs::forking::<S>(&mut self.cases);
        self
    }

    /// Returns the cases, job by job in the order of [`JOBS`](jobs::JOBS), the subjects of each as they were added.
    pub fn cases(mut self) -> Vec<Case> {
        self.cases.sort_by_key(|case| jobs::place(case.job));
        self.cases
    }
}
