//! What must hold of any such model, and what the two schemes are for.

use super::simulation::{Event, Right};
use super::*;
use crate::read;

fn locks(line: &str) -> Locks {
    read(&format!("locks {line}")).unwrap()
}

fn run(line: &str, regions: Regions, scheme: Scheme, cpus: u32) -> Row {
    let args = locks(line);
    let [one, many] = [1, cpus].map(|cpus| simulate(&args, regions, scheme, cpus, |_, _| ()));
    Row::new(regions, scheme, cpus, &many, &one)
}

const BOTH: [Scheme; 2] = [Scheme::OneWriter, Scheme::NodeLocks];
const FEW: &str = "--changes 2000";

#[test]
fn one_cpu_does_not_wait() {
    for &regions in Regions::value_variants() {
        for scheme in BOTH {
            let row = run(FEW, regions, scheme, 1);
            assert_eq!(
                (row.wait_mean_cycles, row.waiting_max_cpus, row.times_one_cpu),
                (0.0, 0, 1.0),
                "{row:?}"
            );
        }
    }
    // A change takes its own time and that of the work before it: 100 + 900.
    let row = run(
        "--changes 20000 --fault 100 --between 900 --unmap-share 0",
        Regions::Shared,
        Scheme::OneWriter,
        1,
    );
    assert!((row.changes_per_mcycle - 1000.0).abs() < 20.0, "{row:?}");
}

/// No two rights that overlap are held at once, each that is granted is released, and all that is asked for is granted.
#[test]
fn rights_exclude_each_other() {
    let overlap = |one: Right, other: Right| {
        one.above == other.above && (one.node.is_none() || other.node.is_none() || one.node == other.node)
    };
    for &regions in Regions::value_variants() {
        for scheme in BOTH {
            let mut held: Vec<Right> = Vec::new();
            let mut most = 0;
            let args = locks("--changes 500 --unmap-share 0.05 --between 300");
            let outcome = simulate(&args, regions, scheme, 16, |event, right| match event {
                Event::Granted => {
                    assert!(scheme == Scheme::NodeLocks || held.is_empty(), "{regions:?}");
                    assert!(
                        held.iter().all(|&other| !overlap(right, other)),
                        "{regions:?}: {right:?} beside {held:?}"
                    );
                    held.push(right);
                    most = most.max(held.len());
                }
                Event::Released => {
                    let at = held.iter().position(|&held| held == right).unwrap();
                    held.swap_remove(at);
                }
            });
            assert_eq!((outcome.changes, held.len()), (16 * 500, 0));
            let parallel =
                scheme == Scheme::NodeLocks && matches!(regions, Regions::Disjoint | Regions::Near);
            assert_eq!(most > 1, parallel, "{regions:?}, {scheme:?}");
        }
    }
}

/// One lock gives no more than one change for each time that one takes, and as much as that to many CPUs, each of which waits for all
/// others.
#[test]
fn one_lock_is_bounded_by_the_length_of_its_section() {
    for &regions in Regions::value_variants() {
        let line = "--changes 2000 --fault 200 --first-touch 200 --unmap 200";
        let row = run(line, regions, Scheme::OneWriter, 64);
        assert!(row.changes_per_mcycle <= 1e6 / 200.0 && row.changes_per_mcycle > 0.97e6 / 200.0, "{row:?}");
        assert!(row.wait_max_cycles.max(row.wait_above_max_cycles) <= 63 * 200, "{row:?}");
        assert!((60..=63).contains(&row.waiting_max_cpus), "{row:?}");
    }
}

#[test]
fn disjoint_threads_scale_under_node_locks() {
    for cpus in [2, 16, 64] {
        let row = run(FEW, Regions::Disjoint, Scheme::NodeLocks, cpus);
        assert_eq!((row.wait_mean_cycles, row.waiting_max_cpus), (0.0, 0));
        // The last thread ends later than the mean.
        assert!(row.times_one_cpu > 0.85 * f64::from(cpus), "{row:?}");
    }
    let row = run(FEW, Regions::Disjoint, Scheme::OneWriter, 64);
    assert!(row.times_one_cpu < 8.0, "{row:?}");
}

/// One region is one lock under either scheme: the node's lock costs what it takes, and nothing more.
#[test]
fn a_shared_region_is_as_under_one_writer() {
    let line = "--changes 4000 --unmap-share 0";
    let [one, nodes] = BOTH.map(|scheme| run(line, Regions::Shared, scheme, 64));
    let longer = (145.0 + 8.0) / 145.0;
    assert!((one.changes_per_mcycle / nodes.changes_per_mcycle - longer).abs() < 0.01, "{one:?} {nodes:?}");
}

/// A right above waits for the rights below that are held, and for others above: faults that go on coming do not pass it.
#[test]
fn a_right_above_is_not_starved() {
    let line = "--changes 3000 --unmap-share 0.001 --unmap 1000 --between 0";
    let row = run(line, Regions::Shared, Scheme::NodeLocks, 32);
    // At most 31 others above, one after the other, and one fault before.
    assert!(row.wait_above_max_cycles <= 31 * 1008 + 153, "{row:?}");
    assert!(row.wait_above_max_cycles > 0);
}

#[test]
fn a_seed_decides() {
    let text = |line: &str| format!("{:?}", locks(line).rows().unwrap());
    let line = "--regions near --changes 500 --cpus 6";
    assert_eq!(text(line), text(line));
    assert_ne!(text(line), text(&format!("{line} --seed 2")));
    let cpus: Vec<_> = locks(line).rows().unwrap().iter().map(|row| row.cpus).collect();
    assert_eq!(cpus, [1, 2, 4, 6, 1, 2, 4, 6]);
    let error = locks("--unmap-share 1.5").rows().unwrap_err().to_string();
    assert!(error.contains("--unmap-share 1.5"), "{error}");
}

/// The defaults are those that docs/costs.md prints.
#[test]
fn the_counts_are_those_of_the_documentation() {
    let costs = include_str!("../../../../docs/costs.md");
    let table = costs.split("<!-- cargo xtask cost --machine riscv64 -->").nth(1).unwrap();
    for (call, counted) in [
        ("map  ", counted::MAP),
        ("page fault at the first use  ", counted::FAULT),
        ("clear frame  ", counted::CLEAR),
        ("unmap, a page of 100  ", counted::UNMAP),
    ] {
        let line = table.lines().find(|line| line.starts_with(call)).unwrap();
        let four: u64 = line[call.len()..].split_whitespace().nth(1).unwrap().parse().unwrap();
        assert_eq!(counted, four, "{call}");
    }
}
