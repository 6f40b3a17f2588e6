//! What the boot loader hands over in a flattened device tree: Devicetree Specification 0.4, chapter 5.

use super::Boot;

impl Boot {
    /// Returns what the tree at `tree` says. `bytes` returns what a physical address and a length name.
    pub(super) fn of_tree(tree: usize, bytes: impl Fn(usize, usize) -> &'static [u8]) -> Self {
        let number =
            |property: &[u8]| property.iter().fold(0, |number, &byte| number << 8 | usize::from(byte));
        let tree = bytes(tree, number(&bytes(tree, 8)[4..]));
        let found = |name| property(tree, name).unwrap_or_default();
        let (start, end) = (number(found("linux,initrd-start")), number(found("linux,initrd-end")));
        assert!(start < end, "there are no programs: QEMU takes them as -initrd");
        Self {
            words: str::from_utf8(found("bootargs")).unwrap_or_default().trim_end_matches('\0'),
            programs: bytes(start, end - start),
        }
    }
}

/// Returns a property of the node `chosen`; no other node of the tree has one of the same name.
fn property<'t>(tree: &'t [u8], wanted: &str) -> Option<&'t [u8]> {
    let word = |at: usize| Some(u32::from_be_bytes(tree.get(at..at + 4)?.try_into().ok()?) as usize);
    let (mut at, strings) = (word(8)?, word(12)?);
    loop {
        let token = word(at)?;
        at += 4;
        match token {
            // A node begins, with its name.
            1 => at += (tree.get(at..)?.iter().position(|&byte| byte == 0)? + 1).next_multiple_of(4),
            // A property: its length and where its name is.
            3 => {
                let (len, name) = (word(at)?, tree.get(strings + word(at + 4)?..)?);
                let value = tree.get(at + 8..at + 8 + len)?;
                if name.split(|&byte| byte == 0).next() == Some(wanted.as_bytes()) {
                    return Some(value);
                }
                at += 8 + len.next_multiple_of(4);
            }
            // The end of a node, or nothing.
            2 | 4 => {}
            _ => return None,
        }
    }
}
