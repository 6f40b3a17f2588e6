//! Sections 4.3 and 4.4: what the thesis finds of its applications, of three programs that talk to each other.

use tlblab::mach::{Row, Scheme};

use crate::figure::{Figure, Table, cell};

use super::applications::closeness_verdict;
use super::{APPS, Data, PAPER};

/// A quantity: its name, ours, the table that prints it, and how to get it there.
type Quantity =
    (&'static str, f64, &'static str, fn(&dyn Fn(&str) -> anyhow::Result<f64>) -> anyhow::Result<f64>);

/// Returns sections 4.3 and 4.4.
///
/// # Errors
///
/// If the lab's rows lack a number.
pub(super) fn talk(data: &Data) -> anyhow::Result<Figure> {
    let of = |scheme: Scheme| data.talk.one(&format!("{scheme:?}"), |row| row.scheme == scheme);
    let (mach, ptlb, small) = (of(Scheme::Mach)?, of(Scheme::Ptlb)?, of(Scheme::Stlb1k)?);
    let (large, both) = (of(Scheme::Stlb4k)?, of(Scheme::Both)?);
    let removed = |row: &Row| 100.0 * (1.0 - row.kernel_misses_per_ipc / mach.kernel_misses_per_ipc);
    let hits = |row: &Row| 100.0 * row.stlb_hit_rate.unwrap_or(f64::NAN);
    let left = |row: &Row| {
        100.0 * (row.penalty_cycles_per_ipc + row.overhead_cycles_per_ipc) / mach.penalty_cycles_per_ipc
    };
    let (table_4_5, table_4_8) = ("Table 4.5 (thousands)", "Table 4.8 (thousands)");
    let (table_4_7, speedups) = ("Table 4.7 (million cycles)", "Table 4.10 (%)");
    let quantities: [Quantity; 14] = [
        ("PTLB: misses removed (%)", removed(ptlb), "Table 4.3 (thousands)", |of| of("removed %")),
        ("DM 1K: misses removed (%)", removed(small), table_4_5, |of| {
            Ok(100.0 * (1.0 - of("DM 1K")? / of("Mach")?))
        }),
        ("DM 4K: misses removed (%)", removed(large), table_4_5, |of| {
            Ok(100.0 * (1.0 - of("DM 4K")? / of("Mach")?))
        }),
        ("both: misses removed (%)", removed(both), table_4_8, |of| of("removed %")),
        ("DM 1K: hits (%)", hits(small), table_4_5, |of| of("DM 1K hit %")),
        ("DM 4K: hits (%)", hits(large), table_4_5, |of| of("DM 4K hit %")),
        ("both: hits (%)", hits(both), table_4_8, |of| of("hit %")),
        ("PTLB: penalty left (%)", left(ptlb), "Table 4.4 (million cycles)", |of| {
            Ok(100.0 * of("PTLB")? / of("Mach")?)
        }),
        ("DM 1K: penalty left (%)", left(small), table_4_7, |of| Ok(100.0 * of("DM 1K")? / of("Mach")?)),
        ("DM 4K: penalty left (%)", left(large), table_4_7, |of| Ok(100.0 * of("DM 4K")? / of("Mach")?)),
        ("both: penalty left (%)", left(both), "Table 4.9 (million cycles)", |of| {
            Ok(100.0 * of("PTLB+STLB")? / of("Mach")?)
        }),
        ("PTLB: run time saved (%)", ptlb.speedup_pct, speedups, |of| of("ptlb")),
        ("DM 4K: run time saved (%)", large.speedup_pct, speedups, |of| of("stlb-4k")),
        ("both: run time saved (%)", both.speedup_pct, speedups, |of| of("ptlb+stlb")),
    ];
    let (mut rows, mut off, mut worst) = (Vec::new(), Vec::new(), ("", 0.0f64));
    for (name, ours, table, get) in quantities {
        let said = APPS.map(|app| get(&|column| data.thesis.at(&[table, app, column])));
        let said = said.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
        let low = said.iter().copied().fold(f64::INFINITY, f64::min);
        let high = said.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let beyond = (low - ours).max(ours - high).max(0.0);
        off.push(beyond);
        if beyond > worst.1 {
            worst = (name, beyond);
        }
        rows.push(vec![name.to_owned(), cell(ours), format!("{} to {}", cell(low), cell(high))]);
    }
    let within = off.iter().filter(|off| **off == 0.0).count();
    let beyond = if worst.0.is_empty() {
        String::new()
    } else {
        format!(", the others at most {} points beyond ({})", cell(worst.1), worst.0)
    };
    let about = format!(
        "A client in Perl, a database and a calculator, recorded as they waited for each other: the client asks SQLite, that writes to bc, \
         and bc answers the client. Each of the {} switches is a message of Mach's; nothing is chosen but the programs. Beside them stands \
         the range of the thesis's six applications. The run time that is saved depends on how far apart messages are, {} cycles here, \
         which the thesis does not print.",
        mach.ipcs,
        cell(mach.cycles_per_ipc)
    );
    Ok(Figure::new(PAPER, "Sections 4.3 and 4.4", "Three programs that talk to each other", &about)
        .table(Table::new("", &["", "ours", "*the six applications"], rows))
        .says(
            closeness_verdict(&off),
            format!(
                "{within} of {} values lie within the range of the thesis's applications{beyond}.",
                off.len()
            ),
        )
        .by(data.talk.command.clone()))
}
