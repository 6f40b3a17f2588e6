//! The form for larger pages: the choice of PageMask, which depends on the other half of the page's pair.
//!
//! A TLB entry maps a pair of pages. If both halves of a larger page's pair are pages of the same size, one entry maps both,
//! with that size as PageMask. If the other half holds smaller pages, such an entry is not possible: its other half would
//! overlap the entries of the smaller pages, and two entries that match one address are a machine check. Then the entry is
//! for a pair **within** the page, of the next smaller size:
//!
//! ```text
//!   16K 16K      one entry, PageMask 16K         16K 4K -       two entries, PageMask 4K, for the halves of the first
//!   64K 64K      one entry, PageMask 64K         64K 16K ...    two entries, PageMask 16K, ...
//! ```
//!
//! Two hazards follow. When a larger page is mapped next to one of the same size, the TLB may hold entries for pairs within
//! the first page, which the entry of the whole pair would overlap. When one of two such pages is unmapped, a software TLB
//! may hold the entry of the pair under an address of the other page. The flushes that the tables of [`tlbkit_pagetable`]
//! ask for name whole pairs, so a kernel that executes them avoids both.
//!
//! This holds for a table that one CPU uses. If other CPUs change the table during a walk ([`Form::shared`](super::Form)),
//! the entry is always a pair within the page: the flush is done before the words are stored, and a CPU may load the words
//! while only some of them are stored. Then the entry of a larger page never depends on the other half.
//!
//! A closed page, whose word has no V, is loaded like any other: the TLB gets a half that is not valid, and the access
//! faults.
//!
//! The leaf contains the size: the low PFN bits that the size ignores, of which the highest two are not both 0, encode it
//! ([`EntryLo`](tlbkit_pagetable::format::EntryLo)).

use super::Build;
use crate::asm::{Asm, Cp0, K0, K1, Label, Reg, ZERO};

/// The lowest bit of the PFN in a leaf.
pub(crate) const PFN: u32 = 6;

/// Turns a leaf into the mask of the PFN bits that its size ignores: those up to the lowest one that is set, extended to an even number
/// of bits. Overwrites `other`.
pub(crate) const fn ignored_bits(asm: &mut Asm, leaf: Reg, other: Reg) {
    asm.srl(leaf, leaf, PFN);
    asm.addiu(other, leaf, -1);
    asm.xor(leaf, leaf, other);
    asm.andi(other, leaf, 0x5555);
    asm.sll(other, other, 1);
    asm.or(leaf, leaf, other);
}
/// The lowest bit of PageMask.
const MASK: u32 = 13;
/// The lowest bit of a page's number in an address.
const PAGE: u32 = 12;
/// The lowest bit of the field S in a leaf. S = 1 is a leaf of more than 4 KiB.
const S: u32 = 30;

/// A temporary word of the block: first a unit of a chain, then the distance between the PTEs of the two halves, or the leaf
/// without its size bits.
pub(super) const BUCKET: usize = 0;
/// A temporary word of the block: the address of the PTE of the page that missed.
pub(super) const OWN: usize = 1;
/// A temporary word of the block: a mask of all PFN bits that the size ignores.
pub(super) const BITS: usize = 2;
/// A temporary word of the block: all ones if the page is the odd half of its pair; or a one at the lowest PFN bit that the
/// size of a pair within the page does not ignore.
const HALF: usize = 3;
/// A temporary word of the block: the base-two logarithm of the pages of a slot.
pub(super) const GRAIN: usize = 4;

/// Branches to `larger` if k0, the pair's even word, may be that of a larger page. Overwrites k0; the next instruction is in
/// the delay slot. A word with S = 3, a page of 4 KiB that was written and then protected, also branches; the code at
/// `larger` separates it.
///
/// With [`Form::shared`](super::Form), it also tests the odd word, in k1, because another CPU may have stored only one of
/// the two.
pub(super) const fn test(b: &mut Build, larger: Label) {
    if b.spec.form.shared {
        b.asm.or(K0, K0, K1);
    }
    // The low bit of S becomes the sign.
    b.asm.sll(K0, K0, 1);
    b.asm.bltz(K0, larger);
}

/// Branches to `sized` if the PTE at address k1 is that of a larger page, otherwise to `small`. k1 is the address of the PTE
/// of the page that missed, in a node whose slots have `2^grain` pages, and keeps its value on the way to `small`.
pub(super) const fn sort(b: &mut Build, grain: i16, small: Label, sized: Label) {
    if b.spec.form.shared {
        return sort_shared(b, small, sized);
    }
    b.asm.lw(K0, 0, K1);
    b.asm.srl(K0, K0, S);
    b.asm.xori(K0, K0, 1);
    b.asm.bne(K0, ZERO, small);
    enter(b, grain, sized);
}

/// Branches to `sized`: k1 is the address of a larger page's PTE, in a node whose slots have `2^grain` pages.
pub(super) const fn enter(b: &mut Build, grain: i16, sized: Label) {
    let own = b.save_high(K0, OWN);
    b.asm.sw(K1, own, K0);
    b.asm.addiu(K1, ZERO, grain);
    b.asm.b(sized);
    b.asm.sw(K1, b.save_low(GRAIN), K0);
}

/// As [`sort`], while other CPUs store to the node: the handler loads the PTE once, and keeps it in the block.
const fn sort_shared(b: &mut Build, small: Label, sized: Label) {
    let own = b.save_high(K0, OWN);
    b.asm.sw(K1, own, K0);
    b.asm.lw(K1, 0, K1);
    b.asm.sw(K1, b.save_low(BUCKET), K0);
    b.asm.srl(K1, K1, S);
    b.asm.xori(K1, K1, 1);
    b.asm.beq(K1, ZERO, sized);
    let own = b.save_high(K1, OWN);
    b.asm.b(small);
    b.asm.lw(K1, own, K1);
}

/// Loads a temporary word of the block.
const fn load(b: &mut Build, to: Reg, word: usize) {
    let low = b.save_high(to, word);
    b.asm.lw(to, low, to);
}

/// Loads the PTE of the page that missed.
const fn leaf(b: &mut Build, to: Reg) {
    if b.spec.form.shared {
        return load(b, to, BUCKET);
    }
    load(b, to, OWN);
    b.asm.lw(to, 0, to);
}

/// Loads an entry for both halves of the page's pair, or for a pair within the page, and ends the handler. If the PTEs of
/// the halves are `reach` bytes apart or more, they are not in one node, and the entry is a pair within the page.
pub(super) const fn emit(b: &mut Build, sized: Label, reach: i16) {
    emit_by(b, sized, reach, false);
}

/// As [`emit`], for nodes that consist of units: two slots each in four words, in any order that keeps pairs of units
/// adjacent.
pub(super) const fn emit_units(b: &mut Build, sized: Label, reach: i16) {
    emit_by(b, sized, reach, true);
}

const fn emit_by(b: &mut Build, sized: Label, reach: i16, units: bool) {
    let within = b.asm.label();
    let done = b.asm.label();
    b.asm.bind(sized);
    leaf(b, K1);
    ignored_bits(&mut b.asm, K1, K0);
    let bits = b.save_high(K0, BITS);
    b.asm.sw(K1, bits, K0);
    if b.spec.form.shared {
        self::within(b, done);
        b.asm.bind(done);
        return b.finish_sized();
    }
    // HALF is all ones if the page is the odd half of its pair.
    b.asm.addiu(K1, K1, 1);
    b.asm.mfc0(K0, Cp0::BadVAddr);
    b.asm.srl(K0, K0, PAGE);
    b.asm.and(K0, K0, K1);
    b.asm.sltu(K0, ZERO, K0);
    b.asm.subu(K0, ZERO, K0);
    let odd = b.save_high(K1, HALF);
    b.asm.sw(K0, odd, K1);
    // The distance from one half's PTE to the other's, in bytes.
    b.asm.lw(K0, bits, K1);
    b.asm.lw(K1, b.save_low(GRAIN), K1);
    b.asm.addiu(K0, K0, 1);
    b.asm.sll(K0, K0, 2);
    b.asm.srlv(K0, K0, K1);
    b.asm.sltiu(K1, K0, reach);
    b.asm.beq(K1, ZERO, within);
    if units {
        // If the halves are one slot apart, they are in one unit. If they are four slots apart, they are two units apart,
        // and both words of a unit are equal.
        b.asm.sll(K0, K0, 1);
        b.asm.andi(K0, K0, 32);
    }
    let distance = b.save_high(K1, BUCKET);
    b.asm.sw(K0, distance, K1);
    b.asm.lw(K1, odd, K1);
    b.asm.and(K0, K0, K1);
    load(b, K1, OWN);
    if units {
        b.clear_low(K1, 4);
        b.asm.xor(K0, K1, K0);
        load(b, K1, BUCKET);
        b.asm.xor(K1, K1, K0);
        b.asm.lw(K0, 4, K0);
        b.asm.lw(K1, 8, K1);
    } else {
        b.asm.subu(K0, K1, K0);
        load(b, K1, BUCKET);
        b.asm.addu(K1, K1, K0);
        b.asm.lw(K0, 0, K0);
        b.asm.lw(K1, 0, K1);
    }
    b.asm.mtc0(K0, Cp0::EntryLo0);
    b.asm.mtc0(K1, Cp0::EntryLo1);
    // One of the halves has S = 1 and the size bits. The entry maps both only if the other has the same.
    b.asm.xor(K0, K0, K1);
    b.asm.srl(K1, K0, S);
    b.asm.bne(K1, ZERO, within);
    load(b, K1, BITS);
    b.asm.srl(K1, K1, 2);
    b.asm.sll(K1, K1, PFN);
    b.asm.and(K0, K0, K1);
    b.asm.bne(K0, ZERO, within);
    load(b, K1, BITS);
    whole(b, K1, done);
    b.asm.bind(within);
    self::within(b, done);
}

/// Ends the handler, at `done`, with an entry for two larger pages: the EntryLo registers are loaded, and `bits` is the mask
/// of all PFN bits that the size ignores.
pub(super) const fn whole(b: &mut Build, bits: Reg, done: Label) {
    b.asm.sll(bits, bits, MASK);
    b.asm.mtc0(bits, Cp0::PageMask);
    b.asm.bind(done);
    b.finish_sized();
}

/// Branches to `done` with an entry for a pair within the page, which the words `BITS` and `OWN` of the block describe.
pub(super) const fn within(b: &mut Build, done: Label) {
    load(b, K0, BITS);
    b.asm.srl(K0, K0, 2);
    b.asm.sll(K1, K0, MASK);
    b.asm.mtc0(K1, Cp0::PageMask);
    b.asm.addiu(K0, K0, 1);
    b.asm.sll(K0, K0, PFN);
    let one = b.save_high(K1, HALF);
    b.asm.sw(K0, one, K1);
    // The two highest PFN bits that the size ignores get new values: the higher one is the address's bit, which selects the
    // pair within the page; the lower one is 0 for the even half and 1 for the odd half.
    b.asm.sll(K1, K0, 1);
    b.asm.addu(K1, K1, K0);
    b.asm.nor(K1, K1, ZERO);
    leaf(b, K0);
    b.asm.and(K0, K0, K1);
    let leaf = b.save_high(K1, BUCKET);
    b.asm.sw(K0, leaf, K1);
    b.asm.lw(K0, one, K1);
    b.asm.sll(K0, K0, 1);
    b.asm.mfc0(K1, Cp0::BadVAddr);
    b.asm.srl(K1, K1, PAGE - PFN);
    b.asm.and(K0, K0, K1);
    load(b, K1, BUCKET);
    b.asm.or(K0, K0, K1);
    b.asm.mtc0(K0, Cp0::EntryLo0);
    load(b, K1, HALF);
    b.asm.or(K1, K1, K0);
    b.asm.b(done);
    b.asm.mtc0(K1, Cp0::EntryLo1);
}

/// Ends a path at which k1 is the address of the PTE of a page of 4 KiB.
pub(super) const fn small(b: &mut Build, small: Label) {
    b.asm.bind(small);
    b.clear_low(K1, 3);
    b.asm.lw(K0, 0, K1);
    b.asm.lw(K1, 4, K1);
    if !b.spec.form.shared {
        return b.finish();
    }
    // If one word is that of a larger page, a writer is storing that page. The miss is passed on, and the kernel waits for
    // the writer.
    b.asm.mtc0(K0, Cp0::EntryLo0);
    b.asm.mtc0(K1, Cp0::EntryLo1);
    let general = b.general;
    b.asm.srl(K0, K0, S);
    b.asm.xori(K0, K0, 1);
    b.asm.beq(K0, ZERO, general);
    b.asm.srl(K1, K1, S);
    b.asm.xori(K1, K1, 1);
    b.asm.beq(K1, ZERO, general);
    b.asm.nop();
    b.finish_moved();
}
