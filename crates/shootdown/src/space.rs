//! An address space's three sets of CPUs in shared memory.

use tlbkit_addr::CpuSet;

use crate::sync::{AtomicUsize, Ordering};

/// A set of CPUs that CPUs enter and leave by themselves.
#[derive(Debug)]
pub struct SharedSet<const W: usize = 1>([AtomicUsize; W]);

impl<const W: usize> SharedSet<W> {
    fn new() -> Self {
        Self(core::array::from_fn(|_| AtomicUsize::new(0)))
    }

    fn place(&self, cpu: usize) -> Option<(&AtomicUsize, usize)> {
        let bits = usize::BITS as usize;
        self.0.get(cpu / bits).map(|word| (word, 1 << (cpu % bits)))
    }

    /// Adds `cpu`, and tells whether it was absent. Beyond the capacity there is nobody to add.
    pub fn insert(&self, cpu: usize) -> bool {
        // Not written if it is there already: the line stays shared.
        self.place(cpu).is_some_and(|(word, bit)| {
            word.load(Ordering::SeqCst) & bit == 0 && word.fetch_or(bit, Ordering::SeqCst) & bit == 0
        })
    }

    /// Takes `cpu` out, and tells whether it was there.
    pub fn remove(&self, cpu: usize) -> bool {
        self.place(cpu).is_some_and(|(word, bit)| {
            word.load(Ordering::SeqCst) & bit != 0 && word.fetch_and(!bit, Ordering::SeqCst) & bit != 0
        })
    }

    /// Tells whether `cpu` is in the set.
    pub fn contains(&self, cpu: usize) -> bool {
        self.place(cpu).is_some_and(|(word, bit)| word.load(Ordering::SeqCst) & bit != 0)
    }

    /// Returns the set as it is, word by word.
    pub fn load(&self) -> CpuSet<W> {
        CpuSet::from_words(core::array::from_fn(|at| {
            self.0.get(at).map_or(0, |word| word.load(Ordering::SeqCst))
        }))
    }
}

/// [`Space`](crate::Space)'s three sets as atomics, sequentially consistent: who marks and then looks, and who
/// enters and then looks, cannot both see nothing.
#[derive(Debug)]
pub struct SharedSpace<const W: usize = 1> {
    /// Who may hold translations.
    pub members: SharedSet<W>,
    /// Who may use them now.
    pub running: SharedSet<W>,
    /// Who must flush first.
    pub stale: SharedSet<W>,
}

impl<const W: usize> SharedSpace<W> {
    /// Returns the sets of a new address space: nobody knows it.
    pub fn new() -> Self {
        Self { members: SharedSet::new(), running: SharedSet::new(), stale: SharedSet::new() }
    }
}

impl<const W: usize> Default for SharedSpace<W> {
    fn default() -> Self {
        Self::new()
    }
}
