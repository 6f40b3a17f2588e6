//! `tlblab explore`: every algorithm of `tlbkit-shootdown` over all interleavings, on every kind of hardware.

use anyhow::{bail, ensure};
use clap::Args;
use serde::{Deserialize, Serialize};
use tlbkit_shootdown::{Algorithm, Hardware};

pub(crate) use self::cases::FORMS;
use self::cases::{Case, MACHINES, Machine};
pub(crate) use self::schedule::{Choice, one_schedule};
use self::search::{Search, Verdict};
use crate::{Experiment, Name};

mod ask;
mod broadcast;
mod cases;
mod check;
mod driver;
mod hardware;
mod pack;
mod reduce;
mod schedule;
mod search;
mod software;
mod step;
mod world;

/// Explore every algorithm on every kind of hardware, over all interleavings.
///
/// Sound pairings must hold in every world; unsuitable ones, and sound ones with one repair switched off, must be
/// found wrong. Anything else is an error.
#[derive(Debug, Args)]
pub struct Explore {
    /// Only this algorithm, by its name in Table 3.1 (PTE-first, TLB-first, 2-phase, optimistic, with ' or ''),
    /// `broadcast`, or a later form: `concurrent`, `early`, `swept`
    #[arg(long, value_name = "NAME")]
    algorithm: Option<String>,
    /// Only this hardware: a row of Table 2.1 (vax, ns32332, sun3, i386, n10, rp3, mc88200), a machine of today (x86-64,
    /// x86-64-invlpgb, aarch64, aarch64-hafdbs, riscv-svade, riscv-svadu, mips32, loongarch64, powerpc-radix,
    /// powerpc-hash; those that are alike are explored as one), or read-then-write, read-then-rewrite, from-tlb, on-miss,
    /// read-and-from-tlb, soft-read-then-write, soft-remote, remote-read-then-write, virtual-cache
    #[arg(long, value_name = "NAME")]
    hardware: Option<String>,
    /// CPUs in the cases with one requester
    #[arg(long, value_name = "CPUS", default_value_t = 3, value_parser = clap::value_parser!(u8).range(2..=4))]
    cpus: u8,
    /// CPUs in the cases with two requesters, and with CPUs that come and go [default: as many]
    #[arg(long, value_name = "CPUS", value_parser = clap::value_parser!(u8).range(2..=4))]
    fewer: Option<u8>,
    /// The known hazards: one repair switched off at a time
    #[arg(long)]
    hazards: bool,
    /// Table 2.2: the damages where no algorithm is used
    #[arg(long)]
    damages: bool,
    /// Print the shortest counterexamples, step by step
    #[arg(long)]
    trace: bool,
    /// Most worlds of one case
    #[arg(long, value_name = "WORLDS", default_value_t = 20_000_000)]
    limit: usize,
    /// Tell all worlds apart, also those that no CPU can: slow, and a check of what is left out otherwise
    #[arg(long)]
    unreduced: bool,
    /// The crate's driver itself, loops included, with CPUs that are stopped before each access to a shared word; with
    /// `--hazards`, each of which must be found
    #[arg(long)]
    driver: bool,
    /// Most times that the driver is interrupted by another CPU's going on
    #[arg(long, value_name = "N", default_value_t = 1)]
    preemptions: usize,
    /// Most schedules of one scene of the driver, with each number of preemptions
    #[arg(long, value_name = "N", default_value_t = 2_000)]
    schedules: usize,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Most worlds of a case that is to be found wrong.
const BROKEN_EARLY: usize = 400_000;

/// One exploration's result.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    /// The algorithm, by its name in Table 3.1, `broadcast`, or `none`.
    pub algorithm: Name,
    /// The hardware, as `--hardware` takes it.
    pub hardware: Name,
    /// What the CPUs do.
    pub case: String,
    /// The repair that was switched off.
    pub without: Option<String>,
    /// `sound`, `broken`, `stuck` or `too big`.
    pub verdict: Name,
    /// Whether that is what the crate's capability check, or the hazard, says.
    pub expected: bool,
    /// How many worlds there are.
    pub worlds: usize,
    /// How long the search took.
    pub seconds: f64,
    /// Steps of the shortest counterexample.
    pub steps: Option<usize>,
    /// What is wrong at its end.
    pub why: Option<String>,
}

impl Explore {
    /// Returns the name of the algorithm that is wanted.
    fn algorithm(&self) -> anyhow::Result<Option<&'static str>> {
        let Some(name) = &self.algorithm else { return Ok(None) };
        let forms = FORMS.map(|(name, ..)| name);
        let known: Vec<_> =
            Algorithm::ALL.map(Algorithm::name).into_iter().chain([cases::BROADCAST]).chain(forms).collect();
        match known.iter().find(|known| *known == name) {
            None => bail!("no algorithm `{name}`: say one of {}", known.join(", ")),
            found => Ok(found.copied()),
        }
    }
}

pub(crate) fn run(args: &Explore) -> anyhow::Result<()> {
    if args.driver {
        return driver::run(args);
    }
    let rows = explored(args)?;
    crate::rows::print(args.json, &rows)?;
    as_expected(&rows)
}

impl Experiment for Explore {
    const COMMAND: &'static str = "explore";
    type Row = Row;

    /// A row that is not as expected is an error, too.
    fn rows(&self) -> anyhow::Result<Vec<Row>> {
        ensure!(!self.driver, "--driver has other rows: leave it out");
        let rows = explored(self)?;
        as_expected(&rows)?;
        Ok(rows)
    }
}

fn explored(args: &Explore) -> anyhow::Result<Vec<Row>> {
    let mut cases = select(args)?;
    for case in &mut cases {
        case.scene.reduce = !args.unreduced;
    }
    let found = explore(&cases, args.limit)?;
    if args.trace {
        for (case, search) in cases.iter().zip(&found) {
            print_trace(case, search);
        }
    }
    Ok(rows(&cases, &found))
}

fn as_expected(rows: &[Row]) -> anyhow::Result<()> {
    let wrong = rows.iter().filter(|row| !row.expected).count();
    if wrong > 0 {
        bail!("{wrong} of {} results are not what they should be; see the column `expected`", rows.len());
    }
    Ok(())
}

fn select(args: &Explore) -> anyhow::Result<Vec<Case>> {
    let algorithm = args.algorithm()?;
    let machine = match &args.hardware {
        Some(name) => match Machine::named(name) {
            Some(machine) => Some(machine.name),
            None => {
                bail!("no hardware `{name}`: say one of {}", known().join(", "))
            }
        },
        None => None,
    };
    let mut cases = Vec::new();
    if args.hazards {
        cases.extend(cases::hazards());
    }
    if args.damages {
        cases.extend(cases::damages());
    }
    if !args.hazards && !args.damages {
        for one in Algorithm::ALL {
            for machine in MACHINES.iter() {
                let fewer = args.fewer.unwrap_or(args.cpus);
                cases.extend(cases::pairing(one, machine, usize::from(args.cpus), usize::from(fewer)));
            }
        }
        for (one, machine) in FORMS.iter().flat_map(|one| MACHINES.iter().map(move |machine| (one, machine)))
        {
            let fewer = args.fewer.unwrap_or(args.cpus);
            cases.extend(cases::form(*one, machine, usize::from(args.cpus), usize::from(fewer)));
        }
        for machine in MACHINES.iter() {
            let fewer = args.fewer.unwrap_or(args.cpus);
            cases.extend(cases::broadcast(machine, usize::from(args.cpus), usize::from(fewer)));
        }
    }
    cases.retain(|case| algorithm.is_none_or(|name| case.algorithm == name));
    cases.retain(|case| machine.is_none_or(|name| case.machine == name));
    if cases.is_empty() {
        bail!("there is no such case: leave --algorithm or --hardware out");
    }
    Ok(cases)
}

/// Returns the names of all hardware, each once: a machine of today may be explored under its own name, or as another that is alike.
fn known() -> Vec<&'static str> {
    let mut known: Vec<_> = MACHINES.iter().map(|machine| machine.name).collect();
    let others: Vec<_> =
        Hardware::TODAY.iter().map(|&(name, _)| name).filter(|name| !known.contains(name)).collect();
    known.extend(others);
    known
}

fn explore(cases: &[Case], limit: usize) -> anyhow::Result<Vec<Search>> {
    // What is to be found wrong is found early, or in another case: it need not be looked for everywhere.
    let limit = |case: &Case| if case.sound { limit } else { limit.min(BROKEN_EARLY) };
    crate::parallel::map(cases, |case| search::search(&case.scene, limit(case)))
}

/// An unsuitable pairing is as it should be if any of its cases is found wrong: not all of them show it.
fn rows(cases: &[Case], found: &[Search]) -> Vec<Row> {
    let wrong = |search: &Search| matches!(search.verdict, Verdict::Broken { .. } | Verdict::Stuck { .. });
    let shown = |case: &Case| {
        cases.iter().zip(found).any(|(other, search)| {
            other.algorithm == case.algorithm
                && other.machine == case.machine
                && other.off == case.off
                && !other.sound
                && wrong(search)
        })
    };
    cases
        .iter()
        .zip(found)
        .map(|(case, search)| {
            let (verdict, trace, why) = match &search.verdict {
                Verdict::Sound => ("sound", None, None),
                Verdict::TooBig => ("too big", None, None),
                Verdict::Broken { why, trace } => ("broken", Some(trace), Some(why.clone())),
                Verdict::Stuck { trace } => ("stuck", Some(trace), Some("it can never end from here".into())),
            };
            let single = case.off.is_some() || case.scene.bare.is_some();
            Row {
                algorithm: case.algorithm.into(),
                hardware: case.machine.into(),
                case: case.doing.clone(),
                without: case
                    .off
                    .map(|off| off.iter_names().map(|(name, _)| name).collect::<Vec<_>>().join(" ")),
                verdict: verdict.into(),
                expected: match case.sound {
                    true => verdict == "sound",
                    false if single => wrong(search),
                    false => shown(case),
                },
                worlds: search.worlds,
                seconds: search.time.as_secs_f64(),
                steps: trace.map(|turns| turns.iter().map(|turn| turn.steps.len()).sum()),
                why,
            }
        })
        .collect()
}

fn print_trace(case: &Case, search: &Search) {
    let (why, trace) = match &search.verdict {
        Verdict::Broken { why, trace } => (why.as_str(), trace),
        Verdict::Stuck { trace } => ("it can never end from here", trace),
        _ => return,
    };
    let off = case.off.map(|off| format!(" without {off:?}")).unwrap_or_default();
    eprintln!("{} on {}, {}{off}: {why}", case.algorithm, case.machine, case.doing);
    for (at, turn) in trace.iter().enumerate() {
        for (nth, step) in turn.steps.iter().enumerate() {
            let number = if nth == 0 { (at + 1).to_string() } else { String::new() };
            let picture = if nth + 1 == turn.steps.len() { turn.picture.as_str() } else { "" };
            eprintln!("{number:>4}  {:<64} {picture}", step.to_string());
        }
    }
}

#[cfg(test)]
mod tests;
