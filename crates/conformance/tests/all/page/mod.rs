//! Parts of docs/own-table.md that tests write.

use std::sync::{Mutex, PoisonError};

/// Tests run side by side, and the page is one.
static PAGE: Mutex<()> = Mutex::new(());

/// Checks that the page has `text` between two lines. With `BLESS=1` it is written there.
pub(crate) fn shows(begin: &str, end: &str, text: &str) {
    let _page = PAGE.lock().unwrap_or_else(PoisonError::into_inner);
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/own-table.md");
    let page = std::fs::read_to_string(path).expect("the page");
    let (before, rest) = page.split_once(begin).expect("where the part begins");
    let (shown, after) = rest.split_once(end).expect("where it ends");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(path, format!("{before}{begin}{text}{end}{after}")).expect("the page can be written");
    } else {
        assert!(
            shown == text,
            "after {begin:?}, docs/own-table.md is not what this test says: run it with BLESS=1"
        );
    }
}
