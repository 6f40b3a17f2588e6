//! The table of docs/own-table.md, and bugs of a foreign table, each of which the suite finds: what the table of docs/own-tests.md says.
//! The tests of mappers and of what the suite prints are modules beside them.
#![cfg(not(tlbkit_loom))]

use std::cell::Cell;
use std::collections::BTreeSet;
use std::iter;
use std::panic::catch_unwind;
use std::process::Command;
use std::time::Instant;

use tlbkit_addr::{Attr, PageSize, Pages, Pfn, Vpn};
use tlbkit_conformance::suite::{fails, find, replay};
use tlbkit_conformance::{Failure, Op, Property, Subject, conformance, fuzz, subject, threads};
use tlbkit_pagetable::Shared;
use tlbkit_pagetable::format::Compact;
use tlbkit_pagetable::geometry::Va39;
use tlbkit_pagetable::nodes::NodeAddr;

thread_local! {
    /// The bug that the table has.
    static BUG: Cell<Option<Bug>> = const { Cell::new(None) };
    /// The storage, the root of a table, and a node of it.
    static LINKED: Cell<Option<(usize, NodeAddr, NodeAddr)>> = const { Cell::new(None) };
}

/// Bugs of the table: what is wrong, the property that finds it, and a part of what that says.
macro_rules! bugs {
    ($($bug:ident: $wrong:literal, $property:ident, $says:literal;)+) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        enum Bug { $($bug),+ }

        const BUGS: &[(Bug, &str, Property, &str)] = &[$((Bug::$bug, $wrong, Property::$property, $says)),+];
    };
}

bugs! {
    LostPage: "a split loses the last of the small pages", Agrees, "leaves, and 512 are mapped";
    ProtectStride: "a protect of more than 2 MiB flushes whole 2 MiB from its first page on, and not the rest", Agrees,
        "must be flushed with scope Everywhere";
    UnmapStride: "an unmap of more than 2 MiB does the same", Agrees, "must be flushed with scope Everywhere";
    LateNode: "the second new node of a range begins a page late", Agrees, "it should be mapped by the";
    OnePageFlushed: "an unmap of a larger page flushes its first page", Agrees, "must be flushed with scope Everywhere";
    EndsEarly: "a drain ends after the first leaf", Agrees, "it returned a count";
    LinkedEarly: "a node is linked before all are had", FailsCleanly, "and the table is not as it was";
    FreedAtOnce: "an emptied node goes back to the storage at once", HoldsBack, "freed that no shootdown has let go";
    ZeroedFirst: "a leaf is zeroed before the node that it is split into is linked", PublishesInOrder,
        "unmapped: it was mapped by the";
    FilledLate: "a split links a node before its last entry is stored", PublishesInOrder, "unmapped: it was mapped by the";
    ReplacedTwice: "a replace empties the entry before it stores the new one", PublishesInOrder, "unmapped: it was mapped by the";
    StaleSize: "a join stores the size of the small pages", Agrees, "it should be mapped by the 2M page";
    LastPage: "ranges end one entry early at the last page of the space", Agrees, "met 0 leaves, and 1 are mapped";
    LostDirty: "a drain hands a frame over without its dirty bit", Agrees, "frames were handed over and";
    OtherTable: "a node of another table of the same storage is linked", StaysApart, "which belongs to table";
    OffByOne: "the first address above the lower half is walked", Agrees, "it should be unmapped";
    ReachTooLow: "the loss of a right reaches one CPU", Agrees, "must be flushed with scope Everywhere";
    CountOff: "a protect counts one page too few", Agrees, "it returned a count";
    StatusDropped: "a join keeps the status bits of the first page only", Agrees, "it should be mapped by the";
    ReadsTwice: "a walk loads a word once to test it and once to use it", WalksBeside, "ran before load";
    NotBuried: "a table that is dropped counts nothing as lost", CountsLost, "was dropped that was not taken apart";
    GlobalIgnored: "a join does not compare whether pages are global", Agrees, "it succeeded, but the page at";
    JoinedAskew: "a join does not ask where its first frame lies", Agrees, "does not continue the one before it";
    WipedJoined: "a join zeroes the node of the small pages, in which a walker may be", WalksBeside, "ran before load";
    KeptEmpty: "an emptied node stays in the table", Waits, "an emptied table takes";
    FlushedForNothing: "an unmap of what is not mapped asks for a flush", Agrees, "nothing changed, and yet";
    FalseClean: "a node that holds entries goes back as clean", Agrees, "was given back as clean";
    RetiredTwice: "an emptied node is pushed into the batch twice", Agrees, "was retired twice";
    NotRepaired: "a map links a node before it takes the others, of which one unwinds, and the empty node stays", SurvivesUnwinding,
        "left nothing mapped, and the table takes";
    OneTooMany: "a map takes one node more than it needs", FailsCleanly, "it takes more than it needs";
    ProtectTakes: "a protect takes a node for a while", FailsCleanly, "only other operations may need a node";
    StillCounted: "`dismantle` leaves a leaf in the footprint", Agrees, "its footprint, which should be all zeroes";
    FreedRoot: "`dismantle` frees the root, which is in the batch, too", Agrees, "or was freed before";
    MarkBroken: "a mark is put where the entry was emptied first", PublishesInOrder, "again, as before the operation";
    EntryTwice: "`entry` walks once for a leaf and once more for a mark", WalksBeside, "`entry` found";
    TooManyBits: "a table says that payloads have one bit more than they have", Agrees, "says that a payload may have";
    TooFewBits: "a table says that payloads have one bit less than it takes", Agrees, "says that a payload may have";
    PayloadZero: "a payload of zero is taken for no mark", Agrees, "met 0 entries, and 1 are there";
    MarkCounted: "a mark is counted before its nodes are had", FailsCleanly, "the footprint counts";
    MarkKept: "a mark that a drain hands over stays in the table", SurvivesUnwinding, "and 0 marks";
    MovedClean: "a move forgets that a page is dirty", Agrees, "mapped by the 4K page";
    MovedShort: "a move loses the last page of a range that ends with a node", Agrees, "and left Retired";
    EntriesRestart: "a visit of entries begins anew where there is a mark", Agrees, "entries";
    EntriesLie: "a visit of entries that is told to stop says that it was not", Agrees, "was told to stop at";
    FrameTwice: "a drain hands frames over twice", Agrees, "it returned a count";
    FreedTwice: "an emptied node is freed twice", Agrees, "was freed twice";
    JoinLive: "a join counts one entry too many in the node above", Waits, "an emptied table takes";
    JoinTally: "a join counts the large page twice in the footprint", Agrees, "footprint";
    SplitAskew: "a split over two levels gives all nodes of the lower one the same frames", Agrees, "a visit of";
    SecondSplit: "of two pages that are split both get the frames of the first", Agrees, "it should be mapped by the";
    SizeTold: "a drain hands a page of 1 GiB over as one of 2 MiB", Agrees, "frames were handed over and";
    JoinedGap: "a join does not ask whether a page in the midst is mapped", Agrees, "was unmapped, and nothing maps its page";
    SplitLeaks: "a split that gets no memory for its second node loses the first", FailsCleanly, "and the table is not as it was";
    GlobalLost: "a protect that takes the right to write takes from a page that it is global", Agrees, "it should be mapped by the";
    ExecForgotten: "the loss of the right to execute alone asks for no flush", Agrees, "must be flushed with scope Everywhere";
    FrameAskew: "a map takes a frame that does not begin where a large page may", Agrees, "it succeeded, but";
    SwapAskew: "a replace takes a frame that does not begin where a large page may", Agrees, "it succeeded, but";
    HugePassed: "a protect passes over pages of 1 GiB", Agrees, "it should be mapped by the";
    VisitRestarts: "a visit begins anew after the first leaf", Agrees, "it met what is at";
    BreaksLie: "a visit that is told to stop says that it was not", Agrees, "was told to stop at";
    GoesOn: "a visit that is told to stop goes on", Agrees, "was told to stop after";
    LastRefused: "the last page of the space is refused", Agrees, "which is a page like any other";
    WantsMore: "a map that gets no memory says that it wants one node more than it does", FailsCleanly, "it wanted";
    VisitEndless: "a visit never ends", Agrees, "a visit has met 1048576 pages, and does not end";
    StoresEndless: "a map stores without end", PublishesInOrder, "an operation has stored 1048576 times, and does not end";
    Endless: "a walk of the last page of the space never ends", Agrees, "the table has not come back for";
}

/// What is right, or what is wrong if the table has the bug.
macro_rules! planted {
    ($bug:ident, $right:expr, $wrong:expr) => {
        if crate::BUG.get() == Some(crate::Bug::$bug) { $wrong } else { $right }
    };
}

mod foreign;
mod notices;
mod page;

#[path = "own/small.rs"]
#[allow(unreachable_pub, reason = "as the page shows it")]
mod small;

#[path = "own/table.rs"]
#[allow(clippy::redundant_else, reason = "bugs that return")]
mod table;

#[path = "own/marked.rs"]
#[allow(clippy::redundant_else, reason = "bugs that return")]
mod marked;

conformance!(properties, Compact, Shared, |nodes| small::Own::<9, _>::new(nodes));
threads!(beside_a_writer, Compact, |nodes| small::Own::<9, _>::new(nodes));

conformance!(own, Compact, Shared, |nodes| table::Own::<Va39, _>::new(nodes));
threads!(own_beside_a_writer, Compact, |nodes| table::Own::<Va39, _>::new(nodes));

/// Cases of each property until it has found its bug: as many as the macro's tests draw.
const CASES: u32 = 32;

/// Bugs of the table with marks.
const MARKS: [Bug; 11] = [
    Bug::MarkBroken,
    Bug::EntryTwice,
    Bug::TooManyBits,
    Bug::TooFewBits,
    Bug::PayloadZero,
    Bug::MarkCounted,
    Bug::MarkKept,
    Bug::MovedClean,
    Bug::MovedShort,
    Bug::EntriesRestart,
    Bug::EntriesLie,
];

/// Returns what a property says of a bug whose cases take so long that there is one.
fn panicked(bug: Bug, property: Property) -> String {
    let pages = Pages::one(Vpn::new(1));
    let attr = Attr::READ | Attr::EXEC;
    let map = Op::Map { pages, frame: Pfn::new(2), size: PageSize::K4, attr };
    BUG.set(Some(bug));
    let panic = catch_unwind(|| replay::<own::Tested>(property, &[map]));
    BUG.set(None);
    *panic.expect_err("a panic").downcast::<String>().expect("a message")
}

/// Returns what a property says of a bug.
fn found(bug: Bug, property: Property) -> String {
    fn of<S: Subject>(property: Property) -> Result<(), Box<Failure>> {
        let found = find::<S>(property, CASES, 0);
        if let Err(failure) = &found {
            let again = catch_unwind(|| replay::<S>(property, &failure.ops).is_err()).unwrap_or(true);
            assert!(again, "the operations do not repeat it: {failure}");
        }
        found
    }
    BUG.set(Some(bug));
    let found = if MARKS.contains(&bug) { of::<Marks>(property) } else { of::<own::Tested>(property) };
    BUG.set(None);
    found.err().map_or_else(|| "nothing is found".to_owned(), |found| found.to_string())
}

/// Returns what is printed of a table that hangs, which ends the process.
fn hung() -> String {
    let mut tests = Command::new(std::env::current_exe().expect("this file"));
    let output = tests
        .args(["--exact", "hangs", "--ignored"])
        .env("TLBKIT_PATIENCE", "2")
        .env("TLBKIT_TRACE", "1")
        .output();
    let output = output.expect("a second process");
    assert_eq!(output.status.code(), Some(101));
    let printed = String::from_utf8(output.stderr).expect("text");
    let (trace, _) = printed.split_once("has not come back").expect("what hangs");
    assert!(trace.contains("it is made\n"), "what comes is printed before it runs: {printed}");
    printed
}

#[test]
#[ignore = "it hangs: `each_is_found` runs it in a process of its own"]
fn hangs() {
    BUG.set(Some(Bug::Endless));
    let _ = find::<own::Tested>(Property::Agrees, CASES, 0);
}

#[test]
fn each_is_found() {
    let (mut rows, mut printed, mut missed) = (String::new(), String::new(), Vec::new());
    let mut shown = BTreeSet::new();
    for &(bug, wrong, property, says) in BUGS {
        let begun = Instant::now();
        let message = match bug {
            Bug::Endless => hung(),
            Bug::VisitEndless | Bug::StoresEndless => panicked(bug, property),
            _ => found(bug, property),
        };
        println!("{bug:?}, in {:.1?}: {message}\n", begun.elapsed());
        if !message.contains(says) {
            missed.push(format!("{bug:?} by {property:?}: `{says}` is not said: {message}"));
            continue;
        }
        if !ENDLESS.contains(&bug) {
            let (_, test) = message.split_once("To repeat it:\n\n").expect("a test that repeats it");
            // A test of each kind of operation is enough.
            let ops: Vec<_> =
                test.match_indices("Op::").map(|(at, _)| test[at..].split(' ').next()).collect();
            if ops.iter().any(|op| shown.insert(op.map(str::to_owned))) {
                printed += &format!("printed! {{ {bug:?}:\n{test}\n}}\n\n");
            }
        }
        rows += &format!("| `{bug:?}` | {wrong} | `{property:?}` | `{says}` |\n");
    }
    assert!(missed.is_empty(), "{}", missed.join("\n\n"));
    let begin = "| bug | what is wrong | found by | the message says |\n|-|-|-|-|\n";
    page::shows("own-tests.md", begin, "\n<!-- end of bugs -->", &rows);
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/all/own/printed.rs"), printed).unwrap();
    }
}

/// Bugs with which a call does not end.
const ENDLESS: [Bug; 3] = [Bug::Endless, Bug::VisitEndless, Bug::StoresEndless];

/// The seeds of the table of [`most_runs_find`].
const RUNS: u64 = 20;

/// Tells whether a default run from a seed, of all properties, finds a bug.
fn run_finds(bug: Bug, property: Property, seed: u64) -> bool {
    BUG.set(Some(bug));
    let fails = if MARKS.contains(&bug) { fails::<Marks> } else { fails::<own::Tested> };
    // The order does not change the result.
    let others = Property::ALL.into_iter().filter(|other| *other != property);
    let found = iter::once(property).chain(others).any(|property| fails(property, 16, seed));
    BUG.set(None);
    found
}

/// Prints in how many of 20 default runs each bug is found, which is 19 at least; but for the endless ones, which the first map meets:
/// `cargo test -p tlbkit-conformance --test all most_runs_find -- --include-ignored --nocapture --test-threads=1`.
#[test]
#[cfg_attr(not(tlbkit_full), ignore = "cargo xtask test --full")]
fn most_runs_find() {
    assert!(
        (0..3).all(|seed| !Property::ALL.iter().any(|&property| fails::<own::Tested>(property, 16, seed)))
    );
    let mut missed = Vec::new();
    println!("| bug | found in runs of {RUNS} |\n|-|-|");
    for &(bug, _, property, _) in BUGS.iter().filter(|(bug, ..)| !ENDLESS.contains(bug)) {
        let found = (1..=RUNS).filter(|&seed| run_finds(bug, property, seed)).count();
        println!("| `{bug:?}` | {found} |");
        if found < RUNS as usize - 1 {
            missed.push((bug, found));
        }
    }
    assert!(missed.is_empty(), "found in too few runs of {RUNS}: {missed:?}");
}

/// Bugs that the operations alone meet seldom are found whatever the seed.
#[test]
fn any_seed_finds() {
    for &(bug, _, property, _) in BUGS.iter().filter(|(bug, ..)| SELDOM.contains(bug)) {
        for seed in 1..=if cfg!(tlbkit_full) { 3 } else { 1 } {
            BUG.set(Some(bug));
            let found = find::<own::Tested>(property, CASES, seed);
            BUG.set(None);
            assert!(found.is_err(), "{bug:?} by seed {seed}");
        }
    }
}

/// Bugs that need what random operations seldom do.
const SELDOM: [Bug; 8] = [
    Bug::SizeTold,
    Bug::JoinedGap,
    Bug::SplitLeaks,
    Bug::GlobalLost,
    Bug::ExecForgotten,
    Bug::FrameAskew,
    Bug::SwapAskew,
    Bug::HugePassed,
];

/// A test that was printed for a bug, as it was printed.
macro_rules! printed {
    ($bug:ident: $(#[$test:meta])+ fn $repeats:ident() $body:block) => {
        #[allow(non_snake_case, reason = "the name of the bug")]
        mod $bug {
            $(#[$test])+ fn $repeats() $body

            /// What is printed compiles and passes, and fails with the bug.
            #[test]
            fn fails() {
                crate::BUG.set(Some(crate::Bug::$bug));
                let failed = std::panic::catch_unwind($repeats).is_err();
                crate::BUG.set(None);
                assert!(failed);
            }
        }
    };
}

/// What `each_is_found` printed when it was last run with `BLESS=1`.
mod printed {
    include!("own/printed.rs");
}

/// The page shows the table without bugs.
#[test]
fn the_page_shows_this_table() {
    page::shows("own-table.md", "# // own-table\n", "```\n<!-- end -->", include_str!("own/small.rs"));
}

/// The page shows the target that fuzz/ builds.
#[test]
fn the_page_shows_a_target() {
    let source = include_str!("../../../../fuzz/targets/own.rs");
    let (_, shown) = source.split_once("mod own;\n\n").expect("where the target begins");
    page::shows("own-tests.md", "#![no_main]\n\n", "```\n<!-- end of target -->", shown);
}

subject!(Marks, Compact, Shared, |nodes| marked::Marked::new(nodes));
subject!(Small, Compact, Shared, |nodes| small::Own::<9, _>::new(nodes));
subject!(Plain, Compact, Shared, |nodes| table::Own::<Va39, _>::new(nodes));

/// A fuzz target without a corpus finds what a look at the table after each operation does not: one input of some hundreds does.
#[test]
fn inputs_find_what_needs_more_than_a_look() {
    for bug in [Bug::FreedAtOnce, Bug::FilledLate, Bug::ReplacedTwice, Bug::StatusDropped] {
        let mut state = 1_u64;
        let mut random = || {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            (state >> 56) as u8
        };
        BUG.set(Some(bug));
        let found = (0..500).find(|_| {
            let input: Vec<u8> = (0..600).map(|_| random()).collect();
            fuzz::check::<Plain>(&input).is_err()
        });
        BUG.set(None);
        println!("{bug:?} by input {:?}", found.expect("an input that finds it"));
    }
}

/// The inputs that ship are inputs of a table outside the tree, too, and one that fails says how to repeat it.
#[test]
fn the_corpus_is_run() {
    fuzz::replay(fuzz::CORPUS, fuzz::table::<Small>);
    fuzz::replay(fuzz::CORPUS, fuzz::table::<Plain>);
    BUG.set(Some(Bug::LostPage));
    let found = catch_unwind(|| fuzz::replay(fuzz::CORPUS, fuzz::table::<Plain>));
    BUG.set(None);
    let message = *found.expect_err("a bug is found").downcast::<String>().expect("a message");
    assert!(message.contains("tlbkit_conformance::fuzz::table::<crate::Plain>(&["), "{message}");
}
