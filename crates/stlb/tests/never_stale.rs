//! No cache of any form gives what the page table would not, and each kind of invalidation is needed for that.
#![cfg(not(loom))]

mod machine;

use machine::{Kind, Machine, Paired, Single, Subject, Tlb, op};
use proptest::collection::vec;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use tlbkit_addr::{Pages, VirtAddr};
use tlbkit_stlb::{
    Assoc, Cache, Direct, Integrated, Invalidate, Layout, Memory, Ptlb, Rank, Shared, Space, Ticket, Victim,
};

/// Any per-CPU cache, alone.
struct Alone<C>(C);

/// A prefetch TLB, alone: every miss is a walk.
struct Prefetching<C>(C);

/// Prefetching from the cache itself.
struct Both<C>(C);

/// The shared form, on one CPU.
struct OfMany<'a, L: Layout<Tag = u64, Data = u64>, const SETS: usize, const WAYS: usize> {
    cache: Shared<'a, L, SETS, WAYS>,
    ticket: Option<Ticket>,
}

macro_rules! invalidate {
    ($([$($generics:tt)*] $subject:ty),+) => {$(
        impl<$($generics)*> Invalidate<L> for $subject {
            fn invalidate_pages(&mut self, space: Space<L>, pages: Pages) {
                self.0.invalidate_pages(space, pages);
            }
            fn invalidate_global(&mut self, pages: Pages) {
                self.0.invalidate_global(pages);
            }
            fn invalidate_space(&mut self, space: Space<L>) {
                self.0.invalidate_space(space);
            }
            fn invalidate_all(&mut self) {
                self.0.invalidate_all();
            }
        }
    )+};
}
invalidate!([L: Layout, C: Invalidate<L>] Alone<C>, [L: Layout, C: Invalidate<L>] Prefetching<C>,
    [L: Layout, C: Invalidate<L>] Both<C>);

impl<L: Layout<Data = u64>, C: Cache<L>> Subject<L> for Alone<C> {
    fn find(&mut self, at: VirtAddr, space: Space<L>) -> Option<u64> {
        self.0.find(at, space).map(|found| found.data)
    }
    fn fill(&mut self, at: VirtAddr, space: Space<L>, data: u64) {
        self.0.fill(at, space, data);
    }
}

impl<L: Layout<Data = u64>, const SLOTS: usize> Subject<L> for Prefetching<Ptlb<'_, L, SLOTS>> {
    fn find(&mut self, _: VirtAddr, _: Space<L>) -> Option<u64> {
        None
    }
    fn fill(&mut self, _: VirtAddr, _: Space<L>, _: u64) {}
    fn record(&mut self, at: VirtAddr, space: Space<L>, tlb: &mut Tlb) {
        self.0.record(at, space, tlb);
    }
    fn prefetch(&mut self, at: VirtAddr, space: Space<L>, tlb: &mut Tlb) -> Option<u64> {
        self.0.prefetch(at, space, tlb)
    }
}

impl<L: Layout<Data = u64>, C: Cache<L>> Subject<L> for Both<Integrated<L, C>> {
    fn find(&mut self, at: VirtAddr, space: Space<L>) -> Option<u64> {
        self.0.find(at, space).map(|found| found.data)
    }
    fn fill(&mut self, at: VirtAddr, space: Space<L>, data: u64) {
        self.0.fill(at, space, data);
    }
    fn record(&mut self, at: VirtAddr, space: Space<L>, tlb: &mut Tlb) {
        self.0.record(at, space, Rank::Lower, tlb);
    }
    fn prefetch(&mut self, at: VirtAddr, space: Space<L>, tlb: &mut Tlb) -> Option<u64> {
        self.0.prefetch(at, space, Rank::Lower, tlb)
    }
}

impl<L: Layout<Tag = u64, Data = u64>, const SETS: usize, const WAYS: usize> Invalidate<L>
    for OfMany<'_, L, SETS, WAYS>
{
    fn invalidate_pages(&mut self, space: Space<L>, pages: Pages) {
        self.cache.invalidate_pages(space, pages);
    }
    fn invalidate_global(&mut self, pages: Pages) {
        self.cache.invalidate_global(pages);
    }
    fn invalidate_space(&mut self, space: Space<L>) {
        self.cache.invalidate_space(space);
    }
    fn invalidate_all(&mut self) {
        self.cache.invalidate_all();
    }
}

impl<L: Layout<Tag = u64, Data = u64>, const SETS: usize, const WAYS: usize> Subject<L>
    for OfMany<'_, L, SETS, WAYS>
{
    fn find(&mut self, at: VirtAddr, space: Space<L>) -> Option<u64> {
        match self.cache.lookup(at, space) {
            Ok(data) => Some(data),
            Err(ticket) => {
                self.ticket = Some(ticket);
                None
            }
        }
    }
    fn fill(&mut self, at: VirtAddr, space: Space<L>, data: u64) {
        assert!(self.cache.fill(self.ticket.take().unwrap(), at, space, data), "nobody else is there");
    }
}

/// Runs random kernels on fresh subjects; `Err` once one got a stale translation.
fn run<L: Layout<Data = u64>>(
    skip: Option<Kind>,
    with: impl Fn(&mut dyn FnMut(&mut dyn Subject<L>)),
) -> Result<(), String> {
    let (cases, steps) = match (cfg!(miri), skip) {
        (true, _) => (1, 60),
        (false, None) => (64, 600),
        // As many as it takes to catch a kernel that leaves one kind out.
        (false, Some(_)) => (4000, 600),
    };
    let config = Config { cases, max_shrink_iters: 0, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new(config);
    let outcome = runner.run(&vec(op(), steps), |ops| {
        let mut outcome = Ok(());
        with(&mut |subject| {
            let mut machine = Machine::new(subject, skip);
            for (at, &op) in ops.iter().enumerate() {
                if machine.step(op).is_err() {
                    outcome = Err(TestCaseError::fail(format!("stale at step {at}: {op:?}")));
                    return;
                }
            }
        });
        outcome
    });
    outcome.map_err(|error| error.to_string())
}

/// A form of the cache is never stale with all invalidations, and is with any one kind left out.
fn never_stale<L: Layout<Data = u64>>(with: impl Fn(&mut dyn FnMut(&mut dyn Subject<L>))) {
    if let Err(stale) = run(None, &with) {
        panic!("{stale}");
    }
    if cfg!(miri) {
        return; // the negative controls show nothing about memory, and take their time
    }
    // In the form with single pages, mapping what was not mapped makes nothing stale: absence is not cached.
    let needed = Kind::ALL.into_iter().filter(|&kind| kind != Kind::Map || L::UNIT != L::BASE);
    for skip in needed {
        assert!(run(Some(skip), &with).is_err(), "nothing was stale with {skip:?} left out");
    }
}

macro_rules! forms {
    ($($name:ident: $layout:ty, |$memory:ident| $subject:expr;)+) => {$(
        #[test]
        fn $name() {
            never_stale::<$layout>(|run| {
                let mut $memory = Memory::<4096>::new();
                run(&mut $subject);
            });
        }
    )+};
}

forms! {
    direct: Single, |memory| Alone(Direct::<Single, 16>::new(memory.bytes()).unwrap());
    direct_large: Single, |memory| Alone(Direct::<Single, 128>::new(memory.bytes()).unwrap());
    direct_paired: Paired, |memory| Alone(Direct::<Paired, 16>::new(memory.bytes()).unwrap());
    two_ways: Single, |memory| Alone(Assoc::<Single, 8, 2>::new(memory.bytes()).unwrap());
    four_ways: Paired, |memory| Alone(Assoc::<Paired, 8, 4>::new(memory.bytes()).unwrap());
    victim: Single, |memory| Alone(Victim::<Single, 16, 8>::new(memory.bytes()).unwrap());
    victim_paired: Paired, |memory| Alone(Victim::<Paired, 4, 4>::new(memory.bytes()).unwrap());
    ptlb: Single, |memory| Prefetching(Ptlb::<Single, 32>::new(memory.bytes()).unwrap());
    ptlb_paired: Paired, |memory| Prefetching(Ptlb::<Paired, 32>::new(memory.bytes()).unwrap());
    integrated: Single, |memory| Both(Integrated::new(Direct::<Single, 32>::new(memory.bytes()).unwrap()));
    integrated_victim: Paired, |memory|
        Both(Integrated::new(Victim::<Paired, 16, 8>::new(memory.bytes()).unwrap()));
    shared: Single, |memory|
        OfMany { cache: Shared::<Single, 16, 1>::new(memory.bytes()).unwrap(), ticket: None };
    shared_four_ways: Paired, |memory|
        OfMany { cache: Shared::<Paired, 8, 4>::new(memory.bytes()).unwrap(), ticket: None };
}
