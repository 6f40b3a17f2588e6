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
        let arch = Arch::named(arch).unwrap_or_else(|| panic!("{path:?} is of {arch}"));
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

/// A log that is cut off anywhere accuses no CPU: what a kernel has not done yet it may still do.
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

/// What no kernel can have done is refused, at once and without a panic: sizes and addresses at their limits.
#[test]
fn what_cannot_have_happened_is_refused() {
    for arch in [Arch::Sv39, Arch::X86_64, Arch::Aarch64, Arch::Mips32] {
        for line in [
            "0 node take 0 0xfffffffffffff000",
            "0 node free 0x1800 4096",
            "0 frame take 0xfffffffffffff000 0x2000",
            "0 write 1 1",
            "0 fence va 0x1000000000000",
            "0 ipi take 1",
            "0 lower 1 0",
            "0 access 0 load user fault",
        ] {
            let outcome = check(arch, line);
            assert!(
                outcome.as_ref().is_err_and(|why| why.violation().is_none()),
                "{arch:?}: {line}: {outcome:?}"
            );
        }
        let (root, last, bytes) = match arch {
            Arch::Mips32 => (0xffff_ffff, 0x7fff_f000_u64, 0xffff_f000_u64),
            Arch::X86_64 => (0x800f_ffff_ffff_ffff, 0x3f_ffff_f000, 0x10_0000_0000),
            _ => (0x8fff_ffff_ffff_ffff_u64, 0x3f_ffff_f000, 0x10_0000_0000),
        };
        let log = "0 write 0xfffffffffffffff8 1";
        check(arch, log).expect("a word at the end of memory");
        let everything = format!(
            "0 root {root:#x}\n0 frame free 0 {bytes:#x}\n0 fence va 0 {last:#x}\n0 lower 1 0 {last:#x}\n0 done 1"
        );
        check(arch, &everything).expect("everything, and a table that is not there");
        // A table whose root is a word's own node.
        let link = if arch == Arch::Mips32 { 0x8000_1000_u64 } else { 0x1027 };
        check(arch, &format!("0 write 0x1000 {link:#x}\n0 root 0x1000\n0 write 0x1000 0"))
            .expect("a table that links itself");
    }
}

/// What docs/witness.md says of the gallery: how many there are, and each by a name that it has.
#[test]
fn the_document_says_what_is_there() {
    let document = include_str!("../../../../docs/witness.md");
    let logs = logs();
    let names: Vec<_> = logs.iter().map(|(name, ..)| name.trim_end_matches(".witness")).collect();
    let bugs = logs.iter().filter(|(.., text)| marked(text).is_some()).count();
    println!("{bugs} bugs, {} mended forms", logs.len() - bugs);
    assert!(document.contains(&format!("in our words: {bugs}, each")), "there are {bugs}");
    for name in names.iter().filter(|name| name.starts_with("casemate-")) {
        let known = [
            "casemate-free-linked",
            "casemate-link-freed",
            "casemate-tlbi-wrong-page",
            "casemate-unclean-parent",
        ];
        let base = name.trim_end_matches(".mended");
        assert!(document.contains(base) || known.contains(&base), "{name} is not in the table");
    }
    for word in document.split('`').skip(1).step_by(2) {
        let ours = word.starts_with("casemate-") || word.starts_with("arm-");
        assert!(!ours || names.contains(&word), "there is no {word}");
    }
}
