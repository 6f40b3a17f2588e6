//! The machine under the driver: page-table entries, what each TLB may hold, and status writes that land late.
//!
//! No load of a TLB is a step. For each CPU and page the machine keeps *all* words that the TLB may have loaded since
//! it was last flushed: every word that the entry has been while the CPU could load it. What is wrong of one of those is
//! wrong in some interleaving. What software walks is kept likewise: every node that was linked since the CPU was last in
//! the driver. Only what writes to memory is chosen step by step: a use that sets a status bit non-atomically, and the
//! landing of its write; a store that makes a line of a virtually tagged cache dirty, and its way back to memory.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use tlbkit_addr::{Asid, CpuSet, Flush, FlushScope, Pages, Vpn};
use tlbkit_shootdown::{
    Edit, Form, Hardware, Loader, LocalCpu, OpId, Order, Outcome, Plan, RemoteTlbs, Repair, SharedSpace,
    Status,
};

use super::turns::{Choices, Machine, Stop, stop, wrote};

/// Page-table entries, and copies: rights in the low two bits, then the status bits, then the frame, one of two.
pub(crate) type Word = u8;
pub(crate) const READ: Word = 1;
pub(crate) const WRITE: Word = 2;
const RIGHTS: Word = 3;
pub(crate) const REFERENCED: Word = 4;
pub(crate) const DIRTY: Word = 8;
pub(crate) const FRAME: Word = 16;

pub(crate) const PAGES: usize = 3;
pub(crate) const CPUS: usize = 3;

/// Where each entry is: its address space, and its page there.
pub(crate) type Places = [(usize, usize); PAGES];
/// Pages of one space.
pub(crate) const ONE_SPACE: Places = [(0, 0), (0, 1), (0, 2)];
/// A page of two spaces, and another one of the first.
pub(crate) const TWO_SPACES: Places = [(0, 0), (1, 0), (0, 1)];

pub(crate) const fn rights(word: Word) -> Word {
    word & RIGHTS
}

/// A set of words.
type Words = u32;

fn each(words: Words) -> impl Iterator<Item = Word> {
    (0..32).filter(move |&word| words >> word & 1 != 0)
}

#[derive(Clone, Debug, Default)]
struct Tlb {
    /// What it may hold of each page.
    copies: [Words; PAGES],
    /// A status write under way.
    late: Option<(usize, Word)>,
    /// A dirty line of a page in a virtually tagged cache, and the copy by which it was written: it needs that entry to be
    /// written back.
    lines: [Option<Word>; PAGES],
    /// Nodes, each named as its frame, that walks by software and by hardware may be in.
    walks: [[Words; 2]; PAGES],
    /// What a miss handler may have seen the flag to be.
    flags: [[bool; 2]; PAGES],
    /// The CPU is in the user's program.
    user: bool,
    /// The space whose root is installed.
    installed: Option<usize>,
    interrupted: bool,
}

/// A flush of other CPUs' TLBs that is not done.
#[derive(Clone, Debug)]
struct Asked {
    ticket: u32,
    cpus: CpuSet,
    space: Option<Asid>,
    what: Flush,
    drain: bool,
}

const SOFTWARE: usize = 0;
const HARDWARE: usize = 1;

impl Tlb {
    /// Its walks of this kind have ended.
    fn leave(&mut self, kind: usize) {
        for walks in &mut self.walks {
            walks[kind] = 0;
        }
    }
}

#[derive(Clone, Debug)]
struct State {
    places: Places,
    entries: [Word; PAGES],
    tentative: [Word; PAGES],
    changing: [bool; PAGES],
    locked: [bool; PAGES],
    tlbs: Vec<Tlb>,
    asked: Vec<Asked>,
    tickets: u32,
    /// Frames that have been handed back.
    freed: [Words; PAGES],
    /// The rights that a copy may have at the most: any CPU's, and that of a CPU in the user's program.
    most: [[Word; 2]; PAGES],
    /// A CPU has written to the page since its contents were saved.
    written: [bool; PAGES],
    /// The operations, in the order in which they began.
    ops: Vec<Op>,
    whims: usize,
    /// A CPU that has stopped may hold what it must not, as long as it does not go on (2-phase).
    stops: bool,
    /// So may one that has acknowledged early, as long as it is in its handler.
    handles: bool,
    wrong: Option<String>,
}

#[derive(Clone, Debug)]
struct Op {
    id: OpId,
    pages: Vec<usize>,
    new: Word,
    ended: Option<Outcome>,
    completed: bool,
}

/// What a run begins with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    pub(crate) hardware: Hardware,
    pub(crate) plan: Plan,
    pub(crate) cpus: usize,
    /// How many of them run the space, and how many have run it and may hold its translations.
    pub(crate) running: usize,
    pub(crate) members: usize,
    /// How many operations there are to be.
    pub(crate) operations: usize,
    /// How many status bits the hardware may set.
    pub(crate) whims: usize,
    /// How many of the pages anything is done with.
    pub(crate) pages: usize,
    pub(crate) places: Places,
    /// What the entries are.
    pub(crate) entries: [Word; PAGES],
    pub(crate) trace: bool,
}

/// The machine, and what the driver's hooks do with it.
pub(crate) struct World {
    setup: Setup,
    pub(crate) spaces: [SharedSpace; 2],
    state: RefCell<State>,
    /// CPUs that have come to the end of their script.
    pub(crate) ready: Cell<usize>,
    /// Messages that are to come.
    pub(crate) due: Cell<usize>,
}

pub(crate) fn asid(space: usize) -> Asid {
    Asid::new(1 + space as u16, 8).unwrap_or_default()
}

pub(crate) fn place(page: usize) -> Vpn {
    Vpn::new(page * 16)
}

impl World {
    pub(crate) fn new(setup: Setup) -> Rc<Self> {
        let spaces = [SharedSpace::new(), SharedSpace::new()];
        for cpu in 0..setup.members {
            spaces[0].members.insert(cpu);
        }
        for cpu in 0..setup.running {
            spaces[0].running.insert(cpu);
        }
        let has = |cpu: usize, page: usize| {
            cpu < setup.members && setup.places[page].0 == 0 && rights(setup.entries[page]) != 0
        };
        let tlb = |cpu: usize| Tlb {
            copies: std::array::from_fn(|page| if has(cpu, page) { 1 << setup.entries[page] } else { 0 }),
            user: true,
            installed: (cpu < setup.running).then_some(0),
            ..Tlb::default()
        };
        let mut state = State {
            places: setup.places,
            entries: setup.entries,
            tentative: setup.entries,
            changing: [false; PAGES],
            locked: [false; PAGES],
            tlbs: (0..setup.cpus).map(tlb).collect(),
            asked: Vec::new(),
            tickets: 0,
            freed: [0; PAGES],
            most: setup.entries.map(|entry| [rights(entry); 2]),
            written: [false; PAGES],
            ops: Vec::new(),
            whims: setup.whims,
            stops: setup.plan.stops_repliers(),
            handles: setup.plan.form() == Form::EarlyAcknowledgement
                && setup.plan.has(Repair::FLUSH_BEFORE_USE),
            wrong: None,
        };
        state.spread(&setup.hardware);
        Rc::new(Self { setup, spaces, state: RefCell::new(state), ready: Cell::new(0), due: Cell::new(0) })
    }

    pub(crate) fn step(&self, what: &'static str) {
        stop(Stop::Before(what));
    }

    /// All that was to be done is done.
    pub(crate) fn is_over(&self) -> bool {
        let state = self.state.borrow();
        state.ops.len() >= self.setup.operations
            && state.ops.iter().all(|op| op.ended.is_some() && op.completed)
            && self.ready.get() >= self.setup.cpus
            && self.due.get() == 0
    }

    pub(crate) fn has_ended(&self, at: usize) -> bool {
        self.state.borrow().ops.get(at).is_some_and(|op| op.ended.is_some())
    }

    /// Every operation has been begun, and has ended.
    pub(crate) fn have_ended(&self) -> bool {
        let state = self.state.borrow();
        state.ops.len() == self.setup.operations && state.ops.iter().all(|op| op.ended.is_some())
    }

    pub(crate) fn name(&self, at: usize) -> Option<OpId> {
        self.state.borrow().ops.get(at).map(|op| op.id)
    }

    /// The CPU enters the driver, or leaves it.
    pub(crate) fn user(&self, cpu: usize, is: bool) {
        let mut state = self.state.borrow_mut();
        let tlb = &mut state.tlbs[cpu];
        tlb.user = is;
        tlb.flags = Default::default();
        if !is {
            // Software walks with interrupts masked, and not in the driver.
            tlb.leave(SOFTWARE);
        }
        state.spread(&self.setup.hardware);
        state.judge();
    }

    pub(crate) fn install(&self, cpu: usize, space: Option<usize>) {
        let mut state = self.state.borrow_mut();
        state.tlbs[cpu].installed = space;
        if space.is_none() {
            state.tlbs[cpu].walks = Default::default();
        }
        state.spread(&self.setup.hardware);
        state.judge();
    }

    /// Waits until another CPU has written something, or has interrupted this one.
    pub(crate) fn wait(&self, cpu: usize) {
        stop(Stop::Wait);
        self.state.borrow_mut().tlbs[cpu].interrupted = false;
    }

    /// Runs the user's program until it is interrupted, or everything is over. Tells whether it was interrupted, by its tick where
    /// requests are swept.
    pub(crate) fn program(&self, cpu: usize) -> bool {
        let is_swept = self.setup.plan.form() == Form::Swept;
        self.user(cpu, true);
        stop(if is_swept { Stop::Tick } else { Stop::User });
        self.user(cpu, false);
        std::mem::take(&mut self.state.borrow_mut().tlbs[cpu].interrupted) || is_swept
    }

    pub(crate) fn wrong(&self, why: impl Into<String>) {
        self.state.borrow_mut().wrong.get_or_insert(why.into());
    }

    pub(crate) fn places(&self) -> &Places {
        &self.setup.places
    }

    /// Returns an entry.
    pub(crate) fn entry(&self, page: usize) -> Word {
        self.state.borrow().entries[page]
    }

    /// Exchanges an entry for one that software wants: if it has more rights, TLBs may have them from now on.
    pub(crate) fn exchange(&self, page: usize, new: Word) -> Word {
        let mut state = self.state.borrow_mut();
        let old = std::mem::replace(&mut state.entries[page], new);
        state.most[page] = state.most[page].map(|most| most.max(rights(new)));
        state.spread(&self.setup.hardware);
        drop(state);
        wrote();
        old
    }

    /// From now on no TLB may have more of a page than this; with `user`, none whose CPU is in the user's program.
    pub(crate) fn allow(&self, page: usize, most: Word, user: bool) {
        let mut state = self.state.borrow_mut();
        for (of, now) in state.most[page].iter_mut().enumerate() {
            *now = if of == 1 || !user { most.min(*now) } else { *now };
        }
        state.judge();
    }

    /// The frame that an entry had belongs to something else now.
    pub(crate) fn free(&self, page: usize, frame: Word) {
        let mut state = self.state.borrow_mut();
        state.freed[page] |= 1 << frame;
        state.judge();
    }

    /// Tells whether a CPU has written to a page since it was saved.
    pub(crate) fn is_written(&self, page: usize) -> bool {
        self.state.borrow().written[page]
    }

    /// Saves the contents of a page.
    pub(crate) fn save(&self, page: usize) {
        self.state.borrow_mut().written[page] = false;
    }

    pub(crate) fn set_tentative(&self, page: usize, word: Word) {
        let mut state = self.state.borrow_mut();
        state.tentative[page] = word;
        state.spread(&self.setup.hardware);
    }

    pub(crate) fn set_changing(&self, page: usize, on: bool) {
        let mut state = self.state.borrow_mut();
        state.changing[page] = on;
        state.spread(&self.setup.hardware);
    }

    /// An operation begins that is to leave these rights of these pages.
    pub(crate) fn begin_op(&self, id: OpId, pages: Vec<usize>, new: Word) {
        self.state.borrow_mut().ops.push(Op { id, pages, new, ended: None, completed: false });
        wrote();
    }

    /// One has ended. Tells of which pages, and with what rights.
    pub(crate) fn end_op(&self, id: OpId, outcome: Outcome) -> Option<(Vec<usize>, Word)> {
        let mut state = self.state.borrow_mut();
        let Some(op) = state.op(id) else {
            state.wrong = Some("an operation has ended that no CPU began".into());
            return None;
        };
        if op.ended.replace(outcome).is_some() {
            state.wrong = Some("an operation has ended twice".into());
            return None;
        }
        let of = (op.pages.clone(), op.new);
        drop(state);
        wrote();
        Some(of)
    }

    /// The payload of one comes back.
    pub(crate) fn complete_op(&self, id: OpId) {
        let mut state = self.state.borrow_mut();
        match state.op(id) {
            Some(op) if op.completed => state.wrong = Some("a payload comes back twice".into()),
            Some(op) => op.completed = true,
            None => state.wrong = Some("a payload comes back that no CPU gave".into()),
        }
        drop(state);
        wrote();
    }

    /// Raises the rights of a page, or maps it anew with its other frame, under the lock of `exclude`.
    pub(crate) fn raise(&self, page: usize, other_frame: bool) {
        let mut state = self.state.borrow_mut();
        let frame = state.entries[page] & FRAME ^ if other_frame { FRAME } else { 0 };
        state.freed[page] &= !(1 << (frame / FRAME));
        state.most[page] = [WRITE; 2];
        state.entries[page] = WRITE | frame;
        state.spread(&self.setup.hardware);
        drop(state);
        wrote();
    }
}

impl State {
    /// Every TLB may load what it can see now.
    fn spread(&mut self, hardware: &Hardware) {
        let hard = hardware.loader == Loader::Hardware;
        for tlb in self.tlbs.iter_mut().filter(|tlb| hard || tlb.user) {
            for page in (0..PAGES).filter(|&page| tlb.installed == Some(self.places[page].0)) {
                let (entry, tentative) = (self.entries[page], self.tentative[page]);
                tlb.flags[page][usize::from(self.changing[page])] = true;
                let [table, instead] = tlb.flags[page];
                if (hard || table) && rights(entry) != 0 {
                    tlb.copies[page] |= 1 << entry;
                }
                if !hard && instead && rights(tentative) != 0 {
                    tlb.copies[page] |= 1 << tentative;
                }
                let linked = if rights(entry) == 0 { 0 } else { 1 << (entry / FRAME) };
                let walks = &mut tlb.walks[page];
                walks[SOFTWARE] |= if tlb.user { linked } else { 0 };
                walks[HARDWARE] |= if hard { linked } else { 0 };
            }
        }
    }

    /// Looks for a copy that must not be there.
    fn judge(&mut self) {
        let mut wrong = None;
        for page in 0..PAGES {
            let [most, in_user] = self.most[page];
            if rights(self.entries[page]) > most {
                wrong = Some(format!("entry {page} has the old rights again"));
            }
            let here = Some(self.places[page].0);
            let uses = |tlb: &Tlb| tlb.installed == here && (tlb.user || !self.stops && !self.handles);
            for (cpu, tlb) in self.tlbs.iter().enumerate().filter(|(_, tlb)| uses(tlb)) {
                for word in each(tlb.copies[page]) {
                    let too_much = rights(word) > most || tlb.user && rights(word) > in_user;
                    let freed = self.freed[page] >> (word / FRAME) & 1 != 0;
                    if too_much || freed {
                        let what = if freed { "that has been handed back" } else { "that it must not" };
                        wrong = Some(format!("CPU {cpu} may use page {page} in a way {what}: {word:#x}"));
                    }
                }
            }
        }
        if let Some(why) = wrong {
            self.wrong.get_or_insert(why);
        }
    }

    fn op(&mut self, id: OpId) -> Option<&mut Op> {
        self.ops.iter_mut().rev().find(|op| op.id == id)
    }

    /// What the hardware may do of itself: the landing of a write, a use that sets a bit.
    fn whims(&self, setup: &Setup) -> Vec<Whim> {
        let hardware = &setup.hardware;
        let mut whims = Vec::new();
        for (cpu, tlb) in self.tlbs.iter().enumerate() {
            if tlb.late.is_some() {
                whims.push(Whim::Land { cpu });
                continue;
            }
            let dirty = (0..PAGES).filter(|&page| tlb.lines[page].is_some());
            whims.extend(dirty.map(|page| Whim::WriteBack { cpu, page }));
            if self.stops && !tlb.user {
                continue;
            }
            let here = |page: usize| tlb.installed == Some(self.places[page].0);
            for (page, &copies) in
                tlb.copies.iter().enumerate().take(setup.pages).filter(|&(page, _)| here(page))
            {
                for word in each(copies) {
                    if hardware.lines_need_entry && rights(word) == WRITE && tlb.lines[page].is_none() {
                        whims.push(Whim::Dirty { cpu, page, word });
                    }
                    for (bit, ways) in [(REFERENCED, hardware.referenced), (DIRTY, hardware.dirty)] {
                        let may = bit == REFERENCED || rights(word) == WRITE;
                        if may && word & bit == 0 && ways.on_hit != Status::Never {
                            whims.push(Whim::Use { cpu, page, word, bit, way: ways.on_hit });
                        }
                    }
                }
            }
        }
        whims
    }

    fn indulge(&mut self, hardware: &Hardware, whim: Whim) {
        match whim {
            Whim::Land { cpu } => self.land(cpu),
            Whim::WriteBack { cpu, page } => self.write_back(cpu, page),
            Whim::Dirty { cpu, page, word } => self.tlbs[cpu].lines[page] = Some(word),
            Whim::Use { cpu, page, word, bit, way } => {
                let entry = self.entries[page];
                let tlb = &mut self.tlbs[cpu];
                if way == Status::Atomic && rights(entry) < rights(word) {
                    // It looks at the entry once more, and faults.
                    tlb.copies[page] = 0;
                    return;
                }
                self.written[page] |= bit == DIRTY;
                // It is that copy which the TLB holds, and no other one.
                tlb.copies[page] = 1 << (word | bit);
                match way {
                    Status::Atomic => self.entries[page] |= bit,
                    Status::ReadThenWrite if entry & bit != 0 && !hardware.rewrites_set_bits => {}
                    Status::ReadThenWrite => tlb.late = Some((page, entry | bit)),
                    _ => tlb.late = Some((page, word | bit)),
                }
            }
        }
        self.spread(hardware);
    }

    fn land(&mut self, cpu: usize) {
        if let Some((page, word)) = self.tlbs[cpu].late.take() {
            self.entries[page] = word;
        }
    }

    /// A line leaves the cache. Without the entry by which it was written, a fault puts that entry back (2.3.3).
    fn write_back(&mut self, cpu: usize, page: usize) {
        if let Some(word) = self.tlbs[cpu].lines[page].take()
            && rights(self.entries[page]) < rights(word)
        {
            self.entries[page] = word;
        }
    }

    fn flush(&mut self, cpu: usize, space: Option<Asid>, what: &Flush, drain: bool, setup: &Setup) {
        if drain {
            self.land(cpu);
        }
        let covers = |page: usize| {
            let (of, at) = setup.places[page];
            space.is_none_or(|space| space == asid(of))
                && (what.is_all() || what.covers(Pages::one(place(at))))
        };
        for page in (0..PAGES).filter(|&page| covers(page)) {
            self.write_back(cpu, page);
            self.tlbs[cpu].copies[page] = 0;
        }
        self.tlbs[cpu].leave(HARDWARE);
        self.spread(&setup.hardware);
    }
}

#[derive(Clone, Copy, Debug)]
enum Whim {
    Land { cpu: usize },
    WriteBack { cpu: usize, page: usize },
    Dirty { cpu: usize, page: usize, word: Word },
    Use { cpu: usize, page: usize, word: Word, bit: Word, way: Status },
}

impl Whim {
    /// Tells whether it is the other half of one before.
    fn ends_one(self) -> bool {
        matches!(self, Self::Land { .. } | Self::WriteBack { .. })
    }
}

impl Machine for World {
    fn leaves_user(&self, cpu: usize) -> bool {
        self.state.borrow().tlbs[cpu].interrupted || self.is_over()
    }

    fn end(&self) -> Result<(), String> {
        let mut state = self.state.borrow_mut();
        for cpu in 0..state.tlbs.len() {
            state.land(cpu);
            (0..PAGES).for_each(|page| state.write_back(cpu, page));
        }
        state.judge();
        state.wrong.clone().map_or(Ok(()), Err)
    }

    fn wakes(&self, cpu: usize) -> bool {
        self.state.borrow().tlbs[cpu].interrupted
    }

    fn between(&self, choices: &Choices, next: usize, before: Stop) -> Result<(), String> {
        let mut state = self.state.borrow_mut();
        // Nothing else looks at entries and TLBs: what happens earlier may as well happen now. But a CPU that is about to
        // be stopped uses the page before that.
        let looks = match before {
            Stop::Before(what) => {
                matches!(what, "update" | "flush" | "drain" | "check" | "ended" | "look at TLBs")
                    || what == "interrupt" && state.stops
            }
            _ => false,
        };
        if looks {
            loop {
                // What is under way lands at some time.
                let may = |whim: &Whim| state.whims > 0 || whim.ends_one();
                let whims: Vec<_> = state.whims(&self.setup).into_iter().filter(may).collect();
                let chosen = choices.choose(whims.len() + 1);
                if chosen == 0 {
                    break;
                }
                let whim = whims[chosen - 1];
                if self.setup.trace {
                    eprintln!("        {whim:?}");
                }
                state.whims -= usize::from(!whim.ends_one());
                state.indulge(&self.setup.hardware, whim);
            }
            state.judge();
        }
        if self.setup.trace {
            let copies: Vec<_> = state.tlbs.iter().map(|tlb| tlb.copies).collect();
            eprintln!("  {next}     entries {:?} copies {copies:x?}", state.entries);
        }
        state.wrong.clone().map_or(Ok(()), Err)
    }
}

/// A change of pages' rights; with `STRAIGHT` in a system without state machines.
pub(crate) struct Change<const STRAIGHT: bool> {
    world: Rc<World>,
    pages: Vec<usize>,
    new: Word,
    flush: Flush,
    /// What the entries are to be, as worked out under the exclusion: rights only go down.
    lower: Vec<Word>,
}

impl<const STRAIGHT: bool> Change<STRAIGHT> {
    pub(crate) fn new(world: &Rc<World>, pages: &[usize], new: Word) -> Self {
        let mut flush = Flush::none();
        for &page in pages {
            flush.add(FlushScope::Everywhere, Pages::one(place(page)));
        }
        Self { world: world.clone(), pages: pages.to_vec(), new, flush, lower: vec![new; pages.len()] }
    }

    /// Lowers the entries, and returns the frames that they had.
    fn lower(&self) -> Vec<(usize, Word)> {
        let mut state = self.world.state.borrow_mut();
        let mut frames = Vec::new();
        for (&page, &new) in self.pages.iter().zip(&self.lower) {
            let old = state.entries[page];
            state.entries[page] = old & FRAME | new;
            if new == 0 && rights(old) != 0 {
                frames.push((page, old / FRAME));
            }
            if matches!(self.world.setup.plan.algorithm().order(), Order::TlbFirst | Order::TwoPhase) {
                state.most[page][1] = new;
            }
        }
        state.spread(&self.world.setup.hardware);
        state.judge();
        drop(state);
        wrote();
        frames
    }
}

impl<const STRAIGHT: bool> Edit<1> for Change<STRAIGHT> {
    type Payload = Vec<(usize, Word)>;
    const ONLY_PTE_FIRST: bool = STRAIGHT;

    fn begin(&mut self, id: OpId) {
        self.world.begin_op(id, self.pages.clone(), self.new);
    }
    fn exclude(&mut self) -> bool {
        self.world.step("exclude");
        let mut state = self.world.state.borrow_mut();
        let free = self.pages.iter().all(|&page| !state.locked[page]);
        if free {
            for &page in &self.pages {
                state.locked[page] = true;
            }
            self.lower = self.pages.iter().map(|&page| rights(state.entries[page]).min(self.new)).collect();
            drop(state);
            wrote();
        }
        free
    }
    fn release(&mut self) {
        self.world.step("release");
        let mut state = self.world.state.borrow_mut();
        for &page in &self.pages {
            state.locked[page] = false;
        }
        drop(state);
        wrote();
    }
    fn set_tentative(&mut self) {
        self.world.step("set tentative");
        for (&page, &new) in self.pages.iter().zip(&self.lower) {
            self.world.set_tentative(page, self.world.entry(page) & FRAME | new);
        }
    }
    fn set_changing(&mut self, on: bool) {
        self.world.step("set changing");
        for &page in &self.pages {
            self.world.set_changing(page, on);
        }
    }
    fn update(&mut self) -> Self::Payload {
        self.world.step("update");
        self.lower()
    }
    fn update_again(&mut self, payload: &mut Self::Payload) {
        self.world.step("update");
        for frame in self.lower() {
            if !payload.contains(&frame) {
                payload.push(frame);
            }
        }
    }
    fn check(&mut self) -> bool {
        self.world.step("check");
        let state = self.world.state.borrow();
        self.pages.iter().all(|&page| rights(state.entries[page]) <= self.new)
    }
    fn space(&self) -> &SharedSpace {
        &self.world.spaces[0]
    }
    fn asid(&self) -> Asid {
        asid(0)
    }
    fn flush(&self) -> &Flush {
        &self.flush
    }
}

/// A CPU, as the driver sees it.
pub(crate) struct Here {
    pub(crate) world: Rc<World>,
    pub(crate) me: usize,
    remote: Option<Others>,
}

/// The other CPUs' TLBs.
struct Others(Rc<World>);

impl Here {
    pub(crate) fn new(world: &Rc<World>, me: usize) -> Self {
        let remote = world.setup.hardware.remote_flush.then(|| Others(world.clone()));
        Self { world: world.clone(), me, remote }
    }
}

impl LocalCpu<Vec<(usize, Word)>> for Here {
    fn flush(&mut self, space: Option<Asid>, what: &Flush, drain: bool) {
        self.world.step("flush");
        let mut state = self.world.state.borrow_mut();
        state.flush(self.me, space, what, drain, &self.world.setup);
        state.judge();
    }
    fn drain(&mut self) {
        self.world.step("drain");
        let mut state = self.world.state.borrow_mut();
        state.land(self.me);
        state.spread(&self.world.setup.hardware);
    }
    fn interrupt(&mut self, cpus: CpuSet) {
        self.world.step("interrupt");
        for cpu in cpus.iter() {
            self.world.state.borrow_mut().tlbs[cpu].interrupted = true;
        }
        wrote();
    }
    fn ended(&mut self, id: OpId, outcome: Outcome) {
        self.world.step("ended");
        let Some((pages, new)) = self.world.end_op(id, outcome) else { return };
        if outcome == Outcome::Done {
            for page in pages {
                self.world.allow(page, new, false);
            }
        } else if self.world.setup.plan.algorithm().order() == Order::TlbFirst {
            // Superseded before its update, it has uncovered nothing.
            self.world.complete_op(id);
        }
    }
    fn complete(&mut self, id: OpId, payload: Vec<(usize, Word)>, outcome: Outcome) {
        self.world.step("complete");
        self.world.complete_op(id);
        let mut state = self.world.state.borrow_mut();
        if outcome == Outcome::Done {
            let stops = state.stops;
            for (page, frame) in payload {
                let walker = state.tlbs.iter().position(|tlb| {
                    tlb.installed.is_some()
                        && (tlb.user || !stops)
                        && tlb.walks[page].iter().any(|walks| walks >> frame & 1 != 0)
                });
                if let Some(cpu) = walker {
                    let why = format!("CPU {cpu} may be in a walk of what page {page} hands back");
                    state.wrong.get_or_insert(why);
                }
                state.freed[page] |= 1 << frame;
            }
        }
        state.judge();
        drop(state);
        wrote();
    }
    fn pause(&mut self) {
        // An interrupt may end it, whose handler cannot have the handle.
        self.world.wait(self.me);
    }
    fn remote(&mut self) -> Option<&mut dyn RemoteTlbs> {
        match &mut self.remote {
            Some(others) => Some(others),
            None => None,
        }
    }
}

impl RemoteTlbs for Others {
    fn flush(&mut self, cpus: CpuSet, space: Option<Asid>, what: &Flush, drain: bool) -> u32 {
        self.0.step("ask TLBs");
        let mut state = self.0.state.borrow_mut();
        state.tickets += 1;
        let asked = Asked { ticket: state.tickets, cpus, space, what: what.clone(), drain };
        state.asked.push(asked);
        state.tickets
    }
    /// The flush happens as late as it can: at the first look.
    fn is_flushed(&mut self, ticket: u32) -> bool {
        self.0.step("look at TLBs");
        let mut state = self.0.state.borrow_mut();
        if let Some(at) = state.asked.iter().position(|asked| asked.ticket == ticket) {
            let Asked { cpus, space, what, drain, .. } = state.asked.remove(at);
            for cpu in cpus.iter() {
                if drain && self.ends_walks() {
                    // Miss handlers under way have ended.
                    state.tlbs[cpu].flags = Default::default();
                    state.tlbs[cpu].leave(SOFTWARE);
                }
                state.flush(cpu, space, &what, drain, &self.0.setup);
            }
            state.judge();
        }
        true
    }
    /// Where software loads the TLB, the flush waits for it; where hardware does, it knows of no other walk.
    fn ends_walks(&self) -> bool {
        self.0.setup.hardware.loader == Loader::Software
    }
}
