//! Frames for the nodes of a mapper under test: memory whose physical address is its address.
//!
//! Only one mapper of a thread uses them at a time. The next mapper gets the same frames, including those that the last one has
//! not given back.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ptr;
use std::sync::{Mutex, PoisonError};

/// The size and the alignment of a frame, in bytes.
pub const BYTES: usize = 4096;

#[repr(C, align(4096))]
struct Frame([u8; BYTES]);

#[derive(Default)]
struct Pool {
    free: Vec<usize>,
    out: BTreeSet<usize>,
    /// The number of frames that may still be taken, if it is limited.
    left: Option<usize>,
    /// Whether the mapper has taken a frame.
    used: bool,
}

/// All frames. They are never freed, and this list keeps them reachable for a leak checker.
static ALL: Mutex<Vec<usize>> = Mutex::new(Vec::new());

thread_local! {
    static POOL: RefCell<Pool> = RefCell::default();
}

/// Takes a frame, if the test lets the mapper have one. The frame is not cleared: the adapter of a mapper that expects zeroed
/// frames clears it.
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
        // Every word looks like an entry. The pattern is always the same, so that failures repeat.
        // SAFETY: no other code uses the frame.
        unsafe { ptr::write_bytes(ptr::with_exposed_provenance_mut::<u8>(frame), 0xa7, BYTES) };
        pool.out.insert(frame);
        Some(frame)
    })
}

/// Gives a frame back.
///
/// # Panics
///
/// If the frame is not taken: the mapper has given it back twice, or never took it.
pub fn give(frame: usize) {
    POOL.with_borrow_mut(|pool| {
        assert!(
            pool.out.remove(&frame),
            "frame {frame:#x} is given back, and was not taken, or given back before"
        );
        pool.free.push(frame);
    });
}

/// Returns the number of frames that are taken, or `None` if the mapper has never taken one.
pub fn out() -> Option<usize> {
    POOL.with_borrow(|pool| pool.used.then_some(pool.out.len()))
}

/// Limits the mapper to `takes` more frames, or removes the limit. Returns `false` if the mapper has never taken a frame, in
/// which case there is no limit.
pub(crate) fn limit(takes: Option<usize>) -> bool {
    POOL.with_borrow_mut(|pool| {
        pool.left = takes.filter(|_| pool.used);
        pool.used
    })
}

/// Takes back every frame, for the next mapper.
pub(crate) fn reset() {
    POOL.with_borrow_mut(|pool| {
        // The order is always the same, so that failures repeat.
        pool.free.extend(std::mem::take(&mut pool.out));
        pool.free.sort_unstable_by(|a, b| b.cmp(a));
        (pool.left, pool.used) = (None, false);
    });
}
