//! The execution of one instruction.

use super::{Access, Entry, Machine, Memory, State, Stop, merge};
use crate::asm::Cp0;
use crate::features::Isa;

/// The registers of coprocessor 0 that have changed since the last barrier.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pending {
    /// For each register, the number of the instruction that changed it last, or 0.
    since: [u64; 32],
}

/// The registers that `tlbr` writes, and that `tlbwi` and `tlbwr` read.
const ENTRY: [Cp0; 4] = [Cp0::EntryHi, Cp0::PageMask, Cp0::EntryLo0, Cp0::EntryLo1];

/// Returns the index of a register in [`Pending::since`].
const fn place(register: Cp0) -> usize {
    register.number().0 as usize
}

/// The fields of an instruction.
#[derive(Clone, Copy)]
struct Fields(u32);

impl Fields {
    const fn op(self) -> u32 {
        self.0 >> 26
    }
    const fn rs(self) -> usize {
        (self.0 >> 21 & 31) as usize
    }
    const fn rt(self) -> usize {
        (self.0 >> 16 & 31) as usize
    }
    const fn rd(self) -> usize {
        (self.0 >> 11 & 31) as usize
    }
    const fn shift(self) -> u32 {
        self.0 >> 6 & 31
    }
    const fn function(self) -> u32 {
        self.0 & 63
    }
    /// The immediate, sign-extended.
    const fn signed(self) -> u64 {
        self.0 as u16 as i16 as u64
    }
    /// The immediate, zero-extended.
    const fn unsigned(self) -> u64 {
        self.0 as u16 as u64
    }
}

/// Returns a 32-bit result as a register holds it, sign-extended.
const fn word(value: u64) -> u64 {
    value as u32 as i32 as u64
}

impl<M: Memory, const N: usize> Machine<M, N> {
    /// Executes one instruction, or takes the exception that it raises.
    ///
    /// # Errors
    ///
    /// Why the machine stopped.
    pub fn step(&mut self) -> Result<(), Stop> {
        let pc = self.pc;
        let fetched = match self.translate_kernel(pc, Access::Load) {
            Ok(physical) => self.memory.load(physical).ok_or(Stop::Bus { pc, at: pc })?,
            Err(cause) => {
                self.raise(cause, pc);
                return Ok(());
            }
        };
        self.executed += 1;
        self.counts.instructions += 1;
        let (slot, exceptions) = (self.target, self.counts.exceptions);
        if let Some(branch) = self.execute(Fields(fetched))? {
            if slot.is_some() {
                return Err(Stop::Slot { pc });
            }
            self.target = Some(branch);
            self.pc = pc.wrapping_add(4);
        } else if self.counts.exceptions == exceptions {
            self.target = None;
            self.pc = slot.unwrap_or(pc.wrapping_add(4));
        }
        self.cp0.tick();
        Ok(())
    }

    /// Executes an instruction. For a branch or jump, returns the address of the instruction after the delay slot: the
    /// target if it is taken, otherwise the next one.
    fn execute(&mut self, i: Fields) -> Result<Option<u64>, Stop> {
        let (rs, rt) = (self.gpr[i.rs()], self.gpr[i.rt()]);
        let wide = self.features.isa == Isa::Mips3;
        let relative = self.pc.wrapping_add(4).wrapping_add(i.signed() << 2);
        let branch = |taken: bool| Ok(Some(if taken { relative } else { self.pc.wrapping_add(8) }));
        let value = match i.op() {
            0x00 => return self.special(i, rs, rt).map(|()| None),
            0x01 if i.rt() == 0 => return branch((rs as i64) < 0),
            0x01 if i.rt() == 1 => return branch((rs as i64) >= 0),
            0x02 => return Ok(Some(merge(self.pc.wrapping_add(4), u64::from(i.0) << 2, 0x0fff_ffff))),
            0x04 => return branch(rs == rt),
            0x05 => return branch(rs != rt),
            0x06 if i.rt() == 0 => return branch((rs as i64) <= 0),
            0x07 if i.rt() == 0 => return branch((rs as i64) > 0),
            0x09 => word(rs.wrapping_add(i.signed())),
            0x0b => u64::from(rs < i.signed()),
            0x0c => rs & i.unsigned(),
            0x0d => rs | i.unsigned(),
            0x0e => rs ^ i.unsigned(),
            0x0f if i.rs() == 0 => word(i.unsigned() << 16),
            0x10 => return self.coprocessor(i, rt).map(|()| None),
            0x19 if wide => rs.wrapping_add(i.signed()),
            0x1f if self.features.isa == Isa::R2 => self.bit_field(i, rs, rt)?,
            0x20 | 0x21 | 0x23 | 0x24 | 0x25 => return self.load(i, rs).map(|()| None),
            0x27 | 0x37 if wide => return self.load(i, rs).map(|()| None),
            0x2b => return self.store(i, rs, rt).map(|()| None),
            0x3f if wide => return self.store(i, rs, rt).map(|()| None),
            _ => return Err(self.unknown(i)),
        };
        self.set(i.rt(), value).map(|()| None)
    }

    fn unknown(&self, i: Fields) -> Stop {
        Stop::Unknown { pc: self.pc, word: i.0 }
    }

    /// Writes k0 or k1. A write to register 0 has no effect; a write to another register stops the machine.
    fn set(&mut self, register: usize, value: u64) -> Result<(), Stop> {
        match register {
            0 => {}
            26 | 27 => self.gpr[register] = value,
            _ => return Err(Stop::Clobbered { pc: self.pc }),
        }
        Ok(())
    }

    /// Register arithmetic and shifts.
    fn special(&mut self, i: Fields, rs: u64, rt: u64) -> Result<(), Stop> {
        let wide = self.features.isa == Isa::Mips3;
        let rotates = self.features.isa == Isa::R2;
        let (shift, low) = (i.shift(), rt as u32);
        let value = match (i.function(), i.rs(), shift) {
            // `sll` with all fields zero except a shift of 3 is `ehb`, which only release 2 has. Any other shift of register
            // 0 is a `nop`.
            (0x00, 0, _) => {
                if i.0 == 0xc0 && rotates {
                    self.pending = Pending::default();
                }
                word(u64::from(low << shift))
            }
            (0x02, 0, _) => word(u64::from(low >> shift)),
            (0x02, 1, _) if rotates => word(u64::from(low.rotate_right(shift))),
            (0x03, 0, _) => (low as i32 >> shift) as u64,
            (0x04, _, 0) => word(u64::from(low << (rs & 31))),
            (0x06, _, 0) => word(u64::from(low >> (rs & 31))),
            (0x06, _, 1) if rotates => word(u64::from(low.rotate_right(rs as u32 & 31))),
            (0x07, _, 0) => (low as i32 >> (rs & 31)) as u64,
            (0x14, _, 0) if wide => rt << (rs & 63),
            (0x16, _, 0) if wide => rt >> (rs & 63),
            (0x17, _, 0) if wide => (rt as i64 >> (rs & 63)) as u64,
            (0x21, _, 0) => word(rs.wrapping_add(rt)),
            (0x23, _, 0) => word(rs.wrapping_sub(rt)),
            (0x24, _, 0) => rs & rt,
            (0x25, _, 0) => rs | rt,
            (0x26, _, 0) => rs ^ rt,
            (0x27, _, 0) => !(rs | rt),
            (0x2a, _, 0) => u64::from((rs as i64) < (rt as i64)),
            (0x2b, _, 0) => u64::from(rs < rt),
            (0x2d, _, 0) if wide => rs.wrapping_add(rt),
            (0x2f, _, 0) if wide => rs.wrapping_sub(rt),
            (0x38, 0, _) if wide => rt << shift,
            (0x3a, 0, _) if wide => rt >> shift,
            (0x3b, 0, _) if wide => (rt as i64 >> shift) as u64,
            (0x3c, 0, _) if wide => rt << (shift + 32),
            (0x3e, 0, _) if wide => rt >> (shift + 32),
            (0x3f, 0, _) if wide => (rt as i64 >> (shift + 32)) as u64,
            _ => return Err(self.unknown(i)),
        };
        self.set(i.rd(), value)
    }

    /// `ext` and `ins`.
    fn bit_field(&self, i: Fields, rs: u64, rt: u64) -> Result<u64, Stop> {
        let (high, low) = (i.rd() as u32, i.shift());
        match i.function() {
            0x00 if high + low < 32 => Ok(word(rs >> low & ((2 << high) - 1))),
            0x04 if high >= low => {
                let mask = ((2u64 << (high - low)) - 1) << low;
                Ok(word(merge(rt, rs << low, mask)))
            }
            _ => Err(self.unknown(i)),
        }
    }

    /// Returns the virtual and the physical address of a kernel access of `bytes` bytes, or `None` if it took an exception.
    fn address(
        &mut self,
        i: Fields,
        base: u64,
        bytes: u64,
        access: Access,
    ) -> Result<Option<(u64, u64)>, Stop> {
        let sum = base.wrapping_add(i.signed());
        let at = if self.features.isa == Isa::Mips3 { sum } else { word(sum) };
        if !at.is_multiple_of(bytes) {
            return Err(Stop::Bus { pc: self.pc, at });
        }
        match self.translate_kernel(at, access) {
            Ok(physical) => Ok(Some((at, physical))),
            Err(cause) => {
                self.raise(cause, at);
                Ok(None)
            }
        }
    }

    fn load(&mut self, i: Fields, base: u64) -> Result<(), Stop> {
        let bytes = match i.op() {
            0x20 | 0x24 => 1,
            0x21 | 0x25 => 2,
            0x37 => 8,
            _ => 4,
        };
        let Some((at, physical)) = self.address(i, base, bytes, Access::Load)? else { return Ok(()) };
        self.counts.loads += 1;
        let (big, pc) = (self.is_big(), self.pc);
        let mut load = |physical| self.memory.load(physical).map(u64::from).ok_or(Stop::Bus { pc, at });
        let value = if bytes == 8 {
            let (first, second) = (load(physical)?, load(physical + 4)?);
            let (high, low) = if big { (first, second) } else { (second, first) };
            high << 32 | low
        } else {
            let place = if big { 4 - bytes - physical % 4 } else { physical % 4 };
            load(physical & !3)? >> (8 * place)
        };
        let value = match i.op() {
            0x20 => value as u8 as i8 as u64,
            0x21 => value as u16 as i16 as u64,
            0x23 => word(value),
            0x24 => value & 0xff,
            0x25 => value & 0xffff,
            _ => value,
        };
        self.set(i.rt(), value)
    }

    fn store(&mut self, i: Fields, base: u64, value: u64) -> Result<(), Stop> {
        let double = i.op() == 0x3f;
        let bytes = if double { 8 } else { 4 };
        let Some((at, physical)) = self.address(i, base, bytes, Access::Store)? else { return Ok(()) };
        self.counts.stores += 1;
        let (low, high) = (value as u32, (value >> 32) as u32);
        let stored = match (double, self.is_big()) {
            (false, _) => self.memory.store(physical, low),
            (true, false) => self.memory.store(physical, low) && self.memory.store(physical + 4, high),
            (true, true) => self.memory.store(physical, high) && self.memory.store(physical + 4, low),
        };
        if stored { Ok(()) } else { Err(Stop::Bus { pc: self.pc, at }) }
    }

    /// Records that registers of coprocessor 0 have changed.
    fn changed(&mut self, registers: &[Cp0]) {
        for &register in registers {
            self.pending.since[place(register)] = self.executed;
        }
    }

    /// Stops the machine if a change of one of these registers may not have taken effect. On release 2 that needs an `ehb`;
    /// before release 2, two instructions in between.
    fn settled(&self, registers: &[Cp0]) -> Result<(), Stop> {
        let hazard = |&register: &Cp0| {
            let since = self.pending.since[place(register)];
            since != 0 && (self.features.isa == Isa::R2 || self.executed - since <= 2)
        };
        if registers.iter().any(hazard) {
            return Err(Stop::Hazard { pc: self.pc });
        }
        Ok(())
    }

    /// Executes a move to or from coprocessor 0, or a TLB instruction.
    fn coprocessor(&mut self, i: Fields, rt: u64) -> Result<(), Stop> {
        let wide = self.features.isa == Isa::Mips3;
        match i.0 {
            0x4200_0001 => {
                self.settled(&[Cp0::Index])?;
                let entry = self.tlb.read(self.cp0.index);
                self.cp0.page_mask = entry.page_mask;
                self.cp0.entry_hi = entry.hi;
                [self.cp0.entry_lo0, self.cp0.entry_lo1] = entry.lo;
                self.changed(&ENTRY);
                return Ok(());
            }
            0x4200_0002 => return self.write(Cp0::Index, self.cp0.index),
            0x4200_0006 => return self.write(Cp0::Wired, self.cp0.random),
            0x4200_0008 => {
                self.settled(&[Cp0::EntryHi])?;
                let found = self.tlb.find(self.cp0.entry_hi, self.cp0.asid());
                self.cp0.index = found.map_or(1 << 31, |found| found.index as u64);
                self.changed(&[Cp0::Index]);
                return Ok(());
            }
            0x4200_0018 => {
                self.cp0.status &= !State::EXL;
                self.pc = self.cp0.epc;
                self.pending = Pending::default();
                return Err(Stop::Returned);
            }
            _ => {}
        }
        let register = Cp0::from_number(i.rd() as u32, i.0 & 7).ok_or(self.unknown(i))?;
        if let Cp0::KScratch(select) = register
            && !self.features.has_kscratch(select)
        {
            return Err(self.unknown(i));
        }
        match i.rs() {
            0x00 => {
                self.settled(&[register])?;
                self.set(i.rt(), word(self.cp0.get(register)))
            }
            0x01 if wide => {
                self.settled(&[register])?;
                self.set(i.rt(), self.cp0.get(register))
            }
            0x04 => {
                self.cp0.set(register, word(rt));
                self.changed(&[register]);
                Ok(())
            }
            0x05 if wide => {
                self.cp0.set(register, rt);
                self.changed(&[register]);
                Ok(())
            }
            _ => Err(self.unknown(i)),
        }
    }

    /// Executes `tlbwi` or `tlbwr`. `chooser` is the register on which the entry's index depends.
    fn write(&mut self, chooser: Cp0, index: u64) -> Result<(), Stop> {
        self.settled(&[chooser])?;
        self.settled(&ENTRY)?;
        let cp0 = &self.cp0;
        let entry = Entry { page_mask: cp0.page_mask, hi: cp0.entry_hi, lo: [cp0.entry_lo0, cp0.entry_lo1] };
        self.tlb.write(index, entry)
    }
}
