//! Every operation of the tables that the checker knows the hardware of, on one CPU and on several: the stores that a table tells
//! its storage and the flushes that it reports are a log that holds, and without the flush of an operation it does not.
//!
//! `cargo test -p tlbkit-witness --features check --test formats -- --nocapture` prints what is reported, and by which rule.
#![cfg(all(target_pointer_width = "64", not(miri)))]

mod traced;

use proptest::prelude::*;
use tlbkit_addr::{Attr, PageSize, Pages, Pfn, Vpn};
use tlbkit_conformance::{Op, ops};
use tlbkit_pagetable::{Change, Holes, Mark};
use tlbkit_witness::check::{Arch, Checker, Refusal};
use tlbkit_witness::event::Event;

use traced::{How, Log, Step, log_of, space_of};

/// The architectures, each with the format and the geometry that `tlbkit` has for it.
const ARCHES: [Arch; 4] = [Arch::Sv39, Arch::X86_64, Arch::Aarch64, Arch::Mips32];
const HOWS: [How; 2] = [How::Local, How::Writer];

fn verdict(arch: Arch, log: &[(usize, Event)]) -> Result<(), Refusal> {
    let mut checker = Checker::new(arch);
    log.iter().try_for_each(|&(cpu, event)| checker.say(cpu, event))
}

fn text(log: &[(usize, Event)]) -> String {
    (1..).zip(log).map(|(line, (cpu, event))| format!("{line:>5}  {cpu} {event}\n")).collect()
}

/// Operations, and a fork now and then.
fn steps(arch: Arch) -> impl Strategy<Value = Vec<Step>> {
    let space = space_of(arch);
    let forks = prop::collection::vec(prop::bool::weighted(0.1), 12);
    (ops(space, 12), forks).prop_map(|(ops, forks)| {
        let forked = |(op, fork): (Op, bool)| [Some(Step::Op(op)), fork.then_some(Step::Fork)];
        ops.into_iter().zip(forks).flat_map(forked).flatten().collect()
    })
}

fn suffice(arch: Arch, steps: &[Step]) -> Result<(), TestCaseError> {
    for how in HOWS {
        let Log { events, .. } = log_of(arch, how, steps);
        if let Err(why) = verdict(arch, &events) {
            prop_assert!(false, "{:?}, {:?}: {}\n{}{:#?}", arch, how, why, text(&events), steps);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_flushes_of_sv39_suffice(steps in steps(Arch::Sv39)) {
        suffice(Arch::Sv39, &steps)?;
    }

    #[test]
    fn the_flushes_of_x86_64_suffice(steps in steps(Arch::X86_64)) {
        suffice(Arch::X86_64, &steps)?;
    }

    #[test]
    fn the_flushes_of_aarch64_suffice(steps in steps(Arch::Aarch64)) {
        suffice(Arch::Aarch64, &steps)?;
    }

    #[test]
    fn the_flushes_of_mips32_suffice(steps in steps(Arch::Mips32)) {
        suffice(Arch::Mips32, &steps)?;
    }
}

const RW: Attr = Attr::READ.union(Attr::WRITE).union(Attr::EXEC).union(Attr::ACCESSED).union(Attr::DIRTY);

/// A large page of a table, and the small ones that it has in its place.
fn large(arch: Arch) -> PageSize {
    if arch == Arch::Mips32 { PageSize::K64 } else { PageSize::M2 }
}

/// Each operation that takes something away, by name, with those before it that make what it takes.
fn scenes(arch: Arch) -> Vec<(&'static str, Vec<Step>)> {
    let size = large(arch);
    let (first, count) = (size.bytes() / 4096, size.bytes() / 4096);
    let (page, frame) = (Pages::one(Vpn::new(first)), Pfn::new(first));
    let (whole, at) = (Pages::count(Vpn::new(first), count).unwrap(), page.first().address(PageSize::K4));
    let attr = if arch == Arch::Mips32 { RW.difference(Attr::ACCESSED) } else { RW };
    let map = Op::Map { pages: page, frame, size: PageSize::K4, attr };
    let other = Pfn::new(2 * first + 1);
    let after = |ops: &[Op]| ops.iter().copied().map(Step::Op).collect::<Vec<_>>();
    let protect = |change| Op::Protect { pages: page, holes: Holes::Skip, change };
    let promoted = Op::Map { pages: whole, frame, size: PageSize::K4, attr };
    let fork = [after(&[map]), vec![Step::Fork]].concat();
    vec![
        ("unmap", after(&[map, Op::Unmap { pages: page, holes: Holes::Skip, room: None }])),
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
                Op::Mark { page: page.first(), mark: Some(Mark::Guard) },
                Op::Fill { page: page.first(), frame, attr },
            ]),
        ),
        ("map", after(&[map])),
    ]
}

/// Without the flush of an operation on one of the CPUs the log does not hold: in each format, on one CPU and on several. What only
/// brings a page has no flush on machines that keep no absence.
#[test]
fn each_operations_flush_that_is_left_out_is_reported() {
    for arch in ARCHES {
        for how in HOWS {
            for (name, steps) in scenes(arch) {
                // A fork takes two writers.
                if matches!((how, name), (How::Local, "fork")) {
                    continue;
                }
                let Log { events, steps: begins, done } = log_of(arch, how, &steps);
                let told = || format!("{arch:?}, {how:?}, {name}:\n{}", text(&events));
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
                println!("{:<10} {:<8} {name:<12} {rules:?}", format!("{arch:?}"), format!("{how:?}"));
                let brings = matches!(name, "map" | "fill");
                let keeps_absence = matches!(arch, Arch::Sv39 | Arch::Mips32);
                assert_eq!(rules.is_empty(), brings && !keeps_absence, "{}", told());
                // On one x86-64 CPU that keeps a page as dirty the table loses no bit that it has not been told of.
                let unseen = (arch, how, name) == (Arch::X86_64, How::Local, "take status");
                assert_eq!(rules.iter().all(Option::is_some), !unseen, "{rules:?} {}", told());
            }
        }
    }
}
