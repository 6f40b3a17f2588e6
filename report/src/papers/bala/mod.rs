//! Bala's thesis and the OSDI paper: Mach's kernel TLB misses under software caches and prefetching.

use crate::chart::{Chart, Series};
use crate::figure::{Figure, Table, Verdict, cell, percent};
use crate::lab::Lab;
use crate::printed::{self, Printed};
use crate::rows::{Row, Rows, rank_correlation};

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
        thesis: printed::thesis()?,
    };
    let mut figures = vec![address_types(lab, ipcs, &data.thesis)?, baseline(&data)?, rates(&data)?];
    figures.push(removed(
        &data,
        "Figure 4-1, Table 4.3",
        "Kernel TLB misses with prefetching",
        "ptlb",
        "Table 4.3 (thousands)",
    )?);
    figures.push(penalties(
        &data,
        "Figure 4-2, Table 4.4",
        "Penalties with prefetching",
        &[("ptlb", "PTLB", "Table 4.4 (million cycles)")],
    )?);
    figures.push(hit_rates(&data)?);
    figures.push(cascaded(&data)?);
    figures.push(penalties(
        &data,
        "Figure 4-3, Table 4.7",
        "Penalties with software caches",
        &[
            ("stlb-1k", "DM 1K", "Table 4.7 (million cycles)"),
            ("stlb-4k", "DM 4K", "Table 4.7 (million cycles)"),
        ],
    )?);
    figures.push(removed(
        &data,
        "Table 4.8",
        "Kernel TLB misses with both",
        "ptlb+stlb",
        "Table 4.8 (thousands)",
    )?);
    figures.push(penalties(
        &data,
        "Figure 4-4, Table 4.9",
        "Penalties with both",
        &[("ptlb+stlb", "PTLB+STLB", "Table 4.9 (million cycles)")],
    )?);
    figures.push(speedups(&data)?);
    figures.extend(synthetic(&data)?);
    for (at, granularity) in [("Table 4.11 (%)", 0), ("Table 4.12 (%)", 2), ("Table 4.13 (%)", 5)] {
        figures.push(granular(lab, ipcs, &data.thesis, at, granularity)?);
    }
    figures.extend(models(lab)?);
    figures.push(database(lab, ipcs)?);
    Ok(figures)
}

fn app<'a>(data: &'a Data, name: &str, scheme: &str) -> anyhow::Result<Row<'a>> {
    data.apps.one(&[("application", name), ("scheme", scheme)])
}

fn address_types(lab: &Lab, ipcs: &str, thesis: &Printed) -> anyhow::Result<Figure> {
    let rows = lab.rows(&format!("mach --address-types{ipcs}"))?;
    let (mut table, mut worst) = (Vec::new(), 0.0f64);
    for row in rows.iter() {
        let name = row.text("address_type");
        let said = thesis.maybe(&["Table 3.1 (%)", &name]);
        let ours = row.number("pct")?;
        if let Some(said) = said {
            worst = worst.max((ours - said).abs());
        }
        table.push(vec![name, percent(ours), said.map_or("-".into(), percent)]);
    }
    Ok(Figure::new(
        PAPER,
        "Table 3.1",
        "What the kernel misses are for",
        "Under Mach, four servers; the thesis's copy leaves the last cell blank.",
    )
    .table(Table::new("", &["address type", "ours", "*thesis"], table))
    .says(
        Verdict::of(worst <= 3.0, worst <= 6.0),
        format!("the shares lie within {} points of the printed ones.", cell(worst)),
    )
    .by(rows.command))
}

fn baseline(data: &Data) -> anyhow::Result<Figure> {
    let (mut ours, mut theirs, mut rows) = (Vec::new(), Vec::new(), Vec::new());
    for name in APPS {
        let kinds = ["L1K", "L2", "L3"].map(|kind| data.thesis.at(&["Table 4.1 (thousands)", name, kind]));
        let kinds = kinds.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
        let misses = app(data, name, "mach")?.number("kernel_misses_per_ipc")?;
        ours.push(misses);
        theirs.push(kinds.iter().sum());
        let mut row = vec![name.to_owned(), cell(misses)];
        row.extend(kinds.into_iter().map(cell));
        rows.push(row);
    }
    let order = rank_correlation(&ours, &theirs);
    Ok(Figure::new(PAPER, "Table 4.1", "The applications under Mach", STAND_INS)
        .table(Table::new("", &["application", "kernel misses a message, ours", "*L1K (1000s)", "*L2 (1000s)", "*L3 (1000s)"], rows))
        .says(
            Verdict::Open,
            format!("totals depend on how many messages a run sends, which is not printed; the order's rank correlation is {}.", cell(order)),
        )
        .by(data.apps.command.clone()))
}

fn rates(data: &Data) -> anyhow::Result<Figure> {
    let (mut rows, mut most) = (Vec::new(), (String::new(), 0.0));
    for name in APPS {
        let of = |column| data.thesis.at(&["Table 4.2", name, column]);
        let ours = app(data, name, "mach")?.number("kernel_misses_per_ipc")?;
        let rate = of("misses/s")?;
        if rate > most.1 {
            most = (name.to_owned(), rate);
        }
        rows.push(vec![name.into(), cell(ours), cell(of("misses")?), cell(of("seconds")?), cell(rate)]);
    }
    Ok(Figure::new(PAPER, "Table 4.2", "Rates of misses", "The model has no seconds of an application: misses are per message.")
        .table(Table::new("", &["application", "misses a message, ours", "*misses", "*seconds", "*misses/s"], rows))
        .says(Verdict::Open, format!("the model keeps no run time of an application's own work, so rates are not compared; the thesis has {} first.", most.0))
        .by(data.apps.command.clone()))
}

fn removed(data: &Data, at: &str, title: &str, scheme: &str, table: &str) -> anyhow::Result<Figure> {
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for (place, name) in APPS.iter().enumerate() {
        ours.push((place as f64, app(data, name, scheme)?.number("misses_removed_pct")?));
        theirs.push((place as f64, data.thesis.at(&[table, name, "removed %"])?));
    }
    let (sentence, verdict) = closeness(&ours, &theirs, "points of misses removed");
    Ok(Figure::new(PAPER, at, title, STAND_INS)
        .chart(Chart::bars(
            "Kernel misses removed",
            "% of Mach's",
            names(),
            vec![Series::ours("ours", 1, ours), Series::printed("thesis", 1, theirs)],
        ))
        .says(verdict, sentence)
        .by(data.apps.command.clone()))
}

fn names() -> Vec<String> {
    APPS.iter().map(|name| (*name).to_owned()).collect()
}

/// Returns a sentence on how far our values are from the printed ones.
fn closeness(ours: &[(f64, f64)], theirs: &[(f64, f64)], what: &str) -> (String, Verdict) {
    let off: Vec<f64> = ours.iter().zip(theirs).map(|(ours, theirs)| (ours.1 - theirs.1).abs()).collect();
    let (mean, _) = crate::rows::mean(&off);
    let most = off.iter().copied().fold(0.0, f64::max);
    let lower = ours.iter().zip(theirs).filter(|(ours, theirs)| ours.1 < theirs.1).count();
    let why = "the stand-ins have other pages and lengths of work than the thesis's programs";
    let sentence = format!(
        "our values lie {} {what} from the printed ones on average, {} at most, {lower} of {} below them: {why}.",
        cell(mean),
        cell(most),
        off.len()
    );
    (sentence, Verdict::of(most < 10.0, mean < 25.0))
}

fn penalties(data: &Data, at: &str, title: &str, schemes: &[(&str, &str, &str)]) -> anyhow::Result<Figure> {
    let mut series = Vec::new();
    let (mut all_ours, mut all_theirs) = (Vec::new(), Vec::new());
    for (colour, (scheme, column, table)) in schemes.iter().enumerate() {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for (place, name) in APPS.iter().enumerate() {
            let left = 100.0 - app(data, name, scheme)?.number("penalty_saved_pct")?;
            let said = data.thesis.at(&[table, name, column])? / data.thesis.at(&[table, name, "Mach"])?;
            ours.push((place as f64, left));
            theirs.push((place as f64, 100.0 * said));
        }
        all_ours.extend(ours.iter().copied());
        all_theirs.extend(theirs.iter().copied());
        series.push(Series::ours(*column, colour + 1, ours));
        series.push(Series::printed(format!("{column}, thesis"), colour + 1, theirs));
    }
    let (sentence, verdict) = closeness(&all_ours, &all_theirs, "points of penalty");
    let about = "Cycles of kernel misses over those under unmodified Mach, overheads included in ours; the thesis draws \
                 its overheads apart.";
    Ok(Figure::new(PAPER, at, title, about)
        .chart(Chart::bars("Penalty", "% of Mach's", names(), series))
        .says(verdict, sentence)
        .by(data.apps.command.clone()))
}

fn hit_rates(data: &Data) -> anyhow::Result<Figure> {
    let mut series = Vec::new();
    let (mut all_ours, mut all_theirs) = (Vec::new(), Vec::new());
    for (colour, (scheme, column)) in [("stlb-1k", "DM 1K"), ("stlb-4k", "DM 4K")].into_iter().enumerate() {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for (place, name) in APPS.iter().enumerate() {
            ours.push((place as f64, 100.0 * app(data, name, scheme)?.number("stlb_hit_rate")?));
            let hits = format!("{column} hit %");
            theirs.push((place as f64, data.thesis.at(&["Table 4.5 (thousands)", name, &hits])?));
        }
        all_ours.extend(ours.iter().copied());
        all_theirs.extend(theirs.iter().copied());
        series.push(Series::ours(column, colour + 1, ours));
        series.push(Series::printed(format!("{column}, thesis"), colour + 1, theirs));
    }
    let above = all_ours.iter().filter(|at| at.1 > 90.0).count();
    let (sentence, verdict) = closeness(&all_ours, &all_theirs, "points of hit rate");
    Ok(Figure::new(PAPER, "Table 4.5", "Hit rates of the software caches", STAND_INS)
        .chart(Chart::bars("Hits", "%", names(), series))
        .says(verdict, format!("{sentence} {above} of {} caches hit more than 90 %.", all_ours.len()))
        .by(data.apps.command.clone()))
}

/// Table 4.6, from the synthetic benchmark: the stand-ins' rows do not tell.
fn cascaded(data: &Data) -> anyhow::Result<Figure> {
    let osdi = printed::osdi()?;
    let mut rows = Vec::new();
    let mut left = Vec::new();
    for servers in ["2", "4", "6"] {
        let of = |scheme: &str, field| {
            data.servers.one(&[("servers", servers), ("scheme", scheme)])?.number(field)
        };
        let mach = of("mach", "cascaded")?;
        let share = 100.0 * mach / (of("mach", "l1k")? + of("mach", "l2")? + of("mach", "l3")?);
        let (small, large) =
            (100.0 * of("stlb-1k", "cascaded")? / mach, 100.0 * of("stlb-4k", "cascaded")? / mach);
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
            Verdict::of(worst <= most + 5.0, worst < 30.0),
            format!("the larger cache leaves at most {} % of the cascades here, {} % there.", cell(worst), cell(most)),
        )
        .by(data.servers.command.clone()))
}

fn speedups(data: &Data) -> anyhow::Result<Figure> {
    let schemes = ["ptlb", "stlb-1k", "stlb-4k", "ptlb+stlb"];
    let (mut rows, mut order) = (Vec::new(), (Vec::new(), Vec::new()));
    for name in APPS {
        let mut row = vec![name.to_owned()];
        for scheme in schemes {
            let saved = app(data, name, scheme)?.number("penalty_saved_pct")?;
            let said = data.thesis.at(&["Table 4.10 (%)", name, scheme])?;
            row.push(percent(saved));
            row.push(percent(said));
            order.0.push(saved);
            order.1.push(said);
        }
        rows.push(row);
    }
    let head = ["", "PTLB", "*PTLB", "DM 1K", "*DM 1K", "DM 4K", "*DM 4K", "both", "*both"];
    let correlation = rank_correlation(&order.0, &order.1);
    Ok(Figure::new(PAPER, "Table 4.10", "Speedup of the applications", "Ours: penalty of kernel misses saved. Printed: run time saved, of which such misses are 1 to 5 %.")
        .table(Table::new("", &head, rows))
        .says(
            Verdict::Open,
            format!("the model has no run time of an application's own work, so that only what is saved of the penalty can stand here; rank correlation {}.", cell(correlation)),
        )
        .by(data.apps.command.clone()))
}

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

/// Figures 4-5 to 4-8.
fn synthetic(data: &Data) -> anyhow::Result<Vec<Figure>> {
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
        let near =
            |range: (f64, f64), low: f64, high: f64, by: f64| range.1 > low - by && range.0 < high + by;
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
        figures.push(
            Figure::new(PAPER, &format!("Figure 4-{at}"), &format!("Kernel misses over {title}"), "The thesis's synthetic benchmark on a model of Mach and the R3000.")
                .chart(Chart::curves("Kernel misses", label, "misses a message", (false, false), curves(rows, x, misses)?))
                .table(Table::new("Misses removed", &["", "ours", "*thesis"], printed_table))
                .says(
                    Verdict::of(near(ptlb, low, high, 2.0) && near(stlb, cached, cached + 5.0, 3.0), near(ptlb, low, high, 10.0)),
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
        figures.push(
            Figure::new(
                PAPER,
                &format!("Figure 4-{}", at + 1),
                &format!("Penalties over {title}"),
                "Cycles of kernel misses and of what the schemes add, over those under Mach.",
            )
            .chart(Chart::curves("Penalty", label, "% of Mach's", (false, false), costs))
            .says(
                Verdict::of(near(both, low, high, 5.0) && ours_low > low - 15.0, near(both, low, high, 15.0)),
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
    Ok(figures)
}

fn granular(lab: &Lab, ipcs: &str, thesis: &Printed, at: &str, granularity: u32) -> anyhow::Result<Figure> {
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
    let off = ours_means.iter().zip(&said_means).map(|(ours, said)| ours / said).fold(0.0, f64::max);
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
                "the order of the schemes is {} ({}, {} and {} % on average); our speedups are up to {} times the printed ones, for a message of the model does nothing but send.",
                if order { "the thesis's" } else { "not the thesis's" },
                cell(ptlb),
                cell(stlb),
                cell(both),
                cell(off)
            ),
        )
        .by(rows.command))
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
