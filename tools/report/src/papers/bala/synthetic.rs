//! Figures 4-5 to 4-8 and Tables 4.11 to 4.13: the synthetic benchmark, on the model and in the emulator.

use tlblab::mach::{Row, Scheme};

use crate::chart::{Chart, Series};
use crate::figure::Figure;
use crate::rows::Rows;

use super::{Data, SCHEMES};

/// The schemes as the kernel in the emulator calls them.
const GUEST_SCHEMES: [&str; 4] = ["plain", "PTLB", "STLB", "PTLB+STLB"];

/// Returns a curve for each scheme over the values of `x`, each value by the scheme's row and Mach's.
pub(super) fn curves(
    rows: &Rows<Row>,
    x: fn(&Row) -> usize,
    y: fn(&Row, &Row) -> f64,
) -> anyhow::Result<Vec<Series>> {
    let mut all = Vec::new();
    for (colour, (scheme, name)) in SCHEMES.into_iter().enumerate() {
        let mut points = Vec::new();
        for row in rows.iter().filter(|row| row.scheme == scheme) {
            let mach = rows.one("Mach", |mach| mach.scheme == Scheme::Mach && x(mach) == x(row))?;
            points.push((x(row) as f64, y(row, mach)));
        }
        all.push(Series::ours(name, colour, points));
    }
    Ok(all)
}

/// Returns the least and the most of a series from `from` on.
pub(super) fn range(series: &Series, from: f64, to: f64) -> (f64, f64) {
    let values = series.points.iter().filter(|at| (from..=to).contains(&at.0)).map(|at| at.1);
    values.fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(value), high.max(value)))
}

/// Adds what the kernel in the emulator counts, or why there is nothing: kernel misses, or all instructions of a message.
pub(super) fn emulated(figure: Figure, data: &Data, what: &str) -> anyhow::Result<Figure> {
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
