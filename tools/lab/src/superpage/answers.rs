//! What the command prints: a row for each policy, and the answers to other questions about the same run.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tlbkit_superpage::Setup;

use super::footprint::Footprint;
use super::offline::{self, Outcome};
use super::policies::Named;
use super::simulation::{Simulation, Yardstick};
use super::{Lab, MISS, tlb};

/// One policy on one trace.
#[derive(Debug, Serialize, Deserialize)]
pub struct Row {
    /// The trace's file name.
    pub trace: String,
    /// The policy.
    pub policy: String,
    /// Instructions of the program.
    pub instructions: u64,
    /// TLB misses.
    pub tlb_misses: u64,
    /// Promotions.
    pub promotions: u64,
    /// Kilobytes that promotions copied.
    pub kb_copied: u64,
    /// Cycles of the miss handler.
    pub handler_cycles: u64,
    /// Cycles of copying.
    pub copy_cycles: u64,
    /// Cycles of bookkeeping.
    pub book_cycles: u64,
    /// Cycles of all three for each instruction.
    pub tlbmcpi: f64,
    /// Memory beyond that of pages of 4 KB, in percent of it.
    pub memory_overhead_pct: f64,
    /// How many pages of each size are mapped at the end, the smallest first.
    pub page_sizes: Vec<u64>,
}

/// What a run was asked for.
pub(super) enum Answer {
    Policies(Vec<Row>),
    Thresholds(Vec<Share>),
    EndToEnd(Vec<EndToEnd>),
    Speed(Vec<Speed>),
    Overlap(Vec<Overlap>),
}

#[derive(Serialize)]
pub(super) struct EndToEnd {
    trace: String,
    policy: String,
    cycles: u64,
    improvement_pct: f64,
}

#[derive(Serialize)]
pub(super) struct Share {
    trace: String,
    charges: &'static str,
    superpages: usize,
    p50_of_r: f64,
    p90_of_r: f64,
    p99_of_r: f64,
}

/// Base pages that superpages map at the end, those of OFFLINE, and those of both.
#[derive(Serialize)]
pub(super) struct Overlap {
    trace: String,
    policy: String,
    offline: &'static str,
    pages: u64,
    offline_pages: u64,
    both: u64,
    of_offline_pct: f64,
    of_policy_pct: f64,
}

#[derive(Serialize)]
pub(super) struct Speed {
    trace: String,
    policy: String,
    seconds: f64,
    times_bare_lru: f64,
}

pub(super) fn row(
    trace: &str,
    instructions: u64,
    footprint: &Footprint,
    simulation: &Simulation<'_>,
    r_per_kb: u32,
) -> Row {
    let (page_sizes, taken) = simulation.sizes(footprint);
    let touched = footprint.pages();
    let handler_cycles = simulation.misses * MISS;
    let book_cycles = (simulation.charged as f64 * simulation.book_per_miss).round() as u64;
    let copy_cycles = simulation.kb_copied * u64::from(r_per_kb) * MISS;
    Row {
        trace: trace.into(),
        policy: simulation.name.clone(),
        instructions,
        tlb_misses: simulation.misses,
        promotions: simulation.promotions,
        kb_copied: simulation.kb_copied,
        handler_cycles,
        copy_cycles,
        book_cycles,
        tlbmcpi: (handler_cycles + copy_cycles + book_cycles) as f64 / instructions.max(1) as f64,
        memory_overhead_pct: 100.0 * (taken as f64 / touched.max(1) as f64 - 1.0),
        page_sizes,
    }
}

/// Table 5: instructions and what the policy costs, beside pages of 4 KB.
pub(super) fn end_to_end(rows: &[Row]) -> Vec<EndToEnd> {
    let cycles = |row: &Row| row.instructions + row.handler_cycles + row.copy_cycles + row.book_cycles;
    let base = rows.iter().find(|row| row.policy == "FIXED-4K").map_or(0, cycles);
    let improvement = |row: &Row| EndToEnd {
        trace: row.trace.clone(),
        policy: row.policy.clone(),
        cycles: cycles(row),
        improvement_pct: 100.0 * (1.0 - cycles(row) as f64 / base as f64),
    };
    rows.iter().map(improvement).collect()
}

impl Lab<'_> {
    /// Section 7.2: how the charges of what OFFLINE leaves unpromoted are distributed.
    pub(super) fn shares(&self, found: &Outcome, setup: &Setup) -> Vec<Share> {
        let share = |charges, of: &dyn Fn(&(offline::Node, u64, u64)) -> u64| {
            let mut shares: Vec<f64> = found
                .left
                .iter()
                .map(|left| {
                    let kb = setup.page_sizes.size(left.0.1).map_or(1, |size| size.bytes() / 1024);
                    of(left) as f64 / (kb as f64 * f64::from(setup.costs.r_per_kb))
                })
                .collect();
            shares.sort_by(f64::total_cmp);
            let at = |percent: usize| {
                shares.get((shares.len() * percent).div_ceil(100).saturating_sub(1)).copied().unwrap_or(0.0)
            };
            Share {
                trace: self.name.clone(),
                charges,
                superpages: shares.len(),
                p50_of_r: at(50),
                p90_of_r: at(90),
                p99_of_r: at(99),
            }
        };
        vec![share("prefetch", &|left| left.1), share("capacity", &|left| left.2)]
    }

    /// Whether policies promote where OFFLINE does.
    pub(super) fn overlaps(&self, reserving: Option<&tlb::Map>) -> Vec<Overlap> {
        let offline = self.simulations.iter().find(|(named, _)| *named == Named::Offline);
        let copying = offline.map(|(_, offline)| ("copying", &offline.map));
        let pages = |map: &tlb::Map| map.superpages().map(|(_, shift)| 1u64 << shift).sum::<u64>();
        let mut rows = Vec::new();
        for (offline, map) in copying.into_iter().chain(reserving.map(|map| ("reserving", map))) {
            let offline_pages = pages(map);
            for (named, simulation) in &self.simulations {
                if *named == Named::Offline || matches!(named, Named::Fixed(_)) {
                    continue;
                }
                let (pages, both) = (pages(&simulation.map), simulation.map.in_common(map));
                let percent = |of: u64| 100.0 * both as f64 / of.max(1) as f64;
                rows.push(Overlap {
                    trace: self.name.clone(),
                    policy: simulation.name.clone(),
                    offline,
                    pages,
                    offline_pages,
                    both,
                    of_offline_pct: percent(offline_pages),
                    of_policy_pct: percent(pages),
                });
            }
        }
        rows
    }

    /// How long each simulation took, beside a TLB that does nothing else.
    pub(super) fn speeds(&self, yardstick: &Yardstick) -> Vec<Speed> {
        let bare = yardstick.time.as_secs_f64();
        let speed = |policy: String, time: Duration| Speed {
            trace: self.name.clone(),
            policy,
            seconds: time.as_secs_f64(),
            times_bare_lru: time.as_secs_f64() / bare.max(1e-9),
        };
        let mut rows = vec![speed(format!("bare LRU ({} misses)", yardstick.misses()), yardstick.time)];
        let simulated = self.simulations.iter().filter(|(named, _)| *named != Named::Offline);
        rows.extend(simulated.map(|(_, simulation)| speed(simulation.name.clone(), simulation.time)));
        rows
    }
}
