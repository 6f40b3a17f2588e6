//! Page sets, the same for every subject and every run.

use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::Subject;

/// `pages` neighbouring pages, somewhere in the lower half.
pub fn dense(pages: usize) -> Vec<usize> {
    (0..pages).map(|page| 0x1_2345_6000 + page).collect()
}

/// `pages` single pages anywhere in the lower half of a 48-bit space.
pub fn sparse(pages: usize) -> Vec<usize> {
    let mut random = ChaCha8Rng::seed_from_u64(1999);
    let mut set = std::collections::BTreeSet::new();
    while set.len() < pages {
        set.insert(random.random_range(1..1usize << 35));
    }
    set.into_iter().collect()
}

/// `pages` pages in runs as long as files are: half of them of a page, a quarter of two, and so on, anywhere in the
/// lower half of a 48-bit space.
pub fn file(pages: usize) -> Vec<usize> {
    let mut random = ChaCha8Rng::seed_from_u64(1993);
    let mut set = std::collections::BTreeSet::new();
    while set.len() < pages {
        let first = random.random_range(1..1usize << 34);
        let run = 1usize << random.random::<u32>().leading_zeros().min(8);
        set.extend(first..first + run.min(pages - set.len()));
    }
    set.into_iter().collect()
}

/// The pages that a real program touched, as `tlblab pages` prints them of a shipped trace.
pub fn captured(json: &str) -> Vec<usize> {
    let numbers = json.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok());
    let numbers: Vec<usize> = numbers.collect();
    numbers.as_chunks().0.iter().flat_map(|&[first, len]| first..first + len).collect()
}

/// The compiler's, the database's and the interpreter's.
pub const CC1: &str = include_str!("../pages/cc1.json");
pub const SQLITE: &str = include_str!("../pages/sqlite.json");
pub const PERL: &str = include_str!("../pages/perl.json");

/// The pages in an order that no prefetcher follows.
pub fn shuffled(mut pages: Vec<usize>) -> Vec<usize> {
    pages.shuffle(&mut ChaCha8Rng::seed_from_u64(64));
    pages
}

/// Maps the pages so that each one's frame number is the next one's page number, in a shuffled cycle: a chain of
/// translations each of which needs the one before.
pub fn chain<S: Subject>(pages: &[usize]) -> (S, usize) {
    let order = shuffled(pages.to_vec());
    let mut table = S::new();
    for (at, &vpn) in order.iter().enumerate() {
        table.map(vpn, order[(at + 1) % order.len()]);
    }
    (table, order[0])
}

/// Follows a chain of `steps` translations.
pub fn follow<S: Subject>(table: &S, start: usize, steps: usize) -> usize {
    let mut va = start << 12;
    for _ in 0..steps {
        va = table.translate(va).unwrap_or(0);
    }
    va
}
