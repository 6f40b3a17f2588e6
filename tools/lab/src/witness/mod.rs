//! `tlblab witness`: a kernel's log, replayed against a machine that keeps whatever its architecture lets it keep.

use std::fs::File;
use std::io::{BufRead, BufReader, stdin};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, ensure};
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use serde_json::json;
use tlbkit_witness::check::{self, Arch, Checked, Checker, Pending, Place, Recorded, Refusal, Violation};

use crate::progress;

/// Check a kernel's log for a flush, a barrier or a hold that is missing
///
/// `docs/witness.md` specifies the log. Exit code 0: nothing is missing. Exit code 1: the first violation is told. Exit code 2: a line
/// is no event, or the log is empty or has a gap.
#[derive(Args, Debug)]
pub(crate) struct WitnessArgs {
    /// The log, one event a line; `-` for standard input. With `--recorder`, the memory of a machine that has stopped
    file: PathBuf,
    /// The architecture whose rules the log is held to
    #[arg(long, value_name = "NAME", value_parser = archs())]
    arch: Arch,
    /// Read the log from a recorder in the memory: `at=0x1000,word=8,cpus=4,events=100000`. `at` is the offset in the file, `word` the
    /// bytes of the machine's word, `cpus` and `events` are the recorder's parameters
    #[arg(long, value_name = "PLACE", value_parser = place)]
    recorder: Option<Place>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Reads where a recorder is.
fn place(text: &str) -> anyhow::Result<Place> {
    let mut numbers = [("at", None), ("word", None), ("cpus", None), ("events", None)];
    for field in text.split(',') {
        let (name, value) =
            field.split_once('=').with_context(|| format!("`{field}` is not `name=number`"))?;
        let value = value.trim();
        let number = match value.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16),
            None => value.parse(),
        };
        let number = number.with_context(|| format!("`{value}` is no number"))?;
        let place = numbers.iter_mut().find(|(known, _)| *known == name.trim());
        place.with_context(|| format!("a recorder has no `{name}`"))?.1 = Some(number);
    }
    let [at, word, cpus, events] =
        numbers.map(|(name, value)| value.with_context(|| format!("`{name}` is missing")));
    Ok(Place { at: at?, word: word? as usize, cpus: cpus? as usize, events: events? as usize })
}

/// The architectures, by their names.
fn archs() -> impl TypedValueParser<Value = Arch> {
    PossibleValuesParser::new(Arch::ALL.map(Arch::name))
        .try_map(|name| Arch::named(&name).context("no architecture has this name"))
}

/// Runs it.
pub(crate) fn run(args: &WitnessArgs) -> anyhow::Result<ExitCode> {
    let file = || File::open(&args.file).with_context(|| format!("cannot open {}", args.file.display()));
    let outcome = match args.recorder {
        Some(place) => check_memory(args.arch, &mut file()?, place),
        None if args.file == Path::new("-") => check(args.arch, stdin().lock()),
        None => check(args.arch, BufReader::new(file()?)),
    };
    match outcome {
        Ok((checked, pending)) => {
            if let Some(why) = checked.incomplete() {
                ensure!(args.json, why);
                tell(true, &holds(&checked, &pending), String::new);
                return Ok(ExitCode::from(2));
            }
            tell(args.json, &holds(&checked, &pending), || {
                let Checked { events, writes, fences, freed, promised, unchanged, accesses, full, .. } =
                    checked;
                let full =
                    if full { "; the log was full then, and what came after is not checked" } else { "" };
                let idle = match unchanged {
                    0 => String::new(),
                    _ => {
                        format!(" and {unchanged} more of which no word changed in the table that they name")
                    }
                };
                format!(
                    "{events} events hold: {writes} writes, {fences} fences, {freed} nodes and frames freed, \
                     {promised} changes promised{idle}, {accesses} accesses{full}{}",
                    open(&pending)
                )
            });
            Ok(ExitCode::SUCCESS)
        }
        Err(error) => match error.downcast_ref::<Refusal>().and_then(Refusal::violation) {
            Some(violation) => {
                tell(args.json, &broken(violation), || {
                    format!("{}\n  {}", violation.rule().name(), violation.story().join("\n  "))
                });
                Ok(ExitCode::from(1))
            }
            // On standard error, as without JSON.
            None => {
                if let Some(refusal) = error.downcast_ref::<Refusal>().filter(|_| args.json) {
                    tell(true, &refused(refusal), String::new);
                }
                Err(error)
            }
        },
    }
}

/// Checks what a recorder in a machine's memory has recorded. A line is the number of an event.
fn check_memory(arch: Arch, memory: &mut File, place: Place) -> anyhow::Result<(Checked, Vec<Pending>)> {
    let Recorded { events, missing } = check::read(memory, place).context("cannot read the record")?;
    if missing > 0 {
        eprintln!("{missing} events were being recorded when the machine stopped, and are left out");
    }
    let mut checker = Checker::new(arch);
    for (line, (cpu, event)) in (1..).zip(events) {
        checker.event(line, cpu, event)?;
    }
    Ok((checker.checked(), checker.pending()))
}

/// Checks a log line by line.
fn check(arch: Arch, mut log: impl BufRead) -> anyhow::Result<(Checked, Vec<Pending>)> {
    let (mut checker, mut text) = (Checker::new(arch), Vec::new());
    let bar = progress::bar(None).with_message("lines");
    for line in 1.. {
        text.clear();
        bar.set_position(line - 1);
        if log.read_until(b'\n', &mut text).with_context(|| format!("line {line}: cannot be read"))? == 0 {
            break;
        }
        // What is no text is no event, but may be in a comment.
        match tlbkit_witness::parse(&String::from_utf8_lossy(&text)) {
            Ok(Some((cpu, event))) => checker.event(line, cpu, event)?,
            Ok(None) => {}
            Err(why) => return Err(Refusal::Malformed { line, why }.into()),
        }
    }
    Ok((checker.checked(), checker.pending()))
}

fn tell(json: bool, value: &serde_json::Value, text: impl Fn() -> String) {
    println!("{}", if json { value.to_string() } else { text() });
}

/// What has begun and not ended: a line each, but for those beyond a few.
fn open(pending: &[Pending]) -> String {
    let mut text: String = pending.iter().take(FEW).map(|of| format!("\n  {of}")).collect();
    if pending.len() > FEW {
        text += &format!("\n  and {} more that the log leaves open: --json has all", pending.len() - FEW);
    }
    text
}

/// As many are told.
const FEW: usize = 10;

fn holds(checked: &Checked, pending: &[Pending]) -> serde_json::Value {
    let Checked { events, writes, fences, freed, promised, unchanged, accesses, full, .. } = *checked;
    let why = checked.incomplete();
    let pending: Vec<String> = pending.iter().map(Pending::to_string).collect();
    json!({
        "holds": why.is_none(), "events": events, "writes": writes, "fences": fences, "freed": freed, "promised": promised,
        "unchanged": unchanged, "accesses": accesses, "full": full, "why": why, "pending": pending,
    })
}

/// A line that is no event, or that cannot have happened.
fn refused(refusal: &Refusal) -> serde_json::Value {
    json!({ "holds": false, "line": refusal.line(), "why": refusal.why() })
}

fn broken(violation: &Violation) -> serde_json::Value {
    json!({
        "holds": false, "rule": violation.rule().name(), "line": violation.line(), "cpu": violation.cpu(),
        "story": violation.story(),
    })
}
