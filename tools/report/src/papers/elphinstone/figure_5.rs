//! Figure 5: what a refill takes with every structure.

use tlbkit_names::{C128K, G16, GA, H8K, H128K, LPT, MPT, S8K_G16, S8K_MPT, S128K_G16, S128K_MPT};
use tlblab::refill::RefillArgs;
use tlblab::tables::TablesArgs;

use crate::chart::{Chart, Series};
use crate::figure::{Figure, Table, Verdict, cell, holding};
use crate::lab::Lab;
use crate::printed::Printed;
use crate::rows::mean;

use super::handlers::{HANDLERS, ON_CACHES, WORDS_RUN, on};
use super::{Guest, PAPER, STRUCTURES, SUPERPAGES, Traces, WORDS, booted, with_guest};

/// Those of the kernel for MIPS32.
const BOOTED: [&str; 11] = [MPT, LPT, G16, GA, H8K, H128K, C128K, S8K_G16, S128K_G16, S8K_MPT, S128K_MPT];

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
         missed once, so that caches in front show what they cost. {WORDS_RUN} {ON_CACHES} LPT's include its nested misses, each \
         with a trap, and its own pages compete for the TLB; CS maps superpages, for the misses of small pages. {WORDS}"
    );
    let mut figure = Figure::new(PAPER, "Figure 5", "Refill cost of every structure", &about);

    // The handlers on caches, as the paper measured them.
    let (mut on_caches, mut orders_on) = (Vec::new(), Vec::new());
    for (colour, (machine, programs)) in traces.cycles.iter().enumerate() {
        let numbers = HANDLERS.map(|name| programs.mean(name, |row| on(row, |cycles| cycles.cycles_mean)));
        let numbers = numbers.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
        let points = numbers.iter().enumerate().map(|(at, (mean, _))| (at as f64, *mean)).collect();
        let spread = numbers.iter().map(|(_, sd)| *sd).collect();
        on_caches.push(Series::ours(*machine, colour, points).with_spread(spread));
        orders_on.push(orders(&numbers.iter().map(|(mean, _)| *mean).collect::<Vec<_>>()));
        figure = programs.cite(figure);
    }
    let (r4700, names) = (&traces.cycles[0].1, HANDLERS.map(String::from).to_vec());
    figure = figure.chart(Chart::bars("Cycles of a refill, 64-bit handlers", "cycles", names, on_caches));

    // The handlers, on programs and on workloads.
    let handlers = &traces.handlers;
    let (mut means, mut spread) = (Vec::new(), Vec::new());
    for name in HANDLERS {
        let (centre, sd) = handlers.mean(name, |row| row.insns_mean)?;
        means.push(centre);
        spread.push(sd);
    }
    let points = means.iter().enumerate().map(|(at, mean)| (at as f64, *mean)).collect();
    let mut series = vec![Series::ours("programs", 0, points).with_spread(spread)];
    figure = handlers.cite(figure);
    for (colour, workload) in [(1, "uniform"), (2, "file")] {
        let rows = lab.rows::<RefillArgs>(&format!("refill --workload {workload} --pages 1024"))?;
        let mut points = Vec::new();
        for (at, name) in HANDLERS.iter().enumerate() {
            points.push((at as f64, rows.of(name)?.insns_mean));
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
            let (centre, sd) = traces.mean(colour == 1, name, |row| row.refs_per_lookup_mean)?;
            points.push((at as f64, centre));
            spread.push(sd);
        }
        series.push(Series::ours(layout, colour, points).with_spread(spread));
    }
    for (colour, workload) in [(2, "uniform"), (3, "file")] {
        let mut points = Vec::new();
        for (names_of, options) in [(&names[..names.len() - 1], ""), (&names[names.len() - 1..], " CS")] {
            let line = format!("tables{options} --workload {workload} --pages 1024");
            let rows = lab.rows::<TablesArgs>(&line)?;
            for name in names_of {
                points.push((points.len() as f64, rows.of(name)?.refs_per_lookup_mean));
            }
            figure = figure.by(rows.command);
        }
        series.push(Series::ours(format!("{workload}, the paper's layout"), colour, points));
    }
    let names = names.into_iter().map(String::from).collect();
    figure = figure.chart(Chart::bars("Loads of a refill, 32-bit words", "loads", names, series));

    for programs in [&traces.paper, &traces.compact].into_iter().chain(&traces.named) {
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

    // At a page's first miss a cache in front is empty, and so are the processor's of the page's part of a table. In the
    // paper's long runs that is a small part of the refills; of ours, where they are ten times the pages or more.
    let long = r4700.runs.iter().map(|rows| Ok(rows.of(MPT)?.refills >= 10 * rows.of(MPT)?.pages as u64));
    let mut long = long.collect::<anyhow::Result<Vec<bool>>>()?;
    let chosen = if long.contains(&true) {
        "whose refills are at least ten times their pages, as of the paper's long runs"
    } else {
        long.fill(true);
        "of which none has ten refills a page"
    };
    let often = HANDLERS.map(|name| {
        let costs = r4700.all(name, |row| on(row, |cycles| cycles.cycles_mean))?;
        let costs: Vec<_> =
            costs.into_iter().zip(&long).filter(|(_, long)| **long).map(|(cost, _)| cost).collect();
        anyhow::Ok(mean(&costs).0)
    });
    let claims = &orders(&often.into_iter().collect::<anyhow::Result<Vec<_>>>()?);
    let long = long.into_iter().filter(|long| *long).count();
    let count = |claims: &[(&str, bool)]| claims.iter().filter(|(_, holds)| *holds).count();
    let least = handlers.all(S8K_G16, |row| row.insns_min as f64)?.into_iter().fold(f64::INFINITY, f64::min);
    let cycles = r4700.all(S8K_G16, |row| on(row, |cycles| cycles.cycles_min as f64))?;
    let cycles = cycles.into_iter().fold(f64::INFINITY, f64::min);
    let floor = printed.at(&["4.2 (Figure 5)", "least cycles of a refill"])?;
    let row = vec!["least of a refill".into(), cell(least), cell(cycles), cell(floor)];
    let head = ["", "instructions", "cycles", "*cycles, without the return"];
    let of = |name: &str| r4700.mean(name, |row| on(row, |cycles| cycles.cycles_mean));
    let lines = |name: &str| r4700.mean(name, |row| on(row, |cycles| cycles.misses_per_refill));
    Ok(figure.table(Table::new("", &head, vec![row])).says(
        Verdict::of(
            count(claims) == claims.len() && count(&orders_on[0]) == claims.len(),
            2 * count(claims) >= claims.len(),
        )
        .allows("every order, of all programs and of those with ten refills a page; in part half of them, of the latter"),
        format!(
            "of the orders that the paper states or expects, in cycles on the R4700's caches {}, of the {long} programs {chosen}. \
             Of all our programs, {} of which \
             have fewer, {} hold; on a current core's {} of {}, in instructions {}. G16 takes {} cycles and {} cache misses, MPT {} and {}.",
            holding(claims),
            r4700.runs.len() - long,
            count(&orders_on[0]),
            count(&orders_on[1]),
            claims.len(),
            count(&orders(&means)),
            cell(of(G16)?.0),
            cell(lines(G16)?.0),
            cell(of(MPT)?.0),
            cell(lines(MPT)?.0)
        ),
    ))
}

/// What the paper states or expects of the structures' order, for the costs of [`HANDLERS`].
fn orders(costs: &[f64]) -> [(&'static str, bool); 7] {
    let of = |name: &str| HANDLERS.iter().position(|other| *other == name).map_or(f64::NAN, |at| costs[at]);
    [
        ("GPT between MPT and HPT", of(G16) < of(MPT) && of(G16) > of(H128K)),
        ("large HPT before small", of(H128K) < of(H8K)),
        ("large cache before small", of(S128K_G16) <= of(S8K_G16)),
        ("cached before plain GPT", of(S8K_G16) < of(G16)),
        ("cached GPT before MPT", of(S128K_G16) < of(MPT)),
        ("cached GPT before large HPT", of(S128K_G16) < of(H128K)),
        ("a cache before MPT as before GPT", (of(S128K_MPT) / of(S128K_G16) - 1.0).abs() < 0.1),
    ]
}
