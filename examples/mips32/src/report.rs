//! What the kernel says at the end, for people and for `cargo xtask boot`.
//!
//! A line that begins with `row` is for the program: words of the form `name=value`.

use core::fmt;

use tlbkit_malta::check::Checks;
use tlbkit_malta::{print, println};

use crate::mapping::{Costs, REGIONS};
use crate::measure::{Cost, Swept};

/// Everything that was measured of one table, with one way to write the TLB.
#[derive(Clone, Copy, Debug)]
pub struct Report {
    pub table: &'static str,
    /// Whether a software TLB cache stands in front.
    pub stlb: bool,
    /// `random` or `index`.
    pub write: &'static str,
    /// Words of the handler.
    pub words: usize,
    pub swept: Swept,
    pub task: u32,
    pub mapping: Costs,
    pub checks: Checks,
}

impl Report {
    /// Prints it.
    pub fn print(&self) {
        let Self { table, write, words, swept, task, mapping, .. } = self;
        println!("{table}, TLB written by {write}; the handler has {words} words");
        println!("  refills, compact   {}", swept.compact);
        println!("  refills, sparse    {}", swept.sparse);
        println!("  bytes of table     {} for {} pages", swept.footprint.total(), swept.footprint.ptes);
        println!("  task, to and fro   {task} instructions");
        println!(
            "  protect            PROT1 {} PROTN {} a page, compact",
            mapping.compact[0].prot1, mapping.compact[0].protn
        );
        let all = swept.compact.and(swept.sparse);
        print!(
            "row table={table} stlb={} write={write} words={words} refills={} insns={} min={} mean={} max={} \
             bytes={} task={task}",
            self.stlb,
            all.refills,
            all.sum,
            all.min,
            Thousandths(all.sum, all.refills),
            all.max,
            swept.footprint.total(),
        );
        let sparse = mapping.sparse.iter().zip(REGIONS).map(|(row, log)| (4u32 << log, row));
        for (kilobytes, row) in core::iter::once((0, &mapping.compact)).chain(sparse) {
            for (beside, cost) in ["", "+64M"].iter().zip(row) {
                print!(
                    " prot1.{}{beside}={} protn.{}{beside}={}",
                    Size(kilobytes),
                    cost.prot1,
                    Size(kilobytes),
                    cost.protn
                );
            }
        }
        println!(" checks={} failures={}", self.checks.done, self.checks.failed);
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { refills, min, max, sum } = *self;
        write!(f, "{refills}, each {} instructions ({min} to {max})", Thousandths(sum, refills))
    }
}

/// A fraction in decimals: there is no floating point here.
struct Thousandths(u32, u32);

impl fmt::Display for Thousandths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(sum, count) = *self;
        let all = u64::from(sum) * 1000 / u64::from(count.max(1));
        write!(f, "{}.{:03}", all / 1000, all % 1000)
    }
}

/// The name of a region by its kilobytes.
struct Size(u32);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => f.write_str("compact"),
            kilobytes @ 1..1024 => write!(f, "{kilobytes}K"),
            kilobytes => write!(f, "{}M", kilobytes / 1024),
        }
    }
}
