//! Table 4.1: the applications under Mach.

use tlblab::mach::Scheme;

use crate::figure::{Figure, Table, cell, percent};

use super::applications::{app, closeness_verdict};
use super::{APPS, Data, PAPER, STAND_INS};

/// Returns Table 4.1.
///
/// # Errors
///
/// If the lab's rows lack a number.
pub(super) fn baseline(data: &Data) -> anyhow::Result<Figure> {
    let shares = |kinds: [f64; 3]| kinds.map(|kind| 100.0 * kind / kinds.iter().sum::<f64>());
    let (mut off, mut rows, mut all_said) = (Vec::new(), Vec::new(), Vec::new());
    for name in APPS {
        let said = ["L1K", "L2", "L3"].map(|kind| data.thesis.at(&["Table 4.1 (thousands)", name, kind]));
        let [l1k, l2, l3] = said;
        let said = shares([l1k?, l2?, l3?]);
        all_said.push(said);
        let row = app(data, name, Scheme::Mach)?;
        let ours = shares([row.l1k, row.l2, row.l3].map(|count| count as f64));
        off.extend(ours.iter().zip(said).map(|(ours, said)| (ours - said).abs()));
        let pairs = ours.into_iter().zip(said).flat_map(|(ours, said)| [percent(ours), percent(said)]);
        rows.push([name.to_owned()].into_iter().chain(pairs).collect());
    }
    let talk = data.talk.one("Mach", |row| row.scheme == Scheme::Mach)?;
    let talk = shares([talk.l1k, talk.l2, talk.l3].map(|count| count as f64));
    let apart =
        |said: &[f64; 3]| talk.iter().zip(said).map(|(ours, said)| (ours - said).abs()).fold(0.0, f64::max);
    let nearest = all_said.iter().map(apart).fold(f64::INFINITY, f64::min);
    let [l1k, l2, l3] = talk.map(percent);
    let none = || "-".to_owned();
    rows.push(vec!["three programs that talk".into(), l1k, none(), l2, none(), l3, none()]);
    let (mean, _) = crate::rows::mean(&off);
    let most = off.iter().copied().fold(0.0, f64::max);
    let head = ["", "L1K, ours", "*L1K", "L2, ours", "*L2", "L3, ours", "*L3"];
    Ok(Figure::new(PAPER, "Table 4.1", "The applications under Mach", STAND_INS)
        .table(Table::new("Shares of the kernel misses", &head, rows))
        .says(
            closeness_verdict(&off),
            format!(
                "the shares of the kinds lie {} points from the printed ones on average, {} at most: the stand-ins' programs have more pages. Those of three \
                 programs that were recorded as they talked lie within {} points of an application's. Totals cannot be compared: they depend on \
                 how many messages a run sends, which is not printed.",
                cell(mean),
                cell(most),
                cell(nearest)
            ),
        )
        .by(data.apps.command.clone())
        .by(data.talk.command.clone()))
}
