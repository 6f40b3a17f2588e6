//! Tables 4.11 to 4.13: the synthetic benchmark by the words of a message.

use tlblab::mach::{Mach, Scheme};

use crate::chart::{Chart, Series};
use crate::figure::{Figure, Verdict, cell};
use crate::lab::Lab;
use crate::printed::Printed;

use super::PAPER;

/// Returns Tables 4.11 to 4.13.
///
/// # Errors
///
/// If the lab fails.
pub(super) fn granular(
    lab: &Lab,
    ipcs: &str,
    thesis: &Printed,
    at: &str,
    granularity: u32,
) -> anyhow::Result<Figure> {
    let rows = lab.rows::<Mach>(&format!(
        "mach --servers 3..10 --scheme mach,ptlb,stlb-4k,ptlb+stlb --granularity {granularity}{ipcs}"
    ))?;
    let mut series = Vec::new();
    let (mut ours_means, mut said_means) = (Vec::new(), Vec::new());
    let schemes = [
        (Scheme::Ptlb, "ptlb", "PTLB"),
        (Scheme::Stlb4k, "stlb-4k", "STLB"),
        (Scheme::Both, "ptlb+stlb", "PTLB+STLB"),
    ];
    for (colour, (scheme, column, name)) in (1..).zip(schemes) {
        let (mut ours, mut said) = (Vec::new(), Vec::new());
        for row in rows.iter().filter(|row| row.scheme == scheme) {
            let servers = row.servers as f64;
            ours.push((servers, row.speedup_pct));
            said.push((servers, thesis.at(&[at, &row.servers.to_string(), column])?));
        }
        let mean =
            |points: &[(f64, f64)]| crate::rows::mean(&points.iter().map(|at| at.1).collect::<Vec<_>>()).0;
        ours_means.push(mean(&ours));
        said_means.push(mean(&said));
        series.push(Series::ours(name, colour, ours));
        series.push(Series::printed(format!("{name}, thesis"), colour, said));
    }
    let [ptlb, stlb, both] = ours_means[..] else { anyhow::bail!("three schemes") };
    let order = both >= stlb && stlb >= ptlb;
    let off = ours_means
        .iter()
        .zip(&said_means)
        .map(|(ours, said)| (ours / said).max(said / ours))
        .fold(0.0, f64::max);
    let title = match granularity {
        0 => "Speedup, fine granularity",
        2 => "Speedup, medium granularity",
        _ => "Speedup, coarse granularity",
    };
    let about =
        "Run time of a message and all that goes with it saved, over that under Mach; triangles are printed.";
    Ok(Figure::new(PAPER, at.trim_end_matches(" (%)"), title, about)
        .chart(Chart::curves("Speedup", "servers", "%", (false, false), series))
        .says(
            Verdict::of(order && off < 1.5, order)
                .allows("the order of the schemes, and each within a factor of 1.5; in part the order"),
            format!(
                "the order of the schemes is {} ({}, {} and {} % on average); our speedups are off the printed ones by up to {} times, for a message of the model does nothing but send.",
                if order { "the thesis's" } else { "not the thesis's" },
                cell(ptlb),
                cell(stlb),
                cell(both),
                cell(off)
            ),
        )
        .by(rows.command))
}
