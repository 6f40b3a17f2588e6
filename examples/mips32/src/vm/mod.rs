//! Virtual memory: frames, tables, address spaces, and what remembers their translations.
//!
//! ```text
//!   structure  the page tables by name, and their refill handlers
//!   frames     physical memory for pages
//!   caches     the TLB, and the software TLB cache in front of a table: whatever must forget
//!   machine    all of these together, and which address space runs
//!   space      an address space: regions, a table, its changes
//!   fault      what is done about an access that the TLB refuses
//!   access     the kernel's own accesses to an address space
//! ```

pub mod access;
pub mod caches;
pub mod fault;
pub mod frames;
pub mod machine;
pub mod space;
pub mod structure;
