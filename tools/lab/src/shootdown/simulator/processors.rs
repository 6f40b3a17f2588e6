//! What each simulated CPU does when: idle, disabled, dispatching an interrupt, synchronizing.

use std::collections::VecDeque;

use tlbkit_addr::{Asid, CpuSet, Pages, Vpn};
use tlbkit_shootdown::{Duty, Misuse, OpId, Plan, Queue, Replier, Requester, Target};

use super::changes::{Changes, Gathered};
use super::clock::{Clock, Event, Random};
use super::{Options, Parameters};

/// Words of a CPU set: 256 CPUs, for N = 4M up to M = 64.
pub(super) const W: usize = 4;
/// Operations of one CPU that can be outstanding.
pub(super) const SLOTS: usize = 128;
/// Requests a queue holds before it degrades to flushing everything.
pub(super) const QUEUE: usize = 256;

/// What a CPU does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Doing {
    Idle,
    Disabled,
    Dispatching,
    /// Runs its replier, or its requester; perhaps waits.
    Synchronizing,
}

pub(super) struct Cpu {
    pub(super) queue: Queue<QUEUE, W, SLOTS>,
    pub(super) replier: Replier<QUEUE, W, SLOTS>,
    pub(super) doing: Doing,
    /// Counts what it has done, so that an event for something past is told apart.
    pub(super) turn: u64,
    /// A computation is under way.
    pub(super) computing: bool,
    /// The computation of the action at hand is over.
    pub(super) paid: bool,
    pub(super) stopped: bool,
    pub(super) disabled: u32,
    /// What is left of an interrupt-disabling event whose time without interrupts is over.
    pub(super) rest: f64,
    /// What is left of the computation until the next unmap, and since when it has gone on.
    pub(super) gap: f64,
    pub(super) idle_since: f64,
    /// How many of the recorded changes it has made.
    pub(super) recorded: usize,
    pub(super) own: Option<usize>,
    pub(super) taken: Option<usize>,
    pub(super) since: f64,
    /// Async: the end of the slice has come.
    pub(super) slice_over: bool,
    /// It has looked into the queue since.
    pub(super) looked: bool,
    pub(super) slots: u128,
    pub(super) changes: Changes,
    /// What delays its next reply has been drawn, with [`Options::independent`].
    pub(super) delayed: bool,
    /// A synchronous operation that has ended, and whose call returns with the busy period.
    pub(super) returning: Option<f64>,
    /// Operations that wait for this CPU to stop; CPUs are named by their operation.
    pub(super) watchers: Vec<usize>,
}

pub(super) struct Op {
    pub(super) machine: Requester<W>,
    pub(super) id: OpId,
    /// What to flush, and how many unmaps that is for.
    pub(super) what: Target,
    pub(super) unmaps: usize,
    pub(super) targets: CpuSet<W>,
    pub(super) running: CpuSet<W>,
    pub(super) count: u32,
    pub(super) continued: bool,
    pub(super) begun: f64,
    pub(super) computation: f64,
    pub(super) runner: usize,
    /// CPUs that wait for its continuing signal.
    pub(super) waiting: Vec<usize>,
}

impl Cpu {
    pub(super) fn new(plan: Plan) -> Result<Self, Misuse> {
        Ok(Self {
            queue: Queue::new()?,
            replier: Replier::new(plan)?,
            doing: Doing::Idle,
            turn: 0,
            computing: false,
            paid: false,
            stopped: false,
            disabled: 0,
            rest: 0.0,
            gap: 0.0,
            idle_since: 0.0,
            recorded: 0,
            own: None,
            taken: None,
            since: 0.0,
            slice_over: false,
            looked: false,
            slots: 0,
            returning: None,
            watchers: Vec::new(),
            changes: Changes::default(),
            delayed: false,
        })
    }
}

/// The machine that is simulated.
pub(super) struct Simulator<'a> {
    pub(super) p: &'a Parameters,
    pub(super) o: &'a Options<'a>,
    pub(super) plan: Plan,
    pub(super) random: Random,
    pub(super) clock: Clock,
    pub(super) cpus: Vec<Cpu>,
    pub(super) ops: Vec<Op>,
    pub(super) free_ops: Vec<usize>,
    /// The operation in each slot of each CPU.
    pub(super) by_slot: Vec<Option<usize>>,
    /// CPUs to be looked at before time goes on.
    pub(super) awake: VecDeque<usize>,
    pub(super) busy: f64,
    pub(super) latencies: f64,
    pub(super) longest: f64,
    pub(super) longest_busy: f64,
    pub(super) ended: u64,
    pub(super) frozen: f64,
    pub(super) interrupts: u64,
    pub(super) unmaps: u64,
}

impl Simulator<'_> {
    /// CPUs look into their queues at the ends of slices, and are not interrupted.
    pub(super) fn is_asynchronous(&self) -> bool {
        self.plan.duty() == Duty::FlushAndFinish
    }

    pub(super) fn run(&mut self) -> Result<(), Misuse> {
        for cpu in 0..self.cpus.len() {
            if self.p.lambda_d > 0.0 && !self.o.independent {
                let first = self.random.exponential(1.0 / self.p.lambda_d);
                self.clock.after(first, Event::Disable { cpu });
            }
            if self.is_asynchronous() {
                let first = self.random.unit() * self.p.x_j;
                self.clock.after(first, Event::Slice { cpu });
            }
            self.idle(cpu);
        }
        while let Some(event) = self.clock.next() {
            if self.clock.now() > self.o.seconds {
                break;
            }
            self.happen(event)?;
            while let Some(cpu) = self.awake.pop_front() {
                self.advance(cpu)?;
            }
        }
        Ok(())
    }

    /// Counts only what is after the warm-up.
    pub(super) fn counts(&self) -> bool {
        self.clock.now() > 0.1 * self.o.seconds
    }

    pub(super) fn after_warm_up(&self, since: f64) -> f64 {
        (self.clock.now() - since.max(0.1 * self.o.seconds)).max(0.0)
    }

    fn happen(&mut self, event: Event) -> Result<(), Misuse> {
        match event {
            Event::Ready { cpu, turn } if self.cpus[cpu].turn == turn => {
                self.cpus[cpu].computing = false;
                self.cpus[cpu].paid = true;
                self.awake.push_back(cpu);
            }
            Event::Unmap { cpu, turn } if self.cpus[cpu].turn == turn => self.unmap(cpu)?,
            Event::Ready { .. } | Event::Unmap { .. } => {}
            Event::Disable { cpu } => {
                self.cpus[cpu].disabled += 1;
                let next = self.random.exponential(1.0 / self.p.lambda_d);
                self.clock.after(next, Event::Disable { cpu });
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

    pub(super) fn turn(&mut self, cpu: usize, doing: Doing) {
        let at = &mut self.cpus[cpu];
        let synchronizes = |doing| matches!(doing, Doing::Dispatching | Doing::Synchronizing);
        let (before, since) = (synchronizes(at.doing), at.since);
        if before != synchronizes(doing) {
            at.since = self.clock.now();
        }
        if at.doing == Doing::Idle {
            at.gap -= self.clock.now() - at.idle_since;
        }
        at.idle_since = self.clock.now();
        at.turn += 1;
        at.doing = doing;
        at.computing = false;
        at.paid = false;
        if before && !synchronizes(doing) {
            self.busy += self.after_warm_up(since);
            self.longest_busy = self.longest_busy.max(self.after_warm_up(since));
        }
    }

    pub(super) fn compute(&mut self, cpu: usize, time: f64) {
        self.cpus[cpu].computing = true;
        let turn = self.cpus[cpu].turn;
        self.clock.after(time, Event::Ready { cpu, turn });
    }

    pub(super) fn idle(&mut self, cpu: usize) {
        if let Some(begun) = self.cpus[cpu].returning.take() {
            self.returned(begun);
        }
        self.turn(cpu, Doing::Idle);
        self.await_unmap(cpu);
    }

    fn await_unmap(&mut self, cpu: usize) {
        if self.cpus[cpu].gap <= 0.0 {
            let mean = 1.0 / self.p.lambda_t;
            self.cpus[cpu].gap = match self.o.recorded {
                Some(recorded) => mean * recorded.change(cpu, self.cpus[cpu].recorded).gap,
                None => self.random.draw(self.o.arrivals, mean),
            };
        }
        let (turn, gap) = (self.cpus[cpu].turn, self.cpus[cpu].gap);
        self.clock.after(gap, Event::Unmap { cpu, turn });
    }

    /// A requester event: an unmap, and an operation if it is the one that fills the batch.
    fn unmap(&mut self, cpu: usize) -> Result<(), Misuse> {
        self.cpus[cpu].gap = 0.0;
        self.cpus[cpu].idle_since = self.clock.now();
        let free = (!self.cpus[cpu].slots).trailing_zeros();
        // No processor is disabled in the model of independent replies; the share of them that would be is left out.
        let disabled = self.o.independent && self.random.unit() < self.p.rho_d();
        if free as usize >= SLOTS || disabled {
            self.await_unmap(cpu);
            return Ok(());
        }
        let tolerated = self.o.tolerated > 0.0 && self.random.unit() < self.o.tolerated;
        let page_out = self.is_asynchronous();
        let mut m = self.p.m;
        let gathered = match self.o.recorded {
            Some(recorded) => {
                let change = recorded.change(cpu, self.cpus[cpu].recorded);
                self.cpus[cpu].recorded += 1;
                m = 1 + (change.asked * self.p.repliers()).round() as usize;
                let pages = Pages::count(Vpn::new(0), change.pages);
                let what = pages.map_or(Target::All, |pages| Target::Pages(Asid::default(), pages));
                Gathered::Ready(what, change.pages)
            }
            None => self.cpus[cpu].changes.unmap(tolerated, page_out, self.o.batch),
        };
        let (what, unmaps) = match gathered {
            Gathered::Ready(what, unmaps) => (what, unmaps),
            Gathered::Waits => {
                self.await_unmap(cpu);
                return Ok(());
            }
            Gathered::Tolerated => {
                self.unmaps += u64::from(self.counts());
                self.await_unmap(cpu);
                return Ok(());
            }
        };
        self.cpus[cpu].slots |= 1 << free;
        let mut targets = CpuSet::<W>::empty();
        targets.insert(cpu);
        while targets.len() < m {
            targets.insert((self.random.unit() * self.cpus.len() as f64) as usize);
        }
        let running = targets.iter().filter(|&c| c == cpu || self.random.unit() >= self.o.lazy).collect();
        let op = Op {
            machine: Requester::new(self.plan, cpu)?,
            id: OpId { cpu: cpu as u16, slot: free as u16, generation: self.clock.number() as u32 },
            what,
            unmaps,
            targets,
            running,
            count: 0,
            continued: false,
            begun: self.clock.now(),
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
    pub(super) fn advance(&mut self, cpu: usize) -> Result<(), Misuse> {
        loop {
            let at = &self.cpus[cpu];
            if at.computing {
                return Ok(());
            }
            match at.doing {
                Doing::Idle | Doing::Disabled if self.is_asynchronous() && at.slice_over => {
                    if at.doing == Doing::Disabled && !at.paid && !self.o.slices_only {
                        return Ok(());
                    }
                    if at.doing == Doing::Idle && self.is_delayed(cpu) {
                        continue;
                    }
                    self.turn(cpu, Doing::Synchronizing);
                }
                Doing::Idle => {
                    if !at.queue.is_empty() && !self.is_asynchronous() {
                        if self.is_delayed(cpu) {
                            continue;
                        }
                        self.turn(cpu, Doing::Dispatching);
                        if self.counts() {
                            self.interrupts += 1;
                        }
                        let time = if self.o.free_dispatch { 0.0 } else { self.p.x_i };
                        self.compute(cpu, time);
                    } else if at.disabled > 0 || at.rest > 0.0 {
                        let mut whole = at.rest;
                        if whole <= 0.0 {
                            self.cpus[cpu].disabled -= 1;
                            whole = self.random.draw(self.o.masked, self.p.x_d);
                        }
                        let time = whole.min(self.o.masked_at_most);
                        self.cpus[cpu].rest = whole - time;
                        self.turn(cpu, Doing::Disabled);
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

    /// With [`Options::independent`], draws whether an interrupt-disabling event delays the CPU's next reply, and lets
    /// what is left of it pass.
    fn is_delayed(&mut self, cpu: usize) -> bool {
        let drawn = std::mem::take(&mut self.cpus[cpu].delayed);
        if drawn || !self.o.independent || self.random.unit() >= self.p.rho_d() {
            return false;
        }
        self.turn(cpu, Doing::Disabled);
        self.cpus[cpu].delayed = true;
        let time = self.random.exponential(self.p.x_d);
        self.compute(cpu, time);
        true
    }
}
