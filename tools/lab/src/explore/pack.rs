//! Worlds in a few bytes each, and each of them once.
//!
//! A step changes one CPU, one operation, or the memory; the rest is as it was. So each different CPU, operation and
//! memory is stored once, and a world is the numbers of its parts. Nothing is hashed away: two worlds are taken for
//! one only if they are equal, or equal but for the names of CPUs that are alike by [`Scene::alike`].

use std::hash::Hash;
use std::ops::Range;

use indexmap::IndexSet;

use super::world::{CPUS, Cpu, Memory, Op, PTES, Scene, World};

type Set<T> = IndexSet<T, foldhash::fast::FixedState>;

/// The numbers of a world's memory, operations and CPUs.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
struct Packed {
    memory: u32,
    ops: [u32; PTES],
    cpus: [u32; CPUS],
}

/// All worlds that have been seen, in the order in which they were.
#[derive(Default)]
pub(crate) struct Worlds {
    memories: Set<Memory>,
    ops: Set<Op>,
    cpus: Set<Cpu>,
    worlds: Set<Packed>,
}

fn number<T: Clone + Eq + Hash>(set: &mut Set<T>, part: &T) -> u32 {
    set.get_index_of(part).unwrap_or_else(|| set.insert_full(part.clone()).0) as u32
}

impl Worlds {
    /// Returns how many there are.
    pub(crate) fn len(&self) -> usize {
        self.worlds.len()
    }

    /// Returns the number of `world`, a new one if it has not been seen.
    pub(crate) fn insert(&mut self, scene: &Scene, world: &World) -> usize {
        let mut packed = Packed { memory: number(&mut self.memories, &world.memory), ..Packed::default() };
        for (number_of, op) in packed.ops.iter_mut().zip(&world.ops) {
            *number_of = number(&mut self.ops, op);
        }
        for (number_of, cpu) in packed.cpus.iter_mut().zip(&world.cpus) {
            *number_of = number(&mut self.cpus, cpu);
        }
        let alike: Range<usize> = scene.alike(world);
        packed.cpus[alike].sort_unstable();
        self.worlds.insert_full(packed).0
    }

    /// Returns a world, or `None` beyond the last.
    pub(crate) fn get(&self, scene: &Scene, at: usize) -> Option<World> {
        let packed = self.worlds.get_index(at)?;
        Some(World {
            memory: self.memories.get_index(packed.memory as usize)?.clone(),
            ops: part(&self.ops, &packed.ops[..scene.ops.len()])?,
            cpus: part(&self.cpus, &packed.cpus[..scene.cpus])?,
        })
    }
}

fn part<T: Clone>(set: &Set<T>, numbers: &[u32]) -> Option<Vec<T>> {
    numbers.iter().map(|&at| set.get_index(at as usize).cloned()).collect()
}
