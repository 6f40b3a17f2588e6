//! The mapping from a node's address to its memory.

use core::ptr;

/// Maps a node's address to its memory: [`Offset`] or [`Identity`].
pub trait Window: Copy + sealed::Sealed {
    /// Returns the memory at an address.
    fn memory(self, at: usize) -> *mut u8;
}

/// The mapping for addresses relative to a base: offsets into an arena, or physical addresses. It costs one addition for
/// each node.
#[derive(Clone, Copy, Debug)]
pub struct Offset {
    /// The pointer for address zero, to which a node's address is added.
    pub(super) origin: *mut u8,
}

/// The mapping for addresses that are pointers, as in kseg0 or an identity map. It costs nothing.
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
