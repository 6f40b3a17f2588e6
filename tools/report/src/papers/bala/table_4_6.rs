//! Table 4.6: misses that a miss causes.

use tlblab::mach::Scheme;

use crate::figure::{Figure, Table, Verdict, cell, percent};
use crate::printed;

use super::{APPS, Data, PAPER};

/// Table 4.6, from the synthetic benchmark: the stand-ins' rows do not tell.
///
/// # Errors
///
/// If the lab's rows lack a number.
pub(super) fn cascaded(data: &Data) -> anyhow::Result<Figure> {
    let osdi = printed::osdi()?;
    let mut rows = Vec::new();
    let mut left = Vec::new();
    for servers in [2, 4, 6] {
        let of = |scheme| {
            let what = format!("{servers} servers, {scheme:?}");
            data.servers.one(&what, |row| row.servers == servers && row.scheme == scheme)
        };
        let mach = of(Scheme::Mach)?;
        let share = 100.0 * mach.cascaded as f64 / (mach.l1k + mach.l2 + mach.l3) as f64;
        let left_by =
            |scheme| Ok::<_, anyhow::Error>(100.0 * of(scheme)?.cascaded as f64 / mach.cascaded as f64);
        let (small, large) = (left_by(Scheme::Stlb1k)?, left_by(Scheme::Stlb4k)?);
        left.push(large);
        rows.push(vec![format!("{servers} servers"), percent(share), percent(small), percent(large)]);
    }
    let mut paper = Vec::new();
    let mut most = 0.0f64;
    for name in APPS {
        let of = |column| osdi.at(&["Table 7, thesis Table 4.6 (thousands)", name, column]);
        let total: f64 = ["L1K", "L2", "L3"]
            .into_iter()
            .map(|kind| data.thesis.at(&["Table 4.1 (thousands)", name, kind]))
            .sum::<anyhow::Result<f64>>()?;
        let (mach, small, large) = (of("Mach")?, of("DM 1K")?, of("DM 4K")?);
        most = most.max(100.0 * large / mach);
        paper.push(vec![
            name.into(),
            percent(100.0 * mach / total),
            percent(100.0 * small / mach),
            percent(100.0 * large / mach),
        ]);
    }
    let worst = left.iter().copied().fold(0.0, f64::max);
    Ok(Figure::new(PAPER, "Table 4.6", "Misses that a miss causes", "Cascaded misses under Mach as a share of all kernel misses, and what the caches leave of them. The thesis's table is blank in our copy; the OSDI paper's Table 7 has the same numbers.")
        .table(Table::new("Ours, synthetic benchmark", &["", "of all misses", "DM 1K leaves", "DM 4K leaves"], rows))
        .table(Table::new("The paper's", &["", "*of all misses", "*DM 1K leaves", "*DM 4K leaves"], paper))
        .says(
            Verdict::most(&left, most + 5.0, 30.0),
            format!("the larger cache leaves at most {} % of the cascades here, {} % there.", cell(worst), cell(most)),
        )
        .by(data.servers.command.clone()))
}
