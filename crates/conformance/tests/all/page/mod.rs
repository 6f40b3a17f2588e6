//! Parts of the pages of docs/ that tests write.

use std::sync::{Mutex, PoisonError};

/// Tests run side by side, and several write to one page.
static PAGE: Mutex<()> = Mutex::new(());

/// Checks that a page has `text` between two lines. With `BLESS=1` it is written there.
pub(crate) fn shows(page: &str, begin: &str, end: &str, text: &str) {
    let _page = PAGE.lock().unwrap_or_else(PoisonError::into_inner);
    let path = format!("{}/../../docs/{page}", env!("CARGO_MANIFEST_DIR"));
    let all = std::fs::read_to_string(&path).expect("the page");
    let (before, rest) = all.split_once(begin).expect("where the part begins");
    let (shown, after) = rest.split_once(end).expect("where it ends");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(path, format!("{before}{begin}{text}{end}{after}")).expect("the page can be written");
    } else {
        assert!(
            shown == text,
            "after {begin:?}, docs/{page} is not what this test says: run it with BLESS=1"
        );
    }
}
