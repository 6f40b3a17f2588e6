//! Table 4.10: the speedup of the applications.

use tlblab::mach::Scheme;

use crate::figure::{Figure, Table, Verdict, cell, percent};
use crate::rows::rank_correlation;

use super::applications::app;
use super::{APPS, Data, PAPER};

/// Returns Table 4.10.
///
/// # Errors
///
/// If the lab's rows lack a number.
pub(super) fn speedups(data: &Data) -> anyhow::Result<Figure> {
    let schemes = [
        (Scheme::Ptlb, "ptlb"),
        (Scheme::Stlb1k, "stlb-1k"),
        (Scheme::Stlb4k, "stlb-4k"),
        (Scheme::Both, "ptlb+stlb"),
    ];
    let (mut rows, mut order) = (Vec::new(), (Vec::new(), Vec::new()));
    for name in APPS {
        let mut row = vec![name.to_owned()];
        for (scheme, column) in schemes {
            let saved = app(data, name, scheme)?.speedup_pct;
            let said = data.thesis.at(&["Table 4.10 (%)", name, column])?;
            row.push(percent(saved));
            row.push(percent(said));
            order.0.push(saved);
            order.1.push(said);
        }
        rows.push(row);
    }
    let head = ["", "PTLB", "*PTLB", "DM 1K", "*DM 1K", "DM 4K", "*DM 4K", "both", "*both"];
    let correlation = rank_correlation(&order.0, &order.1);
    let ratios: Vec<f64> = order.0.iter().zip(&order.1).map(|(ours, said)| ours / said).collect();
    let near = ratios.iter().filter(|ratio| (0.5..=2.0).contains(*ratio)).count();
    let about = "Run time saved. Ours is the stand-ins' instructions, at one cycle and the cache misses of the compiler's \
                 trace on a model of the R3000's caches (M_A), the messages, and the misses of the TLB.";
    Ok(Figure::new(PAPER, "Table 4.10", "Speedup of the applications", about)
        .table(Table::new("", &head, rows))
        .says(
            Verdict::of(
                correlation > 0.8 && near == ratios.len(),
                correlation > 0.4 && 2 * near >= ratios.len(),
            ),
            format!(
                "{near} of {} speedups are within a factor of two of the printed ones; rank correlation {}. To agree all must be, and the \
                 correlation over 0.8; in part half of them, and over 0.4.",
                ratios.len(),
                cell(correlation)
            ),
        )
        .by(data.apps.command.clone()))
}
