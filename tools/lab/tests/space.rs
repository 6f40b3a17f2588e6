//! What the paper says about space, and what this house claims beyond it, as `tlblab tables` measures it.

mod common;

use std::collections::BTreeMap;

use common::{rows, tlblab};
use serde_json::Value;

/// Runs `tlblab tables` and returns its rows by name: the space of a table that answers wrongly counts for nothing.
fn tables(args: &str) -> BTreeMap<String, Value> {
    let args: Vec<_> = ["tables", "--json"].into_iter().chain(args.split_whitespace()).collect();
    let rows = rows(&tlblab(&args).output().unwrap());
    for row in &rows {
        assert_eq!(row["verified"], true, "{args:?}: {row}");
    }
    rows.into_iter().map(|row| (row["name"].as_str().unwrap().to_owned(), row)).collect()
}

fn number(row: &Value, field: &str) -> f64 {
    row[field].as_f64().unwrap_or_else(|| panic!("no {field} in {row}"))
}

/// The guarded tables of one node size.
const FIXED: [&str; 8] = ["G2", "G4", "G8", "G16", "G32", "G64", "G128", "G256"];

/// A recorded trace. The one that the lab takes by default is read in seconds, again for each table.
const TRACE: &str = if cfg!(tlbkit_full) { "" } else { "--trace traces/sort.tlbt" };

/// The workloads that come with the lab.
const SHIPPED: [&str; 5] =
    [TRACE, "--workload uniform", "--workload file", "--workload dense", "--workload conventional"];

#[test]
fn g2_takes_48_bytes_a_page_less_32() {
    for pages in [1, 2, 3, 1000, 8192] {
        for seed in [1, 2] {
            let rows = tables(&format!("--workload uniform --pages {pages} --seed {seed} G2"));
            // Each further page brings a leaf of 16 bytes and a node of 32. In bytes, so that nothing is rounded.
            assert_eq!(rows["G2"]["bytes"], 48 * pages - 32);
            let n = f64::from(pages);
            assert!((number(&rows["G2"], "bytes_per_pte") - (48.0 - 32.0 / n)).abs() < 1e-9);
            assert!((number(&rows["G2"], "bytes_per_pte_inner") - (32.0 - 32.0 / n)).abs() < 1e-9);
        }
    }
}

#[test]
fn a_multi_level_table_takes_a_hundred_times_as_much_where_pages_are_scattered() {
    let rows = tables("--workload uniform --pages 4096 MPT G16 GA");
    for guarded in ["G16", "GA"] {
        assert!(number(&rows["MPT"], "bytes") >= 100.0 * number(&rows[guarded], "bytes"), "{guarded}");
    }
}

#[test]
fn adaptive_nodes_are_nearly_the_best_and_no_worse_than_any_fixed_ones() {
    for load in SHIPPED {
        let rows = tables(&format!("{load} GA {}", FIXED.join(" ")));
        let adaptive = number(&rows["GA"], "bytes_per_pte");
        let optimum = number(&rows["GA"], "bytes_per_pte_optimum");
        assert!(optimum <= adaptive && adaptive <= 1.04 * optimum, "{load}: {adaptive}, at best {optimum}");
        for fixed in FIXED {
            let fixed = number(&rows[fixed], "bytes_per_pte");
            assert!(optimum <= fixed && adaptive <= fixed, "{load}: {adaptive} against {fixed}");
        }
    }
}

#[test]
fn adaptive_nodes_have_several_sizes() {
    for load in [TRACE, "--workload file"] {
        let rows = tables(&format!("{load} GA"));
        for histogram in ["node_bytes", "node_bytes_optimum"] {
            let sizes = rows["GA"][histogram].as_object().map(|sizes| sizes.len());
            assert!(sizes >= Some(3), "{load}: {}", rows["GA"]);
        }
    }
}

#[test]
fn compact_tables_are_smaller_than_any_of_the_papers() {
    // Bytes a page with everything counted, and a structure that gets there. HR's directory is counted, too.
    for (workload, pages, most, name) in [
        ("dense", 16384, 8.8, "MPT"),
        ("dense", 16384, 10.5, "GA"),
        ("uniform", 8192, 21.0, "HR"),
        ("uniform", 8192, 28.0, "GA"),
        ("file", 8192, 17.0, "GA"),
    ] {
        for seed in 1..=3 {
            let load = format!("--workload {workload} --pages {pages} --seed {seed}");
            let rows = tables(&format!("--layout compact {load} {name}"));
            let bytes = number(&rows[name], "bytes_per_pte");
            assert!(bytes <= most, "{load}: {name} takes {bytes}");
        }
    }
}
