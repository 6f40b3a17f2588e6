//! Page sizes, page numbers and frame numbers.

use core::fmt;

use crate::{PhysAddr, VirtAddr};

/// The size of a page: a power of two of bytes, kept as its logarithm.
///
/// Page sizes are values and not types, so that a table with a dozen page sizes is one type.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct PageSize(u8);

impl PageSize {
    /// 4 KiB.
    pub const K4: Self = Self(12);
    /// 16 KiB.
    pub const K16: Self = Self(14);
    /// 64 KiB.
    pub const K64: Self = Self(16);
    /// 2 MiB.
    pub const M2: Self = Self(21);
    /// 4 MiB.
    pub const M4: Self = Self(22);
    /// 1 GiB.
    pub const G1: Self = Self(30);

    /// Returns the size of `1 << shift` bytes, or `None` if a `usize` cannot hold that number.
    #[inline]
    pub const fn from_shift(shift: u32) -> Option<Self> {
        if shift < usize::BITS { Some(Self(shift as u8)) } else { None }
    }

    /// Returns the size of exactly `bytes` bytes, or `None` if that is no power of two.
    #[inline]
    pub const fn from_bytes(bytes: usize) -> Option<Self> {
        if bytes.is_power_of_two() { Some(Self(bytes.trailing_zeros() as u8)) } else { None }
    }

    /// Returns the base-two logarithm of the size in bytes. Always below `usize::BITS`.
    #[inline]
    pub const fn shift(self) -> u32 {
        self.0 as u32
    }

    /// Returns the size in bytes.
    #[inline]
    pub const fn bytes(self) -> usize {
        1 << self.0
    }

    /// Returns the bits of an address that lie inside the page: `bytes() - 1`.
    #[inline]
    pub const fn mask(self) -> usize {
        self.bytes() - 1
    }

    /// Returns how many pages of size `base` this page covers, or `None` if `base` is larger.
    #[inline]
    pub const fn pages(self, base: PageSize) -> Option<usize> {
        if self.0 >= base.0 { Some(1 << (self.0 - base.0)) } else { None }
    }
}

impl fmt::Debug for PageSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Prints `4K`, `2M`, `1G`, ...
impl fmt::Display for PageSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, shift) = match self.0 {
            60.. => ("E", 60),
            50.. => ("P", 50),
            40.. => ("T", 40),
            30.. => ("G", 30),
            20.. => ("M", 20),
            10.. => ("K", 10),
            _ => ("B", 0),
        };
        write!(f, "{}{unit}", 1u32 << (self.0 - shift))
    }
}

macro_rules! number {
    ($(#[$doc:meta])* $name:ident, $address:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub struct $name(usize);

        impl $name {
            /// Wraps a raw number.
            #[inline]
            pub const fn new(number: usize) -> Self {
                Self(number)
            }

            /// Returns the raw number.
            #[inline]
            pub const fn get(self) -> usize {
                self.0
            }

            /// Returns the address of the page's first byte, or `None` if there is no such address.
            #[inline]
            pub const fn checked_address(self, base: PageSize) -> Option<$address> {
                if self.0 <= usize::MAX >> base.shift() { Some(self.address(base)) } else { None }
            }

            /// Returns the address of the page's first byte. Bits above a `usize` are dropped: a number that was made from an
            /// address with the same `base` has none.
            #[inline]
            pub const fn address(self, base: PageSize) -> $address {
                $address::new(self.0 << base.shift())
            }

            /// Tells whether a page of size `size` can start here, counted in pages of size `base`.
            #[inline]
            pub const fn is_aligned(self, size: PageSize, base: PageSize) -> bool {
                match size.pages(base) {
                    Some(pages) => self.0 & (pages - 1) == 0,
                    None => false,
                }
            }

            /// Returns the number plus `pages`, or `None` if it overflows.
            #[inline]
            pub const fn checked_add(self, pages: usize) -> Option<Self> {
                match self.0.checked_add(pages) {
                    Some(n) => Some(Self(n)),
                    None => None,
                }
            }

            /// Returns the number minus `pages`, or `None` if it would be negative.
            #[inline]
            pub const fn checked_sub(self, pages: usize) -> Option<Self> {
                match self.0.checked_sub(pages) {
                    Some(n) => Some(Self(n)),
                    None => None,
                }
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:#x})"), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#x}", self.0)
            }
        }
    };
}

number! {
    /// A virtual page number: an address divided by the base page size. A large page is named by its first base
    /// page.
    Vpn, VirtAddr
}

number! {
    /// A physical frame number: a physical address divided by the base page size. A large frame is named by its
    /// first base frame.
    Pfn, PhysAddr
}
