//! Walks every path through the words of a handler, and stops at the first use of what has not taken effect.
//!
//! Nothing here knows how a handler is assembled or run: words are decoded anew.

use std::collections::HashSet;

use tlbkit_refill::features::Isa;

use super::rules::{Change, Use, distance, return_waits};

/// Why a handler is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// A change may not have taken effect when it is used.
    Hazard {
        /// Where the use is, in words from the refill vector.
        at: i32,
        /// The register's number, or [`TLB`].
        register: usize,
        /// What uses it.
        by: Use,
    },
    /// The path leaves the code, branches in a delay slot, or comes to a word that no handler has.
    Lost {
        /// Where, in words from the refill vector.
        at: i32,
    },
}

/// The code of a handler, piece by piece. Places are in words from the refill vector.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    pub(crate) isa: Isa,
    /// Where each piece begins, and its words. One at `general` is run before the kernel's own code.
    pub(crate) pieces: Vec<(i32, Vec<u32>)>,
    /// Where paths begin: with everything in effect, for taking an exception waits for all changes.
    pub(crate) entries: Vec<i32>,
    /// The general vector.
    pub(crate) general: i32,
    /// Whether an address that the code has not made itself may be one that goes through the TLB.
    pub(crate) mapped: bool,
}

/// Registers of coprocessor 0, by number; the TLB's contents come last.
pub(crate) const TLB: usize = 32;
const INDEX: usize = 0;
const RANDOM: usize = 1;
const ENTRY_LO: [usize; 2] = [2, 3];
const PAGE_MASK: usize = 5;
const WIRED: usize = 6;
const ENTRY_HI: usize = 10;
const STATUS: usize = 12;
const EPC: usize = 14;

/// What an entry is written from, and read into.
const ENTRY: [usize; 4] = [ENTRY_LO[0], ENTRY_LO[1], PAGE_MASK, ENTRY_HI];

/// A change that may not have taken effect: what made it, and how much has been waited since. 0 if there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Pending(u8);

impl Pending {
    const NONE: Self = Self(0);

    const fn new(change: Change, waited: u8) -> Self {
        Self((change as u8 + 1) << 4 | waited)
    }

    fn get(self) -> Option<(Change, u8)> {
        let changes = [Change::Move, Change::Read, Change::Probe, Change::Write];
        Some((changes[usize::from(self.0 >> 4).checked_sub(1)?], self.0 & 15))
    }
}

/// No distance is longer.
const LONGEST: u8 = 4;

/// A place on a path.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    pc: i32,
    /// The ways to go behind the delay slot at `pc`, if it is one.
    slot: Option<[i32; 2]>,
    pending: [Pending; TLB + 1],
    /// What k0 and k1 hold, where the code itself says so.
    known: [Option<u32>; 2],
}

impl Program {
    /// Walks every path.
    ///
    /// # Errors
    ///
    /// The first thing that is wrong.
    pub(crate) fn check(&self) -> Result<(), Refused> {
        let mut seen = HashSet::new();
        let enter = |&pc| State { pc, slot: None, pending: [Pending::NONE; TLB + 1], known: [None; 2] };
        let mut open: Vec<State> = self.entries.iter().map(enter).collect();
        while let Some(state) = open.pop() {
            if seen.insert(state.clone()) {
                self.step(state, &mut open)?;
            }
        }
        Ok(())
    }

    pub(crate) fn word(&self, pc: i32) -> Option<u32> {
        let inside = |(from, words): &(i32, Vec<u32>)| words.get(usize::try_from(pc - from).ok()?).copied();
        self.pieces.iter().find_map(inside)
    }

    /// Where the kernel's own code begins.
    fn kernel(&self) -> i32 {
        let own = self.pieces.iter().find(|(from, _)| *from == self.general);
        self.general + own.map_or(0, |(_, words)| words.len() as i32)
    }

    /// Checks what the instruction at a place uses, and adds the places behind it.
    fn step(&self, mut state: State, open: &mut Vec<State>) -> Result<(), Refused> {
        let pc = state.pc;
        let lost = Refused::Lost { at: pc };
        if pc == self.kernel() && state.slot.is_none() {
            // It reads EntryHi, probes, and loads under the ASID; PageMask it may write the TLB with.
            self.uses(&state, &[ENTRY_HI], Use::Kernel)?;
            return self.uses(&state, &[PAGE_MASK], Use::Write);
        }
        let word = self.word(pc).ok_or(lost)?;
        let (rs, rt, rd) = (word >> 21 & 31, word >> 16 & 31, word >> 11 & 31);
        let mut changes: &[usize] = &[];
        let mut how = Change::Move;
        let mut target = None;
        let base = state.value(rs);
        // What a general register becomes, if the instruction writes one.
        let mut result = None;
        let moved;
        match word >> 26 {
            0x10 => match word {
                0x4200_0001 => {
                    self.uses(&state, &[INDEX], Use::Read)?;
                    (changes, how) = (&ENTRY, Change::Read);
                }
                0x4200_0002 | 0x4200_0006 => {
                    let chooser = if word == 0x4200_0002 { [INDEX; 2] } else { [RANDOM, WIRED] };
                    self.uses(&state, &chooser, Use::Write)?;
                    self.uses(&state, &ENTRY, Use::Write)?;
                    (changes, how) = (&[TLB], Change::Write);
                }
                0x4200_0008 => {
                    self.uses(&state, &[ENTRY_HI, PAGE_MASK], Use::Probe)?;
                    (changes, how) = (&[INDEX], Change::Probe);
                }
                0x4200_0018 if state.slot.is_none() => {
                    if !return_waits(self.isa) {
                        self.uses(&state, &[STATUS, EPC, ENTRY_HI, TLB], Use::Return)?;
                    }
                    return Ok(());
                }
                _ => match rs {
                    0 | 1 => {
                        self.uses(&state, &[rd as usize], Use::Move)?;
                        result = Some((rt, None));
                    }
                    4 | 5 => {
                        moved = [rd as usize];
                        changes = &moved;
                    }
                    _ => return Err(lost),
                },
            },
            0x00 => result = Some((rd, None)),
            0x01 | 0x04..=0x07 => target = Some(pc + 1 + i32::from(word as i16)),
            0x09 => result = Some((rt, base.map(|base| base.wrapping_add(word as i16 as u32)))),
            0x0f => result = Some((rt, Some(word << 16))),
            0x0b..=0x0e | 0x19 | 0x1f => result = Some((rt, None)),
            op @ (0x20..=0x27 | 0x37 | 0x2b | 0x3f) => {
                let at = base.map(|base| base.wrapping_add(word as i16 as u32));
                // What is near register 0 is behind a wired entry, which is in every address space.
                let unmapped = |at| (0x8000_0000..0xc000_0000).contains(&at) || at >= 0xffff_8000;
                if !at.map_or(!self.mapped, unmapped) {
                    self.uses(&state, &[ENTRY_HI], Use::Access)?;
                }
                if !matches!(op, 0x2b | 0x3f) {
                    result = Some((rt, None));
                }
            }
            _ => return Err(lost),
        }
        self.wait(&mut state, word);
        for &register in changes {
            state.pending[register] = Pending::new(how, 0);
        }
        match result {
            Some((register @ (26 | 27), value)) => state.known[register as usize - 26] = value,
            // Handlers have two registers.
            Some((1.., _)) => return Err(lost),
            _ => {}
        }
        let always = word >> 16 == 0x1000;
        let ways = match (state.slot.take(), target) {
            (Some(_), Some(_)) => return Err(lost),
            (Some(ways), None) => ways,
            (None, Some(target)) => {
                let next = if always { target } else { pc + 2 };
                open.push(State { pc: pc + 1, slot: Some([target, next]), ..state });
                return Ok(());
            }
            (None, None) => [pc + 1; 2],
        };
        for (nth, &way) in ways.iter().enumerate() {
            if nth == 0 || way != ways[0] {
                open.push(State { pc: way, ..state.clone() });
            }
        }
        Ok(())
    }

    /// Lets an instruction's time pass.
    fn wait(&self, state: &mut State, word: u32) {
        let counts = match self.isa {
            Isa::R2 => {
                if word == 0xc0 {
                    state.pending = [Pending::NONE; TLB + 1];
                }
                return;
            }
            Isa::R1 => word == 0x40,
            Isa::Mips3 => true,
        };
        for pending in &mut state.pending {
            if counts && let Some((change, waited)) = pending.get() {
                let enough = waited + 1 >= LONGEST;
                *pending = if enough { Pending::NONE } else { Pending::new(change, waited + 1) };
            }
        }
    }

    /// Refuses the use of a register whose change may not have taken effect.
    fn uses(&self, state: &State, registers: &[usize], by: Use) -> Result<(), Refused> {
        for &register in registers {
            if let Some((change, waited)) = state.pending[register].get()
                && distance(self.isa, change, by).is_none_or(|distance| waited < distance)
            {
                return Err(Refused::Hazard { at: state.pc, register, by });
            }
        }
        Ok(())
    }
}

impl State {
    fn value(&self, register: u32) -> Option<u32> {
        match register {
            0 => Some(0),
            26 | 27 => self.known[register as usize - 26],
            _ => None,
        }
    }
}
