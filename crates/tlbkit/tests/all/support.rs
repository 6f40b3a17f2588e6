//! The tables of `docs/support.md` that say what formats and machines can do are made from the code.
//!
//! `cargo xtask support` writes them; this test, without its variable, compares them.
#![cfg(all(target_pointer_width = "64", not(miri)))]

use std::any::TypeId;
use std::fmt::Write as _;
use std::{env, fs};

use tlbkit::pagetable::format::{
    self, Aarch64, Aarch64Guest, Aarch64Of, Compact, Compact32, EntryLo, EntryLoCoherent, EntryLoCow,
    EntryLoCowCoherent, Ept, EptOf, Format, Paper, RiscvOf, Sv32, Sv39, Sv39x4, X86, X86Of,
};
use tlbkit::pagetable::{Geometry, Radix, Word as _};
use tlbkit::{Attr, FlushScope, Guarded, Machine, PageSize, Pfn, WalkCache, arch};

const BEGIN: &str = "<!-- cargo xtask support: begin -->\n";
const END: &str = "<!-- cargo xtask support: end -->\n";
/// Set to anything by the command.
const WRITE: &str = "TLBKIT_WRITE_SUPPORT";

/// The sizes of the pages that a format has, where only leaves stand and above: those of the first frame.
fn sizes<F: Format>() -> String {
    let has = |shift: &u32| {
        let size = PageSize::from_shift(*shift).unwrap();
        [true, false].iter().any(|&last| F::leaf(Pfn::new(0), size, Attr::READ, last).is_ok())
    };
    let shifts: Vec<u32> = (12..48).filter(has).collect();
    let [_, rest @ ..] = &shifts[..] else { return String::new() };
    let even = rest.windows(3).all(|three| three[1] - three[0] == three[2] - three[1]);
    match shifts[..] {
        // One after the other.
        [first, second, .., last] if even && shifts.len() > 6 => {
            let size = |shift| PageSize::from_shift(shift).unwrap();
            format!("{}, {} to {}", size(first), size(second), size(last))
        }
        _ => shifts
            .iter()
            .map(|&s| PageSize::from_shift(s).unwrap().to_string())
            .collect::<Vec<_>>()
            .join(", "),
    }
}

/// How many bits a physical address may have.
fn physical<F: Format>() -> u32 {
    let fits =
        |bits: &u32| F::leaf(Pfn::new(1 << (bits - 1 - F::BASE.shift())), F::BASE, Attr::READ, true).is_ok();
    (17..=64).filter(fits).max().unwrap()
}

fn names(attr: Attr) -> String {
    let names: Vec<String> = attr.iter_names().map(|(name, _)| format!("`{name}`")).collect();
    if names.is_empty() { "-".into() } else { names.join(", ") }
}

fn yes(is: bool) -> &'static str {
    if is { "yes" } else { "-" }
}

fn format_row<F: Format>(text: &mut String, name: &str) {
    let writes = if F::STATUS { "hardware" } else { "software" };
    let appears = match F::APPEARS {
        FlushScope::Nowhere => "nothing",
        FlushScope::Barrier => "a barrier",
        FlushScope::Local => "a flush here",
        FlushScope::Everywhere => "a shootdown",
    };
    let links = match F::WALK_CACHE {
        WalkCache::Nothing => "none",
        WalkCache::ByAddress => "flushed by address",
        WalkCache::Whole => "flushed without address",
        WalkCache::NoAddress => "flushed without address, as leaves are",
    };
    let payload = format::payload_bits::<F>().map_or("-".into(), |bits| bits.to_string());
    writeln!(
        text,
        "| `{name}` | {} | {} | {} | {} | {writes} | {} | {payload} | {appears} | {links} | {} |",
        F::Word::BITS,
        physical::<F>(),
        sizes::<F>(),
        if F::PAIRED { "pairs" } else { "single" },
        yes(F::CLOSES),
        yes(F::BREAK),
    )
    .unwrap();
}

fn attr_row<F: Format>(text: &mut String, name: &str) {
    let all = F::IMPLIED | F::OPTIONAL;
    writeln!(
        text,
        "| `{name}` | {} | {} | {} | {} |",
        names(F::IMPLIED),
        names(F::OPTIONAL),
        names(F::FIXED),
        names(Attr::all() - all)
    )
    .unwrap();
}

fn machine_row<M: Machine>(name: &str) -> String {
    let sizes: Vec<String> = M::Geometry::SIZES.iter().map(ToString::to_string).collect();
    let is_guarded = TypeId::of::<M::Table>() == TypeId::of::<Guarded>();
    let levels = if is_guarded { "guarded".into() } else { M::Geometry::WIDTHS.len().to_string() };
    format!(
        "| `{name}` | {levels} | {} | {} | {} | {} |\n",
        M::Geometry::VA_BITS,
        sizes.join(", "),
        M::ASID_BITS,
        yes(M::Format::OPTIONAL.contains(Attr::COPY_ON_WRITE)),
    )
}

macro_rules! rows {
    ($text:ident, $row:ident: $($kind:ty as $name:literal),* $(,)?) => { $($row::<$kind>(&mut $text, $name);)* };
}

fn made() -> String {
    let mut text = String::from(
        "\n| format | bits of a word | of a physical address | pages | TLB entries | A and D are set by | closed pages | bits of a payload | \
         a new page asks for | cached links | breaks before it makes |\n|-|-|-|-|-|-|-|-|-|-|-|\n",
    );
    rows!(text, format_row:
        Compact as "Compact", Compact32 as "Compact32", Paper as "Paper", EntryLo as "EntryLo",
        EntryLoCoherent as "EntryLoCoherent", EntryLoCow as "EntryLoCow", EntryLoCowCoherent as "EntryLoCowCoherent",
        Sv32 as "Sv32", Sv39 as "Sv39", RiscvOf<false, true, true> as "RiscvOf<false, true, true>",
        RiscvOf<true, true, true> as "RiscvOf<true, true, true>", X86 as "X86", X86Of<true, true> as "X86Of<true, true>",
        X86Of<true, true, false> as "X86Of<true, true, false>",
        Aarch64 as "Aarch64", Aarch64Of<12, true, false> as "Aarch64Of<12, true, false>", Aarch64Of<12, true, true> as "Aarch64Of<12, true, true>",
        Aarch64Of<14, true, false> as "Aarch64Of<14, true, false>", Aarch64Of<16, true, false> as "Aarch64Of<16, true, false>",
        Aarch64Of<12, true, false, true> as "Aarch64Of<12, true, false, true>", Aarch64Of<14, true, false, true> as "Aarch64Of<14, true, false, true>",
        Aarch64Of<16, true, false, true> as "Aarch64Of<16, true, false, true>", Sv39x4 as "Sv39x4",
        RiscvOf<true, true, true, true> as "RiscvOf<true, true, true, true>", Ept as "Ept",
        EptOf<false, true> as "EptOf<false, true>", Aarch64Guest as "Aarch64Guest");
    text.push_str("\n| format | always has | has or lacks | fixed while mapped | has not |\n|-|-|-|-|-|\n");
    rows!(text, attr_row:
        Compact as "Compact", EntryLo as "EntryLo", EntryLoCow as "EntryLoCow", Sv39 as "Sv39",
        RiscvOf<true, true, true> as "RiscvOf<true, true, true>", X86 as "X86", X86Of<true, true> as "X86Of<true, true>",
        X86Of<true, true, false> as "X86Of<true, true, false>", Aarch64 as "Aarch64", Sv39x4 as "Sv39x4", Ept as "Ept",
        Aarch64Guest as "Aarch64Guest");
    text.push_str(
        "\n| machine | levels | bits of a virtual address | pages | bits of an ASID | fork |\n|-|-|-|-|-|-|\n",
    );
    let mut rows = std::collections::BTreeMap::new();
    macro_rules! machine {
        ($name:ident, $machine:ty, $when:ident) => {
            machines!($machine);
        };
    }
    macro_rules! machines {
        ($($machine:ty),*) => {$(
            // How a type is spaced depends on how many macros it has passed through.
            let name = stringify!($machine).replace(' ', "").replace(',', ", ");
            let name = name.trim_start_matches("arch::");
            rows.insert(name.to_owned(), machine_row::<$machine>(name));
        )*};
    }
    each_machine!(machine);
    // Their relatives, which differ in nothing that is driven.
    machines!(
        arch::Sv48, arch::Sv57, arch::X86_64G1, arch::X86_64La57, arch::X86_64La57G1, arch::AArch64Upper, arch::AArch64Runs,
        arch::AArch64Of<39, 12>, arch::AArch64Of<42, 12>, arch::AArch64Of<48, 14, true>,
        arch::AArch64Of<52, 12, false, false, true>, arch::Mips32Coherent, arch::Mips32Coherent<Guarded>
    );
    text.extend(rows.into_values());
    text.push('\n');
    text
}

#[test]
fn the_tables_of_support_are_those_of_the_code() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/support.md");
    let text = fs::read_to_string(path).unwrap();
    let (before, rest) = text.split_once(BEGIN).expect("a place for the tables begins");
    let (there, after) = rest.split_once(END).expect("and ends");
    let made = made();
    if env::var_os(WRITE).is_some() {
        fs::write(path, [before, BEGIN, &made, END, after].concat()).unwrap();
    } else {
        assert_eq!(there, made, "docs/support.md is stale: run `cargo xtask support`");
    }
}
