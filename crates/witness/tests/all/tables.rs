//! tlbkit's own tables under the checker: what they store, and the flushes that they report, make a log that holds; with a
//! fence left out it does not.
#![cfg(target_pointer_width = "64")]

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use tlbkit_addr::{Attr, Flush, FlushScope, PageSize, Pages, Pfn, VirtAddr, Vpn};
use tlbkit_pagetable::format::{Aarch64, Format, Sv39, X86};
use tlbkit_pagetable::geometry::{Va39, Va48};
use tlbkit_pagetable::mpt::Mpt;
use tlbkit_pagetable::nodes::{Chunk, NodeAddr, Nodes, Slab};
use tlbkit_pagetable::{Change, FlushAll, Holes, Local, Radix, Solo};
use tlbkit_witness::check::{Arch, Checked, Refusal, check};

const NODES: usize = 0x8020_0000;

#[derive(Clone, Copy, Debug)]
enum Op {
    Map { page: usize, size: PageSize, attr: Attr },
    Unmap { page: usize, count: usize },
    Protect { page: usize, count: usize, change: Change },
    Resize { page: usize, size: PageSize },
}

/// What a table has stored so far, and the log of it.
#[derive(Debug, Default)]
struct Log {
    words: BTreeMap<usize, u64>,
    nodes: BTreeSet<usize>,
    lines: Vec<String>,
}

impl Log {
    /// Notes what has been stored since the last time: in new nodes first, then in those that walkers are in.
    fn stores<F: Format<Word = u64>>(&mut self, slab: &Slab<'_, u64, Solo>, root: NodeAddr, top: u32) {
        let (mut words, mut nodes) = (BTreeMap::new(), BTreeSet::new());
        scan::<F>(slab, root, top, &mut words, &mut nodes);
        for node in nodes.difference(&self.nodes) {
            self.lines.push(format!("0 node take {node:#x} 4096"));
        }
        let was = |at: &usize| self.words.get(at).copied().unwrap_or(0);
        let gone = self.words.keys().filter(|at| nodes.contains(&(*at & !4095)) && !words.contains_key(at));
        let mut changed: Vec<(usize, u64)> = gone.map(|&at| (at, 0)).collect();
        changed.extend(words.iter().filter(|(at, word)| was(at) != **word).map(|(at, word)| (*at, *word)));
        let (old, new): (Vec<_>, Vec<_>) =
            changed.into_iter().partition(|(at, _)| self.nodes.contains(&(at & !4095)));
        for (at, word) in new {
            self.lines.push(format!("0 write {at:#x} {word:#x}"));
        }
        // The store that publishes a node is a release.
        self.lines.push("0 barrier release".into());
        for (at, word) in old {
            self.lines.push(format!("0 write {at:#x} {word:#x}"));
        }
        self.words = words;
        self.nodes.extend(nodes);
    }

    /// Executes a flush as far as it reaches: on CPU 0, or on both.
    fn flush<F: Format<Word = u64>>(&mut self, flush: &Flush) {
        let fences: Vec<String> = match flush.by_address(F::WALK_CACHE, 64) {
            Some(pages) => pages.map(|page| format!("fence va {:#x}", page.get() << 12)).collect(),
            None => vec!["fence".into()],
        };
        let wide = flush.scope() == FlushScope::Everywhere;
        if F::BREAK {
            self.lines.push("0 barrier dsb".into());
            if flush.scope() >= FlushScope::Local {
                let wide = if wide { " broadcast" } else { "" };
                self.lines.extend(fences.iter().map(|fence| format!("0 {fence}{wide}")));
                self.lines.push("0 barrier dsb".into());
            }
            return self.lines.push("0 barrier isb".into());
        }
        if flush.scope() >= FlushScope::Local {
            self.lines.extend(fences.iter().map(|fence| format!("0 {fence}")));
        }
        if wide {
            self.lines.extend(["0 ipi send 1 1".into(), "1 ipi take 1".into()]);
            self.lines.extend(fences.iter().map(|fence| format!("1 {fence}")));
        }
    }
}

/// Reads a table as hardware does.
fn scan<F: Format<Word = u64>>(
    slab: &Slab<'_, u64, Solo>,
    node: NodeAddr,
    level: u32,
    words: &mut BTreeMap<usize, u64>,
    nodes: &mut BTreeSet<usize>,
) {
    nodes.insert(node.get());
    for slot in 0..512 {
        // SAFETY: the node hangs in the table, it has 512 words, and cells are atomic.
        let word = unsafe { &*slab.at(node).add(slot) }.load(std::sync::atomic::Ordering::Relaxed);
        if word != 0 {
            words.insert(node.get() + slot * 8, word);
        }
        if level > 0 && F::is_link(word) {
            scan::<F>(slab, F::node(word), level - 1, words, nodes);
        }
    }
}

/// Returns the log of the operations on one table, which two CPUs walk from the beginning.
fn log<G: Radix, F: Format<Word = u64>>(ops: &[Op], root_of: impl Fn(usize) -> u64) -> Vec<String> {
    let mut memory = vec![Chunk::ZERO; 64 * 4096 / size_of::<Chunk>()];
    let slab = Slab::<u64, Solo>::new(&mut memory, NODES).unwrap();
    let (table, top) = (Mpt::<G, F, _>::new(&slab).unwrap(), G::WIDTHS.len() as u32 - 1);
    let (root, log) = (table.root(), RefCell::new(Log::default()));
    log.borrow_mut().stores::<F>(&slab, root, top);
    log.borrow_mut().lines.push("0 barrier fence".into());
    log.borrow_mut().lines.extend((0..2).map(|cpu| format!("{cpu} root {:#x}", root_of(root.get()))));
    let mut table = Local::new(table, |flush: &Flush| {
        let mut log = log.borrow_mut();
        log.stores::<F>(&slab, root, top);
        log.flush::<F>(flush);
    });
    for (id, op) in ops.iter().enumerate() {
        let (page, count, frame) = match *op {
            Op::Map { page, size, .. } | Op::Resize { page, size } => {
                (page & !(size.bytes() / 4096 - 1), size.bytes() / 4096, Some(size))
            }
            Op::Unmap { page, count } | Op::Protect { page, count, .. } => (page, count, None),
        };
        let pages = Pages::count(Vpn::new(page), count).unwrap();
        let before: Vec<_> =
            pages.iter().map(|page| table.translate(VirtAddr::new(page.get() << 12))).collect();
        let (first, last) = (page << 12, (page + count) * 4096 - 1);
        log.borrow_mut().lines.push(format!("0 lower {id} {first:#x} {last:#x}"));
        let _ = match *op {
            // A page that is mapped anew has the frame of its number, so that frames are not shared.
            Op::Map { size, attr, .. } => table.map(pages, Pfn::new(0x10_0000 + page), size, attr),
            Op::Unmap { .. } => table.unmap(pages, Holes::Skip).map(|_| ()),
            Op::Protect { change, .. } => table.protect(pages, Holes::Skip, change).map(|_| ()),
            Op::Resize { .. } => table.resize(pages, frame.unwrap(), FlushAll::in_place),
        };
        let mut log = log.borrow_mut();
        log.stores::<F>(&slab, root, top);
        log.lines.push(format!("0 done {id}"));
        // The nodes that the table no longer has went back, and the frames that it no longer maps.
        let (mut words, mut nodes) = (BTreeMap::new(), BTreeSet::new());
        scan::<F>(&slab, root, top, &mut words, &mut nodes);
        for node in log.nodes.difference(&nodes).copied().collect::<Vec<_>>() {
            log.lines.push(format!("0 node free {node:#x} 4096"));
            log.nodes.remove(&node);
        }
        for (page, before) in pages.iter().zip(before) {
            let (at, now) = (page.get() << 12, table.translate(VirtAddr::new(page.get() << 12)));
            if let (Some(before), None) = (before, now) {
                log.lines.push(format!("0 frame free {:#x} 4096", before.get()));
            }
            let now = now.map_or("fault".into(), |now| format!("{:#x}", now.get()));
            log.lines.push(format!("0 access {at:#x} load kernel {now}"));
        }
    }
    drop(table);
    log.into_inner().lines
}

fn logs(ops: &[Op]) -> [(Arch, Vec<String>); 3] {
    [
        (Arch::Sv39, log::<Va39, Sv39>(ops, |root| 8 << 60 | root as u64 >> 12)),
        (Arch::X86_64, log::<Va48, X86>(ops, |root| root as u64)),
        (Arch::Aarch64, log::<Va48, Aarch64>(ops, |root| root as u64)),
    ]
}

fn verdict(arch: Arch, lines: &[String]) -> Result<Checked, Refusal> {
    check(arch, &lines.join("\n"))
}

const USED: Attr = Attr::READ.union(Attr::ACCESSED);

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let page = prop_oneof![0..16_usize, 500..530_usize];
    let size = prop_oneof![4 => Just(PageSize::K4), 1 => Just(PageSize::M2)];
    let attr = prop::bool::ANY.prop_map(|write| if write { USED | Attr::WRITE | Attr::DIRTY } else { USED });
    let change = prop::bool::ANY.prop_map(|clear| {
        if clear { Change::clear(Attr::WRITE) } else { Change::set(Attr::WRITE | Attr::DIRTY) }
    });
    let op = prop_oneof![
        4 => (page.clone(), size.clone(), attr).prop_map(|(page, size, attr)| Op::Map { page, size, attr }),
        2 => (page.clone(), 1..40_usize).prop_map(|(page, count)| Op::Unmap { page, count }),
        2 => (page.clone(), 1..8_usize, change).prop_map(|(page, count, change)| Op::Protect { page, count, change }),
        1 => (page, size).prop_map(|(page, size)| Op::Resize { page, size }),
    ];
    prop::collection::vec(op, 1..16)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever is edited, the flushes that the tables report suffice.
    #[test]
    fn the_flushes_that_tables_report_suffice(ops in ops()) {
        for (arch, lines) in logs(&ops) {
            if let Err(why) = verdict(arch, &lines) {
                prop_assert!(false, "{:?}: {}\n{}", arch, why, lines.join("\n"));
            }
        }
    }
}

/// Each fence, and each barrier that a fence needs, left out in turn is reported: by the frame, the node, the right or the access
/// that it protects.
#[test]
fn each_fence_that_is_left_out_is_reported() {
    let (page, attr) = (7, USED | Attr::WRITE | Attr::DIRTY);
    let ops = [
        Op::Map { page, size: PageSize::K4, attr },
        Op::Protect { page, count: 1, change: Change::clear(Attr::WRITE) },
        Op::Unmap { page, count: 1 },
    ];
    for (arch, lines) in logs(&ops) {
        verdict(arch, &lines).unwrap_or_else(|why| panic!("{arch:?}: {why}\n{}", lines.join("\n")));
        let mut found = 0;
        for (at, line) in lines.iter().enumerate().filter(|(_, line)| line.contains(" fence")) {
            // Before the roots are loaded a barrier is nothing that a walk needs.
            if lines[at..].iter().any(|line| line.contains(" root ")) {
                continue;
            }
            let mut less = lines.clone();
            less.remove(at);
            let outcome = verdict(arch, &less);
            let violation = outcome.as_ref().err().and_then(Refusal::violation);
            assert!(violation.is_some(), "{arch:?}: without `{line}` {outcome:?}\n{}", less.join("\n"));
            found += 1;
        }
        assert!(found >= 2, "{arch:?}: {found} fences\n{}", lines.join("\n"));
    }
}
