//! A machine that runs a program: its TLB, and the refills that it asks its page table for.
//!
//! Where the page table is in physical memory, the TLB and the references decide what misses, and every structure
//! answers the same refills. A linear table is in virtual memory: its own pages take entries of the same TLB, so its
//! machine misses more often, and each refill may miss in turn on the page that holds the PTE, on the page that holds
//! that page's PTE, and so on up to the root.

use tlbkit_addr::Vpn;

use crate::tlb::Tlb;

/// Returns the pages of a linear table on the way to the PTE of a page, the one that holds it first.
pub(super) type Way = fn(Vpn) -> Vec<Vpn>;

/// A miss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refill {
    /// The page's place in the order of first references.
    pub(crate) place: u32,
    /// How many pages of a linear table missed, too.
    pub(crate) nested: u8,
    /// How many runs of the program's references come before it, if these are kept.
    pub(crate) run: u32,
}

/// A TLB and what missed in it.
#[derive(Debug)]
pub(super) struct Machine {
    tlb: Tlb,
    linear: Option<Way>,
    /// The ways to the PTEs of the pages so far.
    ways: Vec<Vec<Vpn>>,
    /// Every miss, in order.
    ///
    /// This grows with the trace, by twelve bytes a refill: every structure answers the same refills one after the
    /// other, and a trace from standard input cannot be read twice.
    pub(super) refills: Vec<Refill>,
}

impl Machine {
    /// Returns a machine with an empty TLB, its page table linear or in physical memory.
    pub(super) fn new(tlb: Tlb, linear: Option<Way>) -> Self {
        Self { tlb, linear, ways: Vec::new(), refills: Vec::new() }
    }

    /// Refers to `page`, whose place in the order of first references is `place`, after so many runs.
    pub(super) fn refer(&mut self, page: Vpn, place: u32, run: u32) {
        if self.tlb.hits(page) {
            return;
        }
        let mut nested = 0;
        if let Some(way) = self.linear {
            if self.ways.len() <= place as usize {
                self.ways.resize(place as usize + 1, Vec::new());
            }
            let way_there = &mut self.ways[place as usize];
            if way_there.is_empty() {
                *way_there = way(page);
            }
            // Up until one is there; then each handler returns to the one below, which loads its entry.
            nested = way_there.iter().take_while(|&&page| !self.tlb.hits(page)).count();
            way_there[..nested].iter().rev().for_each(|&page| self.tlb.load(page));
        }
        self.tlb.load(page);
        // A way has one page a level at most.
        self.refills.push(Refill { place, nested: nested as u8, run });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tlb::{Replacement, TlbArgs};

    /// Two levels: page 1000 + n / 10 holds the PTE of page n, page 2000 those of all these.
    fn way(page: Vpn) -> Vec<Vpn> {
        vec![Vpn::new(1000 + page.get() / 10), Vpn::new(2000)]
    }

    fn refills(entries: usize, linear: Option<Way>, pages: &[u32]) -> Vec<(u32, u8)> {
        let args = TlbArgs { entries, ways: None, replacement: Replacement::Lru, entry_pages: 1 };
        let mut machine = Machine::new(Tlb::new(&args, 1).unwrap(), linear);
        pages.iter().for_each(|&page| machine.refer(Vpn::new(page as usize), page, 0));
        machine.refills.iter().map(|refill| (refill.place, refill.nested)).collect()
    }

    #[test]
    fn a_linear_tables_pages_compete() {
        let pages = [1, 2, 1, 11, 1, 21, 2];
        assert_eq!(refills(4, None, &pages), [(1, 0), (2, 0), (11, 0), (21, 0)]);
        // In four entries: 1 brings 2000 and 1000; 2 finds 1000; 11 wants 1001, finds 2000 and takes the places of
        // 1000 and 2; 1 is there; 21 wants 1002 and takes those of 1001 and 11; 2 has lost both 1000 and itself.
        assert_eq!(refills(4, Some(way), &pages), [(1, 2), (2, 0), (11, 1), (21, 1), (2, 1)]);
        // With room for all, each page of the table misses once.
        assert_eq!(refills(64, Some(way), &pages), [(1, 2), (2, 0), (11, 1), (21, 1)]);
    }
}
