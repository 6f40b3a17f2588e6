//! The papers, a folder each: every figure and table from the lab's data.
//!
//! A file is named after the figures or tables that it draws, with the paper's numbers: `tzou/table_3_1.rs`,
//! `tzou/figures_4_2_to_4_4.rs`. What several figures of a paper share is in files with other names.

use anyhow::Context;

use crate::chart::Chart;
use crate::figure::Figure;
use crate::lab::Lab;

mod bala;
mod elphinstone;
mod romer;
mod tzou;

/// Collects a paper's figures.
pub(crate) type Figures = fn(&Lab) -> anyhow::Result<Vec<Figure>>;

/// The papers in the order of the report.
pub(crate) const ALL: [(&str, Figures); 4] = [
    ("Elphinstone, Heiser and Liedtke 1999: page tables for 64-bit computer systems", elphinstone::figures),
    ("Bala 1995, and Bala, Kaashoek and Weihl 1994: software management of TLBs", bala::figures),
    ("Romer, Ohlrich, Karlin and Bershad 1995: online superpage promotion", romer::figures),
    ("Tzou 1989: multiprocessor TLB consistency", tzou::figures),
];

pub(crate) use elphinstone::timed;

/// Returns what the README shows: a chart and the lines of a table.
///
/// # Errors
///
/// If the lab fails.
pub(crate) fn readme(lab: &Lab) -> anyhow::Result<(Chart, String)> {
    let figure = elphinstone::sparse_space(lab)?;
    let chart = figure.charts.into_iter().next().context("the figure has no chart")?;
    let chart =
        Chart { title: "Bytes of page table for each page, single pages all over 64 bits".into(), ..chart };
    Ok((chart, elphinstone::readme_table(lab)?))
}
