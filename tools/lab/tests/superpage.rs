//! `tlblab superpage` as a user meets it: the same trace in every wrapping, and what is wrong in one line.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

mod common;

use common::{rows, tlblab};
use serde_json::Value;

const POLICIES: &str = "FIXED-4K,ASAP,ASAP-4-64,ONLINE,APPROX-ONLINE,THRIFT,OFFLINE";

/// Lackey's output for a program that goes over 60 pages in turn, forty times: more than a TLB holds.
fn lackey() -> String {
    let mut text = String::from("==7== Lackey, an example Valgrind tool\n");
    for turn in 0..40 {
        for page in 0..60 {
            text += &format!("I  {:08x},3\n L {:08x},8\n", 0x40_0000 + 16 * turn, 0x100_0000 + 4096 * page);
        }
    }
    text
}

fn file(folder: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, bytes).unwrap();
    path
}

fn gz(text: &[u8]) -> Vec<u8> {
    let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    gz.write_all(text).unwrap();
    gz.finish().unwrap()
}

fn xz(text: &[u8]) -> Vec<u8> {
    let mut xz = lzma_rust2::XzWriter::new(Vec::new(), lzma_rust2::XzOptions::with_preset(6)).unwrap();
    xz.write_all(text).unwrap();
    xz.finish().unwrap()
}

fn run(trace: &str, input: &[u8], more: &[&str]) -> Output {
    let mut command = tlblab(&["superpage", "--trace", trace, "--json"]);
    let mut child = command
        .args(more)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let _ = child.stdin.take().unwrap().write_all(input);
    child.wait_with_output().unwrap()
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Exit code 2, nothing on standard output, and one line that says all of this.
fn refused(output: &Output, says: &[&str]) {
    let errors = errors(output);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(output.stdout.is_empty(), "{errors}");
    assert!(errors.starts_with("tlblab: ") && errors.lines().count() == 1, "{errors}");
    for word in says {
        assert!(errors.contains(word), "`{word}` is not in: {errors}");
    }
}

#[test]
fn plain_and_packed_from_a_file_and_from_standard_input() {
    let folder = tempfile::tempdir().unwrap();
    let text = lackey().into_bytes();
    let all = ["--policy", POLICIES];
    let expected = rows(&run("-", &text, &all));
    assert_eq!(expected.len(), 7);
    for row in &expected {
        assert_eq!(row["instructions"], 2400, "{row}");
        let fields: Vec<_> = row.as_object().unwrap().keys().map(String::as_str).collect();
        let named = "trace policy instructions tlb_misses promotions kb_copied handler_cycles copy_cycles book_cycles tlbmcpi \
            memory_overhead_pct page_sizes";
        assert_eq!(fields, named.split_whitespace().collect::<Vec<_>>());
    }
    // 60 pages in a TLB of 32, and one of code; every policy that copies at all makes fewer misses of that.
    assert_eq!(expected[0]["tlb_misses"], 2401);
    assert!(expected[1]["tlb_misses"].as_u64() < Some(200), "{}", expected[1]);
    for (name, bytes) in [("t.txt", text.clone()), ("t.gz", gz(&text)), ("t.xz", xz(&text))] {
        let path = file(folder.path(), name, &bytes);
        for (trace, input) in [(path.to_str().unwrap(), &[][..]), ("-", &bytes)] {
            let mut found = rows(&run(trace, input, &all));
            for row in &mut found {
                row["trace"] = Value::from("-");
            }
            assert_eq!(found, expected, "{name} as {trace}");
        }
    }
}

#[test]
fn a_malformed_line_is_named_and_can_be_skipped() {
    let text = format!("{} L 0zz,8\n{}", lackey(), " L 00001000,8\n");
    let offset = lackey().len().to_string();
    let line = (lackey().lines().count() + 1).to_string();
    refused(&run("-", text.as_bytes(), &["--policy", "ASAP"]), &[&line, &offset, "--skip-bad"]);
    let skipped = run("-", text.as_bytes(), &["--policy", "ASAP", "--skip-bad"]);
    assert_eq!(rows(&skipped).len(), 1);
    assert!(errors(&skipped).contains("skipped 1 bad line"), "{}", errors(&skipped));
}

#[test]
fn what_is_no_trace_no_policy_no_ladder_and_no_cost() {
    let text = lackey();
    let with = |more: &[&str]| run("-", text.as_bytes(), more);
    refused(&with(&["--policy", "APPROX"]), &["APPROX", "APPROX-ONLINE"]);
    refused(&with(&["--policy", "ASAP", "--sizes", "4K,12K"]), &["12K"]);
    refused(&with(&["--policy", "ASAP", "--sizes", "16K,4K"]), &["--sizes"]);
    refused(&with(&["--policy", "ASAP", "--sizes", "4K"]), &["--sizes"]);
    refused(&with(&["--policy", "APPROX-ONLINE", "--r-per-kb", "0"]), &["--r-per-kb"]);
    refused(&with(&["--policy", "ASAP", "--repeat", "2"]), &["standard input"]);
    refused(&with(&["--policy", "ASAP", "--inactive-below", "10"]), &["--inactive-below"]);
    refused(&with(&["--policy", "ASAP", "--book", "ONLINE=3"]), &["--book", "ONLINE"]);
    refused(&with(&["--thresholds", "--policy", "ASAP"]), &["--thresholds", "--policy"]);
    refused(&run("no such file", b"", &["--policy", "ASAP"]), &["no such file"]);
    refused(&run("-", b"", &["--policy", "ASAP"]), &["no trace"]);
    assert!(!run("-", b"MZ\x90\x00 no trace", &["--policy", "ASAP"]).status.success());
}

/// A policy that is off is charged nothing, but for the misses before it was known that there are few.
#[test]
fn an_inactive_policy_costs_nothing() {
    let text = lackey();
    for policy in ["APPROX-ONLINE", "ONLINE", "THRIFT"] {
        let book = |more: &[&str]| {
            let cycles = format!("{policy}=100");
            // At this cost of a copy, and without reservations, nothing is promoted.
            let dear = ["--sizes", "4K,8K", "--r-per-kb", "4000", "--reserved", "0"];
            let args = [&["--policy", policy, "--book", &cycles], &dear[..], more].concat();
            let rows = rows(&run("-", text.as_bytes(), &args));
            (rows[0]["book_cycles"].as_u64().unwrap(), rows[0]["tlb_misses"].as_u64().unwrap())
        };
        let (book_always, misses) = book(&[]);
        assert_eq!(book_always, 100 * misses, "{policy}");
        // Every instruction misses, which is a million of a million.
        let (never, misses) = book(&["--inactive-below", "4000000000"]);
        assert_eq!(never, 0, "{policy}: {misses} misses");
        // It begins inactive and is active from the 256th miss on.
        let (active, misses) = book(&["--inactive-below", "1"]);
        assert_eq!(active, 100 * (misses - 255), "{policy}");
    }
}

/// With the same memory what lies in a reservation is never copied, and what finds no memory is not promoted.
#[test]
fn every_policy_has_the_same_memory() {
    let text = lackey();
    let row = |policy: &str, memory: &[&str]| {
        let cheap = ["--sizes", "4K,8K,16K,32K,64K", "--r-per-kb", "1"];
        let args = [&["--policy", policy], &cheap[..], memory].concat();
        rows(&run("-", text.as_bytes(), &args)).remove(0)
    };
    for policy in ["OFFLINE", "ASAP", "ASAP-4-64", "ONLINE", "APPROX-ONLINE", "THRIFT", "RESERVE"] {
        let all = row(policy, &["--reserved", "100"]);
        assert_eq!(all["kb_copied"], 0, "{all}");
        assert!(all["promotions"].as_u64() > Some(0), "{all}");
        let none = row(policy, &["--reserved", "0"]);
        assert_eq!(none["kb_copied"].as_u64() > Some(0), policy != "RESERVE", "{none}");
        if policy != "OFFLINE" {
            let short = row(policy, &["--reserved", "0", "--refuse", "100"]);
            assert_eq!((&short["kb_copied"], &short["promotions"]), (&0.into(), &0.into()), "{short}");
        }
    }
}

/// A policy without memory for a segment promotes nothing there, says so once, and goes on.
#[test]
fn exhausted_segments_are_said_once() {
    let text = lackey();
    for policy in ["ASAP", "ONLINE", "APPROX-ONLINE", "THRIFT", "RESERVE"] {
        let output = run("-", text.as_bytes(), &["--policy", policy, "--segments", "1"]);
        // The first segment is that of the code, and the pages that miss lie in another.
        let rows = rows(&output);
        assert_eq!((&rows[0]["tlb_misses"], &rows[0]["promotions"]), (&2401.into(), &0.into()), "{policy}");
        let errors = errors(&output);
        assert_eq!(errors.matches("no memory for the counters").count(), 1, "{policy}: {errors}");
        assert!(errors.contains("--segments"), "{errors}");
    }
}
