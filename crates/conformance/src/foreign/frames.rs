//! Frames for the nodes of a mapper under test: memory whose physical address is its address.
//!
//! Only one mapper of a thread uses them at a time. The next mapper gets the same frames, including those that the last one has
//! not given back.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ptr;
use std::sync::{Mutex, PoisonError};

use super::{Flushed, watch};

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
    /// What has happened since the call began.
    events: Vec<Event>,
    /// The flushes that [`flushes`] has not returned; `None` if the mapper has never told of one.
    flushes: Option<Vec<Flushed>>,
}

/// What a mapper does in a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Take(usize),
    Give(usize),
    Flush(Flushed),
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
        pool.events.push(Event::Take(frame));
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
        pool.events.push(Event::Give(frame));
    });
}

/// Tells of a flush when it has ended on every CPU: the mapper's flush function calls this. A node that the mapper gives back in a call
/// that unmaps, replaces or resizes pages, or takes rights away, must be given back after the flush.
pub fn flush(flushed: Flushed) {
    POOL.with_borrow_mut(|pool| {
        pool.flushes.get_or_insert_default().push(flushed);
        pool.events.push(Event::Flush(flushed));
    });
}

/// Tells of a store to a frame, when it was made: the function with which the mapper writes an entry calls this. A walk of
/// [`Foreign::mmu`](super::Foreign::mmu) then looks up the pages that the call changes, and pages beside them.
pub fn stored() {
    watch::look();
}

/// Returns the flushes that the mapper has told of since the last call, or `None` if it has never told of one.
pub(crate) fn flushes() -> Option<Vec<Flushed>> {
    POOL.with_borrow_mut(|pool| pool.flushes.as_mut().map(std::mem::take))
}

/// Tells whether the mapper has ever told of a flush.
pub(super) fn tells_flushes() -> bool {
    POOL.with_borrow(|pool| pool.flushes.is_some())
}

/// Notes that the mapper tells of its flushes.
pub(super) fn expect_flushes() {
    POOL.with_borrow_mut(|pool| pool.flushes = Some(Vec::new()));
}

/// Begins a call.
pub(super) fn begin() {
    POOL.with_borrow_mut(|pool| pool.events.clear());
}

/// Returns a frame that was taken before the call and given back in it where the flushes before that do not satisfy `is_enough`.
pub(super) fn early(is_enough: impl Fn(&[Flushed]) -> bool) -> Option<usize> {
    POOL.with_borrow(|pool| {
        let (mut taken, mut flushes) = (BTreeSet::new(), Vec::new());
        pool.events.iter().find_map(|event| match *event {
            Event::Take(frame) => {
                taken.insert(frame);
                None
            }
            Event::Flush(flushed) => {
                flushes.push(flushed);
                None
            }
            Event::Give(frame) => (!taken.contains(&frame) && !is_enough(&flushes)).then_some(frame),
        })
    })
}

/// Loads a word of a frame that is taken, or, if `given` is set, that has been taken once. Returns `None` if there is no such frame.
pub(super) fn load(at: usize, given: bool) -> Option<u64> {
    let frame = at & !(BYTES - 1);
    let is_there = POOL.with_borrow(|pool| pool.out.contains(&frame) || given && pool.free.contains(&frame));
    // SAFETY: frames are never freed, and only this thread uses those of its pool. The word lies within the frame.
    (is_there && at.is_multiple_of(8))
        .then(|| unsafe { ptr::with_exposed_provenance::<u64>(at).read_volatile() })
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

/// Returns a frame of a cycle of entries, if there is one. An entry is a word that holds the address of a taken frame, in bits 12 and up
/// or, as RISC-V has it, from bit 10 on, and a bit below that: a bare address, as of a parent, is none.
pub(super) fn cycle() -> Option<usize> {
    let below = |frame: usize, left: &BTreeSet<usize>| {
        let words = (frame..frame + BYTES).step_by(8).filter_map(|at| load(at, false));
        let mut links = words.filter(|word| word & 0x3ff != 0).flat_map(|word| {
            [word & 0xffff_ffff_f000, word << 2 & 0xff_ffff_ffff_f000].map(|frame| frame as usize)
        });
        links.find(|frame| left.contains(frame))
    };
    // Frames that lead to no other one that is left are taken away until none is like that.
    let mut left = POOL.with_borrow(|pool| pool.out.clone());
    loop {
        let (inner, ends): (BTreeSet<_>, BTreeSet<_>) =
            left.iter().partition(|frame| below(**frame, &left).is_some());
        if ends.is_empty() {
            let first = *inner.first()?;
            return inner.iter().try_fold(first, |frame, _| below(frame, &inner));
        }
        left = inner;
    }
}

/// Takes back every frame, for the next mapper.
pub(crate) fn reset() {
    POOL.with_borrow_mut(|pool| {
        // The order is always the same, so that failures repeat.
        pool.free.extend(std::mem::take(&mut pool.out));
        pool.free.sort_unstable_by(|a, b| b.cmp(a));
        (pool.left, pool.used, pool.flushes) = (None, false, None);
        pool.events.clear();
    });
}
