//! Table 3.1: which addresses miss.

use tlblab::mach::AddressTypes;

use crate::figure::{Figure, Table, Verdict, cell, percent};
use crate::lab::Lab;
use crate::printed::Printed;

use super::PAPER;

/// Returns Table 3.1.
///
/// # Errors
///
/// If the lab's rows lack a number.
pub(super) fn address_types(lab: &Lab, ipcs: &str, thesis: &Printed) -> anyhow::Result<Figure> {
    let rows = lab.rows::<AddressTypes>(&format!("mach --address-types{ipcs}"))?;
    let (mut table, mut off, mut messages) = (Vec::new(), Vec::new(), 0.0);
    for row in rows.iter() {
        let name = &*row.address_type;
        let said = thesis.maybe(&["Table 3.1 (%)", name]);
        messages += if name.starts_with("Message buffers") { row.pct } else { 0.0 };
        if let Some(said) = said {
            off.push(row.pct - said);
        }
        table.push(vec![name.into(), percent(row.pct), said.map_or("-".into(), percent)]);
    }
    let both = thesis.at(&["3.1.4 (%)", "Message buffers, both"])?;
    off.push(messages - both);
    let worst = off.iter().copied().map(f64::abs).fold(0.0, f64::max);
    table.push(vec!["Message buffers, both (3.1.4)".into(), percent(messages), percent(both)]);
    Ok(Figure::new(
        PAPER,
        "Table 3.1",
        "What the kernel misses are for",
        "Under Mach, four servers; the table leaves one cell blank, and the text has both kinds of miss to message buffers.",
    )
    .table(Table::new("", &["address type", "ours", "*thesis"], table))
    .says(
        Verdict::most(&off, 3.0, 6.0),
        format!("the shares lie within {} points of the printed ones.", cell(worst)),
    )
    .by(rows.command))
}
