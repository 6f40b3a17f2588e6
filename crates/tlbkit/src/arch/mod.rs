//! The machines, one file each. All but MIPS32 and Sv32 have addresses of 64 bits.
//!
//! | machine | walks | ASID | root register |
//! |-|-|-|-|
//! | [`Sv39`], [`Sv48`], [`Sv57`] | RISC-V, three, four or five levels | 16 bits at most | `satp` |
//! | [`Sv32`] | RISC-V with 32 bits, two levels | 9 bits at most | `satp` |
//! | [`Sv39Svnapot`] | Sv39 with pages of 64 KiB | 16 bits at most | `satp` |
//! | [`X86_64`], [`X86_64La57`] | x86-64, four or five levels | PCID, 12 bits | `CR3` |
//! | [`X86_64G1`], [`X86_64La57G1`] | the same with pages of 1 GiB | PCID, 12 bits | `CR3` |
//! | [`AArch64`] | Armv8-A, 4 KiB granule, 48 bits: four levels | 16 bits at most | `TTBR0_EL1` |
//! | [`AArch64Upper`] | the same in the kernel's half | - | `TTBR1_EL1` |
//! | [`AArch64Runs`] | [`AArch64`] with contiguous runs | 16 bits at most | `TTBR0_EL1` |
//! | [`AArch64K16`], [`AArch64K64`] | Armv8-A, granules of 16 and 64 KiB with contiguous runs, three levels | 16 bits at most | `TTBR0_EL1` |
//! | [`AArch64Of`] | Armv8-A with other widths: 39 bits in three levels, 42 and 48 in four, 52 | 16 bits at most | of either half |
//! | [`Mips32`], [`Mips32Coherent`] | a refill handler, two levels | 8 bits | the kernel's choice, and `EntryHi` |
//! | [`Mips32<Guarded>`](Mips32), [`Mips32Coherent<Guarded>`](Mips32Coherent) | a refill handler, a guarded table | 8 bits | the same |
//!
//! # Other extensions
//!
//! A machine is a format, a shape, and a root register. A kernel writes its own for what the formats have and no machine here:
//!
//! ```
//! # #[cfg(target_pointer_width = "64")]
//! # mod with_keys {
//! use tlbkit::pagetable::{format, geometry};
//! use tlbkit::shootdown::Hardware;
//! use tlbkit::{Asid, Base, Machine, MultiLevel, PhysAddr, arch};
//!
//! /// x86-64 with write-combining pages and protection keys.
//! pub struct WithKeys;
//!
//! // SAFETY: Intel SDM volume 3, 4.5: four levels of 512 entries; 4.8: A and D are set by locked read-modify-writes. This
//! // kernel sets CR4.PKE, and IA32_PAT to `X86Of::<true, true>::IA32_PAT`.
//! unsafe impl Machine for WithKeys {
//!     type Geometry = geometry::UpToM2<geometry::Va48>;
//!     type Format = format::X86Of<true, true>;
//!     type Table = MultiLevel;
//!     type Base = Base<12>;
//!     const HARDWARE: Hardware = Hardware::X86_64;
//!     const ASID_BITS: u32 = 12;
//!
//!     fn root(node: PhysAddr, asid: Asid) -> usize {
//!         arch::X86_64::root(node, asid)
//!     }
//! }
//! # }
//! ```
//!
//! # AArch64: two halves
//!
//! `TTBR0_EL1` has the root of the lower half, the addresses of a process; `TTBR1_EL1` that of the upper half, the kernel's. An address
//! space of [`AArch64`] is a lower half with all its 48 bits. The kernel may map its half by a table of its own, or by an address space,
//! which has a second [`Mmu`](crate::Mmu):
//!
//! | | the lower half | the upper half |
//! |-|-|-|
//! | [`Kernel::Machine`](crate::Kernel::Machine) | [`AArch64`] | [`AArch64Upper`], in a second `impl Kernel` |
//! | made by | [`AddressSpace::new`](crate::AddressSpace::new) | [`AddressSpace::kernels`](crate::AddressSpace::kernels), once |
//! | activated | at each switch | once on each CPU, at boot |
//! | [`Kernel::load`](crate::Kernel::load) gets | the value of `TTBR0_EL1`, with the ASID | the value of `TTBR1_EL1` |
//! | [`Kernel::unload`](crate::Kernel::unload) loads | the root of an empty page | the boot's table, if [`Mmu::idle`](crate::Mmu::idle) is called |
//! | [`Kernel::flush`](crate::Kernel::flush) gets | an ASID, or `None` | `None`: `TLBI VAAE1`, `VMALLE1` |
//! | its pages | not [`Attr::GLOBAL`](crate::Attr::GLOBAL) | [`Attr::GLOBAL`](crate::Attr::GLOBAL) |
//!
//! The methods of both share the rest of the kernel's code. Nothing of the kernel's half is in the table of a process, so no slots are
//! [lent](crate::AddressSpace::lending), and no switch touches it.
//!
//! **Order.** Code inside an edit or a visit of the lower half may change the upper half, as it may use the kernel's heap; code inside
//! one of the upper half must not change the lower half. The handler of the interrupt calls `on_interrupt` of both. A CPU that waits
//! for the acknowledgements of one half must serve the other, because a CPU that waits for this one there acknowledges nothing here: so
//! [`Kernel::pause`](crate::Kernel::pause) of each half calls [`Mmu::on_interrupt`](crate::Mmu::on_interrupt) of the other.
//!
//! **Entries of the boot's table.** An identity map in `TTBR0_EL1` is usually made of global entries (nG clear), which match under every
//! ASID, also after `TTBR0_EL1` has another root: a process would use the boot's translation in place of its own, or meet a TLB conflict
//! abort. Before its first [`activate`](crate::AddressSpace::activate) each CPU writes the root of an empty page to `TTBR0_EL1` and
//! executes `isb; tlbi vmalle1; dsb nsh; isb`. Global entries of the boot's table in `TTBR1_EL1` remain when the CPU loads the root of
//! the upper half, and this CPU executes from them: so the address space maps what the boot's table maps, with the same frames, sizes
//! and attributes (break-before-make forbids others). [`map_linear`](crate::AddressSpace::map_linear) chooses the largest pages, as a
//! boot's table of blocks has.
//!
//! # MIPS32: which table
//!
//! Where software loads the TLB, a kernel chooses the page table by the machine's parameter: [`MultiLevel`](crate::MultiLevel) or
//! [`Guarded`](crate::Guarded). The rest of the kernel's code is the same, except for the specification of the refill handler.
//!
//! | | `MultiLevel` | `Guarded` |
//! |-|-|-|
//! | an address space with one page takes | three frames: control block, root, node | one frame, and 16 bytes |
//! | a hundred pages far apart take | up to 102 frames | 1600 bytes, and at most 99 nodes of 68 bytes |
//! | a refill of a 4 KiB page (`Form::SIZED`) | 17 instructions | 16, and 5 for each node on the way |
//! | map, unmap, protect or replace one page | one walk and one store, no batch | several walks, and a batch |
//! | a change that replaces a node, as a map may | no shootdown | one shootdown, if other CPUs run the address space |
//! | an unmap of a range whose frames are scattered | one shootdown; of pages of 4 MiB, one for 8 runs of frames | one shootdown |
//! | [`fork`](crate::AddressSpace::fork) | a visit of the nodes, in parts | a walk and a map for each leaf, and a protect, all with interrupts masked |
//! | [`Cursor::next_mapped`](crate::Cursor::next_mapped) | a load a slot | a visit of all leaves up to the last page |
//! | larger pages | on every CPU | [`Mips32`] has them, for one CPU; in [`Mips32Coherent`] [`Error::WrongSize`](crate::Error::WrongSize) |
//! | [marks](crate::Mark) | yes | yes |
//! | [`lending`](crate::AddressSpace::lending), [`sharing`](crate::AddressSpace::sharing), global pages | yes | no such functions: kseg0 needs no table |
//! | [`Kernel::stored`](crate::Kernel::stored) is called for every store | yes | except stores of the root word |
//!
//! `cargo test -p tlbkit --test all mips32` counts the frames and the instructions.
//!
//! # MIPS32: hashed and clustered tables
//!
//! An address space cannot have a [hashed](crate::pagetable::hpt) or [clustered](crate::pagetable::cpt) table. **Memory**:
//! [`Kernel::take_frame`](crate::Kernel::take_frame) returns single frames of 4 KiB. These tables need adjacent frames: 16 KiB for the
//! array of [`Hpt32`](crate::pagetable::hpt::Hpt32), 8 KiB for each segment of 512 pairs of
//! [`Cpt32`](crate::pagetable::cpt::Cpt32), which grows. **Order**: a visit of a large range reads bucket after bucket, in no order of
//! addresses. [`for_each`](crate::AddressSpace::for_each) and [`Cursor::next_mapped`](crate::Cursor::next_mapped) promise ascending
//! addresses, and an unmap of many frames, which flushes and continues, needs them. **Use**: in 32 bits such a table is neither the
//! fastest nor the smallest. A refill from one that grows takes 24 instructions or more where a multi-level table takes 16
//! (`Form::PLAIN`; `cargo test -p tlbkit-refill --test all counts`), and each address space takes a frame for the directory. So take
//! `MultiLevel` for short refills and `Guarded` for little memory, either with a software TLB in front (`Front::Stlb`), whose hits take
//! the same 12 instructions with every table. A kernel that needs a hashed table combines [`pagetable`](crate::pagetable),
//! [`shootdown`](crate::shootdown) and `tlbkit-refill` itself: `docs/embedding-mips32.md`, "The parts alone", has the steps, and
//! `examples/mips32` runs these tables.

#[cfg(target_pointer_width = "64")]
mod aarch64;
mod mips32;
mod riscv32;
#[cfg(target_pointer_width = "64")]
mod riscv64;
#[cfg(target_pointer_width = "64")]
mod setting;
#[cfg(target_pointer_width = "64")]
mod x86_64;

#[cfg(target_pointer_width = "64")]
pub use aarch64::{AArch64, AArch64Control, AArch64K16, AArch64K64, AArch64Of, AArch64Runs, AArch64Upper};
pub use mips32::{Mips32, Mips32Coherent};
pub use riscv32::Sv32;
#[cfg(target_pointer_width = "64")]
pub use riscv64::{Sv39, Sv39Svnapot, Sv48, Sv57};
#[cfg(target_pointer_width = "64")]
pub use setting::Setting;
#[cfg(target_pointer_width = "64")]
pub use x86_64::{X86_64, X86_64G1, X86_64La57, X86_64La57G1, X86Control};
