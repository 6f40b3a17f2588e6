//! Figure 5: what the thresholds of APPROX-ONLINE trade.

use crate::chart::{Chart, Series};
use crate::figure::{Figure, Verdict};
use crate::lab::TRACES;

use super::{Data, FIXED, PAPER};

/// Figure 5.
pub(super) fn tradeoff(data: &Data) -> anyhow::Result<Figure> {
    let mut figure = Figure::new(
        PAPER,
        "Figure 5",
        "Memory against TLB overhead",
        "The curve joins pages of one size, 4 KB to 256 KB; the nearer the origin the better.",
    );
    let within = data.printed.at(&["8.5 (Figure 5)", "APPROX-ONLINE within"])?;
    let mut close = 0;
    for (at, (program, _)) in TRACES.iter().enumerate() {
        let point = |policy: &str| {
            let row = data.row(at, policy)?;
            Ok::<_, anyhow::Error>((row.memory_overhead_pct, row.tlbmcpi))
        };
        let fixed = FIXED.iter().map(|policy| point(policy)).collect::<anyhow::Result<Vec<_>>>()?;
        let mut series = vec![Series::ours("one size", 7, fixed)];
        for (colour, policy) in
            ["OFFLINE", "APPROX-ONLINE", "ONLINE", "ASAP", "ASAP-4-64", "THRIFT", "RESERVE"]
                .into_iter()
                .enumerate()
        {
            series.push(Series::ours(policy, colour, vec![point(policy)?]).scattered());
        }
        close += usize::from((point("APPROX-ONLINE")?.1 - point("OFFLINE")?.1).abs() <= within);
        figure =
            figure.chart(Chart::curves(program, "memory overhead (%)", "TLBMCPI", (false, true), series));
    }
    let all = TRACES.len();
    Ok(data.by(figure.says(
        Verdict::count(close, all),
        format!("APPROX-ONLINE is within {within:.2} of OFFLINE in {close} of {all} programs, in nine of ten in the paper."),
    )))
}
