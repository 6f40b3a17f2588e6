//! Tests that the fast path is taken when it applies. The property tests in `tests` compare its results with the slow
//! path's.

use super::*;
use crate::testing::{memory, miss, page_sizes, superpage};
use crate::{Activity, Refusal};

fn policy(setup: &Setup) -> ApproxOnline<'static> {
    ApproxOnline::new(setup, memory(ApproxOnline::segment_memory(setup).unwrap(), 4)).unwrap()
}

/// A policy is plain with two TLBs, units of one page, and segments whose blocks fill two bitmap words, if every miss is
/// charged.
#[test]
fn what_is_plain() {
    let plain = |setup: &Setup| policy(setup).plain;
    assert!(plain(&Setup::PAPER));
    assert!(!plain(&Setup { split: false, ..Setup::PAPER }));
    assert!(!plain(&Setup { page_sizes: page_sizes([13, 24]), ..Setup::PAPER }));
    assert!(!plain(&Setup { page_sizes: page_sizes([12, 13, 19]), ..Setup::PAPER }));
    assert!(!plain(&Setup { activity: Activity { misses_per_million: 1 }, ..Setup::PAPER }));
}

/// A policy is not plain while a promotion waits after a refusal, and is plain again when none waits.
#[test]
fn nothing_is_plain_while_something_waits() {
    let mut policy = policy(&Setup::PAPER);
    policy.on_miss(miss(0));
    policy.refused(superpage(0, 15), Refusal::NoMemory);
    assert!(!policy.plain);
    policy.promoted(superpage(0, 13));
    assert!(!policy.plain);
    policy.promoted(superpage(0, 15));
    assert!(policy.plain);
}

#[test]
fn a_miss_beside_something_resident() {
    let mut policy = policy(&Setup::PAPER);
    assert_eq!(policy.ledger.miss_fast::<false, true>(&miss(1)), Fast::Not);
    policy.on_miss(miss(0));
    assert_eq!(policy.ledger.miss_fast::<false, true>(&miss(1)), Fast::Done);
    assert_eq!(policy.prefetch(superpage(0, 13)), Some(1));
    // A superpage elsewhere in the block does not affect this page.
    policy.promoted(superpage(8, 14));
    assert_eq!(policy.ledger.miss_fast::<false, true>(&miss(3)), Fast::Done);
    assert!(matches!(policy.ledger.miss_fast::<false, true>(&miss(11)), Fast::InSuperpage(_)));
}

#[test]
fn a_miss_far_from_everything_resident() {
    let mut policy = policy(&Setup::PAPER);
    for page in [0, 80] {
        policy.on_miss(miss(page));
    }
    policy.evicted(Tlb::Data, Vpn::new(80));
    let Fast::Distant(block) = policy.ledger.miss_fast::<false, true>(&miss(81)) else {
        panic!("nothing is resident there")
    };
    assert_eq!(policy.ledger.miss_distant::<true, false>(&miss(81), block), Distant::Done);
    // The misses to pages 80 and 81 each charge {0..127} and the larger superpages.
    let charged = [18, 19, 23].map(|shift| policy.prefetch(superpage(0, shift)));
    assert_eq!(charged, [Some(0), Some(2), Some(2)]);
    assert_eq!(policy.tlbcount(Tlb::Data, superpage(81, 12)), Some(1));
}

#[test]
fn an_eviction_in_a_cached_block() {
    let mut policy = policy(&Setup::PAPER);
    assert!(!policy.ledger.evict_fast::<true>(Tlb::Data, Vpn::new(5)));
    policy.on_miss(miss(5));
    assert!(policy.ledger.evict_fast::<true>(Tlb::Data, Vpn::new(5)));
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
    assert!(matches!(policy.ledger.miss_fast::<false, true>(&miss(21)), Fast::InSuperpage(_)));
    policy.on_miss(miss(21));
    assert_eq!(charges(&mut policy), [block, own, above + 1]);
    // The slow path charges the same superpages.
    policy.unmapped(Pages::one(Vpn::new(1 << 20)));
    assert_eq!(policy.ledger.miss_fast::<false, true>(&miss(21)), Fast::Not);
    policy.on_miss(miss(21));
    assert_eq!(charges(&mut policy), [block, own, above + 2]);
}
