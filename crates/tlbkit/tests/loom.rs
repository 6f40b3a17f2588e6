//! A walk of an address space by a CPU that does not run it, or that no flush interrupts, beside a writer that takes a node out, in every
//! interleaving with a few preemptions and with every value that the C11 model lets a load see.
//!
//! `RUSTFLAGS="--cfg tlbkit_loom" cargo test --features loom -p tlbkit --test loom`

#![cfg(tlbkit_loom)]

use loom::sync::Arc;
use loom::sync::atomic::AtomicUsize;
use loom::thread;
use tlbkit_addr::{Asid, CpuSet, Flush, FlushScope, Pages, Vpn};
use tlbkit_shootdown::{
    Algorithm, Edit, Hardware, LocalCpu, LowRights, OpId, Outcome, Plan, SectionKind, SharedSpace,
    Synchronous, System,
};

mod sync {
    pub(crate) use loom::sync::atomic::{AtomicUsize, Ordering, fence};
}
#[path = "../src/numbers.rs"]
mod numbers;
#[path = "../src/section.rs"]
mod section;
#[path = "../src/visit.rs"]
mod visit;

use numbers::Numbers;
use section::{Section, advance, is_inside};
use sync::{Ordering, fence};
use visit::{Visit, is_alone};

/// What the memory of a node holds that has been given back.
const FREE: usize = 7;

/// A table with one node, and the CPUs of its address space; and those that are online, if the flush is deferred to one of all of them.
struct Table {
    linked: AtomicUsize,
    node: AtomicUsize,
    done: AtomicUsize,
    cpus: SharedSpace,
    online: Option<SharedSpace>,
    flush: Flush,
}

impl Table {
    fn give_back(&self) {
        self.node.store(FREE, Ordering::Relaxed);
        self.done.store(1, Ordering::Release);
    }

    fn walk(&self) {
        if self.linked.load(Ordering::Relaxed) == 1 {
            assert_ne!(self.node.load(Ordering::Relaxed), FREE, "a node that has been given back");
        }
    }
}

/// A change that has been made.
struct Made(Arc<Table>);

impl Edit for Made {
    type Payload = ();

    fn exclude(&mut self) -> bool {
        true
    }
    fn release(&mut self) {}
    fn update(&mut self) {}
    fn space(&self) -> &SharedSpace {
        self.0.online.as_ref().unwrap_or(&self.0.cpus)
    }
    fn asid(&self) -> Asid {
        Asid::default()
    }
    fn flush(&self) -> &Flush {
        &self.0.flush
    }
}

struct Cpu(Arc<Table>);

impl LocalCpu<()> for Cpu {
    fn flush(&mut self, _space: Option<Asid>, _what: &Flush, _drain: bool) {}
    fn interrupt(&mut self, _cpus: CpuSet) {}
    fn pause(&mut self) {
        thread::yield_now();
    }
    fn complete(&mut self, _op: OpId, (): (), outcome: Outcome) {
        assert_eq!(outcome, Outcome::Done);
        self.0.give_back();
    }
}

type Shootdowns = System<(), Synchronous<()>, 2, 1>;

/// CPU 0 takes the node out, and gives it back at once if it finds no CPU, or when its shootdown has completed.
fn write(table: &Arc<Table>, shootdowns: &Shootdowns) {
    const HARDWARE: Hardware = Hardware::RISCV_SVADU;
    let plan = Plan::new(Algorithm::PteFirst, &HARDWARE, LowRights::NeverWriteBack).expect("it suits");
    let mut handle = shootdowns.attach(0).expect("it exists");
    table.linked.store(0, Ordering::Relaxed);
    if is_alone(&table.cpus, 0, false) {
        table.give_back();
    } else {
        let mut cpu = Cpu(table.clone());
        shootdowns.run(&mut handle, &mut cpu, plan, &mut Made(table.clone())).expect("it is its turn");
    }
}

/// CPU 1 visits the address space, and serves shootdowns afterwards.
fn visit(table: &Arc<Table>, shootdowns: &Shootdowns) {
    let mut handle = shootdowns.attach(1).expect("it exists");
    let mut cpu = Cpu(table.clone());
    {
        let _visit = Visit::begin(&table.cpus, 1);
        table.walk();
    }
    while table.done.load(Ordering::Acquire) == 0 {
        shootdowns.poll(&mut handle, &mut cpu).expect("requests are in order");
        thread::yield_now();
    }
}

/// Plays it with the one or the other in a thread of its own, which runs last at first.
fn play(writer_last: bool, deferred: bool) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.max_branches = 100_000;
    let played = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let count = played.clone();
    model.check(move || {
        let mut flush = Flush::none();
        flush.add_links(FlushScope::Everywhere, Pages::one(Vpn::new(1)));
        let table = Arc::new(Table {
            linked: AtomicUsize::new(1),
            node: AtomicUsize::new(0),
            done: AtomicUsize::new(0),
            cpus: SharedSpace::new(),
            online: deferred.then(online),
            flush,
        });
        let shootdowns = Arc::new(Shootdowns::new(Hardware::RISCV_SVADU));
        let (theirs, other) = (table.clone(), shootdowns.clone());
        let run = move |writes: bool, table: &Arc<Table>, shootdowns: &Shootdowns| {
            if writes { write(table, shootdowns) } else { visit(table, shootdowns) }
        };
        let spawned = thread::spawn(move || run(writer_last, &theirs, &other));
        run(!writer_last, &table, &shootdowns);
        spawned.join().expect("it holds");
        assert_eq!(table.node.load(Ordering::Relaxed), FREE);
        count.fetch_add(1, Ordering::Relaxed);
    });
    println!("{} interleavings", played.load(Ordering::Relaxed));
}

/// Returns the set of all CPUs.
fn online() -> SharedSpace {
    let online = SharedSpace::new();
    for cpu in 0..2 {
        online.members.insert(cpu);
        online.running.insert(cpu);
    }
    online
}

#[test]
fn no_visitor_is_in_a_node_that_is_given_back_beside_a_late_writer() {
    play(true, false);
}

/// The node has waited for a flush that does not know of the address space.
#[test]
fn no_visitor_is_in_a_node_that_is_given_back_after_a_flush_of_all_cpus() {
    play(true, true);
}

#[test]
fn no_visitor_is_in_a_node_that_is_given_back_beside_a_late_visitor() {
    play(false, false);
}

/// A table with two nodes, on a machine that broadcasts its flushes; and the words of two CPUs that walk.
struct Broadcast {
    linked: [AtomicUsize; 2],
    nodes: [AtomicUsize; 2],
    epoch: AtomicUsize,
    words: [AtomicUsize; 2],
}

impl Broadcast {
    fn new() -> Self {
        let pair = |value| [AtomicUsize::new(value), AtomicUsize::new(value)];
        Self { linked: pair(1), nodes: pair(0), epoch: AtomicUsize::new(0), words: pair(0) }
    }

    /// Walks twice on CPU `me`, in a section each time.
    fn walk(&self, me: usize, kind: SectionKind) {
        for _ in 0..2 {
            let section = Section::begin(&self.epoch, &self.words[me], kind);
            assert!(section.has_begun(), "no other one is around it");
            for (linked, node) in self.linked.iter().zip(&self.nodes) {
                if linked.load(Ordering::Relaxed) == 1 {
                    assert_ne!(node.load(Ordering::Relaxed), FREE, "a node that has been given back");
                }
            }
        }
    }

    /// Takes a node out, and returns the epoch that the node has to wait for, if a CPU that walks may be in it.
    fn unlink(&self, node: usize, kind: SectionKind) -> Option<usize> {
        self.linked[node].store(0, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let is_walked = self.words.iter().any(|word| is_inside(word, kind, None));
        is_walked.then(|| advance(&self.epoch))
    }

    fn is_left(&self, kind: SectionKind, since: usize) -> bool {
        !self.words.iter().any(|word| is_inside(word, kind, Some(since)))
    }

    fn give_back(&self, node: usize) {
        self.nodes[node].store(FREE, Ordering::Relaxed);
    }
}

/// Runs the scene in every interleaving.
fn broadcast(scene: impl Fn(&Arc<Broadcast>) + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.max_branches = 100_000;
    model.check(move || scene(&Arc::new(Broadcast::new())));
}

#[test]
fn no_walk_is_in_a_node_whose_writer_waits() {
    for kind in [SectionKind::Walk, SectionKind::Use] {
        broadcast(move |table| {
            let walked = table.clone();
            let walker = thread::spawn(move || walked.walk(1, kind));
            for node in 0..2 {
                if let Some(since) = table.unlink(node, kind) {
                    while !table.is_left(kind, since) {
                        thread::yield_now();
                    }
                }
                table.give_back(node);
            }
            walker.join().expect("it holds");
        });
    }
}

/// The nodes are kept, and another CPU gives them back, which has walked before.
#[test]
fn no_walk_is_in_a_node_that_another_cpu_gives_back() {
    broadcast(|table| {
        let kept = Arc::new(loom::sync::Mutex::new(None));
        let (walked, taken) = (table.clone(), kept.clone());
        let walker = thread::spawn(move || walked.walk(1, SectionKind::Walk));
        let collected = table.clone();
        let collector = thread::spawn(move || {
            let kept = *taken.lock().expect("it holds");
            if kept.is_some_and(|since| collected.is_left(SectionKind::Walk, since)) {
                collected.give_back(0);
            }
        });
        match table.unlink(0, SectionKind::Walk) {
            Some(since) => *kept.lock().expect("it holds") = Some(since),
            None => table.give_back(0),
        }
        walker.join().expect("it holds");
        collector.join().expect("it holds");
    });
}

/// A page that waits for its flush: the entry, what the TLB of a CPU has of it, and the request and the reply of a flush of all CPUs.
struct Deferred {
    entry: loom::sync::Mutex<usize>,
    held: AtomicUsize,
    numbers: Numbers,
    last: AtomicUsize,
    asked: AtomicUsize,
    replied: AtomicUsize,
}

/// CPU 0 unmaps a page, and flushes all CPUs later. CPU 1 goes on to use the old frame until it replies. CPU 2 maps the page again, without
/// the queue's lock if the numbers tell that nothing of the address space waits.
#[test]
fn no_cpu_has_the_old_frame_of_a_page_that_is_mapped_again() {
    let (waits, mapped) = (counter(), counter());
    let counts = [waits.clone(), mapped.clone()];
    loom::model(move || {
        let zero = || AtomicUsize::new(0);
        let page = Arc::new(Deferred {
            entry: loom::sync::Mutex::new(1),
            held: AtomicUsize::new(1),
            numbers: Numbers::new(zero(), zero()),
            last: zero(),
            asked: zero(),
            replied: zero(),
        });
        let (user, mapper, counts) = (page.clone(), page.clone(), counts.clone());
        let user = thread::spawn(move || {
            while user.asked.load(Ordering::Acquire) == 0 {
                thread::yield_now();
            }
            user.held.store(0, Ordering::Relaxed);
            user.replied.store(1, Ordering::Release);
        });
        let mapper = thread::spawn(move || {
            let mut entry = mapper.entry.lock().expect("it holds");
            let is_ahead = mapper.numbers.is_ahead(&mapper.last);
            if *entry == 0 && !is_ahead {
                assert_eq!(
                    mapper.held.load(Ordering::Relaxed),
                    0,
                    "a CPU uses the old frame beside the new one"
                );
                *entry = 2;
            }
            counts[usize::from(*entry == 2)].fetch_add(1, Ordering::Relaxed);
        });
        {
            let mut entry = page.entry.lock().expect("it holds");
            if *entry == 1 {
                *entry = 0;
                page.numbers.add(1, &page.last);
            }
        }
        let until = page.numbers.next();
        page.asked.store(1, Ordering::Release);
        while page.replied.load(Ordering::Acquire) == 0 {
            thread::yield_now();
        }
        page.numbers.take_before(until);
        user.join().expect("it holds");
        mapper.join().expect("it holds");
        assert_eq!((page.numbers.len(), page.numbers.first()), (0, until));
    });
    assert!(waits.load(Ordering::Relaxed) > 0 && mapped.load(Ordering::Relaxed) > 0);
}

/// A CPU that looks without the queue's lock, while another one has two unmaps wait and flushes each, never finds more than those.
#[test]
fn a_look_counts_no_run_that_was_never_there() {
    loom::model(|| {
        let zero = || AtomicUsize::new(0);
        let (numbers, last) = (Arc::new(Numbers::new(zero(), zero())), zero());
        let looks = numbers.clone();
        let looks = thread::spawn(move || assert!(looks.len() <= 2, "less than nothing waits"));
        for _ in 0..2 {
            numbers.add(1, &last);
            numbers.take_before(numbers.next());
        }
        looks.join().expect("it holds");
    });
}

/// Returns a count of interleavings, which is no word of the scene.
fn counter() -> std::sync::Arc<std::sync::atomic::AtomicUsize> {
    std::sync::Arc::default()
}
