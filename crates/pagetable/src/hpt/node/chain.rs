//! The writer's cursor in a chain: the only code that links an overflow bucket for a block, or takes one out.

use core::ops::Deref;

use super::{Bucket, Fresh, Probe, Span, Supply, Unit, Walk, Writing};
use crate::Geometry;
use crate::format::Format;
use crate::hpt::shape::{Shape as _, Spot};
use crate::hpt::tag::Tags as _;
use crate::hpt::{Hashed, Sizes};
use crate::mode::Mode;
use crate::node_locks::{Count, NodeLock};
use crate::nodes::Nodes;

/// A chain of the table, the right to write the table, and a place in the chain.
pub(crate) struct Chain<'c, 'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> {
    writing: Writing<'c, 'n, G, F, N, S>,
    /// The first bucket.
    head: Spot,
    /// The bucket at the cursor, and the one before it, which leads to it.
    probe: Probe<'c, 'n, G, F, N, S>,
}

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Deref for Chain<'_, 'n, G, F, N, S> {
    type Target = Hashed<'n, G, F, N, S>;

    #[inline(always)]
    fn deref(&self) -> &Self::Target {
        self.writing.table
    }
}

impl<'c, 'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Chain<'c, 'n, G, F, N, S> {
    /// Returns the chain that begins at `head`, a first bucket of the table.
    #[inline(always)]
    pub(super) fn new(writing: Writing<'c, 'n, G, F, N, S>, head: Spot) -> Self {
        let unit = Unit { walk: writing.on(), spot: head };
        Self { writing, head, probe: unit.probe() }
    }

    /// Returns the right to write the table.
    #[inline(always)]
    pub(crate) fn into_writing(self) -> Writing<'c, 'n, G, F, N, S> {
        self.writing
    }

    /// Returns the first bucket.
    #[inline(always)]
    pub(crate) fn head(&self) -> Bucket<'_, 'n, G, F, N, S> {
        self.bucket(self.head)
    }

    /// Returns the bucket at the cursor.
    #[inline(always)]
    pub(crate) fn here(&self) -> Bucket<'_, 'n, G, F, N, S> {
        Bucket(self.probe.unit)
    }

    #[inline(always)]
    fn bucket(&self, spot: Spot) -> Bucket<'_, 'n, G, F, N, S> {
        Bucket(Unit { walk: self.writing.walk(), spot })
    }

    /// Moves the cursor from the first bucket to the one with the tag `tag`. Returns whether there was one.
    #[inline(always)]
    pub(crate) fn seek(&mut self, tag: usize) -> bool {
        self.probe.seek(tag)
    }

    /// Returns the bucket with the tag `tag`: the search for one page, from the first bucket.
    #[inline(always)]
    pub(crate) fn find(&self, tag: usize) -> Option<Bucket<'_, 'n, G, F, N, S>> {
        self.head().find(tag)
    }

    /// Assigns a bucket to the block of a span, which has none and whose chain this is, and stores PTEs in the slots of the span: the
    /// first bucket, if it `is_free`, and otherwise an overflow bucket from the supply, or from the storage if there is no supply.
    /// Returns whether there was one.
    ///
    /// A walker finds the PTEs only after the tag, and finds the tag of an overflow bucket only after its link.
    #[inline(always)]
    pub(crate) fn begin(
        &mut self,
        is_free: bool,
        supply: Option<&mut Supply<'n, G, F, N, S>>,
        span: Span,
        word: impl Fn(usize) -> F::Word,
    ) -> bool {
        debug_assert!(self.head == self.writing.head(span.block).spot(), "the chain of the block");
        self.head().begin(is_free, supply, None, span, word)
    }

    /// Lends the cursor.
    #[inline(always)]
    fn again(&mut self) -> Chain<'_, 'n, G, F, N, S> {
        Chain { writing: self.writing.again(), head: self.head, probe: self.probe }
    }

    /// Takes the bucket at the cursor out of the chain. It is empty and has been [counted](Hashed::count_vacant).
    #[inline(always)]
    pub(crate) fn take_out(self) {
        let (grain, _) = Self::untag(self.here().tag());
        self.leave(grain);
        if self.probe.before.is_some() {
            return self.unlink();
        }
        if N::Mode::SHARED {
            self.writing.batch.quarantine();
            self.here().reflag(Self::DEAD);
        } else if self.here().behind().is_some() {
            Self::move_up(self.writing, self.head);
        } else {
            self.here().wipe();
        }
    }

    /// Moves the second bucket of the chain into the empty first one, where a lookup finds it with one probe; or clears the first
    /// bucket, if the second is of another chain. No other CPU walks the table.
    #[inline(never)]
    fn move_up(writing: Writing<'_, 'n, G, F, N, S>, head: Spot) {
        let mut chain = Chain::new(writing, head);
        if chain.probe.advance() && chain.writing.walk().leads_to(*chain.head(), chain.here().tag()) {
            chain.head().copy_contents(chain.here());
            chain.unlink();
        } else {
            chain.head().wipe();
        }
    }

    /// Unlinks the overflow bucket at the cursor from all chains, and retires it. Its own links stay, so walkers that are in it can
    /// continue.
    #[inline(always)]
    fn unlink(self) {
        let Some(before) = self.probe.before else { return };
        let here = self.here().spot();
        let behind = self.here().behind();
        let leading = if self.has_joined() {
            Self::leading(self.writing.walk(), before, here)
        } else {
            [Some(before), None]
        };
        // SAFETY: the cursor has the right to write, so the bucket before still leads to this one. After the stores no link does.
        unsafe {
            for at in leading.into_iter().flatten() {
                self.bucket(at).publish_link(behind);
            }
            self.writing.retire(here.node);
        }
    }

    /// Returns the buckets that lead to `here`, which is behind `before` and will be unlinked, where some chains have not been parted.
    #[inline(never)]
    fn leading(walk: Walk<'_, 'n, G, F, N, S>, before: Spot, here: Spot) -> [Option<Spot>; 2] {
        let bucket = |spot| Bucket(Unit { walk, spot });
        let Some(pair) = walk.pair(Self::key_of(bucket(here).tag())) else {
            return [Some(before), None];
        };
        let mut tails = walk.growth.tails();
        let mut leading = [None; 2];
        for (side, number) in pair.into_iter().enumerate() {
            let mut at = Bucket(walk.numbered(number));
            while let Some(next) = at.behind() {
                if next.spot() == here {
                    leading[side] = Some(at.spot());
                    if tails[side] == here {
                        tails[side] = at.spot();
                    }
                    break;
                }
                at = next;
            }
        }
        walk.growth.set_tails(tails);
        leading
    }

    /// Removes the empty buckets of the chain, which have been [counted](Hashed::count_vacant).
    #[inline(always)]
    pub(crate) fn tidy(self) {
        Self::tidy_chain(self.writing, self.head);
    }

    #[inline(never)]
    fn tidy_chain(writing: Writing<'_, 'n, G, F, N, S>, head: Spot) {
        let mut chain = Chain::new(writing, head);
        let first = chain.probe;
        // The bucket before the cursor stays in the chain.
        let mut before = first;
        while chain.probe.advance() {
            if chain.here().is_vacant() {
                chain.again().take_out();
                chain.probe = before;
            } else {
                before = chain.probe;
            }
        }
        chain.probe = first;
        if chain.here().tag() & Self::LIVE != 0 && chain.here().is_vacant() {
            chain.take_out();
        }
    }
}

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Bucket<'_, 'n, G, F, N, S> {
    /// Does what [`Chain::begin`] does, in the chain that begins with this bucket, for the holder of the right to write the chain. Counts
    /// beside the `lock` that gives this right; without one the table has one writer.
    #[inline(always)]
    pub(crate) fn begin(
        self,
        is_free: bool,
        supply: Option<&mut Supply<'n, G, F, N, S>>,
        lock: Option<&NodeLock>,
        span: Span,
        word: impl Fn(usize) -> F::Word,
    ) -> bool {
        let table = self.table();
        let bucket = if is_free {
            // PTEs that fill all slots overwrite the former content, so only other cases need it cleared.
            if span.count < Self::SLOTS || F::EXTRA > 0 {
                self.wipe();
            }
            self
        } else {
            let Some(fresh) = Fresh::take(table, supply) else { return false };
            match lock {
                None => table.count_node(1),
                Some(lock) => lock.count(Count::Nodes, 1),
            }
            fresh.into_bucket()
        };
        bucket.slots(span).fill(word);
        match lock {
            None => table.enter(span.grain),
            // A writer of one page begins no bucket of larger pages.
            Some(lock) => lock.count(Count::Buckets, 1),
        }
        bucket.publish_tag(Self::tag_of(span.grain, span.block));
        if !is_free {
            // SAFETY: the bucket was just taken, and is complete.
            unsafe { self.link(bucket, span.block) };
        }
        true
    }

    /// Links an overflow bucket for a block, whose chain begins with this bucket.
    ///
    /// # Safety
    ///
    /// The bucket is a complete overflow bucket of the table, to which no link leads.
    #[inline(always)]
    unsafe fn link(self, fresh: Self, block: usize) {
        let walk = self.0.walk;
        // If two chains are joined, the bucket goes to the begin of their common part, so that the part stays common.
        let ends = walk.joined(Self::lead(block)).unwrap_or([self.0.spot; 2]);
        let [one, other] = ends.map(|spot| Bucket(Unit { walk, spot }));
        // SAFETY: no link has led to the bucket, and now one does; or one from each of the two chains that are joined.
        unsafe {
            fresh.publish_link(one.behind());
            one.publish_link(Some(fresh));
            if *other != *one {
                other.publish_link(Some(fresh));
            }
        }
    }
}
