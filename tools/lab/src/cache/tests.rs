use std::process::Command;

use super::*;

/// A machine of small caches.
const SMALL: Machine = Machine {
    name: "small",
    line: 16,
    first: Shape { bytes: 64, ways: 2 },
    stores: Stores::Back,
    beyond: &[(Shape { bytes: 128, ways: 2 }, 5)],
    memory: 50,
    buffer: (1, 7),
    delay: 0,
    trap: 0,
};

/// The cycles of references one after the other.
fn cycles(machine: Machine, references: &[(Kind, u64)]) -> Vec<u64> {
    let mut caches = Caches::new(machine);
    let mut cycles = |&(kind, at)| {
        caches.refer(kind, at, 1);
        caches.take().cycles
    };
    references.iter().map(&mut cycles).collect()
}

#[test]
fn the_line_that_was_used_least_recently_makes_room() {
    use Kind::Load;
    // Lines 0, 2, 4 are of one set of two, and of one set of the cache beyond.
    let references = [(Load, 0), (Load, 32), (Load, 15), (Load, 64), (Load, 1), (Load, 33)];
    assert_eq!(cycles(SMALL, &references), [50, 50, 0, 50, 0, 5]);
    // Instructions have a cache of their own, and a cycle each.
    assert_eq!(cycles(SMALL, &[(Kind::Instr, 0), (Load, 0), (Kind::Rest, 0)]), [51, 5, 0]);
}

#[test]
fn stores_wait_for_the_buffer_alone() {
    use Kind::Store;
    let one = Machine { beyond: &[], ..SMALL };
    // Each takes the place of a dirty line from the third on: the buffer is empty again after 7 of the 50 cycles.
    assert_eq!(cycles(one, &[(Store, 0), (Store, 32), (Store, 64), (Store, 96)]), [50; 4]);
    let fast = Machine { memory: 2, ..one };
    assert_eq!(
        cycles(fast, &[(Store, 0), (Store, 32), (Store, 64), (Store, 96), (Store, 0)]),
        [2, 2, 2, 7, 7]
    );
    let through = Machine { stores: Stores::Through { allocate: false }, ..one };
    assert_eq!(cycles(through, &[(Store, 0), (Store, 0), (Store, 0), (Kind::Load, 0)]), [0, 7, 7, 50]);
    let allocates = Machine { stores: Stores::Through { allocate: true }, ..one };
    assert_eq!(cycles(allocates, &[(Store, 0), (Store, 0), (Kind::Load, 0)]), [50, 7, 0]);
}

/// References in a row take what they take one by one, however many a file says there are.
#[test]
fn references_in_a_row_are_one_by_one() {
    for machine in MACHINES {
        for kind in [Kind::Instr, Kind::Load, Kind::Store, Kind::Modify] {
            let [mut at_once, mut singly] = [(); 2].map(|()| Caches::new(machine));
            for (line, times) in [(0, 1), (machine.line, 9), (0, 4), (1 << 20, 100)] {
                at_once.refer(kind, line, times);
                (0..times).for_each(|_| singly.refer(kind, line, 1));
            }
            assert_eq!(at_once.take(), singly.take(), "{kind:?} {machine:?}");
            at_once.refer(kind, 0, u32::MAX.into());
        }
    }
}

/// What valgrind prints of a run of `true` under a tool: its log, and the file of cachegrind.
fn valgrind(options: &[&str]) -> Option<(String, String)> {
    let folder = tempfile::tempdir().unwrap();
    let profile = folder.path().join("profile");
    let run = Command::new("valgrind")
        .env_clear()
        .env("PATH", std::env::var_os("PATH")?)
        .args(options)
        .args(
            options[0].contains("cachegrind").then(|| format!("--cachegrind-out-file={}", profile.display())),
        )
        .arg("true")
        .output()
        .ok()?;
    assert!(run.status.success(), "{run:?}");
    let log = String::from_utf8(run.stderr).unwrap();
    Some((log, std::fs::read_to_string(profile).unwrap_or_default()))
}

/// The same program, its references listed by lackey and given to the model, and simulated by cachegrind: every miss of
/// instructions and of data, in caches of several shapes, those of the machines among them.
#[test]
fn misses_are_those_of_cachegrind() {
    let _no_others = crate::capture::CHILDREN.lock().unwrap();
    let Some((log, _)) = valgrind(&["--tool=lackey", "--trace-mem=yes", "--basic-counts=no"]) else {
        eprintln!("valgrind is not installed: nothing to compare with");
        return;
    };
    let references: Vec<_> = log.lines().filter_map(reference).collect();
    assert!(references.len() > 100_000);
    // Cachegrind has no lines of 16 bytes where registers have 32.
    let shapes = MACHINES.map(|machine| (machine.line.max(32), machine.first));
    for (line, first) in shapes.into_iter().chain([(64, Shape { bytes: 4096, ways: 4 })]) {
        // Large enough that nothing is put out: where one of two lines misses, cachegrind refers to both beyond.
        const LAST: Shape = Shape { bytes: 8 << 20, ways: 8 };
        let option = |name, Shape { bytes, ways }| format!("--{name}={bytes},{ways},{line}");
        let options = [option("I1", first), option("D1", first), option("LL", LAST)];
        let mut all = vec!["--tool=cachegrind", "--cache-sim=yes"];
        all.extend(options.iter().map(String::as_str));
        let (_, profile) = valgrind(&all).unwrap();
        let summary = profile.lines().find_map(|line| line.strip_prefix("summary: ")).unwrap();
        let counts: Vec<u64> = summary.split_whitespace().map(|count| count.parse().unwrap()).collect();
        let [ir, i1, il, _, d1r, dlr, _, d1w, dlw] = counts[..] else { panic!("{summary}") };

        let stores = Stores::Through { allocate: true };
        let mut caches = Caches::new(Machine { line, first, stores, beyond: &[(LAST, 5)], ..SMALL });
        let mut sum = Tally::default();
        for &(kind, at, bytes) in &references {
            caches.refer(kind, at, 1);
            let mut one = caches.take();
            if (at + bytes - 1) / line != at / line {
                caches.refer(if kind == Kind::Instr { Kind::Rest } else { kind }, at + bytes - 1, 1);
                let other = caches.take();
                // A reference that misses twice is counted once there.
                one.code |= other.code;
                one.data |= other.data;
                one.memory |= other.memory;
            }
            sum += one;
        }
        assert_eq!(sum.instructions, ir);
        let theirs = (i1, d1r + d1w, il + dlr + dlw);
        assert_eq!((sum.code, sum.data, sum.memory), theirs, "{options:?}");
    }
}

/// Reads a line of lackey's: kind, address and bytes.
fn reference(line: &str) -> Option<(Kind, u64, u64)> {
    let kind = match line.get(..3)? {
        "I  " => Kind::Instr,
        " L " => Kind::Load,
        " S " => Kind::Store,
        " M " => Kind::Modify,
        _ => return None,
    };
    let (at, bytes) = line[3..].split_once(',')?;
    Some((kind, u64::from_str_radix(at, 16).ok()?, bytes.parse().ok()?))
}
