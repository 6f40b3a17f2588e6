//! One type for each machine: what an address space needs to know of the hardware.

use tlbkit_addr::{Asid, PhysAddr};
use tlbkit_pagetable::Radix;
use tlbkit_pagetable::format::Format;
use tlbkit_shootdown::Hardware;

use crate::TableKind;

/// A machine whose MMU, or whose TLB refill handler, walks a page table: entry format, geometry, kind of table, hardware properties
/// and root register.
///
/// # Safety
///
/// The machine's MMU, or its refill handler, reads the entries of [`Format`](Self::Format) in tables of this
/// [kind](Self::Table) and of the shape [`Geometry`](Self::Geometry), and does with them what [`HARDWARE`](Self::HARDWARE) says.
pub unsafe trait Machine: 'static {
    /// The shape of the table.
    type Geometry: Radix;
    /// The entries of the table.
    type Format: Format;
    /// The kind of table: [`MultiLevel`](crate::MultiLevel) for hardware.
    type Table: TableKind<Self::Geometry, Self::Format>;
    /// What loads TLB entries, and how status bits are written.
    const HARDWARE: Hardware;
    /// The most bits that an ASID has.
    const ASID_BITS: u32;

    /// Returns the value of the root register for the table whose root node is at `node`; if the table is
    /// [`Guarded`](crate::Guarded), whose root word is there. Either begins a frame.
    fn root(node: PhysAddr, asid: Asid) -> usize;
}
