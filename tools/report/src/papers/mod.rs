//! The papers, a folder each: every figure and table from the lab's data.
//!
//! A file is named after the figures or tables that it draws, with the paper's numbers: `tzou/table_3_1.rs`,
//! `tzou/figures_4_2_to_4_4.rs`. What several figures of a paper share is in files with other names.
//!
//! | file | shows |
//! |-|-|
//! | `bala/section_2_2.rs` | the six kinds of TLB misses |
//! | `bala/section_3_1.rs` | prefetching at the scheduler's switches |
//! | `bala/section_3_2_2.rs` | set-associative software caches |
//! | `bala/table_3_1.rs` | which addresses miss |
//! | `bala/table_4_1.rs` | the applications under Mach |
//! | `bala/table_4_2.rs` | rates of misses |
//! | `bala/figures_4_1_to_4_4.rs` | misses removed, and penalties, under each scheme; also Tables 4.3, 4.4 and 4.7 to 4.9 |
//! | `bala/table_4_5.rs` | hit rates of the software caches |
//! | `bala/table_4_6.rs` | misses that a miss causes |
//! | `bala/table_4_10.rs` | the speedup of the applications |
//! | `bala/section_4_3.rs` | three programs that talk to each other |
//! | `bala/section_4_5_1.rs` | a growing number of clients, and who talks to whom |
//! | `bala/figures_4_5_to_4_8.rs`, `bala/tables_4_11_to_4_13.rs` | the synthetic benchmark |
//! | `bala/chapter_5.rs` | models of future machines; cache misses of handlers and programs |
//! | `bala/osdi_section_6_1.rs` | three clients of a database server |
//! | `elphinstone/table_1.rs` | the conventional programs |
//! | `elphinstone/figure_2.rs` | what a refill takes, by the size of a guarded table's nodes |
//! | `elphinstone/figure_3.rs`, `elphinstone/figure_4.rs` | space of guarded tables: conventional programs, sparse workloads |
//! | `elphinstone/figure_5.rs`, `elphinstone/table_2.rs` | what a refill takes with every structure, and what that costs a program |
//! | `elphinstone/figure_6.rs`, `elphinstone/figure_8.rs` | space of every structure: conventional programs, sparse workloads |
//! | `elphinstone/figure_7.rs` | a task created and deleted |
//! | `elphinstone/figures_9_to_11.rs` | pages protected and unprotected |
//! | `elphinstone/section_2_4.rs` | one software TLB or hashed table for all address spaces, numbers that run out |
//! | `elphinstone/section_5_5.rs` | when a linear table beats a multi-level one |
//! | `romer/figure_1.rs` | TLB overhead over memory for pages of one size |
//! | `romer/figure_3.rs` | the TLB overhead of every policy |
//! | `romer/figure_4.rs` | memory overhead |
//! | `romer/figure_5.rs` | what the thresholds of APPROX-ONLINE trade |
//! | `romer/section_7_4.rs` | policies on several programs in the same short memory |
//! | `romer/appendix_b.rs` | the charges at which a promotion keeps the bound |
//! | `romer/table_2.rs` | the baseline, pages of 4 KB |
//! | `romer/table_3.rs`, `romer/table_4.rs`, `romer/table_5.rs`, `romer/table_6.rs` | each policy's cycles a miss, misses, improvement, pages at the end |
//! | `tzou/table_2_2.rs`, `tzou/table_3_1.rs` | damages; the algorithms, and the TLBs that each suits |
//! | `tzou/figures_4_2_to_4_4.rs` | the simulator against the analysis |
//! | `tzou/figures_4_5_to_4_7.rs` | what the algorithms cost |
//! | `tzou/locks.rs` | beyond Figure 4.5: threads that fault in one address space |
//! | `tzou/section_4_2.rs`, `tzou/section_4_4_4.rs` | all ten algorithms, also under other assumptions, and with a cache's lines to flush |
//! | `inputs.rs` | each paper's tables and figures that have no row of their own |
//! | `tzou/figures_5_5_and_5_6.rs` | moving data from one address space to another; Table 5.1 and Figure 5.8 |

use anyhow::Context;

use crate::chart::Chart;
use crate::figure::Figure;
use crate::lab::Lab;

mod bala;
mod elphinstone;
mod inputs;
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

/// Returns what `docs/costs.md` shows of the lab: a chart and the lines of a table.
///
/// # Errors
///
/// If the lab fails.
pub(crate) fn costs(lab: &Lab) -> anyhow::Result<(Chart, String)> {
    let figure = elphinstone::sparse_space(lab)?;
    let chart = figure.charts.into_iter().next().context("the figure has no chart")?;
    let chart =
        Chart { title: "Bytes of page table for each page, single pages all over 64 bits".into(), ..chart };
    Ok((chart, elphinstone::costs_table(lab)?))
}
