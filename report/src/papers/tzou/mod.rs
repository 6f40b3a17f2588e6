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
    let mut figures = vec![damages(lab, &printed)?, algorithms(lab, &printed)?];
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

/// Table 2.2: every damage that it lists.
fn damages(lab: &Lab, printed: &Printed) -> anyhow::Result<Figure> {
    let rows = lab.rows("explore --damages")?;
    let listed = printed.list(&["Table 2.2"]);
    let mut table = Vec::new();
    let mut found = 0;
    for said in &listed {
        let (change, damage) = (text(said, 0), text(said, 1));
        let case = format!("{change}: {damage}");
        let row = rows.of("case", &case).next();
        let happens = row.is_some_and(|row| row.text("verdict") == "broken" && row.text("why") == damage);
        found += usize::from(happens);
        let of = |field: &str| row.map(|row| row.text(field)).unwrap_or_default();
        table.push(vec![
            change,
            damage.clone(),
            if happens { damage } else { "-".into() },
            of("worlds"),
            of("steps"),
        ]);
    }
    Ok(Figure::new(PAPER, "Table 2.2", "How a TLB and a PTE can differ, and what it does", "For each kind of change without any algorithm, the explorer looks for a run in which the printed damage happens.")
        .table(Table::new("", &["*the PTE is changed to", "*damage", "found", "worlds", "steps"], table))
        .says(Verdict::count(found, listed.len()), format!("{found} of {} printed damages happen, each in the run of fewest steps that the explorer can show.", listed.len()))
        .by(rows.command))
}

/// Returns the text at a place of a printed list.
fn text(said: &serde_json::Value, at: usize) -> String {
    said[at].as_str().unwrap_or_default().to_owned()
}

/// Tells whether the thesis finds an algorithm suitable for a TLB: whether Table 2.1, or the text for the MC88200, has every
/// property that Table 3.1 asks for. `None` if it does not say.
fn suits(printed: &Printed, algorithm: &serde_json::Value, hardware: &str) -> Option<bool> {
    let wanted = algorithm[2].as_array()?;
    wanted.iter().try_fold(true, |all, property| {
        Some(all & (printed.maybe(&["Table 2.1", hardware, property.as_str()?])? == 1.0))
    })
}

/// Table 3.1: what the thesis says of every algorithm on every TLB of its Table 2.1, against what the explorer finds.
fn algorithms(lab: &Lab, printed: &Printed) -> anyhow::Result<Figure> {
    let about = "Every algorithm on every TLB of the thesis, over all interleavings of two CPUs. A pairing is sound if no way \
                 of using it is found wrong: unmapping, write-protecting, two requesters, CPUs that come and go.";
    let figure = Figure::new(PAPER, "Table 3.1", "Algorithms, and the hardware that each suits", about);
    let rows = lab.rows("explore --cpus 2")?;
    let mut table = Vec::new();
    let (mut agreeing, mut all) = (0, 0);
    let mut otherwise = Vec::new();
    for claim in printed.list(&["Table 3.1"]) {
        let name = text(claim, 0);
        let mut sound: BTreeMap<String, bool> = BTreeMap::new();
        for row in rows.of("algorithm", &name) {
            *sound.entry(row.text("hardware")).or_insert(true) &= row.text("verdict") == "sound";
        }
        let (mut on, mut not_on) = (Vec::new(), Vec::new());
        for hardware in printed.names(&["Table 2.1"]) {
            let Some(&is_sound) = sound.get(hardware) else { continue };
            let list = if is_sound { &mut on } else { &mut not_on };
            list.push(hardware);
            let Some(said) = suits(printed, claim, hardware) else { continue };
            all += 1;
            if said == is_sound {
                agreeing += 1;
            } else {
                otherwise.push(format!("{name} on {hardware}"));
            }
        }
        let wanted: Vec<_> =
            claim[2].as_array().into_iter().flatten().filter_map(serde_json::Value::as_str).collect();
        let wanted = if wanted.is_empty() { "any".into() } else { wanted.join(", ") };
        table.push(vec![name, text(claim, 1), wanted, on.join(", "), not_on.join(", ")]);
    }
    let rest =
        if otherwise.is_empty() { String::new() } else { format!("; otherwise: {}", otherwise.join(", ")) };
    Ok(figure
        .table(Table::new("", &["algorithm", "*semantics", "*suits TLBs", "sound on", "wrong on"], table))
        .says(
            Verdict::count(agreeing, all),
            format!(
                "{agreeing} of {all} pairings come out as the thesis's Tables 2.1 and 3.1 have them{rest}. A status bit that \
                 is written from the TLB, or written again although it is set, keeps rights that may be written back from \
                 the optimistic algorithms, which the thesis gives to any TLB."
            ),
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
    let far = |field: &str| {
        let near = rows.iter().filter(|row| row.number("x").is_ok_and(|m| m <= 20.0));
        near.filter_map(|row| row.maybe(field)).collect::<Vec<_>>()
    };
    let (overheads, latencies) = (far("overhead_deviation"), far("latency_deviation"));
    let most = |values: &[f64]| values.iter().copied().map(f64::abs).fold(0.0, f64::max);
    let (overhead, latency) = (most(&overheads), most(&latencies));
    let about = "The simulator runs the crate's state machines under the model of 4.1; the bounds are the equations of 4.2.";
    let title = format!("Simulation against analysis, {algorithm}");
    let start = Figure::new(PAPER, &format!("Figure {figure}"), &title, about);
    Ok(charts.into_iter().fold(start, Figure::chart)
        .says(
            Verdict::most(&[overheads, latencies].concat(), 10.0, 30.0),
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

/// Returns the verdict of so many statements of which some hold and some more hold in part.
fn statements(passed: usize, partly: usize, all: usize) -> Verdict {
    if all == 0 { Verdict::Open } else { Verdict::of(passed == all, passed + partly == all) }
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
            statements(passed, partly, all),
            format!("of {all} statements of the text {passed} hold, {partly} more in part."),
        )
        .by(rows.command)
        .by(claims.command.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_that_fails_differs() {
        let verdicts = [(7, 0, 7), (5, 2, 7), (6, 0, 7), (0, 6, 7), (0, 0, 0)];
        let verdicts = verdicts.map(|(passed, partly, all)| statements(passed, partly, all));
        use Verdict::{Agrees, Differs, Open, Partly};
        assert_eq!(verdicts, [Agrees, Partly, Differs, Differs, Open]);
    }

    /// What the thesis finds suitable, by its own tables.
    #[test]
    fn what_the_thesis_says() {
        let printed = printed::tzou().unwrap();
        let claims = printed.list(&["Table 3.1"]);
        let of = |name: &str, hardware: &str| {
            let claim = claims.iter().find(|claim| text(claim, 0) == name).unwrap();
            suits(&printed, claim, hardware)
        };
        assert_eq!((claims.len(), printed.list(&["Table 2.2"]).len()), (10, 11));
        assert_eq!([of("PTE-first", "i386"), of("PTE-first", "vax")], [Some(true), Some(false)]);
        assert_eq!([of("TLB-first", "rp3"), of("TLB-first", "n10")], [Some(true), Some(false)]);
        // Any, also where the crate refuses some of the rights.
        assert_eq!(
            [of("2-phase", "vax"), of("optimistic", "vax"), of("optimistic'", "mc88200")],
            [Some(true); 3]
        );
        assert_eq!([of("optimistic''", "mc88200"), of("optimistic''", "vax")], [Some(true), Some(false)]);
        // Table 2.1 has no row for the MC88200.
        assert_eq!(of("PTE-first''", "mc88200"), None);
    }
}
