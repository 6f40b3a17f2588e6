//! Chapter 5 over host threads: pages leave by `PageOut`, messages move by `IpcRegion`, all entries are `Dash`'s, and every
//! unmapping is an operation of one `System`.
//!
//! Each thread is a CPU with a TLB of its own, which it looks at first and flushes only when it is asked to. A dirty bit
//! is written as the machine at hand writes it. A store through a translation that should be gone, or a page that was
//! taken for clean, leaves a word that is not what its owner has stored.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

use tlbkit_addr::{Asid, Attr, CpuSet, Flush, PageSize, Pages, Pfn, Vpn};
use tlbkit_dash::ipc::{Access, IpcError, IpcRegion, LowAction, MessageStep, Passing, Receive, Send};
use tlbkit_dash::pageout::{PageAction, PageOut};
use tlbkit_dash::tolerance::Entry;
use tlbkit_dash::unmapping::{Config, Dash, DashError, Hint, Tables, Ticket, Unmapping};
use tlbkit_shootdown::{
    Algorithm, CpuHandle, Edit, Hardware, LocalCpu, LowRights, Misuse, OpId, Order, Outcome, Plan,
    SharedSpace, Status, SwitchKind, System,
};

const CPUS: usize = 3;
const PAGES: usize = 6;
const FRAMES: usize = 3;
const SPACES: usize = 2;

type Kernel<'m> = System<Unmapped, Unmap<'m>, CPUS, 2, 1, 2>;
type Seat<'s> = CpuHandle<'s, 2, 1, 2>;

/// Entries: a frame's number from bit 4 on, and this.
const READ: usize = 1;
const WRITE: usize = 2;
const DIRTY: usize = 4;
const BITS: [(usize, Attr); 3] = [(READ, Attr::READ), (WRITE, Attr::WRITE), (DIRTY, Attr::DIRTY)];

fn entry(word: usize) -> Option<Entry> {
    let attr = BITS.iter().filter(|(bit, _)| word & bit != 0).fold(Attr::empty(), |attr, (_, of)| attr | *of);
    (word != 0).then_some(Entry { frame: Pfn::new(word >> 4), attr })
}

fn word(entry: Entry) -> usize {
    let bits = BITS.iter().filter(|(_, of)| entry.attr.contains(*of)).fold(0, |word, (bit, _)| word | bit);
    entry.frame.get() << 4 | bits
}

/// The page tables of both spaces.
type Words = [[AtomicUsize; PAGES]; SPACES];

fn asid(space: usize) -> Asid {
    Asid::new(1 + space as u16, 8).expect("eight bits hold it")
}

struct Table<'m>(&'m Words);

impl Table<'_> {
    fn word(&self, space: Asid, at: Vpn) -> &AtomicUsize {
        &self.0[usize::from(space.get()) - 1][at.get()]
    }
}

impl Tables for Table<'_> {
    fn entry(&self, space: Asid, at: Vpn) -> Option<Entry> {
        entry(self.word(space, at).load(Ordering::SeqCst))
    }
    fn exchange(&mut self, space: Asid, at: Vpn, new: Option<Entry>) -> Option<Entry> {
        entry(self.word(space, at).swap(new.map_or(0, word), Ordering::SeqCst))
    }
}

/// What an unmapping is for.
#[derive(Clone, Copy, Debug)]
enum Message {
    PageOut(usize),
    Reduced(usize),
}

type Interface<'m> = Dash<Table<'m>, Message, 8, 0>;

/// What the kernel's lock guards.
struct Vm<'m> {
    dash: Interface<'m>,
    frames: PageOut<FRAMES>,
    /// Which page each frame has, and where each page is.
    pages: [Option<usize>; FRAMES],
    places: [Option<usize>; PAGES],
    store: [[usize; CPUS]; PAGES],
    /// Frames that are being written.
    laundry: Vec<usize>,
    written: usize,
    reclaimed: usize,
    region: IpcRegion<1, SPACES>,
    passing: Passing,
    /// Unmappings that have not been started, and how many have not come back.
    waiting: Vec<(usize, Unmapping)>,
    due: usize,
}

struct Machine<'m> {
    hardware: Hardware,
    words: &'m Words,
    frames: [[AtomicUsize; CPUS]; FRAMES],
    spaces: [SharedSpace; SPACES],
    vm: Mutex<Vm<'m>>,
    finished: AtomicUsize,
    /// A CPU has panicked, and replies no more.
    failed: AtomicBool,
}

impl<'m> Machine<'m> {
    fn new(algorithm: Algorithm, hardware: Hardware, words: &'m Words) -> Self {
        let plan = Plan::new(algorithm, &hardware, LowRights::MayWriteBack).expect("it suits");
        let config = Config { page: PageSize::K4, prompt: plan.waited_for(), cheap: plan };
        let vm = Vm {
            dash: Dash::new(Table(words), config),
            frames: PageOut::new(1),
            pages: [None; FRAMES],
            places: [None; PAGES],
            store: [[0; CPUS]; PAGES],
            laundry: Vec::new(),
            written: 0,
            reclaimed: 0,
            region: IpcRegion::new(),
            passing: Passing::new(),
            waiting: Vec::new(),
            due: 0,
        };
        Self {
            hardware,
            words,
            frames: Default::default(),
            spaces: Default::default(),
            vm: Mutex::new(vm),
            finished: AtomicUsize::new(0),
            failed: AtomicBool::new(false),
        }
    }

    fn vm(&self) -> MutexGuard<'_, Vm<'m>> {
        self.vm.lock().expect("no CPU has panicked")
    }
}

/// The payload of an operation.
#[derive(Clone, Copy, Debug)]
struct Unmapped(Ticket, usize);

/// The operation of an unmapping.
struct Unmap<'m> {
    machine: &'m Machine<'m>,
    space: usize,
    unmapping: Unmapping,
}

impl<'m> Unmap<'m> {
    fn dash<T>(&self, call: impl FnOnce(&mut Interface<'m>, Ticket, Asid) -> Result<T, DashError>) -> T {
        call(&mut self.machine.vm().dash, self.unmapping.ticket, asid(self.space)).expect("it is in flight")
    }
}

impl Edit for Unmap<'_> {
    type Payload = Unmapped;

    fn exclude(&mut self) -> bool {
        self.dash(Dash::exclude)
    }
    fn release(&mut self) {
        self.dash(Dash::release);
    }
    fn update(&mut self) -> Unmapped {
        self.dash(Dash::update);
        Unmapped(self.unmapping.ticket, self.space)
    }
    fn update_again(&mut self, _payload: &mut Unmapped) {
        self.dash(Dash::update);
    }
    fn check(&mut self) -> bool {
        self.dash(Dash::is_lowered)
    }
    fn low_rights(&self) -> LowRights {
        self.unmapping.low_rights
    }
    fn is_walked(&self, _payload: &Unmapped) -> bool {
        false
    }
    fn space(&self) -> &SharedSpace {
        &self.machine.spaces[self.space]
    }
    fn asid(&self) -> Asid {
        asid(self.space)
    }
    fn flush(&self) -> &Flush {
        &self.unmapping.flush
    }
}

struct Cpu<'m> {
    machine: &'m Machine<'m>,
    me: usize,
    /// The space that it runs, and what it has of each.
    space: usize,
    tlb: [[usize; PAGES]; SPACES],
    /// A status write under way.
    late: Option<(usize, usize, usize)>,
}

impl Cpu<'_> {
    fn land(&mut self) {
        if let Some((space, page, word)) = self.late.take() {
            self.machine.words[space][page].store(word, Ordering::SeqCst);
        }
    }

    /// Finds the frame for an access, or `None` if that is a page fault.
    fn translate(&mut self, page: usize, write: bool) -> Option<usize> {
        let (space, of) = (self.space, &self.machine.words[self.space][page]);
        if self.tlb[space][page] == 0 {
            self.tlb[space][page] = of.load(Ordering::SeqCst);
        }
        let held = self.tlb[space][page];
        if held & if write { WRITE } else { READ } == 0 {
            // What it has may be older than the entry.
            self.tlb[space][page] = 0;
            return None;
        }
        if write && held & DIRTY == 0 {
            match self.machine.hardware.dirty.on_hit {
                Status::Never => {}
                Status::FromTlb => {
                    // One write at a time; it lands when it is waited for, or when there is another.
                    self.land();
                    self.late = Some((space, page, held | DIRTY));
                }
                _ => loop {
                    let now = of.load(Ordering::SeqCst);
                    if now & WRITE == 0 {
                        self.tlb[space][page] = 0;
                        return None;
                    }
                    if of.compare_exchange(now, now | DIRTY, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
                        break;
                    }
                },
            }
            self.tlb[space][page] = held | DIRTY;
        }
        Some(held >> 4)
    }

    /// Fails, too, where another CPU has: it would be waited for for ever.
    fn goes_on(&self) {
        assert!(!self.machine.failed.load(Ordering::SeqCst), "another CPU has failed");
    }

    /// A page's word of this CPU.
    fn at(&self, frame: usize) -> &AtomicUsize {
        &self.machine.frames[frame][self.me]
    }
}

impl Drop for Cpu<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.machine.failed.store(true, Ordering::SeqCst);
        }
    }
}

impl LocalCpu<Unmapped> for Cpu<'_> {
    fn flush(&mut self, space: Option<Asid>, what: &Flush, drain: bool) {
        if drain {
            self.land();
        }
        for (of, tlb) in self.tlb.iter_mut().enumerate() {
            for (page, word) in tlb.iter_mut().enumerate() {
                let covers = what.is_all() || what.covers(Pages::one(Vpn::new(page)));
                if covers && space.is_none_or(|space| space == asid(of)) {
                    *word = 0;
                }
            }
        }
    }
    fn drain(&mut self) {
        self.land();
    }
    fn interrupt(&mut self, _cpus: CpuSet) {}
    fn complete(&mut self, _op: OpId, Unmapped(ticket, space): Unmapped, outcome: Outcome) {
        let vm = &mut *self.machine.vm();
        let ended = vm.dash.completed(ticket, asid(space), outcome).expect("it is in flight");
        let ended = ended.expect("the page is one space's");
        vm.due -= 1;
        match ended.message {
            Some(Message::PageOut(frame)) => {
                let dirty = ended.status.contains(Attr::DIRTY);
                if let PageAction::Write(frame) = vm.frames.unmapped(frame, ended.outcome, dirty).unwrap() {
                    vm.laundry.push(frame);
                }
            }
            Some(Message::Reduced(space)) => {
                let more = vm.region.reduced(space, 0);
                vm.act(more);
            }
            None => panic!("a message is lost"),
        }
        assert!(vm.frames.check() && vm.region.check());
        // While an optimistic operation is under way, an old entry may be back.
        let optimistic = vm.dash.config().cheap.algorithm().order() == Order::Optimistic;
        assert!(optimistic || vm.dash.check());
    }
    fn pause(&mut self) {
        self.goes_on();
        std::thread::yield_now();
    }
}

impl Vm<'_> {
    fn map(&mut self, space: usize, page: usize, frame: usize, attr: Attr) {
        let entry = Entry { frame: Pfn::new(frame), attr };
        self.dash.map(asid(space), Vpn::new(page), entry).expect("nothing else is there");
    }

    fn unmap(&mut self, space: usize, page: usize, readonly: bool, message: Message) {
        let hint = Hint { slow: true, conditional: matches!(message, Message::PageOut(_)) };
        let unmapping = self.dash.unmap_asynch(asid(space), Vpn::new(page), readonly, message, hint);
        self.waiting.push((space, unmapping.map_err(|(why, _)| why).expect("it is mapped")));
        self.due += 1;
    }

    /// A page fault at a page of space 0, whose frames come and go.
    fn fault(&mut self, page: usize, frames: &[[AtomicUsize; CPUS]]) {
        if self.dash.fault(asid(0), Vpn::new(page), Attr::WRITE) {
            return;
        }
        if let Some(frame) = self.places[page] {
            if let Ok(PageAction::Map(frame)) = self.frames.fault(frame) {
                self.reclaimed += 1;
                self.map(0, page, frame, Attr::READ | Attr::WRITE);
            }
        } else if let Some(frame) = self.frames.page_in() {
            if let Some(before) = self.pages[frame].replace(page) {
                self.places[before] = None;
            }
            self.places[page] = Some(frame);
            for (word, saved) in frames[frame].iter().zip(self.store[page]) {
                word.store(saved, Ordering::SeqCst);
            }
            self.frames.read(frame).expect("it was being read");
            self.map(0, page, frame, Attr::READ | Attr::WRITE);
        } else if let PageAction::Unmap(frame) = self.frames.unmapper() {
            let page = self.pages[frame].expect("it is in use");
            self.unmap(0, page, false, Message::PageOut(frame));
        }
    }

    /// A launderer writes a page, whatever is stored to it meanwhile.
    fn launder(&mut self, frames: &[[AtomicUsize; CPUS]]) {
        if let Some(frame) = self.laundry.pop() {
            let page = self.pages[frame].expect("it has a page");
            self.store[page] = std::array::from_fn(|cpu| frames[frame][cpu].load(Ordering::SeqCst));
            self.frames.written(frame).expect("it was being written");
            self.written += 1;
        }
    }

    /// Does what the region asks for. Tells whether the call is through.
    fn act(&mut self, asked: Result<LowAction, IpcError>) -> bool {
        match asked {
            Ok(LowAction::Nothing) => true,
            Ok(LowAction::Wait { .. }) => false,
            Ok(LowAction::Map { space, access, .. }) => {
                let attr = if access == Access::Write { Attr::READ | Attr::WRITE } else { Attr::READ };
                self.map(space, 0, 0, attr);
                true
            }
            Ok(LowAction::Reduce { space, access, .. }) => {
                self.unmap(space, 0, access == Access::Read, Message::Reduced(space));
                false
            }
            other => panic!("{other:?} was not asked for"),
        }
    }
}

/// Replies, and starts what waits.
fn serve<'m>(kernel: &Kernel<'m>, seat: &mut Seat<'_>, cpu: &mut Cpu<'m>) {
    cpu.goes_on();
    std::thread::yield_now();
    kernel.poll(seat, cpu).expect("requests are right");
    let next = cpu.machine.vm().waiting.pop();
    if let Some((space, unmapping)) = next {
        let edit = Unmap { machine: cpu.machine, space, unmapping };
        if let Err((edit, why)) = kernel.start(seat, cpu, edit.unmapping.plan, edit) {
            assert!(matches!(why, Misuse::Busy { .. }), "{why}");
            cpu.machine.vm().waiting.push((space, edit.unmapping));
        }
    }
}

/// Runs one thread a CPU, each until all have finished.
fn run<'m>(machine: &'m Machine<'m>, program: impl Fn(&Kernel<'m>, &mut Seat<'_>, &mut Cpu<'m>) + Sync) {
    let kernel = Kernel::new(machine.hardware);
    std::thread::scope(|scope| {
        for me in 0..CPUS {
            let (kernel, program) = (&kernel, &program);
            scope.spawn(move || {
                let mut seat = kernel.attach(me).expect("it is free");
                let mut cpu = Cpu { machine, me, space: 0, tlb: Default::default(), late: None };
                kernel
                    .switch(&mut seat, &mut cpu, SwitchKind::In, &machine.spaces[0], asid(0))
                    .expect("it comes");
                program(kernel, &mut seat, &mut cpu);
                machine.finished.fetch_add(1, Ordering::SeqCst);
                while machine.finished.load(Ordering::SeqCst) < CPUS || machine.vm().due > 0 {
                    serve(kernel, &mut seat, &mut cpu);
                    std::thread::yield_now();
                }
            });
        }
    });
}

/// The machines, each with an asynchronous plan where it suits one.
fn machines() -> [(Algorithm, Hardware); 3] {
    [
        (Algorithm::PteFirstAsync, Hardware::X86_64),
        (Algorithm::OptimisticAsync, Hardware { rewrites_set_bits: false, ..Hardware::VAX }),
        (Algorithm::TwoPhase, Hardware::VAX),
    ]
}

/// Six pages in three frames: each CPU finds in each page what it has stored there last.
#[test]
fn what_was_stored_comes_back_from_the_backing_store() {
    for (algorithm, hardware) in machines() {
        let words = Words::default();
        let machine = Machine::new(algorithm, hardware, &words);
        run(&machine, |kernel, seat, cpu| {
            let mut stored = [0; PAGES];
            let mut random = 1 + cpu.me;
            for count in 1..=if cfg!(miri) { 60 } else { 400 } {
                random = random.wrapping_mul(1_103_515_245).wrapping_add(12345) % (1 << 31);
                let (page, write) = ((random >> 16) % PAGES, random >> 12 & 1 == 1);
                let frame = loop {
                    serve(kernel, seat, cpu);
                    match cpu.translate(page, write) {
                        Some(frame) => break frame,
                        None => cpu.machine.vm().fault(page, &cpu.machine.frames),
                    }
                    cpu.machine.vm().launder(&cpu.machine.frames);
                };
                let found = cpu.at(frame).load(Ordering::SeqCst);
                assert_eq!(found, stored[page], "{algorithm}, CPU {}, page {page}", cpu.me);
                if write {
                    stored[page] = count;
                    cpu.at(frame).store(count, Ordering::SeqCst);
                }
            }
        });
        let vm = machine.vm();
        assert!(vm.written > 0, "{algorithm}: nothing was ever dirty");
    }
}

/// A page goes from space 0, which two CPUs run, to space 1, and back. Once it is received no other CPU stores to it.
#[test]
fn a_received_message_is_the_receivers() {
    for (algorithm, hardware) in machines() {
        let words = Words::default();
        let machine = Machine::new(algorithm, hardware, &words);
        assert_eq!(machine.vm().region.get_ownership(0), Ok(0));
        let turn = AtomicUsize::new(0);
        const MESSAGES: usize = if cfg!(miri) { 4 } else { 16 };
        run(&machine, |kernel, seat, cpu| {
            let machine = cpu.machine;
            let (me, home) = (cpu.me, if cpu.me == 2 { 1 } else { 0 });
            if home == 1 {
                kernel.switch(seat, cpu, SwitchKind::Out, &machine.spaces[0], asid(0)).expect("it ran that");
                kernel.switch(seat, cpu, SwitchKind::In, &machine.spaces[1], asid(1)).expect("it comes");
                cpu.space = 1;
            }
            let store = |cpu: &mut Cpu<'_>, value| {
                let frame = cpu.translate(0, true);
                frame.map(|frame| machine.frames[frame][0].store(value, Ordering::SeqCst)).is_some()
            };
            // The second thread of space 0 stores whenever it may, and whenever its TLB lets it.
            while me == 1 && turn.load(Ordering::SeqCst) < MESSAGES {
                serve(kernel, seat, cpu);
                if !store(cpu, usize::MAX) {
                    let vm = &mut *machine.vm();
                    match vm.region.mapin(0, 0, Access::Write) {
                        Err(why) => assert_eq!(why, IpcError::Denied),
                        asked => _ = vm.act(asked),
                    }
                }
            }
            for message in (0..MESSAGES).filter(|message| me != 1 && message % 2 == home) {
                while turn.load(Ordering::SeqCst) != message {
                    serve(kernel, seat, cpu);
                    std::thread::yield_now();
                }
                // Every other one is sent by a space that believes to be trusted. None is.
                let hint = Send { duplicate: false, trust_hint: message / 2 % 2 == 1 };
                if message > 0 {
                    receive(kernel, seat, cpu, home);
                }
                for value in 0..if home == 1 { 8 } else { 1 } {
                    while !store(cpu, value) {
                        let vm = &mut *machine.vm();
                        let asked = vm.region.mapin(home, 0, Access::Write);
                        vm.act(asked);
                    }
                    std::thread::yield_now();
                    let now = machine.frames[0][0].load(Ordering::SeqCst);
                    assert!(home == 0 || now == value, "{algorithm}: space 0 has stored to a received page");
                    serve(kernel, seat, cpu);
                }
                let vm = &mut *machine.vm();
                vm.passing = Passing::new();
                vm.passing.send(hint);
                while let Some(step) = vm.passing.step() {
                    let MessageStep::StartTransfer { ownership_only } = step else { panic!("{step:?}") };
                    let asked = vm.region.start_transfer(home, 1 - home, 0, ownership_only);
                    vm.act(asked);
                }
                turn.store(message + 1, Ordering::SeqCst);
            }
        });
    }
}

/// Receives the page, and trusts no other space.
fn receive<'m>(kernel: &Kernel<'m>, seat: &mut Seat<'_>, cpu: &mut Cpu<'m>, home: usize) {
    let machine = cpu.machine;
    machine.vm().passing.receive(Receive { trust: false, immediate_use: Access::Write });
    loop {
        let step = machine.vm().passing.step();
        match step {
            Some(MessageStep::FinishTransfer) => loop {
                {
                    let vm = &mut *machine.vm();
                    let Some(space) = vm.region.unfinished_in(0) else { break };
                    let asked = vm.region.finish_transfer(space, 0);
                    vm.act(asked);
                }
                serve(kernel, seat, cpu);
            },
            Some(MessageStep::Mapin(access)) => loop {
                let asked = machine.vm().region.mapin(home, 0, access);
                if machine.vm().act(asked) {
                    break;
                }
                serve(kernel, seat, cpu);
            },
            other => return assert_eq!(other, None, "it has been sent"),
        }
    }
}
