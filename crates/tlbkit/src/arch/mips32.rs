//! MIPS32, whose TLB is loaded by software.

use tlbkit_addr::{Asid, PhysAddr};
use tlbkit_pagetable::format;
use tlbkit_pagetable::geometry::Va32;
use tlbkit_shootdown::Hardware;

use crate::Machine;

/// MIPS32 with one CPU, or with caches that nothing keeps coherent: a table of two levels in kseg0, which a refill handler
/// walks. Each leaf entry is a word for `EntryLo` as it is.
///
/// The root value is the physical address of the root node with the ASID in its low 8 bits. [`Kernel::load`] writes the
/// ASID to `EntryHi` and the node's address in kseg0, the root value without its low 12 bits plus 2 GiB, to where the handler
/// looks for it. The frames of [`Kernel::take_frame`] are below 512 MiB, where kseg0 shows them.
///
/// Hardware sets no status bit: the first store to a writable page raises TLB Modified, and
/// [`AddressSpace::fault`](crate::AddressSpace::fault) sets [`Attr::DIRTY`](crate::Attr::DIRTY). There is no
/// [`Attr::ACCESSED`](crate::Attr::ACCESSED).
///
/// [`Kernel::load`]: crate::Kernel::load
/// [`Kernel::take_frame`]: crate::Kernel::take_frame
#[derive(Debug)]
pub struct Mips32;

// SAFETY: MIPS32 Privileged Resource Architecture, EntryLo0 and EntryLo1, and EntryHi: 8 bits of ASID. What walks the table is
// the kernel's refill handler, which goes by the root that `Kernel::load` has given it.
unsafe impl Machine for Mips32 {
    type Geometry = Va32;
    type Format = format::EntryLoCow;
    const HARDWARE: Hardware = Hardware::MIPS32;
    const ASID_BITS: u32 = 8;

    #[inline]
    fn root(node: PhysAddr, asid: Asid) -> usize {
        node.get() | asid.get() as usize
    }
}

/// [`Mips32`] with several CPUs whose caches hardware keeps coherent: 1004K, interAptiv, P5600.
///
/// A page of more than 4 KiB is stored word by word while other CPUs miss. So the refill handler must not load it by one TLB entry
/// together with the page beside it, and no word of it as a page of 4 KiB: `tlbkit_refill::handler::Form` has a flag `shared` for that.
#[derive(Debug)]
pub struct Mips32Coherent;

// SAFETY: as for `Mips32`.
unsafe impl Machine for Mips32Coherent {
    type Geometry = Va32;
    type Format = format::EntryLoCowCoherent;
    const HARDWARE: Hardware = Hardware::MIPS32;
    const ASID_BITS: u32 = 8;

    #[inline]
    fn root(node: PhysAddr, asid: Asid) -> usize {
        Mips32::root(node, asid)
    }
}
