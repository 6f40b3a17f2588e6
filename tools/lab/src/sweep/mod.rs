//! `tlblab sweep`: software TLB caches of every size and associativity in front of every page table, on a real trace.
//!
//! The misses of the modelled TLB go to the cache of `tlbkit-stlb` first and on to the table if it does not know. Costs
//! are loads: a tag for each way that is looked at and a word for the pair of entries, or the walk's own, counted in
//! the table's storage. Names are the paper's (Elphinstone, Heiser and Liedtke, section 3.2): `S8k/G16` is 8 KB of
//! 16-byte entries, a tag and two entries each, in front of G16.

use anyhow::Context;
use clap::Args;
use serde::Serialize;
use tlbkit_addr::{Asid, PageSize, Vpn};
use tlbkit_stlb::{AsidTag, Assoc, Cache, CacheMemory, EntryLayout, Victim};

use crate::rows;
use crate::tables::{self, Walks};
use crate::tlb::TlbArgs;
use crate::trace::Input;

/// Put software TLB caches of every size and associativity in front of every page table
#[derive(Args, Debug)]
pub(crate) struct Sweep {
    /// Replay a trace: a file, or `-` for standard input [default: the shipped cc1.tlbt]
    #[arg(long, value_name = "FILE")]
    trace: Option<Input>,
    /// Seed of everything random
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print one JSON array
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    tlb: TlbArgs,
}

/// One cache in front of one table.
#[derive(Debug, Serialize)]
struct Row {
    name: String,
    bytes: usize,
    organization: &'static str,
    refills: u64,
    hit_rate: f64,
    refs_per_refill_mean: f64,
    /// Without the cache.
    refs_per_walk_mean: f64,
}

/// A 64-bit tag and the two 32-bit entries of a pair of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pairs;

impl EntryLayout for Pairs {
    type Tag = u64;
    type Data = [u32; 2];
    type Count = ();
    const BASE: PageSize = PageSize::K4;
    const UNIT: PageSize = match PageSize::from_shift(13) {
        Some(size) => size,
        None => PageSize::K4,
    };
    const ASID_BITS: u32 = 8;
}

/// What a cache did with the refills, whatever the table behind it.
struct Served {
    kilobytes: usize,
    organization: &'static str,
    /// For each refill the tags that were compared, and whether one matched.
    refills: Vec<(u8, bool)>,
}

impl Sweep {
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let Walks { pages, refills, tables } = tables::walks(self.trace.as_ref(), &self.tlb, self.seed)?;
        let missed: Vec<Vpn> = refills.iter().map(|&place| pages[place as usize]).collect();
        let served = sweep(&missed)?;
        let mut rows = Vec::new();
        for (table, walks) in &tables {
            let mean = |sum: u64| sum as f64 / walks.len() as f64;
            for served in &served {
                let hits = served.refills.iter().filter(|(_, hit)| *hit).count() as u64;
                let cost = served
                    .refills
                    .iter()
                    .zip(walks)
                    .map(|(&(tags, hit), &walk)| u64::from(tags) + if hit { 1 } else { u64::from(walk) });
                rows.push(Row {
                    name: format!("S{}k/{table}", served.kilobytes),
                    bytes: served.kilobytes << 10,
                    organization: served.organization,
                    refills: walks.len() as u64,
                    hit_rate: mean(hits),
                    refs_per_refill_mean: mean(cost.sum()),
                    refs_per_walk_mean: mean(walks.iter().map(|&walk| u64::from(walk)).sum()),
                });
            }
        }
        rows::print(self.json, &rows)
    }
}

/// Runs the refills through every cache.
fn sweep(missed: &[Vpn]) -> anyhow::Result<Vec<Served>> {
    let mut memory = Box::new(CacheMemory::<{ 512 << 10 }>::new());
    let mut all = Vec::new();
    // A kilobyte has 64 entries.
    macro_rules! size {
        ($kilobytes:literal) => {{
            const SLOTS: usize = $kilobytes * 64;
            let bytes = memory.bytes();
            all.push(replay($kilobytes, "direct", 1, &mut Assoc::<Pairs, SLOTS, 1>::new(bytes)?, missed)?);
            all.push(replay(
                $kilobytes,
                "2-way",
                2,
                &mut Assoc::<Pairs, { SLOTS / 2 }, 2>::new(bytes)?,
                missed,
            )?);
            all.push(replay(
                $kilobytes,
                "4-way",
                4,
                &mut Assoc::<Pairs, { SLOTS / 4 }, 4>::new(bytes)?,
                missed,
            )?);
            all.push(replay($kilobytes, "victim", 9, &mut Victim::<Pairs, SLOTS, 8>::new(bytes)?, missed)?);
        }};
    }
    size!(2);
    size!(8);
    size!(32);
    size!(128);
    size!(512);
    Ok(all)
}

/// Runs the refills through one cache in which a miss looks at `tags` tags.
fn replay(
    kilobytes: usize,
    organization: &'static str,
    tags: u8,
    cache: &mut impl Cache<Pairs>,
    missed: &[Vpn],
) -> anyhow::Result<Served> {
    // A trace is one program: one address space.
    let space = Asid::new(1, Pairs::ASID_BITS).context("an ASID")?;
    let space = AsidTag::new(space)?;
    let refills = missed.iter().map(|page| {
        let at = page.address(PageSize::K4);
        match cache.find(at, space) {
            Some(found) => (found.probes as u8, true),
            None => {
                cache.fill(at, space, [0; 2]);
                (tags, false)
            }
        }
    });
    Ok(Served { kilobytes, organization, refills: refills.collect() })
}
