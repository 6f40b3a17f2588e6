//! Moving data between address spaces: Tzou's Figures 5.5 and 5.6, in instructions of the guest.

use std::fmt::Write;

use anyhow::{Context, ensure};

/// Returns a table for people of lines `moving how=... accessed=... 4K=... 8K=...` and `passing part=... insns=...`.
///
/// # Errors
///
/// If a line lacks something, or there is none.
pub(super) fn text(lines: &[String]) -> anyhow::Result<String> {
    let mut text = String::from(
        "\nBytes moved between address spaces per 1000 instructions, by size of message (Tzou 5.5)\n",
    );
    let mut parts =
        String::from("\nInstructions of a message of 8 KB, remapped when it is used (Tzou 5.6)\n");
    let mut headed = false;
    for line in lines {
        let mut words = line.split(' ');
        let kind = words.next().unwrap_or_default();
        let words: Vec<_> = words.filter_map(|word| word.split_once('=')).collect();
        let word = |name: &str| words.iter().find(|(other, _)| *other == name).map(|(_, text)| *text);
        match kind {
            "moving" => {
                let (how, accessed) = (word("how").context("moved how?")?, word("accessed") == Some("yes"));
                let sizes = words.iter().filter_map(|(name, insns)| {
                    let kilobytes: u64 = name.strip_suffix('K')?.parse().ok()?;
                    Some((kilobytes, insns.parse::<u64>().ok()?))
                });
                let sizes: Vec<_> = sizes.collect();
                if !headed {
                    let heads: String =
                        sizes.iter().map(|(size, _)| format!(" {:>8}", format!("{size}K"))).collect();
                    let _ = writeln!(text, "{:28}{heads}", "");
                    headed = true;
                }
                let _ = write!(
                    text,
                    "{:28}",
                    format!("{how}, {}", if accessed { "accessed" } else { "not accessed" })
                );
                for (kilobytes, insns) in sizes {
                    let _ = write!(text, " {:>8}", kilobytes * 1024 * 1000 / insns.max(1));
                }
                text.push('\n');
            }
            "passing" => {
                let (part, insns) =
                    (word("part").context("what part?")?, word("insns").context("how many?")?);
                let _ = writeln!(parts, "{insns:>8} {}", part.replace('_', " "));
            }
            _ => {}
        }
    }
    ensure!(headed, "the kernel has moved nothing");
    Ok(text + &parts)
}

#[cfg(test)]
mod tests {
    #[test]
    fn figures_are_made_of_lines() {
        let lines = ["moving how=copy accessed=yes 4K=2048 8K=4000", "passing part=fault_and_map insns=512"];
        let text = super::text(&lines.map(String::from)).unwrap();
        assert!(text.contains("copy, accessed                   2000     2048\n"), "{text}");
        assert!(text.contains("     512 fault and map\n"), "{text}");
        assert!(super::text(&[]).is_err());
    }
}
