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
