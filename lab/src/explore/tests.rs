use super::*;

fn check(cases: &[Case]) {
    let found = explore(cases, 4_000_000).expect("explorations run");
    for row in rows(cases, &found) {
        assert!(row.expected, "{row:?}");
    }
}

#[test]
fn each_repair_is_needed_and_enough() {
    check(&cases::hazards());
}

#[test]
fn each_damage_of_table_2_2_is_found() {
    check(&cases::damages());
}

/// Two CPUs suffice for most of what is wrong, and for a look at what is right; the command has three.
#[test]
fn each_algorithm_holds_where_it_suits() {
    let mut all = Vec::new();
    for algorithm in Algorithm::ALL {
        for machine in &MACHINES {
            let cases = cases::pairing(algorithm, machine, 2, 2);
            all.extend(cases.into_iter().filter(|case| case.sound && case.scene.ptes == 1));
        }
    }
    check(&all);
}
