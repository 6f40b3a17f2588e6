//! The code of a linked program, by crate and by function.

use std::collections::BTreeMap;

use addr2line::{Context, gimli};
use anyhow::Context as _;
use object::{Object as _, ObjectSection as _, ObjectSymbol as _, SymbolKind};

/// What counts for no crate of the tree, and for none that the tree depends on.
const REST: &str = "core and compiler_builtins";
/// The kernel's own.
const KERNEL: &str = "the kernel";

/// The code of a program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Code {
    /// Bytes of .text.
    pub(super) bytes: u64,
    pub(super) crates: BTreeMap<String, u64>,
    /// The largest first.
    pub(super) functions: Vec<Function>,
}

/// All instances of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Function {
    pub(super) name: String,
    pub(super) bytes: u64,
    pub(super) instances: usize,
}

type Slice<'a> = gimli::EndianSlice<'a, gimli::LittleEndian>;

impl Code {
    /// Reads a program, which has debug information of its lines.
    pub(super) fn of(program: &[u8]) -> anyhow::Result<Self> {
        let file = object::File::parse(program).context("no program")?;
        let text = file.section_by_name(".text").context("the program has no .text")?;
        let (begin, bytes) = (text.address(), text.size());
        Ok(Self {
            bytes,
            crates: by_crate(&file, begin, bytes)?,
            functions: by_function(&file, begin, bytes)?,
        })
    }
}

/// Adds up the bytes whose lines are in each crate.
fn by_crate(file: &object::File<'_>, begin: u64, bytes: u64) -> anyhow::Result<BTreeMap<String, u64>> {
    let section = |id: gimli::SectionId| -> Result<Slice<'_>, object::Error> {
        let data = file.section_by_name(id.name()).map_or(Ok(&[][..]), |section| section.data())?;
        Ok(gimli::EndianSlice::new(data, gimli::LittleEndian))
    };
    let context = Context::from_dwarf(gimli::Dwarf::load(section)?)?;
    let mut crates = BTreeMap::new();
    let mut known = 0;
    for (at, len, _) in context.find_location_range(begin, begin + bytes)? {
        // From the innermost function outwards: what is inlined counts where it was written.
        let mut frames = context.find_frames(at).skip_all_loads()?;
        let mut owner = None;
        while let (None, Some(frame)) = (&owner, frames.next()?) {
            owner = frame.location.and_then(|location| crate_of(location.file?));
        }
        *crates.entry(owner.unwrap_or_else(|| REST.to_owned())).or_default() += len;
        known += len;
    }
    *crates.entry(REST.to_owned()).or_default() += bytes.saturating_sub(known);
    Ok(crates)
}

/// Returns the crate that a file of source is in, unless it is in Rust's own libraries.
fn crate_of(file: &str) -> Option<String> {
    if file.contains("/library/") || file.contains("/rustc/") {
        return None;
    }
    if let Some((_, rest)) = file.rsplit_once("/crates/") {
        return rest.split('/').next().map(crate::places::package);
    }
    if let Some((_, rest)) = file.split_once("/registry/src/") {
        // `index-0123/name-1.2.3/src/lib.rs`.
        let package = rest.split('/').nth(1)?;
        return Some(package.rsplit_once('-').map_or(package, |(name, _)| name).to_owned());
    }
    Some(KERNEL.to_owned())
}

/// Adds up the bytes of each function's instances.
fn by_function(file: &object::File<'_>, begin: u64, bytes: u64) -> anyhow::Result<Vec<Function>> {
    let mut functions: BTreeMap<String, (u64, usize)> = BTreeMap::new();
    let within = |at: u64| (begin..begin + bytes).contains(&at);
    for symbol in
        file.symbols().filter(|symbol| symbol.kind() == SymbolKind::Text && within(symbol.address()))
    {
        let name = plain(&format!("{:#}", rustc_demangle::demangle(symbol.name()?)));
        let (sum, instances) = functions.entry(name).or_default();
        *sum += symbol.size();
        *instances += 1;
    }
    let function = |(name, (bytes, instances))| Function { name, bytes, instances };
    let mut functions: Vec<_> = functions.into_iter().map(function).collect();
    functions.sort_by_key(|function| std::cmp::Reverse(function.bytes));
    Ok(functions)
}

/// Returns a function's path without the arguments of its generics: `<a::B<C> as d::E<F>>::g::<H>` is `<a::B as d::E>::g`.
fn plain(path: &str) -> String {
    let mut plain = String::new();
    // For each open bracket, whether it is one of arguments: one that follows a name.
    let mut open: Vec<bool> = Vec::new();
    let mut before = ' ';
    for letter in path.chars() {
        let hidden = open.contains(&true);
        match letter {
            '<' => {
                let is_arguments = before.is_alphanumeric() || before == '_' || before == ':';
                if is_arguments && !hidden {
                    plain.truncate(plain.trim_end_matches("::").len());
                }
                if !is_arguments && !hidden {
                    plain.push(letter);
                }
                open.push(is_arguments);
            }
            // The arrow of a function's type closes nothing.
            '>' if before != '-' => {
                let was_arguments = open.pop() == Some(true);
                if !was_arguments && !open.contains(&true) {
                    plain.push(letter);
                }
            }
            _ if hidden => {}
            _ => plain.push(letter),
        }
        before = letter;
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_is_known_without_its_arguments() {
        for (path, is) in [
            ("core::panicking::panic_fmt", "core::panicking::panic_fmt"),
            (
                "<tlbkit::space::AddressSpace<linked::Mine, 4>>::map_linear",
                "<tlbkit::space::AddressSpace>::map_linear",
            ),
            ("<a::B<C<D>, fn(u8) -> E> as d::E<F>>::g::<H>::{closure#0}", "<a::B as d::E>::g::{closure#0}"),
            ("tlbkit::edit::Edit<K,_>::unmap", "tlbkit::edit::Edit::unmap"),
        ] {
            assert_eq!(plain(path), is);
        }
    }

    #[test]
    fn a_line_counts_for_the_crate_in_which_it_is() {
        for (file, name) in [
            ("/rustc/0123/library/core/src/option.rs", None),
            ("/home/a/tlbkit/crates/tlbkit/src/edit/map.rs", Some("tlbkit")),
            ("/home/a/tlbkit/crates/addr/src/flush.rs", Some("tlbkit-addr")),
            ("/home/a/.cargo/registry/src/index-0123/spin-0.9.8/src/mutex.rs", Some("spin")),
            ("src/../../kernel/embedding/cpu/riscv64.rs", Some(KERNEL)),
        ] {
            assert_eq!(crate_of(file).as_deref(), name, "{file}");
        }
    }

    /// This program itself has a `.text`, and lines of this crate's.
    #[test]
    fn the_parts_of_a_program_are_the_whole() {
        let program = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let code = Code::of(&program).unwrap();
        assert_eq!(code.crates.values().sum::<u64>(), code.bytes);
        assert!(code.functions.len() > 100 && code.functions.is_sorted_by(|a, b| a.bytes >= b.bytes));
    }
}
