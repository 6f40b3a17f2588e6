//! `cargo xtask cost`: what `tlbkit` costs a kernel, in code, stack, instructions and packages.
//!
//! ```text
//! examples/cost ──┬── linked     with and without the calls that the ports of four kernels make: bytes of .text
//!                 └── measured   booted in QEMU: instructions and stack of each call
//! ```
//!
//! What the calls may add to .text is decided in `cost.txt`. This command compares, and so does a step of `cargo xtask test`.

use std::path::PathBuf;
use std::{fmt, fs};

use anyhow::{Context, bail, ensure};
use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use crate::boot::cost::Machine;
use crate::shell::{Line, Shell, progress};
use crate::{locks, places};

mod binary;

use binary::Code;

/// Measure what tlbkit costs a kernel: code, stack and instructions of its calls, and packages
///
/// Code is bytes of .text, which the calls of examples/cost add to a kernel, with fat LTO. By crate: an instruction counts for the
/// crate in whose source it is written, also where it is inlined; one of core's counts for its caller. By function: the function that
/// holds the instruction, all its instances together.
///
/// Instructions are counted by the guest in QEMU, of a call for one page of 4 KiB unless its name says otherwise, the kernel's own
/// methods included: the mask of interrupts, the flush, the lock of its frames. One CPU runs, also with four.
///
/// Stack is bytes below the frame that makes the call, 512 at least. More than 4 KiB in release, half of a kernel's stack of 8 KiB, is
/// an error, and more than 8 KiB in the development profile of docs/embedding.md.
#[derive(Args, Debug)]
pub(crate) struct CostArgs {
    /// The machine
    #[arg(long, value_enum)]
    machine: Machine,
    /// Write the tables to docs/costs.md
    #[arg(long, conflicts_with = "json")]
    write: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

const FOLDER: &str = "examples/cost";
const PAGE: &str = "docs/costs.md";

/// The profiles of `examples/cost` in which code is counted, with their levels of optimization.
const LEVELS: [(&str, &str); 2] = [("release", "3"), ("small", "s")];
/// Features, and the number of CPUs for which they compile.
const CPUS: [(&str, usize); 2] = [("", 1), ("four-cpus", 4)];

/// The builds that are booted: profile, features, and what heads their columns.
const BOOTED: [(&str, &str, &str); 5] = [
    ("release", "", "1 CPU"),
    ("release", "four-cpus", "4 CPUs"),
    ("release", "four-cpus,deferring", "4, defer"),
    ("dev", "four-cpus", "dev"),
    ("guide", "four-cpus", "dev, 1"),
];

/// The most bytes of stack of a call in a profile.
const STACK: [(&str, u64); 2] = [("release", 4 << 10), ("guide", 8 << 10)];

/// Functions that are shown.
const LARGEST: usize = 20;

/// The code that the calls add to a kernel.
#[derive(Debug)]
struct Text {
    level: &'static str,
    cpus: usize,
    without: u64,
    code: Code,
    at_most: u64,
}

impl Text {
    fn added(&self) -> u64 {
        self.code.bytes.saturating_sub(self.without)
    }
}

/// What a kernel has said of its calls.
struct Calls {
    profile: &'static str,
    /// What heads its columns.
    head: &'static str,
    cpus: usize,
    calls: Vec<Value>,
}

impl Calls {
    /// Returns the calls of a kernel that take more stack than its profile may: names and bytes.
    fn above(&self) -> Vec<String> {
        let limit = STACK.iter().find(|(profile, _)| *profile == self.profile).map(|(_, bytes)| *bytes);
        let stack = |call: &Value| call["stack"].as_u64().unwrap_or(u64::MAX);
        let above = self.calls.iter().filter(|call| limit.is_some_and(|limit| stack(call) > limit));
        above
            .map(|call| format!("{} {} ({} CPUs, {})", name(call), stack(call), self.cpus, self.profile))
            .collect()
    }
}

/// Everything that is measured on a machine.
struct Cost {
    machine: Machine,
    texts: Vec<Text>,
    calls: Vec<Calls>,
    locked: Vec<String>,
}

/// Measures, and compares with what was decided.
pub(crate) fn run(args: &CostArgs) -> anyhow::Result<()> {
    let cost = Cost::measure(args.machine)?;
    if args.json {
        println!("{:#}", cost.json());
    } else {
        println!("{cost}\n{}", cost.details());
    }
    if args.write {
        let page = fs::read_to_string(PAGE).with_context(|| format!("cannot read {PAGE}"))?;
        fs::write(PAGE, written(&page, &machine_name(args.machine), &cost.to_string())?)?;
    }
    let above: Vec<_> = cost.calls.iter().flat_map(Calls::above).collect();
    ensure!(above.is_empty(), "more stack than a call may take: {}", above.join("; "));
    cost.texts.iter().try_for_each(|text| compare(args.machine, text))
}

/// Links the kernels for RISC-V and AArch64 as most are built, and compares their code with what was decided: a step of the gate.
pub(crate) fn decided(shell: &Shell) -> anyhow::Result<()> {
    let (profile, level) = LEVELS[0];
    for machine in [Machine::Riscv64, Machine::Aarch64] {
        let texts = texts(shell, machine, profile, level, &ProgressBar::hidden())?;
        texts.iter().try_for_each(|text| compare(machine, text))?;
    }
    Ok(())
}

/// Says what is wrong with the size of code: it is more than was decided, or much less.
fn compare(machine: Machine, text: &Text) -> anyhow::Result<()> {
    let (bytes, at_most) = (text.added(), text.at_most);
    let what = format!("{} with {} CPUs at opt-level {}", machine_name(machine), text.cpus, text.level);
    let more = "`cargo xtask cost` says where, and tools/xtask/src/cost.txt what was decided";
    ensure!(
        bytes <= at_most,
        "{what}: the calls add {bytes} bytes of code, and {at_most} are allowed; {more}"
    );
    ensure!(
        bytes + at_most / 10 >= at_most,
        "{what}: the calls add only {bytes} bytes of code: lower the limit of {at_most}"
    );
    Ok(())
}

impl Cost {
    fn measure(machine: Machine) -> anyhow::Result<Self> {
        let shell = &Shell::Plain;
        let links = LEVELS.len() * (1 + CPUS.len());
        let bar = progress::watch(ProgressBar::new((links + BOOTED.len()) as u64));
        bar.set_style(ProgressStyle::with_template("{bar:40} {pos}/{len} {msg}")?);
        let mut of_levels = Vec::new();
        for (profile, level) in LEVELS {
            of_levels.extend(texts(shell, machine, profile, level, &bar)?);
        }
        let mut calls = Vec::new();
        for (profile, features, head) in BOOTED {
            bar.set_message(format!("calls, {profile} {features}"));
            let kernel = build(shell, machine, "measured", profile, features)?;
            let cpus =
                CPUS.iter().rfind(|(known, _)| features.starts_with(known)).map_or(1, |(_, cpus)| *cpus);
            calls.push(Calls { profile, head, cpus, calls: machine.measure(shell, &kernel)? });
            bar.inc(1);
        }
        bar.finish_and_clear();
        let locked = locks::of_a_user("tlbkit")?.into_iter().collect();
        Ok(Self { machine, texts: of_levels, calls, locked })
    }

    /// Returns code by crate and by function, at the first level.
    fn details(&self) -> String {
        let of_level: Vec<_> = self.texts.iter().filter(|text| text.level == LEVELS[0].1).collect();
        let mut said = format!("\n{:<56}", "bytes of .text by crate, opt-level 3");
        said.extend(of_level.iter().map(|text| format!("{:>12}", cpus(text.cpus))));
        let names = of_level.iter().flat_map(|text| text.code.crates.keys());
        let mut names: Vec<_> = names.collect();
        names.sort_unstable();
        names.dedup();
        let bytes = |text: &Text, name: &str| text.code.crates.get(name).copied().unwrap_or(0);
        names.sort_by_key(|name| std::cmp::Reverse(of_level.iter().map(|text| bytes(text, name)).max()));
        for name in names {
            said += &format!("\n{name:<56}");
            said.extend(of_level.iter().map(|text| format!("{:>12}", bytes(text, name))));
        }
        for text in of_level {
            said += &format!(
                "\n\n{:>9} {:>9}  {LARGEST} largest functions, opt-level 3, {}",
                "bytes",
                "instances",
                cpus(text.cpus)
            );
            for function in text.code.functions.iter().take(LARGEST) {
                said += &format!("\n{:>9} {:>9}  {}", function.bytes, function.instances, function.name);
            }
        }
        said
    }

    fn json(&self) -> Value {
        let text = |text: &Text| {
            let functions = text.code.functions.iter().take(LARGEST);
            let function = |function: &binary::Function| json!({ "name": function.name, "bytes": function.bytes, "instances": function.instances });
            json!({
                "opt_level": text.level,
                "cpus": text.cpus,
                "without": text.without,
                "bytes": text.code.bytes,
                "at_most": text.at_most,
                "crates": text.code.crates,
                "functions": functions.map(function).collect::<Value>(),
            })
        };
        let call = |of: &Calls, call: &Value| {
            json!({
                "name": name(call),
                "profile": of.profile,
                "column": of.head,
                "cpus": of.cpus,
                "instructions": call["instructions"],
                "stack": call["stack"],
            })
        };
        json!({
            "machine": machine_name(self.machine),
            "text": self.texts.iter().map(text).collect::<Value>(),
            "calls": self.calls.iter().flat_map(|of| of.calls.iter().map(move |each| call(of, each))).collect::<Value>(),
            "locked": self.locked,
        })
    }
}

/// The tables of docs/costs.md.
impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let head = ["without", "with", "added", "at most"].map(|head| format!("{head:>10}")).concat();
        writeln!(f, "{:<38}{head}", "bytes of .text")?;
        for text in &self.texts {
            let what = format!("opt-level {}, {}", text.level, cpus(text.cpus));
            let numbers = [text.without, text.code.bytes, text.added(), text.at_most];
            writeln!(f, "{what:<38}{}", numbers.map(|number| format!("{number:>10}")).concat())?;
        }
        writeln!(f, "\n{:<38}{:<40}bytes of stack", "", "  instructions")?;
        let heads = BOOTED.map(|(.., head)| format!("{head:>10}")).concat();
        writeln!(f, "{:<38}{heads}{heads}", "a call")?;
        for call in self.calls.first().map_or(&[][..], |first| &first.calls) {
            write!(f, "{:<38}", name(call))?;
            for column in ["instructions", "stack"] {
                for of in &self.calls {
                    let found = of.calls.iter().find(|other| other["name"] == call["name"]);
                    let number = found.and_then(|found| found[column].as_u64());
                    write!(f, "{:>10}", number.map_or("-".into(), |number| number.to_string()))?;
                }
            }
            writeln!(f)?;
        }
        write!(f, "\npackages locked: {}, {}", self.locked.len(), self.locked.join(", "))
    }
}

fn cpus(count: usize) -> &'static str {
    if count == 1 { "one CPU" } else { "four CPUs" }
}

/// Returns the name of a call, in words.
fn name(call: &Value) -> String {
    call["name"].as_str().unwrap_or("?").replace('_', " ")
}

fn machine_name(machine: Machine) -> String {
    machine.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

/// Links the kernel in a profile, with and without the calls.
fn texts(
    shell: &Shell,
    machine: Machine,
    profile: &'static str,
    level: &'static str,
    bar: &ProgressBar,
) -> anyhow::Result<Vec<Text>> {
    let link = |features: &str| -> anyhow::Result<Code> {
        bar.set_message(format!("code, opt-level {level} {features}"));
        let kernel = build(shell, machine, "linked", profile, features)?;
        let code =
            Code::of(&fs::read(&kernel).with_context(|| format!("cannot read {}", kernel.display()))?)?;
        bar.inc(1);
        Ok(code)
    };
    let without = link("without")?.bytes;
    let limits = limits()?;
    let text = |(features, cpus): (&str, usize)| {
        let of = |limit: &&Limit| {
            limit.machine == machine_name(machine) && limit.level == level && limit.cpus == cpus
        };
        let at_most = limits.iter().find(of).context("cost.txt lacks a line")?.bytes;
        Ok(Text { level, cpus, without, code: link(features)?, at_most })
    };
    CPUS.into_iter().map(text).collect()
}

/// Builds a kernel, and returns it.
fn build(
    shell: &Shell,
    machine: Machine,
    kernel: &str,
    profile: &str,
    features: &str,
) -> anyhow::Result<PathBuf> {
    let target = machine.target(shell)?;
    let place = places::target().join("cost");
    let line = Line::new("cargo", "build --quiet --manifest-path").with([&format!("{FOLDER}/Cargo.toml")]);
    let line = line.with(["--bin", kernel, "--profile", profile, "--features", features, "--target", target]);
    shell.run(&line.with(["--target-dir", &place.to_string_lossy()]))?;
    let folder = if profile == "dev" { "debug" } else { profile };
    Ok(place.join(target).join(folder).join(kernel))
}

/// What was decided of the code on a machine.
#[derive(Debug)]
struct Limit {
    machine: String,
    level: String,
    cpus: usize,
    bytes: u64,
}

/// Reads what was decided.
fn limits() -> anyhow::Result<Vec<Limit>> {
    let rows = include_str!("cost.txt").lines().filter(|line| !line.starts_with('#'));
    rows.map(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        let [machine, level, cpus, bytes] = words[..] else { bail!("cost.txt: `{line}` is no limit") };
        Ok(Limit { machine: machine.into(), level: level.into(), cpus: cpus.parse()?, bytes: bytes.parse()? })
    })
    .collect()
}

/// Returns a page with the tables of a machine in their place.
fn written(page: &str, machine: &str, tables: &str) -> anyhow::Result<String> {
    let begin = format!("<!-- cargo xtask cost --machine {machine} -->\n```text\n");
    let (before, rest) =
        page.split_once(&begin).with_context(|| format!("{PAGE} has no tables of {machine}"))?;
    let (_, after) =
        rest.split_once("```\n").with_context(|| format!("{PAGE}: the tables of {machine} have no end"))?;
    let tables: String = tables.lines().map(|line| format!("{}\n", line.trim_end())).collect();
    Ok(format!("{before}{begin}{tables}```\n{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each build whose code is counted has one limit, and there is no other.
    #[test]
    fn each_size_is_decided_once() {
        let limits = limits().unwrap();
        assert_eq!(limits.len(), Machine::value_variants().len() * LEVELS.len() * CPUS.len());
        for machine in Machine::value_variants() {
            for ((_, level), (_, cpus)) in LEVELS.iter().flat_map(|&level| CPUS.map(|cpus| (level, cpus))) {
                let of = |limit: &&Limit| {
                    limit.machine == machine_name(*machine) && limit.level == level && limit.cpus == cpus
                };
                let bytes: Vec<_> = limits.iter().filter(of).map(|limit| limit.bytes).collect();
                assert!(
                    matches!(bytes[..], [bytes] if bytes % 1024 == 0),
                    "{machine:?} {level} {cpus}: {bytes:?}"
                );
            }
        }
    }

    #[test]
    fn more_code_than_was_decided_is_an_error_and_much_less_too() {
        let text = |bytes| Text {
            level: "3",
            cpus: 1,
            without: 1000,
            code: Code { bytes, ..Code::default() },
            at_most: 10_000,
        };
        let said = |bytes| compare(Machine::Riscv64, &text(bytes)).unwrap_err().to_string();
        assert!(
            compare(Machine::Riscv64, &text(11_000)).is_ok()
                && compare(Machine::Riscv64, &text(10_000)).is_ok()
        );
        assert!(said(11_001).contains("10001 bytes of code, and 10000 are allowed"), "{}", said(11_001));
        assert!(said(9_999).contains("lower the limit of 10000"), "{}", said(9_999));
    }

    #[test]
    fn a_call_that_takes_too_much_stack_is_named() {
        let calls = |profile| Calls {
            profile,
            head: "",
            cpus: 4,
            calls: vec![
                json!({ "name": "page_out", "stack": 4097 }),
                json!({ "name": "map", "stack": 4096 }),
            ],
        };
        assert_eq!(calls("release").above(), ["page out 4097 (4 CPUs, release)"]);
        assert!(calls("guide").above().is_empty() && calls("dev").above().is_empty());
    }

    #[test]
    fn the_page_has_the_tables_of_each_machine() {
        let page = include_str!("../../../docs/costs.md");
        for machine in Machine::value_variants().iter().map(|&machine| machine_name(machine)) {
            let new = written(page, &machine, "a  \nb").unwrap();
            assert!(new.contains(&format!("--machine {machine} -->\n```text\na\nb\n```\n")), "{machine}");
        }
    }
}
