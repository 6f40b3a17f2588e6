//! Descriptions for messages, and the message of a panic.

use std::any::Any;

use tlbkit_pagetable::{Entry, Leaf};

/// Describes the result of a lookup.
pub(crate) fn show(found: Option<Leaf>) -> String {
    found.map_or("unmapped".to_owned(), |leaf| format!("mapped by the {leaf}"))
}

/// Describes an entry.
pub(crate) fn show_entry(found: Entry) -> String {
    match found {
        Entry::Mark(mark) => format!("unmapped, with the mark {mark}"),
        found => show(found.leaf()),
    }
}

/// Describes a physical address.
pub(crate) fn place(phys: Option<usize>) -> String {
    phys.map_or("to nothing".to_owned(), |phys| format!("to {phys:#x}"))
}

/// Returns the message of a panic.
pub(crate) fn words(panic: &dyn Any) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("no words")
}
