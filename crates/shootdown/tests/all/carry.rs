//! What an operation uncovers belongs to it until no CPU can reach it. Where all acknowledge before the entry changes, a
//! walk may enter it afterwards: then it is handed back by the next operation, or drained.

use std::cell::RefCell;

use tlbkit_addr::{Asid, CpuSet, Flush};
use tlbkit_shootdown::{
    Algorithm, Edit, Form, Hardware, LocalCpu, LowRights, Misuse, OpId, Order, Outcome, Plan, RemoteTlbs,
    SharedSpace, SwitchKind, Synchronous, System, leaked,
};

use crate::support::PAGE;

/// Software loads the TLB, and any CPU may flush it.
const SOFT: Hardware = Hardware { remote_flush: true, ..Hardware::RP3 };

fn plan(algorithm: Algorithm) -> Plan {
    Plan::new(algorithm, &SOFT, LowRights::NeverWriteBack).unwrap()
}

/// A change that uncovers a number, and notes in which order it is asked for what.
struct Note<'s> {
    space: &'s SharedSpace,
    payload: u8,
    log: &'s RefCell<Vec<String>>,
}

impl Edit for Note<'_> {
    type Payload = u8;

    fn begin(&mut self, op: OpId) {
        self.log.borrow_mut().push(format!("begin {op}"));
    }
    fn exclude(&mut self) -> bool {
        true
    }
    fn release(&mut self) {}
    fn update(&mut self) -> u8 {
        self.log.borrow_mut().push("update".into());
        self.payload
    }
    fn is_walked(&self, payload: &u8) -> bool {
        *payload < 100
    }
    fn space(&self) -> &SharedSpace {
        self.space
    }
    fn asid(&self) -> Asid {
        Asid::default()
    }
    fn flush(&self) -> &Flush {
        &PAGE[0]
    }
}

/// A CPU that notes what comes back to it. Where it waits, the others reply.
struct Cpu<'s, F = fn()> {
    log: &'s RefCell<Vec<String>>,
    remote: bool,
    /// Whether a remote flush ends the walks that are under way on its CPUs.
    ends_walks: bool,
    asked: Vec<usize>,
    flushes: usize,
    wait: F,
}

impl<F: FnMut()> LocalCpu<u8> for Cpu<'_, F> {
    fn flush(&mut self, _space: Option<Asid>, _what: &Flush, _drain: bool) {
        self.flushes += 1;
    }
    fn interrupt(&mut self, cpus: CpuSet) {
        self.asked.extend(cpus.iter());
    }
    fn pause(&mut self) {
        (self.wait)();
    }
    fn ended(&mut self, op: OpId, outcome: Outcome) {
        self.log.borrow_mut().push(format!("ended {op} {outcome:?}"));
    }
    fn complete(&mut self, op: OpId, payload: u8, outcome: Outcome) {
        self.log.borrow_mut().push(format!("complete {op} {payload} {outcome:?}"));
    }
    fn remote(&mut self) -> Option<&mut dyn RemoteTlbs> {
        self.remote.then_some(self)
    }
}

impl<F: FnMut()> RemoteTlbs for Cpu<'_, F> {
    fn flush(&mut self, cpus: CpuSet, _space: Option<Asid>, _what: &Flush, drain: bool) -> u32 {
        assert!(drain, "status writes are waited for");
        self.asked.extend(cpus.iter());
        1
    }
    fn is_flushed(&mut self, _ticket: u32) -> bool {
        true
    }
    fn ends_walks(&self) -> bool {
        self.ends_walks
    }
}

type Kernel<'s, const SLOTS: usize> = System<u8, Note<'s>, 3, 4, 1, SLOTS>;

fn cpu<F: FnMut()>(log: &RefCell<Vec<String>>, wait: F) -> Cpu<'_, F> {
    Cpu { log, remote: false, ends_walks: true, asked: Vec::new(), flushes: 0, wait }
}

fn space(running: &[usize]) -> SharedSpace {
    let space = SharedSpace::new();
    for &cpu in running {
        space.members.insert(cpu);
        space.running.insert(cpu);
    }
    space
}

/// The name is told before anything is done, and everything that ends is told it. For every algorithm: what comes back at
/// the end is free, and what is not free comes back at the end of the next operation.
#[test]
fn a_name_is_known_from_beginning_to_end() {
    // A CPU that stops for 2-phase waits on a thread of its own.
    for algorithm in Algorithm::ALL.into_iter().filter(|&algorithm| algorithm != Algorithm::TwoPhase) {
        let (log, running) = (RefCell::default(), space(&[0, 1]));
        let kernel = Kernel::<1>::new(SOFT);
        let mut one = kernel.attach(1).unwrap();
        let mut there = cpu(&log, || ());
        let mut handle = kernel.attach(0).unwrap();
        for payload in [7, 8] {
            let note = Note { space: &running, payload, log: &log };
            let mut here = cpu(&log, || kernel.poll(&mut one, &mut there).unwrap());
            here.remote = true;
            kernel.start(&mut handle, &mut here, plan(algorithm), note).ok().unwrap();
            drop(here);
            kernel.poll(&mut one, &mut there).unwrap();
        }
        let carries = algorithm.order() == Order::TlbFirst;
        let mut expected = Vec::new();
        for op in [1, 2] {
            expected.extend([format!("begin 0.0#{op}"), "update".into(), format!("ended 0.0#{op} Done")]);
            let complete = |op| format!("complete 0.0#{op} {} Done", 6 + op);
            match op {
                1 if carries => {}
                2 if carries => expected.push(complete(1)),
                _ => expected.push(complete(op)),
            }
        }
        assert_eq!(*log.borrow(), expected, "{algorithm}");
        // As seen after the last acknowledgement: no more is in flight.
        running.running.remove(1);
        log.borrow_mut().clear();
        kernel.drain(&mut handle, &mut cpu(&log, || ()), &running).unwrap();
        let last = if carries { vec!["complete 0.0#2 8 Done".to_string()] } else { vec![] };
        assert_eq!(*log.borrow(), last, "{algorithm}");
    }
}

/// A broadcast flush is asked for once, whichever CPUs are to flush. Where it ends no walk, nodes wait until each CPU
/// has replied to something; frames do not.
#[test]
fn what_a_broadcast_flush_leaves_to_walks_is_carried() {
    for (ends_walks, walked) in [(true, true), (false, true), (false, false)] {
        let (log, running) = (RefCell::default(), space(&[0, 1, 2]));
        let kernel = Kernel::<2>::new(SOFT);
        let [mut zero, mut one, mut two] = [0, 1, 2].map(|cpu| kernel.attach(cpu).unwrap());
        let mut there = cpu(&log, || ());
        let mut also = cpu(&log, || ());
        let mut here = cpu(&log, || {
            kernel.poll(&mut one, &mut there).unwrap();
            kernel.poll(&mut two, &mut also).unwrap();
        });
        (here.remote, here.ends_walks) = (true, ends_walks);
        let mut back = Vec::new();
        for payload in [1, 2, 3] {
            let mut note =
                Note { space: &running, payload: if walked { payload } else { 100 + payload }, log: &log };
            kernel.run(&mut zero, &mut here, plan(Algorithm::PteFirstRemote), &mut note).unwrap();
            back.push(completed(&log));
        }
        kernel.drain(&mut zero, &mut here, &running).unwrap();
        back.push(completed(&log));
        let asked = std::mem::take(&mut here.asked);
        drop(here);
        let expected: [&[u8]; 4] = match (ends_walks, walked) {
            (true, _) => [&[1], &[2], &[3], &[]],
            (false, false) => [&[101], &[102], &[103], &[]],
            // Two slots: the third operation needs the first one's, and interrupts for it.
            (false, true) => [&[], &[], &[1], &[3, 2]],
        };
        assert_eq!(back, expected, "{ends_walks} {walked}");
        let interrupts = if ends_walks || !walked { 0 } else { 3 };
        assert_eq!(asked, [1, 2].repeat(3 + interrupts), "{ends_walks} {walked}");
        assert_eq!((there.flushes, also.flushes), (0, 0), "they have only to leave their walks");
    }
}

/// An early acknowledgement says nothing of walks: nodes wait for the acknowledgement of a later operation, and frames do not.
#[test]
fn what_an_early_acknowledgement_leaves_to_walks_is_carried() {
    let early = plan(Algorithm::PteFirst).with_form(Form::EarlyAcknowledgement).unwrap();
    for walked in [true, false] {
        let (log, running) = (RefCell::default(), space(&[0, 1]));
        let kernel = Kernel::<2>::new(SOFT);
        let [mut zero, mut one] = [0, 1].map(|cpu| kernel.attach(cpu).unwrap());
        let mut there = cpu(&log, || ());
        let mut here = cpu(&log, || kernel.poll(&mut one, &mut there).unwrap());
        let mut back = Vec::new();
        for (payload, plan) in [(1, early), (2, plan(Algorithm::PteFirst))] {
            let payload = if walked { payload } else { 100 + payload };
            let mut note = Note { space: &running, payload, log: &log };
            kernel.run(&mut zero, &mut here, plan, &mut note).unwrap();
            back.push(completed(&log));
        }
        let expected: [&[u8]; 2] = if walked { [&[], &[1, 2]] } else { [&[101], &[102]] };
        assert_eq!(back, expected, "{walked}");
        drop(here);
        assert_eq!(there.flushes, 2, "it flushes after its acknowledgement, too");
    }
}

/// A request that is swept interrupts nobody, and the operation ends when the last CPU has looked by itself.
#[test]
fn an_operation_that_is_swept_ends_when_every_cpu_has_looked() {
    let swept = plan(Algorithm::PteFirstAsync).with_form(Form::Swept).unwrap();
    let (log, running) = (RefCell::default(), space(&[0, 1, 2]));
    let kernel = Kernel::<2>::new(SOFT);
    let [mut zero, mut one, mut two] = [0, 1, 2].map(|cpu| kernel.attach(cpu).unwrap());
    let [mut here, mut there, mut also] = [0, 1, 2].map(|_| cpu(&log, || panic!("nobody waits")));
    let note = Note { space: &running, payload: 7, log: &log };
    assert!(kernel.start(&mut zero, &mut here, swept, note).is_ok());
    kernel.poll(&mut two, &mut also).unwrap();
    assert_eq!((completed(&log), &here.asked[..]), (vec![], &[][..]));
    kernel.poll(&mut one, &mut there).unwrap();
    assert_eq!((completed(&log), there.flushes, also.flushes), (vec![7], 1, 1));
    assert!([here.asked, there.asked, also.asked].concat().is_empty());
}

/// No other CPU runs the space: nothing is carried, and no CPU is asked.
#[test]
fn what_nobody_else_walks_is_free_at_once() {
    let (log, alone) = (RefCell::default(), space(&[0]));
    alone.members.insert(1);
    let kernel = Kernel::<1>::new(SOFT);
    let mut handle = kernel.attach(0).unwrap();
    let mut here = cpu(&log, || panic!("there is no CPU to wait for"));
    for payload in [7, 8] {
        let mut note = Note { space: &alone, payload, log: &log };
        kernel.run(&mut handle, &mut here, plan(Algorithm::TlbFirst), &mut note).unwrap();
        let done = format!("complete 0.0#{0} {payload} Done", payload - 6);
        assert_eq!(log.borrow().last(), Some(&done));
    }
    assert!(here.asked.is_empty());
}

/// Runs a TLB-first operation of CPU 0 on `running`, to which CPU 1 replies. Returns the kernel's log.
macro_rules! shoot {
    ($kernel:expr, $zero:expr, $one:expr, $log:expr, $space:expr, $payload:expr) => {{
        let mut there = cpu($log, || ());
        let mut here = cpu($log, || $kernel.poll(&mut $one, &mut there).unwrap());
        let mut note = Note { space: $space, payload: $payload, log: $log };
        $kernel.run(&mut $zero, &mut here, plan(Algorithm::TlbFirst), &mut note).unwrap();
        (here.asked, completed($log))
    }};
}

/// Returns the payloads that have come back since the last call.
fn completed(log: &RefCell<Vec<String>>) -> Vec<u8> {
    let log = log.take();
    let payload = |line: &String| line.strip_prefix("complete ")?.split(' ').nth(1)?.parse().ok();
    log.iter().filter_map(payload).collect()
}

/// An operation on another space leaves what is carried where it is, unless there is no other slot. Then the CPUs that
/// may be in a walk of it are asked, and no others; they flush nothing.
#[test]
fn an_operation_on_another_space_leaves_what_is_carried() {
    fn run<const SLOTS: usize>(second: (&[usize], &[u8])) {
        let (log, [first, other]) = (RefCell::default(), [[0, 1], [0, 1]].map(|cpus| space(&cpus)));
        let kernel = Kernel::<SLOTS>::new(SOFT);
        let (mut zero, mut one) = (kernel.attach(0).unwrap(), kernel.attach(1).unwrap());
        assert_eq!(shoot!(kernel, zero, one, &log, &first, 1), (vec![1], vec![]));
        assert_eq!(shoot!(kernel, zero, one, &log, &other, 2), (second.0.to_vec(), second.1.to_vec()));
        let last = if SLOTS == 1 { vec![] } else { vec![1] };
        let asked = if SLOTS == 1 { vec![1, 1] } else { vec![1] };
        let back = if SLOTS == 1 { vec![2] } else { last };
        assert_eq!(shoot!(kernel, zero, one, &log, &first, 3), (asked, back));
    }
    run::<1>((&[1, 1], &[1]));
    run::<2>((&[1], &[]));
}

/// Any CPU drains a space, whichever CPU carries. It asks those that have run the space all the while.
#[test]
fn any_cpu_drains_a_space() {
    for runs in [true, false] {
        let (log, [first, other]) = (RefCell::default(), [[0, 1], [0, 1]].map(|cpus| space(&cpus)));
        let kernel = Kernel::<2>::new(SOFT);
        let [mut zero, mut one, mut two] = [0, 1, 2].map(|cpu| kernel.attach(cpu).unwrap());
        shoot!(kernel, zero, one, &log, &first, 1);
        shoot!(kernel, zero, one, &log, &other, 2);
        first.running.remove(0);
        if !runs {
            first.running.remove(1);
        }
        let mut there = cpu(&log, || ());
        let mut here = cpu(&log, || kernel.poll(&mut one, &mut there).unwrap());
        kernel.drain(&mut two, &mut here, &first).unwrap();
        assert_eq!((here.asked, completed(&log)), (if runs { vec![1] } else { vec![] }, vec![1]));
        assert_eq!(there.flushes, 0, "it has only to leave its walk");
        // The slot is free again, and what is carried for the other space has stayed.
        assert_eq!(shoot!(kernel, zero, one, &log, &other, 3), (vec![1], vec![2]));
        kernel.drain(&mut two, &mut cpu(&log, || panic!("nothing is carried")), &first).unwrap();
    }
}

/// A CPU in a walk may go offline: it has left the walk then. The one that carries may: another one drains.
#[test]
fn who_goes_offline_keeps_nothing_from_coming_back() {
    let (log, space) = (RefCell::default(), space(&[0, 1]));
    let kernel = Kernel::<1>::new(SOFT);
    let [mut zero, mut one, mut two] = [0, 1, 2].map(|cpu| kernel.attach(cpu).unwrap());
    let offline = |handle: &mut _| {
        let mut cpu = cpu(&log, || ());
        kernel.switch(handle, &mut cpu, SwitchKind::Offline, &space, Asid::default()).unwrap();
    };
    shoot!(kernel, zero, one, &log, &space, 1);
    offline(&mut one);
    offline(&mut zero);
    assert_eq!(completed(&log), []);
    let mut here = cpu(&log, || panic!("no other CPU is there"));
    kernel.drain(&mut two, &mut here, &space).unwrap();
    assert_eq!((here.asked, completed(&log)), (vec![], vec![1]));
}

/// A space that is dropped with something carried: it does not come back for a space that takes its place in memory, but
/// when its slot is needed. A system that is dropped with something carried leaks it, and says so.
#[test]
fn what_is_carried_outlives_its_space() {
    let log = RefCell::default();
    let kernel = Kernel::<1>::new(SOFT);
    let [mut zero, mut one, mut two] = [0, 1, 2].map(|cpu| kernel.attach(cpu).unwrap());
    // One place in memory for both: safety does not depend on it here, as the kernel keeps names and no addresses.
    let mut place = Box::new(space(&[0, 1]));
    {
        let mut there = cpu(&log, || ());
        let mut here = cpu(&log, || kernel.poll(&mut one, &mut there).unwrap());
        let mut note = Unlinked { space: &place, payload: 1, flush: Flush::none() };
        kernel.run(&mut zero, &mut here, plan(Algorithm::TlbFirst), &mut note).unwrap();
    }
    *place = space(&[0, 1]);
    kernel.drain(&mut two, &mut cpu(&log, || panic!("nothing is carried for it")), &place).unwrap();
    assert_eq!(completed(&log), []);
    {
        let mut there = cpu(&log, || ());
        let mut here = cpu(&log, || kernel.poll(&mut one, &mut there).unwrap());
        let mut note = Unlinked { space: &place, payload: 2, flush: Flush::none() };
        kernel.run(&mut zero, &mut here, plan(Algorithm::TlbFirst), &mut note).unwrap();
        assert_eq!(here.asked, [1, 1], "its walkers are asked first");
    }
    assert_eq!(completed(&log), [1]);
    drop((zero, one, two));
    let before = leaked();
    drop(kernel);
    assert!(leaked() > before);
}

/// As [`Note`], but lives as short as one likes, and knows its flush when the tentative entry is set, as TLB-first plans allow.
struct Unlinked<'s> {
    space: &'s SharedSpace,
    payload: u8,
    flush: Flush,
}

impl Edit for Unlinked<'_> {
    type Payload = u8;

    fn exclude(&mut self) -> bool {
        true
    }
    fn release(&mut self) {}
    fn set_tentative(&mut self) {
        self.flush.clone_from(&PAGE[0]);
    }
    fn update(&mut self) -> u8 {
        self.payload
    }
    fn space(&self) -> &SharedSpace {
        self.space
    }
    fn asid(&self) -> Asid {
        Asid::default()
    }
    fn flush(&self) -> &Flush {
        &self.flush
    }
}

/// A machine of one CPU makes the change and flushes, and that is all; it is one object in a static.
#[test]
fn one_cpu_flushes_and_is_done() {
    static ALONE: System<u8, Synchronous<u8>, 1, 1> = System::new(SOFT);
    let (log, space) = (RefCell::default(), space(&[0]));
    let mut handle = ALONE.attach(0).unwrap();
    let mut here = cpu(&log, || panic!("there is no CPU to wait for"));
    for (nth, algorithm) in Algorithm::ALL.into_iter().enumerate() {
        let mut note = Note { space: &space, payload: 7, log: &log };
        let (op, outcome) = ALONE.run(&mut handle, &mut here, plan(algorithm), &mut note).unwrap();
        assert_eq!((op, outcome), (OpId { cpu: 0, slot: 0, generation: nth as u32 + 1 }, Outcome::Done));
        let expected = [
            format!("begin {op}"),
            "update".into(),
            format!("ended {op} Done"),
            format!("complete {op} 7 Done"),
        ];
        assert_eq!(log.take(), expected, "{algorithm}");
        assert_eq!((here.flushes, here.asked.len()), (nth + 1, 0));
    }
    let other = System::<u8, Synchronous<u8>, 1, 1>::new(SOFT);
    let mut note = Note { space: &space, payload: 7, log: &log };
    let other_system = other.run(&mut handle, &mut here, plan(Algorithm::PteFirst), &mut note);
    assert_eq!(other_system, Err(Misuse::OtherSystem { cpu: 0 }));
}

/// A CPU that counts the flushes of something.
struct Flushes(usize);

impl LocalCpu<u8> for Flushes {
    fn flush(&mut self, _space: Option<Asid>, what: &Flush, _drain: bool) {
        self.0 += usize::from(!what.is_none());
    }
    fn interrupt(&mut self, _cpus: CpuSet) {}
    fn complete(&mut self, _op: OpId, _payload: u8, _outcome: Outcome) {}
}

#[test]
fn one_cpu_sets_the_tentative_entry_too() {
    let alone = System::<u8, Synchronous<u8>, 1, 1>::new(SOFT);
    let mut handle = alone.attach(0).unwrap();
    let mut here = Flushes(0);
    let space = space(&[0]);
    let mut edit = Unlinked { space: &space, payload: 7, flush: Flush::none() };
    alone.run(&mut handle, &mut here, plan(Algorithm::TlbFirst), &mut edit).unwrap();
    assert_eq!(here.0, 1);
}
