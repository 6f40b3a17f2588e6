//! Table 6: pages of each size at the end of a run.

use crate::figure::{Figure, Table, Verdict, cell};
use crate::lab::TRACES;

use super::{Data, PAPER, STAND_INS};

/// Table 6.
pub(super) fn distribution(data: &Data) -> anyhow::Result<Figure> {
    let sizes = [
        "4 KB", "8 KB", "16 KB", "32 KB", "64 KB", "128 KB", "256 KB", "512 KB", "1 MB", "2 MB", "4 MB",
        "8 MB",
    ];
    let mut rows = Vec::new();
    let (mut used, mut said_used) = (0, 0);
    for (at, (name, _)) in TRACES.iter().enumerate() {
        let counts = &data.row(at, "APPROX-ONLINE")?.page_sizes;
        used += counts.iter().filter(|count| **count > 0).count();
        let counts = counts.iter().map(|&count| cell(count as f64));
        rows.push([(*name).to_owned()].into_iter().chain(counts).collect());
    }
    let mut paper = Vec::new();
    let names = data.printed.names(&["Table 6"]);
    for name in &names {
        let of = |size: &&str| data.printed.at(&["Table 6", name, size]);
        let counts = sizes.iter().map(of).collect::<anyhow::Result<Vec<_>>>()?;
        said_used += counts.iter().filter(|count| **count > 0.0).count();
        paper.push([(*name).to_owned()].into_iter().chain(counts.into_iter().map(cell)).collect());
    }
    let mut head = vec!["program"];
    head.extend(sizes);
    let marked: Vec<_> = sizes.iter().map(|size| format!("*{size}")).collect();
    let mut paper_head = vec!["program"];
    paper_head.extend(marked.iter().map(String::as_str));
    let (ours, theirs) = (used as f64 / TRACES.len() as f64, said_used as f64 / names.len() as f64);
    let figure = Figure::new(PAPER, "Table 6", "Pages of each size at the end, APPROX-ONLINE", STAND_INS)
        .table(Table::new("Ours", &head, rows))
        .table(Table::new("The paper's", &paper_head, paper))
        .says(
            Verdict::factor(ours / theirs, 1.5, 3.0),
            format!(
                "a program ends with pages of {} sizes on average, {} in the paper.",
                cell(ours),
                cell(theirs)
            ),
        );
    Ok(data.by(figure))
}
