//! Address spaces under the witness: their log holds, and each flush, barrier and hold that is left out of it is reported.
//!
//! `cargo test -p tlbkit --test witness -- --nocapture` prints what is reported, and by which rule.
#![cfg(all(target_pointer_width = "64", not(miri)))]

mod host;

use std::collections::BTreeMap;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};

use host::{Host, Log, cpu, machine, run_as};
use tlbkit::{Access, AddressSpace, Attr, Change, Fault, Mmu, PageSize, Pages, VirtAddr};
use tlbkit_witness::check::{Arch, Checked, Refusal, check};
use tlbkit_witness::event::Event;

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
    host.say(Event::Lower { id, first: at as u64, last: at as u64 | 0xfff });
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
    let mut child = None;
    lower(&space, 4, 0x1000, |space| child = Some(space.fork().unwrap()));
    let child = child.unwrap();
    on(2, &child);
    let (at, store) = (VirtAddr::new(0x1000), Access::STORE.by_user());
    if let Fault::CopyOnWrite(_) = child.fault(at, store).unwrap() {
        child.replace(at, host.data(2).unwrap(), RW).unwrap();
    }
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

#[test]
fn each_flush_barrier_and_hold_that_is_left_out_is_reported() {
    static LOG: Log = Log::new();
    a_day(&LOG);
    let lines = lines(&LOG);
    let held = verdict(&lines).unwrap_or_else(|why| panic!("{why}\n{}", lines.join("\n")));
    assert_eq!((held.promised, held.full), (5, false));
    // By what is left out: by which rule it is reported, and how often.
    let mut found: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    let mut note = |what, lines: &[String]| {
        let rule = match verdict(lines) {
            Ok(_) => "-",
            Err(Refusal::Violation(violation)) => violation.rule().name(),
            Err(why) => panic!("{why}"),
        };
        *found.entry((what, rule)).or_default() += 1;
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
            assert_eq!(note("a flush of what was not there", &without(at)), "-");
        } else if event.starts_with("fence va") {
            // A change of one page: each CPU that runs the address space flushes it.
            assert_ne!(
                note("a page's flush", &without(at)),
                "-",
                "without line {at}: {line}\n{}",
                lines.join("\n")
            );
        } else if event.starts_with("fence") {
            note("a whole flush", &without(at));
        } else if event.starts_with("barrier") && lines[at - 1] != *line {
            // One that is said twice is one barrier. A fence is seen to by the interrupt that follows it, too.
            let run = lines[at..].iter().take_while(|next| *next == line).count();
            let mut less = lines.clone();
            less.drain(at..at + run);
            note(if event == "barrier release" { "a release" } else { "a fence" }, &less);
        } else if lowers && (event.starts_with("frame free") || event.starts_with("node free")) {
            // A hold left out: what goes back goes before the flushes since the store that uncovered it.
            let is_store = |line: &String| line.contains(" swap ") || line.contains(" write ");
            let store = lines[..at].iter().rposition(is_store).unwrap();
            let mut early = without(at);
            early.insert(store + 1, line.clone());
            assert_ne!(note("a hold", &early), "-", "{line} in line {}\n{}", store + 1, lines.join("\n"));
        }
    }
    for ((what, rule), count) in &found {
        println!("{what:<30} {rule:<16} {count}");
    }
    let reported = |what: &str| found.keys().any(|&(of, rule)| of == what && rule != "-");
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
                        _ => drop(space.fork().unwrap()),
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
