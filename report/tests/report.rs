//! The report as a user meets it: a lab that answers at once, whole pages, one line and exit code 2 for what is wrong.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Returns the report's command.
fn command(args: &[&str], out: &Path) -> Command {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
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

/// Returns a program that prints this, or fails.
#[cfg(unix)]
fn lab(folder: &Path, script: &str) -> String {
    use std::os::unix::fs::PermissionsExt;
    let path = folder.join("lab");
    fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path.to_string_lossy().into_owned()
}

#[test]
#[cfg(unix)]
fn what_the_lab_refuses_is_one_line_and_the_earlier_report_stays() {
    let (folder, index) = earlier();
    let lab = lab(folder.path(), "echo 'tlblab: cc1.tlbt: the trace is damaged: capture anew' >&2; exit 2");
    refused(&report(&["--quick", "--lab", &lab], folder.path()), "the trace is damaged: capture anew");
    assert_eq!(fs::read_to_string(index).unwrap(), "an earlier report");
}

#[test]
#[cfg(unix)]
fn rows_of_another_lab_are_refused() {
    let (folder, index) = earlier();
    for (answer, saying) in [("echo '[{\"name\": \"MPT\"}]'", "no"), ("echo '{'", "no array of rows")] {
        let lab = lab(folder.path(), answer);
        refused(&report(&["--quick", "--lab", &lab], folder.path()), saying);
    }
    assert_eq!(fs::read_to_string(index).unwrap(), "an earlier report");
}

#[test]
#[cfg(unix)]
fn an_interruption_is_one_line_and_the_earlier_report_stays() {
    for signal in ["-INT", "-TERM"] {
        let (folder, index) = earlier();
        let begun = folder.path().join("begun");
        let lab = lab(folder.path(), &format!("touch {}; exec sleep 60", begun.display()));
        let mut child =
            command(&["--quick", "--lab", &lab], folder.path()).stderr(Stdio::piped()).spawn().unwrap();
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
    let lab = env!("CARGO_BIN_EXE_tlbkit-report");
    let traces = folder.path().to_string_lossy().into_owned();
    refused(&report(&["--lab", lab, "--traces", &traces], folder.path()), "cc1.tlbt is missing");
    refused(&report(&["--lab", "no/such/lab"], folder.path()), "cargo xtask report");
    assert_eq!(fs::read_to_string(index).unwrap(), "an earlier report");
}

#[test]
fn a_folder_that_cannot_be_written_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "no folder").unwrap();
    refused(&report(&["--lab", env!("CARGO_BIN_EXE_tlbkit-report")], &file), "--out");
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
