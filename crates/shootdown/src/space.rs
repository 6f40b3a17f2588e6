//! An address space's three sets of CPUs in shared memory.

use core::sync::atomic::AtomicUsize as Plain;

use tlbkit_addr::CpuSet;

use crate::sync::{AtomicUsize, Ordering, array, constructor};

/// A set of CPUs in shared memory, which each CPU changes atomically.
#[derive(Debug)]
pub struct SharedSet<const W: usize = 1>([AtomicUsize; W]);

impl<const W: usize> SharedSet<W> {
    constructor! {
        fn new() -> Self {
            Self(array!(AtomicUsize::new(0); W))
        }
    }

    /// Returns the word and the bit of `cpu`.
    fn place(&self, cpu: usize) -> Option<(&AtomicUsize, usize)> {
        let bits = usize::BITS as usize;
        self.0.get(cpu / bits).map(|word| (word, 1 << (cpu % bits)))
    }

    /// Adds `cpu`, and returns whether it was absent. Does nothing and returns false if the set cannot hold `cpu`.
    pub fn insert(&self, cpu: usize) -> bool {
        // If the bit is set already, the word is not written, and its cache line stays shared.
        self.place(cpu).is_some_and(|(word, bit)| {
            word.load(Ordering::SeqCst) & bit == 0 && word.fetch_or(bit, Ordering::SeqCst) & bit == 0
        })
    }

    /// Removes `cpu`, and returns whether it was present.
    pub fn remove(&self, cpu: usize) -> bool {
        self.place(cpu).is_some_and(|(word, bit)| {
            word.load(Ordering::SeqCst) & bit != 0 && word.fetch_and(!bit, Ordering::SeqCst) & bit != 0
        })
    }

    /// Tells whether `cpu` is in the set.
    pub fn contains(&self, cpu: usize) -> bool {
        self.place(cpu).is_some_and(|(word, bit)| word.load(Ordering::SeqCst) & bit != 0)
    }

    /// Returns the set. Each word is read atomically; the words are read one after the other.
    pub fn load(&self) -> CpuSet<W> {
        CpuSet::from_words(core::array::from_fn(|at| {
            self.0.get(at).map_or(0, |word| word.load(Ordering::SeqCst))
        }))
    }
}

/// The three sets of [`SpaceCpus`](crate::SpaceCpus) as sequentially consistent atomics. If a requester marks a CPU as stale
/// and then reads `running`, and that CPU sets its bit in `running` and then reads `stale`, at least one of them sees the
/// other's write.
///
/// [`System::switch`](crate::System::switch) changes the sets for a CPU that begins or ends to use the space. A CPU that uses it and
/// is not in `running` gets no request to flush, and the kernel may free page-table nodes while that CPU walks them.
///
/// Before a kernel drops the space it calls [`System::drain`](crate::System::drain).
#[derive(Debug)]
pub struct SharedSpace<const W: usize = 1> {
    /// CPUs that may hold translations.
    pub members: SharedSet<W>,
    /// CPUs that may use translations now.
    pub running: SharedSet<W>,
    /// CPUs that must flush before they use a translation of the space.
    pub stale: SharedSet<W>,
    /// The number of 2-phase changes of the space's entries that have begun. `over` is the number of those that have ended.
    begun: AtomicUsize,
    over: AtomicUsize,
    /// A number that no other space has or had; 0 until the first use.
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

    /// Counts a 2-phase change that begins (`on`) or ends.
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
        // `over` is read first: a change that ends between the two loads counts as under way, and the caller asks again.
        let over = self.over.load(Ordering::SeqCst);
        self.begun.load(Ordering::SeqCst) != over
    }

    /// Returns the space's name, if it has one.
    pub(crate) fn name(&self) -> Option<usize> {
        Some(self.name.load(Ordering::Relaxed)).filter(|&name| name != 0)
    }

    /// Returns the space's name; a space without one gets a name that no other space has had. Returns `None` when all names
    /// of a machine word have been used.
    pub(crate) fn named(&self) -> Option<usize> {
        static NEXT: Plain = Plain::new(1);
        if self.name().is_none() {
            let next = NEXT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |next| next.checked_add(1));
            if let Ok(next) = next {
                // If another CPU has given the space a name in between, the space keeps that name.
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
