//! Figures 4-5 to 4-8: the synthetic benchmark, on the model and in the emulator.

use tlblab::mach::Row;

use crate::chart::Chart;
use crate::figure::{Figure, Table, Verdict, cell};

use super::synthetic::{curves, emulated, range};
use super::{Data, PAPER};

/// Returns Figures 4-5 to 4-8.
///
/// # Errors
///
/// If the lab's rows lack a number.
pub(super) fn figures(data: &Data) -> anyhow::Result<Vec<Figure>> {
    let misses = |row: &Row, _: &Row| row.kernel_misses_per_ipc;
    let left = |row: &Row, mach: &Row| 100.0 * row.kernel_misses_per_ipc / mach.kernel_misses_per_ipc;
    let cost = |row: &Row, mach: &Row| {
        let of = |row: &Row| row.penalty_cycles_per_ipc + row.overhead_cycles_per_ipc;
        100.0 * of(row) / of(mach)
    };
    let servers: fn(&Row) -> usize = |row| row.servers;
    let words: fn(&Row) -> usize = |row| row.words;
    let mut figures = Vec::new();
    for (at, rows, x, label, section, title) in [
        (5, &data.servers, servers, "servers", "4.5.1 (Figure 4-5)", "the number of servers"),
        (
            7,
            &data.words,
            words,
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
