//! A batch of changes becomes one request. It may ask for more than was added, never for less.

use std::collections::BTreeSet;

use proptest::prelude::*;
use tlbkit_addr::{Asid, Flush, FlushScope, Pages, Vpn};
use tlbkit_shootdown::{Batch, Target};

const SPACE: Asid = Asid::new(7, 8).unwrap();

fn pages(first: usize, count: usize) -> Pages {
    Pages::count(Vpn::new(first), count).unwrap()
}

#[test]
fn a_batch_is_one_request() {
    let mut batch = Batch::new(SPACE, 64);
    for page in 0..32 {
        batch.add(FlushScope::Everywhere, pages(page, 1));
    }
    assert_eq!(batch.changes(), 32);
    assert_eq!(batch.take().map(|flush| Target::of(SPACE, &flush)), Some(Target::Pages(SPACE, pages(0, 32))));
    assert_eq!((batch.take(), batch.changes()), (None, 0));
    batch.add(FlushScope::Local, pages(0, 32));
    assert_eq!(
        batch.take().map(|flush| flush.scope()),
        Some(FlushScope::Local),
        "no other CPU needs to know"
    );
    batch.add(FlushScope::Everywhere, pages(0, 65));
    assert_eq!(batch.take().map(|flush| Target::of(batch.space(), &flush)), Some(Target::Space(SPACE)));
}

#[test]
fn the_limit_is_the_most_that_is_flushed_page_by_page() {
    let mut batch = Batch::new(SPACE, 8);
    batch.add(FlushScope::Everywhere, pages(0, 5));
    batch.add(FlushScope::Everywhere, pages(5, 3));
    assert_eq!(batch.flush().ranges(), [pages(0, 8)]);
    batch.add(FlushScope::Everywhere, pages(8, 1));
    assert!(batch.flush().is_all(), "nine pages of eight");
}

#[test]
fn a_request_says_one_range_or_has_it_looked_up() {
    let mut batch = Batch::new(SPACE, 8);
    batch.add(FlushScope::Everywhere, pages(0, 1));
    batch.add(FlushScope::Everywhere, pages(9, 1));
    let flush = batch.take().unwrap();
    assert_eq!((flush.ranges().len(), Target::of(SPACE, &flush)), (2, Target::Listed(SPACE)));
    let mut links = Flush::none();
    links.add_links(FlushScope::Everywhere, pages(4, 1));
    assert_eq!(Target::of(SPACE, &links), Target::Listed(SPACE), "an address does not say it");
    let mut barrier = Flush::none();
    barrier.add(FlushScope::Barrier, pages(4, 1));
    assert_eq!(Target::of(SPACE, &barrier), Target::Nothing);
}

/// What is added: one change, or what an edit of a page table asked for.
#[derive(Clone, Debug)]
enum Addition {
    Change(FlushScope, Pages),
    Edit(Flush),
}

fn change() -> impl Strategy<Value = (FlushScope, Pages)> {
    let scope = prop_oneof![Just(FlushScope::Nowhere), Just(FlushScope::Local), Just(FlushScope::Everywhere)];
    (scope, 0..40usize, 1..6usize).prop_map(|(scope, first, count)| (scope, pages(first, count)))
}

fn addition() -> impl Strategy<Value = Addition> {
    let edit = (change(), change(), proptest::bool::weighted(0.2)).prop_map(|(one, other, all)| {
        let mut flush = Flush::none();
        flush.add(one.0, one.1);
        flush.add(other.0, other.1);
        if all {
            flush.add_all(one.0);
        }
        flush
    });
    prop_oneof![
        change().prop_map(|(scope, pages)| Addition::Change(scope, pages)),
        edit.prop_map(Addition::Edit)
    ]
}

proptest! {
    /// Against sets of pages: what was added is covered, nothing else is unless the limit is passed or a caller asks
    /// for all, and others hear of it if they must. With four additions of two ranges no flush runs out of ranges.
    #[test]
    fn a_batch_asks_for_what_was_added(limit in 0..24usize, additions in proptest::collection::vec(addition(), 0..5)) {
        let mut batch = Batch::new(SPACE, limit);
        let (mut changes, mut counted, mut all) = (0, 0, false);
        let (mut stale, mut scope) = (BTreeSet::new(), FlushScope::Nowhere);
        for addition in &additions {
            let mut count = |far: FlushScope, pages: Pages| {
                if far != FlushScope::Nowhere {
                    scope = scope.max(far);
                    stale.extend(pages);
                    changes += 1;
                    counted += pages.len();
                }
            };
            match addition {
                Addition::Change(far, pages) => {
                    batch.add(*far, *pages);
                    count(*far, *pages);
                }
                Addition::Edit(flush) => {
                    batch.merge(flush);
                    flush.ranges().iter().for_each(|pages| count(flush.scope(), *pages));
                    if flush.is_all() {
                        scope = scope.max(flush.scope());
                        changes += 1;
                        all = true;
                    }
                }
            }
            all |= counted > limit;
        }
        let flush = batch.flush();
        prop_assert_eq!((batch.changes(), flush.scope(), flush.is_all()), (changes, scope, all));
        let asked: BTreeSet<_> = flush.ranges().iter().flat_map(|pages| pages.iter()).collect();
        prop_assert!(all || asked == stale);

        let taken = batch.take();
        prop_assert_eq!(taken.as_ref().map_or(FlushScope::Nowhere, Flush::scope), scope);
        if let Some(taken) = taken.filter(|_| scope == FlushScope::Everywhere) {
            let target = Target::of(SPACE, &taken);
            prop_assert!(stale.iter().all(|&page| target.covers(SPACE, page)));
            prop_assert!(!target.covers(Asid::default(), Vpn::new(0)), "another space");
        }
        prop_assert_eq!((batch.changes(), batch.flush().is_none(), batch.take()), (0, true, None));
    }
}
