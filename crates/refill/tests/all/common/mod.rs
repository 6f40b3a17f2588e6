//! A guest: tables that Rust edits, the handler's words at the vectors, and a kernel that flushes.
#![allow(dead_code, reason = "each test uses some of it")]

mod flush;
mod judge;
pub(crate) mod steps;
pub(crate) mod tables;

use std::cell::RefCell;
use std::mem::size_of;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};

use proptest::test_runner::TestCaseError;
use tlbkit_addr::{Asid, Attr, Flush, PageSize, Pages, Pfn, Vpn};
use tlbkit_pagetable::nodes::{NodeAddr, Nodes, Slab};
use tlbkit_pagetable::{Change, FlushAll, Geometry, Holes, Local, Mark, Private, Radix, Solo};
use tlbkit_refill::features::Features;
use tlbkit_refill::handler::{Form, Front, Handler, Place, Root, Spec, Stlb, Walk, Write};
use tlbkit_refill::interp::{Access, Machine, Stop, Window, Windows};
use tlbkit_refill::{Block, Log};
use tlbkit_stlb::{AsidTag, CacheMemory, Direct, Invalidate, Mips32};

use flush::{forget, narrow};
use judge::{Rig, check, drain, judge_entry, judge_fault};
pub(crate) use steps::Step;
use steps::{attr, size_of_index};

/// Where things are in physical memory.
pub(crate) const NODES: usize = 0x10_0000;
/// Where there is room for more of them, at a multiple of the largest array.
pub(crate) const MORE: usize = 0x100_0000;
const BLOCK: usize = 0x2000;
const LOG: usize = 0x3000;
const CACHE: usize = 0x80_0000;
pub(crate) const KSEG0: usize = 0x8000_0000;
/// The last pair of pages: where a wired entry shows the block, if one does.
const NEAR: u32 = 0xffff_e000;
/// The instruction that accesses memory.
const USER: u64 = 0x0040_0000;
const SETS: usize = 16;
const RECORDS: usize = 3;
const TLB: usize = 16;

pub(crate) type Storage<'m> = Slab<'m, u32, Solo>;

/// 32 bits of 4 KiB pages, and no others.
#[derive(Debug)]
pub(crate) struct Base32;

impl Geometry for Base32 {
    const VA_BITS: u32 = 32;
    const BASE: PageSize = PageSize::K4;
    const SIZES: &'static [PageSize] = &[PageSize::K4];
}

impl Radix for Base32 {
    const WIDTHS: &'static [u32] = &[10, 10];
}

/// Where the root word is, if a register has its address: behind the handler.
const CELL: usize = 0x1ffc;

/// What varies beside the table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Config {
    pub(crate) features: Features,
    pub(crate) root: Root,
    pub(crate) stlb: bool,
    pub(crate) form: Form,
    pub(crate) write: Write,
    /// Whether the block is seen at the end of kseg3, through a wired entry, and not in kseg0.
    pub(crate) near: bool,
}

impl Config {
    pub(crate) fn spec(&self, walk: Walk) -> Spec {
        let cache = Stlb::new((KSEG0 + CACHE) as u32, SETS).unwrap();
        Spec {
            features: self.features,
            place: Place::WIDE,
            block: if self.near { NEAR } else { (KSEG0 + BLOCK) as u32 },
            root: self.root,
            front: if self.stlb { Front::Stlb(cache) } else { Front::None },
            walk,
            form: self.form,
            write: self.write,
        }
    }
}

/// What the kernel must flush, by space.
type Pending = Rc<RefCell<Vec<Flush>>>;

/// What a run can be made to do wrong.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sabotage {
    /// A word of the refill code that becomes a `nop`.
    pub(crate) word: Option<usize>,
    /// Whether the other half of a larger page's pair is not flushed.
    pub(crate) narrow: bool,
}

/// What a run has seen.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) translated: usize,
    pub(crate) faults: usize,
    pub(crate) marks: usize,
    pub(crate) nested: u64,
    /// Entries of pages larger than 4 KiB, and those among them with both halves of a pair.
    pub(crate) larger: usize,
    pub(crate) whole: usize,
    /// The instructions of the shortest refill.
    pub(crate) fewest: Option<u64>,
    pub(crate) reports: usize,
}

/// A kind of table, and how its handler walks it.
#[derive(Clone, Copy)]
pub(crate) struct Subject<'n, 'm, T> {
    pub(crate) walk: Walk,
    pub(crate) storage: &'n Storage<'m>,
    /// The first node's address, and how much memory there is.
    pub(crate) nodes: usize,
    pub(crate) chunks: usize,
    pub(crate) make: fn(&'n Storage<'m>) -> T,
    pub(crate) root: fn(&T) -> usize,
}

/// Runs steps on two spaces, and compares every access with what the table says.
pub(crate) fn run<'n, T: Private<'n>>(
    config: &Config,
    subject: Subject<'n, '_, T>,
    steps: &[Step],
    sabotage: Sabotage,
) -> Result<Seen, TestCaseError> {
    let Subject { walk, storage, nodes, chunks, make, root } = subject;
    let spec = config.spec(walk);
    let handler = spec.assemble().map_err(|error| TestCaseError::fail(error.to_string()))?;
    let pending: [Pending; 2] = Default::default();
    let mut tables: Vec<_> = pending
        .iter()
        .map(|pending| {
            let pending = pending.clone();
            Local::new(make(storage), move |flush: &Flush| pending.borrow_mut().push(flush.clone()))
        })
        .collect();

    let low: Vec<_> = (0..0x2000 / 4).map(|_| AtomicU32::new(0)).collect();
    install(&low, &handler, &spec, sabotage);
    let block = Block::new();
    let log = Log::<RECORDS>::new();
    log.attach(&block, (KSEG0 + LOG) as u32);
    let mut memory = CacheMemory::<{ SETS * 16 }>::new();
    let mut cache = Direct::<Mips32, SETS>::new(memory.bytes()).unwrap();
    // SAFETY: all of it lives until the end of this function; one thread uses it, either Rust or the machine.
    let windows = unsafe {
        Windows([
            Window::new(0, &low),
            Window::from_raw((nodes & !KSEG0) as u64, storage.at(NodeAddr::new(nodes)).cast(), chunks * 1024),
            Window::from_raw(CACHE as u64, cache.base().cast(), SETS * 4),
            Window::from_raw(BLOCK as u64, (&raw const block).cast(), size_of::<Block>() / 4),
            Window::from_raw(LOG as u64, (&raw const log).cast(), size_of::<Log<RECORDS>>() / 4),
        ])
    };
    let mut machine = Machine::<_, TLB>::new(config.features, windows);
    machine.stop = machine.vectors + 0x180 + 4 * handler.general.words().len() as u64;
    machine.cp0.context = spec.context() as i32 as u64;
    machine.cp0.wired = 1;

    let mut seen = Seen::default();
    let mut now = 0;
    let mut mapped = [Vec::new(), Vec::new()];
    let mut expected = Vec::new();
    let mut edited = None;
    for step in steps {
        // The kernel's part of an edit and of a switch.
        let asid = now as u64 + 5;
        for (space, pending) in pending.iter().enumerate() {
            for flush in pending.take() {
                let flush = match edited {
                    Some(pages) if sabotage.narrow => narrow(&flush, pages),
                    _ => flush,
                };
                forget(&mut machine.tlb, &flush, space as u64 + 5);
                let space = AsidTag::new(Asid::new(space as u16 + 5, 8).unwrap()).unwrap();
                for &pages in flush.ranges() {
                    cache.invalidate_pages(space, pages);
                }
                if flush.is_all() {
                    cache.invalidate_space(space);
                }
            }
        }
        if config.near {
            wire(&mut machine);
        }
        machine.cp0.entry_hi = asid;
        let word = walk.root(root(tables[now].table()));
        match config.root {
            Root::Block => block.set_root(word),
            Root::KScratch(select) => machine.cp0.kscratch[usize::from(select) - 2] = word as i32 as u64,
            Root::ErrorEpc => machine.cp0.error_epc = word as i32 as u64,
            Root::Cell => {
                low[CELL / 4].store(word, Ordering::Relaxed);
                machine.cp0.error_epc = (KSEG0 + CELL) as i32 as u64;
            }
        }
        let table = &mut tables[now];
        let k4 = |first: usize, count: usize| Pages::count(Vpn::new(first), count);
        match *step {
            // No larger page, nor its pair, may cover the kernel's own.
            Step::Map { first, size: size @ 1.., .. } | Step::Resize { first, size: size @ 1.. }
                if config.near && first + (2 << (2 * size)) >= 1 << 20 => {}
            Step::Map { first, count, frame, size, attr: rights } => {
                let size = size_of_index(size);
                let unit = size.pages(PageSize::K4).unwrap();
                let count = if unit > 1 { count.min(2) * unit } else { count };
                if let Some(pages) = k4(first & !(unit - 1), count) {
                    edited = Some(pages);
                    let done = table.map(pages, Pfn::new(frame & !(unit - 1)), size, attr(rights));
                    if done.is_ok() {
                        mapped[now].push((pages.first().get(), pages.len()));
                    }
                }
            }
            Step::Unmap { first, count } => {
                if let Some(pages) = k4(first, count) {
                    edited = Some(pages);
                    let _ = table.unmap(pages, Holes::Skip);
                }
            }
            Step::Protect { first, count, attr: rights } => {
                let to = attr(rights);
                let access = Attr::READ | Attr::WRITE | Attr::EXEC;
                let lost = if to.intersects(access) { Attr::WRITE } else { access };
                let change = Change { set: to, clear: (lost | Attr::DIRTY | Attr::UNCACHED).difference(to) };
                if let Some(pages) = k4(first, count) {
                    edited = Some(pages);
                    let _ = table.protect(pages, Holes::Skip, change);
                }
            }
            Step::Resize { first, size } => {
                let size = size_of_index(size);
                let unit = size.pages(PageSize::K4).unwrap().max(4);
                if let Some(pages) = k4(first & !(unit - 1), unit) {
                    edited = Some(pages);
                    // SAFETY: nothing but the interpreter uses these pages.
                    let _ = table.resize(pages, size, |flush| unsafe { FlushAll::breaking(flush) });
                }
            }
            Step::Mark { page, payload } => {
                let mark = if payload == 0 {
                    Mark::Guard
                } else {
                    Mark::Payload(payload.into(), attr(payload as usize & 7) & Mark::KEPT)
                };
                edited = Some(Pages::one(Vpn::new(page)));
                if table.mark(Vpn::new(page).address(PageSize::K4), Some(mark)).is_ok() {
                    seen.marks += 1;
                    mapped[now].push((page, 1));
                }
            }
            Step::Fill { page, frame } => {
                edited = Some(Pages::one(Vpn::new(page)));
                let at = Vpn::new(page).address(PageSize::K4);
                if let Some(Mark::Payload(payload, _)) = table.entry(at).mark() {
                    let _ = table.fill(at, payload, Pfn::new(frame));
                }
            }
            Step::Switch => now = 1 - now,
            Step::Forget => {
                machine.tlb.flush();
                if config.near {
                    wire(&mut machine);
                }
            }
            Step::Touch { page, ago, offset, store } => {
                // Neighbours on both sides too: the other half of a pair, or a hole.
                let near = |&(first, count): &(usize, usize)| (first + page % (count + 2)).saturating_sub(1);
                let recent = ago.and_then(|ago| mapped[now].iter().rev().nth(ago).map(near));
                let page = recent.unwrap_or(page) & 0xf_ffff;
                if matches!(walk, Walk::Lpt(_)) && page >> 10 == 0xc_0000 >> 10 {
                    // The table itself: only the handler loads from it.
                    continue;
                }
                if config.near && page >> 1 == NEAR as usize >> 13 {
                    // The kernel's own.
                    continue;
                }
                let at = page << 12 | offset;
                let access = if store { Access::Store } else { Access::Load };
                let mut tries = 0;
                loop {
                    let before = *machine.tlb.entries();
                    let stood = block_next(&block);
                    machine.pc = USER;
                    machine.cp0.status = 0;
                    machine.counts.instructions = 0;
                    let result = machine.touch(at as u32 as i32 as u64, access);
                    if block_next(&block) != stood {
                        expected.push((at as u32, machine.cp0.entry_hi as u32, before, machine.cp0.index));
                    }
                    tries += 1;
                    check!(tries < 12, "{at:#x} is never translated");
                    match result {
                        Err(Stop::Returned) => {
                            let spent = machine.counts.instructions;
                            seen.fewest = Some(seen.fewest.map_or(spent, |fewest| fewest.min(spent)));
                            continue;
                        }
                        Err(Stop::Reached) if config.form.reporting && full(&block) => {
                            drain(&log, &block, &mut expected, &mut seen)?;
                            continue;
                        }
                        Err(Stop::Reached) => {
                            seen.faults += 1;
                            judge_fault(&machine, table, at, access)?;
                        }
                        Err(stop) => {
                            check!(false, "{at:#x}: the handler stopped: {stop:x?}");
                        }
                        Ok(physical) => {
                            seen.translated += 1;
                            judge_entry(&machine, table, at, physical, access, config.form, &mut seen)?;
                        }
                    }
                    break;
                }
            }
        }
    }
    drain(&log, &block, &mut expected, &mut seen)?;
    seen.nested = machine.counts.nested;
    for table in tables {
        table.destroy();
    }
    Ok(seen)
}

/// Wires the entry that shows the block where register 0 reaches it.
fn wire<const W: usize>(machine: &mut Rig<'_, W>) {
    // The page with the block: cached, writable, valid. Its neighbour is nothing. Both are in every address space.
    let lo = [(BLOCK as u64 >> 12) << 6 | 0b01_1111, 1];
    let entry = tlbkit_refill::interp::Entry { page_mask: 0, hi: NEAR as i32 as u64, lo };
    machine.tlb.write(0, entry).unwrap();
}

fn install(low: &[AtomicU32], handler: &Handler, spec: &Spec, sabotage: Sabotage) {
    let put = |at: usize, words: &[u32]| {
        for (word, cell) in words.iter().zip(&low[at / 4..]) {
            cell.store(*word, Ordering::Relaxed);
        }
    };
    put(0, handler.refill.words());
    put(0x180, handler.general.words());
    put(spec.place.tail as usize, handler.tail.words());
    if let Some(word) = sabotage.word {
        put(4 * word, &[0]);
    }
}

fn block_next(block: &Block) -> u32 {
    // SAFETY: the second word of the block, as its layout says.
    unsafe { (&raw const *block).cast::<u32>().add(1).read_volatile() }
}

fn full(block: &Block) -> bool {
    // SAFETY: the third word of the block, as its layout says.
    block_next(block) == unsafe { (&raw const *block).cast::<u32>().add(2).read_volatile() }
}
