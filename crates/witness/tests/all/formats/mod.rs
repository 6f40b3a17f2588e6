//! Every operation of the tables that the checker knows the hardware of, on one CPU and on several: the stores that a table tells
//! its storage and the flushes that it reports are a log that holds, and without the flush of an operation it does not.
//!
//! `cargo test -p tlbkit-witness --features check --test all formats -- --nocapture` prints what is reported, and by which rule.
#![cfg(all(target_pointer_width = "64", not(miri)))]

mod mirrored;
mod traced;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use tlbkit_addr::{Attr, Pages, Pfn, Vpn};
use tlbkit_conformance::{Op, ops};
use tlbkit_pagetable::{Change, Holes, Mark};
use tlbkit_witness::check::{Arch, Checker, Refusal};
use tlbkit_witness::event::Event;

use traced::{How, Log, SUBJECTS, Step, Subject};

const HOWS: [How; 2] = [How::Local, How::Writer];

fn verdict(arch: Arch, log: &[(usize, Event)]) -> Result<(), Refusal> {
    let mut checker = Checker::new(arch);
    log.iter().try_for_each(|&(cpu, event)| checker.say(cpu, event))
}

fn text(log: &[(usize, Event)]) -> String {
    (1..).zip(log).map(|(line, (cpu, event))| format!("{line:>5}  {cpu} {event}\n")).collect()
}

/// Operations, and a fork now and then.
fn steps(subject: &Subject) -> impl Strategy<Value = Vec<Step>> + use<> {
    let forks = prop::collection::vec(prop::bool::weighted(0.1), 12);
    (ops(subject.space, 12), forks).prop_map(|(ops, forks)| {
        let forked = |(op, fork): (Op, bool)| [Some(Step::Op(op)), fork.then_some(Step::Fork)];
        ops.into_iter().zip(forks).flat_map(forked).flatten().collect()
    })
}

#[test]
fn the_flushes_of_each_format_suffice() {
    for subject in &SUBJECTS {
        let (mut events, mut done) = (0, 0);
        let config = ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() };
        let outcome = TestRunner::new(config).run(&steps(subject), |steps| {
            for how in HOWS {
                let Log { events, .. } = subject.log_of(how, &steps);
                if let Err(why) = verdict(subject.arch, &events) {
                    prop_assert!(
                        false,
                        "{}, {:?}: {}\n{}{:#?}",
                        subject.name,
                        how,
                        why,
                        text(&events),
                        steps
                    );
                }
            }
            Ok(())
        });
        outcome.unwrap_or_else(|why| panic!("{}: {why}", subject.name));
        // The same steps again: most of them are done, and not refused.
        let mut runner = TestRunner::deterministic();
        for _ in 0..16 {
            let steps = steps(subject).new_tree(&mut runner).unwrap().current();
            let log = subject.log_of(How::Writer, &steps);
            events += log.events.len();
            done += log.done.iter().filter(|&&done| done).count();
        }
        println!("{:<10} {events:>6} events, {done:>3} of 192 operations done", subject.name);
        assert!(done >= 16, "{}: {done}", subject.name);
    }
}

const RW: Attr = Attr::READ.union(Attr::WRITE).union(Attr::EXEC).union(Attr::ACCESSED).union(Attr::DIRTY);

/// Each operation that takes something away, by name, with those before it that make what it takes.
fn scenes(&Subject { arch, space, large: size, .. }: &Subject) -> Vec<(&'static str, Vec<Step>)> {
    let base = space.base();
    let count = size.bytes() / base.bytes();
    // The frames are beside the nodes.
    let (first, page_frame) = (count, (1 << 32 >> base.shift()) / count * count);
    let (page, frame) =
        (Pages::one(Vpn::new(first)), Pfn::new(if arch == Arch::Sv32 { count } else { page_frame }));
    let (whole, at) = (Pages::count(Vpn::new(first), count).unwrap(), page.first().address(base));
    let attr = if arch == Arch::Mips32 { RW.difference(Attr::ACCESSED) } else { RW };
    let map = Op::Map { pages: page, frame, size: base, attr };
    let other = Pfn::new(frame.get() + count + 1);
    let after = |ops: &[Op]| ops.iter().copied().map(Step::Op).collect::<Vec<_>>();
    let protect = |change| Op::Protect { pages: page, holes: Holes::Skip, change };
    let promoted = Op::Map { pages: whole, frame, size: base, attr };
    // A fork shares the pages of users.
    let users = if arch == Arch::Mips32 { attr } else { attr | Attr::USER };
    let shared = Op::Map { pages: page, frame, size: base, attr: users };
    let fork = [after(&[shared]), vec![Step::Fork]].concat();
    vec![
        ("unmap", after(&[map, Op::Unmap { pages: page, holes: Holes::Skip }])),
        ("move", after(&[map, Op::Move { pages: page, to: Vpn::new(page.first().get() + 1) }])),
        // The link of the node moves: the distance is that of some nodes of the last level, whatever their size.
        (
            "move a node",
            after(&[map, Op::Move { pages: page, to: Vpn::new(page.first().get() + (1 << 14)) }]),
        ),
        ("protect", after(&[map, protect(Change::clear(Attr::WRITE))])),
        ("replace", after(&[map, Op::Replace { at, frame: other, attr }])),
        ("mark", after(&[map, Op::Mark { page: page.first(), mark: Some(Mark::Guard) }])),
        ("take status", after(&[map, protect(Change::clear(Attr::DIRTY))])),
        ("fork", fork),
        // The node below goes, or the words that said the same of smaller pages.
        ("resize", after(&[promoted, Op::Resize { pages: whole, to: size }])),
        // The mark that was filled is gone.
        (
            "fill",
            after(&[
                Op::Mark { page: page.first(), mark: Some(Mark::Payload(5, attr & Mark::KEPT)) },
                Op::Fill { page: page.first(), payload: 5, frame },
            ]),
        ),
        ("map", after(&[map])),
    ]
}

/// Without the flush of an operation on one of the CPUs the log does not hold: in each format, on one CPU and on several. What only
/// brings a page has no flush on machines that keep no absence.
#[test]
fn each_operations_flush_that_is_left_out_is_reported() {
    for subject in &SUBJECTS {
        let arch = subject.arch;
        for how in HOWS {
            for (name, steps) in scenes(subject) {
                // A fork takes two writers, and nodes of one size.
                if name == "fork"
                    && (how == How::Local || matches!(arch, Arch::Aarch64K16 | Arch::Aarch64K64))
                {
                    continue;
                }
                let Log { events, steps: begins, done } = subject.log_of(how, &steps);
                let told = || format!("{}, {how:?}, {name}:\n{}", subject.name, text(&events));
                verdict(arch, &events).unwrap_or_else(|why| panic!("{why}\n{}", told()));
                assert!(done.iter().all(|&done| done), "{done:?} {}", told());
                let last = begins[done.len() - 1]..begins[done.len()];
                let mut rules = Vec::new();
                for by in 0..2 {
                    let left_out = |at: usize, (cpu, event): &(usize, Event)| {
                        last.contains(&at) && *cpu == by && matches!(event, Event::Fence(_))
                    };
                    let less: Vec<_> = (0..)
                        .zip(&events)
                        .filter(|&(at, event)| !left_out(at, event))
                        .map(|(_, event)| *event)
                        .collect();
                    if less.len() < events.len() {
                        let why = verdict(arch, &less).err();
                        rules.push(why.and_then(|why| Some(why.violation()?.rule().name())));
                    }
                }
                println!("{:<10} {:<8} {name:<12} {rules:?}", subject.name, format!("{how:?}"));
                let brings = matches!(name, "map" | "fill");
                let keeps_absence =
                    matches!(arch, Arch::Sv32 | Arch::Sv39 | Arch::Sv48 | Arch::Sv57 | Arch::Mips32);
                assert_eq!(rules.is_empty(), brings && !keeps_absence, "{}", told());
                // On one x86-64 CPU that keeps a page as dirty the table loses no bit that it has not been told of.
                let is_x86 = matches!(arch, Arch::X86_64 | Arch::X86_64La57);
                let unseen = is_x86 && (how, name) == (How::Local, "take status")
                    // What the words say of the pages is the same before and after, and no node goes.
                    || (subject.name, name) == ("Svnapot", "resize");
                // A page that comes back has no status bit, so its first access may fault in any case: "map" shows the absence.
                if name != "fill" {
                    assert_eq!(rules.iter().all(Option::is_some), !unseen, "{rules:?} {}", told());
                }
            }
        }
    }
}
