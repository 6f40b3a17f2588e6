//! Figure 3: space of guarded tables by the size of their nodes, conventional programs.

use tlbkit_names::GA;

use crate::chart::{Chart, Series};
use crate::figure::{Figure, Verdict, cell};
use crate::rows::mean;

use super::{PAPER, SIZES, Traces};

/// Returns Figure 3.
///
/// # Errors
///
/// If a row lacks a number.
pub(super) fn by_size(traces: &Traces) -> anyhow::Result<Figure> {
    let curves = [("biggest", 0), ("average", 1), ("smallest", 2)];
    let mut points: [Vec<(f64, f64)>; 3] = Default::default();
    for size in SIZES {
        let values = traces.paper.all(&format!("G{size}"), |row| row.bytes_per_pte)?;
        let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        for (points, value) in points.iter_mut().zip([most, mean(&values).0, least]) {
            points.push((f64::from(size), value));
        }
    }
    let (adaptive, _) = traces.paper.mean(GA, |row| row.bytes_per_pte)?;
    let (optimum, _) = traces.paper.mean(GA, |row| row.bytes_per_pte_optimum.unwrap_or(f64::NAN))?;
    let average = points[1].clone();
    let mut series: Vec<_> = curves
        .into_iter()
        .zip(points)
        .map(|((name, colour), points)| Series::ours(name, colour, points))
        .collect();
    for (name, colour, value) in [("GA, average", 3, adaptive), ("best possible, average", 4, optimum)] {
        series.push(Series::ours(name, colour, vec![(2.0, value), (256.0, value)]));
    }
    let least = average
        .iter()
        .copied()
        .fold((0.0, f64::INFINITY), |least, at| if at.1 < least.1 { at } else { least });
    let sixteen = average[3].1;
    let excess = 100.0 * (sixteen / least.1 - 1.0);
    let chart = Chart::curves("Space", "slots of a node", "bytes for each page", (true, true), series)
        .ticks(&SIZES.map(f64::from));
    let about = "Bytes of live nodes for each mapped page, leaves included, over the programs in place of the paper's.";
    let figure = Figure::new(PAPER, "Figure 3", "GPT space over node size, conventional programs", about)
        .chart(chart)
        .says(
            Verdict::most(&[excess], 15.0, 50.0),
            format!(
                "the paper finds G16 close to the minimum; ours is at G{} on average, G16 takes {} % more, and the \
                 adaptive table {} bytes where no choice could do with less than {}.",
                least.0,
                cell(excess),
                cell(adaptive),
                cell(optimum)
            ),
        );
    Ok(traces.paper.cite(figure))
}
