//! Leaves that grow and shrink: after each change the counts of a table are those of its tree, and a model has the same entries.

use super::*;
use crate::format::payload_bits;
use crate::geometry::Checked as _;
use crate::{Entry, FlushAll, Mark};

/// One change of a neighbourhood of few leaves. Pages are numbers from its first on.
#[derive(Clone, Copy, Debug)]
enum Op {
    Map(usize, usize),
    Unmap(usize, usize),
    /// Makes pages read-only, as a fork does.
    Share(usize, usize),
    /// Gives a page that is mapped another frame and the right to write: a copy on write.
    Replace(usize),
    Mark(usize),
    /// Removes a mark, or a page.
    Clear(usize),
    /// Maps a page whose mark has a payload.
    Fill(usize),
}
use Op::{Clear, Fill, Map, Replace, Share, Unmap};

/// What the page of a number holds: a frame, or as an error a payload; and whether it is writable.
type Model = BTreeMap<usize, Result<(usize, bool), (u64, bool)>>;

/// The pages of the neighbourhood: more than three of the largest leaves.
const PAGES: usize = 56;

/// A table in storage that fails.
type Of<'m, G, F, L, P> = Gpt<'m, G, F, Meter<'m, <F as Format>::Word>, L, P>;

/// A table, and what it should hold.
struct Checked<
    'm,
    G: Geometry,
    F: Format,
    L: Layout<Meter<'m, F::Word>>,
    P: NodeSize,
    D: FnMut(&tlbkit_addr::Flush),
> {
    meter: &'m Meter<'m, F::Word>,
    table: Local<'m, Of<'m, G, F, L, P>, D>,
    model: Model,
    /// The number of the first page.
    first: usize,
    frames: usize,
}

const READ: Attr = Attr::READ;

impl<'m, G, F, L, P, D> Checked<'m, G, F, L, P, D>
where
    G: Geometry,
    F: Format,
    L: Layout<Meter<'m, F::Word>>,
    P: NodeSize,
    D: FnMut(&tlbkit_addr::Flush),
{
    fn page(&self, number: usize) -> VirtAddr {
        Vpn::new(self.first + number).address(G::BASE)
    }

    fn pages(&self, number: usize, count: usize) -> Pages {
        Pages::count(Vpn::new(self.first + number), count).unwrap()
    }

    /// Makes a change again and again, with one node more each time, until there is memory for it. Each failure changes nothing.
    fn with_memory<R>(&mut self, change: impl Fn(&mut Self) -> Result<R, Error>) -> Result<R, Error> {
        for allowed in 0.. {
            let before = (self.table.footprint(), self.meter.slab.usage().nodes);
            self.meter.left.set(allowed);
            let outcome = change(self);
            self.meter.left.set(usize::MAX);
            let Err(Error::NoMemory { .. }) = outcome else { return outcome };
            assert_eq!((self.table.footprint(), self.meter.slab.usage().nodes), before);
            self.check_step("no memory");
        }
        unreachable!()
    }

    fn change(&mut self, op: Op) {
        let rights = READ | Attr::WRITE | F::IMPLIED;
        match op {
            Map(number, count) => {
                let (pages, frame) = (self.pages(number, count), self.frames);
                let outcome = self.with_memory(|all| all.table.map(pages, Pfn::new(frame), G::BASE, rights));
                if self.model.range(number..number + count).next().is_some() {
                    assert!(
                        matches!(outcome, Err(Error::Occupied { .. } | Error::Marked { .. })),
                        "{outcome:?}"
                    );
                } else {
                    assert_eq!(outcome, Ok(()));
                    self.model.extend((0..count).map(|page| (number + page, Ok((frame + page, true)))));
                    self.frames += count;
                }
            }
            Unmap(number, count) => {
                // An unmap needs no memory: without any, a leaf does not shrink.
                self.meter.left.set(self.frames % 2);
                let outcome = self.table.unmap(self.pages(number, count), Holes::Skip);
                self.meter.left.set(usize::MAX);
                let gone: Vec<_> = self.model.range(number..number + count).map(|(&page, _)| page).collect();
                let mapped =
                    gone.iter().filter_map(|page| self.model.remove(page)).filter(Result::is_ok).count();
                assert_eq!(outcome, Ok(mapped));
            }
            Share(number, count) => {
                self.table
                    .protect(self.pages(number, count), Holes::Skip, Change::clear(Attr::WRITE))
                    .unwrap();
                for (_, entry) in self.model.range_mut(number..number + count) {
                    *entry = entry.map(|(frame, _)| (frame, false)).map_err(|(payload, _)| (payload, false));
                }
            }
            Replace(number) => {
                let (at, frame) = (self.page(number), Pfn::new(self.frames));
                let outcome = self.table.replace(at, frame, rights, FlushAll::in_place);
                match self.model.get_mut(&number) {
                    Some(entry @ Ok(_)) => {
                        outcome.unwrap();
                        *entry = Ok((self.frames, true));
                        self.frames += 1;
                    }
                    _ => assert_eq!(outcome, Err(Error::NotMapped { at })),
                }
            }
            Op::Mark(number) if payload_bits::<F>().is_some() => {
                let (at, mark) = (
                    self.page(number),
                    Mark::Payload(number as u64 + 1, READ | Attr::WRITE | F::IMPLIED & Mark::KEPT),
                );
                self.with_memory(|all| all.table.mark(at, Some(mark))).unwrap();
                self.model.insert(number, Err((number as u64 + 1, true)));
            }
            Clear(number) if payload_bits::<F>().is_some() => {
                self.table.mark(self.page(number), None).unwrap();
                self.model.remove(&number);
            }
            Fill(number) => {
                let outcome = self.table.fill(self.page(number), number as u64 + 1, Pfn::new(self.frames));
                if let Some(entry) = self.model.get_mut(&number)
                    && let Err((_, writable)) = *entry
                {
                    outcome.unwrap();
                    *entry = Ok((self.frames, writable));
                    self.frames += 1;
                } else {
                    outcome.unwrap_err();
                }
            }
            _ => {}
        }
        self.check_step(&format!("{op:?}"));
    }

    /// Checks in the middle of a history. Miri, for which a check takes as long as many changes, checks at the end.
    fn check_step(&self, after: &str) {
        if !cfg!(miri) {
            self.check(after);
        }
    }

    /// Compares the counts with the tree, and the tree with the model.
    fn check(&self, after: &str) {
        let leaves = self.table.table().check();
        let expected = self.model.iter().filter_map(|(&number, entry)| {
            let (frame, writable) = entry.ok()?;
            Some((self.page(number), Pfn::new(frame), writable))
        });
        let mapped = leaves.iter().map(|leaf| (leaf.at, leaf.frame, leaf.attr.contains(Attr::WRITE)));
        assert!(mapped.eq(expected), "{after}: {leaves:?}, not {:?}", self.model);
        for number in 0..PAGES {
            let entry = self.table.entry(self.page(number));
            let same = match self.model.get(&number) {
                None => entry == Entry::Empty,
                Some(&Err((payload, _))) => {
                    matches!(entry, Entry::Mark(Mark::Payload(now, _)) if now == payload)
                }
                Some(&Ok((frame, _))) => matches!(entry, Entry::Leaf(leaf) if leaf.frame == Pfn::new(frame)),
            };
            assert!(same, "{after}: page {number} holds {entry:?}");
        }
        // All entries in the region of the largest leaf are in one leaf.
        let width = <Of<'m, G, F, L, P> as Shape>::MAX_LEAF_WIDTH;
        let regions: std::collections::BTreeSet<_> =
            self.model.keys().map(|number| (self.first + number) >> width).collect();
        let footprint = self.table.footprint();
        assert_eq!((footprint.leaves, footprint.ptes), (regions.len(), self.model.len()), "{after}");
    }
}

/// Makes the changes in a table, in a neighbourhood that begins with the page `first`, and then unmaps all pages.
fn run<'m, G, F, L, P>(meter: &'m Meter<'m, F::Word>, first: usize, history: &[Op])
where
    G: Geometry,
    F: Format,
    L: Layout<Meter<'m, F::Word>>,
    P: NodeSize,
{
    let mut table = Checked {
        meter,
        table: Local::new(Gpt::<G, F, _, L, P>::new(meter).unwrap(), |_| ()),
        model: Model::new(),
        first,
        frames: 1,
    };
    assert!(G::SPACE.check_pages(table.pages(0, PAGES)).is_ok());
    for &op in history {
        table.change(op);
    }
    table.check("the history");
    table.change(Unmap(0, PAGES));
    assert_eq!(table.table.footprint().total(), 0);
    table.table.destroy();
    assert_eq!((meter.slab.usage().nodes, meter.held().lost()), (0, 0));
}

/// Pages 9 and 10 and then 6 to 8, which are below them in a larger leaf; and the same upwards. Some of the pages that the larger leaf
/// keeps are shared, or are pages that have been copied, or marks.
fn in_both_directions() -> Vec<Vec<Op>> {
    let mut all = Vec::new();
    let (low, high) = ([6, 7, 8], [9, 10]);
    for upwards in [false, true] {
        for between in [
            &[][..],
            &[Share(0, PAGES)],
            &[Share(0, PAGES), Replace(9), Replace(7)],
            &[Op::Mark(9), Op::Mark(6)],
            &[Op::Mark(9), Op::Mark(6), Fill(9), Fill(6)],
        ] {
            for by_range in [false, true] {
                let [one, two]: [&[usize]; 2] = if upwards { [&low, &high] } else { [&high, &low] };
                let map = |pages: &[usize]| -> Vec<Op> {
                    if by_range {
                        vec![Map(pages[0], pages.len())]
                    } else {
                        pages.iter().map(|&page| Map(page, 1)).collect()
                    }
                };
                let parts = [
                    &map(one)[..],
                    between,
                    &map(two),
                    &[Share(8, 2), Replace(8), Unmap(9, 1), Unmap(6, 2), Map(15, 2)],
                ];
                // A mark may be where the second part would be.
                all.push(parts.concat());
            }
        }
    }
    all
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let (page, count) = (0..PAGES - 6, prop_oneof![3 => Just(1usize), 1 => 2usize..6]);
    let op = prop_oneof![
        6 => (page.clone(), count.clone()).prop_map(|(page, count)| Map(page, count)),
        3 => (page.clone(), count.clone()).prop_map(|(page, count)| Unmap(page, count)),
        1 => (page.clone(), count).prop_map(|(page, count)| Share(page, count)),
        1 => page.clone().prop_map(Replace),
        2 => page.clone().prop_map(Op::Mark),
        1 => page.clone().prop_map(Clear),
        1 => page.prop_map(Fill),
    ];
    prop::collection::vec(op, 1..if cfg!(miri) { 8 } else { 60 })
}

macro_rules! growths {
    ($($name:ident: $G:ty, $F:ty, $L:ty, $P:ty;)*) => { $(
        #[test]
        fn $name() {
            let run = |first, history: &[Op]| {
                let mut memory = memory(if cfg!(miri) { 40 } else { 200 });
                let meter = Meter::new(&mut memory);
                run::<$G, $F, $L, $P>(&meter, first, history);
            };
            let fixed = in_both_directions();
            fixed.iter().step_by(if cfg!(miri) { 13 } else { 1 }).for_each(|history| run(0x120, history));
            let cases = if cfg!(miri) { 1 } else { 60 };
            let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
            proptest!(config, |(first in 0usize..64, history in ops())| run(first, &history));
        }
    )* };
}

each_table!(growths);

/// The bytes of a leaf with room for `ptes` PTEs of 64 bits.
fn leaf_bytes(ptes: usize) -> usize {
    (1 + ptes) * size_of::<u64>()
}

fn beside(first: usize, count: usize) -> Pages {
    Pages::count(Vpn::new(first), count).unwrap()
}

#[test]
fn gpt_a_leaf_that_ranges_make_larger_grows_twice() {
    let mut memory = memory(4);
    let meter = Meter::<u64>::new(&mut memory);
    let mut table = Local::new(Gpt48::new(&meter).unwrap(), |_| ());
    for (first, ptes) in [(0, 2), (2, 4), (4, 16), (8, 16), (14, 16)] {
        table.map(beside(first, 2), Pfn::new(9), PageSize::K4, READ).unwrap();
        assert_eq!(table.footprint().leaf_bytes, leaf_bytes(ptes), "after pages {first} and {}", first + 1);
    }
    table.destroy();
}

#[test]
fn gpt_a_page_that_comes_and_goes_beside_two_others_takes_no_leaf() {
    let mut memory = memory(4);
    let meter = Meter::<u64>::new(&mut memory);
    let mut table = Local::new(Gpt48::new(&meter).unwrap(), |_| ());
    for page in [0, 9] {
        table.map(beside(page, 1), Pfn::new(9), PageSize::K4, READ).unwrap();
    }
    table.map(beside(15, 1), Pfn::new(9), PageSize::K4, READ).unwrap();
    meter.left.set(0);
    for _ in 0..3 {
        table.unmap(beside(15, 1), Holes::Refuse).unwrap();
        assert_eq!(table.footprint().leaf_bytes, leaf_bytes(16));
        table.map(beside(15, 1), Pfn::new(9), PageSize::K4, READ).unwrap();
    }
    table.destroy();
}

#[test]
fn gpt_a_run_goes_on_in_small_leaves_without_memory_for_large_ones() {
    let mut memory = memory(8);
    let meter = Meter::<u64>::new(&mut memory);
    let mut table = Local::new(Gpt48::new(&meter).unwrap(), |_| ());
    table.map(beside(0, 16), Pfn::new(9), PageSize::K4, READ).unwrap();
    // Beside the leaf of the run, and beside its node.
    for page in [16, 32, 48] {
        let before = table.footprint();
        meter.most.set(3);
        table.map(beside(page, 1), Pfn::new(9), PageSize::K4, READ).unwrap();
        meter.most.set(usize::MAX);
        assert_eq!(table.footprint().leaf_bytes, before.leaf_bytes + leaf_bytes(1));
        table.map(beside(page + 1, 15), Pfn::new(9), PageSize::K4, READ).unwrap();
    }
    table.table().check();
    table.destroy();
}
