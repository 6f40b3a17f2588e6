//! What control registers must hold where an address space runs. The kernel reads the registers; the functions that check them are
//! `check` of the machines.

use core::error::Error;
use core::fmt;

/// A field of a control register that has another value than the page tables rely on.
///
/// [`X86_64::check`](super::X86_64::check) and [`AArch64Of::check`](super::AArch64Of::check) return it. Nothing else notices such a
/// field: the CPU runs, and some accesses are allowed, cached or translated otherwise than the page table says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The register or its field, as the manual names it: `"CR0.WP"`, or `"T0SZ"` of TCR_EL1.
    pub field: &'static str,
    /// The bits of the register that the field has.
    pub mask: u64,
    /// What these bits must be.
    pub value: u64,
    /// What goes wrong otherwise.
    pub reason: &'static str,
}

impl Setting {
    /// Returns a field of `width` bits from bit `first` on.
    pub(super) fn new(field: &'static str, first: u32, value: u64, reason: &'static str) -> Self {
        Self { field, mask: 1 << first, value: value << first, reason }
    }

    /// Returns the field with so many bits.
    pub(super) fn wide(self, width: u32) -> Self {
        Self { mask: ((1 << width) - 1) * self.mask, ..self }
    }

    /// Checks the field in what its register holds.
    pub(super) fn check(self, register: u64) -> Result<(), Self> {
        if register & self.mask == self.value { Ok(()) } else { Err(self) }
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { field, mask, value, reason } = *self;
        let value = value >> mask.trailing_zeros();
        write!(f, "{field} must be {value:#x}: {reason}")
    }
}

impl Error for Setting {}
