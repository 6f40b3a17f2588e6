//! The commands as a user meets them: rows on standard output, one line and exit code 2 for what is wrong.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

mod common;

use common::{NAMES, names, rows, tlblab};

fn refused(output: &Output, by: &str) {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{by}: {errors}");
    assert!(output.stdout.is_empty(), "{by}");
    assert!(errors.starts_with("tlblab: ") && errors.lines().count() == 1, "{by}: {errors}");
}

fn with_input(args: &[&str], input: &[u8]) -> Output {
    let mut child =
        tlblab(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // A program that has seen enough closes the pipe.
    let _ = child.stdin.take().unwrap().write_all(input);
    child.wait_with_output().unwrap()
}

/// A trace that is read in less time than the one that the lab takes by default.
const SHORT: &str = "traces/sort.tlbt";

fn short() -> Vec<u8> {
    std::fs::read(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(SHORT)).unwrap()
}

const LACKEY: &str =
    "==1== Lackey\nI  0401ab70,3\n S 1fff000688,8\nI  0401bffe,3\n L 1fff000ffc,8\n M 04033e06,1\n";

#[test]
fn the_shipped_trace_is_what_runs() {
    // In the gate those that say something of their own.
    let chosen = if cfg!(tlbkit_full) { &NAMES[..] } else { &["LPT", "HR"] };
    let rows = rows(&tlblab(&[&["tables", "--json"], chosen].concat()).output().unwrap());
    assert_eq!(names(&rows), chosen);
    for row in rows {
        assert_eq!(row["workload"], "cc1.tlbt");
        assert_eq!((&row["pages"], &row["ptes"]), (&3142.into(), &3142.into()));
        assert_eq!((&row["seed"], &row["layout"]), (&1.into(), &"paper".into()));
        assert_eq!(row["verified"], true);
        // The R4700's 48 pairs: of 75 million references, some hundred thousand miss.
        assert!((100_000..1_000_000).contains(&row["refills"].as_u64().unwrap()), "{row}");
        let [mean, p99, max] =
            ["mean", "p99", "max"].map(|what| row[format!("refs_per_lookup_{what}")].as_f64().unwrap());
        assert!(1.0 <= mean && mean <= max && p99 <= max, "{row}");
        let bytes = row["bytes"].as_f64().unwrap();
        assert!((row["bytes_per_pte"].as_f64().unwrap() - bytes / 3142.0).abs() < 1e-6);
        assert!(row["bytes_per_pte_inner"].as_f64() <= row["bytes_per_pte"].as_f64());
        assert!(row["peak_bytes"].as_u64() >= row["bytes"].as_u64(), "{row}");
        // The table that grows says how much it moves at once, the linear one how often a refill misses in turn, and
        // then a refill is a load for itself and one for each of these.
        assert_eq!(row["moved_max"].is_u64(), row["name"] == "HR", "{row}");
        assert_eq!(row["nested_misses_mean"].is_f64(), row["name"] == "LPT", "{row}");
        if let Some(nested) = row["nested_misses_mean"].as_f64() {
            assert!((mean - nested - 1.0).abs() < 1e-9, "{row}");
        }
    }
}

#[test]
fn a_shipped_trace_runs_in_the_compact_layout() {
    let args = ["tables", "--layout", "compact", "--trace", SHORT, "--json"];
    let rows = rows(&tlblab(&args).output().unwrap());
    assert_eq!(names(&rows), NAMES);
    for row in rows {
        assert_eq!((&row["layout"], &row["ptes"]), (&"compact".into(), &322.into()));
        assert_eq!(row["verified"], true, "{row}");
    }
}

#[test]
fn the_table_for_people_fits_a_screen() {
    let short = ["--trace", SHORT];
    for load in [&short[..], &["--layout", "compact", "--workload", "uniform"]] {
        let output = tlblab(&[&["tables"], load].concat()).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        for line in text.lines() {
            assert!(line.chars().count() <= 100, "{load:?}: {line}");
        }
        let starts = |name: &str| text.lines().filter(|line| line.starts_with(name)).count();
        assert!(NAMES.iter().all(|name| starts(&format!("{name} ")) == 1), "{text}");
        assert!(starts("GA: peak bytes ") == 1 && starts("GA: node bytes ") >= 1, "{text}");
    }
}

#[test]
fn every_workload_and_layout_is_verified_and_repeatable() {
    for workload in ["uniform", "file", "dense", "conventional"] {
        for layout in ["paper", "compact"] {
            let args = ["tables", "--workload", workload, "--pages", "300", "--layout", layout, "--json"];
            let once = tlblab(&args).output().unwrap();
            for row in rows(&once) {
                assert_eq!(row["verified"], true, "{row}");
                assert_eq!((&row["workload"], &row["layout"]), (&workload.into(), &layout.into()));
                assert_eq!(row["pages"], 300);
            }
            assert_eq!(once.stdout, tlblab(&args).output().unwrap().stdout);
        }
    }
}

#[test]
fn a_planted_fault_is_found_in_every_structure() {
    for fault in ["stale", "lost", "wrong"] {
        for pages in ["1", "2", "500"] {
            for (workload, layout) in [("uniform", "paper"), ("dense", "paper"), ("file", "compact")] {
                let load = ["--workload", workload, "--pages", pages, "--layout", layout];
                let args = [&["tables", "--json", "--inject", fault], &load[..]].concat();
                let rows = rows(&tlblab(&args).output().unwrap());
                assert_eq!(names(&rows), NAMES);
                for row in rows {
                    assert_eq!(row["verified"], false, "{row}");
                }
            }
        }
    }
}

#[test]
fn superpages_are_measured_where_they_are_named() {
    for load in [
        &["--workload", "dense", "--pages", "5000"][..],
        &["--workload", "file", "--pages", "700"],
        &["--trace", SHORT],
    ] {
        for layout in ["paper", "compact"] {
            let args = [&["tables", "CS", "MPT", "--json", "--layout", layout], load].concat();
            let [mpt, superpages] = &rows(&tlblab(&args).output().unwrap())[..] else { panic!("two names") };
            assert_eq!((&superpages["name"], &superpages["verified"]), (&"CS".into(), &true.into()));
            assert_eq!(superpages["pages"], mpt["pages"]);
            // What is one superpage needs no PTE for each page.
            assert!(superpages["ptes"].as_u64() < mpt["ptes"].as_u64(), "{superpages}");
        }
    }
    for fault in ["stale", "lost", "wrong"] {
        let args = ["tables", "CS", "--workload", "dense", "--pages", "300", "--inject", fault, "--json"];
        assert_eq!(rows(&tlblab(&args).output().unwrap())[0]["verified"], false);
    }
}

#[test]
fn flattened_tables_take_half_the_loads_for_more_memory() {
    let args = ["tables", "FPT", "FPT50", "FPT0", "MPT", "--json", "--trace", SHORT];
    let rows = rows(&tlblab(&args).output().unwrap());
    let [mpt, flat, half, narrow] = &rows[..] else { panic!("four names") };
    assert!(rows.iter().all(|row| row["verified"] == true), "{rows:?}");
    assert_eq!((&mpt["refs_per_lookup_mean"], &narrow["refs_per_lookup_mean"]), (&6.0.into(), &6.0.into()));
    assert_eq!(flat["refs_per_lookup_mean"], 3.0);
    let [flat, half, narrow] = [flat, half, narrow].map(|row| row["bytes"].as_u64().unwrap());
    assert!(narrow < half && half < flat, "{narrow} {half} {flat}");
}

#[test]
fn an_elastic_cuckoo_table_takes_at_most_four_loads() {
    for workload in [["--trace", SHORT, "--json"], ["--workload", "dense", "--json"]] {
        let rows = rows(
            &tlblab(&[&["tables", "ECPT", "--layout", "compact"], &workload[..]].concat()).output().unwrap(),
        );
        let [row] = &rows[..] else { panic!("one name") };
        assert!(row["verified"] == true && row["refs_per_lookup_max"] == 4, "{row}");
        assert!(row["refs_per_lookup_mean"].as_f64().unwrap() < 3.0, "{row}");
        assert!((1..=8).contains(&row["moved_max"].as_u64().unwrap()), "{row}");
    }
}

#[test]
fn lackeys_text_runs_from_standard_input() {
    let output = with_input(&["tables", "--trace", "-", "--json", "MPT"], LACKEY.as_bytes());
    let [row] = &rows(&output)[..] else { panic!("one name, one row") };
    // The pages of six references, two of which straddle: code 401a, 401b, 401c, stack 1fff000 and 1fff001, 4033.
    assert_eq!((&row["name"], &row["pages"]), (&"MPT".into(), &6.into()));
    // Pairs: 401a-401b, 1fff000-1fff001, 401c-401d, 4032-4033.
    assert_eq!((&row["refills"], &row["verified"]), (&4.into(), &true.into()));
}

#[test]
fn the_tlb_is_modelled_as_asked() {
    let refills = |tlb: &[&str]| {
        let output = with_input(&[&["tables", "--trace", "-", "--json"], tlb].concat(), LACKEY.as_bytes());
        rows(&output)[0]["refills"].as_u64().unwrap()
    };
    assert_eq!(refills(&["--tlb-pages", "1"]), 6);
    // Alone, the last page's pair: 401a, 1fff000, 401b, 401c, 1fff000, 1fff001, 4033.
    assert_eq!(refills(&["--tlb-entries", "1", "--tlb-pages", "1"]), 7);
    // One pair for even and one for odd: 401c and 4033 take the places of 1fff000 and 401a, 1fff000 comes back.
    assert_eq!(refills(&["--tlb-entries", "2", "--tlb-ways", "1", "--tlb-replacement", "lru"]), 5);
}

#[test]
fn bad_arguments_are_refused_in_one_line() {
    let bad: [&[&str]; 29] = [
        &["table"],
        &["tables", "H7"],
        &["tables", "--workload", "sparse"],
        &["tables", "--workload", "dense", "--pages", "0"],
        &["tables", "--workload", "dense", "--pages", "-1"],
        &["tables", "--workload", "conventional", "--pages", "999999999"],
        &["tables", "--pages", "10"],
        &["tables", "--workload", "dense", "--trace", "x"],
        &["tables", "--workload", "file", "--file-sigma", "NaN"],
        &["tables", "--file-sigma", "1"],
        &["tables", "--workload", "dense", "--file-median", "10"],
        &["explore", "--damages", "--algorithm", "2-phase"],
        &["explore", "--damages", "--hardware", "vax"],
        &["explore", "--hazards", "--algorithm", "TLB-first''", "--hardware", "vax"],
        &["mach", "--sensitivity", "--servers", "3"],
        &["mach", "--address-types", "--fill", "load"],
        &["mach", "--apps", "--words", "3"],
        &["mach", "--sensitivity", "--apps"],
        &["shootdown", "sweep", "4.7", "--seconds", "1"],
        &["tables", "--tlb-entries", "0"],
        &["tables", "--tlb-ways", "36"],
        &["tables", "--inject", "typo"],
        &["capture"],
        &["capture", "--", "no-such-program"],
        &["capture", "--", "true", "|"],
        &["capture", "--", "true", "|", "no-such-program"],
        &["spaces"],
        &["spaces", "--together", "traces/sort.tlbt"],
        &["spaces", "--together", "traces/together/talk.tlbt", "--turns", "3"],
    ];
    for args in bad {
        refused(&tlblab(args).output().unwrap(), &args.join(" "));
    }
}

#[test]
fn without_a_command_the_commands_are_shown() {
    let output = tlblab(&[]).output().unwrap();
    let help = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(2), &b""[..]), "{help}");
    assert!(help.contains("Usage: tlblab <COMMAND>") && help.contains("explore"), "{help}");
}

#[test]
fn a_slip_is_answered_with_what_may_have_been_meant() {
    for (args, meant) in [
        (&["tabels"][..], "'tables'"),
        (&["tables", "--laoyut", "compact"], "'--layout'"),
        (&["tables", "--layout", "compct"], "'compact'"),
        (&["shootdown", "simulat"], "'simulate'"),
    ] {
        let output = tlblab(args).output().unwrap();
        refused(&output, &args.join(" "));
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(errors.contains("similar") && errors.contains(meant), "{args:?}: {errors}");
    }
}

#[test]
fn damaged_traces_are_refused_in_one_line() {
    let whole = short();
    let half = &whole[..whole.len() / 2];
    let mut flipped = whole.clone();
    flipped[whole.len() / 3] ^= 0x10;
    let unlike = b"\x7fELF and so on".as_slice();
    let line = b"I  0401ab70,3\nI  0401ab7".as_slice();
    for input in [half, &flipped, unlike, line, &whole[..20], b"", b"==1== nothing\n"] {
        refused(&with_input(&["tables", "--json", "--trace", "-"], input), "standard input");
    }
    for path in ["no/such/trace", env!("CARGO_MANIFEST_DIR")] {
        refused(&tlblab(&["tables", "--trace", path]).output().unwrap(), path);
    }
}

/// What each of these inputs is, is said in one line, whichever command reads it.
#[test]
fn what_is_no_trace_is_said() {
    let mark = [&b"\xef\xbb\xbf"[..], LACKEY.as_bytes()].concat();
    let wide: Vec<u8> =
        [0xfeff].into_iter().chain(LACKEY.encode_utf16()).flat_map(u16::to_le_bytes).collect();
    // A header of 512 bytes: the name of a file, and what kind of archive it is in.
    let mut tar = vec![0; 1024];
    tar[..6].copy_from_slice(b"I.tlbt");
    tar[257..262].copy_from_slice(b"ustar");
    let inputs: [(&[u8], &str); 5] = [
        (b"==1== nothing\n", "holds no reference"),
        (&mark, "byte order mark"),
        (&wide, "byte order mark"),
        (&tar, "tar archive"),
        (b"hello\n", "no trace"),
    ];
    let commands: [&[&str]; 5] = [
        &["tables", "MPT", "--trace", "-"],
        &["superpage", "--policy", "FIXED-4K", "--trace", "-"],
        &["sweep", "--trace", "-"],
        &["refill", "--table", "MPT", "--trace", "-"],
        &["pages", "--trace", "-"],
    ];
    for (input, says) in inputs {
        for command in commands {
            let output = with_input(command, input);
            refused(&output, &format!("{command:?} of {says}"));
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(errors.contains(says), "{command:?}: {errors}");
        }
    }
}

/// Numbers that make no sense are refused by what is wrong with them.
#[test]
fn what_is_out_of_range_is_said() {
    for (line, says) in [
        ("superpage --trace traces/sort.tlbt --sizes 4K,1T", "spans at most 2^18"),
        ("superpage --trace traces/sort.tlbt --sizes 4K,12K", "`12K` is no page size"),
        ("superpage --trace traces/sort.tlbt --instructions 0", "0 is not in 1.."),
        ("superpage --trace traces/sort.tlbt --policy FIXED-1T", "fixed sizes are 4K to 1G"),
        ("shootdown sweep 4.2 --seconds 0", "above 0"),
        ("shootdown simplify --seconds=-1", "above 0"),
        ("shootdown simulate --seconds inf", "above 0"),
        ("tables --base-kb 5", "4, 8, 16, 64"),
        ("tables --workload conventional --base-kb 64 --pages 20000", "from 1 to 16384"),
    ] {
        let output = tlblab(&line.split(' ').collect::<Vec<_>>()).output().unwrap();
        refused(&output, line);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(errors.contains(says), "{line}: {errors}");
    }
}

#[test]
fn hardware_is_listed_once() {
    let output = tlblab(&["explore", "--hardware", "pdp-11"]).output().unwrap();
    refused(&output, "pdp-11");
    let errors = String::from_utf8_lossy(&output.stderr);
    let names: Vec<_> = errors.trim().split_once("one of ").unwrap().1.split(", ").collect();
    let different: std::collections::BTreeSet<_> = names.iter().collect();
    assert_eq!(different.len(), names.len(), "{errors}");
    assert!(
        ["vax", "aarch64", "aarch64-hafdbs", "virtual-cache"].iter().all(|name| names.contains(name)),
        "{errors}"
    );
}

/// Larger pages: those of a trace are joined, and every table still answers as it must.
#[test]
fn tables_of_larger_pages() {
    let runs = rows(&tlblab(&["pages", "--trace", SHORT, "--json"]).output().unwrap());
    let pages = |kb: u64| {
        let all = runs.iter().flat_map(|run| {
            let first = run["first"].as_u64().unwrap();
            (first..first + run["pages"].as_u64().unwrap()).map(move |page| page * 4 / kb)
        });
        all.collect::<std::collections::BTreeSet<_>>().len()
    };
    for kb in [4, 16, 64] {
        let size = kb.to_string();
        let args =
            ["tables", "--trace", SHORT, "--base-kb", &size, "--json", "MPT", "LPT", "GA", "HR", "C128k"];
        for row in rows(&tlblab(&args).output().unwrap()) {
            assert_eq!((&row["base_kb"], &row["verified"]), (&kb.into(), &true.into()), "{row}");
            assert_eq!(row["pages"], pages(kb), "{row}");
        }
    }
    for workload in ["uniform", "file", "dense", "conventional"] {
        let args = ["tables", "--workload", workload, "--pages", "200", "--base-kb", "64", "--json"];
        for row in rows(&tlblab(&args).output().unwrap()) {
            assert_eq!((&row["pages"], &row["verified"]), (&200.into(), &true.into()), "{row}");
        }
    }
}

/// Cycles need a trace of lines, and count on larger pages and on a part of the trace, too.
#[test]
fn cycles_of_a_part_of_a_trace() {
    const LINES: &str = "traces/lines/multiply.tlbt";
    let args =
        ["refill", "--trace", LINES, "--machine", "r4700", "--table", "MPT", "--instructions", "100000"];
    let row = &rows(&tlblab(&[&args[..], &["--json"]].concat()).output().unwrap())[0];
    assert!((100_000..100_010).contains(&row["program_insns"].as_u64().unwrap()), "{row}");
    assert!(row["program_cycles"].as_u64().unwrap() > 100_000 && row["verified"] == true, "{row}");
    let misses = row["misses_per_program_insn"].as_f64().unwrap();
    let args = [
        "tables",
        "--trace",
        LINES,
        "--machine",
        "r4700",
        "--instructions",
        "100000",
        "--base-kb",
        "64",
        "--json",
        "MPT",
    ];
    let row = &rows(&tlblab(&args).output().unwrap())[0];
    assert_eq!(
        (&row["machine"], &row["base_kb"], &row["verified"]),
        (&"r4700".into(), &64.into(), &true.into())
    );
    // Loads alone are no instructions of a handler.
    assert_eq!(row["misses_per_handler_insn"], serde_json::Value::Null);
    // Lines are as many, and none stands for another.
    let ratio = row["misses_per_program_insn"].as_f64().unwrap() / misses;
    assert!((0.9..1.2).contains(&ratio), "{row}");
    let output = tlblab(&["tables", "--trace", SHORT, "--machine", "r4700"]).output().unwrap();
    refused(&output, "pages");
}

/// Programs that take turns: more numbers, or more memory, serve no fewer misses; and without a trace there are none.
#[test]
fn programs_take_turns() {
    let traces = "traces/grep.tlbt,traces/gzip.tlbt,traces/sort.tlbt";
    let args = ["spaces", "--traces", traces, "--turns", "1000", "--instructions", "100000", "--json"];
    let rows = rows(&tlblab(&args).output().unwrap());
    let of = |scheme: &str, field: &str| {
        let row = rows.iter().find(|row| row["scheme"] == scheme).unwrap();
        assert_eq!((&row["programs"], &row["turn"]), (&3.into(), &1000.into()));
        row[field].as_f64().unwrap()
    };
    let hits = ["1 numbers", "2 numbers", "3 numbers"].map(|scheme| of(scheme, "stlb_hit_rate"));
    assert!(hits[0] < hits[1] && hits[1] < hits[2], "{hits:?}");
    assert_eq!(
        (of("1 numbers", "generations"), of("3 numbers", "generations")),
        (of("1 numbers", "switches"), 0.0)
    );
    assert!(of("8 KB each", "stlb_hit_rate") > of("2 KB each", "stlb_hit_rate"));
    assert!(of("one H128k", "bytes") < of("H128k each", "bytes"));
    assert!(of("one H128k, anchor table", "bytes") < of("one H128k", "bytes"));
    assert!(of("32 entries", "tlb_misses") < of("0 entries", "tlb_misses"));
    refused(&tlblab(&["spaces", "--traces", "traces/none.tlbt"]).output().unwrap(), "none.tlbt");
}

/// A reader that stops, as `head` does, ends the program without a word.
#[test]
fn a_reader_that_stops_is_no_error() {
    for args in
        [&["model"][..], &["model", "--json"], &["help"], &["witness", "--arch", "sv39", "--json", "-"]]
    {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut child =
            tlblab(args).stdin(Stdio::piped()).stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
        let _ = child.stdin.take().unwrap().write_all(b"0 write 0x3000 0\n");
        let output = child.wait_with_output().unwrap();
        assert!(output.stderr.is_empty(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        // clap prints help as well as it can.
        assert_eq!(output.status.code(), Some(if args[0] == "help" { 0 } else { 141 }), "{args:?}");
    }
}

/// Where there is no terminal, a line every ten seconds says that the work goes on.
#[test]
fn a_long_command_says_how_far_it_is() {
    use std::io::{BufRead, BufReader};
    let mut child = tlblab(&["witness", "--arch", "sv39", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut log = child.stdin.take().unwrap();
    log.write_all(b"0 write 0x3000 0\n0 write 0x3008 0\n").unwrap();
    let mut line = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
    drop(log);
    child.wait().unwrap();
    let (seconds, said) = line.trim().split_once(" s: ").unwrap();
    assert!((10..60).contains(&seconds.parse::<u64>().unwrap()), "{line}");
    assert_eq!(said, "tlblab witness, lines 2");
}

#[test]
fn help_is_no_error() {
    for args in [&["--help"][..], &["--version"], &["help", "tables"]] {
        let output = tlblab(args).output().unwrap();
        assert!(output.status.success() && !output.stdout.is_empty() && output.stderr.is_empty(), "{args:?}");
    }
}

#[test]
fn capture_without_valgrind_says_what_to_install() {
    let output = tlblab(&["capture", "--", "/bin/true"]).env("PATH", "/nonexistent").output().unwrap();
    refused(&output, "capture");
    assert!(String::from_utf8_lossy(&output.stderr).contains("install"));
}

#[test]
fn what_is_captured_can_be_replayed() {
    if !Command::new("valgrind").arg("--version").output().is_ok_and(|output| output.status.success()) {
        eprintln!("valgrind is not installed: nothing to test");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    // The program's output goes where it would, its exit code comes back, what it leaves running is not waited for.
    let script = "echo out; echo err >&2; sleep 60 >&- 2>&- & exit 3";
    let output = tlblab(&["capture", "--", "sh", "-c", script]).current_dir(&folder).output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    assert_eq!(output.stdout, b"out\n");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.starts_with("err\n") && errors.contains("sh.tlbt: "), "{errors}");
    assert!(errors.contains("tlblab: `sh` failed with exit code 3"), "{errors}");
    // The sleep is not in the trace.
    assert!(
        errors.contains("tlblab: `sh` ran other programs, whose references are not in the trace"),
        "{errors}"
    );

    let trace = folder.path().join("sh.tlbt");
    let rows_of = rows(&tlblab(&["tables", "--json", "--trace"]).arg(&trace).output().unwrap());
    assert_eq!((&rows_of[0]["verified"], &rows_of[0]["workload"]), (&true.into(), &trace.to_str().into()));

    // Under --json, rows alone on standard output; an existing trace is replaced.
    let output =
        tlblab(&["capture", "--json", "--output"]).arg(&trace).args(["--", "echo", "out"]).output().unwrap();
    let [row] = &rows(&output)[..] else { panic!("one capture, one row") };
    assert_eq!(
        (&row["program"], &row["args"][0], &row["exit_code"]),
        (&"echo".into(), &"out".into(), &0.into())
    );
    assert_eq!(row["others_left_out"], false);
    assert_eq!(row["bytes"], std::fs::metadata(&trace).unwrap().len());
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1);

    refused(&tlblab(&["capture", "-o", "no/such/folder/x", "--", "true"]).output().unwrap(), "--output");

    // Of several programs the exit code is the last one's, and so is the name beside it.
    let command = ["capture", "--", "true", "|", "sh", "-c", "(true); exit 3"];
    let errors = tlblab(&command).current_dir(&folder).output().unwrap().stderr;
    let errors = String::from_utf8_lossy(&errors);
    assert!(errors.contains("tlblab: `sh` failed with exit code 3"), "{errors}");
    assert!(errors.contains("tlblab: one of the programs ran other programs, whose"), "{errors}");
}
