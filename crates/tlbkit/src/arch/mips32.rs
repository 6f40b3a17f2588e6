//! MIPS32, whose TLB is loaded by software.

use core::marker::PhantomData;

use tlbkit_addr::{Asid, PageSize, PhysAddr};
use tlbkit_pagetable::geometry::Va32;
use tlbkit_pagetable::{Geometry, Radix, format};
use tlbkit_shootdown::Hardware;

use crate::{Guarded, Machine, MultiLevel, TableKind};

/// Returns the root value: what it leads to begins a frame.
const fn root(node: PhysAddr, asid: Asid) -> usize {
    node.get() | asid.get() as usize
}

/// MIPS32 with one CPU, or with caches that nothing keeps coherent: a table of two levels in kseg0, which a refill handler
/// walks. Each leaf entry is a word for `EntryLo` as it is.
///
/// `Mips32<Guarded>` has a [guarded table](Guarded) instead: [`crate::arch`] says what that costs.
///
/// The root value is the physical address of the root node with the ASID in its low 8 bits. [`Kernel::load`] writes the
/// ASID to `EntryHi` and the node's address in kseg0, the root value without its low 12 bits plus 2 GiB, to where the handler
/// looks for it. If the table is guarded, its root word is there and not a node: the handler is one of `Root::Cell`. The frames of [`Kernel::take_frame`] are below 512 MiB, where kseg0 shows them.
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
    const HARDWARE: Hardware = Hardware::MIPS32;
    const ASID_BITS: u32 = 8;

    #[inline]
    fn root(node: PhysAddr, asid: Asid) -> usize {
        root(node, asid)
    }
}

/// [`Mips32`] with several CPUs whose caches hardware keeps coherent: 1004K, interAptiv, P5600.
///
/// A page of more than 4 KiB is stored word by word while other CPUs miss. So the refill handler must not load it by one TLB entry
/// together with the page beside it, and no word of it as a page of 4 KiB: `tlbkit_refill::handler::Form` has a flag `shared` for that.
/// There is no such handler for guarded tables, and so `Mips32Coherent<Guarded>` has pages of 4 KiB alone.
#[derive(Debug)]
pub struct Mips32Coherent<T = MultiLevel>(PhantomData<T>);

// SAFETY: as for `Mips32`.
unsafe impl Machine for Mips32Coherent {
    type Geometry = Va32;
    type Format = format::EntryLoCowCoherent;
    type Table = MultiLevel;
    const HARDWARE: Hardware = Hardware::MIPS32;
    const ASID_BITS: u32 = 8;

    #[inline]
    fn root(node: PhysAddr, asid: Asid) -> usize {
        root(node, asid)
    }
}

/// The space of [`Va32`] with pages of 4 KiB alone.
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

// SAFETY: as for `Mips32`.
unsafe impl Machine for Mips32Coherent<Guarded> {
    type Geometry = Small32;
    type Format = format::EntryLoCowCoherent;
    type Table = Guarded;
    const HARDWARE: Hardware = Hardware::MIPS32;
    const ASID_BITS: u32 = 8;

    #[inline]
    fn root(node: PhysAddr, asid: Asid) -> usize {
        root(node, asid)
    }
}
