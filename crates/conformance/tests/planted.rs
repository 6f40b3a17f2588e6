//! Sixteen bugs of a foreign table, each of which the suite finds: what the table of docs/own-table.md says.

use std::cell::Cell;

use tlbkit_conformance::suite::find;
use tlbkit_conformance::{Property, conformance};
use tlbkit_pagetable::Shared;
use tlbkit_pagetable::format::Compact;
use tlbkit_pagetable::nodes::NodeAddr;

thread_local! {
    /// The bug that the table has.
    static BUG: Cell<Option<Bug>> = const { Cell::new(None) };
    /// The storage, the root of a table, and a node of it.
    static LINKED: Cell<Option<(usize, NodeAddr, NodeAddr)>> = const { Cell::new(None) };
}

/// Bugs of the table.
macro_rules! bugs {
    ($($bug:ident)+) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        enum Bug { $($bug),+ }

        const BUGS: &[Bug] = &[$(Bug::$bug),+];
    };
}

bugs! {
    LostPage OnePageFlushed ClearedFirst LinkedEarly FreedAtOnce ZeroedFirst
    StaleSize LastPage LostDirty OtherTable OffByOne ReachTooLow RetiredFirst CountOff StatusDropped ReadsTwice
}

/// What is right, or what is wrong if the table has the bug.
macro_rules! planted {
    ($bug:ident, $right:expr, $wrong:expr) => {
        if crate::BUG.get() == Some(crate::Bug::$bug) { $wrong } else { $right }
    };
}

#[path = "own/table.rs"]
#[allow(unreachable_pub, clippy::redundant_else, reason = "as the page shows it, and with bugs that return")]
mod table;

conformance!(own, Compact, Shared, |nodes| table::Own::new(nodes));

/// The page, with its table of bugs and the table of pages without them.
const PAGE: &str = include_str!("../../../docs/own-table.md");

/// Returns the rows of the page's table of bugs: the bug, the property that finds it, and a part of what that says.
fn rows() -> Vec<[&'static str; 3]> {
    let cells = |line: &'static str| {
        let mut cells = line.trim_matches('|').split(" | ").map(|cell| cell.trim().trim_matches('`'));
        Some([cells.next()?, cells.nth(1)?, cells.next()?])
    };
    PAGE.lines().filter(|line| line.starts_with("| `")).filter_map(cells).collect()
}

#[test]
fn each_is_found() {
    let rows = rows();
    assert_eq!(rows.len(), BUGS.len(), "the page lists {rows:?}");
    for &bug in BUGS {
        let name = format!("{bug:?}");
        let [_, property, says] = rows.iter().find(|row| row[0] == name).expect("a row of the page");
        let property =
            Property::ALL.into_iter().find(|one| format!("{one:?}") == *property).expect("a property");
        BUG.set(Some(bug));
        let found = find::<own::Tested>(property, 32, 0);
        BUG.set(None);
        let Err(found) = found else { panic!("{property:?} does not find {bug:?}") };
        println!("{bug:?}: {found}\n");
        assert!(found.to_string().contains(says), "{bug:?} is found, but `{says}` is not said: {found}");
    }
}

/// The page shows the table of this test, without its bugs. `BLESS=1` writes it there.
#[test]
fn the_page_shows_this_table() {
    let source = include_str!("own/table.rs");
    let (source, _) = source.split_once("\n// Planted bugs").expect("the end of the table");
    let plain: String =
        source.lines().filter(|line| !line.contains("planted!(")).map(|line| format!("{line}\n")).collect();
    let (before, rest) = PAGE.split_once("<!-- table -->\n```rust\n").expect("where the table begins");
    let (shown, after) = rest.split_once("```\n<!-- end -->").expect("where it ends");
    let (hidden, shown) = shown.split_once("# // own-table\n").expect("what is hidden");
    if std::env::var_os("BLESS").is_some() {
        let page = format!(
            "{before}<!-- table -->\n```rust\n{hidden}# // own-table\n{plain}```\n<!-- end -->{after}"
        );
        std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/own-table.md"), page).unwrap();
    } else {
        assert!(
            shown == plain,
            "docs/own-table.md is not what tests/own/table.rs is: run this test with BLESS=1"
        );
    }
}
