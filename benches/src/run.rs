//! The command line of a bench: criterion's, or with `--summary` the ratios of one run.

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use criterion::{Criterion, Throughput};

use crate::cases::Case;
use crate::{Subjects, jobs, summary};

/// Runs what the program's arguments choose of the subjects' jobs.
///
/// - `--summary [--json] [--exact] [PART]...`: all subjects of a job in one run, as ratios; parts of names as in
///   `map page/x86_64`, or with `--exact` whole names of jobs, of subjects or of both;
/// - `--jobs`: the names of the jobs, and what each measures;
/// - anything else is criterion's.
///
/// A part or filter that is in no name fails, and the names are listed. So does an option that `--summary` does not have.
pub fn main(subjects: Subjects) -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let is_given = |option: &str| arguments.iter().any(|argument| argument == option);
    let cases = subjects.cases();
    let out = &mut io::stdout();
    if is_given("--jobs") {
        let have = |job: &str| cases.iter().any(|case| case.job == job);
        let mut listed = jobs::JOBS.iter().filter(|(job, _)| have(job));
        return printed(listed.try_for_each(|(job, measures)| writeln!(out, "{job:<26} {measures}")));
    }
    if is_given("--summary") {
        // Cargo adds `--bench`.
        let known = ["--summary", "--json", "--exact", "--bench"];
        let is_option = |argument: &&String| argument.starts_with('-') && !known.contains(&argument.as_str());
        if let Some(option) = arguments.iter().find(is_option) {
            eprintln!("`{option}` is no option of `--summary`, which has `--json` and `--exact`");
            return ExitCode::FAILURE;
        }
        let has = |case: &Case, part: &str| match is_given("--exact") {
            true => [&case.name(), case.job, case.subject].contains(&part),
            false => case.name().contains(part),
        };
        let parts: Vec<&String> = arguments.iter().filter(|argument| !argument.starts_with("--")).collect();
        if let Some(part) = parts.iter().find(|part| !cases.iter().any(|case| has(case, part))) {
            return nothing(part, &cases);
        }
        let wanted = |case: &Case| parts.is_empty() || parts.iter().any(|part| has(case, part));
        return printed(summary::print(out, cases, wanted, is_given("--json")));
    }
    let names: Vec<_> = cases.iter().map(|case| (case.job, case.subject)).collect();
    let ran = measure(&mut crate::criterion().configure_from_args(), cases);
    if ran == 0 && !is_given("--list") {
        let words: Vec<_> =
            arguments.iter().filter(|argument| *argument != "--bench").map(String::as_str).collect();
        return nothing_of(&words.join(" "), names);
    }
    ExitCode::SUCCESS
}

/// Runs the cases under criterion, which chooses by its own filter, and returns how many it has run.
fn measure(criterion: &mut Criterion, cases: Vec<Case>) -> usize {
    let mut ran = 0;
    for case in cases {
        let mut group = criterion.benchmark_group(case.job);
        group.throughput(Throughput::Elements(case.operations));
        // Set up once, and only what is asked for.
        let (mut start, mut round) = (Some(case.start), None);
        group.bench_function(case.subject, |bench| {
            if let Some(start) = start.take() {
                round = Some(start());
                ran += 1;
            }
            let Some(round) = &mut round else { return };
            bench.iter_custom(|rounds| (0..rounds).map(|_| round()).sum::<Duration>());
        });
    }
    criterion.final_summary();
    ran
}

/// Returns the exit code of what has printed: nobody may be there to read on.
fn printed(result: io::Result<()>) -> ExitCode {
    match result {
        Err(why) if why.kind() != io::ErrorKind::BrokenPipe => {
            eprintln!("cannot print: {why}");
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
    }
}

fn nothing(part: &str, cases: &[Case]) -> ExitCode {
    nothing_of(part, cases.iter().map(|case| (case.job, case.subject)).collect())
}

/// Says that nothing is called so, and what there is.
fn nothing_of(part: &str, mut names: Vec<(&'static str, &'static str)>) -> ExitCode {
    let mut jobs: Vec<_> = names.iter().map(|&(job, _)| job).collect();
    jobs.dedup();
    names.sort_by_key(|&(_, subject)| subject);
    let mut subjects: Vec<_> = names.iter().map(|&(_, subject)| subject).collect();
    subjects.dedup();
    eprintln!(
        "no job and no subject has `{part}` in its name\nthe jobs are:\n  {}\nthe subjects are:\n  {}",
        jobs.join("\n  "),
        subjects.join("\n  ")
    );
    ExitCode::FAILURE
}
