//! Breadth-first search over all worlds: the shortest way to a violation, and whether everything can always end.
//!
//! Why not a model checker off the shelf: `stateright` was the candidate, and does the half that is safety. The other
//! half is "from every world the end can be reached", which is termination under fairness. Its properties are
//! `always`, `sometimes` and `eventually`, and by its documentation `eventually` is only right on paths without
//! cycles: a path that comes back to a state is not told from one that joins another. A machine that waits is
//! nothing but cycles. What is wanted needs the turns backwards, which that checker does not keep; kept, it is the
//! page of code below.

use std::time::{Duration, Instant};

use super::pack::Worlds;
use super::step::Step;
use super::world::Scene;

/// What a search found.
#[derive(Clone, Debug)]
pub(crate) enum Verdict {
    /// All worlds are in order, and from each of them everything can end.
    Sound,
    /// A violation, and the shortest way to it.
    Broken { why: String, trace: Vec<Turn> },
    /// A world from which the end cannot be reached, and the shortest way to it.
    Stuck { trace: Vec<Turn> },
    /// More worlds than allowed. Nothing wrong so far.
    TooBig,
}

/// A turn: its steps, and the picture after it.
#[derive(Clone, Debug)]
pub(crate) struct Turn {
    pub(crate) steps: Vec<Step>,
    pub(crate) picture: String,
}

/// A search's result.
#[derive(Clone, Debug)]
pub(crate) struct Search {
    pub(crate) verdict: Verdict,
    pub(crate) worlds: usize,
    pub(crate) time: Duration,
}

/// Searches all worlds of `scene`, up to `limit` of them.
pub(crate) fn search(scene: &Scene, limit: usize) -> anyhow::Result<Search> {
    let start = Instant::now();
    let mut worlds = Worlds::default();
    worlds.insert(scene, &scene.begin()?);
    // By world: from which one it was reached first.
    let mut parents: Vec<u32> = vec![0];
    let mut turns = Graph::default();
    let mut ends: Vec<u32> = Vec::new();
    let done = |verdict, worlds: &Worlds| Search { verdict, worlds: worlds.len(), time: start.elapsed() };
    while let Some(world) = worlds.get(scene, turns.worlds()) {
        let at = turns.worlds();
        if let Some(why) = world.violation(scene) {
            let trace = trace(scene, &mut worlds, &parents, at)?;
            return Ok(done(Verdict::Broken { why, trace }, &worlds));
        }
        if world.finished() {
            ends.push(at as u32);
        }
        world.successors(scene, |_, next| {
            let to = worlds.insert(scene, &next);
            if to == parents.len() {
                parents.push(at as u32);
            }
            if to != at {
                turns.to.push(to as u32);
            }
        });
        turns.from.push(turns.to.len());
        if worlds.len() > limit {
            return Ok(done(Verdict::TooBig, &worlds));
        }
    }
    let verdict = match turns.stuck(&ends) {
        Some(at) => Verdict::Stuck { trace: trace(scene, &mut worlds, &parents, at)? },
        None => Verdict::Sound,
    };
    Ok(done(verdict, &worlds))
}

/// Where each world's turns lead, one world after the other.
#[derive(Default)]
struct Graph {
    to: Vec<u32>,
    /// Where each world's turns end in `to`.
    from: Vec<usize>,
}

impl Graph {
    fn worlds(&self) -> usize {
        self.from.len()
    }

    /// Returns the first world from which none of the `ends` can be reached.
    ///
    /// A turn mostly leads to a later world, so that a look at all of them from the last to the first settles almost
    /// everything; it is repeated until it settles nothing more.
    fn stuck(&self, ends: &[u32]) -> Option<usize> {
        let mut reaches = vec![false; self.worlds()];
        for &end in ends {
            reaches[end as usize] = true;
        }
        loop {
            let mut settled = false;
            for at in (0..self.worlds()).rev().filter(|&at| !reaches[at]).collect::<Vec<_>>() {
                let begin = at.checked_sub(1).map_or(0, |before| self.from[before]);
                reaches[at] = self.to[begin..self.from[at]].iter().any(|&to| reaches[to as usize]);
                settled |= reaches[at];
            }
            if !settled {
                return reaches.iter().position(|&ends| !ends);
            }
        }
    }
}

/// Walks the way to world `at` once more, for the steps and the pictures.
fn trace(scene: &Scene, worlds: &mut Worlds, parents: &[u32], mut at: usize) -> anyhow::Result<Vec<Turn>> {
    let mut way = Vec::new();
    while at != 0 {
        way.push(at);
        at = parents[at] as usize;
    }
    // The world itself, not the one that stands for it: its CPUs keep their names.
    let mut world = scene.begin()?;
    let mut trace = Vec::new();
    for wanted in way.into_iter().rev() {
        let mut taken = None;
        world.successors(scene, |steps, next| {
            if taken.is_none() && worlds.insert(scene, &next) == wanted {
                taken = Some((steps.to_vec(), next));
            }
        });
        let Some((steps, next)) = taken else { break };
        trace.push(Turn { steps, picture: next.picture(scene) });
        world = next;
    }
    Ok(trace)
}
