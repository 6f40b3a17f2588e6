//! Tests that a plan with one repair switched off follows the printed pseudocode at that place, and changes nowhere else.

use tlbkit_addr::{Asid, CpuSet};

use crate::{
    Action, Algorithm, Broadcast, BroadcastAction, BroadcastSeen, Duty, Hardware, LowRights, Miss, Misuse,
    OpId, Operation, Outcome, Plan, Rendezvous, Repair, Replier, Reply, Request, Requester, SectionKind,
    Seen, Status, StatusBit, Switch, SwitchAction, SwitchKind, Target, Work,
};

fn plan(algorithm: Algorithm, without: Repair) -> Plan {
    let hardware = Hardware { remote_flush: true, ..Hardware::RP3 };
    let plan = Plan::new(algorithm, &hardware, LowRights::NeverWriteBack);
    plan.map(|plan| plan.without(without)).unwrap_or_else(|why| panic!("{why}"))
}

/// Returns the actions that CPU 0 asks for to change an entry that CPU 1 may also hold, if every answer is favourable.
fn asked(plan: Plan) -> Vec<Action> {
    let mut machine = Requester::<1>::new(plan, 0).unwrap();
    let both: CpuSet = [0, 1].into_iter().collect();
    let mut asked = Vec::new();
    loop {
        if machine.is_left() {
            machine.take_over(1).unwrap();
        }
        let action = machine.next();
        asked.push(action);
        let seen = match action {
            Action::Done(_) => return asked,
            Action::Exclude
            | Action::AllAcknowledged
            | Action::IsStopped(_)
            | Action::IsFlushed { .. }
            | Action::Close
            | Action::Check => Seen::Yes,
            Action::ReadTargets | Action::ReadHolders => Seen::Targets { members: both, running: both },
            Action::FlushRemotely { .. } => Seen::Posted { ticket: 9, done: 3 },
            _ => Seen::Did,
        };
        machine.did(seen).unwrap();
    }
}

/// Checks the difference that a repair makes to one algorithm: with it the actions are `sound`, and without it `printed`.
fn differs(algorithm: Algorithm, without: Repair, sound: &[Action], printed: &[Action]) {
    let [mut with, mut without] = [Repair::empty(), without].map(|off| asked(plan(algorithm, off)));
    while with.first() == without.first() {
        with.remove(0);
        without.remove(0);
    }
    while with.last() == without.last() {
        with.pop();
        without.pop();
    }
    assert_eq!((with.as_slice(), without.as_slice()), (sound, printed), "{algorithm}");
}

const FLUSH: Action = Action::FlushLocally { drain: true };

#[test]
fn the_target_set_is_read_too_early() {
    for algorithm in [Algorithm::PteFirst, Algorithm::Optimistic] {
        let (sound, printed) = ([Action::Update, Action::ReadTargets], [Action::ReadTargets, Action::Update]);
        differs(algorithm, Repair::TARGETS_AFTER, &sound, &printed);
    }
    let (set, changing) = (Action::SetTentative, Action::SetChanging(true));
    let (sound, printed) = ([set, changing, Action::ReadTargets], [Action::ReadTargets, set, changing]);
    differs(Algorithm::TlbFirst, Repair::TARGETS_AFTER, &sound, &printed);
}

/// Without the repair, optimistic reads the target set once in any number of rounds.
#[test]
fn the_target_set_is_read_once() {
    let hardware = Hardware { dirty: StatusBit::by(Status::ReadThenWrite), ..Hardware::I386 };
    let rounds = |without: Repair| {
        let plan = Plan::unsound(Algorithm::Optimistic, &hardware, LowRights::NeverWriteBack);
        let asked = asked(plan.without(without));
        let count = |wanted| asked.iter().filter(|&&action| action == wanted).count();
        (count(Action::Update), count(Action::ReadTargets))
    };
    assert_eq!(rounds(Repair::empty()), (2, 2));
    assert_eq!(rounds(Repair::TARGETS_AFTER), (2, 1));
    assert_eq!(rounds(Repair::ROUNDS), (1, 1));
}

#[test]
fn lines_are_in_the_printed_order_or_missing() {
    let (set, changing) = (Action::SetTentative, Action::SetChanging(true));
    differs(Algorithm::TlbFirst, Repair::VALUE_BEFORE_FLAG, &[set, changing], &[changing, set]);
    let unchanging = Action::SetChanging(false);
    let stop = [
        Action::SetCount(1),
        Action::Send(1),
        Action::IsStopped(1),
        Action::Update,
        unchanging,
        Action::Continue,
    ];
    let (after, before) = ([&stop[..], &[FLUSH]].concat(), [&[FLUSH], &stop[..]].concat());
    differs(Algorithm::TwoPhase, Repair::REQUESTER_FLUSHES_AFTER, &after, &before);
    let (sound, printed) = ([Action::IsStopped(1)], [Action::AllAcknowledged]);
    differs(Algorithm::TwoPhase, Repair::RENDEZVOUS, &sound, &printed);
    differs(Algorithm::TwoPhase, Repair::ALL_LOADERS, &[Action::ReadTargets], &[Action::ReadHolders]);
    let (sound, printed) = ([Action::Update], [Action::ReadStatus, Action::Store]);
    differs(Algorithm::PteFirst, Repair::EXCHANGE, &sound, &printed);
    differs(Algorithm::PteFirst, Repair::DRAIN, &[FLUSH], &[Action::FlushLocally { drain: false }]);
    let remote = |drain| [Action::FlushRemotely { cpu: 1, drain }];
    differs(Algorithm::PteFirstRemote, Repair::REMOTE_DRAIN, &remote(true), &remote(false));
    let ticket = |ticket| [Action::IsFlushed { cpu: 1, ticket }];
    differs(Algorithm::PteFirstRemote, Repair::GENERATION, &ticket(9), &ticket(4));

    let missing = |algorithm, without: Repair, lines: &[Action]| {
        let mut sound = asked(plan(algorithm, Repair::empty()));
        sound.retain(|action| !lines.contains(action));
        assert_eq!(sound, asked(plan(algorithm, without)));
    };
    missing(Algorithm::PteFirst, Repair::EXCLUSION, &[Action::Exclude, Action::Release]);
    missing(Algorithm::PteFirstAsync, Repair::RAISE_SUPERSEDES, &[Action::Open, Action::Close]);
}

/// Returns what the initiator of a broadcast asks for: CPU 1 runs the address space, and is in a section of either kind.
fn asked_of_broadcast(without: Repair) -> Vec<BroadcastAction> {
    let plan = plan(Algorithm::PteFirst, without);
    let mut change = Broadcast::<1>::new(&plan, true);
    let (mut asked, one) = (Vec::new(), CpuSet::from_iter([1]));
    loop {
        let action = change.next();
        asked.push(action);
        let seen = match action {
            BroadcastAction::Done => return asked,
            BroadcastAction::AllFlushed | BroadcastAction::Keep { .. } => BroadcastSeen::Yes,
            BroadcastAction::ReadRunning | BroadcastAction::Look { since: None, .. } => {
                BroadcastSeen::Cpus(one)
            }
            BroadcastAction::Look { .. } => BroadcastSeen::Cpus(CpuSet::empty()),
            BroadcastAction::BeginEpoch => BroadcastSeen::Epoch(0),
            BroadcastAction::Flush | BroadcastAction::Release | BroadcastAction::Reclaim => {
                BroadcastSeen::Did
            }
        };
        change.did(seen).unwrap();
    }
}

#[test]
fn a_part_of_a_broadcast_is_left_out() {
    use BroadcastAction as B;
    let look = |kind, since| B::Look { cpus: CpuSet::from_iter([1]), kind, since };
    let uses = [look(SectionKind::Use, None), B::BeginEpoch, look(SectionKind::Use, Some(0))];
    let walks = [look(SectionKind::Walk, None), B::BeginEpoch, B::Keep { since: 0 }];
    let all = |barrier: &[B], uses: &[B], walks: &[B]| {
        [&[B::Flush], barrier, &[B::ReadRunning], uses, &[B::Release], walks, &[B::Done]].concat()
    };
    assert_eq!(asked_of_broadcast(Repair::empty()), all(&[B::AllFlushed], &uses, &walks));
    assert_eq!(asked_of_broadcast(Repair::BARRIER), all(&[], &uses, &walks));
    assert_eq!(asked_of_broadcast(Repair::USES_END), all(&[B::AllFlushed], &[], &walks));
    assert_eq!(asked_of_broadcast(Repair::WALKS_END), all(&[B::AllFlushed], &uses, &[B::Reclaim]));
}

/// Without the repair, an asynchronous operation that asks no CPU never ends: no CPU takes it over, and its payload does not
/// come back.
#[test]
fn no_replier_completes_an_operation_without_repliers() {
    let plan = plan(Algorithm::PteFirstAsync, Repair::ZERO_REPLIERS | Repair::EXCLUSION);
    let mut operation = Operation::<(), 1>::new(plan, 0, None).ok().unwrap();
    let none = Seen::Targets { members: CpuSet::empty(), running: CpuSet::empty() };
    while !operation.is_left() {
        let seen = if operation.next() == Action::ReadTargets { none } else { Seen::Did };
        operation.did(seen).unwrap();
    }
    assert_eq!(operation.next(), Action::Done(Outcome::Done));
    assert_eq!(operation.did(Seen::Did), Err(Misuse::NotAsked));
    assert!(operation.finish().is_err());
}

/// Returns the actions of a 2-phase replier for one request, up to `Idle`.
fn replied(plan: Plan) -> Vec<Reply> {
    let op = OpId { cpu: 0, slot: 0, generation: 1 };
    let mut work = Some(Work::One(Request { op, what: Target::All, duty: Duty::Stop }));
    let mut replier = Replier::<2>::new(plan).unwrap();
    replier.interrupt();
    let mut asked = Vec::new();
    while !replier.is_idle() {
        asked.push(replier.next());
        match replier.next() {
            Reply::Take => replier.took(work.take()),
            Reply::Acknowledge(_) => replier.counted(0),
            Reply::MayContinue(_) => replier.may_continue(true),
            _ => replier.did(),
        }
        .unwrap();
    }
    asked
}

#[test]
fn a_replier_flushes_when_it_stops_and_leaves_without_checking_its_queue() {
    let op = OpId { cpu: 0, slot: 0, generation: 1 };
    let flush = |drain| Reply::Flush { what: Target::All, drain };
    let (go, ack) = (Reply::MayContinue(op), Reply::Acknowledge(op));
    let replied = |without: Repair| {
        let mut replied = replied(plan(Algorithm::TwoPhase, without));
        let looks_back = replied.pop_if(|last| *last == Reply::Take).is_some();
        replied.retain(|&reply| reply != Reply::Take);
        (replied, looks_back)
    };
    let (enter, leave) = (Reply::Enter, Reply::Leave);
    assert_eq!(replied(Repair::empty()), (vec![enter, go, flush(true), leave], true));
    assert_eq!(replied(Repair::DRAIN), (vec![enter, go, flush(false), leave], true));
    assert_eq!(replied(Repair::ENQUEUE_BEFORE_FLAG), (vec![enter, go, flush(true), leave], false));
    assert_eq!(replied(Repair::FLUSH_AFTER_UPDATE), (vec![enter, flush(true), go, leave], true));
    assert_eq!(replied(Repair::RENDEZVOUS), (vec![enter, ack, go, flush(true), leave], true));
    let serve = plan(Algorithm::TwoPhase, Repair::FLUSH_AFTER_UPDATE).with_rendezvous(Rendezvous::Serve);
    // A CPU that only collects requests does not stop, and does not flush.
    let mut replier = Replier::<2>::new(serve).unwrap();
    replier.collect();
    replier
        .took(Some(Work::One(Request { op, what: Target::Space(Asid::default()), duty: Duty::Stop })))
        .unwrap();
    replier.counted(1).unwrap();
    assert_eq!(replier.next(), Reply::Take);
}

#[test]
fn what_others_see_of_a_plan() {
    let without = |repair| plan(Algorithm::TwoPhase, repair);
    assert!(
        Miss::new(&without(Repair::DRAIN)).is_masked()
            && !Miss::new(&without(Repair::MISS_MASKED)).is_masked()
    );
    assert_eq!([0, 7].map(|entry| without(Repair::FLAG_PER_PTE).flag_of(entry)), [0, 0]);
    let gated = |plan| {
        let mut switch = Switch::new(&plan, SwitchKind::In);
        while !matches!(switch.next(), SwitchAction::IsChanging | SwitchAction::TakeStale) {
            switch.did(false).unwrap();
        }
        switch.next() == SwitchAction::IsChanging
    };
    assert!(gated(without(Repair::DRAIN)) && !gated(without(Repair::ALL_LOADERS)));
    for (algorithm, hardware) in [(Algorithm::PteFirst, Hardware::VAX), (Algorithm::TlbFirst, Hardware::I386)]
    {
        let plan = Plan::unsound(algorithm, &hardware, LowRights::NeverWriteBack);
        assert_eq!((plan.algorithm(), plan.has(Repair::all())), (algorithm, true));
        assert_eq!(plan, plan.without(Repair::empty()));
        for repair in Repair::all().iter() {
            let less = plan.without(repair);
            assert!(!less.has(repair) && less.has(Repair::all().difference(repair)));
        }
    }
}
