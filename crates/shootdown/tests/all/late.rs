//! 2-phase where the hardware writes a whole word to set a status bit: a CPU that stops has such a write under way.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use tlbkit_addr::{Asid, CpuSet, Flush};
use tlbkit_shootdown::{
    Algorithm, Edit, Hardware, LocalCpu, LowRights, Misuse, OpId, Outcome, Plan, Rendezvous, SharedSpace,
    Synchronous, System,
};

use crate::support::EVERYTHING;

const OLD: u8 = 0b0111;
const OLD_AND_DIRTY: u8 = 0b1111;
const NEW: u8 = 0;

/// A page-table word, and the CPUs that run its space.
struct Page {
    entry: AtomicU8,
    space: SharedSpace,
}

impl Page {
    fn on(cpus: impl Iterator<Item = usize>) -> Self {
        let space = SharedSpace::new();
        for cpu in cpus {
            space.members.insert(cpu);
            space.running.insert(cpu);
        }
        Self { entry: AtomicU8::new(OLD), space }
    }
}

impl Edit<1> for &Page {
    type Payload = ();

    fn exclude(&mut self) -> bool {
        true
    }
    fn release(&mut self) {}
    fn update(&mut self) {
        self.entry.store(NEW, Ordering::SeqCst);
    }
    fn space(&self) -> &SharedSpace {
        &self.space
    }
    fn asid(&self) -> Asid {
        Asid::default()
    }
    fn flush(&self) -> &Flush {
        &EVERYTHING
    }
}

/// A CPU whose status write lands when it is waited for, and not before.
struct Cpu<'p> {
    page: &'p Page,
    late: bool,
    /// Whether it can wait without a flush.
    drains: bool,
    flushes: usize,
    completed: &'p AtomicBool,
}

impl Cpu<'_> {
    fn land(&mut self) {
        if std::mem::take(&mut self.late) {
            self.page.entry.store(OLD_AND_DIRTY, Ordering::SeqCst);
        }
    }
}

impl LocalCpu<()> for Cpu<'_> {
    fn flush(&mut self, _space: Option<Asid>, _what: &Flush, drain: bool) {
        self.flushes += 1;
        if drain {
            self.land();
        }
    }
    fn drain(&mut self) {
        if self.drains { self.land() } else { self.flush(None, &EVERYTHING, true) }
    }
    fn interrupt(&mut self, _cpus: CpuSet) {}
    fn complete(&mut self, _op: OpId, (): (), outcome: Outcome) {
        assert_eq!(outcome, Outcome::Done);
        self.completed.store(true, Ordering::SeqCst);
    }
    fn pause(&mut self) {
        std::thread::yield_now();
    }
}

/// CPU 0 changes the entry, all others reply. Returns what is in it then, and how often each CPU has flushed.
fn change<const CPUS: usize>(hardware: Hardware, rendezvous: Rendezvous, drains: bool) -> (u8, Vec<usize>) {
    let plan = two_phase(&hardware);
    let kernel = System::<(), &Page, CPUS, 2>::new(hardware).with_rendezvous(rendezvous);
    let (page, completed) = (Page::on(0..CPUS), AtomicBool::new(false));
    let cpu = || Cpu { page: &page, late: true, drains, flushes: 0, completed: &completed };
    let flushes = std::thread::scope(|scope| {
        let run = |me| {
            let (kernel, page, mut cpu) = (&kernel, &page, cpu());
            scope.spawn(move || {
                let mut handle = kernel.attach(me).expect("it exists");
                if me == 0 {
                    assert!(kernel.start(&mut handle, &mut cpu, plan, page).is_ok());
                }
                while cpu.flushes == 0 || !cpu.completed.load(Ordering::SeqCst) {
                    kernel.poll(&mut handle, &mut cpu).expect("in flight");
                    std::thread::yield_now();
                }
                cpu.flushes
            })
        };
        let cpus: Vec<_> = (0..CPUS).map(run).collect();
        cpus.into_iter().map(|cpu| cpu.join().expect("it ends")).collect()
    });
    (page.entry.into_inner(), flushes)
}

fn two_phase(hardware: &Hardware) -> Plan {
    Plan::new(Algorithm::TwoPhase, hardware, LowRights::NeverWriteBack).expect("it suits any")
}

/// The write lands before the CPU counts as stopped: the requester's own, and a replier's.
#[test]
fn a_status_write_lands_before_its_cpu_has_stopped() {
    for hardware in [Hardware::VAX, Hardware::NS32332] {
        for rendezvous in [Rendezvous::Flag, Rendezvous::Serve] {
            for drains in [false, true] {
                assert_eq!(change::<1>(hardware, rendezvous, drains).0, NEW, "{hardware:?} {rendezvous:?}");
                assert_eq!(change::<3>(hardware, rendezvous, drains).0, NEW, "{hardware:?} {rendezvous:?}");
            }
        }
    }
}

/// A CPU that can wait without a flush flushes once. So does every CPU where no status write can do harm: no CPU waits
/// there.
#[test]
fn who_stops_waits_only_where_a_status_write_could_undo_the_change() {
    for (name, hardware) in Hardware::TABLE {
        let plan = two_phase(&hardware);
        assert_eq!(plan.status_overwrites(), hardware.status_overwrites(), "{name}");
        assert_eq!(change::<1>(hardware, Rendezvous::Flag, true).1, [1], "{name}");
        assert_eq!(
            change::<1>(hardware, Rendezvous::Flag, false).1,
            [1 + usize::from(hardware.status_overwrites())],
            "{name}"
        );
    }
}

/// A page that is protected, and stays readable: the hardware may set a bit in the new entry.
struct Protect<'p>(&'p Page);

impl Edit for Protect<'_> {
    type Payload = ();

    fn exclude(&mut self) -> bool {
        true
    }
    fn release(&mut self) {}
    fn update(&mut self) {}
    fn low_rights(&self) -> LowRights {
        LowRights::MayWriteBack
    }
    fn space(&self) -> &SharedSpace {
        &self.0.space
    }
    fn asid(&self) -> Asid {
        Asid::default()
    }
    fn flush(&self) -> &Flush {
        &EVERYTHING
    }
}

/// A plan for unmapping makes too few rounds where rights that stay may be written back, or is unsound with any number.
#[test]
fn a_plan_for_unmapping_does_not_protect() {
    fn protect<const CPUS: usize>(hardware: Hardware, low: LowRights) -> Result<Outcome, Misuse> {
        let page = Page::on(0..1);
        let completed = AtomicBool::new(false);
        let mut cpu = Cpu { page: &page, late: false, drains: true, flushes: 0, completed: &completed };
        let kernel = System::<(), Synchronous<()>, CPUS, 2>::new(hardware);
        let plan = Plan::new(Algorithm::TwoPhase, &hardware, low).expect("it suits any");
        let mut handle = kernel.attach(0)?;
        kernel.run(&mut handle, &mut cpu, plan, &mut Protect(&page)).map(|(_, outcome)| outcome)
    }
    for (name, hardware) in Hardware::TABLE {
        let refused = if hardware.status_overwrites() { Err(Misuse::OtherRights) } else { Ok(Outcome::Done) };
        assert_eq!(protect::<1>(hardware, LowRights::NeverWriteBack), refused, "{name}");
        assert_eq!(protect::<2>(hardware, LowRights::NeverWriteBack), refused, "{name}");
        assert_eq!(protect::<2>(hardware, LowRights::MayWriteBack), Ok(Outcome::Done), "{name}");
    }
}
