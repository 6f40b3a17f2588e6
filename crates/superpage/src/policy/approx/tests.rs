//! Which superpages a miss charges, in the cases that the ledger tells apart. The property tests in `tests` compare whole runs with
//! a model.

use super::*;
use crate::testing::{memory, miss, superpage};

fn policy(setup: &Setup) -> ApproxOnline<'static> {
    ApproxOnline::new(setup, memory(ApproxOnline::segment_memory(setup).unwrap(), 4)).unwrap()
}

#[test]
fn a_miss_beside_something_resident() {
    let mut policy = policy(&Setup::PAPER);
    policy.on_miss(miss(0));
    policy.on_miss(miss(1));
    assert_eq!(policy.prefetch(superpage(0, 13)), Some(1));
    // A superpage elsewhere in the block does not affect this page.
    policy.promoted(superpage(8, 14));
    policy.on_miss(miss(3));
    assert_eq!([13, 14].map(|shift| policy.prefetch(superpage(0, shift))), [Some(1), Some(2)]);
}

#[test]
fn a_miss_far_from_everything_resident() {
    let mut policy = policy(&Setup::PAPER);
    for page in [0, 80] {
        policy.on_miss(miss(page));
    }
    policy.evicted(Tlb::Data, Vpn::new(80));
    policy.on_miss(miss(81));
    // The misses to pages 80 and 81 each charge {0..127} and the larger superpages.
    let charged = [18, 19, 23].map(|shift| policy.prefetch(superpage(0, shift)));
    assert_eq!(charged, [Some(0), Some(2), Some(2)]);
    assert_eq!(policy.tlbcount(Tlb::Data, superpage(81, 12)), Some(1));
}

#[test]
fn an_eviction_in_a_cached_block() {
    let mut policy = policy(&Setup::PAPER);
    policy.on_miss(miss(5));
    policy.evicted(Tlb::Data, Vpn::new(5));
    assert_eq!(policy.tlbcount(Tlb::Data, superpage(5, 12)), Some(0));
}

/// A miss charges only superpages larger than the mapping, also when the TLB holds the mapping's entry: that entry did not
/// allow the access.
#[test]
fn a_miss_to_a_large_superpage_that_is_resident() {
    let mut policy = policy(&Setup::PAPER);
    let large = superpage(0, 17);
    for page in [0, 16] {
        policy.on_miss(miss(page));
    }
    policy.promoted(large);
    let charges = |policy: &mut ApproxOnline<'_>| {
        [superpage(16, 16), large, superpage(0, 18)].map(|range| policy.prefetch(range).unwrap())
    };
    let [block, own, above] = charges(&mut policy);
    policy.on_miss(miss(21));
    assert_eq!(charges(&mut policy), [block, own, above + 1]);
    // Nor does it matter whether the cache of blocks has the block.
    policy.unmapped(Pages::one(Vpn::new(1 << 20)));
    policy.on_miss(miss(21));
    assert_eq!(charges(&mut policy), [block, own, above + 2]);
}
