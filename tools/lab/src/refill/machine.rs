//! The machine: a handler's words, a table's memory, and a miss after the other.
//!
//! ```text
//!   physical   0x80      handler             0x400   its tail
//!              0x1000    block: the root     0x10000 software TLB
//!              16 MiB    nodes
//! ```
//!
//! Before each miss the TLB is empty. Of a linear table it holds what the modelled machine's TLB still had of the way to the
//! PTE: the lowest page that did not miss.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, bail};
use tlbkit_addr::{Attr, PageSize, Pages, Vpn};
use tlbkit_pagetable::format::Format;
use tlbkit_pagetable::nodes::{Chunk, NodeAddr, Nodes as _};
use tlbkit_pagetable::{Error, Pinned, Table, Writer};
use tlbkit_refill::features::Features;
use tlbkit_refill::interp::{Access, Entry, Machine, Memory, Stop, Window, Windows};
use tlbkit_refill::mips3::{GENERAL, PaperLo, Spec, Stlb, TAIL, VECTOR};
use tlblab_tables::handled::{Handled, Named, Nodes as Storage};

use super::Row;
use crate::cache::{self, Caches};
use crate::cycles::{Clock, frame};
use crate::tables::{Misses, Refill, pieces};
use crate::trace::Kind;

const KSEG0: u32 = 0x8000_0000;
const BLOCK: u32 = 0x1000;
const CACHE: u32 = 0x1_0000;
const LOW: usize = 0x4_0000;
const NODES: usize = 16 << 20;
/// Chunks of node memory to begin with, and as many as kseg0 has room for.
const CHUNKS: usize = 1 << 11;
const MOST: usize = ((512 << 20) - NODES) / size_of::<Chunk>();
/// Entries of the TLB: the R4700's.
const ENTRIES: usize = 48;
/// Zero would match an empty entry of the software TLB.
const ASID: u64 = 1;

/// The memory of the machine, behind the caches that it shares with the program, if there are any.
struct Cached<'m> {
    windows: Windows<'m, 2>,
    caches: Option<Caches>,
    /// The register that the last instruction loaded.
    loaded: u32,
}

impl Memory for Cached<'_> {
    fn load(&mut self, at: u64) -> Option<u32> {
        let word = self.windows.load(at)?;
        if let Some(caches) = &mut self.caches {
            if at >= u64::from(BLOCK) {
                caches.refer(Kind::Load, at, 1);
            } else {
                // Only instructions are in front of the block.
                caches.refer(Kind::Instr, at, 1);
                if self.loaded != 0 && uses(word, self.loaded) {
                    caches.wait(caches.machine.delay);
                }
                self.loaded = if matches!(word >> 26, 0x20..=0x27 | 0x37) { word >> 16 & 31 } else { 0 };
            }
        }
        Some(word)
    }

    fn store(&mut self, at: u64, word: u32) -> bool {
        if let Some(caches) = &mut self.caches {
            caches.refer(Kind::Store, at, 1);
        }
        self.windows.store(at, word)
    }
}

/// Tells whether an instruction reads k0 or k1, whichever `register` is. No other field has such a value in the place of rs;
/// rt is read by register arithmetic, by branches and stores, and by moves to coprocessor 0.
const fn uses(word: u32, register: u32) -> bool {
    let (op, rs, rt) = (word >> 26, word >> 21 & 31, word >> 16 & 31);
    let reads = matches!(op, 0 | 4 | 5 | 0x2b | 0x3f) || op == 0x10 && matches!(rs, 4 | 5);
    rs == register || reads && rt == register
}

/// Runs a structure's handler on every miss, in as much node memory as it needs.
pub(super) fn run(structure: &Named, misses: &Misses, on: Option<cache::Machine>) -> anyhow::Result<Row> {
    let mut chunks = CHUNKS;
    loop {
        let mut memory = vec![Chunk::ZERO; chunks];
        let storage = Storage::new(&mut memory, nodes_at(structure)).map_err(anyhow::Error::msg)?;
        let table = (structure.build)(&storage)?;
        let row = match change(table.table(), |writer| map(structure, writer, misses)) {
            Ok(()) => Some(replay(structure, misses, &storage, chunks, &*table, on)),
            Err(Error::NoMemory { .. }) if chunks < MOST => None,
            Err(Error::NoMemory { .. }) => bail!("it needs more nodes than kseg0 holds: give fewer --pages"),
            Err(error) => return Err(error.into()),
        };
        // SAFETY: no other thread walks the table, this one does not now, and there is no TLB.
        unsafe { table.destroy().reclaim() };
        match row {
            Some(row) => return row,
            None => chunks = MOST.min(chunks * 4),
        }
    }
}

/// Changes the table and frees at once what that took out.
fn change<'t, 'n, T>(
    table: &'t (dyn Table<'n> + 't),
    edit: impl FnOnce(&mut Writer<'t, 'n, dyn Table<'n> + 't>) -> Result<T, Error>,
) -> Result<T, Error> {
    let mut writer = Writer::new(table)?;
    let done = edit(&mut writer);
    // SAFETY: no other thread walks the table, this one does not now, and there is no TLB.
    unsafe { writer.finish().reclaim() };
    done
}

/// Returns the address of the nodes by which a structure's words name them.
const fn nodes_at(structure: &Named) -> usize {
    if structure.linear { NODES } else { KSEG0 as usize + NODES }
}

fn map<'n>(
    structure: &Named,
    writer: &mut Writer<'_, 'n, dyn Table<'n> + '_>,
    misses: &Misses,
) -> Result<(), Error> {
    let attr = |writable| if writable { Attr::WRITE | Attr::DIRTY } else { Attr::empty() };
    if structure.superpages {
        return pieces::superpages(&misses.pages).into_iter().try_for_each(|piece| {
            let attr = PaperLo::IMPLIED | attr(piece.attr.contains(Attr::WRITE));
            writer.map(piece.pages, piece.frame, piece.size, attr)
        });
    }
    for (place, &page) in misses.pages.iter().enumerate() {
        let attr = PaperLo::IMPLIED | attr(place % 5 < 3);
        writer.map(Pages::one(page), frame(place, page), PageSize::K4, attr)?;
    }
    Ok(())
}

/// The TLB entries for the pages of a linear table, which do not change while the machine runs.
#[derive(Debug, Default)]
struct Ways {
    /// The pages on the way to the PTE of each page, by its place.
    ways: HashMap<u32, Vec<Vpn>>,
    /// The entry for each pair of them.
    entries: HashMap<u64, Entry>,
}

impl Ways {
    /// Leaves in the TLB, of the way to the PTE of the page at `at`, only the first page that did not miss.
    fn leave(&mut self, refill: &Refill, page: Vpn, machine: &mut Machine<Cached<'_>, ENTRIES>) {
        let way = self.ways.entry(refill.place).or_insert_with(|| tlblab_tables::paper_way(page));
        let Some(page_there) = way.get(usize::from(refill.nested)) else { return machine.tlb.flush() };
        let pair = page_there.get() as u64 >> 1;
        if !self.entries.contains_key(&pair) {
            let caches = machine.memory.caches.take();
            machine.cp0.status = 0;
            let settled = machine.settle(page.address(PageSize::K4).get() as u64, Access::Load);
            debug_assert!(settled.is_ok());
            machine.memory.caches = caches;
            let entries = machine.tlb.entries().iter().flatten();
            self.entries.extend(entries.map(|entry| (entry.hi >> 13, *entry)));
        }
        machine.tlb.flush();
        if let Some(&entry) = self.entries.get(&pair) {
            let written = machine.tlb.write(0, entry);
            debug_assert!(written.is_ok());
        }
    }
}

/// The least, the sum and the most of some numbers.
#[derive(Debug)]
struct Spread {
    min: u64,
    sum: u64,
    max: u64,
}

impl Spread {
    const NONE: Self = Self { min: u64::MAX, sum: 0, max: 0 };

    fn add(&mut self, value: u64) {
        self.min = self.min.min(value);
        self.sum += value;
        self.max = self.max.max(value);
    }
}

fn replay<'n>(
    structure: &Named,
    misses: &Misses,
    storage: &Storage<'n>,
    chunks: usize,
    table: &(dyn Handled<'n> + 'n),
    on: Option<cache::Machine>,
) -> anyhow::Result<Row> {
    let cache = structure.cache.map(|bytes| Stlb::new(KSEG0 + CACHE, bytes)).transpose()?;
    let spec = Spec { block: KSEG0 + BLOCK, cache, walk: (structure.walk)()? };
    let handler = spec.assemble()?;
    let low: Vec<_> = (0..LOW / 4).map(|_| AtomicU32::new(0)).collect();
    let put = |at: u32, words: &[u32]| {
        words
            .iter()
            .zip(&low[at as usize / 4..])
            .for_each(|(word, cell)| cell.store(*word, Ordering::Relaxed));
    };
    put(VECTOR, handler.refill.words());
    put(TAIL, handler.tail.words());
    put(GENERAL, handler.general.words());
    put(BLOCK, &table.root());
    // SAFETY: the slab's memory, as long as it is borrowed here; no CPU writes while the machine runs.
    let nodes = unsafe {
        let first = storage.at(NodeAddr::new(nodes_at(structure)));
        Window::from_raw(NODES as u64, first.cast(), chunks * size_of::<Chunk>() / 4)
    };
    let windows = Windows([nodes, Window::new(0, &low)]);
    let mut clock = on.zip(misses.program.as_ref()).map(|(on, program)| Clock::new(on, program));
    let memory = Cached { windows, caches: on.map(Caches::new), loaded: 0 };
    let mut machine = Machine::<_, ENTRIES>::new(Features::MIPS3, memory);
    machine.cp0.entry_hi = ASID;
    // The kernel's own code begins behind the handler's.
    machine.stop += 4 * handler.general.words().len() as u64;

    let refills = if structure.linear { &misses.linear } else { &misses.refills };
    let mut ways = Ways::default();
    let (mut insns, mut loads, mut hits) = (Spread::NONE, Spread::NONE, 0u64);
    let mut verified = true;
    for refill in refills {
        let page = *misses.pages.get(refill.place as usize).context("a refill of no page")?;
        let at = page.address(PageSize::K4).get() as u64;
        machine.tlb.flush();
        if structure.linear {
            ways.leave(refill, page, &mut machine);
        }
        machine.cp0.status = 0;
        machine.counts = Default::default();
        if let Some((clock, caches)) = clock.as_mut().zip(machine.memory.caches.as_mut()) {
            clock.until(refill.run as usize, caches);
        }
        verified &= machine.settle(at, Access::Load).is_ok();
        if let Some((clock, caches)) = clock.as_mut().zip(machine.memory.caches.as_mut()) {
            // The first trap is counted with the program.
            caches.wait(caches.machine.trap * machine.counts.exceptions.saturating_sub(1));
            clock.refill(caches);
        }
        insns.add(machine.counts.instructions);
        loads.add(machine.counts.loads);
        // Whatever goes on past the probe stores an entry.
        hits += u64::from(machine.counts.stores == 0);
        verified &= answers(&machine, table.table(), page);
    }
    // What follows is no part of the program.
    let cycles = clock.zip(machine.memory.caches.take()).map(|(clock, mut caches)| clock.finish(&mut caches));
    let refills = refills.len() as u64;
    let mean = |sum: u64| sum as f64 / refills.max(1) as f64;
    Ok(Row {
        table: structure.name.into(),
        workload: misses.name.clone(),
        pages: misses.pages.len(),
        refills,
        program_insns: misses.instructions,
        insns_min: insns.min,
        insns_mean: mean(insns.sum),
        insns_max: insns.max,
        loads_min: loads.min,
        loads_mean: mean(loads.sum),
        loads_max: loads.max,
        words: [handler.refill, handler.tail, handler.general].iter().map(|part| part.words().len()).sum(),
        stlb_hit_rate: cache.is_some().then(|| mean(hits)),
        verified: verified && refuses(&mut machine, misses, structure.linear),
        cycles,
    })
}

/// Tells whether the TLB translates a page, and the other half of its pair, as the table does. The lookup moves the entry
/// of a hashed table to the front of its chain, which the paper's refill routine does itself.
fn answers(machine: &Machine<Cached<'_>, ENTRIES>, table: &dyn Table<'_>, page: Vpn) -> bool {
    [page.get(), page.get() ^ 1].into_iter().all(|page| {
        let at = Vpn::new(page).address(PageSize::K4);
        // SAFETY: nothing is reclaimed during the walk: this thread is the only one.
        let pinned = unsafe { Pinned::by(table) };
        let says = table.lookup(pinned, at);
        let store = if says.is_some_and(|leaf| leaf.attr.contains(Attr::WRITE | Attr::DIRTY)) {
            Access::Store
        } else {
            Access::Load
        };
        let refused = store == Access::Store || machine.translate(at.get() as u64, Access::Store).is_err();
        let translated = machine.translate(at.get() as u64, store).ok();
        refused && translated == says.map(|leaf| leaf.phys(at, PageSize::K4).get() as u64)
    })
}

/// Tells whether misses of pages that are not mapped are passed on, as they were: neighbours, and pages that differ in one
/// bit. Some handlers load a pair that is all invalid first.
/// Of a linear table, not misses of its own pages.
fn refuses(machine: &mut Machine<Cached<'_>, ENTRIES>, misses: &Misses, linear: bool) -> bool {
    let mapped: std::collections::HashSet<_> = misses.pages.iter().map(|page| page.get() >> 1).collect();
    misses.pages.iter().step_by(misses.pages.len() / 64 + 1).all(|page| {
        (1..52).all(|bit| {
            let page = page.get() ^ 1 << bit;
            if mapped.contains(&(page >> 1)) {
                return true;
            }
            let at = (page << 12) as u64;
            if linear && at >> 56 == 0xff {
                return true;
            }
            machine.tlb.flush();
            machine.cp0.status = 0;
            machine.cp0.entry_hi = ASID;
            let stop = machine.settle(at, Access::Load);
            let stayed = machine.cp0.bad_vaddr == at && machine.cp0.entry_hi == at & !0x1fff | ASID;
            stop == Err(Stop::Reached) && machine.pc == machine.stop && stayed
        })
    })
}
