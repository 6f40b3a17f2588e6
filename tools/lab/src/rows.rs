//! Rows of results: one JSON array for programs, or a table for people (a list if there is but one), from the same values.

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;
use serde_json::{Map, Value};

/// What the table for people leaves out, because it is long or says little of most rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Aside<'a> {
    /// The fields that are no columns.
    pub(crate) fields: &'a [&'a str],
    /// The name of the row whose fields stand below the table instead, a line each.
    pub(crate) of: &'a str,
}

/// Prints `rows` on standard output: a JSON array, or a table whose columns are the fields of the first row.
///
/// # Errors
///
/// If a row cannot be serialized.
pub(crate) fn print<R: Serialize>(json: bool, rows: &[R]) -> anyhow::Result<()> {
    print_aside(json, rows, Aside { fields: &[], of: "" })
}

/// As [`print()`], with some fields below the table; JSON has them all.
///
/// # Errors
///
/// As there.
pub(crate) fn print_aside<R: Serialize>(json: bool, rows: &[R], aside: Aside<'_>) -> anyhow::Result<()> {
    let text = if json {
        serde_json::to_string_pretty(rows)?
    } else {
        let rows = rows.iter().map(serde_json::to_value).collect::<Result<Vec<_>, _>>()?;
        match &rows[..] {
            [Value::Object(row)] => list(row),
            rows => table(rows, aside),
        }
    };
    println!("{text}");
    Ok(())
}

/// Makes a list of a single row's fields, a line each.
fn list(row: &Map<String, Value>) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    for (key, value) in row {
        table.add_row([key.replace('_', " "), cell(value)]);
    }
    table.trim_fmt()
}

/// Makes a table whose columns are the fields of the first row; those that are the same in all rows stand above it
/// once.
fn table(rows: &[Value], aside: Aside<'_>) -> String {
    let Some(Value::Object(first)) = rows.first() else { return String::new() };
    let mut table = Table::new();
    table.load_preset(presets::UTF8_HORIZONTAL_ONLY);
    let same = |key: &&String| rows.iter().all(|row| row[key.as_str()] == first[key.as_str()]);
    let (above, columns): (Vec<_>, Vec<_>) =
        first.keys().filter(|key| !aside.fields.contains(&key.as_str())).partition(same);
    // A word a line keeps columns of long names narrow.
    table.set_header(columns.iter().map(|key| key.replace('_', "\n")));
    for row in rows {
        table.add_row(columns.iter().map(|&key| cell(&row[key])));
    }
    for (at, &key) in columns.iter().enumerate() {
        if let Some(column) = table.column_mut(at) {
            column.set_padding((0, 1));
            if rows.iter().any(|row| row[key].is_number()) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
    }
    let say = |row: &Value, key: &str| format!("{} {}", key.replace('_', " "), cell(&row[key]));
    let above: Vec<_> =
        above.iter().filter(|&&key| !first[key].is_null()).map(|key| say(&rows[0], key)).collect();
    let below = rows.iter().filter(|row| row["name"] == aside.of).flat_map(|row| {
        let fields = aside.fields.iter().filter(|&&field| !row[field].is_null());
        fields.map(|field| format!("{}: {}", aside.of, say(row, field)))
    });
    let above = Some(above.join(", ")).filter(|above| !above.is_empty());
    above.into_iter().chain([table.to_string()]).chain(below).collect::<Vec<_>>().join("\n")
}

fn cell(value: &Value) -> String {
    match value {
        Value::Null => "-".into(),
        Value::String(text) => text.clone(),
        Value::Number(number) if number.is_f64() => match number.as_f64().unwrap_or(f64::NAN) {
            small if small != 0.0 && small.abs() < 0.01 => format!("{small:.5}"),
            value => format!("{value:.3}"),
        },
        // A histogram: how many of each.
        Value::Object(counts) => {
            counts.iter().map(|(of, count)| format!("{count}×{of}")).collect::<Vec<_>>().join(", ")
        }
        other => other.to_string(),
    }
}
