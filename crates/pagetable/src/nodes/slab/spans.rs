//! Spans: chunks that are divided into small nodes of one size. Taking a node from a span, and giving it back.

use core::mem::size_of;
use core::ptr;

use super::classes::{CHUNK, KEPT, class_bytes, index_at, span_bytes, span_nodes, span_order};
use super::{Lists, NONE, RUN_OF_NODES, Slab, Window};
use crate::Mode;
use crate::fields::Fields as _;
use crate::nodes::{ListLink, NodeAddr, Reclaim, Record};
use crate::word::Word;
use crate::word::atomics::Ordering;

impl<W: Word, M: Mode, A: Window> Slab<'_, W, M, A> {
    /// Returns a span of a class that has a free node and ends at `last` or below.
    #[inline(always)]
    fn open_span(&self, lists: &mut Lists, class: usize, last: usize) -> Option<u32> {
        let listed = lists.partial[class][self.first_part(last)];
        if listed != NONE && self.ends_within(listed, span_order(class), last) {
            return Some(listed);
        }
        self.find_span(lists, class, last)
    }

    /// As [`open_span`](Self::open_span), if the first span of the list does not end at `last` or below, or the list is empty.
    #[inline(never)]
    fn find_span(&self, lists: &mut Lists, class: usize, last: usize) -> Option<u32> {
        self.upper_first(last, |part| {
            let partial = self.first_within(lists.partial[class][part], span_order(class), last);
            partial.or_else(|| self.take_span(lists, part, class, last))
        })
    }

    /// Takes a node of a class from a span that ends at `last` or below.
    pub(super) fn take_small(&self, class: usize, last: usize) -> Option<NodeAddr> {
        let (span, index) = self.locked(|lists| {
            let span = self.open_span(lists, class, last)?;
            let descriptor = self.descriptor(span);
            let state = descriptor.record.load(Ordering::Relaxed);
            let (free, used) = (state & 0xffff, (state >> 16) + 1);
            let (index, free) = if free == 0 {
                let fresh = descriptor.fresh.get();
                descriptor.fresh.set(fresh + 1);
                (u32::from(fresh), 0)
            } else {
                // The record of a free node holds the index of the next free node.
                (free - 1, self.record_in(span, class, free as usize - 1).load(Ordering::Relaxed))
            };
            descriptor.record.store(free.with(used << 16), Ordering::Relaxed);
            if used as usize == span_nodes(class) {
                self.unlink(&mut lists.partial[class][self.part(span)], span);
            }
            lists.usage.nodes += 1;
            lists.usage.bytes += class_bytes(class);
            Some((span, index as usize))
        })?;
        self.record_in(span, class, index).store(0, Ordering::Relaxed);
        Some(NodeAddr::new(self.base + span as usize * CHUNK + index * class_bytes(class)))
    }

    /// Takes up to `count` nodes of a class from one span that ends at `last` or below, and puts each at the head of the
    /// list that begins with node number `head`. Returns how many nodes it has taken: 0 if there is no memory.
    pub(super) fn take_some(&self, class: usize, count: usize, last: usize, head: &mut u32) -> usize {
        self.locked(|lists| {
            let Some(span) = self.open_span(lists, class, last) else { return 0 };
            let descriptor = self.descriptor(span);
            let state = descriptor.record.load(Ordering::Relaxed);
            let (mut free, used) = (state & 0xffff, (state >> 16) as usize);
            let (mut fresh, mut first) = (descriptor.fresh.get(), *head);
            let some = count.min(span_nodes(class) - used);
            let start = self.base + span as usize * CHUNK;
            for _ in 0..some {
                // The free list has the nodes that were in use before. The nodes from `fresh` on were never in use.
                let index = if free == 0 { usize::from(fresh) } else { free as usize - 1 };
                let record = self.record_in(span, class, index);
                if free == 0 {
                    fresh += 1;
                } else {
                    free = record.load(Ordering::Relaxed);
                }
                record.store(first, Ordering::Relaxed);
                first = self.index_of(NodeAddr::new(start + index * class_bytes(class)));
            }
            *head = first;
            descriptor.fresh.set(fresh);
            let used = used + some;
            descriptor.record.store(free.with((used as u32) << 16), Ordering::Relaxed);
            if used == span_nodes(class) {
                self.unlink(&mut lists.partial[class][self.part(span)], span);
            }
            lists.usage.nodes += some;
            lists.usage.bytes += some * class_bytes(class);
            some
        })
    }

    /// Takes a run for a span of a class, and adds it to the list.
    fn take_span(&self, lists: &mut Lists, part: usize, class: usize, last: usize) -> Option<u32> {
        let span = self.take_run(lists, part, span_order(class), last)?;
        let descriptor = self.descriptor(span);
        descriptor.kind.set(class as u8);
        descriptor.fresh.set(0);
        descriptor.record.store(0, Ordering::Relaxed);
        self.clean_run(span, span_order(class));
        self.push(&mut lists.partial[class][part], span);
        Some(span)
    }

    /// Returns the record of node `index` of a span, which exists.
    #[inline(always)]
    pub(super) fn record_in(&self, span: u32, class: usize, index: usize) -> &Record {
        debug_assert!(index < span_nodes(class), "node {index} is outside its span");
        // SAFETY: spans come from the lists and from taken nodes, so they are in the slab. A span has a record for each of its
        // nodes, and a record is atomic.
        unsafe { &*self.small_record(span, class, index) }
    }

    /// Returns the place of the record of node `index` of a span. The records grow down from the span's end.
    #[inline(always)]
    pub(super) fn small_record(&self, span: u32, class: usize, index: usize) -> *const Record {
        let end = self.chunk(span).wrapping_add(span_bytes(class)).cast::<Record>();
        end.wrapping_sub(index + 1).cast_const()
    }

    /// Clears the records of a span whose nodes are all free, and so zero, and marks its chunks as clean.
    fn clean_records(&self, span: u32, class: usize) {
        let used = usize::from(self.descriptor(span).fresh.get());
        if used > 0 {
            let last = self.small_record(span, class, used - 1).cast_mut();
            // SAFETY: the records are adjacent, from the last one that was ever used to the end of the span. All nodes of
            // the span are free, so no other code accesses the records.
            unsafe { ptr::write_bytes(last.cast::<u8>(), 0, used * size_of::<Record>()) };
        }
        for chunk in span..span + (1 << span_order(class)) {
            self.descriptor(chunk).clean.set(true);
        }
    }

    /// Returns the span of a small node of a class, and the node's index in it.
    #[inline(always)]
    pub(super) fn place(&self, node: NodeAddr, class: usize) -> (u32, usize) {
        let span = node.get() & !(span_bytes(class) - 1);
        (((span - self.base) / CHUNK) as u32, index_at(node.get() - span, class))
    }

    /// Frees a node of a class.
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - `node` was taken from this storage, is not free, and no walker can reach it any more;
    /// - it is of this class;
    /// - if `clean`, all its words are zero.
    #[inline(always)]
    pub(super) unsafe fn free_small(&self, node: NodeAddr, class: usize, clean: bool) {
        // SAFETY: by this function's contract no other code uses the node, which is of this class.
        unsafe { self.clear(node, class, clean) };
        let (span, index) = self.place(node, class);
        self.locked(|lists| {
            let free = self.descriptor(span).record.load(Ordering::Relaxed) & 0xffff;
            self.record_in(span, class, index).store(free, Ordering::Relaxed);
            self.give_some(lists, class, span, (index as u32 + 1, 1));
        });
    }

    /// Clears a node of a class, unless it is clean.
    ///
    /// # Safety
    ///
    /// `node` was taken from this storage, is of this class, and no other code uses it.
    #[inline(always)]
    unsafe fn clear(&self, node: NodeAddr, class: usize, clean: bool) {
        if !clean {
            // SAFETY: by this function's contract no other code uses the node, which has `class_bytes(class)` bytes.
            unsafe { ptr::write_bytes(self.window.memory(node.get()), 0, class_bytes(class)) };
        }
    }

    /// Makes `free`, the index plus one of a node, the begin of a span's list of free nodes, to which `count` nodes have been
    /// added.
    #[inline(always)]
    fn give_some(&self, lists: &mut Lists, class: usize, span: u32, (free, count): (u32, usize)) {
        let descriptor = self.descriptor(span);
        let used = (descriptor.record.load(Ordering::Relaxed) >> 16) as usize;
        let left = used - count;
        descriptor.record.store(free.with((left as u32) << 16), Ordering::Relaxed);
        if used == span_nodes(class) {
            self.push(&mut lists.partial[class][self.part(span)], span);
        }
        if left == 0 {
            self.free_span(lists, span, class);
        }
        lists.usage.nodes -= count;
        lists.usage.bytes -= count * class_bytes(class);
    }

    /// Frees the first node of a batch's list and the nodes that follow, as long as they have the same class, and at most
    /// [`RUN_OF_NODES`] of them: so it takes the lock once for all of them, and holds it for a short time. Returns the first
    /// node of the rest of the list.
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - `node` is the first of a batch's list, and has this class;
    /// - every node of the list was taken from this storage, is not free, and no walker can reach it any more;
    /// - the records hold [`ListLink`]s of the list, and all words of a node that is marked clean are zero.
    #[inline(always)]
    pub(super) unsafe fn free_some(&self, mut node: NodeAddr, class: usize) -> Option<NodeAddr> {
        self.locked(|lists| {
            let mask = !(span_bytes(class) - 1);
            let mut left = RUN_OF_NODES;
            loop {
                // The nodes that follow each other in the list and are in the same span.
                let start = node.get() & mask;
                let span = ((start - self.base) / CHUNK) as u32;
                let descriptor = self.descriptor(span);
                let state = descriptor.record.load(Ordering::Relaxed);
                let (mut free, mut count) = (state & 0xffff, 0);
                let rest = loop {
                    let index = index_at(node.get() - start, class);
                    let record = self.record_in(span, class, index);
                    let (next, clean) = ListLink::read(record.load(Ordering::Relaxed));
                    record.store(free, Ordering::Relaxed);
                    // SAFETY: by this function's contract the node is taken, no walker can reach it, and its record is a link.
                    unsafe { self.clear(node, class, clean) };
                    free = index as u32 + 1;
                    count += 1;
                    left -= 1;
                    if next == 0 {
                        break None;
                    }
                    node = self.node_of(next);
                    if left == 0 || node.get() & mask != start {
                        break Some(node);
                    }
                };
                self.give_some(lists, class, span, (free, count));
                match rest {
                    Some(next) if left > 0 && self.class_at(next) == Ok(class) => {}
                    _ => return rest,
                }
            }
        })
    }

    /// Frees an empty span, unless its class keeps it.
    #[inline(never)]
    fn free_span(&self, lists: &mut Lists, span: u32, class: usize) {
        // A small class keeps its last empty span. Otherwise repeated mapping and unmapping of one page would use the buddy
        // system each time.
        let list = &mut lists.partial[class][self.part(span)];
        let only = self.descriptor(span).next.get() == NONE && *list == span;
        if !only || class_bytes(class) > KEPT {
            self.unlink(list, span);
            self.clean_records(span, class);
            self.free_run(lists, span, span_order(class));
        }
    }
}
