//! Figure 8: space of every structure, sparse workloads.

use tlbkit_names::{C128K, G16, GA, H8K, H128K, HR, MPT};
use tlblab::tables::TablesArgs;

use crate::chart::{Chart, Series};
use crate::figure::{Figure, Verdict, cell};
use crate::lab::Lab;
use crate::printed;
use crate::rows::geometric;

use super::{PAPER, SUPERPAGES};

/// Sizes of the sparse workloads.
const SPARSE: [u32; 8] = [64, 128, 256, 512, 1024, 2048, 4096, 8192];

/// Returns Figure 8.
///
/// # Errors
///
/// If the lab fails.
pub(crate) fn sparse_space(lab: &Lab) -> anyhow::Result<Figure> {
    let printed = printed::elphinstone()?;
    let names = [MPT, G16, GA, H8K, H128K, HR, C128K, SUPERPAGES];
    let mut figure = Figure::new(
        PAPER,
        "Figure 8",
        "Space of every structure over the pages mapped, sparse workloads",
        "Bytes of live nodes for each mapped page in the paper's layout; CS maps aligned runs as superpages.",
    );
    let mut ratios = Vec::new();
    let mut adaptive = Vec::new();
    for workload in ["uniform", "file"] {
        let mut series: Vec<_> =
            names.iter().enumerate().map(|(colour, name)| Series::ours(*name, colour, Vec::new())).collect();
        for pages in SPARSE {
            let rows = lab.rows::<TablesArgs>(&format!("tables --workload {workload} --pages {pages}"))?;
            let line = format!("tables {SUPERPAGES} --workload {workload} --pages {pages}");
            let superpages = lab.rows::<TablesArgs>(&line)?;
            for (name, series) in names.iter().zip(&mut series) {
                let rows = if *name == SUPERPAGES { &superpages } else { &rows };
                series.points.push((f64::from(pages), rows.of(name)?.bytes_per_pte));
            }
            let of = |name: &str| Ok::<_, anyhow::Error>(rows.of(name)?.bytes_per_pte);
            ratios.push(of(MPT)? / of(G16)?);
            adaptive.push(of(GA)? / of(H8K)?);
            figure = figure.by(rows.command).by(superpages.command);
        }
        let chart = Chart::curves(workload, "pages mapped", "bytes for each page", (true, true), series);
        figure = figure.chart(chart.ticks(&SPARSE.map(f64::from)));
    }
    let ratio = geometric(&ratios);
    let said = printed.at(&["4.2 (Figure 8)", "MPT over GPT"])?;
    let below = adaptive.iter().filter(|ratio| **ratio <= 1.0).count();
    Ok(figure.says(
        Verdict::factor(ratio / said, 1.5, 3.0),
        format!(
            "the paper says about two orders of magnitude from GPT to MPT, here it is a factor of {} in the mean, {} to {}; its \
             forecast that an adaptive GPT takes no more than H8k holds in {below} of {} cases, worst {} times.",
            cell(ratio),
            cell(ratios.iter().copied().fold(f64::INFINITY, f64::min)),
            cell(ratios.iter().copied().fold(0.0, f64::max)),
            adaptive.len(),
            cell(adaptive.iter().copied().fold(0.0, f64::max))
        ),
    ))
}
