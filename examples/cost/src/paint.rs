//! How much stack a call takes: below the frame that makes the call the stack is painted, and the call's depth is how far down the
//! paint is gone.

/// How far down the stack is painted.
pub const PAINTED: usize = 160 << 10;
const PAINT: u64 = 0xa5c3_5a3c_c3a5_3c5a;
/// What is left out right below the frame that paints: its own calls.
pub const GAP: usize = 512;

#[inline(never)]
fn paint(top: usize) {
    let mut at = top - PAINTED;
    while at < top - GAP {
        // A plain store: without the optimizer a function would have its frame where the paint is.
        // SAFETY: the stack is larger than that, and no code uses what is below the frames of this thread.
        unsafe { *(at as *mut u64) = PAINT };
        at += 8;
    }
}

#[inline(never)]
fn painted(top: usize) -> usize {
    let mut at = top - PAINTED;
    // SAFETY: the addresses are those that `paint` has written, in the stack of this thread.
    while at < top - GAP && unsafe { *(at as *const u64) } == PAINT {
        at += 8;
    }
    at
}

/// Calls an operation and returns how many bytes of stack it took, [`GAP`] at least.
#[inline(never)]
pub fn depth(operation: &mut dyn FnMut()) -> usize {
    let here = 0u64;
    let top = (&raw const here) as usize & !7;
    paint(top);
    operation();
    top - painted(top)
}
