//! The memory of a cache, which the caller provides.

use core::fmt;
use core::mem::MaybeUninit;

/// The alignment, in bytes, that every cache needs: a cache line, so that no entry of 16, 32 or 64 bytes crosses
/// a line boundary.
pub const LINE: usize = 64;

/// Aligned memory for a cache, for callers without a frame allocator.
///
/// ```
/// use tlbkit_stlb::{CacheMemory, Direct, Page64};
///
/// let mut memory = CacheMemory::<{ 1024 * 16 }>::new();
/// let stlb = Direct::<Page64, 1024>::new(memory.bytes()).unwrap();
/// # let _ = stlb;
/// ```
#[derive(Debug)]
#[repr(C, align(64))]
pub struct CacheMemory<const BYTES: usize>([MaybeUninit<u8>; BYTES]);

impl<const BYTES: usize> CacheMemory<BYTES> {
    /// Returns `BYTES` uninitialized bytes.
    pub const fn new() -> Self {
        Self([MaybeUninit::uninit(); BYTES])
    }

    /// Returns the bytes.
    pub const fn bytes(&mut self) -> &mut [MaybeUninit<u8>] {
        &mut self.0
    }
}

impl<const BYTES: usize> Default for CacheMemory<BYTES> {
    fn default() -> Self {
        Self::new()
    }
}

/// Why memory is unsuitable for a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadMemory {
    /// The number of sets, or of ways, is no power of two.
    NotPowerOfTwo {
        /// The number of sets or ways.
        number: usize,
    },
    /// The memory is too small.
    TooSmall {
        /// The number of bytes that the cache needs.
        needed: usize,
        /// The number of bytes that the caller provided.
        given: usize,
    },
    /// The memory is not aligned as the cache needs.
    Misaligned {
        /// The alignment that the cache needs, in bytes.
        needed: usize,
    },
}

impl fmt::Display for BadMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotPowerOfTwo { number } => write!(f, "{number} sets or ways: not a power of two"),
            Self::TooSmall { needed, given } => write!(f, "{given} bytes given, {needed} needed"),
            Self::Misaligned { needed } => write!(f, "memory not aligned to {needed} bytes"),
        }
    }
}

impl core::error::Error for BadMemory {}

/// Initializes `SETS` sets in `memory`, each with a result of `make`. Checks that `SETS` and `ways` are powers of two.
pub(crate) fn carve<T, const SETS: usize>(
    memory: &mut [MaybeUninit<u8>],
    ways: usize,
    make: impl Fn() -> T,
) -> Result<&mut [T; SETS], BadMemory> {
    if let Some(number) = [SETS, ways].into_iter().find(|number| !number.is_power_of_two()) {
        return Err(BadMemory::NotPowerOfTwo { number });
    }
    let (needed, given) = (size_of::<[T; SETS]>(), memory.len());
    if given < needed {
        return Err(BadMemory::TooSmall { needed, given });
    }
    let align = align_of::<T>().max(LINE);
    let sets = memory.as_mut_ptr().cast::<T>();
    if !sets.addr().is_multiple_of(align) {
        return Err(BadMemory::Misaligned { needed: align });
    }
    // SAFETY: `memory` is borrowed exclusively for the lifetime of the result. The checks above ensure that it is large
    // enough and aligned for `SETS` values of `T`. The loop initializes each of them before the reference to all of them is
    // made.
    unsafe {
        for set in 0..SETS {
            sets.add(set).write(make());
        }
        Ok(&mut *sets.cast::<[T; SETS]>())
    }
}
