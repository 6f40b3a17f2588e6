//! Tests that a superpage whose count is between its threshold and its price is checked rarely. The property tests in `tests` compare the promotions.

use super::*;
use crate::Costs;
use crate::testing::{memory, miss, superpage};

/// A policy for which holes raise prices, with thresholds of `prefetch` thousandths of R.
fn frugal(prefetch: u32) -> Thrift<'static> {
    let setup = Setup { costs: Costs { prefetch, ..Costs::PAPER }, ..Setup::PAPER };
    let memory = memory(Thrift::segment_memory(&setup).unwrap(), 2);
    let mut policy = Thrift::new(&setup, memory).unwrap();
    let pair = superpage(1024, 13);
    for page in [1024, 1025] {
        policy.on_miss(miss(page));
    }
    policy.promoted(pair);
    policy.evicted(Tlb::Data, pair.first);
    policy
}

/// Lets two pages miss in turn in a TLB of one entry until the policy asks for a superpage. Returns the superpage's level,
/// its charges, and how many of the charges from `threshold` on made the policy check a count.
fn looks(policy: &mut Thrift<'_>, pages: [usize; 2], threshold: u32) -> (usize, u32, u32) {
    for page in pages {
        policy.on_miss(miss(page));
    }
    policy.evicted(Tlb::Data, Vpn::new(pages[0]));
    for (charges, n) in (2..).zip((0..2).cycle()) {
        let looks = policy.0.ledger.looks;
        let asked = policy.on_miss(Miss { evicted: Some(Vpn::new(pages[1 - n])), ..miss(pages[n]) });
        if charges < threshold {
            policy.0.ledger.looks = 0;
        }
        if let Some(Action::Promote { range, .. }) = asked {
            return (policy.0.ledger.page_sizes.level(range.size).unwrap(), charges, looks);
        }
    }
    unreachable!("it is asked for some time")
}

/// Within a block: the price of {0..3} with two holes is half of its R, 800 charges, whatever its threshold.
#[test]
fn a_block_rests_while_something_waits_in_it() {
    for (first, prefetch) in [(0, 125), (72, 125), (72, 130)] {
        let threshold = 16 * prefetch / 10;
        let (level, charges, looks) = looks(&mut frugal(prefetch), [first, first + 2], threshold);
        assert_eq!((level, charges), (2, 800));
        assert!(looks < 20, "{looks}");
    }
}

/// Beyond a block: {0..31} has a threshold of 1600 charges, an R of 12800, and 30 holes.
#[test]
fn a_look_at_what_waits_is_put_off() {
    for first in [0, 64] {
        let (level, charges, looks) = looks(&mut frugal(125), [first, first + 16], 1600);
        assert_eq!((level, charges), (5, 1600 + 11200 * 30 / 32));
        assert!(looks < 400, "{looks}");
    }
}
