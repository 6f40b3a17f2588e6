//! Ranges that no storage can map are refused soon: the dry run costs no walk for each node that is missing. A test that fails here
//! runs for minutes or hours.
#![cfg(target_pointer_width = "64")]

use crate::common::kinds;
use tlbkit_addr::{Attr, Flush, PageSize, Pages, Pfn, VirtAddr, Vpn};
use tlbkit_pagetable::format::Compact;
use tlbkit_pagetable::geometry::{Va48, Va57, Va64};
use tlbkit_pagetable::mpt::Mpt;
use tlbkit_pagetable::nodes::{Chunk, Slab};
use tlbkit_pagetable::{Error, Local, Private, Solo, cpt, hpt};

const K4: PageSize = PageSize::K4;

/// Maps the lower half of a space, in which one page is mapped above the range, then unmaps it again as far as it is mapped.
fn refused<'n, T: Private<'n>>(table: T, name: &str) {
    let half = table.space().halves()[0].unwrap();
    let lone = half.last();
    let most = Pages::new(half.first(), Vpn::new(lone.get() - 1)).unwrap();
    let mut table = Local::new(table, |_: &Flush| ());
    table.map(Pages::one(lone), Pfn::new(7), K4, Attr::READ).unwrap();
    let before = table.footprint();
    for pages in [most, Pages::count(Vpn::new(1), most.len() / 3).unwrap()] {
        let done = table.map(pages, Pfn::new(0), K4, Attr::READ);
        assert!(matches!(done, Err(Error::NoMemory { .. })), "{name}: {done:?}");
        assert_eq!(table.footprint(), before, "{name}");
    }
    let done = table.map(half, Pfn::new(0), K4, Attr::READ);
    assert!(matches!(done, Err(Error::NoMemory { .. } | Error::Occupied { .. })), "{name}: {done:?}");
    assert_eq!(table.lookup(VirtAddr::new(0)), None, "{name}");
    table.destroy();
}

#[test]
fn a_range_of_half_the_space_is_refused() {
    let mut memory = vec![Chunk::ZERO; if cfg!(miri) { 24 } else { 256 }];
    let slab = Slab::<u64, Solo>::new(&mut memory, 0).unwrap();
    refused(Mpt::<Va48, Compact, _>::new(&slab).unwrap(), "MPT, 48 bits");
    refused(Mpt::<Va57, Compact, _>::new(&slab).unwrap(), "MPT, 57 bits");
    macro_rules! kind {
        ($name:ident, $kind:ident, $change:ident) => {
            refused(kinds::$kind::<Va64, Compact, _>::new(&slab).unwrap(), stringify!($name));
        };
    }
    each_own_kind!(kind);
    refused(hpt::Hr::new(&slab).unwrap(), "HR");
    refused(cpt::Cpt8::new(&slab).unwrap(), "CPT8");
    assert_eq!(slab.usage().nodes, 0);
}
