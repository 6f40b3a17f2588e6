//! The mappers of two crates that have never heard of tlbkit, behind the adapter.
#![cfg(all(target_arch = "x86_64", not(miri)))]

use std::process::Command;

use tlbkit_addr::{Attr, PageSize};
use tlbkit_conformance::foreign::{Foreign, UNCHECKED, Want, check, first, frames};
use tlbkit_conformance::mapper;
use tlbkit_pagetable::{Half, Space};

use crate::page;

/// What neither adapter of the two crates has.
const LACKS: [Want; 11] = [
    Want::Rights,
    Want::Note,
    Want::Replace,
    Want::Resize,
    Want::MapRange,
    Want::UnmapRange,
    Want::ProtectRange,
    Want::Order,
    Want::Mmu,
    Want::Stored,
    Want::KeepsRefused,
];

#[path = "mappers/x86_64.rs"]
mod x86_64_mapper;

mod by_x86_64 {
    use super::x86_64_mapper::X86;
    use super::*;

    #[test]
    fn agrees() {
        let unchecked = check::<X86<true, true>>(64, 0).unwrap();
        assert_eq!(unchecked, LACKS.into_iter().chain([Want::Visit, Want::KeepsEmpty]).collect());
    }

    mapper!(holds, X86<true, true>);

    /// A bug of x86_64 0.15: `map_to` of a small page where a large one is mapped adds the small page's flags to the large
    /// one's entry, as if that were a link, before it fails with `ParentEntryHugePage`. A caller that is refused a writable
    /// page has made a read-only one writable.
    #[test]
    fn a_refused_map_gives_a_right() {
        let wrong = check::<X86<false, true>>(64, 0).unwrap_err().to_string();
        assert!(wrong.contains("WRITE") && wrong.contains("it should be mapped by the"), "{wrong}");
    }

    /// Another: `update_flags` of a large page where small ones are mapped makes a large page of the node that leads to them.
    #[test]
    fn a_protect_of_a_large_page_takes_a_node_for_one() {
        let wrong = check::<X86<true, false>>(64, 0).unwrap_err().to_string();
        assert!(
            wrong.contains("it was done, and should have been refused: no page of 2M is mapped at"),
            "{wrong}"
        );
    }
}

#[path = "mappers/multiarch.rs"]
mod multiarch_mapper;

mod by_multiarch {
    use super::multiarch_mapper::Multiarch;
    use super::*;

    #[test]
    fn agrees() {
        let others =
            [Want::Halves, Want::Visit, Want::Flushed, Want::KeepsEmpty, Want::OtherSizes, Want::Nodes];
        assert_eq!(check::<Multiarch>(64, 0).unwrap(), LACKS.into_iter().chain(others).collect());
    }
}

#[path = "mappers/planted.rs"]
mod planted_mapper;

mod planted {
    use super::planted_mapper::{BUG, BUGS, Bug, Radix, SAYS, Says, UNSEEN, Unseen};
    use super::*;

    /// Cases until a bug is found: as many as the macro's test draws.
    const CASES: u32 = 16;

    #[test]
    fn without_a_bug_nothing_is_found() {
        assert_eq!(check::<Radix>(2 * CASES, 0).unwrap(), [].into());
    }

    mapper!(holds, Radix);

    /// Two bugs of a mapper that has every function are not found, and what is printed names them.
    #[test]
    fn what_is_not_found_is_said() {
        for (bug, says) in
            [(Unseen::ReadsTwice, "each word once"), (Unseen::MapsUpTo, "a range call which is refused")]
        {
            UNSEEN.set(Some(bug));
            let found = check::<Radix>(CASES / 2, 0);
            UNSEEN.set(None);
            assert_eq!(found.map_err(|found| found.to_string()), Ok([].into()));
            assert!(UNCHECKED.iter().any(|line| line.contains(says)), "{bug:?}");
        }
    }

    /// What a mapper says of itself is believed, and the rest is checked.
    #[test]
    fn what_a_mapper_says_is_believed() {
        let says = |says, bug, cases| {
            SAYS.set(Some(says));
            BUG.set(Some(bug));
            let found = first::<Radix>(cases, 0);
            BUG.set(None);
            SAYS.set(None);
            found.map_err(|found| found.to_string())
        };
        assert_eq!(says(Says::RefusesLast, Bug::LastPage, CASES / 4), Ok([Want::RefusesLast].into()));
        assert_eq!(says(Says::KeepsRefused, Bug::RefusedLinks, CASES / 4), Ok([Want::KeepsRefused].into()));
        assert_eq!(says(Says::Breaks, Bug::ReplacedTwice, CASES / 4), Ok([].into()));
        for (what, bug, message) in [
            (Says::RefusesLast, Bug::UnmapStride, "must be flushed"),
            (Says::KeepsRefused, Bug::RefusedLeaks, "the mapper holds"),
            (Says::Breaks, Bug::ProtectsNode, "after store 2 of the call"),
        ] {
            let wrong = says(what, bug, CASES).expect_err("a bug is found");
            assert!(wrong.contains(message), "{what:?}: {wrong}");
        }
    }

    /// Prints in how many of 20 default runs each bug is found, which is 19 at least: see the test of this name for tables.
    #[test]
    #[cfg_attr(not(tlbkit_full), ignore = "cargo xtask test --full")]
    fn most_runs_find() {
        let mut missed = Vec::new();
        println!("| bug of a mapper | found in runs of 20 |\n|-|-|");
        for &(bug, ..) in BUGS.iter().filter(|(bug, ..)| *bug != Bug::Hangs) {
            BUG.set(Some(bug));
            let found = (1..=20).filter(|&seed| first::<Radix>(CASES, seed).is_err()).count();
            BUG.set(None);
            println!("| `{bug:?}` | {found} |");
            if found < 19 {
                missed.push((bug, found));
            }
        }
        assert!(missed.is_empty(), "found in too few runs of 20: {missed:?}");
    }

    #[test]
    #[ignore = "it hangs: `each_is_found` runs it in a process of its own"]
    fn hangs() {
        BUG.set(Some(Bug::Hangs));
        let _ = check::<Radix>(CASES, 0);
    }

    #[test]
    #[ignore = "`a_panic_is_printed_once` runs it in a process of its own"]
    fn asserts() {
        BUG.set(Some(Bug::GivenTwice));
        check::<Radix>(CASES, 0).unwrap_err();
    }

    /// A mapper that asserts panics in many sequences while one is shrunk.
    #[test]
    fn a_panic_is_printed_once() {
        let mut tests = Command::new(std::env::current_exe().expect("this file"));
        let test = ["--exact", "foreign::planted::asserts", "--ignored", "--nocapture"];
        let output = tests.args(test).output().expect("a second process");
        let printed = String::from_utf8(output.stderr).expect("text");
        assert!(output.status.success() && printed.matches("panicked at").count() == 1, "{printed}");
    }

    /// Returns what is printed of a mapper that hangs, which ends the process.
    fn hung() -> String {
        let mut tests = Command::new(std::env::current_exe().expect("this file"));
        let output = tests
            .args(["--exact", "foreign::planted::hangs", "--ignored"])
            .env("TLBKIT_PATIENCE", "2")
            .output();
        let output = output.expect("a second process");
        assert_eq!(output.status.code(), Some(101));
        String::from_utf8(output.stderr).expect("text")
    }

    #[test]
    fn each_is_found() {
        let (mut rows, mut missed) = (String::new(), String::new());
        for &(bug, wrong, says) in BUGS {
            let message = if bug == Bug::Hangs {
                hung()
            } else {
                BUG.set(Some(bug));
                let found = first::<Radix>(CASES, 0);
                BUG.set(None);
                found.err().map_or_else(|| "nothing".into(), |found| found.to_string())
            };
            if !message.contains(says) {
                missed += &format!("{bug:?}: `{says}` is not said, but {message}\n\n");
            }
            rows += &format!("| `{bug:?}` | {wrong} | `{says}` |\n");
        }
        assert!(missed.is_empty(), "{missed}");
        let begin = "| bug of a mapper | what is wrong | the message says |\n|-|-|-|\n";
        page::shows("own-mapper.md", begin, "\n<!-- end of mappers -->", &rows);
    }

    /// Bugs that random operations alone meet seldom are found whatever the seed.
    #[test]
    fn any_seed_finds() {
        for bug in [
            Bug::WrongSpot,
            Bug::HugeSpot,
            Bug::WrongOnce,
            Bug::HugeProtects,
            Bug::LargeKeeps,
            Bug::DropsEmpty,
        ] {
            for seed in 1..=if cfg!(tlbkit_full) { 3 } else { 1 } {
                BUG.set(Some(bug));
                let found = first::<Radix>(CASES, seed);
                BUG.set(None);
                assert!(found.is_err(), "{bug:?} by seed {seed}");
            }
        }
    }
}

/// The ten lines that a mapper needs, and a bug of one that they find.
#[test]
fn a_map_of_nothing_is_tested() {
    struct Least(std::collections::BTreeMap<usize, usize>);

    impl Foreign for Least {
        fn new() -> Self {
            Self(Default::default())
        }

        fn space(&self) -> Space {
            Space::new(32, Half::Lower, PageSize::K4, &[PageSize::K4])
        }

        fn map(&mut self, at: usize, to: usize, _size: PageSize, _attr: Attr) -> bool {
            self.0.insert(at, to).is_none()
        }

        fn unmap(&mut self, at: usize, _size: PageSize) -> bool {
            self.0.remove(&at).is_some()
        }

        fn translate(&self, at: usize) -> Option<usize> {
            self.0.get(&(at & !0xfff)).map(|to| to + (at & 0xfff))
        }
    }

    // A map that is refused has replaced what was there.
    let wrong = check::<Least>(64, 0).unwrap_err().to_string();
    assert!(wrong.contains("is translated to") && wrong.contains("map(0x"), "{wrong}");
}

/// A mapper that takes its first node when it maps its first page is limited from then on. One whose node leads to itself is not
/// dropped: the stack would overflow.
#[test]
fn a_mapper_may_begin_without_a_node() {
    const MAPS_FIRST: u8 = 1;
    const LOOPS: u8 = 2;

    struct Lazy<const FAULT: u8>(std::collections::BTreeMap<usize, usize>, Option<usize>);

    /// Returns the entry of a node.
    fn entry(node: usize) -> *mut usize {
        std::ptr::with_exposed_provenance_mut(node)
    }

    /// Gives a node back after the one that it leads to.
    fn free(node: usize) {
        // SAFETY: a frame of the mapper's.
        let next = unsafe { entry(node).read() };
        if next != 0 {
            free(next & !1);
        }
        frames::give(node);
    }

    impl<const FAULT: u8> Drop for Lazy<FAULT> {
        fn drop(&mut self) {
            self.1.take().into_iter().for_each(free);
        }
    }

    impl<const FAULT: u8> Foreign for Lazy<FAULT> {
        fn new() -> Self {
            Self(Default::default(), None)
        }

        fn space(&self) -> Space {
            Space::new(32, Half::Lower, PageSize::K4, &[PageSize::K4])
        }

        fn map(&mut self, at: usize, to: usize, _size: PageSize, _attr: Attr) -> bool {
            if self.0.contains_key(&at) {
                return false;
            }
            if FAULT == MAPS_FIRST {
                self.0.insert(at, to);
            }
            self.1 = self.1.or_else(frames::take);
            if let Some(node) = self.1 {
                // SAFETY: a frame of the mapper's.
                unsafe { entry(node).write(if FAULT == LOOPS { node | 1 } else { 0 }) };
                self.0.insert(at, to);
            }
            self.1.is_some()
        }

        fn unmap(&mut self, at: usize, _size: PageSize) -> bool {
            let done = self.0.remove(&at).is_some();
            if self.0.is_empty() {
                self.1.take().into_iter().for_each(frames::give);
            }
            done
        }

        fn translate(&self, at: usize) -> Option<usize> {
            self.0.get(&(at & !0xfff)).map(|to| to + (at & 0xfff))
        }
    }

    let unchecked = check::<Lazy<0>>(64, 0).unwrap_or_else(|wrong| panic!("{wrong}"));
    assert!(!unchecked.contains(&Want::FailAfter), "{unchecked:?}");
    let wrong = check::<Lazy<MAPS_FIRST>>(64, 0).unwrap_err().to_string();
    assert!(wrong.contains("allocation 0 failed, and the map with it"), "{wrong}");
    let wrong = check::<Lazy<LOOPS>>(64, 0).unwrap_err().to_string();
    assert!(wrong.contains("entries of the mapper's nodes lead from frame"), "{wrong}");
}

/// The page says what is not checked.
#[test]
fn the_page_says_what_is_unchecked() {
    let rows: String = Want::ALL.iter().map(|want| format!("- {want}\n")).collect();
    let always: String = UNCHECKED.iter().map(|what| format!("- {what}\n")).collect();
    page::shows("own-mapper.md", "<!-- always -->\n", "<!-- end of always -->", &always);
    page::shows("own-mapper.md", "<!-- unchecked -->\n", "<!-- end of unchecked -->", &rows);
}
