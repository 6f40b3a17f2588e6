//! The first page: what to choose when, from the data.

use tlbkit_names::{C128K, GA, HR, LPT, MPT};
use tlblab::shootdown::{Model, Source};
use tlblab::tables::{Row, TablesArgs};

use crate::figure::cell;
use crate::lab::Lab;
use crate::papers;
use crate::rows::Rows;

/// A line of the first page.
#[derive(Clone, Debug)]
pub(crate) struct Choice {
    pub(crate) when: String,
    pub(crate) take: String,
    pub(crate) because: String,
    pub(crate) command: String,
}

/// The structures that one would choose from: the fixed guarded tables and the fixed arrays are for comparison.
const CANDIDATES: [&str; 5] = [MPT, LPT, GA, HR, C128K];

/// Returns the choices.
///
/// # Errors
///
/// If the lab fails.
pub(crate) fn choices(lab: &Lab) -> anyhow::Result<Vec<Choice>> {
    // A nested miss is a trap, which costs more than loads.
    let refs = |row: &Row| match row.nested_misses_mean {
        Some(_) => f64::INFINITY,
        None => row.refs_per_lookup_mean,
    };
    let bytes = |row: &Row| row.bytes_per_pte;
    let both = |row: &Row| row.refs_per_lookup_mean * row.bytes_per_pte;
    let by_both = "the least of loads a refill times bytes a page";
    type By = fn(&Row) -> f64;
    let situations: [(&str, &str, By, &str); 5] = [
        (
            "dense: one run of 4096 pages",
            "tables --workload dense --pages 4096 --layout compact",
            both,
            by_both,
        ),
        (
            "sparse: 1024 pages anywhere in 64 bits",
            "tables --workload uniform --pages 1024 --layout compact",
            both,
            by_both,
        ),
        (
            "sparse, in objects as large as files",
            "tables --workload file --pages 4096 --layout compact",
            both,
            by_both,
        ),
        (
            "a real program's, refilled often",
            "tables --layout compact",
            refs,
            "the fewest loads of a refill that is one trap",
        ),
        (
            "in a tiny memory",
            "tables --workload conventional --pages 64 --layout compact",
            bytes,
            "the fewest bytes a page",
        ),
    ];
    let mut all = Vec::new();
    for (when, args, by, why) in situations {
        let rows = lab.rows::<TablesArgs>(args)?;
        let (take, because) = best(&rows, by, why)?;
        all.push(Choice { when: when.into(), take, because, command: rows.command });
    }
    all.push(small_tasks(lab)?);
    all.push(many_cpus(lab)?);
    Ok(all)
}

/// Returns the candidate with the least of `by`, and what it and the next do.
fn best(rows: &Rows<Row>, by: fn(&Row) -> f64, why: &str) -> anyhow::Result<(String, String)> {
    let mut ranked = Vec::new();
    for name in CANDIDATES {
        let row = rows.of(name)?;
        let (refs, bytes, nested) = (row.refs_per_lookup_mean, row.bytes_per_pte, row.nested_misses_mean);
        let traps = nested.map_or(String::new(), |nested| format!(" in {} traps", cell(1.0 + nested)));
        ranked.push((by(row), format!("{name} ({} loads{traps}, {} bytes)", cell(refs), cell(bytes))));
    }
    ranked.sort_by(|one, other| one.0.total_cmp(&other.0));
    let take = ranked[0].1.split(' ').next().unwrap_or_default().to_owned();
    let texts: Vec<_> = ranked.iter().map(|(_, text)| text.as_str()).collect();
    Ok((take, format!("{why}: {}; then {}.", texts[0], texts[1..].join(", "))))
}

/// Returns the candidate whose creation, one page mapped, and end take the least time; timed are all but the linear one.
fn small_tasks(lab: &Lab) -> anyhow::Result<Choice> {
    let times = papers::timed(lab)?;
    let space = lab.rows::<TablesArgs>("tables --workload uniform --pages 1 --layout compact")?;
    let mut ranked = Vec::new();
    for name in CANDIDATES.into_iter().filter(|name| *name != LPT) {
        let of_mpt = times.at("task", name)?.of_mpt;
        let bytes = space.of(name)?.bytes as f64;
        let text = format!("{name} ({} of MPT's time, {} bytes)", cell(of_mpt), cell(bytes));
        ranked.push((of_mpt, name, text));
    }
    ranked.sort_by(|one, other| one.0.total_cmp(&other.0));
    let texts: Vec<_> = ranked.iter().map(|(.., text)| text.as_str()).collect();
    Ok(Choice {
        when: "one of many small tasks: a page each".into(),
        take: ranked[0].1.into(),
        because: format!(
            "the cheapest to create and to destroy: {}; then {}.",
            texts[0],
            texts[1..].join(", ")
        ),
        command: times.command,
    })
}

/// Returns the algorithm that leaves most of the CPUs' time at fifty of them.
fn many_cpus(lab: &Lab) -> anyhow::Result<Choice> {
    let rows = lab.rows::<Model>("shootdown analyse --m 50")?;
    let mut ranked: Vec<(f64, String)> = Vec::new();
    for row in rows.iter().filter(|row| row.source == Source::Upper) {
        let (Some(overhead), Some(latency)) = (row.cpu_overhead_share, row.latency_ms) else { continue };
        let name = row.algorithm.name();
        ranked.push((
            overhead,
            format!("{name} ({} % of the CPUs, {} ms)", cell(100.0 * overhead), cell(latency)),
        ));
    }
    ranked.sort_by(|one, other| one.0.total_cmp(&other.0));
    let texts: Vec<_> = ranked.iter().map(|(_, text)| text.clone()).collect();
    let take = texts.first().and_then(|text| text.split(' ').next()).unwrap_or("-").to_owned();
    Ok(Choice {
        when: "shared by many CPUs: 50, each unmapping 25 times a second".into(),
        take: format!("shootdown by {take}"),
        because: format!("the least CPU time, at the price of latency: {}.", texts.join("; then ")),
        command: rows.command,
    })
}
