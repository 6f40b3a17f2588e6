//! The hardware as judge: a kernel without anything else that builds a table at random, lets the processor's own MMU
//! walk it, and compares every access, every fault, and what the MMU writes into the entries with what
//! [`lookup`](tlbkit_pagetable::Table::lookup) says.
//!
//! ```text
//!   random operation on the table ──> flush what it says
//!        │
//!   addresses around it: for each kind of access, in each mode of the processor
//!        │
//!        ├── lookup, and the manual's rules for the rights that it returns ──> allowed at this address, or this fault
//!        ├── the access itself, by the instruction ───────────────────────┬──> what happened
//!        └── they must be the same; the word that was read or written lies where the leaf says
//! ```
//!
//! `cargo xtask judge` builds it for each processor and runs it in QEMU. The processor is a folder of instructions:
//! switch translation on, flush, access in a mode, stop. Operations are maps, unmaps, changes of rights and of size, from the base
//! page to the largest, at both ends of both halves of the address space; the run ends when 3000 have succeeded. A dozen addresses
//! are accessed after each, mapped, not mapped and not canonical, by load, store and fetch, in three modes.
//!
//! Then the kernel switches on one [`control`] after the other: a format that exchanges user pages and kernel pages, one that
//! encodes the frame before a page's own, one that ignores the status bits of the MMU, and, where QEMU keeps its TLB, flushes that
//! are left out. Each must be noticed within 500 operations, or the run fails. [`spaces`] judges two address spaces under ASIDs.
//!
//! With the feature `guest` the table is a second stage of translation, and the accesses are those of a guest, whose own translation is
//! off: RISC-V's G-stage by HLV, HSV and a fetch in VS-mode, and AArch64's stage 2 by instructions in EL1 and EL0. QEMU emulates no
//! VMX, so nothing executes EPT.
//!
//! If a page has a 52-bit address without memory, AArch64's AT instructions return the address to which it is translated.
#![no_std]
#![no_main]

use core::fmt::{self, Write};
use core::sync::atomic::{AtomicBool, Ordering};

use tlbkit_addr::{Attr, Flush, FlushScope, PageSize, Pages, Pfn, PhysAddr, VirtAddr, Vpn};
use tlbkit_pagetable::format::Format as _;
use tlbkit_pagetable::mpt::Mpt;
use tlbkit_pagetable::nodes::{Chunk, Slab};
use tlbkit_pagetable::{Change, Error, FlushAll, Geometry, Holes, Leaf, Local, Mark, Radix, Solo, Space};

#[cfg_attr(
    all(any(target_arch = "riscv64", target_arch = "riscv32"), not(feature = "guest")),
    path = "riscv.rs"
)]
#[cfg_attr(all(target_arch = "riscv64", feature = "guest"), path = "riscv_guest.rs")]
#[cfg_attr(all(target_arch = "aarch64", not(feature = "guest")), path = "aarch64.rs")]
#[cfg_attr(all(target_arch = "aarch64", feature = "guest"), path = "aarch64_guest.rs")]
#[cfg_attr(target_arch = "x86_64", path = "x86_64.rs")]
mod machine;

mod control;
mod spaces;

use control::{Control, Controlled};
use machine::{Console, Mode, Shape};

type Format = Controlled<machine::Format>;
type Entry = <Format as tlbkit_pagetable::format::Format>::Word;
type Storage<'n> = Slab<'n, Entry, Solo>;
type Tree<'n> = Mpt<'n, Shape, Format, Storage<'n>>;
type Judged<'n> = Local<'n, Tree<'n>, fn(&Flush)>;

/// A kind of access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    Load,
    Store,
    Fetch,
}

/// What the processor says when it does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(target_arch = "aarch64"), expect(dead_code, reason = "no other processor has all of them"))]
enum Fault {
    /// There is no translation.
    Absent,
    /// The translation does not allow it.
    Forbidden,
    /// Nothing but the accessed bit is missing, which this processor leaves to software.
    NotAccessed,
    /// It led to where there is no memory.
    Nowhere,
    /// It led there, as memory of another type.
    OtherType,
}

/// The base page; the pages of a node of the last level, how many there are, and what they cover.
const BASE: PageSize = Shape::BASE;
const NODE: usize = 1 << Shape::WIDTHS[Shape::WIDTHS.len() - 1];
const LARGE: PageSize = match PageSize::from_shift(BASE.shift() + NODE.trailing_zeros()) {
    Some(size) => size,
    None => BASE,
};
/// The largest size.
const LARGEST: PageSize = Shape::SIZES[Shape::SIZES.len() - 1];

/// Where nodes lie, and the frames that are mapped: beside the kernel, in the 256 MiB that the machine has.
const NODES: usize = machine::MEMORY + (16 << 20);
/// Base pages of the pool.
const POOL_PAGES: usize = POOL_BYTES >> BASE.shift();
const CHUNKS: usize = 8192;
const POOL: usize = machine::MEMORY + (64 << 20);
const POOL_BYTES: usize = 64 << 20;

/// How many operations succeed and how many accesses are allowed before the judge is content, and how many operations it
/// tries at most.
const OPERATIONS: usize = if cfg!(feature = "brief") { 1000 } else { 3000 };
const ACCESSES: usize = if cfg!(feature = "brief") { 15_000 } else { 50_000 };
const ATTEMPTS: usize = 4 * OPERATIONS;
/// Addresses that are looked at after each operation.
const LOOKS: usize = 12;
/// Operations in which a control must have been found.
const CONTROL: usize = 500;

/// What has been seen.
#[derive(Default)]
struct Tally {
    done: usize,
    refused: usize,
    allowed: usize,
    faults: usize,
    marked: usize,
    /// Addresses without memory that the processor has told.
    asked: usize,
}

/// Marsaglia's xorshift: the run is the same every time.
struct Random(u64);

impl Random {
    fn next(&mut self) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as usize
    }

    fn below(&mut self, end: usize) -> usize {
        self.next() % end
    }
}

/// Whether the MMU marks pages as accessed and dirty, or leaves that to software.
static MARKS: AtomicBool = AtomicBool::new(false);

fn mmu_marks() -> bool {
    MARKS.load(Ordering::Relaxed)
}

/// Tells the processor what has changed, unless the control is that nothing does.
fn flush(flush: &Flush) {
    if !control::is_on(Control::Flush) {
        machine::flush(flush);
    }
}

/// Finds out by trying.
fn try_marks(table: &mut Judged<'_>) -> Result<(), Error> {
    let page = Pages::one(Vpn::new(places()[0]));
    table.map(page, Pfn::new(POOL >> BASE.shift()), BASE, Attr::READ)?;
    let marks = machine::access(page.first().address(BASE), Access::Load, machine::KERNEL, 0).is_ok();
    MARKS.store(marks, Ordering::Relaxed);
    table.unmap(page, Holes::Refuse).map(drop)
}

/// Judges; called by the processor's first instructions with a stack and nothing else.
extern "C" fn judge() -> ! {
    // SAFETY: no other code knows this memory, which the linker's script leaves alone; chunks are plain bytes.
    let memory = unsafe { core::slice::from_raw_parts_mut(NODES as *mut Chunk, CHUNKS) };
    let Ok(slab) = Slab::<Entry, Solo>::new(memory, NODES) else { machine::stop("no slab", 2) };
    let tree = match Tree::new(&slab) {
        Ok(tree) => tree,
        Err(_) => machine::stop("no table", 2),
    };
    let mut table: Judged<'_> = Local::new(tree, flush);
    if machine::map_kernel(&mut table).is_err() {
        machine::stop("the kernel does not fit into its table", 2);
    }
    machine::enter(table.table().root());
    if try_marks(&mut table).is_err() {
        machine::stop("the first page was refused", 2);
    }
    let mut tally = Tally::default();
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    while tally.done < OPERATIONS || tally.allowed < ACCESSES {
        if tally.done + tally.refused == ATTEMPTS {
            machine::stop("too few operations succeed, or too few accesses are allowed", 3);
        }
        if let Err(found) = round(&mut table, &mut random, &mut tally) {
            let _ = writeln!(Console, "{}: {found}", machine::NAME);
            machine::stop("lookup and the MMU do not agree", 1);
        }
    }
    let Tally { done, refused, allowed, faults, marked, asked } = tally;
    let _ = writeln!(
        Console,
        "{}: {done} operations and {refused} refusals; {allowed} accesses and {faults} faults are as lookup says, \
         and {marked} bits that the MMU set, {asked} addresses that it told",
        machine::NAME,
    );
    // A run that has seen too few refusals or faults proves nothing.
    if [refused, faults].iter().any(|&seen| seen < OPERATIONS / 20)
        || machine::FAR != 0 && asked < OPERATIONS / 20
    {
        machine::stop("too few refusals or faults", 3);
    }
    for control in [Control::Rights, Control::Frame, Control::Status, Control::Flush] {
        let seen = match control {
            Control::Status => mmu_marks(),
            Control::Flush => machine::FLUSHES,
            Control::Nothing | Control::Rights | Control::Frame | Control::Switch | Control::Reuse => true,
        };
        if seen {
            must_find(&mut table, control, &mut random);
        }
    }
    spaces::judge(&slab, &mut random);
    machine::stop("", 0)
}

/// Where operations are, and which attributes their pages have.
struct Scope {
    places: usize,
    attributes: Attr,
}

/// What the table that is alone maps.
const ALL: Scope = Scope { places: machine::PLACES, attributes: machine::ATTRIBUTES };

/// Makes an operation, and looks around.
///
/// # Errors
///
/// The first difference.
fn round(table: &mut Judged<'_>, random: &mut Random, tally: &mut Tally) -> Result<(), Difference> {
    let (pages, size) = range(random, &ALL);
    match operate(table, pages, size, random, &ALL) {
        Ok(()) => tally.done += 1,
        Err(_) => tally.refused += 1,
    }
    look_around(table, pages, random, tally)
}

/// Switches a control on, until the judge finds something wrong.
fn must_find(table: &mut Judged<'_>, control: Control, random: &mut Random) {
    let clear = |table: &mut Judged<'_>| {
        for place in places() {
            if table.unmap(pages(place, REGION), Holes::Skip).is_err() {
                machine::stop("the table is not to be emptied", 2);
            }
        }
    };
    clear(table);
    control::switch_to(control);
    let mut tally = Tally::default();
    let found = (0..CONTROL).find_map(|_| round(table, random, &mut tally).err());
    control::switch_to(Control::Nothing);
    if found.is_none() {
        let _ = writeln!(Console, "{}: {control:?} is wrong, and goes unnoticed", machine::NAME);
        machine::stop("a control is not found", 4);
    }
    let after = tally.done + tally.refused;
    let _ = writeln!(Console, "{}: control {control:?} is found after {after} operations", machine::NAME);
    // What no flush has made known is made known now.
    machine::flush(&everything());
    clear(table);
}

/// Returns a flush of everything.
fn everything() -> Flush {
    let mut flush = Flush::none();
    flush.add_all(FlushScope::Everywhere);
    flush
}

/// Where lookup and the MMU do not agree.
struct Difference {
    access: Access,
    at: VirtAddr,
    mode: Mode,
    wanted: Result<PhysAddr, Fault>,
    found: Result<usize, Fault>,
    before: Option<Leaf>,
    after: Option<Leaf>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { access, at, mode, wanted, found, before, after } = self;
        write!(
            f,
            "{access:?} at {at} in {mode:?}: lookup says {wanted:x?}, the MMU {found:x?}; \
             the leaf was {before:?} and is {after:?}"
        )
    }
}

/// The pages of each of the places: as many as two levels of nodes hold, or the largest page, or a part of a small space.
const REGION: usize = {
    let largest = LARGEST.bytes() >> BASE.shift();
    match NODE * NODE {
        _ if Shape::VA_BITS == 32 => 16 * NODE,
        nodes if nodes < largest => largest,
        nodes => nodes,
    }
};

/// Returns the first pages of the four places: in the middle and at the end of the lower half, at both ends of the upper.
fn places() -> [usize; 4] {
    let [low, high] = Space::of::<Shape>().halves();
    let Some(low) = low else { machine::stop("the space is empty", 2) };
    let Some(high) = high else {
        let half = low.last().get() / 2 + 1;
        return [3 * REGION, half - REGION, half, 2 * half - REGION];
    };
    [3 * REGION, low.last().get() + 1 - REGION, high.first().get(), high.last().get() - (REGION - 1)]
}

/// Returns a range at one of the places. Its ends are mostly those of pages of the size.
fn range(random: &mut Random, scope: &Scope) -> (Pages, PageSize) {
    let place = places()[random.below(scope.places)];
    if random.below(64) == 0 {
        return (pages(place, REGION), LARGEST);
    }
    let offset = match random.below(4) {
        0 => random.below(8),
        1 => random.below(4) * NODE,
        2 => random.below(4) * NODE + random.below(NODE),
        _ => REGION - 1 - random.below(1024),
    };
    let count = match random.below(4) {
        0 | 1 => 1,
        2 => 1 + random.below(16),
        _ => NODE * (1 + random.below(2)),
    };
    let (first, end) = (offset, (offset + count).min(REGION));
    match random.below(8) {
        0 => (pages(place + first, end - first), Shape::SIZES[random.below(Shape::SIZES.len())]),
        1..=4 => (pages(place + first, end - first), BASE),
        kind => {
            // A size between those of two levels, if there is one.
            let run = Shape::SIZES.len() > Shape::WIDTHS.len().min(3) && kind != 5;
            let size = if run { Shape::SIZES[random.below(Shape::SIZES.len())] } else { LARGE };
            let each = size.bytes() >> BASE.shift();
            let (first, end) = (first & !(each - 1), end.next_multiple_of(each));
            (pages(place + first, end - first), size)
        }
    }
}

fn pages(first: usize, count: usize) -> Pages {
    Pages::count(Vpn::new(first), count).unwrap_or(Pages::one(Vpn::new(first)))
}

fn attributes(random: &mut Random, scope: &Scope) -> Attr {
    let attr = Attr::from_bits_truncate(random.next() as u32) & scope.attributes;
    // Not every variety of memory has a type.
    let is_typed = machine::Format::leaf(Pfn::new(0), BASE, attr, true).is_ok();
    if is_typed || random.below(32) == 0 { attr } else { attr - Attr::VARIETY }
}

/// What an access can do. A page without any of it is closed: it keeps its frame.
const ACCESS: Attr = Attr::READ.union(Attr::WRITE).union(Attr::EXEC);

/// Returns the rights of a page, or those of one in eight that is closed.
fn rights(random: &mut Random, scope: &Scope) -> Attr {
    let attr = attributes(random, scope);
    if random.below(8) == 0 { attr - ACCESS } else { attr | Attr::READ }
}

/// Returns a mark, any bits of which may be set, or none.
fn mark(random: &mut Random, scope: &Scope) -> Option<Mark> {
    match random.below(8) {
        0 => None,
        1 => Some(Mark::Guard),
        _ => Some(Mark::Payload(
            random.next() as u64 >> (14 + random.below(50)),
            rights(random, scope) & Mark::KEPT,
        )),
    }
}

fn operate(
    table: &mut Judged<'_>,
    pages: Pages,
    size: PageSize,
    random: &mut Random,
    scope: &Scope,
) -> Result<(), Error> {
    let whole = widened(table, pages);
    match random.below(12) {
        0..=4 => {
            table.unmap(whole, Holes::Skip)?;
            // In step with the addresses, so that small pages can become large ones, or anywhere.
            let frame = match random.below(3) {
                _ if size.bytes() > POOL_BYTES / 2 => (machine::MEMORY & !size.mask()) >> BASE.shift(),
                0 => {
                    (POOL >> BASE.shift()) + (random.below(POOL_PAGES) & !(size.pages(BASE).unwrap_or(1) - 1))
                }
                _ => (POOL >> BASE.shift()) + pages.first().get() % POOL_PAGES,
            };
            // Where there is no memory.
            let far = if machine::FAR != 0 && random.below(8) == 0 { random.below(machine::FAR) } else { 0 };
            let frame = frame | far << (machine::FAR_SHIFT - BASE.shift());
            table.map(pages, Pfn::new(frame), size, rights(random, scope))
        }
        5 => table.unmap(pages, Holes::Refuse).map(drop),
        6 => table.unmap(whole, Holes::Skip).map(drop),
        7 | 8 => {
            let closes = if random.below(4) == 0 { ACCESS } else { Attr::empty() };
            let clear = attributes(random, scope) & !Attr::READ | closes;
            let set = attributes(random, scope);
            // What no change may touch is left alone, mostly.
            let left = if random.below(8) == 0 { Attr::empty() } else { Format::FIXED };
            let change = Change { clear: clear - left, set: set - left };
            table.protect(whole, Holes::Skip, change).map(drop)
        }
        9 => {
            // Single pages, whatever is there, whose words are then any but those of leaves.
            for page in pages.into_iter().take(16) {
                table.mark(page.address(BASE), mark(random, scope))?;
            }
            Ok(())
        }
        10 => {
            let frame = (POOL >> BASE.shift()) + pages.first().get() % POOL_PAGES;
            let at = pages.first().address(BASE);
            match table.entry(at).mark() {
                Some(Mark::Payload(payload, _)) => table.fill(at, payload, Pfn::new(frame)),
                _ => Err(Error::NotMapped { at }),
            }
        }
        // Small pages are made of large ones a few at a time: a gigabyte of them would fill the memory.
        _ if pages.len() > 4 * NODE && size < LARGEST => Err(Error::NoRoom),
        // SAFETY: the kernel uses no page that is judged.
        _ => table.resize(pages, size, |flush| unsafe { FlushAll::breaking(flush) }),
    }
}

/// Adds what large pages at its ends reach over a range.
fn widened(table: &Judged<'_>, range: Pages) -> Pages {
    let around = |page: Vpn| {
        let leaf = table.lookup(page.address(BASE));
        leaf.map_or(Pages::one(page), |leaf| Space::of::<Shape>().pages_of(&leaf))
    };
    Pages::new(around(range.first()).first(), around(range.last()).last()).unwrap_or(range)
}

/// Looks at addresses at the ends of a range, beyond them, and inside.
fn look_around(
    table: &Judged<'_>,
    pages: Pages,
    random: &mut Random,
    tally: &mut Tally,
) -> Result<(), Difference> {
    let (first, last) = (pages.first().address(BASE).get(), pages.last().address(BASE).get() | BASE.mask());
    for look in 0..LOOKS {
        let at = match look {
            0 => first,
            1 => last & !7,
            2 => first.wrapping_sub(8),
            3 => last.wrapping_add(1),
            // Just outside the space, where a word of the table would be found by an MMU that drops bits.
            4 => first ^ 1usize.checked_shl(Shape::VA_BITS).unwrap_or(0),
            5..=7 => (first & !LARGE.mask()).wrapping_add(random.below(2 * LARGE.bytes())) & !7,
            // Where a page that is larger than the pool leads to it.
            8 | 9 => {
                let huge =
                    if look == 8 && LARGE.bytes() < POOL_BYTES { 1 << 30 } else { 1 << LARGEST.shift() };
                let huge = if look == 8 && LARGE.bytes() > POOL_BYTES { LARGE.bytes() } else { huge };
                (first & !(huge - 1)) | (POOL & (huge - 1)) | random.below(POOL_BYTES) & !7
            }
            _ => first + (random.below(last - first) & !7),
        };
        if machine::spares(at) {
            continue;
        }
        for mode in machine::MODES {
            for access in [Access::Load, Access::Store, Access::Fetch] {
                // Where a store may have gone elsewhere, what is fetched may be no trap.
                let astray = [Control::Frame, Control::Flush, Control::Switch, Control::Reuse];
                let astray = astray.into_iter().any(control::is_on);
                if access != Access::Fetch || !astray {
                    look_at(table, VirtAddr::new(at), access, mode, random, tally)?;
                }
            }
        }
    }
    Ok(())
}

fn look_at(
    table: &Judged<'_>,
    at: VirtAddr,
    access: Access,
    mode: Mode,
    random: &mut Random,
    tally: &mut Tally,
) -> Result<(), Difference> {
    let before = table.lookup(at);
    let wanted = match before {
        None => Err(Fault::Absent),
        Some(leaf) if !leaf.attr.intersects(ACCESS) => Err(Fault::Absent),
        Some(leaf) => machine::rules(leaf.attr, access, mode).map(|()| leaf.phys(at, BASE)),
    };
    // Where rights are lied about, the MMU may store and fetch beyond the pool what `lookup` says it may not.
    let leads = before.map(|leaf| leaf.phys(at, BASE).get());
    let is_beyond = leads.is_some_and(|phys| phys.wrapping_sub(POOL) >= POOL_BYTES);
    if wanted.is_err() && is_beyond && control::is_on(Control::Rights) {
        return Ok(());
    }
    // What is mapped beyond the pool must not be written; but a processor may say where it is.
    if let Ok(phys) = wanted
        && phys.get().wrapping_sub(POOL) >= POOL_BYTES
    {
        let told = if machine::FAR != 0 { machine::ask(at, access, mode) } else { None };
        return match told {
            Some(found) if found != Some(phys.get()) => {
                let found = found.ok_or(Fault::Absent);
                Err(Difference { access, at, mode, wanted, found, before, after: table.lookup(at) })
            }
            Some(_) => {
                tally.asked += 1;
                Ok(())
            }
            None => Ok(()),
        };
    }
    // The memory type is nothing that an access shows; but a processor may say it.
    if let (Ok(_), Some(leaf)) = (wanted, before)
        && machine::is_typed(at, access, mode, leaf.attr) == Some(false)
    {
        let found = Err(Fault::OtherType);
        return Err(Difference { access, at, mode, wanted, found, before, after: table.lookup(at) });
    }
    let word = random.next();
    let cell = |phys: PhysAddr| phys.get() as *mut usize;
    // What is fetched must be an instruction that comes back, also where it must not be fetched.
    let reached = match (access, before) {
        (Access::Fetch, Some(leaf)) => Some(leaf.phys(at, BASE)),
        _ => wanted.ok(),
    };
    if let Some(phys) = reached.filter(|phys| phys.get().wrapping_sub(POOL) < POOL_BYTES) {
        let there = if access == Access::Fetch { machine::TRAP } else { word };
        // SAFETY: the pool is memory, and only this function uses it; `at` and so `phys` are aligned.
        unsafe { cell(phys).write_volatile(there) };
    }
    let value = if access == Access::Store { !word } else { word };
    let found = machine::access(at, access, mode, value);
    let agree = match (wanted, found) {
        // SAFETY: what is allowed leads into the pool, as checked above: memory that only this function uses.
        (Ok(phys), Ok(_)) if access == Access::Store => unsafe { cell(phys).read_volatile() == value },
        (Ok(_), Ok(loaded)) => access == Access::Fetch || loaded == word,
        (Err(wanted), Err(found)) => wanted == found,
        _ => false,
    };
    let after = table.lookup(at);
    if !agree || !same_but_marked(before, after, wanted.is_ok(), access) {
        return Err(Difference { access, at, mode, wanted, found, before, after });
    }
    tally.marked += usize::from(before != after);
    if wanted.is_ok() {
        tally.allowed += 1;
    } else {
        tally.faults += 1;
    }
    Ok(())
}

/// Tells whether a leaf is as it was but for what the MMU must note, if it notes anything.
fn same_but_marked(before: Option<Leaf>, after: Option<Leaf>, allowed: bool, access: Access) -> bool {
    let (Some(before), Some(after)) = (before, after) else { return before == after };
    let noted = match (allowed, access) {
        (true, Access::Store) => Attr::ACCESSED | Attr::DIRTY,
        (true, _) => Attr::ACCESSED,
        // It may note that it has looked.
        (false, _) => after.attr & Attr::ACCESSED,
    };
    after == Leaf { attr: before.attr | noted, ..before }
}

#[panic_handler]
fn panic(why: &core::panic::PanicInfo<'_>) -> ! {
    let _ = writeln!(Console, "{}: {why}", machine::NAME);
    machine::stop("it panicked", 2)
}
