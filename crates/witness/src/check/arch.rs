//! What the architectures say: how an entry is read, and what an invalidation covers.
//!
//! The decoders are the checker's own, written from the manuals: a second reading of them beside the one of the tables that it
//! checks.

use crate::event::Fence;

/// An architecture, and the shape of its tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Arch {
    /// RISC-V with Sv32: two levels, of words of 32 bits. Without `uses dirty` RISC-V has Svade: an entry without A, or a store to one
    /// without D, faults.
    Sv32,
    /// RISC-V with Sv39: three levels. In this and what follows with Svnapot.
    Sv39,
    /// RISC-V with Sv48: four levels.
    Sv48,
    /// RISC-V with Sv57: five levels.
    Sv57,
    /// x86-64 with four levels.
    X86_64,
    /// x86-64 with five levels: CR4.LA57.
    X86_64La57,
    /// AArch64, stage 1, 4 KiB granule, 48 bits, four levels; in this and what follows with contiguous runs.
    Aarch64,
    /// AArch64, stage 1, 16 KiB granule, 47 bits, three levels.
    Aarch64K16,
    /// AArch64, stage 1, 64 KiB granule, 48 bits, three levels. A root is at a multiple of 64 KiB.
    Aarch64K64,
    /// MIPS32, whose TLB software loads: two levels of ten bits, of words as `EntryLo` has them.
    Mips32,
}

/// An architecture, whatever the shape of its tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    RiscV,
    X86,
    Arm,
    Mips,
}

/// Rights, as a set of bits.
pub(super) mod rights {
    pub(crate) const READ: u8 = 1;
    pub(crate) const WRITE: u8 = 2;
    /// The kernel executes it.
    pub(crate) const KERNEL_EXEC: u8 = 4;
    /// User mode reads it, and writes it if it can be written.
    pub(crate) const USER: u8 = 8;
    /// A store goes through without a mark in memory.
    pub(crate) const MARKED: u8 = 16;
    /// User mode executes it.
    pub(crate) const USER_EXEC: u8 = 32;
    /// Whoever it is that executes it.
    pub(crate) const EXEC: u8 = KERNEL_EXEC | USER_EXEC;
    pub(crate) const ALL: u8 = 63;
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
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Sv32,
        Self::Sv39,
        Self::Sv48,
        Self::Sv57,
        Self::X86_64,
        Self::X86_64La57,
        Self::Aarch64,
        Self::Aarch64K16,
        Self::Aarch64K64,
        Self::Mips32,
    ];

    /// Returns the name that `tlblab witness --arch` has for it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sv32 => "sv32",
            Self::Sv39 => "sv39",
            Self::Sv48 => "sv48",
            Self::Sv57 => "sv57",
            Self::X86_64 => "x86_64",
            Self::X86_64La57 => "x86_64-la57",
            Self::Aarch64 => "aarch64",
            Self::Aarch64K16 => "aarch64-16k",
            Self::Aarch64K64 => "aarch64-64k",
            Self::Mips32 => "mips32",
        }
    }

    /// Returns the one that has a name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|arch| arch.name() == name)
    }

    /// Whose rules hold, whatever the shape of the tables.
    pub(super) fn family(self) -> Family {
        match self {
            Self::Sv32 | Self::Sv39 | Self::Sv48 | Self::Sv57 => Family::RiscV,
            Self::X86_64 | Self::X86_64La57 => Family::X86,
            Self::Aarch64 | Self::Aarch64K16 | Self::Aarch64K64 => Family::Arm,
            Self::Mips32 => Family::Mips,
        }
    }

    /// The levels: how many bits of an address one word of a node stands for, the last level first.
    pub(super) fn levels(self) -> &'static [u32] {
        match self {
            Self::Mips32 | Self::Sv32 => &[12, 22],
            Self::Sv39 => &[12, 21, 30],
            Self::X86_64 | Self::Aarch64 | Self::Sv48 => &[12, 21, 30, 39],
            Self::X86_64La57 | Self::Sv57 => &[12, 21, 30, 39, 48],
            Self::Aarch64K16 => &[14, 25, 36],
            Self::Aarch64K64 => &[16, 29, 42],
        }
    }

    /// The bytes of a node, and of the smallest page.
    pub(super) fn granule(self) -> u64 {
        1 << self.levels()[0]
    }

    /// Returns the node that a word is in.
    pub(super) fn node(self, at: u64) -> u64 {
        at & !(self.granule() - 1)
    }

    /// The level of the root node.
    pub(super) fn top(self) -> u32 {
        self.levels()[self.levels().len() - 1]
    }

    /// From one level to the next: how many bits of an address choose a word of a node.
    pub(super) fn step(self) -> u32 {
        self.levels()[1] - self.levels()[0]
    }

    /// How many bytes a word of a table has.
    pub(super) fn word(self) -> u64 {
        if self.is_narrow() { 4 } else { 8 }
    }

    fn is_narrow(self) -> bool {
        matches!(self, Self::Mips32 | Self::Sv32)
    }

    /// The largest value of a word.
    pub(super) fn largest(self) -> u64 {
        if self.is_narrow() { u32::MAX.into() } else { u64::MAX }
    }

    /// Why something is no word of a table.
    pub(super) fn no_word(self) -> &'static str {
        if self.is_narrow() {
            "a word has 4 bytes, and its address is a multiple of 4"
        } else {
            "a word's address is a multiple of 8"
        }
    }

    /// Returns which address a word stands for, from the first of its node.
    pub(super) fn offset(self, at: u64, level: u32) -> u64 {
        (at % self.granule() / self.word()) << level
    }

    /// Returns the address of the word of a node that stands for an address.
    pub(super) fn slot(self, node: u64, level: u32, va: u64) -> u64 {
        node + (va >> level & ((1 << self.step()) - 1)) * self.word()
    }

    /// The size of the smallest run of words that may be one TLB entry, in bits.
    pub(super) fn smallest_run(self) -> u32 {
        self.sizes().find(|size| !self.levels().contains(size)).unwrap_or(self.levels()[0])
    }

    /// The sizes of pages, in bits: of words, of runs of words, and of PageMask.
    pub(super) fn sizes(self) -> impl Iterator<Item = u32> {
        let sizes: &[u32] = match self {
            Self::Sv32 => &[12, 22],
            Self::Sv39 => &[12, 16, 21, 30],
            Self::Sv48 => &[12, 16, 21, 30, 39],
            Self::Sv57 => &[12, 16, 21, 30, 39, 48],
            Self::X86_64 | Self::X86_64La57 => &[12, 21, 30],
            Self::Aarch64 => &[12, 16, 21, 25, 30, 34],
            Self::Aarch64K16 => &[14, 21, 25, 30],
            Self::Aarch64K64 => &[16, 21, 29, 34],
            Self::Mips32 => &[12, 14, 16, 18, 20, 22, 24, 26, LARGE],
        };
        sizes.iter().copied()
    }

    /// AArch64: how many words a contiguous run has, in bits.
    fn run(self, level: u32) -> u32 {
        match (self, level) {
            (Self::Aarch64, _) => 4,
            (Self::Aarch64K16, 14) => 7,
            _ => 5,
        }
    }

    /// Returns how many bits the number of an address space has, and what to say of one that has more.
    pub(super) fn asid(self) -> (u32, &'static str) {
        match self {
            Self::Sv32 => (9, "an ASID of Sv32 has 9 bits"),
            Self::X86_64 | Self::X86_64La57 => (12, "a PCID has 12 bits"),
            Self::Mips32 => (8, "an ASID of MIPS32 has 8 bits"),
            _ => (16, "an ASID has 16 bits"),
        }
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
        self.family() == Family::X86
    }

    /// Tells whether a word may be one of a larger page, or of a pair that is global.
    pub(super) fn may_overlap(self, word: u64) -> bool {
        self == Self::Mips32 && (word & G != 0 || word >> 30 == 1)
    }

    /// Tells whether an absence in a node of `level` is used that was read before: before a barrier, or on MIPS32 as the invalid
    /// half of a pair, where there is a node for the pair.
    pub(super) fn has_absence(self, level: u32) -> bool {
        match self.family() {
            Family::X86 => false,
            Family::Mips => level == 12,
            Family::RiscV | Family::Arm => true,
        }
    }

    /// Tells whether an invalidation completes at a barrier only.
    pub(super) fn defers(self, fence: Fence) -> bool {
        match self.family() {
            Family::Arm => true,
            Family::X86 => fence.broadcast,
            Family::RiscV | Family::Mips => false,
        }
    }

    /// Tells whether a page's size, frame and memory type change only by way of an entry that is not valid.
    pub(super) fn breaks(self) -> bool {
        self.family() == Family::Arm
    }

    /// Returns a virtual address in the checker's form: without what only extends its sign; none if it is not canonical.
    pub(super) fn va(self, va: u64) -> Option<u64> {
        let signed =
            |bits: u32| matches!((va as i64) >> (bits - 1), 0 | -1).then_some(va & ((1 << bits) - 1));
        match self {
            // As 32 bits, or extended to 64 by their sign.
            Self::Sv32 => {
                let low = va & u64::from(u32::MAX);
                (va == low || va == low as u32 as i32 as u64).then_some(low)
            }
            Self::Sv39 => signed(39),
            Self::X86_64 | Self::Sv48 => signed(48),
            Self::X86_64La57 | Self::Sv57 => signed(57),
            // The two halves have 48 bits each, with 16 KiB 47; the top byte may be a tag.
            Self::Aarch64 | Self::Aarch64K16 | Self::Aarch64K64 => {
                let (bits, low) = (self.half_bits(), va & ((1 << self.half_bits()) - 1));
                match (va << 8) as i64 >> (8 + bits) {
                    0 => Some(low),
                    -1 => Some(low | 1 << 48),
                    _ => None,
                }
            }
            // As 32 bits, or extended to 64 by their sign. kseg0 and kseg1 are not translated.
            Self::Mips32 => {
                let low = va & u64::from(u32::MAX);
                let whole = va == low || va == low as u32 as i32 as u64;
                (whole && low >> 30 != 2).then_some(low)
            }
        }
    }

    /// The bits of an address in either half of AArch64's.
    fn half_bits(self) -> u32 {
        if self == Self::Aarch64K16 { 47 } else { 48 }
    }

    /// Returns an address in the checker's form as the kernel writes it.
    pub(super) fn show(self, va: u64) -> u64 {
        let signed = |bits: u32| ((va << (64 - bits)) as i64 >> (64 - bits)) as u64;
        match self {
            Self::Sv39 => signed(39),
            Self::X86_64 | Self::Sv48 => signed(48),
            Self::X86_64La57 | Self::Sv57 => signed(57),
            Self::Aarch64 | Self::Aarch64K16 | Self::Aarch64K64 => {
                if va >> 48 == 0 {
                    va
                } else {
                    va | u64::MAX << self.half_bits()
                }
            }
            Self::Sv32 | Self::Mips32 => va,
        }
    }

    /// The first address, in the checker's form, that a root register translates.
    pub(super) fn base(self, high: bool) -> u64 {
        if high { 1 << 48 } else { 0 }
    }

    /// Returns why the root register cannot have a value, whatever it would name.
    pub(super) fn no_root(self, value: u64) -> Option<&'static str> {
        match self.family() {
            _ if self.is_narrow() && value > self.largest() => Some("the root register has 32 bits"),
            // Bits 61 and 62 are of LAM, and bit 63 is of the load.
            Family::X86 if value >> 52 & 0x1ff != 0 => Some("CR3 has reserved bits"),
            _ => None,
        }
    }

    /// Reads a value of the root register; returns none if `satp` names a mode that is neither Bare nor the architecture's.
    pub(super) fn root(self, value: u64) -> Option<Root> {
        let riscv = |mode: u64| Root {
            node: (value >> 60 == mode).then_some((value & ((1 << 44) - 1)) << 12),
            asid: (value >> 44) as u16,
            flushes: false,
        };
        let mode = match self {
            Self::Sv39 => Some(8),
            Self::Sv48 => Some(9),
            Self::Sv57 => Some(10),
            _ => None,
        };
        if mode.is_some_and(|mode| ![0, mode].contains(&(value >> 60))) {
            return None;
        }
        Some(match self {
            Self::Sv32 => Root {
                node: (value >> 31 == 1).then_some((value & ((1 << 22) - 1)) << 12),
                asid: (value >> 22 & 0x1ff) as u16,
                flushes: false,
            },
            Self::Sv39 => riscv(8),
            Self::Sv48 => riscv(9),
            Self::Sv57 => riscv(10),
            Self::X86_64 | Self::X86_64La57 => Root {
                node: Some(value & BITS_48 << 4 & !(PAGE - 1)),
                asid: (value & 0xfff) as u16,
                flushes: value >> 63 == 0,
            },
            Self::Aarch64 | Self::Aarch64K16 | Self::Aarch64K64 => Root {
                // A base of zero stands for a table that is switched off.
                node: Some(self.node(value & BITS_48)).filter(|&node| node != 0),
                asid: (value >> 48) as u16,
                flushes: false,
            },
            Self::Mips32 => Root {
                node: Some(value & !(PAGE - 1)).filter(|&node| node != 0),
                asid: (value & 0xff) as u16,
                flushes: false,
            },
        })
    }

    /// Returns the bits of a word that hardware may have changed since it was stored: those that mark an access and a store.
    pub(super) fn set_by_hardware(self, word: u64, dirty: bool) -> u64 {
        let (set, cleared) = match self.family() {
            Family::RiscV if dirty => (3 << 6, 0),
            // On x86-64 it always does.
            Family::X86 => (3 << 5, 0),
            // With DBM the bit that forbids stores is cleared.
            Family::Arm if dirty => (1 << 10, (word >> 51 & 1) << 7),
            _ => (0, 0),
        };
        if word & 1 != 0 { set & !word | cleared & word } else { 0 }
    }

    /// Reads an entry of a node of `level`. `dirty` says that hardware sets the accessed and dirty bits.
    pub(super) fn entry(self, word: u64, level: u32, dirty: bool) -> Entry {
        use rights::{ALL, KERNEL_EXEC, MARKED, READ, USER, USER_EXEC, WRITE};
        let bit = |at: u32| word >> at & 1 != 0;
        let pick = |set: bool, right: u8| if set { right } else { 0 };
        let shift = level;
        // A page's address is a multiple of its size; what stands below means something else.
        let frame = |address: u64| address & !((1 << shift) - 1);
        match self.family() {
            Family::RiscV => {
                let mut address = (word >> 10 & ((1 << if self == Self::Sv32 { 22 } else { 44 }) - 1)) << 12;
                // Bits 54 to 60 are reserved: with one of them an entry faults.
                let reserved = self != Self::Sv32 && word >> 54 & 0x7f != 0;
                if !bit(0) || (bit(2) && !bit(1)) || reserved {
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
                // Svnapot: a page of 64 KiB in 16 words, whose PPNs end in 1000. Other sizes are reserved.
                let mut shift = shift;
                if self != Self::Sv32 && bit(63) {
                    if level != 12 || address >> 12 & 15 != 8 {
                        return Entry::Absent;
                    }
                    (shift, address) = (16, address & !0xffff);
                }
                if frame(address) != address || !(accessed || dirty) {
                    return Entry::Absent;
                }
                let rights = pick(bit(1), READ)
                    | pick(bit(2) && (marked || dirty), WRITE)
                    // The kernel executes no page of user mode's, whatever SUM says.
                    | pick(bit(3) && !bit(4), KERNEL_EXEC)
                    | pick(bit(3) && bit(4), USER_EXEC)
                    | pick(bit(4), USER)
                    | pick(bit(2) && marked, MARKED);
                Entry::Leaf { frame: address, shift, rights, global: bit(5), memory: (word >> 61 & 3) as u8 }
            }
            Family::X86 => {
                let address = word & ((1 << 52) - 1) & !(PAGE - 1);
                // Without SMEP the kernel executes pages of user mode's.
                let above = READ
                    | MARKED
                    | pick(bit(1), WRITE)
                    | pick(!bit(63), KERNEL_EXEC)
                    | pick(!bit(63) && bit(2), USER_EXEC)
                    | pick(bit(2), USER);
                if !bit(0) {
                    Entry::Absent
                } else if level > 12 && !bit(7) {
                    Entry::Link { node: address, rights: above }
                } else if level > 30 {
                    Entry::Absent
                } else {
                    let rights = above & !MARKED | pick(bit(1) && bit(6), MARKED);
                    let memory = (word >> 3 & 3) as u8;
                    Entry::Leaf { frame: frame(address), shift, rights, global: bit(8), memory }
                }
            }
            Family::Arm => {
                let (address, last) = (self.node(word & BITS_48), self.levels()[0]);
                if !bit(0) {
                    Entry::Absent
                } else if level > last && bit(1) {
                    // APTable, UXNTable and PXNTable take rights away.
                    let lost = pick(bit(61), USER)
                        | pick(bit(62), WRITE | MARKED)
                        | pick(bit(60), USER_EXEC)
                        | pick(bit(59), KERNEL_EXEC);
                    Entry::Link { node: address, rights: ALL & !lost }
                } else if level == self.top() || (level == last) != bit(1) || !(bit(10) || dirty) {
                    Entry::Absent
                } else {
                    let user = bit(6);
                    let rights = READ
                        | pick(!bit(7) || (dirty && bit(51)), WRITE)
                        | pick(!bit(7), MARKED)
                        | pick(user, USER)
                        // User mode executes pages that it cannot read, too; the kernel none that user mode can write.
                        | pick(!bit(54), USER_EXEC)
                        | pick(!bit(53) && (!user || bit(7)), KERNEL_EXEC);
                    let memory = (word >> 2 & 7 | (word >> 8 & 3) << 3) as u8;
                    // The words of a contiguous run have each their own address.
                    let shift = if bit(52) { level + self.run(level) } else { level };
                    let frame = frame(address) >> shift << shift;
                    Entry::Leaf { frame, shift, rights, global: !bit(11), memory }
                }
            }
            Family::Mips if word & VALID != 0 => match size(word) {
                // A page of 4 MiB or more stands in the root.
                Some(shift) if (shift >= 22) == (level == 22) => Self::half(word, shift),
                _ => Entry::Absent,
            },
            // A link is the address of the node in kseg0.
            Family::Mips if level == 22 && word >> 29 == 0b100 => {
                Entry::Link { node: word & ((1 << 29) - 1) & !(PAGE - 1), rights: ALL }
            }
            Family::Mips => Entry::Absent,
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
        let (asid, globals, links) = match self.family() {
            // With an address: leaf entries alone. With a number: none that is global.
            Family::RiscV => (asid, asid.is_none(), if named { Links::None } else { Links::All }),
            // INVLPG invalidates pages of the current PCID, global pages and all links. INVPCID of type 0 invalidates one
            // address without global pages.
            Family::X86 if named && asid.is_none() && !broadcast => (Some(current), true, Links::All),
            Family::X86 => (asid, asid.is_none(), if named { Links::OnTheWay } else { Links::All }),
            // By address global pages match whatever number is named; without one they do not.
            Family::Arm => (asid, named || asid.is_none(), if named { Links::OnTheWay } else { Links::All }),
            // TLBP finds what the address and the number match, a global pair too.
            Family::Mips => (asid, named || asid.is_none(), Links::None),
        };
        // The form for the last level is a form by address.
        let links = if leaf && named { Links::None } else { links };
        Scope { pages, asid, globals, links }
    }
}
