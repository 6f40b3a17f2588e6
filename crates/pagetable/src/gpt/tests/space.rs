//! What a tree takes while pages come and go. What it takes of each load is measured by the lab (`tools/lab/tests/space.rs`).

use super::*;

/// Pseudo-random numbers (xorshift64*), so that a seed gives the same load everywhere.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number between 0 and 1, both excluded.
    fn unit(&mut self) -> f64 {
        ((self.next() >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    }

    /// A normally distributed number (Box and Muller).
    fn normal(&mut self) -> f64 {
        (-2.0 * self.unit().ln()).sqrt() * (std::f64::consts::TAU * self.unit()).cos()
    }
}

/// Objects at uniform addresses, sizes lognormal with median 3 KB and sigma 2.
pub(super) fn file(pages: usize, seed: u64) -> Vec<usize> {
    let mut random = Random(seed);
    let mut set = std::collections::BTreeSet::new();
    let mut order = Vec::new();
    while order.len() < pages {
        let first = (random.next() >> 12) as usize;
        let bytes = (3072f64.ln() + 2.0 * random.normal()).exp();
        for page in first..first + (bytes / 4096.0).ceil().max(1.0) as usize {
            if order.len() < pages && set.insert(page) {
                order.push(page);
            }
        }
    }
    order
}

#[test]
#[cfg_attr(miri, ignore = "it is about bytes; the histories take the same ways")]
fn gpt_adaptive_stays_below_its_bound_while_it_changes() {
    let count = 3000;
    let mut memory = memory(1000);
    let slab = Slab::<u32, Solo>::new(&mut memory, 0).unwrap();
    let mut table = Local::new(PaperGpt::<_, Adaptive>::new(&slab).unwrap(), |_| ());
    let mut random = Random(11);
    let mut mapped: Vec<usize> = Vec::new();
    let pages = file(count, 9);
    // Up, then a long random mixture, then down.
    for step in 0..4 * count {
        let map = step < count || (step < 3 * count && random.next().is_multiple_of(2));
        if map {
            let page = pages[(random.next() as usize) % pages.len()];
            if table.map(Pages::one(Vpn::new(page)), Pfn::new(1), PageSize::K4, Attr::READ).is_ok() {
                mapped.push(page);
            }
        } else if !mapped.is_empty() {
            let page = mapped.swap_remove(random.next() as usize % mapped.len());
            table.unmap(Pages::one(Vpn::new(page)), Holes::Refuse).unwrap();
        }
        let now = table.footprint();
        assert!(now.bytes <= 64 * now.leaves.saturating_sub(1), "{now:?}");
    }
    table.table().check();
    table.destroy();
    assert_eq!(slab.usage().nodes, 0);
}
