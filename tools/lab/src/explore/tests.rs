use super::*;

fn check(cases: &[Case]) {
    let found = explore(cases, 4_000_000).expect("explorations run");
    for row in rows(cases, &found) {
        assert!(row.expected, "{row:?}");
    }
}

/// Each algorithm on each of the machines that `wanted` picks by name.
fn pairings_of_two(wanted: fn(&str) -> bool) -> Vec<Case> {
    let machines = || MACHINES.iter().filter(|machine| wanted(machine.name));
    let ten = Algorithm::ALL.into_iter();
    let ten = ten.flat_map(|one| machines().flat_map(move |on| cases::pairing(one, on, 2, 2)));
    ten.chain(machines().flat_map(|on| cases::broadcast(on, 2, 2))).collect()
}

fn is_of_today(name: &str) -> bool {
    Hardware::TODAY.iter().any(|(today, _)| *today == name)
}

#[test]
fn each_repair_is_needed_and_enough() {
    check(&cases::hazards());
}

#[test]
fn each_damage_of_table_2_2_is_found() {
    check(&cases::damages());
}

/// Checks the pairings that must be sound. Two CPUs are a look at what is right, and suffice for most of what is wrong; the command
/// has three.
fn check_sound(two: Vec<Case>) {
    check(&two.into_iter().filter(|case| case.sound).collect::<Vec<_>>());
}

#[test]
fn each_algorithm_holds_where_it_suits_today() {
    check_sound(pairings_of_two(is_of_today));
}

/// A machine that broadcasts: what a broadcast is refused on, and what the ten algorithms cannot do there for a node.
#[test]
fn what_does_not_suit_a_broadcast_is_found_wrong() {
    let mut cases =
        pairings_of_two(|name| ["aarch64", "soft-remote", "remote-read-then-write"].contains(&name));
    cases.retain(|case| !case.sound && (case.algorithm == cases::BROADCAST || case.scene.visits));
    let by = |name| cases.iter().filter(|case| case.algorithm == name).count();
    assert_eq!((by(cases::BROADCAST), by("PTE-first''")), (2, 3), "{cases:?}");
    check(&cases);
}

#[test]
#[cfg_attr(not(tlbkit_full), ignore = "cargo xtask test --full")]
fn each_algorithm_holds_where_it_suits() {
    check_sound(pairings_of_two(|name| !is_of_today(name)));
}

/// `reduce`'s argument, tried on every case that is small enough without it.
#[test]
#[cfg_attr(not(tlbkit_full), ignore = "cargo xtask test --full")]
fn what_is_left_out_changes_no_verdict() {
    let reduced: Vec<_> = pairings_of_two(|_| true).into_iter().chain(cases::damages()).collect();
    let mut whole = reduced.clone();
    for case in &mut whole {
        case.scene.reduce = false;
    }
    let few = explore(&reduced, 2_000).expect("explorations run");
    let all = explore(&whole, 2_000).expect("explorations run");
    let mut compared = 0;
    for ((case, few), all) in reduced.iter().zip(few).zip(all) {
        if !matches!(all.verdict, Verdict::TooBig) {
            let same = std::mem::discriminant(&few.verdict) == std::mem::discriminant(&all.verdict);
            assert!(same, "{case:?}: {:?}, and {:?} if nothing is left out", few.verdict, all.verdict);
            compared += 1;
        }
    }
    assert!(compared > 500, "only {compared} of {} cases are small enough", reduced.len());
}

/// The three-CPU hazards are the point of the reductions: found without them, too. But for a machine with two ways of
/// writing status bits, which has too many worlds without one.
#[test]
#[cfg_attr(not(tlbkit_full), ignore = "cargo xtask test --full")]
fn the_hazards_of_three_cpus_do_not_hide_behind_a_reduction() {
    let mut cases: Vec<_> =
        cases::hazards().into_iter().filter(|case| case.scene.cpus == 3 && !case.sound).collect();
    cases.retain(|case| case.machine != "read-and-from-tlb");
    for case in &mut cases {
        case.scene.reduce = false;
    }
    check(&cases);
}
