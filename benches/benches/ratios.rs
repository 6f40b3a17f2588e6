//! The same cases, interleaved round by round, as ratios to the first subject of each job.
//!
//! On a machine that is shared the absolute times of two runs say little; rounds that alternate see the same noise.
//! Prints the median time of an operation, and the median ratio of neighbouring rounds with its confidence interval of
//! 95 %, from the order of the ratios alone. `--json` prints one array of rows instead. No ratio fails; a filter that matches no job does.
#![allow(missing_docs)]

use std::process::ExitCode;
use std::time::{Duration, Instant};

use tlbkit_benches::cases::{self, Case, Round};

/// How long a job's subjects are measured together, per subject.
const TIME: Duration = Duration::from_millis(400);

/// What a subject did at a job.
struct Row {
    job: &'static str,
    subject: &'static str,
    ns: f64,
    /// What the ratio is to: the job's first subject, `x86_64` wherever that can do the job.
    to: &'static str,
    ratio: f64,
    ci: [f64; 2],
}

fn main() -> ExitCode {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    let json = std::env::args().any(|arg| arg == "--json");
    let mut jobs: Vec<_> = cases::all().iter().map(|case| case.job).collect();
    jobs.dedup();
    if let Some(part) = wanted.iter().find(|part| !jobs.iter().any(|job| job.contains(part.as_str()))) {
        eprintln!("no job has `{part}` in its name; the jobs are: {}", jobs.join(", "));
        return ExitCode::FAILURE;
    }
    if !json {
        println!("{:<22} {:<22} {:>10}  {:>6}  95 %          to", "job", "subject", "ns/op", "ratio");
    }
    let mut rows = Vec::new();
    let mut cases = cases::all().into_iter().peekable();
    while let Some(first) = cases.next() {
        let mut group = vec![first];
        while let Some(next) = cases.next_if(|case| case.job == group[0].job) {
            group.push(next);
        }
        if wanted.is_empty() || wanted.iter().any(|part| group[0].job.contains(part.as_str())) {
            let group = compare(group);
            if !json {
                group.iter().for_each(print);
            }
            rows.extend(group);
        }
    }
    if json {
        let rows: Vec<_> = rows.iter().map(object).collect();
        println!("[\n{}\n]", rows.join(",\n"));
    }
    ExitCode::SUCCESS
}

fn print(row: &Row) {
    let Row { job, subject, ns, to, ratio, ci: [low, high] } = row;
    println!("{job:<22} {subject:<22} {ns:>10.2}  {ratio:>6.3}  {low:.3}..{high:.3}  {to}");
}

/// Returns a row as JSON: the names have nothing to escape.
fn object(row: &Row) -> String {
    let Row { job, subject, ns, to, ratio, ci: [low, high] } = row;
    format!(
        r#"  {{"job": "{job}", "subject": "{subject}", "ns": {ns}, "to": "{to}", "ratio": {ratio}, "ci_low": {low}, "ci_high": {high}}}"#
    )
}

fn compare(group: Vec<Case>) -> Vec<Row> {
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
    let to = names[0].1;
    let rows = names.into_iter().zip(&times).map(|((job, subject, _), own)| {
        let ratios = own.iter().zip(&times[0]).map(|(own, first)| own / first).collect();
        let (ratio, ci) = median(ratios);
        Row { job, subject, ns: median(own.clone()).0, to, ratio, ci }
    });
    rows.collect()
}

/// Returns the median, and the values between which it lies with 95 %: those 1.96 standard deviations of the binomial
/// distribution away from it in order.
fn median(mut values: Vec<f64>) -> (f64, [f64; 2]) {
    values.sort_by(f64::total_cmp);
    let (count, last) = (values.len() as f64, values.len() - 1);
    let away = 0.98 * count.sqrt();
    let [low, high] = [0.5 * count - away, 0.5 * count + away].map(|at| (at.max(0.0) as usize).min(last));
    (values[values.len() / 2], [values[low], values[high]])
}
