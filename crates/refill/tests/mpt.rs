//! The two-level handler against its table.

use std::sync::atomic::{AtomicU32, Ordering};

use tlbkit_addr::{Attr, PageSize, Pages, Pfn, VirtAddr, Vpn};
use tlbkit_pagetable::format::EntryLo;
use tlbkit_pagetable::geometry::Va32;
use tlbkit_pagetable::mpt::Mpt;
use tlbkit_pagetable::nodes::{Chunk, NodeAddr, Nodes, Slab};
use tlbkit_pagetable::{Local, Solo};
use tlbkit_refill::features::Features;
use tlbkit_refill::handler::{self, Form, Front, Place, Root, Spec, Walk, Write};
use tlbkit_refill::interp::{Access, Machine, Stop, Window, Windows};

const KSEG0: usize = 0x8000_0000;
const NODES: usize = KSEG0 + 0x10_0000;
const BLOCK: u32 = 0x8000_1000;

#[test]
fn refills_what_the_table_maps() {
    let mut memory = vec![Chunk::ZERO; 16];
    let chunks = memory.len();
    let slab = Slab::<u32, Solo>::new(&mut memory, NODES).unwrap();
    let mut table = Local::new(Mpt::<Va32, EntryLo, _>::new(&slab).unwrap(), |_| ());
    let spec = Spec {
        features: Features::R2,
        place: Place::VECTOR,
        block: BLOCK,
        root: Root::Block,
        front: Front::None,
        walk: Walk::Mpt(handler::Mpt::of::<Va32>().unwrap()),
        form: Form::Plain,
        write: Write::Random,
    };
    let handler = spec.assemble().unwrap();
    println!("{:08x?}", handler.refill.words());
    let low: Vec<_> = (0..0x2000 / 4).map(|_| AtomicU32::new(0)).collect();
    for (word, at) in handler.refill.words().iter().zip(&low) {
        at.store(*word, Ordering::Relaxed);
    }
    low[0x1000 / 4].store(table.table().root().get() as u32, Ordering::Relaxed);
    // SAFETY: the slab's memory, which nobody else touches while the machine runs.
    let nodes = unsafe { Window::from_raw(0x10_0000, slab.at(NodeAddr::new(NODES)).cast(), chunks * 1024) };
    let windows = Windows([Window::new(0, &low), nodes]);
    let mut machine = Machine::<_, 16>::new(Features::R2, windows);
    let page = Pages::one(Vpn::new(0x1235));
    table.map(page, Pfn::new(7), PageSize::K4, Attr::READ).unwrap();
    let at = 0x1235_678;
    assert_eq!(machine.touch(at, Access::Load), Err(Stop::Returned));
    println!("{:?}", machine.counts);
    assert_eq!(machine.touch(at, Access::Load), Ok(0x7678));
    assert_eq!(table.translate(VirtAddr::new(at as usize)).unwrap().get(), 0x7678);
    assert_eq!(machine.counts.instructions, 16);
    assert_eq!(machine.touch(0x9000_0000, Access::Store), Err(Stop::Reached));
    table.unmap(page, tlbkit_pagetable::Holes::Refuse, None).unwrap();
    table.destroy();
}
