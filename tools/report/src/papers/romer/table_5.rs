//! Table 5: improvement of execution time.

use crate::figure::{Figure, Table, Verdict, cell};
use crate::lab::TRACES;

use super::{Data, PAPER, POLICIES};

/// Table 5.
pub(super) fn execution(data: &Data) -> anyhow::Result<Figure> {
    let policies = &POLICIES[1..];
    let mut rows = Vec::new();
    let (mut best, mut negative) = (f64::MIN, 0);
    for (at, (name, _)) in TRACES.iter().enumerate() {
        let cycles = |policy: &str| {
            let row = data.row(at, policy)?;
            Ok::<_, anyhow::Error>(
                (row.instructions + row.handler_cycles + row.copy_cycles + row.book_cycles) as f64,
            )
        };
        let base = cycles("FIXED-4K")?;
        let mut row = vec![(*name).to_owned()];
        for policy in policies {
            let improvement = 100.0 * (1.0 - cycles(policy)? / base);
            if *policy == "APPROX-ONLINE" {
                best = best.max(improvement);
                negative += usize::from(improvement < 0.0);
            }
            row.push(cell(improvement));
        }
        rows.push(row);
    }
    let mut paper = Vec::new();
    let (mut said, mut slowed) = (f64::MIN, 0);
    for name in data.printed.names(&["Table 5 (%)"]) {
        let of = |policy: &&str| data.printed.at(&["Table 5 (%)", name, policy]);
        said = said.max(of(&"APPROX-ONLINE")?);
        slowed += usize::from(of(&"APPROX-ONLINE")? < 0.0);
        let row = policies.iter().map(|policy| Ok(cell(of(policy)?))).collect::<anyhow::Result<Vec<_>>>()?;
        paper.push([name.to_owned()].into_iter().chain(row).collect());
    }
    let mut head = vec!["program"];
    head.extend(policies);
    let marked: Vec<_> = policies.iter().map(|policy| format!("*{policy}")).collect();
    let mut paper_head = vec!["program"];
    paper_head.extend(marked.iter().map(String::as_str));
    let figure = Figure::new(PAPER, "Table 5", "Improvement of execution time", "In percent over 4 KB pages; ours at one cycle an instruction beside the charges of Figure 3.")
        .table(Table::new("Ours", &head, rows))
        .table(Table::new("The paper's", &paper_head, paper))
        .says(
            Verdict::of(best > 0.0 && negative <= 1, best > 0.0)
                .allows("it slows at most one program down, as there; in part it speeds one up"),
            format!("APPROX-ONLINE saves up to {} % here and up to {} % there, and slows {negative} of {} programs down, {slowed} of {} there: short runs do not pay for their copying.", cell(best), cell(said), TRACES.len(), data.printed.names(&["Table 5 (%)"]).len()),
        );
    Ok(data.by(figure))
}
