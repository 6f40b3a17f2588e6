//! The form for larger pages: PageMask, and what stands beside the page in its pair.
//!
//! A TLB entry is a pair. If the other half of a larger page's pair is a page of the same size, the entry takes both, with
//! the size as PageMask. If it is not, such an entry could not be: its other half would cover what smaller pages are
//! mapped there, and two entries that match one address are a machine check. Then the entry is a pair **within** the
//! page, of the next smaller size:
//!
//! ```text
//!   16K 16K      one entry, PageMask 16K         16K 4K -       two entries, PageMask 4K, for the halves of the first
//!   64K 64K      one entry, PageMask 64K         64K 16K ...    two entries, PageMask 16K, ...
//! ```
//!
//! So where a larger page appears beside one of its size, entries of that one may be in the TLB which the pair's entry
//! would overlap; and where one of two goes, a cache in software may know the pair's entry by an address of the other. The
//! flushes that the tables of [`tlbkit_pagetable`] ask for name whole pairs: a kernel that does what they say has neither.
//!
//! That is for a CPU that is alone with its table. Beside others ([`Form::shared`](super::Form)) the entry is always a pair
//! within the page: the flush is over before the words are stored, and a CPU may load what is there of them at any moment.
//! Then no larger page has anything to do with the one beside it.
//!
//! A closed page, whose word has no V, is loaded like any other: the TLB gets a half that is not valid, and the access faults.
//!
//! The size is in the leaf: as many ignored PFN bits as the size asks for, of which the highest two are not both 0
//! ([`EntryLo`](tlbkit_pagetable::format::EntryLo)).

use super::Build;
use crate::asm::{Cp0, K0, K1, Label, Reg, ZERO};

/// Where the PFN begins in a leaf.
const PFN: u32 = 6;
/// Where PageMask begins, and a page's number in an address.
const MASK: u32 = 13;
const PAGE: u32 = 12;
/// Where S begins; 1 is a leaf of more than 4 KiB.
const S: u32 = 30;

/// The words of the block that are used, by turns for different things. This one is the bucket of a chain, then the
/// distance of the halves' PTEs, or the leaf without its size.
pub(super) const BUCKET: usize = 0;
/// The address of the own PTE.
pub(super) const OWN: usize = 1;
/// All bits of a PFN that the size ignores.
pub(super) const BITS: usize = 2;
/// Whether the page is the odd half, or one in the PFN's lowest bit that is not ignored any more.
const HALF: usize = 3;
/// The base-two logarithm of the pages of a slot.
pub(super) const GRAIN: usize = 4;

/// Branches to `larger` if k0, the pair's even word, may be that of a larger page. Loses k0; the next instruction is in
/// the delay slot. S = 3 gets there too, and is sorted out there: a page of 4 KiB that was written, then protected.
///
/// Beside other CPUs the odd word, in k1, is looked at as well: one of the two may have been stored already.
pub(super) const fn test(b: &mut Build, larger: Label) {
    if b.spec.form.shared {
        b.asm.or(K0, K0, K1);
    }
    // The low bit of S becomes the sign.
    b.asm.sll(K0, K0, 1);
    b.asm.bltz(K0, larger);
}

/// From here on k1 is the address of the PTE of the page that missed, in a node whose slots have `2^grain` pages. Goes to
/// `small` with that if it is no larger page, else to `sized`.
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

/// Goes to `sized`: k1 is the address of a larger page's PTE, in a node whose slots have `2^grain` pages.
pub(super) const fn enter(b: &mut Build, grain: i16, sized: Label) {
    let own = b.save_high(K0, OWN);
    b.asm.sw(K1, own, K0);
    b.asm.addiu(K1, ZERO, grain);
    b.asm.b(sized);
    b.asm.sw(K1, b.save_low(GRAIN), K0);
}

/// The same where other CPUs store to the node: the PTE is loaded once, and kept.
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

/// Loads a word of the block's.
const fn load(b: &mut Build, to: Reg, word: usize) {
    let low = b.save_high(to, word);
    b.asm.lw(to, low, to);
}

/// Loads the page's PTE.
const fn leaf(b: &mut Build, to: Reg) {
    if b.spec.form.shared {
        return load(b, to, BUCKET);
    }
    load(b, to, OWN);
    b.asm.lw(to, 0, to);
}

/// Loads both halves of the page's pair, or halves of a pair within it, and ends the handler. Halves that are `reach`
/// bytes apart, or more, are not in one node.
pub(super) const fn emit(b: &mut Build, sized: Label, reach: i16) {
    emit_by(b, sized, reach, false);
}

/// The same for nodes of units: two slots each in four words, in any order that keeps pairs of units together.
pub(super) const fn emit_units(b: &mut Build, sized: Label, reach: i16) {
    emit_by(b, sized, reach, true);
}

const fn emit_by(b: &mut Build, sized: Label, reach: i16, units: bool) {
    let within = b.asm.label();
    let done = b.asm.label();
    b.asm.bind(sized);
    leaf(b, K1);
    // All bits up to the lowest one that is set, and up to an odd number of them.
    b.asm.srl(K1, K1, PFN);
    b.asm.addiu(K0, K1, -1);
    b.asm.xor(K1, K1, K0);
    b.asm.andi(K0, K1, 0x5555);
    b.asm.sll(K0, K0, 1);
    b.asm.or(K1, K1, K0);
    let bits = b.save_high(K0, BITS);
    b.asm.sw(K1, bits, K0);
    if b.spec.form.shared {
        self::within(b, done);
        b.asm.bind(done);
        return b.finish_sized();
    }
    // All ones if the page is the odd half.
    b.asm.addiu(K1, K1, 1);
    b.asm.mfc0(K0, Cp0::BadVAddr);
    b.asm.srl(K0, K0, PAGE);
    b.asm.and(K0, K0, K1);
    b.asm.sltu(K0, ZERO, K0);
    b.asm.subu(K0, ZERO, K0);
    let odd = b.save_high(K1, HALF);
    b.asm.sw(K0, odd, K1);
    // From one half's PTE to the other's, in bytes.
    b.asm.lw(K0, bits, K1);
    b.asm.lw(K1, b.save_low(GRAIN), K1);
    b.asm.addiu(K0, K0, 1);
    b.asm.sll(K0, K0, 2);
    b.asm.srlv(K0, K0, K1);
    b.asm.sltiu(K1, K0, reach);
    b.asm.beq(K1, ZERO, within);
    if units {
        // Halves of a slot are in one unit. Those of four slots are two units apart: all words of both are alike.
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
    // One of them has S = 1 and the size's bits. Does the other?
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

/// Ends the handler at `done` with an entry for two pages: the EntryLos are moved, and all bits that the size ignores are
/// in a register.
pub(super) const fn whole(b: &mut Build, bits: Reg, done: Label) {
    b.asm.sll(bits, bits, MASK);
    b.asm.mtc0(bits, Cp0::PageMask);
    b.asm.bind(done);
    b.finish_sized();
}

/// Goes to `done` with an entry for halves of a pair within the page: `BITS` and `OWN` say which.
pub(super) const fn within(b: &mut Build, done: Label) {
    load(b, K0, BITS);
    b.asm.srl(K0, K0, 2);
    b.asm.sll(K1, K0, MASK);
    b.asm.mtc0(K1, Cp0::PageMask);
    b.asm.addiu(K0, K0, 1);
    b.asm.sll(K0, K0, PFN);
    let one = b.save_high(K1, HALF);
    b.asm.sw(K0, one, K1);
    // The leaf's two highest ignored bits become the address's: the higher one that of the pair, the lower one 0 and 1.
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
    // Half of a larger page that is being stored: its writer ends first, and the kernel waits for that.
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
