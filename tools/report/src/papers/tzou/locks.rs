//! Beyond Figure 4.5: threads that fault in one address space, which wait for each other before any shootdown.

use tlblab::locks::{Locks, Regions, Row, Scheme};

use crate::chart::{Chart, Series};
use crate::figure::{Figure, Table, cell};
use crate::lab::Lab;

/// Where the threads fault, in words.
const REGIONS: [(Regions, &str); 4] = [
    (Regions::Disjoint, "1 GiB for each thread"),
    (Regions::Near, "regions of 2 MiB within 1 GiB"),
    (Regions::Shared, "one region of 2 MiB"),
    (Regions::FirstTouch, "each fault the first of 2 MiB"),
];

/// Adds what one lock for the space and locks of nodes give as many CPUs.
pub(super) fn beyond(lab: &Lab, figure: Figure) -> anyhow::Result<Figure> {
    let rows = lab.rows::<Locks>(if lab.quick { "locks --changes 2000" } else { "locks" })?;
    let of = |regions: Regions, scheme: Scheme| {
        rows.iter().filter(move |row| row.regions == regions && row.scheme == scheme)
    };
    let curve = |regions: Regions, scheme: Scheme| {
        of(regions, scheme).map(|row: &Row| (f64::from(row.cpus), row.times_one_cpu)).collect::<Vec<_>>()
    };
    let mut series = vec![Series::ours("one writer", 0, curve(Regions::Disjoint, Scheme::OneWriter))];
    let mut table = Vec::new();
    for (colour, (regions, words)) in (1..).zip(REGIONS) {
        series.push(Series::ours(
            format!("locks of nodes: {words}"),
            colour,
            curve(regions, Scheme::NodeLocks),
        ));
        for (scheme, called) in [(Scheme::OneWriter, "one writer"), (Scheme::NodeLocks, "locks of nodes")] {
            let Some(row) = of(regions, scheme).last() else { continue };
            table.push(vec![
                words.into(),
                called.into(),
                cell(f64::from(row.cpus)),
                cell(row.times_one_cpu),
                cell(row.wait_mean_cycles),
                cell(row.wait_max_cycles.max(row.wait_above_max_cycles) as f64),
                cell(row.waiting_mean_cpus),
            ]);
        }
    }
    let head = [
        "threads fault in",
        "scheme",
        "CPUs",
        "times one CPU",
        "mean wait (cycles)",
        "longest",
        "CPUs that wait",
    ];
    let title = "Beyond the thesis: threads that fault in one address space, simulated from the counted lengths of changes";
    let chart = Chart::curves("Beyond: faults in one space", "CPUs", "times one CPU", (true, true), series);
    Ok(figure
        .chart(chart.ticks(&[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0]))
        .table(Table::new(title, &head, table))
        .by(rows.command))
}
