//! Frames that wait for their release, in runs.

use core::fmt;
use core::mem::{MaybeUninit, take};

use tlbkit_pagetable::Run;

use crate::Kernel;
use crate::counted::typed_runs;

/// The most runs that wait, and that one call of [`Kernel::release_all`] gives back.
pub(crate) const RUNS: usize = 16;

/// Up to [`RUNS`] runs of frames. A new list initializes none of its places.
pub(crate) struct UncoveredRuns {
    runs: [MaybeUninit<Run>; RUNS],
    /// How many are initialized.
    len: usize,
}

impl UncoveredRuns {
    #[inline(always)]
    pub(crate) const fn new() -> Self {
        Self { runs: [const { MaybeUninit::uninit() }; RUNS], len: 0 }
    }

    #[inline(always)]
    pub(crate) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns how many runs there are.
    #[inline(always)]
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// Returns how many frames there are.
    pub(crate) fn pages(&self) -> usize {
        self.as_slice().iter().map(|run| run.len).sum()
    }

    #[inline(always)]
    pub(crate) const fn is_full(&self) -> bool {
        self.len == RUNS
    }

    fn as_slice(&self) -> &[Run] {
        // SAFETY: the first `len` places are initialized.
        unsafe { core::slice::from_raw_parts(self.runs.as_ptr().cast(), self.len) }
    }

    /// Adds frames, to the last run if they continue it. Returns whether there was room.
    #[inline(always)]
    pub(crate) fn add(&mut self, run: Run) -> bool {
        if let Some(last) = self.len.checked_sub(1).and_then(|last| self.runs.get_mut(last)) {
            // SAFETY: a place before `len` is initialized.
            let last = unsafe { last.assume_init_mut() };
            if last.first.checked_add(last.len) == Some(run.first) {
                last.len += run.len;
                last.dirty |= run.dirty;
                return true;
            }
        }
        self.push(run)
    }

    /// Adds a run, which stays one of its own. Returns whether there was room.
    #[inline(always)]
    pub(crate) fn push(&mut self, Run { first, len, dirty }: Run) -> bool {
        let Some(place) = self.runs.get_mut(self.len) else { return false };
        place.write(Run { first, len, dirty });
        self.len += 1;
        true
    }

    /// Takes the runs out, with which the caller calls `each`.
    pub(crate) fn take_all(&mut self, each: impl FnMut(Run)) {
        let len = take(&mut self.len);
        // SAFETY: the first `len` places are initialized, and a run is plain data.
        self.runs.iter().take(len).map(|run| unsafe { run.assume_init_read() }).for_each(each);
    }

    /// Forgets the frames, of which CPUs may hold translations: they are lost.
    #[cold]
    pub(crate) const fn lose(&mut self) {
        self.len = 0;
    }

    /// Gives the frames to the kernel, by one call. The list is empty then, also if the call unwinds.
    #[inline]
    pub(crate) fn release<K: Kernel>(&mut self, kernel: &K) {
        let len = take(&mut self.len);
        // SAFETY: the first `len` places are initialized, and stay so during the call.
        let runs = unsafe { core::slice::from_raw_parts(self.runs.as_ptr().cast::<Run>(), len) };
        match typed_runs::<K>(runs) {
            [] => {}
            &[run] => kernel.release(run),
            runs => kernel.release_all(runs),
        }
    }
}

/// Runs of frames on their way to a kernel, which gets many by one call. The drop of this value gives the kernel the rest, also if
/// another of its methods unwinds.
pub(crate) struct Batch<'k, K: Kernel> {
    kernel: &'k K,
    runs: &'k mut UncoveredRuns,
}

impl<'k, K: Kernel> Batch<'k, K> {
    pub(crate) const fn new(kernel: &'k K, runs: &'k mut UncoveredRuns) -> Self {
        Self { kernel, runs }
    }

    /// Gives frames to the kernel, which do not continue those before, at the latest when this value is dropped.
    pub(crate) fn add(&mut self, run: Run) {
        // There is room. The run is in the list before the kernel is called, which may unwind.
        let _ = self.runs.push(run);
        if self.runs.is_full() {
            self.runs.release(self.kernel);
        }
    }
}

impl<K: Kernel> Drop for Batch<'_, K> {
    fn drop(&mut self) {
        self.runs.release(self.kernel);
    }
}

impl Default for UncoveredRuns {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for UncoveredRuns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_slice().fmt(f)
    }
}
