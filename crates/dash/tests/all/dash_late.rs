//! `Dash` under 2-phase and TLB-first, where the hardware writes a whole word to set a dirty bit: a CPU has such a write under
//! way when the page is unmapped.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use tlbkit_addr::{Asid, Attr, CpuSet, Flush, PageSize, Pfn, Vpn};
use tlbkit_dash::tolerance::Entry;
use tlbkit_dash::unmapping::{Completed, Config, Dash, Hint, Tables, Ticket, Unmapping};
use tlbkit_shootdown::{
    Algorithm, Edit, Hardware, Loader, LocalCpu, LowRights, OpId, Outcome, Plan, SharedSpace, Status,
    StatusBit, System,
};

const AT: Vpn = Vpn::new(5);

/// The table of one page.
struct Page<'p>(&'p Mutex<Option<Entry>>);

impl Tables for Page<'_> {
    fn entry(&self, _space: Asid, _at: Vpn) -> Option<Entry> {
        *self.0.lock().unwrap()
    }
    fn exchange(&mut self, _space: Asid, _at: Vpn, new: Option<Entry>) -> Option<Entry> {
        std::mem::replace(&mut *self.0.lock().unwrap(), new)
    }
}

struct Memory<'p> {
    page: &'p Mutex<Option<Entry>>,
    dash: Mutex<Dash<Page<'p>, u32, 1, 0>>,
    space: SharedSpace,
    ended: Mutex<Option<Completed<u32>>>,
    over: AtomicBool,
}

struct Unmap<'m> {
    memory: &'m Memory<'m>,
    unmapping: Unmapping,
}

impl Unmap<'_> {
    fn dash<T>(&self, call: impl FnOnce(&mut Dash<Page<'_>, u32, 1, 0>, Ticket, Asid) -> T) -> T {
        call(&mut self.memory.dash.lock().unwrap(), self.unmapping.ticket, self.asid())
    }
}

impl Edit for Unmap<'_> {
    type Payload = (Ticket, Asid);

    fn exclude(&mut self) -> bool {
        self.dash(|dash, ticket, space| dash.exclude(ticket, space).unwrap())
    }
    fn release(&mut self) {
        self.dash(|dash, ticket, space| dash.release(ticket, space).unwrap());
    }
    fn update(&mut self) -> (Ticket, Asid) {
        self.dash(|dash, ticket, space| dash.update(ticket, space).unwrap());
        (self.unmapping.ticket, self.asid())
    }
    fn update_again(&mut self, _payload: &mut (Ticket, Asid)) {
        self.dash(|dash, ticket, space| dash.update(ticket, space).unwrap());
    }
    fn check(&mut self) -> bool {
        self.dash(|dash, ticket, space| dash.is_lowered(ticket, space).unwrap())
    }
    fn low_rights(&self) -> LowRights {
        self.unmapping.low_rights
    }
    fn is_walked(&self, _payload: &(Ticket, Asid)) -> bool {
        false
    }
    fn space(&self) -> &SharedSpace {
        &self.memory.space
    }
    fn asid(&self) -> Asid {
        Asid::default()
    }
    fn flush(&self) -> &Flush {
        &self.unmapping.flush
    }
}

/// A CPU whose status write lands when it is waited for, and not before.
struct Cpu<'m> {
    memory: &'m Memory<'m>,
    late: Option<Entry>,
}

impl LocalCpu<(Ticket, Asid)> for Cpu<'_> {
    fn flush(&mut self, _space: Option<Asid>, _what: &Flush, drain: bool) {
        if let Some(late) = self.late.take_if(|_| drain) {
            *self.memory.page.lock().unwrap() = Some(late);
        }
    }
    fn interrupt(&mut self, _cpus: CpuSet) {}
    fn complete(&mut self, _op: OpId, (ticket, space): (Ticket, Asid), outcome: Outcome) {
        let ended = self.memory.dash.lock().unwrap().completed(ticket, space, outcome);
        *self.memory.ended.lock().unwrap() = ended.expect("it is in flight");
    }
    fn pause(&mut self) {
        std::thread::yield_now();
    }
}

/// The write lands in an entry that no code has changed yet, and what the update exchanges has the bit.
#[test]
fn a_dirty_bit_on_its_way_comes_back_with_the_message() {
    let own = StatusBit { on_miss: Status::Never, on_hit: Status::ReadThenWrite };
    let soft = Hardware { loader: Loader::Software, dirty: own, ..Hardware::RP3 };
    let cases = [
        (Algorithm::TwoPhase, Hardware::VAX, false),
        (Algorithm::TwoPhase, Hardware::VAX, true),
        (Algorithm::TlbFirst, soft, false),
    ];
    for (algorithm, hardware, readonly) in cases {
        let low = if readonly { LowRights::MayWriteBack } else { LowRights::NeverWriteBack };
        let plan = Plan::new(algorithm, &hardware, low).expect("it suits");
        let config = Config { page: PageSize::K4, prompt: plan, cheap: plan };
        let page = Mutex::default();
        let memory = Memory {
            page: &page,
            dash: Mutex::new(Dash::new(Page(&page), config)),
            space: SharedSpace::new(),
            ended: Mutex::default(),
            over: AtomicBool::new(false),
        };
        for cpu in 0..2 {
            memory.space.members.insert(cpu);
            memory.space.running.insert(cpu);
        }
        let old = Entry { frame: Pfn::new(3), attr: Attr::READ | Attr::WRITE };
        memory.dash.lock().unwrap().map(Asid::default(), AT, old).unwrap();
        let system = System::<_, Unmap<'_>, 2, 2>::new(hardware);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // It has read the entry, to write it with the bit.
                let dirty = Entry { attr: old.attr | Attr::DIRTY, ..old };
                let (mut handle, mut cpu) =
                    (system.attach(1).unwrap(), Cpu { memory: &memory, late: Some(dirty) });
                while !memory.over.load(Ordering::SeqCst) {
                    system.poll(&mut handle, &mut cpu).unwrap();
                    std::thread::yield_now();
                }
            });
            let (mut handle, mut cpu) = (system.attach(0).unwrap(), Cpu { memory: &memory, late: None });
            let unmapping =
                memory.dash.lock().unwrap().unmap_asynch(Asid::default(), AT, readonly, 7, Hint::default());
            let mut edit = Unmap { memory: &memory, unmapping: unmapping.unwrap() };
            let plan = edit.unmapping.plan;
            system.run(&mut handle, &mut cpu, plan, &mut edit).unwrap();
            memory.over.store(true, Ordering::SeqCst);
        });
        let left = readonly.then_some(Entry { attr: Attr::READ | Attr::DIRTY, ..old });
        assert_eq!(page.lock().unwrap().take(), left, "{algorithm:?}");
        let ended = Completed { message: Some(7), outcome: Outcome::Done, status: Attr::DIRTY };
        assert_eq!(memory.ended.lock().unwrap().take(), Some(ended), "{algorithm:?}");
    }
}
