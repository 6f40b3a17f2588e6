//! What the tests of several writers share.

use tlbkit_addr::{Attr, PageSize, Pages, Pfn, VirtAddr, Vpn};
use tlbkit_pagetable::{Error, Retired, Table, Writer};

pub(crate) const RIGHTS: Attr = Attr::READ.union(Attr::WRITE);
/// The pages that a last-level node of [`table!`] covers.
pub(crate) const NODE: usize = 1024;

pub(crate) fn pages(first: usize, count: usize) -> Pages {
    Pages::count(Vpn::new(first), count).unwrap()
}

pub(crate) fn page(page: usize) -> Pages {
    pages(page, 1)
}

pub(crate) fn at(page: usize) -> VirtAddr {
    Vpn::new(page).address(PageSize::K4)
}

/// Becomes the writer of a range, or fails at once.
pub(crate) fn over<'t, 'n, T: Table<'n>>(table: &'t T, pages: Pages) -> Result<Writer<'t, 'n, T>, Error> {
    Writer::over(table, pages, &mut || false)
}

pub(crate) fn complete(retired: Retired<'_>) {
    // SAFETY: no CPU walks the table.
    unsafe { retired.reclaim() };
}

pub(crate) fn map<'n>(table: &impl Table<'n>, pages: Pages) {
    let mut writer = Writer::new(table).unwrap();
    writer.map(pages, Pfn::new(pages.first().get() + 1), PageSize::K4, RIGHTS).unwrap();
    complete(writer.finish());
}

/// Makes a table of two levels of ten bits, which may have several writers.
macro_rules! table {
    ($table:ident, $slab:ident) => {
        let mut memory = vec![tlbkit_pagetable::nodes::Chunk::ZERO; 512];
        let $slab =
            tlbkit_pagetable::nodes::Slab::<u32, tlbkit_pagetable::Shared>::new(&mut memory, 0).unwrap();
        let mut locks = tlbkit_pagetable::NodeLocks::new();
        let $table = tlbkit_pagetable::mpt::Mpt::<
            tlbkit_pagetable::geometry::Va32,
            tlbkit_pagetable::format::Compact32,
            _,
        >::new(&$slab)
        .unwrap()
        .with_locks(&mut locks);
    };
}
pub(crate) use table;
