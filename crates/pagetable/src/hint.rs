//! A hint to the compiler.

/// Marks the path that calls it as one that is seldom taken, so that the code of the other path is in a row. A change of one page is
/// about a hundred instructions, of which a CPU executes five or six a cycle, but hardly more than one jump.
#[cold]
#[inline(never)]
pub(crate) const fn seldom() {}
