use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;

use super::*;

/// Something of every kind, whose values are printed.
const SOURCE: &str = r#"
fn sum(a: u32, b: u32, c: u32) -> u32 {
    // A comment, and two bytes: ä.
    a & b ^ c
}
const fn early() -> u32 { 5 }
const AT_COMPILE_TIME: u32 = early() + 1;
fn arms(x: Option<u32>) -> u32 {
    match x {
        Some(n) if n > 3 => 1,
        Some(_) => 2,
        _ => 3,
    }
}
fn add(mut a: u32) -> u32 { a += 2; a }
fn turn(a: bool) -> bool { !a }
#[derive(Default)]
struct Two { a: u32, b: u32 }
fn field() -> u32 { let two = Two { a: 1, ..Two::default() }; two.a + two.b }
fn bind(a: bool, b: Option<u32>) -> bool { if a && let Some(1) = b { true } else { false } }
fn main() {
    let arms = [Some(4), Some(1), None].map(arms);
    println!("{} {AT_COMPILE_TIME} {} {arms:?} {} {} {}", sum(6, 3, 2), early(), add(3), turn(true), field());
    bind(true, None);
}
"#;

const AS_IT_IS: &str = "0 6 5 [1, 2, 3] 5 false 1";

/// Finds what is replaced: `old`, behind the text `behind`.
fn mutant(kind: Kind, behind: &str, old: &str, replacement: &str) -> Mutant {
    let start = SOURCE.find(behind).unwrap() + behind.len();
    let start = start + SOURCE[start..].find(old).unwrap();
    let place = |at: usize| {
        let before = &SOURCE[..at];
        let line = before.rfind('\n').unwrap() + 1;
        (before.matches('\n').count() + 1, before[line..].chars().count() + 1)
    };
    let name = format!("{behind}: {old} with {replacement}");
    let (from, to) = (place(start), place(start + old.len()));
    Mutant { name, file: String::new(), kind, from, to, replacement: replacement.into() }
}

/// Each mutant, and what the program prints with it.
fn mutants() -> Vec<(Mutant, &'static str)> {
    vec![
        (mutant(Kind::Body, "ä.", "a & b ^ c", "7"), "7 6 5 [1, 2, 3] 5 false 1"),
        // As it would be read: 6 | (3 ^ 2), not (6 | 3) ^ 2.
        (mutant(Kind::Binary, "ä.", "&", "|"), "7 6 5 [1, 2, 3] 5 false 1"),
        (mutant(Kind::Binary, "ä.", "^", "|"), "2 6 5 [1, 2, 3] 5 false 1"),
        (mutant(Kind::Body, "fn early() -> u32 {", "5", "0"), "0 6 0 [1, 2, 3] 5 false 1"),
        (mutant(Kind::Arm, "x {", "Some(n) if n > 3 => 1,", ""), "0 6 5 [2, 2, 3] 5 false 1"),
        (mutant(Kind::Arm, "1,", "Some(_) => 2,", ""), "0 6 5 [1, 3, 3] 5 false 1"),
        (mutant(Kind::Guard, "Some(n) if", "n > 3", "true"), "0 6 5 [1, 1, 3] 5 false 1"),
        (mutant(Kind::Guard, "Some(n) if", "n > 3", "false"), "0 6 5 [2, 2, 3] 5 false 1"),
        (mutant(Kind::Binary, "Some(n) if", ">", "<"), "0 6 5 [2, 1, 3] 5 false 1"),
        (mutant(Kind::Binary, "fn add", "+=", "-="), "0 6 5 [1, 2, 3] 1 false 1"),
        (mutant(Kind::Unary, "fn turn", "!", ""), "0 6 5 [1, 2, 3] 5 true 1"),
        (mutant(Kind::Field, "let two = Two {", "a: 1,", ""), "0 6 5 [1, 2, 3] 5 false 0"),
    ]
}

/// Compiles a program beside the switch's crate.
fn compile(folder: &Path, source: &str, arguments: &[&str]) {
    fs::write(folder.join("source.rs"), source).unwrap();
    let mut command = Command::new("rustc");
    command.args(["--edition=2024", "-Awarnings", "source.rs"]).args(arguments).current_dir(folder);
    // The switch uses what is unstable.
    let status = command.env("RUSTC_BOOTSTRAP", "1").status().unwrap();
    assert!(status.success(), "{source}");
}

#[test]
fn a_woven_program_is_each_of_its_mutants() {
    let folder = env::temp_dir().join(format!("tlbkit-weave-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let (mutants, outputs): (Vec<_>, Vec<_>) = mutants().into_iter().unzip();
    let names: Vec<_> = mutants.iter().map(|mutant| mutant.name.clone()).collect();
    let (file, unplaced) = SourceFile::new(SOURCE.into(), mutants, &mut 1).unwrap();
    assert!(unplaced.is_empty(), "{unplaced:?}");
    compile(&folder, include_str!("../switch.rs"), &["--crate-type=rlib", "--crate-name=tlbkit_mutant"]);
    compile(&folder, &file.weave(&BTreeSet::new()).text, &["-L.", "--extern=tlbkit_mutant", "-oprogram"]);
    let run = |name: &str, value: &str| {
        let output = Command::new(folder.join("program")).env(name, value).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
    };
    assert_eq!(run("MUTANT", "0"), AS_IT_IS);
    let mut numbers: Vec<_> = file.mutants().collect();
    numbers.sort_by_key(|(_, mutant, _)| names.iter().position(|name| *name == mutant.name));
    for ((number, mutant, constant), output) in numbers.iter().zip(outputs) {
        assert_eq!(run("MUTANT", &number.to_string()), output, "{}", mutant.name);
        assert_eq!(*constant, mutant.name.contains("early"));
    }
    // Each site is come by, and says so once.
    let list = folder.join("reached");
    assert_eq!(run("MUTANTS_REACHED", &list.to_string_lossy()), AS_IT_IS);
    let mut reached: Vec<Number> =
        fs::read_to_string(list).unwrap().lines().map(|line| line.parse().unwrap()).collect();
    reached.sort_unstable();
    assert_eq!(reached, (1..=names.len() as Number).collect::<Vec<_>>());
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn mutants_left_out_are_not_in_the_text() {
    let (mutants, _): (Vec<_>, Vec<_>) = mutants().into_iter().unzip();
    let (file, _) = SourceFile::new(SOURCE.into(), mutants, &mut 1).unwrap();
    let all: BTreeSet<_> = file.mutants().map(|(number, ..)| number).collect();
    assert_eq!(file.weave(&all).text, SOURCE);
    for &only in &all {
        let woven = file.weave(&all.iter().copied().filter(|&number| number != only).collect());
        assert!(woven.mutants.iter().all(|(_, number)| *number == only));
        assert_ne!(woven.text, SOURCE);
    }
}

#[test]
fn what_is_evaluated_at_compile_time_or_is_no_rust_has_no_site() {
    let fixed = mutant(Kind::Binary, "AT_COMPILE_TIME: u32 = early()", "+", "-");
    let chained = mutant(Kind::Binary, "if a ", "&&", "||");
    let (file, unplaced) = SourceFile::new(SOURCE.into(), vec![fixed, chained], &mut 1).unwrap();
    assert_eq!(file.mutants().count(), 0);
    assert_eq!(unplaced.iter().map(|unplaced| unplaced.ungrammatical).collect::<Vec<_>>(), [false, true]);
}

#[test]
fn an_arm_has_a_switch_where_another_takes_what_it_leaves() {
    let arms = |source| {
        let sites = Sites::of(source).unwrap().sites;
        sites.iter().filter(|site| site.choice == Choice::Arm).count()
    };
    assert_eq!(arms("fn f(a: bool) { match a { true => {} _ => {} } }"), 2);
    assert_eq!(arms("fn f(a: bool, b: bool) { match a { _ if b => {} true => {} false => {} } }"), 0);
}

#[test]
fn a_mutant_alone_replaces_its_text_only() {
    let mutant = mutant(Kind::Binary, "AT_COMPILE_TIME: u32 = early()", "+", "-");
    let change = ("u32 = early() + 1", "u32 = early() - 1");
    assert_eq!(mutated(SOURCE, &mutant), SOURCE.replace(change.0, change.1));
}
