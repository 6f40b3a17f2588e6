//! Figures 2 and 5 and Table 2: what a refill takes.

use crate::chart::{Chart, Series};
use crate::figure::{Figure, Table, Verdict, cell};
use crate::lab::{Lab, TRACES};
use crate::printed::Printed;
use crate::rows::{geometric, rank_correlation};

use super::{Guest, PAPER, Programs, SIZES, STRUCTURES, SUPERPAGES, Traces, WORDS, booted, with_guest};

/// The structures with a 64-bit handler: the paper's, and a cache in front of the multi-level table.
const HANDLERS: [&str; 9] =
    ["MPT", "G16", "H8k", "H128k", "C128k", "S8k/G16", "S128k/G16", "S8k/MPT", "S128k/MPT"];
/// Those that the paper measured.
const MEASURED: usize = 7;
/// Those of the kernel for MIPS32.
const BOOTED: [&str; 11] =
    ["MPT", "LPT", "G16", "GA", "H8k", "H128k", "C128k", "S8k/G16", "S128k/G16", "S8k/MPT", "S128k/MPT"];
/// What the words of the handlers are.
const WORDS_RUN: &str = "Instructions and loads are those of 64-bit MIPS handlers for the paper's geometry, whose words an \
                         interpreter runs at every miss; the return is counted, the trap is not.";

/// Returns a curve over the guarded tables' sizes: mean over the programs, and deviation.
fn over_sizes(name: &str, colour: usize, of: &Programs, field: &str) -> anyhow::Result<Series> {
    let (mut points, mut spread) = (Vec::new(), Vec::new());
    for size in SIZES {
        let (centre, sd) = of.mean(&format!("G{size}"), field)?;
        points.push((f64::from(size), centre));
        spread.push(sd);
    }
    Ok(Series::ours(name, colour, points).with_spread(spread))
}

/// Returns one structure's mean, which has no sizes, as a line across.
fn across(name: &str, colour: usize, of: &Programs, structure: &str, field: &str) -> anyhow::Result<Series> {
    let (centre, _) = of.mean(structure, field)?;
    Ok(Series::ours(name, colour, vec![(2.0, centre), (256.0, centre)]))
}

/// Returns Figure 2.
///
/// # Errors
///
/// If a row lacks a number.
pub(super) fn by_size(traces: &Traces) -> anyhow::Result<Figure> {
    let (handlers, paper, compact) = (&traces.handlers, &traces.paper, &traces.compact);
    let (insns, loads, refs) = ("insns_mean", "loads_mean", "refs_per_lookup_mean");
    let curve = over_sizes("Gn", 0, handlers, insns)?;
    let (two, four, large) = (curve.points[0].1, curve.points[1].1, curve.points[7].1);
    let falls = curve.points.windows(2).all(|pair| pair[1].1 <= pair[0].1);
    let instructions = vec![curve, across("MPT", 2, handlers, "MPT", insns)?];
    let memory = vec![
        over_sizes("Gn, the handler's", 0, handlers, loads)?,
        over_sizes("Gn, 32-bit words", 1, paper, refs)?,
        over_sizes("Gn, compact layout", 3, compact, refs)?,
        across("GA, 32-bit words", 4, paper, "GA", refs)?,
        across("GA, compact layout", 5, compact, "GA", refs)?,
    ];
    let chart = |title, y, series| {
        Chart::curves(title, "slots of a node", y, (true, false), series).ticks(&SIZES.map(f64::from))
    };
    let gained = 100.0 * (two - four) / (two - large);
    let about = format!(
        "Mean over the programs, bars are standard deviations. {WORDS_RUN} GA chooses node sizes online. {WORDS}"
    );
    let figure = Figure::new(PAPER, "Figure 2", "TLB refill cost over GPT node size", &about)
        .chart(chart("Instructions of a refill", "instructions", instructions))
        .chart(chart("Loads of a refill", "loads", memory))
        .says(
            Verdict::of(gained >= 50.0 && falls, gained >= 35.0),
            format!(
                "the paper sees little improvement beyond four entries; of the instructions that 256 slots save over 2, \
                 four save {} %, and the curve {}.",
                cell(gained),
                if falls { "falls all the way, as there" } else { "does not fall all the way" }
            ),
        );
    Ok(compact.cite(paper.cite(handlers.cite(figure))))
}

/// Returns Figure 5.
///
/// # Errors
///
/// If the lab fails.
pub(super) fn of_structures(
    lab: &Lab,
    traces: &Traces,
    guest: &Guest,
    printed: &Printed,
) -> anyhow::Result<Figure> {
    let about = format!(
        "Mean over the programs, bars are standard deviations; of uniform and file-like workloads each of 1024 pages is \
         missed once, so that caches in front show what they cost. {WORDS_RUN} LPT's loads include its nested misses; CS \
         maps superpages, for the misses of small pages. {WORDS}"
    );
    let mut figure = Figure::new(PAPER, "Figure 5", "Refill cost of every structure", &about);

    // The handlers, on programs and on workloads.
    let handlers = &traces.handlers;
    let (mut means, mut spread) = (Vec::new(), Vec::new());
    for name in HANDLERS {
        let (centre, sd) = handlers.mean(name, "insns_mean")?;
        means.push(centre);
        spread.push(sd);
    }
    let points = means.iter().enumerate().map(|(at, mean)| (at as f64, *mean)).collect();
    let mut series = vec![Series::ours("programs", 0, points).with_spread(spread)];
    figure = handlers.cite(figure);
    for (colour, workload) in [(1, "uniform"), (2, "file")] {
        let rows = lab.rows(&format!("refill --workload {workload} --pages 1024"))?;
        let mut points = Vec::new();
        for (at, name) in HANDLERS.iter().enumerate() {
            points.push((at as f64, rows.one(&[("table", name)])?.number("insns_mean")?));
        }
        series.push(Series::ours(workload, colour, points));
        figure = figure.by(rows.command);
    }
    let names = HANDLERS.map(String::from).to_vec();
    figure =
        figure.chart(Chart::bars("Instructions of a refill, 64-bit handlers", "instructions", names, series));

    // Loads of every structure, the new ones among them.
    let names: Vec<&str> = STRUCTURES.iter().copied().chain([SUPERPAGES]).collect();
    let mut series = Vec::new();
    for (colour, layout) in ["the paper's layout", "compact layout"].into_iter().enumerate() {
        let (mut points, mut spread) = (Vec::new(), Vec::new());
        for (at, name) in names.iter().enumerate() {
            let (centre, sd) = traces.mean(colour == 1, name, "refs_per_lookup_mean")?;
            points.push((at as f64, centre));
            spread.push(sd);
        }
        series.push(Series::ours(layout, colour, points).with_spread(spread));
    }
    for (colour, workload) in [(2, "uniform"), (3, "file")] {
        let mut points = Vec::new();
        for (names_of, options) in [(&names[..names.len() - 1], ""), (&names[names.len() - 1..], " CS")] {
            let rows = lab.rows(&format!("tables{options} --workload {workload} --pages 1024"))?;
            for name in names_of {
                let loads = rows.one(&[("name", name)])?.number("refs_per_lookup_mean")?;
                points.push((points.len() as f64, loads));
            }
            figure = figure.by(rows.command);
        }
        series.push(Series::ours(format!("{workload}, the paper's layout"), colour, points));
    }
    let names = names.into_iter().map(String::from).collect();
    figure = figure.chart(Chart::bars("Loads of a refill, 32-bit words", "loads", names, series));
    for programs in [&traces.paper, &traces.compact].into_iter().chain(&traces.superpages) {
        figure = programs.cite(figure);
    }

    // And the kernel's, in the emulator.
    if let Ok(rows) = guest {
        let points = |field| {
            let points = BOOTED.iter().enumerate();
            points
                .map(|(at, name)| Ok((at as f64, booted(rows, name, field)?)))
                .collect::<anyhow::Result<_>>()
        };
        let series = vec![
            Series::ours("mean", 0, points("insns_per_refill_mean")?),
            Series::ours("least", 4, points("insns_per_refill_min")?),
        ];
        let title = "Instructions of a refill, MIPS32 in the emulator";
        figure = figure.chart(Chart::bars(title, "instructions", BOOTED.map(String::from).to_vec(), series));
    }
    figure = with_guest(figure, guest);

    let of = |name: &str| HANDLERS.iter().position(|other| *other == name).map_or(f64::NAN, |at| means[at]);
    let claims = [
        ("GPT between MPT and HPT", of("G16") < of("MPT") && of("G16") > of("H128k")),
        ("large HPT before small", of("H128k") < of("H8k")),
        ("large cache before small", of("S128k/G16") <= of("S8k/G16")),
        ("cached before plain GPT", of("S8k/G16") < of("G16")),
        ("cached GPT before MPT", of("S128k/G16") < of("MPT")),
        ("cached GPT before large HPT", of("S128k/G16") < of("H128k")),
        ("a cache before MPT as before GPT", (of("S128k/MPT") / of("S128k/G16") - 1.0).abs() < 0.1),
    ];
    let holding = claims.iter().filter(|(_, holds)| *holds).count();
    let not: Vec<_> = claims.iter().filter(|(_, holds)| !holds).map(|(claim, _)| *claim).collect();
    let least = handlers.all("S8k/G16", "insns_min")?.into_iter().fold(f64::INFINITY, f64::min);
    let floor = printed.at(&["4.2 (Figure 5)", "least cycles of a refill"])?;
    let row = vec!["least of a refill".into(), cell(least), cell(floor)];
    let head = ["", "instructions", "*cycles, without the return"];
    Ok(figure.table(Table::new("", &head, vec![row])).says(
        Verdict::count(holding, claims.len()),
        format!(
            "{holding} of {} orders that the paper states or expects hold in instructions{}{}; G16 takes {} instructions, \
             MPT {}: the cache misses of six large levels, which the paper's cycles have, are not instructions.",
            claims.len(),
            if not.is_empty() { "" } else { "; not: " },
            not.join(", "),
            cell(of("G16")),
            cell(of("MPT"))
        ),
    ))
}

/// Returns Table 2.
///
/// # Errors
///
/// If a row lacks a number.
pub(super) fn elapsed(traces: &Traces, printed: &Printed) -> anyhow::Result<Figure> {
    let names = &HANDLERS[..MEASURED];
    let handlers = &traces.handlers;
    let (refills, own) = (handlers.all("MPT", "refills")?, handlers.all("MPT", "program_insns")?);
    let mut of_name = Vec::new();
    for name in names {
        of_name.push(handlers.all(name, "insns_mean")?);
    }
    let (mut rows, mut alone) = (Vec::new(), Vec::new());
    let mut ratios = vec![Vec::new(); names.len()];
    for (at, (program, _)) in TRACES.iter().enumerate() {
        let time = |insns: &Vec<f64>| own[at] + refills[at] * insns[at];
        let row: Vec<f64> = of_name.iter().map(|insns| time(insns) / time(&of_name[0])).collect();
        ratios.iter_mut().zip(&row).for_each(|(ratios, ratio)| ratios.push(*ratio));
        rows.push(row_of(program, &row));
        let row: Vec<f64> = of_name.iter().map(|insns| insns[at] / of_name[0][at]).collect();
        alone.push(row_of(program, &row));
    }
    let ours: Vec<f64> = ratios.iter().map(|ratios| geometric(ratios)).collect();
    rows.push(row_of("geom. mean", &ours));
    let theirs = names
        .iter()
        .map(|name| printed.at(&["Table 2", "geom. mean", name]))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let mut paper = Vec::new();
    for program in printed.names(&["Table 2"]) {
        let row = names.iter().map(|name| printed.at(&["Table 2", program, name]));
        let row = row.map(|said| Ok(format!("{:.2}", said?))).collect::<anyhow::Result<Vec<_>>>()?;
        paper.push([program.to_owned()].into_iter().chain(row).collect());
    }
    let head: Vec<&str> = [""].into_iter().chain(names.iter().copied()).collect();
    let marked: Vec<_> = names.iter().map(|name| format!("*{name}")).collect();
    let paper_head: Vec<&str> = [""].into_iter().chain(marked.iter().map(String::as_str)).collect();
    let order = rank_correlation(&ours, &theirs);
    let first = |values: &[f64]| {
        let best = values.iter().enumerate().min_by(|one, other| one.1.total_cmp(other.1));
        best.map_or("", |(at, _)| names[at])
    };
    let (best, their_best) = (first(&ours), first(&theirs));
    let about = format!(
        "The paper's elapsed times of 1999 are not ours to measure: in their place a program's own instructions and those \
         of its refills, over the same with MPT; then the refills' alone. {WORDS_RUN}"
    );
    let figure = Figure::new(PAPER, "Table 2", "What the structure costs a program", &about)
        .table(Table::new("Instructions of a program and its refills, over those with MPT", &head, rows))
        .table(Table::new("Instructions of the refills alone, over MPT's", &head, alone))
        .table(Table::new("The paper: elapsed time over that with MPT", &paper_head, paper))
        .says(
            Verdict::order(order),
            format!(
                "the order of the structures has a rank correlation of {} with the paper's; {best} comes first here, \
                 {their_best} there; G16 alone takes {} times MPT's instructions of refills in the mean.",
                cell(order),
                cell(geometric(&of_name[1].iter().zip(&of_name[0]).map(|(g, m)| g / m).collect::<Vec<_>>()))
            ),
        );
    Ok(handlers.cite(figure))
}

/// Returns a row of a table: a name and numbers, of which three places count.
fn row_of(name: &str, values: &[f64]) -> Vec<String> {
    [name.to_owned()].into_iter().chain(values.iter().map(|value| format!("{value:.3}"))).collect()
}
