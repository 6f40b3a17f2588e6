//! Requests: what they say, and that a queue of fixed size loses none.

use std::collections::{BTreeSet, HashSet, VecDeque};

use proptest::prelude::*;
use tlbkit_addr::{Asid, CpuSet, Pages, Vpn};
use tlbkit_shootdown::{Duty, Mailbox, Misuse, OpId, OpSet, Queue, Request, Target, Work};

fn request(cpu: u16, slot: u16) -> Request {
    let what = Target::Pages(Asid::default(), Pages::one(Vpn::new(usize::from(cpu))));
    Request { op: OpId { cpu, slot, generation: 1 }, what, duty: Duty::Flush }
}

/// As many as two words have bits.
const CPUS: u16 = CpuSet::<2>::CAPACITY as u16;

/// The operations of a set, as (CPU, slot).
fn ops<const W: usize, const SLOTS: usize>(mut set: OpSet<W, SLOTS>) -> BTreeSet<(u16, u16)> {
    let len = set.len();
    let ops: BTreeSet<_> = std::iter::from_fn(|| set.pop()).collect();
    assert_eq!((ops.len(), set.is_empty()), (len, true));
    ops
}

proptest! {
    /// Against a queue without end: each request in order, or after one too many everything at once. A CPU that is offline
    /// is asked for nothing, and what it was asked before is still there.
    #[test]
    fn a_queue_loses_nothing(steps in proptest::collection::vec((0..10u8, 0..CPUS, 0..2u16), 0..60)) {
        let mut queue = Queue::<4, 2, 2>::new().unwrap();
        let (mut waiting, mut overflowed, mut closed) = (VecDeque::new(), false, false);
        for (step, cpu, slot) in steps {
            match step {
                // One operation at a time in each slot.
                0..6 if !waiting.contains(&request(cpu, slot)) => {
                    prop_assert_eq!(queue.push(request(cpu, slot)), Ok(!closed));
                    if !closed {
                        waiting.push_back(request(cpu, slot));
                        overflowed |= waiting.len() > 4;
                    }
                }
                6..8 => match queue.take() {
                    Some(Work::Everything(set)) => {
                        prop_assert!(std::mem::take(&mut overflowed));
                        let all = waiting.drain(..).map(|request| (request.op.cpu, request.op.slot));
                        prop_assert_eq!(ops(set), all.collect::<BTreeSet<_>>());
                    }
                    Some(Work::One(request)) => {
                        prop_assert!(!overflowed);
                        prop_assert_eq!(Some(request), waiting.pop_front());
                    }
                    None => prop_assert!(waiting.is_empty()),
                },
                8 => {
                    queue.close();
                    closed = true;
                }
                9 => {
                    queue.open();
                    closed = false;
                }
                _ => {}
            }
            prop_assert_eq!((queue.len(), queue.is_empty()), (waiting.len(), waiting.is_empty()));
            prop_assert_eq!(queue.has_overflowed(), overflowed);
        }
    }
}

#[test]
fn what_no_set_has_room_for_is_refused() {
    let mut queue = Queue::<4, 2, 2>::new().unwrap();
    assert_eq!(queue.push(request(CPUS, 0)), Err(Misuse::NoSuchCpu { cpu: CPUS.into() }));
    assert_eq!(queue.push(request(0, 2)), Err(Misuse::NoRoom));
    assert!(queue.is_empty());
    assert_eq!(queue.push(request(CPUS - 1, 1)), Ok(true));
}

/// An explorer keeps the states that it has seen in a set: what differs in anything differs.
#[test]
fn queues_are_compared_by_all_that_is_in_them() {
    let queue = |cpus: &[u16], closed: bool| {
        let mut queue = Queue::<2>::new().unwrap();
        cpus.iter().for_each(|&cpu| assert_eq!(queue.push(request(cpu, 0)), Ok(true)));
        if closed {
            queue.close();
        }
        queue
    };
    let contents: [&[u16]; 6] = [&[], &[1], &[2], &[1, 2], &[1, 2, 3], &[1, 2, 4]];
    let queues = || contents.iter().flat_map(|cpus| [queue(cpus, false), queue(cpus, true)]);
    for (nth, one) in queues().enumerate() {
        for (mth, other) in queues().enumerate() {
            assert_eq!(one == other, nth == mth, "{one:?} {other:?}");
        }
    }
    assert_eq!(queues().chain(queues()).collect::<HashSet<_>>().len(), 12);
    // Equal hashes would be legal, and slow.
    use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
    let hasher = BuildHasherDefault::<DefaultHasher>::default();
    assert_eq!(queues().map(|queue| hasher.hash_one(queue)).collect::<BTreeSet<_>>().len(), 12);
}

#[test]
fn a_mailbox_is_a_queue_with_a_lamp() {
    let mailbox = Mailbox::<2>::new().unwrap();
    assert!(mailbox.is_empty() && mailbox.take().is_none());
    assert_eq!(mailbox.post(request(5, 0)), Ok(true));
    assert_eq!(mailbox.post(request(6, 0)), Ok(true));
    mailbox.close();
    assert_eq!(mailbox.post(request(7, 0)), Ok(false));
    for cpu in [5, 6] {
        assert!(!mailbox.is_empty(), "what came before it closed is still to be done");
        assert_eq!(mailbox.take(), Some(Work::One(request(cpu, 0))));
    }
    assert!(mailbox.is_empty());
    mailbox.open();
    assert_eq!(mailbox.post(request(7, 0)), Ok(true));
    assert!(!mailbox.is_empty());
    assert!(matches!(Mailbox::<0>::new(), Err(Misuse::NoRoom)));
}

fn pages(first: usize, count: usize) -> Pages {
    Pages::count(Vpn::new(first), count).unwrap()
}

fn target() -> impl Strategy<Value = Target> {
    let space = any::<bool>().prop_map(|other| Asid::new(u16::from(other), 8).unwrap());
    prop_oneof![
        5 => (space.clone(), 0..12usize, 1..5usize).prop_map(|(space, first, n)| Target::Pages(space, pages(first, n))),
        2 => space.prop_map(Target::Space),
        1 => Just(Target::All),
    ]
}

/// What a target covers of two spaces of twenty pages.
fn covered(target: Target) -> BTreeSet<(u16, usize)> {
    let all = (0..2u16).flat_map(|space| (0..20usize).map(move |page| (space, page)));
    all.filter(|&(space, page)| target.covers(Asid::new(space, 8).unwrap(), Vpn::new(page))).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: if cfg!(miri) { 1 } else { 256 },
        ..ProptestConfig::default() })]

    /// Of all that one request can say, a widened target is the least that covers both.
    #[test]
    fn a_widened_target_is_the_least_that_covers_both(a in target(), b in target()) {
        let both = covered(a).union(&covered(b)).copied().collect::<BTreeSet<_>>();
        let spaces = [0, 1].map(|space| Asid::new(space, 8).unwrap());
        let ranges = (0..20).flat_map(|first| (1..=20 - first).map(move |n| pages(first, n)));
        let exact = ranges.flat_map(|pages| spaces.map(|space| Target::Pages(space, pages)));
        // Pages that are apart are not said by the pages between them: those stay valid.
        let mut sayable = exact.filter(|&target| covered(target) == both);
        let least = sayable.next().or_else(|| {
            let space = spaces.map(Target::Space).into_iter().find(|&space| both.is_subset(&covered(space)));
            space.or(Some(Target::All))
        });
        let covers = |target: Option<Target>| target.map(covered);
        prop_assert_eq!(covers(Some(a.widened(b))), covers(least), "{:?} {:?}", a, b);
    }

    /// A target covers its pages, of its space.
    #[test]
    fn a_target_covers_what_it_says(first in 0..12usize, n in 1..5usize) {
        let mine = (first..first + n).map(|page| (1, page)).collect::<BTreeSet<_>>();
        let space = Asid::new(1, 8).unwrap();
        prop_assert_eq!(covered(Target::Pages(space, pages(first, n))), mine);
        prop_assert_eq!(covered(Target::Space(space)), (0..20).map(|page| (1, page)).collect());
        prop_assert_eq!(covered(Target::All).len(), 40);
    }
}
