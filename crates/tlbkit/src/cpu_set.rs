//! How many CPUs a machine can have.

/// The words of a set of CPUs.
pub(crate) const WORDS: usize = if cfg!(feature = "many-cpus") { 1024 / usize::BITS as usize } else { 1 };

/// A set of CPUs: as many as a `usize` has bits, 64 or 32; with the feature `many-cpus` 1024. A set of one word costs no more than the
/// word.
pub type CpuSet = tlbkit_addr::CpuSet<WORDS>;

/// The sets of CPUs of an address space.
pub(crate) type SharedSpace = tlbkit_shootdown::SharedSpace<WORDS>;
