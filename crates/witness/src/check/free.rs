//! The events `node` and `frame`: memory is taken or given back.

use std::vec::Vec;

use super::arch::Entry;
use super::held::GLOBAL;
use super::machine::Machine;
use super::memory::Store;
use super::session::Kind;
use super::verdict::{Refusal, Rule};
use crate::event::Memory;

/// The largest number of nodes that a line takes or gives back.
const NODES: u64 = 4096;

impl Machine {
    pub(super) fn node(&mut self, cpu: usize, memory: Memory) -> Result<(), Refusal> {
        let (at, last) = self.range(memory)?;
        let (free, page) = (memory.free, self.arch.granule());
        if !at.is_multiple_of(page) || last % page != page - 1 || (last - at) / page >= NODES {
            return Err(
                self.impossible("nodes are pages of the smallest size, at most 4096 of them in a line")
            );
        }
        self.unreached(at, last)?;
        for node in (at..=last).step_by(page as usize) {
            if self.tables.nodes.contains_key(&node) {
                self.free_node(node, cpu)?;
            }
            if free {
                self.checked.freed += 1;
                self.tables.free(node);
            } else {
                let store = Store { cpu, line: self.now, epoch: self.cpus[cpu].epoch };
                self.tables.take(node, store);
                self.filled(cpu, node);
            }
        }
        Ok(())
    }

    pub(super) fn frame(&mut self, cpu: usize, memory: Memory) -> Result<(), Refusal> {
        let (at, last) = self.range(memory)?;
        self.checked.freed += u64::from(memory.free);
        self.unreached(at, last)?;
        self.unused(at, last)?;
        // A kernel may give nodes back as frames.
        let size = self.arch.granule();
        let near = (self.arch.node(at)..=self.arch.node(last)).step_by(size as usize);
        let mut nodes: Vec<u64> = if (last - at) / size < NODES {
            near.filter(|&node| self.tables.level(node).is_some()).collect()
        } else {
            self.tables
                .nodes
                .keys()
                .copied()
                .filter(|node| (self.arch.node(at)..=last).contains(node))
                .collect()
        };
        nodes.sort_unstable();
        for node in nodes {
            self.free_node(node, cpu)?;
            self.tables.free(node);
        }
        Ok(())
    }

    /// Returns the first and last address of a range of memory.
    fn range(&self, Memory { at, bytes, .. }: Memory) -> Result<(u64, u64), Refusal> {
        let last = bytes.checked_sub(1).and_then(|more| at.checked_add(more));
        last.map(|last| (at, last)).ok_or_else(|| self.impossible("a range of memory is expected"))
    }

    /// Removes a node from the tables, if no CPU can be in it.
    fn free_node(&mut self, node: u64, cpu: usize) -> Result<(), Refusal> {
        self.unwalked(node)?;
        let holders = self.holders(node);
        let Some(level) = self.tables.level(node) else {
            self.tables.remove(node);
            return Ok(());
        };
        let mut idle = Vec::new();
        for holder in &holders {
            let own = holder.root.is_some_and(|(root, _)| root == node);
            if own && !self.walks(holder) {
                continue;
            }
            let va = holder.va;
            let direct = holder
                .link
                .is_some_and(|link| matches!(link.entry, Entry::Link { node: to, .. } if to == node));
            if own || direct || self.may_hold(holder, Kind::Link, level + self.arch.step(), va, 0) {
                if !self.uses(holder.cpu, holder.asid) {
                    idle.push((holder.cpu, holder.asid));
                    continue;
                }
                return Err(self.violation(Rule::NodeReached, Some(holder.cpu)).node(node, holder, level));
            }
        }
        self.outlive(idle);
        for at in self.tables.used(node) {
            self.retire(at, level, false, &holders, cpu);
            self.tables.part(at, level);
        }
        self.tables.remove(node);
        // If the node was a root, its numbers are dead. A CPU uses global entries under every number, also those that it has found through
        // links that no table has.
        let left: Vec<_> =
            self.sessions.get(&node).into_iter().flatten().map(|of| (of.cpu, of.asid)).collect();
        for (cpu, asid) in left {
            let links: Vec<_> = self.cpus[cpu].held.links(asid.into()).collect();
            for (place, link) in links {
                self.outlast(cpu, place, &link, |at, _| at.0 == GLOBAL);
            }
        }
        for session in self.sessions.remove(&node).into_iter().flatten() {
            let cpu = &mut self.cpus[session.cpu];
            if let Some(roots) = cpu.used.get_mut(&session.asid) {
                roots.retain(|&root| root != node);
            }
            if !session.only_global {
                let left = session.until.unwrap_or(self.now);
                let since = cpu.dead.entry(session.asid).or_insert(left);
                *since = left.max(*since);
            }
        }
        Ok(())
    }
}
