//! An address space's three sets of CPUs in shared memory.

use core::sync::atomic::AtomicUsize as Plain;

use tlbkit_addr::CpuSet;

use crate::sync::{AtomicUsize, Ordering, array, constructor};

/// A set of CPUs that CPUs enter and leave by themselves.
#[derive(Debug)]
pub struct SharedSet<const W: usize = 1>([AtomicUsize; W]);

impl<const W: usize> SharedSet<W> {
    constructor! {
        fn new() -> Self {
            Self(array!(AtomicUsize::new(0); W))
        }
    }

    fn place(&self, cpu: usize) -> Option<(&AtomicUsize, usize)> {
        let bits = usize::BITS as usize;
        self.0.get(cpu / bits).map(|word| (word, 1 << (cpu % bits)))
    }

    /// Adds `cpu`, and tells whether it was absent. Beyond the capacity there is no CPU to add.
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

/// [`SpaceCpus`](crate::SpaceCpus)'s three sets as atomics, sequentially consistent: a CPU that marks and then looks, and a CPU
/// that enters and then looks, cannot both see nothing.
///
/// A kernel lets [`System::switch`](crate::System::switch) keep them: a CPU that uses the space without being among
/// those that run it is not asked to flush, and what it walks is freed under it.
///
/// Before a kernel drops the space it calls [`System::drain`](crate::System::drain).
#[derive(Debug)]
pub struct SharedSpace<const W: usize = 1> {
    /// CPUs that may hold translations.
    pub members: SharedSet<W>,
    /// CPUs that may use translations now.
    pub running: SharedSet<W>,
    /// CPUs that must flush before they use one.
    pub stale: SharedSet<W>,
    /// How many 2-phase changes of its entries have begun, and how many of those are over.
    begun: AtomicUsize,
    over: AtomicUsize,
    /// What tells the space from all others, also from those that have ended; 0 until it is first asked for.
    name: Plain,
}

impl<const W: usize> SharedSpace<W> {
    constructor! {
        /// Returns the sets of a new address space: all empty.
        pub fn new() -> Self {
            Self {
                members: SharedSet::new(),
                running: SharedSet::new(),
                stale: SharedSet::new(),
                begun: AtomicUsize::new(0),
                over: AtomicUsize::new(0),
                name: Plain::new(0),
            }
        }
    }

    /// Counts a 2-phase change that begins, or is over.
    pub(crate) fn set_changing(&self, on: bool) {
        let count = if on { &self.begun } else { &self.over };
        count.fetch_add(1, Ordering::SeqCst);
    }

    /// Returns how many 2-phase changes have begun.
    pub(crate) fn changes(&self) -> usize {
        self.begun.load(Ordering::SeqCst)
    }

    /// Tells whether a 2-phase change is under way.
    pub(crate) fn is_changing(&self) -> bool {
        // In this order: a change that ends in between counts as under way, and is asked for again.
        let over = self.over.load(Ordering::SeqCst);
        self.begun.load(Ordering::SeqCst) != over
    }

    /// Returns the space's name, if it has one.
    pub(crate) fn name(&self) -> Option<usize> {
        Some(self.name.load(Ordering::Relaxed)).filter(|&name| name != 0)
    }

    /// Gives the space a name that no other one has had, if it has none, and returns it. There are as many as a word
    /// can count; then there is none.
    pub(crate) fn named(&self) -> Option<usize> {
        static NEXT: Plain = Plain::new(1);
        if self.name().is_none() {
            let next = NEXT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |next| next.checked_add(1));
            if let Ok(next) = next {
                // If it has got one meanwhile, it keeps that.
                let _ = self.name.compare_exchange(0, next, Ordering::Relaxed, Ordering::Relaxed);
            }
        }
        self.name()
    }
}

impl<const W: usize> Default for SharedSpace<W> {
    fn default() -> Self {
        Self::new()
    }
}
