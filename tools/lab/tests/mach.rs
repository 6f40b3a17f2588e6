//! `tlblab mach` and `tlblab model`: the thesis's claims, and what a user gets wrong.

use std::process::{Command, Output};

use serde_json::Value;

fn run(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tlblab")).args(args).output().unwrap()
}

fn rows(args: &[&str]) -> Vec<Value> {
    let output = run(args);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    match serde_json::from_slice(&output.stdout) {
        Ok(Value::Array(rows)) => rows,
        other => panic!("no array: {other:?}"),
    }
}

fn of<'a>(rows: &'a [Value], scheme: &str, servers: usize) -> &'a Value {
    rows.iter().find(|row| row["scheme"] == scheme && row["servers"] == servers).unwrap()
}

fn number(row: &Value, field: &str) -> f64 {
    row[field].as_f64().unwrap()
}

const FIELDS: [&str; 16] = [
    "scheme",
    "servers",
    "clients",
    "words",
    "ipcs",
    "l1u",
    "l1k",
    "l2",
    "l3",
    "cascaded",
    "kernel_misses_per_ipc",
    "stlb_hit_rate",
    "penalty_cycles_per_ipc",
    "overhead_cycles_per_ipc",
    "speedup_pct",
    "stale_hits",
];

#[test]
fn the_thesis_4_5() {
    let rows = rows(&["mach", "--servers", "1..10", "--scheme", "all", "--ipcs", "3000", "--json"]);
    assert_eq!(rows.len(), 13 * 10);
    for row in &rows {
        assert!(FIELDS.iter().all(|field| row.get(field).is_some()), "{row}");
        assert_eq!(row["stale_hits"], 0, "{row}");
        assert_eq!(row["cascaded"], row["l3"], "every L3 miss of the model is a miss within a miss");
    }
    let misses = |scheme, servers| number(of(&rows, scheme, servers), "kernel_misses_per_ipc");
    let removed = |scheme, servers| 100.0 * (1.0 - misses(scheme, servers) / misses("mach", servers));
    let hits = |scheme, servers| number(of(&rows, scheme, servers), "stlb_hit_rate");
    assert!(misses("mach", 2) > 1.5 * misses("mach", 1), "the jump from one server to two");
    for servers in 2..=10 {
        assert!((55.0..70.0).contains(&removed("ptlb", servers)), "{servers}");
    }
    for servers in 2..=7 {
        assert!((22.0..35.0).contains(&removed("stlb-4k", servers)), "{servers}");
        assert!(misses("ptlb+stlb", servers) < misses("ptlb", servers).min(misses("stlb-4k", servers)));
        assert!(hits("stlb-4k", servers) > 0.95, "{servers}");
    }
    // The knee, and what takes it away.
    assert!(hits("stlb-4k", 8) < hits("stlb-4k", 7) - 0.08);
    for scheme in ["stlb-4k-victim", "stlb-4k-folded"] {
        assert!(hits(scheme, 8) > hits("stlb-4k", 7) - 0.02, "{scheme}");
    }
}

#[test]
fn a_missing_invalidation_shows_in_every_scheme() {
    let base = ["mach", "--servers", "4", "--ipcs", "1000", "--json"];
    for kind in ["page", "range", "all"] {
        let inject = format!("--inject={kind}");
        let more = ["--scheme", "ptlb,stlb-4k,stlb-4k-victim,ptlb+stlb", &inject];
        for row in rows(&[&base[..], &more].concat()) {
            assert!(row["stale_hits"].as_u64().unwrap() > 0, "{kind}: {row}");
        }
    }
    for row in rows(&[&base[..], &["--inject"]].concat()) {
        assert!(row["stale_hits"].as_u64().unwrap() > 0, "{row}");
    }
}

#[test]
fn options_of_the_two_papers() {
    // Without conflicts an entry is back in the STLB before it can be missed, whichever way it gets there.
    let base = ["mach", "--servers", "9", "--scheme", "stlb-4k,ptlb", "--ipcs", "2000", "--json"];
    let thesis = rows(&base);
    let osdi = rows(&[&base[..], &["--fill", "eviction", "--record", "pair"]].concat());
    assert!(osdi[0]["stlb_hit_rate"].as_f64() > Some(0.6) && osdi[0] != thesis[0]);
    // Entries come from the same table whichever cache is asked first; later prefetching starts a little later.
    assert!(osdi[1]["prefetched"].as_u64() <= thesis[1]["prefetched"].as_u64());
    let coarse = rows(&[&base[..], &["--granularity", "5"]].concat());
    assert!(number(&coarse[0], "speedup_pct") < number(&thesis[0], "speedup_pct"));
    let handoff = |more: &[&str]| {
        let args =
            ["mach", "--servers", "3", "--clients", "4", "--scheme", "mach", "--ipcs", "4000", "--json"];
        number(&rows(&[&args[..], more].concat())[0], "kernel_misses_per_ipc")
    };
    assert!(handoff(&["--handoff"]) < handoff(&[]), "clients that hand off interleave less");
    let preset =
        rows(&["mach", "--preset", "osdi-6.1", "--scheme", "mach,ptlb+stlb", "--ipcs", "2000", "--json"]);
    assert_eq!((&preset[0]["clients"], &preset[0]["servers"]), (&3.into(), &1.into()));
}

#[test]
fn programs_that_talk_are_replayed() {
    let args = ["mach", "--together", "traces/together/talk.tlbt", "--scheme", "mach,ptlb,stlb-4k", "--json"];
    let rows = rows(&args);
    for row in &rows {
        // Every question takes three messages; the client is the first to run and the last to end.
        assert_eq!((&row["ipcs"], &row["servers"], &row["stale_hits"]), (&410.into(), &2.into(), &0.into()));
        // All pages that the trace has, and the three message buffers.
        assert_eq!(row["invalid"], 1638 + 3);
        assert_eq!(row["modify"], rows[0]["modify"]);
    }
    let misses = |at: usize| number(&rows[at], "kernel_misses_per_ipc");
    assert!(misses(1) < misses(0) && misses(2) < misses(0), "{rows:?}");
}

#[test]
fn address_types_are_those_of_table_3_1() {
    let rows = rows(&["mach", "--address-types", "--ipcs", "3000", "--json"]);
    let total: f64 = rows.iter().map(|row| number(row, "pct")).sum();
    assert!((total - 100.0).abs() < 1e-6);
    for row in rows.iter().filter(|row| row["printed_pct"].is_number()) {
        assert!((number(row, "pct") - number(row, "printed_pct")).abs() < 6.0, "{row}");
    }
}

#[test]
#[cfg_attr(not(tlbkit_full), ignore = "cargo xtask test --full")]
fn the_stand_ins_run_on_recorded_traces() {
    let rows = rows(&["mach", "--apps", "--ipcs", "200", "--json"]);
    assert_eq!(rows.len(), 6 * 5);
    for row in &rows {
        assert_eq!(row["stale_hits"], 0);
        if row["scheme"] == "stlb-4k" {
            assert!(number(row, "penalty_saved_pct") > 30.0, "{row}");
        }
    }
}

#[test]
fn a_larger_cache_hits_more_and_refills_for_less() {
    let rows = rows(&["sweep", "--json"]);
    let of = |name: &str, organization: &str| {
        rows.iter().find(|row| row["name"] == name && row["organization"] == organization).unwrap()
    };
    for organization in ["direct", "2-way", "4-way", "victim"] {
        let (small, large) = (of("S8k/MPT", organization), of("S128k/MPT", organization));
        assert!(number(small, "hit_rate") < number(large, "hit_rate"), "{organization}");
        assert!(number(small, "refs_per_refill_mean") > number(large, "refs_per_refill_mean"));
        assert!(number(large, "refs_per_refill_mean") < number(large, "refs_per_walk_mean"));
    }
}

#[test]
fn the_best_case_of_chapter_5_is_misprinted() {
    let rows = rows(&["model", "--json"]);
    let best = rows.iter().find(|row| row["equation"] == "5.15").unwrap();
    // What the text derives is compared.
    assert_eq!((best["printed"].as_f64(), best["agrees"].as_bool()), (Some(0.075), Some(true)));
    assert!(best["remark"].as_str().unwrap().contains("0.00075"));
    assert!((number(best, "value") - 0.07524).abs() < 1e-9);
    // As given: the gammas of scenario 2.
    let given = self::rows(&["model", "--gamma-t", "0.8", "--gamma-a", "0.5", "--json"]);
    let row = given.iter().rfind(|row| row["equation"] == "5.11").unwrap();
    assert!((number(row, "value") - 0.032).abs() < 5e-4);
}

#[test]
fn what_is_wrong_is_one_line_and_code_2() {
    for args in [
        &["mach", "--servers", "10..1"][..],
        &["mach", "--servers", "0"],
        &["mach", "--servers", "many"],
        &["mach", "--servers", "60", "--clients", "9"],
        &["mach", "--scheme", "stlb-3k"],
        &["mach", "--granularity", "1"],
        &["mach", "--inject", "nothing"],
        &["mach", "--preset", "osdi-6.1", "--words", "4"],
        &["mach", "--apps", "--trace", "no-such-file"],
        &["mach", "--together", "traces/sort.tlbt"],
        &["mach", "--pattern", "tree"],
        &["mach", "--ipcs", "0"],
        &["model", "--old", "-1"],
        &["model", "--new", "x"],
    ] {
        let output = run(args);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {errors}");
        assert!(output.stdout.is_empty() && errors.lines().count() == 1, "{args:?}: {errors}");
    }
}
