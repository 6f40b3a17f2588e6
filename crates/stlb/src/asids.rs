//! Numbers for address spaces, and what happens when they run out.

use core::sync::atomic::{AtomicU32, Ordering};

use tlbkit_addr::Asid;

use crate::{AsidRange, AsidTag, EntryLayout, Invalidate};

/// Hands out ASIDs in generations, so that a number is never used twice while anything remembers its first use.
///
/// Within a generation each number is given to one address space only; a dead one's number stays unused. When they
/// run out, a new generation begins: everything is forgotten, and each address space gets a new number when it
/// runs next. An address space may thus die without any invalidation.
///
/// One for each CPU, beside the per-CPU cache, with a [`Context`] of each address space for it. Where CPUs share a cache
/// and numbers, the beginning of a generation is a shootdown and the kernel's own affair, with
/// [`Shared::invalidate_space`](crate::Shared::invalidate_space).
///
/// ```
/// use tlbkit_stlb::{Asids, CacheMemory, Context, Direct, Invalidate, Page64};
///
/// let mut memory = CacheMemory::<1024>::new();
/// let mut stlb = Direct::<Page64, 64>::new(memory.bytes()).unwrap();
/// // The numbers 1, 2 and 3; 0 is the kernel's.
/// let mut asids = Asids::<Page64>::new(1, 3).unwrap();
///
/// let mut processes: [Context<Page64>; 4] = Default::default();
/// let numbers = processes.each_mut().map(|process| asids.activate(process, &mut stlb).asid());
/// assert_eq!(numbers, [1, 2, 3, 1]); // the fourth began a new generation, with an empty cache
/// assert_eq!(asids.activate(&mut processes[0], &mut stlb).asid(), 2);
/// ```
#[derive(Debug)]
pub struct Asids<L> {
    /// No two allocators ever have one in common.
    generation: u64,
    first: AsidTag<L>,
    last: AsidTag<L>,
    /// The next number to give, or `None` if this generation has no more.
    next: Option<AsidTag<L>>,
}

/// What an address space keeps to know its number by: belongs in its control block. Starts without a number.
///
/// Keep one for each CPU that has an [`Asids`] of its own. One that was numbered by another allocator, or by an earlier
/// one of this CPU, counts as without a number: an address space that took a single one from CPU to CPU would use up a
/// number each time. It is never copied: two address spaces would have one number.
#[derive(Debug, PartialEq, Eq)]
pub struct Context<L> {
    given: Option<(u64, AsidTag<L>)>,
}

impl<L> Default for Context<L> {
    fn default() -> Self {
        Self { given: None }
    }
}

/// Returns the first of 2^32 generations that no other code has.
fn generations() -> u64 {
    // Not loom's: it orders nothing.
    static TAKEN: AtomicU32 = AtomicU32::new(0);
    u64::from(TAKEN.fetch_add(1, Ordering::Relaxed)) << 32
}

impl<L: EntryLayout> Asids<L> {
    /// Returns the allocator of the numbers `first..=last`. Nothing may remember one of them from before.
    ///
    /// # Errors
    ///
    /// [`AsidRange`] if the tag has no room for `last`, or `last` is below `first`.
    pub fn new(first: u16, last: u16) -> Result<Self, AsidRange> {
        let space = |number| {
            let out_of_range = AsidRange { asid: number as usize, bits: L::ASID_BITS };
            Asid::new(number, L::ASID_BITS).ok_or(out_of_range).and_then(AsidTag::new)
        };
        if last < first {
            return Err(AsidRange { asid: first as usize, bits: L::ASID_BITS });
        }
        let (first, last) = (space(first)?, space(last)?);
        Ok(Self { generation: generations(), first, last, next: Some(first) })
    }

    /// Returns the number under which an address space is to run now, giving it one if it has none of this generation.
    ///
    /// Call it at each switch to the address space. If a new generation has to begin, everything in `caches` is
    /// forgotten first: that must be all that remembers numbers, the hardware TLB (a type of the kernel's that
    /// flushes it) as well as the software caches; a tuple holds several.
    pub fn activate(&mut self, context: &mut Context<L>, caches: &mut impl Invalidate<L>) -> AsidTag<L> {
        if let Some((generation, space)) = context.given
            && generation == self.generation
        {
            return space;
        }
        let space = self.next.unwrap_or_else(|| {
            caches.invalidate_all();
            let next = self.generation.wrapping_add(1);
            self.generation = if next as u32 == 0 { generations() } else { next };
            self.first
        });
        self.next = (space != self.last).then(|| space.successor());
        context.given = Some((self.generation, space));
        space
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CacheMemory, Direct, Page64};

    /// After the last generation of its own an allocator takes others, and not those of the next.
    #[test]
    fn generations_are_ones_own() {
        let mut memory = CacheMemory::<256>::new();
        let mut cache = Direct::<Page64, 16>::new(memory.bytes()).unwrap();
        let mut asids = [(); 2].map(|()| Asids::<Page64>::new(1, 1).unwrap());
        asids[0].generation |= u64::from(u32::MAX);
        let before = [asids[0].generation, asids[1].generation];
        assert_eq!(asids[0].activate(&mut Context::default(), &mut cache).asid(), 1);
        assert_eq!([asids[0].generation, asids[1].generation], before);
        assert_eq!(asids[0].activate(&mut Context::default(), &mut cache).asid(), 1);
        assert!(before.iter().all(|generation| generation >> 32 != asids[0].generation >> 32));
    }
}
