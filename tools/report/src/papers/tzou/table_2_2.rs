//! Table 2.2: every damage that it lists.

use tlblab::explore::Explore;

use crate::figure::{Figure, Table, Verdict};
use crate::lab::Lab;
use crate::printed::Printed;

use super::{PAPER, text};

/// Table 2.2: every damage that it lists.
pub(super) fn damages(lab: &Lab, printed: &Printed) -> anyhow::Result<Figure> {
    let rows = lab.rows::<Explore>("explore --damages")?;
    let listed = printed.list(&["Table 2.2"]);
    let mut table = Vec::new();
    let mut found = 0;
    for said in &listed {
        let (change, damage) = (text(said, 0), text(said, 1));
        let case = format!("{change}: {damage}");
        let row = rows.iter().find(|row| row.case == case);
        let happens = row.is_some_and(|row| row.verdict == "broken" && row.why.as_ref() == Some(&damage));
        found += usize::from(happens);
        let text = |number: Option<usize>| number.map(|number| number.to_string()).unwrap_or_default();
        table.push(vec![
            change,
            damage.clone(),
            if happens { damage } else { "-".into() },
            text(row.map(|row| row.worlds)),
            text(row.and_then(|row| row.steps)),
        ]);
    }
    Ok(Figure::new(PAPER, "Table 2.2", "How a TLB and a PTE can differ, and what it does", "For each kind of change without any algorithm, the explorer looks for a run in which the printed damage happens.")
        .table(Table::new("", &["*the PTE is changed to", "*damage", "found", "worlds", "steps"], table))
        .says(Verdict::count(found, listed.len()), format!("{found} of {} printed damages happen, each in the run of fewest steps that the explorer can show.", listed.len()))
        .by(rows.command))
}
