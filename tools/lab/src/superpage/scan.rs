//! APPROX-ONLINE by definition: the TLB is scanned on every miss and counts live in a hash map (section 6.1's "simple
//! way"). Slow, and the measure of the bookkeeping in `tlbkit-superpage`.

use std::collections::HashMap;

use tlbkit_addr::{PageSize, Pages, Vpn};
use tlbkit_superpage::{Action, Miss, Policy, Refusal, Setup, Superpage, Tlb};

#[derive(Debug)]
pub(super) struct ByScan {
    setup: Setup,
    counts: HashMap<Superpage, u64>,
    tlbs: HashMap<Tlb, Vec<Superpage>>,
    map: super::tlb::Map,
}

impl ByScan {
    pub(super) fn new(setup: &Setup) -> Self {
        Self { setup: *setup, counts: HashMap::new(), tlbs: HashMap::new(), map: Default::default() }
    }

    fn around(&self, page: Vpn, size: PageSize) -> Superpage {
        Superpage { first: Vpn::new(page.get() & !(pages(size) - 1)), size }
    }

    fn mapping(&mut self, page: Vpn) -> Superpage {
        let shift = self.map.shift(page.get()).max(self.unit().trailing_zeros());
        let size = PageSize::from_shift(shift + PageSize::K4.shift()).unwrap_or(PageSize::K4);
        self.around(page, size)
    }

    fn unit(&self) -> usize {
        self.setup.page_sizes.size(0).map_or(1, pages)
    }

    fn threshold(&self, size: PageSize) -> u64 {
        let r = u64::from(self.setup.costs.r_per_kb) * size.bytes() as u64;
        (r * u64::from(self.setup.costs.prefetch)).div_ceil(1024 * 1000)
    }

    fn larger(&self, size: PageSize) -> Vec<PageSize> {
        let page_sizes = self.setup.page_sizes;
        (0..page_sizes.levels()).filter_map(|level| page_sizes.size(level)).filter(|&s| s > size).collect()
    }
}

fn pages(size: PageSize) -> usize {
    size.pages(PageSize::K4).unwrap_or(1)
}

fn holds(whole: Superpage, part: Superpage) -> bool {
    part.first.get() & !(pages(whole.size) - 1) == whole.first.get()
}

impl Policy for ByScan {
    fn on_miss(&mut self, miss: Miss) -> Option<Action> {
        let own = self.mapping(miss.page);
        let resident = self.tlbs.remove(&miss.tlb).unwrap_or_default();
        let mut ready = None;
        for size in self.larger(own.size) {
            let superpage = self.around(miss.page, size);
            if resident.iter().any(|&entry| holds(superpage, entry)) {
                let count = self.counts.entry(superpage).or_default();
                *count += 1;
                if *count >= self.threshold(size) && ready.is_none() {
                    ready = Some(Action::Promote { range: superpage, copy: true });
                }
            }
        }
        self.tlbs.insert(miss.tlb, resident);
        self.tlbs.entry(miss.tlb).or_default().push(own);
        if let Some(evicted) = miss.evicted {
            self.evicted(miss.tlb, evicted);
        }
        ready
    }

    fn promoted(&mut self, range: Superpage) {
        for entries in self.tlbs.values_mut() {
            let before = entries.len();
            entries.retain(|&entry| !holds(range, entry));
            if entries.len() < before {
                entries.push(range);
            }
        }
        let less = self.threshold(range.size);
        for size in self.larger(range.size) {
            let superpage = self.around(range.first, size);
            if let Some(count) = self.counts.get_mut(&superpage) {
                *count = count.saturating_sub(less);
            }
        }
        self.counts.retain(|&superpage, _| superpage.size > range.size || !holds(range, superpage));
        self.map.promote(super::tlb::Entry::around(range.first.get(), pages(range.size).trailing_zeros()));
    }

    fn refused(&mut self, _: Superpage, _: Refusal) {}

    fn demote(&mut self, _: Vpn) -> Option<Superpage> {
        None
    }

    fn evicted(&mut self, tlb: Tlb, page: Vpn) {
        let entry = self.mapping(page);
        self.tlbs.entry(tlb).or_default().retain(|&e| e != entry);
    }

    fn flushed(&mut self, tlb: Tlb) {
        self.tlbs.remove(&tlb);
    }

    fn unmapped(&mut self, _: Pages) {}
}
