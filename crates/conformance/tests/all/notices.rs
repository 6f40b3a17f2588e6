//! A check that cannot fail is not one: the runner notices every fault that can be planted.

use std::collections::BTreeMap;

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use tlbkit_addr::{Attr, PageSize, Pages, Pfn, Vpn};
use tlbkit_conformance::{Fault, Instrumented, Mismatch, Op, Outcome, Profile, Runner, ops};
use tlbkit_pagetable::format::{Compact32, Format};
use tlbkit_pagetable::geometry::Va32;
use tlbkit_pagetable::mpt::Mpt;
use tlbkit_pagetable::nodes::{Chunk, Slab};
use tlbkit_pagetable::{Change, Holes, Solo, Table, destroy};

const FRAMES: std::ops::Range<usize> = 0x8_0000..0x9_0000;

fn pte(word: u64) -> bool {
    let word = word as u32;
    Compact32::is_leaf(word, true) && FRAMES.contains(&Compact32::frame(word, PageSize::K4).get())
}

fn pages(first: usize, pages: usize) -> Pages {
    Pages::count(Vpn::new(first), pages).unwrap()
}

/// Maps, protects, promotes, splits and unmaps; every store changes what the table says.
fn story() -> [Op; 7] {
    let attr = Attr::READ | Attr::WRITE;
    let k16 = PageSize::K16;
    [
        Op::Map { pages: pages(0x400, 4), frame: Pfn::new(0x8_0000), size: PageSize::K4, attr },
        Op::Map { pages: pages(0xf_fffe, 2), frame: Pfn::new(0x8_1001), size: PageSize::K4, attr },
        Op::Protect { pages: pages(0x400, 4), holes: Holes::Refuse, change: Change::clear(Attr::WRITE) },
        Op::Resize { pages: pages(0x400, 4), to: k16 },
        Op::Drain { pages: pages(0xf_ffff, 1), most: 1 },
        Op::Resize { pages: pages(0x400, 4), to: PageSize::K4 },
        // One stays, so that the node stays: a stale entry of a node that is gone does no harm.
        Op::Unmap { pages: pages(0x401, 3), holes: Holes::Skip },
    ]
}

/// Tells the story to a table whose store number `store` is at fault; tells whether there is such a store.
fn tell(fault: Fault, store: usize) -> (bool, Result<(), Mismatch>) {
    let mut memory = vec![Chunk::ZERO; 16];
    let nodes = Instrumented::new(Slab::<u32, Solo>::new(&mut memory, 0).unwrap());
    // Bit 12 tells sizes; bit 20 is the ninth of a frame's number.
    nodes.plant(fault, store, (Compact32::STEP << 8).into(), pte);
    let table = Mpt::<Va32, Compact32, _>::new(&nodes).unwrap();
    let mut runner = Runner::new(&table, Profile::of::<Compact32>(), 0);
    let told = runner.run(&table, &story());
    let planted = nodes.planted();
    // SAFETY: no walker is in the table any more.
    unsafe { destroy(table).reclaim() };
    (planted, told)
}

#[test]
fn every_planted_fault_is_noticed() {
    for fault in [Fault::Stale, Fault::Lost, Fault::Wrong] {
        let mut planted = 0;
        for store in 0.. {
            let (hit, told) = tell(fault, store);
            assert_eq!(hit, told.is_err(), "{fault:?} in store {store}: {told:?}");
            if !hit {
                break;
            }
            planted += 1;
        }
        assert!(planted >= 4, "the story has only {planted} stores for {fault:?}");
    }
}

#[test]
fn a_mismatch_names_the_operation_and_the_address() {
    let (_, told) = tell(Fault::Lost, 5);
    let told = told.unwrap_err().to_string();
    assert!(
        told.contains("0xfffff000 is unmapped; it should be mapped by the") && told.contains("after Map"),
        "{told}"
    );
}

/// Operations as they are drawn succeed and fail in all ways often enough to mean something.
#[test]
fn operations_meet() {
    let mut memory = vec![Chunk::ZERO; 2048];
    let slab = Slab::<u32, Solo>::new(&mut memory, 0).unwrap();
    let (mut done, mut refused) = (BTreeMap::new(), BTreeMap::new());
    let name = |text: String| text.split([' ', '(']).next().unwrap().to_owned();
    let mut random = TestRunner::deterministic();
    for _ in 0..300 {
        let table = Mpt::<Va32, Compact32, _>::new(&slab).unwrap();
        let mut runner = Runner::new(&table, Profile::of::<Compact32>(), 0);
        for op in ops(table.space(), 40).new_tree(&mut random).unwrap().current() {
            match runner.step(&table, &op).unwrap() {
                Outcome::Done => *done.entry(name(format!("{op:?}"))).or_insert(0) += 1,
                Outcome::Refused(error) => *refused.entry(name(format!("{error:?}"))).or_insert(0) += 1,
                Outcome::NoMemory { .. } | Outcome::TooLarge => (),
            }
        }
        // SAFETY: no walker is in the table any more.
        unsafe { destroy(table).reclaim() };
    }
    println!("{done:?}\n{refused:?}");
    for op in ["Map", "Unmap", "Drain", "Move", "Protect", "Resize", "Lookup", "ForEach"] {
        assert!(done[op] >= 40, "{op} succeeded {} times", done[op]);
    }
    let errors = [
        "OutOfRange",
        "Misaligned",
        "MisalignedFrame",
        "FrameTooLarge",
        "WrongSize",
        "Occupied",
        "Overlap",
        "NotMapped",
        "Partial",
        "NotUniform",
    ];
    for error in errors {
        assert!(refused.get(error) >= Some(&4), "{error}: {:?} of {refused:?}", refused.get(error));
    }
}

#[test]
fn a_wrong_model_is_noticed_too() {
    // The same operations on a table that another has already changed.
    let mut memory = vec![Chunk::ZERO; 16];
    let slab = Slab::<u32, Solo>::new(&mut memory, 0).unwrap();
    let table = Mpt::<Va32, Compact32, _>::new(&slab).unwrap();
    let mut first = Runner::new(&table, Profile::of::<Compact32>(), 0);
    let mut second = Runner::new(&table, Profile::of::<Compact32>(), 0);
    first.run(&table, &story()[..1]).unwrap();
    assert!(second.run(&table, &story()[..1]).is_err());
    // SAFETY: no walker is in the table any more.
    unsafe { destroy(table).reclaim() };
}
