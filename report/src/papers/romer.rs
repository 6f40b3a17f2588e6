//! Romer et al.: superpage promotion policies on our traces.

use crate::chart::{Chart, Series};
use crate::figure::{Figure, Table, Verdict, cell, percent};
use crate::lab::{Lab, TRACES};
use crate::printed::{self, Printed};
use crate::rows::{Row, Rows, rank_correlation};

const PAPER: &str = "Romer";

/// The paper's policies, then the new ones.
const POLICIES: [&str; 8] =
    ["FIXED-4K", "FIXED-16K", "FIXED-64K", "OFFLINE", "ASAP", "ASAP-4-64", "ONLINE", "APPROX-ONLINE"];
const NEW: [&str; 5] = ["THRIFT", "RESERVE", "SUBBLOCK", "KHUGEPAGED", "INGENS"];
/// Pages of one size, from the most misses to the most memory.
const FIXED: [&str; 7] =
    ["FIXED-4K", "FIXED-8K", "FIXED-16K", "FIXED-32K", "FIXED-64K", "FIXED-128K", "FIXED-256K"];
const STAND_INS: &str = "Our traces are shorter than the paper's runs, and a promotion costs the same: of 60 million \
                         instructions fewer promotions pay than of the paper's hundreds of millions.";

struct Data {
    /// The rows of each trace.
    runs: Vec<Rows>,
    printed: Printed,
}

impl Data {
    fn row(&self, trace: usize, policy: &str) -> anyhow::Result<Row<'_>> {
        self.runs[trace].one(&[("policy", policy)])
    }

    fn by(&self, figure: Figure) -> Figure {
        self.runs.iter().fold(figure, |figure, run| figure.by(run.command.clone()))
    }
}

/// Returns the figures.
///
/// # Errors
///
/// If the lab fails.
pub(crate) fn figures(lab: &Lab) -> anyhow::Result<Vec<Figure>> {
    let some = if lab.quick { " --instructions 20000000" } else { "" };
    let mut runs = Vec::new();
    for (name, _) in TRACES {
        let trace = lab.trace(name);
        let fixed = "FIXED-8K,FIXED-32K,FIXED-128K,FIXED-256K";
        runs.push(lab.rows(&format!("superpage --trace {} --policy all,{fixed}{some}", trace.display()))?);
    }
    let data = Data { runs, printed: printed::romer()? };
    Ok(vec![
        page_sizes(&data)?,
        baseline(&data)?,
        costs(&data)?,
        overhead(&data)?,
        misses(&data)?,
        memory(&data)?,
        execution(&data)?,
        tradeoff(&data)?,
        distribution(&data)?,
    ])
}

fn programs() -> Vec<String> {
    TRACES.iter().map(|(name, _)| (*name).to_owned()).collect()
}

/// Figure 1.
fn page_sizes(data: &Data) -> anyhow::Result<Figure> {
    let mut series = Vec::new();
    // Near the origin is where the paper sees its best policy: within 0.10 TLBMCPI (8.5) and 4 % of memory (8.4).
    let near = data.printed.at(&["8.5 (Figure 5)", "APPROX-ONLINE within"])?;
    let little = data.printed.at(&["8.4 (Figure 4)", "online policies, at most %"])?;
    let (mut fewer, mut more, mut missing, mut far) = (0, 0, 0, 0);
    for (at, (name, _)) in TRACES.iter().enumerate() {
        let mut points = Vec::new();
        for policy in FIXED {
            let row = data.row(at, policy)?;
            points.push((row.number("memory_overhead_pct")?, row.number("tlbmcpi")?));
        }
        let significant = points[0].1 > near;
        missing += usize::from(significant);
        far += usize::from(
            significant && points.iter().all(|&(memory, misses)| memory > little || misses > near),
        );
        fewer += usize::from(points[6].1 < points[0].1);
        more += usize::from(points[6].0 > points[0].0);
        series.push(Series::ours(*name, at, points));
    }
    let chart = Chart::curves(
        "4 KB at the left to 256 KB at the right",
        "memory overhead (%)",
        "TLBMCPI",
        (false, false),
        series,
    );
    let figure = Figure::new(PAPER, "Figure 1", "TLB overhead over memory for pages of one size", "Cycles of TLB misses for each instruction, 30 a miss, on two fully associative TLBs of 32 entries; each point is a page size.")
        .chart(chart)
        .says(
            Verdict::count(far + fewer.min(more), missing + TRACES.len()),
            format!("of {missing} programs with more than {near:.2} TLBMCPI no size is near the origin in {far}, in all in the paper; 256 KB pages lower TLBMCPI in {fewer} of {} programs and take more memory in {more}.", TRACES.len()),
        );
    Ok(data.by(figure))
}

fn baseline(data: &Data) -> anyhow::Result<Figure> {
    let mut rows = Vec::new();
    for (at, (name, _)) in TRACES.iter().enumerate() {
        let row = data.row(at, "FIXED-4K")?;
        let mcpi = row.number("tlbmcpi")?;
        rows.push(vec![
            (*name).into(),
            cell(row.number("instructions")? / 1e6),
            cell(row.number("tlb_misses")? / 100.0),
            percent(100.0 * mcpi / (1.0 + mcpi)),
        ]);
    }
    let mut paper = Vec::new();
    let mut range = (f64::MAX, f64::MIN);
    for name in data.printed.names(&["Table 2"]) {
        let of = |column| data.printed.at(&["Table 2", name, column]);
        let share = of("TLB time %")?;
        range = (range.0.min(share), range.1.max(share));
        paper.push(vec![name.into(), cell(of("seconds")?), cell(of("misses (100s)")?), percent(share)]);
    }
    let figure = Figure::new(PAPER, "Table 2", "Baseline: 4 KB pages", "The paper measured an Alpha with 8 KB pages; ours are simulated at one cycle an instruction and 30 a miss.")
        .table(Table::new("Ours", &["program", "instructions (10^6)", "misses (100s)", "TLB time"], rows))
        .table(Table::new("The paper's", &["program", "*seconds", "*misses (100s)", "*TLB time"], paper))
        .says(Verdict::Open, format!("other programs: the paper chose those that spend {} to {} % of their time on TLB misses.", cell(range.0), cell(range.1)));
    Ok(data.by(figure))
}

/// Table 3.
fn costs(data: &Data) -> anyhow::Result<Figure> {
    let mut rows = Vec::new();
    for policy in POLICIES {
        // The busiest trace has the most misses to divide by.
        let row = data.row(4, policy)?;
        let count = row.number("tlb_misses")?.max(1.0);
        let ours = (row.number("handler")? + row.number("book")?) / count;
        let said = data.printed.at(&["Table 3 (cycles)", policy])?;
        rows.push(vec![policy.into(), cell(ours), cell(said)]);
    }
    let figure = Figure::new(PAPER, "Table 3", "Cycles charged for a miss", "Handler and bookkeeping cycles over misses, on the database's trace: what the simulation was told to charge, as the paper's was.")
        .table(Table::new("", &["policy", "ours", "*paper"], rows))
        .says(Verdict::Open, "the simulation is told to charge what the paper charges, so there is nothing to compare; what our bookkeeping takes of instructions, `cargo xtask bookkeeping` counts.");
    Ok(data.by(figure))
}

/// Figure 3.
fn overhead(data: &Data) -> anyhow::Result<Figure> {
    let names: Vec<String> = POLICIES.iter().chain(&NEW).map(|policy| (*policy).to_owned()).collect();
    let parts = [("miss handler", "handler"), ("copying", "copy"), ("bookkeeping", "book")];
    let mut figure = Figure::new(PAPER, "Figure 3", "TLB overhead of every policy", STAND_INS);
    let (mut near, mut copying, mut asap_behind) = (0, 0, 0);
    for (at, (program, habit)) in TRACES.iter().enumerate() {
        let mut series = Vec::new();
        for (colour, (name, field)) in parts.into_iter().enumerate() {
            let mut points = Vec::new();
            for (place, policy) in names.iter().enumerate() {
                let row = data.row(at, policy)?;
                points.push((place as f64, row.number(field)? / row.number("instructions")?));
            }
            series.push(Series::ours(name, colour, points));
        }
        let of = |policy: &str, field: &str| data.row(at, policy)?.number(field);
        near += usize::from(of("APPROX-ONLINE", "tlbmcpi")? < of("FIXED-4K", "tlbmcpi")?);
        copying += usize::from(of("APPROX-ONLINE", "copy")? > of("APPROX-ONLINE", "book")?);
        asap_behind += usize::from(of("ONLINE", "tlbmcpi")? >= of("APPROX-ONLINE", "tlbmcpi")?);
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

/// Table 4.
fn misses(data: &Data) -> anyhow::Result<Figure> {
    let mut rows = Vec::new();
    let mut ours = vec![0.0; POLICIES.len()];
    for (at, (name, _)) in TRACES.iter().enumerate() {
        let mut row = vec![(*name).to_owned()];
        let base = data.row(at, "FIXED-4K")?.number("tlb_misses")?.max(1.0);
        for (policy, sum) in POLICIES.iter().zip(&mut ours) {
            let misses = data.row(at, policy)?.number("tlb_misses")?;
            *sum += misses / base / TRACES.len() as f64;
            row.push(cell(misses / 100.0));
        }
        rows.push(row);
    }
    let mut theirs = vec![0.0; POLICIES.len()];
    let mut paper = Vec::new();
    let names = data.printed.names(&["Table 4 (100s)"]);
    for name in &names {
        let base = data.printed.at(&["Table 4 (100s)", name, "FIXED-4K"])?;
        let mut row = vec![(*name).to_owned()];
        for (policy, sum) in POLICIES.iter().zip(&mut theirs) {
            let misses = data.printed.at(&["Table 4 (100s)", name, policy])?;
            *sum += misses / base / names.len() as f64;
            row.push(cell(misses));
        }
        paper.push(row);
    }
    let mut head = vec!["program"];
    head.extend(POLICIES);
    let marked: Vec<_> = POLICIES.iter().map(|policy| format!("*{policy}")).collect();
    let mut paper_head = vec!["program"];
    paper_head.extend(marked.iter().map(String::as_str));
    let points = |values: &[f64]| {
        values.iter().enumerate().map(|(at, value)| (at as f64, 100.0 * value)).collect::<Vec<_>>()
    };
    let bars = vec![Series::ours("ours", 0, points(&ours)), Series::printed("paper", 0, points(&theirs))];
    let order = rank_correlation(&ours, &theirs);
    let figure = Figure::new(PAPER, "Table 4", "TLB misses under each policy", STAND_INS)
        .chart(Chart::bars("Misses left, mean over programs", "% of those with 4 KB pages", POLICIES.map(String::from).to_vec(), bars))
        .table(Table::new("Ours, hundreds", &head, rows))
        .table(Table::new("The paper's, hundreds", &paper_head, paper))
        .says(
            Verdict::order(order),
            format!("the policies' order by misses left has a rank correlation of {} with the paper's; APPROX-ONLINE leaves {} % of the misses here and {} % there, OFFLINE {} and {} %.",
                cell(order),
                cell(100.0 * ours[7]),
                cell(100.0 * theirs[7]),
                cell(100.0 * ours[3]),
                cell(100.0 * theirs[3])),
        );
    Ok(data.by(figure))
}

/// Figure 4.
fn memory(data: &Data) -> anyhow::Result<Figure> {
    let shown = ["FIXED-16K", "FIXED-64K", "ASAP", "ASAP-4-64", "APPROX-ONLINE", "ONLINE"];
    let mut series = Vec::new();
    let mut most = [0.0f64; 6];
    for (colour, policy) in shown.into_iter().enumerate() {
        let mut points = Vec::new();
        for at in 0..TRACES.len() {
            let overhead = data.row(at, policy)?.number("memory_overhead_pct")?;
            most[colour] = most[colour].max(overhead);
            points.push((at as f64, overhead));
        }
        series.push(Series::ours(policy, colour, points));
    }
    let online = data.printed.at(&["8.4 (Figure 4)", "online policies, at most %"])?;
    let asap = data.printed.at(&["8.4 (Figure 4)", "ASAP %"])?;
    let ours = most[4].max(most[5]);
    let holds = [ours <= online, most[2] <= asap, most[3] < most[1]];
    let count = holds.iter().filter(|holds| **holds).count();
    let figure = Figure::new(PAPER, "Figure 4", "Memory overhead", "Over that of 4 KB pages. Our programs are small, so that large pages of a fixed size waste more of them.")
        .chart(Chart::bars("Memory overhead", "%", programs(), series))
        .says(
            Verdict::count(count, holds.len()),
            format!("the online policies take at most {} % more memory, {} % in the paper; ASAP {} %, nothing there; 64 KB pages up to {} %.", cell(ours), cell(online), cell(most[2]), cell(most[1])),
        );
    Ok(data.by(figure))
}

/// Table 5.
fn execution(data: &Data) -> anyhow::Result<Figure> {
    let policies = &POLICIES[1..];
    let mut rows = Vec::new();
    let (mut best, mut negative) = (f64::MIN, 0);
    for (at, (name, _)) in TRACES.iter().enumerate() {
        let cycles = |policy: &str| {
            let row = data.row(at, policy)?;
            let of = |field| row.number(field);
            Ok::<_, anyhow::Error>(of("instructions")? + of("handler")? + of("copy")? + of("book")?)
        };
        let base = cycles("FIXED-4K")?;
        let mut row = vec![(*name).to_owned()];
        for policy in policies {
            let improvement = 100.0 * (1.0 - cycles(policy)? / base);
            if *policy == "APPROX-ONLINE" {
                best = best.max(improvement);
                negative += usize::from(improvement < 0.0);
            }
            row.push(cell(improvement));
        }
        rows.push(row);
    }
    let mut paper = Vec::new();
    let (mut said, mut slowed) = (f64::MIN, 0);
    for name in data.printed.names(&["Table 5 (%)"]) {
        let of = |policy: &&str| data.printed.at(&["Table 5 (%)", name, policy]);
        said = said.max(of(&"APPROX-ONLINE")?);
        slowed += usize::from(of(&"APPROX-ONLINE")? < 0.0);
        let row = policies.iter().map(|policy| Ok(cell(of(policy)?))).collect::<anyhow::Result<Vec<_>>>()?;
        paper.push([name.to_owned()].into_iter().chain(row).collect());
    }
    let mut head = vec!["program"];
    head.extend(policies);
    let marked: Vec<_> = policies.iter().map(|policy| format!("*{policy}")).collect();
    let mut paper_head = vec!["program"];
    paper_head.extend(marked.iter().map(String::as_str));
    let figure = Figure::new(PAPER, "Table 5", "Improvement of execution time", "In percent over 4 KB pages; ours at one cycle an instruction beside the charges of Figure 3.")
        .table(Table::new("Ours", &head, rows))
        .table(Table::new("The paper's", &paper_head, paper))
        .says(
            Verdict::of(best > 0.0 && negative <= 1, best > 0.0),
            format!("APPROX-ONLINE saves up to {} % here and up to {} % there, and slows {negative} of {} programs down, {slowed} of {} there: short runs do not pay for their copying.", cell(best), cell(said), TRACES.len(), data.printed.names(&["Table 5 (%)"]).len()),
        );
    Ok(data.by(figure))
}

/// Figure 5.
fn tradeoff(data: &Data) -> anyhow::Result<Figure> {
    let mut figure = Figure::new(
        PAPER,
        "Figure 5",
        "Memory against TLB overhead",
        "The curve joins pages of one size, 4 KB to 256 KB; the nearer the origin the better.",
    );
    let within = data.printed.at(&["8.5 (Figure 5)", "APPROX-ONLINE within"])?;
    let mut close = 0;
    for (at, (program, _)) in TRACES.iter().enumerate() {
        let point = |policy: &str| {
            let row = data.row(at, policy)?;
            Ok::<_, anyhow::Error>((row.number("memory_overhead_pct")?, row.number("tlbmcpi")?))
        };
        let fixed = FIXED.iter().map(|policy| point(policy)).collect::<anyhow::Result<Vec<_>>>()?;
        let mut series = vec![Series::ours("one size", 7, fixed)];
        for (colour, policy) in
            ["OFFLINE", "APPROX-ONLINE", "ONLINE", "ASAP", "ASAP-4-64", "THRIFT", "RESERVE"]
                .into_iter()
                .enumerate()
        {
            series.push(Series::ours(policy, colour, vec![point(policy)?]).scattered());
        }
        close += usize::from((point("APPROX-ONLINE")?.1 - point("OFFLINE")?.1).abs() <= within);
        figure =
            figure.chart(Chart::curves(program, "memory overhead (%)", "TLBMCPI", (false, true), series));
    }
    let all = TRACES.len();
    Ok(data.by(figure.says(
        Verdict::count(close, all),
        format!("APPROX-ONLINE is within {within:.2} of OFFLINE in {close} of {all} programs, in nine of ten in the paper."),
    )))
}

/// Table 6.
fn distribution(data: &Data) -> anyhow::Result<Figure> {
    let sizes = [
        "4 KB", "8 KB", "16 KB", "32 KB", "64 KB", "128 KB", "256 KB", "512 KB", "1 MB", "2 MB", "4 MB",
        "8 MB",
    ];
    let mut rows = Vec::new();
    let (mut used, mut said_used) = (0, 0);
    for (at, (name, _)) in TRACES.iter().enumerate() {
        let counts = data.row(at, "APPROX-ONLINE")?.numbers("page_sizes");
        used += counts.iter().filter(|count| **count > 0.0).count();
        rows.push([(*name).to_owned()].into_iter().chain(counts.iter().map(|&count| cell(count))).collect());
    }
    let mut paper = Vec::new();
    let names = data.printed.names(&["Table 6"]);
    for name in &names {
        let of = |size: &&str| data.printed.at(&["Table 6", name, size]);
        let counts = sizes.iter().map(of).collect::<anyhow::Result<Vec<_>>>()?;
        said_used += counts.iter().filter(|count| **count > 0.0).count();
        paper.push([(*name).to_owned()].into_iter().chain(counts.into_iter().map(cell)).collect());
    }
    let mut head = vec!["program"];
    head.extend(sizes);
    let marked: Vec<_> = sizes.iter().map(|size| format!("*{size}")).collect();
    let mut paper_head = vec!["program"];
    paper_head.extend(marked.iter().map(String::as_str));
    let (ours, theirs) = (used as f64 / TRACES.len() as f64, said_used as f64 / names.len() as f64);
    let figure = Figure::new(PAPER, "Table 6", "Pages of each size at the end, APPROX-ONLINE", STAND_INS)
        .table(Table::new("Ours", &head, rows))
        .table(Table::new("The paper's", &paper_head, paper))
        .says(
            Verdict::factor(ours / theirs, 1.5, 3.0),
            format!(
                "a program ends with pages of {} sizes on average, {} in the paper.",
                cell(ours),
                cell(theirs)
            ),
        );
    Ok(data.by(figure))
}
