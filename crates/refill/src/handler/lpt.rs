//! The walk of a linear table: one load, which may miss.
//!
//! ```text
//!   Context    | 1 | AT: 8 bits, less its first | pair: 19 bits | 0000 |
//!   half of it | 1   1 | AT ...                 | pair: 19 bits | 000  |     the pair's PTEs
//! ```
//!
//! An arithmetic shift turns PTEBase into the table's address, for a table from 0xc000_0000 on. When the load misses, EXL is
//! already set, so the exception goes to the general vector and does not change EPC. The code there
//! ([`nested`](Lpt::nested)) writes the TLB entry for the page of the table, and returns to the instruction that missed
//! first. That instruction misses again, and now the load hits.
//!
//! The nested exception has overwritten BadVAddr and EntryHi. So if the table has no such page, the handler cannot pass the
//! first miss on. It writes an invalid TLB entry for the pair that missed, whose number is in the address of the PTE, and
//! returns. The instruction then raises TLB Invalid, with BadVAddr, EntryHi and EPC of the first access.

use tlbkit_pagetable::Radix;
use tlbkit_pagetable::format::EntryLo;
use tlbkit_pagetable::lpt::Linear;

use super::{Build, Spec, Write, sized};
use crate::Error;
use crate::asm::{Asm, Cp0, K0, K1, ZERO};

/// A linear table of two levels of [`EntryLo`] words in kseg2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lpt {
    at: u32,
}

/// The number of index bits of the root.
const TOP: u32 = 10;
/// The base-two logarithm of the bytes of a page of the table.
const PAGE_LOG: u32 = 12;
/// The base-two logarithm of the bytes of a PTE.
const PTE_LOG: u32 = 2;
/// The base-two logarithm of the bytes of the table.
const REGION_LOG: u32 = TOP + PAGE_LOG;
/// The exception code of a TLB miss on a load, at its position in Cause.
const LOAD_MISS: u16 = 2 << 2;
/// V of an EntryLo.
const VALID: u16 = 2;

impl Lpt {
    /// Returns the walk of an `Lpt<G, EntryLo, _, AT>`: a table of geometry `G` at the virtual address `AT`.
    ///
    /// # Errors
    ///
    /// - [`Error::Geometry`] unless the table has two levels of ten bits. (Then the address space has 32 bits and 4 KiB
    ///   pages, because the nodes of a linear table are pages.)
    /// - [`Error::BadAddress`] unless `AT` is a multiple of 4 MiB from 0xc000_0000 on.
    pub const fn of<G: Radix, const AT: usize>() -> Result<Self, Error> {
        // `Linear` checks that the table is within the address space and aligned to pages.
        const { assert!(Linear::<G, EntryLo, AT>::LINEAR.is_some()) };
        if !matches!(G::WIDTHS, [TOP, 10]) {
            return Err(Error::Geometry);
        }
        if AT >> 30 != 3 || !AT.is_multiple_of(1 << REGION_LOG) {
            return Err(Error::BadAddress { address: AT as u32 });
        }
        Ok(Self { at: AT as u32 })
    }

    /// Returns the value of Context, with PTEBase, that the walk needs.
    pub(super) const fn context(&self) -> u32 {
        self.at << 1
    }

    pub(super) const fn emit(&self, b: &mut Build) {
        if b.is_fronted() {
            b.asm.mfc0(K0, Cp0::BadVAddr);
            b.asm.srl(K0, K0, PAGE_LOG + 1);
            b.asm.sll(K0, K0, PTE_LOG + 1);
            b.asm.lui(K1, (self.at >> 16) as u16);
            b.asm.or(K0, K0, K1);
        } else {
            b.asm.mfc0(K0, Cp0::Context);
            b.asm.sra(K0, K0, 1);
        }
        b.asm.lw(K1, 4, K0);
        b.asm.lw(K0, 0, K0);
        if !b.spec.form.sized {
            return b.finish();
        }
        let larger = b.asm.label();
        let sized = b.asm.label();
        let small = b.asm.label();
        b.asm.mtc0(K0, Cp0::EntryLo0);
        sized::test(b, larger);
        b.asm.mtc0(K1, Cp0::EntryLo1);
        b.finish_moved();
        b.cold();
        b.asm.bind(larger);
        b.asm.mfc0(K1, Cp0::BadVAddr);
        b.asm.srl(K1, K1, PAGE_LOG);
        b.asm.sll(K1, K1, PTE_LOG);
        b.asm.lui(K0, (self.at >> 16) as u16);
        b.asm.or(K1, K1, K0);
        sized::sort(b, 0, small, sized);
        sized::small(b, small);
        // The other half of a pair whose page fills a page of the table is in another page of the table, which may not
        // exist.
        sized::emit(b, sized, 1 << PAGE_LOG);
    }

    /// Returns the code for the begin of the general vector. The kernel's own code follows it.
    ///
    /// The code handles a load that missed in the table. For any other exception it falls through, with k0 and k1
    /// overwritten. Only the refill handler may load from the table's addresses.
    pub(super) const fn nested(&self, b: &Build) -> Asm {
        let spec: &Spec = &b.spec;
        let mut n = Build::nested(spec);
        let out = n.asm.label();
        let absent = n.asm.label();
        let new = n.asm.label();
        n.asm.mfc0(K0, Cp0::Cause);
        n.asm.andi(K0, K0, 0x7c);
        n.asm.xori(K0, K0, LOAD_MISS);
        n.asm.bne(K0, ZERO, out);
        n.asm.mfc0(K1, Cp0::BadVAddr);
        n.asm.srl(K0, K1, REGION_LOG);
        n.asm.xori(K0, K0, (self.at >> REGION_LOG) as u16);
        n.asm.bne(K0, ZERO, out);
        // The offset in bytes of the word in the root for the table's page.
        n.asm.srl(K0, K1, PAGE_LOG - PTE_LOG);
        n.asm.andi(K0, K0, (1 << (TOP + PTE_LOG)) - 4);
        n.load_root(K1);
        n.asm.addu(K1, K1, K0);
        n.asm.lw(K0, 0, K1);
        n.asm.andi(K0, K0, VALID);
        n.asm.beq(K0, ZERO, absent);
        n.asm.srl(K1, K1, PTE_LOG + 1);
        n.asm.sll(K1, K1, PTE_LOG + 1);
        n.asm.lw(K0, 0, K1);
        n.asm.lw(K1, 4, K1);
        n.asm.mtc0(K0, Cp0::EntryLo0);
        n.asm.mtc0(K1, Cp0::EntryLo1);
        if n.can_be_larger() {
            n.small();
            n.asm.barrier();
        }
        // The TLB may hold an entry for the pair with this half invalid, from before the table had the page.
        n.asm.tlbp();
        n.asm.long_barrier();
        n.asm.mfc0(K0, Cp0::Index);
        n.asm.bltz(K0, new);
        n.asm.nop();
        n.asm.tlbwi();
        n.asm.eret();
        n.asm.bind(absent);
        n.asm.mfc0(K0, Cp0::BadVAddr);
        // The PTE's offset from the table's start is eight bytes a pair. The shift removes the table's address.
        n.asm.sll(K0, K0, PAGE_LOG - PTE_LOG);
        n.asm.mfc0(K1, Cp0::EntryHi);
        n.asm.andi(K1, K1, 0xff);
        n.asm.or(K0, K0, K1);
        n.asm.mtc0(K0, Cp0::EntryHi);
        n.asm.mtc0(ZERO, Cp0::EntryLo0);
        n.asm.mtc0(ZERO, Cp0::EntryLo1);
        n.small();
        n.asm.bind(new);
        if matches!(spec.write, Write::Index) {
            n.asm.mfc0(K0, Cp0::Random);
            n.asm.mtc0(K0, Cp0::Index);
        }
        n.asm.barrier();
        n.write_entry();
        n.asm.eret();
        n.asm.bind(out);
        n.asm
    }
}
