//! Frames for the nodes of a mapper under test: memory whose physical address is its address.
//!
//! One mapper of a thread has them at a time. They are kept for the next one, which gets all of them, whatever the last one
//! has not given back.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ptr;
use std::sync::{Mutex, PoisonError};

/// Bytes of a frame, and its alignment.
pub const BYTES: usize = 4096;

#[repr(C, align(4096))]
struct Frame([u8; BYTES]);

#[derive(Default)]
struct Pool {
    free: Vec<usize>,
    out: BTreeSet<usize>,
    /// How many more can be had, if that is limited.
    left: Option<usize>,
    /// Whether the mapper has asked for one.
    used: bool,
}

/// Every frame that there is: they are never given back to the system, and a checker of leaks finds them here.
static ALL: Mutex<Vec<usize>> = Mutex::new(Vec::new());

thread_local! {
    static POOL: RefCell<Pool> = RefCell::default();
}

/// Takes a frame, if the test lets the mapper have one. It is not cleared: a mapper that is promised zeroes clears it first.
pub fn take() -> Option<usize> {
    POOL.with_borrow_mut(|pool| {
        pool.used = true;
        if let Some(left) = &mut pool.left {
            *left = left.checked_sub(1)?;
        }
        let new = || {
            let frame = Box::leak(Box::new(Frame([0; BYTES]))).0.as_mut_ptr().expose_provenance();
            ALL.lock().unwrap_or_else(PoisonError::into_inner).push(frame);
            frame
        };
        let frame = pool.free.pop().unwrap_or_else(new);
        // Every word looks like an entry, and each time like the same, so that what fails fails again.
        // SAFETY: the frame has no other user.
        unsafe { ptr::write_bytes(ptr::with_exposed_provenance_mut::<u8>(frame), 0xa7, BYTES) };
        pool.out.insert(frame);
        Some(frame)
    })
}

/// Gives a frame back.
///
/// # Panics
///
/// If it is not out: the mapper has given it back twice, or never had it.
pub fn give(frame: usize) {
    POOL.with_borrow_mut(|pool| {
        assert!(
            pool.out.remove(&frame),
            "frame {frame:#x} is given back, and was not taken, or given back before"
        );
        pool.free.push(frame);
    });
}

/// Returns how many frames are out, if the mapper takes any.
pub fn out() -> Option<usize> {
    POOL.with_borrow(|pool| pool.used.then_some(pool.out.len()))
}

/// Lets `takes` more frames be taken, or any number. Tells whether the mapper has taken any: before, it has all that it asks for.
pub(crate) fn limit(takes: Option<usize>) -> bool {
    POOL.with_borrow_mut(|pool| {
        pool.left = takes.filter(|_| pool.used);
        pool.used
    })
}

/// Takes every frame back, for another mapper.
pub(crate) fn reset() {
    POOL.with_borrow_mut(|pool| {
        // In the same order each time, so that what fails fails again.
        pool.free.extend(std::mem::take(&mut pool.out));
        pool.free.sort_unstable_by(|a, b| b.cmp(a));
        (pool.left, pool.used) = (None, false);
    });
}
