//! The table at the end: every page table beside the others.

use super::row::Row;

/// The columns: a heading of two lines, and the number's name.
const COLUMNS: [(&str, &str, &str); 11] = [
    ("refill", "min", "min"),
    ("refill", "mean", "mean"),
    ("refill", "max", "max"),
    ("refills", "", "refills"),
    ("memory", "refs", "refs"),
    ("table", "bytes", "bytes"),
    ("task", "", "task"),
    ("PROT1", "128", "prot1.compact"),
    ("PROTN", "128", "protn.compact"),
    ("PROTN", "16 in 16M", "protn.16M"),
    ("", "and +64M", "protn.16M+64M"),
];

/// Returns a line for each table. Instructions of a refill are those of `tlbwr`, as a kernel would use it; refills are
/// counted where they are counted right.
pub(crate) fn table(rows: &[Row]) -> String {
    let mut tables: Vec<&str> = Vec::new();
    for row in rows.iter().filter(|row| row.number("task").is_some()) {
        if !tables.contains(&row.table.as_str()) {
            tables.push(&row.table);
        }
    }
    if tables.is_empty() {
        return String::new();
    }
    let mut text = String::from("\n         ");
    text.extend(COLUMNS.iter().map(|(heading, ..)| format!("{heading:>10}")));
    text += "\ntable    ";
    text.extend(COLUMNS.iter().map(|(_, heading, _)| format!("{heading:>10}")));
    for table in tables {
        let find = |write: &str| rows.iter().find(|row| row.table == table && row.write == write);
        text += &format!("\n{table:<9}");
        for (.., name) in COLUMNS {
            let write = if name == "refills" { "index" } else { "random" };
            let number = find(write).and_then(|row| row.number(name));
            text += &number.map_or(format!("{:>10}", "-"), |number| {
                if name == "mean" || name == "refs" {
                    format!("{number:>10.2}")
                } else {
                    format!("{number:>10}")
                }
            });
        }
    }
    text + "\n\nInstructions a refill, of a task to and fro, and a page protected and unprotected; refills of two sets of 256 pages.\n"
}
