//! The kinds of kernel misses.

/// The kind of a kernel miss, by the entry that is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    L1K,
    L2 { in_kernel: bool },
    L3,
}
