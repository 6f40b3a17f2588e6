//! A modelled hardware TLB: which references miss.
//!
//! ```text
//!           ┌─ ways ──────────────┐
//! set 0     │ tag │ tag │ … │ tag │    tag = page number, without its lowest bit if entries map pairs
//! set 1     │ tag │ tag │ … │ tag │    set = tag modulo the number of sets
//! …         └─────────────────────┘
//! ```
//!
//! The default is the paper's machine (Elphinstone, Heiser and Liedtke, section 3.1): the R4700's 48 entries, fully
//! associative, each for an aligned pair of 4 KB pages. `tlbwr` replaces the entry that the Random register names,
//! which counts down with every instruction; uniformly random, from the seed, stands for it. Address spaces and wired
//! entries are not modelled: a trace is one program.

use std::ops::Range;

use anyhow::ensure;
use clap::{Args, ValueEnum};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tlbkit_addr::Vpn;

/// The modelled TLB, as options of a command.
#[derive(Args, Clone, Copy, Debug)]
#[command(next_help_heading = "Modelled TLB")]
pub(crate) struct TlbArgs {
    /// Entries of the TLB
    #[arg(long = "tlb-entries", value_name = "N", default_value_t = 48)]
    pub(crate) entries: usize,
    /// Entries that a page may be in [default: all]
    #[arg(long = "tlb-ways", value_name = "N")]
    pub(crate) ways: Option<usize>,
    /// Which entry of a set makes room
    #[arg(long = "tlb-replacement", value_enum, default_value_t = Replacement::Random)]
    pub(crate) replacement: Replacement,
    /// Pages that an entry maps: an aligned pair, as on MIPS, or one
    #[arg(long = "tlb-pages", value_name = "1|2", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=2))]
    pub(crate) entry_pages: u32,
}

/// Which entry of a full set makes room for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Replacement {
    /// The least recently used.
    Lru,
    /// A random one.
    Random,
    /// The one that was loaded first.
    Fifo,
}

/// A TLB of one address space.
#[derive(Debug)]
pub(crate) struct Tlb {
    /// The sets one after the other; [`EMPTY`] fills what is not in use.
    tags: Vec<usize>,
    /// When each entry was last used (LRU) or loaded.
    stamps: Vec<u64>,
    ways: usize,
    replacement: Replacement,
    /// By how much a page number is shifted to make a tag.
    pair: u32,
    /// The number of references and loads so far.
    now: u64,
    random: ChaCha8Rng,
}

/// No tag: page numbers are shorter than a word.
const EMPTY: usize = usize::MAX;
const FLUSHED: usize = usize::MAX - 1;

impl Tlb {
    /// Returns an empty TLB; `seed` is for random replacement.
    ///
    /// # Errors
    ///
    /// If there are no entries, or they do not make sets of that many ways.
    pub(crate) fn new(args: &TlbArgs, seed: u64) -> anyhow::Result<Self> {
        let TlbArgs { entries, replacement, entry_pages, .. } = *args;
        let ways = args.ways.unwrap_or(entries);
        ensure!(
            (1..=1 << 20).contains(&entries),
            "a TLB cannot have {entries} entries: give --tlb-entries from 1 to 1048576"
        );
        ensure!(
            ways > 0 && entries.is_multiple_of(ways),
            "{entries} entries make no sets of {ways}: give --tlb-ways that divides --tlb-entries"
        );
        Ok(Self {
            tags: vec![EMPTY; entries],
            stamps: vec![0; entries],
            ways,
            replacement,
            pair: entry_pages - 1,
            now: 0,
            random: ChaCha8Rng::seed_from_u64(seed),
        })
    }

    /// Refers to `page` and tells whether an entry maps it; if not, it is the caller's to [`load`](Self::load). Costs a
    /// scan of one set, as does loading.
    pub(crate) fn hits(&mut self, page: Vpn) -> bool {
        self.now += 1;
        let tag = self.tag(page);
        let set = self.set(tag);
        let Some(way) = self.tags[set.clone()].iter().position(|&known| known == tag) else { return false };
        if self.replacement == Replacement::Lru {
            self.stamps[set.start + way] = self.now;
        }
        true
    }

    /// Loads the entry of `page`, which no entry maps.
    pub(crate) fn load(&mut self, page: Vpn) {
        self.now += 1;
        let tag = self.tag(page);
        let set = self.set(tag);
        let free = self.tags[set.clone()].iter().position(|&known| known == EMPTY);
        let victim = free.map(|way| set.start + way).unwrap_or_else(|| match self.replacement {
            Replacement::Random => set.start + self.random.random_range(0..self.ways),
            Replacement::Lru | Replacement::Fifo => {
                let first = set.start;
                set.min_by_key(|&entry| self.stamps[entry]).unwrap_or(first)
            }
        });
        self.tags[victim] = tag;
        self.stamps[victim] = self.now;
    }

    /// Makes every entry match nothing. Which entry a load takes then is up to the replacement, as before: hardware that
    /// chooses at random does not look for entries that match nothing.
    pub(crate) fn flush(&mut self) {
        self.tags.fill(FLUSHED);
    }

    /// Returns the first page of the entries of these pages that were loaded last (LRU: used last), `count` at most; the
    /// latest comes last.
    pub(crate) fn latest(&self, of: impl Fn(Vpn) -> bool, count: usize) -> Vec<Vpn> {
        let entries = self.tags.iter().zip(&self.stamps).filter(|(tag, _)| **tag < FLUSHED);
        let entries = entries.map(|(tag, stamp)| (*stamp, Vpn::new(tag << self.pair)));
        let mut entries: Vec<_> = entries.filter(|(_, page)| of(*page)).collect();
        entries.sort_unstable_by_key(|(stamp, _)| *stamp);
        entries.split_off(entries.len().saturating_sub(count)).into_iter().map(|(_, page)| page).collect()
    }

    fn tag(&self, page: Vpn) -> usize {
        page.get() >> self.pair
    }

    /// Returns the entries that `tag` may be in.
    fn set(&self, tag: usize) -> Range<usize> {
        let sets = self.tags.len() / self.ways;
        let first = if sets == 1 { 0 } else { tag % sets * self.ways };
        first..first + self.ways
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    fn args(entries: usize, ways: Option<usize>, replacement: Replacement, entry_pages: u32) -> TlbArgs {
        TlbArgs { entries, ways, replacement, entry_pages }
    }

    fn misses(tlb: &TlbArgs, pages: &[usize]) -> Vec<bool> {
        let mut tlb = Tlb::new(tlb, 1).unwrap();
        let mut misses = |page| {
            let missing = !tlb.hits(page);
            if missing {
                tlb.load(page);
            }
            missing
        };
        pages.iter().map(|&page| misses(Vpn::new(page))).collect()
    }

    proptest! {
        /// Against queues, the next victim in front.
        #[test]
        fn lru_and_fifo_are_queues(
            pages in prop::collection::vec(0..40usize, 0..400),
            sets in 1..4usize,
            ways in 1..6usize,
            lru: bool,
            pair in 0..2u32,
        ) {
            let mut queues = vec![VecDeque::new(); sets];
            let expected: Vec<_> = pages
                .iter()
                .map(|page| {
                    let tag = page >> pair;
                    let queue = &mut queues[tag % sets];
                    let found = queue.iter().position(|&known| known == tag);
                    if let Some(at) = found && lru {
                        queue.remove(at);
                        queue.push_back(tag);
                    } else if found.is_none() {
                        if queue.len() == ways {
                            queue.pop_front();
                        }
                        queue.push_back(tag);
                    }
                    found.is_none()
                })
                .collect();
            let replacement = if lru { Replacement::Lru } else { Replacement::Fifo };
            let tlb = args(sets * ways, Some(ways), replacement, pair + 1);
            prop_assert_eq!(misses(&tlb, &pages), expected);
        }
    }

    #[test]
    fn random_replacement_misses_as_often_as_it_must() {
        // Uniform references to 96 pages in 48 entries: whatever is replaced, half of them miss.
        let mut random = ChaCha8Rng::seed_from_u64(3);
        let pages: Vec<_> = (0..100_000).map(|_| random.random_range(0..96)).collect();
        let tlb = args(48, None, Replacement::Random, 1);
        let missed = misses(&tlb, &pages).iter().filter(|&&miss| miss).count();
        assert!((49_000..51_000).contains(&missed), "{missed}");
        // A loop over one page too many: LRU misses always, random replacement does not.
        let pages: Vec<_> = (0..49_000).map(|step| step % 49).collect();
        let missed = |replacement| {
            misses(&args(48, None, replacement, 1), &pages).iter().filter(|&&miss| miss).count()
        };
        assert_eq!(missed(Replacement::Lru), 49_000);
        assert!(missed(Replacement::Random) < 10_000, "{}", missed(Replacement::Random));
    }

    #[test]
    fn impossible_shapes_are_refused() {
        for (entries, ways) in [(0, None), (48, Some(0)), (48, Some(36)), (48, Some(96)), (1 << 21, None)] {
            assert!(Tlb::new(&args(entries, ways, Replacement::Lru, 2), 1).is_err(), "{entries} {ways:?}");
        }
    }
}
