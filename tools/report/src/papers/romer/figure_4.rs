//! Figure 4: memory overhead.

use crate::chart::{Chart, Series};
use crate::figure::{Figure, Verdict, cell};
use crate::lab::TRACES;

use super::{Data, PAPER, programs};

/// Figure 4.
pub(super) fn memory(data: &Data) -> anyhow::Result<Figure> {
    let shown = ["FIXED-16K", "FIXED-64K", "ASAP", "ASAP-4-64", "APPROX-ONLINE", "ONLINE"];
    let mut series = Vec::new();
    let mut most = [0.0f64; 6];
    for (colour, policy) in shown.into_iter().enumerate() {
        let mut points = Vec::new();
        for at in 0..TRACES.len() {
            let overhead = data.row(at, policy)?.memory_overhead_pct;
            most[colour] = most[colour].max(overhead);
            points.push((at as f64, overhead));
        }
        series.push(Series::ours(policy, colour, points));
    }
    let online = data.printed.at(&["8.4 (Figure 4)", "online policies, at most %"])?;
    let asap = data.printed.at(&["8.4 (Figure 4)", "ASAP %"])?;
    let ours = most[4].max(most[5]);
    let holds = [ours <= online, most[2] <= asap, most[3] < most[1]];
    let count = holds.iter().filter(|holds| **holds).count();
    let figure = Figure::new(PAPER, "Figure 4", "Memory overhead", "Over that of 4 KB pages. Our programs are small, so that large pages of a fixed size waste more of them.")
        .chart(Chart::bars("Memory overhead", "%", programs(), series))
        .says(
            Verdict::count(count, holds.len()),
            format!("the online policies take at most {} % more memory, {} % in the paper; ASAP {} %, nothing there; 64 KB pages up to {} %.", cell(ours), cell(online), cell(most[2]), cell(most[1])),
        );
    Ok(data.by(figure))
}
