//! AArch64 with 39 bits of address (T0SZ and T1SZ 25), where the root is a table of level 1, and with 42 bits.

use tlbkit_witness::check::{Arch, Refusal, check};

/// Where a log breaks, and which rule.
fn broken(arch: Arch, log: &str) -> Option<(u64, &'static str)> {
    match check(arch, log) {
        Ok(_) => None,
        Err(Refusal::Violation(found)) => Some((found.line(), found.rule().name())),
        Err(why) => panic!("{why}"),
    }
}

/// A table of one page at VA 0. The node of the last level is at 0x3000.
const ONE: &str = "0 write 0x1000 0x2003
0 write 0x2000 0x3003
0 write 0x3000 0x80f43
";
const RUN: &str = "0 barrier dsb\n0 root 0x1000\n";
const FREE: &str = "0 frame free 0x80000 4096\n";

#[test]
fn what_the_tables_say_holds() {
    // A page that is unmapped and flushed before its frame is free.
    let fenced = "0 write 0x3000 0\n0 barrier dsb\n0 fence va 0x0 broadcast\n0 barrier dsb\n";
    assert_eq!(broken(Arch::Aarch64B39, &format!("{ONE}{RUN}{fenced}{FREE}")), None);
    // A second page.
    let second = "0 write 0x3008 0x81f43\n";
    let access = "0 access 0x1000 load user 0x81000\n";
    assert_eq!(broken(Arch::Aarch64B39, &format!("{ONE}{second}{RUN}{access}")), None);
    // The last page of the lower half, by the last word of each node.
    let last = "0 write 0x1ff8 0x2003\n0 write 0x2ff8 0x3003\n0 write 0x3ff8 0x80f43\n";
    assert_eq!(
        broken(Arch::Aarch64B39, &format!("{last}{RUN}0 access 0x7ffffff000 load kernel 0x80000\n")),
        None
    );
    // A block of 1 GiB in the root.
    let block = "0 write 0x1008 0x40000f41\n";
    assert_eq!(
        broken(Arch::Aarch64B39, &format!("{block}{RUN}0 access 0x40001000 load user 0x40001000\n")),
        None
    );
    // The same page in the upper half.
    let upper = "0 barrier dsb\n0 root 0x1000 high\n";
    assert_eq!(
        broken(Arch::Aarch64B39, &format!("{last}{upper}0 access 0xfffffffffffff000 load kernel 0x80000\n")),
        None
    );
}

#[test]
fn what_they_do_not_say_is_found() {
    // The page is there, so the access reaches it: this log says the opposite by freeing the frame without a flush.
    let found = broken(Arch::Aarch64B39, &format!("{ONE}{RUN}0 write 0x3000 0\n{FREE}"));
    assert_eq!(found, Some((7, "frame-reached")));
    // Another frame than the table says.
    let found = broken(Arch::Aarch64B39, &format!("{ONE}{RUN}0 access 0x0 load user 0x90000\n"));
    assert!(found.is_some_and(|(line, _)| line == 6), "{found:?}");
}

/// With 42 bits the root has eight words: what is in its ninth word is no part of the table.
#[test]
fn a_root_of_eight_words() {
    let last = "0 write 0x1038 0x2003
0 write 0x2ff8 0x3003
0 write 0x3ff8 0x4003
0 write 0x4ff8 0x80f43
";
    for (root, at) in [("0 root 0x1000\n", 0x3ff_ffff_f000_u64), ("0 root 0x1000 high\n", !0xfff)] {
        let log = format!("{last}0 barrier dsb\n{root}0 access {at:#x} load kernel 0x80000\n");
        assert_eq!(broken(Arch::Aarch64B42, &log), None, "{at:#x}");
    }
}
