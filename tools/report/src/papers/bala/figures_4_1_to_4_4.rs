//! Figures 4-1 to 4-4 and Tables 4.3, 4.4 and 4.7 to 4.9: misses removed, and penalties, under each scheme.

use tlblab::mach::Scheme;

use crate::chart::{Chart, Series};
use crate::figure::{Figure, Verdict, cell, holding};

use super::applications::{app, closeness, names};
use super::{APPS, Data, PAPER, STAND_INS};

/// Returns a figure of misses that a scheme removes.
///
/// # Errors
///
/// If the lab's rows lack a number.
pub(super) fn removed(
    data: &Data,
    at: &str,
    title: &str,
    scheme: Scheme,
    table: &str,
) -> anyhow::Result<Figure> {
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for (place, name) in APPS.iter().enumerate() {
        ours.push((place as f64, app(data, name, scheme)?.misses_removed_pct));
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

/// The applications that prefetching helps least: they send messages to one server only (4.3.1).
const SINGLE_SERVER: [&str; 2] = ["IOzone", "mab"];

/// Returns Figure 4-1 by kinds of misses, of which the thesis prints no numbers.
///
/// # Errors
///
/// If the lab's rows lack a number.
pub(super) fn kinds(data: &Data) -> anyhow::Result<Figure> {
    let (mut bars, mut halved, mut least) = ([const { Vec::new() }; 3], true, Vec::new());
    for (place, name) in APPS.iter().enumerate() {
        let (mach, ptlb) = (app(data, name, Scheme::Mach)?, app(data, name, Scheme::Ptlb)?);
        let counts = [(mach.l1k, ptlb.l1k), (mach.l2, ptlb.l2), (mach.l3, ptlb.l3)];
        let removed = counts.map(|(before, after)| 100.0 * (1.0 - after as f64 / before as f64));
        for (points, removed) in bars.iter_mut().zip(removed) {
            points.push((place as f64, removed));
        }
        if !SINGLE_SERVER.contains(name) {
            halved &= removed.iter().all(|removed| (40.0..=60.0).contains(removed));
        }
        least.push((ptlb.misses_removed_pct, *name));
    }
    least.sort_by(|one, other| one.0.total_cmp(&other.0));
    let single = least.iter().take(2).all(|(_, name)| SINGLE_SERVER.contains(name));
    let claims = [
        ("about half of each kind is removed, 40 to 60 %, in all but IOzone and mab", halved),
        ("IOzone and mab gain least", single),
    ];
    let range = |points: &[(f64, f64)]| {
        let of = points.iter().map(|(_, removed)| *removed);
        format!(
            "{} to {} %",
            cell(of.clone().fold(f64::INFINITY, f64::min)),
            cell(of.fold(f64::NEG_INFINITY, f64::max))
        )
    };
    let [l1k, l2, l3] = bars.each_ref().map(|points| range(points));
    let series = ["L1K", "L2", "L3"].into_iter().zip(bars).enumerate();
    let series = series.map(|(colour, (name, points))| Series::ours(name, colour + 1, points)).collect();
    Ok(Figure::new(PAPER, "Figure 4-1", "Each kind of kernel TLB misses with prefetching", STAND_INS)
        .chart(Chart::bars("Misses removed", "% of Mach's", names(), series))
        .says(
            Verdict::claims(&claims),
            format!("of what the thesis says, {}. Prefetching removes {l1k} of L1K, {l2} of L2 and {l3} of L3 misses.", holding(&claims)),
        )
        .by(data.apps.command.clone()))
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
    schemes: &[(Scheme, &str, &str)],
) -> anyhow::Result<Figure> {
    let mut series = Vec::new();
    let (mut all_ours, mut all_theirs) = (Vec::new(), Vec::new());
    for (colour, (scheme, column, table)) in schemes.iter().enumerate() {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for (place, name) in APPS.iter().enumerate() {
            let left = 100.0 - app(data, name, *scheme)?.penalty_saved_pct;
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
