//! The window: the part of an address space in which a process may ask for pages.

use tlbkit::{Error, PageSize, Pages, VirtAddr, Vpn};

/// How many processes there can be, each with a window.
pub(crate) const PROCESSES: usize = 128;
/// Where the window begins: 2 MiB before a gigabyte ends, so that its pages are in two nodes of every level.
pub(crate) const WINDOW: usize = (1 << 30) - (2 << 20);
/// How many pages it has.
pub(crate) const PAGES: usize = 1024;

/// Why something cannot be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// It must not be done.
    Wrong,
    /// There is no memory for it; pages that go to disk may make some.
    NoMemory,
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        match error {
            Error::NoMemory { .. } => Self::NoMemory,
            error => panic!("{error}"),
        }
    }
}

/// Pages of the window.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WindowRange {
    /// The index of the first.
    pub(crate) first: usize,
    /// How many.
    pub(crate) len: usize,
}

impl WindowRange {
    /// Returns `len` pages from the page at `at` on, at least one.
    pub(crate) fn new(at: usize, len: usize) -> Result<Self, Refused> {
        let first = at.checked_sub(WINDOW).ok_or(Refused::Wrong)?;
        let fits = first % PageSize::K4.bytes() == 0 && len > 0;
        let first = first >> PageSize::K4.shift();
        let fits = fits && len <= PAGES && first <= PAGES - len;
        if fits { Ok(Self { first, len }) } else { Err(Refused::Wrong) }
    }

    /// Returns them as pages of the address space.
    pub(crate) fn pages(self) -> Pages {
        Pages::count(vpn(self.first), self.len).unwrap_or(Pages::one(vpn(self.first)))
    }

    /// Returns their indices in the window.
    pub(crate) fn indices(self) -> core::ops::Range<usize> {
        self.first..self.first + self.len
    }
}

/// Returns the first pages of the window.
pub(crate) fn window(len: usize) -> Pages {
    WindowRange { first: 0, len }.pages()
}

/// Returns the page of an index.
pub(crate) fn vpn(index: usize) -> Vpn {
    VirtAddr::new(WINDOW + (index << PageSize::K4.shift())).vpn(PageSize::K4)
}

/// Returns where the page of an index begins.
pub(crate) fn address(index: usize) -> VirtAddr {
    vpn(index).address(PageSize::K4)
}
