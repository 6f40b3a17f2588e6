//! Figure 6: space of every structure, conventional programs.

use tlbkit_names::{C128K, ECPT, FPT, FPT0, G16, GA, H8K, H128K, HR, MPT};

use crate::chart::{Chart, Series};
use crate::figure::{Figure, Verdict, cell};

use super::{NAMED, PAPER, STRUCTURES, SUPERPAGES, Traces};

/// Returns Figure 6.
///
/// # Errors
///
/// If a row lacks a number.
pub(super) fn of_structures(traces: &Traces) -> anyhow::Result<Figure> {
    let names: Vec<String> = STRUCTURES.iter().chain(&NAMED).map(|name| (*name).to_owned()).collect();
    let mut series = Vec::new();
    let mut means = Vec::new();
    for (colour, layout) in ["the paper's layout", "compact layout"].into_iter().enumerate() {
        let (mut points, mut spread) = (Vec::new(), Vec::new());
        for (at, name) in names.iter().enumerate() {
            let (centre, sd) = traces.mean(colour == 1, name, |row| row.bytes_per_pte)?;
            if colour == 0 {
                means.push((name.as_str(), centre));
            }
            points.push((at as f64, centre));
            spread.push(sd);
        }
        series.push(Series::ours(layout, colour, points).with_spread(spread));
    }
    let mut order: Vec<_> =
        means.iter().filter(|(name, _)| [MPT, G16, H8K, H128K, C128K].contains(name)).collect();
    order.sort_by(|one, other| one.1.total_cmp(&other.1));
    let order: Vec<_> = order.iter().map(|(name, _)| *name).collect();
    let of =
        |name: &str| means.iter().find(|(other, _)| *other == name).map_or(f64::NAN, |(_, value)| *value);
    let loads = |name| anyhow::Ok(traces.mean(false, name, |row| row.refs_per_lookup_mean)?.0);
    let claims =
        [of(G16) < of(H8K) * 1.1, of(H8K) < of(MPT), of(MPT) < of(C128K), of(C128K) < of(H128K) * 1.05];
    let holding = claims.iter().filter(|holds| **holds).count();
    let figure = Figure::new(
        PAPER,
        "Figure 6",
        "Space of every structure, conventional programs",
        "Mean over the programs, bars are standard deviations. Small programs make fixed arrays look large; CS is \
         clustered, grows, and maps aligned runs of pages as superpages, as if their frames were neighbours. FPT is the flattened table of Park et al. \
         2022, FPT0 the same without pieces of 2 MiB, ECPT the elastic cuckoo table of Skarlatos et al. 2020; the three have entries of 64 bits in \
         either layout.",
    )
    .chart(Chart::bars("Space", "bytes for each page", names.clone(), series).on_log())
    .says(
        Verdict::count(holding, claims.len()),
        format!(
            "the paper's order is G16, H8k, MPT, C128k, H128k, {holding} of 4 neighbours stand so here ({}); the \
             adaptive table takes {} bytes a page, the resizing hashed one {}, the clustered one with superpages {}. The \
             flattened table takes {} loads a refill and {} bytes a page, the same tree without large pieces {} and {}: it has at \
             least a root of 512 KiB and two nodes of 2 MiB. The elastic cuckoo table takes {} and {}: its three ways are probed one after the \
             other, and at most six of ten lines are in use.",
            order.join(", "),
            cell(of(GA)),
            cell(of(HR)),
            cell(of(SUPERPAGES)),
            cell(loads(FPT)?),
            cell(of(FPT)),
            cell(loads(FPT0)?),
            cell(of(FPT0)),
            cell(loads(ECPT)?),
            cell(of(ECPT))
        ),
    );
    let figure = traces.compact.cite(traces.paper.cite(figure));
    Ok(traces.named.iter().fold(figure, |figure, programs| programs.cite(figure)))
}
