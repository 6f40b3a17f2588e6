//! Bala's thesis and the OSDI paper: Mach's kernel TLB misses under software caches and prefetching.

use anyhow::Context;
use tlblab::mach::{AppRow, Apps, Mach, Row, Scheme};
use tlblab::refill::{self, RefillArgs};

use crate::figure::Figure;
use crate::kernel;
use crate::lab::{Lab, TRACES};
use crate::papers::inputs::{self, others};
use crate::printed::{self, Printed};
use crate::rows::Rows;

mod applications;
mod chapter_5;
mod figures_4_1_to_4_4;
mod figures_4_5_to_4_8;
mod osdi_section_6_1;
mod section_2_2;
mod section_3_1;
mod section_3_2_2;
mod section_4_3;
mod section_4_5_1;
mod synthetic;
mod table_3_1;
mod table_4_1;
mod table_4_10;
mod table_4_2;
mod table_4_5;
mod table_4_6;
mod tables_4_11_to_4_13;

const PAPER: &str = "Bala";

const OSDI: &str = "OSDI 1994";

const APPS: [&str; 6] = ["video_play", "jpeg_play", "mpeg_play", "IOzone", "ousterhout", "mab"];

/// The schemes that the thesis draws, as it calls them.
const SCHEMES: [(Scheme, &str); 4] =
    [(Scheme::Mach, "Mach"), (Scheme::Ptlb, "PTLB"), (Scheme::Stlb4k, "STLB"), (Scheme::Both, "PTLB+STLB")];

/// The schemes under which programs that talk are replayed.
const TALKING: &str =
    "mach,ptlb,stlb-1k,stlb-1k-2way,stlb-1k-4way,stlb-4k,stlb-4k-2way,stlb-4k-4way,ptlb+stlb";

const STAND_INS: &str = "The applications are gone; stand-ins send messages along the same chains of processes and touch \
                         the pages of recorded traces in between. What cannot be tested without the applications: totals of misses and \
                         cycles, and an application's rank among the six, for both follow from how often it sends a message. Shares of kinds, \
                         hit rates, and what a scheme removes can. Sections 4.3 and 4.4 have three programs that were recorded as they talked.";

struct Data {
    /// Of each shipped program on the caches of the thesis's machine, with a multi-level table.
    programs: Vec<Rows<refill::Row>>,
    apps: Rows<AppRow>,
    servers: Rows<Row>,
    words: Rows<Row>,
    /// Growing numbers of clients, by pattern: chain, star, ring, pairs.
    patterns: [Rows<Row>; 4],
    /// Three programs that were recorded together.
    talk: Rows<Row>,
    /// What the kernel in the emulator counts, or why there is nothing.
    guest: Result<kernel::Rows, String>,
    thesis: Printed,
}

impl Data {
    /// Returns growing numbers of clients of a chain.
    fn clients(&self) -> &Rows<Row> {
        &self.patterns[0]
    }
}

/// Returns M_T and M_A of each program: cache misses for each instruction of its refills, and of its own.
fn rates(programs: &[Rows<refill::Row>]) -> anyhow::Result<Vec<(f64, f64)>> {
    let rates = programs.iter().map(|rows| {
        let cycles = rows.of("MPT")?.cycles.as_ref().context("rows without cycles")?;
        let of_handler = cycles.misses_per_handler_insn.context("no instructions of a handler")?;
        Ok((of_handler, cycles.misses_per_program_insn))
    });
    rates.collect()
}

/// Returns the figures.
///
/// # Errors
///
/// If the lab fails.
pub(crate) fn figures(lab: &Lab) -> anyhow::Result<Vec<Figure>> {
    let ipcs = if lab.quick { " --ipcs 4000" } else { "" };
    let of = |name: &str| lab.rows::<RefillArgs>(&format!("refill --table MPT {}", lab.on(name, "r3000")));
    let programs = TRACES.iter().map(|(name, _)| of(name)).collect::<anyhow::Result<Vec<_>>>()?;
    // The stand-ins run stretches of the first of them; 24 cycles a miss.
    let stall = 24.0 * rates(&programs)?[0].1;
    let data = Data {
        programs,
        apps: lab.rows::<Apps>(&format!("mach --apps --stall {stall:.3}{ipcs}"))?,
        servers: lab.rows::<Mach>(&format!("mach --servers 1..10{ipcs}"))?,
        words: lab.rows::<Mach>(&format!("mach --servers 4 --words 5,10,20,30,40,50{ipcs}"))?,
        patterns: section_4_5_1::rows(lab, ipcs)?,
        talk: lab.rows::<Mach>(&format!(
            "mach --together {} --scheme {TALKING} --stall {stall:.3}",
            lab.together()
        ))?,
        guest: lab.guest("--work ipc"),
        thesis: printed::thesis()?,
    };
    let mut figures = vec![
        section_2_2::kinds(&data)?,
        section_3_1::at_switches(lab)?,
        section_3_2_2::organizations(&data)?,
        table_3_1::address_types(lab, ipcs, &data.thesis)?,
        table_4_1::baseline(&data)?,
        table_4_2::rates(&data)?,
    ];
    figures.push(figures_4_1_to_4_4::kinds(&data)?);
    figures.push(figures_4_1_to_4_4::removed(
        &data,
        "Table 4.3",
        "Kernel TLB misses with prefetching",
        Scheme::Ptlb,
        "Table 4.3 (thousands)",
    )?);
    figures.push(figures_4_1_to_4_4::penalties(
        &data,
        "Figure 4-2, Table 4.4",
        "Penalties with prefetching",
        &[(Scheme::Ptlb, "PTLB", "Table 4.4 (million cycles)")],
    )?);
    figures.push(table_4_5::hit_rates(&data)?);
    figures.push(table_4_6::cascaded(&data)?);
    figures.push(figures_4_1_to_4_4::penalties(
        &data,
        "Figure 4-3, Table 4.7",
        "Penalties with software caches",
        &[
            (Scheme::Stlb1k, "DM 1K", "Table 4.7 (million cycles)"),
            (Scheme::Stlb4k, "DM 4K", "Table 4.7 (million cycles)"),
        ],
    )?);
    figures.push(figures_4_1_to_4_4::removed(
        &data,
        "Table 4.8",
        "Kernel TLB misses with both",
        Scheme::Both,
        "Table 4.8 (thousands)",
    )?);
    figures.push(figures_4_1_to_4_4::penalties(
        &data,
        "Figure 4-4, Table 4.9",
        "Penalties with both",
        &[(Scheme::Both, "PTLB+STLB", "Table 4.9 (million cycles)")],
    )?);
    figures.push(table_4_10::speedups(&data)?);
    figures.push(section_4_3::talk(&data)?);
    figures.extend(figures_4_5_to_4_8::figures(&data)?);
    figures.push(section_4_5_1::clients(&data, lab, ipcs)?);
    for (at, granularity) in [("Table 4.11 (%)", 0), ("Table 4.12 (%)", 2), ("Table 4.13 (%)", 5)] {
        figures.push(tables_4_11_to_4_13::granular(lab, ipcs, &data.thesis, at, granularity)?);
    }
    figures.extend(chapter_5::models(lab)?);
    figures.push(chapter_5::miss_rates(&data)?);
    figures.push(osdi_section_6_1::database(lab, ipcs)?);
    figures.extend([others(PAPER, inputs::BALA), others(OSDI, inputs::OSDI)]);
    Ok(figures)
}
