//! The interpreter's TLB and its memory: what an entry matches, what it translates to, and which do not go together.

use crate::guest;

use crate::guest::{Cpu, Ram};
use tlbkit_refill::features::Features;
use tlbkit_refill::interp::{Access, Cause, Entry, Match, Memory, Stop, Windows};

/// V, D and G of an EntryLo, and where the frame's number begins.
const VALID: u64 = 2;
const DIRTY: u64 = 4;
const GLOBAL: u64 = 1;
const PFN: u32 = 6;

/// An entry of 4 KiB pages at an address, for a space.
const fn entry(at: u64, asid: u64) -> Entry {
    Entry { page_mask: 0, hi: at | asid, lo: [0x100 << PFN | VALID, 0x200 << PFN | VALID | DIRTY] }
}

/// The same with pages of 16 KiB.
const fn larger(at: u64, asid: u64) -> Entry {
    Entry { page_mask: 0x6000, ..entry(at, asid) }
}

const fn global(entry: Entry) -> Entry {
    Entry { lo: [entry.lo[0] | GLOBAL, entry.lo[1] | GLOBAL], ..entry }
}

fn cpu<'m>(ram: &'m Ram, entries: &[Entry]) -> Cpu<'m> {
    let mut cpu = ram.cpu(Features::R2, &[]);
    for (index, &entry) in entries.iter().enumerate() {
        cpu.tlb.write(index as u64, entry).unwrap();
    }
    cpu
}

#[test]
fn an_entry_is_a_pair_of_pages_in_a_space() {
    let ram = Ram::new();
    let cpu = cpu(&ram, &[entry(0x8_0000, 1), entry(0x40_0000, 7)]);
    let find = |at, asid| cpu.tlb.find(at, asid);
    let (even, odd) = (0x100 << PFN | VALID, 0x200 << PFN | VALID | DIRTY);
    for (at, lo) in [(0x40_0000, even), (0x40_0fff, even), (0x40_1000, odd), (0x40_1fff, odd)] {
        assert_eq!(find(at, 7), Some(Match { index: 1, lo, bytes: 0x1000 }), "{at:#x}");
        assert_eq!(find(at, 6), None, "another space");
    }
    for at in [0x3f_ffff, 0x40_2000, 0x1_0040_0000, 0xffff_ffff_8040_0000] {
        assert_eq!(find(at, 7), None, "{at:#x}");
    }
    // An ASID has eight bits.
    assert_eq!(find(0x40_0000, 0x107).map(|found| found.index), Some(1));
}

#[test]
fn pages_have_the_size_that_page_mask_says() {
    let ram = Ram::new();
    for (page_mask, bytes) in
        [(0, 0x1000), (0x6000, 0x4000), (0x1_e000, 0x1_0000), (0x1fff_e000, 0x1000_0000)]
    {
        let pair = 0x4000_0000;
        let cpu = cpu(&ram, &[Entry { page_mask, ..entry(pair, 0) }]);
        let find = |at| cpu.tlb.find(at, 0);
        let frame = |at| find(at).map(|found| (found.lo >> PFN, found.bytes));
        assert_eq!(frame(pair), Some((0x100, bytes)));
        assert_eq!(frame(pair + bytes - 1), Some((0x100, bytes)));
        assert_eq!(frame(pair + bytes), Some((0x200, bytes)));
        assert_eq!(frame(pair + 2 * bytes - 1), Some((0x200, bytes)));
        assert_eq!(frame(pair + 2 * bytes), None);
        assert_eq!(frame(pair - 1), None);
    }
}

#[test]
fn an_entry_is_global_if_both_halves_are() {
    assert!(global(entry(0, 0)).is_global());
    let [even, odd] = [0, 1].map(|half| {
        let mut entry = entry(0x40_0000, 7);
        entry.lo[half] |= GLOBAL;
        entry
    });
    assert!(!even.is_global() && !odd.is_global() && !entry(0, 0).is_global());

    let ram = Ram::new();
    let global = cpu(&ram, &[global(entry(0x40_0000, 7))]);
    assert!(global.tlb.find(0x40_0000, 6).is_some());
    assert_eq!(global.tlb.find(0x40_2000, 7), None);
    for half in [even, odd] {
        let one = cpu(&ram, &[half]);
        assert_eq!(one.tlb.find(0x40_0000, 6), None);
        // The TLB has one G for both.
        assert_eq!(one.tlb.entries()[0], Some(entry(0x40_0000, 7)));
    }
}

#[test]
fn two_entries_for_one_address_are_refused() {
    let ram = Ram::new();
    let both = |first: Entry, second: Entry| {
        let mut cpu = cpu(&ram, &[first]);
        let before = *cpu.tlb.entries();
        let written = cpu.tlb.write(1, second);
        assert_eq!(written.is_err(), *cpu.tlb.entries() == before, "nothing is changed by what is refused");
        written
    };
    let duplicate = |at| Err(Stop::Duplicate { at });
    let at = 0x40_0000;
    assert_eq!(both(entry(at, 7), entry(at, 7)), duplicate(at));
    assert_eq!(both(entry(at, 7), entry(at, 6)), Ok(()));
    assert_eq!(both(entry(at, 7), entry(at + 0x2000, 7)), Ok(()));
    // A global entry is in every space, and the larger covers the smaller, whichever is first.
    assert_eq!(both(global(entry(at, 7)), entry(at, 6)), duplicate(at));
    assert_eq!(both(entry(at, 7), global(entry(at, 6))), duplicate(at));
    assert_eq!(both(global(entry(at, 7)), global(entry(at + 0x2000, 7))), Ok(()));
    assert_eq!(both(larger(at, 7), entry(at + 0x6000, 7)), duplicate(at + 0x6000));
    assert_eq!(both(entry(at + 0x6000, 7), larger(at, 7)), duplicate(at));
    assert_eq!(both(larger(at, 7), entry(at + 0x8000, 7)), Ok(()));
    assert_eq!(both(larger(at, 7), entry(at + 0x6000, 6)), Ok(()));

    // An entry may be written again, and there is no entry behind the last.
    let mut cpu = cpu(&ram, &[entry(at, 7)]);
    assert_eq!(cpu.tlb.write(0, larger(at, 7)), Ok(()));
    assert_eq!(cpu.tlb.entries()[0], Some(larger(at, 7)));
    assert_eq!(cpu.tlb.write(7, entry(at + 0x8000, 7)), Ok(()));
    let full = *cpu.tlb.entries();
    assert_eq!(cpu.tlb.write(8, entry(0, 7)), Ok(()));
    assert_eq!(*cpu.tlb.entries(), full);
}

#[test]
fn entries_are_emptied() {
    let ram = Ram::new();
    let mut cpu = cpu(&ram, &[entry(0x40_0000, 7), entry(0x40_0000, 6)]);
    cpu.tlb.retain(|entry| entry.hi & 0xff == 6);
    let expected: [_; 8] = std::array::from_fn(|index| (index == 1).then_some(entry(0x40_0000, 6)));
    assert_eq!(*cpu.tlb.entries(), expected);
    cpu.tlb.flush();
    assert_eq!(*cpu.tlb.entries(), [None; 8]);
}

#[test]
fn accesses_are_translated_or_say_why_not() {
    let ram = Ram::new();
    let mut cpu = cpu(&ram, &[entry(0x40_0000, 7), larger(0x80_0000, 7)]);
    cpu.cp0.entry_hi = 0x1234_6007;
    let load = |at| cpu.translate(at, Access::Load);
    let store = |at| cpu.translate(at, Access::Store);
    assert_eq!(load(0x40_0abc), Ok(0x10_0abc));
    assert_eq!(store(0x40_0abc), Err(Cause::Modified));
    assert_eq!(load(0x40_1abc), Ok(0x20_0abc));
    assert_eq!(store(0x40_1abc), Ok(0x20_0abc));
    assert_eq!(load(0x40_2abc), Err(Cause::Refill(Access::Load)));
    assert_eq!(store(0x40_2abc), Err(Cause::Refill(Access::Store)));
    // The bits of the frame below a larger page's size are the address's.
    assert_eq!(load(0x80_3abc), Ok(0x10_3abc));
    assert_eq!(store(0x80_7abc), Ok(0x20_3abc));

    let invalid = Entry { lo: [DIRTY, 0x30f << PFN | VALID | DIRTY], ..larger(0x80_0000, 7) };
    cpu.tlb.write(1, invalid).unwrap();
    let translate = |at, access| cpu.translate(at, access);
    assert_eq!(translate(0x80_0000, Access::Load), Err(Cause::Invalid(Access::Load)));
    assert_eq!(translate(0x80_0000, Access::Store), Err(Cause::Invalid(Access::Store)));
    assert_eq!(translate(0x80_4000, Access::Store), Ok(0x30_c000));
    // A frame has 24 bits; RI and XI are above it.
    let high = Entry { lo: [0xff_ffff << PFN | 3 << 30 | VALID; 2], ..entry(0x40_0000, 7) };
    cpu.tlb.write(0, high).unwrap();
    assert_eq!(cpu.translate(0x40_0abc, Access::Load), Ok(0xf_ffff_fabc));
}

#[test]
fn memory_is_where_its_windows_are() {
    let (first, second) = (Ram::new(), Ram::new());
    first.put(0, &[1, 2]);
    second.put(0, &[3]);
    let end = 0x1000 + guest::END as u64;
    let mut memory = Windows([first.window(0x1000), second.window(0x1004), second.window(0x1_0000_0000)]);
    assert_eq!(memory.load(0xffc), None);
    assert_eq!(memory.load(0x1000), Some(1));
    assert_eq!(memory.load(0x1004), Some(2), "the first window that has it");
    assert_eq!(memory.load(end - 4), Some(0));
    assert_eq!(memory.load(end), Some(0), "the second window's last word");
    assert_eq!(memory.load(end + 4), None);
    assert_eq!(memory.load(0x1_0000_0000), Some(3));
    assert!(memory.store(end - 4, 5) && memory.store(end, 6));
    assert_eq!((first.word(guest::END - 4), second.word(guest::END - 4)), (5, 6));
    assert!(!memory.store(0xffc, 7) && !memory.store(end + 4, 7));
}
