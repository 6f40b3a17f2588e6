//! Growing: a larger array, to which every change moves a few buckets.

use core::sync::atomic::Ordering;

use tlbkit_addr::Pages;

use super::Hashed;
use super::chain::bump;
use super::shape::{LOG, Spot};
use crate::format::Format;
use crate::nodes::{Freed, NodeAddr, Nodes};
use crate::word::atomics::AtomicUsize;
use crate::{Geometry, Retired, Word};

/// How many buckets are moved for each that a change has filled. Four suffice: the new array is in place before it is
/// itself full, whatever the load.
const STEPS: usize = 4;

/// The most that the array can be: a bound on shifts, far beyond any memory.
const MAX_LOG: usize = 30;

/// Where a growth is, and what growth has cost.
#[derive(Debug, Default)]
pub(super) struct Growth {
    /// Buckets of the old array that have been moved.
    pub(super) moved: AtomicUsize,
    /// The most blocks that one operation has moved.
    most: AtomicUsize,
    /// The most bytes that the table has had.
    peak: AtomicUsize,
}

impl Growth {
    pub(super) fn new(bytes: usize) -> Self {
        Self { peak: AtomicUsize::new(bytes), ..Self::default() }
    }

    /// Remembers the most.
    pub(super) fn note_bytes(&self, bytes: usize) {
        self.peak.store(self.peak.load(Ordering::Relaxed).max(bytes), Ordering::Relaxed);
    }
}

impl<'n, G, F, N, const CLUSTER: u32, const BUCKETS: u32, const LOAD: usize>
    Hashed<'n, G, F, N, CLUSTER, BUCKETS, LOAD>
where
    G: Geometry,
    F: Format,
    N: Nodes<Word = F::Word>,
{
    /// Returns the most blocks that growing has moved in any one operation.
    pub fn most_moved(&self) -> usize {
        self.growth.most.load(Ordering::Relaxed)
    }

    /// Returns the most bytes that the table's nodes have taken at once.
    pub fn peak_bytes(&self) -> usize {
        self.growth.peak.load(Ordering::Relaxed)
    }

    /// Tells whether so many blocks are too many for an array of `2^log` buckets.
    fn is_full(blocks: usize, log: usize) -> bool {
        blocks.saturating_mul(100) > LOAD.saturating_mul(1 << log)
    }

    /// Goes on growing after a change that has filled so many buckets, or begins.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and the batch came from this table; so for all that follow.
    #[inline]
    pub(super) unsafe fn grow(&self, batch: &mut Retired<'n>, filled: usize) {
        if LOAD == 0 {
            return;
        }
        // SAFETY: the caller's promise.
        unsafe {
            if self.next() != 0 || filled > 0 && Self::is_full(self.blocks(), self.root() & LOG) {
                self.grow_for(batch, self.blocks(), STEPS * filled.max(1));
            }
        }
    }

    /// Makes the array fit for a range that is about to be mapped, if that is much beyond its load: one long chain
    /// after the other would cost the square of the range. What this moves is less than what the change itself adds.
    ///
    /// The buckets for the range are reserved already, so that a change that fails leaves everything where it is.
    /// Claims are not moved, nor missed: the blocks of a chain need no more overflow buckets once they are spread over
    /// several first ones, which are new and free.
    #[inline]
    pub(super) unsafe fn make_room(&self, batch: &mut Retired<'n>, grain: usize, pages: Pages) {
        let (first, last) = Self::blocks_of(grain, pages);
        if LOAD == 0 || last == first {
            return;
        }
        let (now, blocks) = (self.blocks(), self.blocks().saturating_add(last - first));
        let log = if self.next() == 0 { self.root() & LOG } else { self.next() & LOG };
        if last - first >= now && Self::is_full(blocks, log + 1) {
            // SAFETY: the caller's promise.
            unsafe {
                if self.next() != 0 {
                    self.grow_for(batch, now, usize::MAX);
                }
                self.grow_for(batch, blocks, usize::MAX);
            }
        }
    }

    /// Begins to grow, if that has not begun, to a size for so many blocks, then moves up to `steps` buckets.
    #[inline(never)]
    unsafe fn grow_for(&self, batch: &mut Retired<'n>, blocks: usize, steps: usize) {
        let root = self.root();
        if self.next() == 0 {
            let mut log = (root & LOG) + 1;
            while Self::is_full(blocks, log) && log < MAX_LOG {
                log += 1;
            }
            // Without memory for a larger array the chains get longer, that is all.
            let Some(array) = self.nodes.take(Self::STRIDE << log) else { return };
            self.count_array(1, log);
            self.growth.moved.store(0, Ordering::Relaxed);
            // SAFETY: the cell is a field, and the caller the only writer.
            unsafe { F::Word::publish(&raw const self.next, F::Word::from_usize(array.get() | log)) };
        }
        let first = self.growth.moved.load(Ordering::Relaxed);
        let end = first.saturating_add(steps).min(1 << (root & LOG));
        let mut entries = 0;
        for index in first..end {
            // SAFETY: the caller's promise; the index is below the buckets.
            match unsafe { self.move_bucket(batch, index) } {
                Some(moved) => entries += moved,
                None => break,
            }
            bump(&self.growth.moved, 1);
        }
        let most = self.growth.most.load(Ordering::Relaxed).max(entries);
        self.growth.most.store(most, Ordering::Relaxed);
        if self.growth.moved.load(Ordering::Relaxed) == 1 << (root & LOG) {
            // SAFETY: the cells are fields, and the caller the only writer. Walkers that still have the old root find
            // every bucket marked, and then the new root, which is there before the next array is not.
            unsafe {
                F::Word::publish(&raw const self.root, F::Word::from_usize(self.next()));
                F::Word::publish(&raw const self.next, F::Word::ZERO);
                batch.push(NodeAddr::new(root & !LOG), false);
            }
            self.count_array(-1, root & LOG);
        }
    }

    pub(super) fn count_array(&self, sign: isize, log: usize) {
        self.tally.node(sign, (Self::STRIDE << log) * F::Word::BYTES);
        self.growth.note_bytes(self.tally.footprint().bytes);
    }

    /// Moves a bucket with its chain to the next array: copies it, marks it, and retires what was copied. Returns how
    /// many blocks that were, or `None` if there was no memory, and then nothing has happened.
    unsafe fn move_bucket(&self, batch: &mut Retired<'n>, index: usize) -> Option<usize> {
        let head = Spot { node: NodeAddr::new(self.root() & !LOG), at: index * Self::STRIDE };
        let mut entries = 0;
        let mut spot = Some(head);
        // SAFETY: the caller's promise. Nobody can reach the heirs before the mark is there.
        unsafe {
            while let Some(from) = spot {
                // The first bucket may be dead.
                if self.read_tag(from) & Self::LIVE != 0 {
                    if !self.copy(from) {
                        self.undo_copies(index);
                        return None;
                    }
                    entries += 1;
                }
                spot = self.behind(from);
            }
            self.reflag(head, Self::MOVED);
            let mut old = self.behind(head);
            while let Some(spot) = old {
                old = self.behind(spot);
                self.retire(batch, spot.node);
            }
        }
        Some(entries)
    }

    /// Copies a bucket into the next array, to a first bucket or one behind it, and tells whether there was memory.
    unsafe fn copy(&self, from: Spot) -> bool {
        // SAFETY: the caller's promise: nobody can reach the copy yet.
        unsafe {
            let tag = self.read_tag(from);
            let head = Self::first(self.next(), Self::key_of(tag));
            let to = if self.read_tag(head) == 0 {
                head
            } else {
                let Some(node) = self.nodes.take(Self::NODE) else { return false };
                self.count_node(1);
                let behind = self.behind(head);
                self.publish_link(Spot::node(node), behind);
                self.publish_link(head, Some(Spot::node(node)));
                Spot::node(node)
            };
            self.copy_contents(to, from);
        }
        true
    }

    /// Forgets the copies of a bucket's chain.
    #[cold]
    pub(super) unsafe fn undo_copies(&self, index: usize) {
        let (old, next) = (self.root() & LOG, self.next());
        let (first, step) = Self::heirs(index, old, next & LOG);
        for heir in 0..1 << ((next & LOG) - old) {
            let head = Spot { node: NodeAddr::new(next & !LOG), at: (first + heir * step) * Self::STRIDE };
            // SAFETY: the caller's promise: nobody ever knew these buckets.
            unsafe {
                while let Some(copy) = self.behind(head) {
                    self.publish_link(head, self.behind(copy));
                    self.count_node(-1);
                    let freed = Freed::new(self.nodes.held(), 0);
                    self.nodes.free(copy.node, false);
                    freed.done();
                }
                self.wipe(head);
            }
        }
    }

    /// Retires every node of the table.
    pub(super) unsafe fn retire_all(&self, batch: &mut Retired<'n>) {
        for root in [self.root(), self.next()] {
            if root == 0 {
                continue;
            }
            for index in 0..1 << (root & LOG) {
                let head = Spot { node: NodeAddr::new(root & !LOG), at: index * Self::STRIDE };
                // SAFETY: the caller's promise. The chain of a moved bucket is retired already.
                unsafe {
                    if self.read_tag(head) & Self::MOVED != 0 {
                        continue;
                    }
                    let mut spot = self.behind(head);
                    while let Some(here) = spot {
                        spot = self.behind(here);
                        self.retire(batch, here.node);
                    }
                }
            }
            // SAFETY: as above.
            unsafe { batch.push(NodeAddr::new(root & !LOG), false) };
            self.count_array(-1, root & LOG);
        }
    }
}
