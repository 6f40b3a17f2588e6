//! The user programs, an ELF file: each segment at its address, in frames of its own.

use core::sync::atomic::Ordering;

use tlbkit::{Attr, PageSize, Pages, VirtAddr};

use crate::frames;
use crate::memory::{Space, sharing};

/// The bytes of a word.
const WORD: usize = size_of::<usize>();

/// Returns an address space with the programs, and where they begin.
pub(crate) fn load(kernel: &Space, file: &[u8]) -> (Space, usize) {
    let space = sharing(kernel).expect("there is memory for an address space");
    let number = |at: usize, len: usize| {
        let bytes = file.get(at..at + len).expect("the file is whole");
        bytes.iter().rev().fold(0, |number, &byte| number << 8 | usize::from(byte))
    };
    assert_eq!(number(0, 4), 0x464c_457f, "the programs are no ELF file");
    assert_eq!(number(4, 1), WORD / 4, "the programs are not for this machine");
    // The fields of the machine's words move those behind them.
    let [entry, headers] = [24, 24 + WORD].map(|field| number(field, WORD));
    let [size, count] = [30, 32].map(|field| number(field + 3 * WORD, 2));
    for header in (0..count).map(|index| headers + index * size) {
        const LOAD: usize = 1;
        if number(header, 4) == LOAD {
            let [offset, at, _, in_file, in_memory] =
                [1, 2, 3, 4, 5].map(|field| number(header + field * WORD, WORD));
            let bytes = file.get(offset..offset + in_file).expect("the file is whole");
            segment(&space, at, bytes, in_memory, rights(number(header + if WORD == 8 { 4 } else { 24 }, 4)));
        }
    }
    (space, entry)
}

fn rights(flags: usize) -> Attr {
    let (execute, write) = (flags & 1 != 0, flags & 2 != 0);
    let mut attr = Attr::READ | Attr::USER;
    attr.set(Attr::EXEC, execute);
    attr.set(Attr::WRITE, write);
    attr
}

/// Maps a segment that begins with a page.
fn segment(space: &Space, at: usize, bytes: &[u8], len: usize, attr: Attr) {
    for offset in (0..len).step_by(PageSize::K4.bytes()) {
        let frame = frames::take().expect("there is memory for the programs");
        let rest = bytes.get(offset..).unwrap_or_default();
        for (chunk, word) in rest.chunks(WORD).zip(frames::words(frame)) {
            let value = chunk.iter().rev().fold(0, |value, &byte| value << 8 | usize::from(byte));
            word.store(value, Ordering::Relaxed);
        }
        let page = Pages::one(VirtAddr::new(at + offset).vpn(PageSize::K4));
        space.map(page, frame, attr).expect("nothing is there");
    }
}
