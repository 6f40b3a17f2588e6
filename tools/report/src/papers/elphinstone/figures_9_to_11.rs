//! Figures 9 to 11: pages protected and unprotected.

use anyhow::Context;
use tlbkit_names::{C128K, G16, H8K, H128K, MPT, S8K_G16, S128K_G16};
use tlblab::mapping::Row;

use crate::chart::{Chart, Series};
use crate::figure::{Figure, Verdict, cell, holding};
use crate::lab::Lab;
use crate::printed::Printed;
use crate::rows::Rows;

use super::handlers::{LINE, on};
use super::mapping::{HOST, names, places, timed};
use super::{Guest, PAPER, Traces, with_guest};

/// Returns Figures 9, 10 and 11.
///
/// # Errors
///
/// If the lab fails.
pub(super) fn protection(
    lab: &Lab,
    traces: &Traces,
    guest: &Guest,
    printed: &Printed,
) -> anyhow::Result<[Figure; 3]> {
    let stalls = stalls(traces, guest)?;
    let rows = timed(lab)?;
    let about = format!(
        "128 neighbouring pages write-protected, then unprotected one by one in random order. {HOST}"
    );
    let mut ninth = Figure::new(PAPER, "Figure 9", "Protecting a compact region", &about);
    let (mut saved, mut costs) = (Vec::new(), Vec::new());
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
        costs = of.names().iter().zip(&series[0].points).map(|(name, point)| (*name, point.1)).collect();
        saved = series[0].points.iter().zip(&series[1].points).map(less).collect();
        let title = of.title("A page protected and unprotected");
        ninth = ninth.chart(Chart::bars(&title, of.unit(), names(of), series));
    }
    let least = saved.iter().copied().fold(f64::INFINITY, f64::min);
    let most = saved.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let low = printed.at(&["4.2 (Figure 9)", "PROTN below PROT1, least %"])?;
    let high = printed.at(&["4.2 (Figure 9)", "PROTN below PROT1, most %"])?;
    let claims = compact_claims(&costs, (least, most), (low, high));
    let stalled: Vec<_> = costs.iter().map(|(name, cost)| (*name, cost + stall(&stalls, name))).collect();
    let [_, (_, worst), ..] = compact_claims(&stalled, (least, most), (low, high));
    let ninth = with_guest(ninth, guest).by(rows.command.clone()).says(
        Verdict::claims(&claims),
        format!(
            "{}; one call for all pages saves {} to {} %, {} to {} % there. MPT is best here and worst there: its entry is \
             found by shifts alone and a run of neighbours by one walk, where a guarded or hashed table compares at every \
             page. {}",
            holding(&claims),
            cell(least),
            cell(most),
            cell(low),
            cell(high),
            said(&stalls, if worst { "MPT is the worst." } else { "MPT is still not the worst." }),
        ),
    );
    let (tenth, alone) = sparse(&rows, guest, "Figure 10", "Protecting a sparse region", 0, "")?;
    let segment = printed.at(&["4.2 (Figure 11)", "additional segment (Mb)"])?;
    let more = format!(" The task has {} Mb mapped besides.", cell(segment));
    let (eleventh, beside) =
        sparse(&rows, guest, "Figure 11", "The same beside a large segment", segment as u32, &more)?;
    let claims = sparse_claims(&alone);
    let tenth = tenth.says(
        Verdict::claims(&claims),
        format!("{}; {}.{}", holding(&claims), growth(&alone), with_cache(guest)?),
    );
    let claims = beside_claims(&alone, &beside);
    let slowest = |of: &dyn Fn(&str) -> f64| {
        let mut names = [MPT, G16, H8K, H128K, C128K];
        names.sort_by(|one, other| of(other).total_cmp(&of(one)));
        names.join(", ")
    };
    let bare = slowest(&|name| ends(&beside, name).1);
    let stalled = slowest(&|name| ends(&beside, name).1 + stall(&stalls, name));
    let eleventh = eleventh.says(
        Verdict::claims(&claims),
        format!(
            "{}; {}. MPT is best here and among the worst there: what is not mapped costs it a look at one empty slot of a \
             node for a whole subtree. {}",
            holding(&claims),
            growth(&beside),
            said(&stalls, &format!("the order in the largest region, slowest first, is {stalled}, and {bare} without.")),
        ),
    );
    Ok([ninth, tenth, eleventh])
}

/// Returns the cycles in which a refill waits for its cache misses on the R4700, by table, as memory takes them there.
fn stalls(traces: &Traces, guest: &Guest) -> anyhow::Result<Vec<(&'static str, f64)>> {
    // Without the kernel's instructions there is nothing to add them to.
    let line = if guest.is_ok() { LINE } else { f64::NAN };
    let of = |name: &'static str| {
        let misses = traces.cycles[0].1.mean(name, |row| on(row, |cycles| cycles.misses_per_refill));
        anyhow::Ok((name, line * misses?.0))
    };
    [MPT, G16, H8K, H128K, C128K].into_iter().map(of).collect()
}

/// Returns those of a table.
fn stall(stalls: &[(&str, f64)], name: &str) -> f64 {
    stalls.iter().find(|(other, _)| *other == name).map_or(f64::NAN, |(_, stall)| *stall)
}

/// Says what they are, and what they change of instructions.
fn said(stalls: &[(&str, f64)], change: &str) -> String {
    if stalls.iter().any(|(_, stall)| stall.is_nan()) {
        return String::new();
    }
    let each = |(name, stall): &(&str, f64)| format!("{} with {name}", cell(*stall));
    format!(
        "On the R4700's caches a refill's cache misses take {} cycles. An operation here walks as a refill does, but follows \
         another, so that its misses take less. With all of these cycles added {change}",
        stalls.iter().map(each).collect::<Vec<_>>().join(", ")
    )
}

/// Says what `PROTN` takes in the largest region with a software TLB in front of a guarded table, if the kernel does.
fn with_cache(guest: &Guest) -> anyhow::Result<String> {
    let Ok(rows) = guest else { return Ok(String::new()) };
    let in_16_megabytes = |name: &str| {
        let row = rows.one(&[("table", name), ("write", "random")])?;
        row.within("protn_insns", "16M").with_context(|| format!("no protn_insns of {name}"))
    };
    Ok(format!(
        " With a software TLB in front a page takes {} instructions in 16 Mb (S128k) and {} (S8k), without {}: one call flushes the \
         range there, entry by entry up to the cache's own size, where the paper's GPT-based schemes are unaffected.",
        cell(in_16_megabytes(S128K_G16)?),
        cell(in_16_megabytes(S8K_G16)?),
        cell(in_16_megabytes(G16)?)
    ))
}

/// What a page takes in the smallest and in the largest region, by table.
type Ends = Vec<(&'static str, f64, f64)>;

/// Returns a table's ends.
fn ends(of: &Ends, name: &str) -> (f64, f64) {
    of.iter().find(|(other, ..)| *other == name).map_or((f64::NAN, f64::NAN), |end| (end.1, end.2))
}

/// Says how much more a page takes in the largest region than in the smallest.
fn growth(of: &Ends) -> String {
    let each = |(name, small, large): &(&str, f64, f64)| format!("{} times for {name}", cell(large / small));
    format!("from 64 kb to 16 Mb the cost grows {}", of.iter().map(each).collect::<Vec<_>>().join(", "))
}

/// What the paper says of Figure 9: the tables' order, how far apart they are, and what one call for all pages saves. Costs
/// are those of a page; what is saved is in percent, the least and the most, and so is what is printed.
fn compact_claims(costs: &[(&str, f64)], saved: (f64, f64), said: (f64, f64)) -> [(&'static str, bool); 5] {
    let of = |name: &str| costs.iter().find(|(other, _)| *other == name).map_or(f64::NAN, |(_, cost)| *cost);
    let hashed = of(H8K).max(of(H128K));
    let others = [of(MPT), of(G16), of(C128K)];
    let most = costs.iter().map(|(_, cost)| *cost).fold(f64::NEG_INFINITY, f64::max);
    let least = costs.iter().map(|(_, cost)| *cost).fold(f64::INFINITY, f64::min);
    [
        ("the hashed tables are best", others.iter().all(|other| hashed < *other)),
        ("MPT is worst", others.iter().all(|other| *other <= of(MPT)) && hashed < of(MPT)),
        (
            "CPT and GPT are in between",
            [of(C128K), of(G16)].iter().all(|cost| hashed < *cost && *cost < of(MPT)),
        ),
        ("the tables do not differ much (by half at the most)", most <= 1.5 * least),
        ("one call for all pages saves what is printed", said.0 * 0.8 <= saved.0 && saved.1 <= said.1 * 1.2),
    ]
}

/// What the paper says of Figure 10, as the region grows.
fn sparse_claims(alone: &Ends) -> [(&'static str, bool); 5] {
    let grows = |name: &str| {
        let (small, large) = ends(alone, name);
        large / small
    };
    let drops = |name: &str| grows(name) > 2.0 && grows(name) > grows(H8K);
    [
        ("MPT drops dramatically, more than the small HPT", drops(MPT)),
        ("so does the large HPT", drops(H128K)),
        ("so does the CPT", drops(C128K)),
        ("the small HPT drops less dramatically", grows(H8K) > grows(G16)),
        ("GPT is unaffected (by half at the most)", grows(G16) <= 1.5),
    ]
}

/// What the paper says of Figure 11, against Figure 10, in the largest region.
fn beside_claims(alone: &Ends, beside: &Ends) -> [(&'static str, bool); 6] {
    let cost = |name: &str| ends(beside, name).1;
    let worse = |name: &str| cost(name) / ends(alone, name).1;
    let others = [MPT, G16, H128K, C128K];
    [
        ("the small HPT is worst", others.iter().all(|name| cost(name) < cost(H8K))),
        ("MPT is further degraded", worse(MPT) > 1.05),
        ("so is the large HPT", worse(H128K) > 1.05),
        ("CPT is, too, but less", worse(C128K) > 1.0 && worse(C128K) < worse(MPT).max(worse(H128K))),
        ("GPT is unaffected (by half at the most)", worse(G16) <= 1.5),
        ("GPT is best", [MPT, H8K, H128K, C128K].iter().all(|name| cost(G16) <= cost(name))),
    ]
}

pub(super) fn sparse(
    rows: &Rows<Row>,
    guest: &Guest,
    at: &str,
    title: &str,
    segment: u32,
    more: &str,
) -> anyhow::Result<(Figure, Ends)> {
    let about = format!(
        "16 pages at random places of a region, write-protected in one call and unprotected one by one.{more} {HOST}"
    );
    let mut figure = Figure::new(PAPER, at, title, &about);
    let mut found = Ends::new();
    for of in places(rows, guest) {
        let mut series = Vec::new();
        found.clear();
        for (colour, name) in of.names().iter().enumerate() {
            let points = of.sparse(name, segment)?;
            let (Some(first), Some(last)) = (points.first(), points.last()) else { continue };
            found.push((*name, first.1, last.1));
            series.push(Series::ours(*name, colour, points));
        }
        let title = of.title("A page protected and unprotected");
        let chart = Chart::curves(&title, "region (kb)", of.unit(), (true, true), series);
        figure = figure.chart(chart.ticks(&[64.0, 256.0, 1024.0, 4096.0, 16384.0]));
    }
    Ok((with_guest(figure, guest).by(rows.command.clone()), found))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 5] = ["MPT", "G16", "H8k", "H128k", "C128k"];

    fn verdict<const N: usize>(claims: [(&'static str, bool); N]) -> Verdict {
        Verdict::ALL.into_iter().find(|verdict| Verdict::claims(&claims) == *verdict).unwrap()
    }

    /// Numbers as the paper draws them agree, and with the tables the other way round they differ.
    #[test]
    fn a_compact_region() {
        let of = |costs: [f64; 5]| NAMES.into_iter().zip(costs).collect::<Vec<_>>();
        let printed = (10.0, 20.0);
        assert_eq!(
            verdict(compact_claims(&of([12.0, 11.0, 9.0, 9.5, 10.5]), (11.0, 19.0), printed)),
            Verdict::Agrees
        );
        assert_eq!(
            verdict(compact_claims(&of([5.0, 11.0, 9.0, 9.5, 10.5]), (40.0, 60.0), printed)),
            Verdict::Differs
        );
    }

    #[test]
    fn a_sparse_region() {
        let of = |ends: [(f64, f64); 5]| -> Ends {
            NAMES.into_iter().zip(ends).map(|(name, (small, large))| (name, small, large)).collect()
        };
        let alone = of([(10.0, 90.0), (10.0, 11.0), (9.0, 20.0), (9.0, 80.0), (10.0, 70.0)]);
        let beside = of([(10.0, 120.0), (10.0, 11.5), (30.0, 200.0), (9.0, 110.0), (10.0, 80.0)]);
        assert_eq!(
            (verdict(sparse_claims(&alone)), verdict(beside_claims(&alone, &beside))),
            (Verdict::Agrees, Verdict::Agrees)
        );
        // Nothing grows but the guarded table.
        let other = of([(10.0, 10.0), (10.0, 90.0), (9.0, 9.0), (9.0, 9.0), (10.0, 10.0)]);
        assert_eq!(
            (verdict(sparse_claims(&other)), verdict(beside_claims(&other, &other))),
            (Verdict::Differs, Verdict::Differs)
        );
    }
}
