//! The replier and the miss handler, step by step.

use tlbkit_addr::{Asid, Pages, Vpn};
use tlbkit_shootdown::{
    Algorithm, Duty, Form, Hardware, LowRights, Miss, MissAction, Misuse, OpId, Plan, Queue, Rendezvous,
    Replier, Reply, Request, Source, Target, Work,
};

fn plan(algorithm: Algorithm) -> Plan {
    Plan::new(algorithm, &Hardware::RP3, LowRights::NeverWriteBack).unwrap()
}

fn op(cpu: u16) -> OpId {
    OpId { cpu, slot: 0, generation: 1 }
}

fn what(cpu: u16) -> Target {
    Target::Pages(Asid::default(), Pages::one(Vpn::new(usize::from(cpu))))
}

fn flush(cpu: u16) -> Reply {
    Reply::Flush { what: what(cpu), drain: true }
}

fn slot(cpu: u16) -> Reply {
    Reply::AcknowledgeSlot { cpu, slot: 0 }
}

fn may_continue_slot(cpu: u16) -> Reply {
    Reply::MayContinueSlot { cpu, slot: 0 }
}

const FLUSH_ALL: Reply = Reply::Flush { what: Target::All, drain: true };

/// A CPU with its queue, which has room for two requests.
struct Cpu {
    queue: Queue<2>,
    replier: Replier<2>,
    /// Acknowledgements to come after this CPU's.
    left: u32,
    /// How often an operation's continuing signal is still missing when it is looked for.
    patience: usize,
}

impl Cpu {
    fn new(plan: Plan, requests: &[u16]) -> Self {
        let mut cpu =
            Self { queue: Queue::new().unwrap(), replier: Replier::new(plan).unwrap(), left: 1, patience: 0 };
        requests.iter().for_each(|&from| cpu.asked(from));
        cpu
    }

    fn asked(&mut self, from: u16) {
        self.queue.push(Request { op: op(from), what: what(from), duty: Duty::Flush }).unwrap();
    }

    /// Runs until it is idle, and returns what it asked for.
    fn run(&mut self) -> Vec<Reply> {
        let mut asked = Vec::new();
        while !self.replier.is_idle() && asked.len() < 100 {
            asked.push(self.replier.next());
            match self.replier.next() {
                Reply::Take => self.replier.took(self.queue.take()),
                Reply::Acknowledge(_) | Reply::AcknowledgeSlot { .. } => self.replier.counted(self.left),
                Reply::MayContinue(_) | Reply::MayContinueSlot { .. } => {
                    let yes = self.patience == 0;
                    self.patience = self.patience.saturating_sub(1);
                    self.replier.may_continue(yes)
                }
                _ => self.replier.did(),
            }
            .unwrap();
        }
        assert_eq!(self.replier.next(), Reply::Idle);
        asked
    }

    fn interrupted(&mut self) -> Vec<Reply> {
        assert!(self.replier.is_idle());
        self.replier.interrupt();
        assert!(!self.replier.is_idle());
        self.run()
    }
}

#[test]
fn a_replier_flushes_and_acknowledges_until_there_is_nothing() {
    let mut cpu = Cpu::new(plan(Algorithm::PteFirst), &[4, 5]);
    let expected = [
        Reply::Take,
        flush(4),
        Reply::Acknowledge(op(4)),
        Reply::Take,
        flush(5),
        Reply::Acknowledge(op(5)),
        Reply::Take,
    ];
    assert_eq!(cpu.interrupted(), expected);
    assert_eq!(cpu.interrupted(), [Reply::Take], "an interrupt for nothing");
}

#[test]
fn an_overflow_is_flushed_at_once_and_acknowledged_one_by_one() {
    let mut cpu = Cpu::new(plan(Algorithm::PteFirst), &[4, 5, 6]);
    let expected = [Reply::Take, FLUSH_ALL, slot(4), slot(5), slot(6), Reply::Take];
    assert_eq!(cpu.interrupted(), expected);
}

/// One prime: the CPU that counts the last acknowledgement completes the operation, and then goes on with its own.
#[test]
fn the_last_replier_takes_over() {
    for (left, requests) in [(0, &[4, 5][..]), (0, &[4, 5, 6]), (1, &[4, 5])] {
        let mut cpu = Cpu::new(plan(Algorithm::PteFirstAsync), requests);
        cpu.left = left;
        let taken: Vec<_> =
            cpu.interrupted().into_iter().filter(|reply| matches!(reply, Reply::TakeOver { .. })).collect();
        let expected: Vec<_> = requests.iter().map(|&cpu| Reply::TakeOver { cpu, slot: 0 }).collect();
        assert_eq!(taken, if left == 0 { expected } else { Vec::new() });
    }
    // A requester that waits for them itself leaves nothing to take over.
    let mut cpu = Cpu::new(plan(Algorithm::PteFirst), &[4]);
    cpu.left = 0;
    assert_eq!(cpu.interrupted(), [Reply::Take, flush(4), Reply::Acknowledge(op(4)), Reply::Take]);
}

/// 3.3.3, the text's first way: all requests are taken before it waits, and all are through before it leaves; once it has
/// left, it looks into the queue again.
#[test]
fn a_two_phase_replier_stops_until_all_have_changed() {
    let mut cpu = Cpu::new(plan(Algorithm::TwoPhase), &[4, 5]);
    cpu.patience = 2;
    let mut asked = cpu.interrupted();
    assert_eq!(asked[..4], [Reply::Enter, Reply::Take, Reply::Take, Reply::Take]);
    assert_eq!(asked[asked.len() - 2..], [Reply::Leave, Reply::Take]);
    asked.retain(|&reply| reply != Reply::Take);
    let [four, five] = [4, 5].map(|cpu| Reply::MayContinue(op(cpu)));
    assert_eq!(asked, [Reply::Enter, four, four, four, flush(4), five, flush(5), Reply::Leave]);
    assert!(!cpu.replier.holds());
}

#[test]
fn after_an_overflow_a_two_phase_replier_waits_for_every_slot() {
    let mut cpu = Cpu::new(plan(Algorithm::TwoPhase), &[4, 5, 6]);
    cpu.patience = 1;
    let asked: Vec<_> = cpu.interrupted().into_iter().filter(|&reply| reply != Reply::Take).collect();
    let [four, five, six] = [4, 5, 6].map(may_continue_slot);
    assert_eq!(asked, [Reply::Enter, four, four, five, six, FLUSH_ALL, Reply::Leave]);
}

/// Another CPU has seen the flag before it was cleared, and counts on it: back in, with that CPU's request in hand.
#[test]
fn a_request_that_comes_as_it_leaves_is_not_missed() {
    let mut cpu = Cpu::new(plan(Algorithm::TwoPhase), &[]);
    cpu.replier.interrupt();
    while cpu.replier.next() != Reply::Leave {
        match cpu.replier.next() {
            Reply::Take => cpu.replier.took(None).unwrap(),
            _ => cpu.replier.did().unwrap(),
        }
    }
    cpu.asked(4);
    let asked: Vec<_> = cpu.run().into_iter().filter(|&reply| reply != Reply::Take).collect();
    assert_eq!(asked, [Reply::Leave, Reply::Enter, Reply::MayContinue(op(4)), flush(4), Reply::Leave]);
}

/// The text's second way: acknowledge at once, and hold the operation until it continues; a requester that asks
/// meanwhile is acknowledged, too.
#[test]
fn a_serving_replier_acknowledges_while_it_waits() {
    let plan = plan(Algorithm::TwoPhase).with_rendezvous(Rendezvous::Serve);
    for requests in [&[4, 5][..], &[4, 5, 6]] {
        let mut cpu = Cpu::new(plan, requests);
        cpu.patience = 2;
        let asked = cpu.interrupted();
        let (ack, go): (Vec<_>, Vec<_>) = if requests.len() == 2 {
            requests.iter().map(|&cpu| (Reply::Acknowledge(op(cpu)), Reply::MayContinue(op(cpu)))).unzip()
        } else {
            requests.iter().map(|&cpu| (slot(cpu), may_continue_slot(cpu))).unzip()
        };
        let place = |wanted| asked.iter().rposition(|&reply| reply == wanted);
        for (&ack, &go) in ack.iter().zip(&go) {
            assert_eq!(asked.iter().filter(|&&reply| reply == ack).count(), 1, "{ack:?} in {asked:?}");
            let flushed = asked.iter().rposition(|reply| matches!(reply, Reply::Flush { .. }));
            assert!(place(ack) < place(go) && place(go) < flushed, "{asked:?}");
        }
        assert!(!cpu.replier.holds());
    }
}

/// A requester that waits only acknowledges; what it holds it finishes when its own operation is through.
#[test]
fn a_waiting_requester_holds_what_it_is_asked() {
    let plan = plan(Algorithm::TwoPhase).with_rendezvous(Rendezvous::Serve);
    for requests in [&[4][..], &[4, 5, 6]] {
        let mut cpu = Cpu::new(plan, requests);
        cpu.replier.collect();
        cpu.replier.collect();
        let asked: Vec<_> = cpu.run().into_iter().filter(|&reply| reply != Reply::Take).collect();
        let (ack, go, flushed): (Vec<_>, Vec<_>, _) = match requests {
            [one] => (vec![Reply::Acknowledge(op(*one))], vec![Reply::MayContinue(op(*one))], flush(*one)),
            all => (
                all.iter().map(|&cpu| slot(cpu)).collect(),
                all.iter().map(|&cpu| may_continue_slot(cpu)).collect(),
                FLUSH_ALL,
            ),
        };
        assert_eq!(asked, ack);
        assert!(cpu.replier.holds());
        cpu.replier.finish();
        let asked: Vec<_> = cpu.run().into_iter().filter(|&reply| reply != Reply::Take).collect();
        assert_eq!(asked, [go, vec![flushed, Reply::Leave]].concat());
        assert!(!cpu.replier.holds());
    }
}

#[test]
fn a_replier_takes_only_the_answer_it_asked_for() {
    let mut replier = Replier::<2>::new(plan(Algorithm::TwoPhase)).unwrap();
    let refused = |replier: &Replier<2>| {
        let mut copies: [_; 4] = std::array::from_fn(|_| replier.clone());
        let [did, took, counted, go] = &mut copies;
        let results = [did.did(), took.took(None), counted.counted(0), go.may_continue(true)];
        for (copy, result) in copies.iter().zip(&results) {
            assert!(result.is_ok() || copy == replier, "an error changes nothing");
        }
        results.map(|result| result == Err(Misuse::NotAsked))
    };
    assert_eq!(refused(&replier), [true; 4], "idle");
    replier.interrupt();
    assert_eq!(refused(&replier), [false, true, true, true]);
    // While something is under way, nothing else begins.
    let busy = replier.clone();
    replier.interrupt();
    replier.collect();
    replier.finish();
    assert_eq!(replier, busy);
    replier.did().unwrap();
    assert_eq!(refused(&replier), [true, false, true, true]);
    replier.took(Some(Work::One(Request { op: op(4), what: what(4), duty: Duty::Flush }))).unwrap();
    replier.took(None).unwrap();
    assert_eq!(refused(&replier), [true, true, true, false]);
}

/// TLB-first's handler looks at the flag and loads the tentative entry while it is set; the others' just load.
#[test]
fn a_miss_loads_what_the_flag_says() {
    for algorithm in Algorithm::ALL {
        let hardware = Hardware { remote_flush: true, ..Hardware::RP3 };
        let plan = Plan::new(algorithm, &hardware, LowRights::NeverWriteBack).unwrap();
        let looks = algorithm.order() == tlbkit_shootdown::Order::TlbFirst;
        for changing in [false, true] {
            let mut miss = Miss::new(&plan);
            assert!(miss.is_masked(), "a flush between the read and the load would be for nothing");
            if looks {
                assert_eq!(miss.next(), MissAction::IsChanging);
                assert!(!miss.did(changing));
            }
            let from = if looks && changing { Source::Tentative } else { Source::Table };
            assert_eq!(miss.next(), MissAction::Read(from));
            assert!(!miss.did(changing));
            assert_eq!(miss.next(), MissAction::Load);
            assert!(miss.did(changing), "that was all");
        }
    }
}

/// An early acknowledgement comes before the flush; after an overflow, behind the one flush of everything.
#[test]
fn a_replier_that_acknowledges_early_flushes_before_it_is_idle() {
    let early = plan(Algorithm::PteFirst).with_form(Form::EarlyAcknowledgement).unwrap();
    let asked = |cpu: &mut Cpu, from: u16| {
        let request = Request { op: op(from), what: what(from), duty: early.duty() };
        cpu.queue.push(request).unwrap();
    };
    let mut cpu = Cpu::new(early, &[]);
    [1, 2].into_iter().for_each(|from| asked(&mut cpu, from));
    let one = |from| [Reply::Take, Reply::Acknowledge(op(from)), flush(from)];
    assert_eq!(cpu.interrupted(), [&one(1)[..], &one(2), &[Reply::Take]].concat());
    [1, 2, 3].into_iter().for_each(|from| asked(&mut cpu, from));
    let all = cpu.interrupted();
    assert_eq!(all[..2], [Reply::Take, FLUSH_ALL]);
    assert_eq!(all.iter().filter(|reply| matches!(reply, Reply::AcknowledgeSlot { .. })).count(), 3);
}
