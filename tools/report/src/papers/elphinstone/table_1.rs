//! Table 1: the conventional programs.

use tlbkit_names::MPT;
use tlblab::Cycles;

use crate::figure::{Figure, Table, Verdict, cell, percent};
use crate::lab::TRACES;
use crate::printed::Printed;

use super::handlers::{on, program};
use super::{PAPER, Traces};

/// Table 1.
pub(super) fn programs(traces: &Traces, printed: &Printed) -> anyhow::Result<Figure> {
    let mut rows = Vec::new();
    let cycles = &traces.cycles[0].1;
    for (at, (name, habit)) in TRACES.iter().enumerate() {
        let (row, handlers) = (traces.paper.runs[at].of(MPT)?, &traces.handlers.runs[at]);
        let times = |number: fn(&Cycles) -> u64| {
            anyhow::Ok(on(cycles.runs[at].of(MPT)?, |cycles| number(cycles) as f64))
        };
        let (elapsed, own) = (times(|cycles| cycles.elapsed_cycles)?, times(|cycles| cycles.program_cycles)?);
        let megabytes = row.pages as f64 * 4096.0 / f64::from(1 << 20);
        let instructions = program(handlers.of(MPT)?);
        rows.push(vec![
            (*name).into(),
            (*habit).into(),
            cell(megabytes),
            cell(instructions / 1e6),
            cell(row.refills as f64),
            percent(100.0 * (elapsed - own) / elapsed),
        ]);
    }
    let paper = printed.names(&["Table 1 (Mb)"]).into_iter();
    let paper = paper.map(|name| Ok(vec![name.into(), cell(printed.at(&["Table 1 (Mb)", name])?)]));
    let about = "The programs of the paper are gone with its machine; these take their place, each recorded whole, its \
                 references replayed through the paper's TLB of 48 page pairs with random replacement.";
    let ours = [
        "program",
        "habit",
        "size (Mb)",
        "instructions (10^6)",
        "refills",
        "cycles in refills by MPT, R4700",
    ];
    let figure = Figure::new(PAPER, "Table 1", "The conventional programs", about)
        .table(Table::new("Ours", &ours, rows))
        .table(Table::new("The paper's", &["program", "*size (Mb)"], paper.collect::<anyhow::Result<_>>()?))
        .says(
            Verdict::Input,
            "the paper's choice of programs, for which these stand: absolute numbers are not comparable, orders and ratios are. The \
             last column is of the first 10 million instructions.",
        );
    Ok(cycles.cite(traces.handlers.cite(traces.paper.cite(figure))))
}
