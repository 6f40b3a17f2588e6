//! The encodings of instructions (MIPS Architecture for Programmers, volume II-A; MIPS R4000 User's Manual, appendix A).

use super::{Asm, Cp0, Label, Reg, ZERO};
use crate::Error;
use crate::features::Isa;

/// `op | rs | rt | immediate`.
const fn immediate(op: u32, rs: Reg, rt: Reg, value: u32) -> u32 {
    op << 26 | rs.number() << 21 | rt.number() << 16 | value & 0xffff
}

/// `op | rs | rt | rd | shift | function`: the immediate is three fields.
const fn fields(op: u32, [rs, rt]: [Reg; 2], rd: u32, shift: u32, function: u32) -> u32 {
    immediate(op, rs, rt, rd << 11 | shift << 6 | function)
}

/// `0 | rs | rt | rd | shift | function`.
const fn register(rs: Reg, rt: Reg, rd: Reg, shift: u32, function: u32) -> u32 {
    fields(0, [rs, rt], rd.number(), shift, function)
}

/// `0x1f | rs | rt | msb | lsb | function`: bit fields.
const fn field(rs: Reg, rt: Reg, high: u32, low: u32, function: u32) -> u32 {
    fields(0x1f, [rs, rt], high, low, function)
}

/// `0x10 | move | rt | rd | 0 | select`.
const fn move_cp0(direction: u8, rt: Reg, cp0: Cp0) -> u32 {
    let (number, select) = cp0.number();
    fields(0x10, [Reg::from_number(direction), rt], number, 0, select)
}

/// Defines loads and stores: name, opcode, the instruction set that has it, and documentation.
macro_rules! memory {
    ($($name:ident $op:literal $needs:ident $doc:literal)*) => { $(
        #[doc = $doc]
        pub const fn $name(&mut self, rt: Reg, offset: i16, base: Reg) {
            self.needs(Isa::$needs);
            self.word(immediate($op, base, rt, offset as u32));
        }
    )* };
}

macro_rules! arithmetic {
    ($($name:ident $function:literal $needs:ident $doc:literal)*) => { $(
        #[doc = $doc]
        pub const fn $name(&mut self, rd: Reg, rs: Reg, rt: Reg) {
            self.needs(Isa::$needs);
            self.word(register(rs, rt, rd, 0, $function));
        }
    )* };
}

macro_rules! logic_immediate {
    ($($name:ident $op:literal $doc:literal)*) => { $(
        #[doc = $doc]
        pub const fn $name(&mut self, rt: Reg, rs: Reg, value: u16) {
            self.word(immediate($op, rs, rt, value as u32));
        }
    )* };
}

macro_rules! shift {
    ($($name:ident $function:literal $extra:literal $needs:ident $doc:literal)*) => { $(
        #[doc = $doc]
        pub const fn $name(&mut self, rd: Reg, rt: Reg, shift: u32) {
            self.needs(Isa::$needs);
            self.below(shift, 32);
            self.word(register(Reg::from_number($extra), rt, rd, shift, $function));
        }
    )* };
}

macro_rules! shift_variable {
    ($($name:ident $function:literal $extra:literal $needs:ident $doc:literal)*) => { $(
        #[doc = $doc]
        pub const fn $name(&mut self, rd: Reg, rt: Reg, rs: Reg) {
            self.needs(Isa::$needs);
            self.word(register(rs, rt, rd, $extra, $function));
        }
    )* };
}

macro_rules! plain {
    ($($name:ident $word:literal $doc:literal)*) => { $(
        #[doc = $doc]
        pub const fn $name(&mut self) {
            self.word($word);
        }
    )* };
}

impl Asm {
    /// Records an error unless the CPU has the instructions that `isa` introduced; [`Isa::R1`] means those that all CPUs
    /// have.
    const fn needs(&mut self, isa: Isa) {
        let missing = match (isa, self.isa()) {
            (Isa::R1, _) | (Isa::R2, Isa::R2) | (Isa::Mips3, Isa::Mips3) => false,
            (Isa::R2 | Isa::Mips3, _) => true,
        };
        if missing {
            self.fail(Error::NoInstruction { word: self.len(), needs: isa });
        }
    }

    /// Records an error unless a field's value is less than its limit.
    const fn below(&mut self, value: u32, limit: u32) {
        if value >= limit {
            self.fail(Error::TooWide { word: self.len() });
        }
    }

    memory! {
        lb 0x20 R1 "`rt = sign-extended byte at base + offset`"
        lbu 0x24 R1 "`rt = byte at base + offset`"
        lh 0x21 R1 "`rt = sign-extended half word at base + offset`"
        lhu 0x25 R1 "`rt = half word at base + offset`"
        lw 0x23 R1 "`rt = sign-extended word at base + offset`"
        sw 0x2b R1 "`word at base + offset = rt`"
        lwu 0x27 Mips3 "`rt = word at base + offset`"
        ld 0x37 Mips3 "`rt = double word at base + offset`"
        sd 0x3f Mips3 "`double word at base + offset = rt`"
    }

    arithmetic! {
        addu 0x21 R1 "`rd = rs + rt`, 32 bits"
        subu 0x23 R1 "`rd = rs - rt`, 32 bits"
        and 0x24 R1 "`rd = rs & rt`"
        or 0x25 R1 "`rd = rs | rt`"
        xor 0x26 R1 "`rd = rs ^ rt`"
        nor 0x27 R1 "`rd = !(rs | rt)`"
        slt 0x2a R1 "`rd = rs < rt`, signed"
        sltu 0x2b R1 "`rd = rs < rt`, unsigned"
        daddu 0x2d Mips3 "`rd = rs + rt`, 64 bits"
        dsubu 0x2f Mips3 "`rd = rs - rt`, 64 bits"
    }

    logic_immediate! {
        andi 0x0c "`rt = rs & value`"
        ori 0x0d "`rt = rs | value`"
        xori 0x0e "`rt = rs ^ value`"
    }

    shift! {
        sll 0x00 0 R1 "`rd = rt << shift`, 32 bits"
        srl 0x02 0 R1 "`rd = rt >> shift`, 32 bits, zeroes from above"
        sra 0x03 0 R1 "`rd = rt >> shift`, 32 bits, signs from above"
        rotr 0x02 1 R2 "`rd = rt` rotated right, 32 bits"
        dsll 0x38 0 Mips3 "`rd = rt << shift`, 64 bits"
        dsrl 0x3a 0 Mips3 "`rd = rt >> shift`, 64 bits, zeroes from above"
        dsra 0x3b 0 Mips3 "`rd = rt >> shift`, 64 bits, signs from above"
        dsll32 0x3c 0 Mips3 "`rd = rt << (shift + 32)`, 64 bits"
        dsrl32 0x3e 0 Mips3 "`rd = rt >> (shift + 32)`, 64 bits, zeroes from above"
        dsra32 0x3f 0 Mips3 "`rd = rt >> (shift + 32)`, 64 bits, signs from above"
    }

    shift_variable! {
        sllv 0x04 0 R1 "`rd = rt << (rs & 31)`, 32 bits"
        srlv 0x06 0 R1 "`rd = rt >> (rs & 31)`, 32 bits, zeroes from above"
        srav 0x07 0 R1 "`rd = rt >> (rs & 31)`, 32 bits, signs from above"
        rotrv 0x06 1 R2 "`rd = rt` rotated right by `rs & 31`, 32 bits"
        dsllv 0x14 0 Mips3 "`rd = rt << (rs & 63)`, 64 bits"
        dsrlv 0x16 0 Mips3 "`rd = rt >> (rs & 63)`, 64 bits, zeroes from above"
        dsrav 0x17 0 Mips3 "`rd = rt >> (rs & 63)`, 64 bits, signs from above"
    }

    plain! {
        nop 0x0000_0000 "Does nothing."
        ssnop 0x0000_0040 "Does nothing, alone in its cycle."
        ehb 0x0000_00c0 "Waits until what was written to coprocessor 0 has taken effect."
        tlbr 0x4200_0001 "Reads TLB entry Index into EntryHi, PageMask and the EntryLos."
        tlbwi 0x4200_0002 "Writes TLB entry Index."
        tlbwr 0x4200_0006 "Writes TLB entry Random."
        tlbp 0x4200_0008 "Looks EntryHi up: Index, or its bit 31."
        eret 0x4200_0018 "Returns from the exception."
    }

    /// `rt = rs + value`, 32 bits
    pub const fn addiu(&mut self, rt: Reg, rs: Reg, value: i16) {
        self.word(immediate(0x09, rs, rt, value as u32));
    }

    /// `rt = rs + value`, 64 bits
    pub const fn daddiu(&mut self, rt: Reg, rs: Reg, value: i16) {
        self.needs(Isa::Mips3);
        self.word(immediate(0x19, rs, rt, value as u32));
    }

    /// `rt = rs < value`, unsigned, the value sign-extended first
    pub const fn sltiu(&mut self, rt: Reg, rs: Reg, value: i16) {
        self.word(immediate(0x0b, rs, rt, value as u32));
    }

    /// `rt = value << 16`
    pub const fn lui(&mut self, rt: Reg, value: u16) {
        self.word(immediate(0x0f, ZERO, rt, value as u32));
    }

    /// `rt = rs >> low & ((1 << bits) - 1)`
    pub const fn ext(&mut self, rt: Reg, rs: Reg, low: u32, bits: u32) {
        self.needs(Isa::R2);
        self.below(low, 32);
        self.below(bits.wrapping_sub(1), 32u32.saturating_sub(low));
        self.word(field(rs, rt, bits.wrapping_sub(1) & 31, low & 31, 0x00));
    }

    /// Replaces `bits` bits of `rt` from `low` on by the low ones of `rs`.
    pub const fn ins(&mut self, rt: Reg, rs: Reg, low: u32, bits: u32) {
        self.needs(Isa::R2);
        self.below(low, 32);
        self.below(bits.wrapping_sub(1), 32u32.saturating_sub(low));
        self.word(field(rs, rt, low.wrapping_add(bits).wrapping_sub(1) & 31, low & 31, 0x04));
    }

    /// `rt = cp0`, the low 32 bits, sign-extended
    pub const fn mfc0(&mut self, rt: Reg, cp0: Cp0) {
        self.word(move_cp0(0x00, rt, cp0));
    }

    /// `cp0 = rt`, 32 bits
    pub const fn mtc0(&mut self, rt: Reg, cp0: Cp0) {
        self.word(move_cp0(0x04, rt, cp0));
    }

    /// `rt = cp0`, 64 bits
    pub const fn dmfc0(&mut self, rt: Reg, cp0: Cp0) {
        self.needs(Isa::Mips3);
        self.word(move_cp0(0x01, rt, cp0));
    }

    /// `cp0 = rt`, 64 bits
    pub const fn dmtc0(&mut self, rt: Reg, cp0: Cp0) {
        self.needs(Isa::Mips3);
        self.word(move_cp0(0x05, rt, cp0));
    }

    /// Branches if `rs == rt`. As with all branches, the CPU executes the instruction that follows, in the delay slot,
    /// first.
    pub const fn beq(&mut self, rs: Reg, rt: Reg, to: Label) {
        self.branch(immediate(0x04, rs, rt, 0), to);
    }

    /// Branches if `rs != rt`.
    pub const fn bne(&mut self, rs: Reg, rt: Reg, to: Label) {
        self.branch(immediate(0x05, rs, rt, 0), to);
    }

    /// Branches if `rs <= 0`, signed.
    pub const fn blez(&mut self, rs: Reg, to: Label) {
        self.branch(immediate(0x06, rs, ZERO, 0), to);
    }

    /// Branches if `rs > 0`, signed.
    pub const fn bgtz(&mut self, rs: Reg, to: Label) {
        self.branch(immediate(0x07, rs, ZERO, 0), to);
    }

    /// Branches if `rs < 0`, signed.
    pub const fn bltz(&mut self, rs: Reg, to: Label) {
        self.branch(immediate(0x01, rs, ZERO, 0), to);
    }

    /// Branches if `rs >= 0`, signed.
    pub const fn bgez(&mut self, rs: Reg, to: Label) {
        self.branch(immediate(0x01, rs, Reg::from_number(1), 0), to);
    }

    /// Branches always.
    pub const fn b(&mut self, to: Label) {
        self.beq(ZERO, ZERO, to);
    }

    /// Jumps to an address in the 256 MiB around the delay slot.
    pub const fn j(&mut self, address: u32) {
        self.word(0x02 << 26 | address >> 2 & 0x03ff_ffff);
    }

    /// Makes the registers that `mtc0` wrote take effect before the next instruction, which may be `mfc0` or a write of the
    /// TLB: one `ehb` on release 2, two `ssnop` and an `ehb` on release 1, two `nop` on MIPS III.
    pub const fn barrier(&mut self) {
        self.barrier_head();
        self.barrier_tail();
    }

    /// The [`barrier`](Self::barrier) without its last instruction, [`barrier_tail`](Self::barrier_tail).
    ///
    /// A branch may be between the two, with the tail in its delay slot. Then both paths execute the whole barrier, whether
    /// the branch is taken or not.
    pub const fn barrier_head(&mut self) {
        match self.isa() {
            Isa::R2 => {}
            Isa::R1 => {
                self.ssnop();
                self.ssnop();
            }
            Isa::Mips3 => self.nop(),
        }
    }

    /// The last instruction of a [`barrier`](Self::barrier).
    pub const fn barrier_tail(&mut self) {
        match self.isa() {
            Isa::R2 | Isa::R1 => self.ehb(),
            Isa::Mips3 => self.nop(),
        }
    }

    /// Makes the registers that `tlbr` or `tlbp` wrote, or a new EntryHi, take effect before any next instruction. It is one
    /// instruction longer than a [`barrier`](Self::barrier) on CPUs that have to wait for cycles, before release 2.
    pub const fn long_barrier(&mut self) {
        match self.isa() {
            Isa::R2 => {}
            Isa::R1 => self.ssnop(),
            Isa::Mips3 => self.nop(),
        }
        self.barrier();
    }
}
