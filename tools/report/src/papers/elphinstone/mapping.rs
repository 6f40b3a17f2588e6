//! Tasks and mapping operations: timed by `tlblab mapping` on this host, counted by the kernel in the emulator.

use tlbkit_names::{C128K, G16, GA, H8K, H128K, HR, MPT};
use tlblab::mapping::{Mapping, Row};

use crate::kernel;
use crate::lab::Lab;
use crate::rows::Rows;

use super::{Guest, booted};

pub(super) const NAMES: [&str; 7] = [MPT, G16, GA, H8K, H128K, HR, C128K];

/// Those of them that the kernel has.
const BOOTED: [&str; 6] = [MPT, G16, GA, H8K, H128K, C128K];

pub(super) const HOST: &str = "First timed on this host, the tables in turn, median of the rounds, the table alone: ratios mean \
                    something, nanoseconds depend on the host. Then counted by the kernel in the emulator, in \
                    instructions of MIPS32, its system calls included as in the paper's times.";

/// Where a primitive is measured: by the host's clock, or in the kernel's instructions.
#[derive(Clone, Copy)]
pub(super) enum Of<'a> {
    Host(&'a Rows<Row>),
    Guest(&'a kernel::Rows),
}

impl Of<'_> {
    pub(super) fn names(self) -> &'static [&'static str] {
        match self {
            Of::Host(_) => &NAMES,
            Of::Guest(_) => &BOOTED,
        }
    }

    pub(super) fn title(self, what: &str) -> String {
        match self {
            Of::Host(_) => format!("{what}, this host"),
            Of::Guest(_) => format!("{what}, MIPS32 in the emulator"),
        }
    }

    pub(super) fn unit(self) -> &'static str {
        match self {
            Of::Host(_) => "ns",
            Of::Guest(_) => "instructions",
        }
    }

    /// Returns what a task takes.
    pub(super) fn task(self, name: &str) -> anyhow::Result<f64> {
        match self {
            Of::Host(rows) => Ok(rows.at("task", name)?.ns),
            Of::Guest(rows) => booted(rows, name, "task_insns"),
        }
    }

    /// Returns what a page of the compact region takes, by `PROT1` or `PROTN`.
    pub(super) fn compact(self, primitive: &str, name: &str) -> anyhow::Result<f64> {
        match self {
            Of::Host(rows) => Ok(rows.at(primitive, name)?.ns),
            Of::Guest(rows) => {
                let row = rows.one(&[("table", name), ("write", "random")])?;
                let field = format!("{}_insns", primitive.to_lowercase());
                row.within(&field, "compact").ok_or_else(|| anyhow::anyhow!("no {field} of {name}"))
            }
        }
    }

    /// Returns what a page takes by the size of its sparse region in kilobytes, beside a segment of so many megabytes.
    pub(super) fn sparse(self, name: &str, segment: u32) -> anyhow::Result<Vec<(f64, f64)>> {
        match self {
            Of::Host(rows) => {
                let rows = rows.iter().filter(|row| row.segment_mb == segment && row.name == name);
                Ok(rows.filter_map(|row| Some((f64::from(row.region_kb?), row.ns))).collect())
            }
            Of::Guest(rows) => {
                let row = rows.one(&[("table", name), ("write", "random")])?;
                let beside = if segment == 0 { String::new() } else { format!("+{segment}M") };
                let regions =
                    [(64.0, "64K"), (256.0, "256K"), (1024.0, "1M"), (4096.0, "4M"), (16384.0, "16M")];
                let point = |(kilobytes, region): (f64, &str)| {
                    let insns = row.within("protn_insns", &format!("{region}{beside}"));
                    Ok((
                        kilobytes,
                        insns.ok_or_else(|| anyhow::anyhow!("no protn_insns of {name} in {region}"))?,
                    ))
                };
                regions.into_iter().map(point).collect()
            }
        }
    }
}

/// Returns what the host's clock says of every table.
///
/// # Errors
///
/// If the lab fails.
pub(crate) fn timed(lab: &Lab) -> anyhow::Result<Rows<Row>> {
    lab.rows::<Mapping>(if lab.quick { "mapping --rounds 50" } else { "mapping --rounds 1000" })
}

/// Returns the host's data, and the kernel's if there are any; those come last, and decide.
pub(super) fn places<'a>(host: &'a Rows<Row>, guest: &'a Guest) -> Vec<Of<'a>> {
    [Of::Host(host)].into_iter().chain(guest.as_ref().ok().map(Of::Guest)).collect()
}

pub(super) fn names(of: Of<'_>) -> Vec<String> {
    of.names().iter().map(|name| (*name).to_owned()).collect()
}
