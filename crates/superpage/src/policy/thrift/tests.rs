//! Tests that a superpage whose count is between its threshold and its price is checked rarely, so that misses keep taking
//! the fast path. The property tests in `tests` compare the promotions.

use super::*;
use crate::Costs;
use crate::ledger::{Charged, Distant, Fast};
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
    let (ledger, mut looks) = (&mut policy.0.ledger, 0);
    for (charges, n) in (2..).zip((0..2).cycle()) {
        let (miss, evicted) = (miss(pages[n]), Vpn::new(pages[1 - n]));
        let charged = match ledger.miss_fast::<true, true>(&miss) {
            Fast::Done => None,
            Fast::Due(block, from) => Some(ledger.account_at(block, miss.page, from)),
            Fast::Distant(block) => match ledger.miss_distant::<true, false>(&miss, block) {
                Distant::Done => None,
                Distant::Pays(from) => Some(ledger.pay_at(block, from)),
                Distant::Not => panic!("the other page is near"),
            },
            other => panic!("{other:?} at {charges}"),
        };
        assert!(ledger.evict_fast::<true>(miss.tlb, evicted));
        looks += u32::from(charges >= threshold && charged.is_some());
        if let Some(Charged::Ready(level)) = charged {
            return (level, charges, looks);
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
