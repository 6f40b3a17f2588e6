//! Section 3.1: prefetching at the scheduler's switches, and how many entries.

use tlblab::spaces::Spaces;

use crate::chart::{Chart, Series};
use crate::figure::{Figure, Verdict, holding, percent};
use crate::lab::Lab;

use super::PAPER;

/// Returns section 3.1.
///
/// # Errors
///
/// If the lab fails.
pub(super) fn at_switches(lab: &Lab) -> anyhow::Result<Figure> {
    let rows = lab.rows::<Spaces>(&lab.spaces())?;
    let mut turns: Vec<_> = rows.iter().map(|row| row.turn).collect();
    turns.dedup();
    let (mut removed, mut used) = (Vec::new(), Vec::new());
    let recorded = lab.rows::<Spaces>(&format!("spaces --together {}", lab.together()))?;
    let mean = recorded.iter().next().map_or(0, |row| row.turn);
    let mut runs: Vec<_> =
        turns.iter().map(|&turn| (format!("turns of {turn} instructions"), &rows, turn)).collect();
    runs.push(("turns as recorded".into(), &recorded, mean));
    for (colour, (name, rows, turn)) in runs.into_iter().enumerate() {
        let of_turn = || rows.iter().filter(|row| row.what == "prefetch" && row.turn == turn);
        let entries = |scheme: &str| scheme.split(' ').next().and_then(|count| count.parse().ok());
        let without = of_turn().next().map_or(f64::NAN, |row| row.tlb_misses as f64);
        let (mut saved, mut share) = (Vec::new(), Vec::new());
        for row in of_turn().skip(1) {
            let count: f64 = entries(&row.scheme).unwrap_or(f64::NAN);
            saved.push((count, 100.0 * (1.0 - row.tlb_misses as f64 / without)));
            let (loaded, of_use) = (row.prefetched.unwrap_or(0), row.used.unwrap_or(0));
            share.push((count, 100.0 * of_use as f64 / loaded.max(1) as f64));
        }
        removed.push(Series::ours(name.clone(), colour, saved));
        used.push(Series::ours(name, colour, share));
    }
    let last = |series: &Series| series.points.last().map_or(f64::NAN, |point| point.1);
    let first = |series: &Series| series.points.first().map_or(f64::NAN, |point| point.1);
    let rises = |series: &Series| first(series) < last(series);
    let claims = [
        (
            "the shorter the turn, the more of the misses go",
            removed[..turns.len()].windows(2).all(|pair| last(&pair[0]) > last(&pair[1])),
        ),
        ("more entries remove more misses", removed.iter().all(rises)),
        (
            "of more entries a larger part is never used",
            used.iter().all(|series| last(series) < first(series)),
        ),
    ];
    let ends = |series: &[Series]| {
        let end = |at: usize| percent(series.get(at).map_or(f64::NAN, last));
        (end(0), end(turns.len() - 1), end(turns.len()))
    };
    let ((saved, saved_long, saved_then), (share, share_long, share_then)) = (ends(&removed), ends(&used));
    let (shortest, longest) = (turns.first().copied().unwrap_or(0), turns.last().copied().unwrap_or(0));
    let chart = |title, y, series| {
        Chart::curves(title, "entries loaded at a switch", y, (true, false), series)
            .ticks(&[2.0, 4.0, 8.0, 16.0, 32.0])
    };
    let about = "Shipped programs, each recorded alone, take turns on a TLB of 48 page pairs with their numbers, and three that were recorded as \
                 they waited for each other. At the \
                 switch to a program the latest entries that its last turn left in the TLB are loaded, if they are no longer there. The \
                 thesis prefetches at IPC alone, and says of the scheduler's switches that it depends on the quantum whether that is \
                 worthwhile.";
    Ok(Figure::new(PAPER, "Section 3.1", "Prefetching at the scheduler's switches", about)
        .chart(chart("Misses removed", "% of the misses", removed))
        .chart(chart("Entries used", "% of those loaded", used))
        .says(
            Verdict::claims(&claims[..1]),
            format!(
                "of what the thesis expects, {}; of what it does not say, {}. 32 entries remove {saved} of the misses at turns of {shortest} instructions and {saved_long} \
                 at {longest}; {share} and {share_long} of the entries are used. Of programs that talk, whose turns are of {mean} in the mean, \
                 they remove {saved_then}, and {share_then} are used. A prefetch takes 60 cycles there and a user's miss 10 to 40, \
                 so that of user pages none is worthwhile by its own numbers: kernel misses, which it prefetches, take ten times as much.",
                holding(&claims[..1]),
                holding(&claims[1..])
            ),
        )
        .by(rows.command)
        .by(recorded.command))
}
