//! Walks by software beside changes that interrupt no CPU: what such a walk holds, and what it does not.

use tlbkit_witness::check::{Arch, Checker, Pending, Refusal, check};
use tlbkit_witness::parse;

/// Two tables of three nodes each above a last-level node, on two CPUs: the first one maps a frame at VA 0.
const TABLES: &str = "\
0 write 0x1000 0x2003
0 write 0x2000 0x3003
0 write 0x3000 0x4003
0 write 0x4000 0x80f43
0 write 0x11000 0x12003
0 write 0x12000 0x13003
0 write 0x13000 0x14003
0 barrier dsb
0 root 0x1000
1 root 0x1000
";
/// A broadcast after a change.
const BROADCAST: &str = "0 barrier dsb ishst\n0 fence broadcast\n0 barrier dsb\n";

/// Returns the rule that a log breaks, and the CPU, or `None` if it holds.
fn broken(events: &[&str]) -> Option<(&'static str, Option<usize>)> {
    let log = [&[TABLES], events].concat().concat();
    match check(Arch::Aarch64, &log) {
        Ok(_) => None,
        Err(Refusal::Violation(why)) => Some((why.rule().name(), why.cpu())),
        Err(why) => panic!("{why}: {log}"),
    }
}

#[test]
fn a_walk_holds_each_node_of_its_table_and_what_is_cut_off_meanwhile() {
    let node = Some(("node-reached", Some(1)));
    // The link at each level is cut, and each node below it goes back.
    for (cut, nodes) in [
        ("0x1000", &["0x2000", "0x3000", "0x4000"][..]),
        ("0x2000", &["0x3000", "0x4000"]),
        ("0x3000", &["0x4000"]),
    ] {
        let cut = format!("0 write {cut} 0\n");
        for end in nodes {
            for event in ["free", "take"] {
                let end = format!("0 node {event} {end} 4096\n");
                assert_eq!(broken(&["1 walk begin 0x1000\n", &cut, BROADCAST, &end]), node, "{end}");
                assert_eq!(broken(&["1 walk begin 0x1000\n", &cut, BROADCAST, "1 walk end\n", &end]), None);
                // A walk that begins after the change does not find them.
                assert_eq!(broken(&[&cut, BROADCAST, "1 walk begin 0x1000\n", &end]), None);
                assert_eq!(broken(&["1 walk begin 0x11000\n", &cut, BROADCAST, &end]), None, "another table");
            }
        }
    }
    // A node that is linked and cut off while the walk is under way.
    let come_and_go = "0 write 0x2008 0x5003\n0 barrier dsb\n0 write 0x2008 0\n";
    let end = "0 node free 0x5000 4096\n";
    assert_eq!(broken(&["1 walk begin 0x1000\n", come_and_go, BROADCAST, end]), node);
    // A link below one that was cut before.
    let parts = "0 write 0x2000 0\n0 write 0x3000 0\n";
    assert_eq!(broken(&["1 walk begin 0x1000\n", parts, BROADCAST, "0 node free 0x4000 4096\n"]), node);
}

/// No CPU runs the table, so that none but a walk by software can be in its nodes.
#[test]
fn a_walk_holds_a_table_that_no_cpu_runs() {
    let begin = "1 walk begin 0x11000\n";
    for node in ["0x11000", "0x13000", "0x14000"] {
        let end = format!("0 node free {node} 4096\n");
        assert_eq!(broken(&[begin, &end]), Some(("node-reached", Some(1))), "{node}");
        assert_eq!(broken(&[begin, "1 walk end\n", &end]), None, "{node}");
        let frame = format!("0 frame take {node} 4096\n");
        assert_eq!(broken(&[begin, &frame]), Some(("node-reached", Some(1))), "{node}");
    }
}

#[test]
fn a_frame_waits_for_walks_that_use_it_and_for_no_others() {
    for (change, cut) in [("unmapped", "0 write 0x4000 0\n"), ("its node is cut off", "0 write 0x3000 0\n")] {
        for event in ["free", "take"] {
            let end = format!("0 frame {event} 0x80000 4096\n");
            let uses = broken(&["1 walk begin 0x1000 use\n", cut, BROADCAST, &end]);
            assert_eq!(uses, Some(("frame-reached", Some(1))), "{change}");
            assert_eq!(broken(&["1 walk begin 0x1000\n", cut, BROADCAST, &end]), None, "{change}");
            assert_eq!(broken(&[cut, BROADCAST, "1 walk begin 0x1000 use\n", &end]), None, "{change}");
            assert_eq!(broken(&["1 walk begin 0x1000 use\n", cut, BROADCAST, "1 walk end\n", &end]), None);
        }
        let beside = "0 frame free 0x81000 4096\n";
        assert_eq!(broken(&["1 walk begin 0x1000 use\n", cut, BROADCAST, beside]), None, "{change}");
    }
}

/// Each part of a change that is broadcast, left out: the translations of both CPUs, then the walk.
#[test]
fn a_log_without_one_part_of_a_broadcast_is_accused() {
    let log = [
        "1 walk begin 0x1000 use\n",
        "0 write 0x3000 0\n",
        "0 barrier dsb ishst\n",
        "0 fence broadcast\n",
        "0 barrier dsb\n",
        "1 walk end\n",
        "0 frame free 0x80000 4096\n",
        "0 node free 0x4000 4096\n",
    ];
    assert_eq!(broken(&log), None);
    let without = |at: usize| {
        let mut log = log.to_vec();
        log.remove(at);
        broken(&log)
    };
    assert_eq!(without(2), Some(("frame-reached", Some(0))), "the walks do not see the store");
    assert_eq!(without(3), Some(("frame-reached", Some(0))), "no flush");
    assert_eq!(without(4), Some(("frame-reached", Some(0))), "no barrier");
    assert_eq!(without(5), Some(("frame-reached", Some(1))), "the walk has not ended");
    let mut local = log;
    local[3] = "0 fence\n";
    assert_eq!(broken(&local), Some(("frame-reached", Some(1))), "a flush of one CPU");
    let mut weak = log;
    weak[4] = "0 barrier dsb ishst\n";
    assert_eq!(broken(&weak), Some(("frame-reached", Some(0))), "a barrier that completes no flush");
}

#[test]
fn a_cpu_is_in_one_walk_at_a_time() {
    for line in ["1 walk end", "1 walk begin 0x1000\n1 walk begin 0x1000", "1 walk begin 0"] {
        let why = check(Arch::Aarch64, &format!("{TABLES}{line}")).unwrap_err();
        assert!(matches!(why, Refusal::Impossible { .. }), "{line}: {why}");
    }
    let mut checker = Checker::new(Arch::Aarch64);
    for line in format!("{TABLES}1 walk begin 0x1000").lines() {
        let (cpu, event) = parse(line).unwrap().unwrap();
        checker.say(cpu, event).unwrap();
    }
    assert_eq!(checker.pending(), [Pending::Walk { cpu: 1, root: 0x1000, line: 11 }]);
    assert!(checker.pending()[0].to_string().starts_with("line 11: CPU 1 began to walk"));
}
