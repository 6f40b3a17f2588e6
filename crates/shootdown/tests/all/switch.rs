//! CPUs that come and go (3.3.2): what each change asks for, in which order, and that no request falls in between.

use std::collections::{BTreeSet, HashSet};

use SwitchAction as S;
use proptest::prelude::*;
use tlbkit_shootdown::{
    Action, Algorithm, Hardware, LowRights, Misuse, Plan, Requester, Seen, SharedSpace, SpaceCpus, Switch,
    SwitchAction, SwitchKind,
};

fn plan(algorithm: Algorithm) -> Plan {
    Plan::new(algorithm, &Hardware::RP3, LowRights::NeverWriteBack).unwrap()
}

/// Carries a change out, and returns what it asked for.
fn steps(plan: &Plan, change: SwitchKind, mut answer: impl FnMut(SwitchAction) -> bool) -> Vec<SwitchAction> {
    let mut switch = Switch::new(plan, change);
    let mut asked = Vec::new();
    while switch.next() != S::Finished {
        asked.push(switch.next());
        switch.did(answer(switch.next())).unwrap();
    }
    let ended = switch;
    assert_eq!(switch.did(true), Err(Misuse::NotAsked));
    assert_eq!(switch, ended);
    asked
}

/// A CPU that joins says so before it looks whether it is stale, and flushes if it is. With 2-phase it waits at the gate while
/// an entry changes; it flushes too if it had to wait, or was no member: no CPU has counted on it.
#[test]
fn who_comes_flushes_if_he_may_have_missed_something() {
    for algorithm in [Algorithm::PteFirst, Algorithm::TlbFirst, Algorithm::Optimistic, Algorithm::TwoPhase] {
        let gate = algorithm == Algorithm::TwoPhase;
        for case in 0..24 {
            let (was_no_member, stale, changing) = (case & 1 != 0, case & 2 != 0, case / 8);
            let mut looks = 0;
            let asked = steps(&plan(algorithm), SwitchKind::In, |action| match action {
                S::Join => was_no_member,
                S::IsChanging => {
                    looks += 1;
                    looks <= changing
                }
                S::TakeStale => stale,
                // No question: any answer will do.
                _ => case & 4 != 0,
            });
            let mut expected = vec![S::Open, S::Join, S::SetRunning];
            if gate {
                expected.extend([S::IsChanging].repeat(changing + 1));
            }
            expected.push(S::TakeStale);
            if stale || gate && (was_no_member || changing > 0) {
                expected.push(S::FlushSpace);
            }
            assert_eq!(asked, expected, "{algorithm} {was_no_member} {stale} {changing}");
        }
    }
}

/// A CPU that leaves keeps its translations; one that cannot tell spaces apart forgets them, and is no member then; one that goes
/// offline replies to what it was asked before the queue closed, and flushes all for what was not asked any more.
#[test]
fn who_leaves_says_so_when_he_uses_it_no_more() {
    for algorithm in [Algorithm::PteFirst, Algorithm::TwoPhase] {
        for answer in [false, true] {
            let steps = |change| steps(&plan(algorithm), change, |_| answer);
            assert_eq!(steps(SwitchKind::Out), [S::Drain, S::ClearRunning]);
            assert_eq!(steps(SwitchKind::OutAndForget), [S::Drain, S::ClearRunning, S::FlushSpace, S::Leave]);
            let offline = [S::Drain, S::ClearRunning, S::Leave, S::Close, S::Serve, S::FlushAll];
            assert_eq!(steps(SwitchKind::Offline), offline);
        }
    }
}

/// CPU 0 lowers the rights of a page while CPU 1, which has it in its TLB, comes and goes. PTE-first, with a TLB that
/// loads by itself whatever the entry says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Race {
    requester: Requester,
    /// CPU 1's change under way, and those that follow.
    switch: Switch,
    then: &'static [SwitchKind],
    space: SpaceCpus,
    lowered: bool,
    /// CPU 1's TLB still has the old rights.
    old: bool,
    open: bool,
    requests: u32,
    count: u32,
}

impl Race {
    fn new(running: bool, changes: &'static [SwitchKind]) -> Self {
        let plan = plan(Algorithm::PteFirst);
        let mut space = SpaceCpus { members: [0, 1].into_iter().collect(), ..SpaceCpus::default() };
        space.running.insert(0);
        if running {
            space.running.insert(1);
        }
        Self {
            requester: Requester::new(plan, 0).unwrap(),
            switch: Switch::new(&plan, changes[0]),
            then: &changes[1..],
            space,
            lowered: false,
            old: true,
            open: true,
            requests: 0,
            count: 0,
        }
    }

    /// CPU 1 flushes, and acknowledges what it was asked.
    fn reply(&mut self) {
        self.old &= self.requests == 0;
        self.count -= std::mem::take(&mut self.requests);
    }

    fn request(mut self) -> Self {
        let yes = |yes| if yes { Seen::Yes } else { Seen::No };
        let seen = match self.requester.next() {
            Action::Done(_) => return self,
            Action::Exclude => Seen::Yes,
            Action::Update => {
                self.lowered = true;
                Seen::Did
            }
            Action::ReadTargets => Seen::Targets { members: self.space.members, running: self.space.running },
            Action::MarkStale(cpu) => {
                self.space.stale.insert(cpu);
                Seen::Did
            }
            Action::IsRunning(cpu) => yes(self.space.running.contains(cpu)),
            Action::SetCount(count) => {
                self.count = count;
                Seen::Did
            }
            Action::Send(_) if !self.open => {
                self.count -= 1;
                Seen::No
            }
            Action::Send(_) => {
                self.requests += 1;
                Seen::Did
            }
            Action::AllAcknowledged => yes(self.count == 0),
            _ => Seen::Did,
        };
        self.requester.did(seen).unwrap();
        self
    }

    fn come_or_go(mut self) -> Self {
        let yes = match self.switch.next() {
            S::Finished => {
                if let [next, then @ ..] = self.then {
                    (self.switch, self.then) = (Switch::new(&plan(Algorithm::PteFirst), *next), then);
                }
                return self;
            }
            S::Open | S::Close => {
                self.open = self.switch.next() == S::Open;
                false
            }
            S::Join => self.space.members.insert(1) == Some(true),
            S::Leave => self.space.members.remove(1),
            S::SetRunning => self.space.running.insert(1) == Some(true),
            S::ClearRunning => self.space.running.remove(1),
            S::TakeStale => self.space.stale.remove(1),
            S::Drain => false,
            S::FlushSpace | S::FlushAll => {
                self.old = false;
                false
            }
            S::Serve => {
                self.reply();
                false
            }
            S::IsChanging => panic!("PTE-first has no gate"),
        };
        self.switch.did(yes).unwrap();
        self
    }

    fn next(&self) -> Vec<Self> {
        let (mut replied, mut loaded) = (*self, *self);
        replied.reply();
        loaded.old |= !self.lowered && self.space.running.contains(1);
        vec![self.request(), self.come_or_go(), replied, loaded]
    }

    /// CPU 1 may use what is in its TLB.
    fn runs(&self) -> bool {
        self.space.running.contains(1) && self.switch.next() == S::Finished
    }
}

/// One CPU marks and then looks which CPUs run; the other says that it runs and then looks for the mark: all interleavings.
#[test]
fn nobody_runs_with_rights_that_an_operation_has_taken_away() {
    const STORIES: [(bool, &[SwitchKind]); 5] = [
        (false, &[SwitchKind::In]),
        (false, &[SwitchKind::In, SwitchKind::Out, SwitchKind::In]),
        (true, &[SwitchKind::Out, SwitchKind::In]),
        (true, &[SwitchKind::OutAndForget, SwitchKind::In]),
        (true, &[SwitchKind::Offline, SwitchKind::In]),
    ];
    for (running, changes) in STORIES {
        let mut open = vec![Race::new(running, changes)];
        let mut seen = HashSet::new();
        let (mut ended, mut marked, mut asked) = (false, false, false);
        while let Some(race) = open.pop() {
            if !seen.insert(race) {
                continue;
            }
            let done = matches!(race.requester.next(), Action::Done(_));
            assert!(!(done && race.runs() && race.old), "{race:?}");
            ended |= done && race.runs() && race.then.is_empty();
            marked |= race.space.stale.contains(1);
            asked |= race.requests > 0;
            open.extend(race.next());
        }
        // Each way of hearing of it has been taken, or the test says little.
        assert!(ended && marked && asked, "{changes:?}: {ended} {marked} {asked}");
    }
}

proptest! {
    /// A set that CPUs enter and leave by themselves, against a set. Beyond its capacity there is no CPU.
    #[test]
    fn a_shared_set_is_a_set(steps in proptest::collection::vec((any::<bool>(), 0..130usize), 0..60)) {
        let (shared, mut set) = (SharedSpace::<2>::new(), BTreeSet::new());
        for (enter, cpu) in steps {
            if enter {
                prop_assert_eq!(shared.running.insert(cpu), cpu < 128 && set.insert(cpu));
            } else {
                prop_assert_eq!(shared.running.remove(cpu), set.remove(&cpu));
            }
            prop_assert_eq!(shared.running.contains(cpu), set.contains(&cpu));
            prop_assert!(shared.running.load().iter().eq(set.iter().copied()));
            prop_assert!(shared.members.load().is_empty() && shared.stale.load().is_empty());
        }
    }
}
