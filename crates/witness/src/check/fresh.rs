//! A table that is loaded before walks see what was stored in it.
//!
//! A store to a table that no CPU walks leaves nothing in a TLB. But without a barrier nothing orders that store before the walks
//! of a CPU that loads the table: the walks may read the word's earlier value. If that value was 0, a walk finds no translation and
//! the access faults, which matters only to accesses by the kernel. If the value is unknown, as in memory that was taken for a node,
//! a walk may go anywhere.

use std::vec;
use std::vec::Vec;

use super::arch::{Entry, Family};
use super::hash::Set;
use super::machine::{Machine, Unread};
use super::memory::{Line, Store, Word};
use super::verdict::{Refusal, Rule};
use crate::event::{Event, Fence};

/// The largest number of nodes kept for a CPU that it has filled since its stores were last visible to all.
const FILLED: usize = 256;

impl Word {
    /// Tells whether a walk that finds this word, a link, also finds what `store` stored: the CPU executed a barrier between the two
    /// stores or, if two CPUs made them, the CPU that stored the link had seen the other store.
    fn follows(&self, store: Store) -> bool {
        if usize::from(self.by) == store.cpu { self.epoch > store.epoch } else { self.since > store.line }
    }
}

impl Machine {
    /// Notes that a CPU has filled a node with zeros.
    pub(super) fn filled(&mut self, cpu: usize, node: u64) {
        if self.arch.is_ordered() || self.arch.is_software() {
            return;
        }
        let filled = &mut self.cpus[cpu].filled;
        if filled.len() >= FILLED {
            filled.pop_front();
        }
        filled.push_back(node);
    }

    /// Tells whether the walks of a table that `cpu` loads read what a store stored: the store is visible to all CPUs, or `cpu` has
    /// ordered the stores that it sees before its walks. If another CPU made the store and handed the table on, any barrier of that
    /// CPU after the store is enough.
    fn is_seen(&self, cpu: usize, Store { cpu: writer, line, epoch }: Store) -> bool {
        let by = &self.cpus[writer];
        line <= by.visible.max(self.cpus[cpu].near) || (writer != cpu && epoch < by.epoch)
    }

    /// RISC-V: a CPU has executed a fence, which orders the stores that it sees before its walks. Without an address, the fence removes
    /// what walks have found below a root that was loaded before.
    pub(super) fn fenced(&mut self, cpu: usize, fence: Fence) {
        let (now, own) = (self.now, &mut self.cpus[cpu]);
        own.near = now;
        if fence.pages.is_none() {
            own.unread = own.unread.filter(|unread| fence.asid.is_some_and(|asid| asid != unread.asid));
        }
    }

    /// Checks a table that a CPU has just loaded: that its walks find no node as it was before it was filled.
    ///
    /// On AArch64 the barrier has to come before. On RISC-V a fence may come right after: it removes what walks have read until then.
    pub(super) fn reads(&mut self, cpu: usize, root: u64, asid: u16) -> Result<(), Refusal> {
        let writers = (0..).zip(&self.cpus[..self.seen]);
        let filled = writers.flat_map(|(writer, of)| of.filled.iter().map(move |&node| (writer, node)));
        let unseen = filled.filter_map(|(writer, node)| {
            let store = self.tables.nodes.get(&node)?.filled.filter(|store| store.cpu == writer)?;
            (!self.is_seen(cpu, store) && self.leads(root, node, store)).then_some((store.line, node, store))
        });
        let Some((_, node, store)) = unseen.min_by_key(|&(line, node, _)| (line, node)) else {
            return Ok(());
        };
        let unread = Unread { root, asid, since: self.now, node, store };
        if self.arch.family() == Family::Arm {
            return Err(self.violation(Rule::Unwritten, Some(cpu)).unread(cpu, unread));
        }
        self.cpus[cpu].unread = Some(unread);
        Ok(())
    }

    /// Tells whether a walk from a root comes to a node by links that do not order a store to the node before the walk.
    fn leads(&self, root: u64, node: u64, store: Store) -> bool {
        let (mut nodes, mut known) = (vec![node], Set::default());
        while let Some(node) = nodes.pop() {
            if node == root {
                return true;
            }
            for &parent in self.tables.nodes.get(&node).into_iter().flat_map(|found| &found.parents) {
                let above = self.arch.node(parent);
                if !self.tables.word(parent).follows(store) && known.insert(above) {
                    nodes.push(above);
                }
            }
        }
        false
    }

    /// RISC-V: checks that a CPU that may read a table as it was before executes its fence before it does anything else.
    pub(super) fn has_read(&self, cpu: usize, event: &Event) -> Result<(), Refusal> {
        let Some(unread) = self.cpus[cpu].unread else { return Ok(()) };
        match event {
            Event::Fence(_) | Event::Barrier(_) | Event::IpiTake { .. } | Event::Full | Event::Gap => Ok(()),
            _ => Err(self.violation(Rule::Unwritten, Some(cpu)).unread(cpu, unread)),
        }
    }

    /// Finds a word on a CPU's way to an address that its walks may find empty yet: it was stored before the CPU loaded the root, and
    /// nothing orders that before the walks. Returns its address, and when it was stored.
    pub(super) fn unseen(&self, cpu: usize, root: u64, va: u64) -> Option<(u64, Line)> {
        if self.arch.is_ordered() || self.arch.is_software() {
            return None;
        }
        let (mut node, mut level) = (root, self.tables.level(root)?);
        let mut links: Vec<Word> = Vec::new();
        loop {
            let at = self.arch.slot(node, level, va);
            let word @ Word { since, by, epoch, new, .. } = self.tables.word(at);
            let store = Store { cpu: by.into(), line: since, epoch };
            let ordered = links.iter().any(|link| link.follows(store));
            if new && since <= self.cpus[cpu].loaded && !ordered && !self.is_seen(cpu, store) {
                return Some((at, since));
            }
            match self.tables.entry(at, level) {
                Entry::Link { node: next, .. }
                    if self.tables.level(next) == Some(level - self.arch.step()) =>
                {
                    links.push(word);
                    (node, level) = (next, level - self.arch.step());
                }
                _ => return None,
            }
        }
    }
}
