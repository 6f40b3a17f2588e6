//! What an exception leaves of a program: its registers, and why it stopped.

/// A program's registers.
#[repr(C)]
#[derive(Clone, Debug)]
pub struct Frame {
    /// `$0` to `$31`.
    pub registers: [u32; 32],
    pub hi: u32,
    pub lo: u32,
    /// Where it goes on.
    pub epc: u32,
    pub status: u32,
    /// Why it stopped.
    pub cause: u32,
    /// The address, if that was a miss or a fault.
    pub bad_vaddr: u32,
}

impl Frame {
    /// Returns the registers of a program that begins at `pc` with stack pointer `sp`.
    pub const fn new(pc: u32, sp: u32) -> Self {
        let mut registers = [0; 32];
        registers[29] = sp;
        let status = super::cp0::STATUS_UM | super::cp0::STATUS_EXL;
        Self { registers, hi: 0, lo: 0, epc: pc, status, cause: 0, bad_vaddr: 0 }
    }

    /// Returns why it stopped.
    pub const fn exception(&self) -> Exception {
        Exception::of(self.cause)
    }
}

/// Why there was an exception.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exception {
    Interrupt,
    /// A store to a page that may not be written, by what the TLB knows.
    Modified,
    /// A load or a fetch from a page that the TLB, or the table behind it, does not have.
    Load,
    /// A store to such a page.
    Store,
    Syscall,
    /// Anything else: Cause.ExcCode.
    Other(u32),
}

impl Exception {
    /// Decodes Cause.
    pub const fn of(cause: u32) -> Self {
        match cause >> 2 & 31 {
            0 => Self::Interrupt,
            1 => Self::Modified,
            2 => Self::Load,
            3 => Self::Store,
            8 => Self::Syscall,
            code => Self::Other(code),
        }
    }
}
