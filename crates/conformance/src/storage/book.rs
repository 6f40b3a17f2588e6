//! The nodes that are taken, and by which table: what an access to a node is compared with.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use tlbkit_pagetable::nodes::NodeAddr;

/// The nodes that are taken.
#[derive(Default)]
pub(super) struct Book {
    pub(super) nodes: HashMap<NodeAddr, Taken, BuildHasherDefault<Spread>>,
    /// The table that uses the storage now.
    pub(super) table: usize,
    /// Operations so far.
    pub(super) operation: usize,
    pub(super) returned: usize,
    pub(super) fault: Option<String>,
}

/// A node that is taken.
pub(super) struct Taken {
    pub(super) words: usize,
    pub(super) table: usize,
    pub(super) operation: usize,
    pub(super) walked: bool,
}

/// The accessor of a node: a walker or the writer.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum By {
    Walker,
    Writer,
}

impl Book {
    /// Tells whether a node is taken, and writes down what is wrong with an access to it.
    pub(super) fn knows(&mut self, node: NodeAddr, by: By) -> bool {
        let table = self.table;
        let visitor = || if by == By::Walker { "a walker" } else { "the writer" };
        let (known, fault) = match self.nodes.get_mut(&node) {
            None => {
                (false, format!("{} came to {:#x}, which is no node, or a free one", visitor(), node.get()))
            }
            Some(taken) => {
                taken.walked |= by == By::Walker;
                if taken.table == table {
                    return true;
                }
                let what = format!(
                    "{} of table {table} came to node {:#x}, which belongs to table {}",
                    visitor(),
                    node.get(),
                    taken.table
                );
                (true, what)
            }
        };
        self.fault.get_or_insert(fault);
        known
    }
}

/// Hashes the address of a node.
#[derive(Default)]
pub(super) struct Spread(u64);

impl Hasher for Spread {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }

    fn write_usize(&mut self, number: usize) {
        let product = (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = product ^ (product >> 32);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
