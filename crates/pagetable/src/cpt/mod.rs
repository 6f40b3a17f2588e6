//! The clustered page table (CPT): a hashed table in which one tag is for a block of several adjacent pages.
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
//! One tag and one link serve a block of 2 to 16 pages. So a page with mapped neighbours takes little more than its PTE
//! (Talluri, Hill and Khalidi 1995; Elphinstone et al. 2.2, and 3.2 for C128k). One kind of bucket holds the three kinds of
//! entries that they propose:
//!
//! - *complete* and *partial* subblocks: every PTE has its own valid bit, so a block may have holes, and frames need not be
//!   adjacent;
//! - *superpages* up to the size of the block: the leaf is repeated in every slot that it covers, and contains its size, so
//!   that a lookup need not know the sizes.
//!
//! Pages larger than a block have a second, coarser tag, for which a lookup probes only in address spaces with such pages.
//! [`hpt`](crate::hpt) describes the implementation, the costs and the growth. A bucket without a valid PTE is removed, in a
//! table that grows [not at once](crate::hpt#vacant-buckets).
//!
//! | | pages a tag | bucket | |
//! |-|-|-|-|
//! | [`C128k`] | 8 | 64-bit tag, 8 PTEs, 8 mapping-tree words, 64-bit link: 128 bytes with padding, 80 in overflow | the paper's, 1024 buckets |
//! | [`Cpt4`] | 4 | tag, 4 PTEs, link: 64 bytes, a cache line, with padding | grows |
//! | [`Cpt8`] | 8 | tag, 8 PTEs, link: 128 bytes with padding | grows |
//! | [`Cpt16`] | 16 | tag, 16 PTEs, link: 256 bytes with padding | grows |
//! | [`Cpt32`] | 8 | four times tag, 2 PTEs, link: 64 bytes, also in overflow | for MIPS32; grows |
//!
//! In 32-bit spaces, and with pairs of EntryLo words, the space of the padding holds a tag and a link for each pair of
//! pages:
//!
//! ```text
//!             +-----+-------+-------+------+-----+-------+-------+------+-- ..
//!   bucket    | tag | PTE   | PTE   | link | tag | PTE   | PTE   | link |
//!             +-----+-------+-------+------+-----+-------+-------+------+-- ..
//! ```
//!
//! So a refill handler finds a pair as in a hashed table of pairs, with the same number of instructions, and loads from one
//! cache line. The cost is an overflow bucket of 64 bytes instead of 40. With 64-bit words the layout is that of the first
//! drawing: a block's eight PTEs need two lines of 64 bytes in both layouts, and with one tag all but the last PTE are in
//! the first line.
//!
//! ```
//! use tlbkit_addr::{Attr, PageSize, Pages, Pfn, VirtAddr, Vpn};
//! use tlbkit_pagetable::nodes::{Chunk, Slab};
//! use tlbkit_pagetable::{Holes, Local, Solo, cpt};
//!
//! let mut memory = vec![Chunk::ZERO; 16];
//! let slab = Slab::<u32, Solo>::new(&mut memory, 0)?;
//! let mut table = Local::new(cpt::Cpt32::<_>::new(&slab)?, |_stale| ());
//!
//! // The block of the drawing above.
//! let pages = |first, count| Pages::count(Vpn::new(first), count).unwrap();
//! table.map(pages(8, 4), Pfn::new(0x40), PageSize::K16, Attr::READ)?;
//! table.map(pages(13, 2), Pfn::new(0x99), PageSize::K4, Attr::READ)?;
//! assert_eq!(table.table().blocks(), 1);
//! assert_eq!(table.lookup(VirtAddr::new(0xb123)).unwrap().size, PageSize::K16);
//! assert_eq!(table.unmap(pages(8, 8), Holes::Skip)?, 6);
//! assert_eq!(table.table().blocks(), 0);
//! table.destroy();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A table that grows starts with two buckets, so a small address space costs no more than a few nodes of any other table; a
//! table that a refill handler may walk also has a directory of 4 KiB. With 64-bit words the table grows at three blocks to
//! two buckets: a page takes at most 25 bytes if its neighbours are mapped, and 145 bytes if they are not; up to twice that
//! where pages are [exchanged for others](crate::hpt#vacant-buckets). For MIPS32 the table keeps half of its buckets free, so
//! most refills end at the first bucket.
//!
//! On x86-64 every operation takes at most 2 KiB of stack, also while the table grows; `cargo xtask stack` prints the
//! figures.

use crate::format::Compact32;
#[cfg(target_pointer_width = "64")]
use crate::format::{Compact, Paper};
use crate::geometry::Va32;
#[cfg(target_pointer_width = "64")]
use crate::geometry::{Va48, Va64};
use crate::hpt::{Buckets, Hashed};

/// The paper's clustered table of 128 KiB: 1024 buckets of eight pages, to the byte.
#[cfg(target_pointer_width = "64")]
pub type C128k<'n, N> = Hashed<'n, Va64, Paper, N, Buckets<3, 10, 0>>;

/// Blocks of four pages of a 48-bit space.
#[cfg(target_pointer_width = "64")]
pub type Cpt4<'n, N> = Hashed<'n, Va48, Compact, N, Buckets<2, 1, 150>>;

/// Blocks of eight pages of a 48-bit space.
#[cfg(target_pointer_width = "64")]
pub type Cpt8<'n, N> = Hashed<'n, Va48, Compact, N, Buckets<3, 1, 150>>;

/// Blocks of sixteen pages of a 48-bit space.
#[cfg(target_pointer_width = "64")]
pub type Cpt16<'n, N> = Hashed<'n, Va48, Compact, N, Buckets<4, 1, 150>>;

/// Blocks of eight pages of a 32-bit space: for MIPS32.
pub type Cpt32<'n, N, F = Compact32> = Hashed<'n, Va32, F, N, Buckets<3, 1, 50>>;
