//! What the architectures say: how an entry is read, and what an invalidation covers.
//!
//! The decoders are the checker's own, written from the manuals: a second reading of them beside the one of the tables that it
//! checks.

use crate::event::Fence;

/// An architecture, and the shape of its tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Arch {
    /// RISC-V with Sv39. Without `uses dirty` it has Svade: an entry without A, or a store to one without D, faults.
    Sv39,
    /// x86-64 with four levels.
    X86_64,
    /// AArch64, stage 1, 4 KiB granule, 48 bits, four levels.
    Aarch64,
    /// MIPS32, whose TLB software loads: two levels of ten bits, of words as `EntryLo` has them.
    Mips32,
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

/// MIPS32: the bits of an `EntryLo` word.
pub(super) const G: u64 = 1;
const VALID: u64 = 2;
const WRITABLE: u64 = 4;
const PFN: u32 = 6;
const PFN_MASK: u64 = (1 << 24) - 1;
/// MIPS32: the largest page, in bits.
const LARGE: u32 = 28;

/// MIPS32: the size of the page that a valid word of a table maps, in bits. `PageMask` is no part of the word: bits 31 and 30, which
/// hardware ignores, are 01 for more than 4 KiB, and the lowest two bits of the PFN that are not 0, taken in twos, say how much.
fn size(word: u64) -> Option<u32> {
    if word >> 30 != 1 {
        return Some(12);
    }
    let digit = (word >> PFN & PFN_MASK).trailing_zeros() / 2;
    Some(14 + 2 * digit).filter(|&shift| shift <= LARGE)
}

impl Arch {
    /// The levels: how many bits of an address one word of a node stands for, the last level first.
    pub(super) fn levels(self) -> &'static [u32] {
        match self {
            Self::Sv39 => &[12, 21, 30],
            Self::X86_64 | Self::Aarch64 => &[12, 21, 30, 39],
            Self::Mips32 => &[12, 22],
        }
    }

    /// The level of the root node.
    pub(super) fn top(self) -> u32 {
        self.levels()[self.levels().len() - 1]
    }

    /// From one level to the next: how many bits of an address choose a word of a node.
    pub(super) fn step(self) -> u32 {
        if self == Self::Mips32 { 10 } else { 9 }
    }

    /// How many bytes a word of a table has.
    pub(super) fn word(self) -> u64 {
        if self == Self::Mips32 { 4 } else { 8 }
    }

    /// The largest value of a word.
    pub(super) fn largest(self) -> u64 {
        if self == Self::Mips32 { u32::MAX.into() } else { u64::MAX }
    }

    /// Why something is no word of a table.
    pub(super) fn no_word(self) -> &'static str {
        if self == Self::Mips32 {
            "a word has 4 bytes, and its address is a multiple of 4"
        } else {
            "a word's address is a multiple of 8"
        }
    }

    /// Returns which address a word stands for, from the first of its node.
    pub(super) fn offset(self, at: u64, level: u32) -> u64 {
        (at % PAGE / self.word()) << level
    }

    /// Returns the address of the word of a node that stands for an address.
    pub(super) fn slot(self, node: u64, level: u32, va: u64) -> u64 {
        node + (va >> level & ((1 << self.step()) - 1)) * self.word()
    }

    /// The sizes of pages, in bits.
    pub(super) fn sizes(self) -> impl Iterator<Item = u32> {
        let (last, step) = match self {
            Self::Mips32 => (LARGE, 2),
            _ => (30, 9),
        };
        (12..=last).step_by(step)
    }

    /// Tells whether a word may say something to a walker.
    pub(super) fn says(self, word: u64) -> bool {
        if self == Self::Mips32 { word & !G != 0 } else { word & 1 != 0 }
    }

    /// Tells whether a walk is one of software, which keeps no link and ends before its CPU does anything else.
    pub(super) fn is_software(self) -> bool {
        self == Self::Mips32
    }

    /// Tells whether stores become visible in their order, and to all at once.
    pub(super) fn is_ordered(self) -> bool {
        self == Self::X86_64
    }

    /// Tells whether an absence in a node of `level` is used that was read before: before a barrier, or on MIPS32 as the invalid
    /// half of a pair, where there is a node for the pair.
    pub(super) fn has_absence(self, level: u32) -> bool {
        match self {
            Self::X86_64 => false,
            Self::Mips32 => level == 12,
            Self::Sv39 | Self::Aarch64 => true,
        }
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
            // As 32 bits, or extended to 64 by their sign. kseg0 and kseg1 are not translated.
            Self::Mips32 => {
                let low = va & u64::from(u32::MAX);
                let whole = va == low || va == low as u32 as i32 as u64;
                (whole && low >> 30 != 2).then_some(low)
            }
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
            Self::Mips32 => va,
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
            Self::Mips32 => Root {
                node: Some(value & !(PAGE - 1)).filter(|&node| node != 0),
                asid: (value & 0xff) as u16,
                flushes: false,
            },
        }
    }

    /// Reads an entry of a node of `level`. `dirty` says that hardware sets the accessed and dirty bits.
    pub(super) fn entry(self, word: u64, level: u32, dirty: bool) -> Entry {
        use rights::{ALL, EXEC, MARKED, READ, USER, WRITE};
        let bit = |at: u32| word >> at & 1 != 0;
        let pick = |set: bool, right: u8| if set { right } else { 0 };
        let shift = level;
        // A page's address is a multiple of its size; what stands below means something else.
        let frame = |address: u64| address & !((1 << shift) - 1);
        match self {
            Self::Sv39 => {
                let address = (word >> 10 & ((1 << 44) - 1)) << 12;
                if !bit(0) || (bit(2) && !bit(1)) {
                    return Entry::Absent;
                }
                if !bit(1) && !bit(3) {
                    return if level == 12 {
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
                } else if level > 12 && !bit(7) {
                    Entry::Link { node: address, rights: above }
                } else if level == 39 {
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
                } else if level > 12 && bit(1) {
                    // APTable, UXNTable and PXNTable take rights away.
                    let rights = ALL & !pick(bit(61), USER) & !pick(bit(62), WRITE | MARKED);
                    Entry::Link { node: address, rights: rights & !pick(bit(60) || bit(59), EXEC) }
                } else if level == 39 || (level == 12) != bit(1) || !(bit(10) || dirty) {
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
            Self::Mips32 if word & VALID != 0 => match size(word) {
                // A page of 4 MiB or more stands in the root.
                Some(shift) if (shift >= 22) == (level == 22) => Self::half(word, shift),
                _ => Entry::Absent,
            },
            // A link is the address of the node in kseg0.
            Self::Mips32 if level == 22 && word >> 29 == 0b100 => {
                Entry::Link { node: word & ((1 << 29) - 1) & !(PAGE - 1), rights: ALL }
            }
            Self::Mips32 => Entry::Absent,
        }
    }

    /// Reads half of a MIPS32 pair of pages of `1 << shift` bytes: the word of an `EntryLo` register.
    pub(super) fn half(word: u64, shift: u32) -> Entry {
        use rights::{EXEC, MARKED, READ, USER, WRITE};
        if word & VALID == 0 {
            return Entry::Absent;
        }
        let write = if word & WRITABLE != 0 { WRITE | MARKED } else { 0 };
        let frame = (word >> PFN & PFN_MASK) << 12 >> shift << shift;
        let (global, memory) = (word & G != 0, (word >> 3 & 7) as u8);
        Entry::Leaf { frame, shift, rights: READ | EXEC | USER | write, global, memory }
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
            // TLBP finds what the address and the number match, a global pair too.
            Self::Mips32 => (asid, named || asid.is_none(), Links::None),
        };
        // The form for the last level is a form by address.
        let links = if leaf && named { Links::None } else { links };
        Scope { pages, asid, globals, links }
    }
}
