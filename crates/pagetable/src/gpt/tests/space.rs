//! What a tree takes: by the papers' formulas, beside the optimum of all choices, and while pages come and go.

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

/// Single pages at uniform addresses.
fn uniform(pages: usize, seed: u64) -> Vec<usize> {
    let mut random = Random(seed);
    let mut set = std::collections::BTreeSet::new();
    let mut order = Vec::new();
    while order.len() < pages {
        let page = (random.next() >> 12) as usize;
        // No two in a pair: single pages.
        if set.insert(page / 2) {
            order.push(page);
        }
    }
    order
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

/// The fewest bytes of indexing nodes that any choice of node sizes needs for these leaves, which are in order: a
/// dynamic programme over the trie. `cost[w]` is what a node of `2^w` slots takes.
fn optimum(keys: &[usize], cost: &[isize]) -> isize {
    fn best(
        keys: &[usize],
        range: (usize, usize),
        cost: &[isize],
        known: &mut std::collections::HashMap<(usize, usize), isize>,
    ) -> isize {
        let (first, last) = range;
        if last - first < 1 {
            return 0;
        }
        if let Some(&known) = known.get(&range) {
            return known;
        }
        let bit = (keys[first] ^ keys[last]).ilog2();
        let mut least = isize::MAX;
        for width in 1..cost.len().min(bit as usize + 2) {
            let shift = bit + 1 - width as u32;
            let mut sum = cost[width];
            let mut start = first;
            while start <= last {
                let mut end = start;
                while end < last && keys[end + 1] >> shift == keys[start] >> shift {
                    end += 1;
                }
                sum += best(keys, (start, end), cost, known);
                start = end + 1;
            }
            least = least.min(sum);
        }
        known.insert(range, least);
        least
    }
    let mut known = std::collections::HashMap::new();
    best(keys, (0, keys.len() - 1), cost, &mut known)
}

/// Maps pages one by one and returns the footprint and the node sizes.
fn load<P: NodeSize>(pages: &[usize]) -> (crate::Footprint, [usize; MAX_WIDTH + 1]) {
    let mut memory = memory(if cfg!(miri) { 40 } else { 4000 });
    let slab = Slab::<u32, Solo>::new(&mut memory, 0).unwrap();
    let mut table = Local::new(Gpt::<Va64, format::Paper, _, TwoWords, P>::new(&slab).unwrap(), |_| ());
    for (frame, &page) in pages.iter().enumerate() {
        let page = Pages::one(Vpn::new(page));
        table.map(page, Pfn::new(frame), PageSize::K4, Attr::READ).unwrap();
    }
    table.table().check();
    // SAFETY: no CPU writes meanwhile.
    let sizes = table.table().node_sizes(unsafe { Pinned::by(&table) });
    let footprint = table.footprint();
    table.destroy();
    (footprint, sizes)
}

#[test]
fn gpt_g2_takes_48_bytes_a_page_less_32() {
    for pages in if cfg!(miri) { vec![1, 2, 7] } else { vec![1, 2, 64, 1000, 8192] } {
        let (footprint, _) = load::<Fixed<1>>(&uniform(pages, 7));
        assert_eq!(footprint.total(), 48 * pages - 32);
        assert_eq!(footprint.bytes, 32 * pages - 32);
        assert_eq!(footprint.leaf_bytes, 16 * pages);
    }
}

/// Bytes of indexing nodes by width, as the table counts them in the paper's layout.
const PAPER_COST: [isize; 9] = [0, 32, 64, 128, 256, 512, 1024, 2048, 4096];

fn best_of(pages: &[usize]) -> isize {
    let keys: std::collections::BTreeSet<_> = pages.iter().map(|page| page / 2).collect();
    optimum(&keys.into_iter().collect::<Vec<_>>(), &PAPER_COST)
}

#[test]
fn gpt_adaptive_sizes_are_near_the_optimum() {
    if cfg!(miri) {
        return;
    }
    type Load = fn(usize, u64) -> Vec<usize>;
    let dense: Load = |count, seed| (seed as usize * 0x1234_5678..).take(count).collect();
    for (name, make) in [("uniform", uniform as Load), ("file", file as Load), ("dense", dense)] {
        for (count, seed) in [(64, 1), (500, 2), (1024, 3), (8192, 4), (6000, 5)] {
            let pages = make(count, seed);
            let (adaptive, sizes) = load::<Adaptive>(&pages);
            let fixed = [
                load::<Fixed<1>>(&pages).0.total(),
                load::<Fixed<2>>(&pages).0.total(),
                load::<Fixed<4>>(&pages).0.total(),
                load::<Fixed<8>>(&pages).0.total(),
            ];
            let least = best_of(&pages) as usize + adaptive.leaf_bytes;
            assert!(adaptive.total() * 100 <= least * 104, "{name} {count}: {} of {least}", adaptive.total());
            assert!(fixed.iter().all(|&fixed| adaptive.total() <= fixed));
            if name == "file" {
                assert!(sizes.iter().filter(|&&count| count > 0).count() >= 3);
            }
        }
    }
}

/// Maps pages one by one in the 32-bit compact format and returns all bytes that the storage takes.
fn compact_bytes(pages: &[usize]) -> usize {
    let mut memory = memory(2000);
    let slab = Slab::<u32, Solo>::new(&mut memory, 0).unwrap();
    let mut table = Local::new(Gpt::<Va64, format::Compact32, _, OneWord>::new(&slab).unwrap(), |_| ());
    for (frame, &page) in pages.iter().enumerate() {
        table.map(Pages::one(Vpn::new(page)), Pfn::new(frame), PageSize::K4, Attr::READ).unwrap();
    }
    let chunks = slab.usage().chunks;
    table.destroy();
    chunks
}

#[test]
fn gpt_compact_space_of_a_range() {
    let pages = if cfg!(miri) { 64 } else { 16384 };
    let mut memory = memory(100);
    let slab = Slab::<u32, Solo>::new(&mut memory, 0).unwrap();
    let mut table = Local::new(Gpt::<Va64, format::Compact32, _, OneWord>::new(&slab).unwrap(), |_| ());
    let run = Pages::count(Vpn::new(0x1234_5678), pages).unwrap();
    table.map(run, Pfn::new(0), PageSize::K4, Attr::READ).unwrap();
    assert!(cfg!(miri) || slab.usage().chunks <= pages * 88 / 10, "{:?}", slab.usage());
    table.table().check();
    table.unmap(run, Holes::Refuse).unwrap();
    assert_eq!(slab.usage().nodes, 0);
    table.destroy();
}

#[test]
fn gpt_compact_space() {
    if cfg!(miri) {
        return;
    }
    for seed in 1..4 {
        let per_page = |pages: Vec<usize>| compact_bytes(&pages) as f64 / pages.len() as f64;
        let (file, uniform) = (per_page(file(8192, seed)), per_page(uniform(8192, seed)));
        let dense = per_page((0x1234_5678..).take(16384).collect());
        eprintln!("bytes a page: file {file:.2}, uniform {uniform:.2}, dense {dense:.2}");
        assert!(file <= 17.0 && uniform <= 28.0 && dense <= 10.5);
    }
}

#[test]
#[cfg_attr(miri, ignore = "it is about bytes; the histories take the same ways")]
fn gpt_adaptive_stays_below_its_bound_while_it_changes() {
    let count = if cfg!(miri) { 30 } else { 3000 };
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
