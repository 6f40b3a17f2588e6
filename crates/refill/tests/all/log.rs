//! What a handler and its kernel share, and what each finds there.

use std::sync::atomic::{AtomicU32, Ordering};

use tlbkit_pagetable::geometry::Va32;
use tlbkit_refill::features::Features;
use tlbkit_refill::handler::{Gpt, Hashed, Lpt, Mpt, Walk};
use tlbkit_refill::{Block, Evicted, Log, Miss};

/// The words of a block, by their place.
fn words(block: &Block) -> &[AtomicU32; 8] {
    // SAFETY: the block is eight words, as its layout says.
    unsafe { &*(&raw const *block).cast() }
}

#[test]
fn the_root_is_the_first_word() {
    let block = Block::new();
    assert_eq!(block.root(), 0);
    block.set_root(0x8010_0005);
    assert_eq!(block.root(), 0x8010_0005);
    assert_eq!(
        words(&block).each_ref().map(|word| word.load(Ordering::Relaxed)),
        [0x8010_0005, 0, 0, 0, 0, 0, 0, 0]
    );
}

/// What the handler does: it stores a record where `next` says, and moves that on.
fn record(block: &Block, log: &Log<3>, at: u32, miss: [u32; 6]) {
    let next = &words(block)[1];
    let place = next.load(Ordering::Relaxed);
    // SAFETY: the log is records of six words, and there is room for this one.
    let cells: &[AtomicU32; 18] = unsafe { &*(&raw const *log).cast() };
    for (cell, word) in cells[(place - at) as usize / 4..].iter().zip(miss) {
        cell.store(word, Ordering::Relaxed);
    }
    next.store(place + 24, Ordering::Relaxed);
}

#[test]
fn records_are_drained_in_order() {
    let (block, log, at) = (Block::new(), Log::<3>::default(), 0x8000_3000);
    log.attach(&block, at);
    let ends = || [1, 2].map(|word| words(&block)[word].load(Ordering::Relaxed));
    assert_eq!(ends(), [at, at + 72], "room for three");
    log.drain(&block, |miss| panic!("{miss:?} did not happen"));
    for count in [1, 3, 2] {
        for number in 0..count {
            record(&block, &log, at, [1, 2, 3, 4, 5, 6].map(|word| 100 * number + word));
        }
        assert_eq!(ends(), [at + 24 * count, at + 72]);
        let mut misses = Vec::new();
        log.drain(&block, |miss| misses.push(miss));
        let expected: Vec<_> = (0..count)
            .map(|number| {
                let [at, entry_hi, evicted_hi, page_mask, lo0, lo1] =
                    [1, 2, 3, 4, 5, 6].map(|word| 100 * number + word);
                Miss { at, entry_hi, evicted: Evicted { entry_hi: evicted_hi, page_mask, lo0, lo1 } }
            })
            .collect();
        assert_eq!(misses, expected);
        assert_eq!(ends(), [at, at + 72], "it is empty again");
    }
}

/// What the handler finds in a fresh block is a log that is full. It would store a record to wherever else `next` was.
#[test]
fn draining_what_was_never_attached_does_nothing() {
    let (block, log) = (Block::new(), Log::<3>::new());
    log.drain(&block, |miss| panic!("{miss:?} did not happen"));
    assert_eq!([1, 2].map(|word| words(&block)[word].load(Ordering::Relaxed)), [0, 0]);
}

#[test]
fn an_entry_that_translated_nothing_was_empty() {
    let mapped = Evicted { entry_hi: 0x0040_0005, page_mask: 0, lo0: 0x1e, lo1: 0x1e };
    assert!(!mapped.is_empty());
    // Either half makes it an entry.
    assert!(!Evicted { lo0: 0, ..mapped }.is_empty());
    assert!(!Evicted { lo1: 0, ..mapped }.is_empty());
    assert!(Evicted { lo0: 0x1d, lo1: 0x1c, ..mapped }.is_empty(), "all but V");
    // No address of kseg0 or kseg1 is looked up; those of kseg2 and kseg3 are.
    for (entry_hi, empty) in
        [(0x7fff_e000, false), (0x8000_0000, true), (0xbfff_e000, true), (0xc000_0000, false)]
    {
        assert_eq!(Evicted { entry_hi, ..mapped }.is_empty(), empty, "{entry_hi:#x}");
    }
    // EHINV.
    assert!(Evicted { entry_hi: mapped.entry_hi | 1 << 10, ..mapped }.is_empty());
    assert!(!Evicted { entry_hi: 0x0040_0aff & !(1 << 10), ..mapped }.is_empty());
}

#[test]
fn scratch_registers_by_select() {
    let has = |cpu: Features| (0..=255).filter(|&select| cpu.has_kscratch(select)).collect::<Vec<_>>();
    assert_eq!(has(Features::P5600), [2, 3, 4]);
    assert_eq!(has(Features::R2), []);
    assert_eq!(has(Features { kscratch: 0xff, ..Features::R2 }), [0, 1, 2, 3, 4, 5, 6, 7]);
}

#[test]
fn root_words_are_what_the_walks_begin_with() {
    let hashed = |cluster, buckets, load| Hashed::of::<Va32>(cluster, buckets, load).unwrap();
    let root = |walk: Walk, root| walk.root(root);
    assert_eq!(root(Walk::Mpt(Mpt::of::<Va32>().unwrap()), 0x8010_0000), 0x8010_0000);
    assert_eq!(root(Walk::Gpt(Gpt::fixed::<Va32>(4).unwrap()), 0x8010_0405), 0x8010_0405);
    // A linear table's root is a physical address.
    assert_eq!(root(Walk::Lpt(Lpt::of::<Va32, 0xc000_0000>().unwrap()), 0x1f10_0000), 0x9f10_0000);
    // A hashed table of a fixed size has the address of its array, up to 64 KiB; beyond, what is no zero of it.
    assert_eq!(root(Walk::Hashed(hashed(1, 10, 0)), 0x8010_000a), 0x8010_0000);
    assert_eq!(root(Walk::Hashed(hashed(1, 12, 0)), 0x8011_000c), 0x8011_0000);
    assert_eq!(root(Walk::Hashed(hashed(1, 13, 0)), 0x8012_000d), 0x8012_0000 >> 17);
    assert_eq!(root(Walk::Hashed(hashed(3, 11, 0)), 0x8014_000b), 0x8014_0000 >> 17);
    // One that grows has its directory, whatever the table has beside it.
    assert_eq!(root(Walk::Hashed(hashed(1, 1, 50)), 0x8010_0005), 0x8010_0000);
    assert_eq!(root(Walk::Hashed(hashed(3, 1, 50)), 0x8010_001f), 0x8010_0000);
}
