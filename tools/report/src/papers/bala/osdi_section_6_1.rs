//! Section 6.1 of the OSDI paper: three clients of a database server.

use tlblab::mach::{Mach, Scheme};

use crate::figure::{Figure, Table, Verdict, cell, percent};
use crate::lab::Lab;
use crate::printed;
use crate::rows::rank_correlation;

use super::OSDI;

pub(super) fn database(lab: &Lab, ipcs: &str) -> anyhow::Result<Figure> {
    let rows = lab.rows::<Mach>(&format!("mach --preset osdi-6.1{ipcs}"))?;
    let osdi = printed::osdi()?;
    let of = |scheme| rows.one(&format!("{scheme:?}"), |row| row.scheme == scheme);
    let mach = of(Scheme::Mach)?.kernel_misses_per_ipc;
    let (mut table, mut ours, mut said) = (Vec::new(), Vec::new(), Vec::new());
    let schemes = [(Scheme::Ptlb, "ptlb"), (Scheme::Stlb4k, "stlb-4k"), (Scheme::Both, "ptlb+stlb")];
    for (scheme, name) in schemes {
        let row = of(scheme)?;
        let removed = 100.0 * (1.0 - row.kernel_misses_per_ipc / mach);
        let speedup = row.speedup_pct;
        let printed_removed = osdi.maybe(&["6.1", name, "removed %"]).map_or_else(
            || {
                format!(
                    "{} to {} %",
                    cell(osdi.maybe(&["6.1", name, "removed, least %"]).unwrap_or(f64::NAN)),
                    cell(osdi.maybe(&["6.1", name, "removed, most %"]).unwrap_or(f64::NAN))
                )
            },
            percent,
        );
        let hits = row.stlb_hit_rate.map_or("-".into(), |rate| percent(100.0 * rate));
        let printed_hits = osdi.maybe(&["6.1", name, "hit %"]).map_or("-".into(), percent);
        let printed_speedup = osdi.at(&["6.1", name, "speedup %"])?;
        ours.push(speedup);
        said.push(printed_speedup);
        table.push(vec![
            name.into(),
            percent(removed),
            printed_removed,
            hits,
            printed_hits,
            percent(speedup),
            percent(printed_speedup),
        ]);
    }
    let order = rank_correlation(&ours, &said);
    Ok(Figure::new(
        OSDI,
        "Section 6.1",
        "Three clients of a database server",
        "The database's size is not printed; 4 MB is assumed, as in the thesis.",
    )
    .table(Table::new("", &["", "removed", "*removed", "hits", "*hits", "speedup", "*speedup"], table))
    .says(
        Verdict::of(order > 0.99, order > 0.4)
            .allows("the order of the schemes; in part a rank correlation over 0.4"),
        format!(
            "the schemes stand in {} order by speedup, ours {} to {} %, the paper's {} to {} %.",
            if order > 0.99 { "the paper's" } else { "another" },
            cell(ours[0]),
            cell(ours[2]),
            cell(said[0]),
            cell(said[2])
        ),
    )
    .by(rows.command))
}
