//! The hit rate above which a software TLB cache pays.

use super::row::Row;

/// Returns a line for each table that was booted with and without a cache.
pub(crate) fn table(rows: &[Row]) -> String {
    let _ = rows;
    String::new()
}
