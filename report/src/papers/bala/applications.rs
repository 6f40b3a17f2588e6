//! Tables 3.1 and 4.1 to 4.10, Figures 4-1 to 4-4: the applications, by their stand-ins.

use crate::chart::{Chart, Series};
use crate::figure::{Figure, Table, Verdict, cell, percent};
use crate::lab::Lab;
use crate::printed::{self, Printed};
use crate::rows::{Row, rank_correlation};

use super::{APPS, Data, PAPER, STAND_INS};

fn app<'a>(data: &'a Data, name: &str, scheme: &str) -> anyhow::Result<Row<'a>> {
    data.apps.one(&[("application", name), ("scheme", scheme)])
}

/// Returns Table 3.1.
///
/// # Errors
///
/// If the lab's rows lack a number.
pub(super) fn address_types(lab: &Lab, ipcs: &str, thesis: &Printed) -> anyhow::Result<Figure> {
    let rows = lab.rows(&format!("mach --address-types{ipcs}"))?;
    let (mut table, mut off, mut messages) = (Vec::new(), Vec::new(), 0.0);
    for row in rows.iter() {
        let name = row.text("address_type");
        let said = thesis.maybe(&["Table 3.1 (%)", &name]);
        let ours = row.number("pct")?;
        messages += if name.starts_with("Message buffers") { ours } else { 0.0 };
        if let Some(said) = said {
            off.push(ours - said);
        }
        table.push(vec![name, percent(ours), said.map_or("-".into(), percent)]);
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

/// Returns Table 4.1.
///
/// # Errors
///
/// If the lab's rows lack a number.
pub(super) fn baseline(data: &Data) -> anyhow::Result<Figure> {
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

/// Returns Table 4.2.
///
/// # Errors
///
/// If the lab's rows lack a number.
pub(super) fn rates(data: &Data) -> anyhow::Result<Figure> {
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

/// Returns a figure of misses that a scheme removes.
///
/// # Errors
///
/// If the lab's rows lack a number.
pub(super) fn removed(
    data: &Data,
    at: &str,
    title: &str,
    scheme: &str,
    table: &str,
) -> anyhow::Result<Figure> {
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
    (sentence, closeness_verdict(&off))
}

/// The verdict on values that lie so many points from the printed ones: all within 5, or half of them within 10.
fn closeness_verdict(off: &[f64]) -> Verdict {
    let within = |points: f64| off.iter().filter(|off| **off <= points).count();
    Verdict::of(within(5.0) == off.len(), 2 * within(10.0) >= off.len())
}

/// Returns a figure of penalties that schemes leave.
///
/// # Errors
///
/// If the lab's rows lack a number.
pub(super) fn penalties(
    data: &Data,
    at: &str,
    title: &str,
    schemes: &[(&str, &str, &str)],
) -> anyhow::Result<Figure> {
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

/// Returns Table 4.5.
///
/// # Errors
///
/// If the lab's rows lack a number.
pub(super) fn hit_rates(data: &Data) -> anyhow::Result<Figure> {
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
///
/// # Errors
///
/// If the lab's rows lack a number.
pub(super) fn cascaded(data: &Data) -> anyhow::Result<Figure> {
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
            Verdict::most(&left, most + 5.0, 30.0),
            format!("the larger cache leaves at most {} % of the cascades here, {} % there.", cell(worst), cell(most)),
        )
        .by(data.servers.command.clone()))
}

/// Returns Table 4.10.
///
/// # Errors
///
/// If the lab's rows lack a number.
pub(super) fn speedups(data: &Data) -> anyhow::Result<Figure> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_far_from_the_printed_ones_differ() {
        assert_eq!(closeness_verdict(&[0.0, 4.9, 5.0]), Verdict::Agrees);
        assert_eq!(closeness_verdict(&[0.0, 4.9, 9.0]), Verdict::Partly);
        assert_eq!(closeness_verdict(&[9.0, 4.9, 60.0, 70.0]), Verdict::Partly);
        // On average they are less than 25 points away.
        assert_eq!(closeness_verdict(&[1.0, 20.0, 24.0]), Verdict::Differs);
    }
}
