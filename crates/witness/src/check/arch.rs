//! What the architectures say: how an entry is read, and what an invalidation covers.
//!
//! The decoders are the checker's own, written from the manuals: a second reading of them beside the one of the tables that it
//! checks.

use crate::event::Fence;

/// An architecture whose hardware walks the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Arch {
    /// RISC-V with Sv39. Without `uses dirty` it has Svade: an entry without A, or a store to one without D, faults.
    Sv39,
    /// x86-64 with four levels.
    X86_64,
    /// AArch64, stage 1, 4 KiB granule, 48 bits, four levels.
    Aarch64,
}

/// Rights, as a set of bits.
pub(super) mod rights {
    pub(crate) const READ: u8 = 1;
    pub(crate) const WRITE: u8 = 2;
    pub(crate) const EXEC: u8 = 4;
    pub(crate) const USER: u8 = 8;
    /// A store goes through without a mark in memory.
    pub(crate) const MARKED: u8 = 16;
    pub(crate) const ALL: u8 = 31;
}

/// What an entry says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Entry {
    Absent,
    /// A page of `1 << shift` bytes.
    Leaf {
        frame: u64,
        shift: u32,
        rights: u8,
        global: bool,
        memory: u8,
    },
    /// The node of the next level, and the rights that the entry leaves.
    Link {
        node: u64,
        rights: u8,
    },
}

/// A root register's value.
#[derive(Clone, Copy, Debug)]
pub(super) struct Root {
    /// The root node, or none if nothing is translated.
    pub(super) node: Option<u64>,
    pub(super) asid: u16,
    /// Loading it forgets what is cached under its number, but for global pages.
    pub(super) flushes: bool,
}

/// Which links an invalidation covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Links {
    None,
    OnTheWay,
    All,
}

/// What an invalidation covers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scope {
    /// The addresses of leaf entries, in the checker's form; none for all.
    pub(super) pages: Option<(u64, u64)>,
    /// The number that entries have which are not global; none for all.
    pub(super) asid: Option<u16>,
    pub(super) globals: bool,
    pub(super) links: Links,
}

pub(super) const PAGE: u64 = 4096;
const BITS_48: u64 = (1 << 48) - 1;

impl Arch {
    /// The level of the root node; leaves of 4 KiB are in level 0.
    pub(super) fn top(self) -> u32 {
        if self == Self::Sv39 { 2 } else { 3 }
    }

    /// How many bits of an address the root node's index begins at.
    pub(super) fn shift(level: u32) -> u32 {
        12 + 9 * level
    }

    /// Tells whether stores become visible in their order, and to all at once.
    pub(super) fn is_ordered(self) -> bool {
        self == Self::X86_64
    }

    /// Tells whether an absence is used that was read before a barrier.
    pub(super) fn has_absence(self) -> bool {
        self != Self::X86_64
    }

    /// Tells whether an invalidation completes at a barrier only.
    pub(super) fn defers(self, fence: Fence) -> bool {
        self == Self::Aarch64 || (self == Self::X86_64 && fence.broadcast)
    }

    /// Tells whether a page's size, frame and memory type change only by way of an entry that is not valid.
    pub(super) fn breaks(self) -> bool {
        self == Self::Aarch64
    }

    /// Returns a virtual address in the checker's form: without what only extends its sign; none if it is not canonical.
    pub(super) fn va(self, va: u64) -> Option<u64> {
        let high = |bits: u32| (va as i64) >> (bits - 1);
        match self {
            Self::Sv39 => matches!(high(39), 0 | -1).then_some(va & ((1 << 39) - 1)),
            Self::X86_64 => matches!(high(48), 0 | -1).then_some(va & BITS_48),
            // The two halves have 48 bits each; the top byte may be a tag.
            Self::Aarch64 => match va >> 48 & 0xff {
                0 => Some(va & BITS_48),
                0xff => Some(va & BITS_48 | 1 << 48),
                _ => None,
            },
        }
    }

    /// Returns an address in the checker's form as the kernel writes it.
    pub(super) fn show(self, va: u64) -> u64 {
        match self {
            Self::Sv39 => ((va << 25) as i64 >> 25) as u64,
            Self::X86_64 => ((va << 16) as i64 >> 16) as u64,
            Self::Aarch64 => {
                if va >> 48 == 0 {
                    va
                } else {
                    va | 0xffff << 48
                }
            }
        }
    }

    /// The first address, in the checker's form, that a root register translates.
    pub(super) fn base(self, high: bool) -> u64 {
        if high { 1 << 48 } else { 0 }
    }

    pub(super) fn root(self, value: u64) -> Root {
        match self {
            Self::Sv39 => Root {
                node: (value >> 60 == 8).then_some((value & ((1 << 44) - 1)) << 12),
                asid: (value >> 44) as u16,
                flushes: false,
            },
            Self::X86_64 => Root {
                node: Some(value & BITS_48 << 4 & !(PAGE - 1)),
                asid: (value & 0xfff) as u16,
                flushes: value >> 63 == 0,
            },
            Self::Aarch64 => Root {
                // A base of zero stands for a table that is switched off.
                node: Some(value & BITS_48 & !(PAGE - 1)).filter(|&node| node != 0),
                asid: (value >> 48) as u16,
                flushes: false,
            },
        }
    }

    /// Reads an entry of a node of `level`. `dirty` says that hardware sets the accessed and dirty bits.
    pub(super) fn entry(self, word: u64, level: u32, dirty: bool) -> Entry {
        use rights::{ALL, EXEC, MARKED, READ, USER, WRITE};
        let bit = |at: u32| word >> at & 1 != 0;
        let pick = |set: bool, right: u8| if set { right } else { 0 };
        let shift = Self::shift(level);
        // A page's address is a multiple of its size; what stands below means something else.
        let frame = |address: u64| address & !((1 << shift) - 1);
        match self {
            Self::Sv39 => {
                let address = (word >> 10 & ((1 << 44) - 1)) << 12;
                if !bit(0) || (bit(2) && !bit(1)) {
                    return Entry::Absent;
                }
                if !bit(1) && !bit(3) {
                    return if level == 0 {
                        Entry::Absent
                    } else {
                        Entry::Link { node: address, rights: ALL }
                    };
                }
                let (accessed, marked) = (bit(6), bit(7));
                if frame(address) != address || !(accessed || dirty) {
                    return Entry::Absent;
                }
                let rights = pick(bit(1), READ)
                    | pick(bit(2) && (marked || dirty), WRITE)
                    | pick(bit(3), EXEC)
                    | pick(bit(4), USER)
                    | pick(bit(2) && marked, MARKED);
                Entry::Leaf { frame: address, shift, rights, global: bit(5), memory: (word >> 61 & 3) as u8 }
            }
            Self::X86_64 => {
                let address = word & ((1 << 52) - 1) & !(PAGE - 1);
                let above = READ | MARKED | pick(bit(1), WRITE) | pick(!bit(63), EXEC) | pick(bit(2), USER);
                if !bit(0) {
                    Entry::Absent
                } else if level > 0 && !bit(7) {
                    Entry::Link { node: address, rights: above }
                } else if level == 3 {
                    Entry::Absent
                } else {
                    let rights = above & !MARKED | pick(bit(1) && bit(6), MARKED);
                    let memory = (word >> 3 & 3) as u8;
                    Entry::Leaf { frame: frame(address), shift, rights, global: bit(8), memory }
                }
            }
            Self::Aarch64 => {
                let address = word & BITS_48 & !(PAGE - 1);
                if !bit(0) {
                    Entry::Absent
                } else if level > 0 && bit(1) {
                    // APTable, UXNTable and PXNTable take rights away.
                    let rights = ALL & !pick(bit(61), USER) & !pick(bit(62), WRITE | MARKED);
                    Entry::Link { node: address, rights: rights & !pick(bit(60) || bit(59), EXEC) }
                } else if level == 3 || (level == 0) != bit(1) || !(bit(10) || dirty) {
                    Entry::Absent
                } else {
                    let user = bit(6);
                    let rights = READ
                        | pick(!bit(7) || (dirty && bit(51)), WRITE)
                        | pick(!bit(7), MARKED)
                        | pick(user, USER)
                        | pick(!bit(if user { 54 } else { 53 }), EXEC);
                    let memory = (word >> 2 & 7 | (word >> 8 & 3) << 3) as u8;
                    Entry::Leaf { frame: frame(address), shift, rights, global: !bit(11), memory }
                }
            }
        }
    }

    /// Returns what an invalidation covers that a CPU executes under the number `current`; its addresses are in the checker's
    /// form.
    pub(super) fn scope(self, fence: Fence, pages: Option<(u64, u64)>, current: u16) -> Scope {
        let Fence { asid, leaf, broadcast, .. } = fence;
        let named = pages.is_some();
        let (asid, globals, links) = match self {
            // With an address: leaf entries alone. With a number: none that is global.
            Self::Sv39 => (asid, asid.is_none(), if named { Links::None } else { Links::All }),
            // INVLPG: the current number, global pages too, and every link. INVPCID 0: by address, no global page.
            Self::X86_64 if named && asid.is_none() && !broadcast => (Some(current), true, Links::All),
            Self::X86_64 => (asid, asid.is_none(), if named { Links::OnTheWay } else { Links::All }),
            // By address global pages match whatever number is named; without one they do not.
            Self::Aarch64 => {
                (asid, named || asid.is_none(), if named { Links::OnTheWay } else { Links::All })
            }
        };
        // The form for the last level is a form by address.
        let links = if leaf && named { Links::None } else { links };
        Scope { pages, asid, globals, links }
    }
}
