//! The report as a user meets it: one line and exit code 2 for what is wrong, and an earlier report that stays.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Returns the report's command.
fn command(args: &[&str], out: &Path) -> Command {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut command = Command::new(env!("CARGO_BIN_EXE_tlbkit-report"));
    command.args(args).arg("--out").arg(out).current_dir(root);
    command
}

/// Runs the report.
fn report(args: &[&str], out: &Path) -> Output {
    command(args, out).output().unwrap()
}

fn refused(output: &Output, saying: &str) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(output.stdout.is_empty());
    let last = said.lines().last().unwrap_or_default();
    assert!(said.lines().count() == 1 && last.starts_with("report: ") && last.contains(saying), "{said}");
}

/// Returns a folder with an earlier report in it.
fn earlier() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let index = folder.path().join("index.html");
    fs::write(&index, "an earlier report").unwrap();
    (folder, index)
}

/// Returns a folder of the shipped traces' names, each of these bytes.
fn traces(of: &[u8]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in ["cc1", "gzip", "grep", "sort", "sqlite", "perl", "multiply"] {
        fs::write(folder.path().join(name).with_extension("tlbt"), of).unwrap();
    }
    folder
}

#[test]
fn what_the_lab_refuses_is_one_line_and_the_earlier_report_stays() {
    let (folder, index) = earlier();
    let traces = traces(b"TLBT is how a trace begins");
    let path = traces.path().to_string_lossy();
    let output = report(&["--quick", "--traces", &path, "--figure", "Romer Figure 3"], folder.path());
    refused(&output, "`tlblab superpage --trace");
    refused(&output, "cc1.tlbt");
    assert_eq!(fs::read_to_string(index).unwrap(), "an earlier report");
}

#[test]
fn one_paper_that_cannot_be_collected_ends_all() {
    let (folder, index) = earlier();
    let traces = traces(b"");
    let path = traces.path().to_string_lossy();
    refused(&report(&["--quick", "--traces", &path], folder.path()), "cc1.tlbt");
    assert_eq!(fs::read_to_string(index).unwrap(), "an earlier report");
}

#[test]
#[cfg(unix)]
fn an_interruption_is_one_line_and_the_earlier_report_stays() {
    for signal in ["-INT", "-TERM"] {
        let (folder, index) = earlier();
        // Made before the first experiment begins; all of them take minutes.
        let begun = folder.path().join("cache");
        let mut child = command(&["--quick"], folder.path()).stderr(Stdio::piped()).spawn().unwrap();
        while !begun.exists() {
            assert!(child.try_wait().unwrap().is_none(), "it ended by itself");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let id = child.id().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().unwrap().success());
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(130), "{said}");
        assert!(said.lines().count() == 1 && said.starts_with("report: interrupted: "), "{said}");
        assert_eq!(fs::read_to_string(index).unwrap(), "an earlier report");
    }
}

#[test]
fn a_missing_trace_is_named() {
    let (folder, index) = earlier();
    let traces = folder.path().to_string_lossy().into_owned();
    refused(&report(&["--traces", &traces], folder.path()), "cc1.tlbt is missing");
    assert_eq!(fs::read_to_string(index).unwrap(), "an earlier report");
}

#[test]
fn a_folder_that_cannot_be_written_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "no folder").unwrap();
    refused(&report(&[], &file), "--out");
}

#[test]
fn the_papers_numbers_are_json_with_a_place_for_each() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("printed");
    let mut papers = 0;
    for file in fs::read_dir(folder).unwrap() {
        let text = fs::read_to_string(file.unwrap().path()).unwrap();
        let serde_json::Value::Object(places) = serde_json::from_str(&text).unwrap() else {
            panic!("{text}")
        };
        assert!(places["paper"].is_string());
        // A table, a figure, a section: each begins with where it stands.
        let placed = |name: &str| {
            name.starts_with("Table") || name.starts_with("Figure") || name.as_bytes()[0].is_ascii_digit()
        };
        assert!(
            places.keys().filter(|name| *name != "paper").all(|name| placed(name)),
            "{:?}",
            places.keys()
        );
        papers += 1;
    }
    assert_eq!(papers, 5);
}
