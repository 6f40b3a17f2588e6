//! Random histories against a model, with storage that fails at every point; and orders that broke it once.

use super::*;
use crate::FlushAll;
use crate::geometry::Checked as _;

/// One change of a random history.
#[derive(Clone, Debug)]
enum Op {
    Map { first: usize, count: usize, size: usize, frame: usize },
    Unmap { first: usize, count: usize, skip: bool },
    Protect { first: usize, count: usize, skip: bool },
    Resize { first: usize, count: usize, size: usize },
}

fn ops(len: usize) -> impl Strategy<Value = Vec<Op>> {
    // Small numbers meet often; `place` spreads them over the space.
    let first =
        (0usize..8, 0usize..5, 0usize..40).prop_map(|(region, cell, page)| region << 20 | cell << 9 | page);
    let count = prop_oneof![3 => 1usize..4, 2 => 1usize..40, 1 => 1usize..600];
    let op = prop_oneof![
        6 => (first.clone(), count.clone(), prop_oneof![4 => Just(0usize), 1 => 1usize..3], 0usize..3)
            .prop_map(|(first, count, size, frame)| Op::Map { first, count, size, frame }),
        4 => (first.clone(), count.clone(), any::<bool>())
            .prop_map(|(first, count, skip)| Op::Unmap { first, count, skip }),
        1 => (first.clone(), count.clone(), any::<bool>())
            .prop_map(|(first, count, skip)| Op::Protect { first, count, skip }),
        2 => (first, count, 0usize..3).prop_map(|(first, count, size)| Op::Resize { first, count, size }),
    ];
    prop::collection::vec(op, 1..len)
}

/// The page that a small number stands for: regions at both ends of the space, at either side of its middle, and
/// scattered, each around a boundary of many bits.
fn place<G: Geometry>(number: usize) -> usize {
    let (region, offset) = (number >> 20, number & 0xfffff);
    let [low, high] = G::SPACE.halves();
    let low = low.unwrap();
    let top = high.unwrap_or(low).last().get();
    match region {
        0 => low.first().get() + offset,
        1 => top - offset,
        2 => low.last().get() - offset,
        3 => high.map_or(low.last().get() / 2 + 1, |high| high.first().get()) + offset,
        4 => low.last().get() / 3 - 100 + offset,
        5 => low.last().get() / 4 - 17 + offset,
        6 => low.last().get() / 4 + 1 + offset * 7,
        _ => low.last().get() / 5 * 3 + offset * 513,
    }
}

type Model = BTreeMap<usize, (usize, u32, Attr)>;

/// Runs a history against a map of base pages, and a table whose storage fails at every possible point.
fn run<'m, G, F, L, P>(meter: &'m Meter<'m, F::Word>, history: &[Op])
where
    G: Geometry,
    F: Format,
    L: Layout<Meter<'m, F::Word>>,
    P: NodeSize,
{
    let mut table = Local::new(Gpt::<G, F, _, L, P>::new(meter).unwrap(), |_| ());
    // By first page: frame, size shift, attributes.
    let mut model = Model::new();
    let rights = Attr::READ | Attr::WRITE | F::IMPLIED;
    let base = G::BASE.shift();
    for op in history {
        let before = (table.footprint(), meter.slab.usage().nodes);
        let range = |first: usize, count: usize, size: PageSize| {
            let pages = size.pages(G::BASE).unwrap();
            let first = place::<G>(first) & !(pages - 1);
            let pages = count.div_ceil(pages) * pages;
            Pages::count(Vpn::new(first), pages).filter(|&pages| G::SPACE.check_pages(pages).is_ok())
        };
        let sizes = G::SPACE.sizes();
        let size_of = |size: usize| sizes[size.min(sizes.len() - 1)];
        match *op {
            Op::Map { first, count, size, frame } => {
                let size = size_of(size);
                let count = count.min(4 * size.pages(G::BASE).unwrap());
                let Some(pages) = range(first, count, size) else { continue };
                let step = size.pages(G::BASE).unwrap();
                let frame = Pfn::new((frame << 8) * step);
                let occupied = overlapping(&model, pages, base).next().is_some();
                // The same change again and again, with one node more each time, until it succeeds.
                let mut allowed = 0;
                let outcome = loop {
                    meter.left.set(allowed);
                    let outcome = table.map(pages, frame, size, rights);
                    meter.left.set(usize::MAX);
                    let Err(Error::NoMemory { wanted, .. }) = outcome else { break outcome };
                    let wanted = wanted as usize;
                    assert!(wanted > allowed, "{wanted} wanted, {allowed} there");
                    assert_eq!((table.footprint(), meter.slab.usage().nodes), before);
                    allowed = if wanted > 20 { wanted.max(allowed + 1) } else { allowed + 1 };
                };
                match outcome {
                    Ok(()) => {
                        assert!(!occupied);
                        for at in pages.iter().step_by(step) {
                            let frame = frame.get() + (at.get() - pages.first().get());
                            model.insert(at.get(), (frame, size.shift(), rights));
                        }
                    }
                    Err(Error::Occupied { at, .. }) => {
                        assert!(occupied && model.contains_key(&at.vpn(G::BASE).get()));
                    }
                    Err(Error::FrameTooLarge { .. }) => {}
                    Err(error) => panic!("{op:?}: {error}"),
                }
            }
            Op::Unmap { first, count, skip } => {
                let Some(pages) = range(first, count, G::BASE) else { continue };
                let holes = if skip { Holes::Skip } else { Holes::Refuse };
                meter.left.set(0);
                let outcome = table.unmap(pages, holes);
                meter.left.set(usize::MAX);
                let hit: Vec<_> = overlapping(&model, pages, base).collect();
                if let Some(expected) = census(&model, pages, skip, base) {
                    assert_eq!(outcome, Ok(expected), "{op:?}");
                    for at in hit {
                        model.remove(&at);
                    }
                } else {
                    assert!(
                        matches!(outcome, Err(Error::NotMapped { .. } | Error::Partial { .. })),
                        "{op:?}"
                    );
                }
            }
            Op::Protect { first, count, skip } => {
                let Some(pages) = range(first, count, G::BASE) else { continue };
                let holes = if skip { Holes::Skip } else { Holes::Refuse };
                let outcome = table.protect(pages, holes, Change::clear(Attr::WRITE));
                let hit: Vec<_> = overlapping(&model, pages, base).collect();
                if let Some(expected) = census(&model, pages, skip, base) {
                    assert_eq!(outcome, Ok(expected), "{op:?}");
                    for at in hit {
                        model.get_mut(&at).unwrap().2 = Attr::READ | F::IMPLIED;
                    }
                } else {
                    assert!(
                        matches!(outcome, Err(Error::NotMapped { .. } | Error::Partial { .. })),
                        "{op:?}"
                    );
                }
            }
            Op::Resize { first, count, size } => {
                let size = size_of(size);
                let Some(pages) = range(first, count.min(1200), size) else { continue };
                let mut allowed = 0;
                let outcome = loop {
                    meter.left.set(allowed);
                    let outcome = table.resize(pages, size, FlushAll::in_place);
                    meter.left.set(usize::MAX);
                    let Err(Error::NoMemory { wanted, .. }) = outcome else { break outcome };
                    let wanted = wanted as usize;
                    assert!(wanted > allowed, "{wanted} wanted, {allowed} there");
                    assert_eq!((table.footprint(), meter.slab.usage().nodes), before);
                    allowed = if wanted > 20 { wanted.max(allowed + 1) } else { allowed + 1 };
                };
                if outcome.is_ok() {
                    resize(&mut model, pages, size, base);
                }
            }
        }
        let leaves: Vec<_> = table.table().check();
        let expected: Vec<_> = model
            .iter()
            .map(|(&at, &(frame, shift, attr))| Leaf {
                at: Vpn::new(at).address(G::BASE),
                size: PageSize::from_shift(shift).unwrap(),
                frame: Pfn::new(frame),
                attr,
            })
            .collect();
        // In keys the upper half comes after the lower one too.
        assert_eq!(leaves, expected, "{op:?}");
        for leaf in expected.iter().take(40) {
            let last = VirtAddr::new(leaf.at.get() | leaf.size.mask());
            assert_eq!(table.lookup(leaf.at), Some(*leaf));
            assert_eq!(table.lookup(last), Some(*leaf));
            if let Some(next) = last.checked_add(1)
                && !model.contains_key(&next.vpn(G::BASE).get())
            {
                assert_eq!(table.lookup(next), None);
            }
        }
        let stray = VirtAddr::new(0x5a5a_5a5a_5a5a_5000u64 as usize);
        if !G::SPACE.holds(stray) {
            assert_eq!(table.lookup(stray), None);
        }
    }
    table.destroy();
    assert_eq!(meter.slab.usage().nodes, 0);
    assert_eq!(meter.held().lost(), 0);
}

/// The first pages of the leaves that map a page of the range.
fn overlapping(model: &Model, pages: Pages, base: u32) -> impl Iterator<Item = usize> {
    let (first, last) = (pages.first().get(), pages.last().get());
    model
        .range(..=last)
        .rev()
        // No page is larger than 2^18 base pages.
        .take_while(move |(at, _)| **at + (1 << 18) > first)
        .filter(move |(at, leaf)| **at + ((1 << (leaf.1 - base)) - 1) >= first)
        .map(|(at, _)| *at)
        .collect::<Vec<_>>()
        .into_iter()
}

/// How many pages an unmap or protect finds, if it succeeds.
fn census(model: &Model, pages: Pages, skip: bool, base: u32) -> Option<usize> {
    let mut sum = 0;
    for at in overlapping(model, pages, base) {
        let count = 1 << (model[&at].1 - base);
        if at < pages.first().get() || at + (count - 1) > pages.last().get() {
            return None;
        }
        sum += count;
    }
    (skip || sum == pages.len()).then_some(sum)
}

fn resize(model: &mut Model, pages: Pages, size: PageSize, base: u32) {
    let step = 1 << (size.shift() - base);
    for at in pages.iter().map(Vpn::get).step_by(step) {
        let (&start, &(frame, shift, attr)) = model.range(..=at).next_back().unwrap();
        if shift > size.shift() {
            let whole = 1usize << (shift - base);
            for piece in (0..whole).step_by(step) {
                model.insert(start + piece, (frame + piece, size.shift(), attr));
            }
        } else if shift < size.shift() {
            for small in (at..=at + (step - 1)).collect::<Vec<_>>() {
                model.remove(&small);
            }
            model.insert(at, (frame, size.shift(), attr));
        }
    }
}

macro_rules! histories {
    ($($name:ident: $G:ty, $F:ty, $L:ty, $P:ty;)*) => { $(
        #[test]
        fn $name() {
            let (cases, len) = if cfg!(miri) { (1, 6) } else { (60, 40) };
            let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
            proptest!(config, |(history in ops(len))| {
                let mut memory = memory(if cfg!(miri) { 200 } else { 1200 });
                let meter = Meter::new(&mut memory);
                run::<$G, $F, $L, $P>(&meter, &history);
            });
        }
    )* };
}

each_table!(histories);

/// Maps single pages in this order, unmaps every other, and checks the tree and every answer after each.
fn one_by_one<F, L>(pages: &[usize])
where
    F: Format,
    L: for<'m> Layout<Slab<'m, F::Word, Solo>>,
{
    let mut memory = memory(400);
    let slab = Slab::<F::Word, Solo>::new(&mut memory, 0).unwrap();
    let mut table = Local::new(Gpt::<Va64, F, _, L>::new(&slab).unwrap(), |_| ());
    let mut mapped = std::collections::BTreeSet::new();
    let unmapped = pages.iter().step_by(2).map(|page| (page, false));
    for (&page, map) in pages.iter().map(|page| (page, true)).chain(unmapped) {
        let one = Pages::one(Vpn::new(page));
        if map {
            table.map(one, Pfn::new(page & 0xff), PageSize::K4, Attr::READ).unwrap();
            mapped.insert(page);
        } else {
            table.unmap(one, Holes::Refuse).unwrap();
            mapped.remove(&page);
        }
        // Miri takes seconds for one check.
        if cfg!(miri) && !mapped.len().is_multiple_of(4) {
            continue;
        }
        let leaves = table.table().check();
        assert!(leaves.iter().map(|leaf| leaf.at.vpn(PageSize::K4).get()).eq(mapped.iter().copied()));
        for &page in pages {
            let found = table.lookup(Vpn::new(page).address(PageSize::K4)).map(|leaf| leaf.frame);
            assert_eq!(found, mapped.contains(&page).then_some(Pfn::new(page & 0xff)), "page {page:#x}");
        }
    }
    table.destroy();
    assert_eq!(slab.usage().nodes, 0);
}

/// A range fills a leaf, and the next pages of the range are in a larger one that replaces it: the dry run must know that size, or it
/// reserves another leaf than the one that is taken.
#[test]
fn gpt_a_range_fills_a_leaf_that_it_outgrows() {
    let mut memory = memory(4);
    let slab = Slab::<u64, Solo>::new(&mut memory, 0).unwrap();
    let mut table = Local::new(Gpt48::new(&slab).unwrap(), |_| ());
    for first in [0x811, 0x815] {
        let pages = Pages::count(Vpn::new(first), 4).unwrap();
        table.map(pages, Pfn::new(first), PageSize::K4, Attr::READ).unwrap();
        table.table().check();
    }
    assert_eq!((table.footprint().nodes, table.footprint().leaves), (0, 1));
    table.destroy();
}

/// The second node below reaches half as high as its slot. When the others fill up, the upper node would gain by two
/// bits more, but not for that one, whose two leaves would share one slot.
#[test]
fn gpt_a_node_grows_no_deeper_than_the_nodes_behind_guards() {
    let leaves = [0x2, 0x3, 0x4, 0x5, 0x7, 0x8, 0x9, 0xa, 0xb, 0xc, 0xd, 0xe];
    one_by_one::<format::Compact32, OneWord>(&leaves.map(|leaf| 0x213_add1_3f58 << 8 | leaf << 2));
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 1 } else { 100 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Crowded neighbourhoods with holes, where nodes grow by several bits.
    #[test]
    fn gpt_crowds_with_holes(
        holes in prop::collection::vec(0usize..128, 0..100),
        spread in 0u32..4,
        order in 0usize..64,
    ) {
        // An odd factor permutes the numbers.
        let place = |number: usize| number.wrapping_mul(2 * order + 1) % 128;
        let pages = (0..128).map(place).filter(|page| !holes.contains(page)).map(|page| 0x5a00_0000 | page << spread);
        let pages: Vec<_> = if cfg!(miri) { pages.take(6).collect() } else { pages.collect() };
        one_by_one::<format::Compact32, OneWord>(&pages);
        one_by_one::<format::Compact, OneWord>(&pages);
        one_by_one::<format::Paper, TwoWords>(&pages);
    }
}
