//! Unmaps whose flush waits until their frames are wanted again: the queue, and the calls that fill and empty it.
//!
//! ```text
//!   unmap_deferred      clear the entries    flush here    places[first..][len] = (pages, frames)    nodes += those of the change
//!   a change that maps or marks one of the pages: flush_deferred first
//!   flush_deferred      until = number of unmaps so far, take the nodes    flush everything on every CPU
//!                       release the frames before `until`, then the nodes
//! ```
//!
//! **Frames.** A frame in a place has the use that its entry had, so the kernel's count of uses keeps it from being used again. Only
//! [`Deferred::take`] takes it out, after a flush of all CPUs that began when it was there: each run has a number, and `until` is the
//! number of the next run at the beginning of that flush. Two CPUs may flush at the same time: the one that comes to a run first,
//! after its own flush, releases it.
//!
//! **Entries.** A CPU that maps a page has the right to write it. So had the CPU that unmapped the page, and it has filled the place before
//! it gave the right back. The number of the address space's last place, which is stored under the queue's lock, is therefore seen by
//! whoever maps the page later, and tells whether there is anything to look for in the queue.
//!
//! A page that other CPUs must be able to use at once, because the kernel has no handler for a fault on it, has to be found by them, too.
//! Its node may replace one that waits, and another CPU's walk cache may still hold the link to the old node. So such a page is put in force by a flush, if frames of
//! its address space wait ([`Changes::put_in_force`](crate::settle::Changes::put_in_force)). Nodes without frames do not wait, nor does what
//! the kernel's own address space unmaps.
//!
//! **Nodes.** A deferred unmap empties the entries of a node before it unlinks the node, and no code stores to the node until the flush.
//! A walk that still reaches it, by a link in a walk cache or in software, finds its pages absent, and hardware sets no status bit there.
//! The flush ends such walks: each CPU that is online replies, or is found outside of its walks ([`section`](crate::section)).
//!
//! **CPUs.** The flush reaches every CPU that is online, whatever address space it runs. One that is offline has flushed everything, and
//! does so again before it walks. So a place need not keep the address space, which may end before the flush.

use core::fmt;

use tlbkit_addr::{Pages, Pfn, Vpn};
use tlbkit_pagetable::{Carried, Error, Pending, Retired, Run};

use crate::counted::counted;
use crate::edit::SHORT;
use crate::lock::Lock;
use crate::numbers::Numbers;
use crate::once::Unflushed;
use crate::runs::{RUNS, UncoveredRuns};
use crate::sync::{AtomicUsize, Ordering};
use crate::{AddressSpace, Kernel, Mmu, PagesOf};

/// Memory in which frames and nodes wait for the flush of [deferred unmaps](AddressSpace::unmap_deferred). The kernel owns it and
/// returns it from [`Kernel::deferred`]. `Deferred<[Place; N]>` holds `N` runs of frames. Nodes need no place; an unmap flushes first
/// if more than `N` nodes wait.
///
/// ```
/// # use tlbkit::{Asid, Deferred, Flush, Kernel, Mmu, PhysAddr, Place, Record, Run, arch};
/// static DEFERRED: Deferred<[Place; 64]> = Deferred::new();
/// # struct Mine;
/// # // SAFETY: it has no frames.
/// # unsafe impl Kernel for Mine {
/// #   type Machine = arch::Sv39;
/// #   fn take_frame(&self) -> Option<PhysAddr> { None }
/// #   fn give_frame(&self, _: PhysAddr) {}
/// #   fn memory(&self, _: PhysAddr) -> *mut u8 { core::ptr::null_mut() }
/// #   fn record(&self, _: PhysAddr) -> Option<&Record> { None }
/// #   fn release(&self, _: Run) {}
/// #   fn flush(&self, _: &Flush, _: Option<Asid>) {}
/// #   fn masked<R>(&self, f: impl FnOnce() -> R) -> R { f() }
/// #   fn load(&self, _: usize) {}
/// #   fn unload(&self) {}
/// // In the kernel's `impl Kernel`:
/// fn deferred(&self) -> Option<&Deferred> { Some(&DEFERRED) }
/// # }
/// ```
///
/// Nothing takes a frame out but the flush: the type has no other way. With fewer places than one change can uncover, it does not
/// compile:
///
/// ```compile_fail,E0080
/// static DEFERRED: tlbkit::Deferred<[tlbkit::Place; 8]> = tlbkit::Deferred::new();
/// ```
pub struct Deferred<P: ?Sized = [Place]> {
    runs: Numbers,
    /// How many nodes wait. It is stored with the lock, and loaded with or without it.
    nodes: AtomicUsize,
    queue: Lock<Queue<P>>,
}

/// The place of a run of frames in a [`Deferred`].
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// The address of the address space's block, which may be gone: then it is another one's, or none's.
    space: usize,
    /// Pages among which are those that had the frames.
    pages: Pages,
    frames: Run,
}

struct Queue<P: ?Sized> {
    /// The `Mmu` that uses this memory: 0 before the first use.
    owner: usize,
    /// The index of the first run, from which on they wait, around the end.
    at: usize,
    nodes: Option<Carried<'static>>,
    places: P,
}

impl<const PLACES: usize> Deferred<[Place; PLACES]> {
    /// Returns memory in which nothing waits. There are at least 16 places.
    pub const fn new() -> Self {
        const { assert!(PLACES >= RUNS, "a change uncovers 16 runs of frames") };
        let pages = Pages::one(Vpn::new(0));
        let place = Place { space: 0, pages, frames: Run { first: Pfn::new(0), len: 0, dirty: false } };
        let queue = Queue { owner: 0, at: 0, nodes: None, places: [place; PLACES] };
        let [first, next, nodes] = [const { AtomicUsize::new(0) }; 3];
        Self { runs: Numbers::new(first, next), nodes, queue: Lock::new(queue) }
    }
}

impl<const PLACES: usize> Default for Deferred<[Place; PLACES]> {
    fn default() -> Self {
        Self::new()
    }
}

impl<P: ?Sized> Deferred<P> {
    /// Returns how many runs of frames and how many nodes wait. It takes no lock, and may be called anywhere, also with interrupts
    /// unmasked.
    pub fn waiting(&self) -> (usize, usize) {
        (self.runs.len(), self.nodes.load(Ordering::Relaxed))
    }

    /// Leaves nodes in the queue, for which the caller has the lock.
    fn leave(&self, queue: &mut Queue<P>, nodes: Option<Carried<'static>>) {
        self.nodes.store(nodes.as_ref().map_or(0, Carried::nodes), Ordering::Relaxed);
        queue.nodes = nodes;
    }
}

impl Deferred {
    /// Tells whether there is room for what an unmap of so many pages uncovers. Memory that belongs to another `Mmu` has none.
    pub(crate) fn has_room(&self, owner: usize, pages: usize) -> bool {
        self.queue.with(|queue| {
            if queue.owner == 0 {
                queue.owner = owner;
            }
            let places = queue.places.len();
            let (runs, nodes) = self.waiting();
            queue.owner == owner && places - runs >= pages.min(RUNS) && nodes <= places
        })
    }

    /// Takes the runs of `frames`, and `pending`, whose nodes are those of the `Mmu` that is the owner. If other CPUs have taken the
    /// [room](Self::has_room), returns false and takes nothing. `last` is that of the address space.
    pub(crate) fn keep(
        &self,
        owner: usize,
        (space, pages, last): (usize, Pages, &AtomicUsize),
        frames: &mut UncoveredRuns,
        pending: Pending<'_, 'static>,
        none: impl FnOnce() -> Retired<'static>,
    ) -> bool {
        self.queue.with(|queue| {
            let (places, len) = (queue.places.len(), self.runs.len());
            if queue.owner != owner || places - len < frames.len() {
                return false;
            }
            if queue.nodes.is_none() {
                queue.nodes = none().across_cpus().ok();
            }
            if let Some(nodes) = &mut queue.nodes {
                // The batches are of one storage, that of the owner, which is in shared mode.
                let _ = nodes.append(pending);
                self.nodes.store(nodes.nodes(), Ordering::Relaxed);
            }
            let mut new = 0;
            frames.take_all(|frames| {
                if let Some(place) = queue.places.get_mut((queue.at + len + new) % places) {
                    *place = Place { space, pages, frames };
                    new += 1;
                }
            });
            self.runs.add(new, last);
            true
        })
    }

    /// Tells whether a run of the address space that has `last` may wait ([`Numbers::is_ahead`]).
    #[inline(always)]
    pub(crate) fn is_ahead(&self, last: &AtomicUsize) -> bool {
        self.runs.is_ahead(last)
    }

    /// Tells whether frames of an address space wait that one of `pages` had.
    #[cold]
    #[inline(never)]
    pub(crate) fn holds(&self, space: usize, pages: Pages) -> bool {
        self.queue.with(|queue| {
            let (around, from) = queue.places.split_at_checked(queue.at).unwrap_or_default();
            from.iter()
                .chain(around)
                .take(self.runs.len())
                .any(|place| place.space == space && place.pages.intersect(pages).is_some())
        })
    }

    /// Begins a flush, unless nothing waits.
    pub(crate) fn begin(&self, owner: usize) -> Option<Begun<'_>> {
        self.queue.with(|queue| {
            if queue.owner != owner || self.runs.len() == 0 && queue.nodes.is_none() {
                return None;
            }
            let nodes = queue.nodes.take();
            self.leave(queue, None);
            Some(Begun { deferred: self, until: self.runs.next(), nodes })
        })
    }
}

/// A flush that has begun. If it does not come to its end, the nodes wait on.
pub(crate) struct Begun<'d> {
    deferred: &'d Deferred,
    /// The number of the first run that does not belong to it.
    until: usize,
    pub(crate) nodes: Option<Carried<'static>>,
}

impl Begun<'_> {
    /// Moves runs to `list` until it is full, and tells whether there are any in it. Other CPUs may have taken some.
    ///
    /// # Safety
    ///
    /// Since the flush has begun, each CPU that may hold a translation has left its walks and flushed everything.
    pub(crate) unsafe fn take(&self, list: &mut UncoveredRuns) -> bool {
        let runs = &self.deferred.runs;
        self.deferred.queue.with(|queue| {
            let mut number = runs.first();
            // `until` is at most the number of the next run.
            while self.until.wrapping_sub(number).cast_signed() > 0
                && let Some(&Place { frames, .. }) = queue.places.get(queue.at)
                && list.push(frames)
            {
                queue.at = (queue.at + 1) % queue.places.len();
                number = number.wrapping_add(1);
            }
            runs.take_before(number);
        });
        !list.is_empty()
    }
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        let Some(mut nodes) = self.nodes.take().map(Carried::into_retired) else { return };
        self.deferred.queue.with(|queue| {
            if let Some(more) = queue.nodes.take() {
                // They are of the same storage.
                let _ = nodes.append(more.into_retired());
            }
            self.deferred.leave(queue, nodes.across_cpus().ok());
        });
    }
}

impl<K: Kernel, const CPUS: usize> AddressSpace<K, CPUS> {
    /// Unmaps every mapped page of `pages` without an interrupt to any other CPU: a CPU that holds a translation may go on to use the
    /// page, until a later flush ([`Mmu::flush_deferred`]). Until then the frames and nodes wait in the memory that the kernel gives
    /// ([`Kernel::deferred`]), so that no other use of them begins. This CPU flushes at once. Lookups and copies by `tlbkit` do not
    /// find the pages any more.
    ///
    /// That is for pages that a program gives back for good, frames and addresses: `munmap` of private memory, where the only one
    /// that sees the difference is the program that uses what it has given back. Everything else is immediate:
    ///
    /// | change | why it does not wait |
    /// |-|-|
    /// | a page of a waiting range is mapped or [marked](Self::mark) | a CPU would go on to use the old frame in place of the new one, or pass the guard: the change flushes first, by itself |
    /// | the addresses are given out again, and the pages are mapped at their first use | a CPU would find the old pages, and no fault: the kernel calls [`flush_deferred`](Self::flush_deferred) |
    /// | `MADV_DONTNEED`, `MADV_FREE` and the like, after which the program may use the addresses: [`unmap`](Self::unmap) | a thread would find the old contents; and its stores would be lost with the old frame, when another thread's fault maps a new one |
    /// | any other [`unmap`](Self::unmap) | the kernel's decision: truncated files, memory that others share and the program must lose, pages of devices, any unmap that is a promise to somebody else |
    /// | [`protect`](Self::protect), [`set_rights`](Self::set_rights) that take a right away, [`freeze`](Self::freeze), [`fork`](Self::fork) | a store by the old right changes a frame that is still in use |
    /// | [`replace`](Self::replace), [`unshare`](Self::unshare), [`page_out`](Self::page_out), a guard in place of a page | two CPUs would use two frames for one page, or lose a store |
    /// | [`move_pages`](Self::move_pages), [`resize`](Self::resize) | the frames stay in use |
    /// | [`Attr::USER`](crate::Attr::USER), [`Attr::GLOBAL`](crate::Attr::GLOBAL), memory types, keys | a stale translation is a hole, or undefined |
    ///
    /// Costs an [`unmap`](Self::unmap) without its shootdown; for every 16 runs of frames two short holds of a lock that all CPUs share; a
    /// place for each run; and an access of a record for each node. If there is no room, it flushes what waits first; if the pages have more runs of frames than there are places, it unmaps the rest at once. Where no
    /// other CPU may hold a translation, in the kernel's own address space, and for more than 512 pages, it does what
    /// [`unmap`](Self::unmap) does, and nothing waits; so it does with one CPU, and where the kernel gives no memory.
    ///
    /// While something of an address space waits, each of its maps and marks takes a lock, which all CPUs share, and looks at every
    /// place in use: the number of places bounds that. One that finds its page, and one of a page without
    /// [`Attr::USER`](crate::Attr::USER), flushes, and releases everything, with interrupts masked: up to 512 frames for each place.
    ///
    /// # Errors
    ///
    /// Those of [`unmap`](Self::unmap).
    pub fn unmap_deferred(&self, pages: PagesOf<K>) -> Result<usize, Error> {
        let range = counted::<K>(pages);
        match self.mmu().kernel().deferred() {
            Some(deferred) if CPUS > 1 && range.len() <= SHORT && !self.0.is_kernels() => {
                if range.len() == 1 && self.unmap_once::<true>(range.first()).map_err(Unflushed::error)? {
                    return Ok(1);
                }
                self.change(Some(range), &mut |edit| edit.unmap_deferred(deferred, range))
            }
            _ => self.unmap(pages),
        }
    }

    /// Does what [`Mmu::flush_deferred`] does, if an unmap of one of `pages` [waits](Self::unmap_deferred); otherwise nothing. A kernel
    /// calls it when it gives the addresses to a program again, and maps the pages at their first use: until then there is no change
    /// that could flush, and a CPU may find the old pages. The unmap must happen before the call: the kernel's lock of the range orders
    /// them. Costs a call and a few loads if no unmap of this address space waits.
    ///
    /// # Errors
    ///
    /// Those of [`Mmu::flush_deferred`].
    pub fn flush_deferred(&self, pages: PagesOf<K>) -> Result<usize, Error> {
        if CPUS == 1 || self.mmu().kernel().deferred().is_none() {
            return Ok(0);
        }
        let pages = counted::<K>(pages);
        self.mmu().call(|call| {
            Ok(if call.is_deferred(&self.0, pages) { call.flush_deferred().unwrap_or(0) } else { 0 })
        })
    }
}

impl<K: Kernel, const CPUS: usize> Mmu<K, CPUS> {
    /// Flushes every CPU's TLB once, and gives back all frames and nodes that wait since [deferred
    /// unmaps](AddressSpace::unmap_deferred). When this returns, no CPU can use any page that was unmapped so before the call.
    /// Returns how many base pages this CPU has released; another CPU that flushes at the same time may release the others.
    ///
    /// The kernel calls it when it wants frames, and when the promise of an unmap must hold now. An unmap that finds no room, and a
    /// change that uses a page again, do the same by themselves. Costs a call and a lock if nothing waits; otherwise one shootdown of
    /// everything, of all CPUs that are online, or a [broadcast](Kernel::BROADCAST).
    ///
    /// # Errors
    ///
    /// [`Error::Nested`] inside an edit or a visit on this CPU; [`Error::Unflushed`] as for [`AddressSpace::edit`]: all waits on then.
    pub fn flush_deferred(&'static self) -> Result<usize, Error> {
        if CPUS == 1 || self.kernel().deferred().is_none() {
            return Ok(0);
        }
        self.call(|call| Ok(call.flush_deferred().unwrap_or(0)))
    }
}

impl<P: ?Sized> fmt::Debug for Deferred<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (runs, nodes) = self.waiting();
        f.debug_struct("Deferred").field("runs", &runs).field("nodes", &nodes).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::{Deferred, Place};

    /// A thread that looks how much waits may be interrupted, or may interrupt a change: it must not wait for the lock, nor hold it.
    #[test]
    fn a_look_at_what_waits_needs_no_lock() {
        static MEMORY: Deferred<[Place; 16]> = Deferred::new();
        let seen = MEMORY.queue.with(|_| (MEMORY.waiting(), format!("{MEMORY:?}")));
        assert_eq!(seen, ((0, 0), "Deferred { runs: 0, nodes: 0 }".to_owned()));
    }
}
