//! An address space: what may be in it, and the table that says what is.

use tlbkit_addr::{Attr, PageSize, Pages, VirtAddr, Vpn};
use tlbkit_pagetable::{Error, Footprint, Leaf, Pinned, Retired, Table};
use tlbkit_stlb::{Context, Mips32};

use super::structure::{Nodes, Structure};

/// What every page of a program may be: MIPS cannot forbid reading or execution, and kuseg is the user's.
pub const PLAIN: Attr = Attr::READ.union(Attr::EXEC).union(Attr::USER);

/// Pages that are mapped when they are touched.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    pub pages: Pages,
    /// Whether they may be written.
    pub write: bool,
}

/// An address space.
#[derive(Debug)]
pub struct Space<'n, S: Structure> {
    pub(super) table: S::Table<'n>,
    /// What changes of the table leave behind, until it is settled.
    pub(super) batch: Retired<'n>,
    /// By which number the TLB knows it.
    pub(super) context: Context<Mips32>,
    pub(super) number: Option<tlbkit_stlb::AsidTag<Mips32>>,
    regions: heapless::Vec<Region, 8>,
    /// What tells its pages' contents from those of other spaces.
    salt: u32,
}

impl<'n, S: Structure> Space<'n, S> {
    /// Returns an empty space.
    ///
    /// # Errors
    ///
    /// [`Error::NoMemory`].
    pub fn new(nodes: &'n Nodes<S::Window>, salt: u32) -> Result<Self, Error> {
        let table = S::create(nodes)?;
        let batch = table.batch();
        Ok(Self {
            table,
            batch,
            context: Context::default(),
            number: None,
            regions: heapless::Vec::new(),
            salt,
        })
    }

    /// Returns the word that a page begins with when it is mapped on demand.
    pub fn content(&self, page: Vpn) -> u32 {
        page.address(PageSize::K4).get() as u32 + self.salt
    }

    /// Lets pages be mapped on demand. There is room for eight regions.
    pub fn allow(&mut self, region: Region) {
        assert!(self.regions.push(region).is_ok(), "an address space has at most eight regions");
    }

    /// Returns the region of a page.
    pub(super) fn region(&self, page: Vpn) -> Option<Region> {
        self.regions.iter().copied().find(|region| region.pages.contains(page))
    }

    /// Returns what the table says of an address.
    pub fn lookup(&self, at: VirtAddr) -> Option<Leaf> {
        // SAFETY: this CPU is the only one, and reclaims nothing during the call.
        self.table.lookup(unsafe { Pinned::by(self) }, at)
    }

    /// Returns how many first buckets the table has, if it is one that grows.
    pub fn buckets(&self) -> Option<usize> {
        S::buckets(&self.table)
    }

    /// Returns what the table takes of memory.
    pub fn footprint(&self) -> Footprint {
        self.table.footprint()
    }
}

/// Returns the pages from an address on.
pub fn pages(at: u32, count: usize) -> Pages {
    let first = page(at);
    Pages::count(first, count).unwrap_or(Pages::one(first))
}

/// Returns the page of an address.
pub fn page(at: u32) -> Vpn {
    VirtAddr::new(at as usize).vpn(PageSize::K4)
}
