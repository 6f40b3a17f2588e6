//! The node addresses that a link can hold.

use super::NodeAddr;

/// The node addresses that a link can hold: those that encoding and decoding a link does not change.
///
/// | | addresses | for |
/// |-|-|-|
/// | [`unsigned`](Self::unsigned) | the lowest `2^bits` | physical addresses, offsets into an arena |
/// | [`signed`](Self::signed) | the lowest and the highest `2^(bits-1)` | pointers, because a kernel's memory is in the upper half |
/// | [`apart`](Self::apart) | the lowest `2^bits`, and those from an address on | words in which addresses in between have another meaning |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkRange {
    /// The highest address of the lower part.
    low: usize,
    /// The lowest address of the upper part, if there is one.
    high: Option<usize>,
}

impl LinkRange {
    /// All addresses.
    pub const ALL: Self = Self::unsigned(usize::BITS);

    /// Returns the range of links that hold the `bits` low bits of an address, and decode the other bits as zero. It is all
    /// addresses if an address has at most `bits` bits.
    pub const fn unsigned(bits: u32) -> Self {
        let low = if bits < usize::BITS { (1 << bits) - 1 } else { usize::MAX };
        Self { low, high: None }
    }

    /// Returns the range of links that hold the `bits` low bits of an address, and decode the other bits as the highest of
    /// these. It is all addresses if an address has at most `bits` bits.
    pub const fn signed(bits: u32) -> Self {
        if bits == 0 || bits >= usize::BITS {
            return Self::unsigned(bits);
        }
        let low = (1 << (bits - 1)) - 1;
        Self { low, high: Some(!low) }
    }

    /// Returns the range of links that hold addresses of `bits` bits, and all addresses from `high` on.
    pub const fn apart(bits: u32, high: usize) -> Self {
        let Self { low, .. } = Self::unsigned(bits);
        Self { low, high: if high > low { Some(high) } else { None } }
    }

    /// Returns the last address such that a link can hold every address from `lowest`, where a storage's nodes begin, up to
    /// it. Returns `None` if a link cannot hold `lowest`.
    #[inline(always)]
    pub const fn last(self, lowest: NodeAddr) -> Option<usize> {
        match self.high {
            _ if lowest.get() <= self.low => Some(self.low),
            Some(high) if lowest.get() >= high => Some(usize::MAX),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_ends_where_its_field_does() {
        let last = |range: LinkRange, lowest| range.last(NodeAddr::new(lowest));
        let eight = LinkRange::unsigned(8);
        assert_eq!([0, 255, 256, usize::MAX].map(|at| last(eight, at)), [Some(255), Some(255), None, None]);
        let signed = LinkRange::signed(8);
        let top = usize::MAX;
        assert_eq!([0, 127, 128].map(|at| last(signed, at)), [Some(127), Some(127), None]);
        assert_eq!([top - 128, top - 127, top].map(|at| last(signed, at)), [None, Some(top), Some(top)]);
        let apart = LinkRange::apart(8, 1024);
        assert_eq!([255, 256, 1023, 1024].map(|at| last(apart, at)), [Some(255), None, None, Some(top)]);
        for all in [LinkRange::ALL, LinkRange::unsigned(64), LinkRange::signed(64)] {
            assert_eq!([0, top].map(|at| last(all, at)), [Some(top); 2]);
        }
    }
}
