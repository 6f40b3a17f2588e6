//! The events `walk begin` and `walk end`: memory that a walk by software may have found.
//!
//! A kernel that flushes the TLBs of all CPUs without their help has to know by other means when their walks by software have ended. Such a
//! walk may be in each node that its table has had since the walk began, also below a link that was removed meanwhile; if it uses what it
//! finds, it may use each frame that the table has mapped. It finds nothing that was removed before it began: the lines of a log are in
//! the order in which that is so, because a walk is announced before it reads, and a node is removed before the announcements are read.

use std::format;
use std::vec::Vec;

use super::arch::{Entry, rights};
use super::hash::Map;
use super::machine::Machine;
use super::memory::Line;
use super::verdict::{Refusal, Rule};

/// A walk by software that has not ended.
#[derive(Debug)]
pub(super) struct Walk {
    pub(super) root: u64,
    /// The line in which it began.
    pub(super) since: Line,
    /// Whether it uses what it finds.
    uses: bool,
    /// The nodes and frames that were taken out of its table since then, and the lines in which they were.
    nodes: Map<u64, Line>,
    frames: Map<(u64, u32), Line>,
}

impl Machine {
    pub(super) fn begin_walk(&mut self, cpu: usize, root: u64, uses: bool) -> Result<(), Refusal> {
        if self.cpus[cpu].walk.is_some() {
            return Err(self.impossible("this CPU is in a walk that has not ended"));
        }
        let root = self.named(root)?;
        let walk = Walk { root, since: self.now, uses, nodes: Map::default(), frames: Map::default() };
        self.cpus[cpu].walk = Some(walk);
        Ok(())
    }

    pub(super) fn end_walk(&mut self, cpu: usize) -> Result<(), Refusal> {
        match self.cpus[cpu].walk.take() {
            Some(_) => Ok(()),
            None => Err(self.impossible("this CPU is in no walk")),
        }
    }

    /// Records what the walks under way may have found by an entry that is about to change.
    pub(super) fn detach(&mut self, at: u64, before: Entry) {
        let node = self.arch.node(at);
        for cpu in 0..self.seen {
            let Some(mut walk) = self.cpus[cpu].walk.take() else { continue };
            if self.is_under(node, &walk) {
                let below = match before {
                    Entry::Link { node, .. } => self.tables.below(node, rights::ALL),
                    _ => Vec::new(),
                };
                for entry in below.into_iter().map(|under| under.entry).chain([before]) {
                    match entry {
                        Entry::Link { node, .. } => _ = walk.nodes.entry(node).or_insert(self.now),
                        Entry::Leaf { frame, shift, .. } if walk.uses => {
                            walk.frames.entry((frame, shift)).or_insert(self.now);
                        }
                        Entry::Leaf { .. } | Entry::Absent => {}
                    }
                }
            }
            self.cpus[cpu].walk = Some(walk);
        }
    }

    /// Tells whether a node is in the table of a walk, or below a link that was removed since the walk began.
    fn is_under(&self, node: u64, walk: &Walk) -> bool {
        let parents = || self.tables.nodes.get(&node).map_or(&[][..], |node| &node.parents);
        node == walk.root
            || walk.nodes.contains_key(&node)
            || parents()
                .iter()
                .any(|&at| self.arch.node(at) != node && self.is_under(self.arch.node(at), walk))
    }

    /// Checks that no walk by software may be in a node that changes hands.
    pub(super) fn unwalked(&self, node: u64) -> Result<(), Refusal> {
        for cpu in 0..self.seen {
            if let Some(walk) = &self.cpus[cpu].walk
                && self.is_under(node, walk)
            {
                let what =
                    format!("the node at {node:#x} changes hands, and a walk by software may be in it");
                let cut = walk.nodes.get(&node).copied();
                return Err(self.violation(Rule::NodeReached, Some(cpu)).walked(cpu, walk, &what, cut));
            }
        }
        Ok(())
    }

    /// Checks that no walk by software uses memory that changes hands.
    pub(super) fn unused(&self, first: u64, last: u64) -> Result<(), Refusal> {
        for cpu in 0..self.seen {
            let Some(walk) = &self.cpus[cpu].walk else { continue };
            let found = walk
                .frames
                .iter()
                .filter(|&(&(frame, shift), _)| frame <= last && first <= frame + ((1 << shift) - 1));
            if let Some((&(frame, _), &line)) = found.min() {
                let what =
                    format!("the frame at {frame:#x} changes hands, and code of the kernel may use it");
                return Err(self.violation(Rule::FrameReached, Some(cpu)).walked(
                    cpu,
                    walk,
                    &what,
                    Some(line),
                ));
            }
        }
        Ok(())
    }
}
