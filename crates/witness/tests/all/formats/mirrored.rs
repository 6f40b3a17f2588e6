//! The tables that only software walks: linear, guarded, hashed and clustered ones, as MIPS32 has them.
//!
//! The checker does not read these tables, but it knows all that a TLB can take from them: leaves. So a multi-level table, which the
//! checker reads, has the same leaves, and each change is made in both tables. The log has the stores of the multi-level table and
//! the flushes that the other table reports.

use tlbkit_addr::Flush;
use tlbkit_conformance::Op;
use tlbkit_pagetable::format::EntryLoCowCoherent;
use tlbkit_pagetable::geometry::{Geometry, Va32};
use tlbkit_pagetable::gpt::{Adaptive, Fixed, Gpt, Kseg0};
use tlbkit_pagetable::nodes::{Chunk, Slab};
use tlbkit_pagetable::{Error, FlushAll, Shared, Table, Writer, cpt, hpt, lpt};
use tlbkit_witness::check::Arch;
use tlbkit_witness::event::Event;

use super::traced::{Log, MEMORY, Machine, Mips, SUBJECTS, Step, Subject, TableOf, follow, perform, storage};
use super::*;

type Storage<'m> = Slab<'m, u32, Shared>;
type Format = EntryLoCowCoherent;
const KSEG2: usize = 0xc000_0000;

/// A table: its name, and the log of steps on it.
type Mirrored = (&'static str, fn(&[Step]) -> Log);

/// Makes a [`Mirrored`] of a table's constructor.
macro_rules! mirrored {
    ($($name:literal: $new:expr;)*) => {
        [$(($name, |steps| {
            let mut memory = vec![Chunk::ZERO; MEMORY / size_of::<Chunk>()];
            let nodes = Storage::new(&mut memory, 0).unwrap();
            log(&$new(&nodes).unwrap(), steps)
        })),*]
    };
}

const TABLES: [Mirrored; 5] = mirrored! {
    "linear": lpt::Lpt::<Va32, Format, _, KSEG2>::new;
    "guarded": Gpt::<Va32, Format, _, Kseg0<Fixed<4>>, Fixed<4>>::new;
    "adaptive": Gpt::<Va32, Format, _, Kseg0<Adaptive>, Adaptive>::new;
    "hashed": hpt::Hpt32::<_, Format>::new;
    "clustered": cpt::Cpt32::<_, Format>::new;
};

/// Tells whether a step is made: changes of size stay with the tables that the checker reads.
fn is_made(step: &Step) -> bool {
    match step {
        Step::Fork | Step::Op(Op::Resize { .. }) => false,
        Step::Op(Op::Map { size, .. }) => *size == Va32::BASE,
        Step::Op(_) => true,
    }
}

fn log<'n>(table: &impl Table<'n>, steps: &[Step]) -> Log {
    let mut memory = vec![Chunk::ZERO; MEMORY / size_of::<Chunk>()];
    let nodes = &storage::<Mips, Shared>(&mut memory, 2);
    let mut mirror: TableOf<'_, Mips, _> = TableOf::<Mips, _>::new(nodes).unwrap();
    nodes.load(Mips::root(mirror.root().get() as u64));
    follow::<Mips, _, _>(
        nodes,
        &mut mirror,
        steps,
        |mirror| mirror,
        |mirror, step| {
            let Step::Op(op) = step else { return Err(Error::Busy) };
            if !is_made(step) {
                return Err(Error::Busy);
            }
            let mut writer = Writer::new(table).unwrap();
            let mut breaks: Vec<Flush> = Vec::new();
            let made = perform!(
                writer,
                Va32::BASE,
                op,
                |_, _| Err(Error::Busy),
                // SAFETY: nothing runs in the page.
                |at, frame, attr| unsafe {
                    writer.replace(
                        at,
                        frame,
                        attr,
                        FlushAll::breaking(&mut |flush| breaks.push(flush.clone())),
                    )
                },
                // The flush of the change comes before any other change.
                |pages, to| writer.move_pages(pages, to, FlushAll::in_place(&mut |_| ()))
            );
            let batch = writer.finish();
            if made.is_err() {
                // Nothing has changed: what a table has no room for, such as a mark in a linear table, is not made.
                nodes.flush::<Mips>(batch.flush(), batch.nodes());
                // SAFETY: no CPU walks the table. In the log, both CPUs have been asked.
                unsafe { batch.reclaim() };
                return made;
            }
            // The same change where the checker sees it. Its nodes are never freed, so that no flush is for them.
            let mut writer = Writer::new(&*mirror).unwrap();
            let mirrored = perform!(
                writer,
                Va32::BASE,
                op,
                |_, _| Err(Error::Busy),
                // SAFETY: nothing runs in the page.
                |at, frame, attr| unsafe {
                    writer.replace(
                        at,
                        frame,
                        attr,
                        FlushAll::breaking(&mut |_| {
                            breaks.drain(..).for_each(|flush| nodes.flush::<Mips>(&flush, 0));
                        }),
                    )
                },
                |pages, to| writer.move_pages(pages, to, FlushAll::in_place(&mut |_| ()))
            );
            drop(writer.finish());
            mirrored.unwrap_or_else(|why| panic!("{op:?}: {why}"));
            nodes.flush::<Mips>(batch.flush(), batch.nodes());
            // SAFETY: no CPU walks the table. In the log, both CPUs have been asked.
            unsafe { batch.reclaim() };
            made
        },
    )
}

fn mips() -> &'static Subject {
    SUBJECTS.iter().find(|subject| subject.arch == Arch::Mips32).unwrap()
}

#[test]
fn the_flushes_of_the_tables_that_software_walks_suffice() {
    for (name, log_of) in TABLES {
        // Many steps are of larger pages, and so are not made.
        let config = ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() };
        let mut done = 0;
        let outcome = TestRunner::new(config).run(&steps(mips()), |steps| {
            let log = log_of(&steps);
            if let Err(why) = verdict(Arch::Mips32, &log.events) {
                prop_assert!(false, "{}: {}\n{}{:#?}", name, why, text(&log.events), steps);
            }
            Ok(())
        });
        outcome.unwrap_or_else(|why| panic!("{name}: {why}"));
        let mut runner = TestRunner::deterministic();
        for _ in 0..128 {
            let steps = steps(mips()).new_tree(&mut runner).unwrap().current();
            done += log_of(&steps).done.iter().filter(|&&done| done).count();
        }
        println!("{name:<10} {done:>3} operations done");
        assert!(done >= 100, "{name}: {done}");
    }
}

/// The control: without the flush of a change that takes something away, the log does not hold.
#[test]
fn a_flush_of_theirs_that_is_left_out_is_reported() {
    for (name, log_of) in TABLES {
        for (change, steps) in scenes(mips()) {
            if !matches!(change, "unmap" | "protect" | "replace" | "mark") {
                continue;
            }
            if (name, change) == ("linear", "mark") {
                continue; // Its entries hold no marks.
            }
            let Log { mut events, steps: begins, done } = log_of(&steps);
            assert!(done.iter().all(|&done| done), "{name}, {change}: {done:?}");
            verdict(Arch::Mips32, &events).unwrap_or_else(|why| panic!("{name}, {change}: {why}"));
            let last = begins[done.len() - 1];
            let is_flush = |at: usize, event: &Event| at >= last && matches!(event, Event::Fence(_));
            let mut at = 0..;
            events.retain(|(_, event)| !is_flush(at.next().unwrap(), event));
            let why = verdict(Arch::Mips32, &events).expect_err(&format!("{name}, {change}"));
            println!("{name:<10} {change:<8} {:?}", why.violation().map(|why| why.rule().name()));
        }
    }
}
