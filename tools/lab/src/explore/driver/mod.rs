//! `tlblab explore --driver`: the crate's driver itself, loops, mailboxes and slots included, over all schedules with a
//! few preemptions.
//!
//! | file | holds |
//! |-|-|
//! | `turns` | CPUs as coroutines, and the choice of the CPU that goes on |
//! | `machine` | entries and TLBs under the driver's hooks, and what must hold of them |
//! | `scenes` | what the CPUs do |
//! | `vm` | a kernel whose entries, pages and messages are chapter 5's: the same driver below `Dash`, page-out and the IPC region |
//!
//! The explorer of the state machines tells all worlds apart, and so sees all interleavings of its own driver. Here the
//! driver is [`System`](tlbkit_shootdown::System): what a CPU is about to do is on its stack, so schedules are run one by
//! one. Every access to a shared word is a step, sequentially consistent; weaker memory is for the crate's loom tests.

use anyhow::bail;
use serde::Serialize;

use self::scenes::Scene;
use super::Explore;

mod machine;
mod scenes;
mod turns;
mod vm;

/// One scene's result.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    algorithm: &'static str,
    case: String,
    /// The repair that was switched off.
    without: Option<String>,
    /// `sound`, `sound so far` if there were more schedules than wanted, or `broken`.
    verdict: &'static str,
    pub(super) expected: bool,
    pub(super) schedules: usize,
    seconds: f64,
    why: Option<String>,
}

pub(super) fn run(args: &Explore) -> anyhow::Result<()> {
    let algorithm = args.algorithm()?;
    let mut scenes = if args.hazards { scenes::hazards() } else { scenes::scenes() };
    scenes.retain(|scene| algorithm.is_none_or(|algorithm| scene.algorithm() == algorithm));
    if scenes.is_empty() {
        bail!("no scene of the driver is for that algorithm");
    }
    let rows = explore(&scenes, args.preemptions, args.schedules, args.trace)?;
    crate::rows::print(args.json, &rows)?;
    let wrong = rows.iter().filter(|row| !row.expected).count();
    if wrong > 0 {
        bail!("{wrong} of {} results are not what they should be; see the column `expected`", rows.len());
    }
    Ok(())
}

pub(super) fn explore(
    scenes: &[Scene],
    preemptions: usize,
    most: usize,
    trace: bool,
) -> anyhow::Result<Vec<Row>> {
    crate::parallel::map(scenes, |scene| {
        let start = std::time::Instant::now();
        let found = scene.explore(preemptions, most, trace);
        let off = (!scene.off.is_empty()).then_some(scene.off);
        Ok(Row {
            algorithm: scene.algorithm(),
            case: scene.to_string(),
            without: off.map(|off| off.iter_names().map(|(name, _)| name).collect::<Vec<_>>().join(" ")),
            verdict: match (&found.wrong, found.all) {
                (Some(_), _) => "broken",
                (None, true) => "sound",
                (None, false) => "sound so far",
            },
            expected: found.wrong.is_some() == scene.is_wrong(),
            schedules: found.schedules,
            seconds: start.elapsed().as_secs_f64(),
            why: found.wrong,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(scenes: &[Scene], preemptions: usize, most: usize) {
        for row in explore(scenes, preemptions, most, false).expect("they run") {
            assert!(row.expected, "{row:?}");
        }
    }

    #[test]
    fn the_driver_holds_in_every_scene() {
        check(&scenes::scenes(), 1, if cfg!(tlbkit_full) { 1_500 } else { 300 });
    }

    /// Without a repair something is found: an exploration that finds nothing means something.
    #[test]
    fn each_repair_of_the_drivers_plan_is_needed() {
        check(&scenes::hazards(), 1, 5_000);
    }
}
