//! The guarded table's handlers: equal to `lookup`, never fooled by an address outside the table, counted.

use crate::common::steps::{config, steps};
use crate::common::tables::{Guarded, GuardedTable, guarded};
use crate::common::{NODES, Sabotage, Storage};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicU32;
use tlbkit_addr::{Attr, PageSize, Pages, Pfn, VirtAddr, Vpn};
use tlbkit_pagetable::format::{EntryLo, Format};
use tlbkit_pagetable::geometry::Va32;
use tlbkit_pagetable::gpt::{Adaptive, Fixed};
use tlbkit_pagetable::nodes::{Chunk, NodeAddr, Nodes};
use tlbkit_pagetable::{Local, Table};
use tlbkit_refill::features::Features;
use tlbkit_refill::handler::{Form, Front, Place, Root, Spec, Write};
use tlbkit_refill::interp::{Access, Machine, Stop, Window, Windows};

/// Every form that a handler has. Those of the sizes from 4 KiB to 16 MiB know what to do with all of them.
const SMALL: &[Form] = &[Form::PLAIN, Form::REPORTING];
const SIZED: &[Form] = &[Form::SIZED, Form::BOTH];

// Nodes of other sizes, and links of the other kind; `properties.rs` has the rest.
macro_rules! equals {
    ($($name:ident $sized:ident $kind:ty;)*) => { $(
        proptest! {
            #![proptest_config(ProptestConfig::with_cases(128))]
            #[test]
            fn $name(config in config(SMALL), steps in steps(1)) {
                guarded::<Va32, $kind>(&config, &steps, Sabotage::default())?;
            }

            #[test]
            fn $sized(config in config(SIZED), steps in steps(7)) {
                guarded::<Va32, $kind>(&config, &steps, Sabotage::default())?;
            }
        }
    )* };
}

equals! {
    g4_equals_lookup g4_of_all_sizes_equals_lookup Fixed<2>;
    g32_equals_lookup g32_of_all_sizes_equals_lookup Fixed<5>;
    g128_equals_lookup g128_of_all_sizes_equals_lookup Fixed<7>;
}

const BLOCK: u32 = 0x8000_2000;

/// The features of a CPU without bit fields, and of one with them.
const CPUS: [Features; 2] = [Features::R1, Features::R2];

fn spec<P: Guarded>(features: Features, form: Form) -> Spec {
    Spec {
        features,
        place: Place::VECTOR,
        block: BLOCK,
        root: Root::ErrorEpc,
        front: Front::None,
        walk: P::walk::<Va32>(),
        form,
        write: Write::Random,
    }
}

/// What is mapped: the first page, in pages of 4 KiB, and the base-two logarithm of how many there are in one.
type Mapped = (usize, u32);

/// Calls with a machine whose root is in ErrorEPC, and a table of these pages, those that do not overlap.
fn machine<P: Guarded>(
    features: Features,
    form: Form,
    pages: &[Mapped],
    mut visit: impl FnMut(&mut Machine<Windows<'_, 3>, 16>, &GuardedTable<'_, '_, Va32, P>),
) {
    let chunks = 400;
    let mut memory = vec![Chunk::ZERO; chunks];
    let storage = Storage::new(&mut memory, NODES).unwrap();
    let mut table = Local::new(GuardedTable::<Va32, P>::new(&storage).unwrap(), |_| ());
    for (number, &(page, size)) in pages.iter().enumerate() {
        let pages = Pages::count(Vpn::new(page >> size << size), 1 << size).unwrap();
        let frame = Pfn::new((number + 1) << size);
        let _ =
            table.map(pages, frame, PageSize::from_shift(12 + size).unwrap(), EntryLo::IMPLIED | Attr::WRITE);
    }
    let handler = spec::<P>(features, form).assemble().unwrap();
    let low: Vec<_> = (0..0x2100 / 4).map(|_| AtomicU32::new(0)).collect();
    for (at, code) in [(0, &handler.refill), (0x400, &handler.tail)] {
        for (cell, &word) in low[at / 4..].iter().zip(code.words()) {
            cell.store(word, std::sync::atomic::Ordering::Relaxed);
        }
    }
    // SAFETY: the slab's memory, which no CPU writes while the machine runs.
    let nodes =
        unsafe { Window::from_raw(NODES as u64, storage.at(NodeAddr::new(NODES)).cast(), chunks * 1024) };
    let mut machine =
        Machine::new(features, Windows([Window::new(0, &low), nodes, Window::new(u64::MAX, &[])]));
    machine.cp0.error_epc = table.table().root() as u32 as i32 as u64;
    visit(&mut machine, table.table());
    table.destroy();
}

/// Asks the handler about the pair of each mapped page, those that differ from it in one bit, and others at equal distances, or with
/// `cargo xtask test --full` about every pair of the 32-bit space, and on a processor of release 1 about each 13th: what it loads is
/// what the table says, and what the table does not say, or says of a page that is too large for the form, is passed on as it was.
fn exhaustive<P: Guarded>(features: Features, form: Form, pages: &[Mapped]) {
    machine::<P>(features, form, pages, |machine, table| {
        let few = if features == Features::R1 { 13 } else { 1 };
        let step = if cfg!(tlbkit_full) { few } else { 61 };
        let near = pages.iter().map(|(page, _)| page >> 1);
        let near = near.flat_map(|pair| (0..19).map(move |bit| pair ^ 1 << bit).chain([pair]));
        for pair in near.chain((0..1usize << 19).step_by(step)) {
            let at = pair << 13;
            machine.tlb.flush();
            machine.cp0.status = 0;
            let stop = machine.touch(at as u32 as i32 as u64, Access::Load).unwrap_err();
            // SAFETY: no CPU writes meanwhile.
            let pinned = || unsafe { tlbkit_pagetable::Pinned::by(&pair) };
            let mapped = [at, at | 0x1000].map(|at| table.lookup(pinned(), VirtAddr::new(at)));
            let served = |size: PageSize| form.sized || size == PageSize::K4;
            let present = mapped.iter().flatten().any(|leaf| served(leaf.size));
            assert_eq!(stop, if present { Stop::Returned } else { Stop::Reached }, "{at:#x}");
            assert_eq!(machine.cp0.page_mask, 0, "{at:#x}");
            if !present {
                assert!(machine.tlb.entries().iter().all(Option::is_none), "{at:#x}");
                assert_eq!(machine.cp0.bad_vaddr as u32 as usize, at, "the miss is passed on as it was");
                assert_eq!(machine.cp0.entry_hi as u32 as usize, at);
            }
            for (at, leaf) in [at, at | 0x1000].into_iter().zip(mapped) {
                let found = machine.tlb.find(at as u32 as i32 as u64, 0).filter(|entry| entry.lo & 2 != 0);
                let leaf = leaf.filter(|leaf| served(leaf.size));
                assert_eq!(found.is_some(), leaf.is_some(), "{at:#x}");
                if let (Some(found), Some(leaf)) = (found, leaf) {
                    let start = (found.lo >> 6 << 12) & !(found.bytes - 1);
                    let loaded = start | at as u64 & (found.bytes - 1);
                    assert_eq!(loaded, leaf.phys(VirtAddr::new(at), PageSize::K4).get() as u64, "{at:#x}");
                }
            }
        }
    });
}

/// Pages near each other and far apart, at both ends, in nodes shallow and deep.
fn scattered() -> Vec<Mapped> {
    let mut pages: Vec<_> = (0..40).map(|n| n * 3).collect();
    pages.extend((0..20).map(|n| 1usize << n));
    pages.extend((0..300usize).map(|n| n.wrapping_mul(0x9e37_79b1) >> 7 & 0xf_ffff));
    pages.extend([0xf_ffff, 0x8_0000, 0x7_ffff]);
    pages.into_iter().map(|page| (page, 0)).collect()
}

/// The same among larger pages: alone, in pairs, beside smaller ones, and at both ends of the space.
fn mixed() -> Vec<Mapped> {
    let mut pages = vec![(0xf_f000, 12), (0, 12), (0x2000, 12), (0x3000, 12), (0x4000, 10), (0x4400, 8)];
    for size in [2, 4, 6, 8, 10] {
        // A pair, a lone page, a page beside smaller ones, each in a region of its own.
        let region = (usize::try_from(size).unwrap() + 1) << 15;
        let unit = 1 << size;
        pages.extend([0, 1, 2, 5].map(|page| (region + page * unit, size)));
        pages.extend([(region + 8 * unit, size), (region + 9 * unit, 0), (region + 10 * unit - 1, size - 2)]);
    }
    pages.extend(scattered());
    pages
}

#[test]
fn no_address_outside_the_table_matches() {
    exhaustive::<Fixed<4>>(Features::R2, Form::PLAIN, &scattered());
    exhaustive::<Adaptive>(Features::R2, Form::PLAIN, &scattered());
    exhaustive::<Fixed<3>>(Features::R2, Form::PLAIN, &[(0x1234, 0)]);
    exhaustive::<Adaptive>(Features::R2, Form::PLAIN, &[]);
}

#[test]
fn no_address_outside_a_table_of_all_sizes_matches() {
    for features in CPUS {
        exhaustive::<Fixed<4>>(features, Form::SIZED, &mixed());
        exhaustive::<Adaptive>(features, Form::SIZED, &mixed());
    }
    exhaustive::<Fixed<1>>(Features::R2, Form::SIZED, &mixed());
    exhaustive::<Fixed<3>>(Features::R2, Form::SIZED, &mixed());
    exhaustive::<Fixed<8>>(Features::R2, Form::SIZED, &mixed());
}

#[test]
fn the_plain_form_passes_larger_pages_on() {
    for features in CPUS {
        exhaustive::<Fixed<4>>(features, Form::PLAIN, &mixed());
        exhaustive::<Adaptive>(features, Form::PLAIN, &mixed());
    }
}

/// Instructions of a refill by how many nodes are on the way, the root word in ErrorEPC. The odd half of a larger page's
/// pair takes one less than the even.
fn costs<P: Guarded>(features: Features, form: Form, pages: &[Mapped]) -> BTreeMap<u64, u64> {
    let mut costs = BTreeMap::new();
    machine::<P>(features, form, pages, |machine, _| {
        for &(page, size) in pages {
            machine.tlb.flush();
            machine.cp0.status = 0;
            machine.counts = Default::default();
            assert_eq!(machine.touch((page << 12) as u32 as i32 as u64, Access::Load), Err(Stop::Returned));
            // A link a node, the tag, two EntryLos; and what was put aside for a larger page.
            let more = if size > 0 { 1 } else { 0 };
            let spent = machine.counts.instructions;
            let count = costs.entry(machine.counts.loads - 3 - more).or_insert(spent);
            assert!(*count == spent || size > 0 && count.abs_diff(spent) == 1, "{page:#x}");
            *count = spent.max(*count);
        }
    });
    costs
}

#[test]
fn a_level_takes_five_instructions_fixed_and_ten_adaptive() {
    let check = |costs: BTreeMap<u64, u64>, level| {
        assert!(costs.len() > 1, "{costs:?}");
        for (levels, instructions) in costs {
            assert_eq!(instructions, 15 + level * levels, "{levels} levels");
        }
    };
    let r2 = Features::R2;
    for form in [Form::PLAIN, Form::SIZED] {
        check(costs::<Fixed<4>>(r2, form, &scattered()), 5);
        check(costs::<Fixed<8>>(r2, form, &scattered()), 5);
        check(costs::<Fixed<5>>(r2, form, &scattered()), 6);
        check(costs::<Adaptive>(r2, form, &scattered()), 10);
        check(costs::<Fixed<1>>(r2, form, &scattered()), 10);
        assert_eq!(costs::<Fixed<4>>(r2, form, &[(7, 0)])[&0], 15);
    }
}

#[test]
fn a_pair_of_larger_pages_takes_as_many_more_whatever_its_size() {
    for size in [2, 4, 6, 8, 10, 12] {
        let pages = [(1 << size, size), (0, size), (0xf_0000, size), (0xf_0000 | 1 << size, size)];
        assert_eq!(costs::<Fixed<4>>(Features::R2, Form::SIZED, &pages[..2])[&0], 44, "{size}");
        let costs = costs::<Adaptive>(Features::R2, Form::SIZED, &pages);
        assert_eq!(costs.into_iter().collect::<Vec<_>>(), [(1, 54)], "{size}");
    }
}
