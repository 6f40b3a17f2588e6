//! Synthetic sets of pages, all from a seed and the same on every machine.
//!
//! | workload | pages |
//! |-|-|
//! | `uniform` | single pages at uniformly distributed page addresses of the 64-bit space (section 3.3) |
//! | `file` | objects at uniformly distributed page addresses, sizes from a distribution of file sizes (section 3.3) |
//! | `dense` | one run, at 4 GB |
//! | `conventional` | text, data, heap and stack of a UNIX program as large as one of Table 1 |
//!
//! Sections and tables are those of Elphinstone, Heiser and Liedtke. Their file sizes come from a report that is not
//! published; lognormal with a median of 3 KB and a sigma of 2 stands in.

use anyhow::ensure;
use clap::ValueEnum;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use serde::Serialize;
use tlbkit_addr::{PageSize, Pages, VirtAddr};

mod conventional;
mod sparse;
#[cfg(test)]
mod tests;

pub(crate) use sparse::FileSizes;

/// A synthetic set of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Workload {
    /// Single pages all over the 64-bit space
    Uniform,
    /// Objects as large as files all over the 64-bit space
    File,
    /// One run of pages
    Dense,
    /// Text, data, heap and stack
    Conventional,
}

/// Returns the last page of a 64-bit address space.
const fn last_page(base: PageSize) -> usize {
    usize::MAX >> base.shift()
}

impl Workload {
    /// Returns how many pages are meant when nothing is said: the paper's largest sparse set, or its `gcc`.
    pub(crate) fn default_pages(self, base: PageSize) -> usize {
        match self {
            Self::Uniform | Self::File | Self::Dense => 8192,
            Self::Conventional => conventional::pages(conventional::GCC, base),
        }
    }

    /// Checks that there is room for `pages` pages of size `base`, and at least one.
    ///
    /// # Errors
    ///
    /// If not.
    pub(crate) fn check(self, pages: usize, base: PageSize) -> anyhow::Result<()> {
        // 16 GB of 4 KB pages; between the conventional text and stack there is 1 GB.
        let most = if self == Self::Conventional { (1 << 30) >> base.shift() } else { 1 << 22 };
        ensure!((1..=most).contains(&pages), "{pages} pages do not fit: give --pages from 1 to {most}");
        Ok(())
    }

    /// Returns exactly `pages` different pages of size `base`, as disjoint ranges in the order in which they are allocated.
    ///
    /// `sizes` are those of `file`. The cost is that of a search for each range.
    pub(crate) fn ranges(self, pages: usize, base: PageSize, seed: u64, sizes: FileSizes) -> Vec<Pages> {
        let random = &mut ChaCha8Rng::seed_from_u64(seed);
        match self {
            Self::Uniform => sparse::objects(pages, base, random, |_| 1),
            Self::File => {
                let mut draw = sizes.sampler(base);
                sparse::objects(pages, base, random, |random| draw(random))
            }
            Self::Dense => Pages::count(DENSE.vpn(base), pages).into_iter().collect(),
            Self::Conventional => conventional::segments(pages, base),
        }
    }
}

/// Where `dense` begins.
const DENSE: VirtAddr = VirtAddr::new(4 << 30);
