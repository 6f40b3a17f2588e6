//! CPUs that sleep while they wait, as a kernel's do in `wait`: no CPU polls, so a wake-up that is missing hangs.
//!
//! An interrupt stays pending until its CPU looks, and a sleep uses it up, whatever it was for.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use tlbkit_addr::{Asid, CpuSet, Flush};
use tlbkit_shootdown::{
    Algorithm, Edit, Hardware, LocalCpu, LowRights, OpId, Outcome, Plan, Rendezvous, SharedSpace, SwitchKind,
    System,
};

use crate::support::PAGE;

const CPUS: usize = 4;
const EACH: usize = 400;

/// A machine without pages: the holder of the exclusion, and an interrupt line for each CPU.
#[derive(Debug, Default)]
struct Machine {
    excluded: AtomicBool,
    space: SharedSpace,
    waiting: [AtomicBool; CPUS],
    lines: [(Mutex<bool>, Condvar); CPUS],
    ended: AtomicUsize,
}

impl Machine {
    fn interrupt(&self, cpu: usize) {
        *self.lines[cpu].0.lock().expect("no thread has panicked") = true;
        self.lines[cpu].1.notify_one();
    }

    fn is_over(&self) -> bool {
        self.ended.load(Ordering::SeqCst) == CPUS * EACH
    }
}

#[derive(Clone, Copy, Debug)]
struct Nothing<'m>(&'m Machine);

impl Edit<1> for Nothing<'_> {
    type Payload = ();

    fn exclude(&mut self) -> bool {
        !self.0.excluded.swap(true, Ordering::SeqCst)
    }
    fn release(&mut self) {
        self.0.excluded.store(false, Ordering::SeqCst);
    }
    fn update(&mut self) {}
    fn space(&self) -> &SharedSpace {
        &self.0.space
    }
    fn asid(&self) -> Asid {
        Asid::default()
    }
    fn flush(&self) -> &Flush {
        &PAGE[0]
    }
}

struct Cpu<'m> {
    machine: &'m Machine,
    me: usize,
}

impl LocalCpu<()> for Cpu<'_> {
    fn flush(&mut self, _space: Option<Asid>, _what: &Flush, _drain: bool) {}
    fn interrupt(&mut self, cpus: CpuSet) {
        cpus.iter().for_each(|cpu| self.machine.interrupt(cpu));
    }
    fn complete(&mut self, _op: OpId, (): (), _outcome: Outcome) {}
    fn ended(&mut self, _op: OpId, outcome: Outcome) {
        assert_eq!(outcome, Outcome::Done);
        self.machine.ended.fetch_add(1, Ordering::SeqCst);
        self.changed();
    }
    fn pause(&mut self) {
        let (line, wake) = &self.machine.lines[self.me];
        let pending = line.lock().expect("no thread has panicked");
        let limit = Duration::from_secs(120);
        let (mut pending, timeout) =
            wake.wait_timeout_while(pending, limit, |pending| !*pending).expect("no thread has panicked");
        if timeout.timed_out() {
            eprintln!("CPU {} was not woken", self.me);
            std::process::abort();
        }
        *pending = false;
    }
    fn changed(&mut self) {
        for cpu in (0..CPUS).filter(|&cpu| cpu != self.me) {
            if self.machine.waiting[cpu].load(Ordering::SeqCst) {
                self.machine.interrupt(cpu);
            }
        }
    }
}

/// Every CPU starts operations as fast as it can. Mailboxes have room for one request, so they overflow.
fn sleep_through(plan: Plan, rendezvous: Rendezvous) {
    let machine = Machine::default();
    let kernel = System::<(), Nothing<'_>, CPUS, 1, 1, 1>::new(Hardware::RP3).with_rendezvous(rendezvous);
    std::thread::scope(|scope| {
        for me in 0..CPUS {
            let (machine, kernel) = (&machine, &kernel);
            scope.spawn(move || {
                let mut handle = kernel.attach(me).expect("it exists");
                let mut cpu = Cpu { machine, me };
                machine.waiting[me].store(true, Ordering::SeqCst);
                kernel
                    .switch(&mut handle, &mut cpu, SwitchKind::In, &machine.space, Asid::default())
                    .expect("it fits");
                let mut left = EACH;
                while !machine.is_over() {
                    // An asynchronous operation may have the slot; then, and in the end, there is only to wait.
                    if left > 0 && kernel.start(&mut handle, &mut cpu, plan, Nothing(machine)).is_ok() {
                        left -= 1;
                    } else if !machine.is_over() {
                        cpu.pause();
                    }
                    kernel.poll(&mut handle, &mut cpu).expect("requests are of operations in flight");
                }
            });
        }
    });
}

#[test]
fn nobody_oversleeps() {
    for algorithm in Algorithm::ALL {
        // MIPS: loaded by software, no status bits, no remote flush.
        let Ok(plan) = Plan::new(algorithm, &Hardware::RP3, LowRights::NeverWriteBack) else { continue };
        sleep_through(plan, Rendezvous::Flag);
    }
    let plan = Plan::new(Algorithm::TwoPhase, &Hardware::RP3, LowRights::NeverWriteBack).expect("it suits");
    sleep_through(plan, Rendezvous::Serve);
}
