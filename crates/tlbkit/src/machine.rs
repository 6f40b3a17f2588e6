//! The trait of a machine: the properties of the hardware that an address space needs.

use tlbkit_addr::{Asid, PhysAddr};
use tlbkit_pagetable::Radix;
use tlbkit_pagetable::format::Format;
use tlbkit_shootdown::Hardware;

use crate::{BasePage, TableKind};

/// A machine: the entry format, geometry and kind of the page table that its MMU or its TLB refill handler walks, the properties of
/// the hardware, and the root register.
///
/// # Safety
///
/// The machine's MMU, or its refill handler, reads the entries of [`Format`](Self::Format) in tables of this
/// [kind](Self::Table) and with the shape [`Geometry`](Self::Geometry), and treats them as [`HARDWARE`](Self::HARDWARE) says.
pub unsafe trait Machine: 'static {
    /// The shape of the table.
    type Geometry: Radix;
    /// The entries of the table.
    type Format: Format;
    /// The kind of table: [`MultiLevel`](crate::MultiLevel) for hardware.
    type Table: TableKind<Self::Geometry, Self::Format>;
    /// The size of base pages and frames, and the types that number them: [`Base<12>`](crate::Base) for 4 KiB. It is the base size of
    /// the [`Geometry`](Self::Geometry); with another one an [`Mmu`](crate::Mmu) does not compile.
    type Base: BasePage;
    /// What loads TLB entries, and how status bits are written.
    const HARDWARE: Hardware;
    /// The largest number of bits of an ASID.
    const ASID_BITS: u32;
    /// The most pages that [`Flush::by_address`](crate::Flush::by_address) names one by one: with more, a flush of everything is
    /// likely to cost less. The default, 4, is for hardware of which nothing is known: if it flushes everything whatever an
    /// instruction names, it does so four times at most.
    ///
    /// | machine | pages | reason |
    /// |-|-|-|
    /// | RISC-V | 4 | Some cores flush everything at each `sfence.vma` (SiFive's erratum CIP-1200 demands it, and QEMU does it). Linux names up to 64, which suits cores that flush one entry |
    /// | x86-64 | 33 | Linux's `tlb_single_page_flush_ceiling`: an `INVLPG` takes some hundred cycles, and what a flush of everything evicts is loaded again at less than that for an entry |
    /// | AArch64 | 64 | A `TLBI` does not wait: one `DSB` waits for all. Linux names up to 512, to bound the time. Here interrupts are masked meanwhile, so the bound is lower |
    /// | MIPS32 | 16 | The TLB has 16 to 64 entries: a loop over all of them costs as much as about as many probes, of two pages each |
    const BY_ADDRESS: usize = 4;

    /// Returns the value of the root register for the table whose root node is at `node`, or, if the table is
    /// [`Guarded`](crate::Guarded), whose root word is at `node`. `node` is the address of a frame.
    fn root(node: PhysAddr, asid: Asid) -> usize;
}
