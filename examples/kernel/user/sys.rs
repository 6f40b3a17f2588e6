//! What the kernel does for a program.

use crate::arch::call;

pub(crate) use crate::arch::{load, store};

/// What the kernel answers to what must not be.
const WRONG: usize = usize::MAX;

/// What a program has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// Something that should have been allowed was not, or the other way round.
    Failure = 1,
    /// A page that is not what it should be.
    StaleRead = 2,
    /// A store that arrived though it must not.
    StaleWrite = 3,
}

pub(crate) fn exit() -> ! {
    loop {
        call(0, [0; 3]);
    }
}

pub(crate) fn report_checks(count: usize) {
    call(1, [0, count, 0]);
}

pub(crate) fn report(found: Found) {
    call(1, [found as usize, 0, 0]);
}

/// Returns the number of the child, and in the child nothing; `Err` if there is no room for it.
pub(crate) fn fork() -> Result<Option<usize>, ()> {
    match call(2, [0; 3]) {
        WRONG => Err(()),
        child => Ok(child.checked_sub(1)),
    }
}

/// Waits until every child, and every other thread, has ended.
pub(crate) fn wait() {
    call(3, [0; 3]);
}

/// Begins a thread of this process.
pub(crate) fn spawn(entry: extern "C" fn(usize) -> !, stack: usize, argument: usize) {
    call(4, [entry as usize, stack, argument]);
}

pub(crate) fn map(at: usize, pages: usize) -> bool {
    call(5, [at, pages, 1]) == 0
}

/// Maps a large page, if memory of its size is in a row and the machine has such pages.
pub(crate) fn map_large(at: usize) -> bool {
    call(16, [at, 0, 0]) == 0
}

pub(crate) fn unmap(at: usize, pages: usize) -> bool {
    call(6, [at, pages, 0]) == 0
}

pub(crate) fn protect(at: usize, pages: usize, write: bool) -> bool {
    call(7, [at, pages, write.into()]) == 0
}

pub(crate) fn remap(from: usize, pages: usize, to: usize) -> bool {
    call(8, [from, pages, to]) == 0
}

/// Maps open pages, at once or when they are first used.
pub(crate) fn map_open(at: usize, pages: usize, at_once: bool) -> bool {
    call(18, [at, pages, at_once.into()]) == 0
}

pub(crate) fn unmap_open(at: usize, pages: usize) -> bool {
    call(19, [at, pages, 0]) == 0
}

pub(crate) fn protect_open(at: usize, pages: usize, write: bool) -> bool {
    call(20, [at, pages, write.into()]) == 0
}

/// Sends pages to another process.
pub(crate) fn send(to: usize, at: usize, pages: usize) -> bool {
    call(9, [to, at, pages]) == 0
}

/// Waits for a message, and returns how many pages it has, which are at `at` then.
pub(crate) fn receive(at: usize) -> usize {
    call(10, [at, 0, 0])
}

/// Tells whether unmaps are deferred.
pub(crate) fn defers() -> bool {
    call(21, [0; 3]) == 1
}

/// Returns how many interrupts CPUs have sent to each other for the sake of TLBs.
pub(crate) fn interrupts() -> usize {
    call(22, [0; 3])
}

/// Reports so many unmaps, and the interrupts meanwhile.
pub(crate) fn report_churn(unmaps: usize, interrupts: usize) {
    call(23, [unmaps, interrupts, 0]);
}

/// Returns the number of this process.
pub(crate) fn number() -> usize {
    call(11, [0; 3])
}

/// Returns how many CPUs there are.
pub(crate) fn cpus() -> usize {
    call(13, [0; 3])
}

/// Returns how many operations the programs are to come to.
pub(crate) fn wanted() -> usize {
    call(14, [0; 3])
}

/// Returns how many there have been.
pub(crate) fn operations() -> usize {
    call(15, [0; 3])
}

/// Sends the message by one reference, waits for the next one by another, and returns how many of its pages to read. Says how many
/// of the last one's were wrong.
pub(crate) fn pass(wrong: usize, sends: usize, receives: usize) -> usize {
    call(17, [wrong, sends, receives])
}

/// Lets [`load`] and [`store`] find out what must not be.
pub(crate) fn catch() {
    call(12, [crate::arch::refused as *const () as usize, 0, 0]);
}
