//! `cargo xtask portability`: the crates on every machine that they are for, and their hit paths in the binary.
//!
//! `examples/embed` is built as a kernel embeds the crates: released, optimized as a whole, for each target. In the
//! archive no path from a `hit_` function, or from what is done to an address space (`edit_space_`), may lead to a panic,
//! to an allocator or to a routine of floating-point arithmetic. Some of the targets have no floating-point unit, so there an
//! operation that the others do in an instruction is such a call.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use anyhow::{Context, bail};

use crate::reach::Reach;
use crate::shell::{Line, Shell};
use crate::{places, tools};

/// A machine to compile for.
struct Target {
    name: &'static str,
    /// Whether rustup has its `core`; else a nightly compiler builds it.
    ready: bool,
    /// Whether floating point is calls there.
    soft: bool,
}

const fn target(name: &'static str, ready: bool, soft: bool) -> Target {
    Target { name, ready, soft }
}

const TARGETS: [Target; 10] = [
    target("thumbv7em-none-eabi", true, true),
    target("riscv32imac-unknown-none-elf", true, true),
    target("riscv64gc-unknown-none-elf", true, false),
    target("aarch64-unknown-none", true, false),
    target("x86_64-unknown-none", true, true),
    target("i686-unknown-linux-gnu", true, false),
    target("loongarch64-unknown-none-softfloat", false, true),
    target("loongarch64-unknown-none", false, false),
    target("mipsel-unknown-none", false, true),
    // The one of them whose bytes are in the other order.
    target("mips-unknown-linux-gnu", false, false),
];

/// What functions begin with from which no panic, no allocation and no floating point may be reached.
const CLEAN: [&str; 2] = ["hit_", "edit_space_"];

/// Checks and measures.
pub(crate) fn run(shell: &Shell) -> anyhow::Result<()> {
    let mut sizes: BTreeMap<String, Vec<Option<u64>>> = BTreeMap::new();
    let mut wrong = Vec::new();
    let mut checked = BTreeSet::new();
    for (at, target) in TARGETS.iter().enumerate() {
        let reach = Reach::of(&build(shell, target)?)?;
        for name in ["hit_", "miss_", "edit_"].iter().flat_map(|begin| reach.named(begin)) {
            let found = reach.from(name);
            if found.names.keys().any(|name| forbidden(name)) {
                checked.insert(name.to_owned());
            }
            sizes.entry(name.to_owned()).or_insert_with(|| vec![None; TARGETS.len()])[at] = Some(found.bytes);
            // Another walker sees what these publish: the MMU of the CPU that runs them, at least.
            let walked = ["edit_sv39_map", "edit_x86_map", "edit_aarch64_map"].contains(&name);
            if walked && !found.code.iter().any(|code| releases(target.name, code)) {
                wrong.push(format!("{}: {name} links nodes without a release", target.name));
            }
            if CLEAN.iter().any(|begin| name.starts_with(begin)) {
                let bad = found.names.iter().filter(|(name, _)| forbidden(name));
                wrong.extend(bad.map(|(bad, way)| format!("{}: {name} can reach {bad}:{way}", target.name)));
            }
        }
    }
    if !wrong.is_empty() {
        bail!("{}", wrong.join("\n"));
    }
    if matches!(shell, Shell::Plain) {
        print(&sizes, &checked);
    }
    Ok(())
}

/// Checks the crates and returns the archive.
fn build(shell: &Shell, target: &Target) -> anyhow::Result<Vec<u8>> {
    let place = places::target().join("portability");
    let (cargo, more) = if target.ready {
        tools::parts(shell, &[], &[target.name])?;
        (Line::new("cargo", ""), "")
    } else {
        tools::toolchain(shell, tools::NIGHTLY, &["rust-src"])?;
        (Line::new("cargo", "+nightly"), "-Zbuild-std=core")
    };
    let line =
        cargo.with("build --release --manifest-path examples/embed/Cargo.toml --target-dir".split(' '));
    let line = line.with([&place.to_string_lossy(), "--target", target.name]).with(more.split_whitespace());
    shell.run(&line.set("RUSTFLAGS", "-D warnings"))?;
    let archive = place.join(target.name).join("release/libtlbkit_embed.a");
    fs::read(&archive).with_context(|| format!("cannot read {}", archive.display()))
}

/// Tells whether a function has an instruction that makes what was stored before it seen before what is stored after it.
/// Where every store does that there need be none; on processors of which nothing is known here it is taken for granted.
fn releases(target: &str, code: &[u8]) -> bool {
    let word = |bytes: &[u8]| bytes.try_into().map_or(0, u32::from_le_bytes);
    match target.split('-').next() {
        // STLR, of 64 bits; DMB ISH and ISHST.
        Some("aarch64") => code
            .chunks_exact(4)
            .map(word)
            .any(|word| word & 0xffff_fc00 == 0xc89f_fc00 || [0xd503_3bbf, 0xd503_3abf].contains(&word)),
        // FENCE, among instructions of 16 and of 32 bits.
        Some("riscv64gc") => {
            let mut rest = code;
            while let Some(&first) = rest.first() {
                let length = if first & 3 == 3 { 4 } else { 2 };
                let Some((instruction, after)) = rest.split_at_checked(length) else { break };
                // Of reads and writes, before writes at least; PAUSE is a fence, too.
                if length == 4 && word(instruction) & 0x0310_707f == 0x0310_000f {
                    return true;
                }
                rest = after;
            }
            false
        }
        _ => true,
    }
}

/// Tells whether such a function may not need this.
fn forbidden(name: &str) -> bool {
    name == "tlbkit_panicked" || name.contains("panic") || name.contains("alloc") || is_float(name)
}

/// Tells whether a name is that of a routine for floating-point arithmetic, as compilers' run-times call them.
fn is_float(name: &str) -> bool {
    let Some(rest) = name.strip_prefix("__") else { return false };
    if let Some(arm) = rest.strip_prefix("aeabi_") {
        // `fadd`, `dcmpeq`, `i2d`, `l2f`; but not `idiv`, `memcpy`.
        return ["f", "d", "cf", "cd"].iter().any(|begin| arm.starts_with(begin))
            || arm.ends_with("2f")
            || arm.ends_with("2d");
    }
    // `addsf3`, `floatsidf`, `fixunsdfsi`, `ltdf2`: the types are sf, df, tf, hf.
    ["sf", "df", "tf", "hf"].iter().any(|kind| rest.contains(kind))
        && [
            "add", "sub", "mul", "div", "neg", "float", "fix", "cmp", "eq", "ne", "lt", "le", "gt", "ge",
            "unord", "extend", "trunc", "pow",
        ]
        .iter()
        .any(|begin| rest.starts_with(begin))
}

/// Prints bytes of code that each function reaches, a column for each target.
fn print(sizes: &BTreeMap<String, Vec<Option<u64>>>, checked: &BTreeSet<String>) {
    for (at, target) in TARGETS.iter().enumerate() {
        let soft = if target.soft { ", floating point would be calls" } else { "" };
        println!("{at}  {}{soft}", target.name);
    }
    let heads: Vec<_> = (0..TARGETS.len()).map(|at| format!("{at:>7}")).collect();
    println!("\n{:<26}{}", "bytes of code", heads.concat());
    for (name, bytes) in sizes {
        let cells =
            bytes.iter().map(|bytes| bytes.map_or(format!("{:>7}", "-"), |bytes| format!("{bytes:>7}")));
        println!("{name:<26}{}", cells.collect::<String>());
    }
    println!(
        "\nno panic, no allocation and no floating point can be reached from any function that begins with {}",
        CLEAN.join(" or ")
    );
    let checked: Vec<_> = checked.iter().map(String::as_str).collect();
    println!("a bound that the compiler could not prove is checked in: {}", checked.join(" "));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_known_by_their_words() {
        let code = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
        // stlr x9, [x8]; str x9, [x8].
        assert!(releases("aarch64-unknown-none", &code(&[0xd503_201f, 0xc89f_fd09])));
        assert!(!releases("aarch64-unknown-none", &code(&[0xd503_201f, 0xf900_0109])));
        // fence rw, w after an instruction of 16 bits; and those 16 bits within one of 32.
        let nop = 1_u16.to_le_bytes();
        assert!(releases("riscv64gc-unknown-none-elf", &[&nop[..], &code(&[0x0310_000f])].concat()));
        assert!(!releases("riscv64gc-unknown-none-elf", &[&nop[..], &code(&[0x000f_0013])].concat()));
        // pause; fence r, rw.
        assert!(!releases("riscv64gc-unknown-none-elf", &code(&[0x0100_000f, 0x0230_000f])));
    }

    #[test]
    fn routines_of_floating_point_are_known_by_name() {
        for name in ["__adddf3", "__aeabi_fmul", "__aeabi_i2d", "__floatunsisf", "__fixdfsi", "__ltsf2"] {
            assert!(is_float(name) && forbidden(name), "{name}");
        }
        for name in ["memcpy", "__aeabi_memcpy", "__aeabi_uidiv", "__udivdi3", "__ashldi3", "tlbkit_kernel"] {
            assert!(!forbidden(name), "{name}");
        }
    }
}
