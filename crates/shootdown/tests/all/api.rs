//! Bad input gives typed errors and changes nothing; payloads come back once or leak; an unshared unmap is silent.

use std::cell::Cell;

use tlbkit_addr::{Asid, CpuSet, Flush, Pages, Vpn};
use tlbkit_shootdown::{
    Action, Algorithm, Duty, Edit, Hardware, LocalCpu, LowRights, Misuse, OpId, Operation, Outcome, Plan,
    Queue, RemoteTlbs, Rendezvous, Replier, Request, Requester, Seen, SharedSpace, Status, StatusBit, Style,
    SwitchKind, System, Target, leaked,
};

use crate::support::EVERYTHING;

fn plan(algorithm: Algorithm) -> Plan {
    Plan::new(algorithm, &Hardware::I386, LowRights::NeverWriteBack).unwrap()
}

fn request(cpu: u16) -> Request {
    let what = Target::Pages(Asid::default(), Pages::one(Vpn::new(usize::from(cpu))));
    Request { op: OpId { cpu, slot: 0, generation: 1 }, what, duty: Duty::Flush }
}

/// A page whose unmapping uncovers a number.
struct Page(SharedSpace, u8);

impl Edit<1> for Page {
    type Payload = u8;

    fn exclude(&mut self) -> bool {
        true
    }
    fn release(&mut self) {}
    fn update(&mut self) -> u8 {
        self.1
    }
    fn space(&self) -> &SharedSpace {
        &self.0
    }
    fn asid(&self) -> Asid {
        Asid::default()
    }
    fn flush(&self) -> &Flush {
        &EVERYTHING
    }
}

/// Returns a page of a space that runs on these CPUs.
fn on(cpus: [usize; 2], payload: u8) -> Page {
    let space = SharedSpace::new();
    for cpu in cpus {
        space.members.insert(cpu);
        space.running.insert(cpu);
    }
    Page(space, payload)
}

#[derive(Default)]
struct Counting {
    flushes: usize,
    interrupts: Vec<usize>,
    completed: Vec<(u8, Outcome)>,
}

impl LocalCpu<u8> for Counting {
    fn flush(&mut self, _space: Option<Asid>, _what: &Flush, _drain: bool) {
        self.flushes += 1;
    }
    fn interrupt(&mut self, cpus: CpuSet) {
        self.interrupts.extend(cpus.iter());
    }
    fn complete(&mut self, _op: OpId, payload: u8, outcome: Outcome) {
        self.completed.push((payload, outcome));
    }
}

type Kernel = System<u8, Page, 4, 2>;

/// Posts by hand a request of an operation that is not in flight.
fn post(kernel: &Kernel, cpu: usize, request: Request) -> Result<bool, Misuse> {
    // SAFETY: as said.
    unsafe { kernel.post(cpu, request) }
}

/// Acknowledges by hand an operation that is not in flight.
fn acknowledge(kernel: &Kernel, op: OpId) -> Result<u32, Misuse> {
    // SAFETY: as said.
    unsafe { kernel.acknowledge(op) }
}

#[test]
fn bad_input_is_refused() {
    assert!(matches!(Queue::<0>::new(), Err(Misuse::NoRoom)));
    assert!(matches!(Replier::<0>::new(plan(Algorithm::PteFirst)), Err(Misuse::NoRoom)));
    let beyond = CpuSet::<1>::CAPACITY;
    let one = Requester::<1>::new(plan(Algorithm::PteFirst), beyond);
    assert_eq!(one.map(|machine| machine.cpu()), Err(Misuse::NoSuchCpu { cpu: beyond }));
    assert!(Requester::<2>::new(plan(Algorithm::PteFirst), beyond).is_ok());
    // An operation's name has 16 bits for its CPU.
    let last = Requester::<2049>::new(plan(Algorithm::PteFirst), 0xffff);
    assert_eq!(last.map(|machine| machine.cpu()), Ok(0xffff));
    let none = Requester::<2049>::new(plan(Algorithm::PteFirst), 0x1_0000);
    assert_eq!(none.map(|machine| machine.cpu()), Err(Misuse::NoSuchCpu { cpu: 0x1_0000 }));

    let mut queue = Queue::<2>::new().unwrap();
    let far = Request { op: OpId { cpu: 900, slot: 0, generation: 1 }, what: Target::All, duty: Duty::Flush };
    assert_eq!(queue.push(far), Err(Misuse::NoSuchCpu { cpu: 900 }));
    assert!(queue.is_empty());

    let kernel = Kernel::new(Hardware::I386);
    assert!(matches!(kernel.attach(4), Err(Misuse::NoSuchCpu { cpu: 4 })));
    assert_eq!(post(&kernel, 4, request(0)), Err(Misuse::NoSuchCpu { cpu: 4 }));
    let unknown = OpId { cpu: 0, slot: 0, generation: 5 };
    assert_eq!(acknowledge(&kernel, unknown), Err(Misuse::UnknownGeneration { op: unknown, current: 0 }));
    let twice = OpId { cpu: 0, slot: 0, generation: 0 };
    assert_eq!(acknowledge(&kernel, twice), Err(Misuse::AlreadyComplete { op: twice }));
}

#[test]
fn a_machine_takes_only_the_answer_it_asked_for() {
    let mut machine = Requester::<1>::new(plan(Algorithm::PteFirst), 0).unwrap();
    assert_eq!(machine.next(), Action::Exclude);
    let before = machine;
    assert_eq!(machine.did(Seen::Did), Err(Misuse::NotAsked));
    assert_eq!(machine.take_over(1), Err(Misuse::NotAsked));
    assert_eq!(machine, before);
}

#[test]
fn an_operation_dropped_half_way_leaks_its_payload_and_says_so() {
    #[derive(Debug)]
    struct Bomb<'a>(&'a Cell<u32>);
    impl Drop for Bomb<'_> {
        fn drop(&mut self) {
            self.0.set(self.0.get() + 1);
        }
    }
    let dropped = Cell::new(0);
    let before = leaked();
    let plan = plan(Algorithm::PteFirst);
    drop(Operation::<_, 1>::new(plan, 0, Some(Bomb(&dropped))).ok());
    assert_eq!((leaked() > before, dropped.get()), (true, 0));
    let mut half = Operation::<_, 1>::new(plan, 0, Some(Bomb(&dropped))).ok().unwrap();
    *half.uncovered() = Some(Bomb(&dropped));
    let back = half.finish().expect_err("it has not ended");
    assert_eq!(dropped.get(), 0);
    drop(back);
    assert_eq!((leaked() >= before + 3, dropped.get()), (true, 0));
}

#[test]
fn an_unmap_that_nobody_else_can_have_seen_sends_nothing() {
    for algorithm in Algorithm::ALL {
        let hardware = Hardware { remote_flush: true, ..Hardware::RP3 };
        let plan = Plan::new(algorithm, &hardware, LowRights::NeverWriteBack).unwrap();
        let mut machine = Requester::<1>::new(plan, 2).unwrap();
        let only: CpuSet = [2].into_iter().collect();
        loop {
            let seen = match machine.next() {
                Action::Done(_) => break,
                Action::ReadTargets => Seen::Targets { members: only, running: only },
                Action::Exclude | Action::Check => Seen::Yes,
                // What the CPU has for itself: its exclusion, its entry, its TLB, its own flag.
                Action::Release
                | Action::Update
                | Action::SetTentative
                | Action::SetChanging(_)
                | Action::Enter
                | Action::Serve
                | Action::FlushLocally { .. } => Seen::Did,
                shared => panic!("{algorithm} asks for {shared:?}"),
            };
            machine.did(seen).unwrap();
        }
        assert!(!machine.is_left());
    }
}

#[test]
fn two_cpus_by_hand() {
    let (kernel, plan) = (Kernel::new(Hardware::I386), plan(Algorithm::PteFirstAsync));
    let (mut zero, mut one) = (kernel.attach(0).unwrap(), kernel.attach(1).unwrap());
    let (mut here, mut there) = (Counting::default(), Counting::default());
    let space = SharedSpace::new();
    for cpu in [0, 1] {
        space.members.insert(cpu);
        space.running.insert(cpu);
    }
    kernel.start(&mut zero, &mut here, plan, Page(space, 9)).ok().unwrap();
    assert_eq!((here.flushes, here.interrupts.as_slice()), (1, [1].as_slice()));
    assert!(here.completed.is_empty(), "a reply is outstanding");
    kernel.poll(&mut one, &mut there).unwrap();
    assert_eq!(there.completed, [(9, Outcome::Done)], "the last replier completes it");
    assert_eq!(there.flushes, 1);
}

#[test]
fn slots_run_out_with_an_error_that_hands_everything_back() {
    let (kernel, plan) = (Kernel::new(Hardware::I386), plan(Algorithm::PteFirstAsync));
    let mut zero = kernel.attach(0).unwrap();
    let mut here = Counting::default();
    assert!(kernel.start(&mut zero, &mut here, plan, on([0, 1], 1)).is_ok());
    let Err((edit, Misuse::Busy { .. })) = kernel.start(&mut zero, &mut here, plan, on([0, 1], 2)) else {
        panic!("there is one slot");
    };
    assert_eq!(edit.1, 2);
}

#[test]
fn a_member_that_the_system_does_not_have_is_refused_before_anything_changes() {
    let (kernel, plan) = (Kernel::new(Hardware::I386), plan(Algorithm::PteFirst));
    let mut zero = kernel.attach(0).unwrap();
    let mut here = Counting::default();
    let space = SharedSpace::new();
    for cpu in [0, 4] {
        space.members.insert(cpu);
        space.running.insert(cpu);
    }
    let Err((edit, why)) = kernel.start(&mut zero, &mut here, plan, Page(space, 3)) else {
        panic!("there are four CPUs, 0 to 3");
    };
    assert_eq!((edit.1, why), (3, Misuse::NoSuchCpu { cpu: 4 }));
    assert_eq!((here.flushes, here.interrupts.len(), here.completed.len()), (0, 0, 0));
}

/// It joins while the operation runs, too late to refuse it: no CPU of this system is asked for it, however often.
#[test]
fn a_member_that_appears_too_late_is_not_asked() {
    struct Joining<'s>(&'s SharedSpace, u8);
    impl Joining<'_> {
        fn join(&self) {
            self.0.members.insert(9);
            self.0.running.insert(9);
        }
    }
    impl Edit<1> for Joining<'_> {
        type Payload = u8;

        fn exclude(&mut self) -> bool {
            self.join();
            true
        }
        fn release(&mut self) {}
        fn update(&mut self) -> u8 {
            self.join();
            self.1
        }
        fn space(&self) -> &SharedSpace {
            self.0
        }
        fn asid(&self) -> Asid {
            Asid::default()
        }
        fn flush(&self) -> &Flush {
            &EVERYTHING
        }
    }
    for (algorithm, others) in Algorithm::ALL.into_iter().flat_map(|a| [(a, 0), (a, 1)]) {
        // Optimistic makes a second round there, which is the replier's.
        let twice = Hardware { dirty: StatusBit::by(Status::ReadThenWrite), ..Hardware::RP3 };
        let suits = |hardware| Plan::new(algorithm, hardware, LowRights::NeverWriteBack);
        // A remote flush asks no CPU, and a requester that waited would wait here for ever.
        let Ok(plan) = suits(&twice).or_else(|_| suits(&Hardware::RP3)) else { continue };
        if others == 1 && algorithm.style() != Style::Asynchronous {
            continue;
        }
        let kernel = System::<u8, Joining<'_>, 4, 2>::new(twice);
        let spaces = [page(1 + others, 0).0, page(1 + others, 0).0];
        let (mut zero, mut one) = (kernel.attach(0).unwrap(), kernel.attach(1).unwrap());
        let (mut here, mut there) = (Counting::default(), Counting::default());
        for (space, payload) in spaces.iter().zip([3, 4]) {
            assert!(kernel.start(&mut zero, &mut here, plan, Joining(space, payload)).is_ok());
            kernel.poll(&mut one, &mut there).unwrap();
            kernel.poll(&mut zero, &mut here).unwrap();
        }
        // TLB-first carries the last one.
        kernel.drain(&mut zero, &mut here, &spaces[1]).unwrap();
        here.completed.append(&mut there.completed);
        assert_eq!(here.completed, [3, 4].map(|payload| (payload, Outcome::Done)), "{algorithm} {others}");
    }
}

/// CPUs 0 to `running` run the space.
fn page(running: usize, payload: u8) -> Page {
    let space = SharedSpace::new();
    for cpu in 0..running {
        space.members.insert(cpu);
        space.running.insert(cpu);
    }
    Page(space, payload)
}

/// No CPU is there to reply: the CPU that sends the last request counts for the absent one, and goes on if that was all.
#[test]
fn an_operation_whose_last_replier_is_offline_is_its_requesters_again() {
    for online in [0, 1] {
        let (kernel, plan) = (Kernel::new(Hardware::I386), plan(Algorithm::PteFirstAsync));
        let (mut zero, mut one) = (kernel.attach(0).unwrap(), kernel.attach(1).unwrap());
        let (mut here, mut there) = (Counting::default(), Counting::default());
        let elsewhere = SharedSpace::new();
        let mut two = kernel.attach(2).unwrap();
        let last = if online == 0 { &mut one } else { &mut two };
        kernel.switch(last, &mut there, SwitchKind::Offline, &elsewhere, Asid::default()).unwrap();
        there = Counting::default();
        kernel.start(&mut zero, &mut here, plan, page(online + 2, 9)).ok().unwrap();
        if online == 1 {
            assert_eq!(
                (here.interrupts.as_slice(), here.completed.len()),
                ([1].as_slice(), 0),
                "one has still to reply"
            );
            kernel.poll(&mut one, &mut there).unwrap();
            assert_eq!(there.completed, [(9, Outcome::Done)]);
        } else {
            assert!(here.interrupts.is_empty());
            assert_eq!(here.completed, [(9, Outcome::Done)]);
        }
    }
}

/// Lets others go on where it waits, and counts how often others may have waited for it.
struct Waiting<F>(F, usize);

impl<F: FnMut()> LocalCpu<u8> for Waiting<F> {
    fn flush(&mut self, _space: Option<Asid>, _what: &Flush, _drain: bool) {}
    fn interrupt(&mut self, _cpus: CpuSet) {}
    fn complete(&mut self, _op: OpId, _payload: u8, _outcome: Outcome) {}
    fn pause(&mut self) {
        (self.0)();
    }
    fn changed(&mut self) {
        self.1 += 1;
    }
}

/// CPU 1 wakes each requester that waits for its acknowledgement; also where three requests have come to a mailbox for two,
/// and it knows the operations by their slots alone.
#[test]
fn everybody_who_waits_for_an_acknowledgement_is_woken() {
    fn ask(kernel: &Kernel, cpu: usize, meanwhile: impl FnMut()) {
        let space = SharedSpace::new();
        space.members.insert(1);
        space.running.insert(1);
        let mut handle = kernel.attach(cpu).unwrap();
        assert!(
            kernel
                .start(&mut handle, &mut Waiting(meanwhile, 0), plan(Algorithm::PteFirst), Page(space, 0))
                .is_ok()
        );
    }
    let kernel = Kernel::new(Hardware::I386);
    let mut one = kernel.attach(1).unwrap();
    let mut there = Waiting(|| panic!("CPU 1 does not wait"), 0);
    let mut reply = || kernel.poll(&mut one, &mut there).unwrap();
    ask(&kernel, 0, &mut reply);
    ask(&kernel, 0, || ask(&kernel, 2, || ask(&kernel, 3, &mut reply)));
    assert_eq!(there.1, 4);
}

/// A kernel's CPU may sleep where it pauses: an operation that no CPU delays must not.
#[test]
fn who_has_nothing_to_wait_for_does_not_pause() {
    let (kernel, plan) = (Kernel::new(Hardware::I386), plan(Algorithm::PteFirst));
    let mut zero = kernel.attach(0).unwrap();
    let mut here = Waiting(|| panic!("no CPU would wake CPU 0"), 0);
    let lazy = page(1, 0);
    lazy.0.members.insert(2);
    assert!(kernel.start(&mut zero, &mut here, plan, lazy).is_ok());
}

/// The entry has been overwritten: the last replier starts over, and now asks the others.
#[test]
fn an_operation_taken_over_goes_on_under_its_name() {
    struct Overwritten(SharedSpace, Cell<bool>);
    impl Edit<1> for Overwritten {
        type Payload = u8;

        fn exclude(&mut self) -> bool {
            true
        }
        fn release(&mut self) {}
        fn update(&mut self) -> u8 {
            9
        }
        fn check(&mut self) -> bool {
            self.1.replace(true)
        }
        fn space(&self) -> &SharedSpace {
            &self.0
        }
        fn asid(&self) -> Asid {
            Asid::default()
        }
        fn flush(&self) -> &Flush {
            &EVERYTHING
        }
    }
    let kernel = System::<u8, Overwritten, 4, 2>::new(Hardware::I386);
    let (mut zero, mut one) = (kernel.attach(0).unwrap(), kernel.attach(1).unwrap());
    let (mut here, mut there) = (Counting::default(), Counting::default());
    for nth in 1..4 {
        let edit = Overwritten(page(2, 9).0, Cell::new(false));
        let plan = plan(Algorithm::OptimisticAsync);
        assert!(kernel.start(&mut zero, &mut here, plan, edit).is_ok());
        kernel.poll(&mut one, &mut there).unwrap();
        assert_eq!(there.interrupts, [0].repeat(nth));
        let op = OpId { cpu: 0, slot: 0, generation: 99 };
        assert_eq!(kernel.supersede(op), Err(Misuse::UnknownGeneration { op, current: nth as u32 }));
        kernel.poll(&mut zero, &mut here).unwrap();
        assert_eq!((here.completed.len(), there.completed.len()), (nth, 0));
    }
}

/// A 2-phase CPU that stops changes something for the CPUs that wait for it. One that looks into an empty mailbox does
/// not.
#[test]
fn a_look_for_nothing_disturbs_nobody() {
    let kernel = Kernel::new(Hardware::I386);
    let mut one = kernel.attach(1).unwrap();
    let mut there = Waiting(|| panic!("CPU 1 does not wait"), 0);
    kernel.poll(&mut one, &mut there).unwrap();
    assert_eq!(there.1, 0);
    // An operation that is not in its slot any more has continued.
    post(&kernel, 1, Request { duty: Duty::Stop, ..request(0) }).unwrap();
    kernel.poll(&mut one, &mut there).unwrap();
    assert_eq!(there.1, 2, "it has stopped, and gone on");
}

/// What is wrong in a mailbox is told, and nothing else in it goes without its reply: not what came before, nor what comes
/// after, nor what an overflow has lumped together with it.
#[test]
fn a_request_of_nothing_costs_nobody_his_reply() {
    fn replied<const N: usize>() {
        let (kernel, plan) = (System::<u8, Page, 4, N>::new(Hardware::I386), plan(Algorithm::PteFirstAsync));
        let (mut zero, mut one) = (kernel.attach(0).unwrap(), kernel.attach(1).unwrap());
        let (mut here, mut there) = (Counting::default(), Counting::default());
        let never = |cpu| OpId { cpu, slot: 0, generation: 0 };
        let post = |cpu| {
            // SAFETY: that CPU has no operation in flight, nor will it have.
            unsafe { kernel.post(1, Request { op: never(cpu), what: Target::All, duty: Duty::Flush }) }
                .unwrap();
        };
        for payload in [7, 8] {
            post(2);
            kernel.start(&mut zero, &mut here, plan, page(2, payload)).ok().unwrap();
            post(3);
            let wrong = Misuse::AlreadyComplete { op: never(2) };
            assert_eq!(kernel.poll(&mut one, &mut there), Err(wrong), "the first one");
            assert_eq!(there.completed.pop(), Some((payload, Outcome::Done)));
            assert_eq!(kernel.poll(&mut one, &mut there), Ok(()), "told once");
        }
    }
    replied::<4>();
    replied::<1>();
}

/// A 2-phase CPU neither waits for what does not exist, nor stays stopped for it.
#[test]
fn nobody_stops_for_a_request_of_nothing() {
    for rendezvous in [Rendezvous::Flag, Rendezvous::Serve] {
        let kernel = Kernel::new(Hardware::I386).with_rendezvous(rendezvous);
        let mut one = kernel.attach(1).unwrap();
        let mut there = Waiting(|| panic!("CPU 1 does not wait"), 0);
        for _ in 0..2 {
            post(&kernel, 1, Request { duty: Duty::Stop, ..request(9) }).unwrap();
            assert_eq!(kernel.poll(&mut one, &mut there), Err(Misuse::NoSuchCpu { cpu: 9 }));
        }
        assert_eq!(kernel.poll(&mut one, &mut there), Ok(()));
    }
}

/// Its own operation is not to blame for what a CPU finds in its mailbox while it waits, nor is what it does to itself.
#[test]
fn what_is_wrong_in_a_mailbox_is_told_when_the_call_is_through() {
    let (kernel, plan) = (Kernel::new(Hardware::I386), plan(Algorithm::PteFirst));
    let (mut zero, mut one) = (kernel.attach(0).unwrap(), kernel.attach(1).unwrap());
    let mut there = Waiting(|| panic!("CPU 1 does not wait"), 0);
    post(&kernel, 0, request(9)).unwrap();
    let mut looks = 0;
    let mut here = Waiting(
        || {
            looks += 1;
            if looks == 2 {
                kernel.poll(&mut one, &mut there).unwrap();
            }
        },
        0,
    );
    assert!(kernel.start(&mut zero, &mut here, plan, page(2, 9)).is_ok());
    assert_eq!(looks, 2, "CPU 0 has waited until CPU 1 had replied");

    let elsewhere = SharedSpace::new();
    let mut here = Counting::default();
    let wrong = Err(Misuse::NoSuchCpu { cpu: 9 });
    assert_eq!(kernel.switch(&mut zero, &mut here, SwitchKind::In, &elsewhere, Asid::default()), wrong);
    assert!(elsewhere.running.contains(0));
    post(&kernel, 0, request(9)).unwrap();
    assert_eq!(kernel.switch(&mut zero, &mut here, SwitchKind::Offline, &elsewhere, Asid::default()), wrong);
    assert_eq!(here.flushes, 2, "for the request, and all in the end");
    assert_eq!(post(&kernel, 0, request(9)), Ok(false));
}

/// One at a time is a CPU, and of one system: not even by mistake do two run one CPU's operations.
#[test]
fn a_station_is_one_cpus_of_one_system() {
    let (kernel, other) = (Kernel::new(Hardware::I386), Kernel::new(Hardware::I386));
    let plan = plan(Algorithm::PteFirst);
    let mut zero = kernel.attach(0).unwrap();
    assert!(matches!(kernel.attach(0), Err(Misuse::Attached { cpu: 0 })));
    assert!(kernel.attach(1).is_ok() && kernel.attach(1).is_ok(), "given back when dropped");
    let mut here = Counting::default();
    let other_system = Misuse::OtherSystem { cpu: 0 };
    assert!(
        matches!(other.start(&mut zero, &mut here, plan, page(1, 7)), Err((edit, why)) if (edit.1, why) == (7, other_system))
    );
    let space = SharedSpace::new();
    assert_eq!(
        other.switch(&mut zero, &mut here, SwitchKind::In, &space, Asid::default()),
        Err(other_system)
    );
    assert!(!space.members.contains(0));
    post(&other, 0, request(0)).unwrap();
    assert_eq!(other.poll(&mut zero, &mut here), Err(other_system));
    assert_eq!(here.flushes, 0);
    assert!(kernel.start(&mut zero, &mut here, plan, page(1, 7)).is_ok());
}

/// A CPU that goes offline replies to what it has been asked, flushes all, and is asked no more until it is back.
#[test]
fn going_offline_leaves_nobody_waiting() {
    let (kernel, plan) = (Kernel::new(Hardware::I386), plan(Algorithm::PteFirstAsync));
    let (mut zero, mut one) = (kernel.attach(0).unwrap(), kernel.attach(1).unwrap());
    assert_eq!((zero.cpu(), one.cpu(), kernel.attach(3).unwrap().cpu()), (0, 1, 3));
    let (mut here, mut there) = (Counting::default(), Counting::default());
    let elsewhere = SharedSpace::new();
    let mut switch = |there: &mut Counting, change| {
        kernel.switch(&mut one, there, change, &elsewhere, Asid::default()).unwrap();
    };
    switch(&mut there, SwitchKind::In);
    assert!(elsewhere.members.contains(1) && elsewhere.running.contains(1));
    kernel.start(&mut zero, &mut here, plan, page(2, 9)).ok().unwrap();
    switch(&mut there, SwitchKind::Offline);
    assert_eq!(there.completed, [(9, Outcome::Done)]);
    assert!(!elsewhere.members.contains(1) && !elsewhere.running.contains(1));
    assert_eq!(post(&kernel, 1, request(0)), Ok(false));
    switch(&mut there, SwitchKind::In);
    assert_eq!(post(&kernel, 1, request(0)), Ok(true));
}

/// A page that is mapped again while its unmapping is in flight: said once or twice, the operation ends as superseded.
/// Before it is in flight, or after, there is nothing to supersede.
#[test]
fn rights_can_be_raised_again_while_replies_are_outstanding() {
    for times in 0..3 {
        let (kernel, plan) = (Kernel::new(Hardware::I386), plan(Algorithm::PteFirstAsync));
        let (mut zero, mut one) = (kernel.attach(0).unwrap(), kernel.attach(1).unwrap());
        let (mut here, mut there) = (Counting::default(), Counting::default());
        let at_rest = OpId { cpu: 0, slot: 0, generation: 0 };
        assert_eq!(kernel.supersede(at_rest), Ok(false));
        let op = kernel.start(&mut zero, &mut here, plan, page(2, 9)).ok().unwrap();
        assert_eq!(op, OpId { generation: 1, ..at_rest });
        assert_eq!(kernel.supersede(at_rest), Err(Misuse::UnknownGeneration { op: at_rest, current: 1 }));
        for _ in 0..times {
            assert_eq!(kernel.supersede(op), Ok(true));
        }
        kernel.poll(&mut one, &mut there).unwrap();
        let outcome = if times == 0 { Outcome::Done } else { Outcome::Superseded };
        assert_eq!(there.completed, [(9, outcome)]);
        assert_eq!(kernel.supersede(op), Ok(false), "it has ended");
        // The slot forgets it.
        kernel.start(&mut zero, &mut here, plan, page(2, 8)).ok().unwrap();
        kernel.poll(&mut one, &mut there).unwrap();
        assert_eq!(there.completed[1], (8, Outcome::Done));
    }
    let kernel = Kernel::new(Hardware::I386);
    let far = OpId { cpu: 4, slot: 0, generation: 0 };
    assert_eq!(kernel.supersede(far), Err(Misuse::NoSuchCpu { cpu: 4 }));
    assert_eq!(kernel.supersede(OpId { cpu: 0, slot: 1, ..far }), Err(Misuse::NoRoom));
}

/// A slot counts its operations, modulo 2^16.
#[test]
fn a_name_is_one_operations_until_the_count_comes_round() {
    let (kernel, plan) = (Kernel::new(Hardware::I386), plan(Algorithm::PteFirst));
    let (mut zero, mut here) = (kernel.attach(0).unwrap(), Counting::default());
    for generation in 1..0x1_0010 {
        let name = kernel.start(&mut zero, &mut here, plan, page(1, 0)).ok().unwrap();
        let op = OpId { cpu: 0, slot: 0, generation };
        assert_eq!(name, OpId { generation: generation & 0xffff, ..op });
        assert_eq!(kernel.supersede(op), Ok(false));
        assert_eq!(acknowledge(&kernel, op), Err(Misuse::AlreadyComplete { op }));
        let (op, current) = (OpId { generation: generation - 1, ..op }, generation & 0xffff);
        assert_eq!(kernel.supersede(op), Err(Misuse::UnknownGeneration { op, current }));
        assert_eq!(acknowledge(&kernel, op), Err(Misuse::UnknownGeneration { op, current }));
    }
}

#[test]
fn a_misuse_says_what_does_not_fit() {
    let op = OpId { cpu: 3, slot: 1, generation: 7 };
    let texts = [
        Misuse::NoSuchCpu { cpu: 900 },
        Misuse::NoRoom,
        Misuse::UnknownGeneration { op, current: 8 },
        Misuse::AlreadyComplete { op },
        Misuse::NotAsked,
        Misuse::Busy { op },
    ]
    .map(|why| why.to_string());
    assert!(texts[0].contains("900") && texts[2].contains("3.1#7") && texts[2].contains("#8"));
    assert!(texts.iter().all(|text| !text.is_empty()));
    assert_eq!(std::collections::BTreeSet::from(texts).len(), 6, "each says something else");
}

/// A CPU whose flush of another one's TLB takes some looks.
struct Remote {
    here: usize,
    asked: Vec<(CpuSet, bool)>,
    looks: u32,
}

impl LocalCpu<u8> for Remote {
    fn flush(&mut self, _space: Option<Asid>, _what: &Flush, _drain: bool) {
        self.here += 1;
    }
    fn interrupt(&mut self, cpus: CpuSet) {
        panic!("{cpus:?} are flushed from here");
    }
    fn complete(&mut self, _op: OpId, payload: u8, outcome: Outcome) {
        assert_eq!((payload, outcome), (9, Outcome::Done));
        assert_eq!(self.looks, 0, "the flush has not been done");
        self.here += 100;
    }
    fn remote(&mut self) -> Option<&mut dyn RemoteTlbs> {
        Some(self)
    }
}

impl RemoteTlbs for Remote {
    fn flush(&mut self, cpus: CpuSet, space: Option<Asid>, what: &Flush, drain: bool) -> u32 {
        assert_eq!((space, what.is_all()), (Some(Asid::default()), true));
        self.asked.push((cpus, drain));
        7
    }
    fn is_flushed(&mut self, ticket: u32) -> bool {
        assert_eq!(ticket, 7);
        self.looks -= 1;
        self.looks == 0
    }
    fn ends_walks(&self) -> bool {
        true
    }
}

#[test]
fn a_remote_flush_is_awaited_and_needs_a_way_to_do_it() {
    let remote = Plan::new(Algorithm::PteFirstRemote, &Hardware::MC88200, LowRights::NeverWriteBack).unwrap();
    let kernel = Kernel::new(Hardware::MC88200);
    let mut handle = kernel.attach(0).unwrap();

    let mut without = Counting::default();
    let (edit, why) = kernel.start(&mut handle, &mut without, remote, on([0, 2], 9)).err().unwrap();
    assert_eq!((edit.1, why), (9, Misuse::NoRemoteTlbs));
    assert!(why.to_string().contains("implement `LocalCpu::remote`"));
    assert_eq!((without.flushes, without.completed.len()), (0, 0));

    let mut local = Remote { here: 0, asked: Vec::new(), looks: 3 };
    assert!(kernel.start(&mut handle, &mut local, remote, on([0, 2], 9)).is_ok());
    let drain = remote.has(tlbkit_shootdown::Repair::REMOTE_DRAIN);
    assert_eq!(local.asked, [(CpuSet::from_iter([2]), drain)]);
    assert_eq!((local.here, local.looks), (101, 0));
}
