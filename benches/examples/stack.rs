//! How much stack each operation of each table takes, on inputs that an adversary chooses: at most 2 KiB.
//!
//! `cargo xtask stack` runs it in the release profile, as a kernel builds the code. Without the optimizer frames are several times as
//! large and say nothing.
//!
//! Below the frame that calls an operation the stack is painted; the operation's depth is how far down the paint is gone.

use std::fmt::Write as _;
use std::ops::ControlFlow;
use std::process::ExitCode;

use tlbkit_addr::{Attr, PageSize, Pages, Pfn, VirtAddr, Vpn};
use tlbkit_pagetable::format::{self, Compact32, EntryLo, Format};
use tlbkit_pagetable::geometry::{Va32, Va39, Va48, Va64};
use tlbkit_pagetable::gpt::{self, Adaptive, Fixed, Gpt, Gpt32, PaperGpt};
use tlbkit_pagetable::hpt::{Buckets, Hashed};
use tlbkit_pagetable::nodes::{Chunk, Slab};
use tlbkit_pagetable::{
    Change, FlushAll, Geometry, Half, Holes, Mode, Pinned, Shared, Solo, Space, Table, Writer, destroy, mpt,
};

#[macro_use]
#[path = "../../crates/pagetable/tests/all/common/kinds.rs"]
mod kinds;

/// What an operation of a table may take: a kernel has stacks of 4 to 16 KiB.
const LIMIT: usize = 2 << 10;

/// How far down the stack is painted.
const PAINTED: usize = 64 << 10;
const PAINT: u64 = 0xa5c3_5a3c_c3a5_3c5a;
/// What is left out right below the frame that paints: its own calls.
const GAP: usize = 512;

#[inline(never)]
fn paint(top: usize) {
    let mut at = top - PAINTED;
    while at < top - GAP {
        // SAFETY: the thread's stack is larger than that, and no code uses what is below the frames of this thread.
        unsafe { (at as *mut u64).write_volatile(PAINT) };
        at += 8;
    }
}

#[inline(never)]
fn painted(top: usize) -> usize {
    let mut at = top - PAINTED;
    // SAFETY: the addresses are those that `paint` has written, in the stack of this thread.
    while at < top - GAP && unsafe { (at as *const u64).read_volatile() } == PAINT {
        at += 8;
    }
    at
}

/// Calls an operation and returns how many bytes of stack it took, [`GAP`] at least.
#[inline(never)]
fn depth(operation: &mut dyn FnMut()) -> usize {
    let here = 0u64;
    let top = (&raw const here) as usize & !7;
    paint(top);
    operation();
    top - painted(top)
}

const OPERATIONS: [&str; 7] = ["map", "unmap", "protect", "resize", "visit", "lookup", "destroy"];

/// The most that each operation took.
type Most = [usize; OPERATIONS.len()];

/// A space of 47 bits: what user addresses are on x86-64.
#[derive(Debug)]
struct Va47;

impl Geometry for Va47 {
    const VA_BITS: u32 = 47;
    const BASE: PageSize = PageSize::K4;
    const SIZES: &'static [PageSize] = Va48::SIZES;
}

/// Page numbers that make paths long: one bit, one bit from the top, runs of ones, and neighbours of these.
fn adversarial(space: Space, order: u32) -> Vec<usize> {
    let bits = space.va_bits() - space.base().shift();
    let mut pages: Vec<usize> = (0..bits)
        .flat_map(|bit| {
            let one = 1usize << bit;
            let ones = (one << 1) - 1;
            let top = (1usize << (bits - 1)) | one;
            match order {
                0 | 1 => vec![one],
                2 => vec![ones, one],
                3 => vec![top, one + 1, one ^ 1],
                _ => vec![one, one + (one >> 1), one + 16, ones - (ones >> 3)],
            }
        })
        .map(|page| page & (usize::MAX >> (usize::BITS - bits)))
        .collect();
    if order % 2 == 1 {
        pages.reverse();
    }
    pages
}

/// Returns the page of a number below `2^bits`: in a space of two halves the upper ones are negative.
fn page(space: Space, number: usize) -> Vpn {
    let bits = space.va_bits() - space.base().shift();
    let upper = space.half() == Half::Both && number >> (bits - 1) & 1 != 0;
    let address = number << space.base().shift();
    let address = if upper { address | usize::MAX << (space.va_bits() - 1) } else { address };
    VirtAddr::new(address).vpn(space.base())
}

/// Does everything to a table that an adversary can, and notes what it took.
fn exercise<'n, T: Table<'n>>(new: &dyn Fn() -> Option<T>) -> Most {
    let mut most = Most::default();
    for order in 0..5 {
        let Some(table) = new() else { continue };
        let space = table.space();
        let attr = Attr::READ | Attr::WRITE | Attr::DIRTY;
        let mut note = |operation: usize, run: &mut dyn FnMut()| {
            most[operation] = most[operation].max(depth(run));
        };
        let numbers = adversarial(space, order);
        let write = |change: &mut dyn FnMut(&mut Writer<'_, 'n, T>)| {
            let mut writer = Writer::new(&table).unwrap();
            change(&mut writer);
            // SAFETY: no CPU walks the table.
            unsafe { writer.finish().reclaim() };
        };
        let one = |number: usize| Pages::one(page(space, number));
        let lengths = [1, 2, 7, 16, 40, 130, 300];
        let run = |number: usize, length: usize| {
            let pages = Pages::count(page(space, number), length)?;
            space.check_pages(pages).is_ok().then_some(pages)
        };
        for (&number, length) in numbers.iter().zip(lengths.into_iter().cycle()) {
            write(&mut |writer| {
                note(0, &mut || {
                    let _ = writer.map(one(number), Pfn::new(number & 0xfff), space.base(), attr);
                });
            });
            // A large page, and a range, wherever nothing is in the way.
            for (index, size) in space.sizes().iter().copied().take(3).enumerate().skip(1) {
                let count = size.pages(space.base()).unwrap();
                let first = number.wrapping_add(count << index) & !(count - 1);
                let Some(pages) = run(first, count) else { continue };
                write(&mut |writer| {
                    note(0, &mut || {
                        let _ = writer.map(pages, Pfn::new(count * 3), size, attr);
                    });
                });
            }
            if let Some(pages) = run(number.wrapping_add(5), length) {
                write(&mut |writer| {
                    note(0, &mut || {
                        let _ = writer.map(pages, Pfn::new(0x400), space.base(), attr);
                    });
                });
            }
            note(5, &mut || {
                // SAFETY: no CPU writes meanwhile.
                let _ = table.lookup(unsafe { Pinned::by(&()) }, page(space, number).address(space.base()));
            });
        }
        for (&number, length) in numbers.iter().zip(lengths.into_iter().cycle()) {
            for (index, size) in space.sizes().iter().copied().take(3).enumerate().skip(1) {
                let count = size.pages(space.base()).unwrap();
                let first = number.wrapping_add(count << index) & !(count - 1);
                let Some(pages) = run(first, count).filter(|_| count <= 1024) else { continue };
                for to in [space.base(), size] {
                    write(&mut |writer| {
                        note(3, &mut || {
                            // SAFETY: no code uses the pages.
                            let _ = unsafe { writer.resize(pages, to, FlushAll::breaking(&mut |_| ())) };
                        });
                    });
                }
            }
            let Some(pages) = run(number, length) else { continue };
            write(&mut |writer| {
                note(2, &mut || {
                    let _ = writer.protect(pages, Holes::Skip, Change::clear(Attr::WRITE));
                });
            });
            note(4, &mut || {
                let mut seen = 0;
                for half in space.halves().into_iter().flatten() {
                    // SAFETY: no CPU writes meanwhile.
                    let _ = table.for_each(unsafe { Pinned::by(&()) }, half, &mut |_| {
                        seen += 1;
                        if seen < 10_000 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
                    });
                }
            });
        }
        for (index, (&number, length)) in numbers.iter().zip(lengths.into_iter().cycle()).enumerate() {
            if index % 3 == 0 {
                continue;
            }
            write(&mut |writer| {
                note(1, &mut || {
                    let _ = writer.unmap(one(number), Holes::Skip);
                });
            });
            if let Some(pages) = run(number, length) {
                write(&mut |writer| {
                    note(1, &mut || {
                        let _ = writer.unmap(pages, Holes::Skip);
                    });
                });
            }
        }
        let mut table = Some(table);
        note(6, &mut || {
            if let Some(table) = table.take() {
                // SAFETY: no CPU walks the table.
                unsafe { destroy(table).reclaim() };
            }
        });
    }
    most
}

/// Adds a row, measured on a stack of its own, and names the table in `above` if an operation takes more than [`LIMIT`].
fn row<W: tlbkit_pagetable::Word, M: Mode>(
    name: &str,
    (text, above): &mut (String, Vec<String>),
    measure: impl for<'a> FnOnce(&'a Slab<'a, W, M>) -> Most + Send,
) {
    let most = std::thread::scope(|scope| {
        let measured = std::thread::Builder::new().stack_size(1 << 20).spawn_scoped(scope, || {
            let mut memory = vec![Chunk::ZERO; 4096];
            let slab = Slab::<W, M>::new(&mut memory, 0).unwrap();
            // SAFETY: only shortens the life of the storage's own borrow.
            measure(unsafe { &*(&raw const slab).cast() })
        });
        measured.unwrap().join().unwrap()
    });
    let _ = write!(text, "\n{name:<28}");
    for took in most {
        let _ = write!(text, "{took:>9}");
    }
    // The measure sees what there is: every table has an operation that touches the paint.
    if most.iter().all(|&took| took <= GAP) || most.iter().any(|&took| took > LIMIT) {
        above.push(name.to_owned());
    }
}

macro_rules! rows {
    ($rows:ident, $($name:expr => $format:ty, $mode:ty, |$nodes:ident| $new:expr;)*) => { $(
        row::<<$format as Format>::Word, $mode>($name, &mut $rows, |$nodes| {
            exercise(&|| $new.ok())
        });
    )* };
}

/// A guarded table of compact links.
macro_rules! guarded {
    ($rows:ident, $($name:literal: $geometry:ty, $format:ty, $policy:ty, $mode:ty;)*) => { rows! {
        $rows, $($name => $format, $mode, |nodes| Gpt::<$geometry, $format, _, gpt::OneWord, $policy>::new(nodes);)*
    } };
}

fn main() -> ExitCode {
    let mut rows = (format!("{:<28}", "bytes of stack, at most"), Vec::new());
    for operation in OPERATIONS {
        let _ = write!(rows.0, "{operation:>9}");
    }
    macro_rules! kind {
        ($name:ident, $kind:ident, $change:ident) => {
            rows! { rows, concat!(stringify!($name), " Va32 entrylo") => EntryLo, Shared, |nodes| kinds::$kind::<Va32, EntryLo, _>::new(nodes); }
        };
    }
    each_kind!(kind);
    guarded! { rows,
        "G2 Va64 compact": Va64, format::Compact, Fixed<1>, Shared;
        "G4 Va64 compact": Va64, format::Compact, Fixed<2>, Solo;
        "G16 Va64 compact": Va64, format::Compact, Fixed<4>, Shared;
        "G256 Va64 compact": Va64, format::Compact, Fixed<8>, Solo;
        "GA Va64 compact": Va64, format::Compact, Adaptive, Shared;
        "GA Va64 compact, solo": Va64, format::Compact, Adaptive, Solo;
        "G2 Va48 compact": Va48, format::Compact, Fixed<1>, Solo;
        "G16 Va48 compact": Va48, format::Compact, Fixed<4>, Solo;
        "GA Va48 compact": Va48, format::Compact, Adaptive, Shared;
        "GA Va47 compact": Va47, format::Compact, Adaptive, Solo;
        "G128 Va32 compact32": Va32, Compact32, Fixed<7>, Solo;
        "GA Va32 entrylo": Va32, EntryLo, Adaptive, Solo;
    }
    rows! { rows,
        "G2 kseg0" => EntryLo, Shared, |nodes| Gpt32::<_, Fixed<1>>::new(nodes);
        "G4 kseg0" => EntryLo, Solo, |nodes| Gpt32::<_, Fixed<2>>::new(nodes);
        "G16 kseg0" => EntryLo, Shared, |nodes| Gpt32::<_, Fixed<4>>::new(nodes);
        "G256 kseg0" => EntryLo, Solo, |nodes| Gpt32::<_, Fixed<8>>::new(nodes);
        "GA kseg0" => EntryLo, Shared, |nodes| Gpt32::<_, Adaptive>::new(nodes);
        "G2 paper" => format::Paper, Solo, |nodes| PaperGpt::<_, Fixed<1>>::new(nodes);
        "G16 paper" => format::Paper, Solo, |nodes| PaperGpt::<_, Fixed<4>>::new(nodes);
        "GA paper" => format::Paper, Solo, |nodes| PaperGpt::<_, Adaptive>::new(nodes);
    }
    rows! { rows,
        "MPT Va64" => format::Compact, Shared, |nodes| mpt::Mpt::<Va64, format::Compact, _>::new(nodes);
        "MPT Va48" => format::Compact, Solo, |nodes| mpt::Mpt::<Va48, format::Compact, _>::new(nodes);
        "MPT Va39" => format::Compact, Shared, |nodes| mpt::Mpt::<Va39, format::Compact, _>::new(nodes);
        "HR, solo" => Compact32, Solo, |nodes| Hashed::<Va32, Compact32, _, Buckets<0, 1, 75>>::new(nodes);
    }
    let (text, above) = rows;
    println!("{text}");
    if above.is_empty() {
        return ExitCode::SUCCESS;
    }
    eprintln!("more than {LIMIT} bytes of stack, or none: {}", above.join(", "));
    ExitCode::FAILURE
}
