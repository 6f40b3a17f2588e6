//! The requester, line by line: what each of Table 3.1's algorithms asks for, in the pseudocode's order.
//!
//! CPU 0 changes an entry of a space that 0 and 1 run. CPU 2 has run it, and may hold it still.

use Action::{
    AllAcknowledged, Check, Close, Continue, Done, Enter, Exclude, FlushLocally, FlushRemotely, IsFlushed,
    IsRunning, IsStopped, MarkStale, Open, ReadTargets, Release, Send, SendAndLeave, Serve, SetChanging,
    SetCount, SetTentative, Update,
};
use tlbkit_addr::CpuSet;
use tlbkit_shootdown::{
    Action, Algorithm, Hardware, LowRights, Misuse, Operation, Order, Outcome, Plan, Rendezvous, Requester,
    Seen, Status, StatusBit,
};

fn plan(algorithm: Algorithm) -> Plan {
    let hardware = Hardware { remote_flush: true, ..Hardware::RP3 };
    Plan::new(algorithm, &hardware, LowRights::NeverWriteBack).unwrap()
}

fn cpus(cpus: &[usize]) -> CpuSet {
    cpus.iter().copied().collect()
}

/// Answers as a machine does where nothing goes wrong.
fn well(action: Action) -> Seen {
    match action {
        Exclude | AllAcknowledged | IsStopped(_) | IsFlushed { .. } | Close | Check => Seen::Yes,
        ReadTargets => Seen::Targets { members: cpus(&[0, 1, 2]), running: cpus(&[0, 1]) },
        IsRunning(_) => Seen::No,
        FlushRemotely { cpu, .. } => Seen::Posted { ticket: 10 + cpu as u32, done: 3 },
        _ => Seen::Did,
    }
}

/// Gives every answer that does not fit what is asked for: it is refused, and changes nothing.
fn gives_wrong_answers(machine: &Requester) {
    let targets = Seen::Targets { members: cpus(&[0, 1]), running: cpus(&[1]) };
    for seen in [Seen::Did, Seen::Yes, Seen::No, targets, Seen::Posted { ticket: 1, done: 0 }] {
        let fits = match machine.next() {
            Exclude | AllAcknowledged | IsStopped(_) | IsFlushed { .. } | IsRunning(_) | Close | Check => {
                matches!(seen, Seen::Yes | Seen::No)
            }
            ReadTargets => matches!(seen, Seen::Targets { .. }),
            FlushRemotely { .. } => matches!(seen, Seen::Posted { .. }),
            Send(_) => matches!(seen, Seen::Did | Seen::No),
            Done(_) => false,
            _ => seen == Seen::Did,
        };
        if !fits {
            let mut copy = *machine;
            assert_eq!(copy.did(seen), Err(Misuse::NotAsked), "{:?}: {seen:?}", machine.next());
            assert_eq!(copy, *machine);
        }
    }
}

/// Runs an operation to its end, on CPU 1 from where it is the repliers', and returns what it asked for.
fn run(plan: Plan, mut answer: impl FnMut(Action) -> Seen) -> Vec<Action> {
    let mut machine = Requester::<1>::new(plan, 0).unwrap();
    let mut asked = Vec::new();
    while asked.len() < 4000 {
        if machine.is_left() {
            assert_eq!(machine.did(Seen::Yes), Err(Misuse::NotAsked));
            machine.take_over(1).unwrap();
        }
        gives_wrong_answers(&machine);
        let action = machine.next();
        asked.push(action);
        if let Done(_) = action {
            return asked;
        }
        machine.did(answer(action)).unwrap();
    }
    panic!("it does not end: {asked:?}");
}

const FLUSH: Action = FlushLocally { drain: true };
const DONE: Action = Done(Outcome::Done);

/// CPU 2 does not run the space: it is told to flush before it does, and no CPU waits for it (3.3.2).
const LAZY: [Action; 2] = [MarkStale(2), IsRunning(2)];

/// Two primes: CPU 0 flushes the others' TLBs itself, and waits until that very flush is done.
const REMOTE: [Action; 4] = [
    FlushRemotely { cpu: 1, drain: true },
    IsFlushed { cpu: 1, ticket: 11 },
    FlushRemotely { cpu: 2, drain: true },
    IsFlushed { cpu: 2, ticket: 12 },
];

#[test]
fn pte_first_changes_the_entry_and_then_flushes() {
    let head = [Exclude, Update, ReadTargets, FLUSH];
    let waits = [SetCount(1), Send(1), AllAcknowledged];
    let leaves = [Open, SetCount(1), SendAndLeave(1), Close];
    let end = [Release, DONE];
    assert_eq!(run(plan(Algorithm::PteFirst), well), [&head[..], &LAZY, &waits, &end].concat());
    assert_eq!(run(plan(Algorithm::PteFirstAsync), well), [&head[..], &LAZY, &leaves, &end].concat());
    assert_eq!(run(plan(Algorithm::PteFirstRemote), well), [&head[..], &REMOTE, &end].concat());
}

#[test]
fn tlb_first_flushes_and_then_changes_the_entry() {
    let head = [Exclude, SetTentative, SetChanging(true), ReadTargets, FLUSH];
    let waits = [SetCount(1), Send(1), AllAcknowledged];
    let leaves = [Open, SetCount(1), SendAndLeave(1), Close];
    let end = [Update, SetChanging(false), Release, DONE];
    assert_eq!(run(plan(Algorithm::TlbFirst), well), [&head[..], &LAZY, &waits, &end].concat());
    assert_eq!(run(plan(Algorithm::TlbFirstAsync), well), [&head[..], &LAZY, &leaves, &end].concat());
    assert_eq!(run(plan(Algorithm::TlbFirstRemote), well), [&head[..], &REMOTE, &end].concat());
}

#[test]
fn two_phase_stops_everybody_while_the_entry_changes() {
    let head = [Exclude, Enter, SetChanging(true), ReadTargets];
    let stop = [SetCount(1), Send(1), IsStopped(1)];
    let end = [Update, SetChanging(false), Continue, FLUSH, Release, Serve, DONE];
    assert_eq!(run(plan(Algorithm::TwoPhase), well), [&head[..], &LAZY, &stop, &end].concat());
    // 3.3.3, the second way: the requester waits for its own request, as others may have stopped for another CPU.
    let serve = plan(Algorithm::TwoPhase).with_rendezvous(Rendezvous::Serve);
    let stop = [SetCount(1), Send(1), AllAcknowledged];
    assert_eq!(run(serve, well), [&head[..], &LAZY, &stop, &end].concat());
}

#[test]
fn optimistic_is_pte_first_and_a_look() {
    let head = [Exclude, Update, ReadTargets, FLUSH];
    let waits = [SetCount(1), Send(1), AllAcknowledged];
    let leaves = [Open, SetCount(1), SendAndLeave(1), Close];
    let end = [Check, Release, DONE];
    assert_eq!(run(plan(Algorithm::Optimistic), well), [&head[..], &LAZY, &waits, &end].concat());
    assert_eq!(run(plan(Algorithm::OptimisticAsync), well), [&head[..], &LAZY, &leaves, &end].concat());
    assert_eq!(run(plan(Algorithm::OptimisticRemote), well), [&head[..], &REMOTE, &end].concat());
}

/// Whether the others are there yet is asked until they are; nothing else is asked twice.
#[test]
fn who_is_not_there_yet_is_waited_for() {
    let waits = |action| matches!(action, Exclude | AllAcknowledged | IsStopped(_) | IsFlushed { .. });
    for algorithm in Algorithm::ALL {
        let mut looks = 0;
        let patient = run(plan(algorithm), |action| {
            looks += usize::from(waits(action));
            if waits(action) && looks % 3 != 0 { Seen::No } else { well(action) }
        });
        let once = run(plan(algorithm), well).into_iter();
        let thrice = once.flat_map(|action| [action].repeat(if waits(action) { 3 } else { 1 }));
        assert_eq!(patient, thrice.collect::<Vec<_>>(), "{algorithm}");
    }
}

/// A CPU that changes an entry of a space that it does not run has nothing to flush; with no other CPU there, nothing is asked.
#[test]
fn who_does_not_hold_the_entry_does_not_flush() {
    let held_by = |members: &'static [usize]| {
        move |action| match action {
            ReadTargets => Seen::Targets { members: cpus(members), running: cpus(members) },
            _ => well(action),
        }
    };
    let waits = [SetCount(1), Send(1), AllAcknowledged];
    let (head, end) = ([Exclude, Update, ReadTargets], [Release, DONE]);
    assert_eq!(run(plan(Algorithm::PteFirst), held_by(&[1])), [&head[..], &waits, &end].concat());
    assert_eq!(run(plan(Algorithm::PteFirst), held_by(&[])), [&head[..], &end].concat());
    assert_eq!(run(plan(Algorithm::PteFirstAsync), held_by(&[0])), [&head[..], &[FLUSH], &end].concat());
}

/// CPU 2 has begun to run the space before it could see the mark: then it is asked like the rest.
#[test]
fn who_runs_the_space_by_now_is_asked() {
    let here = |action| if let IsRunning(_) = action { Seen::Yes } else { well(action) };
    let asked = run(plan(Algorithm::PteFirst), here);
    assert_eq!(asked[4..9], [MarkStale(2), IsRunning(2), SetCount(2), Send(1), Send(2)]);
    let asked = run(plan(Algorithm::PteFirstAsync), here);
    assert_eq!(asked[7..10], [SetCount(2), Send(1), SendAndLeave(2)]);
}

/// CPU 1 is offline: its acknowledgement is counted for it, and it does not stop.
#[test]
fn who_is_offline_is_not_waited_for() {
    let gone = |action| if let Send(_) = action { Seen::No } else { well(action) };
    let asked = run(plan(Algorithm::TwoPhase), gone);
    assert_eq!(asked[6..9], [SetCount(1), Send(1), Update]);
}

/// A CPU has raised the rights again: the entry is left alone, and no code looks at it.
#[test]
fn what_is_superseded_ends_without_another_write() {
    let raised = |action| if action == Close { Seen::No } else { well(action) };
    for algorithm in [Algorithm::PteFirstAsync, Algorithm::TlbFirstAsync, Algorithm::OptimisticAsync] {
        let asked = run(plan(algorithm), raised);
        let after: Vec<_> = asked.into_iter().skip_while(|&action| action != Close).skip(1).collect();
        let end = [SetChanging(false), Release, Done(Outcome::Superseded)];
        let flagged = usize::from(algorithm != Algorithm::TlbFirstAsync);
        assert_eq!(after, end[flagged..], "{algorithm}");
    }
}

/// Runs optimistic on hardware that writes both status bits late, which makes three rounds at least, and returns how
/// many there were. The entry is what it should be at the checks that are told.
fn rounds(conditional: bool, checks: &[bool]) -> (usize, Action) {
    let late = StatusBit::by(Status::ReadThenWrite);
    let hardware = Hardware { referenced: late, dirty: late, ..Hardware::I386 };
    let plan = Plan::new(Algorithm::Optimistic, &hardware, LowRights::MayWriteBack).unwrap();
    let mut checks = checks.iter();
    let asked = run(if conditional { plan.conditional() } else { plan }, |action| match action {
        Check if checks.next() == Some(&false) => Seen::No,
        _ => well(action),
    });
    assert_eq!(checks.next(), None, "it has ended early");
    // Each round looks anew which CPUs may hold the entry, under one exclusion.
    let count = |wanted| asked.iter().filter(|&&action| action == wanted).count();
    assert_eq!((count(Exclude), count(Release), count(ReadTargets)), (1, 1, count(Update)));
    assert_eq!(count(Check), count(Update));
    (count(Update), asked[asked.len() - 1])
}

#[test]
fn optimistic_goes_on_until_the_entry_stays() {
    assert_eq!(rounds(false, &[true, true, true]), (3, DONE));
    assert_eq!(rounds(false, &[false, false, true]), (3, DONE));
    assert_eq!(rounds(false, &[true, true, false, false, true]), (5, DONE));
    // With the hint, the last of the rounds decides.
    assert_eq!(rounds(true, &[false, true, true]), (3, DONE));
    assert_eq!(rounds(true, &[true, true, false]), (3, Done(Outcome::Overwritten)));
    // They are counted no further than they are wanted.
    assert_eq!(rounds(false, &[false; 300]), (301, DONE));
}

/// Between the last request and the last acknowledgement no CPU owns the operation, and it keeps what it holds.
#[test]
fn an_operation_that_is_left_is_the_last_repliers() {
    let mut operation =
        Operation::<_, 1>::new(plan(Algorithm::PteFirstAsync), 0, Some("the node")).ok().unwrap();
    *operation.uncovered() = Some("the frame");
    assert_eq!(operation.take_over(1), Err(Misuse::NotAsked));
    while !operation.is_left() {
        operation.did(well(operation.next())).unwrap();
    }
    assert_eq!(operation.machine().repliers(), cpus(&[1]));
    assert_eq!(operation.machine().plan(), &plan(Algorithm::PteFirstAsync));
    assert_eq!(operation.did(Seen::Yes), Err(Misuse::NotAsked));
    let mut operation = operation.finish().expect_err("it has not ended");
    assert_eq!(operation.take_over(64), Err(Misuse::NoSuchCpu { cpu: 64 }));
    assert!(operation.is_left());
    assert_eq!(operation.machine().cpu(), 0);
    operation.take_over(63).unwrap();
    assert_eq!((operation.machine().cpu(), operation.is_left()), (63, false));
    while operation.next() != DONE {
        operation.did(well(operation.next())).unwrap();
    }
    let ended = operation.finish().expect("it has ended");
    assert_eq!(
        (ended.outcome, ended.earlier, ended.free),
        (Outcome::Done, Some("the node"), Some("the frame"))
    );
}

/// Where all have acknowledged before the update, what that uncovers is not free at the end; what an earlier one did is.
#[test]
fn what_comes_after_the_acknowledgements_is_carried() {
    for algorithm in Algorithm::ALL {
        let hardware = Hardware { remote_flush: true, ..Hardware::RP3 };
        let plan = Plan::new(algorithm, &hardware, LowRights::NeverWriteBack).expect("all suit it");
        let mut operation = Operation::<_, 1>::new(plan, 0, Some("earlier")).expect("there is a CPU 0");
        while !matches!(operation.next(), Done(_)) {
            if operation.next() == Update {
                *operation.uncovered() = Some("now");
            }
            operation.did(well(operation.next())).expect("it is what it asked for");
            if operation.is_left() {
                operation.take_over(1).expect("it is left");
            }
        }
        let ended = operation.finish().expect("it has ended");
        let carries = algorithm.order() == Order::TlbFirst;
        let (free, carried) = if carries { (None, Some("now")) } else { (Some("now"), None) };
        assert_eq!(
            (ended.earlier, ended.free, ended.carried),
            (Some("earlier"), free, carried),
            "{algorithm}"
        );
    }
}
