//! Figures 7 and 9 to 11: tasks and mapping operations, by `tlblab mapping` on this host and by the kernel in the emulator.

use crate::chart::{Chart, Series};
use crate::figure::{Figure, Table, Verdict, cell};
use crate::lab::Lab;
use crate::printed::Printed;
use crate::rows::Rows;

use super::{Guest, PAPER, booted, with_guest};

const NAMES: [&str; 7] = ["MPT", "G16", "GA", "H8k", "H128k", "HR", "C128k"];
/// Those of them that the kernel has.
const BOOTED: [&str; 6] = ["MPT", "G16", "GA", "H8k", "H128k", "C128k"];
const HOST: &str = "First timed on this host, the tables in turn, median of the rounds, the table alone: ratios mean \
                    something, nanoseconds depend on the host. Then counted by the kernel in the emulator, in \
                    instructions of MIPS32, its system calls included as in the paper's times.";

/// Where a primitive is measured: by the host's clock, or in the kernel's instructions.
#[derive(Clone, Copy)]
enum Of<'a> {
    Host(&'a Rows),
    Guest(&'a Rows),
}

impl Of<'_> {
    fn names(self) -> &'static [&'static str] {
        match self {
            Of::Host(_) => &NAMES,
            Of::Guest(_) => &BOOTED,
        }
    }

    fn title(self, what: &str) -> String {
        match self {
            Of::Host(_) => format!("{what}, this host"),
            Of::Guest(_) => format!("{what}, MIPS32 in the emulator"),
        }
    }

    fn unit(self) -> &'static str {
        match self {
            Of::Host(_) => "ns",
            Of::Guest(_) => "instructions",
        }
    }

    /// Returns what a task takes.
    fn task(self, name: &str) -> anyhow::Result<f64> {
        match self {
            Of::Host(rows) => rows.one(&[("benchmark", "task"), ("name", name)])?.number("ns"),
            Of::Guest(rows) => booted(rows, name, "task_insns"),
        }
    }

    /// Returns what a page of the compact region takes, by `PROT1` or `PROTN`.
    fn compact(self, primitive: &str, name: &str) -> anyhow::Result<f64> {
        match self {
            Of::Host(rows) => rows.one(&[("benchmark", primitive), ("name", name)])?.number("ns"),
            Of::Guest(rows) => {
                let row = rows.one(&[("table", name), ("write", "random")])?;
                let field = format!("{}_insns", primitive.to_lowercase());
                row.within(&field, "compact").ok_or_else(|| anyhow::anyhow!("no {field} of {name}"))
            }
        }
    }

    /// Returns what a page takes by the size of its sparse region in kilobytes.
    fn sparse(self, name: &str, segment: &str) -> anyhow::Result<Vec<(f64, f64)>> {
        match self {
            Of::Host(rows) => {
                let rows = rows.of("benchmark", "sparse");
                let rows = rows.filter(|row| row.text("segment_mb") == segment && row.text("name") == name);
                rows.map(|row| Ok((row.number("region_kb")?, row.number("ns")?))).collect()
            }
            Of::Guest(rows) => {
                let row = rows.one(&[("table", name), ("write", "random")])?;
                let beside = if segment == "0" { String::new() } else { format!("+{segment}M") };
                let regions =
                    [(64.0, "64K"), (256.0, "256K"), (1024.0, "1M"), (4096.0, "4M"), (16384.0, "16M")];
                let point = |(kilobytes, region): (f64, &str)| {
                    let insns = row.within("protn_insns", &format!("{region}{beside}"));
                    Ok((
                        kilobytes,
                        insns.ok_or_else(|| anyhow::anyhow!("no protn_insns of {name} in {region}"))?,
                    ))
                };
                regions.into_iter().map(point).collect()
            }
        }
    }
}

/// Returns what the host's clock says of every table.
///
/// # Errors
///
/// If the lab fails.
pub(crate) fn timed(lab: &Lab) -> anyhow::Result<Rows> {
    lab.rows(if lab.quick { "mapping --rounds 50" } else { "mapping --rounds 1000" })
}

/// Returns the host's data, and the kernel's if there are any; those come last, and decide.
fn places<'a>(host: &'a Rows, guest: &'a Guest) -> Vec<Of<'a>> {
    [Of::Host(host)].into_iter().chain(guest.as_ref().ok().map(Of::Guest)).collect()
}

fn names(of: Of<'_>) -> Vec<String> {
    of.names().iter().map(|name| (*name).to_owned()).collect()
}

/// Returns Figure 7.
///
/// # Errors
///
/// If the lab fails.
pub(super) fn tasks(lab: &Lab, guest: &Guest, printed: &Printed) -> anyhow::Result<Figure> {
    let rows = timed(lab)?;
    let about = format!(
        "A table created, one page mapped, the table taken apart; in the kernel the task also runs and sends a message. \
         {HOST}"
    );
    let mut figure = Figure::new(PAPER, "Figure 7", "Task creation and deletion", &about);
    let said = printed.at(&["4.2 (Figure 7)", "GPT over small HPT"])?;
    let tenfold = printed.at(&["4.2 (Figure 7)", "MPT, CPT and large HPT over GPT, at least"])?;
    let (mut small, mut least, mut cheapest) = (f64::NAN, f64::NAN, false);
    let mut ratios: [Vec<String>; 2] =
        [vec!["G16 over H8k".into()], vec!["least of MPT, H128k, C128k over G16".into()]];
    let mut head = vec!["ratio"];
    for of in places(&rows, guest) {
        let mut points = Vec::new();
        for (at, name) in of.names().iter().enumerate() {
            points.push((at as f64, of.task(name)?));
        }
        let guarded = of.task("G16")?;
        small = guarded / of.task("H8k")?;
        let others = [of.task("MPT")?, of.task("H128k")?, of.task("C128k")?];
        least = others.into_iter().fold(f64::INFINITY, f64::min) / guarded;
        cheapest = points.iter().all(|(_, cost)| *cost >= guarded);
        ratios.iter_mut().zip([small, least]).for_each(|(row, ratio)| row.push(cell(ratio)));
        head.push(match of {
            Of::Host(_) => "host",
            Of::Guest(_) => "emulator",
        });
        let unit = of.unit();
        let bars = Chart::bars(&of.title("A task"), unit, names(of), vec![Series::ours(unit, 0, points)]);
        figure = figure.chart(bars.on_log());
    }
    ratios[0].push(cell(said));
    ratios[1].push(format!("more than {}", cell(tenfold)));
    head.push("*paper");
    Ok(with_guest(figure, guest).table(Table::new("", &head, ratios.to_vec())).by(rows.command).says(
        Verdict::of(small < 1.0 && least > tenfold, small < 1.0),
        format!(
            "a task with GPT takes {} times one with the small HPT, {} there, and {}; the large tables take at least {} \
             times as much as GPT, more than {} there.",
            cell(small),
            cell(said),
            if cheapest { "nothing is cheaper, as there" } else { "something is cheaper" },
            cell(least),
            cell(tenfold)
        ),
    ))
}

/// Returns Figures 9, 10 and 11.
///
/// # Errors
///
/// If the lab fails.
pub(super) fn protection(lab: &Lab, guest: &Guest, printed: &Printed) -> anyhow::Result<[Figure; 3]> {
    let rows = timed(lab)?;
    let about = format!(
        "128 neighbouring pages write-protected, then unprotected one by one in random order. {HOST}"
    );
    let mut ninth = Figure::new(PAPER, "Figure 9", "Protecting a compact region", &about);
    let mut saved = Vec::new();
    for of in places(&rows, guest) {
        let mut series = Vec::new();
        for (colour, primitive) in ["PROT1", "PROTN"].into_iter().enumerate() {
            let mut points = Vec::new();
            for (at, name) in of.names().iter().enumerate() {
                points.push((at as f64, of.compact(primitive, name)?));
            }
            series.push(Series::ours(primitive, colour, points));
        }
        let less = |(one, all): (&(f64, f64), &(f64, f64))| 100.0 * (1.0 - all.1 / one.1);
        saved = series[0].points.iter().zip(&series[1].points).map(less).collect();
        let title = of.title("A page protected and unprotected");
        ninth = ninth.chart(Chart::bars(&title, of.unit(), names(of), series));
    }
    let least = saved.iter().copied().fold(f64::INFINITY, f64::min);
    let most = saved.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let low = printed.at(&["4.2 (Figure 9)", "PROTN below PROT1, least %"])?;
    let high = printed.at(&["4.2 (Figure 9)", "PROTN below PROT1, most %"])?;
    let ninth = with_guest(ninth, guest).by(rows.command.clone()).says(
        Verdict::of(least >= low * 0.8 && most <= high * 1.2, most >= low),
        format!(
            "the paper saves {} to {} % with one call for all pages, we {} to {} %: besides the calls \
             we save the way to each page's entry.",
            cell(low),
            cell(high),
            cell(least),
            cell(most)
        ),
    );
    let tenth = sparse(&rows, guest, "Figure 10", "Protecting a sparse region", "0", "")?;
    let segment = printed.at(&["4.2 (Figure 11)", "additional segment (Mb)"])?;
    let more = format!(" The task has {} Mb mapped besides.", cell(segment));
    let eleventh =
        sparse(&rows, guest, "Figure 11", "The same beside a large segment", &cell(segment), &more)?;
    Ok([ninth, tenth, eleventh])
}

fn sparse(
    rows: &Rows,
    guest: &Guest,
    at: &str,
    title: &str,
    segment: &str,
    more: &str,
) -> anyhow::Result<Figure> {
    let about = format!(
        "16 pages at random places of a region, write-protected in one call and unprotected one by one.{more} {HOST}"
    );
    let mut figure = Figure::new(PAPER, at, title, &about);
    let mut growth = Vec::new();
    for of in places(rows, guest) {
        let mut series = Vec::new();
        growth.clear();
        for (colour, name) in of.names().iter().enumerate() {
            let points = of.sparse(name, segment)?;
            let (Some(first), Some(last)) = (points.first(), points.last()) else { continue };
            growth.push((*name, last.1 / first.1));
            series.push(Series::ours(*name, colour, points));
        }
        let title = of.title("A page protected and unprotected");
        let chart = Chart::curves(&title, "region (kb)", of.unit(), (true, true), series);
        figure = figure.chart(chart.ticks(&[64.0, 256.0, 1024.0, 4096.0, 16384.0]));
    }
    let of =
        |name: &str| growth.iter().find(|(other, _)| *other == name).map_or(f64::NAN, |(_, growth)| *growth);
    let worse = ["MPT", "H128k", "C128k"].iter().filter(|name| of(name) > of("G16")).count();
    Ok(with_guest(figure, guest).by(rows.command.clone()).says(
        Verdict::of(worse == 3 && of("G16") < 3.0, worse > 0),
        format!(
            "from 64 kb to 16 Mb the paper's GPT hardly changes and MPT, large HPT and CPT drop; here the cost grows {} \
             times for G16, {} for MPT, {} for H8k, {} for H128k and {} for C128k.",
            cell(of("G16")),
            cell(of("MPT")),
            cell(of("H8k")),
            cell(of("H128k")),
            cell(of("C128k"))
        ),
    ))
}
