//! The same cases, interleaved round by round, as ratios to the first subject of each job.
//!
//! On a machine that is shared the absolute times of two runs say little; rounds that alternate see the same noise.
//! Prints the median time of an operation, and the median ratio of neighbouring rounds with the quartiles.
#![allow(missing_docs)]

use std::time::{Duration, Instant};

use tlbkit_benches::cases::{self, Case, Round};

/// How long a job's subjects are measured together, per subject.
const TIME: Duration = Duration::from_millis(700);

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    println!("{:<22} {:<22} {:>10}  {:>6}  quartiles", "job", "subject", "ns/op", "ratio");
    let mut cases = cases::all().into_iter().peekable();
    while let Some(first) = cases.next() {
        let mut group = vec![first];
        while let Some(next) = cases.next_if(|case| case.job == group[0].job) {
            group.push(next);
        }
        if wanted.is_empty() || wanted.iter().any(|part| group[0].job.contains(part.as_str())) {
            compare(group);
        }
    }
}

fn compare(group: Vec<Case>) {
    let names: Vec<_> = group.iter().map(|case| (case.job, case.subject, case.operations as f64)).collect();
    let mut rounds: Vec<Round> = group.into_iter().map(|case| (case.start)()).collect();
    // Short jobs repeat within a round, so that the clock's own cost vanishes.
    let repeats: Vec<u32> = rounds
        .iter_mut()
        .map(|round| {
            let once = (0..5).map(|_| round()).min().unwrap_or_default();
            (Duration::from_micros(50).as_nanos() / once.as_nanos().max(1)).clamp(1, 1000) as u32
        })
        .collect();
    let mut times: Vec<Vec<f64>> = vec![Vec::new(); rounds.len()];
    let end = Instant::now() + TIME * rounds.len() as u32;
    while Instant::now() < end || times[0].len() < 20 {
        for (at, round) in rounds.iter_mut().enumerate() {
            let time: Duration = (0..repeats[at]).map(|_| round()).sum();
            times[at].push(time.as_nanos() as f64 / f64::from(repeats[at]) / names[at].2);
        }
    }
    for ((job, subject, _), own) in names.into_iter().zip(&times) {
        let ratios = own.iter().zip(&times[0]).map(|(own, first)| own / first).collect();
        let [low, ratio, high] = quartiles(ratios);
        let [_, time, _] = quartiles(own.clone());
        println!("{job:<22} {subject:<22} {time:>10.2}  {ratio:>6.3}  {low:.3}..{high:.3}");
    }
}

fn quartiles(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    [1, 2, 3].map(|quarter| values[values.len() * quarter / 4])
}
