//! The numbers of interrupts and exceptions, and where the code of each is.

/// The timer's, that of other CPUs, a thread's call, and what the local APIC sends when it has nothing to send.
pub(super) const TIMER: u8 = 0x40;
pub(super) const CALLED: u8 = 0x41;
pub(super) const CALL: u8 = 0x80;
pub(super) const SPURIOUS: u8 = 0xff;
/// Those that the processor raises itself come before them.
pub(super) const EXCEPTIONS: usize = 32;
const OTHERS: [u8; 4] = [TIMER, CALLED, CALL, SPURIOUS];
/// The bytes of each vector's code.
pub(super) const ENTRY: usize = 16;

unsafe extern "C" {
    /// The code of the first; it is made with that of traps.
    pub(super) fn first_vector();
}

/// Returns every vector that there is, and where its code is.
pub(super) fn all() -> impl Iterator<Item = (usize, usize)> {
    let numbers = (0..EXCEPTIONS).chain(OTHERS.map(usize::from));
    let first = first_vector as *const () as usize;
    numbers.zip((first..).step_by(ENTRY))
}
