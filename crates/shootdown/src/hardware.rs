//! What the hardware does with page-table entries: the three variables of Tzou 2.1.2, and Table 2.1.

/// Who loads a TLB entry on a miss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Loader {
    /// A walker in the hardware, at any time, speculatively too.
    Hardware,
    /// A miss handler, which can look at more than the page-table entry.
    Software,
}

/// How the hardware writes the referenced and the dirty bit to a page-table entry (Tzou 2.1.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// Not at all: it has none, or it faults and leaves it to software.
    Never,
    /// By an atomic read-modify-write, which fails where the entry no longer allows the access.
    Atomic,
    /// By a read of the entry and, some time later, a write of the whole word.
    ReadThenWrite,
    /// By a write of a whole word that is built from the TLB's copy of the entry.
    FromTlb,
}

impl Status {
    /// Tells whether the write can undo another CPU's change of the entry (Tzou Figure 2.2).
    pub const fn overwrites(self) -> bool {
        matches!(self, Self::ReadThenWrite | Self::FromTlb)
    }
}

/// The hardware, as far as the algorithms care.
///
/// What is assumed of all hardware: a flush of the CPU's own TLB also ends the walks that this CPU has under way,
/// and can be told to wait for its status writes; interprocessor interrupts are not lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Hardware {
    /// Who loads TLB entries.
    pub loader: Loader,
    /// How status bits reach the page-table entry.
    pub status: Status,
    /// How many different status bits the hardware writes to one entry; 0 if [`Status::Never`].
    pub status_bits: u8,
    /// Whether a CPU can flush another CPU's TLB, and be told when what was under way there has ended.
    pub remote_flush: bool,
    /// Whether a flush can wait for the status writes that its CPU still has under way.
    pub drains: bool,
    /// Whether writing a dirty line back needs the page-table entry: a virtually tagged cache that keeps protection
    /// but no physical address in its lines (Tzou 2.3.3). Such a cache is flushed like a TLB, and lines of an
    /// address space must not outlive its running: lazy handling is not for it.
    pub lines_need_entry: bool,
}

impl Hardware {
    const fn of(loader: Loader, status: Status, status_bits: u8) -> Self {
        Self { loader, status, status_bits, remote_flush: false, drains: true, lines_need_entry: false }
    }

    /// VAX 8800 (Table 2.1): the dirty bit by a read-then-write on a miss, from the TLB on a hit. The second of the
    /// two is the harder one, and stands for both.
    pub const VAX: Self = Self::of(Loader::Hardware, Status::FromTlb, 1);
    /// NS32332 in the Encore Multimax (Table 2.1): as the VAX, and here with the milder of its two ways.
    pub const NS32332: Self = Self::of(Loader::Hardware, Status::ReadThenWrite, 1);
    /// SUN3 MMU (Table 2.1): loaded by software, status bits stay in the MMU.
    pub const SUN3: Self = Self::of(Loader::Software, Status::Never, 0);
    /// Intel 386 in the Sequent Symmetry (Table 2.1), and x86 since.
    pub const I386: Self = Self::of(Loader::Hardware, Status::Atomic, 2);
    /// Intel N10, the i860 (Table 2.1): the referenced bit atomically, the dirty bit by a trap.
    pub const N10: Self = Self::of(Loader::Hardware, Status::Atomic, 1);
    /// IBM RP3 (Table 2.1): a software miss handler, no status bits. MIPS is the same.
    pub const RP3: Self = Self::of(Loader::Software, Status::Never, 0);
    /// Motorola MC88200: any CPU reaches any CMMU's control registers; it writes both status bits in a locked cycle.
    pub const MC88200: Self = Self { remote_flush: true, ..Self::of(Loader::Hardware, Status::Atomic, 2) };

    /// The rows of Table 2.1 and the machine of its text with remote flush, each with its name.
    pub const TABLE: [(&'static str, Self); 7] = [
        ("vax", Self::VAX),
        ("ns32332", Self::NS32332),
        ("sun3", Self::SUN3),
        ("i386", Self::I386),
        ("n10", Self::N10),
        ("rp3", Self::RP3),
        ("mc88200", Self::MC88200),
    ];

    /// Returns this hardware with its status bits forced: set in every entry beforehand, or emulated by faults
    /// (Tzou 2.1.3), so that it never writes one. It makes every algorithm that fails over status bits suitable.
    #[must_use]
    pub const fn status_by_faults(self) -> Self {
        Self { status: Status::Never, status_bits: 0, ..self }
    }
}
