//! Objects at random places.

use std::collections::BTreeMap;

use anyhow::ensure;
use clap::Args;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, StandardNormal};
use tlbkit_addr::{PageSize, Pages, Vpn};

use super::last_page;

/// The sizes of `file`'s objects: lognormal.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct FileSizes {
    /// Median size of the objects of `file`, in bytes
    #[arg(long = "file-median", value_name = "BYTES", default_value_t = 3072.0)]
    pub(crate) median: f64,
    /// Standard deviation of the natural logarithm of their sizes
    #[arg(long = "file-sigma", value_name = "SIGMA", default_value_t = 2.0)]
    pub(crate) sigma: f64,
}

impl FileSizes {
    /// Checks that such sizes exist.
    ///
    /// # Errors
    ///
    /// If the median or the sigma is no number, or out of range.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        ensure!(
            (1.0..=1e15).contains(&self.median),
            "objects of {} bytes: give --file-median from 1 to 1e15",
            self.median
        );
        ensure!(
            (0.0..=10.0).contains(&self.sigma),
            "sizes cannot spread by {}: give --file-sigma from 0 to 10",
            self.sigma
        );
        Ok(())
    }

    /// Returns what draws sizes, in pages of size `base`.
    pub(super) fn sampler(self, base: PageSize) -> impl FnMut(&mut ChaCha8Rng) -> usize {
        move |random| {
            let z: f64 = StandardNormal.sample(random);
            let bytes = self.median * (self.sigma * z).exp();
            ((bytes / base.bytes() as f64).ceil() as usize).max(1)
        }
    }
}

/// Places objects of `size` pages each at uniformly random page addresses until they have `pages` pages; the last is
/// cut. An object that would overlap another or the end of the space gets another place.
pub(super) fn objects(
    pages: usize,
    base: PageSize,
    random: &mut ChaCha8Rng,
    mut size: impl FnMut(&mut ChaCha8Rng) -> usize,
) -> Vec<Pages> {
    let end = last_page(base);
    let mut placed = BTreeMap::<Vpn, Pages>::new();
    let mut objects = Vec::new();
    let mut left = pages;
    while left > 0 {
        let size = size(random).min(left);
        let object = loop {
            let first = Vpn::new(random.random_range(0..=end));
            let fits = Pages::count(first, size).filter(|object| object.last().get() <= end);
            let Some(object) = fits else { continue };
            // Of the objects that begin before its end, only the last can reach into it.
            let before = placed.range(..=object.last()).next_back();
            if before.is_none_or(|(_, other)| other.last() < object.first()) {
                break object;
            }
        };
        placed.insert(object.first(), object);
        objects.push(object);
        left -= size;
    }
    objects
}
