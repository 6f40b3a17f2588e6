//! Table 4.5: hit rates of the software caches.

use anyhow::Context;
use tlblab::mach::Scheme;

use crate::chart::{Chart, Series};
use crate::figure::Figure;

use super::applications::{app, closeness, names};
use super::{APPS, Data, PAPER, STAND_INS};

/// Returns Table 4.5.
///
/// # Errors
///
/// If the lab's rows lack a number.
pub(super) fn hit_rates(data: &Data) -> anyhow::Result<Figure> {
    let mut series = Vec::new();
    let (mut all_ours, mut all_theirs) = (Vec::new(), Vec::new());
    for (colour, (scheme, column)) in
        [(Scheme::Stlb1k, "DM 1K"), (Scheme::Stlb4k, "DM 4K")].into_iter().enumerate()
    {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for (place, name) in APPS.iter().enumerate() {
            let rate = app(data, name, scheme)?.stlb_hit_rate.context("a software cache without lookups")?;
            ours.push((place as f64, 100.0 * rate));
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
