//! A check that cannot fail is not one: the runner notices every fault that can be planted.

use tlbkit_addr::{Attr, PageSize, Pages, Pfn, Vpn};
use tlbkit_conformance::{Fault, Faulty, Mismatch, Op, Profile, Runner};
use tlbkit_pagetable::format::{Compact32, Format};
use tlbkit_pagetable::geometry::Va32;
use tlbkit_pagetable::mpt::Mpt;
use tlbkit_pagetable::nodes::{Chunk, Slab};
use tlbkit_pagetable::{Change, Holes, Solo, destroy};

const FRAMES: std::ops::Range<usize> = 0x8_0000..0x9_0000;

fn pte(word: u32) -> bool {
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
        Op::Unmap { pages: pages(0xf_ffff, 1), holes: Holes::Refuse, room: Some(1) },
        Op::Resize { pages: pages(0x400, 4), to: PageSize::K4 },
        Op::Unmap { pages: pages(0x400, 4), holes: Holes::Skip, room: None },
    ]
}

/// Tells the story to a table whose store number `store` is at fault; tells whether there is such a store.
fn tell(fault: Fault, store: usize) -> (bool, Result<(), Mismatch>) {
    let mut memory = vec![Chunk::ZERO; 16];
    let slab = Slab::<u32, Solo>::new(&mut memory, 0).unwrap();
    // Bit 12 tells sizes; bit 20 is the ninth of a frame's number.
    let nodes = Faulty::new(slab, fault, store, Compact32::STEP << 8, pte);
    let mut table = Mpt::<Va32, Compact32, _>::new(&nodes).unwrap();
    let mut runner = Runner::new(&table, Profile::of::<Compact32>(), 0);
    let told = runner.run(&mut table, &story());
    // SAFETY: nobody walks the table any more.
    unsafe { destroy(table).reclaim() };
    (nodes.planted(), told)
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
        assert!(planted >= 5, "the story has only {planted} stores for {fault:?}");
    }
}

#[test]
fn a_mismatch_names_the_operation_and_the_address() {
    let (_, told) = tell(Fault::Lost, 5);
    let told = told.unwrap_err().to_string();
    assert!(told.contains("0xfffff000 there is None") && told.contains("after Map"), "{told}");
}

#[test]
fn a_wrong_model_is_noticed_too() {
    // The same operations on a table that another has already changed.
    let mut memory = vec![Chunk::ZERO; 16];
    let slab = Slab::<u32, Solo>::new(&mut memory, 0).unwrap();
    let mut table = Mpt::<Va32, Compact32, _>::new(&slab).unwrap();
    let mut first = Runner::new(&table, Profile::of::<Compact32>(), 0);
    let mut second = Runner::new(&table, Profile::of::<Compact32>(), 0);
    first.run(&mut table, &story()[..1]).unwrap();
    assert!(second.run(&mut table, &story()[..1]).is_err());
    // SAFETY: nobody walks the table any more.
    unsafe { destroy(table).reclaim() };
}
