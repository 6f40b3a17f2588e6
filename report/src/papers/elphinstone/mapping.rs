//! Elphinstone et al., Figures 7 and 9 to 11: tasks and mapping operations, from `tlblab mapping`.

use crate::chart::{Chart, Series};
use crate::figure::{Figure, Table, Verdict, cell};
use crate::lab::Lab;
use crate::printed::Printed;
use crate::rows::Rows;

const PAPER: &str = "Elphinstone";
const NAMES: [&str; 7] = ["MPT", "G16", "GA", "H8k", "H128k", "HR", "C128k"];
const HOST: &str = "Timed on this host, the tables in turn, median of the rounds: ratios mean something, nanoseconds \
                    depend on the host. The paper's times include its kernel's system calls, ours the table alone.";

fn run(lab: &Lab) -> anyhow::Result<Rows> {
    lab.rows(if lab.quick { "mapping --rounds 50" } else { "mapping --rounds 1000" })
}

fn names() -> Vec<String> {
    NAMES.iter().map(|name| (*name).to_owned()).collect()
}

fn ratio(rows: &Rows, benchmark: &str, name: &str) -> anyhow::Result<f64> {
    rows.one(&[("benchmark", benchmark), ("name", name)])?.number("of_mpt")
}

/// Returns Figure 7.
///
/// # Errors
///
/// If the lab fails.
pub(super) fn tasks(lab: &Lab, printed: &Printed) -> anyhow::Result<Figure> {
    let rows = run(lab)?;
    let mut points = Vec::new();
    for (at, name) in NAMES.iter().enumerate() {
        points.push((at as f64, rows.one(&[("benchmark", "task"), ("name", name)])?.number("ns")?));
    }
    let of = |name: &str| ratio(&rows, "task", name);
    let small = of("G16")? / of("H8k")?;
    let least =
        [of("MPT")?, of("H128k")?, of("C128k")?].into_iter().fold(f64::INFINITY, f64::min) / of("G16")?;
    let said = printed.at(&["4.2 (Figure 7)", "GPT over small HPT"])?;
    let tenfold = printed.at(&["4.2 (Figure 7)", "MPT, CPT and large HPT over GPT, at least"])?;
    let table = vec![
        vec!["G16 over H8k".into(), cell(small), cell(said)],
        vec![
            "least of MPT, H128k, C128k over G16".into(),
            cell(least),
            format!("more than {}", cell(tenfold)),
        ],
    ];
    let about = format!("A table created, one page mapped, the table taken apart. {HOST}");
    Ok(Figure::new(PAPER, "Figure 7", "Task creation and deletion", &about)
        .chart(Chart::bars("A task", "ns", names(), vec![Series::ours("ns", 0, points)]).on_log())
        .table(Table::new("", &["ratio", "ours", "*paper"], table))
        .says(
            Verdict::of(small < 1.0 && least > tenfold, small < 1.0),
            format!(
                "GPT's tasks are the cheapest there and {} here; the large tables cost at least {} times as much, more \
                 than {} in the paper.",
                if small < 1.0 { "cheaper than the small HPT's" } else { "not cheaper than the small HPT's" },
                cell(least),
                cell(tenfold)
            ),
        )
        .by(rows.command))
}

/// Returns Figures 9, 10 and 11.
///
/// # Errors
///
/// If the lab fails.
pub(super) fn protection(lab: &Lab, printed: &Printed) -> anyhow::Result<[Figure; 3]> {
    let rows = run(lab)?;
    let mut series = Vec::new();
    for (colour, benchmark) in ["PROT1", "PROTN"].into_iter().enumerate() {
        let mut points = Vec::new();
        for (at, name) in NAMES.iter().enumerate() {
            points.push((at as f64, rows.one(&[("benchmark", benchmark), ("name", name)])?.number("ns")?));
        }
        series.push(Series::ours(benchmark, colour, points));
    }
    let saved: Vec<f64> =
        series[0].points.iter().zip(&series[1].points).map(|(one, n)| 100.0 * (1.0 - n.1 / one.1)).collect();
    let (least, most) =
        saved.iter().fold((f64::MAX, f64::MIN), |(low, high), &at| (low.min(at), high.max(at)));
    let low = printed.at(&["4.2 (Figure 9)", "PROTN below PROT1, least %"])?;
    let high = printed.at(&["4.2 (Figure 9)", "PROTN below PROT1, most %"])?;
    let about = format!(
        "128 neighbouring pages write-protected, then unprotected one by one in random order. {HOST}"
    );
    let ninth = Figure::new(PAPER, "Figure 9", "Protecting a compact region", &about)
        .chart(Chart::bars("A page protected and unprotected", "ns", names(), series))
        .says(
            Verdict::of(least >= low * 0.8, most >= low),
            format!(
                "the paper saves {} to {} % with one call for all pages, we {} to {} %: there a system call is saved \
                 and the work stays, here the work of the walk is.",
                cell(low),
                cell(high),
                cell(least),
                cell(most)
            ),
        )
        .by(rows.command.clone());
    let tenth = sparse(&rows, "Figure 10", "Protecting a sparse region", "0", "")?;
    let segment = printed.at(&["4.2 (Figure 11)", "additional segment (Mb)"])?;
    let more = format!(" The task has {} Mb mapped besides.", cell(segment));
    let eleventh = sparse(&rows, "Figure 11", "The same beside a large segment", &cell(segment), &more)?;
    Ok([ninth, tenth, eleventh])
}

fn sparse(rows: &Rows, at: &str, title: &str, segment: &str, more: &str) -> anyhow::Result<Figure> {
    let mut series = Vec::new();
    let mut growth = Vec::new();
    for (colour, name) in NAMES.iter().enumerate() {
        let mut points = Vec::new();
        for row in rows.of("benchmark", "sparse").filter(|row| row.text("segment_mb") == segment) {
            if row.text("name") == *name {
                points.push((row.number("region_kb")?, row.number("ns")?));
            }
        }
        let (Some(first), Some(last)) = (points.first(), points.last()) else { continue };
        growth.push((*name, last.1 / first.1));
        series.push(Series::ours(*name, colour, points));
    }
    let of =
        |name: &str| growth.iter().find(|(other, _)| *other == name).map_or(f64::NAN, |(_, growth)| *growth);
    let others = ["MPT", "H128k", "C128k"];
    let worse = others.iter().filter(|name| of(name) > of("G16")).count();
    let about = format!(
        "16 pages at random places of a region, write-protected in one call and unprotected one by one.{more} {HOST}"
    );
    let chart = Chart::curves("A page protected and unprotected", "region (kb)", "ns", (true, true), series);
    Ok(Figure::new(PAPER, at, title, &about)
        .chart(chart.ticks(&[64.0, 256.0, 1024.0, 4096.0, 16384.0]))
        .says(
            Verdict::of(worse == 3 && of("G16") < 3.0, worse > 0),
            format!(
                "from 64 kb to 16 Mb the paper's GPT hardly changes and MPT, large HPT and CPT drop; here the cost grows \
                 {} times for G16, {} for MPT, {} for H8k, {} for H128k and {} for C128k.",
                cell(of("G16")),
                cell(of("MPT")),
                cell(of("H8k")),
                cell(of("H128k")),
                cell(of("C128k"))
            ),
        )
        .by(rows.command.clone()))
}
