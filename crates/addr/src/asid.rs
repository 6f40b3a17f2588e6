//! Address-space identifiers.

use core::fmt;

/// An address-space identifier: the tag by which a TLB tells the translations of one address space from those of
/// another.
///
/// The machine has a fixed number of bits for it (8 on MIPS32, up to 16 elsewhere); see [`Asid::new`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Asid(u16);

impl Asid {
    /// Returns the identifier `id` of a machine whose identifiers have `bits` bits, or `None` if it does not fit.
    #[inline]
    pub const fn new(id: u16, bits: u32) -> Option<Self> {
        if bits >= u16::BITS || id >> bits == 0 { Some(Self(id)) } else { None }
    }

    /// Returns the number.
    #[inline]
    pub const fn get(self) -> u16 {
        self.0
    }
}

impl fmt::Display for Asid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}
