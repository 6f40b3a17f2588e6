//! The tables and figures that have no row of their own: what each paper works with, and drawings.

use crate::figure::{Figure, Table, Verdict};

/// A table or figure: its place, what it is, and where that is here.
type Other = [&'static str; 3];

/// Returns the row of a paper's other tables and figures.
pub(super) fn others(paper: &'static str, others: &[Other]) -> Figure {
    let rows = others.iter().map(|row| row.map(String::from).to_vec()).collect();
    let figure = Figure::new(
        paper,
        "Other tables and figures",
        "What has no row of its own",
        "What the paper works with, and drawings of how something works.",
    );
    figure
        .table(Table::new("", &["", "shows", "here"], rows))
        .says(Verdict::Input, "none of these could come out either way.")
}

/// Elphinstone et al.
pub(super) const ELPHINSTONE: &[Other] =
    &[["Figure 1", "a drawing: guards in place of two intermediate tables", "`tlbkit_pagetable::gpt`"]];

/// Bala's thesis.
pub(super) const BALA: &[Other] = &[
    ["Figure 2-1", "a drawing: the page table hierarchy of Mach 3.0", "the levels of `tlblab mach`"],
    ["Table 2.1", "measured: cycles of each kind of miss", "an input of `tlblab mach`"],
    ["Figure 3-1", "a drawing: the way through the software cache", "`tlbkit_stlb`"],
    ["Table 3.2", "measured: cycles of a miss with the software cache", "an input of `tlblab mach`"],
];

/// The OSDI paper, whose other tables the thesis has with more applications.
pub(super) const OSDI: &[Other] = &[
    ["Figure 1", "a drawing: the page table hierarchy of Mach 3.0", "the levels of `tlblab mach`"],
    ["Table 1", "measured: cycles of each kind of miss", "the thesis's Table 2.1"],
    ["Table 2", "the applications", "the thesis's Table 4.1"],
    ["Figure 2, Table 3", "kernel misses with prefetching", "the thesis's Figure 4-1 and Table 4.3"],
    ["Figure 3, Table 4", "penalties with prefetching", "the thesis's Figure 4-2 and Table 4.4"],
    [
        "Table 5",
        "measured: cycles of a miss with the software cache",
        "the thesis's Table 3.2; section 6.2 above",
    ],
    ["Tables 6 to 8, Figure 4", "software caches", "the thesis's Tables 4.5 to 4.7 and Figure 4-3"],
    ["Tables 9 and 10, Figure 5", "both together", "the thesis's Tables 4.8 and 4.9 and Figure 4-4"],
];

/// Romer et al.
pub(super) const ROMER: &[Other] = &[
    ["Table 1", "the programs", "`tools/lab/traces` stand for them"],
    ["Figure 2", "a drawing: an example of both charges", "`tlbkit_superpage`"],
];

/// Tzou.
pub(super) const TZOU: &[Other] = &[
    ["Figure 1.1", "a drawing: boundaries of address spaces", "-"],
    ["Figure 2.1", "a drawing: the model of a multiprocessor", "the machine of `tlblab explore`"],
    ["Table 2.1", "some real TLBs and their properties", "Table 3.1 above pairs the algorithms with them"],
    [
        "Figure 4.1",
        "a drawing: events of the 2-phase algorithm in time",
        "the simulator of `tlblab shootdown`",
    ],
    ["Figure 5.1", "a drawing: transient inconsistency", "`tlbkit_shootdown`'s tolerance of inconsistency"],
    ["Figure 5.2, Figure 5.3", "drawings: a portable VM system, and that of DASH", "`tlbkit_dash`"],
    ["Table 5.2", "member functions of VAS_MD", "the machines of `tlbkit`"],
    ["Figure 5.4", "a drawing: the flow of physical pages", "`tlbkit_dash`'s page-out"],
    ["Figure 5.7", "a drawing: layers of message-passing", "`tlbkit_dash`'s messages"],
    ["Table 5.3", "interface of IPC_REGION_MGR", "`tlbkit_dash`'s regions"],
];
