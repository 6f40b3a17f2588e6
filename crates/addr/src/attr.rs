//! Access rights and memory type of a page.

use bitflags::bitflags;

bitflags! {
    /// The rights of a page, its status bits, and its memory type.
    ///
    /// All entry formats use this type. A format encodes the attributes that its hardware has, and documents the others
    /// ([`EXEC`](Attr::EXEC) is implied where hardware cannot forbid it, for example).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub struct Attr: u32 {
        /// Loads are allowed.
        const READ = 1 << 0;
        /// Stores are allowed.
        const WRITE = 1 << 1;
        /// Instruction fetches are allowed.
        const EXEC = 1 << 2;
        /// User mode may use the page.
        const USER = 1 << 3;
        /// The translation is the same in every address space; a TLB entry ignores the ASID.
        const GLOBAL = 1 << 4;
        /// The page has been referenced since this was last cleared.
        const ACCESSED = 1 << 5;
        /// The page has been written since this was last cleared. Where hardware does not set it, a page that has
        /// [`WRITE`](Attr::WRITE) but not `DIRTY` traps on the first store, so that the kernel can.
        const DIRTY = 1 << 6;
        /// Accesses bypass the caches.
        const UNCACHED = 1 << 7;
        /// The page is a device's: uncached, and accesses are neither merged nor reordered.
        const DEVICE = 1 << 8;
        /// A bit of the kernel, which no hardware reads: the page lost [`WRITE`](Attr::WRITE) because its frame is shared, and
        /// gets a copy of the frame at the next store.
        const COPY_ON_WRITE = 1 << 9;
        /// The first bit whose meaning the kernel chooses, in formats that have it. Neither hardware nor a table interprets it.
        const SOFT_1 = 1 << 10;
        /// The second such bit.
        const SOFT_2 = 1 << 11;
        /// Bit 0 of the protection key, where hardware has one ([`KEY`](Attr::KEY)).
        const KEY_1 = 1 << 12;
        /// Bit 1 of the protection key.
        const KEY_2 = 1 << 13;
        /// Bit 2 of the protection key.
        const KEY_4 = 1 << 14;
        /// Bit 3 of the protection key.
        const KEY_8 = 1 << 15;
        /// The first of two bits that distinguish memory types, where hardware has more than three: see
        /// [`VARIETY`](Attr::VARIETY).
        const VARIETY_1 = 1 << 16;
        /// The second such bit.
        const VARIETY_2 = 1 << 17;
    }
}

impl Attr {
    /// The rights that a change can take away: [`READ`](Attr::READ), [`WRITE`](Attr::WRITE),
    /// [`EXEC`](Attr::EXEC) and [`USER`](Attr::USER).
    pub const RIGHTS: Self = Self::READ.union(Self::WRITE).union(Self::EXEC).union(Self::USER);

    /// The memory type: [`UNCACHED`](Attr::UNCACHED) and [`DEVICE`](Attr::DEVICE). Where hardware has more types,
    /// [`VARIETY`](Attr::VARIETY) distinguishes those of one kind.
    pub const MEMORY: Self = Self::UNCACHED.union(Self::DEVICE);

    /// The bits that distinguish several memory types of one kind. A format refuses a combination for which it has no type.
    ///
    /// | | cached | [`UNCACHED`](Attr::UNCACHED) | [`DEVICE`](Attr::DEVICE) |
    /// |-|-|-|-|
    /// | neither bit | write-back | not cached | stores may be acknowledged early |
    /// | [`VARIETY_1`](Attr::VARIETY_1) | [`WRITE_THROUGH`](Attr::WRITE_THROUGH) | - | [`STRICT`](Attr::STRICT) |
    /// | [`VARIETY_2`](Attr::VARIETY_2) | [`TAGGED`](Attr::TAGGED) | - | [`REORDERED`](Attr::REORDERED) |
    /// | both | - | - | [`GATHERED`](Attr::GATHERED) |
    pub const VARIETY: Self = Self::VARIETY_1.union(Self::VARIETY_2);

    /// Cached memory whose stores go to memory at once.
    pub const WRITE_THROUGH: Self = Self::VARIETY_1;

    /// Cached memory with allocation tags (Arm's Memory Tagging Extension).
    pub const TAGGED: Self = Self::VARIETY_2;

    /// A device that acknowledges each store itself: a store that has completed has reached the device.
    pub const STRICT: Self = Self::UNCACHED.union(Self::DEVICE).union(Self::VARIETY_1);

    /// A device whose accesses may be reordered, but not merged.
    pub const REORDERED: Self = Self::UNCACHED.union(Self::DEVICE).union(Self::VARIETY_2);

    /// A device whose accesses may be reordered and merged: a frame buffer.
    pub const GATHERED: Self = Self::UNCACHED.union(Self::DEVICE).union(Self::VARIETY);

    /// The page's protection key, a number from 0 to 15. A register of the CPU restricts the loads and stores of pages with the
    /// key further than the rights of the page do.
    pub const KEY: Self = Self::KEY_1.union(Self::KEY_2).union(Self::KEY_4).union(Self::KEY_8);

    /// Returns the attribute bits of a protection key. Only the low four bits of `key` are used.
    #[must_use]
    pub const fn of_key(key: u8) -> Self {
        Self::from_bits_truncate((key as u32 & 15) << Self::KEY_1.bits().trailing_zeros())
    }

    /// Returns the protection key.
    #[must_use]
    pub const fn key(self) -> u8 {
        (self.bits() >> Self::KEY_1.bits().trailing_zeros()) as u8 & 15
    }

    /// The attributes that no hardware reads: [`COPY_ON_WRITE`](Attr::COPY_ON_WRITE), [`SOFT_1`](Attr::SOFT_1) and
    /// [`SOFT_2`](Attr::SOFT_2).
    pub const SOFTWARE: Self = Self::COPY_ON_WRITE.union(Self::SOFT_1).union(Self::SOFT_2);
}
