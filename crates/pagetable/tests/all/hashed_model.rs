//! Hashed and clustered tables against a plain map: every operation, every shape, pages of several sizes at both ends
//! of the address space, batches completed at once, late or out of order, and memory that runs out.
#![cfg(target_pointer_width = "64")]

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use proptest::prelude::*;
use tlbkit_addr::{Attr, PageSize, Pages, Pfn, VirtAddr, Vpn};
use tlbkit_pagetable::format::{Compact, Compact32, Format, Paper};
use tlbkit_pagetable::geometry::{Geometry, Va32, Va48, Va64};
use tlbkit_pagetable::hpt::{Buckets, Hashed};
use tlbkit_pagetable::nodes::{Chunk, Nodes, Slab};
use tlbkit_pagetable::{
    Change, Error, FlushAll, Holes, Leaf, Mode, Pinned, Rest, Retired, Run, Shared, Solo, Space, Table,
    Uncovered, Word, destroy,
};

use crate::right::right;

#[derive(Clone, Copy, Debug)]
enum Op {
    Map {
        place: Place,
        frame: usize,
        attr: u32,
    },
    Unmap {
        place: Place,
        skip: bool,
        frames: bool,
    },
    Protect {
        place: Place,
        skip: bool,
        clear: u32,
        set: u32,
    },
    Resize {
        place: Place,
    },
    /// Everything there is, from end to end.
    UnmapAll,
    /// Completes the batch with this number.
    Complete {
        batch: usize,
    },
}

/// A range: one of the windows, a size, a first page of that size and how many, and by how many base pages the ends
/// are off.
#[derive(Clone, Copy, Debug)]
struct Place {
    window: usize,
    size: usize,
    first: usize,
    count: usize,
    off: usize,
}

impl Place {
    /// Windows of 1024 pages: at both ends of each half, and one in the middle.
    fn pages<G: Geometry>(self) -> Option<Pages> {
        let window = 1024;
        let halves = Space::of::<G>().halves();
        let low = halves[0]?;
        let high = halves[1].unwrap_or(low);
        let base = match self.window {
            0 => low.first().get(),
            1 => low.last().get() - (window - 1),
            2 => high.first().get(),
            3 => high.last().get() - (window - 1),
            _ => (low.last().get() / 4) & !(window - 1),
        };
        let size = self.size::<G>().pages(G::BASE)?;
        // The last pages of a window as often as the first.
        let first = match self.first {
            first @ ..8 => first * size % window,
            first => window.saturating_sub((first - 7) * size),
        };
        let pages = (self.count * size).saturating_sub(self.off).max(1).min(window - first);
        Pages::count(Vpn::new(base + first), pages)
    }

    fn size<G: Geometry>(self) -> PageSize {
        G::SIZES[self.size.min(G::SIZES.len() - 1)]
    }
}

fn places() -> impl Strategy<Value = Place> {
    (0..5usize, prop_oneof![4 => Just(0usize), 2 => Just(1), 1 => Just(2)], 0..16usize, 1..20usize, off())
        .prop_map(|(window, size, first, count, off)| Place { window, size, first, count, off })
}

fn off() -> impl Strategy<Value = usize> {
    prop_oneof![9 => Just(0usize), 1 => 1..4usize]
}

fn ops() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (places(), 0..1usize << 14, 0..16u32).prop_map(|(place, frame, attr)| Op::Map { place, frame, attr }),
        4 => (places(), any::<bool>(), any::<bool>())
            .prop_map(|(place, skip, frames)| Op::Unmap { place, skip, frames }),
        2 => (places(), any::<bool>(), 0..16u32, 0..16u32)
            .prop_map(|(place, skip, clear, set)| Op::Protect { place, skip, clear, set }),
        3 => places().prop_map(|place| Op::Resize { place }),
        1 => Just(Op::UnmapAll),
        4 => (0..8usize).prop_map(|batch| Op::Complete { batch }),
    ]
}

/// Leaves by their first page.
#[derive(Clone, Debug, Default, PartialEq)]
struct Model(BTreeMap<usize, Leaf>);

impl Model {
    fn at(&self, page: usize, base: PageSize) -> Option<Leaf> {
        let (&first, &leaf) = self.0.range(..=page).next_back()?;
        (page - first < leaf.size.pages(base)?).then_some(leaf)
    }

    fn within(&self, pages: Pages, base: PageSize) -> Vec<Leaf> {
        let mut found: Vec<_> =
            self.0.range(pages.first().get()..=pages.last().get()).map(|(_, &leaf)| leaf).collect();
        if let Some(leaf) = self.at(pages.first().get(), base)
            && leaf.at.vpn(base) < pages.first()
        {
            found.insert(0, leaf);
        }
        found
    }

    fn covered(&self, pages: Pages, base: PageSize) -> usize {
        self.within(pages, base).iter().map(|leaf| leaf.size.pages(base).unwrap()).sum()
    }

    fn is_cut(&self, pages: Pages, base: PageSize) -> bool {
        [pages.first(), pages.last()].into_iter().any(|end| {
            self.at(end.get(), base).is_some_and(|leaf| {
                let first = leaf.at.vpn(base);
                let last = first.get() + leaf.size.pages(base).unwrap() - 1;
                first < pages.first() || last > pages.last().get()
            })
        })
    }
}

struct Bench<'n, G, F: Format, N: Nodes<Word = F::Word>, const C: u32, const B: u32, const L: usize>
where
    G: Geometry,
{
    table: Hashed<'n, G, F, N, Buckets<C, B, L>>,
    nodes: &'n N,
    model: Model,
    batches: Vec<Retired<'n>>,
}

impl<'n, G, F: Format, N: Nodes<Word = F::Word>, const C: u32, const B: u32, const L: usize>
    Bench<'n, G, F, N, C, B, L>
where
    G: Geometry,
{
    fn new(nodes: &'n N) -> Option<Self> {
        let table = Hashed::new(nodes).ok()?;
        Some(Self { table, nodes, model: Model::default(), batches: Vec::new() })
    }

    fn run(&mut self, op: Op) {
        let mut batch = self.table.batch();
        match op {
            Op::Map { place, frame, attr } => {
                let (Some(pages), size) = (place.pages::<G>(), place.size::<G>()) else { return };
                let attr = Attr::from_bits_truncate(attr) | F::IMPLIED;
                let each = size.pages(G::BASE).unwrap();
                let frame = Pfn::new(frame & !(each - 1));
                let result = self.table.map(right(&self.table, &mut batch), pages, frame, size, attr);
                let aligned = pages.first().get() % each == 0 && pages.len() % each == 0;
                match result {
                    Ok(()) => {
                        assert!(aligned && self.model.within(pages, G::BASE).is_empty(), "mapped over");
                        for page in 0..pages.len() / each {
                            let at = VirtAddr::new((pages.first().get() + page * each) << G::BASE.shift());
                            let frame = Pfn::new(frame.get() + page * each);
                            self.model.0.insert(at.vpn(G::BASE).get(), Leaf { at, size, frame, attr });
                        }
                    }
                    Err(Error::Occupied { at, size }) => {
                        let occupants = self.model.within(pages, G::BASE);
                        assert!(occupants.iter().any(|leaf| (leaf.at, leaf.size) == (at, size)));
                    }
                    Err(Error::Misaligned { .. }) => assert!(!aligned),
                    Err(Error::NoMemory { wanted, .. }) => assert!(wanted > 0),
                    Err(other) => panic!("{other:?}"),
                }
            }
            Op::Unmap { place, skip, frames } => {
                let Some(pages) = place.pages::<G>() else { return };
                self.unmap(&mut batch, pages, skip, frames);
            }
            Op::UnmapAll => {
                for half in Space::of::<G>().halves().into_iter().flatten() {
                    self.unmap(&mut batch, half, true, false);
                }
                assert!(self.model.0.is_empty());
                assert_eq!(self.table.blocks(), 0);
            }
            Op::Protect { place, skip, clear, set } => {
                let Some(pages) = place.pages::<G>() else { return };
                let attrs = |bits| Attr::from_bits_truncate(bits) & F::OPTIONAL & !F::IMPLIED;
                let change = Change { clear: attrs(clear), set: attrs(set) };
                let holes = if skip { Holes::Skip } else { Holes::Refuse };
                let result = self.table.protect(right(&self.table, &mut batch), pages, holes, change);
                if self.check_change(pages, skip, result) {
                    for leaf in self.model.within(pages, G::BASE) {
                        let entry = self.model.0.get_mut(&leaf.at.vpn(G::BASE).get()).unwrap();
                        entry.attr = change.apply(entry.attr);
                    }
                }
            }
            Op::Resize { place } => {
                let (Some(pages), to) = (place.pages::<G>(), place.size::<G>()) else { return };
                let result = self.table.resize(
                    right(&self.table, &mut batch),
                    pages,
                    to,
                    FlushAll::in_place(&mut |_| ()),
                );
                let wanted = self.resized(pages, to);
                match (result, wanted) {
                    (Ok(()), Some(model)) => self.model = model,
                    (Err(Error::NoMemory { .. }), Some(_)) | (Err(_), None) => {}
                    (result, wanted) => panic!("{result:?} where the model says {wanted:?}"),
                }
            }
            Op::Complete { batch: at } => {
                if at < self.batches.len() {
                    let old = self.batches.swap_remove(at);
                    // SAFETY: no CPU walks the table.
                    unsafe { old.reclaim() };
                }
            }
        }
        if <N::Mode as Mode>::SHARED {
            self.batches.push(batch);
        } else {
            // SAFETY: no CPU walks the table.
            unsafe { batch.reclaim() };
        }
        self.check();
    }

    fn unmap(&mut self, batch: &mut Retired<'n>, pages: Pages, skip: bool, frames: bool) {
        let holes = if skip { Holes::Skip } else { Holes::Refuse };
        let mut seen = Vec::new();
        let result = if frames {
            self.drain(batch, pages, &mut seen)
        } else {
            self.table.unmap(right(&self.table, batch), pages, holes)
        };
        if self.check_change(pages, skip || frames, result) {
            let gone = self.model.within(pages, G::BASE);
            for leaf in &gone {
                self.model.0.remove(&leaf.at.vpn(G::BASE).get());
            }
            if frames {
                let mut expected: Vec<_> = gone
                    .iter()
                    .flat_map(|leaf| (0..leaf.size.pages(G::BASE).unwrap()).map(|at| leaf.frame.get() + at))
                    .collect();
                expected.sort_unstable();
                seen.sort_unstable();
                assert_eq!(seen, expected);
            }
        }
    }

    /// Takes the leaves of a range out, adds their frames to `seen`, and returns how many base pages were mapped.
    fn drain(&self, batch: &mut Retired<'n>, pages: Pages, seen: &mut Vec<usize>) -> Result<usize, Error> {
        if self.model.is_cut(pages, G::BASE) {
            // The calls below would take out what comes before the page that is cut.
            return self.table.unmap(right(&self.table, batch), pages, Holes::Skip);
        }
        let mut rest = Rest::of(pages);
        while let Some((_, Uncovered::Frames(Run { first, len, .. }))) =
            self.table.take_next(right(&self.table, batch), &mut rest)?
        {
            seen.extend((0..len).map(|at| first.get() + at));
        }
        Ok(seen.len())
    }

    /// Checks what an unmap or protect said, and returns whether it did anything.
    fn check_change(&self, pages: Pages, skip: bool, result: Result<usize, Error>) -> bool {
        let covered = self.model.covered(pages, G::BASE);
        let cut = self.model.is_cut(pages, G::BASE);
        match result {
            Ok(count) => {
                assert!(!cut && count == covered && (skip || covered == pages.len()));
                true
            }
            Err(Error::Partial { at, size }) => {
                let occupants = self.model.within(pages, G::BASE);
                assert!(cut && occupants.iter().any(|leaf| (leaf.at, leaf.size) == (at, size)));
                false
            }
            Err(Error::NotMapped { at }) => {
                let hole = (pages.first().get()..).find(|&page| self.model.at(page, G::BASE).is_none());
                assert!(!skip && hole == Some(at.vpn(G::BASE).get()));
                false
            }
            Err(other) => panic!("{other:?}"),
        }
    }

    /// What a resize makes of the model, or `None` if it must fail.
    fn resized(&self, pages: Pages, to: PageSize) -> Option<Model> {
        let each = to.pages(G::BASE)?;
        if !pages.first().get().is_multiple_of(each)
            || !pages.len().is_multiple_of(each)
            || self.model.is_cut(pages, G::BASE)
        {
            return None;
        }
        let mut model = self.model.clone();
        let (mut at, last) = (pages.first().get(), pages.last().get());
        while at <= last {
            let leaf = self.model.at(at, G::BASE)?;
            let size = leaf.size.pages(G::BASE)?;
            if size > each {
                model.0.remove(&at);
                for part in (0..size).step_by(each) {
                    let new = Leaf {
                        at: VirtAddr::new((at + part) << G::BASE.shift()),
                        size: to,
                        frame: Pfn::new(leaf.frame.get() + part),
                        attr: leaf.attr,
                    };
                    model.0.insert(at + part, new);
                }
                at += size;
            } else {
                if size < each {
                    if leaf.frame.get() % each != 0 {
                        return None;
                    }
                    for page in at..at + each {
                        let part = self.model.at(page, G::BASE)?;
                        let within = page - part.at.vpn(G::BASE).get();
                        if part.frame.get() + within != leaf.frame.get() + (page - at)
                            || part.attr != leaf.attr
                        {
                            return None;
                        }
                        model.0.remove(&page);
                    }
                    model.0.insert(at, Leaf { size: to, ..leaf });
                }
                at += each;
            }
        }
        Some(model)
    }

    /// Compares everything that can be read.
    fn check(&self) {
        let guard = ();
        // SAFETY: nothing is reclaimed meanwhile.
        let pinned = unsafe { Pinned::by(&guard) };
        let mut seen = BTreeMap::new();
        for half in Space::of::<G>().halves().into_iter().flatten() {
            let _ = self.table.for_each(pinned, half, &mut |leaf| {
                assert_eq!(self.table.lookup(pinned, leaf.at), Some(leaf));
                assert_eq!(seen.insert(leaf.at.vpn(G::BASE).get(), leaf), None, "a leaf was visited twice");
                ControlFlow::Continue(())
            });
        }
        assert_eq!(seen, self.model.0);
        for window in 0..5 {
            let place = Place { window, size: 0, first: 0, count: 24, off: 0 };
            let Some(pages) = place.pages::<G>() else { continue };
            for page in pages {
                let at = VirtAddr::new((page.get() << G::BASE.shift()) + 0x123);
                assert_eq!(self.table.lookup(pinned, at), self.model.at(page.get(), G::BASE));
            }
            let mut some = Vec::new();
            let _ = self.table.for_each(pinned, pages, &mut |leaf| {
                some.push(leaf);
                ControlFlow::Continue(())
            });
            some.sort_by_key(|leaf| leaf.at);
            assert_eq!(some, self.model.within(pages, G::BASE));
        }
    }

    fn finish(self) {
        let footprint = self.table.footprint();
        assert_eq!(footprint.ptes == 0, self.model.0.is_empty());
        if self.model.0.is_empty() {
            assert_eq!(self.table.blocks(), 0);
        }
        for batch in self.batches {
            // SAFETY: no CPU walks the table.
            unsafe { batch.reclaim() };
        }
        // SAFETY: no CPU walks the table.
        unsafe { destroy(self.table).reclaim() };
        assert_eq!((self.nodes.held().lost(), self.nodes.held().pending()), (0, 0));
    }
}

fn play<W: Word, M: Mode, G, F, const C: u32, const B: u32, const L: usize>(chunks: usize, script: &[Op])
where
    G: Geometry,
    F: Format<Word = W>,
{
    let mut memory = vec![Chunk::ZERO; chunks];
    let slab = Slab::<W, M>::new(&mut memory, 0).unwrap();
    if let Some(mut bench) = Bench::<G, F, _, C, B, L>::new(&slab) {
        for &op in script {
            bench.run(op);
        }
        bench.finish();
    }
    assert_eq!(slab.usage().nodes, 0);
}

macro_rules! plays {
    ($($name:ident: $mode:ty, $geometry:ty, $format:ty, $cluster:literal, $buckets:literal, $load:literal;)*) => {
        proptest! {
            #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 3 } else { 160 }))]
            $(
                #[test]
                fn $name(script in prop::collection::vec(ops(), 1..if cfg!(miri) { 8 } else { 50 })) {
                    play::<<$format as Format>::Word, $mode, $geometry, $format, $cluster, $buckets, $load>(
                        if cfg!(miri) { 8 } else { 256 }, &script);
                }
            )*
        }
    };
}

plays! {
    pairs_32_solo: Solo, Va32, Compact32, 1, 3, 0;
    pairs_32_shared: Shared, Va32, Compact32, 1, 3, 0;
    pairs_paper_solo: Solo, Va64, Paper, 1, 4, 0;
    pairs_paper_shared: Shared, Va64, Paper, 1, 4, 0;
    eights_paper_solo: Solo, Va64, Paper, 3, 2, 0;
    eights_paper_shared: Shared, Va64, Paper, 3, 2, 0;
    single_growing_solo: Solo, Va48, Compact, 0, 1, 75;
    single_growing_shared: Shared, Va48, Compact, 0, 1, 75;
    small_growing_shared: Shared, Va64, Compact32, 0, 1, 200;
    fours_growing_solo: Solo, Va48, Compact, 2, 1, 100;
    fours_growing_shared: Shared, Va32, Compact32, 2, 1, 100;
    eights_growing_shared: Shared, Va48, Compact, 3, 1, 100;
    sixteens_growing_shared: Shared, Va64, Compact, 4, 1, 100;
    sixteens_growing_solo: Solo, Va32, Compact32, 4, 1, 100;
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 3 } else { 300 }))]

    /// Three chunks: most scripts run out of memory somewhere.
    #[test]
    fn little_memory(script in prop::collection::vec(ops(), 1..40)) {
        play::<u64, Shared, Va48, Compact, 0, 1, 75>(3, &script);
        play::<u64, Solo, Va48, Compact, 3, 1, 100>(3, &script);
        play::<u32, Shared, Va32, Compact32, 1, 3, 0>(3, &script);
    }
}
