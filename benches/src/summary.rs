//! The cases interleaved round by round, as ratios to the first subject of each job.
//!
//! On a machine that is shared the absolute times of two runs say little; rounds that alternate see the same noise.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use crate::cases::{Case, Round};
use crate::{Host, jobs};

/// How long a job's subjects are measured together, per subject.
const TIME: Duration = Duration::from_millis(400);

/// What a subject did at a job.
struct Row {
    job: &'static str,
    subject: &'static str,
    bits: u32,
    ns: f64,
    /// What the ratio is to.
    to: &'static str,
    ratio: f64,
    ci: [f64; 2],
}

/// Measures the cases that `wanted` chooses, and those that their ratios are to. Prints the median time of an operation,
/// and the median ratio of neighbouring rounds with its confidence interval of 95 %, from the order of the ratios alone;
/// with `json` one array of rows, each of which says where it was measured.
///
/// # Errors
///
/// If `out` takes no more.
pub(crate) fn print(
    out: &mut impl Write,
    cases: Vec<Case>,
    wanted: impl Fn(&Case) -> bool,
    json: bool,
) -> io::Result<()> {
    let host = Host::this();
    if json {
        write!(out, "[")?;
    } else {
        for (name, value) in host.fields() {
            writeln!(out, "{name:<10} {value}")?;
        }
    }
    let groups = groups(cases, wanted);
    let widest = |least: usize, name: fn(&Case) -> &str| {
        groups.iter().flatten().map(|case| name(case).len()).fold(least, usize::max)
    };
    let (wide, subjects) = (widest(24, |case| case.job), widest(26, |case| case.subject));
    if !json {
        writeln!(
            out,
            "\n{:<wide$} {:<subjects$} {:>10}  {:>6}  95 %          to",
            "job", "subject", "ns/op", "ratio"
        )?;
    }
    let mut between = "\n";
    for row in groups.into_iter().flat_map(compare) {
        if json {
            write!(out, "{between}{}", object(&host, &row))?;
            between = ",\n";
        } else {
            let Row { job, subject, ns, to, ratio, ci: [low, high], .. } = row;
            writeln!(
                out,
                "{job:<wide$} {subject:<subjects$} {ns:>10.2}  {ratio:>6.3}  {low:.3}..{high:.3}  {to}"
            )?;
        }
    }
    if json { writeln!(out, "\n]") } else { Ok(()) }
}

/// Returns the chosen cases of each job and width of addresses, with those that ratios are to.
fn groups(cases: Vec<Case>, wanted: impl Fn(&Case) -> bool) -> Vec<Vec<Case>> {
    let mut groups: Vec<Vec<Case>> = Vec::new();
    for case in cases {
        let same = |group: &&mut Vec<Case>| (group[0].job, group[0].bits) == (case.job, case.bits);
        match groups.iter_mut().rev().find(same) {
            Some(group) => group.push(case),
            None => groups.push(vec![case]),
        }
    }
    groups.retain(|group| group.iter().any(&wanted));
    for group in &mut groups {
        let first = group[0].subject;
        let bases: Vec<_> =
            group.iter().filter(|case| wanted(case)).map(|case| case.one.unwrap_or(first)).collect();
        group.retain(|case| bases.contains(&case.subject) || wanted(case));
    }
    groups
}

/// Returns a row as JSON: the names have nothing to escape but what a system's answer may have.
fn object(host: &Host, row: &Row) -> String {
    let Row { job, subject, bits, ns, to, ratio, ci: [low, high] } = row;
    let host = host.fields().map(|(name, value)| {
        let value = value.replace(['"', '\\'], "'");
        format!(r#""{name}": "{value}", "#)
    });
    let measures = jobs::measures(job);
    format!(
        r#"  {{{}"job": "{job}", "measures": "{measures}", "subject": "{subject}", "bits": {bits}, "ns": {ns}, "to": "{to}", "ratio": {ratio}, "ci_low": {low}, "ci_high": {high}}}"#,
        host.concat()
    )
}

fn compare(group: Vec<Case>) -> Vec<Row> {
    let place = |name| group.iter().position(|case| Some(case.subject) == name).unwrap_or(0);
    let bases: Vec<_> = group.iter().map(|case| (place(case.one), case.one.is_some())).collect();
    let names: Vec<_> =
        group.iter().map(|case| (case.job, case.subject, case.bits, case.operations as f64)).collect();
    let mut rounds: Vec<Round> = group.into_iter().map(|case| (case.start)()).collect();
    // Each subject's first rounds touch its memory, and are not counted. Short jobs repeat within a round, so that what the scheduler does
    // between two rounds is the same for all.
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
        // Another one begins each time: what a subject leaves in the caches is not always the same one's to find.
        let first = times[0].len() % rounds.len();
        for at in (first..rounds.len()).chain(0..first) {
            let time: Duration = (0..repeats[at]).map(|_| rounds[at]()).sum();
            times[at].push(time.as_nanos() as f64 / f64::from(repeats[at]) / names[at].3);
        }
    }
    let rows =
        names.iter().zip(bases).zip(&times).map(|((&(job, subject, bits, _), (base, throughput)), own)| {
            let ratio = |(own, base): (&f64, &f64)| if throughput { base / own } else { own / base };
            let (ratio, ci) = median(own.iter().zip(&times[base]).map(ratio).collect());
            Row { job, subject, bits, ns: median(own.clone()).0, to: names[base].1, ratio, ci }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Subjects;
    use crate::peers::{BTree, HashBrown, X86};
    use crate::threads::Locked;

    #[test]
    fn a_chosen_subject_is_compared_with_the_first_of_its_job() {
        let cases = Subjects::none().with::<X86>().with::<HashBrown>().with::<BTree>().cases();
        let groups = groups(cases, |case| case.name().contains("map 128/BTree"));
        let names: Vec<Vec<_>> = groups.iter().map(|group| group.iter().map(Case::name).collect()).collect();
        assert_eq!(names[0], ["map 128/x86_64", "map 128/BTreeMap"]);
        assert_eq!(names[1], ["unmap 128/x86_64", "unmap 128/BTreeMap"]);
        assert_eq!(names.len(), 2);
    }

    #[test]
    fn several_threads_are_compared_with_one_of_the_same_subject() {
        let cases = Subjects::none().threads::<Locked<BTree>>().threads::<Locked<HashBrown>>().cases();
        let groups = groups(cases, |case| case.name().contains("shared/hashbrown, one lock, 2"));
        let rows = groups.into_iter().flat_map(compare);
        let rows: Vec<_> = rows.map(|row| (row.subject, row.to, row.ns > 0.0)).collect();
        let one = "hashbrown, one lock, 1 thread";
        assert_eq!(rows, [(one, one, true), ("hashbrown, one lock, 2 threads", one, true)]);
    }

    #[test]
    fn the_median_lies_in_its_interval() {
        let (ratio, [low, high]) = median((0..101).map(f64::from).collect());
        assert_eq!(ratio, 50.0);
        assert!((35.0..50.0).contains(&low) && (50.0..65.0).contains(&high), "{low} {high}");
    }
}
