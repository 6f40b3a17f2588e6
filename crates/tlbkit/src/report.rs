//! The fault registers of the machines, decoded. Each function is a table of its manual: it reads integers, and needs no machine.

use tlbkit_addr::Attr;

use crate::Access;
use crate::fault::{Reason, Report};

impl Access {
    const fn reported_by(right: Attr, user: bool, report: Report) -> Self {
        Self { right, user, report }
    }

    /// Returns the access that the error code of a page fault (vector 14) describes: Intel SDM volume 3, 4.7, and for bit 31 AMD
    /// APM volume 2, 15.36.10.
    ///
    /// | bit | name | the fault |
    /// |-|-|-|
    /// | 0 | P | clear: no translation |
    /// | 1 | W/R | set: a store |
    /// | 2 | U/S | set: in user mode |
    /// | 3 | RSVD | an entry has a reserved bit: [`Reason::Entry`] |
    /// | 4 | I/D | an instruction fetch |
    /// | 5 | PK | [`Reason::ProtectionKey`] |
    /// | 6 | SS | an access to a shadow stack; if the page allows it, [`Reason::ShadowStack`] |
    /// | 7, 15, 31 | HLAT, SGX, RMP | [`Reason::Memory`] |
    ///
    /// A load in supervisor mode from a page that is present and the user's is refused by SMAP alone: [`Reason::UserPage`].
    pub const fn from_x86_64(error: u64) -> Self {
        const PRESENT: u64 = 1;
        const WRITE: u64 = 1 << 1;
        const USER: u64 = 1 << 2;
        const RESERVED: u64 = 1 << 3;
        const FETCH: u64 = 1 << 4;
        const KEY: u64 = 1 << 5;
        const SHADOW_STACK: u64 = 1 << 6;
        const OUTSIDE: u64 = 1 << 7 | 1 << 15 | 1 << 31;
        let right = match error & (FETCH | WRITE) {
            0 => Attr::READ,
            WRITE => Attr::WRITE,
            _ => Attr::EXEC,
        };
        let report = if error & OUTSIDE != 0 {
            Report::Refused(Reason::Memory)
        } else if error & RESERVED != 0 {
            Report::Refused(Reason::Entry)
        } else if error & PRESENT == 0 {
            Report::Absent
        } else if error & KEY != 0 {
            Report::Refused(Reason::ProtectionKey)
        } else if error & SHADOW_STACK != 0 {
            Report::Refused(Reason::ShadowStack)
        } else if error & (WRITE | USER | FETCH) == 0 {
            Report::Refused(Reason::UserPage)
        } else {
            Report::Fault
        };
        Self::reported_by(right, error & USER != 0, report)
    }

    /// Returns the access that `scause` and `sstatus` of a trap to supervisor mode describe; `None` if the trap is not that of an
    /// access to memory. RISC-V Privileged Architecture, 10.1.1 and 10.1.8.
    ///
    /// | `scause` | exception | the access |
    /// |-|-|-|
    /// | 12, 13, 15 | page fault | a fetch, a load, a store or an AMO |
    /// | 0, 4, 6 | misaligned | the same, and [`Reason::Alignment`] |
    /// | 1, 5, 7 | access fault | the same, and [`Reason::Memory`] |
    ///
    /// SPP (bit 8 of `sstatus`) is the mode. Supervisor mode never fetches from a user's page, and loads and stores there only if SUM
    /// (bit 18) is set: [`Reason::UserPage`]. With MXR (bit 19) a load needs a page that can be read or executed.
    pub const fn from_riscv(scause: usize, sstatus: usize) -> Option<Self> {
        const SPP: usize = 1 << 8;
        const SUM: usize = 1 << 18;
        const MXR: usize = 1 << 19;
        let load = if sstatus & MXR == 0 { Attr::READ } else { Attr::READ.union(Attr::EXEC) };
        let (right, is_fetch) = match scause {
            0 | 1 | 12 => (Attr::EXEC, true),
            4 | 5 | 13 => (load, false),
            6 | 7 | 15 => (Attr::WRITE, false),
            _ => return None,
        };
        let user = sstatus & SPP == 0;
        let report = match scause {
            0 | 4 | 6 => Report::Refused(Reason::Alignment),
            1 | 5 | 7 => Report::Refused(Reason::Memory),
            _ if !user && (is_fetch || sstatus & SUM == 0) => Report::Refused(Reason::UserPage),
            _ => Report::Fault,
        };
        Some(Self::reported_by(right, user, report))
    }

    /// Returns the access that `ESR_EL1` describes; `None` if the exception is no instruction abort and no data abort. Arm ARM
    /// D24.2.40, "ISS encoding for an exception from a Data Abort" and "from an Instruction Abort".
    ///
    /// | field | bits | the access |
    /// |-|-|-|
    /// | EC | 31 to 26 | 0x20, 0x21: a fetch; 0x24, 0x25: a load or a store. The even ones are from a lower exception level: user mode |
    /// | WnR | 6 | a store, unless CM is set |
    /// | CM | 8 | a cache maintenance instruction, which needs what a load needs |
    /// | S1PTW | 7 | the hypervisor's table has no translation for a node: [`Reason::Memory`] |
    /// | Overlay, GCS | 38, 40 | with a permission fault: [`Reason::ProtectionKey`], [`Reason::ShadowStack`] |
    ///
    /// | fault status code, bits 5 to 0 | fault | |
    /// |-|-|-|
    /// | 0x00 to 0x03, 0x29, 0x2c | address size | [`Reason::Entry`] |
    /// | 0x04 to 0x07, 0x2a, 0x2b | translation | |
    /// | 0x08 to 0x0b, 0x0c to 0x0f | access flag, permission | |
    /// | 0x10, 0x12 to 0x17 | synchronous external abort | [`Reason::Memory`] |
    /// | 0x18, 0x1b to 0x1f | parity or ECC error | [`Reason::Memory`] |
    /// | 0x21 | alignment | [`Reason::Alignment`] |
    /// | 0x22 to 0x28 | granule protection | [`Reason::Memory`] |
    /// | 0x30 | TLB conflict | a flush of everything is the answer, once |
    /// | 0x31 | the memory cannot be updated by the walker | [`Reason::Memory`] |
    /// | others | tag check, lockdown, ... | [`Reason::Unknown`] |
    pub const fn from_aarch64(esr: u64) -> Option<Self> {
        const WRITE: u64 = 1 << 6;
        const WALK_BY_STAGE_2: u64 = 1 << 7;
        const CACHE: u64 = 1 << 8;
        const OVERLAY: u64 = 1 << 38;
        const GUARDED_STACK: u64 = 1 << 40;
        let (user, is_fetch) = match esr >> 26 & 0x3f {
            0x20 => (true, true),
            0x21 => (false, true),
            0x24 => (true, false),
            0x25 => (false, false),
            _ => return None,
        };
        let right = match esr & (WRITE | CACHE) {
            _ if is_fetch => Attr::EXEC,
            WRITE => Attr::WRITE,
            _ => Attr::READ,
        };
        let report = match esr & 0x3f {
            _ if esr & WALK_BY_STAGE_2 != 0 => Report::Refused(Reason::Memory),
            0x00..=0x03 | 0x29 | 0x2c => Report::Refused(Reason::Entry),
            0x04..=0x07 | 0x2a | 0x2b => Report::Absent,
            0x0c..=0x0f if !is_fetch && esr & GUARDED_STACK != 0 => Report::Refused(Reason::ShadowStack),
            0x0c..=0x0f if esr & OVERLAY != 0 => Report::Refused(Reason::ProtectionKey),
            0x08..=0x0f => Report::Fault,
            0x10 | 0x12..=0x18 | 0x1b..=0x1f | 0x22..=0x28 | 0x31 => Report::Refused(Reason::Memory),
            0x21 => Report::Refused(Reason::Alignment),
            0x30 => Report::Conflict,
            _ => Report::Refused(Reason::Unknown),
        };
        Some(Self::reported_by(right, user, report))
    }

    /// Returns the access that Cause and Status of an exception describe; `None` if the exception is not that of an access to
    /// memory. MIPS32 Privileged Resource Architecture, Cause, ExcCode.
    ///
    /// | ExcCode | exception | the access |
    /// |-|-|-|
    /// | 1 | TLB Modified | a store |
    /// | 2, 3 | TLBL, TLBS | a load or a fetch, which this code does not tell apart: a load; a store |
    /// | 4, 5 | AdEL, AdES | a load, a store, and [`Reason::Alignment`] |
    /// | 6, 7 | IBE, DBE | a fetch, a load, and [`Reason::Memory`] |
    /// | 19, 20 | TLBRI, TLBXI | a load, a fetch |
    ///
    /// KSU (bits 4 and 3 of Status, which an exception does not change) is the mode.
    pub const fn from_mips32(cause: u32, status: u32) -> Option<Self> {
        const USER: u32 = 2;
        let (right, report) = match cause >> 2 & 31 {
            1 | 3 => (Attr::WRITE, Report::Fault),
            2 | 19 => (Attr::READ, Report::Fault),
            4 => (Attr::READ, Report::Refused(Reason::Alignment)),
            5 => (Attr::WRITE, Report::Refused(Reason::Alignment)),
            6 => (Attr::EXEC, Report::Refused(Reason::Memory)),
            7 => (Attr::READ, Report::Refused(Reason::Memory)),
            20 => (Attr::EXEC, Report::Fault),
            _ => return None,
        };
        Some(Self::reported_by(right, status >> 3 & 3 == USER, report))
    }
}
