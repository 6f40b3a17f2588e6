//! The sizes of a hashed table: of its buckets, of its first array, and of its load.

use core::fmt::Debug;

/// The choice of sizes: [`Buckets`].
pub trait Sizes: Debug + 'static + sealed::Sealed {
    /// The base-two logarithm of the number of pages of a block, at most 4.
    const CLUSTER_LOG: u32;
    /// The base-two logarithm of the number of first buckets at first.
    const BUCKETS_LOG: u32;
    /// The largest number of buckets in use, [vacant ones](crate::hpt#vacant-buckets) included, per hundred first buckets before the
    /// table grows. With 0 the table never grows.
    const LOAD: usize;
}

/// Buckets of `2^CLUSTER_LOG` pages, `2^BUCKETS_LOG` of them at first, in a table that grows beyond a load of `LOAD` percent. Hr has
/// `Buckets<0, 1, 150>`. With a `LOAD` of 0 the table never grows: H8k has `Buckets<1, 8, 0>`.
#[derive(Clone, Copy, Debug)]
pub struct Buckets<const CLUSTER_LOG: u32, const BUCKETS_LOG: u32, const LOAD: usize>;

mod sealed {
    pub trait Sealed {}
    impl<const CLUSTER_LOG: u32, const BUCKETS_LOG: u32, const LOAD: usize> Sealed
        for super::Buckets<CLUSTER_LOG, BUCKETS_LOG, LOAD>
    {
    }
}

impl<const CLUSTER_LOG: u32, const BUCKETS_LOG: u32, const LOAD: usize> Sizes
    for Buckets<CLUSTER_LOG, BUCKETS_LOG, LOAD>
{
    const CLUSTER_LOG: u32 = CLUSTER_LOG;
    const BUCKETS_LOG: u32 = BUCKETS_LOG;
    const LOAD: usize = LOAD;
}
