//! What must lie between a change of coprocessor 0 and its use.
//!
//! * Release 2: `ehb` or `eret` (MIPS32 Architecture for Programmers, volume III, chapter on hazards). Nothing else counts.
//! * Release 1: cycles, as many as the same chapter's table gives as typical. `ssnop` alone counts: a core of release 1 may
//!   issue any other instructions together.
//! * MIPS III: instructions, of which every one counts (MIPS R4000 User's Manual, appendix F): the pipeline stage in which
//!   the change is made, less the stage in which the use looks, less one. The R4600, R4700 and VR4100 ask for less, but
//!   for two instructions before a write of the TLB (that the VR4100 does: NEC U14272EJ3V0UM, chapter 23).

use tlbkit_refill::features::Isa;

/// What changes a register of coprocessor 0, or the TLB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Change {
    /// `mtc0`, `dmtc0`.
    Move,
    /// `tlbr`.
    Read,
    /// `tlbp`.
    Probe,
    /// `tlbwi`, `tlbwr`: the TLB itself.
    Write,
}

/// What uses a register of coprocessor 0, or the TLB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// `mfc0`, `dmfc0`.
    Move,
    /// `tlbr`.
    Read,
    /// `tlbp`.
    Probe,
    /// `tlbwi`, `tlbwr`.
    Write,
    /// A load or a store that goes through the TLB, under the ASID in EntryHi.
    Access,
    /// `eret`, and the fetch of the instruction to which it returns.
    Return,
    /// The kernel at the general vector, whose first instruction may be any of these but a return.
    Kernel,
}

/// Returns how much must lie between; `None` if only a barrier instruction will do.
pub(crate) fn distance(isa: Isa, change: Change, consumer: Use) -> Option<u8> {
    match (isa, change, consumer) {
        (Isa::R2, ..) => None,
        (Isa::R1, Change::Move, Use::Access | Use::Kernel) => Some(3),
        (Isa::R1, Change::Move, _) => Some(2),
        (Isa::R1, ..) => Some(3),
        (Isa::Mips3, _, _) => {
            let made = match change {
                Change::Move | Change::Probe => 7,
                Change::Read | Change::Write => 8,
            };
            let looked = match consumer {
                Use::Move | Use::Access | Use::Return => 4,
                // Two and not one: the others' demand.
                Use::Write => 4,
                Use::Read => 5,
                Use::Probe | Use::Kernel => 3,
            };
            Some(made - looked - 1)
        }
    }
}

/// Tells whether an `eret` waits for what was changed. On MIPS III it is no barrier for the TLB.
pub(crate) fn return_waits(isa: Isa) -> bool {
    isa != Isa::Mips3
}
