//! Section 5.5: when a linear table beats a multi-level one.

use anyhow::Context;
use tlbkit_names::{LPT, MPT};
use tlblab::tables::TablesArgs;

use crate::chart::{Chart, Series};
use crate::figure::{Figure, Table, Verdict, cell};
use crate::lab::{Lab, TRACES};
use crate::printed::Printed;

use crate::rows::mean;

use super::handlers::on;
use super::{PAPER, Traces};

/// Returns what section 5.5 asks.
///
/// # Errors
///
/// If the lab fails.
pub(super) fn against_levels(lab: &Lab, traces: &Traces, printed: &Printed) -> anyhow::Result<Figure> {
    let upper = printed.at(&["5.5", "cycles of the five upper levels"])?;
    let cheap = printed.at(&["5.5", "least cycles of a secondary miss"])?;
    let dear = printed.at(&["5.5", "most cycles of a secondary miss"])?;
    let nested = 0.5 * (cheap + dear);
    let entries: &[u32] = if lab.quick { &[16, 64] } else { &[8, 16, 32, 48, 64, 96, 128] };
    let about = format!(
        "Each point is a program on a TLB of so many pairs, {entries:?}. A hit is a refill whose page of the linear table was \
         in the TLB; cycles are the paper's: {} for the upper levels of MPT, {} for each nested miss, the middle of what it \
         prints. Then what both handlers take on the R4700's caches, a program's first 10 million instructions.",
        cell(upper),
        cell(nested)
    );
    let title = "The hit rate on the page table from which LPT beats MPT";
    let mut figure = Figure::new(PAPER, "Section 5.5", title, &about);
    let mut series = Vec::new();
    let (mut won_from, mut lost_to) = (100.0f64, 0.0f64);
    let said = printed.at(&["5.5", "hit rate % at which LPT beats MPT"])?;
    let (low, high) = (100.0 * (1.0 - upper / cheap), 100.0 * (1.0 - upper / dear));
    // What the paper prints is this far from the least that its cycles give.
    let spread = said - low;
    let (mut as_said, mut near, mut all) = (0, 0, 0);
    for (colour, (name, _)) in TRACES.iter().enumerate() {
        let mut points = Vec::new();
        for entries in entries {
            let line = format!("tables MPT LPT {} --tlb-entries {entries}", lab.replay(name));
            let rows = lab.rows::<TablesArgs>(&line)?;
            let (mpt, lpt) = (rows.of(MPT)?, rows.of(LPT)?);
            let misses = lpt.nested_misses_mean.context("a linear table without nested misses")?;
            // Misses that cascade are counted with those that began them: few, so this is close.
            let hits = 100.0 * (1.0 - misses).max(0.0);
            // The competition for the TLB causes refills that the MPT does not have.
            let more = lpt.refills as f64 / mpt.refills as f64;
            let saved = upper - more * misses * nested;
            points.push((hits, saved));
            all += 1;
            let is_near = (hits - said).abs() <= spread;
            near += usize::from(is_near);
            as_said += usize::from(!is_near && (hits > said) == (saved > 0.0));
            if saved > 0.0 {
                won_from = won_from.min(hits);
            } else {
                lost_to = lost_to.max(hits);
            }
            figure = figure.by(rows.command);
        }
        series.push(Series::ours(*name, colour, points).scattered());
    }
    series.push(Series::printed("paper: about 80 %", 7, vec![(said, 0.0)]));
    let chart = Chart::curves(
        "LPT against MPT",
        "hits on the page table (%)",
        "cycles saved a refill",
        (false, false),
        series,
    );
    let r4700 = &traces.cycles[0].1;
    let cycles = |name: &str| r4700.all(name, |row| on(row, |cycles| cycles.cycles_mean));
    let (mpt, lpt) = (cycles(MPT)?, cycles(LPT)?);
    // With the refills that its own pages cause.
    let elapsed = |name: &str| r4700.all(name, |row| on(row, |cycles| cycles.elapsed_cycles as f64));
    let refills = |name: &str| r4700.all(name, |row| row.refills as f64);
    let wins = elapsed(MPT)?.iter().zip(elapsed(LPT)?).filter(|(mpt, lpt)| lpt < *mpt).count();
    let more = refills(LPT)?.iter().sum::<f64>() / refills(MPT)?.iter().sum::<f64>();
    let counted = mpt.iter().zip(&lpt).zip(TRACES);
    let counted = counted.map(|((mpt, lpt), (name, _))| vec![name.into(), cell(*mpt), cell(*lpt)]);
    let figure = r4700.cite(figure).table(Table::new(
        "Cycles of a refill, R4700",
        &["program", "MPT", "LPT, with its nested misses"],
        counted.collect(),
    ));
    Ok(figure.chart(chart).says(
        Verdict::of(as_said + near == all, 2 * (as_said + near) >= all).allows(format!(
            "LPT wins in all runs above the hit rate and loses in all below, but for those within {} points, the distance of what \
             the paper prints from what its cycles give; in part half of them",
            cell(spread)
        )),
        format!(
            "in {as_said} of {} runs LPT wins above the hit rate that the paper prints and loses below, and {near} are near it; the paper's cycles \
             put it at {} to {} %, it prints about {} %, and on our programs LPT wins from {} % on and loses up to {} %. On the \
             R4700's caches {wins} of {} programs take less time with it, at {} cycles a refill to {} in the mean and {} times the \
             refills: the paper thinks that possible for conventional programs.",
            all - near,
            cell(low),
            cell(high),
            cell(said),
            cell(won_from),
            cell(lost_to),
            mpt.len(),
            cell(mean(&lpt).0),
            cell(mean(&mpt).0),
            cell(more)
        ),
    ))
}
