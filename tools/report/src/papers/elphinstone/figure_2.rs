//! Figure 2: what a refill takes, by the size of a guarded table's nodes.

use tlbkit_names::{GA, MPT};
use tlblab::{refill, tables};

use crate::chart::{Chart, Series};
use crate::figure::{Figure, Verdict, cell};
use crate::rows::Named;

use super::handlers::WORDS_RUN;
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
    let (two, four, large) = (curve.points[0].1, curve.points[1].1, curve.points[7].1);
    let falls = curve.points.windows(2).all(|pair| pair[1].1 <= pair[0].1);
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
    let gained = 100.0 * (two - four) / (two - large);
    let about = format!(
        "Mean over the programs, bars are standard deviations. {WORDS_RUN} GA chooses node sizes online. {WORDS}"
    );
    let figure = Figure::new(PAPER, "Figure 2", "TLB refill cost over GPT node size", &about)
        .chart(chart("Instructions of a refill", "instructions", instructions))
        .chart(chart("Loads of a refill", "loads", memory))
        .says(
            Verdict::of(gained >= 50.0 && falls, gained >= 35.0),
            format!(
                "the paper sees little improvement beyond four entries; of the instructions that 256 slots save over 2, \
                 four save {} %, and the curve {}.",
                cell(gained),
                if falls { "falls all the way, as there" } else { "does not fall all the way" }
            ),
        );
    Ok(compact.cite(paper.cite(handlers.cite(figure))))
}
