//! The picture and the table of docs/costs.md are what the lab gives: both are counts, so they are the same everywhere.

use std::fs;
use std::path::Path;
use std::process::Command;

#[test]
fn the_page_shows_what_the_lab_counts() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = fs::read_to_string(root.join("docs/costs.md")).unwrap();
    let picture = fs::read_to_string(root.join("docs/sparse.svg")).unwrap();
    assert!(page.contains("](sparse.svg)") && page.contains("cargo xtask report --costs docs/sparse.svg"));
    roxmltree::Document::parse(&picture).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let made = folder.path().join("made.svg");
    let output = Command::new(env!("CARGO_BIN_EXE_tlbkit-report"))
        .arg("--costs")
        .arg(&made)
        .arg("--cache")
        .arg(folder.path())
        .current_dir(&root)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(table.lines().count() > 5);
    for line in table.lines() {
        assert!(page.lines().any(|row| row == line), "docs/costs.md lacks `{line}`: make it anew");
    }
    assert_eq!(picture, fs::read_to_string(made).unwrap(), "the picture is an old one: make it anew");
}
