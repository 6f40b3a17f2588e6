//! Three CPUs whose TLBs keep every translation and link that they have ever walked, until a flush that covers it, and that
//! walk between any two calls of the kernel's; an address space is compared with a map of its pages after every operation.
//! One thread runs as all CPUs, so that each seed is the same run every time. The witness (`tlbkit-witness`) hears of all that the
//! kernel does, and finds nothing missing.
// Miri would take minutes for a seed.
#![cfg(all(target_pointer_width = "64", not(miri)))]

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::mem::ManuallyDrop;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

use tlbkit::{
    Access, AddressSpace, Asid, Attr, Change, CpuSet, Deferred, Edit, Entry, Error, Fault, Flush, Kernel,
    Leaf, Mark, Mmu, Overdue, PageSize, Pages, Pfn, PhysAddr, Place, Reason, Record, Run, Store,
    SupervisorPages, VirtAddr, Vpn, arch,
};
use tlbkit_witness::check::{Arch, Checker};
use tlbkit_witness::event::{Barrier, Event, Fence, Memory};

const CPUS: usize = 3;
const SEEDS: u64 = if cfg!(tlbkit_full) { 20 } else { 3 };
const STEPS: usize = 500;
/// How many runs of frames can wait for a later flush.
const PLACES: usize = 32;
/// The most that one change uncovers.
const RUNS: usize = 16;
const RAM: usize = 0x8_0000;
const NODES: usize = 160;
/// Frames of users are numbers alone: no code looks into them.
const DATA: usize = 0x100_0000;
const TOP: usize = usize::MAX >> 12;
const HIGH: usize = 0xffff_ffc0_0000_0000 >> 12;
/// The two last top-level slots.
const LENT: usize = TOP + 1 - (2 << 18);
const STATUS: Attr = Attr::ACCESSED.union(Attr::DIRTY);
const ACCESS: Attr = Attr::READ.union(Attr::WRITE).union(Attr::EXEC);
const RWU: Attr = Attr::READ.union(Attr::WRITE).union(Attr::USER);
const V: u64 = 1;
const R: u64 = 2;
const W: u64 = 4;
const X: u64 = 8;
const U: u64 = 16;
const G: u64 = 32;
const A: u64 = 64;
const D: u64 = 128;

type Space = AddressSpace<Foe, CPUS>;

#[repr(C, align(4096))]
struct Frame([AtomicU64; 512]);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Call {
    Take,
    Give,
    Release,
    Share,
    Closure,
    Frames,
}

/// What a TLB remembers of a page: a leaf's frame and bits, or that there was none, at a link or at the last level.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Held {
    asid: usize,
    page: usize,
    frame: usize,
    bits: u64,
    no_link: bool,
}

/// A link that a walk has passed: the node of `level` on the way to the pages with this prefix.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Link {
    asid: usize,
    level: usize,
    prefix: usize,
    node: usize,
}

#[derive(Default)]
struct Tlb {
    satp: usize,
    held: Vec<Held>,
    links: Vec<Link>,
    asked: bool,
}

struct State {
    taken: Vec<bool>,
    data: HashMap<usize, usize>,
    next: usize,
    /// How many pages have each payload, or are about to.
    payloads: HashMap<u64, usize>,
    next_payload: u64,
    tlbs: [Tlb; CPUS],
    allowed: usize,
    fuse: Option<(Call, usize)>,
    released: Vec<Run>,
    random: u64,
    pauses: usize,
    bits: u32,
    forgets: bool,
    /// The witness, and how many events it has seen.
    witness: (Checker, u64),
}

impl State {
    fn below(&mut self, end: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) as usize % end
    }
}

thread_local! {
    static CPU: Cell<usize> = const { Cell::new(0) };
    static STATE: RefCell<Option<State>> = const { RefCell::new(None) };
}

fn with<T>(f: impl FnOnce(&mut State) -> T) -> T {
    STATE.with_borrow_mut(|state| f(state.as_mut().unwrap()))
}

fn below(end: usize) -> usize {
    with(|state| state.below(end))
}

/// Tells the witness what this CPU has done.
fn say(event: Event) {
    with(|state| {
        state.witness.1 += 1;
        let (checker, line) = &mut state.witness;
        if let Err(why) = checker.event(*line, CPU.get(), event) {
            // One panic is enough.
            assert!(state.forgets && std::thread::panicking(), "the witness: {why}");
        }
    });
}

fn memory(first: usize, frames: usize, free: bool) -> Memory {
    Memory { at: (first as u64) << 12, bytes: (frames as u64) << 12, free }
}

/// Unwinds, if this call is the one that is to.
fn call(what: Call) {
    let now = with(|state| match &mut state.fuse {
        Some((armed, left)) if *armed == what => {
            *left -= 1;
            *left == 0
        }
        _ => false,
    });
    if now {
        with(|state| state.fuse = None);
        resume_unwind(Box::new("the kernel unwinds"));
    }
}

struct Foe {
    deferred: Deferred<[Place; PLACES]>,
    frames: &'static [Frame],
    records: &'static [Record],
    mmu: OnceLock<&'static Mmu<Foe, CPUS>>,
}

fn asid_of(satp: usize) -> usize {
    satp >> 44 & 0xffff
}

impl Foe {
    fn word(&self, node: usize, index: usize) -> &AtomicU64 {
        &self.frames[node - RAM].0[index]
    }

    /// Walks by hardware, from any node that the CPU knows on the way, and remembers all it meets.
    fn walk(&self, state: &mut State, cpu: usize, page: usize) -> Option<(Held, &AtomicU64)> {
        if !in_space(page) {
            return None;
        }
        let (satp, asid) = (state.tlbs[cpu].satp, asid_of(state.tlbs[cpu].satp));
        let (mut level, mut node) = (2, satp & ((1 << 44) - 1));
        let known: Vec<Link> = state.tlbs[cpu]
            .links
            .iter()
            .copied()
            .filter(|link| link.asid == asid && link.prefix == page >> (9 * (link.level + 1)))
            .collect();
        let choice = state.below(known.len() + 1);
        if let Some(link) = known.get(choice) {
            (level, node) = (link.level, link.node);
        }
        loop {
            assert!(state.taken[node - RAM], "CPU {cpu} walks in a free frame");
            let cell = self.word(node, page >> (9 * level) & 511);
            let word = cell.load(Ordering::SeqCst);
            let frame = (word >> 10 & ((1 << 44) - 1)) as usize;
            if word & V == 0 {
                let no_link = level > 0;
                let held = Held { asid, page, frame: 0, bits: 0, no_link };
                state.tlbs[cpu].held.push(held);
                return None;
            }
            if word & (R | X) != 0 {
                let frame = frame + (page & ((1 << (9 * level)) - 1));
                let held = Held { asid, page, frame, bits: word & 0xff, no_link: false };
                state.tlbs[cpu].held.push(held);
                return Some((held, cell));
            }
            assert!(level > 0, "a link in a node of the last level");
            level -= 1;
            node = frame;
            let link = Link { asid, level, prefix: page >> (9 * (level + 1)), node };
            if !state.tlbs[cpu].links.contains(&link) {
                state.tlbs[cpu].links.push(link);
            }
        }
    }

    /// Hardware walks whenever it likes.
    fn speculate(&self) {
        with(|state| {
            for cpu in 0..CPUS {
                if state.tlbs[cpu].satp != 0 && state.below(2) == 0 {
                    let page = some_page(state);
                    let _ = self.walk(state, cpu, page);
                }
            }
        });
    }

    /// An access of the user program on this CPU: the frame that it reaches.
    fn access(&self, page: usize, store: bool) -> Option<usize> {
        let cpu = CPU.get();
        with(|state| {
            if state.tlbs[cpu].satp == 0 {
                return None;
            }
            let asid = asid_of(state.tlbs[cpu].satp);
            let known: Vec<Held> = state.tlbs[cpu]
                .held
                .iter()
                .copied()
                .filter(|held| held.page == page && (held.asid == asid || held.bits & G != 0))
                .collect();
            let held = if known.is_empty() || state.below(4) == 0 {
                self.walk(state, cpu, page)?.0
            } else {
                known[state.below(known.len())]
            };
            let needed = if store { V | R | W | U } else { V | R | U };
            let status = if store { A | D } else { A };
            if held.bits & needed != needed {
                return None;
            }
            if held.bits & status != status {
                let (now, cell) = self.walk(state, cpu, page)?;
                if now.bits & needed != needed || now.frame != held.frame {
                    return None;
                }
                cell.fetch_or(status, Ordering::SeqCst);
                let bits = held.bits | status;
                state.tlbs[cpu].held.push(Held { bits, ..now });
            }
            Some(held.frame)
        })
    }
}

// SAFETY: each frame is handed out once until it is given back, at a fixed address, with a record of its own; the one thread
// is the CPU that it says; a flush takes out of the TLB what is named.
unsafe impl Kernel for Foe {
    type Machine = arch::Sv39;

    fn deferred(&self) -> Option<&Deferred> {
        Some(&self.deferred)
    }
    fn cpu(&self) -> usize {
        CPU.get()
    }
    fn take_frame(&self) -> Option<PhysAddr> {
        self.speculate();
        call(Call::Take);
        with(|state| {
            state.allowed = state.allowed.checked_sub(1)?;
            let free = state.taken.iter().position(|&taken| !taken)?;
            state.taken[free] = true;
            Some(PhysAddr::new((RAM + free) << 12))
        })
        .inspect(|frame| say(Event::Node(memory(frame.get() >> 12, 1, false))))
    }
    fn give_frame(&self, frame: PhysAddr) {
        let node = frame.get() >> 12;
        say(Event::Node(memory(node, 1, true)));
        with(|state| {
            assert!(std::mem::replace(&mut state.taken[node - RAM], false), "given twice");
            for (cpu, tlb) in state.tlbs.iter().enumerate().filter(|(_, tlb)| tlb.satp != 0) {
                let reaches = |link: &&Link| link.asid == asid_of(tlb.satp) && link.node == node;
                assert_eq!(
                    tlb.links.iter().find(reaches),
                    None,
                    "CPU {cpu} may walk a node that is given back"
                );
                assert_ne!(tlb.satp & ((1 << 44) - 1), node, "CPU {cpu} runs it");
            }
        });
        // Its next owner writes what it likes.
        self.frames[node - RAM].0.iter().for_each(|word| word.store(!0, Ordering::SeqCst));
        call(Call::Give);
    }
    fn memory(&self, frame: PhysAddr) -> *mut u8 {
        self.frames[(frame.get() >> 12) - RAM].0.as_ptr().cast_mut().cast()
    }
    fn record(&self, frame: PhysAddr) -> Option<&Record> {
        self.records.get((frame.get() >> 12) - RAM)
    }
    fn release(&self, run: Run) {
        self.speculate();
        let mut gone = Vec::new();
        with(|state| {
            state.released.push(run);
            for frame in run.frames() {
                let count = state.data.get_mut(&frame.get()).expect("a frame that is mapped is released");
                *count -= 1;
                if *count > 0 {
                    continue;
                }
                state.data.remove(&frame.get());
                gone.push(frame.get());
                for (cpu, tlb) in state.tlbs.iter().enumerate().filter(|(_, tlb)| tlb.satp != 0) {
                    let usable = |held: &&Held| {
                        held.bits & V != 0
                            && held.frame == frame.get()
                            && (held.asid == asid_of(tlb.satp) || held.bits & G != 0)
                    };
                    assert_eq!(tlb.held.iter().find(usable), None, "CPU {cpu} reaches a released frame");
                }
            }
        });
        gone.into_iter().for_each(|frame| say(Event::Frame(memory(frame, 1, true))));
        call(Call::Release);
    }
    fn release_payload(&self, payload: u64) {
        self.speculate();
        let_go(payload);
        call(Call::Release);
    }
    fn share_payload(&self, payload: u64) {
        call(Call::Share);
        with(|state| *state.payloads.get_mut(&payload).expect("a payload that a page has is shared") += 1);
        self.speculate();
    }
    fn share(&self, run: Run) {
        call(Call::Share);
        with(|state| {
            for frame in run.frames() {
                *state.data.get_mut(&frame.get()).expect("a frame that is mapped is shared") += 1;
            }
        });
        self.speculate();
    }
    fn flush(&self, flush: &Flush<'_>, asid: Option<Asid>) {
        self.speculate();
        if with(|state| state.forgets) {
            return;
        }
        let number = asid.map(Asid::get);
        match flush.by_address() {
            Some(pages) => pages.for_each(|at| {
                let at = at.get() as u64;
                say(Event::Fence(Fence { pages: Some((at, at)), asid: number, ..Fence::default() }));
            }),
            None => say(Event::Fence(Fence { asid: number, ..Fence::default() })),
        }
        let of = |tag: usize, bits: u64| asid.is_none_or(|asid| tag == asid.get().into() && bits & G == 0);
        with(|state| {
            let tlb = &mut state.tlbs[CPU.get()];
            match flush.by_address() {
                Some(pages) => {
                    let named: Vec<usize> = pages.map(|at| at.get() >> 12).collect();
                    let gone =
                        |held: &Held| of(held.asid, held.bits) && !held.no_link && named.contains(&held.page);
                    tlb.held.retain(|held| !gone(held));
                }
                None => {
                    tlb.held.retain(|held| !of(held.asid, held.bits));
                    tlb.links.retain(|link| !of(link.asid, 0));
                }
            }
        });
    }
    fn stored(&self, store: Store) {
        say(match store {
            Store::Word { at, value } => Event::Write { at: at as u64, value },
            Store::Exchange { at, old, new } => Event::Swap { at: at as u64, old, new },
            Store::Release => Event::Barrier(Barrier::Release),
            Store::Fence => Event::Barrier(Barrier::Complete),
        });
    }
    fn interrupt(&self, cpus: CpuSet) {
        let bits = cpus.into_iter().fold(0, |bits, cpu| bits | 1 << cpu);
        say(Event::IpiSend { cpus: bits, id: 0 });
        with(|state| cpus.into_iter().for_each(|cpu| state.tlbs[cpu].asked = true));
        self.speculate();
    }
    fn overdue(&self, what: Overdue) {
        eprintln!("CPU {} waits for ever: {what:?}", CPU.get());
        std::process::abort();
    }
    fn pause(&self) {
        self.speculate();
        let me = CPU.get();
        with(|state| {
            state.pauses += 1;
            assert!(state.pauses < 100_000, "CPU {me} waits for ever");
        });
        for cpu in (0..CPUS).filter(|&cpu| cpu != me) {
            if with(|state| std::mem::replace(&mut state.tlbs[cpu].asked, false)) {
                CPU.set(cpu);
                say(Event::IpiTake { id: 0 });
                self.mmu.get().unwrap().on_interrupt();
                CPU.set(me);
            }
        }
    }
    fn masked<T>(&self, f: impl FnOnce() -> T) -> T {
        f()
    }
    fn load(&self, root: usize) {
        self.speculate();
        with(|state| state.tlbs[CPU.get()].satp = root);
        say(Event::Root { value: root as u64, high: false });
        self.speculate();
    }
    fn unload(&self) {
        with(|state| state.tlbs[CPU.get()].satp = 0);
        say(Event::Root { value: 0, high: false });
    }
    fn asid_bits(&self) -> u32 {
        with(|state| state.bits)
    }
}

/// A page near something: the ends of nodes, of halves, of what is lent.
fn some_page(state: &mut State) -> usize {
    const AT: [usize; 10] = [0, 0x1ff, 0x200, 0x400, 0x3_ffff, 0x3ff_ffff, HIGH, LENT, LENT + 0x200, TOP];
    let at = AT[state.below(AT.len())];
    let at = match state.below(4) {
        0 => at.saturating_add(state.below(4)),
        1 => at.saturating_sub(state.below(4)),
        _ => at,
    };
    if state.below(40) == 0 { at.wrapping_mul(3) & TOP } else { at.min(TOP) }
}

fn in_space(page: usize) -> bool {
    page < 1 << 26 || (HIGH..=TOP).contains(&page)
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Page {
    frame: usize,
    pages: usize,
    attr: Attr,
    written: bool,
}

/// What an address space is to be.
struct Model {
    handles: Vec<Space>,
    lends: bool,
    lender: Option<usize>,
    leaves: BTreeMap<usize, Page>,
    marks: BTreeMap<usize, Mark>,
}

impl Model {
    fn find(&self, page: usize) -> Option<(usize, Page)> {
        let (&at, &leaf) = self.leaves.range(..=page).next_back()?;
        (page - at < leaf.pages).then_some((at, leaf))
    }

    fn any(&self, first: usize, last: usize) -> bool {
        self.find(first).is_some()
            || self.leaves.range(first..=last).next().is_some()
            || self.marks.range(first..=last).next().is_some()
    }

    fn borrows(&self, first: usize, last: usize) -> bool {
        self.lender.is_some() && last >= LENT && first <= TOP
    }

    fn split(&mut self, first: usize, last: usize) {
        for end in [first, last] {
            if let Some((at, leaf)) = self.find(end)
                && (at < first || at + leaf.pages - 1 > last)
            {
                self.leaves.remove(&at);
                for page in 0..leaf.pages {
                    let small = Page { frame: leaf.frame + page, pages: 1, ..leaf };
                    self.leaves.insert(at + page, small);
                }
            }
        }
    }
}

struct World {
    mmu: &'static Mmu<Foe, CPUS>,
    spaces: BTreeMap<usize, Model>,
    names: usize,
    runs: [Option<usize>; CPUS],
    half: [Option<usize>; CPUS],
    /// The pages whose unmap was deferred, with their address spaces, and how many runs of frames that were.
    waiting: Vec<(usize, usize, Page)>,
    runs_waiting: usize,
    /// How many have waited, and how often the user has used one meanwhile.
    waited: (usize, usize),
}

fn pages(first: usize, last: usize) -> Pages {
    Pages::new(Vpn::new(first), Vpn::new(last)).unwrap()
}

fn address(page: usize) -> VirtAddr {
    VirtAddr::new(page << 12)
}

/// Takes contiguous frames, each mapped once from now on.
fn fresh(count: usize) -> usize {
    with(|state| {
        state.next = state.next.next_multiple_of(count) + if count == 1 { state.below(2) } else { 0 };
        let first = state.next;
        state.next += count;
        (first..first + count).for_each(|frame| assert_eq!(state.data.insert(frame, 1), None));
        first
    })
}

fn put_back(first: usize, count: usize) {
    with(|state| (first..first + count).for_each(|frame| assert_eq!(state.data.remove(&frame), Some(1))));
}

/// Makes a payload that one page is to have.
fn new_payload() -> u64 {
    with(|state| {
        state.next_payload += 1;
        state.payloads.insert(state.next_payload, 1);
        state.next_payload
    })
}

/// Notes that one page less has a payload.
fn let_go(payload: u64) {
    with(|state| {
        let count = state.payloads.get_mut(&payload).expect("a payload that a page has is released");
        *count -= 1;
        if *count == 0 {
            state.payloads.remove(&payload);
        }
    });
}

fn let_go_of(mark: Option<Mark>) {
    if let Some(Mark::Payload(payload, _)) = mark {
        let_go(payload);
    }
}

fn plain(leaf: &Leaf) -> Attr {
    leaf.attr.difference(STATUS)
}

fn some_attr(lends: bool) -> Attr {
    match below(9) {
        0 => Attr::READ | Attr::USER,
        8 => Attr::USER,
        1 => Attr::READ | Attr::WRITE,
        2 => RWU | Attr::DEVICE,
        3 => RWU | Attr::EXEC,
        4 | 5 if lends => RWU | Attr::GLOBAL,
        _ => RWU,
    }
}

fn some_change() -> Change {
    let clear = [
        Attr::WRITE,
        Attr::EXEC,
        Attr::USER,
        Attr::DIRTY,
        Attr::COPY_ON_WRITE,
        Attr::empty(),
        ACCESS,
        Attr::READ,
    ][below(8)];
    let set = [Attr::WRITE, Attr::EXEC, Attr::USER, Attr::ACCESSED, Attr::empty(), Attr::READ][below(6)];
    Change { clear, set }
}

fn changed(leaf: &mut Page, change: Change) {
    leaf.attr = change.apply(leaf.attr).difference(STATUS);
    // What can be written or executed can be read.
    leaf.attr.set(Attr::READ, leaf.attr.intersects(ACCESS));
    leaf.written &= !change.clear.contains(Attr::DIRTY);
}

/// What a page that is out has when it comes back changes as what a leaf has.
fn changed_mark(mark: &mut Mark, change: Change) {
    if let Mark::Payload(_, attr) = mark {
        *attr = change.apply(*attr).intersection(Mark::KEPT);
        attr.set(Attr::READ, attr.intersects(ACCESS));
    }
}

/// One change by an edit, of the model too if it succeeds.
fn change(edit: &mut Edit<'_, Foe, CPUS>, model: &mut Model, kernels: &BTreeMap<usize, Model>) {
    let page = with(some_page);
    let count = [1, 1, 1, 2, 5, 0x200, 0x203][below(7)];
    let last = page.saturating_add(count - 1).min(TOP);
    let range = pages(page, last);
    let len = last - page + 1;
    let scarce = with(|state| state.allowed < 1 << 20);
    let fits = in_space(page) && in_space(last) && (page < HIGH) == (last < HIGH);
    let own = fits && !model.borrows(page, last);
    match below(12) {
        0..3 if len < 16 => {
            let (frame, attr) = (fresh(len), some_attr(model.lends));
            let wanted = own
                && !model.any(page, last)
                && (!attr.contains(Attr::GLOBAL) || model.lends && page >= LENT);
            let done = edit.map(range, Pfn::new(frame), attr);
            assert!(done.is_ok() == wanted || scarce, "{range:?} {done:?}");
            if done.is_err() {
                return put_back(frame, len);
            }
            for at in 0..len {
                model.leaves.insert(page + at, Page { frame: frame + at, pages: 1, attr, written: false });
            }
        }
        0..2 => {
            let (at, frame) = (page & !511, fresh(512));
            let free = in_space(at) && !model.any(at, at + 511) && !model.borrows(at, at + 511);
            let done = match below(2) {
                0 => edit.map_sized(pages(at, at + 511), Pfn::new(frame), PageSize::M2, RWU),
                _ => edit.map_linear(pages(at, at + 511), Pfn::new(frame), RWU),
            };
            assert!(done.is_ok() == free || scarce, "{at:#x} {done:?}");
            if done.is_err() {
                return put_back(frame, 512);
            }
            model.leaves.insert(at, Page { frame, pages: 512, attr: RWU, written: false });
        }
        2 | 3 => {
            let enough = below(3) > 0;
            let frames: Vec<usize> = (0..len.min(6)).map(|_| fresh(1)).collect();
            let given = if enough && len <= 6 { len } else { len.min(6) - 1 };
            let each = frames[..given].iter().map(|&frame| {
                call(Call::Frames);
                Pfn::new(frame)
            });
            let wanted = own && given == len && !model.any(page, last);
            let done = edit.map_each(range, each, RWU);
            assert!(done.is_ok() == wanted || scarce, "{range:?} {done:?}");
            for (at, frame) in frames.into_iter().enumerate() {
                if done.is_ok() {
                    model.leaves.insert(page + at, Page { frame, pages: 1, attr: RWU, written: false });
                } else {
                    put_back(frame, 1);
                }
            }
        }
        4..6 => {
            let done = edit.unmap(range);
            assert!(done.is_ok() == own || scarce, "{range:?} {done:?}");
            if let Ok(unmapped) = done {
                model.split(page, last);
                let gone: Vec<usize> = model.leaves.range(page..=last).map(|(&at, _)| at).collect();
                let gone: Vec<Page> = gone.iter().filter_map(|at| model.leaves.remove(at)).collect();
                assert_eq!(gone.iter().map(|leaf| leaf.pages).sum::<usize>(), unmapped);
                model.marks.retain(|at, _| !(page..=last).contains(at));
                edit.flush();
                gone.iter().filter(|leaf| leaf.written).for_each(was_dirty);
            }
        }
        6..8 => {
            let what = some_change();
            let done = edit.protect(range, what);
            assert!(done.is_ok() == own || scarce, "{range:?} {what:?} {done:?}");
            if done.is_ok() {
                model.split(page, last);
                model.leaves.range_mut(page..=last).for_each(|(_, leaf)| changed(leaf, what));
                model.marks.range_mut(page..=last).for_each(|(_, mark)| changed_mark(mark, what));
            }
        }
        8 => {
            let at = page & !511;
            let to = [PageSize::K4, PageSize::M2][below(2)];
            if edit.resize(pages(at, at + 511), to).is_ok() {
                let written = model.leaves.range(at..at + 512).any(|(_, leaf)| leaf.written);
                if to == PageSize::K4 {
                    model.split(at, at);
                } else if let Some((_, first)) = model.find(at) {
                    model.leaves.retain(|page, _| !(at..at + 512).contains(page));
                    model.leaves.insert(at, Page { pages: 512, written, ..first });
                }
            }
        }
        _ => cursor(edit, model, kernels, page),
    }
}

/// What was written is released as dirty.
fn was_dirty(leaf: &Page) {
    with(|state| {
        let of = |run: &&Run| (run.first.get()..run.first.get() + run.len).contains(&leaf.frame);
        assert!(state.released.iter().rev().find(of).is_none_or(|run| run.dirty), "{leaf:?} was written");
    });
}

/// What a cursor does at page after page.
fn cursor(edit: &mut Edit<'_, Foe, CPUS>, model: &mut Model, kernels: &BTreeMap<usize, Model>, page: usize) {
    let mut at = page;
    let scarce = with(|state| state.allowed < 1 << 20);
    let Ok(mut cursor) = edit.cursor(address(at)) else { return assert!(!in_space(at)) };
    assert!(in_space(at));
    for _ in 0..8 {
        let shared = model.borrows(at, at);
        let find = |model: &Model, page| match model.lender.and_then(|lender| kernels.get(&lender)) {
            Some(lender) if page >= LENT => lender.find(page),
            _ => model.find(page),
        };
        let found = find(model, at);
        let look = cursor.look();
        assert_eq!(cursor.at(), address(at));
        assert_eq!(look.map(|leaf| leaf.frame.get()), found.map(|(_, leaf)| leaf.frame), "{at:#x}");
        assert_eq!(look.map(|leaf| plain(&leaf)), found.map(|(_, leaf)| leaf.attr), "{at:#x}");
        let marked = match model.lender.and_then(|lender| kernels.get(&lender)) {
            Some(lender) if at >= LENT => lender.marks.get(&at),
            _ => model.marks.get(&at),
        };
        let marked = marked.copied();
        assert_eq!(cursor.entry().mark(), marked, "{at:#x}");
        match below(11) {
            0 => {
                let frame = fresh(1);
                let done = cursor.map(Pfn::new(frame), RWU);
                let free = found.is_none() && marked.is_none() && !shared;
                assert!(done.is_ok() == free || scarce, "{at:#x} {done:?}");
                if done.is_ok() {
                    model.leaves.insert(at, Page { frame, pages: 1, attr: RWU, written: false });
                } else {
                    put_back(frame, 1);
                }
            }
            1 => {
                let done = cursor.unmap();
                assert_eq!(done.is_ok(), found.is_some() && !shared, "{at:#x} {done:?}");
                if let (Ok(leaf), Some((first, was))) = (done, found) {
                    assert!(!was.written || leaf.attr.contains(Attr::DIRTY));
                    model.leaves.remove(&first);
                }
            }
            2 => {
                let what = some_change();
                if cursor.protect(what).is_ok() {
                    match found {
                        Some((first, _)) => changed(model.leaves.get_mut(&first).unwrap(), what),
                        None => changed_mark(model.marks.get_mut(&at).unwrap(), what),
                    }
                }
            }
            3 => {
                let frame = fresh(1);
                let done = cursor.replace(Pfn::new(frame), RWU);
                assert!(done.is_ok() == (found.is_some() && !shared) || scarce, "{at:#x} {done:?}");
                if done.is_ok() {
                    model.split(at, at);
                    model.leaves.insert(at, Page { frame, pages: 1, attr: RWU, written: false });
                } else {
                    put_back(frame, 1);
                }
            }
            4 => {
                let access = [Access::LOAD, Access::STORE, Access::FETCH][below(3)];
                let access = if below(2) == 0 { access } else { access.by_user() };
                let wanted = |leaf: &Page| match leaf.attr {
                    attr if access.allowed(attr) => 0,
                    attr if !attr.intersects(ACCESS) => 3,
                    attr if attr.contains(Attr::COPY_ON_WRITE) && access.allowed(attr | Attr::WRITE) => 1,
                    _ => 2,
                };
                let got = match edit.fault(address(at), access).unwrap() {
                    // The second of two in a row.
                    Fault::Retry | Fault::Refused(Reason::Unknown | Reason::UserPage) => Some(0),
                    Fault::CopyOnWrite(_) => Some(1),
                    Fault::NoRight(_) => Some(2),
                    Fault::Closed(_) => Some(3),
                    Fault::NotMapped => {
                        assert_eq!(marked, None, "{at:#x}");
                        None
                    }
                    Fault::Swapped(payload) => {
                        assert!(
                            matches!(marked, Some(Mark::Payload(there, _)) if there == payload),
                            "{at:#x}"
                        );
                        None
                    }
                    Fault::Refused(reason) => panic!("{reason:?} at {at:#x}"),
                    Fault::Guard => {
                        assert_eq!(marked, Some(Mark::Guard), "{at:#x}");
                        None
                    }
                };
                assert_eq!(got, found.map(|(_, leaf)| wanted(&leaf)), "{at:#x}");
                cursor = edit.cursor(address(at)).unwrap();
            }
            5 => {
                let last = at == (1 << 26) - 1 || at == TOP;
                assert_eq!(cursor.step(), !last, "{at:#x}");
                at += usize::from(!last);
            }
            6 => {
                let to = with(some_page);
                assert_eq!(cursor.seek(address(to)).is_ok(), in_space(to));
                at = if in_space(to) { to } else { at };
            }
            7 => {
                let small = found.is_none_or(|(_, leaf)| leaf.pages == 1);
                if let Some((first, before)) = found
                    && below(3) > 0
                {
                    let keeps = !before.attr.intersects(Attr::MEMORY.union(Attr::GLOBAL));
                    let done = cursor.freeze();
                    assert_eq!(done.is_ok(), !shared && small && keeps, "{at:#x} {done:?}");
                    let Ok(leaf) = done else { continue };
                    assert!(!before.written || leaf.attr.contains(Attr::DIRTY));
                    let payload = new_payload();
                    assert_eq!(cursor.page_out(leaf.frame, payload), Ok(()), "{at:#x}");
                    with(|state| *state.data.get_mut(&leaf.frame.get()).unwrap() -= 1);
                    let entry = cursor.entry();
                    assert!(matches!(entry, Entry::Mark(Mark::Payload(there, _)) if there == payload));
                    model.leaves.remove(&first);
                    model.marks.extend(entry.mark().map(|mark| (at, mark)));
                    continue;
                }
                let mark = if below(3) == 0 || found.is_some() {
                    Mark::Guard
                } else {
                    Mark::Payload(new_payload(), some_attr(false).difference(Attr::DEVICE))
                };
                let done = cursor.mark(mark);
                assert!(done.is_ok() == (!shared && small) || scarce, "{at:#x} {done:?}");
                let Ok(was) = done else {
                    let_go_of(Some(mark));
                    continue;
                };
                assert_eq!((was.mark(), was.leaf().is_some()), (marked, found.is_some()), "{at:#x}");
                let_go_of(marked);
                model.marks.insert(at, mark);
                if let (Some(leaf), Some((first, before))) = (was.leaf(), found) {
                    assert!(!before.written || leaf.attr.contains(Attr::DIRTY));
                    model.leaves.remove(&first);
                }
            }
            8 => {
                let frame = fresh(1);
                let (there, attr) = match marked {
                    Some(Mark::Payload(there, attr)) => (Some(there), attr),
                    _ => (None, RWU),
                };
                let late = u64::from(below(4) == 0);
                let done = cursor.fill(there.unwrap_or(1) ^ late, Pfn::new(frame));
                assert_eq!(done.is_ok(), there.is_some() && late == 0 && !shared, "{at:#x} {done:?}");
                if done.is_ok() {
                    let_go_of(model.marks.remove(&at));
                    model.leaves.insert(at, Page { frame, pages: 1, attr, written: false });
                }
            }
            9 => {
                let done = cursor.unmark();
                assert_eq!(done.is_ok(), marked.is_none() || !shared, "{at:#x} {done:?}");
                if let Ok(was) = done {
                    assert_eq!(was, marked, "{at:#x}");
                    let_go_of(model.marks.remove(&at));
                }
            }
            _ => {
                let last = with(some_page);
                let from = found.map_or(at, |(first, leaf)| first + leaf.pages - 1);
                let mut all: Vec<usize> = model.leaves.keys().copied().collect();
                if let Some(lender) = model.lender.and_then(|lender| kernels.get(&lender)) {
                    all.extend(lender.leaves.keys().copied().filter(|&page| page >= LENT));
                }
                all.sort_unstable();
                let next = all.into_iter().find(|&page| page > from && page <= last);
                let got = cursor.next_mapped(address(last));
                assert_eq!(got.map(|leaf| leaf.at), next.map(address), "from {at:#x} to {last:#x}");
                at = next.unwrap_or(at);
            }
        }
    }
}

impl World {
    fn new(seed: u64, forgets: bool) -> Self {
        let bits = [16, 2, 3, 0][seed as usize % 4];
        STATE.set(Some(State {
            taken: vec![false; NODES],
            data: HashMap::new(),
            next: DATA,
            payloads: HashMap::new(),
            next_payload: 0,
            tlbs: Default::default(),
            allowed: usize::MAX,
            fuse: None,
            released: Vec::new(),
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            pauses: 0,
            bits,
            forgets,
            witness: (Checker::new(Arch::Sv39), 0),
        }));
        say(Event::UsesDirty);
        let frames = (0..NODES).map(|_| Frame([const { AtomicU64::new(!0) }; 512])).collect::<Vec<_>>();
        let frames: &'static [Frame] = frames.leak();
        let _ = frames.as_ptr().expose_provenance();
        let records = Vec::leak((0..NODES).map(|_| Record::new(0)).collect());
        let mmu: &'static _ = Box::leak(Box::new(Mmu::new(Foe {
            deferred: Deferred::new(),
            frames,
            records,
            mmu: OnceLock::new(),
        })));
        let _ = mmu.kernel().mmu.set(mmu);
        // A kernel has it in a static; here it is found from one, so that nothing counts as lost.
        static MACHINES: Mutex<Vec<&'static Mmu<Foe, CPUS>>> = Mutex::new(Vec::new());
        MACHINES.lock().unwrap().push(mmu);
        Self {
            mmu,
            spaces: BTreeMap::new(),
            names: 0,
            runs: [None; CPUS],
            half: [None; CPUS],
            waiting: Vec::new(),
            runs_waiting: 0,
            waited: (0, 0),
        }
    }

    fn some_space(&self) -> Option<usize> {
        let alive: Vec<usize> = self
            .spaces
            .iter()
            .filter(|(_, model)| !model.handles.is_empty())
            .map(|(&name, _)| name)
            .collect();
        if alive.is_empty() { None } else { Some(alive[below(alive.len())]) }
    }

    fn add(&mut self, space: Space, lends: bool, lender: Option<usize>) {
        let (leaves, marks) = (BTreeMap::new(), BTreeMap::new());
        self.names += 1;
        self.spaces.insert(self.names, Model { handles: vec![space], lends, lender, leaves, marks });
    }

    /// Forgets address spaces without a handle.
    fn forget_dead(&mut self) {
        loop {
            let dead = self.spaces.iter().find(|(name, model)| {
                model.handles.is_empty()
                    && !self.runs.contains(&Some(**name))
                    && !self.half.contains(&Some(**name))
                    && !self.spaces.values().any(|other| other.lender == Some(**name))
            });
            let Some(dead) = dead.map(|(&name, _)| name) else { return };
            self.spaces.remove(&dead);
        }
    }

    fn step(&mut self) -> Option<usize> {
        let cpu = below(CPUS);
        CPU.set(cpu);
        let name = self.some_space();
        let what = below(24);
        let Some(name) = name.filter(|_| what > 0) else {
            if self.spaces.len() > 6 {
                return None;
            }
            let lender = self.spaces.iter().find(|(_, model)| model.lends && !model.handles.is_empty());
            match (below(3), lender.map(|(&name, model)| (name, model.handles[0].clone()))) {
                (0, None) => {
                    if let Ok(space) = Space::lending(self.mmu, [pages(LENT, TOP)]) {
                        self.add(space, true, None);
                    }
                }
                (1, Some((lender, handle))) => {
                    if let Ok(space) = Space::sharing(&handle) {
                        self.add(space, false, Some(lender));
                    }
                }
                _ => {
                    if let Ok(space) = Space::new(self.mmu) {
                        self.add(space, false, None);
                    }
                }
            }
            return None;
        };
        let handle = self.spaces[&name].handles[0].clone();
        match what {
            1 => {
                let model = self.spaces.get_mut(&name).unwrap();
                model.handles.push(handle);
            }
            2 | 3 => {
                drop(handle);
                let model = self.spaces.get_mut(&name).unwrap();
                drop(model.handles.pop());
                self.forget_dead();
            }
            4..8 => {
                let activated = handle.activate();
                drop(handle);
                assert_eq!(activated, Ok(()));
                self.runs[cpu] = Some(name);
                let model = &self.spaces[&name];
                self.half[cpu] = if model.lends { Some(name) } else { model.lender };
                self.forget_dead();
            }
            8 => {
                drop(handle);
                self.runs[cpu] = None;
                if below(2) == 0 {
                    assert_eq!(self.mmu.idle(), Ok(()));
                } else {
                    assert_eq!(self.mmu.offline(), Ok(()));
                    self.half[cpu] = None;
                }
                self.forget_dead();
            }
            9 if self.spaces.len() < 7 => {
                let mut copies = BTreeMap::new();
                let mut copy = |leaf: Leaf| {
                    call(Call::Closure);
                    let frame = fresh(leaf.size.bytes() >> 12);
                    copies.insert(leaf.at.get() >> 12, frame);
                    Ok(Pfn::new(frame))
                };
                let copied = below(2) == 0;
                let child = handle.fork(if copied {
                    SupervisorPages::Copied(&mut copy)
                } else {
                    SupervisorPages::LeftOut
                });
                assert!(!self.spaces[&name].lends || matches!(child, Err(Error::Lent { .. })));
                if let Ok(child) = child {
                    let parent = self.spaces.get_mut(&name).unwrap();
                    let mut leaves = parent.leaves.clone();
                    let supervisor = |leaf: &Page| !leaf.attr.contains(Attr::USER);
                    leaves.retain(|_, leaf| copied || !supervisor(leaf));
                    for leaf in parent.leaves.values_mut().chain(leaves.values_mut()) {
                        let is_memory = !supervisor(leaf) && !leaf.attr.intersects(Attr::MEMORY);
                        if leaf.attr.contains(Attr::WRITE) && is_memory {
                            leaf.attr = leaf.attr.difference(Attr::WRITE) | Attr::COPY_ON_WRITE;
                        }
                    }
                    for (at, leaf) in &mut leaves {
                        (leaf.attr, leaf.written) = (leaf.attr.difference(Attr::GLOBAL), false);
                        leaf.frame = copies.get(at).copied().unwrap_or(leaf.frame);
                    }
                    let (lender, marks) = (parent.lender, parent.marks.clone());
                    self.add(child, false, lender);
                    let copy = self.spaces.get_mut(&self.names).unwrap();
                    (copy.leaves, copy.marks) = (leaves, marks);
                }
            }
            10..14 => self.user(name, cpu, &handle),
            20..23 => {
                self.unmap_deferred(name, &handle);
                for other in 0..CPUS {
                    CPU.set(other);
                    self.user(name, other, &handle);
                }
                CPU.set(cpu);
            }
            23 if below(4) == 0 => {
                let waiting: usize = self.waiting.iter().map(|(_, _, page)| page.pages).sum();
                assert_eq!(self.mmu.flush_deferred(), Ok(waiting));
            }
            _ => {
                let mut model = self.spaces.remove(&name).unwrap();
                let kernels = &self.spaces;
                let unwound = catch_unwind(AssertUnwindSafe(|| {
                    let done = handle.edit(|edit| {
                        for _ in 0..1 + below(3) {
                            change(edit, &mut model, kernels);
                            call(Call::Closure);
                            assert_eq!(handle.activate(), Err(Error::Nested));
                        }
                        Ok(())
                    });
                    assert_eq!(done, Ok(()));
                }));
                self.spaces.insert(name, model);
                if let Err(why) = unwound {
                    resume_unwind(why);
                }
            }
        }
        Some(name)
    }

    /// An unmap whose flush waits, if other CPUs may hold a translation.
    fn unmap_deferred(&mut self, name: usize, handle: &Space) {
        let model = self.spaces.get_mut(&name).unwrap();
        let mapped: Vec<usize> = model.leaves.keys().copied().collect();
        let first =
            if mapped.is_empty() || below(4) == 0 { with(some_page) } else { mapped[below(mapped.len())] };
        let last = first.saturating_add([0, 0, 1, 4, 0x1ff][below(5)]).min(TOP);
        let fits = in_space(first) && in_space(last) && (first < HIGH) == (last < HIGH);
        let own = fits && !model.borrows(first, last);
        let me = CPU.get();
        for other in (0..CPUS).filter(|&other| self.runs[other] == Some(name)) {
            CPU.set(other);
            // It loads the TLB, whatever it finds; a status bit that it sets says nothing.
            let _ = self.mmu.kernel().access(first, false);
        }
        CPU.set(me);
        let (runs, nodes) = self.mmu.kernel().deferred.waiting();
        let scarce = with(|state| state.allowed < 1 << 20);
        let done = handle.unmap_deferred(pages(first, last));
        assert!(done.is_ok() == own || scarce, "{first:#x} {last:#x} {done:?}");
        let Ok(unmapped) = done else { return };
        model.split(first, last);
        let gone: Vec<usize> = model.leaves.range(first..=last).map(|(&at, _)| at).collect();
        let gone: Vec<(usize, usize, Page)> =
            gone.iter().filter_map(|&at| Some((name, at, model.leaves.remove(&at)?))).collect();
        assert_eq!(gone.iter().map(|(_, _, leaf)| leaf.pages).sum::<usize>(), unmapped);
        model.marks.retain(|at, _| !(first..=last).contains(at));
        let ends = gone.iter().zip(gone.iter().skip(1));
        let new = ends.filter(|((_, _, a), (_, _, b))| a.frame + a.pages != b.frame).count()
            + usize::from(!gone.is_empty());
        assert!(new <= RUNS, "the test has fewer pages");
        let had_room = PLACES - runs >= RUNS.min(last - first + 1) && nodes <= PLACES;
        if !had_room {
            self.flushed();
        }
        let before = if had_room { runs } else { 0 };
        let now = self.mmu.kernel().deferred.waiting().0;
        if now == before {
            // Nobody else has a translation.
            gone.iter().filter(|(_, _, leaf)| leaf.written).for_each(|(_, _, leaf)| was_dirty(leaf));
        } else {
            assert_eq!(now, before + new, "{runs} {nodes}");
            self.waited.0 += gone.len();
            self.waiting.extend(gone);
        }
        self.runs_waiting = now;
    }

    /// Everything that has waited was released.
    fn flushed(&mut self) {
        self.runs_waiting = 0;
        let waited = std::mem::take(&mut self.waiting);
        waited.iter().filter(|(_, _, leaf)| leaf.written).for_each(|(_, _, leaf)| was_dirty(leaf));
    }

    /// Returns the page of an address space, or of its lender, that a CPU may still use although it is unmapped.
    fn waits(&self, owner: usize, page: usize) -> Option<&(usize, usize, Page)> {
        self.waiting.iter().find(|(name, at, leaf)| *name == owner && (*at..at + leaf.pages).contains(&page))
    }

    /// A user program, and the handler of its faults.
    fn user(&mut self, name: usize, cpu: usize, handle: &Space) {
        if self.runs[cpu] != Some(name) {
            return;
        }
        let waiting: Vec<usize> =
            self.waiting.iter().filter(|(of, ..)| *of == name).map(|&(_, at, _)| at).collect();
        let page =
            if waiting.is_empty() || below(2) == 0 { with(some_page) } else { waiting[below(waiting.len())] };
        let store = below(2) == 0;
        let kind = if store { Access::STORE } else { Access::LOAD }.by_user();
        for _ in 0..6 {
            let model = &self.spaces[&name];
            let owner = if model.borrows(page, page) { model.lender.unwrap() } else { name };
            let found = self.spaces[&owner].find(page);
            if let Some(frame) = self.mmu.kernel().access(page, store) {
                let late = |(name, at, leaf): &&mut (usize, usize, Page)| {
                    *name == owner
                        && (*at..*at + leaf.pages).contains(&page)
                        && frame == leaf.frame + (page - *at)
                };
                if found.is_none()
                    && let Some((_, _, leaf)) = self.waiting.iter_mut().find(late)
                {
                    assert!(kind.allowed(leaf.attr), "{page:#x} {leaf:?} {kind:?}");
                    leaf.written |= store;
                    self.waited.1 += 1;
                    return;
                }
                let (at, leaf) = found.expect("a page that is not mapped is reached");
                assert_eq!(frame, leaf.frame + (page - at), "a frame that is not mapped is reached");
                assert!(kind.allowed(leaf.attr), "{page:#x} {leaf:?} {kind:?}");
                self.spaces.get_mut(&owner).unwrap().leaves.get_mut(&at).unwrap().written |= store;
                return;
            }
            match handle.fault(address(page), kind).unwrap() {
                Fault::Retry => {}
                Fault::CopyOnWrite(leaf) if owner == name => {
                    let (at, was) = found.unwrap();
                    let own = was.frame + (page - at);
                    assert_eq!((leaf.at, leaf.frame.get()), (address(page), own));
                    let is_sole = |frame: usize| with(|state| state.data[&frame] == 1);
                    let all = (was.frame..was.frame + was.pages).all(is_sole);
                    let mut new = None;
                    let done = handle.unshare(
                        address(page),
                        |frame| is_sole(frame.get()),
                        |_| Ok(Pfn::new(*new.insert(fresh(1)))),
                    );
                    let Ok(()) = done else { return assert!(matches!(done, Err(Error::NoMemory { .. }))) };
                    let model = self.spaces.get_mut(&name).unwrap();
                    if !all {
                        model.split(page, page);
                    }
                    let at = if all { at } else { page };
                    let leaf = model.leaves.get_mut(&at).unwrap();
                    leaf.attr = leaf.attr.difference(Attr::COPY_ON_WRITE) | Attr::WRITE;
                    if let Some(frame) = new {
                        (leaf.frame, leaf.written) = (frame, false);
                        if was.written {
                            was_dirty(&Page { frame: own, pages: 1, ..was });
                        }
                    }
                }
                _ => return assert!(found.is_none_or(|(_, leaf)| !kind.allowed(leaf.attr))),
            }
        }
        panic!("{page:#x} faults for ever");
    }

    /// Compares what is there with what is to be. After an operation that unwound, or found no memory, pages may be split; after
    /// the former some may be missing or new, too.
    fn check(&mut self, loose: Option<usize>, unwound: bool) {
        CPU.set(0);
        let runs = self.mmu.kernel().deferred.waiting().0;
        if runs < self.runs_waiting {
            assert_eq!(runs, 0, "a flush is one of all that waits");
            self.flushed();
        }
        let everything = pages(0, TOP);
        for (&name, model) in &mut self.spaces {
            let Some(handle) = model.handles.first() else { continue };
            let mut leaves = Vec::new();
            let _ = handle.for_each(everything, |leaf| {
                leaves.push(leaf);
                ControlFlow::Continue(())
            });
            let lent = |leaf: &Leaf| model.lender.is_some() && leaf.at.get() >> 12 >= LENT;
            let own = leaves.iter().filter(|leaf| !lent(leaf));
            let found: BTreeMap<usize, Page> = own
                .map(|leaf| {
                    let page = leaf.at.get() >> 12;
                    let written = model.find(page).is_some_and(|(_, leaf)| leaf.written);
                    // A written page is dirty, until its status is cleared.
                    let written = written && (!unwound || leaf.attr.contains(Attr::DIRTY));
                    assert!(!written || leaf.attr.contains(Attr::DIRTY), "{leaf:?} was written");
                    let pages = leaf.size.bytes() >> 12;
                    assert_eq!(handle.lookup(leaf.at), Some(*leaf));
                    let phys = handle.translate(leaf.at).map(|at| at.get() >> 12);
                    assert_eq!(phys, Some(leaf.frame.get()));
                    (page, Page { frame: leaf.frame.get(), pages, attr: plain(leaf), written })
                })
                .collect();
            let mut marks = BTreeMap::new();
            let _ = handle.for_each_mark(everything, |at, mark| {
                if model.lender.is_none() || at.get() >> 12 < LENT {
                    marks.insert(at.get() >> 12, mark);
                }
                ControlFlow::Continue(())
            });
            if unwound && loose == Some(name) {
                model.marks = marks;
            } else {
                assert_eq!(marks, model.marks, "address space {name}");
            }
            if loose == Some(name) {
                let by_page = |leaves: &BTreeMap<usize, Page>| {
                    let each = |(&at, leaf): (&usize, &Page)| {
                        let (leaf, count) = (*leaf, leaf.pages);
                        (0..count).map(move |page| (at + page, leaf.frame + page, leaf.attr))
                    };
                    leaves.iter().flat_map(each).collect::<Vec<_>>()
                };
                assert!(unwound || by_page(&found) == by_page(&model.leaves), "a change that failed");
                model.leaves = found;
            } else {
                assert_eq!(found, model.leaves, "address space {name}");
            }
            assert_eq!(
                handle.footprint().ptes,
                model.leaves.len() + model.marks.len(),
                "address space {name}"
            );
        }
        // No frame is lost, and none is mapped that is not there.
        let mut counts = HashMap::new();
        let waiting = self.waiting.iter().map(|(_, _, leaf)| leaf);
        for leaf in self.spaces.values().flat_map(|model| model.leaves.values()).chain(waiting) {
            for frame in leaf.frame..leaf.frame + leaf.pages {
                *counts.entry(frame).or_insert(0_usize) += 1;
            }
        }
        let mut payloads = HashMap::new();
        for mark in self.spaces.values().flat_map(|model| model.marks.values()) {
            if let Mark::Payload(payload, _) = mark {
                *payloads.entry(*payload).or_insert(0_usize) += 1;
            }
        }
        with(|state| {
            if unwound {
                // So is what a page was to have.
                state.payloads.retain(|payload, count| payloads.contains_key(payload) || *count > 1);
            }
            assert_eq!(state.payloads, payloads, "payloads of pages");
        });
        with(|state| {
            if unwound {
                // What was to be mapped, and is not, is the caller's still.
                state.data.retain(|frame, count| counts.contains_key(frame) || *count > 1);
            }
            let differ: Vec<_> =
                state.data.iter().filter(|&(frame, count)| counts.get(frame) != Some(count)).collect();
            let owners: Vec<_> = differ.iter().map(|(frame, _)| counts.get(*frame)).collect();
            assert!(differ.is_empty(), "{differ:x?} {owners:?}");
            assert_eq!(state.data.len(), counts.len(), "a frame is mapped that was released");
            state.released.clear();
        });
        self.check_tlbs();
    }

    /// What a CPU can use of its TLB is what is mapped, or weaker; what it has walked through is there still.
    fn check_tlbs(&self) {
        let kernel = self.mmu.kernel();
        for cpu in 0..CPUS {
            let Some(name) = self.runs[cpu] else { continue };
            let model = &self.spaces[&name];
            with(|state| {
                let tlb = &state.tlbs[cpu];
                let asid = asid_of(tlb.satp);
                for held in tlb.held.iter().filter(|held| held.bits & V != 0) {
                    if held.asid != asid && held.bits & G == 0 {
                        continue;
                    }
                    let lent = model.borrows(held.page, held.page);
                    let owner = if lent { model.lender.unwrap() } else { name };
                    let now = self.spaces[&owner].find(held.page);
                    let waits = || self.waits(owner, held.page).map(|&(_, at, leaf)| (at, leaf));
                    let Some((at, leaf)) = now.or_else(waits) else {
                        panic!("CPU {cpu} has {held:x?}, which is not mapped")
                    };
                    assert_eq!(held.frame, leaf.frame + (held.page - at), "CPU {cpu} {held:x?}");
                    for (bit, right) in [(R, Attr::READ), (W, Attr::WRITE), (X, Attr::EXEC), (U, Attr::USER)]
                    {
                        assert!(
                            held.bits & bit == 0 || leaf.attr.contains(right),
                            "CPU {cpu} {held:x?} {leaf:?}"
                        );
                    }
                }
                // A node that waits is in no table, and its links stay until the flush: it is not free.
                for link in tlb.links.iter().filter(|link| link.asid == asid) {
                    assert!(state.taken[link.node - RAM], "CPU {cpu} has {link:x?}, which is free");
                    if kernel.deferred.waiting().1 > 0 {
                        continue;
                    }
                    let mut node = tlb.satp & ((1 << 44) - 1);
                    for level in (link.level + 1..3).rev() {
                        let index = link.prefix >> (9 * (level - link.level - 1)) & 511;
                        let word = kernel.word(node, index).load(Ordering::SeqCst);
                        assert!(word & (V | R | X) == V, "CPU {cpu} has {link:x?}, which leads nowhere");
                        node = (word >> 10) as usize;
                    }
                    assert_eq!(node, link.node, "CPU {cpu} {link:x?}");
                }
            });
        }
    }

    /// Runs the operations of a seed, and returns how many pages have waited, and how often one was used meanwhile.
    fn run(seed: u64, forgets: bool) -> (usize, usize) {
        // What fails goes no further: the ends of its address spaces would fail, too.
        let mut world = ManuallyDrop::new(Self::new(seed, forgets));
        let mut unwinds = 0;
        for step in 0..STEPS {
            let loose = with(|state| {
                let few = state.below(6) == 0;
                state.allowed = if few { state.below(4) } else { usize::MAX };
                state.fuse = None;
                state.pauses = 0;
                few
            });
            // An edit that unwinds is one whose model is made anew.
            let armed = seed % 3 == 2 && step % 4 == 0;
            let mut unwound = false;
            let touched = if armed {
                let calls = [Call::Take, Call::Share, Call::Closure, Call::Frames];
                let fuse = (calls[below(calls.len())], 1 + below(3));
                match world.armed(fuse) {
                    Ok(touched) => touched,
                    Err(touched) => {
                        unwound = true;
                        // The CPU that takes the address space's lock next sees its stores: a log does not show locks.
                        say(Event::Barrier(Barrier::Complete));
                        unwinds += 1;
                        touched
                    }
                }
            } else {
                world.step()
            };
            with(|state| (state.fuse, state.allowed) = (None, usize::MAX));
            let loose = if loose || unwound { touched } else { None };
            world.check(loose, unwound);
        }
        world.mmu.flush_deferred().unwrap();
        for cpu in 0..CPUS {
            CPU.set(cpu);
            world.mmu.offline().unwrap();
        }
        world.spaces.clear();
        with(|state| {
            assert_eq!(state.data.len(), 0, "frames are mapped nowhere, and not released");
            assert!(state.payloads.is_empty(), "payloads that no page has, and that were not released");
            let taken = state.taken.iter().filter(|&&taken| taken).count();
            assert_eq!(taken, world.mmu.lost());
            assert!(unwinds > 0 || taken == 0);
        });
        world.waited
    }

    /// An edit or a fork whose kernel unwinds at one call.
    fn armed(&mut self, fuse: (Call, usize)) -> Result<Option<usize>, Option<usize>> {
        CPU.set(below(CPUS));
        let Some(name) = self.some_space() else { return Ok(None) };
        let model = self.spaces.get_mut(&name).unwrap();
        let mut old = Model {
            handles: Vec::new(),
            lends: model.lends,
            lender: model.lender,
            leaves: model.leaves.clone(),
            marks: model.marks.clone(),
        };
        let handle = model.handles[0].clone();
        let forks = below(3) == 0;
        let kernels = &self.spaces;
        with(|state| state.fuse = Some(fuse));
        let done = catch_unwind(AssertUnwindSafe(|| {
            if forks {
                // The copy goes at once.
                drop(handle.fork(SupervisorPages::LeftOut));
                return;
            }
            let _ = handle.edit(|edit| {
                for _ in 0..1 + below(3) {
                    change(edit, &mut old, kernels);
                    call(Call::Closure);
                }
                Ok(())
            });
        }));
        with(|state| state.fuse = None);
        let model = self.spaces.get_mut(&name).unwrap();
        (model.leaves, model.marks) = (old.leaves, old.marks);
        let unwound = done
            .as_ref()
            .is_err_and(|why| why.is::<&str>() && why.downcast_ref() == Some(&"the kernel unwinds"));
        match done {
            Err(why) if !unwound => resume_unwind(why),
            Err(_) => Err(Some(name)),
            Ok(()) if forks => Err(Some(name)),
            Ok(()) => Ok(Some(name)),
        }
    }
}

#[test]
fn no_tlb_has_what_is_not_mapped_whatever_a_kernel_does() {
    let mut waited = (0, 0);
    for seed in 0..SEEDS {
        let done = catch_unwind(|| World::run(seed, false));
        let Ok((pages, used)) = done else { panic!("seed {seed}") };
        waited = (waited.0 + pages, waited.1 + used);
    }
    assert!(waited.0 > 0 && waited.1 > 0, "{waited:?}");
    println!("{} pages have waited for a later flush, {} accesses used one meanwhile", waited.0, waited.1);
}

/// The control: where flushes are left out, a CPU reaches what is gone.
#[test]
fn a_kernel_that_flushes_nothing_is_found_out() {
    assert!(catch_unwind(|| World::run(0, true)).is_err());
}
