//! Processes that send messages, as Bala's thesis has them: page tables in mapped kernel memory, so that misses beget
//! misses, and what a prefetch TLB and a software TLB cache do about that (chapters 2 to 4).
//!
//! ```text
//!   kseg2   0xc000_0000 + n * 4 MiB   page table of process n: PTEs of its pages          L1U, loaded through L2
//!           0xe000_0000               the kernel's data                                   L1K
//!           0xff80_0000               the kernel's page table: PTEs of all of the above   L2 and L1K, loaded through L3
//!   kseg0   the root                  PTEs of the kernel's page table                     L3
//! ```
//!
//! All of it is linear tables of `tlbkit-pagetable`: one for each process, and one for the kernel, which maps the pages
//! of the others. A process's table lies at a place of its own; so its nodes, which the table knows at [`LINEAR`], are
//! mapped a few megabytes further up.
//!
//! | miss | taken at | served by |
//! |-|-|-|
//! | L1U | the refill vector | a handler of a few instructions, whose load may miss |
//! | L2 | the general vector, within the first | the kernel, whose load may miss |
//! | L1K | the general vector, from the kernel | the same |
//! | L3 | the general vector, from the kernel | the kernel, from physical memory |
//!
//! What stands in front of the last three is the [scheme](scheme::Scheme): nothing, a software TLB cache, a prefetch TLB on
//! the path of messages, or both in one table.

mod handler;
mod kernel;
mod run;
mod scheme;

pub use run::run;
