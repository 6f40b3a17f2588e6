//! Byte addresses, virtual and physical.

use core::fmt;

use crate::{PageSize, Pfn, Vpn};

macro_rules! address {
    ($(#[$doc:meta])* $name:ident, $number:ident, $to_number:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub struct $name(usize);

        impl $name {
            /// Wraps a raw address.
            #[inline]
            pub const fn new(at: usize) -> Self {
                Self(at)
            }

            /// Returns the raw address.
            #[inline]
            pub const fn get(self) -> usize {
                self.0
            }

            /// Returns the number of the page of size `base` that holds this address.
            #[inline]
            pub const fn $to_number(self, base: PageSize) -> $number {
                $number::new(self.0 >> base.shift())
            }

            /// Returns the offset of this address, in bytes, in the page of size `size` that contains it.
            #[inline]
            pub const fn offset(self, size: PageSize) -> usize {
                self.0 & size.mask()
            }

            /// Returns the first address of the page of size `size` that contains this address.
            #[inline]
            pub const fn align_down(self, size: PageSize) -> Self {
                Self(self.0 & !size.mask())
            }

            /// Tells whether a page of size `size` starts here.
            #[inline]
            pub const fn is_aligned(self, size: PageSize) -> bool {
                self.0 & size.mask() == 0
            }

            /// Returns the address plus `bytes`, or `None` if it overflows.
            #[inline]
            pub const fn checked_add(self, bytes: usize) -> Option<Self> {
                match self.0.checked_add(bytes) {
                    Some(at) => Some(Self(at)),
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

address! {
    /// A virtual address: any `usize`. The geometry of a table limits the addresses that the table can map (a 39-bit table of a
    /// 64-bit machine rejects most).
    VirtAddr, Vpn, vpn
}

address! {
    /// A physical address. It is a `usize`: physical memory beyond 4 GiB on a 32-bit machine is not supported.
    PhysAddr, Pfn, pfn
}
