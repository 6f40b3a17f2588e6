//! From a node's address to its memory.

use core::ptr;

/// How a node's address becomes memory: [`Offset`] or [`Identity`].
pub trait Window: Copy + sealed::Sealed {
    /// Returns the memory at an address.
    fn memory(self, at: usize) -> *mut u8;
}

/// Addresses count from some base: offsets into an arena, or physical addresses. Costs an addition a node.
#[derive(Clone, Copy, Debug)]
pub struct Offset {
    /// Where address zero would be: adding a node's address gives its memory.
    pub(super) origin: *mut u8,
}

/// Addresses are pointers, as in kseg0 or an identity map. Costs nothing.
#[derive(Clone, Copy, Debug)]
pub struct Identity;

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::Offset {}
    impl Sealed for super::Identity {}
}

impl Window for Offset {
    #[inline(always)]
    fn memory(self, at: usize) -> *mut u8 {
        self.origin.wrapping_add(at)
    }
}

impl Window for Identity {
    #[inline(always)]
    fn memory(self, at: usize) -> *mut u8 {
        ptr::with_exposed_provenance_mut(at)
    }
}
