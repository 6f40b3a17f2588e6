//! What is done to caches, at random.

use proptest::prelude::*;

/// Pages are numbers below 120, address spaces numbers below 3.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    /// Page, address space, datum.
    Fill(usize, u16, u64),
    /// First page, how many, address space.
    Pages(usize, usize, u16),
    /// First page, how many.
    Global(usize, usize),
    Space(u16),
    All,
}

pub(crate) fn op() -> impl Strategy<Value = Op> {
    let (at, asid) = (0..80usize, 0..3u16);
    prop_oneof![
        12 => (at.clone(), asid.clone(), any::<u64>()).prop_map(|(p, s, d)| Op::Fill(p, s, d)),
        3 => (at.clone(), 1..40usize, asid.clone()).prop_map(|(p, n, s)| Op::Pages(p, n, s)),
        1 => (at, 1..40usize).prop_map(|(p, n)| Op::Global(p, n)),
        1 => asid.prop_map(Op::Space),
        1 => Just(Op::All),
    ]
}
