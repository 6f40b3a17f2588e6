//! Address spaces under the witness: their log holds, and each flush, barrier and hold that is left out of it is reported.
//!
//! `cargo test -p tlbkit --test all witness -- --nocapture` prints what is reported, and by which rule.
#![cfg(all(target_pointer_width = "64", not(miri)))]

use crate::host;

use std::collections::BTreeMap;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::host::{Host, Log, cpu, machine, run_as};
use tlbkit::{AddressSpace, Attr, Change, Mmu, PageSize, Pages, SupervisorPages, VirtAddr};
use tlbkit_witness::check::{Arch, Checked, Refusal, check};
use tlbkit_witness::event::{Access as Kind, Barrier as Order, Event, Fence};

const CPUS: usize = 3;
const RW: Attr = Attr::READ.union(Attr::WRITE).union(Attr::USER);

type Space = AddressSpace<Host, CPUS>;

fn page(at: usize) -> Pages {
    Pages::one(VirtAddr::new(at).vpn(PageSize::K4))
}

/// One thread runs as all CPUs: while one waits, the others take their interrupts.
fn one_thread(log: &'static Log, asid_bits: u32) -> &'static Mmu<Host, CPUS> {
    let mmu = machine::<CPUS>(96);
    let host = mmu.kernel();
    host.asid_bits.store(asid_bits, Ordering::Relaxed);
    assert!(host.log.set(log).is_ok());
    host.say(Event::UsesDirty);
    let meanwhile = move || {
        let me = cpu();
        for other in (0..CPUS).filter(|&other| other != me) {
            run_as(other);
            if mmu.kernel().pending() {
                mmu.on_interrupt();
            }
            run_as(me);
        }
    };
    assert!(host.meanwhile.set(Box::new(meanwhile)).is_ok());
    mmu
}

/// A change of `space`, which this CPU runs, that takes something away from `at`.
fn lower(space: &Space, id: u64, at: usize, change: impl FnOnce(&Space)) {
    let host = space.mmu().kernel();
    host.say(Event::Lower { id, first: at as u64, last: at as u64 | 0xfff, root: None });
    change(space);
    host.say(Event::Done { id });
}

/// Three CPUs run an address space that is changed, forked and left; numbers run out meanwhile.
fn a_day(log: &'static Log) {
    let mmu = one_thread(log, 3);
    let host = mmu.kernel();
    let on = |cpu: usize, space: &Space| {
        run_as(cpu);
        space.activate().unwrap();
    };
    run_as(0);
    let space = Space::new(mmu).unwrap();
    (0..CPUS).for_each(|cpu| on(cpu, &space));
    run_as(0);
    for at in [0x1000, 0x2000, 0x4000_0000] {
        space.map(page(at), host.data(1).unwrap(), RW).unwrap();
        assert!(matches!(host.access(VirtAddr::new(at), true), host::Met::Memory(_)));
    }
    lower(&space, 1, 0x1000, |space| {
        space.protect(page(0x1000), Change::clear(Attr::WRITE)).unwrap();
    });
    run_as(1);
    lower(&space, 2, 0x2000, |space| {
        space.unmap(page(0x2000)).unwrap();
    });
    // The last page of its nodes, which go.
    lower(&space, 3, 0x4000_0000, |space| {
        space.unmap(page(0x4000_0000)).unwrap();
    });
    // Its only page lost the right to write above, so the fork takes nothing from it.
    let mut child = None;
    lower(&space, 4, 0x1000, |space| child = Some(space.fork(SupervisorPages::LeftOut).unwrap()));
    let child = child.unwrap();
    on(2, &child);
    // More address spaces than numbers.
    let others: Vec<Space> = (0..8).map(|_| Space::new(mmu).unwrap()).collect();
    others.iter().for_each(|other| on(2, other));
    drop(others);
    on(2, &space);
    lower(&space, 5, 0x1000, |space| {
        space.unmap(page(0x1000)).unwrap();
    });
    for cpu in 0..CPUS {
        run_as(cpu);
        mmu.idle().unwrap();
    }
    drop((space, child));
    assert_eq!((host.in_use(), mmu.lost()), (0, 0));
}

fn lines(log: &Log) -> Vec<String> {
    let mut text = String::new();
    log.write(&mut text).unwrap();
    text.lines().map(String::from).collect()
}

fn verdict(lines: &[String]) -> Result<Checked, Refusal> {
    check(Arch::Sv39, &lines.join("\n"))
}

/// An event of a line.
fn event(line: &str) -> (usize, Event) {
    tlbkit_witness::parse(line).unwrap().unwrap()
}

/// The rule that a log breaks.
fn broken(lines: &[String]) -> Option<&'static str> {
    verdict(lines).err().map(|why| why.violation().unwrap_or_else(|| panic!("{why}")).rule().name())
}

/// Says why nothing needs what stands in the `run` lines from `at`, and proves it: by the log, or by a log in which something
/// needs them.
fn redundant(lines: &[String], at: usize, run: usize) -> &'static str {
    let (cpu, what) = event(&lines[at]);
    let events: Vec<(usize, Event)> = lines.iter().map(|line| event(line)).collect();
    // A log that ends after `last`, with `more` inserted before line `place`, as it is and without the lines from `at`.
    let both = |place: usize, last: usize, more: &str| {
        let mut with = lines[..=last].to_vec();
        with.insert(place, more.into());
        let mut less = with.clone();
        let first = at + usize::from(place <= at);
        less.drain(first..first + run);
        (broken(&with), broken(&less))
    };
    match what {
        Event::Fence(Fence { pages, asid, .. }) => {
            let covers = |event: &Event| matches!(event, Event::Fence(Fence { pages: None, asid: of, .. }) if of.is_none() || *of == asid);
            let since = events[..at].iter().rposition(|(by, event)| *by == cpu && covers(event)).unwrap_or(0);
            // The root that it ran then counts, too.
            let root = |(by, event): &(usize, Event)| match event {
                Event::Root { value, .. } if *by == cpu => Some((value >> 44) as u16),
                _ => None,
            };
            let then = events[..since].iter().rev().find_map(root);
            let mut ran = events[since..at].iter().filter_map(root).chain(then);
            if pages.is_none() && !ran.any(|of| Some(of) == asid) {
                return "the CPU runs nothing under that ASID, and has not since it flushed it";
            }
            // Where the page was absent, a fault is all that the flush saves, and a user's fault breaks no rule. The kernel's does.
            let leaf = events[..at].iter().rev().find_map(|(_, event)| match event {
                Event::Write { value, .. } if value & 0xf > 1 => Some(value >> 10 << 12),
                _ => None,
            });
            let saves = [0x1000, 0x2000, 0x4000_0000].iter().any(|&at_va| {
                let access = Event::Access { at: at_va, kind: Kind::Load, user: false, reaches: leaf };
                both(at + 1, at, &format!("{cpu} {access}")) == (None, Some("access-differs"))
            });
            assert!(saves, "line {at}: {}", lines[at]);
            "it saves a fault where nothing was mapped: a kernel's access there is reported without it"
        }
        Event::Barrier(Order::Release) => {
            let barrier = |(by, event): &(usize, Event)| {
                *by == cpu && matches!(event, Event::Barrier(_) | Event::IpiSend { .. })
            };
            let before = events[..at].iter().rposition(barrier).map_or(0, |before| before + 1);
            let after =
                events[at + run..].iter().position(barrier).map_or(events.len(), |after| at + run + after);
            let linked = |(by, event): &(usize, Event)| match event {
                Event::Write { value, .. } if *by == cpu && value & 0xf == 1 => Some(value >> 10 << 12),
                _ => None,
            };
            let mut links = (at..after).filter_map(|line| Some((line, linked(&events[line])?))).peekable();
            let Some(&(last, _)) = links.peek() else { return "no node is linked before the next one" };
            let stored = |node: u64| {
                events[before..at].iter().any(|(by, event)| {
                    *by == cpu
                        && match event {
                            Event::Write { at, .. } | Event::Swap { at, .. } => at & !0xfff == node,
                            Event::Node(memory) => !memory.free && memory.at == node,
                            _ => false,
                        }
                })
            };
            if !links.any(|(_, node)| stored(node)) {
                return "what is linked next was stored before an earlier one";
            }
            // No CPU walks the table that the node is linked to. If one did, the barrier would be needed.
            let needs = (0x8_0000..0x8_0020_u64).any(|node| {
                let root = format!("2 root {:#x}", 8 << 60 | 99_u64 << 44 | node);
                both(at, last, &root) == (None, Some("unwritten"))
            });
            assert!(needs, "line {at}: {}", lines[at]);
            "no CPU has loaded the table: it is reported if one has"
        }
        Event::Barrier(_) => {
            // The interrupt that follows is a barrier for what its sender has stored. If it was sent before the store, this one is
            // needed.
            let send = at
                + events[at..].iter().position(|(_, event)| matches!(event, Event::IpiSend { .. })).unwrap();
            let done =
                at + events[at..].iter().position(|(_, event)| matches!(event, Event::Done { .. })).unwrap();
            let begun =
                events[..at].iter().rposition(|(_, event)| matches!(event, Event::Lower { .. })).unwrap();
            let mut early = lines[..=done].to_vec();
            let send = early.remove(send);
            early.insert(begun + 1, send);
            assert_eq!(broken(&early), None, "line {at}: {}", lines[at]);
            early.drain(at + 1..at + 1 + run);
            assert!(broken(&early).is_some(), "line {at}: {}", lines[at]);
            "the interrupt orders the stores, too: it is reported if that is sent before them"
        }
        _ => panic!("line {at}: {}", lines[at]),
    }
}

#[test]
fn each_flush_barrier_and_hold_that_is_left_out_is_reported() {
    static LOG: Log = Log::new();
    a_day(&LOG);
    let lines = lines(&LOG);
    let held = verdict(&lines).unwrap_or_else(|why| panic!("{why}\n{}", lines.join("\n")));
    assert_eq!((held.promised, held.unchanged, held.full), (4, 1, false));
    // By what is left out: by which rule it is reported or why nothing needs it, and how often.
    let mut found: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    let mut note = |what, at: usize, run: usize, less: &[String]| {
        let rule = broken(less);
        let why = rule.unwrap_or_else(|| redundant(&lines, at, run));
        *found.entry((what, why)).or_default() += 1;
        rule
    };
    for (at, line) in lines.iter().enumerate() {
        let without = |what: usize| {
            let mut less = lines.clone();
            less.remove(what);
            less
        };
        let event = line.split_once(' ').unwrap().1;
        let lowers = lines[..at].iter().rfind(|line| line.contains(" lower ") || line.contains(" done "));
        let lowers = lowers.is_some_and(|line| line.contains(" lower "));
        if event.starts_with("fence va") && !lowers {
            // After a page was mapped: it saves a user's fault, which breaks no rule.
            assert_eq!(note("a flush of what was not there", at, 1, &without(at)), None);
        } else if event.starts_with("fence va") {
            // A change of one page: each CPU that runs the address space flushes it.
            let rule = note("a page's flush", at, 1, &without(at));
            assert!(rule.is_some(), "without line {at}: {line}\n{}", lines.join("\n"));
        } else if event.starts_with("fence") {
            note("a whole flush", at, 1, &without(at));
        } else if event.starts_with("barrier") && lines[at - 1] != *line {
            // One that is said twice is one barrier. A fence is seen to by the interrupt that follows it, too.
            let run = lines[at..].iter().take_while(|next| *next == line).count();
            let mut less = lines.clone();
            less.drain(at..at + run);
            note(if event == "barrier release" { "a release" } else { "a fence" }, at, run, &less);
        } else if lowers && (event.starts_with("frame free") || event.starts_with("node free")) {
            // A hold left out: what goes back goes before the flushes since the store that uncovered it.
            let is_store = |line: &String| line.contains(" swap ") || line.contains(" write ");
            let store = lines[..at].iter().rposition(is_store).unwrap();
            let mut early = without(at);
            early.insert(store + 1, line.clone());
            let rule = note("a hold", at, 1, &early);
            assert!(rule.is_some(), "{line} in line {}\n{}", store + 1, lines.join("\n"));
        }
    }
    for ((what, rule), count) in &found {
        println!("{count:>3}  {what:<30} {rule}");
    }
    let reported = |what: &str| found.keys().any(|&(of, rule)| of == what && !rule.contains(' '));
    for what in ["a page's flush", "a whole flush", "a release", "a hold"] {
        assert!(reported(what), "{what}: {found:?}");
    }
}

/// Threads as CPUs, which map, unmap, fork and leave address spaces at once: the log of what they did holds.
#[test]
fn threads_leave_a_log_that_holds() {
    static LOG: Log = Log::new();
    const ROUNDS: usize = 150;
    let mmu = machine::<CPUS>(512);
    let host = mmu.kernel();
    assert!(host.log.set(&LOG).is_ok());
    host.say(Event::UsesDirty);
    let (start, finished) = (Barrier::new(CPUS), AtomicUsize::new(0));
    let spaces: Vec<Space> = (0..3).map(|_| Space::new(mmu).unwrap()).collect();
    std::thread::scope(|scope| {
        for cpu in 0..CPUS {
            let (spaces, start, finished) = (&spaces, &start, &finished);
            scope.spawn(move || {
                run_as(cpu);
                start.wait();
                for round in 0..ROUNDS {
                    let space = &spaces[(round / 5 + cpu) % 3];
                    space.activate().unwrap();
                    let at = 0x1000 + (round * 7 + cpu) % 5 * 0x1000 + round % 3 * 0x4000_0000;
                    match round % 4 {
                        0 | 1 => {
                            if let Some(frame) = host.data(1)
                                && space.map(page(at), frame, RW).is_err()
                            {
                                host.put_back(frame);
                            }
                        }
                        2 => drop(space.unmap(page(at)).unwrap()),
                        _ => drop(space.fork(SupervisorPages::LeftOut).unwrap()),
                    }
                    let _ = host.access(VirtAddr::new(at), true);
                    if host.pending() {
                        mmu.on_interrupt();
                    }
                }
                mmu.idle().unwrap();
                finished.fetch_add(1, Ordering::SeqCst);
                while finished.load(Ordering::SeqCst) < CPUS {
                    mmu.on_interrupt();
                    std::thread::yield_now();
                }
            });
        }
    });
    drop(spaces);
    let lines = lines(&LOG);
    let held = verdict(&lines).unwrap_or_else(|why| panic!("{why}"));
    assert!(!held.full && held.freed > 100, "{held:?}");
}
