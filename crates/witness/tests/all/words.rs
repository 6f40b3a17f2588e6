//! Lines of words that events have, with any numbers: they are events or refused, and the checker takes any log without a panic.

use proptest::collection::vec;
use proptest::prelude::*;
use tlbkit_witness::check::{Arch, check};
use tlbkit_witness::parse;

const WORDS: [&str; 48] = [
    "write",
    "refill",
    "blind",
    "sync",
    "swap",
    "root",
    "fence",
    "barrier",
    "node",
    "frame",
    "ipi",
    "lower",
    "done",
    "walk",
    "begin",
    "end",
    "use",
    "access",
    "uses",
    "full",
    "high",
    "va",
    "asid",
    "leaf",
    "broadcast",
    "release",
    "dmb",
    "dsb",
    "mfence",
    "isb",
    "tlbsync",
    "take",
    "free",
    "send",
    "load",
    "store",
    "fetch",
    "user",
    "kernel",
    "fault",
    "dirty",
    "halves",
    "0,1",
    "4096",
    "0x1000",
    "0x1027",
    "0x2003",
    "0x800",
];

fn word() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => (0..WORDS.len()).prop_map(|at| WORDS[at].into()),
        2 => (0..4_u64).prop_map(|number| number.to_string()),
        1 => any::<u64>().prop_map(|number| format!("{number:#x}")),
        1 => (0..64_u32).prop_map(|bit| format!("{:#x}", u64::MAX << bit)),
    ]
}

/// An event that is whole, of numbers that are small or at an end, or any words.
fn line() -> impl Strategy<Value = String> {
    let number = || {
        prop_oneof![
            3 => (0..6_u64, 0..6_u64).prop_map(|(node, slot)| node << 12 | slot << 3),
            2 => (0..6_u64, 0..0x100_u64).prop_map(|(node, bits)| node << 10 | bits),
            2 => (0..6_u64, 0..0x1000_u64).prop_map(|(node, bits)| node << 12 | bits),
            1 => (0..64_u32).prop_map(|bit| u64::MAX << bit),
            1 => any::<u64>(),
        ]
    };
    let whole =
        (0..3_usize, 0..16_usize, number(), number(), any::<bool>()).prop_map(|(cpu, kind, a, b, flag)| {
            let free = if flag { "free" } else { "take" };
            match kind {
                0..4 => format!("{cpu} write {:#x} {b:#x}", a & !7),
                4 => format!("{cpu} swap {:#x} 0 {b:#x}", a & !7),
                5 => format!("{cpu} root {:#x}", if flag { a >> 12 | 8 << 60 } else { a }),
                6 => format!("{cpu} fence va {:#x} {:#x} broadcast", a.min(b), a.max(b)),
                7 => format!("{cpu} fence{}", if flag { " asid 1" } else { "" }),
                8 => format!("{cpu} barrier dsb"),
                9 => format!("{cpu} node {free} {:#x} {:#x}", a & !4095, (b & 3) << 12),
                10 => format!("{cpu} frame {free} {a:#x} {b:#x}"),
                11 => format!("{cpu} lower {} {:#x} {:#x}", b & 3, a.min(b), a.max(b)),
                12 => format!("{cpu} done {}", b & 3),
                // A word of MIPS32: a page of some size, or a link.
                13 => format!(
                    "{cpu} write {:#x} {:#x}",
                    a & 0x5ffc,
                    b & 0xffff_ffff | if flag { 0x4000_0002 } else { 0x8000_0000 }
                ),
                14 => format!(
                    "{cpu} refill {a:#x} {:#x} {:#x} {}",
                    b & 0xffff_ffff,
                    a & 0xffff_ffff,
                    4096 << (2 * (b & 3))
                ),
                _ => format!("{cpu} access {a:#x} store user {b:#x}"),
            }
        });
    prop_oneof![9 => whole, 1 => vec(word(), 0..8).prop_map(|words| words.join(" "))]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_log_is_checked_or_refused(lines in vec(line(), 0..40)) {
        // What cannot have happened is left out, so that the checker gets far.
        for arch in [Arch::Sv39, Arch::X86_64, Arch::Aarch64, Arch::Mips32] {
            let mut log = String::new();
            for line in &lines {
                match parse(line) {
                    Ok(Some((cpu, event))) => {
                        let again = parse(&format!("{cpu} {event}"));
                        prop_assert_eq!(again, Ok(Some((cpu, event))), "{}", line);
                    }
                    Ok(None) => {}
                    Err(why) => prop_assert!(!why.to_string().contains('\n')),
                }
                let more = format!("{log}{line}\n");
                match check(arch, &more) {
                    Ok(_) => log = more,
                    Err(why) => prop_assert!(why.violation().is_some() || why.to_string().starts_with("line ")),
                }
            }
        }
    }
}
