//! Section 2.2: the six kinds of TLB misses.

use tlblab::mach::{Row, Scheme};

use crate::chart::{Chart, Series};
use crate::figure::{Figure, Table, Verdict, cell, holding, percent};

use super::applications::app;
use super::{APPS, Data, PAPER};

/// What there is of each kind for a message: L1U, L1K, L2, L3, TLB-invalid, TLB-modify; and cycles of user and of kernel misses.
struct Kinds {
    name: String,
    misses: [Option<f64>; 6],
    cycles: (f64, f64),
}

/// Returns section 2.2.
///
/// # Errors
///
/// If the lab's rows lack a number.
pub(super) fn kinds(data: &Data) -> anyhow::Result<Figure> {
    let mut all = Vec::new();
    let of_row = |name: &str, row: &Row| {
        let per = |count: u64| count as f64 / row.ipcs as f64;
        let misses = [row.l1u, row.l1k, row.l2, row.l3, row.invalid].map(|count| Some(per(count)));
        let [l1u, l1k, l2, l3, invalid] = misses;
        let misses = [l1u, l1k, l2, l3, invalid, row.modify.map(per)];
        Kinds { name: name.into(), misses, cycles: (row.user_cycles_per_ipc, row.penalty_cycles_per_ipc) }
    };
    let talk = data.talk.one("Mach", |row| row.scheme == Scheme::Mach)?;
    all.push(of_row("three programs that talk", talk));
    for name in APPS {
        let row = app(data, name, Scheme::Mach)?;
        let counts = [row.l1u, row.l1k, row.l2, row.l3, row.invalid, row.modify];
        let misses = counts.map(|count| Some(count as f64 / row.ipcs as f64));
        let cycles = (row.user_cycles_per_ipc, row.penalty_cycles_per_ipc);
        all.push(Kinds { name: format!("{name}, stand-in"), misses, cycles });
    }
    let synthetic = |row: &&Row| row.scheme == Scheme::Mach && row.servers == 4;
    let synthetic = data.servers.one("four servers, Mach", |row| synthetic(&row))?;
    all.push(of_row("synthetic benchmark, four servers", synthetic));

    let invalid = data.thesis.at(&["Table 2.1", "TLB-invalid"])?;
    let least = data.thesis.at(&["4.3.1", "kernel misses of all penalties, least %"])?;
    let range = |end| data.thesis.at(&["4.5.2", &format!("L1U misses an IPC, {end}")]);
    let (low, high) = (range("least")?, range("most")?);
    let share = |kinds: &Kinds| {
        let (user, kernel) = kinds.cycles;
        100.0 * kernel / (kernel + user + invalid * kinds.misses[4].unwrap_or(0.0))
    };
    // The thesis says these of its applications; the benchmark comes last.
    let apps = &all[..all.len() - 1];
    let first = |kinds: &Kinds| kinds.misses[1..4].iter().all(|kind| *kind < kinds.misses[0]);
    let over = apps.iter().filter(|kinds| share(kinds) > least).count();
    let within = |kinds: &&Kinds| kinds.misses[0].is_some_and(|l1u| (low..=high).contains(&l1u));
    let within = apps.iter().filter(within).count();
    let claims = [
        ("L1U misses are the most frequent", apps.iter().all(first)),
        ("kernel misses are typically more than half of the penalties", 2 * over > apps.len()),
        ("L1U misses a message are as many as the thesis's applications have", within == apps.len()),
    ];
    let rows = all.iter().map(|kinds| {
        let numbers = kinds.misses.iter().map(|kind| kind.map_or("-".into(), cell));
        [kinds.name.clone()].into_iter().chain(numbers).chain([percent(share(kinds))]).collect()
    });
    let head = ["", "L1U", "L1K", "L2", "L3", "TLB-invalid", "TLB-modify", "kernel misses' share of cycles"];
    let bars = |at: usize, name: &str| {
        let points =
            apps.iter().enumerate().filter_map(|(place, kinds)| Some((place as f64, kinds.misses[at]?)));
        Series::ours(name, at, points.collect())
    };
    let series =
        vec![bars(1, "L1K"), bars(2, "L2"), bars(3, "L3"), bars(4, "TLB-invalid"), bars(5, "TLB-modify")];
    let about = "Misses for each message under Mach. A TLB-invalid miss is a process's first touch of a page: the model pages nothing out, so \
                 that no page is touched first twice but those of a process that was replaced. A TLB-modify miss is the first store \
                 to a page that was mapped at a load. The synthetic benchmark has none counted: the thesis does not say which of its words \
                 are stored to.";
    let (mine, rest) = (share(&all[0]), share(&all[all.len() - 1]));
    Ok(Figure::new(PAPER, "Section 2.2", "The six kinds of TLB misses", about)
        .chart(Chart::bars("All kinds but L1U", "misses a message", apps.iter().map(|kinds| kinds.name.clone()).collect(), series))
        .table(Table::new("Misses a message", &head, rows.collect()))
        .says(
            Verdict::claims(&claims),
            format!(
                "of what the thesis says, {}. Kernel misses are more than {} % of the cycles in {over} of {}, {} of the three programs' and {} of the \
                 benchmark's, with {} cycles for a TLB-invalid miss, without what the VM system takes for it; {within} have {} to {} L1U misses \
                 a message, the three programs {}.",
                holding(&claims),
                cell(least),
                apps.len(),
                percent(mine),
                percent(rest),
                cell(invalid),
                cell(low),
                cell(high),
                cell(all[0].misses[0].unwrap_or(f64::NAN))
            ),
        )
        .by(data.talk.command.clone())
        .by(data.apps.command.clone())
        .by(data.servers.command.clone()))
}
