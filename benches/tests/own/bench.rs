use std::collections::BTreeMap;

use own::Own;
use tlbkit_benches::ours::{Make, Ours, Storage};
use tlbkit_benches::{Subject, Subjects};
use tlbkit_pagetable::{Error, Shared};

// A `Table` of your library crate: what it is called, the bits of an address, and how it is made.
struct OwnTable;

impl Make for OwnTable {
    const NAME: &'static str = "own";
    const BITS: u32 = 39;
    type Mode = Shared;
    type Table = Own<'static, 9, Storage<Shared>>;

    fn make(nodes: &'static Storage<Shared>) -> Result<Self::Table, Error> {
        Own::new(nodes)
    }
}

// Anything else, in a struct of the bench: what it does with one page, and with a run.
struct Map(BTreeMap<usize, (usize, bool)>);

impl Subject for Map {
    const NAME: &'static str = "map";
    const BITS: u32 = 39;

    fn new() -> Self {
        Self(BTreeMap::new())
    }
    fn map(&mut self, vpn: usize, pfn: usize) {
        assert!(self.0.insert(vpn, (pfn, true)).is_none());
    }
    fn unmap(&mut self, vpn: usize) {
        self.0.remove(&vpn).expect("a mapped page");
    }
    fn translate(&self, va: usize) -> Option<usize> {
        self.0.get(&(va >> 12)).map(|&(pfn, _)| pfn << 12 | va & 0xfff)
    }
    fn is_writable(&self, vpn: usize) -> bool {
        self.0.get(&vpn).is_some_and(|page| page.1)
    }
    fn protect_range(&mut self, vpn: usize, pages: usize, writable: bool) {
        self.0.range_mut(vpn..vpn + pages).for_each(|(_, page)| page.1 = writable);
    }
    fn destroy(self) {}
}

fn subjects() -> Subjects {
    Subjects::all().with::<Ours<OwnTable>>().with::<Map>()
}

fn main() -> std::process::ExitCode {
    tlbkit_benches::main(subjects())
}
