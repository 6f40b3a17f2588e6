//! Rows of results: one JSON array for programs, or a table for people, from the same values.

use std::io::{self, Write};

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;
use serde_json::Value;

/// Prints `rows` on standard output: a JSON array, or a table whose columns are the fields of the first row.
///
/// # Errors
///
/// If a row cannot be serialized or standard output cannot be written. A reader that stopped reading (`| head`) is
/// no error.
pub(crate) fn print<R: Serialize>(json: bool, rows: &[R]) -> anyhow::Result<()> {
    let text = if json {
        serde_json::to_string_pretty(rows)?
    } else {
        table(&rows.iter().map(serde_json::to_value).collect::<Result<Vec<_>, _>>()?)
    };
    match writeln!(io::stdout().lock(), "{text}") {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        outcome => Ok(outcome?),
    }
}

/// Makes a table whose columns are the fields of the first row; those that are the same in several rows stand above it
/// once.
fn table(rows: &[Value]) -> String {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_HORIZONTAL_ONLY);
    let Some(Value::Object(first)) = rows.first() else { return String::new() };
    let same = |key: &String| rows.len() > 1 && rows.iter().all(|row| row[key] == first[key]);
    let (above, columns): (Vec<_>, Vec<_>) = first.keys().partition(|key| same(key));
    // A word a line keeps columns of long names narrow.
    table.set_header(columns.iter().map(|key| key.replace('_', "\n")));
    for row in rows {
        table.add_row(columns.iter().map(|&key| cell(&row[key])));
    }
    for (at, &key) in columns.iter().enumerate() {
        if first[key].is_number()
            && let Some(column) = table.column_mut(at)
        {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let above: Vec<_> =
        above.iter().map(|&key| format!("{} {}", key.replace('_', " "), cell(&first[key]))).collect();
    if above.is_empty() { table.to_string() } else { format!("{}\n{table}", above.join(", ")) }
}

fn cell(value: &Value) -> String {
    match value {
        Value::Null => "-".into(),
        Value::String(text) => text.clone(),
        Value::Number(number) if number.is_f64() => match number.as_f64().unwrap_or(f64::NAN) {
            small if small != 0.0 && small.abs() < 0.01 => format!("{small:.5}"),
            value => format!("{value:.3}"),
        },
        other => other.to_string(),
    }
}
