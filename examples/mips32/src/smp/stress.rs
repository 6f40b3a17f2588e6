//! What each CPU does in a run: touches pages, lowers and raises their rights, comes and goes.

use core::sync::atomic::Ordering;

use tlbkit_shootdown::SwitchKind;

use super::arena::{self, WORDS};
use super::engine::{self, Engine, SEATS};
use super::lower::{Kind, Shootdowns};
use super::masked::{enable, masked};
use super::random::Random;
use super::run::{PAGES, Run, SPACE, address};
use crate::arch::tlb;

/// CPUs that may start an operation at the same time.
const AT_ONCE: usize = 2;

/// Takes part in a run, on CPU `me`. Interrupts are off before and afterwards.
pub(super) fn take_part(run: &'static Run, system: &'static Shootdowns, me: usize) {
    let mut random = Random::of(me);
    let mut seen = [0; PAGES];
    let mut stored = 0;
    masked(|masked| {
        match Engine::new(run, system, me) {
            Ok(engine) => SEATS.put(masked, Some(engine)),
            Err(why) => run.wrong(format_args!("CPU {me}: {why}")),
        }
        // SAFETY: the vector's handler serves the run's table.
        unsafe { tlb::switch(u32::from(SPACE.get())) };
        SEATS.with(masked, |engine| engine.switch(SwitchKind::In));
    });
    enable();
    while !run.is_over() {
        for _ in 0..8 + random.below(24) {
            touch(run, me, &mut random, &mut seen, &mut stored);
        }
        masked(|masked| SEATS.with(masked, |engine| turn(run, me, engine, &mut random)));
    }
    masked(|masked| {
        SEATS.with(masked, |engine| {
            engine.poll();
            // From here on it does not reply.
            engine.switch(SwitchKind::Offline);
            engine.drain();
        });
        if tlb::duplicates() > 0 {
            run.wrong(format_args!("two entries of CPU {me}'s TLB match one address"));
        }
        SEATS.put(masked, None);
    });
    super::masked::disable();
    // What is left is of no space that lives.
    tlb::forget_all(|_| true);
}

/// Loads from a page, and perhaps stores to it.
fn touch(run: &Run, me: usize, random: &mut Random, seen: &mut [u32; PAGES], stored: &mut u32) {
    let page = random.below(PAGES);
    run.counts.touches.fetch_add(1, Ordering::Relaxed);
    match engine::load(run, address(page) + 4 * random.below(WORDS)) {
        Some(word) => match arena::generation(page, word) {
            Some(generation) if generation >= seen[page] => seen[page] = generation,
            _ => {
                run.counts.stale_reads.fetch_add(1, Ordering::Relaxed);
            }
        },
        None => {
            run.counts.faults.fetch_add(1, Ordering::Relaxed);
        }
    }
    if random.below(2) == 0 {
        *stored += 1;
        let word = arena::mark(page, me, *stored);
        if !engine::store(run, address(page) + 4 * (WORDS + me), word) {
            run.counts.faults.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Between touches: an operation if it is this CPU's turn, a page's rights raised, or a rest.
fn turn(run: &'static Run, me: usize, engine: &mut Engine, random: &mut Random) {
    let mine = || {
        let started = run.counts.started.load(Ordering::SeqCst);
        started < run.total && (0..AT_ONCE).any(|ahead| (started + ahead) % run.cpus == me)
    };
    for _ in 0..4 {
        engine.raise(random.below(PAGES));
    }
    if mine() && run.counts.started.fetch_add(1, Ordering::SeqCst) < run.total {
        engine.next();
        let kind = if random.below(4) == 0 { Kind::Protect } else { Kind::Unmap };
        engine.lower(random.below(PAGES), kind);
    } else if random.below(16) == 0 {
        // Out of the space: what is unmapped meanwhile is not asked of this CPU, but found when it comes back.
        engine.switch(SwitchKind::Out);
        engine.raise(random.below(PAGES));
        engine.switch(SwitchKind::In);
    } else {
        engine.rest(|| mine() || run.is_over());
    }
}
