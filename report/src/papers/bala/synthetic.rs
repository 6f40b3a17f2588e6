//! Figures 4-5 to 4-8 and Tables 4.11 to 4.13: the synthetic benchmark, on the model and in the emulator.

use crate::chart::{Chart, Series};
use crate::figure::{Figure, Table, Verdict, cell};
use crate::lab::Lab;
use crate::printed::Printed;
use crate::rows::{Row, Rows};

use super::{Data, PAPER, SCHEMES};

/// The schemes as the kernel in the emulator calls them.
const GUEST_SCHEMES: [&str; 4] = ["plain", "PTLB", "STLB", "PTLB+STLB"];

/// Returns a curve for each scheme over the values of `x`, each value by the scheme's row and Mach's.
fn curves(
    rows: &Rows,
    x: &str,
    y: impl Fn(Row<'_>, Row<'_>) -> anyhow::Result<f64>,
) -> anyhow::Result<Vec<Series>> {
    let mut all = Vec::new();
    for (colour, (scheme, name)) in SCHEMES.into_iter().enumerate() {
        let mut points = Vec::new();
        for row in rows.of("scheme", scheme) {
            let mach = rows.one(&[("scheme", "mach"), (x, &row.text(x))])?;
            points.push((row.number(x)?, y(row, mach)?));
        }
        all.push(Series::ours(name, colour, points));
    }
    Ok(all)
}

/// Returns the least and the most of a series from `from` on.
fn range(series: &Series, from: f64, to: f64) -> (f64, f64) {
    let values = series.points.iter().filter(|at| (from..=to).contains(&at.0)).map(|at| at.1);
    values.fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(value), high.max(value)))
}

/// Adds what the kernel in the emulator counts, or why there is nothing: kernel misses, or all instructions of a message.
fn emulated(figure: Figure, data: &Data, what: &str) -> anyhow::Result<Figure> {
    let rows = match &data.guest {
        Ok(rows) => rows,
        Err(why) => return Ok(figure.lacks(format!("what the kernel counts in the emulator: {why}"))),
    };
    let mut series = Vec::new();
    for (colour, scheme) in GUEST_SCHEMES.into_iter().enumerate() {
        let mut points = Vec::new();
        for row in rows.of("scheme", scheme) {
            let fields: &[&str] = if what == "instructions" { &["insns"] } else { &["l2", "l1k", "l3"] };
            let mut sum = 0.0;
            for field in fields {
                sum += row.number(field)?;
            }
            points.push((row.number("servers")?, sum / row.number("messages")?));
        }
        series.push(Series::ours(scheme, colour, points));
    }
    let title = format!("MIPS32 in the emulator: {what}");
    let chart = Chart::curves(&title, "servers", &format!("{what} a message"), (false, false), series);
    Ok(figure.chart(chart).by(rows.command.clone()))
}

/// Returns Figures 4-5 to 4-8.
///
/// # Errors
///
/// If the lab's rows lack a number.
pub(super) fn figures(data: &Data) -> anyhow::Result<Vec<Figure>> {
    let misses = |row: Row<'_>, _: Row<'_>| row.number("kernel_misses_per_ipc");
    let left = |row: Row<'_>, mach: Row<'_>| {
        Ok(100.0 * row.number("kernel_misses_per_ipc")? / mach.number("kernel_misses_per_ipc")?)
    };
    let cost = |row: Row<'_>, mach: Row<'_>| {
        let of = |row: Row<'_>| {
            Ok::<_, anyhow::Error>(
                row.number("penalty_cycles_per_ipc")? + row.number("overhead_cycles_per_ipc")?,
            )
        };
        Ok(100.0 * of(row)? / of(mach)?)
    };
    let mut figures = Vec::new();
    for (at, rows, x, label, section, title) in [
        (5, &data.servers, "servers", "servers", "4.5.1 (Figure 4-5)", "the number of servers"),
        (
            7,
            &data.words,
            "words",
            "words a process touches between messages",
            "4.5.2 (Figure 4-7)",
            "the data touched",
        ),
    ] {
        let from = if at == 5 { 2.0 } else { 0.0 };
        let to = if at == 5 { 7.0 } else { 100.0 };
        let shares = curves(rows, x, left)?;
        let said = |name: &str| data.thesis.maybe(&[section, name]);
        let (ptlb_low, ptlb_high) = range(&shares[1], from, 100.0);
        let (stlb_low, stlb_high) = range(&shares[2], from, to);
        let (ptlb, stlb) = ((100.0 - ptlb_high, 100.0 - ptlb_low), (100.0 - stlb_high, 100.0 - stlb_low));
        let low = said("PTLB removes, least %").unwrap_or_default();
        let high = said("PTLB removes, most %").unwrap_or_default();
        let cached = said("STLB removes, least %").or(said("STLB removes %")).unwrap_or_default();
        // "About" so much is within five points.
        let cached_most = said("STLB removes, most %").unwrap_or(cached + 5.0);
        let printed_table = vec![
            vec![
                "PTLB".into(),
                format!("{} to {} %", cell(ptlb.0), cell(ptlb.1)),
                format!("{} to {} %", cell(low), cell(high)),
            ],
            vec![
                "STLB".into(),
                format!("{} to {} %", cell(stlb.0), cell(stlb.1)),
                said("STLB removes, most %").map_or(format!("{} %", cell(cached)), |most| {
                    format!("{} to {} %", cell(cached), cell(most))
                }),
            ],
        ];
        let about = "The thesis's synthetic benchmark on a model of Mach and the R3000.";
        figures.push(
            Figure::new(PAPER, &format!("Figure 4-{at}"), &format!("Kernel misses over {title}"), about)
                .chart(Chart::curves("Kernel misses", label, "misses a message", (false, false), curves(rows, x, misses)?))
                .table(Table::new("Misses removed", &["", "ours", "*thesis"], printed_table))
                .says(
                    Verdict::ranges(&[[ptlb, (low, high)], [stlb, (cached, cached_most)]], 3.0, 10.0),
                    format!("prefetching removes {} to {} %, the cache {} to {} %; the thesis has {} to {} and about {} %.", cell(ptlb.0), cell(ptlb.1), cell(stlb.0), cell(stlb.1), cell(low), cell(high), cell(cached)),
                )
                .by(rows.command.clone()),
        );
        let costs = curves(rows, x, cost)?;
        let section = if at == 5 { "4.5.1 (Figure 4-6)" } else { "4.5.2 (Figure 4-8)" };
        let said = |name: &str| data.thesis.at(&[section, name]);
        let (least, most) = range(&costs[3], from, to);
        let (ours_low, ours_high) = (100.0 - most, 100.0 - least);
        let (low, high) = (said("PTLB+STLB saves, least %")?, said("PTLB+STLB saves, most %")?);
        let both = (ours_low, ours_high);
        let about = "Cycles of kernel misses and of what the schemes add, over those under Mach.";
        figures.push(
            Figure::new(PAPER, &format!("Figure 4-{}", at + 1), &format!("Penalties over {title}"), about)
                .chart(Chart::curves("Penalty", label, "% of Mach's", (false, false), costs))
                .says(
                    Verdict::ranges(&[[both, (low, high)]], 5.0, 15.0),
                    format!(
                        "both together save {} to {} % with overheads, the thesis has {} to {} %.",
                        cell(ours_low),
                        cell(ours_high),
                        cell(low),
                        cell(high)
                    ),
                )
                .by(rows.command.clone()),
        );
    }
    // Those over servers come first; the kernel has them, too.
    let with_guest = figures.into_iter().enumerate().map(|(at, figure)| match at {
        0 => emulated(figure, data, "kernel misses"),
        1 => emulated(figure, data, "instructions"),
        _ => Ok(figure),
    });
    with_guest.collect()
}

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
    let rows = lab.rows(&format!(
        "mach --servers 3..10 --scheme mach,ptlb,stlb-4k,ptlb+stlb --granularity {granularity}{ipcs}"
    ))?;
    let mut series = Vec::new();
    let (mut ours_means, mut said_means) = (Vec::new(), Vec::new());
    for (colour, (scheme, name)) in SCHEMES.into_iter().enumerate().skip(1) {
        let (mut ours, mut said) = (Vec::new(), Vec::new());
        for row in rows.of("scheme", scheme) {
            let servers = row.number("servers")?;
            ours.push((servers, row.number("speedup_pct")?));
            said.push((servers, thesis.at(&[at, &row.text("servers"), scheme])?));
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
            Verdict::of(order && off < 1.5, order),
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
