//! The same calls by hand: Sv39 on one hart, pages of 4 KiB, as a small kernel has them. `cargo xtask portability` prints the code
//! of both.
//!
//! There is what makes them right on one hart, and nothing more: no error but "no", no larger pages, no marks, no kernel's half
//! that is shared, no batches, no node that is given back before the end of the address space.

use core::sync::atomic::{AtomicU64, Ordering};

use super::spaces::{tlbkit_flush, tlbkit_mask, tlbkit_memory, tlbkit_release, tlbkit_take_frame};

const V: u64 = 1 << 0;
const R: u64 = 1 << 1;
const W: u64 = 1 << 2;
const X: u64 = 1 << 3;
const U: u64 = 1 << 4;
const A: u64 = 1 << 6;
const D: u64 = 1 << 7;
/// A bit of software's.
const COPY_ON_WRITE: u64 = 1 << 8;

/// An address space.
#[derive(Debug)]
pub struct Floor {
    root: usize,
    asid: usize,
}

/// Why a store faulted.
#[derive(Debug)]
#[repr(u8)]
pub enum Why {
    /// It can be repeated.
    Retry,
    /// Nothing is mapped.
    NotMapped,
    /// The page has been shared by a fork.
    CopyOnWrite,
    /// It is not allowed.
    NoRight,
}

/// Returns the entry for an address, and makes the nodes on the way if `make` says so.
fn entry(space: &Floor, at: usize, make: bool) -> Option<&AtomicU64> {
    if ((at << 25) as isize >> 25) as usize != at {
        return None;
    }
    let mut node = space.root;
    let mut level = 2;
    loop {
        let index = at >> (12 + 9 * level) & 511;
        // SAFETY: the kernel maps the memory of its nodes, which last as long as the address space.
        let entry = unsafe { AtomicU64::from_ptr(tlbkit_memory(node).cast::<u64>().wrapping_add(index)) };
        if level == 0 {
            return Some(entry);
        }
        let word = entry.load(Ordering::Relaxed);
        node = if word & V != 0 {
            if word & (R | W | X) != 0 {
                return None;
            }
            (word >> 10 << 12) as usize
        } else {
            let new = if make { tlbkit_take_frame() } else { 0 };
            if new == 0 {
                return None;
            }
            // SAFETY: the frame has no other user.
            unsafe { tlbkit_memory(new).write_bytes(0, 4096) };
            entry.store((new as u64) >> 12 << 10 | V, Ordering::Release);
            new
        };
        level -= 1;
    }
}

/// Runs `f` with interrupts masked.
fn masked<T>(f: impl FnOnce() -> T) -> T {
    let before = tlbkit_mask(0);
    let result = f();
    tlbkit_mask(before);
    result
}

fn forget(space: &Floor, at: usize, old: u64) {
    tlbkit_flush(at >> 12, space.asid);
    tlbkit_release((old >> 10) as usize, 1);
}

/// Maps a page.
#[unsafe(no_mangle)]
pub fn floor_sv39_map(space: &Floor, at: usize, frame: usize) -> bool {
    masked(|| {
        let Some(entry) = entry(space, at, true) else { return false };
        if frame >> 44 != 0 || entry.load(Ordering::Relaxed) != 0 {
            return false;
        }
        entry.store((frame as u64) << 10 | U | W | R | V, Ordering::Release);
        tlbkit_flush(at >> 12, space.asid);
        true
    })
}

/// Unmaps a page.
#[unsafe(no_mangle)]
pub fn floor_sv39_unmap(space: &Floor, at: usize) -> bool {
    masked(|| {
        let Some(entry) = entry(space, at, false) else { return false };
        let old = entry.swap(0, Ordering::AcqRel);
        if old & V == 0 {
            return false;
        }
        forget(space, at, old);
        true
    })
}

/// Takes the right to write away.
#[unsafe(no_mangle)]
pub fn floor_sv39_protect(space: &Floor, at: usize) -> bool {
    masked(|| {
        let Some(entry) = entry(space, at, false) else { return false };
        if entry.fetch_and(!W, Ordering::AcqRel) & V == 0 {
            return false;
        }
        tlbkit_flush(at >> 12, space.asid);
        true
    })
}

/// Maps a mapped page to another frame.
#[unsafe(no_mangle)]
pub fn floor_sv39_replace(space: &Floor, at: usize, frame: usize) -> bool {
    masked(|| {
        let Some(entry) = entry(space, at, false) else { return false };
        if frame >> 44 != 0 || entry.load(Ordering::Relaxed) & V == 0 {
            return false;
        }
        let old = entry.swap((frame as u64) << 10 | U | W | R | V, Ordering::AcqRel);
        forget(space, at, old);
        true
    })
}

/// Tells why a store faulted.
#[unsafe(no_mangle)]
pub fn floor_sv39_fault(space: &Floor, at: usize) -> Why {
    masked(|| {
        let Some(entry) = entry(space, at, false) else { return Why::NotMapped };
        let word = entry.load(Ordering::Relaxed);
        if word & V == 0 {
            return Why::NotMapped;
        }
        if word & (U | W) != U | W {
            let copy = word & (U | COPY_ON_WRITE) == U | COPY_ON_WRITE;
            return if copy { Why::CopyOnWrite } else { Why::NoRight };
        }
        entry.fetch_or(A | D, Ordering::AcqRel);
        tlbkit_flush(at >> 12, space.asid);
        Why::Retry
    })
}

/// Looks an address up.
#[unsafe(no_mangle)]
pub fn floor_sv39_lookup(space: &Floor, at: usize) -> u64 {
    masked(|| entry(space, at, false).map_or(0, |entry| entry.load(Ordering::Relaxed)))
}
