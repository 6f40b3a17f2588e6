//! The best that any choice of node sizes could do: a lower bound for adaptive guarded page tables.
//!
//! In the paper's layout (Elphinstone, Heiser and Liedtke, section 3.2) a node of 2^k slots takes 16 · 2^k bytes, and
//! each pair of pages an external leaf node of 16. Guards compress paths, so a tree of nodes is decided by k at every
//! branching point of the binary trie of mapped pairs:
//!
//! ```text
//! cost(one pair) = 16
//! cost(branch)   = min over k ≥ 1 of 16 · 2^k + Σ cost(what is left below the k bits)
//! ```
//!
//! To begin a node above the branching point would only add empty slots. A node's choice does not bear on what is
//! below it, so one walk from the leaves up finds the optimum; the root's own slot is no node and not counted.

use std::collections::BTreeMap;

use tlbkit_addr::Vpn;

/// A slot of a node, or an external leaf node: 16 bytes.
const SLOT: u64 = 16;

/// The smallest tree for a set of pages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Optimum {
    /// Bytes, external leaf nodes included.
    pub(crate) bytes: u64,
    /// Bytes of the nodes with slots alone.
    pub(crate) inner: u64,
    /// How many nodes there are of each size in bytes, external leaf nodes left out.
    pub(crate) nodes: BTreeMap<u64, u64>,
}

/// A branching point of the binary trie, or a leaf.
#[derive(Debug)]
struct Point {
    /// The bit that tells the two subtrees apart, and them.
    branch: Option<(u32, [usize; 2])>,
    cost: u64,
    /// The bits of the best node.
    bits: u32,
}

impl Optimum {
    /// Returns the optimum for `pages`, which are in ascending order.
    ///
    /// The cost is the number of pairs, times the levels of the best nodes' bits.
    pub(crate) fn of(pages: impl IntoIterator<Item = Vpn>) -> Self {
        let mut pairs: Vec<_> = pages.into_iter().map(|page| page.get() >> 1).collect();
        pairs.dedup();
        let mut trie = Vec::with_capacity(2 * pairs.len());
        if pairs.is_empty() {
            return Self::default();
        }
        let root = grow(&mut trie, &pairs);
        let mut optimum = Self { bytes: trie[root].cost, ..Self::default() };
        let mut open = vec![root];
        while let Some(at) = open.pop() {
            if let Some((top, _)) = trie[at].branch {
                let bits = trie[at].bits;
                *optimum.nodes.entry(SLOT << bits).or_default() += 1;
                optimum.inner += SLOT << bits;
                let mut below = vec![at];
                for bit in (0..bits).map(|bit| top - bit) {
                    below = descend(&trie, &below, bit);
                }
                open.append(&mut below);
            }
        }
        optimum
    }
}

/// Adds the trie of `pairs` (ascending, at least one) with its costs, and returns its root.
fn grow(trie: &mut Vec<Point>, pairs: &[usize]) -> usize {
    let differ = pairs[0] ^ pairs[pairs.len() - 1];
    let point = match differ.checked_ilog2() {
        None => Point { branch: None, cost: SLOT, bits: 0 },
        Some(bit) => {
            let (low, high) = pairs.split_at(pairs.partition_point(|pair| pair >> bit & 1 == 0));
            let children = [grow(trie, low), grow(trie, high)];
            let (cost, bits) = best(trie, bit, children, pairs.len() as u64);
            Point { branch: Some((bit, children)), cost, bits }
        }
    };
    trie.push(point);
    trie.len() - 1
}

/// Returns the least cost of a tree of so many leaves whose root branches at bit `top`, and the bits of its root.
fn best(trie: &[Point], top: u32, children: [usize; 2], leaves: u64) -> (u64, u32) {
    let mut best = (u64::MAX, 0);
    let mut below = children.to_vec();
    for bits in 1..=top + 1 {
        // Each leaf costs a slot at least: larger nodes cannot win any more.
        if (SLOT << bits) + SLOT * leaves >= best.0 {
            break;
        }
        if bits > 1 {
            below = descend(trie, &below, top + 1 - bits);
        }
        let cost = (SLOT << bits) + below.iter().map(|&at| trie[at].cost).sum::<u64>();
        best = best.min((cost, bits));
    }
    best
}

/// Returns what is below `points` once `bit` is decided, too.
fn descend(trie: &[Point], points: &[usize], bit: u32) -> Vec<usize> {
    let mut below = Vec::with_capacity(2 * points.len());
    for &at in points {
        match trie[at].branch {
            Some((branch, children)) if branch == bit => below.extend(children),
            _ => below.push(at),
        }
    }
    below
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use tlbkit_addr::PageSize;

    use super::*;
    use crate::workload::{FileSizes, Workload};

    /// Tries every node size at every place, above branching points as well.
    fn brute_force(pairs: &[usize], width: u32) -> u64 {
        if pairs.is_empty() {
            return 0;
        }
        if pairs.len() == 1 {
            return SLOT;
        }
        // A guard of `guard` bits that all pairs share, then a node of `bits`.
        let mut best = u64::MAX;
        for guard in 0..width {
            if pairs.iter().any(|pair| pair >> (width - guard) != pairs[0] >> (width - guard)) {
                break;
            }
            for bits in 1..=width - guard {
                let rest = width - guard - bits;
                let slots = (0..1 << bits).map(|slot| {
                    let inside: Vec<_> = pairs
                        .iter()
                        .copied()
                        .filter(|pair| pair >> rest & ((1 << bits) - 1) == slot)
                        .collect();
                    brute_force(&inside, rest)
                });
                best = best.min((SLOT << bits) + slots.sum::<u64>());
            }
        }
        best
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn nothing_is_better(mut pages in prop::collection::vec(0..128usize, 1..40)) {
            pages.sort_unstable();
            let mut pairs: Vec<_> = pages.iter().map(|page| page / 2).collect();
            pairs.dedup();
            let optimum = Optimum::of(pages.into_iter().map(Vpn::new));
            prop_assert_eq!(optimum.bytes, brute_force(&pairs, 6));
            prop_assert_eq!(optimum.bytes, optimum.inner + SLOT * pairs.len() as u64);
            prop_assert_eq!(optimum.inner, optimum.nodes.iter().map(|(bytes, nodes)| bytes * nodes).sum::<u64>());
        }
    }

    fn bytes_per_page(workload: Workload, pages: usize, seed: u64) -> f64 {
        let ranges = workload.ranges(pages, PageSize::K4, seed, FileSizes { median: 3072.0, sigma: 2.0 });
        let mut all: Vec<_> = ranges.iter().flat_map(|range| range.iter()).collect();
        all.sort_unstable();
        Optimum::of(all).bytes as f64 / pages as f64
    }

    #[test]
    fn known_workloads() {
        let mean = |workload| (1..=8).map(|seed| bytes_per_page(workload, 8192, seed)).sum::<f64>() / 8.0;
        let (uniform, file) = (mean(Workload::Uniform), mean(Workload::File));
        assert!((41.0..42.0).contains(&uniform), "{uniform}");
        assert!((22.0..24.0).contains(&file), "{file}");
        // One node of 8192 slots above 8192 external ones.
        assert_eq!(bytes_per_page(Workload::Dense, 16384, 1), 16.0);
        assert_eq!(bytes_per_page(Workload::Uniform, 1, 1), 16.0);
        assert_eq!(Optimum::of([]), Optimum::default());
    }
}
