//! `tlblab refill`: the instructions and loads of each structure's refill handler.
//!
//! The handlers are those of [`tlbkit_refill::mips3`], in MIPS III words. A program's pages are mapped into a table, and
//! every miss of the modelled TLB runs the words in the interpreter (`machine`): Figures 2 and 5 of Elphinstone et al.
//! in instructions and loads. What each refill leaves in the TLB is compared with the table's own lookup.

use anyhow::{Context, bail};
use clap::Args;
use serde::{Deserialize, Serialize};
use tlblab_tables::handled;

use crate::cache::Machine;
use crate::tables;
use crate::tlb::TlbArgs;
use crate::trace::Input;
use crate::workload::{FileSizes, Workload};
use crate::{Cycles, Experiment, Name, cycles, parallel, rows};

mod machine;

/// Count the instructions and loads of the refill handlers
#[derive(Args, Debug)]
pub struct RefillArgs {
    /// Replay a trace: a file, or `-` for standard input [default: the shipped cc1.tlbt]
    #[arg(long, value_name = "FILE")]
    trace: Option<Input>,
    /// Stop after this many instructions of the trace
    #[arg(long, value_name = "INSTRUCTIONS", value_parser = clap::value_parser!(u64).range(1..))]
    instructions: Option<u64>,
    /// Map synthetic pages instead and refer to each once
    #[arg(long, value_enum)]
    workload: Option<Workload>,
    /// Pages of the workload [default: 8192; conventional: 2381, the paper's gcc]
    #[arg(long, value_name = "N")]
    pages: Option<usize>,
    /// A structure to run, by name; may be given again [default: all]
    #[arg(long, value_name = "NAME")]
    table: Vec<String>,
    /// Count cycles on a machine, on a trace of lines
    #[arg(long, value_name = "NAME", value_parser = cycles::machines())]
    machine: Option<Machine>,
    /// Seed of everything random
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print one JSON array
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    sizes: FileSizes,
    #[command(flatten)]
    tlb: TlbArgs,
}

/// What a structure's handler did.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    /// As the paper calls it.
    pub table: Name,
    /// The trace or the workload.
    pub workload: String,
    /// How many pages are mapped.
    pub pages: usize,
    /// How many refills there were.
    pub refills: u64,
    /// Instructions of the program itself, if a trace was recorded.
    pub program_insns: Option<u64>,
    /// Instructions a refill, the return included.
    pub insns_min: u64,
    /// Their mean.
    pub insns_mean: f64,
    /// The most.
    pub insns_max: u64,
    /// Loads a refill.
    pub loads_min: u64,
    /// Their mean.
    pub loads_mean: f64,
    /// The most.
    pub loads_max: u64,
    /// Instructions of the handler.
    pub words: usize,
    /// The share of refills that the software TLB in front served.
    pub stlb_hit_rate: Option<f64>,
    /// Whether every refill left in the TLB what the table says.
    pub verified: bool,
    /// Cycles, on a machine.
    #[serde(flatten)]
    pub cycles: Option<Cycles>,
}

/// Runs the handlers of the named structures, or of all, on these misses.
///
/// # Errors
///
/// If there is no such structure, or memory for one.
pub(crate) fn of_misses(
    misses: &tables::Misses,
    names: &[String],
    on: Option<Machine>,
) -> anyhow::Result<Vec<Row>> {
    let all = handled::all();
    for name in names {
        if !all.iter().any(|structure| structure.name == *name) {
            let names: Vec<_> = all.iter().map(|structure| structure.name).collect();
            bail!("there is no structure `{name}`: choose from {}", names.join(", "));
        }
    }
    let chosen: Vec<_> = all
        .into_iter()
        .filter(|structure| names.is_empty() || names.iter().any(|name| name == structure.name))
        .collect();
    parallel::map(&chosen, |structure| machine::run(structure, misses, on).context(structure.name))
}

impl Experiment for RefillArgs {
    const COMMAND: &'static str = "refill";
    type Row = Row;

    fn rows(&self) -> anyhow::Result<Vec<Row>> {
        let workload = self.workload.map(|workload| (workload, self.pages, self.sizes));
        let keep = self.machine.is_some();
        let misses =
            tables::misses(self.trace.as_ref(), workload, &self.tlb, self.seed, keep, self.instructions)?;
        of_misses(&misses, &self.table, self.machine)
    }
}

/// Runs the handlers and prints a row for each structure.
///
/// # Errors
///
/// If a name, a number or the trace is no good.
pub(crate) fn run(args: &RefillArgs) -> anyhow::Result<()> {
    rows::print(args.json, &args.rows()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::MACHINES;
    use tlbkit_addr::Vpn;

    /// Neighbours, and pages far apart.
    fn misses() -> tables::Misses {
        let mut pages: Vec<_> = (0x400..0x500).map(Vpn::new).collect();
        pages.extend((1..200usize).map(|n| Vpn::new(n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 12)));
        let places = (0..3 * pages.len() as u32).map(|n| n * 7 % pages.len() as u32);
        let refill = |place| tables::Refill { place, nested: 0, run: 0 };
        let refills: Vec<_> = places.map(refill).collect();
        // Of a linear table, none to all five pages of the way are missing.
        let missing =
            |(at, refill): (usize, &tables::Refill)| tables::Refill { nested: (at % 6) as u8, ..*refill };
        let linear = refills.iter().enumerate().map(missing).collect();
        tables::Misses { name: "test".into(), pages, refills, linear, instructions: None, program: None }
    }

    #[test]
    fn every_handler_leaves_what_its_table_says() {
        for row in of_misses(&misses(), &[], None).unwrap() {
            assert!(row.verified, "{row:?}");
            assert!(row.insns_min <= row.insns_max && row.refills == 3 * 455);
            assert_eq!(row.stlb_hit_rate.is_some(), row.table.starts_with('S'));
        }
    }

    #[test]
    fn the_counts_are_those_of_the_documentation() {
        let row = |name: &str| of_misses(&misses(), &[name.into()], None).unwrap().remove(0);
        let mpt = row("MPT");
        assert_eq!((mpt.insns_min, mpt.insns_max, mpt.loads_max), (47, 47, 8));
        for name in ["G2", "G4", "G16", "G256"] {
            let guarded = row(name);
            let nodes = (guarded.loads_min - 4) / 2;
            assert_eq!(guarded.insns_min, 22 + 9 * nodes, "{name}");
            let nodes = (guarded.loads_max - 4) / 2;
            assert_eq!(guarded.insns_max, 22 + 9 * nodes, "{name}");
        }
        assert_eq!((row("H8k").insns_min, row("H8k").loads_min), (27, 4));
        let adaptive = row("GA");
        for (insns, loads) in
            [(adaptive.insns_min, adaptive.loads_min), (adaptive.insns_max, adaptive.loads_max)]
        {
            assert_eq!(insns, 22 + 14 * ((loads - 4) / 2));
        }
        assert_eq!((row("HR").insns_min, row("HR").loads_min), (39, 5));
        assert_eq!((row("CS").insns_min, row("CS").loads_min), (47, 5));
        let linear = row("LPT");
        assert_eq!((linear.insns_min, linear.loads_min), (17, 2));
        assert_eq!((linear.insns_max, linear.loads_max), (542, 18));
        let mut one = misses();
        one.linear.iter_mut().for_each(|refill| refill.nested = 1);
        let one = of_misses(&one, &["LPT".into()], None).unwrap().remove(0);
        assert_eq!((one.insns_min, one.insns_max, one.loads_min), (64, 64, 5));
        assert_eq!((row("C128k").insns_min, row("C128k").loads_min), (33, 4));
        assert_eq!((row("S8k/G16").insns_min, row("S8k/G16").loads_min), (17, 3));
        assert_eq!((row("S128k/G16").insns_min, row("S128k/G16").loads_min), (18, 3));
    }

    /// With all of it in the caches, a refill takes a cycle an instruction, and one where the next uses what was loaded.
    #[test]
    fn the_least_cycles_are_instructions_and_delays() {
        let misses = tables::Misses { program: Some(cycles::Program::default()), ..misses() };
        for (name, instructions, delays) in [("S8k/G16", 17, 2), ("MPT", 47, 5), ("H8k", 27, 3)] {
            let row = of_misses(&misses, &[name.into()], Some(MACHINES[0])).unwrap().remove(0);
            let cycles = row.cycles.unwrap();
            assert_eq!((row.insns_min, cycles.cycles_min), (instructions, instructions + delays), "{name}");
            assert!(cycles.cycles_max > cycles.cycles_min + 30 && row.verified, "{name}: {cycles:?}");
        }
    }

    #[test]
    fn a_structure_that_does_not_exist_is_named() {
        let error = of_misses(&misses(), &["G3".into()], None).unwrap_err().to_string();
        assert!(error.starts_with("there is no structure `G3`: choose from MPT, G2"), "{error}");
    }
}
