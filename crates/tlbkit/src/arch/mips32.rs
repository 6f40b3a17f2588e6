//! MIPS32, whose TLB is loaded by software.

use core::marker::PhantomData;

use tlbkit_addr::{Asid, Attr, PageSize, PhysAddr};
use tlbkit_pagetable::geometry::Va32;
use tlbkit_pagetable::{Geometry, Radix, format};
use tlbkit_shootdown::Hardware;

use crate::fault::{Reason, Report};
use crate::{Access, Base, Guarded, Machine, MultiLevel, TableKind};

/// Returns the root value. The root begins a frame, so the low 12 bits of its address are free for the ASID.
const fn root(node: PhysAddr, asid: Asid) -> usize {
    node.get() | asid.get() as usize
}

/// MIPS32 with one CPU, or with caches that are not coherent: a table of two levels in kseg0, which a refill handler walks. Each
/// leaf entry is the word that the handler writes to `EntryLo`.
///
/// `Mips32<Guarded>` has a [guarded table](Guarded) instead: [`crate::arch`] compares the two.
///
/// The root value is the physical address of the root node with the ASID in its low 8 bits. [`Kernel::load`] writes the ASID to
/// `EntryHi`, and the node's address in kseg0 to the place from which the handler loads the root: that address is the root value
/// without its low 12 bits, plus 2 GiB. A guarded table has its root word at that address and not a node, so its handler is made
/// with `Root::Cell`. The frames of [`Kernel::take_frame`] must be below 512 MiB, which kseg0 maps.
///
/// Hardware sets no status bit: the first store to a writable page raises TLB Modified, and
/// [`AddressSpace::fault`](crate::AddressSpace::fault) sets [`Attr::DIRTY`](crate::Attr::DIRTY). There is no
/// [`Attr::ACCESSED`](crate::Attr::ACCESSED).
///
/// [`Kernel::load`]: crate::Kernel::load
/// [`Kernel::take_frame`]: crate::Kernel::take_frame
#[derive(Debug)]
pub struct Mips32<T = MultiLevel>(PhantomData<T>);

// SAFETY: MIPS32 Privileged Resource Architecture, EntryLo0 and EntryLo1, and EntryHi: 8 bits of ASID. What walks the table is
// the kernel's refill handler, which goes by the root that `Kernel::load` has given it.
unsafe impl<T: TableKind<Va32, format::EntryLoCow>> Machine for Mips32<T> {
    type Geometry = Va32;
    type Format = format::EntryLoCow;
    type Table = T;
    type Base = Base<12>;
    const HARDWARE: Hardware = Hardware::MIPS32;
    const ASID_BITS: u32 = 8;
    const BY_ADDRESS: usize = 16;

    #[inline]
    fn root(node: PhysAddr, asid: Asid) -> usize {
        root(node, asid)
    }
}

/// [`Mips32`] with several CPUs whose caches hardware keeps coherent: 1004K, interAptiv, P5600.
///
/// The words of a page of more than 4 KiB are stored one after the other while other CPUs miss. So a refill handler must not load
/// such a page in one TLB entry with its neighbour, nor one of its words as a page of 4 KiB: the flag `shared` of
/// `tlbkit_refill::handler::Form` makes such a handler. There is none for guarded tables, so `Mips32Coherent<Guarded>` has only
/// pages of 4 KiB.
#[derive(Debug)]
pub struct Mips32Coherent<T = MultiLevel>(PhantomData<T>);

// SAFETY: the format stores the words of `EntryLo0` and `EntryLo1`, which the kernel's refill handler loads from the root that
// `Kernel::load` has given it; EntryHi has 8 bits of ASID.
unsafe impl Machine for Mips32Coherent {
    type Geometry = Va32;
    type Format = format::EntryLoCowCoherent;
    type Table = MultiLevel;
    type Base = Base<12>;
    const HARDWARE: Hardware = Hardware::MIPS32;
    const ASID_BITS: u32 = 8;
    const BY_ADDRESS: usize = 16;

    #[inline]
    fn root(node: PhysAddr, asid: Asid) -> usize {
        root(node, asid)
    }
}

/// The address space of [`Va32`] with pages of 4 KiB only.
#[derive(Debug)]
pub struct Small32;

impl Geometry for Small32 {
    const VA_BITS: u32 = Va32::VA_BITS;
    const BASE: PageSize = Va32::BASE;
    const SIZES: &'static [PageSize] = &[PageSize::K4];
}

impl Radix for Small32 {
    const WIDTHS: &'static [u32] = Va32::WIDTHS;
}

// SAFETY: the format stores the words of `EntryLo0` and `EntryLo1`, which the kernel's refill handler for guarded tables loads,
// from the root that `Kernel::load` has given it; EntryHi has 8 bits of ASID.
unsafe impl Machine for Mips32Coherent<Guarded> {
    type Geometry = Small32;
    type Format = format::EntryLoCowCoherent;
    type Table = Guarded;
    type Base = Base<12>;
    const HARDWARE: Hardware = Hardware::MIPS32;
    const ASID_BITS: u32 = 8;
    const BY_ADDRESS: usize = 16;

    #[inline]
    fn root(node: PhysAddr, asid: Asid) -> usize {
        root(node, asid)
    }
}

// Cause and Status, decoded: a table of the manual, which reads integers and needs no machine.
impl Access {
    /// Returns the access that Cause and Status of an exception describe; `None` if the exception is not that of an access to
    /// memory. MIPS32 Privileged Resource Architecture, Cause, ExcCode.
    ///
    /// | ExcCode | exception | the access |
    /// |-|-|-|
    /// | 1 | TLB Modified | a store |
    /// | 2, 3 | TLBL, TLBS | a load or a fetch, which this code does not tell apart: a load; a store |
    /// | 4, 5 | AdEL, AdES | a load, a store, and [`Reason::Alignment`] |
    /// | 6, 7 | IBE, DBE | a fetch, a load, and [`Reason::Memory`] |
    /// | 19, 20 | TLBRI, TLBXI | a load, a fetch |
    ///
    /// KSU (bits 4 and 3 of Status, which an exception does not change) is the mode.
    pub const fn from_mips32(cause: u32, status: u32) -> Option<Self> {
        const USER: u32 = 2;
        let (right, report) = match cause >> 2 & 31 {
            1 | 3 => (Attr::WRITE, Report::Fault),
            2 | 19 => (Attr::READ, Report::Fault),
            4 => (Attr::READ, Report::Refused(Reason::Alignment)),
            5 => (Attr::WRITE, Report::Refused(Reason::Alignment)),
            6 => (Attr::EXEC, Report::Refused(Reason::Memory)),
            7 => (Attr::READ, Report::Refused(Reason::Memory)),
            20 => (Attr::EXEC, Report::Fault),
            _ => return None,
        };
        Some(Self::reported_by(right, status >> 3 & 3 == USER, report))
    }
}
