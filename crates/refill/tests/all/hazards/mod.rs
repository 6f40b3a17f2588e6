//! No handler that can be generated uses coprocessor 0 or the TLB before a change of it has taken effect, on any path.
//!
//! The interpreter sees the paths that a test takes. Here the words alone are looked at: every release, form, front, place
//! of the root, way to write the TLB, and every table that has code of its own. What must lie between is in `rules`, and
//! `walk` goes through the words; neither knows where the assembler puts its barriers.

mod rules;
mod walk;

use std::collections::HashSet;
use std::fmt::Debug;
use std::ops::Range;
use std::sync::OnceLock;

use rules::{Change, Use, distance};
use tlbkit_addr::PageSize;
use tlbkit_pagetable::geometry::{Va32, Va64};
use tlbkit_pagetable::{Geometry, Radix};
use tlbkit_refill::Error;
use tlbkit_refill::asm::{Asm, Cp0, K0, K1, ZERO};
use tlbkit_refill::features::{Features, Isa};
use tlbkit_refill::handler::{Form, Front, Gpt, Hashed, Lpt, Mpt, Place, Root, Spec, Stlb, Walk, Write};
use tlbkit_refill::mips3;
use walk::{Program, Refused, TLB};

const BLOCK: u32 = 0x8000_1000;
const CACHE: u32 = 0x8080_0000;

/// 32 bits of 4 KiB pages, and no others.
#[derive(Debug)]
struct Base32;

impl Geometry for Base32 {
    const VA_BITS: u32 = 32;
    const BASE: PageSize = PageSize::K4;
    const SIZES: &'static [PageSize] = &[PageSize::K4];
}

impl Radix for Base32 {
    const WIDTHS: &'static [u32] = &[10, 10];
}

/// Whether all of them are looked at: `cargo xtask test --full`. The gate leaves out what lies between two others.
const ALL: bool = cfg!(tlbkit_full);

/// Every table whose handler has words of its own: all widths and cluster sizes, and of the buckets as many as one
/// immediate masks, and more; those of a table that grows.
fn walks<G: Radix>() -> Vec<Walk> {
    let mut walks = vec![
        Walk::Mpt(Mpt::of::<G>().unwrap()),
        Walk::Lpt(Lpt::of::<G, 0xc000_0000>().unwrap()),
        Walk::Gpt(Gpt::adaptive::<G>().unwrap()),
    ];
    let widths = (1..=8).filter(|width| ALL || [1, 4, 8].contains(width));
    walks.extend(widths.map(|width| Walk::Gpt(Gpt::fixed::<G>(width).unwrap())));
    for cluster in (1..=4).filter(|cluster| ALL || [1, 4].contains(cluster)) {
        let shapes = [(1, 0), (13 - cluster, 0), (14 - cluster, 0), (1, 50)];
        let hashed = |(buckets, load)| Walk::Hashed(Hashed::of::<G>(cluster, buckets, load).unwrap());
        walks.extend(shapes.map(hashed));
    }
    walks
}

/// Every handler for 32 bits, as a specification. Some have no room at their place.
fn specs() -> Vec<Spec> {
    let mut specs = Vec::new();
    let cpus = [Features::R1, Features::R2, Features { kscratch: 1 << 2, ..Features::R1 }, Features::P5600];
    let fronts =
        if ALL { &[None, Some(2), Some(512), Some(1 << 19)][..] } else { &[None, Some(2), Some(1 << 19)] };
    let front =
        |sets: &Option<_>| sets.map_or(Front::None, |sets| Front::Stlb(Stlb::new(CACHE, sets).unwrap()));
    let fronts: Vec<_> = fronts.iter().map(front).collect();
    let forms = [
        (Form::PLAIN, Write::Random),
        (Form::PLAIN, Write::Index),
        (Form::SIZED, Write::Random),
        (Form::SIZED, Write::Index),
        (Form::REPORTING, Write::Index),
        (Form::BOTH, Write::Index),
        (Form::SHARED, Write::Random),
        (Form { shared: true, ..Form::BOTH }, Write::Index),
    ];
    for walk in [walks::<Base32>(), walks::<Va32>()].concat() {
        for features in cpus {
            let scratch = (2..8).filter(|&select| features.has_kscratch(select)).map(Root::KScratch);
            let scratch = scratch.take(if ALL { 6 } else { 1 });
            for root in [Root::Block, Root::ErrorEpc, Root::Cell].into_iter().chain(scratch) {
                for &front in &fronts {
                    for (form, write) in forms {
                        for place in [Place::VECTOR, Place::VECTOR_64] {
                            for block in [BLOCK, 0xffff_e000] {
                                specs.push(Spec { features, place, block, root, front, walk, form, write });
                            }
                        }
                    }
                }
            }
        }
    }
    specs
}

/// Every different program of these, with what it was made from.
fn programs() -> &'static [(Spec, Program)] {
    static PROGRAMS: OnceLock<Vec<(Spec, Program)>> = OnceLock::new();
    PROGRAMS.get_or_init(assemble)
}

fn assemble() -> Vec<(Spec, Program)> {
    let mut seen = HashSet::new();
    let mut programs = Vec::new();
    for spec in specs() {
        // One with room over the cache error vector is the same, or there is no other.
        let wide = Spec { place: Place::WIDE, ..spec };
        let handler = match spec.assemble() {
            Err(Error::TooLong { .. }) if spec.place == Place::VECTOR => wide.assemble(),
            assembled => assembled,
        };
        let handler = match handler {
            Ok(handler) => handler,
            Err(Error::TooLong { .. }) => continue,
            // Beside other CPUs there is one table.
            Err(Error::Unsupported) if spec.form.shared && !matches!(spec.walk, Walk::Mpt(_)) => continue,
            Err(error) => panic!("{spec:?}: {error}"),
        };
        let general = spec.place.general / 4;
        let mut pieces =
            vec![(0, handler.refill.words().to_vec()), (spec.place.tail / 4, handler.tail.words().to_vec())];
        let mut entries = vec![0];
        if !handler.general.words().is_empty() {
            pieces.push((general, handler.general.words().to_vec()));
            entries.push(general);
        }
        if seen.insert((spec.features.isa == Isa::R1, pieces.clone())) {
            let mapped = matches!(spec.walk, Walk::Lpt(_));
            programs.push((spec, Program { isa: spec.features.isa, pieces, entries, general, mapped }));
        }
    }
    programs
}

/// The same for MIPS III.
fn wide_programs() -> Vec<(mips3::Spec, Program)> {
    let mut walks = vec![mips3::Walk::Mpt(mips3::Mpt::of::<Va64>().unwrap())];
    walks.extend((1..=12).map(|width| mips3::Walk::Gpt(mips3::Gpt::fixed(width).unwrap())));
    for cluster in 1..=4 {
        let hashed = |buckets| mips3::Walk::Hashed(mips3::Hashed::of(cluster, buckets).unwrap());
        walks.extend([1, 8, 16].map(hashed));
        walks.push(mips3::Walk::Hashed(mips3::Hashed::growing(cluster).unwrap()));
    }
    let larger = mips3::Hashed::growing(3).and_then(mips3::Hashed::with_larger_pages).unwrap();
    walks.extend([mips3::Walk::Gpt(mips3::Gpt::adaptive()), mips3::Walk::Hashed(larger)]);
    walks.push(mips3::Walk::Lpt(mips3::Lpt::of::<Va64, { 0xff << 56 }>().unwrap()));
    let sizes = [32, 8 << 10, 128 << 10, 4 << 20];
    let caches: Vec<_> =
        sizes.into_iter().map(|bytes| Some(mips3::Stlb::new(CACHE, bytes).unwrap())).collect();
    let mut programs = Vec::new();
    for walk in walks {
        for &cache in caches.iter().chain([&None]) {
            let spec = mips3::Spec { block: BLOCK, cache, walk };
            let handler = spec.assemble().unwrap();
            let tail = ((mips3::TAIL - mips3::VECTOR) / 4) as i32;
            let mut pieces =
                vec![(0, handler.refill.words().to_vec()), (tail, handler.tail.words().to_vec())];
            let general = ((mips3::GENERAL - mips3::VECTOR) / 4) as i32;
            let mut entries = vec![0];
            let mapped = matches!(walk, mips3::Walk::Lpt(_));
            if mapped {
                pieces.push((general, handler.general.words().to_vec()));
                entries.push(general);
            }
            let program = Program { isa: Isa::Mips3, pieces, entries, general, mapped };
            programs.push((spec, program));
        }
    }
    programs
}

/// Replaces a barrier by `nop`s, or, where a `nop` is one, takes it out: then branches across it change, too.
fn damaged(program: &Program, piece: usize, barrier: Range<usize>) -> Program {
    let mut damaged = program.clone();
    if program.isa != Isa::Mips3 {
        damaged.pieces[piece].1[barrier].fill(0);
        return damaged;
    }
    let (from, length) = (program.pieces[piece].0, barrier.len() as i32);
    let last = from + barrier.end as i32;
    let end = from + program.pieces[piece].1.len() as i32;
    let place = |at: i32| if last <= at && at <= end { at - length } else { at };
    for (from, words) in &mut damaged.pieces {
        for (at, word) in (*from..).zip(words) {
            if is_branch(*word) {
                let target = place(at + 1 + i32::from(*word as i16));
                *word = *word & 0xffff_0000 | (target - place(at) - 1) as u32 & 0xffff;
            }
        }
    }
    damaged.pieces[piece].1.drain(barrier);
    damaged
}

fn is_branch(word: u32) -> bool {
    matches!(word >> 26, 0x01 | 0x04..=0x07)
}

/// Returns a program's words without the numbers in them, which do not change what it waits for.
fn shape(program: &Program) -> (bool, Vec<Vec<u32>>) {
    let word = |&word: &u32| match word >> 26 {
        // Shifts and bit fields; branches keep their distance, and moves their registers.
        0x00 if word & 0x3f < 0x04 && word >> 21 != 0 => word & !0x07c0,
        0x1f => word & !0xffc0,
        // All scratch registers are alike.
        0x10 if word >> 11 & 31 == 31 => word & !7,
        0x08..=0x0e | 0x20.. => word & 0xffff_0000,
        _ => word,
    };
    let pieces = program.pieces.iter().map(|(_, words)| words.iter().map(word).collect());
    (program.isa == Isa::R1, pieces.collect())
}

/// Returns where the barriers of a program are: the piece, and the words in it.
fn barriers(program: &Program) -> Vec<(usize, Range<usize>)> {
    let mut barriers: Vec<(usize, Range<usize>)> = Vec::new();
    for (piece, (_, words)) in program.pieces.iter().enumerate() {
        for (nth, &word) in words.iter().enumerate() {
            let is = match program.isa {
                Isa::R2 => word == 0xc0,
                // Before release 2 `ehb` is a `nop` like others.
                Isa::R1 => word == 0x40,
                // In a delay slot a `nop` is there for the slot.
                Isa::Mips3 => word == 0 && !(nth > 0 && is_branch(words[nth - 1])),
            };
            match barriers.last_mut() {
                Some((last, range)) if is && *last == piece && range.end == nth => range.end += 1,
                _ if is => barriers.push((piece, nth..nth + 1)),
                _ => {}
            }
        }
    }
    barriers
}

#[test]
fn every_handler_waits_for_what_it_has_changed() {
    let mut refused = Vec::new();
    let programs = programs();
    for (spec, program) in programs {
        refused.extend(program.check().err().map(|why| format!("{why:?}: {spec:?}")));
    }
    for (spec, program) in &wide_programs() {
        refused.extend(program.check().err().map(|why| format!("{why:?}: {spec:?}")));
    }
    assert!(programs.len() > if ALL { 3000 } else { 600 }, "only {} handlers", programs.len());
    assert!(refused.is_empty(), "{} of {}: {}", refused.len(), programs.len(), refused[0]);
}

/// Any one barrier taken out of any handler is missed: the check sees it, and no barrier is there for nothing, but for one.
#[test]
fn a_handler_without_one_of_its_barriers_is_refused() {
    let mut tried = 0;
    let mut passed = Vec::new();
    let mut judge = |spec: &dyn Debug, program: &Program, spare: Option<usize>| {
        for (nth, (piece, barrier)) in barriers(program).into_iter().enumerate() {
            let refused = damaged(program, piece, barrier.clone()).check();
            tried += 1;
            if !matches!(refused, Err(Refused::Hazard { .. })) && spare != Some(nth) {
                passed.push(format!("{spec:?}, piece {piece}, words {barrier:?}"));
            }
        }
    };
    let mut shapes = HashSet::new();
    let programs = programs();
    for (spec, program) in programs {
        // A hashed table's first probe mostly ends in an `ehb` before it can go anywhere, and the report has waited at its end.
        let waits = matches!((spec.front, spec.walk), (Front::None, Walk::Hashed(_))) && spec.form.reporting;
        let spare = (waits && spec.features.isa == Isa::R2).then_some(2);
        if spec.place == Place::VECTOR && shapes.insert(shape(program)) {
            judge(spec, program, spare);
        }
    }
    for (spec, program) in &wide_programs() {
        judge(spec, program, None);
    }
    assert!(tried > if ALL { 5_000 } else { 1_000 }, "only {tried} barriers");
    assert!(passed.is_empty(), "{} of {tried}: {}", passed.len(), passed[0]);
}

/// Returns what the check says of code that runs from the refill vector to an `eret`, or to the general vector.
fn check(isa: Isa, mapped: bool, code: impl Fn(&mut Asm)) -> Result<(), Refused> {
    let mut asm = Asm::new(isa);
    code(&mut asm);
    let pieces = vec![(0, asm.finish(96).unwrap().words().to_vec())];
    Program { isa, pieces, entries: vec![0], general: 96, mapped }.check()
}

/// The defects that this test was written for.
#[test]
fn what_was_wrong_is_refused() {
    let hazard = |at, register, by| Err(Refused::Hazard { at, register, by });
    for isa in [Isa::R1, Isa::R2, Isa::Mips3] {
        // The general vector, with EntryHi just written: the barrier lies on the other way.
        let leaves = |barrier: bool| {
            move |a: &mut Asm| {
                let general = a.label();
                a.bind_at(general, 96);
                a.mtc0(K1, Cp0::EntryHi);
                if barrier {
                    a.long_barrier();
                }
                a.beq(K0, ZERO, general);
                a.addiu(K0, K0, 1);
                a.long_barrier();
                a.tlbwr();
                (0..3).for_each(|_| a.nop());
                a.eret();
            }
        };
        assert_eq!(check(isa, false, leaves(false)), hazard(96, 10, Use::Kernel), "{isa:?}");
        assert_eq!(check(isa, false, leaves(true)), Ok(()), "{isa:?}");
        // A branch whose delay slot has the first word of a barrier jumps over the rest of it.
        let jumps = |split: bool| {
            move |a: &mut Asm| {
                let other = a.label();
                a.mtc0(K1, Cp0::EntryLo1);
                if split {
                    a.barrier_head();
                    a.beq(K0, ZERO, other);
                    a.barrier_tail();
                } else {
                    a.beq(K0, ZERO, other);
                    a.barrier();
                }
                a.bind(other);
                a.mfc0(K0, Cp0::EntryLo1);
                a.eret();
            }
        };
        let over = match isa {
            Isa::R1 => hazard(5, 3, Use::Move),
            Isa::R2 | Isa::Mips3 => Ok(()),
        };
        assert_eq!(check(isa, false, jumps(false)), over, "{isa:?}");
        assert_eq!(check(isa, false, jumps(true)), Ok(()), "{isa:?}");
        // A load through the TLB, under an ASID that is not there yet.
        let load = |a: &mut Asm| {
            a.mtc0(K1, Cp0::EntryHi);
            a.lw(K1, 0, K0);
            a.eret();
        };
        assert_eq!(check(isa, true, load), hazard(1, 10, Use::Access), "{isa:?}");
        // In kseg0 there is none.
        let unmapped = |a: &mut Asm| {
            a.lui(K0, 0x8000);
            a.mtc0(K1, Cp0::EntryHi);
            a.lw(K1, 4, K0);
            a.long_barrier();
            a.eret();
        };
        assert_eq!(check(isa, true, unmapped), Ok(()), "{isa:?}");
        // What a probe found, and what was read.
        let probe = |a: &mut Asm| {
            a.tlbp();
            a.barrier();
            a.tlbr();
            a.barrier();
            a.mfc0(K0, Cp0::PageMask);
            a.eret();
        };
        let read = match isa {
            Isa::R2 => Ok(()),
            Isa::R1 => hazard(4, 0, Use::Read),
            Isa::Mips3 => hazard(6, 5, Use::Move),
        };
        assert_eq!(check(isa, false, probe), read, "{isa:?}");
    }
    // The TLB, just written, and the fetch behind the return.
    let returns = |a: &mut Asm| {
        a.tlbwr();
        a.nop();
        a.nop();
        a.eret();
    };
    assert_eq!(check(Isa::Mips3, false, returns), hazard(3, TLB, Use::Return));
    assert_eq!(check(Isa::R1, false, returns), Ok(()));
}

/// What is no handler: a path that leaves the code, a branch in a delay slot, an unknown word, a third register.
#[test]
fn a_path_that_is_lost_is_refused() {
    let lost = |at| Err(Refused::Lost { at });
    assert_eq!(check(Isa::R2, false, |a| a.nop()), lost(1));
    assert_eq!(check(Isa::R2, false, |a| a.word(0x7000_0000)), lost(0));
    assert_eq!(check(Isa::R2, false, |a| a.word(0x3c01_8000)), lost(0), "lui at");
    let twice = |a: &mut Asm| {
        let here = a.here();
        a.b(here);
        a.b(here);
    };
    assert_eq!(check(Isa::R2, false, twice), lost(1));
}

/// The distances that the R4000's manual works out as examples.
#[test]
fn distances_of_the_r4000() {
    let between = |change, consumer| distance(Isa::Mips3, change, consumer);
    assert_eq!(between(Change::Move, Use::Move), Some(2));
    assert_eq!(between(Change::Move, Use::Probe), Some(3));
    assert_eq!(between(Change::Read, Use::Move), Some(3));
    assert_eq!(between(Change::Probe, Use::Move), Some(2));
    assert_eq!(between(Change::Write, Use::Return), Some(3));
    assert_eq!(between(Change::Move, Use::Write), Some(2));
}

/// Those of the VR4110, which its manual (NEC U14272EJ3V0UM, table 23-2) calculates, are kept too: two instructions before a
/// write of the TLB are the only ones that are more than the R4000's.
#[test]
fn distances_of_the_vr4110() {
    for (change, consumer, least) in [
        (Change::Write, Use::Probe, 2),
        (Change::Write, Use::Access, 1),
        // The `eret` itself lies before the fetch, too.
        (Change::Write, Use::Return, 2 - 1),
        (Change::Read, Use::Move, 1),
        (Change::Move, Use::Write, 2),
        (Change::Probe, Use::Move, 2),
        (Change::Move, Use::Probe, 2),
        (Change::Move, Use::Return, 2),
        (Change::Move, Use::Move, 1),
    ] {
        let between = distance(Isa::Mips3, change, consumer);
        assert!(between >= Some(least), "{change:?}, {consumer:?}: {between:?}");
    }
}
