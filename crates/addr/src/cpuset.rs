//! Sets of CPUs.

use core::fmt;

/// A set of CPUs numbered from 0, one bit each in `WORDS` words of a `usize`.
///
/// `CpuSet` alone holds 64 CPUs on a 64-bit machine and 32 on a 32-bit one; `CpuSet<4>` holds 256 or 128. Every
/// operation costs `WORDS` word operations.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct CpuSet<const WORDS: usize = 1>([usize; WORDS]);

impl<const WORDS: usize> CpuSet<WORDS> {
    /// The number of CPUs that the set can hold: `0..CAPACITY`.
    pub const CAPACITY: usize = WORDS * usize::BITS as usize;

    /// Returns the set without any CPU.
    #[inline]
    pub const fn empty() -> Self {
        Self([0; WORDS])
    }

    /// Returns the set of the CPUs `0..cpus`, or `None` beyond [`CAPACITY`](Self::CAPACITY).
    pub fn first_n(cpus: usize) -> Option<Self> {
        (cpus <= Self::CAPACITY).then(|| (0..cpus).collect())
    }

    /// Returns the place of `cpu`: its word and its bit, or `None` beyond the capacity.
    #[inline]
    const fn place(cpu: usize) -> Option<(usize, usize)> {
        if cpu < Self::CAPACITY {
            Some((cpu / usize::BITS as usize, 1 << (cpu % usize::BITS as usize)))
        } else {
            None
        }
    }

    /// Adds `cpu` and tells whether it was absent, or returns `None` (and changes nothing) beyond the capacity.
    #[inline]
    pub fn insert(&mut self, cpu: usize) -> Option<bool> {
        let (word, bit) = Self::place(cpu)?;
        let absent = self.0[word] & bit == 0;
        self.0[word] |= bit;
        Some(absent)
    }

    /// Removes `cpu` and tells whether it was in the set.
    #[inline]
    pub fn remove(&mut self, cpu: usize) -> bool {
        let Some((word, bit)) = Self::place(cpu) else { return false };
        let present = self.0[word] & bit != 0;
        self.0[word] &= !bit;
        present
    }

    /// Tells whether `cpu` is in the set.
    #[inline]
    pub const fn contains(&self, cpu: usize) -> bool {
        match Self::place(cpu) {
            Some((word, bit)) => self.0[word] & bit != 0,
            None => false,
        }
    }

    /// Tells whether there is no CPU in the set.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|&word| word == 0)
    }

    /// Returns the number of CPUs in the set.
    #[inline]
    pub fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Returns the CPUs that are in either set.
    #[inline]
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        self.zip(other, |a, b| a | b)
    }

    /// Returns the CPUs that are in both sets.
    #[inline]
    #[must_use]
    pub fn intersection(self, other: Self) -> Self {
        self.zip(other, |a, b| a & b)
    }

    /// Returns the CPUs of this set that are not in `other`.
    #[inline]
    #[must_use]
    pub fn difference(self, other: Self) -> Self {
        self.zip(other, |a, b| a & !b)
    }

    #[inline]
    fn zip(mut self, other: Self, f: impl Fn(usize, usize) -> usize) -> Self {
        for (a, b) in self.0.iter_mut().zip(other.0) {
            *a = f(*a, b);
        }
        self
    }

    /// Returns the words of the set, with CPU 0 in the lowest bit of the first word: for an interrupt controller's mask, or an
    /// array of atomics.
    #[inline]
    pub const fn words(&self) -> &[usize; WORDS] {
        &self.0
    }

    /// Returns the set with these words; the inverse of [`words`](Self::words).
    #[inline]
    pub const fn from_words(words: [usize; WORDS]) -> Self {
        Self(words)
    }

    /// Returns the CPUs in ascending order.
    #[inline]
    pub const fn iter(&self) -> Cpus<WORDS> {
        Cpus(*self)
    }
}

impl<const WORDS: usize> Default for CpuSet<WORDS> {
    fn default() -> Self {
        Self::empty()
    }
}

/// Collects CPUs; those beyond the capacity are left out.
impl<const WORDS: usize> FromIterator<usize> for CpuSet<WORDS> {
    fn from_iter<I: IntoIterator<Item = usize>>(cpus: I) -> Self {
        let mut set = Self::empty();
        for cpu in cpus {
            set.insert(cpu);
        }
        set
    }
}

impl<const WORDS: usize> IntoIterator for CpuSet<WORDS> {
    type Item = usize;
    type IntoIter = Cpus<WORDS>;

    fn into_iter(self) -> Cpus<WORDS> {
        Cpus(self)
    }
}

impl<const WORDS: usize> fmt::Debug for CpuSet<WORDS> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

/// The CPUs of a [`CpuSet`] in ascending order, from [`CpuSet::iter`].
#[derive(Clone, Debug)]
pub struct Cpus<const WORDS: usize>(CpuSet<WORDS>);

impl<const WORDS: usize> Iterator for Cpus<WORDS> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let (index, word) = self.0.0.iter_mut().enumerate().find(|(_, word)| **word != 0)?;
        let bit = word.trailing_zeros() as usize;
        *word &= *word - 1;
        Some(index * usize::BITS as usize + bit)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.0.len(), Some(self.0.len()))
    }
}

impl<const WORDS: usize> ExactSizeIterator for Cpus<WORDS> {}
