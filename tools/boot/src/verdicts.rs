//! `cargo xtask witness`: the table of `docs/witness.md` that says what the witness finds in the boots of `examples/kernel`.
//!
//! The table says which boots there are: a row has options of `cargo xtask boot`, and a column a machine.

use std::time::Instant;
use std::{fmt, fs};

use anyhow::{Context, bail};
use clap::{Args, Parser, ValueEnum};
use serde_json::{Value, json};
use tlbkit_shell::misused;

use super::witness::HOLDS;
use super::{Architecture, BootArgs, check_fault, kernel, kernel_on};

const PAGE: &str = "docs/witness.md";
const BEGIN: &str = "<!-- cargo xtask witness: begin -->\n";
const END: &str = "<!-- cargo xtask witness: end -->\n";

/// The verdict where the log breaks no rule, and the kernel's own checks failed.
const STOPPED: &str = "stopped";

/// Between verdicts of which a boot has one or the other: CPUs race.
const OR: &str = " or ";

/// Boot the kernel on every machine with every planted fault, and compare what the witness says with docs/witness.md
#[derive(Args, Clone, Debug)]
pub struct WitnessArgs {
    /// Boot these machines alone [default: all]
    #[arg(long, value_enum, value_delimiter = ',')]
    machine: Vec<Architecture>,
    /// Boot the rows alone that have this among their options, as `no-wait`
    #[arg(long, value_name = "WORD")]
    with: Option<String>,
    /// Write each verdict to docs/witness.md where it says another one, or nothing
    #[arg(long)]
    write: bool,
    /// Print one JSON array
    #[arg(long)]
    json: bool,
}

/// The table: a verdict, or several, for each row and each machine.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Table {
    machines: Vec<String>,
    /// Options of a boot, and a cell for each machine.
    rows: Vec<(String, Vec<String>)>,
}

impl Table {
    /// Reads the table out of the page.
    fn read(page: &str) -> anyhow::Result<Self> {
        let (_, rest) = page.split_once(BEGIN).context("there is no table")?;
        let (table, _) = rest.split_once(END).context("the table has no end")?;
        let cells = |line: &str| -> Option<Vec<String>> {
            let line = line.strip_prefix('|')?.strip_suffix('|')?;
            Some(line.split('|').map(|cell| cell.trim().replace('`', "")).collect())
        };
        let mut lines = table.lines().map(|line| cells(line).with_context(|| format!("no row: {line}")));
        let head = lines.next().context("the table is empty")??;
        let mut rows = Vec::new();
        for line in lines.skip(1) {
            let line = line?;
            let [options, verdicts @ ..] = line.as_slice() else { bail!("an empty row") };
            if line.len() != head.len() {
                bail!("the row of {options} has {} cells, and not {}", line.len(), head.len());
            }
            rows.push((options.clone(), verdicts.to_vec()));
        }
        Ok(Self { machines: head[1..].to_vec(), rows })
    }

    /// Writes the table to the page.
    fn write(&self, page: &str) -> anyhow::Result<String> {
        let (before, rest) = page.split_once(BEGIN).context("there is no table")?;
        let (_, after) = rest.split_once(END).context("the table has no end")?;
        Ok(format!("{before}{BEGIN}{self}{END}{after}"))
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.machines.iter().map(|name| format!(" `{name}` |")).collect();
        writeln!(f, "| options |{}\n|{}", names.concat(), "-|".repeat(names.len() + 1))?;
        for (options, verdicts) in &self.rows {
            write!(f, "| `{options}` |")?;
            for cell in verdicts {
                match cell.as_str() {
                    "" => write!(f, " |")?,
                    "-" => write!(f, " - |")?,
                    _ => {
                        let names: Vec<_> = cell.split(OR).map(|name| format!("`{name}`")).collect();
                        write!(f, " {} |", names.join(OR))?;
                    }
                }
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

/// The arguments of `boot`, which a row of the table has.
#[derive(Debug, Parser)]
struct Words {
    #[command(flatten)]
    args: BootArgs,
}

/// Returns the arguments of a boot, if there is such a boot.
fn arguments(machine: &str, options: &str) -> anyhow::Result<BootArgs> {
    let words = ["boot", "--witness", "--machine", machine].into_iter().chain(options.split_whitespace());
    let args = Words::try_parse_from(words)?.args;
    check_fault(&args)?;
    Ok(args)
}

/// Boots what is asked for, and shows each verdict.
///
/// # Errors
///
/// If a boot has no verdict, or another one than the page says.
pub fn run(args: &WitnessArgs) -> anyhow::Result<()> {
    let mut table = Table::read(&fs::read_to_string(PAGE)?)?;
    let is_wanted = |machine: &str| {
        let named =
            |name: &Architecture| name.to_possible_value().is_some_and(|name| name.matches(machine, true));
        args.machine.is_empty() || args.machine.iter().any(named)
    };
    let has =
        |options: &str| args.with.as_deref().is_none_or(|word| options.split(' ').any(|has| has == word));
    let boots: Vec<(usize, usize)> = (0..table.rows.len())
        .flat_map(|row| (0..table.machines.len()).map(move |column| (row, column)))
        .filter(|&(row, column)| {
            let (options, cells) = &table.rows[row];
            cells[column] != "-" && has(options) && is_wanted(&table.machines[column])
        })
        .collect();
    if boots.is_empty() {
        misused!("no row of the table in {PAGE} has that");
    }
    let (mut rows, mut wrong) = (Vec::new(), 0);
    for (done, &(row, column)) in (1..).zip(&boots) {
        let (machine, options) = (table.machines[column].clone(), table.rows[row].0.clone());
        let head = format!("[{done}/{}] --machine {machine} {options}", boots.len());
        let start = Instant::now();
        let found = one(&machine, &options);
        let seconds = start.elapsed().as_secs_f64();
        let said = table.rows[row].1[column].clone();
        let agrees = found.as_ref().is_ok_and(|found| said.split(OR).any(|name| name == found.verdict));
        let text = match &found {
            Ok(Verdict { verdict, noticed: true }) if *verdict != STOPPED => {
                format!("{verdict}, and its own checks fail")
            }
            Ok(Verdict { verdict, .. }) => (*verdict).into(),
            Err(why) => format!("{why:#}"),
        };
        let but = match said.as_str() {
            _ if agrees => String::new(),
            "" => format!("; {PAGE} does not say"),
            said => format!("; {PAGE} says {said}"),
        };
        let line = format!("{head}: {text}, {seconds:.0} s{but}");
        if args.json {
            eprintln!("{line}");
        } else {
            println!("{line}");
        }
        rows.push(json!({
            "machine": machine,
            "options": options,
            "verdict": found.as_ref().ok().map(|found| found.verdict),
            "noticed": found.as_ref().ok().map(|found| found.noticed),
            "error": found.as_ref().err().map(|why| format!("{why:#}")),
            "agrees": agrees,
        }));
        match found {
            // At once, so that nothing is lost if the next boot is interrupted.
            Ok(found) if args.write && !agrees => {
                table.rows[row].1[column] = found.verdict.into();
                fs::write(PAGE, table.write(&fs::read_to_string(PAGE)?)?)?;
            }
            _ => wrong += usize::from(!agrees),
        }
    }
    if args.json {
        println!("{:#}", Value::from_iter(rows));
    }
    match wrong {
        0 => Ok(()),
        _ => bail!("{wrong} of {} boots have no verdict, or not that of {PAGE}", boots.len()),
    }
}

/// What a boot came to.
struct Verdict {
    verdict: &'static str,
    /// Whether the kernel's own checks have failed, too, or it has not come to its end.
    noticed: bool,
}

/// Boots a machine. What the kernel says is not shown.
fn one(machine: &str, options: &str) -> anyhow::Result<Verdict> {
    let args = arguments(machine, options)?;
    let machine = args.machine.context("a boot without a machine")?;
    let booted = kernel::boot_with(&kernel_on(machine, &args)?, &|_| ())?;
    let noticed = booted.outcome.is_err();
    let verdict = booted.witnessed.context("a boot without a record")?.verdict()?;
    Ok(Verdict { verdict: if noticed && verdict == HOLDS { STOPPED } else { verdict }, noticed })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = include_str!("../../../docs/witness.md");

    /// Each cell with a verdict is of a boot that there is, and no other one: the machines and their faults are all there.
    #[test]
    fn the_page_has_each_boot() {
        let table = Table::read(PAGE).unwrap();
        assert_eq!(table.write(PAGE).unwrap(), PAGE);
        for machine in Architecture::value_variants() {
            let name = machine.to_possible_value().unwrap();
            assert!(table.machines.iter().any(|machine| machine == name.get_name()), "{machine:?}");
        }
        for (options, cells) in &table.rows {
            for (machine, cell) in table.machines.iter().zip(cells) {
                let args = arguments(machine, options).unwrap();
                let boots = kernel_on(args.machine.unwrap(), &args).is_ok();
                assert_eq!(boots, cell != "-", "{machine} {options}");
            }
        }
        for fault in ["no-flush", "no-wait", "early-free", "no-cow", "no-switch-flush"] {
            assert!(
                table.rows.iter().any(|(options, _)| options.split(' ').any(|word| word == fault)),
                "{fault}"
            );
        }
        let faults = table.rows.iter().filter(|(options, _)| options.contains("--inject"));
        assert!(faults.flat_map(|(_, cells)| cells).all(|cell| !cell.contains(HOLDS)));
    }

    #[test]
    fn a_verdict_is_written_to_its_cell() {
        let page =
            format!("a\n{BEGIN}| options | `x` | `y` |\n|-|-|-|\n| `--cpus 1` | `holds` | |\n{END}z\n");
        let mut table = Table::read(&page).unwrap();
        assert_eq!(table.write(&page).unwrap(), page);
        table.rows[0].1[1] = "right-kept or frame-reached".into();
        let written = table.write(&page).unwrap();
        assert!(
            written.contains("| `--cpus 1` | `holds` | `right-kept` or `frame-reached` |\n"),
            "{written}"
        );
        assert_eq!(Table::read(&written).unwrap(), table);
    }
}
