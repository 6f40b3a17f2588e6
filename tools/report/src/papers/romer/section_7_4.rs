//! Section 7.4's reservations, where memory is short: the policies on several programs in the same memory.

use tlblab::superpage::{Pressed, Pressure};

use crate::chart::{Chart, Series};
use crate::figure::{Figure, Table, Verdict, cell, holding};
use crate::lab::Lab;

use super::PAPER;

/// The programs that take turns.
const PROGRAMS: [&str; 4] = ["sort", "gzip", "sqlite", "perl"];

/// The policies that are compared: of section 7.4, of the paper, and what came after it.
const POLICIES: [&str; 6] = ["THRIFT", "RESERVE", "APPROX-ONLINE", "RUNS", "INGENS", "HAWKEYE"];

/// Memory that is plentiful, in percent of the pages that are touched.
const PLENTY: u64 = 400;

/// Section 7.4.
pub(super) fn pressure(lab: &Lab) -> anyhow::Result<Figure> {
    let traces = PROGRAMS.map(|name| lab.trace(name).display().to_string()).join(",");
    let some = if lab.quick { 3_000_000 } else { 20_000_000 };
    let line = format!("pressure --traces {traces} --instructions {some}");
    let rows = lab.rows::<Pressure>(&format!("{line} --memory 90,100,110,125,150,200,{PLENTY}"))?;
    let changing = lab.rows::<Pressure>(&format!("{line} --memory 150 --thresholds 125 --rights 100"))?;
    let of = |policy: &str, threshold: u32| {
        rows.iter().filter(move |row| row.policy == policy && row.threshold == threshold).collect::<Vec<_>>()
    };
    let all = POLICIES.map(|policy| of(policy, 125));
    let [thrift, reserve, approx, runs, ..] = &all;
    let memory = |rows: &[&Pressed], value: fn(&Pressed) -> f64| {
        rows.iter().map(|row| (row.memory_pct as f64, value(row))).collect::<Vec<_>>()
    };
    let curves = |value: fn(&Pressed) -> f64| {
        let curves = POLICIES.iter().zip(&all).enumerate();
        curves
            .map(|(colour, (name, rows))| Series::ours(*name, colour, memory(rows, value)))
            .collect::<Vec<_>>()
    };
    let mut sweep = Vec::new();
    for (colour, pct) in approx.iter().map(|row| row.memory_pct).enumerate() {
        let at = rows.iter().filter(|row| row.policy == "APPROX-ONLINE" && row.memory_pct == pct);
        let points = at.map(|row| (f64::from(row.threshold) / 1000.0, row.tlbmcpi)).collect();
        sweep.push(Series::ours(format!("memory {pct} %"), colour, points));
    }
    let mut table = Vec::new();
    let shown = all
        .iter()
        .flatten()
        .copied()
        .map(|row| (row, ""))
        .chain(changing.iter().map(|row| (row, ", rights change")));
    for (row, what) in shown {
        table.push(vec![
            format!("{}{what}", row.policy),
            row.memory_pct.to_string(),
            row.tlb_misses.to_string(),
            row.promotions.to_string(),
            row.kb_copied.to_string(),
            row.refused.to_string(),
            row.broken.to_string(),
            row.demoted.to_string(),
            row.demoted_for_rights.to_string(),
            row.page_ins.to_string(),
            cell(row.tlbmcpi),
            cell(row.mcpi),
        ]);
    }
    let ends = |rows: &[&Pressed]| Some((rows.first()?.tlbmcpi, rows.last()?.tlbmcpi));
    let [thrift_at, reserve_at, approx_at, runs_at] =
        [thrift, reserve, approx, runs].map(|rows| ends(rows).unwrap_or((f64::NAN, f64::NAN)));
    let claims = [
        (
            "with plentiful memory (400 %) reservations always succeed: none is broken, and RESERVE copies nothing",
            thrift.iter().chain(reserve).filter(|row| row.memory_pct == PLENTY).all(|row| row.broken == 0)
                && reserve.iter().all(|row| row.kb_copied == 0),
        ),
        (
            "their effectiveness depends on the contention for memory: THRIFT's overhead is larger in the least memory than in the most",
            thrift_at.0 > thrift_at.1,
        ),
    ];
    let about = "Four programs take turns in one memory, given in percent of the pages that they touch. A reservation holds 64 KB from \
                 the first touch on; what lacks a frame breaks reservations, demotes superpages with untouched pages, and pages out. The \
                 paper leaves reservations out, as accurate assessment needs the whole system's contention (7.4).";
    let head = [
        "policy",
        "memory %",
        "TLB misses",
        "promotions",
        "KB copied",
        "refused",
        "broken",
        "demoted",
        "for rights",
        "page-ins",
        "TLBMCPI",
        "with page-ins",
    ];
    let x = "memory (% of the pages that are touched)";
    Ok(Figure::new(PAPER, "Section 7.4", "Reservations under contention for memory", about)
        .chart(Chart::curves("TLBMCPI", x, "cycles an instruction", (false, false), curves(|row| row.tlbmcpi)))
        .chart(Chart::curves("With page-ins", x, "cycles an instruction", (false, true), curves(|row| row.mcpi)))
        .chart(Chart::curves("APPROX-ONLINE's threshold", "threshold / R", "TLBMCPI", (true, false), sweep))
        .table(Table::new("", &head, table))
        .says(
            Verdict::claims(&claims),
            format!(
                "of the paper's two statements, {}. TLBMCPI in the least memory and in the most: THRIFT {} and {}, RESERVE {} and {}, \
                 APPROX-ONLINE {} and {}; RUNS, as today's kernels do, {} and {}.",
                holding(&claims),
                cell(thrift_at.0), cell(thrift_at.1), cell(reserve_at.0), cell(reserve_at.1), cell(approx_at.0), cell(approx_at.1),
                cell(runs_at.0), cell(runs_at.1)
            ),
        )
        .by(rows.command)
        .by(changing.command.clone()))
}
