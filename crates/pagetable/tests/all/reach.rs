//! Nodes whose addresses a table's links cannot hold: a table uses the others, and is refused if there are none.

#[cfg(target_pointer_width = "64")]
use crate::common::kinds;
use tlbkit_addr::{Attr, PageSize, Pages, Pfn, VirtAddr};
#[cfg(target_pointer_width = "64")]
use tlbkit_pagetable::format::{Aarch64, Compact, Sv39, X86};
use tlbkit_pagetable::format::{EntryLo, Format};
#[cfg(target_pointer_width = "64")]
use tlbkit_pagetable::geometry::{Va39, Va48};
use tlbkit_pagetable::gpt::{Adaptive, Fixed, Gpt32};
use tlbkit_pagetable::nodes::{Chunk, NodeAddr, Nodes, Reclaim, Slab};
use tlbkit_pagetable::{Error, Local, Solo};
#[cfg(target_pointer_width = "64")]
use tlbkit_pagetable::{
    Private, Radix,
    gpt::{self, Gpt},
    hpt::Hr,
    mpt::Mpt,
};

const CHUNKS: usize = 16;

/// Maps pages all over the address space of a table of which nodes begin at `base`, until one is refused.
macro_rules! mapped {
    ($policy:ty, $base:expr) => {{
        let mut memory = vec![Chunk::ZERO; CHUNKS];
        let slab = Slab::<u32, Solo>::new(&mut memory, $base).unwrap();
        let table = Gpt32::<_, $policy>::new(&slab).unwrap();
        let mut table = Local::new(table, |_stale| ());
        let page = |at: usize| VirtAddr::new(at << 25 | at << 14);
        let mut mapped = 0;
        let result: Result<(), Error> = (0..64).try_for_each(|at| {
            let page = Pages::one(page(at).vpn(PageSize::K4));
            table.map(page, Pfn::new(at), PageSize::K4, EntryLo::IMPLIED)?;
            mapped += 1;
            Ok(())
        });
        for at in 0..64 {
            let frame = table.lookup(page(at)).map(|leaf| leaf.frame);
            assert_eq!(
                frame,
                (at < mapped).then_some(Pfn::new(at)),
                "page {at} with nodes from {:#x}",
                $base
            );
        }
        table.destroy();
        assert_eq!((slab.usage().nodes, slab.held().lost()), (0, 0));
        (mapped, result)
    }};
}

/// Tells what is said of a table whose nodes begin at `base`.
macro_rules! refused {
    ($policy:ty, $base:expr) => {{
        let mut memory = vec![Chunk::ZERO; CHUNKS];
        let slab = Slab::<u32, Solo>::new(&mut memory, $base).unwrap();
        Gpt32::<_, $policy>::new(&slab).err()
    }};
}

#[test]
fn nodes_that_links_cannot_name_are_refused() {
    let all = (64, Ok::<(), Error>(()));
    let refused = |base| Some(Error::OutOfReach { lowest: NodeAddr::new(base) });
    // In kseg0 are the lowest 512 MiB of physical memory.
    let reach = 1 << 29;
    assert_eq!(mapped!(Fixed<4>, reach - CHUNKS * 4096), all);
    assert_eq!(refused!(Fixed<4>, reach), refused(reach));
    // Links of adaptive tables have room for an address in the lowest 8 MiB.
    let reach = 1 << 23;
    assert_eq!(mapped!(Adaptive, reach - CHUNKS * 4096), all);
    assert_eq!(refused!(Adaptive, reach), refused(reach));
}

#[test]
fn a_table_uses_the_nodes_that_it_can_name() {
    // Two chunks of the memory lie below, of which the first has the descriptors.
    let (mapped, result) = mapped!(Fixed<4>, (1 << 29) - 2 * 4096);
    assert!(
        0 < mapped && mapped < 64 && matches!(result, Err(Error::NoMemory { .. })),
        "{mapped}, {result:?}"
    );
}

/// Of memory beyond a link's reach, however much and whatever list it heads, the table takes no notice.
#[test]
fn memory_that_a_link_reaches_is_found_behind_memory_that_it_does_not_reach() {
    const REACH: usize = 1 << 23;
    // The last chunk of 4097 stands alone, so that it is the first that is offered.
    let chunks = if cfg!(miri) { CHUNKS } else { 4097 };
    let base = if cfg!(miri) { REACH - 12 * 4096 } else { 0 };
    let mut memory = vec![Chunk::ZERO; chunks];
    let slab = Slab::<u32, Solo>::new(&mut memory, base).unwrap();
    // Nodes of every kind lie above, some of them in spans with room.
    let above: Vec<_> = [2, 3, 96, 300, 1024, 2048].map(|words| slab.take(words).unwrap()).into();
    assert!(above.iter().all(|node| cfg!(miri) || node.get() >= REACH), "{above:x?}");
    let mut taken = Vec::new();
    for words in [2, 3, 96, 300, 1024] {
        let node = slab.take_within(words, REACH - 1).unwrap();
        assert!(node.get() + words * 4 <= REACH, "{node:x?}");
        taken.push(node);
    }
    // Others have most of what it reaches.
    let others = if cfg!(miri) { 0 } else { 1800 };
    for _ in 0..others {
        slab.take_within(1024, REACH - 1).unwrap();
    }
    let mut table = Local::new(Gpt32::<_, Adaptive>::new(&slab).unwrap(), |_stale| ());
    // Until all is in use that the links reach, and no earlier.
    let mut pages = 0;
    let full = loop {
        // A leaf each.
        let page = Pages::one(VirtAddr::new(pages << 13).vpn(PageSize::K4));
        match table.map(page, Pfn::new(pages), PageSize::K4, EntryLo::IMPLIED) {
            Ok(()) => pages += 1,
            refused => break refused,
        }
    };
    assert!(matches!(full, Err(Error::NoMemory { pending: 0, .. })), "{full:?}");
    let left = std::iter::from_fn(|| slab.take_within(2, REACH - 1)).count();
    assert!(left < 4096 / 8, "{left} nodes of 8 bytes are free, more than a span has");
    table.destroy();
}

/// A storage of which a part ends elsewhere than at 8 MiB: what is below is found all the same.
#[test]
fn memory_below_any_address_is_found() {
    let mut memory = vec![Chunk::ZERO; CHUNKS];
    let slab = Slab::<u32, Solo>::new(&mut memory, 1 << 28).unwrap();
    let last = (1 << 28) + 8 * 4096 - 1;
    for words in [1024, 300, 2] {
        let room = [1024, 300, 2].map(|words| slab.take(words).unwrap());
        let mut below: Vec<_> = std::iter::from_fn(|| slab.take_within(words, last)).collect();
        assert!(
            !below.is_empty() && below.iter().all(|node| node.get() + words * 4 - 1 <= last),
            "{below:x?}"
        );
        below.extend(room);
        for node in below {
            // SAFETY: just taken, and nothing was written to it.
            unsafe { slab.free(node, true) };
        }
    }
    assert_eq!(slab.usage().nodes, 0);
}

/// Where kernels have their memory: in the upper half of the address space.
#[test]
#[cfg(target_pointer_width = "64")]
fn nodes_may_lie_in_the_upper_half_of_the_address_space() {
    fn check<'n, T: Private<'n>>(name: &str, slab: &Slab<'_, u64, Solo>, table: Result<T, Error>) {
        let mut table = Local::new(table.unwrap(), |_stale| ());
        let page = |nth: usize| VirtAddr::new(nth << 13 | nth << 30);
        for nth in 0..64 {
            let pages = Pages::one(page(nth).vpn(PageSize::K4));
            table
                .map(pages, Pfn::new(nth), PageSize::K4, Attr::READ)
                .unwrap_or_else(|e| panic!("{name}: {e}"));
        }
        for nth in 0..64 {
            assert_eq!(table.lookup(page(nth)).map(|leaf| leaf.frame), Some(Pfn::new(nth)), "{name}");
        }
        table.destroy();
        assert_eq!((slab.usage().nodes, slab.held().lost()), (0, 0), "{name}");
    }
    let lowest = 0xffff_8000_0000_0000_usize;
    for base in [lowest, 0xffff_ffff_8000_0000, usize::MAX - (1 << 21) + 1] {
        let mut memory = vec![Chunk::ZERO; 256];
        let slab = Slab::<u64, Solo>::new(&mut memory, base).unwrap();
        macro_rules! kind {
            ($name:ident, $kind:ident, $change:ident) => {
                check(stringify!($name), &slab, kinds::$kind::<Va48, Compact, _>::new(&slab));
            };
        }
        each_own_kind!(kind);
        check("Hr", &slab, Hr::new(&slab));
    }
    // The highest that is not among the addresses of 48 bits, and the lowest.
    for base in [lowest - 4096, 1 << 47] {
        let mut memory = vec![Chunk::ZERO; 4];
        let slab = Slab::<u64, Solo>::new(&mut memory, base).unwrap();
        let refused = Gpt::<Va48, Compact, _, gpt::OneWord>::new(&slab).err();
        assert_eq!(refused, Some(Error::OutOfReach { lowest: NodeAddr::new(base) }));
    }
}

/// What hardware reads of a link is narrower than the word.
#[test]
#[cfg(target_pointer_width = "64")]
fn no_node_lies_beyond_what_hardware_reads_of_a_link() {
    fn check<G: Radix, F: Format<Word = u64>>(bits: u32) {
        let page = Pages::one(VirtAddr::new(0x5000).vpn(PageSize::K4));
        let below = |chunks: usize| {
            let mut memory = vec![Chunk::ZERO; CHUNKS];
            let slab = Slab::<u64, Solo>::new(&mut memory, (1 << bits) - chunks * 4096).unwrap();
            let outcome = Mpt::<G, F, _>::new(&slab).and_then(|table| {
                let mut table = Local::new(table, |_stale| ());
                let outcome = table.map(page, Pfn::new(7), PageSize::K4, F::IMPLIED.union(Attr::READ));
                let found = table.lookup(VirtAddr::new(0x5000)).map(|leaf| leaf.frame);
                assert_eq!(found, outcome.is_ok().then_some(Pfn::new(7)));
                table.destroy();
                outcome
            });
            assert_eq!((slab.usage().nodes, slab.held().lost()), (0, 0));
            outcome
        };
        let levels = G::WIDTHS.len();
        assert_eq!(below(CHUNKS), Ok(()));
        // The first chunk has the descriptors: there is room for the root.
        assert_eq!(below(2), Err(Error::NoMemory { wanted: levels as u32 - 1, pending: 0 }));
        assert_eq!(below(0), Err(Error::OutOfReach { lowest: NodeAddr::new(1 << bits) }));
    }
    check::<Va39, Sv39>(56);
    check::<Va48, X86>(52);
    check::<Va48, Aarch64>(48);
}
