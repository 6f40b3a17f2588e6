//! The thesis's claims, each as a number that the model gives and a range that the thesis prints.

use indicatif::ProgressIterator;
use serde::Serialize;

use super::benchmark::{Open, Workload, run};
use super::costs::Costs;
use super::scheme::Scheme;

/// A claim under one choice of what the thesis leaves open.
#[derive(Debug, Serialize)]
pub(crate) struct Claim {
    parameters: &'static str,
    claim: &'static str,
    printed: &'static str,
    measured_low: f64,
    measured_high: f64,
    holds: bool,
}

/// What is varied, one thing at a time.
fn variations() -> Vec<(&'static str, Open, Costs)> {
    let base = Open::default;
    let open = [
        ("as documented", base()),
        ("1 page of kernel IPC data", Open { ipc_pages: 1, ..base() }),
        ("4 pages of kernel IPC data", Open { ipc_pages: 4, ..base() }),
        ("no other kernel data", Open { own_pages: 0, ..base() }),
        ("4 pages of other kernel data", Open { own_pages: 4, ..base() }),
        ("kernel data all in one region", Open { spread: false, ..base() }),
        ("3 pages of code", Open { code_pages: 3, ..base() }),
        ("16 MB of user data", Open { table_mb: 16, ..base() }),
        ("no replies along the chain", Open { replies: false, ..base() }),
    ];
    let mut all: Vec<_> = open.map(|(name, open)| (name, open, Costs::default())).into();
    all.push(("L3 at 338 cycles (Table 3.2)", base(), Costs { l3: 338, ..Costs::default() }));
    all
}

/// Returns every claim under every variation.
pub(crate) fn sensitivity(workload: &Workload) -> Vec<Claim> {
    let variations = variations();
    let bar = super::progress(variations.len(), "variations");
    variations
        .into_iter()
        .progress_with(bar)
        .flat_map(|(parameters, open, costs)| {
            claims(parameters, &Workload { open, costs, ..workload.clone() })
        })
        .collect()
}

/// What a claim looks at, for each configuration.
struct Measured {
    servers: usize,
    misses: f64,
    penalty: f64,
    hit_rate: f64,
    cycles: f64,
}

fn measure(workload: &Workload, scheme: Scheme) -> Measured {
    let (tally, count) = run(workload, scheme);
    let lookups = (count.hits() + count.misses()).max(1);
    Measured {
        servers: workload.servers,
        misses: tally.kernel_misses() as f64 / tally.ipcs as f64,
        penalty: (tally.penalty + tally.overhead) as f64 / tally.ipcs as f64,
        hit_rate: 100.0 * count.hits() as f64 / lookups as f64,
        cycles: super::cycles_per_ipc(&tally),
    }
}

fn claims(parameters: &'static str, base: &Workload) -> Vec<Claim> {
    let over_servers = |scheme| -> Vec<Measured> {
        (1..=10).map(|servers| measure(&Workload { servers, words: 30, ..base.clone() }, scheme)).collect()
    };
    let over_words = |scheme| -> Vec<Measured> {
        [5, 10, 20, 30, 40, 50]
            .map(|words| measure(&Workload { servers: 4, words, ..base.clone() }, scheme))
            .into()
    };
    let [mach, ptlb, stlb, both, victim, folded] = [
        Scheme::Mach,
        Scheme::Ptlb,
        Scheme::Stlb4k,
        Scheme::Both,
        Scheme::Stlb4kVictim,
        Scheme::Stlb4kFolded,
    ]
    .map(over_servers);
    let [mach_w, ptlb_w, stlb_w, both_w] =
        [Scheme::Mach, Scheme::Ptlb, Scheme::Stlb4k, Scheme::Both].map(over_words);

    // Most ranges are printed as "about": five points either way.
    let about = |low: f64, high: f64| (low - 5.0, high + 5.0);
    let above = |low: f64| (low, f64::INFINITY);
    let mut claims = Vec::new();
    let mut claim = |claim, printed, (low, high): (f64, f64), values: Vec<f64>| {
        let measured_low = values.iter().copied().fold(f64::INFINITY, f64::min);
        let measured_high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let holds = measured_low >= low && measured_high <= high;
        claims.push(Claim { parameters, claim, printed, measured_low, measured_high, holds });
    };
    let removed = |of: fn(&Measured) -> f64, with: &[Measured], without: &[Measured], servers: &[usize]| {
        with.iter()
            .zip(without)
            .filter(|(with, _)| servers.contains(&with.servers))
            .map(|(with, without)| 100.0 * (1.0 - of(with) / of(without)))
            .collect::<Vec<_>>()
    };
    let misses: fn(&Measured) -> f64 = |m| m.misses;
    let penalty: fn(&Measured) -> f64 = |m| m.penalty;
    let from_two: Vec<usize> = (2..=10).collect();
    let to_seven: Vec<usize> = (2..=7).collect();

    claim(
        "misses removed by the PTLB, 2 servers or more (%)",
        "60-65",
        about(60.0, 65.0),
        removed(misses, &ptlb, &mach, &from_two),
    );
    claim(
        "misses removed by the STLB, 2 to 7 servers (%)",
        "25-30",
        about(25.0, 30.0),
        removed(misses, &stlb, &mach, &to_seven),
    );
    let fewest = (1..7).map(|at| ptlb[at].misses.min(stlb[at].misses) - both[at].misses).collect();
    claim(
        "misses per message that PTLB+STLB has less than either, 2 to 7 servers",
        "> 0",
        above(0.0),
        fewest,
    );
    claim(
        "misses per message, two servers over one (ratio)",
        "\"dramatic\"",
        above(1.3),
        vec![mach[1].misses / mach[0].misses],
    );
    claim(
        "STLB hit rate, 1 to 7 servers (%)",
        "nearly 100",
        about(100.0, 100.0),
        stlb[..7].iter().map(|m| m.hit_rate).collect(),
    );
    claim(
        "STLB hit rate lost from 7 to 8 servers (points)",
        "a knee",
        above(5.0),
        vec![stlb[6].hit_rate - stlb[7].hit_rate],
    );
    for (name, with) in [
        ("the same with 8 victims (beyond the thesis)", &victim),
        ("the same with a folded index (beyond the thesis)", &folded),
    ] {
        claim(name, "no knee", (-1.0, 1.0), vec![with[6].hit_rate - with[7].hit_rate]);
    }
    for (name, words) in [
        ("penalty and overhead saved by the PTLB, 5 and 10 words (%)", 0..2),
        ("penalty and overhead saved by the PTLB, 20 to 50 words (%)", 2..6),
    ] {
        claim(
            name,
            "50-55",
            about(50.0, 55.0),
            removed(penalty, &ptlb_w[words.clone()], &mach_w[words], &[4]),
        );
    }
    claim(
        "penalty and overhead saved by the STLB, 5 to 50 words (%)",
        "80",
        about(80.0, 80.0),
        removed(penalty, &stlb_w, &mach_w, &[4]),
    );
    claim(
        "penalty and overhead saved by both, 2 to 10 servers (%)",
        "70-80",
        about(70.0, 80.0),
        removed(penalty, &both, &mach, &from_two),
    );
    claim(
        "penalty and overhead saved by both, 5 to 50 words (%)",
        "80-85",
        about(80.0, 85.0),
        removed(penalty, &both_w, &mach_w, &[4]),
    );
    // Tables 4.11 to 4.13: percent of the run time saved, 3 to 10 servers.
    for (name, printed, range, with) in [
        ("run time saved by the PTLB, 3 to 10 servers, fine grain (%)", "2.3-5.1", (2.3, 5.1), &ptlb),
        ("run time saved by the STLB, 3 to 10 servers, fine grain (%)", "6.0-10.2", (6.0, 10.2), &stlb),
        ("run time saved by both, 3 to 10 servers, fine grain (%)", "6.4-11.0", (6.4, 11.0), &both),
    ] {
        claim(name, printed, range, removed(|m| m.cycles, with, &mach, &(3..=10).collect::<Vec<_>>()));
    }
    claims
}
