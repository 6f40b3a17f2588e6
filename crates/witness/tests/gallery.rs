//! Bugs of kernels, each as a log beside its mended form: the first is found, at its line and with its story; the second holds.

use std::fs;
use std::path::Path;

use tlbkit_witness::check::{Arch, Refusal, check};

/// Returns the logs: name, architecture and text.
fn logs() -> Vec<(String, Arch, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("gallery");
    let mut logs = Vec::new();
    for file in fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        let text = fs::read_to_string(&path).unwrap();
        let arch = text.lines().find_map(|line| line.strip_prefix("# arch ")).expect("a line `# arch`");
        let arch = match arch {
            "sv39" => Arch::Sv39,
            "x86_64" => Arch::X86_64,
            "aarch64" => Arch::Aarch64,
            _ => panic!("{path:?} is of {arch}"),
        };
        logs.push((path.file_name().unwrap().to_string_lossy().into_owned(), arch, text));
    }
    logs.sort_by(|one, other| one.0.cmp(&other.0));
    logs
}

/// Where a log says that it breaks: the line, the rule, and the CPU.
fn marked(text: &str) -> Option<(u64, String, usize)> {
    (1..).zip(text.lines()).find_map(|(line, text)| {
        let (rule, cpu) = text.split_once("# breaks ")?.1.split_once(" on CPU ")?;
        Some((line, rule.into(), cpu.trim().parse().unwrap()))
    })
}

#[test]
fn every_bug_is_found_where_it_is_and_no_mended_form_is_accused() {
    let (mut wrong, mut bad, mut good) = (Vec::new(), 0, 0);
    for (name, arch, text) in logs() {
        let outcome = check(arch, &text);
        match (marked(&text), &outcome) {
            (None, Ok(_)) => good += 1,
            (Some((line, rule, cpu)), Err(Refusal::Violation(found)))
                if (line, &*rule, Some(cpu)) == (found.line(), found.rule().name(), found.cpu()) =>
            {
                bad += 1;
                // The story begins where it breaks, and names the CPU that could do it.
                assert!(found.story()[0].starts_with(&format!("line {line}: ")), "{name}: {found}");
                let cpu = format!("CPU {cpu}");
                assert!(found.story().iter().any(|line| line.contains(&cpu)), "{name}: {found}");
                assert!((2..=5).contains(&found.story().len()), "{name}: {found}");
            }
            (marked, _) => wrong.push(format!("{name}: marked {marked:?}, found {outcome:?}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(bad >= 30 && bad == good, "{bad} {good}");
}

/// A log that is cut off anywhere accuses nobody: what a kernel has not done yet it may still do.
#[test]
fn no_beginning_of_a_mended_form_is_accused() {
    for (name, arch, text) in logs().into_iter().filter(|(name, ..)| name.contains("mended")) {
        for (at, _) in text.match_indices('\n') {
            assert!(check(arch, &text[..at]).is_ok(), "{name}: {}", &text[..at]);
        }
    }
}

/// Each line of each log, written again by `Display`, is read as the same event.
#[test]
fn the_text_form_is_read_as_it_was_written() {
    for (name, _, text) in logs() {
        for line in text.lines() {
            let Some((cpu, event)) =
                tlbkit_witness::parse(line).unwrap_or_else(|why| panic!("{name}: {why}"))
            else {
                continue;
            };
            assert_eq!(
                tlbkit_witness::parse(&format!("{cpu} {event}")),
                Ok(Some((cpu, event))),
                "{name}: {line}"
            );
        }
    }
}
