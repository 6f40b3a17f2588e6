//! Operations as Rust source code, for a test that repeats a failure.

use std::fmt::Write as _;

use tlbkit_addr::{Attr, PageSize, Pages};
use tlbkit_pagetable::Mark;

use crate::Op;

/// Returns operations as a Rust array. The names that it uses are in [`crate::prelude`].
pub(crate) fn array(ops: &[Op]) -> String {
    let mut text = "[\n".to_owned();
    for op in ops {
        let _ = writeln!(text, "        {},", one(op));
    }
    text + "    ]"
}

/// Returns the path of a type, as a test of the type's crate writes it.
pub(crate) fn within_crate(path: &str) -> String {
    let Some((name, _)) = path.split_once("::") else { return path.to_owned() };
    let is_word = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let mut text = String::new();
    // Paths among the type's parameters may also begin with the crate's name.
    for piece in path.split_inclusive(|c| !is_word(c)) {
        match piece.strip_prefix(name) {
            Some(rest) if rest.starts_with("::") => text = text + "crate" + rest,
            _ => text += piece,
        }
    }
    text
}

fn one(op: &Op) -> String {
    match *op {
        Op::Map { pages, frame, size, attr } => format!(
            "Op::Map {{ pages: {}, frame: Pfn::new({:#x}), size: {}, attr: {} }}",
            range(pages),
            frame.get(),
            page(size),
            bits(attr)
        ),
        Op::Unmap { pages, holes } => {
            format!("Op::Unmap {{ pages: {}, holes: Holes::{holes:?} }}", range(pages))
        }
        Op::Drain { pages, most } => {
            format!("Op::Drain {{ pages: {}, most: {} }}", range(pages), number(most))
        }
        Op::Move { pages, to } => {
            format!("Op::Move {{ pages: {}, to: Vpn::new({:#x}) }}", range(pages), to.get())
        }
        Op::Protect { pages, holes, change } => format!(
            "Op::Protect {{ pages: {}, holes: Holes::{holes:?}, change: Change {{ clear: {}, set: {} }} }}",
            range(pages),
            bits(change.clear),
            bits(change.set)
        ),
        Op::Resize { pages, to } => format!("Op::Resize {{ pages: {}, to: {} }}", range(pages), page(to)),
        Op::Replace { at, frame, attr } => format!(
            "Op::Replace {{ at: VirtAddr::new({:#x}), frame: Pfn::new({:#x}), attr: {} }}",
            at.get(),
            frame.get(),
            bits(attr)
        ),
        Op::Mark { page, mark } => {
            let mark = match mark {
                None => "None".to_owned(),
                Some(Mark::Guard) => "Some(Mark::Guard)".to_owned(),
                Some(Mark::Payload(payload, attr)) => {
                    format!("Some(Mark::Payload({payload:#x}, {}))", bits(attr))
                }
            };
            format!("Op::Mark {{ page: Vpn::new({:#x}), mark: {mark} }}", page.get())
        }
        Op::Fill { page, payload, frame } => format!(
            "Op::Fill {{ page: Vpn::new({:#x}), payload: {payload:#x}, frame: Pfn::new({:#x}) }}",
            page.get(),
            frame.get()
        ),
        Op::Lookup { at } => format!("Op::Lookup {{ at: VirtAddr::new({:#x}) }}", at.get()),
        Op::ForEach { pages, stop } => {
            format!("Op::ForEach {{ pages: {}, stop: {} }}", range(pages), number(stop))
        }
    }
}

fn range(pages: Pages) -> String {
    let (first, last) = (pages.first().get(), pages.last().get());
    format!("Pages::new(Vpn::new({first:#x}), Vpn::new({last:#x})).unwrap()")
}

fn page(size: PageSize) -> String {
    format!("PageSize::from_shift({}).unwrap()", size.shift())
}

fn bits(attr: Attr) -> String {
    format!("Attr::from_bits_retain({:#x})", attr.bits())
}

fn number(most: usize) -> String {
    if most == usize::MAX { "usize::MAX".to_owned() } else { most.to_string() }
}

#[cfg(test)]
mod tests {
    use super::within_crate;

    #[test]
    fn a_path_begins_with_the_crate_wherever_its_name_does() {
        for (path, written) in [
            ("own::tests::Tested", "crate::tests::Tested"),
            ("own::Table<own::Small, other::own::Large>", "crate::Table<crate::Small, other::own::Large>"),
            ("own::Table<true>", "crate::Table<true>"),
            ("bool", "bool"),
        ] {
            assert_eq!(within_crate(path), written);
        }
    }
}
