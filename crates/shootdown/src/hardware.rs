//! The behaviour of hardware that the algorithms depend on: the three variables of Tzou 2.1.2, the machines of Table 2.1,
//! and the machines of today.

/// The part of the machine that loads a TLB entry on a miss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Loader {
    /// A hardware page-table walker, at any time, also speculatively.
    Hardware,
    /// A miss handler in software, which can read more than the page-table entry.
    Software,
}

/// One way in which the hardware writes a status bit to a page-table entry (Tzou 2.1.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// The hardware never writes the bit: it has no such bit, or it faults and software sets the bit.
    Never,
    /// By an atomic read-modify-write, which fails if the entry no longer allows the access.
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

/// The ways in which the hardware writes one status bit. Table 2.1 has a column for each of the two bits, and its note 2
/// gives two ways for one bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StatusBit {
    /// The way in which the hardware writes the bit when a TLB miss loads the entry. The hardware reads the entry for the
    /// load, so [`Status::ReadThenWrite`] and [`Status::FromTlb`] mean the same here: the hardware writes the word that it
    /// has just loaded, with the bit set. The field has no effect if software loads the TLB, because a miss handler writes
    /// atomically.
    pub on_miss: Status,
    /// The way in which the hardware writes the bit when an access uses a TLB entry that does not have the bit.
    pub on_hit: Status,
}

impl StatusBit {
    /// A bit that the hardware never writes.
    pub const NEVER: Self = Self::by(Status::Never);
    /// A bit that the hardware writes atomically.
    pub const ATOMIC: Self = Self::by(Status::Atomic);

    /// Returns a bit that the hardware writes in the same way on a miss and on a hit.
    pub const fn by(status: Status) -> Self {
        Self { on_miss: status, on_hit: status }
    }

    /// Tells whether one of the writes can undo another CPU's change of the entry.
    pub const fn overwrites(self) -> bool {
        self.on_miss.overwrites() || self.on_hit.overwrites()
    }
}

/// The behaviour of a machine's TLBs, status bits and caches that the algorithms depend on.
///
/// The algorithms assume of all hardware:
///
/// - a flush of the CPU's own TLB also ends the hardware walks that this CPU has under way;
/// - no interprocessor interrupt is lost;
/// - each CPU has at most one status write under way at a time;
/// - a TLB entry that has a status bit set does not write this bit again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Hardware {
    /// The part of the machine that loads TLB entries.
    pub loader: Loader,
    /// The way in which the referenced (accessed) bit reaches the page-table entry.
    pub referenced: StatusBit,
    /// The way in which the dirty (modified, changed) bit reaches the page-table entry.
    pub dirty: StatusBit,
    /// Whether hardware that reads the entry to set a bit, and finds the bit already set, still writes the word.
    ///
    /// If it does not, each such write adds a bit to the word that the hardware has read, and a word has few status bits:
    /// this bounds the rounds of the optimistic algorithms. Use `true` if the manual does not say.
    pub rewrites_set_bits: bool,
    /// Whether a CPU can flush another CPU's TLB, and can find out when the hardware walks and status writes that were under
    /// way on that CPU have ended. Such a flush does not end a walk by software on that CPU, so it does not make page-table
    /// nodes that software walks free ([`RemoteTlbs::ends_walks`](crate::RemoteTlbs::ends_walks)).
    pub remote_flush: bool,
    /// Whether one instruction flushes the TLBs of all CPUs, and a barrier of the same CPU waits until that is done, and until the
    /// hardware walks and status writes have ended that were under way on any CPU: see [`Broadcast`](crate::Broadcast). For a
    /// [remote flush](Self::remote_flush) such hardware broadcasts, and the flush reaches more CPUs than it need.
    pub broadcasts: bool,
    /// Whether a flush can wait for the status writes that its CPU has under way.
    pub drains: bool,
    /// Whether the write-back of a dirty cache line needs the page-table entry: a virtually tagged cache whose lines hold
    /// rights but no physical address (Tzou 2.3.3). Such a cache is flushed like a TLB. A CPU that stops running an address
    /// space must flush the space's lines, so it cannot keep translations for later (lazy handling).
    pub lines_need_entry: bool,
}

impl Hardware {
    /// Returns hardware with these properties, whose flushes wait for status writes, and without any other property.
    const fn of(loader: Loader, referenced: StatusBit, dirty: StatusBit) -> Self {
        Self {
            loader,
            referenced,
            dirty,
            rewrites_set_bits: false,
            remote_flush: false,
            broadcasts: false,
            drains: true,
            lines_need_entry: false,
        }
    }

    /// Returns this hardware with remote flush.
    const fn flushed_remotely(self) -> Self {
        Self { remote_flush: true, ..self }
    }

    /// Returns this hardware with flushes that reach all CPUs.
    const fn broadcasting(self) -> Self {
        Self { broadcasts: true, ..self.flushed_remotely() }
    }

    /// VAX 8800 (Table 2.1): the dirty bit by a non-atomic read-modify-write on a TLB miss, and by a write from the TLB
    /// on a hit. The table does not say whether a bit that is set already is written again.
    pub const VAX: Self = Self {
        rewrites_set_bits: true,
        ..Self::of(
            Loader::Hardware,
            StatusBit::NEVER,
            StatusBit { on_miss: Status::ReadThenWrite, on_hit: Status::FromTlb },
        )
    };
    /// NS32332 in the Encore Multimax (Table 2.1): as the VAX.
    pub const NS32332: Self = Self::VAX;
    /// SUN3 MMU (Table 2.1): loaded by software, status bits stay in the MMU.
    pub const SUN3: Self = Self::of(Loader::Software, StatusBit::NEVER, StatusBit::NEVER);
    /// Intel 386 in the Sequent Symmetry (Table 2.1).
    pub const I386: Self = Self::of(Loader::Hardware, StatusBit::ATOMIC, StatusBit::ATOMIC);
    /// Intel N10, the i860 (Table 2.1): the referenced bit atomically, the dirty bit by a trap.
    pub const N10: Self = Self::of(Loader::Hardware, StatusBit::ATOMIC, StatusBit::NEVER);
    /// IBM RP3 (Table 2.1): a software miss handler, no status bits.
    pub const RP3: Self = Self::of(Loader::Software, StatusBit::NEVER, StatusBit::NEVER);
    /// Motorola MC88200: any CPU can access any CMMU's control registers. A CMMU writes both status bits in a locked cycle.
    pub const MC88200: Self = Self::I386.flushed_remotely();

    /// x86-64: locked cycles set the accessed and dirty flags (Intel SDM volume 3A, "Automatic Locking"; AMD64 manual
    /// volume 2, "Notes on Accessed and Dirty Bits"). When a store through a stale TLB entry has to set the dirty flag, the
    /// CPU reads the page-table entry again, and faults if the entry is not present.
    pub const X86_64: Self = Self::I386;
    /// x86-64 with `INVLPGB`, which flushes the TLBs of all CPUs, and `TLBSYNC`, which waits for them (AMD64 manual
    /// volume 3, on the two instructions).
    pub const X86_64_INVLPGB: Self = Self::X86_64.broadcasting();
    /// AArch64 with an access flag and a dirty state that faults set. `TLBI` with `IS` is broadcast, and the `DSB` after it
    /// waits for the accesses by the old entry on all CPUs (Arm ARM, DDI 0487, chapter D8, "TLB maintenance instructions").
    pub const AARCH64: Self = Self::of(Loader::Hardware, StatusBit::NEVER, StatusBit::NEVER).broadcasting();
    /// AArch64 with `FEAT_HAFDBS` switched on, by `TCR_ELx.HA` and `HD`: atomic updates (Arm ARM, DDI 0487, chapter D8,
    /// "Hardware management of the Access flag" and "of the dirty state").
    pub const AARCH64_HAFDBS: Self =
        Self::of(Loader::Hardware, StatusBit::ATOMIC, StatusBit::ATOMIC).broadcasting();
    /// RISC-V with Svade: an access that would set A or D faults (privileged manual, "Svade"). `SFENCE.VMA` affects its own
    /// hart only. The SBI's remote fence is a service of the firmware, which interrupts the other harts.
    pub const RISCV_SVADE: Self = Self::of(Loader::Hardware, StatusBit::NEVER, StatusBit::NEVER);
    /// RISC-V with Svadu: A and D are set atomically, together with the checks of the leaf entry (privileged manual,
    /// "Svadu").
    pub const RISCV_SVADU: Self = Self::of(Loader::Hardware, StatusBit::ATOMIC, StatusBit::ATOMIC);
    /// MIPS32 and MIPS64: TLB refill and TLB modified exceptions (MIPS architecture for programmers, volume III, "TLB
    /// Refill Exception", "TLB Modified Exception"). Without the optional hardware page-table walker and the optional
    /// `GINVT`.
    pub const MIPS32: Self = Self::of(Loader::Software, StatusBit::NEVER, StatusBit::NEVER);
    /// LoongArch64: TLB refill and page modification exceptions (LoongArch reference manual, volume 1, "Exceptions
    /// related to the TLB"). Without the optional hardware page-table walker, which sets bits itself.
    pub const LOONGARCH64: Self = Self::of(Loader::Software, StatusBit::NEVER, StatusBit::NEVER);
    /// PowerPC with a radix tree: R and C atomically, or a storage interrupt if that fails; `tlbie` is broadcast, and
    /// `ptesync` waits for it (Power ISA 3.1, book III, "Reference and Change Recording", "Translation Table Update
    /// Synchronization Requirements").
    pub const POWERPC_RADIX: Self =
        Self::of(Loader::Hardware, StatusBit::ATOMIC, StatusBit::ATOMIC).broadcasting();
    /// PowerPC with a hashed page table: table searches write R and C, need not be atomic, and may write the word that holds
    /// the rights (the same sections). This value is for entries whose rights change in place. The valid bit of an entry is
    /// in a doubleword that no status write changes: if a kernel changes entries only by this bit, they behave as
    /// [`POWERPC_RADIX`](Self::POWERPC_RADIX).
    pub const POWERPC_HASH: Self = Self {
        rewrites_set_bits: true,
        ..Self::of(
            Loader::Hardware,
            StatusBit::by(Status::ReadThenWrite),
            StatusBit::by(Status::ReadThenWrite),
        )
    }
    .broadcasting();

    /// The machines of Table 2.1, and the machine with remote flush of the thesis's text, each with its name.
    pub const TABLE: [(&'static str, Self); 7] = [
        ("vax", Self::VAX),
        ("ns32332", Self::NS32332),
        ("sun3", Self::SUN3),
        ("i386", Self::I386),
        ("n10", Self::N10),
        ("rp3", Self::RP3),
        ("mc88200", Self::MC88200),
    ];

    /// The machines of today, each with its name.
    pub const TODAY: [(&'static str, Self); 10] = [
        ("x86-64", Self::X86_64),
        ("x86-64-invlpgb", Self::X86_64_INVLPGB),
        ("aarch64", Self::AARCH64),
        ("aarch64-hafdbs", Self::AARCH64_HAFDBS),
        ("riscv-svade", Self::RISCV_SVADE),
        ("riscv-svadu", Self::RISCV_SVADU),
        ("mips32", Self::MIPS32),
        ("loongarch64", Self::LOONGARCH64),
        ("powerpc-radix", Self::POWERPC_RADIX),
        ("powerpc-hash", Self::POWERPC_HASH),
    ];

    /// Returns this hardware under a kernel that sets the status bits in every entry beforehand, or emulates them by faults
    /// (Tzou 2.1.3), so that the hardware never writes one. No algorithm is unsuitable because of status bits then.
    ///
    /// To set the bits beforehand is not sufficient if the hardware [rewrites](Self::rewrites_set_bits) them on a miss.
    #[must_use]
    pub const fn status_by_faults(self) -> Self {
        Self { referenced: StatusBit::NEVER, dirty: StatusBit::NEVER, rewrites_set_bits: false, ..self }
    }

    /// Tells whether a status write can undo another CPU's change of an entry (Tzou Figure 2.2).
    pub const fn status_overwrites(&self) -> bool {
        self.bits_that_overwrite() > 0
    }

    /// Returns how many status bits are written in a way that can undo a change.
    pub(crate) const fn bits_that_overwrite(&self) -> u8 {
        self.of_this_loader(self.referenced).overwrites() as u8
            + self.of_this_loader(self.dirty).overwrites() as u8
    }

    /// Tells whether an access that hits in the TLB can make the hardware read the entry in memory, which may have changed
    /// since the TLB entry was loaded, and write it back.
    pub(crate) const fn reads_entry_on_hit(&self) -> bool {
        matches!(self.referenced.on_hit, Status::ReadThenWrite)
            || matches!(self.dirty.on_hit, Status::ReadThenWrite)
    }

    /// Tells whether the hardware may write a word back without setting a new bit in it.
    pub(crate) const fn rewrites(&self) -> bool {
        let on_miss = self.of_this_loader(self.referenced).on_miss.overwrites()
            || self.of_this_loader(self.dirty).on_miss.overwrites();
        self.rewrites_set_bits && (on_miss || self.reads_entry_on_hit())
    }

    /// Returns `bit` without its write on a miss if software loads the TLB: only hardware that loads an entry on a miss can
    /// write it on a miss.
    const fn of_this_loader(&self, bit: StatusBit) -> StatusBit {
        match self.loader {
            Loader::Hardware => bit,
            Loader::Software => StatusBit { on_miss: Status::Never, ..bit },
        }
    }
}
