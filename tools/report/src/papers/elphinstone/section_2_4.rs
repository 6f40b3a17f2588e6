//! Section 2.4: one software TLB for all address spaces; numbers that run out; and one hashed table for all (section 6).

use anyhow::Context;
use tlbkit_names::{H8K, H128K, HR};
use tlblab::spaces::{Row, Spaces};

use crate::chart::{Chart, Series};
use crate::figure::{Figure, Table, Verdict, cell, holding, percent};
use crate::lab::Lab;
use crate::rows::Rows;

use super::PAPER;

/// The software TLBs: for all address spaces one of this size, or a quarter of it each.
const SIZES: [(&str, &str); 3] = [("8 KB", "2 KB"), ("32 KB", "8 KB"), ("128 KB", "32 KB")];

/// Returns the row of a way to serve the programs.
fn of<'a>(rows: &'a Rows<Row>, what: &str, scheme: &str, turn: u64) -> anyhow::Result<&'a Row> {
    let name = format!("{what}, {scheme}, turns of {turn}");
    rows.one(&name, |row| row.what == what && row.scheme == scheme && row.turn == turn)
}

/// Returns section 2.4.
///
/// # Errors
///
/// If the lab fails.
pub(super) fn for_all(lab: &Lab) -> anyhow::Result<Figure> {
    let rows = lab.rows::<Spaces>(&lab.spaces())?;
    let recorded = lab.rows::<Spaces>(&format!("spaces --together {}", lab.together()))?;
    let mut turns: Vec<_> = rows.iter().map(|row| row.turn).collect();
    turns.dedup();
    let first = |rows: &Rows<Row>| rows.iter().next().map(|row| (row.programs, row.turn)).context("no row");
    let ((programs, _), (together, mean)) = (first(&rows)?, first(&recorded)?);
    let mut runs: Vec<_> =
        turns.iter().map(|&turn| (format!("turns of {turn} instructions"), &rows, turn)).collect();
    runs.push(("turns as recorded".into(), &recorded, mean));
    let hits = |rows, scheme: &str, turn| {
        let row = of(rows, "stlb", scheme, turn)?;
        anyhow::Ok(100.0 * row.stlb_hit_rate.unwrap_or(f64::NAN))
    };
    let schemes = SIZES.map(|(all, each)| {
        [
            format!("one of {all}"),
            format!("one of {all}, folded"),
            format!("{each} each"),
            format!("one of {all}, emptied"),
        ]
    });
    let (mut charts, mut cases, mut shared, mut kept, mut folding) = (Vec::new(), 0, 0, true, 0.0f64);
    for schemes in &schemes {
        let mut series = Vec::new();
        for (colour, (name, rows, turn)) in runs.iter().enumerate() {
            let rates = schemes.iter().map(|scheme| hits(rows, scheme, *turn));
            let rates = rates.collect::<anyhow::Result<Vec<_>>>()?;
            let [plain, folded, each, emptied] = rates[..] else { continue };
            cases += 1;
            shared += usize::from(folded >= each);
            kept &= folded > emptied;
            folding = folding.max(folded - plain);
            let points = rates.iter().enumerate().map(|(at, rate)| (at as f64, *rate)).collect();
            series.push(Series::ours(name.clone(), colour, points));
        }
        let title = format!("Hits of software TLBs of {} together", schemes[0].trim_start_matches("one of "));
        charts.push(Chart::bars(&title, "hits (%)", schemes.to_vec(), series));
    }
    let mut numbers = Vec::new();
    for (colour, (name, rows, turn)) in runs.iter().enumerate() {
        let points = rows.iter().filter(|row| row.what == "asids" && row.turn == *turn);
        let points = points.filter_map(|row| {
            let count: f64 = row.scheme.split(' ').next()?.parse().ok()?;
            Some((count, row.tlb_misses as f64))
        });
        numbers.push(Series::ours(name.clone(), colour, points.collect()));
    }
    charts.push(Chart::curves("Numbers that run out", "numbers", "TLB misses", (true, true), numbers));
    let turn = *turns.get(turns.len() / 2).context("no turn")?;
    let mut tables = Vec::new();
    for name in [H8K, H128K, HR] {
        for scheme in [format!("{name} each"), format!("one {name}"), format!("one {name}, anchor table")] {
            let Ok(row) = of(&rows, "table", &scheme, turn) else { continue };
            let loads = row.loads_mean.unwrap_or(f64::NAN);
            tables.push(vec![scheme, cell(loads), cell(row.bytes.unwrap_or(0) as f64 / 1024.0)]);
        }
    }
    let table = |scheme: String| {
        let row = of(&rows, "table", &scheme, turn)?;
        anyhow::Ok((row.loads_mean.unwrap_or(f64::NAN), row.bytes.unwrap_or(0) as f64))
    };
    let (each, one) = (table(format!("{H128K} each"))?, table(format!("one {H128K}"))?);
    let anchor = table(format!("one {H128K}, anchor table"))?;
    let misses = |rows: &Rows<Row>, what: &str, turn| {
        let of_turn = rows.iter().filter(|row| row.what == what && row.turn == turn);
        let all = of_turn.map(|row| row.tlb_misses as f64).collect::<Vec<_>>();
        all.first().zip(all.last()).map_or(f64::NAN, |(first, last)| first / last)
    };
    // Of the software TLB behind it, as the first of the numbers, one, and the last, as many as programs.
    let served = |rows: &Rows<Row>, turn| {
        let of_turn = rows.iter().filter(|row| row.what == "asids" && row.turn == turn);
        let all = of_turn.map(|row| 100.0 * row.stlb_hit_rate.unwrap_or(f64::NAN)).collect::<Vec<_>>();
        let end = |rate: Option<&f64>| percent(rate.copied().unwrap_or(f64::NAN));
        (end(all.first()), end(all.last()))
    };
    let (shortest, longest) = (turns[0], turns[turns.len() - 1]);
    let ((one_short, all_short), (one_long, all_long)) = (served(&rows, shortest), served(&rows, longest));
    let (one_recorded, all_recorded) = served(&recorded, mean);
    let claims = [
        ("one for all hits as often as one each in the same memory together", shared == cases),
        ("it hits more often than one that is emptied at every switch", kept),
        ("one large hashed table for all takes less memory than one each", one.1 < each.1),
    ];
    let about = format!(
        "{programs} shipped programs, each recorded alone, take turns of so many instructions; {together} others were recorded as they \
         waited for each other, {mean} instructions in the mean. Entries of the TLB, 48 page pairs, have the programs' numbers, and so has what is behind it. A \
         software TLB for all has its number in the tag alone, or also folded into the index. When numbers run out, the TLB and the \
         software TLB are emptied. Loads are of 32-bit words, for turns of {turn}; an anchor table leads to entries in any place, so that \
         there are as many as pages are mapped, and costs a load."
    );
    let figure = Figure::new(PAPER, "Section 2.4", "One for all address spaces, or one for each", &about);
    let figure = charts.into_iter().fold(figure, Figure::chart);
    Ok(figure
        .table(Table::new("Hashed tables", &["", "loads a refill", "KB"], tables))
        .says(
            Verdict::claims(&claims),
            format!(
                "of what the paper says of sharing, {}; the first holds in {shared} of {cases} cases. The number in the index adds up to {} points of hits. With one number, which \
                 is a flush at every switch, there are {} times the TLB misses at turns of {shortest}, {} at {longest} and {} at recorded ones, and a software TLB of 32 KB, which is \
                 emptied as well, serves {one_short}, {one_long} and {one_recorded} of them instead of {all_short}, {all_long} and {all_recorded}. One {H128K} for \
                 all takes {} of the memory of one each at {} times the loads, behind an anchor table {} and {}.",
                holding(&claims),
                cell(folding),
                cell(misses(&rows, "asids", shortest)),
                cell(misses(&rows, "asids", longest)),
                cell(misses(&recorded, "asids", mean)),
                percent(100.0 * one.1 / each.1),
                cell(one.0 / each.0),
                percent(100.0 * anchor.1 / each.1),
                cell(anchor.0 / each.0)
            ),
        )
        .by(rows.command)
        .by(recorded.command))
}
