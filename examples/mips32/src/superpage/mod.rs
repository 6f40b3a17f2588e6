//! Superpages: APPROX-ONLINE (Romer et al. 1995, 7.3) in the miss path of a real TLB.
//!
//! The page sizes are those of PageMask: an entry maps a pair of pages, so the unit is 8 KB, and each size is four times as
//! large. What the policy is told and what it answers goes to the serial line; `cargo xtask boot` asks the same policy
//! on the host the same questions, and compares the answers line by line.

mod space;
mod transcript;

use tlbkit_addr::{Attr, PageSize, VirtAddr, Vpn};
use tlbkit_pagetable::Change;
use tlbkit_refill::handler::{Form, Front, Place, Root, Spec, Write};
use tlbkit_superpage::{ApproxOnline, Costs, PageSizes, PolicyMemory, SegmentMemory, Setup, Slot};

use self::space::{NUMBER, Space};
use self::transcript::Line;
use crate::arch::{cp0, tlb, vectors};
use crate::println;
use crate::run::storage;
use crate::vm::frames::Frames;
use crate::vm::machine::BLOCK;
use crate::vm::structure::Structure;
use crate::work::check::Checks;

/// The sizes of entries: pairs of 4, 16, 64 and 256 KB.
const SIZES: [PageSize; 4] = [size(13), size(15), size(17), size(19)];

const fn size(shift: u32) -> PageSize {
    match PageSize::from_shift(shift) {
        Some(size) => size,
        None => panic!("no such size"),
    }
}

/// Copying a kilobyte costs as much as so many misses: 256 loads and stores in a loop, against a handler that reports,
/// a trap to the kernel and the policy.
const R_PER_KB: u32 = 2;

/// Segments, of the largest size, that there is room to count.
const SEGMENTS: usize = 8;

/// Where the pages are, and how many.
const REGION: usize = 0x0400_0000;
const DENSE: usize = 256;
const SPARSE: usize = 96;

/// Touches.
const STEPS: usize = 8192;

/// Runs the workload over a kind of table. Returns the number of failures.
pub fn run<S: Structure>(table: &str) -> u32 {
    let page_sizes = match PageSizes::new(PageSize::K4, &SIZES) {
        Ok(page_sizes) => page_sizes,
        Err(error) => panic!("the page sizes are refused: {error}"),
    };
    let costs = Costs { r_per_kb: R_PER_KB, ..Costs::PAPER };
    let setup = Setup { page_sizes, split: false, costs, ..Setup::PAPER };
    Line::Setup(page_sizes, R_PER_KB).write();
    install::<S>();
    // SAFETY: a boot does one work, and this one takes the storage once.
    let nodes = unsafe { storage::<S>() };
    let before = nodes.usage().nodes;
    // SAFETY: a boot does one work, and this one builds its policy once.
    let built = unsafe {
        policy(&setup).and_then(|policy| {
            Space::<S>::new(nodes, Frames::all(), policy).map_err(|_| "no memory for a table")
        })
    };
    let mut space = match built {
        Ok(built) => built,
        Err(what) => panic!("{what}"),
    };
    // SAFETY: the handler serves the space.
    unsafe { tlb::switch(NUMBER) };
    let mut checks = Checks::default();
    work(&mut space, &mut checks);
    let duplicates = tlb::duplicates();
    checks.check(duplicates == 0, |say| say(format_args!("{duplicates} pairs of entries match one address")));
    // Each page has a frame; a superpage's holes have one, too.
    let mapped = (REGION >> 12..(REGION >> 12) + (2 << 12))
        .filter(|&page| space.size(Vpn::new(page)).is_some())
        .count();
    checks.check(space.frames() == mapped, |say| {
        say(format_args!("{} frames are in use, {mapped} pages are mapped", space.frames()));
    });
    let space::Tally { misses, promotions, refusals, demotions, copied } = space.tally;
    space.destroy();
    let left = nodes.usage().nodes - before;
    checks.check(left == 0, |say| say(format_args!("{left} nodes leak")));
    println!(
        "superpage table={table} policy=APPROX-ONLINE misses={misses} promotions={promotions} refusals={refusals} \
         demotions={demotions} copied={copied} checks={} failures={}",
        checks.done, checks.failed
    );
    checks.failed
}

/// Writes the vectors: the handler that loads pages of any size, and reports.
fn install<S: Structure>() {
    let spec = Spec {
        features: cp0::features(),
        // On release 1 some of these are longer than the room up to the cache error vector.
        place: Place::WIDE,
        block: (&raw const BLOCK).addr() as u32,
        root: Root::Block,
        front: Front::None,
        walk: S::WALK,
        form: Form::BOTH,
        write: Write::Index,
    };
    match spec.assemble() {
        // SAFETY: the handler is that of the space which runs afterwards.
        Ok(handler) => unsafe {
            vectors::install(handler.refill.words(), handler.general.words(), handler.tail.words());
            cp0::context::write(spec.context());
        },
        Err(error) => panic!("no handler: {error}"),
    }
}

/// What the policy counts in.
struct Store {
    directory: [Slot; SEGMENTS * SegmentMemory::SLOTS],
    bits: [usize; SEGMENTS * BITS],
    counters: [u16; SEGMENTS * COUNTERS],
}

/// Words and counters that a segment may take.
const BITS: usize = 16;
const COUNTERS: usize = 160;

/// Builds the policy.
///
/// # Safety
///
/// Called once.
unsafe fn policy(setup: &Setup) -> Result<ApproxOnline<'static>, &'static str> {
    static mut STORE: Option<Store> = None;
    let each = ApproxOnline::segment_memory(setup).map_err(|_| "the costs do not fit")?;
    if each.bits > BITS || each.counters > COUNTERS {
        return Err("a segment takes more than there is");
    }
    let store = &raw mut STORE;
    // SAFETY: the caller's promise: the static is borrowed once.
    let store = unsafe { &mut *store };
    let (directory, bits, counters) = ([Slot::default(); _], [0; _], [0; _]);
    let Store { directory, bits, counters } = store.insert(Store { directory, bits, counters });
    let memory = PolicyMemory {
        directory,
        bits: &mut bits[..SEGMENTS * each.bits],
        counters: &mut counters[..SEGMENTS * each.counters],
    };
    ApproxOnline::new(setup, memory).map_err(|_| "the costs do not fit")
}

/// Pages by number: those of the dense part, then the sparse ones.
fn page(number: usize) -> Vpn {
    let at = match number.checked_sub(DENSE) {
        None => REGION + (number << 12),
        // Every third: some pairs have one page, some have none.
        Some(sparse) => REGION + (1 << 24) + ((3 * sparse) << 12),
    };
    VirtAddr::new(at).vpn(PageSize::K4)
}

/// Touches the pages: the dense ones in turn, the sparse ones at random. Now and then one page of a superpage is needed
/// with other rights.
fn work<S: Structure>(space: &mut Space<S>, checks: &mut Checks) {
    let mut model = [0; DENSE + SPARSE];
    // Neighbours do not get neighbouring frames.
    for turn in 0..model.len() {
        let number = turn * 37 % model.len();
        model[number] = number as u32;
        if let Err(error) = space.map(page(number), model[number]) {
            panic!("a page cannot be mapped: {error}");
        }
    }
    let mut random = 0x9e37_79b9_u32;
    for step in 0..STEPS {
        random ^= random << 13;
        random ^= random >> 17;
        random ^= random << 5;
        let number = match random % 4 {
            0 => DENSE + (random >> 8) as usize % SPARSE,
            _ => step * 5 % DENSE,
        };
        let at = page(number).address(PageSize::K4).get();
        let found = space.load(at);
        checks.check(found == Ok(model[number]), |say| {
            say(format_args!("page {number} holds {found:x?}, not {:#x}", model[number]));
        });
        if random >> 4 & 1 == 0 {
            model[number] = random;
            checks.check(space.store(at, random) == Ok(()), |say| {
                say(format_args!("page {number} refuses a store"));
            });
        }
        if step % 512 == 511 {
            alone(space, number, &model, checks);
        }
    }
    for (number, &word) in model.iter().enumerate() {
        let found = space.load(page(number).address(PageSize::K4).get());
        checks.check(found == Ok(word), |say| say(format_args!("page {number} holds {found:x?} in the end")));
    }
}

/// Forbids stores to a page, and allows them again.
fn alone<S: Structure>(space: &mut Space<S>, number: usize, model: &[u32], checks: &mut Checks) {
    let writable = Attr::WRITE | Attr::DIRTY;
    let at = page(number).address(PageSize::K4).get();
    let done = space.protect(page(number), Change::clear(writable));
    let (stored, found) = (space.store(at, 0), space.load(at));
    checks.check(done.is_ok() && stored.is_err() && found == Ok(model[number]), |say| {
        say(format_args!("page {number}, read-only: {done:?}, stored {stored:?}, holds {found:x?}"));
    });
    let size = space.size(page(number));
    checks.check(size == Some(PageSize::K4), |say| say(format_args!("page {number} alone is of {size:?}")));
    let done = space.protect(page(number), Change::set(writable));
    checks.check(done.is_ok(), |say| say(format_args!("page {number} stays read-only: {done:?}")));
}
