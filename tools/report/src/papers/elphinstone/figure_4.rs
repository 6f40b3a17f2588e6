//! Figure 4: space of guarded tables by the size of their nodes, sparse workloads.

use tlbkit_names::GA;
use tlblab::tables::TablesArgs;

use crate::chart::{Chart, Series};
use crate::figure::{Figure, Table, Verdict, cell};
use crate::lab::Lab;
use crate::printed::Printed;
use crate::rows::mean;

use super::{PAPER, SIZES, all};

/// Returns Figure 4.
///
/// # Errors
///
/// If the lab fails.
pub(super) fn sparse_by_size(lab: &Lab, printed: &Printed) -> anyhow::Result<Figure> {
    let seeds = if lab.quick { 3 } else { 10 };
    let mut series = Vec::new();
    let mut figure = Figure::new(
        PAPER,
        "Figure 4",
        "GPT space over node size, sparse workloads",
        "1024 pages; mean and standard deviation over seeds. In the worst case every node has two children, so that \
         there is a node for each page, and a leaf of 16 bytes.",
    );
    let mut ratios = Vec::new();
    for (colour, workload) in ["uniform", "file"].into_iter().enumerate() {
        let mut runs = Vec::new();
        for seed in 1..=seeds {
            let line = format!("tables --workload {workload} --pages 1024 --seed {seed}");
            runs.push(lab.rows::<TablesArgs>(&line)?);
        }
        let (mut points, mut spread) = (Vec::new(), Vec::new());
        for size in SIZES {
            let (centre, sd) = mean(&all(&runs, &format!("G{size}"), |row| row.bytes_per_pte)?);
            points.push((f64::from(size), centre));
            spread.push(sd);
        }
        ratios.push((workload, points[3].1 / points[0].1));
        series.push(Series::ours(workload, 2 * colour, points).with_spread(spread));
        let (adaptive, _) = mean(&all(&runs, GA, |row| row.bytes_per_pte)?);
        let flat = vec![(2.0, adaptive), (256.0, adaptive)];
        series.push(Series::ours(format!("GA, {workload}"), 2 * colour + 1, flat));
        figure = runs.into_iter().fold(figure, |figure, run| figure.by(run.command));
    }
    let worst = SIZES.map(|size| (f64::from(size), 16.0 * f64::from(size) + 16.0));
    series.push(Series::ours("worst case", 4, worst.to_vec()));
    let chart = Chart::curves("Space", "slots of a node", "bytes for each page", (true, true), series)
        .ticks(&SIZES.map(f64::from));
    let mut rows = Vec::new();
    let mut holding = 0;
    for (workload, ratio) in &ratios {
        let said = printed.at(&["4.1 (Figure 4)", &format!("G16 over G2, {workload}")])?;
        holding += usize::from((ratio / said - 1.0).abs() < 0.2);
        rows.push(vec![(*workload).into(), cell(*ratio), cell(said)]);
    }
    Ok(figure
        .chart(chart)
        .table(Table::new("G16 over G2", &["workload", "ours", "*paper"], rows))
        .says(
            Verdict::count(holding, ratios.len()),
            format!("{holding} of 2 of the printed ratios of G16 to G2 are met within a fifth; file sizes are a lognormal distribution, the paper's a measured one."),
        ))
}
