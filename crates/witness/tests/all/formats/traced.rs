//! A table whose storage hears of every store, and the log of what is done to it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::ControlFlow;

use tlbkit_addr::{Attr, Flush, FlushScope, PageSize, Pages, VirtAddr};
use tlbkit_conformance::Op;
use tlbkit_pagetable::format::{Aarch64, Aarch64Of, EntryLoCowCoherent, Format, RiscvOf, Sv32, Sv39, X86};
use tlbkit_pagetable::geometry::{Napot, Runs as RunsOf, Va32, Va32M4, Va39, Va48, Va48K16, Va48K64, Va57};
use tlbkit_pagetable::mpt::Mpt;
use tlbkit_pagetable::nodes::{Chunk, Held, NodeAddr, Nodes, Reclaim, Record, Slab, Store};
use tlbkit_pagetable::{
    Error, FlushAll, Geometry, Leaf, Local, Mode, Pinned, Radix, Shared, Solo, Space, Table, Word, Writer,
    destroy,
};
use tlbkit_witness::check::Arch;
use tlbkit_witness::event::{Access, Barrier, Event, Fence, Memory};

/// Bytes of memory for nodes.
pub(super) const MEMORY: usize = 4 << 20;

/// One call of a table.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    Op(Op),
    Fork,
}

/// What edits the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// [`Local`], in solo mode: one CPU runs the table.
    Local,
    /// A [`Writer`], in shared mode: two CPUs do, and its obligation is flushed, then reclaimed.
    Writer,
}

/// What was done.
#[derive(Debug)]
pub(crate) struct Log {
    pub events: Vec<(usize, Event)>,
    /// Where the events of each step begin.
    pub steps: Vec<usize>,
    /// Whether each step was done, and not refused.
    pub done: Vec<bool>,
}

/// What the architectures differ in.
pub(super) trait Machine {
    type Geometry: Radix;
    type Format: Format;
    /// The size that pages are counted in.
    const BASE: PageSize = <Self::Geometry as Geometry>::BASE;
    /// The physical address of the first node.
    const NODES: usize;

    /// Whether software loads the TLB: beside other CPUs a larger page in halves.
    const HALVES: bool;

    /// Whether an invalidation reaches the other CPUs, and is over with the barrier behind it.
    const BROADCASTS: bool;

    /// The root register's value.
    fn root(node: u64) -> u64;

    /// Tells whether the root register translates these addresses.
    fn translates(first: u64, last: u64) -> bool;

    /// Makes a copy of a table, which no CPU ever runs. A table can be copied whose nodes are of one size.
    fn fork<'n, 'm, Md: Mode>(
        _nodes: &'n Traced<'m, WordOf<Self>, Md>,
        _writer: &mut Writer<'_, 'n, TableOf<'n, Self, Traced<'m, WordOf<Self>, Md>>>,
    ) -> Result<(), Error>
    where
        Self: Sized,
    {
        Err(Error::Busy)
    }
}

macro_rules! machine {
    ($name:ident, $arch:ident, $geometry:ty, $format:ty, $nodes:literal, $root:expr, $translates:expr $(, $forks:ident)?) => {
        pub(super) struct $name;

        impl Machine for $name {
            type Geometry = $geometry;
            type Format = $format;
            const NODES: usize = $nodes;
            const BROADCASTS: bool =
                matches!(Arch::$arch, Arch::Aarch64 | Arch::Aarch64K16 | Arch::Aarch64K64);
            const HALVES: bool = matches!(Arch::$arch, Arch::Mips32);

            fn root(node: u64) -> u64 {
                let root: fn(u64) -> u64 = $root;
                root(node)
            }

            fn translates(first: u64, last: u64) -> bool {
                let translates: fn(u64, u64) -> bool = $translates;
                translates(first, last)
            }

            $(fn fork<'n, 'm, Md: Mode>(
                nodes: &'n Traced<'m, WordOf<Self>, Md>,
                writer: &mut Writer<'_, 'n, TableOf<'n, Self, Traced<'m, WordOf<Self>, Md>>>,
            ) -> Result<(), Error> {
                $forks::<Self, _>(nodes, writer)
            })?
        }
    };
}

// The upper half of AArch64 is another register's; kseg0 and kseg1 of MIPS32 are not translated.
machine!(Riscv32, Sv32, Va32M4, Sv32, 0x8040_0000, |node| 1 << 31 | node >> 12, |_, _| true, fork);
machine!(
    Riscv39,
    Sv39,
    Va39,
    Sv39,
    0x8040_0000,
    |node| 8 << 60 | node >> 12,
    |first, last| first >> 38 == last >> 38,
    fork
);
machine!(
    Riscv48,
    Sv48,
    Va48,
    Sv39,
    0x8040_0000,
    |node| 9 << 60 | node >> 12,
    |first, last| first >> 47 == last >> 47,
    fork
);
machine!(
    Riscv57,
    Sv57,
    Va57,
    Sv39,
    0x8040_0000,
    |node| 10 << 60 | node >> 12,
    |first, last| first >> 56 == last >> 56,
    fork
);
machine!(RiscvNapot, Sv39, Napot<Va39>, RiscvOf<true, true, true>, 0x8040_0000, |node| 8 << 60 | node >> 12, |first, last| first >> 38 == last >> 38, fork);
machine!(Amd, X86_64, Va48, X86, 0x8040_0000, |node| node, |first, last| first >> 47 == last >> 47, fork);
machine!(
    Amd57,
    X86_64La57,
    Va57,
    X86,
    0x8040_0000,
    |node| node,
    |first, last| first >> 56 == last >> 56,
    fork
);
machine!(Arm, Aarch64, Va48, Aarch64, 0x8040_0000, |node| node, |_, last| last >> 47 == 0, fork);
machine!(ArmRuns, Aarch64, RunsOf<Va48>, Aarch64Of<12, true, false>, 0x8040_0000, |node| node, |_, last| last >> 47 == 0, fork);
machine!(Arm16, Aarch64K16, Va48K16, Aarch64Of<14, false, false>, 0x8040_0000, |node| node, |_, last| last >> 47 == 0);
machine!(Arm16Runs, Aarch64K16, RunsOf<Va48K16>, Aarch64Of<14, true, false>, 0x8040_0000, |node| node, |_, last| last >> 47 == 0);
machine!(Arm64, Aarch64K64, Va48K64, Aarch64Of<16, false, false>, 0x8040_0000, |node| node, |_, last| last >> 47 == 0);
machine!(Arm64Runs, Aarch64K64, RunsOf<Va48K64>, Aarch64Of<16, true, false>, 0x8040_0000, |node| node, |_, last| last >> 47 == 0);
machine!(Mips, Mips32, Va32, EntryLoCowCoherent, 0x1000_0000, |node| node, |_, last| last >> 31 == 0, fork);

/// A format of tables, and the architecture that walks it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Subject {
    pub name: &'static str,
    pub arch: Arch,
    pub space: Space,
    /// A size that is larger than the smallest, and has that in its place in one node.
    pub large: PageSize,
    log: fn(How, &[Step]) -> Log,
}

impl Subject {
    const fn of<M: Machine>(name: &'static str, arch: Arch, shift: u32) -> Self {
        let Some(large) = PageSize::from_shift(shift) else { panic!("a size") };
        Self { name, arch, space: Space::of::<M::Geometry>(), large, log: log::<M> }
    }

    /// Returns the log of steps on one table, which its CPUs walk from the beginning.
    pub(crate) fn log_of(&self, how: How, steps: &[Step]) -> Log {
        (self.log)(how, steps)
    }
}

/// Every format of `tlbkit-pagetable` that a machine of the checker walks.
pub(crate) const SUBJECTS: [Subject; 14] = [
    Subject::of::<Riscv32>("Sv32", Arch::Sv32, 22),
    Subject::of::<Riscv39>("Sv39", Arch::Sv39, 21),
    Subject::of::<Riscv48>("Sv48", Arch::Sv48, 21),
    Subject::of::<Riscv57>("Sv57", Arch::Sv57, 21),
    Subject::of::<RiscvNapot>("Svnapot", Arch::Sv39, 16),
    Subject::of::<Amd>("x86-64", Arch::X86_64, 21),
    Subject::of::<Amd57>("LA57", Arch::X86_64La57, 21),
    Subject::of::<Arm>("4K", Arch::Aarch64, 21),
    Subject::of::<ArmRuns>("4K runs", Arch::Aarch64, 16),
    Subject::of::<Arm16>("16K", Arch::Aarch64K16, 25),
    Subject::of::<Arm16Runs>("16K runs", Arch::Aarch64K16, 21),
    Subject::of::<Arm64>("64K", Arch::Aarch64K64, 29),
    Subject::of::<Arm64Runs>("64K runs", Arch::Aarch64K64, 21),
    Subject::of::<Mips>("mips32", Arch::Mips32, 16),
];

pub(super) type WordOf<M> = <<M as Machine>::Format as Format>::Word;
pub(super) type TableOf<'n, M, N> = Mpt<'n, <M as Machine>::Geometry, <M as Machine>::Format, N>;

/// Storage that records what it hears.
#[derive(Debug)]
pub(super) struct Traced<'m, W: Word, M: Mode> {
    slab: Slab<'m, W, M>,
    /// How many CPUs run the table.
    cpus: usize,
    events: RefCell<Vec<(usize, Event)>>,
    /// The words of a page: a root that is less gets as many.
    page: usize,
    /// The bytes of each node that is taken.
    taken: RefCell<BTreeMap<usize, usize>>,
}

impl<W: Word, M: Mode> Traced<'_, W, M> {
    fn say(&self, event: Event) {
        self.events.borrow_mut().push((0, event));
    }

    /// Every CPU loads a root.
    pub(super) fn load(&self, value: u64) {
        self.say(Event::Barrier(Barrier::Complete));
        self.events.borrow_mut().extend((0..self.cpus).map(|cpu| (cpu, Event::Root { value, high: false })));
    }

    fn node(&self, node: NodeAddr, bytes: usize, free: bool) {
        self.say(Event::Node(Memory { at: node.get() as u64, bytes: bytes as u64, free }));
    }

    /// Executes a flush as far as it reaches: on CPU 0, or on both. All CPUs are asked, whatever it reaches, if nodes go: a walk
    /// may be in them.
    pub(super) fn flush<A: Machine>(&self, flush: &Flush, nodes: usize) {
        let page = |at: u64| Fence { pages: Some((at, at)), ..Fence::default() };
        let fences: Vec<Fence> = match flush.by_address(A::Format::WALK_CACHE, 64) {
            Some(pages) => pages.map(|at| page(at.address(A::BASE).get() as u64)).collect(),
            None => vec![Fence::default()],
        };
        let (near, wide) = (flush.scope() >= FlushScope::Local, flush.scope() == FlushScope::Everywhere);
        let mut events = self.events.borrow_mut();
        if A::BROADCASTS {
            events.push((0, Event::Barrier(Barrier::Complete)));
            let fences = fences.into_iter().filter(|_| near);
            events.extend(fences.map(|fence| (0, Event::Fence(Fence { broadcast: wide, ..fence }))));
            events.push((0, Event::Barrier(Barrier::Complete)));
            events.push((0, Event::Barrier(Barrier::Context)));
            return;
        }
        if near {
            events.extend(fences.iter().map(|&fence| (0, Event::Fence(fence))));
        }
        if (wide || nodes > 0) && self.cpus > 1 {
            events.push((0, Event::IpiSend { cpus: 2, id: 1 }));
            events.push((1, Event::IpiTake { id: 1 }));
        }
        if wide && self.cpus > 1 {
            events.extend(fences.iter().map(|&fence| (1, Event::Fence(fence))));
        }
    }
}

// SAFETY: everything is the slab's.
unsafe impl<W: Word, M: Mode> Nodes for Traced<'_, W, M> {
    type Word = W;
    type Mode = M;

    fn lowest(&self) -> NodeAddr {
        self.slab.lowest()
    }

    fn take_within(&self, words: usize, last: usize) -> Option<NodeAddr> {
        let words = words.max(self.page);
        self.slab.take_within(words, last).inspect(|&node| {
            self.taken.borrow_mut().insert(node.get(), words * W::BYTES);
            self.node(node, words * W::BYTES, false);
        })
    }

    fn at(&self, node: NodeAddr) -> *const W::Cell {
        self.slab.at(node)
    }

    fn record_at(&self, node: NodeAddr, words: usize) -> *const Record {
        self.slab.record_at(node, words.max(self.page))
    }

    fn stored(&self, store: Store) {
        self.say(match store {
            Store::Word { at, value } => Event::Write { at: at as u64, value },
            Store::Exchange { at, old, new } => Event::Swap { at: at as u64, old, new },
            Store::Release => Event::Barrier(Barrier::Release),
            Store::Fence => Event::Barrier(Barrier::Complete),
        });
    }
}

// SAFETY: links and numbers are the slab's; the storage is never `Sync`, and `shared` says so.
unsafe impl<W: Word, M: Mode> Reclaim for Traced<'_, W, M> {
    unsafe fn free(&self, node: NodeAddr, clean: bool) {
        let bytes = self.taken.borrow_mut().remove(&node.get()).unwrap();
        self.node(node, bytes, true);
        // SAFETY: by the contract of `Reclaim::free` the node is taken, no walker can reach it, and it is zero if `clean`.
        unsafe { self.slab.free(node, clean) }
    }

    unsafe fn link(&self, node: NodeAddr) -> *const Record {
        // SAFETY: by the contract of `Reclaim::link` the node is taken.
        unsafe { self.slab.link(node) }
    }

    fn index_of(&self, node: NodeAddr) -> u32 {
        self.slab.index_of(node)
    }

    fn node_of(&self, index: u32) -> NodeAddr {
        self.slab.node_of(index)
    }

    fn shared(&self) -> bool {
        false
    }

    fn held(&self) -> &Held {
        self.slab.held()
    }
}

/// Performs an operation on what has the methods of a [`Writer`]; `$resize` is its call that changes sizes, `$replace` the one that
/// changes frames, and `$move` the one that moves pages.
macro_rules! perform {
    ($on:expr, $base:expr, $op:expr, $resize:expr, $replace:expr, $move:expr) => {
        match *$op {
            Op::Map { pages, frame, size, attr } => $on.map(pages, frame, size, attr),
            Op::Unmap { pages, holes } => $on.unmap(pages, holes).map(drop),
            Op::Drain { pages, most } => $on.drain(pages).map(|drain| drain.take(most).for_each(drop)),
            Op::Move { pages, to } => $move(pages, to).map(drop),
            Op::Protect { pages, holes, change } => $on.protect(pages, holes, change).map(drop),
            Op::Resize { pages, to } => $resize(pages, to),
            Op::Replace { at, frame, attr } => $replace(at, frame, attr).map(drop),
            Op::Mark { page, mark } => $on.mark(page.address($base), mark).map(drop),
            Op::Fill { page, payload, frame } => $on.fill(page.address($base), payload, frame),
            Op::Lookup { .. } | Op::ForEach { .. } => Ok(()),
        }
    };
}
pub(super) use perform;

fn log<M: Machine>(how: How, steps: &[Step]) -> Log {
    let mut memory = vec![Chunk::ZERO; MEMORY / size_of::<Chunk>()];
    match how {
        How::Local => local::<M>(&mut memory, steps),
        How::Writer => writer::<M>(&mut memory, steps),
    }
}

pub(super) fn storage<M: Machine, Md: Mode>(memory: &mut [Chunk], cpus: usize) -> Traced<'_, WordOf<M>, Md> {
    let traced = Traced {
        slab: Slab::new(memory, M::NODES).unwrap(),
        cpus,
        events: RefCell::default(),
        taken: RefCell::default(),
        page: M::BASE.bytes() / WordOf::<M>::BYTES,
    };
    // On one CPU hardware notes nothing while the writer writes, which stores plainly then.
    if M::Format::STATUS && cpus > 1 {
        traced.say(Event::UsesDirty);
    }
    if M::HALVES && cpus > 1 {
        traced.say(Event::UsesHalves);
    }
    traced
}

fn local<M: Machine>(memory: &mut [Chunk], steps: &[Step]) -> Log {
    let nodes = &storage::<M, Solo>(memory, 1);
    let table: TableOf<'_, M, _> = Mpt::new(nodes).unwrap();
    nodes.load(M::root(table.root().get() as u64));
    let mut local = Local::new(table, |flush: &Flush| nodes.flush::<M>(flush, 0));
    let log = follow::<M, _, _>(nodes, &mut local, steps, |local| local.table(), edit);
    local.destroy();
    log
}

fn edit<'n, T: Table<'n>, F: FnMut(&Flush)>(local: &mut Local<'n, T, F>, step: &Step) -> Result<(), Error> {
    match step {
        Step::Op(op) => perform!(
            local,
            local.table().space().base(),
            op,
            // SAFETY: nothing runs in the pages.
            |pages, to| local.resize(pages, to, |flush| unsafe { FlushAll::breaking(flush) }),
            // SAFETY: nothing runs in the page.
            |at, frame, attr| local.replace(at, frame, attr, |flush| unsafe { FlushAll::breaking(flush) }),
            |pages, to| local.move_pages(pages, to)
        ),
        // It takes two writers.
        Step::Fork => Err(Error::Busy),
    }
}

fn writer<M: Machine>(memory: &mut [Chunk], steps: &[Step]) -> Log {
    let nodes = &storage::<M, Shared>(memory, 2);
    let mut table: TableOf<'_, M, _> = Mpt::new(nodes).unwrap();
    nodes.load(M::root(table.root().get() as u64));
    let perform = |table: &mut TableOf<'_, M, _>, step: &Step| {
        let mut writer = Writer::new(&*table).unwrap();
        let mut known = |flush: &Flush| nodes.flush::<M>(flush, 0);
        let done = match step {
            Step::Op(op) => perform!(
                writer,
                M::BASE,
                op,
                // SAFETY: nothing runs in the pages.
                |pages, to| writer.resize(pages, to, unsafe { FlushAll::breaking(&mut known) }),
                // SAFETY: nothing runs in the page.
                |at, frame, attr| writer.replace(at, frame, attr, unsafe { FlushAll::breaking(&mut known) }),
                |pages, to| writer.move_pages(pages, to, FlushAll::in_place(&mut known))
            ),
            Step::Fork => M::fork(nodes, &mut writer),
        };
        let batch = writer.finish();
        nodes.flush::<M>(batch.flush(), batch.nodes());
        // SAFETY: no CPU walks it. In the log, both CPUs have been asked.
        unsafe { batch.reclaim() };
        done
    };
    let log = follow::<M, _, _>(nodes, &mut table, steps, |table| table, perform);
    // SAFETY: no CPU walks the table.
    unsafe { destroy(table).reclaim() };
    log
}

/// Makes a copy of the table, which no CPU ever runs.
fn fork<'n, 'm, M: Machine, Md: Mode>(
    nodes: &'n Traced<'m, WordOf<M>, Md>,
    writer: &mut Writer<'_, 'n, TableOf<'n, M, Traced<'m, WordOf<M>, Md>>>,
) -> Result<(), Error> {
    let child: TableOf<'_, M, _> = Mpt::new(nodes)?;
    let mut copy = Writer::new(&child)?;
    let done = writer.copy_on_write(&mut copy, |_| (), |_| ());
    // SAFETY: no CPU walks the child.
    unsafe {
        copy.finish().reclaim();
        destroy(child).reclaim();
    }
    done
}

fn leaves<'n>(table: &impl Table<'n>) -> Vec<Leaf> {
    let mut found = Vec::new();
    for pages in table.space().halves().into_iter().flatten() {
        // SAFETY: nothing is reclaimed meanwhile.
        let _ = table.for_each(unsafe { Pinned::by(table) }, pages, &mut |leaf| {
            found.push(leaf);
            ControlFlow::Continue(())
        });
    }
    found
}

/// Returns the physical addresses of a leaf, first and last.
fn memory<M: Machine>(leaf: &Leaf) -> (u64, u64) {
    let first = leaf.frame.address(M::BASE).get() as u64;
    (first, first + leaf.size.bytes() as u64 - 1)
}

/// Returns the range that a step is about, if it can be done here at all.
fn range<'n, M: Machine>(table: &impl Table<'n>, step: &Step, leaves: &[Leaf]) -> Option<Pages> {
    let pages = match step {
        Step::Fork => {
            let last = leaves.last()?;
            let end = VirtAddr::new(last.at.get() + (last.size.bytes() - 1)).vpn(M::BASE);
            Pages::new(leaves[0].at.vpn(M::BASE), end)?
        }
        Step::Op(Op::Lookup { .. } | Op::ForEach { .. }) => return None,
        Step::Op(Op::Replace { at, .. }) => {
            let holds = |leaf: &&Leaf| leaf.at <= *at && at.get() - leaf.at.get() < leaf.size.bytes();
            let leaf = leaves.iter().find(holds)?;
            Pages::count(leaf.at.vpn(M::BASE), leaf.size.bytes() / M::BASE.bytes())?
        }
        Step::Op(op) => op.pages()?,
    };
    let is_here = |pages: Pages| {
        let first = pages.first().checked_address(M::BASE)?;
        let last = pages.last().checked_address(M::BASE)?;
        let holds = table.space().holds(first) && table.space().holds(last);
        (holds && M::translates(first.get() as u64, last.get() as u64 | M::BASE.mask() as u64))
            .then_some(pages)
    };
    if let Step::Op(Op::Move { to, .. }) = step {
        is_here(Pages::count(*to, pages.len())?)?;
    }
    is_here(pages)
}

/// Tells whether an operation makes few pages, and maps none of the nodes.
fn is_small<M: Machine>(op: &Op, leaves: &[Leaf]) -> bool {
    let apart = |frame: u64, bytes: u64| {
        let nodes = M::NODES as u64;
        frame
            .checked_mul(M::BASE.bytes() as u64)
            .and_then(|at| Some((at, at.checked_add(bytes)?)))
            .is_some_and(|(at, end)| end <= nodes || at >= nodes + MEMORY as u64)
    };
    // The words of a node.
    let most = 1 << <M::Geometry as Radix>::WIDTHS[1];
    match *op {
        Op::Map { pages, frame, size, .. } => {
            let bytes = (pages.len() as u64).saturating_mul(M::BASE.bytes() as u64);
            bytes / size.bytes() as u64 <= most && apart(frame.get() as u64, bytes)
        }
        // A large page may be there.
        Op::Replace { frame, .. } => {
            let largest = <M::Geometry as Geometry>::SIZES.iter().map(|size| size.bytes()).max();
            apart(frame.get() as u64, largest.unwrap_or(M::BASE.bytes()) as u64)
        }
        Op::Fill { frame, .. } => apart(frame.get() as u64, M::BASE.bytes() as u64),
        Op::Resize { to, .. } => {
            leaves.iter().all(|leaf| leaf.size.bytes() as u64 / to.bytes() as u64 <= most)
        }
        _ => true,
    }
}

/// Does the steps one after the other, and notes what each promises, frees, and makes of an access.
pub(super) fn follow<'n, M: Machine, B: Table<'n>, T>(
    nodes: &Traced<'_, WordOf<M>, impl Mode>,
    on: &mut T,
    steps: &[Step],
    table: impl Fn(&T) -> &B,
    mut perform: impl FnMut(&mut T, &Step) -> Result<(), Error>,
) -> Log {
    let (mut begins, mut done) = (Vec::new(), Vec::new());
    for (id, step) in (0..).zip(steps) {
        begins.push(nodes.events.borrow().len());
        let before = leaves(table(on));
        let small = match step {
            Step::Op(op) => is_small::<M>(op, &before),
            Step::Fork => true,
        };
        let Some(pages) = range::<M>(table(on), step, &before).filter(|_| small) else {
            done.push(false);
            continue;
        };
        let (first, last) = (
            pages.first().address(M::BASE),
            pages.last().address(M::BASE).get() as u64 | M::BASE.mask() as u64,
        );
        nodes.say(Event::Lower { id, first: first.get() as u64, last, root: None });
        done.push(perform(on, step).is_ok());
        nodes.say(Event::Done { id });
        // Frames that nothing maps any more.
        let after = leaves(table(on));
        let mut there: Vec<_> = after.iter().map(memory::<M>).collect();
        there.sort_unstable();
        for gone in before.iter().map(memory::<M>).filter(|gone| there.binary_search(gone).is_err()) {
            if there.iter().all(|there| there.1 < gone.0 || gone.1 < there.0) {
                nodes.say(Event::Frame(Memory { at: gone.0, bytes: gone.1 - gone.0 + 1, free: true }));
            }
        }
        let leaf =
            after.iter().find(|leaf| leaf.at <= first && first.get() - leaf.at.get() < leaf.size.bytes());
        let leaf = leaf.filter(|leaf| leaf.attr.contains(Attr::READ));
        // Without the accessed bit it depends on the hardware.
        if M::Format::STATUS
            && nodes.cpus == 1
            && leaf.is_some_and(|leaf| !leaf.attr.contains(Attr::ACCESSED))
        {
            continue;
        }
        let reaches = leaf.map(|leaf| leaf.phys(first, M::BASE).get() as u64);
        nodes.say(Event::Access { at: first.get() as u64, kind: Access::Load, user: false, reaches });
    }
    begins.push(nodes.events.borrow().len());
    Log { events: nodes.events.take(), steps: begins, done }
}
