//! Bala's thesis and the OSDI paper: Mach's kernel TLB misses under software caches and prefetching.

use crate::figure::{Figure, Table, Verdict, cell, percent};
use crate::lab::Lab;
use crate::printed::{self, Printed};
use crate::rows::{Rows, rank_correlation};

mod applications;
mod synthetic;

const PAPER: &str = "Bala";
const OSDI: &str = "OSDI 1994";

const APPS: [&str; 6] = ["video_play", "jpeg_play", "mpeg_play", "IOzone", "ousterhout", "mab"];
/// The schemes that the thesis draws, as the lab and as it calls them.
const SCHEMES: [(&str, &str); 4] =
    [("mach", "Mach"), ("ptlb", "PTLB"), ("stlb-4k", "STLB"), ("ptlb+stlb", "PTLB+STLB")];
const STAND_INS: &str = "The applications are gone; stand-ins send messages along the same chains of processes and touch \
                         the pages of recorded traces in between, so that shares compare and totals do not.";

struct Data {
    apps: Rows,
    servers: Rows,
    words: Rows,
    /// What the kernel in the emulator counts, or why there is nothing.
    guest: Result<Rows, String>,
    thesis: Printed,
}

/// Returns the figures.
///
/// # Errors
///
/// If the lab fails.
pub(crate) fn figures(lab: &Lab) -> anyhow::Result<Vec<Figure>> {
    let ipcs = if lab.quick { " --ipcs 4000" } else { "" };
    let data = Data {
        apps: lab.rows(&format!("mach --apps{ipcs}"))?,
        servers: lab.rows(&format!("mach --servers 1..10{ipcs}"))?,
        words: lab.rows(&format!("mach --servers 4 --words 5,10,20,30,40,50{ipcs}"))?,
        guest: lab.guest("--work ipc"),
        thesis: printed::thesis()?,
    };
    let mut figures = vec![
        applications::address_types(lab, ipcs, &data.thesis)?,
        applications::baseline(&data)?,
        applications::rates(&data)?,
    ];
    figures.push(applications::removed(
        &data,
        "Figure 4-1, Table 4.3",
        "Kernel TLB misses with prefetching",
        "ptlb",
        "Table 4.3 (thousands)",
    )?);
    figures.push(applications::penalties(
        &data,
        "Figure 4-2, Table 4.4",
        "Penalties with prefetching",
        &[("ptlb", "PTLB", "Table 4.4 (million cycles)")],
    )?);
    figures.push(applications::hit_rates(&data)?);
    figures.push(applications::cascaded(&data)?);
    figures.push(applications::penalties(
        &data,
        "Figure 4-3, Table 4.7",
        "Penalties with software caches",
        &[
            ("stlb-1k", "DM 1K", "Table 4.7 (million cycles)"),
            ("stlb-4k", "DM 4K", "Table 4.7 (million cycles)"),
        ],
    )?);
    figures.push(applications::removed(
        &data,
        "Table 4.8",
        "Kernel TLB misses with both",
        "ptlb+stlb",
        "Table 4.8 (thousands)",
    )?);
    figures.push(applications::penalties(
        &data,
        "Figure 4-4, Table 4.9",
        "Penalties with both",
        &[("ptlb+stlb", "PTLB+STLB", "Table 4.9 (million cycles)")],
    )?);
    figures.push(applications::speedups(&data)?);
    figures.extend(synthetic::figures(&data)?);
    for (at, granularity) in [("Table 4.11 (%)", 0), ("Table 4.12 (%)", 2), ("Table 4.13 (%)", 5)] {
        figures.push(synthetic::granular(lab, ipcs, &data.thesis, at, granularity)?);
    }
    figures.extend(models(lab)?);
    figures.push(database(lab, ipcs)?);
    Ok(figures)
}

/// Chapter 5 and section 6.2 of the OSDI paper.
fn models(lab: &Lab) -> anyhow::Result<Vec<Figure>> {
    let rows = lab.rows("model")?;
    let mut figures = Vec::new();
    for (paper, at, source, title) in [
        (PAPER, "Chapter 5", "thesis", "Analytical model of future machines"),
        (OSDI, "Section 6.2", "OSDI paper", "Trap times on future machines"),
    ] {
        let (mut table, mut agreeing, mut all) = (Vec::new(), 0, 0);
        let mut remarks = Vec::new();
        for row in rows.of("source", source) {
            let (Some(value), Some(said)) = (row.maybe("value"), row.maybe("printed")) else { continue };
            all += 1;
            agreeing += usize::from(row.is("agrees"));
            let remark = row.text("remark");
            if !remark.is_empty() && !remarks.contains(&remark) {
                remarks.push(remark);
            }
            table.push(vec![row.text("equation"), row.text("quantity"), cell(value), cell(said)]);
        }
        let why =
            if remarks.is_empty() { String::new() } else { format!(" The rest: {}.", remarks.join("; ")) };
        figures.push(
            Figure::new(
                paper,
                at,
                title,
                "The equations with the paper's parameters, beside what it prints.",
            )
            .table(Table::new("", &["equation", "quantity", "ours", "*paper"], table))
            .says(Verdict::count(agreeing, all), format!("{agreeing} of {all} printed values are met.{why}"))
            .by(rows.command.clone()),
        );
    }
    Ok(figures)
}

fn database(lab: &Lab, ipcs: &str) -> anyhow::Result<Figure> {
    let rows = lab.rows(&format!("mach --preset osdi-6.1{ipcs}"))?;
    let osdi = printed::osdi()?;
    let mach = rows.one(&[("scheme", "mach")])?.number("kernel_misses_per_ipc")?;
    let (mut table, mut ours, mut said) = (Vec::new(), Vec::new(), Vec::new());
    for scheme in ["ptlb", "stlb-4k", "ptlb+stlb"] {
        let row = rows.one(&[("scheme", scheme)])?;
        let removed = 100.0 * (1.0 - row.number("kernel_misses_per_ipc")? / mach);
        let speedup = row.number("speedup_pct")?;
        let printed_removed = osdi.maybe(&["6.1", scheme, "removed %"]).map_or_else(
            || {
                format!(
                    "{} to {} %",
                    cell(osdi.maybe(&["6.1", scheme, "removed, least %"]).unwrap_or(f64::NAN)),
                    cell(osdi.maybe(&["6.1", scheme, "removed, most %"]).unwrap_or(f64::NAN))
                )
            },
            percent,
        );
        let hits = row.maybe("stlb_hit_rate").map_or("-".into(), |rate| percent(100.0 * rate));
        let printed_hits = osdi.maybe(&["6.1", scheme, "hit %"]).map_or("-".into(), percent);
        let printed_speedup = osdi.at(&["6.1", scheme, "speedup %"])?;
        ours.push(speedup);
        said.push(printed_speedup);
        table.push(vec![
            scheme.into(),
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
        Verdict::of(order > 0.99, order > 0.4),
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
