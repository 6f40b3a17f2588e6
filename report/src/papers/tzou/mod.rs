//! Tzou: the performance of shootdown algorithms, which hardware each suits, and what moving data costs.

use std::collections::BTreeMap;

use crate::chart::{Chart, Series};
use crate::figure::{Figure, Table, Verdict, cell};
use crate::lab::Lab;
use crate::printed::{self, Printed};
use crate::rows::{Row, Rows};

mod moving;

const PAPER: &str = "Tzou";

/// The algorithms of chapter 4, in the order of colours.
const ALGORITHMS: [&str; 3] = ["2-phase", "op-synch", "op-asynch"];

/// Returns the figures.
///
/// # Errors
///
/// If the lab fails.
pub(crate) fn figures(lab: &Lab) -> anyhow::Result<Vec<Figure>> {
    let printed = printed::tzou()?;
    let mut figures = vec![damages(lab)?, algorithms(lab, &printed)?];
    for (figure, algorithm) in [("4.2", "2-phase"), ("4.3", "op-synch"), ("4.4", "op-asynch")] {
        figures.push(verified(lab, figure, algorithm)?);
    }
    let claims = lab.rows("shootdown claims")?;
    for (figure, title, x, section) in [
        ("4.5", "The number of CPUs", "CPUs of an operation", "4.4.2"),
        ("4.6", "The time between requests", "ms between requests", "4.4.3"),
        ("4.7", "The service time", "ms of a reply", "4.4.4"),
    ] {
        figures.push(performance(lab, &claims, figure, title, x, section)?);
    }
    figures.extend(moving::figures(lab, &printed)?);
    Ok(figures)
}

/// Table 2.2.
fn damages(lab: &Lab) -> anyhow::Result<Figure> {
    let rows = lab.rows("explore --damages")?;
    let (mut table, mut found, mut all) = (Vec::new(), 0, 0);
    for row in rows.iter() {
        let case = row.text("case");
        let (change, damage) = case.split_once(": ").unwrap_or((&case, ""));
        let why = row.text("why");
        all += 1;
        found += usize::from(row.is("expected"));
        table.push(vec![change.into(), damage.into(), why, row.text("worlds"), row.text("steps")]);
    }
    Ok(Figure::new(PAPER, "Table 2.2", "How a TLB and a PTE can differ, and what it does", "For each kind of change without any algorithm, the explorer looks for a run in which the printed damage happens.")
        .table(Table::new("", &["the PTE is changed to", "*damage", "found", "worlds", "steps"], table))
        .says(Verdict::count(found, all), format!("{found} of {all} printed damages happen, each in the run of fewest steps that the explorer can show."))
        .by(rows.command))
}

/// Table 3.1.
fn algorithms(lab: &Lab, printed: &Printed) -> anyhow::Result<Figure> {
    let about = "Every algorithm on every hardware of the thesis, over all interleavings: sound where it suits, broken \
                 where it does not.";
    let figure = Figure::new(PAPER, "Table 3.1", "Algorithms, and the hardware that each suits", about);
    let claims = printed.list(&["Table 3.1"]);
    let text = |claim: &serde_json::Value, at: usize| claim[at].as_str().unwrap_or_default().to_owned();
    let rows = lab.rows("explore --cpus 2")?;
    let mut table = Vec::new();
    let (mut expected, mut all) = (0, 0);
    for claim in claims {
        let name = text(claim, 0);
        let mut on: BTreeMap<String, bool> = BTreeMap::new();
        let mut cases = 0;
        for row in rows.of("algorithm", &name) {
            cases += 1;
            all += 1;
            expected += usize::from(row.is("expected"));
            *on.entry(row.text("hardware")).or_insert(true) &= row.text("verdict") == "sound";
        }
        let names = |sound| {
            on.iter()
                .filter(|(_, is)| **is == sound)
                .map(|(name, _)| name.as_str())
                .collect::<Vec<_>>()
                .join(", ")
        };
        table.push(vec![name, text(claim, 1), text(claim, 2), names(true), names(false), cases.to_string()]);
    }
    Ok(figure
        .table(Table::new(
            "",
            &["algorithm", "*semantics", "*suits TLBs", "sound on", "broken on", "cases"],
            table,
        ))
        .says(
            Verdict::of(expected == all, expected * 50 >= all * 49),
            format!("{expected} of {all} pairings come out as the table has them."),
        )
        .by(rows.command))
}

/// Figures 4.2 to 4.4.
fn verified(lab: &Lab, figure: &str, algorithm: &str) -> anyhow::Result<Figure> {
    let seconds = if lab.quick { " --seconds 4" } else { "" };
    let rows = lab.rows(&format!("shootdown sweep {figure}{seconds}"))?;
    let mut charts = Vec::new();
    for (field, title, unit, by) in
        [("cpu_overhead", "CPU overhead", "%", 100.0), ("latency_ms", "Latency", "ms", 1.0)]
    {
        let of = |source: &str, times: Option<f64>| {
            let mut points = Vec::new();
            for row in rows.of("source", source) {
                let (x, m, n) = (row.number("x")?, row.number("m")?, row.number("n")?);
                if let (Some(value), true) = (row.maybe(field), times.is_none_or(|times| n == times * m)) {
                    points.push((x, by * value));
                }
            }
            Ok::<_, anyhow::Error>(points)
        };
        charts.push(Chart::curves(
            title,
            "CPUs of an operation",
            unit,
            (false, false),
            vec![
                Series::ours("lower bound", 0, of("lower", None)?),
                Series::ours("upper bound", 2, of("upper", None)?),
                Series::ours("simulated, N = M", 1, of("simulation", Some(1.0))?).scattered(),
                Series::ours("simulated, N = 4M", 3, of("simulation", Some(4.0))?).scattered(),
            ],
        ));
    }
    let worst = |field: &str| {
        let far: Vec<f64> = rows
            .iter()
            .filter(|row| row.number("x").is_ok_and(|m| m <= 20.0))
            .filter_map(|row| row.maybe(field))
            .map(f64::abs)
            .collect();
        far.iter().copied().fold(0.0, f64::max)
    };
    let (overhead, latency) = (worst("overhead_deviation"), worst("latency_deviation"));
    let about = "The simulator runs the crate's state machines under the model of 4.1; the bounds are the equations of 4.2.";
    let title = format!("Simulation against analysis, {algorithm}");
    let start = Figure::new(PAPER, &format!("Figure {figure}"), &title, about);
    Ok(charts.into_iter().fold(start, Figure::chart)
        .says(
            Verdict::of(overhead < 10.0 && latency < 10.0, overhead < 30.0),
            format!("for M up to 20, where the thesis finds them to agree well, simulated overheads lie within {} % and latencies within {} % of the middle of the bounds.", cell(overhead), cell(latency)),
        )
        .by(rows.command))
}

/// Returns the value that the thesis plots: 2-phase's lower bound for latency, else the middle of the bounds.
fn plotted(low: Row<'_>, high: Row<'_>, field: &str) -> Option<f64> {
    let (lower, upper) = (low.maybe(field)?, high.maybe(field));
    let lower_alone = field == "latency_ms" && low.text("algorithm") == "2-phase";
    Some(if lower_alone { lower } else { 0.5 * (lower + upper.unwrap_or(lower)) })
}

/// Figures 4.5 to 4.7.
fn performance(
    lab: &Lab,
    claims: &Rows,
    figure: &str,
    title: &str,
    x: &str,
    section: &str,
) -> anyhow::Result<Figure> {
    let rows = lab.rows(&format!("shootdown sweep {figure}"))?;
    let mut out = Figure::new(
        PAPER,
        &format!("Figure {figure}"),
        title,
        "The equations of 4.2, as the thesis plots them.",
    );
    for (field, name, unit, by) in [
        ("cpu_overhead", "CPU overhead", "%", 100.0),
        ("throughput", "Throughput", "operations a CPU and second", 1.0),
        ("latency_ms", "Latency", "ms", 1.0),
        ("space", "Space overhead", "pages", 1.0),
    ] {
        let mut series = Vec::new();
        for (colour, algorithm) in ALGORITHMS.into_iter().enumerate() {
            let mut points = Vec::new();
            for low in rows.of("algorithm", algorithm).filter(|row| row.text("source") == "lower") {
                let same = |row: &Row<'_>| row.text("x") == low.text("x") && row.text("source") == "upper";
                let high = rows.of("algorithm", algorithm).find(same).unwrap_or(low);
                if let Some(value) = plotted(low, high, field) {
                    points.push((low.number("x")?, by * value));
                }
            }
            series.push(Series::ours(algorithm, colour, points));
        }
        if field == "cpu_overhead" && figure == "4.5" {
            let printed = printed::tzou()?;
            let m = printed.at(&["4.4.2", "2-phase is above 10 % from M"])?;
            let asynch = printed.at(&["4.4.2", "op-asynch % at M = 50"])?;
            series.push(Series::printed("thesis, 2-phase", 0, vec![(m, 10.0)]));
            series.push(Series::printed("thesis, op-asynch", 2, vec![(50.0, asynch)]));
        }
        out = out.chart(Chart::curves(name, x, unit, (false, false), series));
    }
    let (mut table, mut passed, mut partly, mut all) = (Vec::new(), 0, 0, 0);
    for row in claims.of("section", section) {
        let verdict = row.text("verdict");
        all += 1;
        passed += usize::from(verdict == "pass");
        partly += usize::from(verdict == "partly");
        table.push(vec![row.text("claim"), row.text("ours"), verdict]);
    }
    Ok(out
        .table(Table::new("", &["*the text says", "ours", "verdict"], table))
        .says(
            Verdict::of(passed == all, passed + partly == all),
            format!("of {all} statements of the text {passed} hold, {partly} more in part."),
        )
        .by(rows.command)
        .by(claims.command.clone()))
}
