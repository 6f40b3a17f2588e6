//! The event-driven simulator of Tzou 4.3.1: the model of 4.1, without the simplifications of 4.2.
//!
//! It drives the crate's own machines. What takes no time in the model (looking at a flag, taking a request) is done
//! at once; a computation, a dispatch or a wait is where an event comes in:
//!
//! | action | takes |
//! |-|-|
//! | `Update` (2-phase: `Enter`) | the request's computation, or with [`Sends::Spread`] its fixed part |
//! | `Send` | nothing, or with [`Sends::Spread`] its share of the computation |
//! | the replier's `Flush` | a reply's computation |
//! | an interrupt on a CPU that is not busy | the dispatch |
//! | `AllAcknowledged`, `IsStopped`, `MayContinue` | until it is so |

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use tlbkit_addr::{Asid, CpuSet, Pages, Vpn};
use tlbkit_shootdown::{
    Action, Algorithm, Hardware, LowRights, Misuse, OpId, Plan, Queue, Replier, Reply, Request, Requester,
    Seen, Target,
};

use super::model::{Kind, Measures, Parameters};

/// Words of a CPU set: 256 CPUs, for N = 4M up to M = 64.
const W: usize = 4;
/// Operations of one CPU that can be outstanding.
const SLOTS: usize = 128;
/// Requests a queue holds before it degrades to flushing everything.
const QUEUE: usize = 256;

type Machine = Requester<W>;

/// When a request is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Sends {
    /// All of them when the requester's computation is over, as in the analysis (Figure 4.1).
    #[default]
    After,
    /// Each in its place in the computation: the first repliers are interrupted early, and wait longer for the last.
    Spread,
}

/// What the simulator is told beyond the parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Options {
    pub(crate) sends: Sends,
    /// Simulated seconds, of which the first tenth is not counted.
    pub(crate) seconds: f64,
    pub(crate) seed: u64,
    /// Simplification of 4.2.2.2: dispatching an interrupt does not delay the acknowledgement.
    pub(crate) free_dispatch: bool,
    /// Simplification of 4.2.3.2: the only thing that delays a reply is the time slice, and other replies.
    pub(crate) slices_only: bool,
    /// Unmaps that one operation covers.
    pub(crate) batch: f64,
    /// Share of the targets that do not run the address space.
    pub(crate) lazy: f64,
    /// Share of the unmaps whose inconsistency is tolerated (chapter 5).
    pub(crate) tolerated: f64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            sends: Sends::After,
            seconds: 40.0,
            seed: 1,
            free_dispatch: false,
            slices_only: false,
            batch: 1.0,
            lazy: 0.0,
            tolerated: 0.0,
        }
    }
}

/// What a run measured.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Run {
    pub(crate) measures: Measures,
    /// Interprocessor interrupts that a CPU takes per second.
    pub(crate) interrupts: f64,
}

/// Xorshift64*: small, and good enough for waiting times.
struct Random(u64);

impl Random {
    fn unit(&mut self) -> f64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        ((self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    }

    fn exponential(&mut self, mean: f64) -> f64 {
        -mean * self.unit().ln()
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Event {
    /// A CPU's computation is over, if it is still this one.
    Ready { cpu: usize, turn: u64 },
    /// A CPU wants to unmap, if it has been idle since.
    Unmap { cpu: usize, turn: u64 },
    /// An interrupt-disabling event arrives.
    Disable { cpu: usize },
    /// A time slice ends.
    Slice { cpu: usize },
}

/// What a CPU does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    Idle,
    Disabled,
    Dispatching,
    /// Runs its replier, or its requester; perhaps waits.
    Synchronizing,
}

struct Cpu {
    queue: Queue<QUEUE, W, SLOTS>,
    replier: Replier<QUEUE, W, SLOTS>,
    doing: Doing,
    /// Counts what it has done, so that an event for something past is told apart.
    turn: u64,
    /// A computation is under way.
    computing: bool,
    /// The computation of the action at hand is over.
    paid: bool,
    stopped: bool,
    disabled: u32,
    own: Option<usize>,
    taken: Option<usize>,
    since: f64,
    /// Async: the end of the slice has come.
    slice_over: bool,
    /// It has looked into the queue since.
    looked: bool,
    slots: u128,
    /// A synchronous operation that has ended, and whose call returns with the busy period.
    returning: Option<f64>,
    /// Operations that wait for this CPU to stop; CPUs are named by their operation.
    watchers: Vec<usize>,
}

struct Op {
    machine: Machine,
    id: OpId,
    targets: CpuSet<W>,
    running: CpuSet<W>,
    count: u32,
    continued: bool,
    begun: f64,
    computation: f64,
    runner: usize,
    /// CPUs that wait for its continuing signal.
    waiting: Vec<usize>,
}

struct Simulator<'a> {
    kind: Kind,
    p: &'a Parameters,
    o: &'a Options,
    plan: Plan,
    random: Random,
    now: f64,
    number: u64,
    events: BinaryHeap<Reverse<(u64, u64)>>,
    pending: Vec<Option<Event>>,
    free: Vec<usize>,
    cpus: Vec<Cpu>,
    ops: Vec<Op>,
    free_ops: Vec<usize>,
    /// The operation in each slot of each CPU.
    by_slot: Vec<Option<usize>>,
    /// CPUs to be looked at before time goes on.
    awake: VecDeque<usize>,
    busy: f64,
    latencies: f64,
    ended: u64,
    frozen: f64,
    interrupts: u64,
}

/// Runs one simulation.
pub(crate) fn simulate(kind: Kind, p: &Parameters, o: &Options) -> anyhow::Result<Run> {
    let algorithm = match kind {
        Kind::TwoPhase => Algorithm::TwoPhase,
        Kind::OpSynch => Algorithm::Optimistic,
        Kind::OpAsynch => Algorithm::OptimisticAsync,
    };
    let plan = Plan::new(algorithm, &Hardware::VAX, LowRights::NeverWriteBack)?;
    let mut cpus = Vec::new();
    for _ in 0..p.n {
        cpus.push(Cpu {
            queue: Queue::new()?,
            replier: Replier::new(plan)?,
            doing: Doing::Idle,
            turn: 0,
            computing: false,
            paid: false,
            stopped: false,
            disabled: 0,
            own: None,
            taken: None,
            since: 0.0,
            slice_over: false,
            looked: false,
            slots: 0,
            returning: None,
            watchers: Vec::new(),
        });
    }
    let mut simulator = Simulator {
        kind,
        p,
        o,
        plan,
        random: Random(o.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
        now: 0.0,
        number: 0,
        events: BinaryHeap::new(),
        pending: Vec::new(),
        free: Vec::new(),
        cpus,
        ops: Vec::new(),
        free_ops: Vec::new(),
        by_slot: vec![None; p.n * SLOTS],
        awake: VecDeque::new(),
        busy: 0.0,
        latencies: 0.0,
        ended: 0,
        frozen: 0.0,
        interrupts: 0,
    };
    simulator.run()?;
    let counted = o.seconds * 0.9 * p.n as f64;
    let ended = simulator.ended.max(1) as f64;
    Ok(Run {
        measures: Measures {
            overhead: simulator.busy / counted,
            latency: simulator.latencies / ended,
            throughput: simulator.ended as f64 / counted,
            space: simulator.frozen / counted,
        },
        interrupts: simulator.interrupts as f64 / counted,
    })
}

impl Simulator<'_> {
    fn run(&mut self) -> Result<(), Misuse> {
        for cpu in 0..self.cpus.len() {
            if self.p.lambda_d > 0.0 {
                let first = self.random.exponential(1.0 / self.p.lambda_d);
                self.at(first, Event::Disable { cpu });
            }
            if self.kind == Kind::OpAsynch {
                let first = self.random.unit() * self.p.x_j;
                self.at(first, Event::Slice { cpu });
            }
            self.idle(cpu);
        }
        while let Some(Reverse((time, which))) = self.events.pop() {
            self.now = f64::from_bits(time);
            if self.now > self.o.seconds {
                break;
            }
            let place = (which & 0xffff_ffff) as usize;
            let Some(event) = self.pending[place].take() else { continue };
            self.free.push(place);
            self.happen(event)?;
            while let Some(cpu) = self.awake.pop_front() {
                self.advance(cpu)?;
            }
        }
        Ok(())
    }

    /// Counts only what is after the warm-up.
    fn counts(&self) -> bool {
        self.now > 0.1 * self.o.seconds
    }

    fn after_warm_up(&self, since: f64) -> f64 {
        (self.now - since.max(0.1 * self.o.seconds)).max(0.0)
    }

    fn at(&mut self, delay: f64, event: Event) {
        let place = self.free.pop().unwrap_or_else(|| {
            self.pending.push(None);
            self.pending.len() - 1
        });
        self.pending[place] = Some(event);
        self.number += 1;
        // Times are not negative, so their bits are in their order; the number breaks ties.
        let which = (self.number << 32) | place as u64;
        self.events.push(Reverse(((self.now + delay).to_bits(), which)));
    }

    fn happen(&mut self, event: Event) -> Result<(), Misuse> {
        match event {
            Event::Ready { cpu, turn } if self.cpus[cpu].turn == turn => {
                self.cpus[cpu].computing = false;
                self.cpus[cpu].paid = true;
                self.awake.push_back(cpu);
            }
            Event::Unmap { cpu, turn } if self.cpus[cpu].turn == turn => self.start(cpu)?,
            Event::Ready { .. } | Event::Unmap { .. } => {}
            Event::Disable { cpu } => {
                self.cpus[cpu].disabled += 1;
                let next = self.random.exponential(1.0 / self.p.lambda_d);
                self.at(next, Event::Disable { cpu });
                if self.cpus[cpu].doing == Doing::Idle {
                    self.awake.push_back(cpu);
                }
            }
            Event::Slice { cpu } => {
                self.cpus[cpu].slice_over = true;
                let free = self.o.slices_only && self.cpus[cpu].doing == Doing::Disabled;
                if free {
                    // What is left of the event is dropped.
                    self.cpus[cpu].computing = false;
                }
                if self.cpus[cpu].doing == Doing::Idle || free {
                    self.awake.push_back(cpu);
                }
            }
        }
        Ok(())
    }

    fn turn(&mut self, cpu: usize, doing: Doing) {
        let at = &mut self.cpus[cpu];
        let synchronizes = |doing| matches!(doing, Doing::Dispatching | Doing::Synchronizing);
        let (before, since) = (synchronizes(at.doing), at.since);
        if before != synchronizes(doing) {
            at.since = self.now;
        }
        at.turn += 1;
        at.doing = doing;
        at.computing = false;
        at.paid = false;
        if before && !synchronizes(doing) {
            self.busy += self.after_warm_up(since);
        }
    }

    fn compute(&mut self, cpu: usize, time: f64) {
        self.cpus[cpu].computing = true;
        let turn = self.cpus[cpu].turn;
        self.at(time, Event::Ready { cpu, turn });
    }

    fn idle(&mut self, cpu: usize) {
        if let Some(begun) = self.cpus[cpu].returning.take() {
            self.returned(begun);
        }
        self.turn(cpu, Doing::Idle);
        let turn = self.cpus[cpu].turn;
        let rate = self.p.lambda_t * (1.0 - self.o.tolerated) / self.o.batch;
        if rate > 0.0 {
            let next = self.random.exponential(1.0 / rate);
            self.at(next, Event::Unmap { cpu, turn });
        }
    }

    /// A requester event.
    fn start(&mut self, cpu: usize) -> Result<(), Misuse> {
        let free = (!self.cpus[cpu].slots).trailing_zeros();
        if free as usize >= SLOTS {
            self.idle(cpu);
            return Ok(());
        }
        self.cpus[cpu].slots |= 1 << free;
        let mut targets = CpuSet::<W>::empty();
        targets.insert(cpu);
        while targets.len() < self.p.m {
            targets.insert((self.random.unit() * self.cpus.len() as f64) as usize);
        }
        let running = targets.iter().filter(|&c| c == cpu || self.random.unit() >= self.o.lazy).collect();
        let op = Op {
            machine: Requester::new(self.plan, cpu)?,
            id: OpId { cpu: cpu as u16, slot: free as u16, generation: self.number as u32 },
            targets,
            running,
            count: 0,
            continued: false,
            begun: self.now,
            computation: 0.0,
            runner: cpu,
            waiting: Vec::new(),
        };
        let at = match self.free_ops.pop() {
            Some(at) => {
                self.ops[at] = op;
                at
            }
            None => {
                self.ops.push(op);
                self.ops.len() - 1
            }
        };
        self.by_slot[cpu * SLOTS + free as usize] = Some(at);
        self.turn(cpu, Doing::Synchronizing);
        self.cpus[cpu].own = Some(at);
        self.awake.push_back(cpu);
        Ok(())
    }

    /// Lets a CPU go on as far as it can without time passing.
    fn advance(&mut self, cpu: usize) -> Result<(), Misuse> {
        loop {
            let at = &self.cpus[cpu];
            if at.computing {
                return Ok(());
            }
            match at.doing {
                Doing::Idle | Doing::Disabled if self.kind == Kind::OpAsynch && at.slice_over => {
                    if at.doing == Doing::Disabled && !at.paid && !self.o.slices_only {
                        return Ok(());
                    }
                    self.turn(cpu, Doing::Synchronizing);
                }
                Doing::Idle => {
                    if !at.queue.is_empty() && self.kind != Kind::OpAsynch {
                        self.turn(cpu, Doing::Dispatching);
                        if self.counts() {
                            self.interrupts += 1;
                        }
                        let time = if self.o.free_dispatch { 0.0 } else { self.p.x_i };
                        self.compute(cpu, time);
                    } else if at.disabled > 0 {
                        self.cpus[cpu].disabled -= 1;
                        self.turn(cpu, Doing::Disabled);
                        let time = self.random.exponential(self.p.x_d);
                        self.compute(cpu, time);
                    } else {
                        return Ok(());
                    }
                }
                Doing::Disabled if at.paid => self.idle(cpu),
                Doing::Disabled => return Ok(()),
                Doing::Dispatching if at.paid => {
                    self.turn(cpu, Doing::Synchronizing);
                    self.cpus[cpu].replier.interrupt();
                    if self.o.free_dispatch {
                        self.busy += if self.counts() { self.p.x_i } else { 0.0 };
                    }
                }
                Doing::Dispatching => return Ok(()),
                Doing::Synchronizing => {
                    if !self.synchronize(cpu)? {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// One action of a CPU's machines. Returns whether time stands still.
    fn synchronize(&mut self, cpu: usize) -> Result<bool, Misuse> {
        if let Some(op) = self.cpus[cpu].taken {
            return self.ask(cpu, op);
        }
        if !self.cpus[cpu].replier.is_idle() {
            return self.reply(cpu);
        }
        if let Some(op) = self.cpus[cpu].own {
            let went_on = self.ask(cpu, op)?;
            let waits = !went_on && !self.cpus[cpu].computing;
            if waits
                && !self.cpus[cpu].stopped
                && self.kind == Kind::OpSynch
                && !self.cpus[cpu].queue.is_empty()
            {
                self.cpus[cpu].replier.interrupt();
                return Ok(true);
            }
            return Ok(went_on);
        }
        if self.kind != Kind::OpAsynch && !self.cpus[cpu].queue.is_empty() {
            self.cpus[cpu].replier.interrupt();
            return Ok(true);
        }
        if self.cpus[cpu].slice_over {
            if !std::mem::replace(&mut self.cpus[cpu].looked, true) {
                self.cpus[cpu].replier.interrupt();
                return Ok(true);
            }
            self.cpus[cpu].looked = false;
            self.cpus[cpu].slice_over = false;
            self.at(self.p.x_j, Event::Slice { cpu });
        }
        self.idle(cpu);
        Ok(true)
    }

    fn op_of(&self, cpu: u16, slot: u16) -> Option<usize> {
        self.by_slot.get(usize::from(cpu) * SLOTS + usize::from(slot)).copied().flatten()
    }

    fn reply(&mut self, cpu: usize) -> Result<bool, Misuse> {
        let paid = std::mem::take(&mut self.cpus[cpu].paid);
        match self.cpus[cpu].replier.next() {
            Reply::Enter => {
                self.stop(cpu);
                self.cpus[cpu].replier.did()?;
            }
            Reply::Leave => {
                self.cpus[cpu].stopped = false;
                self.cpus[cpu].replier.did()?;
            }
            Reply::Take => {
                let work = self.cpus[cpu].queue.take();
                self.cpus[cpu].replier.took(work)?;
            }
            Reply::Flush { .. } if paid => self.cpus[cpu].replier.did()?,
            Reply::Flush { .. } => {
                let time = self.random.exponential(self.p.x_reply);
                self.compute(cpu, time);
                return Ok(false);
            }
            Reply::Acknowledge(OpId { cpu: of, slot, .. }) | Reply::AcknowledgeSlot { cpu: of, slot } => {
                let mut left = 0;
                if let Some(op) = self.op_of(of, slot) {
                    self.ops[op].count -= 1;
                    left = self.ops[op].count;
                    if left == 0 {
                        self.awake.push_back(self.ops[op].runner);
                    }
                }
                self.cpus[cpu].replier.counted(left)?;
            }
            Reply::TakeOver { cpu: of, slot } => {
                if let Some(op) = self.op_of(of, slot) {
                    self.ops[op].machine.take_over(cpu)?;
                    self.ops[op].runner = cpu;
                    self.cpus[cpu].taken = Some(op);
                }
            }
            Reply::MayContinue(OpId { cpu: of, slot, generation }) => {
                let op = self.op_of(of, slot).filter(|&op| self.ops[op].id.generation == generation);
                return self.may_continue(cpu, op);
            }
            Reply::MayContinueSlot { cpu: of, slot } => {
                let op = self.op_of(of, slot);
                return self.may_continue(cpu, op);
            }
            Reply::Idle => {}
        }
        Ok(true)
    }

    fn may_continue(&mut self, cpu: usize, op: Option<usize>) -> Result<bool, Misuse> {
        let yes = op.is_none_or(|op| self.ops[op].continued);
        self.cpus[cpu].replier.may_continue(yes)?;
        if let (false, Some(op)) = (yes, op) {
            self.ops[op].waiting.push(cpu);
        }
        Ok(yes)
    }

    fn stop(&mut self, cpu: usize) {
        self.cpus[cpu].stopped = true;
        for op in std::mem::take(&mut self.cpus[cpu].watchers) {
            self.awake.push_back(self.ops[op].runner);
        }
    }

    /// The share of a request's computation that this action takes.
    fn cost(&mut self, op: usize, now: Action) -> f64 {
        let begins = match self.kind {
            Kind::TwoPhase => now == Action::Enter,
            _ => now == Action::Update,
        };
        if begins {
            self.ops[op].computation = self.random.exponential(self.p.x_req());
        }
        let (whole, share) = (self.ops[op].computation, 1.0 / self.p.x_req());
        match (now, self.o.sends) {
            _ if begins && self.o.sends == Sends::After => whole,
            _ if begins => whole * self.p.x_req1 * share,
            (Action::Send(_) | Action::SendAndLeave(_), Sends::Spread) => whole * self.p.x_req2 * share,
            _ => 0.0,
        }
    }

    fn ask(&mut self, cpu: usize, op: usize) -> Result<bool, Misuse> {
        let now = self.ops[op].machine.next();
        if now == Action::Enter {
            self.stop(cpu);
        }
        if !std::mem::take(&mut self.cpus[cpu].paid) {
            let time = self.cost(op, now);
            if time > 0.0 {
                self.compute(cpu, time);
                return Ok(false);
            }
        }
        let seen = match now {
            Action::Exclude | Action::Close => Seen::Yes,
            Action::ReadTargets | Action::ReadHolders => {
                Seen::Targets { members: self.ops[op].targets, running: self.ops[op].running }
            }
            Action::IsRunning(_) => Seen::No,
            Action::SetCount(count) => {
                self.ops[op].count = count;
                Seen::Did
            }
            Action::Send(to) => {
                self.send(op, to)?;
                Seen::Did
            }
            Action::SendAndLeave(to) => {
                self.ops[op].machine.did(Seen::Did)?;
                self.release(cpu, op)?;
                self.send(op, to)?;
                return Ok(true);
            }
            Action::AllAcknowledged if self.ops[op].count == 0 => Seen::Yes,
            Action::AllAcknowledged => return Ok(false),
            Action::IsStopped(of) if self.cpus[of].stopped => Seen::Yes,
            Action::IsStopped(of) => {
                self.cpus[of].watchers.push(op);
                return Ok(false);
            }
            Action::Continue => {
                self.ops[op].continued = true;
                for cpu in std::mem::take(&mut self.ops[op].waiting) {
                    self.awake.push_back(cpu);
                }
                Seen::Did
            }
            Action::Check if self.random.unit() < self.p.passes() => Seen::Yes,
            Action::Check => Seen::No,
            Action::Serve if self.cpus[cpu].stopped => {
                self.cpus[cpu].replier.finish();
                return Ok(true);
            }
            Action::Done(_) => {
                self.end(cpu, op);
                self.release(cpu, op)?;
                return Ok(true);
            }
            _ => Seen::Did,
        };
        self.ops[op].machine.did(seen)?;
        Ok(true)
    }

    fn release(&mut self, cpu: usize, op: usize) -> Result<(), Misuse> {
        if self.cpus[cpu].taken == Some(op) {
            self.cpus[cpu].taken = None;
            self.cpus[cpu].replier.did()?;
        } else {
            self.cpus[cpu].own = None;
        }
        Ok(())
    }

    fn end(&mut self, cpu: usize, op: usize) {
        let begun = self.ops[op].begun;
        if self.kind == Kind::OpAsynch {
            self.returned(begun);
        } else {
            self.cpus[cpu].returning = Some(begun);
        }
        self.frozen += self.after_warm_up(begun);
        let id = self.ops[op].id;
        self.cpus[usize::from(id.cpu)].slots &= !(1 << id.slot);
        self.by_slot[usize::from(id.cpu) * SLOTS + usize::from(id.slot)] = None;
        self.free_ops.push(op);
    }

    /// An operation is over for its caller: for a synchronous one that is the end of the busy period (4.2.1.4).
    fn returned(&mut self, begun: f64) {
        if self.counts() {
            self.ended += 1;
            self.latencies += self.now - begun;
        }
    }

    fn send(&mut self, op: usize, to: usize) -> Result<(), Misuse> {
        let page = Pages::one(Vpn::new(usize::from(self.ops[op].id.slot)));
        let request = Request { op: self.ops[op].id, what: Target::Pages(Asid::default(), page) };
        self.cpus[to].queue.push(request)?;
        let at = &self.cpus[to];
        let waits = at.doing == Doing::Synchronizing && !at.computing;
        if self.kind != Kind::OpAsynch && (at.doing == Doing::Idle || waits) {
            self.awake.push_back(to);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::analysis::{Bound, Solution, analyse};
    use super::*;

    /// 4.3.2, at the canonical parameters.
    #[test]
    fn the_simulator_agrees_with_the_analysis() {
        let p = Parameters::CANONICAL;
        for kind in Kind::ALL {
            let run = simulate(kind, &p, &Options::default()).expect("it runs");
            let Solution::Converged(lower) = analyse(kind, Bound::Lower, &p) else {
                panic!("{kind:?} is saturated")
            };
            let Solution::Converged(upper) = analyse(kind, Bound::Upper, &p) else {
                panic!("{kind:?} is saturated")
            };
            let middle = 0.5 * (lower.overhead + upper.overhead);
            let off = run.measures.overhead / middle - 1.0;
            assert!(off.abs() < 0.07, "{kind:?}: simulated {}, analysed {middle}", run.measures.overhead);
        }
    }

    /// One CPU has nobody to ask.
    #[test]
    fn an_operation_of_one_cpu_interrupts_nobody() {
        let p = Parameters { m: 1, n: 4, ..Parameters::CANONICAL };
        for kind in Kind::ALL {
            let run = simulate(kind, &p, &Options { seconds: 5.0, ..Options::default() }).expect("it runs");
            assert!(run.interrupts == 0.0 && run.measures.throughput > 20.0, "{kind:?}: {run:?}");
        }
    }
}
