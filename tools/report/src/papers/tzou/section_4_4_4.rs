//! Section 4.4.4's numeric example, SPUR: flushing a page from a virtually tagged cache, line by line.

use tlblab::shootdown::Simulate;

use crate::chart::{Chart, Series};
use crate::figure::{Figure, Table, Verdict, cell, percent};
use crate::lab::Lab;
use crate::printed::Printed;

use super::PAPER;

/// The algorithms that the thesis analyses, the second as op-synch and the third as op-asynch.
const ANALYSED: [&str; 3] = ["2-phase", "optimistic", "optimistic'"];

/// Microseconds that the lines of a page take.
const TIMES: [f64; 7] = [0.0, 50.0, 100.0, 150.0, 200.0, 300.0, 400.0];

/// Returns the figure.
///
/// # Errors
///
/// If the lab fails.
pub(super) fn spur(lab: &Lab, printed: &Printed) -> anyhow::Result<Figure> {
    let seconds = if lab.quick { " --seconds 10" } else { "" };
    let said = |name| printed.at(&["4.4.4, SPUR (cycles of a page)", name]);
    let (lines, least, most) = (said("lines")?, said("no line cached")?, said("all lines dirty")?);
    let limit = printed.at(&["4.4.4", "us"])?;
    let mut figure = Figure::new(
        PAPER,
        "Section 4.4.4",
        "Flushing the lines of a page",
        "All ten algorithms in the simulator at the canonical values, each CPU of an operation flushing the 128 lines of a page \
         besides. The thesis names SPUR's cycles of a line, and no clock. PTE-first and 2-phase are right on such a cache only if \
         its lines are written back without the entry.",
    );
    let mut curves: Vec<(String, Vec<(f64, f64)>)> = Vec::new();
    for us in TIMES {
        let x_line = us * 1e-3 / lines;
        let rows =
            lab.rows::<Simulate>(&format!("shootdown simulate{seconds} --lines {lines} --x-line {x_line}"))?;
        for (at, row) in rows.iter().enumerate() {
            if curves.len() <= at {
                curves.push((row.algorithm.to_string(), Vec::new()));
            }
            curves[at].1.push((us, 100.0 * row.cpu_overhead));
        }
        figure = figure.by(rows.command);
    }
    // The reply's own 40 us are part of Xreply.
    let (reply, mut table, mut all) = (40.0, Vec::new(), 0.0);
    for (name, points) in &curves {
        let crossing = points
            .windows(2)
            .find(|pair| pair[0].1 <= 10.0 && pair[1].1 > 10.0)
            .map(|pair| pair[0].0 + (10.0 - pair[0].1) / (pair[1].1 - pair[0].1) * (pair[1].0 - pair[0].0));
        let always = points.iter().all(|point| point.1 > 10.0);
        let at = if always { 0.0 } else { crossing.unwrap_or(f64::INFINITY) };
        if ANALYSED.contains(&name.as_str()) {
            all = f64::max(all, at + reply);
        }
        let mhz = |cycles: f64| if at == 0.0 { "none".into() } else { cell(cycles / at) };
        table.push(vec![
            name.clone(),
            percent(points[0].1),
            if at.is_finite() { cell(at + reply) } else { "-".into() },
            mhz(least),
            mhz(most),
        ]);
    }
    let series =
        curves.iter().enumerate().filter(|(_, (name, _))| name.starts_with('o') || name.starts_with('2'));
    let series =
        series.enumerate().map(|(colour, (_, (name, points)))| Series::ours(name, colour, points.clone()));
    let chart =
        Chart::curves("CPU overhead", "us for the lines of a page", "%", (false, false), series.collect());
    let off = 100.0 * (all / limit - 1.0);
    let head = [
        "algorithm",
        "without lines",
        "10 % from Xreply on (us)",
        "MHz for 10 %, no line cached",
        "MHz for 10 %, all dirty",
    ];
    Ok(figure.chart(chart).table(Table::new("", &head, table)).says(
        Verdict::most(&[off], 10.0, 30.0),
        format!(
            "the last of the three algorithms that the thesis analyses is above 10 % from {} us of a reply on, where the thesis says about {}: \
             {} % off, of which 10 agree, as far as its simulations and analysis do, and 30 in part; the clock has to be as fast as the table says for \
             the {} to {} cycles of a page not to exceed it.",
            cell(all), cell(limit), cell(off), cell(least), cell(most)
        ),
    ))
}
