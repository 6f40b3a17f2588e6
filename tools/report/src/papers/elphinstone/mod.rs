//! Elphinstone et al.: refill cost and space of every structure, on our traces and the paper's workloads.

use tlbkit_names::{C128K, CS, ECPT, FPT, FPT0, G16, GA, H8K, H128K, HR, LPT, MPT};
use tlblab::Experiment;
use tlblab::refill::{self, RefillArgs};
use tlblab::tables::{self, TablesArgs};

use crate::figure::Figure;
use crate::kernel;
use crate::lab::{Lab, TRACES};
use crate::papers::inputs::{self, others};
use crate::printed;
use crate::rows::{Named, Rows, mean};

mod figure_2;
mod figure_3;
mod figure_4;
mod figure_5;
mod figure_6;
mod figure_7;
mod figure_8;
mod figures_9_to_11;
mod handlers;
mod mapping;
mod section_2_4;
mod section_5_5;
mod table_1;
mod table_2;

pub(crate) use figure_8::sparse_space;
pub(crate) use mapping::timed;

const PAPER: &str = "Elphinstone";

/// The guarded tables' node sizes.
const SIZES: [u32; 8] = [2, 4, 8, 16, 32, 64, 128, 256];

/// The structures that the paper compares and we have, and the new ones.
const STRUCTURES: [&str; 8] = [MPT, LPT, G16, GA, H8K, H128K, HR, C128K];

/// Superpages in a clustered table that grows.
const SUPERPAGES: &str = CS;

/// The structures that the lab measures only where they are named: that one, flattened tables, and an elastic cuckoo table.
const NAMED: [&str; 4] = [SUPERPAGES, FPT, FPT0, ECPT];

/// Load costs are of 32-bit words.
const WORDS: &str = "Loads are of 32-bit words, as a 32-bit handler makes them: a slot of the paper's guarded tables, a \
                     64-bit pointer and a 64-bit guard, is four, and a 64-bit tag is two.";

/// The kernel in the emulator with every table that the paper compares and ours, and caches in front.
const GUEST: &str = "--table MPT,LPT,G8,G16,G64,G256,GA,H8k,H128k,C128k,S8k/MPT,S128k/MPT,S8k/G16,S128k/G16";

/// What one command gave for every program.
struct Programs<R> {
    runs: Vec<Rows<R>>,
}

impl<R: Named> Programs<R> {
    fn new<E: Experiment<Row = R>>(lab: &Lab, command: &str, options: &str) -> anyhow::Result<Self> {
        let lines = TRACES.iter().map(|(name, _)| format!("{command} {}{options}", lab.replay(name)));
        Ok(Self { runs: lines.map(|line| lab.rows::<E>(&line)).collect::<anyhow::Result<_>>()? })
    }

    /// Counts cycles on a machine.
    fn on<E: Experiment<Row = R>>(lab: &Lab, command: &str, machine: &str) -> anyhow::Result<Self> {
        let lines = TRACES.iter().map(|(name, _)| format!("{command} {}", lab.on(name, machine)));
        Ok(Self { runs: lines.map(|line| lab.rows::<E>(&line)).collect::<anyhow::Result<_>>()? })
    }

    /// Returns a number of a structure in every trace.
    fn all(&self, name: &str, number: impl Fn(&R) -> f64) -> anyhow::Result<Vec<f64>> {
        all(&self.runs, name, number)
    }

    /// Returns its mean and standard deviation.
    fn mean(&self, name: &str, number: impl Fn(&R) -> f64) -> anyhow::Result<(f64, f64)> {
        Ok(mean(&self.all(name, number)?))
    }

    /// Returns the figure with the commands that made these data.
    fn cite(&self, figure: Figure) -> Figure {
        self.runs.iter().fold(figure, |figure, run| figure.by(run.command.clone()))
    }
}

/// Returns a number of a structure in every run.
fn all<R: Named>(runs: &[Rows<R>], name: &str, number: impl Fn(&R) -> f64) -> anyhow::Result<Vec<f64>> {
    runs.iter().map(|rows| Ok(number(rows.of(name)?))).collect()
}

/// What the traces' runs gave.
struct Traces {
    /// Every table in the paper's layout and in ours.
    paper: Programs<tables::Row>,
    compact: Programs<tables::Row>,
    /// Those of [`NAMED`] in both.
    named: [Programs<tables::Row>; 2],
    /// The handlers' words, run by the interpreter, caches in front among them.
    handlers: Programs<refill::Row>,
    /// The same on the caches of the paper's machine, and on those of a current core.
    cycles: [(&'static str, Programs<refill::Row>); 2],
}

impl Traces {
    fn new(lab: &Lab) -> anyhow::Result<Self> {
        let of = |options| Programs::new::<TablesArgs>(lab, "tables", options);
        let names = NAMED.join(" ");
        let named = |options| Programs::new::<TablesArgs>(lab, &format!("tables {names}"), options);
        Ok(Self {
            paper: of("")?,
            compact: of(" --layout compact")?,
            named: [named("")?, named(" --layout compact")?],
            handlers: Programs::new::<RefillArgs>(lab, "refill", "")?,
            cycles: [
                ("R4700", Programs::on::<RefillArgs>(lab, "refill", "r4700")?),
                ("current core", Programs::on::<RefillArgs>(lab, "refill", "zen3")?),
            ],
        })
    }

    /// Returns a number of a structure, those of [`NAMED`] among them, in the paper's layout or in ours: the mean, and
    /// the standard deviation.
    fn mean(
        &self,
        compact: bool,
        name: &str,
        number: impl Fn(&tables::Row) -> f64,
    ) -> anyhow::Result<(f64, f64)> {
        let of = match (NAMED.contains(&name), compact) {
            (true, _) => &self.named[usize::from(compact)],
            (false, false) => &self.paper,
            (false, true) => &self.compact,
        };
        of.mean(name, number)
    }
}

/// The kernel's rows, or why there are none.
type Guest = Result<kernel::Rows, String>;

/// Returns what the kernel says of a table as it writes the TLB by `tlbwr`.
fn booted(rows: &kernel::Rows, table: &str, field: &str) -> anyhow::Result<f64> {
    rows.one(&[("table", table), ("write", "random")])?.number(field)
}

/// Returns the figure with the kernel's command, and a word on why nothing of the kernel's is in it if that is so.
fn with_guest(figure: Figure, guest: &Guest) -> Figure {
    match guest {
        Ok(rows) => figure.by(rows.command.clone()),
        Err(why) => figure.lacks(format!("what the kernel counts in the emulator: {why}")),
    }
}

/// Returns the paper's figures.
///
/// # Errors
///
/// If the lab fails.
pub(crate) fn figures(lab: &Lab) -> anyhow::Result<Vec<Figure>> {
    let printed = printed::elphinstone()?;
    let traces = Traces::new(lab)?;
    let guest = lab.guest(GUEST);
    let mut figures = vec![
        table_1::programs(&traces, &printed)?,
        figure_2::by_size(&traces)?,
        figure_3::by_size(&traces)?,
        figure_4::sparse_by_size(lab, &printed)?,
        table_2::elapsed(&traces, &printed)?,
        figure_5::of_structures(lab, &traces, &guest, &printed)?,
        figure_6::of_structures(&traces)?,
        figure_7::tasks(lab, &guest, &printed)?,
        sparse_space(lab)?,
    ];
    figures.extend(figures_9_to_11::protection(lab, &traces, &guest, &printed)?);
    figures.push(section_2_4::for_all(lab)?);
    figures.push(section_5_5::against_levels(lab, &traces, &printed)?);
    figures.push(others(PAPER, inputs::ELPHINSTONE));
    Ok(figures)
}

/// Returns the table of `docs/costs.md`: structures on the shipped trace.
///
/// # Errors
///
/// If the lab fails.
pub(crate) fn costs_table(lab: &Lab) -> anyhow::Result<String> {
    let rows = lab.rows::<TablesArgs>("tables --layout compact")?;
    let mut text = String::from("| table | loads a refill | bytes a page |\n|-|-|-|\n");
    for name in STRUCTURES {
        let row = rows.of(name)?;
        let (refs, bytes) = (row.refs_per_lookup_mean, row.bytes_per_pte);
        text += &format!("| `{name}` | {refs:.3} | {bytes:.3} |\n");
    }
    Ok(text.trim_end().to_owned())
}
