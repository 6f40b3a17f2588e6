//! Real walkers beside a real writer: what they see is what was there, and no node is reused under them.
//!
//! A frame's number says which page it belongs to and in which generation of its mapping, so every answer can be
//! judged. Walkers acknowledge between two walks, and the writer reclaims when all have.
#![cfg(not(tlbkit_loom))]

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tlbkit_addr::{Attr, PageSize, Pages, Pfn, Vpn};
use tlbkit_conformance::{Fault, Faulty};
use tlbkit_pagetable::cpt::Cpt32;
use tlbkit_pagetable::format::{self, Compact32, EntryLo, Format};
#[cfg(all(target_pointer_width = "64", not(miri)))]
use tlbkit_pagetable::geometry;
use tlbkit_pagetable::geometry::Va32;
use tlbkit_pagetable::gpt::{self, Adaptive, Fixed, Gpt};
use tlbkit_pagetable::hpt::{Hashed, Hpt32};
use tlbkit_pagetable::nodes::{Chunk, Reclaim, Slab};
use tlbkit_pagetable::{Change, Holes, Leaf, Pinned, Shared, Table, Writer, destroy, lpt, mpt};

const WALKERS: usize = 3;
/// The generations of a block of pages, over and over: absent, writable, read-only, one large page.
const STAGES: usize = 4;

/// A run of pages that changes as one, as large as the second page size.
struct Block {
    pages: Pages,
    number: usize,
    /// The generation that every walker has acknowledged.
    oldest: AtomicUsize,
    /// The generation that is being made.
    newest: AtomicUsize,
    /// Whether entries are empty while a page changes its size.
    breaks: bool,
}

impl Block {
    /// Returns the first frame in a generation.
    fn frame(&self, generation: usize) -> Pfn {
        Pfn::new(((generation / STAGES % 64 + 1) * 4 + self.number) * self.pages.len())
    }

    /// Tells whether a page may look like this in a generation.
    fn looks(&self, generation: usize, page: Vpn, found: Option<Leaf>, base: PageSize) -> bool {
        let Some(leaf) = found else {
            return generation.is_multiple_of(STAGES) || self.breaks && generation % STAGES == 3;
        };
        let offset = page.get() - self.pages.first().get();
        let frame = leaf.frame.get() + (page.get() - leaf.at.vpn(base).get());
        let attr = if generation % STAGES == 1 { Attr::READ | Attr::WRITE } else { Attr::READ };
        !generation.is_multiple_of(STAGES)
            && frame == self.frame(generation).get() + offset
            && leaf.attr & (Attr::READ | Attr::WRITE) == attr
            && (leaf.size == base) == (generation % STAGES < 3)
    }
}

/// A shootdown's one number, and everybody's acknowledgement of it.
#[derive(Default)]
struct Shootdown {
    request: AtomicUsize,
    acknowledged: [AtomicUsize; WALKERS],
    stop: AtomicBool,
}

fn walk<'n>(
    table: &dyn Table<'n>,
    blocks: &[Block],
    shootdown: &Shootdown,
    me: usize,
) -> Result<usize, String> {
    let base = table.space().base();
    let (mut random, mut walks) = (me + 1, 0);
    while !shootdown.stop.load(Ordering::Relaxed) {
        shootdown.acknowledged[me].store(shootdown.request.load(Ordering::Acquire), Ordering::Release);
        for _ in 0..64 {
            random = random.wrapping_mul(6_364_136_223_846_793_005_u64 as usize).wrapping_add(1_442_695);
            let block = &blocks[(random >> 20) % blocks.len()];
            let page = Vpn::new(block.pages.first().get() + (random >> 24) % block.pages.len());
            let oldest = block.oldest.load(Ordering::SeqCst);
            // SAFETY: this thread acknowledges between walks only.
            let found = table.lookup(unsafe { Pinned::by(&()) }, page.address(base));
            let newest = block.newest.load(Ordering::SeqCst);
            if !(oldest..=newest).any(|generation| block.looks(generation, page, found, base)) {
                shootdown.stop.store(true, Ordering::Relaxed);
                return Err(format!("page {page}: {found:?} in generations {oldest}..={newest}"));
            }
            walks += 1;
        }
        std::thread::yield_now();
    }
    Ok(walks)
}

/// Makes the next generation of a block, and waits until everybody has acknowledged it.
fn change<'n, T: Table<'n>>(table: &T, block: &Block, shootdown: &Shootdown) {
    let (base, large) = (table.space().base(), table.space().sizes()[1]);
    let generation = block.newest.fetch_add(1, Ordering::SeqCst) + 1;
    let mut writer = Writer::new(table).unwrap();
    let pages = block.pages;
    match generation % STAGES {
        0 => assert_eq!(writer.unmap(pages, Holes::Refuse, None), Ok(pages.len())),
        1 => writer.map(pages, block.frame(generation), base, Attr::READ | Attr::WRITE).unwrap(),
        2 => {
            let change = Change::clear(Attr::WRITE);
            assert_eq!(writer.protect(pages, Holes::Refuse, change), Ok(pages.len()));
        }
        // SAFETY: nothing runs on these pages.
        _ => unsafe { writer.resize_breaking(pages, large, &mut |_| ()) }.unwrap(),
    }
    let batch = writer.finish();
    let request = shootdown.request.fetch_add(1, Ordering::AcqRel) + 1;
    let waits = |cpu: &AtomicUsize| cpu.load(Ordering::Acquire) < request;
    while shootdown.acknowledged.iter().any(waits) {
        if shootdown.stop.load(Ordering::Relaxed) {
            return;
        }
        std::thread::yield_now();
    }
    block.oldest.store(generation, Ordering::SeqCst);
    // SAFETY: every walker has left the walk it was in when the change was made.
    unsafe { batch.reclaim() };
}

/// Changes blocks at both ends of the space and in between while others walk. Returns what a walker saw that was never
/// there.
fn race<'n, T: Table<'n> + Sync>(table: T, breaks: bool) -> Result<(), String> {
    let space = table.space();
    let unit = space.sizes()[1].pages(space.base()).unwrap();
    let [low, high] = space.halves();
    let (low, high) = (low.unwrap(), high.or(low).unwrap());
    let firsts = [low.first().get(), (low.last().get() / 2) & !(unit - 1), high.last().get() - (unit - 1)];
    let blocks: Vec<_> = (0..firsts.len())
        .map(|number| Block {
            pages: Pages::count(Vpn::new(firsts[number]), unit).unwrap(),
            number,
            oldest: AtomicUsize::new(0),
            newest: AtomicUsize::new(0),
            breaks,
        })
        .collect();
    let shootdown = Shootdown::default();
    let (seconds, least) = if cfg!(miri) { (0.0, 2 * STAGES) } else { (0.3, 8 * STAGES) };
    let seen: Vec<_> = std::thread::scope(|scope| {
        // A panic of the writer must not leave the walkers walking.
        let _stop = Stop(&shootdown.stop);
        let (table, blocks, shootdown) = (&table, &blocks, &shootdown);
        let walkers: Vec<_> =
            (0..WALKERS).map(|me| scope.spawn(move || walk(table, blocks, shootdown, me))).collect();
        let begun = Instant::now();
        for round in 0.. {
            let enough = round >= least && begun.elapsed() >= Duration::from_secs_f64(seconds);
            if enough || shootdown.stop.load(Ordering::Relaxed) {
                break;
            }
            for block in blocks {
                change(table, block, shootdown);
            }
        }
        shootdown.stop.store(true, Ordering::Relaxed);
        walkers.into_iter().map(|walker| walker.join().unwrap()).collect()
    });
    // SAFETY: every walker is gone.
    unsafe { destroy(table).reclaim() };
    for walks in seen {
        assert!(walks? > 0);
    }
    Ok(())
}

/// Stops the walkers when it goes out of scope.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Writes the test of one table.
macro_rules! race {
    ($name:ident, $format:ty, |$nodes:ident| $new:expr) => {
        #[test]
        fn $name() {
            let mut memory = vec![Chunk::ZERO; if cfg!(miri) { 64 } else { 1024 }];
            let slab = Slab::<<$format as Format>::Word, Shared>::new(&mut memory, 0).unwrap();
            let $nodes = &slab;
            race($new.unwrap(), <$format>::BREAK).unwrap();
            assert_eq!((slab.usage().nodes, slab.held().pending(), slab.held().lost()), (0, 0, 0));
        }
    };
}

race!(mpt_va32_compact32, Compact32, |nodes| mpt::Mpt::<Va32, Compact32, _>::new(nodes));
race!(mpt_va32_entrylo, EntryLo, |nodes| mpt::Mpt::<Va32, EntryLo, _>::new(nodes));
race!(lpt_mips, EntryLo, |nodes| lpt::MipsLpt::new(nodes));
#[cfg(all(target_pointer_width = "64", not(miri)))]
race!(mpt_va48_compact, format::Compact, |nodes| mpt::Mpt4::new(nodes));
// Hardware's formats: in place, or broken first.
#[cfg(all(target_pointer_width = "64", not(miri)))]
race!(mpt_va39_sv39, format::Sv39, |nodes| mpt::Mpt::<geometry::Va39, format::Sv39, _>::new(nodes));
#[cfg(all(target_pointer_width = "64", not(miri)))]
race!(mpt_va48_aarch64, format::Aarch64, |nodes| mpt::Mpt::<geometry::Va48, format::Aarch64, _>::new(nodes));
race!(g4_va32_compact32, Compact32, |nodes| Gpt::<Va32, Compact32, _, gpt::Compact, Fixed<2>>::new(nodes));
race!(ga_va32_compact32, Compact32, |nodes| Gpt::<Va32, Compact32, _, gpt::Compact, Adaptive>::new(nodes));
race!(hpt_va32_compact32, Compact32, |nodes| Hpt32::<_, Compact32>::new(nodes));
// From two buckets on, so that it grows under the walkers.
race!(hr_va32_compact32, Compact32, |nodes| Hashed::<Va32, Compact32, _, 0, 1, 75>::new(nodes));
race!(cpt_va32_compact32, Compact32, |nodes| Cpt32::<_, Compact32>::new(nodes));

/// The check can fail: a walker sees a frame that the writer never mapped.
#[test]
fn a_planted_fault_is_seen() {
    let mut memory = vec![Chunk::ZERO; 64];
    let slab = Slab::<u32, Shared>::new(&mut memory, 0).unwrap();
    let pte = |word| Compact32::is_leaf(word, true);
    // Each of the first two changes stores the four PTEs of each of three blocks. The next store is in the promotion of
    // the first block, so that the writer itself does not stumble over it. Bit 20 is none that tells the size.
    let nodes = Faulty::new(slab, Fault::Wrong, 24, Compact32::STEP << 8, pte);
    let seen = race(mpt::Mpt::<Va32, Compact32, _>::new(&nodes).unwrap(), false);
    assert!(nodes.planted());
    let seen = seen.unwrap_err();
    assert!(seen.contains("in generations"), "{seen}");
}
