//! Several CPUs: a row for each shootdown protocol.

use std::fmt::Write;

use super::row;

/// The columns of numbers, as the kernel names them.
const COLUMNS: [&str; 10] = [
    "shootdowns",
    "touches",
    "faults",
    "written",
    "reclaimed",
    "letters",
    "copies",
    "nodes",
    "cpus",
    "failures",
];

/// Returns a table for people of lines `protocol protocol=... name=number ...`.
pub(super) fn text(lines: &[String]) -> String {
    let rows = lines.iter().filter_map(|line| row::said(line)).filter(|row| row["kind"] == "protocol");
    let mut text = format!(
        "\nShootdowns by CPUs that page out what others use, and send each other pages\n{:18}",
        "protocol"
    );
    for name in COLUMNS {
        let _ = write!(text, " {name:>12}");
    }
    for row in rows {
        let _ = write!(text, "\n{:18}", row["protocol"].as_str().unwrap_or("?"));
        for name in COLUMNS {
            let _ = write!(text, " {:>12}", row[name].as_u64().unwrap_or(0));
        }
    }
    text + "\n"
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_line_is_a_row() {
        let lines = [
            "protocol protocol=2-phase/serving cpus=4 shootdowns=100 failures=2",
            "row machine=mips32 cpus=4",
        ];
        let text = super::text(&lines.map(String::from));
        let row = text.lines().last().unwrap();
        assert!(row.starts_with("2-phase/serving") && row.ends_with("4            2"), "{text}");
        assert_eq!(text.lines().count(), 4);
    }
}
