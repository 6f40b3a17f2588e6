//! Section 4.2's words on the algorithms that it does not analyse: all ten in the simulator, also under other assumptions than 4.1's.

use tlblab::shootdown::{Kind, Model, Simulate, Simulated, Source};

use crate::figure::{Figure, Table, Verdict, cell, holding, percent};
use crate::lab::Lab;
use crate::rows::Rows;

use super::PAPER;

/// What is simulated beside the model of 4.1.
const WAYS: [(&str, &str); 6] = [
    ("4.1's", ""),
    ("constant computations", " --services constant"),
    ("bursts of requests", " --arrivals bursty"),
    ("few, long times without interrupts", " --masked bursty"),
    ("without interrupts for 0.1 ms at most", " --masked-at-most 0.1"),
    ("requests of a recorded kernel", ""),
];
/// The algorithms whose waits are shown for all ways: one for each kind of wait.
const SHOWN: [&str; 4] = ["2-phase", "optimistic", "optimistic'", "optimistic''"];

/// Returns the figure.
///
/// # Errors
///
/// If the lab fails.
pub(super) fn algorithms(lab: &Lab) -> anyhow::Result<Figure> {
    let seconds = if lab.quick { " --seconds 10" } else { "" };
    let log = lab.trace("kernel").with_extension("witness.xz");
    let run = |options: &str| lab.rows::<Simulate>(&format!("shootdown simulate{seconds}{options}"));
    let mut ways = Vec::new();
    for (name, options) in WAYS {
        let log = format!(" --log {}", log.display());
        ways.push((name, run(if name.starts_with("requests") { &log } else { options })?));
    }
    let of = |rows: &Rows<Simulated>, name: &str| rows.one(name, |row| row.algorithm == name).cloned();
    let table = |row: &Simulated| {
        vec![
            row.algorithm.to_string(),
            percent(100.0 * row.cpu_overhead),
            cell(row.latency_ms),
            cell(row.longest_ms),
            cell(row.longest_busy_ms),
            cell(row.interrupts),
        ]
    };
    let (mut waits, [canonical, .., bounded, _]) = (Vec::new(), &ways[..]) else { unreachable!("six ways") };
    for (name, rows) in &ways {
        let mut line = vec![(*name).into()];
        for algorithm in SHOWN {
            let row = of(rows, algorithm)?;
            line.push(format!("{}; {}", percent(100.0 * row.cpu_overhead), cell(row.longest_ms)));
        }
        waits.push(line);
    }
    // What 4.2 says they are like.
    let analysed = |options: &str, kind: Kind| -> anyhow::Result<[f64; 2]> {
        let rows = lab.rows::<Model>(&format!("shootdown analyse{options}"))?;
        let at = |source: Source| rows.one(kind.name(), |row| row.algorithm == kind && row.source == source);
        Ok([at(Source::Lower)?, at(Source::Upper)?].map(|row| row.cpu_overhead_share.unwrap_or(f64::NAN)))
    };
    let no_reply = " --p0 0 --x-reply 0.000001";
    let [low, high] = analysed(" --p0 0", Kind::OpSynch)?;
    let [remote, _] = analysed(no_reply, Kind::OpAsynch)?;
    let spread = 100.0 * (high / low - 1.0);
    let mut deviations = Vec::new();
    let mut similar = Vec::new();
    for (name, like, of_like) in [
        ("PTE-first", "op-synch, p0 = 0", 0.5 * (low + high)),
        ("TLB-first", "op-synch, p0 = 0", 0.5 * (low + high)),
        ("PTE-first''", "op-asynch, p0 = Xreply = 0", remote),
        ("TLB-first''", "op-asynch, p0 = Xreply = 0", remote),
    ] {
        let ours = of(&canonical.1, name)?.cpu_overhead;
        let off = 100.0 * (ours / of_like - 1.0);
        deviations.push(off);
        similar.push(vec![
            name.into(),
            percent(100.0 * ours),
            like.into(),
            percent(100.0 * of_like),
            percent(off),
        ]);
    }
    let [two, two_bounded] = [canonical, bounded].map(|(_, rows)| of(rows, "2-phase"));
    let (two, two_bounded) = (two?, two_bounded?);
    let slowest = canonical.1.iter().filter(|row| row.interrupts > 0.0).map(|row| row.longest_busy_ms);
    let claims = [
        (
            "of the algorithms that interrupt, 2-phase keeps a CPU longest",
            slowest.fold(0.0, f64::max) <= two.longest_busy_ms,
        ),
        (
            "bounded times without interrupts shorten its longest wait",
            two_bounded.longest_ms < two.longest_ms,
        ),
    ];
    let about = "The thesis analyses three of its ten algorithms, and says to which of them others are similar. Here all ten run in \
                 the simulator, on hardware of Table 2.1 that each suits, at the canonical values of 4.4.1.";
    let waited = format!(
        "simulated overheads lie within {} % of what 4.2 calls similar; to agree they may differ by as much as the two bounds of \
         op-synch, {} %, and in part by 10 %. Beyond the thesis, {}.",
        cell(deviations.iter().fold(0.0, |most: f64, off| most.max(off.abs()))),
        cell(spread),
        holding(&claims)
    );
    let mut figure = Figure::new(PAPER, "Section 4.2", "The algorithms that are not analysed", about)
        .table(Table::new(
            "Overheads",
            &["algorithm", "simulated", "*similar to", "analysed", "deviation"],
            similar,
        ))
        .table(Table::new(
            "All ten",
            &[
                "algorithm",
                "CPU overhead",
                "latency (ms)",
                "longest",
                "a CPU kept longest (ms)",
                "interrupts a CPU and second",
            ],
            canonical.1.iter().map(table).collect(),
        ))
        .table(Table::new(
            "CPU overhead, and the longest latency in ms, under other assumptions",
            &[&["assumption"], &SHOWN[..]].concat(),
            waits,
        ))
        .says(Verdict::most(&deviations, spread, 10.0), waited);
    for (_, rows) in ways {
        figure = figure.by(rows.command);
    }
    Ok(figure.by("tlblab shootdown analyse --p0 0").by(format!("tlblab shootdown analyse{no_reply}")))
}
