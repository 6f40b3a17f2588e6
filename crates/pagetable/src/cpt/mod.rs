//! The clustered page table (CPT): a hashed table whose tags stand for several neighbouring pages.
//!
//! ```text
//!             +-----+-------+-------+-- .. --+-------+------+
//!   bucket    | tag | PTE 0 | PTE 1 |        | PTE n | link |     n = 1, 3, 7 or 15
//!             +-----+-------+-------+-- .. --+-------+------+
//!
//!   a page of four base pages, a hole, and single ones in one bucket of eight:
//!             | tag | 16K   | 16K   | 16K | 16K | - | 4K | 4K | - | link |
//! ```
//!
//! One tag and one link serve a block of 2 to 16 pages, so where neighbours are mapped a page takes little more than
//! its PTE (Talluri, Hill and Khalidi 1995; Elphinstone et al. 2.2, and 3.2 for C128k). The bucket holds at once what
//! they propose as three kinds of entries:
//!
//! - *complete* and *partial* subblocks: every PTE has a valid bit of its own, so a block may have holes, and frames
//!   need not be neighbours;
//! - *superpages* up to the block: the leaf is repeated in every slot that it covers, with its size in it, so that a
//!   lookup need not know the sizes.
//!
//! Pages beyond the block are found under a second, coarser tag, for which only spaces with such pages look: see
//! [`hpt`](crate::hpt), which has the mechanism, the costs, and the growing. A bucket goes back when the last of its
//! PTEs is invalid.
//!
//! | | pages a tag | bucket | |
//! |-|-|-|-|
//! | [`C128k`] | 8 | 64-bit tag, 8 PTEs, 8 mapping-tree words, 64-bit link: 128 bytes with padding, 80 in overflow | the paper's, 1024 buckets |
//! | [`Cpt4`] | 4 | tag, 4 PTEs, link: 64 bytes, a cache line, with padding | grows |
//! | [`Cpt8`] | 8 | tag, 8 PTEs, link: 128 bytes with padding | grows |
//! | [`Cpt16`] | 16 | tag, 16 PTEs, link: 256 bytes with padding | grows; 32-bit words halve all of these |
//!
//! A table that grows starts with one bucket, so a small address space costs no more than a few nodes of any other
//! table.

use crate::format::Compact32;
#[cfg(target_pointer_width = "64")]
use crate::format::{Compact, Paper};
use crate::geometry::Va32;
#[cfg(target_pointer_width = "64")]
use crate::geometry::{Va48, Va64};
use crate::hpt::Hashed;

/// The paper's clustered table of 128 KiB: 1024 buckets of eight pages, to the byte.
#[cfg(target_pointer_width = "64")]
pub type C128k<'n, N> = Hashed<'n, Va64, Paper, N, 3, 10, 0>;

/// Blocks of four pages of a 48-bit space.
#[cfg(target_pointer_width = "64")]
pub type Cpt4<'n, N> = Hashed<'n, Va48, Compact, N, 2, 0, 100>;

/// Blocks of eight pages of a 48-bit space.
#[cfg(target_pointer_width = "64")]
pub type Cpt8<'n, N> = Hashed<'n, Va48, Compact, N, 3, 0, 100>;

/// Blocks of sixteen pages of a 48-bit space.
#[cfg(target_pointer_width = "64")]
pub type Cpt16<'n, N> = Hashed<'n, Va48, Compact, N, 4, 0, 100>;

/// Blocks of eight pages of a 32-bit space: for MIPS32.
pub type Cpt32<'n, N, F = Compact32> = Hashed<'n, Va32, F, N, 3, 0, 100>;
