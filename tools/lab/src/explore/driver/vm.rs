//! Chapter 5 over the driver: a kernel whose entries are [`Dash`]'s, whose pages leave by [`PageOut`], and whose messages move
//! by [`IpcRegion`].
//!
//! Each call of the three is one step: they are behind the kernel's lock, which no CPU holds while it waits.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use tlbkit_addr::{Asid, Attr, CpuSet, Flush, PageSize, Pfn, Vpn};
use tlbkit_dash::ipc::{Access, IpcError, IpcRegion, LowAction, MessageStep, Passing, Receive, Send};
use tlbkit_dash::pageout::{PageAction, PageOut, State};
use tlbkit_dash::tolerance::Entry;
use tlbkit_dash::unmapping::{
    Completed, Config, Dash, DashError, Hint, SharingId, Tables, Ticket, Unmapping,
};
use tlbkit_shootdown::{
    CpuHandle, Edit, Hardware, LocalCpu, LowRights, Misuse, OpId, Order, Outcome, Plan, RemoteTlbs, Repair,
    SharedSpace, SwitchKind, System,
};

use super::machine::{
    CPUS, DIRTY, FRAME, Here, PAGES, READ, REFERENCED, WRITE, Word, World, asid, place, rights,
};

type Kernel = System<Unmapped, Unmap, CPUS, 2, 1, 2>;
type Seat<'k> = CpuHandle<'k, 2, 1, 2>;

/// What one CPU does before it serves. Pages are entries of the machine.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Deed {
    /// Declares that the first page is one page of both spaces.
    Share,
    /// Unmaps a page, or makes it read-only.
    Unmap(usize, bool),
    /// Maps a page for writing, with the frame that it had.
    Map(usize),
    /// The unmapper looks for a page; what it finds goes its way through laundry until it is allocated again.
    PageOut,
    /// The page-fault handler, called for a write to the first page.
    Fault,
    /// Space 0 sends the region's page to space 1.
    Send(Send),
    /// Space 1 receives it.
    Receive(Receive),
    /// A space asks for a page that it may write to.
    MakeWritable(usize),
    /// Comes to a space, or goes.
    Switch(SwitchKind, usize),
}

/// The entries, as [`Dash`] sees them.
struct Table {
    world: Rc<World>,
    /// What each entry was when its unmapping was asked for: what an update without [`Repair::EXCHANGE`] has looked at.
    seen: Option<[Cell<Word>; PAGES]>,
}

impl Table {
    fn find(&self, space: Asid, at: Vpn) -> Option<usize> {
        let places = self.world.places();
        places.iter().position(|&(of, page)| asid(of) == space && place(page) == at)
    }
}

const STATUS: [(Word, Attr); 2] = [(REFERENCED, Attr::ACCESSED), (DIRTY, Attr::DIRTY)];

fn entry(word: Word) -> Option<Entry> {
    let mut attr = match rights(word) {
        0 => Attr::empty(),
        READ => Attr::READ,
        _ => Attr::READ.union(Attr::WRITE),
    };
    for (bit, of) in STATUS {
        attr |= if word & bit != 0 { of } else { Attr::empty() };
    }
    // A status bit of a page that is no more is the last that is known of it.
    (word & !FRAME != 0).then_some(Entry { frame: Pfn::new(usize::from(word / FRAME)), attr })
}

fn word(entry: Entry) -> Word {
    let rights = match (entry.attr.contains(Attr::WRITE), entry.attr.contains(Attr::READ)) {
        (true, _) => WRITE,
        (_, true) => READ,
        _ => 0,
    };
    let status =
        STATUS.iter().filter(|(_, of)| entry.attr.contains(*of)).fold(0, |word, (bit, _)| word | bit);
    rights | status | if entry.frame == Pfn::new(0) { 0 } else { FRAME }
}

impl Tables for Table {
    fn entry(&self, space: Asid, at: Vpn) -> Option<Entry> {
        entry(self.world.entry(self.find(space, at)?))
    }
    fn exchange(&mut self, space: Asid, at: Vpn, new: Option<Entry>) -> Option<Entry> {
        let page = self.find(space, at)?;
        let old = self.world.exchange(page, new.map_or(self.world.entry(page) & FRAME, word));
        entry(self.seen.as_ref().map_or(old, |seen| seen[page].get()))
    }
}

/// What an unmapping is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Message {
    Nothing,
    PageOut(usize),
    Reduced { space: usize, page: usize },
}

/// The payload of an operation: that of an unmapping in one space.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unmapped {
    ticket: Ticket,
    page: usize,
    readonly: bool,
    /// The page is both spaces'.
    shared: bool,
}

/// The kernel's virtual memory.
struct Vm {
    world: Rc<World>,
    dash: RefCell<Dash<Table, Message, 4, 4>>,
    frames: RefCell<PageOut<1>>,
    region: RefCell<IpcRegion<2, 2>>,
    passing: RefCell<Passing>,
    /// Operations that have still to be started.
    waiting: RefCell<VecDeque<Unmap>>,
    plan: Plan,
}

impl Vm {
    fn new(world: &Rc<World>, plan: Plan) -> Rc<Self> {
        let seen = (!plan.has(Repair::EXCHANGE)).then(Default::default);
        let config = Config { page: PageSize::K4, prompt: plan, cheap: plan };
        let mut frames = PageOut::new(1);
        let mut region = IpcRegion::new();
        // The one frame and the region's first page are mapped at the first entry.
        let first = region.get_ownership(0).and_then(|page| region.mapin(0, page, Access::Write));
        if frames.allocate(false) != Some(0) || first.is_err() {
            world.wrong("the first page is not there");
        }
        Rc::new(Self {
            world: world.clone(),
            dash: RefCell::new(Dash::new(Table { world: world.clone(), seen }, config)),
            frames: RefCell::new(frames),
            region: RefCell::new(region),
            passing: RefCell::default(),
            waiting: RefCell::default(),
            plan,
        })
    }

    fn at(&self, page: usize) -> (Asid, Vpn) {
        let (space, at) = self.world.places()[page];
        (asid(space), place(at))
    }

    /// The entry of the region's page in a space.
    fn low(&self, space: usize) -> usize {
        self.world.places().iter().position(|&(of, page)| (of, page) == (space, 0)).unwrap_or_default()
    }

    fn map(&self, page: usize, access: Access) -> Result<(), DashError> {
        let (space, at) = self.at(page);
        let frame = Pfn::new(usize::from(self.world.entry(page) / FRAME));
        let attr = if access == Access::Write { Attr::READ | Attr::WRITE } else { Attr::READ };
        self.dash.borrow_mut().map(space, at, Entry { frame, attr })
    }

    /// Asks for an unmapping. Its operations wait for a CPU to start them.
    fn unmap(self: &Rc<Self>, page: usize, readonly: bool, message: Message) -> Result<(), DashError> {
        let (space, at) = self.at(page);
        let mut dash = self.dash.borrow_mut();
        if let Some(seen) = &dash.tables().seen {
            (0..PAGES).for_each(|page| seen[page].set(self.world.entry(page)));
        }
        let hint = Hint { slow: true, conditional: matches!(message, Message::PageOut(_)) };
        let unmapping = dash.unmap_asynch(space, at, readonly, message, hint).map_err(|(why, _)| why)?;
        let shared = dash.spaces_of(unmapping.ticket)?.count() > 1;
        for of in dash.spaces_of(unmapping.ticket)? {
            let page =
                self.world.places().iter().position(|&(space, page)| asid(space) == of && place(page) == at);
            let (vm, unmapping) = (self.clone(), unmapping.clone());
            let page = page.unwrap_or_default();
            self.waiting.borrow_mut().push_back(Unmap { vm, page, readonly, shared, unmapping });
        }
        self.world.due.set(self.world.due.get() + 1);
        Ok(())
    }

    /// Starts what waits.
    fn start(&self, kernel: &Kernel, seat: &mut Seat<'_>, cpu: &mut Cpu) {
        loop {
            let Some(edit) = self.waiting.borrow_mut().pop_front() else { return };
            if let Err((edit, why)) = kernel.start(seat, cpu, edit.unmapping.plan, edit) {
                if !matches!(why, Misuse::Busy { .. }) {
                    return self.world.wrong(format!("CPU {}: {why}", cpu.here.me));
                }
                self.waiting.borrow_mut().push_front(edit);
                wait(kernel, seat, cpu);
            }
        }
    }

    /// An unmapping is through.
    fn received(self: &Rc<Self>, unmapped: Unmapped, ended: Completed<Message>) {
        let Unmapped { page, readonly, shared, .. } = unmapped;
        let world = &self.world;
        world.due.set(world.due.get() - 1);
        let dirty = ended.status.contains(Attr::DIRTY);
        let same = |of: &usize| *of == page || shared && world.places()[*of].1 == world.places()[page].1;
        for page in (0..PAGES).filter(same).filter(|_| ended.outcome == Outcome::Done) {
            world.allow(page, if readonly { READ } else { 0 }, false);
            if world.is_written(page) && !dirty {
                world.wrong(format!(
                    "page {page} has been written to, and its unmapping says that it is clean"
                ));
            }
            // Its owner knows, and if it has kept it, so does the entry.
            if !readonly && ended.message == Some(Message::Nothing) {
                world.save(page);
            }
        }
        match ended.message {
            Some(Message::PageOut(frame)) => self.launder(page, frame, ended),
            Some(Message::Reduced { space, page }) => {
                let more = self.region.borrow_mut().reduced(space, page);
                self.low_action(more);
            }
            Some(Message::Nothing) => {}
            None => world.wrong("a message is lost"),
        }
    }

    /// A launderer takes the unmapper's message, and a page that is clean in the end goes to another owner.
    fn launder(&self, page: usize, frame: usize, ended: Completed<Message>) {
        let world = &self.world;
        let dirty = ended.status.contains(Attr::DIRTY);
        let action = self.frames.borrow_mut().unmapped(frame, ended.outcome, dirty);
        let writes = matches!(action, Ok(PageAction::Write(_)));
        match action {
            Ok(PageAction::Write(_)) => world.save(page),
            Ok(PageAction::Nothing) => {}
            other => return world.wrong(format!("{other:?} of a page that has been unmapped")),
        }
        world.step("write");
        let mut frames = self.frames.borrow_mut();
        if writes && frames.written(frame).is_err() {
            world.wrong("a page was written that was not to be");
        }
        if frames.state(frame) == Some(State::Clean) && world.is_written(page) {
            world.wrong(format!("page {page} is thought to be clean"));
        }
        drop(frames);
        world.step("allocate");
        if self.frames.borrow_mut().allocate(false).is_some() {
            world.free(page, world.entry(page) / FRAME);
        }
        if !self.frames.borrow().check() {
            world.wrong("the pages' states contradict themselves");
        }
    }

    /// Does to the page tables what the region asks for. Tells whether the call is through.
    fn low_action(self: &Rc<Self>, asked: Result<LowAction, IpcError>) -> bool {
        let reduce = |space, page, access| {
            let at = self.low(space);
            self.unmap(at, access == Access::Read, Message::Reduced { space, page })
        };
        let done = match asked {
            Ok(LowAction::Nothing) | Ok(LowAction::Copy { reduce: None, .. }) => Ok(true),
            Ok(LowAction::Wait { .. }) => Ok(false),
            Ok(LowAction::Map { space, access, .. }) => self.map(self.low(space), access).map(|()| true),
            Ok(LowAction::Reduce { space, page, access }) => reduce(space, page, access).map(|()| false),
            Ok(LowAction::Copy { space, page, reduce: Some(access), .. }) => {
                reduce(space, page, access).map(|()| true)
            }
            Err(why) => {
                self.world.wrong(format!("the region: {why}"));
                return true;
            }
        };
        done.unwrap_or_else(|why| {
            self.world.wrong(format!("the region's page: {why}"));
            true
        })
    }

    /// From now on no TLB may have more of the region's page than its space owns, but for that space.
    fn protect(&self, from: usize) {
        let high = |space| match self.region.borrow().high(space, 0) {
            Access::None => 0,
            Access::Read => READ,
            Access::Write => WRITE,
        };
        self.world.allow(self.low(1 - from), high(1 - from), false);
    }
}

/// The operation of an unmapping in one space.
pub(crate) struct Unmap {
    vm: Rc<Vm>,
    page: usize,
    readonly: bool,
    shared: bool,
    unmapping: Unmapping,
}

impl Unmap {
    fn dash<T: Default>(
        &self,
        what: &'static str,
        call: impl FnOnce(&mut Dash<Table, Message, 4, 4>, Ticket, Asid) -> Result<T, DashError>,
    ) -> T {
        self.vm.world.step(what);
        let done = call(&mut self.vm.dash.borrow_mut(), self.unmapping.ticket, self.vm.at(self.page).0);
        done.unwrap_or_else(|why| {
            self.vm.world.wrong(format!("{what}: {why}"));
            T::default()
        })
    }

    fn update(&self) {
        self.dash("update", Dash::update);
        if matches!(self.vm.plan.algorithm().order(), Order::TlbFirst | Order::TwoPhase) {
            self.vm.world.allow(self.page, rights(self.vm.world.entry(self.page)), true);
        }
    }
}

impl Edit<1> for Unmap {
    type Payload = Unmapped;

    fn begin(&mut self, op: OpId) {
        self.vm.world.begin_op(op, vec![self.page], if self.readonly { READ } else { 0 });
    }
    fn exclude(&mut self) -> bool {
        self.dash("exclude", Dash::exclude)
    }
    fn release(&mut self) {
        self.dash("release", Dash::release);
        super::turns::wrote();
    }
    fn set_tentative(&mut self) {
        let tentative = self.dash("set tentative", Dash::tentative);
        self.vm.world.set_tentative(self.page, tentative.map_or(0, word));
    }
    fn set_changing(&mut self, on: bool) {
        self.vm.world.step("set changing");
        self.vm.world.set_changing(self.page, on);
    }
    fn update(&mut self) -> Unmapped {
        Self::update(self);
        let Self { page, readonly, shared, .. } = *self;
        Unmapped { ticket: self.unmapping.ticket, page, readonly, shared }
    }
    fn update_again(&mut self, _payload: &mut Unmapped) {
        Self::update(self);
    }
    fn check(&mut self) -> bool {
        self.dash("check", Dash::is_lowered)
    }
    fn low_rights(&self) -> LowRights {
        self.unmapping.low_rights
    }
    fn is_walked(&self, _payload: &Unmapped) -> bool {
        false
    }
    fn space(&self) -> &SharedSpace {
        &self.vm.world.spaces[self.vm.world.places()[self.page].0]
    }
    fn asid(&self) -> Asid {
        self.vm.at(self.page).0
    }
    fn flush(&self) -> &Flush {
        &self.unmapping.flush
    }
}

/// A CPU, as the driver sees it.
struct Cpu {
    vm: Rc<Vm>,
    here: Here,
}

impl LocalCpu<Unmapped> for Cpu {
    fn flush(&mut self, space: Option<Asid>, what: &Flush, drain: bool) {
        self.here.flush(space, what, drain);
    }
    fn drain(&mut self) {
        self.here.drain();
    }
    fn interrupt(&mut self, cpus: CpuSet) {
        self.here.interrupt(cpus);
    }
    fn ended(&mut self, id: OpId, outcome: Outcome) {
        self.here.world.step("ended");
        self.here.world.end_op(id, outcome);
    }
    fn complete(&mut self, id: OpId, unmapped: Unmapped, outcome: Outcome) {
        let (vm, world) = (self.vm.clone(), self.here.world.clone());
        world.step("complete");
        let ended = vm.dash.borrow_mut().completed(unmapped.ticket, vm.at(unmapped.page).0, outcome);
        match ended {
            Ok(ended) => ended.into_iter().for_each(|ended| vm.received(unmapped, ended)),
            Err(why) => world.wrong(format!("the end of an unmapping: {why}")),
        }
        world.complete_op(id);
    }
    fn pause(&mut self) {
        self.here.pause();
    }
    fn remote(&mut self) -> Option<&mut dyn RemoteTlbs> {
        self.here.remote()
    }
}

fn poll(kernel: &Kernel, seat: &mut Seat<'_>, cpu: &mut Cpu) {
    if let Err(why) = kernel.poll(seat, cpu) {
        cpu.here.world.wrong(format!("CPU {}: {why}", cpu.here.me));
    }
}

/// Waits in the user's program until something has changed, and replies if asked.
fn wait(kernel: &Kernel, seat: &mut Seat<'_>, cpu: &mut Cpu) {
    let (world, me) = (cpu.here.world.clone(), cpu.here.me);
    world.user(me, true);
    world.wait(me);
    world.user(me, false);
    poll(kernel, seat, cpu);
}

/// Calls the region until the answer is neither to reduce a mapping first nor to wait.
fn region(
    kernel: &Kernel,
    seat: &mut Seat<'_>,
    cpu: &mut Cpu,
    call: impl Fn(&mut IpcRegion<2, 2>) -> Result<LowAction, IpcError>,
) {
    loop {
        let vm = cpu.vm.clone();
        cpu.here.world.step("the region");
        let asked = call(&mut vm.region.borrow_mut());
        let through = vm.low_action(asked);
        vm.start(kernel, seat, cpu);
        if through {
            return;
        }
        // What was asked for first may have been done on the spot.
        if matches!(asked, Ok(LowAction::Wait { .. })) {
            wait(kernel, seat, cpu);
        }
    }
}

/// Takes a message's next step. The step that it is follows with nothing in between: a receiver on another CPU must not find the
/// send's steps taken and not done.
fn next(vm: &Vm) -> Option<MessageStep> {
    vm.world.step("the region");
    vm.passing.borrow_mut().step()
}

fn step(kernel: &Kernel, seat: &mut Seat<'_>, cpu: &mut Cpu, step: MessageStep) {
    let vm = cpu.vm.clone();
    match step {
        MessageStep::Duplicate { ownership_only } => {
            let asked = vm.region.borrow_mut().duplicate(0, 0, ownership_only);
            vm.low_action(asked);
        }
        MessageStep::StartTransfer { ownership_only } => {
            let asked = vm.region.borrow_mut().start_transfer(0, 1, 0, ownership_only);
            vm.low_action(asked);
        }
        MessageStep::FinishTransfer => loop {
            let unfinished = vm.region.borrow().unfinished_in(0);
            let Some(space) = unfinished else { break };
            region(kernel, seat, cpu, |region| region.finish_transfer(space, 0));
        },
        MessageStep::Mapin(access) => region(kernel, seat, cpu, |region| region.mapin(1, 0, access)),
    }
    vm.start(kernel, seat, cpu);
    // A receiver waits for the sender's steps, and for what they ask for.
    super::turns::wrote();
}

fn act(kernel: &Kernel, seat: &mut Seat<'_>, cpu: &mut Cpu, deed: Deed) {
    let (vm, world, me) = (cpu.vm.clone(), cpu.here.world.clone(), cpu.here.me);
    world.user(me, false);
    match deed {
        Deed::Share => {
            let at = place(0);
            for space in 0..2 {
                let pages = tlbkit_addr::Pages::one(at);
                let shared = vm.dash.borrow_mut().share(asid(space), SharingId::AllSpaces, pages);
                if let Err(why) = shared {
                    world.wrong(why.to_string());
                }
            }
        }
        Deed::Unmap(page, readonly) => {
            world.step("unmap");
            match vm.unmap(page, readonly, Message::Nothing) {
                // Another CPU has asked for it.
                Ok(()) | Err(DashError::BeingUnmapped(_) | DashError::NotMapped) => {}
                Err(why) => world.wrong(format!("unmapping page {page}: {why}")),
            }
            vm.start(kernel, seat, cpu);
        }
        Deed::Map(page) => {
            world.step("map");
            if let Err(why) = vm.map(page, Access::Write) {
                world.wrong(format!("mapping page {page} as it was: {why}"));
            }
        }
        Deed::PageOut => {
            world.step("unmapper");
            let action = vm.frames.borrow_mut().unmapper();
            if let PageAction::Unmap(frame) = action {
                if let Err(why) = vm.unmap(0, false, Message::PageOut(frame)) {
                    world.wrong(format!("paging out: {why}"));
                }
                vm.start(kernel, seat, cpu);
            }
        }
        Deed::Fault => {
            world.step("fault");
            let (space, at) = vm.at(0);
            // If the entry allows it, the CPU's own flush would do.
            if !vm.dash.borrow().fault(space, at, Attr::WRITE) {
                let reclaimed = vm.frames.borrow_mut().fault(0);
                if reclaimed.is_ok()
                    && let Err(why) = vm.map(0, Access::Write)
                {
                    world.wrong(format!("reclaiming: {why}"));
                }
            }
        }
        Deed::Send(send) => {
            vm.passing.borrow_mut().send(send);
            while let Some(next) = next(&vm) {
                step(kernel, seat, cpu, next);
            }
        }
        Deed::Receive(receive) => {
            vm.passing.borrow_mut().receive(receive);
            loop {
                if let Some(next) = next(&vm) {
                    step(kernel, seat, cpu, next);
                } else if vm.passing.borrow().is_received() {
                    break;
                } else {
                    wait(kernel, seat, cpu);
                    vm.start(kernel, seat, cpu);
                }
            }
            if !receive.trust {
                vm.protect(1);
            }
        }
        Deed::MakeWritable(space) => {
            region(kernel, seat, cpu, |region| region.make_writable(space, 0));
            if vm.region.borrow().ownerships(0) == 1 && vm.region.borrow().high(space, 0) == Access::Write {
                vm.protect(space);
            }
        }
        Deed::Switch(change, space) => {
            if change != SwitchKind::In {
                world.install(me, None);
            }
            if let Err(why) = kernel.switch(seat, cpu, change, &world.spaces[space], asid(space)) {
                return world.wrong(format!("CPU {me}: {why}"));
            }
            if change == SwitchKind::In {
                world.install(me, Some(space));
            }
        }
    }
    // An interrupt may have ended a wait in there.
    poll(kernel, seat, cpu);
    vm.start(kernel, seat, cpu);
    world.user(me, true);
}

/// Tells whether a page is both spaces' from the start.
pub(crate) fn shares(deeds: &[Vec<Deed>]) -> bool {
    deeds.iter().flatten().any(|deed| matches!(deed, Deed::Share))
}

/// Tells whether a page stays readable.
pub(crate) fn protects(deeds: &[Vec<Deed>]) -> bool {
    let protects = |deed: &Deed| match deed {
        Deed::Unmap(_, readonly) => *readonly,
        Deed::Send(send) => send.duplicate,
        _ => false,
    };
    deeds.iter().flatten().any(protects)
}

/// Sets the CPUs up: the bodies of a run.
pub(crate) fn bodies(
    world: &Rc<World>,
    deeds: &[Vec<Deed>],
    plan: Plan,
    hardware: Hardware,
) -> Vec<Box<dyn FnOnce()>> {
    let (kernel, vm) = (Rc::new(Kernel::new(hardware)), Vm::new(world, plan));
    let body = |(me, deeds): (usize, &Vec<Deed>)| {
        let (world, kernel, vm, deeds) = (world.clone(), kernel.clone(), vm.clone(), deeds.clone());
        Box::new(move || {
            let Ok(mut seat) = kernel.attach(me) else { return world.wrong("the CPU has a handle already") };
            let mut cpu = Cpu { vm: vm.clone(), here: Here::new(&world, me) };
            for deed in deeds {
                act(&kernel, &mut seat, &mut cpu, deed);
            }
            world.ready.set(world.ready.get() + 1);
            while !world.is_over() {
                if world.program(me) {
                    poll(&kernel, &mut seat, &mut cpu);
                    vm.start(&kernel, &mut seat, &mut cpu);
                }
            }
            if !vm.dash.borrow().check() || !vm.region.borrow().check() {
                world.wrong("what the kernel remembers contradicts itself");
            }
        }) as Box<dyn FnOnce()>
    };
    deeds.iter().enumerate().map(body).collect()
}
