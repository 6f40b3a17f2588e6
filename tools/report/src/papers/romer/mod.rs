//! Romer et al.: superpage promotion policies on our traces.

use tlblab::refill::{self, RefillArgs};
use tlblab::superpage::{Row, SuperpageArgs};

use crate::figure::Figure;
use crate::lab::{Lab, TRACES};
use crate::papers::inputs::{self, others};
use crate::printed::{self, Printed};
use crate::rows::Rows;

mod appendix_b;
mod figure_1;
mod figure_3;
mod figure_4;
mod figure_5;
mod section_7_4;
mod table_2;
mod table_3;
mod table_4;
mod table_5;
mod table_6;

const PAPER: &str = "Romer";

/// The paper's policies, then the new ones.
const POLICIES: [&str; 8] =
    ["FIXED-4K", "FIXED-16K", "FIXED-64K", "OFFLINE", "ASAP", "ASAP-4-64", "ONLINE", "APPROX-ONLINE"];

const NEW: [&str; 7] = ["THRIFT", "RESERVE", "SUBBLOCK", "RUNS", "KHUGEPAGED", "INGENS", "HAWKEYE"];

/// Pages of one size, from the most misses to the most memory.
const FIXED: [&str; 7] =
    ["FIXED-4K", "FIXED-8K", "FIXED-16K", "FIXED-32K", "FIXED-64K", "FIXED-128K", "FIXED-256K"];

const STAND_INS: &str = "Our traces are shorter than the paper's runs, and a promotion costs the same: of 60 million \
                         instructions fewer promotions pay than of the paper's hundreds of millions.";

struct Data {
    /// The rows of each trace.
    runs: Vec<Rows<Row>>,
    /// Refills of each trace on the caches of the paper's machine.
    cycles: Vec<Rows<refill::Row>>,
    printed: Printed,
}

impl Data {
    fn row(&self, trace: usize, policy: &str) -> anyhow::Result<&Row> {
        self.runs[trace].of(policy)
    }

    fn by(&self, figure: Figure) -> Figure {
        self.runs.iter().fold(figure, |figure, run| figure.by(run.command.clone()))
    }
}

/// Returns the figures.
///
/// # Errors
///
/// If the lab fails.
pub(crate) fn figures(lab: &Lab) -> anyhow::Result<Vec<Figure>> {
    let mut runs = Vec::new();
    for (name, _) in TRACES {
        let fixed = "FIXED-8K,FIXED-32K,FIXED-128K,FIXED-256K";
        let line = format!("superpage {} --policy all,{fixed}", lab.replay(name));
        runs.push(lab.rows::<SuperpageArgs>(&line)?);
    }
    let of = |name: &str| {
        lab.rows::<RefillArgs>(&format!(
            "refill --table MPT --table H128k --tlb-pages 1 --tlb-entries 64 {}",
            lab.on(name, "alpha")
        ))
    };
    let cycles = TRACES.iter().map(|(name, _)| of(name)).collect::<anyhow::Result<_>>()?;
    let data = Data { runs, cycles, printed: printed::romer()? };
    Ok(vec![
        figure_1::page_sizes(&data)?,
        table_2::baseline(&data)?,
        table_3::costs(&data)?,
        figure_3::overhead(&data)?,
        table_4::misses(&data)?,
        figure_4::memory(&data)?,
        table_5::execution(&data)?,
        figure_5::tradeoff(&data)?,
        table_6::distribution(&data)?,
        section_7_4::pressure(lab)?,
        appendix_b::bound(lab)?,
        others(PAPER, inputs::ROMER),
    ])
}

fn programs() -> Vec<String> {
    TRACES.iter().map(|(name, _)| (*name).to_owned()).collect()
}
