//! Breadth-first search over all worlds: the shortest way to a violation, and whether everything can always end.
//!
//! Why not a model checker off the shelf: `stateright` was the candidate. It keeps what this keeps (fingerprints and
//! parents), but its "eventually" properties do not see cycles, and a machine that waits is nothing but cycles.
//! What is wanted is "from every world the end can be reached", which is termination under fairness, and needs the
//! edges backwards: a page of code.

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, Hasher};
use std::time::{Duration, Instant};

use super::step::Step;
use super::world::Scene;

/// What a search found.
#[derive(Clone, Debug)]
pub(crate) enum Verdict {
    /// All worlds are in order, and from each of them everything can end.
    Sound,
    /// A violation, and the shortest way to it: each step with the picture after it.
    Broken { why: String, trace: Vec<(Step, String)> },
    /// A world from which the end cannot be reached, and the shortest way to it.
    Stuck { trace: Vec<(Step, String)> },
    /// More worlds than allowed, or no time left. Nothing wrong so far.
    TooBig,
}

/// A search's result.
#[derive(Clone, Debug)]
pub(crate) struct Search {
    pub(crate) verdict: Verdict,
    pub(crate) worlds: usize,
    pub(crate) time: Duration,
}

/// Multiply-and-fold over 64-bit words. Two worlds with one fingerprint would be taken for one: at ten million
/// worlds the chance of any such pair is about 3 in a million.
#[derive(Clone, Copy, Default)]
struct Fingerprint(u64);

impl Hasher for Fingerprint {
    fn finish(&self) -> u64 {
        let folded = u128::from(self.0 ^ 0x9e37_79b9_7f4a_7c15) * 0xd6e8_feb8_6659_fd93;
        (folded >> 64) as u64 ^ folded as u64
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u8(&mut self, n: u8) {
        self.write_u64(u64::from(n));
    }

    fn write_u16(&mut self, n: u16) {
        self.write_u64(u64::from(n));
    }

    fn write_u32(&mut self, n: u32) {
        self.write_u64(u64::from(n));
    }

    fn write_u64(&mut self, n: u64) {
        let folded = u128::from(self.0 ^ n ^ 0x2545_f491_4f6c_dd1d) * 0x9e37_79b9_7f4a_7c15;
        self.0 = (folded >> 64) as u64 ^ (folded as u64).rotate_left(23);
    }

    fn write_usize(&mut self, n: usize) {
        self.write_u64(n as u64);
    }
}

type Build = BuildHasherDefault<Fingerprint>;

/// Searches all worlds of `scene`, up to `limit` of them.
pub(crate) fn search(scene: &Scene, limit: usize) -> anyhow::Result<Search> {
    let start = Instant::now();
    let first = scene.begin()?;
    let build = Build::default();
    let mut seen: HashMap<u64, u32, Build> = HashMap::default();
    let mut parents: Vec<(u32, u16)> = vec![(0, 0)];
    let mut edges: Vec<(u32, u32)> = Vec::new();
    let mut ends: Vec<u32> = Vec::new();
    seen.insert(build.hash_one(&first), 0);
    let mut level = vec![(0, first)];
    let done = |verdict, worlds| Search { verdict, worlds, time: start.elapsed() };
    while !level.is_empty() {
        let mut next = Vec::new();
        for (at, world) in level {
            if let Some(why) = world.violation(scene) {
                let trace = trace(scene, &parents, at)?;
                return Ok(done(Verdict::Broken { why, trace }, parents.len()));
            }
            if world.finished() {
                ends.push(at);
            }
            let mut nth = 0;
            world.successors(scene, |_, successor| {
                let new = parents.len() as u32;
                let to = *seen.entry(build.hash_one(&successor)).or_insert(new);
                if to == new {
                    parents.push((at, nth));
                    next.push((new, successor));
                }
                edges.push((to, at));
                nth += 1;
            });
            if parents.len() > limit {
                return Ok(done(Verdict::TooBig, parents.len()));
            }
        }
        level = next;
    }
    let verdict = match stuck(parents.len(), edges, ends) {
        Some(at) => Verdict::Stuck { trace: trace(scene, &parents, at)? },
        None => Verdict::Sound,
    };
    Ok(done(verdict, parents.len()))
}

/// Returns the first world from which none of the `ends` can be reached, given the edges backwards.
fn stuck(worlds: usize, mut edges: Vec<(u32, u32)>, mut open: Vec<u32>) -> Option<u32> {
    edges.sort_unstable();
    let mut reaches = vec![false; worlds];
    for &end in &open {
        reaches[end as usize] = true;
    }
    while let Some(to) = open.pop() {
        let from = edges.partition_point(|&(at, _)| at < to);
        for &(_, before) in edges[from..].iter().take_while(|&&(at, _)| at == to) {
            if !std::mem::replace(&mut reaches[before as usize], true) {
                open.push(before);
            }
        }
    }
    reaches.iter().position(|&ends| !ends).map(|at| at as u32)
}

/// Walks the way to world `at` once more, for the steps and the pictures.
fn trace(scene: &Scene, parents: &[(u32, u16)], mut at: u32) -> anyhow::Result<Vec<(Step, String)>> {
    let mut way = Vec::new();
    while at != 0 {
        let (parent, nth) = parents[at as usize];
        way.push(nth);
        at = parent;
    }
    let mut world = scene.begin()?;
    let mut steps = Vec::new();
    for wanted in way.into_iter().rev() {
        let mut nth = 0;
        let mut taken = None;
        world.successors(scene, |step, successor| {
            if nth == wanted {
                taken = Some((step, successor));
            }
            nth += 1;
        });
        let Some((step, successor)) = taken else { break };
        steps.push((step, successor.picture(scene)));
        world = successor;
    }
    Ok(steps)
}
