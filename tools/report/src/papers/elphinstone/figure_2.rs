//! Figure 2: what a refill takes, by the size of a guarded table's nodes.

use tlbkit_names::{GA, MPT};
use tlblab::{refill, tables};

use crate::chart::{Chart, Series};
use crate::figure::{Figure, Verdict, cell};
use crate::rows::Named;

use super::handlers::{ON_CACHES, WORDS_RUN, on};
use super::{PAPER, Programs, SIZES, Traces, WORDS};

/// Returns a curve over the guarded tables' sizes: mean over the programs, and deviation.
fn over_sizes<R: Named>(
    name: &str,
    colour: usize,
    of: &Programs<R>,
    number: fn(&R) -> f64,
) -> anyhow::Result<Series> {
    let (mut points, mut spread) = (Vec::new(), Vec::new());
    for size in SIZES {
        let (centre, sd) = of.mean(&format!("G{size}"), number)?;
        points.push((f64::from(size), centre));
        spread.push(sd);
    }
    Ok(Series::ours(name, colour, points).with_spread(spread))
}

/// Returns one structure's mean, which has no sizes, as a line across.
fn across<R: Named>(
    name: &str,
    colour: usize,
    of: &Programs<R>,
    structure: &str,
    number: fn(&R) -> f64,
) -> anyhow::Result<Series> {
    let (centre, _) = of.mean(structure, number)?;
    Ok(Series::ours(name, colour, vec![(2.0, centre), (256.0, centre)]))
}

/// Returns Figure 2.
///
/// # Errors
///
/// If a row lacks a number.
pub(super) fn by_size(traces: &Traces) -> anyhow::Result<Figure> {
    let (handlers, paper, compact) = (&traces.handlers, &traces.paper, &traces.compact);
    let insns: fn(&refill::Row) -> f64 = |row| row.insns_mean;
    let loads: fn(&refill::Row) -> f64 = |row| row.loads_mean;
    let refs: fn(&tables::Row) -> f64 = |row| row.refs_per_lookup_mean;
    let curve = over_sizes("Gn", 0, handlers, insns)?;
    let gained = |curve: &Series| {
        let (two, four, large) = (curve.points[0].1, curve.points[1].1, curve.points[7].1);
        (100.0 * (two - four) / (two - large), curve.points.windows(2).all(|pair| pair[1].1 <= pair[0].1))
    };
    let (of_instructions, _) = gained(&curve);
    let cycles: fn(&refill::Row) -> f64 = |row| on(row, |cycles| cycles.cycles_mean);
    let mut on_caches = Vec::new();
    for (colour, (machine, programs)) in traces.cycles.iter().enumerate() {
        on_caches.push(over_sizes(&format!("Gn, {machine}"), 2 * colour, programs, cycles)?);
        on_caches.push(across(&format!("MPT, {machine}"), 2 * colour + 1, programs, MPT, cycles)?);
    }
    let (of_cycles, falls) = gained(&on_caches[0]);
    let (of_current, _) = gained(&on_caches[2]);
    let instructions = vec![curve, across(MPT, 2, handlers, MPT, insns)?];
    let memory = vec![
        over_sizes("Gn, the handler's", 0, handlers, loads)?,
        over_sizes("Gn, 32-bit words", 1, paper, refs)?,
        over_sizes("Gn, compact layout", 3, compact, refs)?,
        across("GA, 32-bit words", 4, paper, GA, refs)?,
        across("GA, compact layout", 5, compact, GA, refs)?,
    ];
    let chart = |title, y, series| {
        Chart::curves(title, "slots of a node", y, (true, false), series).ticks(&SIZES.map(f64::from))
    };
    let about = format!(
        "Mean over the programs, bars are standard deviations. {WORDS_RUN} {ON_CACHES} GA chooses node sizes online. {WORDS}"
    );
    let figure = Figure::new(PAPER, "Figure 2", "TLB refill cost over GPT node size", &about)
        .chart(chart("Cycles of a refill", "cycles", on_caches))
        .chart(chart("Instructions of a refill", "instructions", instructions))
        .chart(chart("Loads of a refill", "loads", memory))
        .says(
            Verdict::of(of_cycles >= 50.0 && falls, of_cycles >= 35.0).allows(
                "half of what 256 slots save, and the curve never rises; in part 35 %",
            ),
            format!(
                "the paper sees little improvement beyond four entries; of the cycles that 256 slots save over 2, four save \
                 {} % on the R4700's caches and {} % on a current core's, of the instructions {} %, and the R4700's curve {}.",
                cell(of_cycles),
                cell(of_current),
                cell(of_instructions),
                if falls { "falls all the way, as there" } else { "does not fall all the way" }
            ),
        );
    let figure = traces.cycles.iter().fold(figure, |figure, (_, programs)| programs.cite(figure));
    Ok(compact.cite(paper.cite(handlers.cite(figure))))
}
