//! A table that another CPU changes word by word: whatever of a pair has been stored, the handler loads an entry that is right for
//! the page that missed and takes in no other, or passes the miss on.

use std::sync::atomic::{AtomicU32, Ordering};

use tlbkit_pagetable::geometry::Va32;
use tlbkit_refill::Block;
use tlbkit_refill::features::Features;
use tlbkit_refill::handler::{Form, Front, Mpt, Place, Root, Spec, Walk, Write};
use tlbkit_refill::interp::{Access, Machine, Stop, Window, Windows};

const KSEG0: u32 = 0x8000_0000;
const ROOT: u32 = 0x1_0000;
const NODE: u32 = 0x1_1000;
const BLOCK: u32 = 0x2000;
/// The instruction that accesses memory.
const USER: u64 = 0x0040_0000;

/// EntryLo of a page of 4 KiB, which can be stored to.
const fn small(frame: u32) -> u32 {
    frame << 6 | 0b01_1110
}

/// EntryLo of a page of `4^digit` times 4 KiB, with its size: S is 1, and the lowest digit of the PFN that is not 0 is 1.
const fn large(frame: u32, digit: u32) -> u32 {
    small(frame) | 1 << 30 | 1 << (6 + 2 * (digit - 1))
}

/// What a miss at a page comes to: the physical address and the bytes of half an entry, or nothing if the miss is passed on.
fn miss(form: Form, words: &[(u32, u32)], page: u32) -> Option<(u64, u64)> {
    let spec = Spec {
        features: Features::R2,
        place: Place::WIDE,
        block: KSEG0 + BLOCK,
        root: Root::ErrorEpc,
        front: Front::None,
        walk: Walk::Mpt(Mpt::of::<Va32>().unwrap()),
        form,
        write: Write::Random,
    };
    let handler = spec.assemble().unwrap();
    let memory: Vec<_> = (0..0x2_0000 / 4).map(|_| AtomicU32::new(0)).collect();
    let put = |at: u32, word: u32| memory[at as usize / 4].store(word, Ordering::Relaxed);
    let all = [(0, handler.refill), (0x180, handler.general), (spec.place.tail as u32, handler.tail)];
    for (at, code) in &all {
        (*at..).step_by(4).zip(code.words()).for_each(|(at, &word)| put(at, word));
    }
    put(ROOT, KSEG0 + NODE);
    words.iter().for_each(|&(slot, word)| put(NODE + 4 * slot, word));
    let block = Block::new();
    // SAFETY: all of it lives until the end of this function; one thread uses it.
    let windows = unsafe {
        Windows([
            Window::from_raw(BLOCK.into(), (&raw const block).cast(), size_of::<Block>() / 4),
            Window::new(0, &memory),
        ])
    };
    let mut machine = Machine::<_, 16>::new(spec.features, windows);
    machine.stop = machine.vectors + 0x180 + 4 * handler.general.words().len() as u64;
    machine.cp0.context = spec.context() as i32 as u64;
    machine.cp0.error_epc = (KSEG0 + ROOT) as i32 as u64;
    for _ in 0..3 {
        machine.pc = USER;
        machine.cp0.status = 0;
        match machine.touch((page << 12).into(), Access::Load) {
            Err(Stop::Returned) => {}
            Err(Stop::Reached) => return None,
            Err(stop) => panic!("{words:x?}: the handler stopped: {stop:x?}"),
            Ok(physical) => {
                let entry = machine.tlb.find((page << 12).into(), 0).unwrap();
                return Some((physical, entry.bytes));
            }
        }
    }
    panic!("{words:x?}: never translated");
}

#[test]
fn half_of_a_larger_page_is_never_loaded_as_a_small_one() {
    // A page of 64 KiB over the slots 16 to 31, of which each set of words has been stored; the others hold nothing.
    let word = large(0x40, 2);
    let mut passed_on = 0;
    for stored in 0_u32..1 << 4 {
        let words: Vec<_> =
            (0..4).filter(|slot| stored >> slot & 1 != 0).map(|slot| (16 + slot, word)).collect();
        for slot in 0..4 {
            let found = miss(Form::SHARED, &words, 16 + slot);
            let is_stored = stored >> slot & 1 != 0;
            let expected = is_stored.then_some((u64::from(0x40 + slot) << 12, 16384));
            assert_eq!(found, expected, "{stored:#b}, slot {slot}");
            passed_on += usize::from(found.is_none());
        }
    }
    assert_eq!(passed_on, 32);
    // The form for one CPU takes a word that it finds beside an empty one for a page of 4 KiB: here for the wrong one.
    let odd = [(16 + 3, word)];
    assert_ne!(miss(Form::SIZED, &odd, 16 + 3).unwrap().0, 0x43 << 12);
}

#[test]
fn a_larger_page_is_loaded_without_the_one_beside_it() {
    for digit in 1..=3 {
        let pages = 1 << (2 * digit);
        let page = |first: u32| (first..first + pages).map(move |slot| (slot, large(first, digit)));
        let alone: Vec<_> = page(4 * pages).collect();
        let pair: Vec<_> = page(4 * pages).chain(page(5 * pages)).collect();
        let (at, size) = (4 * pages + pages / 2 + 1, u64::from(pages) * 4096);
        let physical = u64::from(at) << 12;
        for words in [&alone, &pair] {
            assert_eq!(miss(Form::SHARED, words, at), Some((physical, size / 4)), "{size}");
        }
        // The control: the form for one CPU loads both.
        assert_eq!(miss(Form::SIZED, &alone, at), Some((physical, size / 4)), "{size}");
        assert_eq!(miss(Form::SIZED, &pair, at), Some((physical, size)), "{size}");
    }
}
