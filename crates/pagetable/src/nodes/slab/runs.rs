//! The buddy system, which allocates runs of chunks.

use core::mem::size_of;
use core::ptr;

use super::classes::CHUNK;
use super::{Descriptor, FREE, INNER, Lists, NONE, ORDERS, Slab, UPPER, Window};
use crate::Mode;
use crate::word::Word;

impl<W: Word, M: Mode, A: Window> Slab<'_, W, M, A> {
    /// Adds a chunk at the head of a list.
    pub(super) fn push(&self, head: &mut u32, chunk: u32) {
        let descriptor = self.descriptor(chunk);
        descriptor.previous.set(NONE);
        descriptor.next.set(*head);
        if *head != NONE {
            self.descriptor(*head).previous.set(chunk);
        }
        *head = chunk;
    }

    /// Removes a chunk from a list.
    pub(super) fn unlink(&self, head: &mut u32, chunk: u32) {
        let descriptor = self.descriptor(chunk);
        let (previous, next) = (descriptor.previous.get(), descriptor.next.get());
        if previous == NONE {
            *head = next;
        } else {
            self.descriptor(previous).next.set(next);
        }
        if next != NONE {
            self.descriptor(next).previous.set(previous);
        }
    }

    /// Returns which of the two lists has a run with this first chunk: 1 from [`UPPER`] on. No run is on both sides, because
    /// runs are aligned to their length.
    #[inline(always)]
    pub(super) fn part(&self, chunk: u32) -> usize {
        usize::from(self.base / CHUNK + chunk as usize >= UPPER)
    }

    /// Returns the result of `take` for the upper part of memory, if the slab has such a part and `last` is in it; if that
    /// is `None`, the result for the lower part.
    #[inline(always)]
    pub(super) fn upper_first<T>(&self, last: usize, mut take: impl FnMut(usize) -> Option<T>) -> Option<T> {
        if self.first_part(last) == 1 { take(1).or_else(|| take(0)) } else { take(0) }
    }

    /// Returns the part of memory that is searched first for a run that ends at `last` or below.
    #[inline(always)]
    pub(super) fn first_part(&self, last: usize) -> usize {
        self.part(self.chunks as u32 - 1).min(usize::from(last / CHUNK >= UPPER))
    }

    /// Tells whether `2^order` chunks from `chunk` on end at `last` or below.
    #[inline(always)]
    pub(super) fn ends_within(&self, chunk: u32, order: u32, last: usize) -> bool {
        // The address of the slab's last byte does not overflow, so none of these does.
        self.base + (chunk as usize * CHUNK) + ((CHUNK << order) - 1) <= last
    }

    /// Returns the first chunk in a list such that the 2^order chunks from it on end at `last` or below.
    ///
    /// That is the head of the list, unless `last` is in the middle of the list's part of memory.
    #[inline(always)]
    pub(super) fn first_within(&self, head: u32, order: u32, last: usize) -> Option<u32> {
        let mut at = head;
        while at != NONE && !self.ends_within(at, order, last) {
            at = self.descriptor(at).next.get();
        }
        (at != NONE).then_some(at)
    }

    /// Returns the number of a chunk in the address space of `base`, in which runs are aligned.
    pub(super) fn number(&self, chunk: u32) -> u32 {
        ((self.base / CHUNK) as u32).wrapping_add(chunk)
    }

    /// Adds a free run of 2^order chunks to its list.
    pub(super) fn push_free(&self, lists: &mut Lists, chunk: u32, order: u32) {
        self.descriptor(chunk).kind.set(FREE + order as u8);
        self.push(&mut lists.free[order as usize][self.part(chunk)], chunk);
    }

    /// Takes a run of 2^order chunks from a part of memory that ends at `last` or below.
    pub(super) fn take_run(&self, lists: &mut Lists, part: usize, order: u32, last: usize) -> Option<u32> {
        let (mut found, chunk) = (order..ORDERS as u32)
            .find_map(|at| Some((at, self.first_within(lists.free[at as usize][part], order, last)?)))?;
        self.unlink(&mut lists.free[found as usize][part], chunk);
        while found > order {
            found -= 1;
            self.push_free(lists, chunk + (1 << found), found);
        }
        for inner in 1..1 << order {
            self.descriptor(chunk + inner).kind.set(INNER);
        }
        lists.usage.chunks += (CHUNK + size_of::<Descriptor>()) << order;
        lists.usage.peak = lists.usage.peak.max(lists.usage.chunks);
        Some(chunk)
    }

    /// Frees a run, and joins it with its free buddies.
    pub(super) fn free_run(&self, lists: &mut Lists, mut chunk: u32, mut order: u32) {
        lists.usage.chunks -= (CHUNK + size_of::<Descriptor>()) << order;
        // The loop ends: a run of the largest order has no free buddy.
        loop {
            // The number of a buddy below the first chunk wraps, and so exceeds the last.
            let buddy = (self.number(chunk) ^ (1 << order)).wrapping_sub(self.number(0));
            let end = (buddy as usize).checked_add(1 << order);
            if end.is_none_or(|end| end > self.chunks)
                || self.descriptor(buddy).kind.get() != FREE + order as u8
            {
                break;
            }
            self.unlink(&mut lists.free[order as usize][self.part(buddy)], buddy);
            self.descriptor(buddy).kind.set(INNER);
            chunk = chunk.min(buddy);
            order += 1;
        }
        self.push_free(lists, chunk, order);
    }

    /// Clears the chunks of a run that are not clean, and resets their marks. The caller sets the marks again when it frees
    /// the run.
    pub(super) fn clean_run(&self, chunk: u32, order: u32) {
        for at in chunk..chunk + (1 << order) {
            if !self.descriptor(at).clean.replace(false) {
                // SAFETY: the chunk belongs to a run that was just taken, so no other code uses it.
                unsafe { ptr::write_bytes(self.chunk(at), 0, CHUNK) };
            }
        }
    }
}
