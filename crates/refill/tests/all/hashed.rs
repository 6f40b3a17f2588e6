//! The hashed tables' handlers in shapes that `properties.rs` has not: the largest arrays, fixed and grown, the smallest, and
//! the largest pages.

use crate::common::steps::{config, steps};
use crate::common::tables::hashed;
use crate::common::{Base32, Config, KSEG0, MORE, Step, Storage};
use proptest::prelude::*;
use tlbkit_addr::{Attr, PageSize, Pages, Pfn, VirtAddr};
use tlbkit_pagetable::format::EntryLo;
use tlbkit_pagetable::geometry::Va32;
use tlbkit_pagetable::nodes::Chunk;
use tlbkit_pagetable::{Geometry, Local, hpt};
use tlbkit_refill::features::{Endian, Features};
use tlbkit_refill::handler::{Form, Root, Write};

/// Two arrays of 4 MiB, one for each space, and as much again for chains.
const CHUNKS: usize = 3 << 10;

/// So many pages, in a range, make a table of load 1 grow far, of one pair each or eight side by side.
const GROWN: usize = 3200;

/// Every way in which a handler computes an index.
fn configs() -> impl Iterator<Item = Config> {
    let cpus = [Features::R1, Features::R2, Features::P5600, Features::R1.with_endian(Endian::Big)];
    let forms = [Form::PLAIN, Form::SIZED, Form::BOTH];
    cpus.into_iter().flat_map(move |features| {
        forms.into_iter().flat_map(move |form| {
            [false, true].map(|stlb| Config {
                features,
                root: Root::ErrorEpc,
                stlb,
                form,
                write: Write::Index,
                near: false,
            })
        })
    })
}

/// Maps pages whose numbers have single bits set, each with one that hashes to the same unit of 2^18 and one beside it,
/// after what makes a table grow; touches them all, and what is not mapped around them.
fn far_and_wide(first: &[Step], sizes: &[usize]) -> Vec<Step> {
    let map = |first, size| Step::Map { first, count: 1, frame: first & 0xffff, size, attr: 0 };
    let touch = |page| Step::Touch { page, ago: None, offset: 4, store: false };
    let mut steps = first.to_vec();
    let mut pages = Vec::new();
    for bit in 4..20 {
        let page = 1 << bit;
        pages.extend([page, page ^ (1 << 19 | 1 << 9), page + 1, page ^ 0xf_ffff]);
    }
    steps.extend(pages.iter().map(|&page| map(page, 0)));
    // Larger ones in a part of the space of their own, with and without the index's top bit.
    for (nth, &size) in sizes.iter().enumerate() {
        let region = (nth + 1) << 15;
        let pair = [region | 0x1000, region | 0x1000 | 1 << (2 * size), region | 0x8_5000];
        steps.extend(pair.map(|page| map(page, size)));
        pages.extend(pair);
    }
    for page in pages {
        steps.extend([page, page ^ 1, page ^ 1 << 18, page ^ 1 << 19].map(|page| touch(page & 0xf_ffff)));
    }
    steps
}

/// No table of a fixed size is larger than 4 MiB: the index has 18 bits, and LIVE, folded, falls on the last of them.
#[test]
fn the_largest_array_equals_lookup() {
    for config in configs() {
        let sizes: &[usize] = if config.form.sized { &[1, 2, 3, 5, 6] } else { &[] };
        let steps = far_and_wide(&[], sizes);
        let pairs = hashed::<Va32, 1, 18, 0>(CHUNKS, &config, &steps).unwrap();
        let blocks = hashed::<Va32, 4, 15, 0>(CHUNKS, &config, &steps).unwrap();
        for seen in [pairs, blocks] {
            assert!(seen.translated > 64 && seen.faults > 64, "{config:?} {seen:?}");
            assert!(!config.form.sized || seen.larger > 10, "{config:?} {seen:?}");
        }
    }
}

/// A table that has grown is walked, and no miss is passed on, whatever part of the chains is still joined.
#[test]
fn the_largest_array_that_has_grown_equals_lookup() {
    let grow = Step::Map { first: 0x2_0000, count: GROWN, frame: 0, size: 0, attr: 0 };
    for config in configs() {
        let steps = far_and_wide(&[grow], &[]);
        let pairs = hashed::<Base32, 1, 1, 1>(CHUNKS, &config, &steps).unwrap();
        let blocks = hashed::<Base32, 4, 1, 1>(CHUNKS, &config, &steps).unwrap();
        for seen in [pairs, blocks] {
            assert!(seen.translated > 64 && seen.faults > 64, "{config:?} {seen:?}");
        }
    }
}

/// Returns how many segments a table has when what makes it grow is mapped.
fn grown<const CLUSTER_LOG: u32>() -> usize {
    let mut memory = vec![Chunk::ZERO; CHUNKS];
    let nodes = Storage::new(&mut memory, KSEG0 + MORE).unwrap();
    let table = hpt::Hashed::<Base32, EntryLo, _, hpt::Buckets<CLUSTER_LOG, 1, 1>>::new(&nodes).unwrap();
    let mut table = Local::new(table, |_: &_| ());
    let range = Pages::count(VirtAddr::new(0x2000_0000).vpn(PageSize::K4), GROWN).unwrap();
    table.map(range, Pfn::new(0), PageSize::K4, Attr::READ).unwrap();
    let segments = table.table().buckets() << (CLUSTER_LOG - 1) >> 9;
    table.destroy();
    segments
}

#[test]
fn that_is_how_far_they_grow() {
    assert!(grown::<1>() > 16 && grown::<4>() > 16, "{} {}", grown::<1>(), grown::<4>());
}

/// All sizes that PageMask has: two more than in [`Va32`].
#[derive(Debug)]
struct All;

impl Geometry for All {
    const VA_BITS: u32 = 32;
    const BASE: PageSize = PageSize::K4;
    const SIZES: &'static [PageSize] = &{
        let mut sizes = [PageSize::K4; 9];
        let mut at = 0;
        while at < sizes.len() {
            if let Some(size) = PageSize::from_shift(12 + 2 * at as u32) {
                sizes[at] = size;
            }
            at += 1;
        }
        sizes
    };
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn pages_of_up_to_256_mebibytes(config in config(&[Form::SIZED, Form::BOTH]), steps in steps(9)) {
        hashed::<All, 2, 3, 0>(160, &config, &steps)?;
    }
}

macro_rules! equals {
    ($($name:ident $sized:ident $cluster:literal $buckets:literal $load:literal $chunks:expr, $cases:literal;)*) => { $(
        proptest! {
            #![proptest_config(ProptestConfig::with_cases($cases))]
            #[test]
            fn $name(config in config(&[Form::PLAIN, Form::REPORTING]), steps in steps(1)) {
                hashed::<Base32, $cluster, $buckets, $load>($chunks, &config, &steps)?;
            }

            #[test]
            fn $sized(config in config(&[Form::SIZED, Form::BOTH]), steps in steps(7)) {
                hashed::<Va32, $cluster, $buckets, $load>($chunks, &config, &steps)?;
            }
        }
    )* };
}

equals! {
    pairs_in_two_buckets pairs_of_all_sizes_in_two_buckets 1 1 0 160, 64;
    sixteen_pages_in_a_bucket sixteen_pages_of_all_sizes_in_a_bucket 4 0 0 160, 64;
    four_pages_in_an_array_of_a_mebibyte four_pages_of_all_sizes_in_an_array_of_a_mebibyte 2 15 0 1024, 32;
    sixteen_pages_in_a_table_that_grows sixteen_pages_of_all_sizes_in_a_table_that_grows 4 1 200 160, 64;
}
