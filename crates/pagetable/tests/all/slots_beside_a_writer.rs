//! Random changes of one page by the slots of hashed and clustered tables, and the same changes by the writer of a second table: both
//! return the same, and leave the same entries.
#![cfg(target_pointer_width = "64")]

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use tlbkit_addr::{Attr, Flush, PageSize, Pages, Pfn, Vpn};
use tlbkit_pagetable::format::{Compact, EntryLo, Format};
use tlbkit_pagetable::geometry::Va48;
use tlbkit_pagetable::hpt::{Buckets, Hashed, Sizes};
use tlbkit_pagetable::mpt::Encoded;
use tlbkit_pagetable::nodes::{Chunk, Nodes, Reclaim as _, Slab};
use tlbkit_pagetable::{
    Change, Entry, Error, FlushAll, Geometry, Half, Holes, Leaf, Mark, NodeLocks, PageTurn, Pinned, Retired,
    Shared, Table, Writer, destroy,
};

use crate::common::numbers::Numbers;
use crate::common::writers::{RIGHTS, at, complete, page, pages};

/// A change, and what it returns.
#[derive(Clone, Copy, Debug)]
enum Step {
    Map(Pages, Pfn, PageSize),
    Unmap(Pages, Holes),
    Protect(Pages, Holes, Change),
    Replace(usize, Pfn),
    Mark(usize, Option<Mark>),
    Fill(usize, u64, Pfn),
    Resize(Pages, PageSize),
}

#[derive(Debug, PartialEq)]
enum Done {
    Number(usize),
    Leaf(Leaf),
    Entry(Entry),
}

fn by_writer<'n>(table: &impl Table<'n>, step: Step) -> (Result<Done, Error>, Retired<'n>) {
    let mut writer = Writer::over(table, page(0), &mut || false).unwrap();
    let mut flush = |_: &Flush| ();
    // SAFETY: nothing needs the pages.
    let flush = unsafe { FlushAll::breaking(&mut flush) };
    let done = match step {
        Step::Map(pages, frame, size) => writer.map(pages, frame, size, RIGHTS).map(|()| Done::Number(0)),
        Step::Unmap(pages, holes) => writer.unmap(pages, holes).map(Done::Number),
        Step::Protect(pages, holes, change) => writer.protect(pages, holes, change).map(Done::Number),
        Step::Replace(page, frame) => writer.replace(at(page), frame, RIGHTS, flush).map(Done::Leaf),
        Step::Mark(page, mark) => writer.mark(at(page), mark).map(Done::Entry),
        Step::Fill(page, payload, frame) => writer.fill(at(page), payload, frame).map(|()| Done::Number(0)),
        Step::Resize(pages, size) => writer.resize(pages, size, flush).map(|()| Done::Number(0)),
    };
    (done, writer.finish())
}

/// Makes a change of one page by its slot.
fn by_slot<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes>(
    table: &Hashed<'n, G, F, N, S>,
    step: Step,
) -> Option<Done> {
    let number = match step {
        Step::Map(pages, _, size) if pages.len() == 1 && size == G::BASE => pages.first(),
        Step::Unmap(pages, _) | Step::Protect(pages, _, _) if pages.len() == 1 => pages.first(),
        Step::Replace(page, _) | Step::Mark(page, Some(_)) | Step::Fill(page, _, _) => Vpn::new(page),
        _ => return None,
    };
    let mut turn = PageTurn::new(table, number).unwrap();
    let slot = turn.slot()?;
    let mut flush = |_: &Flush| ();
    // SAFETY: nothing needs the pages.
    let flush = unsafe { FlushAll::breaking(&mut flush) };
    Some(match step {
        Step::Map(_, frame, _) => slot.map(frame, Encoded::new(RIGHTS)?).map(|_| Done::Number(0))?,
        Step::Unmap(..) => slot.unmap().map(|_| Done::Number(1))?,
        Step::Protect(_, _, change) => slot.protect(change).map(|_| Done::Number(1))?,
        Step::Replace(_, frame) => {
            slot.replace(frame, Encoded::new(RIGHTS)?, flush).map(|(leaf, _)| Done::Leaf(leaf))?
        }
        Step::Mark(_, Some(mark)) => slot.mark(mark).map(|(entry, _)| Done::Entry(entry))?,
        Step::Fill(_, payload, frame) => slot.fill(payload, frame).map(|_| Done::Number(0))?,
        Step::Mark(_, None) | Step::Resize(..) => return None,
    })
}

fn entries<'n>(table: &impl Table<'n>) -> BTreeMap<usize, Entry> {
    let mut all = BTreeMap::new();
    let whole = Pages::new(Vpn::new(0), Vpn::new(usize::MAX >> 12)).unwrap();
    // SAFETY: no batch is reclaimed during the visit.
    let pinned = unsafe { Pinned::by(&()) };
    let _ = table.for_each_entry(pinned, whole, &mut |at, entry| {
        assert!(all.insert(at.vpn(PageSize::K4).get(), entry).is_none(), "{at:?} is visited twice");
        ControlFlow::Continue(())
    });
    all
}

fn step<G: Geometry>(numbers: &mut Numbers, first: usize) -> Step {
    let sizes = G::SIZES;
    // Runs of neighbours, far from each other.
    let place = first + numbers.below(8) * 0x4_0000 + numbers.below(6) * 512 + numbers.below(40);
    let size = sizes[[0, 0, 0, 0, 0, 0, 0, numbers.below(sizes.len())][numbers.below(8)]];
    let base = size.pages(G::BASE).unwrap();
    let aligned = |page: usize| page / base * base;
    let range = |numbers: &mut Numbers| pages(place, [1, 1, 1, 1, 1 + numbers.below(40)][numbers.below(5)]);
    let holes = if numbers.below(2) == 0 { Holes::Refuse } else { Holes::Skip };
    let frame = Pfn::new(1 + numbers.below(1 << 12));
    match numbers.below(16) {
        0..6 => {
            let count = if numbers.below(4) == 0 { 1 + numbers.below(3) } else { 1 };
            Step::Map(pages(aligned(place), base * count), Pfn::new(aligned(frame.get())), size)
        }
        6..10 => Step::Unmap(range(numbers), holes),
        10 => Step::Protect(
            range(numbers),
            holes,
            [Change::READ_ONLY, Change::set(Attr::WRITE), Change::set(Attr::empty())][numbers.below(3)],
        ),
        11 => Step::Replace(place, frame),
        12 => Step::Mark(
            place,
            [
                None,
                Some(Mark::Payload(numbers.below(4) as u64, Attr::READ)),
                Some(Mark::Payload(1 << 60, Attr::READ)),
            ][numbers.below(3)],
        ),
        13 => Step::Fill(place, numbers.below(4) as u64, frame),
        14 => Step::Resize(pages(aligned(place), base), sizes[numbers.below(sizes.len())]),
        _ => Step::Unmap(pages(aligned(place), base), holes),
    }
}

/// Makes random changes of two tables: in one by slots, where these are enough.
fn check<G: Geometry, F: Format, S: Sizes>(seed: u64, first: usize) {
    let mut memory = vec![Chunk::ZERO; 4096];
    let mut second = vec![Chunk::ZERO; 4096];
    let (slab, mut locks) = (Slab::<F::Word, Shared>::new(&mut memory, 0).unwrap(), NodeLocks::new());
    let other = Slab::<F::Word, Shared>::new(&mut second, 0).unwrap();
    let table = Hashed::<G, F, _, S>::new(&slab).unwrap().with_locks(&mut locks);
    let model = Hashed::<G, F, _, S>::new(&other).unwrap();
    let mut numbers = Numbers(seed);
    let (mut slots, mut late) = (0, Vec::new());
    for number in 0..if cfg!(miri) { 60 } else { 1500 } {
        let step = step::<G>(&mut numbers, first);
        let (wanted, batch) = by_writer(&model, step);
        complete(batch);
        let done = if numbers.below(4) == 0 { None } else { by_slot(&table, step) };
        if let Some(done) = done {
            slots += 1;
            assert_eq!(Ok(done), wanted, "step {number}: {step:?}");
        } else {
            let (done, batch) = by_writer(&table, step);
            assert_eq!(done, wanted, "step {number}: {step:?}");
            // Some batches are complete late, so that first buckets wait to be used by another block; some are dropped.
            match numbers.below(8) {
                0..4 => complete(batch),
                4 => drop(batch),
                _ => late.push(batch),
            }
            if numbers.below(6) == 0 {
                late.drain(..).for_each(complete);
            }
        }
        assert_eq!(
            (table.footprint().ptes, table.blocks()),
            (model.footprint().ptes, model.blocks()),
            "step {number}: {step:?}"
        );
        if number % 64 == 0 {
            assert_eq!(entries(&table), entries(&model), "step {number}");
        }
        for near in first..first + 8 {
            // SAFETY: no batch is reclaimed during the walk.
            let pinned = unsafe { Pinned::by(&()) };
            assert_eq!(table.entry(pinned, at(near)), model.entry(pinned, at(near)));
            let mut turn = PageTurn::new(&table, Vpn::new(near)).unwrap();
            if let Some(entry) = turn.slot().and_then(|slot| slot.entry()) {
                assert_eq!(entry, model.entry(pinned, at(near)));
            }
        }
    }
    late.into_iter().for_each(complete);
    assert!(slots > 20);
    complete(destroy(model));
    complete(destroy(table));
    assert_eq!((slab.usage().nodes, slab.held().lost(), slab.held().pending()), (0, 0, 0));
}

/// Pages of 4, 8, 16 and 64 KiB fill slots of a block of sixteen, and those of 2 MiB have their own buckets.
#[derive(Debug)]
struct Sized;

impl Geometry for Sized {
    const VA_BITS: u32 = 40;
    const BASE: PageSize = PageSize::K4;
    const SIZES: &'static [PageSize] = &[PageSize::K4, PageSize::K16, PageSize::K64, PageSize::M2];
}

/// The upper half.
#[derive(Debug)]
struct Upper;

impl Geometry for Upper {
    const VA_BITS: u32 = 39;
    const BASE: PageSize = PageSize::K4;
    const HALF: Half = Half::Both;
    const SIZES: &'static [PageSize] = &[PageSize::K4, PageSize::M2];
}

/// Pairs with tags of two words.
#[derive(Debug)]
struct Pairs;

impl Geometry for Pairs {
    const VA_BITS: u32 = 40;
    const BASE: PageSize = PageSize::K4;
    const SIZES: &'static [PageSize] = &[PageSize::K4, PageSize::K16, PageSize::K64];
}

macro_rules! tables {
    ($($name:ident: $geometry:ty, $format:ty, $sizes:ty, $first:expr;)*) => { $(
        #[test]
        fn $name() {
            for seed in 1..if cfg!(tlbkit_full) { 9 } else { 2 } {
                check::<$geometry, $format, $sizes>(seed * 0x9e37_79b9, $first);
            }
        }
    )* };
}

tables! {
    hr: Va48, Compact, Buckets<0, 1, 150>, 0;
    cpt16_with_sizes: Sized, Compact, Buckets<4, 2, 100>, 0;
    pairs_in_blocks: Pairs, EntryLo, Buckets<3, 2, 150>, 0;
    upper_half: Upper, Compact, Buckets<2, 2, 150>, (usize::MAX << 26) >> 12;
}

/// More sizes of blocks, formats and geometries: `cargo xtask test --full`.
#[cfg(tlbkit_full)]
mod wide {
    use super::*;
    use tlbkit_pagetable::format::{Compact32, Paper};
    use tlbkit_pagetable::geometry::{Va32, Va64};

    tables! {
        hr_that_is_small: Va48, Compact, Buckets<0, 1, 400>, 0;
        cpt8: Va48, Compact, Buckets<3, 1, 150>, 0;
        cpt4_with_sizes: Sized, Compact, Buckets<2, 2, 100>, 0;
        hashed_with_sizes: Sized, Compact, Buckets<0, 2, 100>, 0;
        cpt16_of_32_bit_words: Sized, Compact32, Buckets<4, 2, 100>, 0;
        cpt2_of_32_bit_words: Sized, Compact32, Buckets<1, 2, 100>, 0;
        fixed: Va48, Compact, Buckets<0, 3, 0>, 0;
        fixed_and_clustered: Sized, Compact, Buckets<3, 2, 0>, 0;
        paper: Va64, Paper, Buckets<3, 6, 0>, 0;
        paper_that_grows: Va64, Paper, Buckets<2, 2, 100>, 0;
        pairs: Pairs, EntryLo, Buckets<1, 2, 100>, 0;
        pairs_in_a_fixed_table: Pairs, EntryLo, Buckets<4, 3, 0>, 0;
        folded: Va32, Compact, Buckets<0, 4, 100>, 0;
    }
}
