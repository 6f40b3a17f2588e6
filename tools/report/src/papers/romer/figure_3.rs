//! Figure 3: the TLB overhead of every policy.

use tlblab::superpage::Row;

use crate::chart::{Chart, Series};
use crate::figure::{Figure, Verdict};
use crate::lab::TRACES;

use super::{Data, NEW, PAPER, POLICIES, STAND_INS};

/// Figure 3.
pub(super) fn overhead(data: &Data) -> anyhow::Result<Figure> {
    let names: Vec<String> = POLICIES.iter().chain(&NEW).map(|policy| (*policy).to_owned()).collect();
    type Part = (&'static str, fn(&Row) -> u64);
    let parts: [Part; 3] = [
        ("miss handler", |row| row.handler_cycles),
        ("copying", |row| row.copy_cycles),
        ("bookkeeping", |row| row.book_cycles),
    ];
    let mut figure = Figure::new(PAPER, "Figure 3", "TLB overhead of every policy", STAND_INS);
    let (mut near, mut copying, mut asap_behind) = (0, 0, 0);
    for (at, (program, habit)) in TRACES.iter().enumerate() {
        let mut series = Vec::new();
        for (colour, (name, cycles)) in parts.into_iter().enumerate() {
            let mut points = Vec::new();
            for (place, policy) in names.iter().enumerate() {
                let row = data.row(at, policy)?;
                points.push((place as f64, cycles(row) as f64 / row.instructions as f64));
            }
            series.push(Series::ours(name, colour, points));
        }
        let approx = data.row(at, "APPROX-ONLINE")?;
        near += usize::from(approx.tlbmcpi < data.row(at, "FIXED-4K")?.tlbmcpi);
        copying += usize::from(approx.copy_cycles > approx.book_cycles);
        asap_behind += usize::from(data.row(at, "ONLINE")?.tlbmcpi >= approx.tlbmcpi);
        let chart = Chart::bars(
            &format!("{program} ({habit})"),
            "cycles for each instruction",
            names.clone(),
            series,
        );
        figure = figure.chart(chart.stacked());
    }
    let all = TRACES.len();
    Ok(data.by(figure.says(
        Verdict::count(near.min(copying).min(asap_behind), all),
        format!("APPROX-ONLINE is better than 4 KB pages in {near} of {all} programs, copying is more of its cost than bookkeeping in {copying}, and ONLINE is no better than it in {asap_behind}: the paper finds each for most of its programs."),
    )))
}
