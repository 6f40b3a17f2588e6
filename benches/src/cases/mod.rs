//! The measured work: one list of jobs and subjects, which criterion and the ratios both run.

use std::collections::BTreeSet;
use std::fs;
use std::hint::black_box;
use std::time::Duration;

use crate::threads::{
    Concurrent, Cpt8Threads, Cpt8Whole, HrThreads, HrWhole, Locked, MptThreads, MptWhole, Sv39Threads,
    Sv39Whole, X86TableThreads, X86TableWhole, X86Threads, X86Whole,
};
use crate::work::half;
use crate::{Fork, Iterate, Resize, Subject, jobs, ours, peers, spaces};

mod edits;
mod lookups;
mod programs;
mod threads;

/// One subject at one job.
pub struct Case {
    /// The job, one of [`JOBS`](jobs::JOBS).
    pub job: &'static str,
    /// The subject.
    pub subject: &'static str,
    /// The bits of the subject's addresses.
    pub bits: u32,
    /// For a subject with several threads, the same one with one thread: the ratio is of their throughputs. `None`: of the times, to the
    /// first subject of the job.
    pub one: Option<&'static str>,
    /// How many operations one round has.
    pub operations: u64,
    /// Sets the subject up.
    pub start: Box<dyn FnOnce() -> Round>,
}

/// Does a round of a case and returns the time of what counts.
pub type Round = Box<dyn FnMut() -> Duration>;

impl Case {
    /// A case whose rounds have so many operations; `start` sets the subject up and returns what does a round of them, and returns
    /// the time of what counts ([`timed`](crate::timed)).
    pub fn new<R: FnMut() -> Duration + 'static>(
        job: &'static str,
        subject: &'static str,
        operations: usize,
        start: impl FnOnce() -> R + 'static,
    ) -> Self {
        let start = || -> Round { Box::new(start()) };
        Self { job, subject, bits: 48, one: None, operations: operations as u64, start: Box::new(start) }
    }

    /// Returns the name by which a command line chooses the case.
    pub fn name(&self) -> String {
        format!("{}/{}", self.job, self.subject)
    }
}

/// Returns so many pages, or with debug assertions, where times mean nothing and the tests do every job, an eighth of them.
const fn scaled(pages: usize) -> usize {
    if cfg!(debug_assertions) { pages / 8 } else { pages }
}

fn case<S: Subject, R: FnMut() -> Duration + 'static>(
    job: &'static str,
    operations: usize,
    start: impl FnOnce() -> R + 'static,
) -> Case {
    Case { bits: S::BITS, ..Case::new(job, S::NAME, operations, start) }
}

/// Evicts what the caches hold: each line of twice the bytes of the largest is written.
struct Evict(Vec<u64>);

/// Bytes of the largest cache where the system does not tell.
const LARGEST: usize = 32 << 20;

impl Evict {
    fn new() -> Self {
        let largest = if cfg!(debug_assertions) { 1 << 20 } else { largest_cache().unwrap_or(LARGEST) };
        Self(vec![0; largest / 4])
    }

    fn run(&mut self) {
        self.0.iter_mut().step_by(8).for_each(|line| *line += 1);
        black_box(&self.0);
    }
}

/// Returns the bytes of this CPU's largest cache, as Linux tells them.
fn largest_cache() -> Option<usize> {
    let caches = fs::read_dir("/sys/devices/system/cpu/cpu0/cache").ok()?.flatten();
    let sizes = caches.filter_map(|cache| {
        let size = fs::read_to_string(cache.path().join("size")).ok()?;
        size.trim().strip_suffix('K')?.parse::<usize>().ok()
    });
    sizes.max().map(|kib| kib << 10)
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

    /// Returns every subject of this crate; ratios are to `x86_64` wherever that can do the job, in as many bits as the subject has.
    pub fn all() -> Self {
        let peers = Self::none()
            .with::<peers::X86<48>>()
            .with::<peers::X86<39>>()
            .freeing::<peers::X86Freeing<48>>()
            .freeing::<peers::X86Freeing<39>>()
            .with::<peers::X86Linear<48>>()
            .with::<peers::X86Linear<39>>()
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
        all.threads::<X86Threads>()
            .threads::<X86Whole>()
            .threads::<Sv39Threads>()
            .threads::<Sv39Whole>()
            .threads::<X86TableThreads>()
            .threads::<X86TableWhole>()
            .threads::<MptThreads>()
            .threads::<MptWhole>()
            .threads::<HrThreads>()
            .threads::<HrWhole>()
            .threads::<Cpt8Threads>()
            .threads::<Cpt8Whole>()
            .threads::<Locked<peers::X86>>()
            .threads::<Locked<peers::X86Freeing>>()
            .threads::<Locked<peers::Multiarch>>()
            .threads::<Locked<peers::Generic>>()
            .threads::<Locked<peers::Aarch64>>()
            .threads::<Locked<peers::HashBrown>>()
            .threads::<Locked<peers::BTree>>()
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

    /// Adds the jobs of a subject that several threads change at once.
    pub fn threads<S: Concurrent + 'static>(mut self) -> Self {
        threads::add::<S>(&mut self.cases);
        self
    }

    /// Adds cases of other jobs.
    pub fn and(mut self, cases: Vec<Case>) -> Self {
        self.cases.extend(cases);
        self
    }

    /// Returns the cases, job by job in the order of [`JOBS`](jobs::JOBS), the subjects of each as they were added.
    ///
    /// # Panics
    ///
    /// If two cases have one name: a command line could not tell them apart.
    pub fn cases(mut self) -> Vec<Case> {
        let mut names = BTreeSet::new();
        for case in &self.cases {
            assert!(names.insert((case.job, case.subject)), "two subjects are called `{}`", case.name());
        }
        self.cases.sort_by_key(|case| jobs::place(case.job));
        self.cases
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;
    use crate::peers::BTree;

    /// A map that is as wrong as `FAULT` says.
    struct Wrong<const FAULT: usize>(BTree);

    const FAR: usize = 1;
    const STAYS: usize = 2;
    const DEAF: usize = 3;

    impl<const FAULT: usize> Subject for Wrong<FAULT> {
        const NAME: &'static str = "wrong";
        const BITS: u32 = 48;

        fn new() -> Self {
            Self(BTree::new())
        }
        fn map(&mut self, vpn: usize, pfn: usize) {
            self.0.map(vpn, pfn);
        }
        fn unmap(&mut self, vpn: usize) {
            if FAULT != STAYS {
                self.0.unmap(vpn);
            }
        }
        fn translate(&self, va: usize) -> Option<usize> {
            let one = if FAULT == FAR { 0x1000 } else { 0 };
            self.0.translate(va).map(|at| at + one)
        }
        fn is_writable(&self, vpn: usize) -> bool {
            self.0.is_writable(vpn)
        }
        fn protect_range(&mut self, vpn: usize, pages: usize, writable: bool) {
            if FAULT != DEAF {
                self.0.protect_range(vpn, pages, writable);
            }
        }
        fn destroy(self) {}
    }

    /// Tells whether a round of a job goes through, with as many threads as it can have.
    fn passes<S: Subject + Send + 'static>(job: &str) -> bool {
        let cases = Subjects::none().with::<S>().threads::<Locked<S>>().cases();
        let case = cases.into_iter().rfind(|case| case.job == job);
        let start = case.expect("a job").start;
        catch_unwind(AssertUnwindSafe(|| start()())).is_ok()
    }

    #[test]
    fn a_subject_that_answers_wrongly_is_not_timed() {
        for job in ["lookup dense", "lookup cold file", "map page", "map 128", "fault cc1", "replace page"] {
            assert!(passes::<Wrong<0>>(job) && !passes::<Wrong<FAR>>(job), "{job}");
        }
        for job in ["fault, N threads, disjoint", "fault, N threads, shared", "mmap and munmap, N threads"] {
            assert!(
                passes::<Wrong<0>>(job) && !passes::<Wrong<FAR>>(job) && !passes::<Wrong<STAYS>>(job),
                "{job}"
            );
        }
        for job in ["unmap page", "unmap 128", "unmap all, sparse"] {
            assert!(passes::<Wrong<0>>(job) && !passes::<Wrong<STAYS>>(job), "{job}");
        }
        for job in ["protect page", "protect 128", "fork protect"] {
            assert!(passes::<Wrong<0>>(job) && !passes::<Wrong<DEAF>>(job), "{job}");
        }
    }

    #[test]
    #[should_panic(expected = "two subjects are called `lookup dense/wrong`")]
    fn two_subjects_of_one_name_are_refused() {
        Subjects::none().with::<Wrong<0>>().with::<Wrong<FAR>>().cases();
    }
}
