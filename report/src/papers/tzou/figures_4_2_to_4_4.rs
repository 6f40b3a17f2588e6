//! Figures 4.2 to 4.4: the simulator against the analysis.

use crate::chart::{Chart, Series};
use crate::figure::{Figure, Verdict, cell};
use crate::lab::Lab;

use super::PAPER;

/// Figures 4.2 to 4.4.
pub(super) fn verified(lab: &Lab, figure: &str, algorithm: &str) -> anyhow::Result<Figure> {
    let seconds = if lab.quick { " --seconds 4" } else { "" };
    let rows = lab.rows(&format!("shootdown sweep {figure}{seconds}"))?;
    let mut charts = Vec::new();
    for (field, title, unit, by) in
        [("cpu_overhead", "CPU overhead", "%", 100.0), ("latency_ms", "Latency", "ms", 1.0)]
    {
        let of = |source: &str, times: Option<f64>| {
            let mut points = Vec::new();
            for row in rows.of("source", source) {
                let (x, m, n) = (row.number("x")?, row.number("m")?, row.number("n")?);
                if let (Some(value), true) = (row.maybe(field), times.is_none_or(|times| n == times * m)) {
                    points.push((x, by * value));
                }
            }
            Ok::<_, anyhow::Error>(points)
        };
        charts.push(Chart::curves(
            title,
            "CPUs of an operation",
            unit,
            (false, false),
            vec![
                Series::ours("lower bound", 0, of("lower", None)?),
                Series::ours("upper bound", 2, of("upper", None)?),
                Series::ours("simulated, N = M", 1, of("simulation", Some(1.0))?).scattered(),
                Series::ours("simulated, N = 4M", 3, of("simulation", Some(4.0))?).scattered(),
            ],
        ));
    }
    let far = |field: &str| {
        let near = rows.iter().filter(|row| row.number("x").is_ok_and(|m| m <= 20.0));
        near.filter_map(|row| row.maybe(field)).collect::<Vec<_>>()
    };
    let (overheads, latencies) = (far("overhead_deviation"), far("latency_deviation"));
    let most = |values: &[f64]| values.iter().copied().map(f64::abs).fold(0.0, f64::max);
    let (overhead, latency) = (most(&overheads), most(&latencies));
    let about = "The simulator runs the crate's state machines under the model of 4.1; the bounds are the equations of 4.2.";
    let title = format!("Simulation against analysis, {algorithm}");
    let start = Figure::new(PAPER, &format!("Figure {figure}"), &title, about);
    Ok(charts.into_iter().fold(start, Figure::chart)
        .says(
            Verdict::most(&[overheads, latencies].concat(), 10.0, 30.0),
            format!("for M up to 20, where the thesis finds them to agree well, simulated overheads lie within {} % and latencies within {} % of the middle of the bounds.", cell(overhead), cell(latency)),
        )
        .by(rows.command))
}
