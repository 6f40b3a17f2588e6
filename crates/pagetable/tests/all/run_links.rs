//! A change that retires nodes of a table that hardware walks says that links changed: also when small pages become a run of blocks
//! of which the first was a block before.
#![cfg(target_pointer_width = "64")]

use tlbkit_addr::{Attr, PageSize, Pages, Pfn, Vpn};
use tlbkit_pagetable::format::{Aarch64Of, Format};
use tlbkit_pagetable::geometry::{Runs, Va48};
use tlbkit_pagetable::mpt::Mpt;
use tlbkit_pagetable::nodes::{Chunk, Slab};
use tlbkit_pagetable::{FlushAll, Shared, Writer, destroy};

const RW: Attr = Attr::READ.union(Attr::WRITE).union(Attr::USER);
/// The slots of a run of blocks, and the pages of a block.
const SLOTS: usize = 16;
const BLOCK: usize = 512;

/// Makes a run of 16 blocks, of which those in `blocks` are blocks and the others are tables.
fn check<F: Format<Word = u64>>(blocks: u32) {
    let mut memory = vec![Chunk::ZERO; 64];
    let slab = Slab::<u64, Shared>::new(&mut memory, 1 << 30).unwrap();
    let table = Mpt::<Runs<Va48>, F, _>::new(&slab).unwrap();
    let run = PageSize::from_shift(25).unwrap();
    let pages = |slot: usize, count: usize| {
        Pages::count(Vpn::new(SLOTS * BLOCK + slot * BLOCK), count * BLOCK).unwrap()
    };
    let mut writer = Writer::new(&table).unwrap();
    for slot in 0..SLOTS {
        let size = if blocks >> slot & 1 == 1 { PageSize::M2 } else { PageSize::K4 };
        writer.map(pages(slot, 1), Pfn::new((SLOTS + slot) * BLOCK), size, RW).unwrap();
    }
    // SAFETY: no CPU walks the table.
    unsafe { writer.pending().unwrap().take().reclaim() };
    // SAFETY: no code needs the pages.
    let done = unsafe {
        writer.resize(
            pages(0, SLOTS),
            run,
            FlushAll::breaking(&mut |flush| {
                assert_eq!(flush.links(), blocks != 0xffff, "{blocks:#x}: before the pages are made");
            }),
        )
    };
    done.unwrap();
    let batch = writer.finish();
    assert_eq!(batch.nodes(), 16 - blocks.count_ones() as usize);
    assert_eq!(batch.flush().links(), batch.nodes() > 0, "{blocks:#x}");
    // SAFETY: no CPU walks the table.
    unsafe {
        batch.reclaim();
        destroy(table).reclaim();
    }
}

#[test]
fn a_run_that_takes_the_place_of_blocks_and_tables_changes_links() {
    for blocks in [1, 0, 0x8000, 0x7fff, 0xfffe, 0x5555, 0xffff] {
        check::<Aarch64Of<12, true, false>>(blocks);
        check::<Aarch64Of<12, true, true>>(blocks);
    }
}
