//! Logs on which the checker and another machine, of `agreement.rs` or of `brute`, once said different things, or both the wrong one.

use tlbkit_witness::check::{Arch, Checker, Pending, Refusal, Rule, check};
use tlbkit_witness::event::{Event, Fence, Memory};

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
0 barrier dsb
0 root 0x1000000040000
0 done 1"
    );
    assert_eq!(broken(Arch::Aarch64, &done), Some((14, "right-kept")));
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

/// Two tables that have no entry for an address do not share what is below it. So a CPU that runs the second one reads nothing of the
/// first again, whether or not it sees the store that changed that.
#[test]
fn two_tables_without_an_entry_share_nothing() {
    let log = |fence: &str| {
        format!(
            "0 write 0x20000 0x80010000
0 write 0x10000 0x400006
0 barrier sync
0 root 0x20001
1 root 0x20001
0 root 0x21001
1 root 0x21002
1 node free 0x20000 4096
{fence}0 frame free 0x10000000 4096"
        )
    };
    assert_eq!(broken(Arch::Mips32, &log("0 fence\n")), None);
    assert_eq!(broken(Arch::Mips32, &log("")), Some((9, "frame-reached")));
}

/// A number is loaded before it is invalidated. From then on a walk may be in each node that its entries link (RISC-V, "Supervisor
/// Memory-Management Fence Instruction": an implementation may walk speculatively, by any translation that it has cached for the ASID
/// in `satp`), also in one that was given back while the number was not loaded.
#[test]
fn a_number_that_is_loaded_reaches_what_went_meanwhile() {
    let log = |before: &str, moves: &str| {
        format!(
            "0 write 0x30000 0x8001
0 write 0x20000 0x4001
0 write 0x10000 0x100000d7
0 barrier fence
0 root 0x8000100000000030
1 root 0x8000100000000030
1 write 0x20000 0x4401
1 barrier fence
0 root 0x8000200000000031
1 root 0x8000200000000031
0 node free 0x10000 4096
{before}0 root 0x8000100000000030
0 {moves} 0x10000 4096"
        )
    };
    for moves in ["node take", "frame take"] {
        assert_eq!(broken(Arch::Sv39, &log("", moves)), Some((13, "node-reached")));
        assert_eq!(broken(Arch::Sv39, &log("0 fence asid 1\n", moves)), None);
    }
}

/// CPU 0 runs another table, whose own link to the shared node gives more rights (Intel SDM, volume 3, 4.6: the rights of a page are
/// those of all entries on the way to it). What that table gives no promise takes away; what neither table gives it does.
#[test]
fn a_table_gives_rights_by_a_link_of_its_own() {
    let log = |old: &str, new: &str, fence: &str| {
        format!(
            "0 write 0x40000 0x30007
0 write 0x30000 0x20007
0 write 0x20000 0x10007
0 write 0x10000 {old}
0 write 0x41000 0x8000000000030007
0 root 0x8000000000040001
1 root 0x8000000000041002
1 lower 1 0x0 0xfff
1 write 0x10000 {new}
1 fence va 0x0
{fence}1 done 1"
        )
    };
    let flush = "0 fence va 0x0\n";
    // CPU 0 may execute the page, and CPU 1 may not.
    assert_eq!(broken(Arch::X86_64, &log("0x40000063", "0x40000067", "")), None);
    assert_eq!(broken(Arch::X86_64, &log("0x40000067", "0x40000065", "")), Some((11, "right-kept")));
    assert_eq!(broken(Arch::X86_64, &log("0x40000067", "0x40000065", flush)), None);
    // The frame is another one.
    assert_eq!(broken(Arch::X86_64, &log("0x40000067", "0x50000067", "")), Some((11, "right-kept")));
    assert_eq!(broken(Arch::X86_64, &log("0x40000067", "0x50000067", flush)), None);
}

/// MIPS32: a CPU sees the stores to one word in their order. A handler that has found the new link finds the old one no more, so that
/// pages of the new node and of the old one do not match together.
#[test]
fn a_handler_does_not_go_back_to_an_earlier_link() {
    let page: String =
        (0..16).map(|slot| format!("0 write {:#x} 0x40400102\n", 0x10040 + 4 * slot)).collect();
    let log = format!(
        "0 uses halves
0 write 0x20000 0x80010000
0 write 0x10000 0x400006
0 barrier sync
0 root 0x20001
1 root 0x20001
{page}0 barrier sync
1 write 0x20000 0x80011000
0 write 0x11054 0x400002
0 root 0x20001"
    );
    assert_eq!(broken(Arch::Mips32, &log), None);
}

/// A CPU has left the table of a global page, and does not see the store that took the page away. It flushes the page, and reads it again
/// if the table that it runs by then leads to the same node, in whatever level the two meet.
#[test]
fn a_global_page_is_not_read_again_from_a_table_that_was_left() {
    let log = |other: &str| {
        format!(
            "0 write 0x30000 0x8001
0 write 0x20000 0x4001
0 write 0x10000 0x100000f7
{other}0 barrier fence
0 root 0x8000100000000030
1 root 0x8000100000000030
1 root 0x8000200000000031
0 write 0x10000 0x0
1 fence va 0x0
0 fence va 0x0
0 frame free 0x40000000 4096"
        )
    };
    assert_eq!(broken(Arch::Sv39, &log("")), None);
    let shared = "0 write 0x31000 0x8401\n0 write 0x21000 0x4001\n";
    assert_eq!(broken(Arch::Sv39, &log(shared)), Some((13, "frame-reached")));
}

/// MIPS32: an invalid half with G makes its pair global. What was in its place under one ASID matches beside that pair, once the CPU
/// runs that ASID again (MIPS32 PRA, volume III, "TLB Organization": G of both halves leaves the ASID out of the comparison).
#[test]
fn an_invalid_half_makes_its_pair_global() {
    let log = |fence: &str| {
        format!(
            "0 write 0x20000 0x80010000
0 write 0x10000 0x400006
0 barrier sync
0 root 0x20001
1 root 0x20001
1 root 0x20000
{fence}0 write 0x10004 0x400003
0 write 0x10000 0x1"
        )
    };
    assert_eq!(broken(Arch::Mips32, &log("")), Some((8, "two-match")));
    assert_eq!(broken(Arch::Mips32, &log("1 fence asid 1\n")), None);
}

/// MIPS32: a link was replaced twice, and another CPU sees the first store alone yet. It loads a page of the first node, and one of
/// the second node that takes it in.
#[test]
fn a_page_below_an_earlier_link_matches_beside_a_larger_one() {
    let log = |seen: &str| {
        format!(
            "0 uses halves
0 write 0x20000 0x80010000
0 write 0x10000 0x400006
0 barrier sync
0 root 0x20001
1 root 0x20001
1 write 0x20000 0x80011000
1 write 0x20000 0x80010000
{seen}0 write 0x11078 0x400002
1 write 0x10040 0x40400506"
        )
    };
    assert_eq!(broken(Arch::Mips32, &log("")), Some((10, "two-match")));
    assert_eq!(broken(Arch::Mips32, &log("1 barrier sync\n")), None);
}

/// A CPU stores in a node and links the node, without a barrier between. A walk may see the link and not the store before (RISC-V,
/// `SFENCE.VMA`: implicit reads are not ordered after a CPU's own stores), so that the kernel faults where there is a page.
#[test]
fn a_walk_sees_a_link_and_not_the_store_before_it() {
    let log = |barrier: &str, fence: &str| {
        format!(
            "0 write 0x30000 0x8001
0 write 0x20000 0x4001
0 write 0x10000 0x100000d7
0 barrier fence
0 root 0x8000100000000030
0 write 0x21000 0x4001
{barrier}0 write 0x30000 0x8401
{fence}0 access 0x0 load kernel 0x40000000"
        )
    };
    assert_eq!(broken(Arch::Sv39, &log("", "")), Some((8, "access-differs")));
    assert_eq!(broken(Arch::Sv39, &log("0 barrier release\n", "")), None);
    assert_eq!(broken(Arch::Sv39, &log("", "0 fence\n")), None);
    // A flush of the page leaves what was read above the leaves.
    assert_eq!(broken(Arch::Sv39, &log("", "0 fence va 0x0\n")), Some((9, "access-differs")));
}

/// An invalidation of a page alone has begun on another CPU. Until the link to the page goes, the CPU reads the page again by way of it,
/// and then holds it when that invalidation is complete (AMD APM, volume 3, INVLPGB: it is done on each CPU at any time before TLBSYNC).
#[test]
fn what_is_read_again_while_an_invalidation_is_under_way_stays() {
    let log = |fence: &str| {
        format!(
            "0 write 0x40000 0x30027
0 write 0x30000 0x20027
0 write 0x20000 0x10027
0 write 0x10000 0x40000067
0 root 0x40001
1 root 0x40001
0 write 0x20000 0x0
1 fence va 0x0 leaf broadcast
0 fence va {fence}
1 barrier tlbsync
1 fence
0 frame free 0x40000000 4096"
        )
    };
    assert_eq!(broken(Arch::X86_64, &log("0x1000")), Some((12, "frame-reached")));
    assert_eq!(broken(Arch::X86_64, &log("0x0")), None);
}

/// A CPU that has loaded its root after a store, and has a fence between, sees that store, whether or not a barrier orders it before the
/// link that follows.
#[test]
fn a_cpu_that_has_loaded_its_root_since_sees_what_is_linked() {
    let log = |root: &str| {
        format!(
            "0 write 0x30000 0x8001
0 write 0x20000 0x4001
0 write 0x10000 0x100000d7
0 barrier fence
0 root 0x8000100000000030
1 root 0x8000100000000030
0 write 0x11000 0x10000053
{root}0 write 0x20000 0x4401
1 access 0x8 load kernel 0x40000008"
        )
    };
    assert_eq!(broken(Arch::Sv39, &log("1 fence\n1 root 0x8000100000000030\n")), None);
    assert_eq!(broken(Arch::Sv39, &log("")), Some((9, "access-differs")));
}

/// MIPS32: a handler that goes on through a link that was replaced loads a pair of which one half is invalid. The entry matches for that
/// half, too, when the walk has ended and the link is forgotten.
#[test]
fn the_invalid_half_of_a_pair_outlives_the_link() {
    let log = |fence: &str| {
        format!(
            "0 write 0x20000 0x80010000
0 write 0x10000 0x400006
0 barrier sync
0 root 0x20001
1 root 0x20001
0 write 0x11008 0x400046
0 write 0x20000 0x80011000
0 write 0x1000c 0x400042
1 write 0x10000 0x0
{fence}1 access 0x2000 store kernel 0x10001000"
        )
    };
    assert_eq!(broken(Arch::Mips32, &log("")), Some((10, "access-differs")));
    assert_eq!(broken(Arch::Mips32, &log("1 fence va 0x2000\n")), None);
}

/// A promise for more than four MiB asks for every page of it: for one at its end that another word of a run still gives, and for
/// a global one of a table that the CPU has left.
#[test]
fn a_promise_for_a_long_range_asks_for_its_end() {
    let run = |changed: u64| {
        let mut log = String::from("0 write 0x1000 0x801\n0 write 0x2018 0xc01\n");
        for slot in 0..16 {
            log += &format!("0 write {:#x} 0x80000000000220d7\n", 0x3000 + 8 * slot);
        }
        log += "0 barrier fence\n0 root 0x8000000000000001\n0 lower 1 0 0x7fffff\n";
        for slot in 0..changed {
            log += &format!("0 write {:#x} 0\n", 0x3000 + 8 * slot);
        }
        log + "0 fence\n0 done 1\n"
    };
    assert_eq!(broken(Arch::Sv39, &run(15)), Some((38, "right-kept")));
    assert_eq!(broken(Arch::Sv39, &run(16)), None);
    let left = |fence: &str| {
        format!(
            "0 write 0x1000 0x801
0 write 0x2018 0xc01
0 write 0x3000 0x200e7
0 write 0x11000 0
0 barrier fence
0 root 0x8000100000000001
0 root 0x8000200000000011
{fence}0 lower 1 0 0x7fffff
0 done 1"
        )
    };
    assert_eq!(broken(Arch::Sv39, &left("")), Some((9, "right-kept")));
    assert_eq!(broken(Arch::Sv39, &left("0 fence asid 2\n")), Some((10, "right-kept")));
    assert_eq!(broken(Arch::Sv39, &left("0 fence\n")), None);
}

/// A kernel that runs Sv48 has no log of Sv39. One that turns translation off has.
#[test]
fn a_root_of_another_mode_is_refused() {
    let root = |arch, mode: u64| check(arch, &format!("0 root {:#x}", mode << 60 | 1)).is_ok();
    for (arch, own) in [(Arch::Sv39, 8), (Arch::Sv48, 9), (Arch::Sv57, 10)] {
        for mode in 0..16 {
            assert_eq!(root(arch, mode), mode == 0 || mode == own, "{}: {mode}", arch.name());
        }
    }
}

/// A CPU goes back to the table that it had, under a number that has not been invalidated since a frame of it went. The story speaks of
/// no second table.
#[test]
fn a_story_of_a_number_that_is_run_again() {
    let log = format!(
        "{ONE}1 root 0x2000000041000
0 write 0x10000 0
0 barrier dsb
0 fence va 0
0 barrier dsb
0 frame free 0x40000000 4096
1 root 0x1000000040000
1 access 0 load user fault"
    );
    let Err(Refusal::Violation(found)) = check(Arch::Aarch64, &log) else { panic!("this is no violation") };
    assert_eq!((found.line(), found.rule().name()), (15, "asid-reused"));
    let story = found.story().join("\n");
    assert!(story.contains("what has gone") && !story.contains("two tables"), "{story}");
}

/// A walk that a CPU had begun and that found nothing is over when the CPU runs another number and executes an `isb`, whether or not
/// the store of an entry is visible by then. When the CPU goes back, its walks see that store.
#[test]
fn a_walk_that_found_nothing_ends_under_another_number() {
    let log = |isb: &str| {
        format!(
            "{ONE}1 root 0x2000000040000
0 write 0x30008 0xc0000fc1
{isb}0 barrier dsb
1 root 0x1000000040000
1 access 0x40000008 load kernel 0xc0000008"
        )
    };
    assert_eq!(broken(Arch::Aarch64, &log("1 barrier isb\n")), None);
    assert_eq!(broken(Arch::Aarch64, &log("")), Some((12, "access-differs")));
}

/// With pages of 16 KiB a half has 47 bits: an invalidation of a page in the upper half names it.
#[test]
fn an_invalidation_in_the_upper_half_of_47_bits() {
    let log = |fence: &str| {
        format!(
            "0 write 0x7ff8 0x8003
0 write 0xbff8 0xc003
0 write 0xfff8 0x80000703
0 barrier dsb
0 root 0x4000 high
0 write 0xfff8 0
0 barrier dsb
{fence}0 barrier dsb
0 frame free 0x80000000 16384"
        )
    };
    assert_eq!(broken(Arch::Aarch64K16, &log("0 fence va 0xffffffffffffc000 leaf\n")), None);
    let other = "0 fence va 0xffffffffffff8000 leaf\n";
    assert_eq!(broken(Arch::Aarch64K16, &log(other)), Some((10, "frame-reached")));
}

/// A number is given to another table, after it was invalidated. A promise about the first table says nothing of the second one.
#[test]
fn a_promise_is_not_for_the_next_table_under_a_number() {
    let log = "0 write 0x40000 0x30007
0 write 0x30000 0x20007
0 write 0x20000 0x10007
0 write 0x10000 0x40000067
0 write 0x41000 0x31007
0 write 0x31000 0x21007
0 write 0x21000 0x11007
0 write 0x11000 0x50000067
0 root 0x40001
1 root 0x40001
1 root 0x41001
0 lower 1 0x0 0xfff
0 write 0x10000 0x0
0 fence va 0x0
0 write 0x11000 0x0
0 done 1";
    assert_eq!(broken(Arch::X86_64, log), None);
}

/// MIPS32: a CPU that links a node holds the lock under which another CPU stored to it, and sees the stores of that CPU, also the one
/// that took a link away. So its handler comes by that link no more.
#[test]
fn a_walk_has_ended_when_a_cpu_takes_the_lock() {
    let log = "0 write 0x20000 0x80010000
0 write 0x10000 0x400006
0 barrier sync
0 root 0x20001
1 root 0x20001
0 root 0x21002
0 root 0x20001
0 write 0x20000 0x0
0 write 0x11008 0x400006
1 write 0x21000 0x80011000
0 node free 0x10000 4096";
    assert_eq!(broken(Arch::Mips32, log), None);
}

/// MIPS32: a page is stored below a link that has gone. A pair of two invalid halves that was there before is one that this page knows
/// nothing of, as docs/witness.md says. Where the page was stored first, the pair is known: it was in the table.
#[test]
fn a_pair_of_two_invalid_halves_below_a_link_that_went() {
    let log = |stores: &str| {
        format!(
            "0 write 0x20000 0x80010000
0 write 0x10000 0x400006
0 barrier sync
0 root 0x20001
1 root 0x20001
{stores}0 write 0x20000 0x80010000
0 access 0x2000 store kernel 0x10001000"
        )
    };
    let after = "1 write 0x20000 0x0\n1 write 0x10008 0x400047\n";
    assert_eq!(broken(Arch::Mips32, &log(after)), None);
    let before = "1 write 0x10008 0x400047\n1 write 0x20000 0x0\n";
    assert_eq!(broken(Arch::Mips32, &log(before)), Some((9, "access-differs")));
}

/// MIPS32: a page goes, and then the link above it. The invalid half of its entry stays in a TLB until the entry is invalidated, and a
/// page that another node maps there misses.
#[test]
fn an_invalid_half_outlives_its_page_and_the_link() {
    let log = |fence: &str| {
        format!(
            "0 write 0x20000 0x80010000
0 write 0x10000 0x1000006
0 write 0x11004 0x1000002
0 barrier sync
0 root 0x20001
1 root 0x20001
0 write 0x10000 0x0
{fence}0 barrier release
0 write 0x20000 0x80011000
0 access 0x1000 load kernel 0x40000000"
        )
    };
    assert_eq!(broken(Arch::Mips32, &log("")), Some((10, "access-differs")));
    assert_eq!(broken(Arch::Mips32, &log("0 fence va 0x0\n")), None);
}

/// The story of a page that a CPU reads again by way of a link, after an invalidation of the page alone, names the link as the
/// reason, on machines whose stores are visible at once, too.
#[test]
fn a_story_of_a_page_below_a_link_that_stays() {
    let story = |arch, log: &str| match check(arch, log) {
        Err(Refusal::Violation(found)) => found.story().join("\n"),
        other => panic!("{other:?}"),
    };
    let x86 = "0 write 0x40000 0x30027
0 write 0x30000 0x20027
0 write 0x20000 0x10027
0 write 0x10000 0x40000067
0 root 0x40001
0 lower 1 0
0 write 0x20000 0
0 fence va 0 broadcast leaf
0 barrier tlbsync
0 done 1";
    let risc_v = "0 write 0x30000 0x8001
0 write 0x20000 0x4001
0 write 0x10000 0x100000d7
0 barrier fence
0 root 0x8000100000000030
0 lower 1 0
0 write 0x20000 0x0
0 fence va 0x0
0 done 1";
    for (arch, log, line) in [(Arch::X86_64, x86, 7), (Arch::Sv39, risc_v, 7)] {
        let story = story(arch, log);
        let why = format!("leaves the link that was changed in line {line}");
        assert!(story.contains(&why) && !story.contains("not visible"), "{story}");
    }
    // Where the store was not visible, that is the reason.
    let unseen = "0 write 0x30000 0x8001
0 write 0x20000 0x4001
0 write 0x10000 0x100000d7
0 barrier fence
1 root 0x8000100000000030
0 write 0x10000 0x0
1 fence
0 frame free 0x40000000 4096";
    let story = story(Arch::Sv39, unseen);
    assert!(story.contains("not visible there yet"), "{story}");
}

/// x86-64: a broadcast invalidation of a page covers the link to it, too, and with it what a CPU reads again by way of the link; that of
/// another page does not (AMD APM, volume 3, INVLPGB).
#[test]
fn a_broadcast_invalidation_covers_the_link_and_the_page() {
    let log = |page: &str| {
        format!(
            "0 write 0x40000 0x30027
0 write 0x30000 0x20027
0 write 0x20000 0x10027
0 root 0x40001
1 root 0x40001
0 write 0x20000 0x0
0 write 0x10000 0x40000067
0 fence va {page} broadcast
0 barrier tlbsync
0 frame free 0x40000000 4096"
        )
    };
    assert_eq!(broken(Arch::X86_64, &log("0x0")), None);
    assert_eq!(broken(Arch::X86_64, &log("0x40000000")), Some((10, "frame-reached")));
}

/// What came out of an exchange is what the word held. Hardware may have set status bits meanwhile, and then they are in what CPUs hold.
#[test]
fn an_exchange_returns_what_was_there() {
    let sv39 = |begin: &str, old: u64| {
        let log = format!(
            "{begin}0 write 0x1000 0x801
0 write 0x2000 0xc01
0 write 0x3000 0x20057
0 root 0x8000000000000001
0 swap 0x3000 {old:#x} 0x20053"
        );
        check(Arch::Sv39, &log)
    };
    let wrong = sv39("", 0x20053).unwrap_err().to_string();
    assert_eq!(wrong, "line 5: the word did not hold this old value before");
    assert!(sv39("", 0x20057).is_ok());
    // The bits are hardware's after `uses dirty` alone, and hardware clears none.
    assert!(sv39("", 0x200d7).is_err());
    assert!(sv39("0 uses dirty\n", 0x200d7).is_ok());
    assert!(sv39("0 uses dirty\n", 0x20017).is_err());
    assert!(sv39("0 uses dirty\n", 0x20853).is_err());
    let one = |arch, begin: &str, from: u64, to: u64| {
        check(arch, &format!("{begin}0 write 0x1000 {from:#x}\n0 swap 0x1000 {to:#x} 0")).is_ok()
    };
    assert!(one(Arch::X86_64, "", 0x40000003, 0x40000063) && !one(Arch::X86_64, "", 0x40000063, 0x40000003));
    assert!(!one(Arch::X86_64, "", 0x40000002, 0x40000062), "it is not present");
    let dbm = 1 << 51 | 0x4000_0783;
    assert!(
        one(Arch::Aarch64, "0 uses dirty\n", dbm, dbm & !0x80) && !one(Arch::Aarch64, "", dbm, dbm & !0x80)
    );
    assert!(!one(Arch::Aarch64, "0 uses dirty\n", 0x4000_0783, 0x4000_0703), "without DBM");
    assert!(!one(Arch::Mips32, "", 0x400002, 0x400006));

    // A CPU that holds the dirty entry sets the bit no more: it has to go before the next store is to be seen.
    let lowered = |fence: &str| {
        format!(
            "0 uses dirty
0 write 0x1000 0x801
0 write 0x2000 0xc01
0 write 0x3000 0x20057
0 root 0x8000000000000001
1 root 0x8000000000000001
0 lower 1 0
0 swap 0x3000 0x200d7 0x20057
0 barrier fence
0 fence va 0
{fence}0 done 1"
        )
    };
    assert_eq!(broken(Arch::Sv39, &lowered("")), Some((11, "right-kept")));
    assert_eq!(broken(Arch::Sv39, &lowered("1 fence va 0\n")), None);
}

/// A number has no more bits than the machine's register for it.
#[test]
fn a_number_that_is_too_wide_is_refused() {
    for arch in Arch::ALL {
        let bits = match arch {
            Arch::Sv32 => 9,
            Arch::X86_64 | Arch::X86_64La57 => 12,
            Arch::Mips32 => 8,
            _ => 16,
        };
        let fence = |asid: u64| check(arch, &format!("0 fence asid {asid}"));
        assert!(fence((1 << bits) - 1).is_ok(), "{}", arch.name());
        let said = fence(1 << bits).unwrap_err().to_string();
        assert!(said.contains(&format!("{bits} bits")), "{}: {said}", arch.name());
    }
}

/// The story of a number names the root that the CPU has loaded, also where that is the one of AArch64's upper half.
#[test]
fn a_story_of_two_tables_of_the_upper_half() {
    let log = "0 write 0x50000 0x30003
0 root 0x1000000040000
0 root 0x2000000050000 high
0 root 0x2000000060000 high
0 access 0xffff000000000000 load user fault";
    let Err(Refusal::Violation(found)) = check(Arch::Aarch64, log) else { panic!("this is no violation") };
    assert_eq!(found.rule().name(), "asid-reused");
    let story = found.story().join("\n");
    assert!(story.contains("loaded the root 0x60000") && story.contains("table at 0x50000"), "{story}");
}

/// MIPS32: a pair becomes global while a CPU runs another table, or none. What the CPU holds of it under one number matches beside the
/// pair of all when it runs the table under another number.
#[test]
fn a_pair_that_became_global_meets_an_entry_of_another_number() {
    let log = |fence: &str| {
        format!(
            "0 write 0x20000 0x80010000
0 write 0x10000 0x400006
0 write 0x10004 0x400046
0 root 0x20001
0 root 0x21002
0 write 0x10000 0x400007
0 write 0x10004 0x400047
0 root 0x20003
{fence}0 access 0x0 load user 0x10000000"
        )
    };
    assert_eq!(broken(Arch::Mips32, &log("")), Some((9, "two-match")));
    // Also where the store to an invalid half made the pair global.
    let half = "0 write 0x20000 0x80010000
0 write 0x1000c 0x400007
0 root 0x20001
0 write 0x10008 0x1
0 root 0x20002
0 root 0x20001";
    assert_eq!(broken(Arch::Mips32, half), Some((6, "two-match")));
    let both = half
        .replace("0 write 0x1000c 0x400007", "0 write 0x1000c 0x400006")
        .replace("0 write 0x10008", "0 write 0x1000c 0x400007\n0 write 0x10008");
    assert_eq!(broken(Arch::Mips32, &both), Some((7, "two-match")));
    // It has until then to flush. Under the number that the entry has, the handler does not run.
    assert_eq!(broken(Arch::Mips32, &log("0 fence asid 1\n")), None);
    assert_eq!(broken(Arch::Mips32, &log("").replace("root 0x20003", "root 0x20001")), None);
    // So do pages that a larger one took the place of meanwhile, under the same number.
    let page: String = (0..4).map(|slot| format!("0 write {:#x} 0x40400046\n", 0x10000 + 4 * slot)).collect();
    let larger = log("").replace(
        "0 write 0x10000 0x400007\n0 write 0x10004 0x400047\n0 root 0x20003\n",
        &format!("{page}0 root 0x20001\n"),
    );
    assert_eq!(broken(Arch::Mips32, &larger), Some((11, "two-match")));
    let flushed = larger.replace("0 root 0x20001\n0 access", "0 root 0x20001\n0 fence va 0\n0 access");
    assert_eq!(broken(Arch::Mips32, &flushed), None);
}

/// A word is given ever new frames, and nothing is flushed: each store costs a few look-ups. If each cost a look at all that two CPUs
/// hold by then, this log would take hours.
#[test]
fn a_word_of_many_frames() {
    let mut checker = Checker::new(Arch::X86_64);
    let mut say = |cpu, event| checker.say(cpu, event).unwrap();
    for (at, value) in [(0x1000, 0x2027), (0x2000, 0x3027), (0x3000, 0x4027)] {
        say(0, Event::Write { at, value });
    }
    (0..2).for_each(|cpu| say(cpu, Event::Root { value: 0x1000, high: false }));
    for frame in 0..100_000 {
        say(0, Event::Write { at: 0x4000, value: frame << 12 | 0x67 });
    }
    // All of them are known.
    say(0, Event::Fence(Fence::default()));
    let freed = Event::Frame(Memory { at: 7 << 12, bytes: 4096, free: true });
    let broken = checker.say(0, freed).unwrap_err();
    assert_eq!(broken.violation().and_then(|found| found.cpu()), Some(1));
}

/// AArch64: an invalidation that is complete, and a root that is loaded, are seen by what a CPU executes after its next context
/// synchronisation event: an `isb`, an exception, or the return from one (Arm Cortex-A Series Programmer's Guide for ARMv8-A, 13.2.2).
#[test]
fn an_isb_follows_an_own_invalidation_and_a_root() {
    let unmapped = |end: &str| {
        format!(
            "{ONE}0 write 0x10000 0
0 barrier dsb
0 fence va 0 broadcast
0 barrier dsb
{end}"
        )
    };
    let left = |end: &str| format!("{ONE}0 root 0x2000000041000\n{end}");
    let own = "0 access 0 load kernel fault";
    assert_eq!(broken(Arch::Aarch64, &unmapped(own)), Some((12, "access-differs")));
    assert_eq!(broken(Arch::Aarch64, &left(own)), Some((9, "access-differs")));
    for log in [&unmapped as &dyn Fn(&str) -> String, &left] {
        // Another CPU has executed neither, and a CPU comes to user mode by a return from an exception.
        for end in [
            format!("0 barrier isb\n{own}"),
            format!("1 ipi send 0 7\n0 ipi take 7\n{own}"),
            "0 access 0 load user fault".into(),
        ] {
            assert_eq!(broken(Arch::Aarch64, &log(&end)), None, "{end}");
        }
    }
    assert_eq!(broken(Arch::Aarch64, &unmapped("1 access 0 load kernel fault")), None);
    // What the CPU finds below a link that goes, too.
    let below = "0 write 0x20000 0
0 write 0x10008 0x50000f43
0 barrier dsb
0 fence va 0 0x1fff broadcast
0 barrier dsb
";
    let access = "0 access 0x1000 load kernel fault";
    assert_eq!(broken(Arch::Aarch64, &format!("{ONE}{below}{access}")), Some((13, "access-differs")));
    assert_eq!(broken(Arch::Aarch64, &format!("{ONE}{below}0 barrier isb\n{access}")), None);
    // Nothing was there that another frame could be reached by, or the same frame is.
    let same = format!("{ONE}0 fence va 0 broadcast\n0 barrier dsb\n0 access 0 load kernel 0x40000000");
    assert_eq!(broken(Arch::Aarch64, &same), None);
}

/// With pages of 64 KiB the top-level node has 64 words, whichever half it is of.
#[test]
fn an_access_in_the_upper_half_of_64_kib() {
    let log = "0 write 0x40000 0x30003
0 write 0x30000 0x20003
0 write 0x20000 0x80000703
0 barrier dsb
0 root 0x40000 high
0 access 0xffff000000000008 load kernel 0x80000008";
    assert_eq!(broken(Arch::Aarch64K64, log), None);
}

/// A change in a table that its CPU has not loaded is promised by the root that it names: where it runs, and where it is kept under its
/// number.
#[test]
fn a_change_of_another_address_space_is_checked_by_the_root_that_it_names() {
    let begin = "
        0 write 0x1000 0x801
        0 write 0x2000 0xc01
        0 write 0x3000 0x200cf
        0 write 0x5000 0
        0 barrier fence
        1 root 0x8000100000000001
        0 root 0x8000200000000005";
    let change = "
        0 lower 1 0 0xfff root 0x8000000000000001
        0 write 0x3000 0";
    let shot = "
        0 barrier fence
        0 ipi send 1 1
        1 ipi take 1
        1 fence va 0";
    let rule = |log: String| check(Arch::Sv39, &log).map_err(|why| why.violation().map(|why| why.rule()));
    let done = "\n0 done 1";
    assert_eq!(rule(format!("{begin}{change}{done}")), Err(Some(Rule::RightKept)), "it runs elsewhere");
    let held = rule(format!("{begin}{change}{shot}{done}")).unwrap();
    assert_eq!((held.promised, held.unchanged), (1, 0));
    // Kept under its number by a CPU that runs another one: that has to go before the number runs again.
    let left = "\n1 root 0x8000200000000005";
    let again = "\n1 root 0x8000100000000001\n1 access 0 load user fault";
    let seen = "\n0 barrier fence";
    assert_eq!(rule(format!("{begin}{left}{change}{seen}{done}{again}")), Err(Some(Rule::AsidReused)));
    let gone = "\n0 barrier fence\n1 fence asid 1";
    assert_eq!(rule(format!("{begin}{left}{change}{gone}{done}{again}")).unwrap().promised, 1);
    // Without the root, the change is taken to be one of the table that CPU 0 has loaded: nothing of that has changed.
    let unnamed = change.replace(" root 0x8000000000000001", "");
    let blind = rule(format!("{begin}{unnamed}{done}")).unwrap();
    assert_eq!((blind.promised, blind.unchanged), (0, 1));
    for (root, why) in [("0", "names no table"), ("0x8000000000000006", "was given back")] {
        let log = format!("{begin}\n0 node free 0x6000 4096\n0 lower 1 0 root {root}");
        let refused = check(Arch::Sv39, &log).unwrap_err();
        assert!(
            matches!(refused, Refusal::Impossible { .. }) && refused.to_string().contains(why),
            "{refused}"
        );
    }
}

/// What a log leaves open when it ends is told, and breaks no rule.
#[test]
fn what_a_log_leaves_open_is_told() {
    let log = format!(
        "{ONE}0 lower 7 0 0xfff
0 write 0x10000 0
0 fence va 0
0 fence va 0x1000 broadcast
0 ipi send 1,2 5
1 ipi take 5
1 root 0x1000000050000
"
    );
    let mut checker = Checker::new(Arch::Aarch64);
    for (line, text) in (1..).zip(log.lines()) {
        let (cpu, event) = tlbkit_witness::parse(text).unwrap().unwrap();
        checker.event(line, cpu, event).unwrap();
    }
    let told: Vec<String> = checker.pending().iter().map(ToString::to_string).collect();
    assert_eq!(
        told,
        [
            "line 8: change 7 is never promised: no `done 7` follows",
            "line 10: no barrier of CPU 0 completes this invalidation, nor 1 more",
            "line 12: interrupt 5 is never taken by CPU 2",
            "line 14: CPU 1 has to invalidate ASID 1 before it is used, and the log ends before that",
        ]
    );
}

/// A `dsb` for stores alone completes no invalidation, and one for the CPU alone completes those for itself, and says nothing to others.
#[test]
fn a_narrow_dsb_does_what_it_does_and_no_more() {
    let rule = |steps: &str| broken(Arch::Aarch64, &format!("{ONE}{steps}0 frame free 0x40000000 4096\n"));
    let alone = |steps: &str| {
        let one = ONE.replace("1 root 0x1000000040000\n", "");
        broken(Arch::Aarch64, &format!("{one}{steps}0 frame free 0x40000000 4096\n"))
    };
    let all = |first: &str, last: &str| {
        format!("0 write 0x10000 0\n0 barrier dsb{first}\n0 fence broadcast\n0 barrier dsb{last}\n")
    };
    assert_eq!(rule(&all("", "")), None);
    assert_eq!(rule(&all(" ish", " ish")), None);
    assert_eq!(rule(&all(" ishst", "")), None);
    for [first, last] in [["", " ishst"], ["", " nsh"], ["", " nshst"], [" nsh", ""], [" nshst", ""]] {
        assert_eq!(rule(&all(first, last)), Some((12, "frame-reached")), "{first}, {last}");
    }
    let own = |first: &str, last: &str| all(first, last).replace(" broadcast", "");
    for first in ["", " ishst", " nsh", " nshst"] {
        assert_eq!(alone(&own(first, "")), None, "{first}");
        assert_eq!(alone(&own(first, " nsh")), None, "{first}");
        assert_eq!(alone(&own(first, " nshst")), Some((11, "frame-reached")), "{first}");
    }
}

/// A promise about a leaf of 256 TiB is looked at by what the tables say, not by pages.
#[test]
fn a_huge_leaf_is_promised_at_once() {
    let log = "0 write 0x1000 0xdf
0 barrier fence
0 root 0xa000000000000001
0 lower 1 0 0xffffffffffff
0 write 0x1000 0xdb
0 barrier fence
0 fence
0 done 1
0 lower 2 0 0xffffffffffff
0 write 0x1000 0xd3
0 done 2
";
    assert_eq!(broken(Arch::Sv57, log), Some((11, "right-kept")));
    let kept = log.replace("0 done 2", "0 barrier fence\n0 fence\n0 done 2");
    assert_eq!(broken(Arch::Sv57, &kept), None);
    // What a link takes the place of is compared page by page where pages differ.
    let split = "0 write 0x1000 0xdf
0 write 0x2000 0x1000000000df
0 barrier fence
0 root 0xa000000000000001
0 lower 1 0 0xffffffffffff
0 write 0x1000 0x801
0 done 1
";
    assert_eq!(broken(Arch::Sv57, split), Some((7, "right-kept")));
}

/// One register of AArch64 has the number of both halves. Which one it is decides what runs under which number.
#[test]
fn the_number_of_both_halves_is_that_of_one_register() {
    // Programs in the lower half, numbers in TTBR1, as where TCR_EL1.A1 is 1: a page of program 1 is kept under number 1.
    let begin = "0 write 0x40000 0x30003
0 write 0x30000 0x20003
0 write 0x20000 0x10003
0 write 0x10000 0x40000f43
0 write 0x60000 0
0 write 0x50000 0
0 barrier dsb
0 root 0x1000000060000 high
0 root 0x40000
";
    let switch = "0 root 0x2000000060000 high\n0 root 0x50000\n0 barrier isb\n0 access 0 load kernel fault\n";
    // By the register of each half, all programs run under 0, so that the second one takes the number over.
    assert_eq!(broken(Arch::Aarch64, &format!("{begin}{switch}")), Some((13, "asid-reused")));
    // The table of the first is walked under the second's number until the second root is loaded.
    let declared = |log: &str| broken(Arch::Aarch64, &format!("0 uses asid ttbr1\n{log}"));
    assert_eq!(declared(&format!("{begin}{switch}")), Some((14, "asid-reused")));
    // So a table of nothing comes between, as Linux has it.
    let reserved = "0 root 0\n0 barrier isb\n";
    assert_eq!(declared(&format!("{begin}{reserved}{switch}")), None);
    // The same number is the same address space, whatever TTBR0 says of it.
    let same = switch
        .replace("0 root 0x2000000060000", "0 root 0x1000000060000")
        .replace("0 root 0x50000", "0 root 0x2000000050000");
    assert_eq!(declared(&format!("{begin}{reserved}{same}")), Some((16, "asid-reused")));
    // With A1 0 the lower half's register has it, for the upper half's pages, too.
    let lower = |log: &str| broken(Arch::Aarch64, &format!("0 uses asid ttbr0\n{log}"));
    let kernel = "0 write 0x40000 0x30003
0 write 0x30000 0x20003
0 write 0x20000 0x10003
0 write 0x10000 0x40000f43
0 write 0x50000 0
0 barrier dsb
0 root 0x40000 high
0 root 0x1000000050000
0 lower 1 0xffff000000000000
0 write 0x10000 0
0 barrier dsb
0 fence asid 1
0 barrier dsb
0 done 1
";
    assert_eq!(lower(kernel), None, "the kernel's page was under number 1");
    // It was walked under 0 as well, before the second root; that is not run any more, and has to go before it is.
    assert_eq!(
        lower(&format!("{kernel}0 root 0x50000\n0 access 0 load user fault\n")),
        Some((17, "asid-reused"))
    );
    assert_eq!(broken(Arch::Aarch64, kernel), Some((14, "right-kept")), "or under 0, as TTBR1 says");
    let mut checker = Checker::new(Arch::Aarch64);
    for line in kernel.lines().take(8) {
        let (cpu, event) = tlbkit_witness::parse(line).unwrap().unwrap();
        checker.say(cpu, event).unwrap();
    }
    assert!(matches!(checker.pending()[..], [Pending::Halves { cpu: 0, line: 8 }]));
    for (arch, log) in
        [(Arch::Sv39, "0 uses asid ttbr1"), (Arch::Aarch64, "0 root 0x1000\n0 uses asid ttbr1")]
    {
        assert!(matches!(check(arch, log), Err(Refusal::Impossible { .. })));
    }
}

/// At a root nothing is stored: the story says what is loaded.
#[test]
fn two_entries_that_match_at_a_root_are_told_as_that() {
    let log = format!(
        "{ONE}0 write 0x10000 0
0 barrier dsb
0 write 0x21000 0x80000fc1
0 write 0x31000 0x21003
0 write 0x41000 0x31003
0 barrier dsb
0 root 0x1000000041000"
    );
    let refused = check(Arch::Aarch64, &log).unwrap_err();
    let violation = refused.violation().unwrap();
    assert_eq!((violation.line(), violation.rule()), (14, Rule::TwoMatch), "{violation}");
    assert!(violation.story()[0].contains("loads the root 0x41000"), "{violation}");
}

/// Of the roots that a CPU leaves without an `isb` the last are remembered, and not all of a log.
#[test]
fn the_roots_that_a_cpu_leaves_are_bounded() {
    let log = |others: u64| {
        let mut log = ONE.replace("1 root 0x1000000040000\n", "0 barrier isb\n");
        for root in 1..=others {
            log += &format!("0 root {:#x}\n", (root + 1) << 48 | (0x100_0000 + root * 0x1000));
        }
        log + "0 access 0 load kernel fault\n"
    };
    assert_eq!(broken(Arch::Aarch64, &log(64)), Some((72, "access-differs")));
    assert_eq!(broken(Arch::Aarch64, &log(66)), None);
}

/// A table with nothing in it, as a kernel loads between two programs, leaves nothing under its number where absences are not kept.
#[test]
fn an_empty_table_leaves_nothing_under_its_number() {
    let log =
        |fill: &str| format!("{ONE}{fill}0 root 0x50000\n0 barrier isb\n0 root 0x60000\n0 barrier isb\n");
    let asid = |text: String| broken(Arch::Aarch64, &format!("{text}0 access 0 load kernel fault\n"));
    assert_eq!(asid(log("")), None);
    // The control: it has had a page, and so may have left it.
    let page = "0 write 0x50000 0x30003\n0 barrier dsb\n";
    assert!(asid(log(page)).is_some());
}

/// A CPU's own fence orders the node that it fills before its own walks; other CPUs' walks want a barrier.
#[test]
fn a_node_that_is_linked_after_a_fence_is_seen_by_ones_own_walks() {
    let risc_v = |other: &str, fence: &str| {
        let log = format!(
            "0 root 0x8000000000000001\n{other}0 node take 0x5000 4096\n{fence}0 write 0x1000 0x1401\n"
        );
        broken(Arch::Sv39, &log)
    };
    assert_eq!(risc_v("", "0 fence\n"), None);
    assert_eq!(risc_v("", "0 barrier release\n"), None);
    assert_eq!(risc_v("", ""), Some((3, "unwritten")));
    assert_eq!(risc_v("1 root 0x8000000000000001\n", "0 fence\n"), Some((5, "unwritten")));
    let arm = |other: &str, barrier: &str| {
        let log = format!(
            "0 root 0x1000\n{other}0 barrier isb\n0 node take 0x5000 4096\n0 barrier {barrier}\n0 write 0x1000 0x5003\n"
        );
        broken(Arch::Aarch64, &log)
    };
    for barrier in ["dsb nshst", "dsb nsh", "dsb ishst", "dsb"] {
        assert_eq!(arm("", barrier), None, "{barrier}");
    }
    assert_eq!(arm("", "isb"), Some((5, "unwritten")));
    assert_eq!(arm("1 root 0x1000\n", "dsb nsh"), Some((6, "unwritten")));
    assert_eq!(arm("1 root 0x1000\n", "dsb ishst"), None);
}

/// A node that was a last-level one, and is the root of another table after it was given back and taken again, links nodes and maps no
/// frames: also if the link to it has never been removed.
#[test]
fn a_node_that_becomes_a_root_maps_nothing_by_its_links() {
    let log = "\
0 write 0x1000 0x2007
0 write 0x2000 0x3007
0 write 0x3000 0x4007
0 root 0x1000
0 root 0x9000
0 fence
0 node free 0x4000 4096
0 node take 0x4000 4096
0 write 0x4000 0x5007
0 root 0x4000
0 write 0x4000 0
0 root 0x4000
0 fence
0 node take 0x5000 4096
";
    assert_eq!(broken(Arch::X86_64, log), None);
}
