//! The walk of a linear table: one load, which may miss.
//!
//! ```text
//!   AT                   PTEs of the program's pages: a pair of pages is 16 bytes, two of them for the kernel
//!   AT + 2^55            PTEs of the table's own pages, of four bytes: those of these pages first, then those of their own ..
//!   AT + 2^55 + x / 1024    the PTE of the table's page at AT + x, whatever its level
//! ```
//!
//! When the load misses, EXL is already set, so the exception goes to the general vector and does not change EPC. The code there
//! loads the PTE of the table's page in the same way, which may miss in turn, up to the highest level, whose eight PTEs are the
//! root, in kseg0 ("six cascaded faults", Elphinstone et al. 2.1). That code writes the TLB entry of the page that missed and
//! returns to the program's instruction, which misses again; now the load of the level below hits. So a miss whose way has `n`
//! missing pages takes `n (n + 1) / 2` nested exceptions.
//!
//! The nested exceptions overwrite BadVAddr and EntryHi. The address that the first of them missed has the number of the
//! program's pair, and is kept in ErrorEPC. If the table has no such page, the handler writes an invalid TLB entry for that
//! pair: the program's instruction then raises TLB Invalid.

use tlbkit_pagetable::lpt::Linear;
use tlbkit_pagetable::{Geometry, Radix};

use super::{Build, PaperLo, Spec};
use crate::Error;
use crate::asm::{Asm, Cp0, K0, K1, Reg, ZERO};

/// A linear table of [`PaperLo`] words, 2^56 bytes below the top. The root is the address of the root node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lpt(());

/// The base-two logarithm of the table's distance from the top of the address space.
const AT_LOG: u32 = 56;
/// The upper 16 bits of its address, and of that of the PTEs of its own pages.
const AT: u16 = 0xff00;
const OWN: u16 = 0xff80;
/// The base-two logarithms of the bytes of a page, and of a pair's PTEs.
const PAGE_LOG: u32 = 12;
const PAIR_LOG: u32 = 4;
/// The base-two logarithm of a granule of addresses of which the PTEs of the program's pages fill 512, and all others one more.
const GRANULE_LOG: u32 = 46;
const GRANULES: i16 = 512;
/// The bits of the address of the highest level, eight pages, above its offsets: 16 each.
const TOP: [u16; 3] = [OWN, 0x2008, 0x0200];
const TOP_LOG: u32 = 15;
/// The exception code of a TLB miss on a load, at its position in Cause.
const LOAD_MISS: u16 = 2 << 2;
/// V of an EntryLo.
const VALID: u16 = 2;

impl Lpt {
    /// Returns the walk of an `Lpt<G, PaperLo, _, AT>`.
    ///
    /// # Errors
    ///
    /// [`Error::Geometry`] unless `G` has the six levels of [`Va64`](tlbkit_pagetable::geometry::Va64) and the table is
    /// 2^56 bytes below the top.
    pub const fn of<G: Radix, const AT_ADDRESS: usize>() -> Result<Self, Error> {
        const { assert!(Linear::<G, PaperLo, AT_ADDRESS>::LINEAR.is_some()) };
        let fits = matches!(G::WIDTHS, [3, 10, 10, 10, 10, 9]) && <G as Geometry>::VA_BITS == 64;
        if fits && AT_ADDRESS as u64 == (AT as u64) << 48 { Ok(Self(())) } else { Err(Error::Geometry) }
    }

    /// Loads `rt` with an address whose upper 16 bits are given; the others are 0.
    const fn address(b: &mut Build, rt: Reg, high: u16) {
        b.asm.lui(rt, high);
        b.asm.dsll32(rt, rt, 0);
    }

    pub(super) const fn emit(&self, b: &mut Build) {
        b.asm.dmfc0(K0, Cp0::BadVAddr);
        b.asm.dsrl(K0, K0, PAGE_LOG + 1);
        b.asm.dsll(K0, K0, PAIR_LOG);
        Self::address(b, K1, AT);
        b.asm.daddu(K0, K0, K1);
        b.asm.lw(K1, 4, K0);
        b.asm.lw(K0, 0, K0);
        b.finish();
    }

    /// Returns the code for the begin of the general vector. The kernel's own code follows it.
    ///
    /// The code handles a load that missed in the table. For any other exception it falls through, with k0 and k1
    /// overwritten. Only the refill handler may load from the table's addresses.
    pub(super) const fn nested(&self, spec: &Spec) -> Asm {
        let mut b = Build::new(spec);
        let (out, own, load) = (b.asm.label(), b.asm.label(), b.asm.label());
        let (absent, new) = (b.asm.label(), b.asm.label());
        b.asm.mfc0(K0, Cp0::Cause);
        b.asm.andi(K0, K0, 0x7c);
        b.asm.xori(K0, K0, LOAD_MISS);
        b.asm.bne(K0, ZERO, out);
        b.asm.dmfc0(K1, Cp0::BadVAddr);
        // The number of the granule, from the table's first.
        b.asm.dsra32(K0, K1, GRANULE_LOG - 32);
        b.asm.daddiu(K0, K0, 2 * GRANULES);
        b.asm.sltiu(K0, K0, GRANULES);
        b.asm.beq(K0, ZERO, own);
        b.asm.nop();
        b.asm.dmtc0(K1, Cp0::ErrorEpc);
        b.asm.bind(load);
        b.asm.dsll(K0, K1, 64 - AT_LOG);
        b.asm.dsrl(K0, K0, 64 - AT_LOG + PAGE_LOG);
        b.asm.dsll(K0, K0, 2);
        Self::address(&mut b, K1, OWN);
        let word = b.asm.here();
        b.asm.daddu(K1, K1, K0);
        b.asm.lw(K0, 0, K1);
        b.asm.andi(K0, K0, VALID);
        b.asm.beq(K0, ZERO, absent);
        b.asm.dsrl(K1, K1, 3);
        b.asm.dsll(K1, K1, 3);
        b.asm.lw(K0, 0, K1);
        b.asm.lw(K1, 4, K1);
        b.asm.mtc0(K0, Cp0::EntryLo0);
        b.asm.mtc0(K1, Cp0::EntryLo1);
        // The TLB may hold an entry for the pair with this half invalid, from before the table had the page.
        b.asm.tlbp();
        b.asm.long_barrier();
        b.asm.mfc0(K0, Cp0::Index);
        b.asm.bltz(K0, new);
        b.asm.nop();
        b.asm.tlbwi();
        b.asm.nop();
        b.asm.nop();
        b.asm.nop();
        b.asm.eret();

        // A page of the table's own PTEs, or none of the table.
        b.asm.bind(own);
        b.asm.dsra32(K0, K1, GRANULE_LOG - 32);
        b.asm.daddiu(K0, K0, GRANULES);
        b.asm.bne(K0, ZERO, out);
        b.asm.lui(K0, TOP[0]);
        b.asm.ori(K0, K0, TOP[1]);
        b.asm.dsll(K0, K0, 16);
        b.asm.ori(K0, K0, TOP[2]);
        b.asm.dsll(K0, K0, 16);
        b.asm.xor(K0, K0, K1);
        b.asm.dsrl(K0, K0, TOP_LOG);
        b.asm.bne(K0, ZERO, load);
        b.asm.nop();
        b.asm.dsrl(K0, K1, PAGE_LOG - 2);
        b.asm.andi(K0, K0, (1 << (TOP_LOG - (PAGE_LOG - 2))) - 4);
        let low = b.block(K1);
        b.asm.b(word);
        b.asm.lw(K1, low, K1);

        b.asm.bind(absent);
        b.asm.dmfc0(K0, Cp0::ErrorEpc);
        b.asm.dsll(K0, K0, 64 - AT_LOG + 1);
        b.asm.dsrl(K0, K0, 64 - AT_LOG + 1 + PAIR_LOG);
        b.asm.dsll(K0, K0, PAGE_LOG + 1);
        b.asm.mfc0(K1, Cp0::EntryHi);
        b.asm.andi(K1, K1, 0xff);
        b.asm.or(K0, K0, K1);
        b.asm.dmtc0(K0, Cp0::EntryHi);
        b.asm.mtc0(ZERO, Cp0::EntryLo0);
        b.asm.mtc0(ZERO, Cp0::EntryLo1);
        b.asm.bind(new);
        b.asm.barrier();
        b.write();
        b.asm.bind(out);
        b.asm
    }
}
