//! One way through a world, chosen from outside: for worlds that are too large to be searched.

use tlbkit_shootdown::Algorithm;

use super::cases::{self, Case, MACHINES};
use super::step::Step;
use super::world::World;

/// What runs: an algorithm, on one of the machines, in one of the cases that are sound there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Choice {
    pub(crate) algorithm: Algorithm,
    /// Of [`MACHINES`]; more wrap around, as with the case.
    pub(crate) hardware: usize,
    pub(crate) case: usize,
    /// Two to four.
    pub(crate) cpus: usize,
}

/// The most steps that an ending takes: a hundred times what was ever seen.
const PATIENCE: usize = 20_000;

/// Takes one step for each of `choices`, then steps in turn until everything has ended, and looks for a violation
/// after each. Nothing happens if the algorithm does not suit the hardware.
pub(crate) fn one_schedule(choice: &Choice, choices: &[u8]) -> Result<(), String> {
    let machine = &MACHINES[choice.hardware % MACHINES.len()];
    let mut cases = cases::pairing(choice.algorithm, machine, choice.cpus, choice.cpus);
    cases.retain(|case| case.sound);
    if cases.is_empty() {
        return Ok(());
    }
    let case = &cases[choice.case % cases.len()];
    let mut way = Vec::new();
    let mut world = case.scene.begin().map_err(|error| error.to_string())?;
    for &byte in choices {
        let steps = steps(&world, case);
        let Some((taken, next)) = nth(steps, usize::from(byte)) else { break };
        way.extend(taken);
        world = checked(next, case, &way)?;
    }
    // In turn, and what the hardware may do or leave only where nothing else is left: a fair schedule.
    for turn in 0..PATIENCE {
        if world.finished() {
            return Ok(());
        }
        let mut steps = steps(&world, case);
        if steps.iter().any(|(taken, _)| !is_whim(taken)) {
            steps.retain(|(taken, _)| !is_whim(taken));
        }
        let Some((taken, next)) = nth(steps, turn) else { break };
        way.extend(taken);
        world = checked(next, case, &way)?;
    }
    Err(told("it does not end", case, &way))
}

/// What can be done next: steps that are taken at once, and where they lead.
fn steps(world: &World, case: &Case) -> Vec<(Vec<Step>, World)> {
    let mut steps = Vec::new();
    world.successors(&case.scene, |taken, next| steps.push((taken.to_vec(), next)));
    steps
}

fn nth(mut steps: Vec<(Vec<Step>, World)>, n: usize) -> Option<(Vec<Step>, World)> {
    let n = n.checked_rem(steps.len())?;
    Some(steps.swap_remove(n))
}

/// Tells whether no CPU waits for what these steps begin with.
const fn is_whim(taken: &[Step]) -> bool {
    matches!(
        taken,
        [
            Step::Load { .. }
                | Step::LoadToUse { .. }
                | Step::Walk { .. }
                | Step::Evict { .. }
                | Step::Use { .. }
                | Step::Miss { .. }
                | Step::Raise { .. }
                | Step::Visits { .. },
            ..
        ]
    )
}

fn checked(world: World, case: &Case, way: &[Step]) -> Result<World, String> {
    match world.violation(&case.scene) {
        Some(why) => Err(told(&why, case, way)),
        None => Ok(world),
    }
}

fn told(why: &str, case: &Case, way: &[Step]) -> String {
    let mut text = format!("{} on {}, {}: {why}", case.algorithm, case.machine, case.doing);
    for (at, step) in way.iter().enumerate() {
        text += &format!("\n{:>4}  {step}", at + 1);
    }
    text
}
