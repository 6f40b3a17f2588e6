//! The rules of each architecture: how an entry is decoded, and what an invalidation covers.
//!
//! The decoders are written from the manuals and share no code with the tables that the checker checks, so a mistake in one of them
//! is found by the other.

use crate::event::Fence;

/// An architecture, and the shape of its tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Arch {
    /// RISC-V with Sv32: two levels, of words of 32 bits. Without `uses dirty` RISC-V has Svade: an access by an entry without A faults,
    /// and so does a store by an entry without D.
    Sv32,
    /// RISC-V with Sv39: three levels. This one, Sv48 and Sv57 have Svnapot.
    Sv39,
    /// RISC-V with Sv48: four levels.
    Sv48,
    /// RISC-V with Sv57: five levels.
    Sv57,
    /// x86-64 with four levels.
    X86_64,
    /// x86-64 with five levels: CR4.LA57.
    X86_64La57,
    /// AArch64, stage 1, 4 KiB granule, 48 bits, four levels. All three granules have contiguous runs.
    Aarch64,
    /// AArch64, stage 1, 4 KiB granule, 39 bits (T0SZ and T1SZ 25), three levels.
    Aarch64B39,
    /// AArch64, stage 1, 4 KiB granule, 42 bits (T0SZ and T1SZ 22), four levels. A root, of eight words, is at a multiple of 4 KiB.
    Aarch64B42,
    /// AArch64, stage 1, 16 KiB granule, 47 bits, three levels.
    Aarch64K16,
    /// AArch64, stage 1, 64 KiB granule, 48 bits, three levels. A root is at a multiple of 64 KiB.
    Aarch64K64,
    /// MIPS32, whose TLB is loaded by software: two levels of ten bits, of words in the format of `EntryLo`.
    Mips32,
}

/// An architecture, without the shape of its tables.
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
    /// The kernel and user mode execute it.
    pub(crate) const EXEC: u8 = KERNEL_EXEC | USER_EXEC;
    pub(crate) const ALL: u8 = 63;
}

/// A decoded entry.
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
    /// Whether loading the value removes all entries under its number, except global pages.
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
    /// The addresses of leaf entries, in the checker's form; `None` for all.
    pub(super) pages: Option<(u64, u64)>,
    /// The number of the entries that are not global; `None` for all numbers.
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

/// Returns the logarithm of the size of the page that a valid word of a MIPS32 table maps. `PageMask` is not part of the word: bits 31
/// and 30, which hardware ignores, are 01 for a page of more than 4 KiB, and the position of the lowest pair of PFN bits that is not 0
/// gives the size.
fn size(word: u64) -> Option<u32> {
    if word >> 30 != 1 {
        return Some(12);
    }
    let digit = (word >> PFN & PFN_MASK).trailing_zeros() / 2;
    Some(14 + 2 * digit).filter(|&shift| shift <= LARGE)
}

impl Arch {
    /// All architectures.
    pub const ALL: [Self; 12] = [
        Self::Sv32,
        Self::Sv39,
        Self::Sv48,
        Self::Sv57,
        Self::X86_64,
        Self::X86_64La57,
        Self::Aarch64,
        Self::Aarch64B39,
        Self::Aarch64B42,
        Self::Aarch64K16,
        Self::Aarch64K64,
        Self::Mips32,
    ];

    /// Returns the name that `tlblab witness --arch` takes.
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
            Self::Aarch64B39 => "aarch64-39",
            Self::Aarch64B42 => "aarch64-42",
            Self::Aarch64K16 => "aarch64-16k",
            Self::Aarch64K64 => "aarch64-64k",
            Self::Mips32 => "mips32",
        }
    }

    /// Returns the architecture with a name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|arch| arch.name() == name)
    }

    /// Returns the architecture without the shape of its tables.
    pub(super) fn family(self) -> Family {
        match self {
            Self::Sv32 | Self::Sv39 | Self::Sv48 | Self::Sv57 => Family::RiscV,
            Self::X86_64 | Self::X86_64La57 => Family::X86,
            Self::Aarch64 | Self::Aarch64B39 | Self::Aarch64B42 | Self::Aarch64K16 | Self::Aarch64K64 => {
                Family::Arm
            }
            Self::Mips32 => Family::Mips,
        }
    }

    /// Returns the levels, the last one first: the logarithm of the bytes that one word of a node covers.
    pub(super) fn levels(self) -> &'static [u32] {
        match self {
            Self::Mips32 | Self::Sv32 => &[12, 22],
            Self::Sv39 | Self::Aarch64B39 => &[12, 21, 30],
            Self::X86_64 | Self::Aarch64 | Self::Aarch64B42 | Self::Sv48 => &[12, 21, 30, 39],
            Self::X86_64La57 | Self::Sv57 => &[12, 21, 30, 39, 48],
            Self::Aarch64K16 => &[14, 25, 36],
            Self::Aarch64K64 => &[16, 29, 42],
        }
    }

    /// Returns the bytes of a node, which are also those of the smallest page.
    pub(super) fn granule(self) -> u64 {
        1 << self.levels()[0]
    }

    /// Returns the node that a word is in.
    pub(super) fn node(self, at: u64) -> u64 {
        at & !(self.granule() - 1)
    }

    /// Returns the level of the root node.
    pub(super) fn top(self) -> u32 {
        self.levels()[self.levels().len() - 1]
    }

    /// Returns the difference between two levels: the number of address bits that index a node.
    pub(super) fn step(self) -> u32 {
        self.levels()[1] - self.levels()[0]
    }

    /// Returns the bytes of a word.
    pub(super) fn word(self) -> u64 {
        if self.is_narrow() { 4 } else { 8 }
    }

    fn is_narrow(self) -> bool {
        matches!(self, Self::Mips32 | Self::Sv32)
    }

    /// Returns the largest value of a word.
    pub(super) fn largest(self) -> u64 {
        if self.is_narrow() { u32::MAX.into() } else { u64::MAX }
    }

    /// Returns the error for an address or a value that no word of a table has.
    pub(super) fn no_word(self) -> &'static str {
        if self.is_narrow() {
            "a word has 4 bytes, and its address is a multiple of 4"
        } else {
            "a word's address is a multiple of 8"
        }
    }

    /// Returns the first address that a word covers, less the first address of its node.
    pub(super) fn offset(self, at: u64, level: u32) -> u64 {
        (at % self.granule() / self.word()) << level
    }

    /// Returns the physical address of the word of a node that covers an address.
    pub(super) fn slot(self, node: u64, level: u32, va: u64) -> u64 {
        node + (va >> level & ((1 << self.step()) - 1)) * self.word()
    }

    /// Returns the logarithm of the size of the smallest run of words that may be one TLB entry.
    pub(super) fn smallest_run(self) -> u32 {
        self.sizes().find(|size| !self.levels().contains(size)).unwrap_or(self.levels()[0])
    }

    /// Returns the logarithms of the page sizes: those of words, of contiguous runs, and of PageMask.
    pub(super) fn sizes(self) -> impl Iterator<Item = u32> {
        let sizes: &[u32] = match self {
            Self::Sv32 => &[12, 22],
            Self::Sv39 => &[12, 16, 21, 30],
            Self::Sv48 => &[12, 16, 21, 30, 39],
            Self::Sv57 => &[12, 16, 21, 30, 39, 48],
            Self::X86_64 | Self::X86_64La57 => &[12, 21, 30],
            Self::Aarch64 | Self::Aarch64B39 | Self::Aarch64B42 => &[12, 16, 21, 25, 30, 34],
            Self::Aarch64K16 => &[14, 21, 25, 30],
            Self::Aarch64K64 => &[16, 21, 29, 34],
            Self::Mips32 => &[12, 14, 16, 18, 20, 22, 24, 26, LARGE],
        };
        sizes.iter().copied()
    }

    /// Returns the logarithm of the number of words of a contiguous run of AArch64.
    fn run(self, level: u32) -> u32 {
        match (self, level) {
            (Self::Aarch64 | Self::Aarch64B39 | Self::Aarch64B42, _) => 4,
            (Self::Aarch64K16, 14) => 7,
            _ => 5,
        }
    }

    /// Returns the number of bits of an address space's number, and the error for a number with more bits.
    pub(super) fn asid(self) -> (u32, &'static str) {
        match self {
            Self::Sv32 => (9, "an ASID of Sv32 has 9 bits"),
            Self::X86_64 | Self::X86_64La57 => (12, "a PCID has 12 bits"),
            Self::Mips32 => (8, "an ASID of MIPS32 has 8 bits"),
            _ => (16, "an ASID has 16 bits"),
        }
    }

    /// Tells whether a word may be a leaf or a link.
    pub(super) fn says(self, word: u64) -> bool {
        if self == Self::Mips32 { word & !G != 0 } else { word & 1 != 0 }
    }

    /// Tells whether software walks the tables. Such a walk keeps no link, and ends before its CPU's next event.
    pub(super) fn is_software(self) -> bool {
        self == Self::Mips32
    }

    /// Tells whether stores become visible in their order, and to all CPUs at the same time.
    pub(super) fn is_ordered(self) -> bool {
        self.family() == Family::X86
    }

    /// Tells whether a word may map a larger page, or be half of a global pair.
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

    /// Tells whether an invalidation completes only at a barrier.
    pub(super) fn defers(self, fence: Fence) -> bool {
        match self.family() {
            Family::Arm => true,
            Family::X86 => fence.broadcast,
            Family::RiscV | Family::Mips => false,
        }
    }

    /// Tells whether the architecture requires break before make: a change of a page's size, frame or memory type goes through an invalid
    /// entry.
    pub(super) fn breaks(self) -> bool {
        self.family() == Family::Arm
    }

    /// Returns a virtual address in the checker's form, without the bits of its sign extension; `None` if it is not canonical.
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
            // The top byte may be a tag.
            Self::Aarch64 | Self::Aarch64B39 | Self::Aarch64B42 | Self::Aarch64K16 | Self::Aarch64K64 => {
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

    /// Returns the number of bits of an address in each half of AArch64's address space.
    fn half_bits(self) -> u32 {
        match self {
            Self::Aarch64B39 => 39,
            Self::Aarch64B42 => 42,
            Self::Aarch64K16 => 47,
            _ => 48,
        }
    }

    /// Returns the kernel's form of an address in the checker's form.
    pub(super) fn show(self, va: u64) -> u64 {
        let signed = |bits: u32| ((va << (64 - bits)) as i64 >> (64 - bits)) as u64;
        match self {
            Self::Sv39 => signed(39),
            Self::X86_64 | Self::Sv48 => signed(48),
            Self::X86_64La57 | Self::Sv57 => signed(57),
            Self::Aarch64 | Self::Aarch64B39 | Self::Aarch64B42 | Self::Aarch64K16 | Self::Aarch64K64 => {
                if va >> 48 == 0 { va } else { va | u64::MAX << self.half_bits() }
            }
            Self::Sv32 | Self::Mips32 => va,
        }
    }

    /// Returns the first address, in the checker's form, that a root register translates.
    pub(super) fn base(self, high: bool) -> u64 {
        if high { 1 << 48 } else { 0 }
    }

    /// Returns the reason why the root register cannot have a value, or `None` if it can.
    pub(super) fn no_root(self, value: u64) -> Option<&'static str> {
        match self.family() {
            _ if self.is_narrow() && value > self.largest() => Some("the root register has 32 bits"),
            // Bits 61 and 62 belong to LAM. Bit 63 is an operand of the load.
            Family::X86 if value >> 52 & 0x1ff != 0 => Some("CR3 has reserved bits"),
            _ => None,
        }
    }

    /// Decodes a value of the root register. Returns `None` if `satp` names a mode that is neither Bare nor this architecture's.
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
            Self::Aarch64 | Self::Aarch64B39 | Self::Aarch64B42 | Self::Aarch64K16 | Self::Aarch64K64 => {
                Root {
                    // A base of zero means that no table is loaded.
                    node: Some(self.node(value & BITS_48)).filter(|&node| node != 0),
                    asid: (value >> 48) as u16,
                    flushes: false,
                }
            }
            Self::Mips32 => Root {
                node: Some(value & !(PAGE - 1)).filter(|&node| node != 0),
                asid: (value & 0xff) as u16,
                flushes: false,
            },
        })
    }

    /// Returns the bits of a word that hardware may have changed since the store: the accessed and dirty bits.
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

    /// Decodes a word of a node of `level`. `dirty` tells whether hardware sets the accessed and dirty bits.
    pub(super) fn entry(self, word: u64, level: u32, dirty: bool) -> Entry {
        use rights::{ALL, KERNEL_EXEC, MARKED, READ, USER, USER_EXEC, WRITE};
        let bit = |at: u32| word >> at & 1 != 0;
        let pick = |set: bool, right: u8| if set { right } else { 0 };
        let shift = level;
        // A page's address is a multiple of its size; the lower bits have another meaning.
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
                } else if self.sizes().all(|size| size != level)
                    || (level == last) != bit(1)
                    || !(bit(10) || dirty)
                {
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
                    // Each word of a contiguous run holds the address of its own part.
                    let shift = if bit(52) { level + self.run(level) } else { level };
                    let frame = frame(address) >> shift << shift;
                    Entry::Leaf { frame, shift, rights, global: !bit(11), memory }
                }
            }
            Family::Mips if word & VALID != 0 => match size(word) {
                // A page of 4 MiB or more is in the root.
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

    /// Decodes half of a MIPS32 pair of pages of `1 << shift` bytes: the value of an `EntryLo` register.
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

    /// Returns the scope of an invalidation that a CPU executes while it runs the number `current`. The addresses are in the checker's form.
    pub(super) fn scope(self, fence: Fence, pages: Option<(u64, u64)>, current: u16) -> Scope {
        let Fence { asid, leaf, broadcast, .. } = fence;
        let named = pages.is_some();
        let (asid, globals, links) = match self.family() {
            // With an address it covers leaf entries only. With a number it covers no global entry.
            Family::RiscV => (asid, asid.is_none(), if named { Links::None } else { Links::All }),
            // INVLPG invalidates pages of the current PCID, global pages and all links. INVPCID of type 0 invalidates one
            // address without global pages.
            Family::X86 if named && asid.is_none() && !broadcast => (Some(current), true, Links::All),
            Family::X86 => (asid, asid.is_none(), if named { Links::OnTheWay } else { Links::All }),
            // With an address it covers global pages, whatever number it names. With a number alone it does not.
            Family::Arm => (asid, named || asid.is_none(), if named { Links::OnTheWay } else { Links::All }),
            // TLBP finds the entry that matches the address and the number, also a global pair.
            Family::Mips => (asid, named || asid.is_none(), Links::None),
        };
        // An invalidation of the last level only always names an address.
        let links = if leaf && named { Links::None } else { links };
        Scope { pages, asid, globals, links }
    }
}
