//! Figures 4-1 to 4-4 and Tables 4.3, 4.4 and 4.7 to 4.9: misses removed, and penalties, under each scheme.

use tlblab::mach::Scheme;

use crate::chart::{Chart, Series};
use crate::figure::Figure;

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
