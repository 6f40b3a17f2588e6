//! Figure 1: TLB overhead over memory for pages of one size.

use crate::chart::{Chart, Series};
use crate::figure::{Figure, Verdict};
use crate::lab::TRACES;

use super::{Data, FIXED, PAPER};

/// Figure 1.
pub(super) fn page_sizes(data: &Data) -> anyhow::Result<Figure> {
    let mut series = Vec::new();
    // Near the origin is where the paper sees its best policy: within 0.10 TLBMCPI (8.5) and 4 % of memory (8.4).
    let near = data.printed.at(&["8.5 (Figure 5)", "APPROX-ONLINE within"])?;
    let little = data.printed.at(&["8.4 (Figure 4)", "online policies, at most %"])?;
    let (mut fewer, mut more, mut missing, mut far) = (0, 0, 0, 0);
    for (at, (name, _)) in TRACES.iter().enumerate() {
        let mut points = Vec::new();
        for policy in FIXED {
            let row = data.row(at, policy)?;
            points.push((row.memory_overhead_pct, row.tlbmcpi));
        }
        let significant = points[0].1 > near;
        missing += usize::from(significant);
        far += usize::from(
            significant && points.iter().all(|&(memory, misses)| memory > little || misses > near),
        );
        fewer += usize::from(points[6].1 < points[0].1);
        more += usize::from(points[6].0 > points[0].0);
        series.push(Series::ours(*name, at, points));
    }
    let chart = Chart::curves(
        "4 KB at the left to 256 KB at the right",
        "memory overhead (%)",
        "TLBMCPI",
        (false, false),
        series,
    );
    let figure = Figure::new(PAPER, "Figure 1", "TLB overhead over memory for pages of one size", "Cycles of TLB misses for each instruction, 30 a miss, on two fully associative TLBs of 32 entries; each point is a page size.")
        .chart(chart)
        .says(
            Verdict::count(far + fewer.min(more), missing + TRACES.len()),
            format!("of {missing} programs with more than {near:.2} TLBMCPI no size is near the origin in {far}, in all in the paper; 256 KB pages lower TLBMCPI in {fewer} of {} programs and take more memory in {more}.", TRACES.len()),
        );
    Ok(data.by(figure))
}
