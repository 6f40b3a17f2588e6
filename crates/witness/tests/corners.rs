//! Logs on which the checker and the second machine of `agreement.rs` once said different things, or both the wrong one.

use tlbkit_witness::check::{Arch, Refusal, check};

/// Where a log breaks, and which rule.
fn broken(arch: Arch, log: &str) -> Option<(u64, &'static str)> {
    match check(arch, log) {
        Ok(_) => None,
        Err(Refusal::Violation(found)) => Some((found.line(), found.rule().name())),
        Err(why) => panic!("{why}"),
    }
}

/// A table of one page at VA 0 that both CPUs run, under ASID 1. The node of the last level is at 0x10000.
const ONE: &str = "0 write 0x40000 0x30003
0 write 0x30000 0x20003
0 write 0x20000 0x10003
0 write 0x10000 0x40000f43
0 barrier dsb
0 root 0x1000000040000
1 root 0x1000000040000
";

/// Two invalidations have begun since the link was cut, and each covers it. What is read by way of it goes with the one that covers
/// that, too.
#[test]
fn what_is_read_through_a_link_goes_with_an_invalidation_of_both() {
    let log = format!(
        "{ONE}0 write 0x20000 0
0 barrier dsb
0 fence va 0x1000
1 root 0x2000000041000
0 fence va 0x0
0 write 0x10008 0x40000fc3
0 barrier dsb
0 frame free 0x40000000 4096"
    );
    assert_eq!(broken(Arch::Aarch64, &log), None);
}

/// One covers the link alone, and the other the page alone: that one had begun when the page was read.
#[test]
fn what_is_read_through_a_link_does_not_go_with_two_invalidations() {
    let log = format!(
        "{ONE}0 write 0x20000 0
0 barrier dsb
0 fence va 0x0 broadcast
0 fence va 0x1000 leaf broadcast
0 write 0x10008 0x50000f43
0 barrier dsb
0 frame free 0x50000000 4096"
    );
    assert_eq!(broken(Arch::Aarch64, &log), Some((14, "frame-reached")));
}

/// A CPU walks on through a link under one number, finds a global page, and has it under another number.
#[test]
fn a_global_page_below_a_link_is_had_under_every_number() {
    let begin = format!("{ONE}0 write 0x20000 0\n0 write 0x10008 0x400007c3\n");
    let done = format!(
        "{ONE}0 root 0x2000000041000
0 lower 1 0x1000
0 write 0x20000 0
0 write 0x10008 0x400007c3
0 root 0x1000000040000
0 done 1"
    );
    assert_eq!(broken(Arch::Aarch64, &done), Some((13, "right-kept")));
    // A larger page of the next table excludes it.
    let made = format!(
        "{begin}0 write 0x21000 0x80000fc1
0 write 0x41000 0x31003
0 root 0x2000000041000
0 barrier release
0 write 0x31000 0x21003"
    );
    assert_eq!(broken(Arch::Aarch64, &made), Some((14, "two-match")));
    let loaded = format!(
        "{begin}0 write 0x21000 0x80000fc1
0 write 0x41000 0x31003
0 write 0x31000 0x21003
0 barrier dsb
0 root 0x2000000041000"
    );
    assert_eq!(broken(Arch::Aarch64, &loaded), Some((14, "two-match")));
}

/// A table that was in no other one brings its leaves with it: one of them excludes what a CPU still has of the table before.
#[test]
fn a_new_table_is_compared_with_what_is_held() {
    let log = |second: &str| {
        format!(
            "{ONE}0 write 0x10008 0x50000f43
0 write 0x20000 0
0 barrier dsb
0 fence va 0x0 broadcast
{second}0 barrier dsb
0 write 0x11008 0x60000f43
0 barrier dmb
0 write 0x20000 0x11003"
        )
    };
    assert_eq!(broken(Arch::Aarch64, &log("")), Some((15, "two-match")));
    assert_eq!(broken(Arch::Aarch64, &log("0 fence va 0x1000 broadcast\n")), None);
}

/// A page of 1 GiB stands in the root of Sv39.
#[test]
fn a_gigapage_reaches_its_frames() {
    let log = "0 write 0x1000 0x100000cf\n0 root 0x8000000000000001\n0 frame free 0x40200000 4096";
    assert_eq!(broken(Arch::Sv39, log), Some((3, "frame-reached")));
}

/// MIPS32: a CPU has until its next event to flush what a larger page takes in; then it may load it.
#[test]
fn a_cpu_flushes_before_it_uses_a_larger_page() {
    let begin = "0 write 0x1000 0x80002000\n0 write 0x2000 0x2006\n0 write 0x2004 0x2046\n0 root 0x1001\n";
    let stores = "0 write 0x2000 0\n0 write 0x2004 0\n0 write 0x2000 0x40002046\n0 write 0x2004 0x40002046\n";
    let flushed = format!("{begin}{stores}0 fence va 0x0 asid 1\n0 access 0x0 load user 0x80000");
    assert_eq!(broken(Arch::Mips32, &flushed), None);
    let not = format!("{begin}{stores}0 access 0x0 load user 0x80000");
    assert_eq!(broken(Arch::Mips32, &not), Some((9, "two-match")));
}

/// The CPU walks on through a link that was cut, and reads again what an invalidation has covered. So it holds that when the link
/// goes by an invalidation that names another page.
#[test]
fn what_is_read_again_through_a_link_outlives_the_link() {
    let log = |end: &str| {
        format!(
            "0 write 0x40000 0x30027
0 write 0x30000 0x20027
0 write 0x20000 0x10027
0 write 0x10000 0x40000067
0 root 0x40001
1 root 0x40001
0 write 0x20000 0
0 fence va 0 broadcast leaf
0 barrier tlbsync
{end}0 fence va 0x1000
1 fence va 0x1000
0 frame free 0x40000000 4096"
        )
    };
    assert_eq!(broken(Arch::X86_64, &log("")), Some((12, "frame-reached")));
    assert_eq!(broken(Arch::X86_64, &log("0 fence va 0\n1 fence va 0\n")), None);
}

/// MIPS32: another CPU may load the first of two larger pages in parts, between the flush and the store of the second, and both of them
/// by one entry after it. No flush prevents that, but a handler that loads no two larger pages by one entry. Pages of 4 MiB, which
/// are one word each, are never stored by halves.
#[test]
fn larger_pages_that_become_a_pair_beside_another_cpu() {
    let begin = "0 write 0x1000 0x80002000\n0 root 0x1001\n1 root 0x1001\n";
    let page = |first: u64| {
        (first..first + 4)
            .map(|slot| format!("0 write {:#x} 0x40002046\n", 0x2000 + 4 * slot))
            .collect::<String>()
    };
    let flush = "0 barrier sync\n0 fence va 0 0x7fff asid 1\n0 ipi send 1 7\n1 ipi take 7\n1 fence va 0 0x7fff asid 1\n";
    let log = format!("{begin}{}{flush}{}", page(0), page(4));
    assert_eq!(broken(Arch::Mips32, &format!("0 uses halves\n{log}")), None);
    let flushed = flush.replace("0x7fff", "0x7fffff");
    let log = format!(
        "0 root 0x1001\n1 root 0x1001\n0 write 0x1000 0x40014006\n{flushed}0 write 0x1004 0x40024006\n"
    );
    assert_eq!(broken(Arch::Mips32, &log), Some((9, "two-match")));
    assert_eq!(broken(Arch::Mips32, &format!("0 uses halves\n{log}")), None);
    // A smaller page in the place of a larger one, of 64 KiB, is two entries still.
    let large =
        (0..16).map(|slot| format!("0 write {:#x} 0x40002106\n", 0x2000 + 4 * slot)).collect::<String>();
    let small = |slot: u64| format!("0 uses halves\n{begin}0 write {:#x} 0x2006\n{large}", 0x2000 + 4 * slot);
    assert_eq!(broken(Arch::Mips32, &small(5)), Some((6, "two-match")));
    assert_eq!(broken(Arch::Mips32, &small(15)), Some((6, "two-match")));
    assert_eq!(broken(Arch::Mips32, &small(16)), None);
}

/// MIPS32: the words of a pair are two stores. Between them another CPU loads the word of a larger page beside one that is not there,
/// and takes both for pages of 4 KiB; so it does while the page is taken away.
#[test]
fn half_of_a_larger_page_is_stored_beside_another_cpu() {
    let begin = "0 write 0x1000 0x80002000\n0 root 0x1001\n";
    let page = |word: &str| {
        (0..4).map(|slot| format!("0 write {:#x} {word}\n", 0x2000 + 4 * slot)).collect::<String>()
    };
    let (map, unmap) = (page("0x40002046"), page("0"));
    let (join, leave) = ("1 root 0x1001\n", "1 root 0x3002\n");
    let broken = |log: &str| broken(Arch::Mips32, log);
    let alone = format!("{begin}{map}{unmap}");
    assert_eq!(broken(&alone), None);
    let mapped = format!("{begin}{join}{map}");
    assert_eq!(broken(&mapped), Some((4, "unwritten")));
    assert_eq!(broken(&format!("0 uses halves\n{mapped}")), None);
    let unmapped = format!("{begin}{map}{join}{unmap}");
    assert_eq!(broken(&unmapped), Some((8, "unwritten")));
    assert_eq!(broken(&format!("0 uses halves\n{unmapped}")), None);
    // A right that goes from one word after the other leaves both of one size, and a CPU that has left the table loads nothing.
    assert_eq!(broken(&format!("{begin}{map}{join}{}", page("0x40002042"))), None);
    assert_eq!(broken(&format!("{begin}{join}{leave}{map}")), None);
}

/// A CPU that stores an entry stores to no page meanwhile, so that its own hardware sets no dirty bit; another one's may.
#[test]
fn a_plain_store_loses_what_another_cpu_notes() {
    let alone = "0 uses dirty
0 write 0x1000 0x801
0 write 0x2000 0xc01
0 write 0x3000 0x20047
0 root 0x8000000000000001
";
    let store = "0 write 0x3000 0x20043\n";
    assert_eq!(broken(Arch::Sv39, &format!("{alone}{store}")), None);
    let beside = format!("{alone}1 root 0x8000000000000001\n");
    assert_eq!(broken(Arch::Sv39, &format!("{beside}{store}")), Some((7, "dirty-lost")));
    assert_eq!(broken(Arch::Sv39, &format!("{beside}0 swap 0x3000 0x20047 0x20043\n")), None);
}

/// CPU 1 runs another table, which links the node that CPU 0 changes a page in: the page is CPU 1's, too.
#[test]
fn a_promise_is_for_the_tables_that_share_the_node() {
    let log = |end: &str| {
        format!(
            "{ONE}0 write 0x41000 0x30003
0 barrier dsb
1 root 0x2000000041000
0 lower 1 0
0 write 0x10000 0x40000fc3
0 barrier dsb
0 fence va 0 asid 1 broadcast
{end}0 barrier dsb
0 done 1"
        )
    };
    assert_eq!(broken(Arch::Aarch64, &log("")), Some((16, "right-kept")));
    assert_eq!(broken(Arch::Aarch64, &log("0 fence va 0 asid 2 broadcast\n")), None);
}

/// One word of a run of 64 KiB is made read-only, and that page flushed. The other words still say that all of the run may be written.
#[test]
fn another_word_of_a_run_keeps_a_right() {
    let arm = |write: u64| 0x4000_0f43 | 1 << 52 | (1 - write) << 7;
    let napot = |write: u64| 1 << 63 | (0x4_0008 << 10) | 0xd3 | write << 2;
    let log = |begin: &str, word: &dyn Fn(u64) -> u64, at: u64, changed: u64, fence: &str| {
        let mut log = String::new();
        for slot in 0..16 {
            log += &format!("0 write {:#x} {:#x}\n", at + 8 * slot, word(1));
        }
        log += begin;
        log += "0 lower 1 0x0 0xfff\n";
        for slot in 0..changed {
            log += &format!("0 write {:#x} {:#x}\n", at + 8 * slot, word(0));
        }
        log + &format!("0 barrier fence\n{fence}0 done 1\n0 access 0 store user fault")
    };
    let risc_v = "0 write 0x30000 0x8001
0 write 0x20000 0x4001
0 barrier fence
0 root 0x8000100000000030
";
    let begin = "0 write 0x40000 0x30003
0 write 0x30000 0x20003
0 write 0x20000 0x10003
0 barrier dsb
0 root 0x1000000040000
";
    for (changed, holds) in [(1, false), (15, false), (16, true)] {
        let napot = log(risc_v, &napot, 0x10000, changed, "0 fence\n");
        assert_eq!(broken(Arch::Sv39, &napot).is_none(), holds, "{changed}\n{napot}");
        let arm = log(begin, &arm, 0x10000, changed, "0 fence broadcast\n0 barrier dsb\n0 barrier isb\n");
        assert_eq!(broken(Arch::Aarch64, &arm).is_none(), holds, "{changed}\n{arm}");
    }
    // All words are changed, and one page alone is flushed: what was read from another word is there still.
    let one = log(risc_v, &napot, 0x10000, 16, "0 fence va 0\n");
    assert_eq!(broken(Arch::Sv39, &one), Some((40, "right-kept")));
    let all = log(risc_v, &napot, 0x10000, 16, "0 fence va 0 0xffff\n");
    assert_eq!(broken(Arch::Sv39, &all), None);
}

/// A CPU finds a global page by way of a link that is cut, and leaves the table. It has that page under every number, also when the
/// root has gone back, and its number with it.
#[test]
fn a_global_page_outlives_the_table_that_it_was_found_by() {
    let log = |end: &str| {
        format!(
            "0 write 0x30000 0x8001
0 write 0x20000 0x4001
0 write 0x10000 0x100000d7
0 barrier fence
0 root 0x8000100000000030
0 write 0x20000 0x0
0 write 0x10000 0x100000f3
0 root 0x8000200000000031
0 node free 0x30000 4096
{end}0 frame free 0x40000000 4096"
        )
    };
    assert_eq!(broken(Arch::Sv39, &log("")), Some((10, "frame-reached")));
    assert_eq!(broken(Arch::Sv39, &log("0 fence\n")), None);
}

/// MIPS32: a page is in the TLB by pairs within it, as nothing is beside it. Where it gets a neighbour of its size, the pair of both would
/// match beside them.
#[test]
fn a_page_that_gets_a_neighbour_is_flushed_too() {
    let page = |first: u64| {
        (first..first + 4)
            .map(|slot| format!("0 write {:#x} 0x40002046\n", 0x2000 + 4 * slot))
            .collect::<String>()
    };
    let log = |fence: &str| {
        format!(
            "0 write 0x1000 0x80002000\n0 root 0x1001\n{}{}{fence}0 access 0x0 load user 0x80000",
            page(0),
            page(4)
        )
    };
    assert_eq!(broken(Arch::Mips32, &log("0 fence va 0x4000 0x7fff\n")), Some((12, "two-match")));
    assert_eq!(broken(Arch::Mips32, &log("0 fence va 0x0 0x7fff\n")), None);
}

/// An invalidation of a number that a CPU has left covers what goes before it is complete: the CPU loads nothing under that number.
/// One that began before the CPU left it does not.
#[test]
fn what_goes_while_a_number_is_invalidated() {
    let log = |cpu_1: [&str; 2]| {
        format!(
            "{ONE}{}\n{}
0 write 0x10000 0
0 barrier dsb
0 fence va 0x0
0 barrier dsb
0 frame free 0x40000000 4096
1 barrier dsb
1 barrier isb
1 root 0x1000000040000
1 access 0x1000 load user fault
",
            cpu_1[0], cpu_1[1]
        )
    };
    let (leave, begin) = ("1 root 0x2000000041000", "1 fence asid 1");
    assert_eq!(broken(Arch::Aarch64, &log([leave, begin])), None);
    assert_eq!(broken(Arch::Aarch64, &log([begin, leave])), Some((18, "asid-reused")));
}
