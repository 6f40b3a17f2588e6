//! The events, and the two ways in which rights exclude each other.
//!
//! ```text
//!            work              wait             hold
//! thread ──────────▶ ask ────────────▶ granted ──────▶ release ──▶ work ...
//! ```
//!
//! *One writer*: a queue for the space, first come, first served. *Node locks*: a right to a last-level node takes the node's lock
//! by a compare-and-swap, so of those that wait any may be next, and only while no right above is held or asked for; a right to the
//! node above waits for the rights below that are held, in a queue with others of its kind.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use super::{Locks, NODE, Regions};

/// How rights exclude each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scheme {
    /// The space has one writer.
    OneWriter,
    /// Each node has a lock.
    NodeLocks,
}

/// The right to change what is below a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Right {
    /// The node above: 1 GiB.
    pub(super) above: usize,
    /// The last-level node; none for all of them.
    pub(super) node: Option<usize>,
}

/// What happens to a right.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    Granted,
    Released,
}

/// What a simulation came to.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Outcome {
    pub(super) cycles: u64,
    pub(super) changes: u64,
    /// The sum of all waits, in cycles.
    pub(super) waited: u64,
    pub(super) longest: u64,
    pub(super) longest_above: u64,
    pub(super) most_waiting: u32,
}

/// The lock of a last-level node.
#[derive(Debug, Default)]
struct Node {
    held: bool,
    waiting: Vec<usize>,
}

/// A node above last-level nodes.
#[derive(Debug, Default)]
struct Above {
    held: bool,
    /// Rights below that are held.
    below: usize,
    /// Those that want the whole, the next one first.
    queue: VecDeque<usize>,
    /// Those that want a part, when the whole is free again.
    waiting: Vec<usize>,
}

impl Above {
    fn is_wanted(&self) -> bool {
        self.held || !self.queue.is_empty()
    }
}

/// Who has which right, and who waits. A CPU that gets its right is put on `granted`.
#[derive(Debug)]
struct Rights {
    scheme: Scheme,
    nodes: Vec<Node>,
    above: Vec<Above>,
    /// The right that each CPU wants or has.
    of: Vec<Right>,
    granted: Vec<usize>,
    random: ChaCha8Rng,
}

impl Rights {
    /// Under one writer all rights are to the same whole.
    fn right(&self, cpu: usize) -> Right {
        match self.scheme {
            Scheme::OneWriter => Right { above: 0, node: None },
            Scheme::NodeLocks => self.of[cpu],
        }
    }

    fn ask(&mut self, cpu: usize) {
        let right = self.right(cpu);
        let above = &mut self.above[right.above];
        let Some(node) = right.node else {
            above.queue.push_back(cpu);
            return self.take_above(right.above);
        };
        let node = &mut self.nodes[node];
        if above.is_wanted() {
            above.waiting.push(cpu);
        } else if node.held {
            node.waiting.push(cpu);
        } else {
            node.held = true;
            above.below += 1;
            self.granted.push(cpu);
        }
    }

    /// Gives the whole to the next one that wants it, if nobody has a part.
    fn take_above(&mut self, at: usize) {
        let above = &mut self.above[at];
        if above.held || above.below > 0 {
            return;
        }
        if let Some(cpu) = above.queue.pop_front() {
            above.held = true;
            self.granted.push(cpu);
        }
    }

    fn release(&mut self, cpu: usize) {
        let right = self.right(cpu);
        let above = &mut self.above[right.above];
        let Some(node) = right.node else {
            above.held = false;
            self.take_above(right.above);
            let above = &mut self.above[right.above];
            let waiting = if above.is_wanted() { Vec::new() } else { std::mem::take(&mut above.waiting) };
            return waiting.into_iter().for_each(|cpu| self.ask(cpu));
        };
        let node = &mut self.nodes[node];
        node.held = false;
        above.below -= 1;
        if above.is_wanted() {
            above.waiting.append(&mut node.waiting);
            self.take_above(right.above);
        } else if !node.waiting.is_empty() {
            let next = self.random.random_range(0..node.waiting.len());
            let next = node.waiting.swap_remove(next);
            self.ask(next);
        }
    }
}

/// What a CPU does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Next {
    Ask,
    Release,
}

/// A thread's changes.
#[derive(Debug)]
struct Thread {
    cpu: usize,
    regions: Regions,
    /// Faults so far; each thread begins somewhere in its first node.
    faults: u64,
    random: ChaCha8Rng,
}

impl Thread {
    /// Draws the next change: its right, and how long it is held.
    fn change(&mut self, args: &Locks) -> (Right, u64) {
        let above = if self.regions == Regions::Disjoint { self.cpu } else { 0 };
        let node = if self.regions == Regions::Shared { 0 } else { self.cpu };
        if self.random.random_bool(args.unmap_share) {
            return (Right { above, node: None }, args.unmap);
        }
        self.faults += 1;
        let is_first = match self.regions {
            Regions::Disjoint | Regions::Near => self.faults.is_multiple_of(NODE),
            Regions::Shared => false,
            Regions::FirstTouch => true,
        };
        if is_first {
            (Right { above, node: None }, args.first_touch)
        } else {
            (Right { above, node: Some(node) }, args.fault)
        }
    }

    /// Draws how long the thread works before it.
    fn work(&mut self, args: &Locks) -> u64 {
        let unit: f64 = self.random.random();
        (-(args.between as f64) * (1.0 - unit).ln()).round() as u64
    }
}

/// Runs the threads until each has made its changes, and shows what happens to rights.
pub(super) fn simulate(
    args: &Locks,
    regions: Regions,
    scheme: Scheme,
    cpus: u32,
    mut happens: impl FnMut(Event, Right),
) -> Outcome {
    let count = cpus as usize;
    let stream = |of: usize| {
        let mut random = ChaCha8Rng::seed_from_u64(args.seed);
        random.set_stream(of as u64);
        random
    };
    let mut rights = Rights {
        scheme,
        nodes: (0..count).map(|_| Node::default()).collect(),
        above: (0..count).map(|_| Above::default()).collect(),
        of: vec![Right { above: 0, node: None }; count],
        granted: Vec::new(),
        random: stream(count),
    };
    let thread = |cpu| {
        let mut random = stream(cpu);
        Thread { cpu, regions, faults: random.random_range(0..NODE), random }
    };
    let mut threads: Vec<_> = (0..count).map(thread).collect();
    let more = if scheme == Scheme::NodeLocks { args.node_lock } else { 0 };
    let (mut asked, mut holds, mut left) = (vec![0; count], vec![0; count], vec![args.changes; count]);
    let mut events: BinaryHeap<_> =
        threads.iter_mut().map(|thread| Reverse((thread.work(args), Next::Ask, thread.cpu))).collect();
    let mut outcome = Outcome::default();
    let mut waiting = 0;
    while let Some(Reverse((now, next, cpu))) = events.pop() {
        match next {
            Next::Ask => {
                (rights.of[cpu], holds[cpu]) = threads[cpu].change(args);
                asked[cpu] = now;
                waiting += 1;
                rights.ask(cpu);
            }
            Next::Release => {
                happens(Event::Released, rights.of[cpu]);
                rights.release(cpu);
                outcome.changes += 1;
                left[cpu] -= 1;
                if left[cpu] > 0 {
                    events.push(Reverse((now + threads[cpu].work(args), Next::Ask, cpu)));
                }
                outcome.cycles = now;
            }
        }
        for cpu in std::mem::take(&mut rights.granted) {
            let (right, wait) = (rights.of[cpu], now - asked[cpu]);
            happens(Event::Granted, right);
            let longest =
                if right.node.is_some() { &mut outcome.longest } else { &mut outcome.longest_above };
            *longest = (*longest).max(wait);
            outcome.waited += wait;
            waiting -= 1;
            events.push(Reverse((now + holds[cpu] + more, Next::Release, cpu)));
        }
        outcome.most_waiting = outcome.most_waiting.max(waiting);
    }
    outcome
}
