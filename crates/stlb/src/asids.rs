//! The allocation of ASIDs, in generations.

use core::sync::atomic::{AtomicU32, Ordering};

use tlbkit_addr::Asid;

use crate::{AsidRange, AsidTag, EntryLayout, Invalidate};

/// Allocates ASIDs in generations, so that no ASID is used again while a cache still holds entries of its first use.
///
/// Within a generation, each number goes to one address space only; the number of an address space that has ended stays
/// unused. When the numbers run out, a new generation begins: all caches are emptied, and each address space gets a new
/// number when it runs next. So the end of an address space needs no invalidation.
///
/// A kernel has one allocator for each CPU, like the per-CPU cache, and for each allocator a [`Context`] in each address
/// space. If CPUs share a cache and its numbers, this allocator is not suitable: the begin of a generation would need a
/// shootdown. Such a kernel allocates numbers itself, and calls
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
    /// The current generation. No two allocators ever have the same generation.
    generation: u64,
    first: AsidTag<L>,
    last: AsidTag<L>,
    /// The next number to allocate, or `None` if this generation has none left.
    next: Option<AsidTag<L>>,
}

/// The number of an address space, which its control block keeps. A new context has no number.
///
/// An address space has one context for each CPU that has its own [`Asids`]. A context with a number of another allocator,
/// or of an earlier allocator of this CPU, counts as a context without a number: an address space with a single context for
/// several CPUs would use up a number at each change of CPU. The type is not `Copy` or `Clone`, because two address spaces
/// would have the same number.
#[derive(Debug, PartialEq, Eq)]
pub struct Context<L> {
    given: Option<(u64, AsidTag<L>)>,
}

impl<L> Default for Context<L> {
    fn default() -> Self {
        Self { given: None }
    }
}

/// Returns the first of 2^32 consecutive generations that no other allocator has.
fn generations() -> u64 {
    // The atomic is not loom's, because it orders no other access.
    static TAKEN: AtomicU32 = AtomicU32::new(0);
    u64::from(TAKEN.fetch_add(1, Ordering::Relaxed)) << 32
}

impl<L: EntryLayout> Asids<L> {
    /// Returns an allocator of the numbers `first..=last`. No cache may hold an entry with one of these numbers.
    ///
    /// # Errors
    ///
    /// [`AsidRange`] if the tag's ASID field cannot hold `last`, or `last` is less than `first`.
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

    /// Returns the number with which an address space must run now. Allocates one if it has none of this generation.
    ///
    /// The kernel calls it at each switch to the address space. If a new generation has to begin, the call empties `caches`
    /// first. `caches` must include everything that holds entries with numbers: the hardware TLB (by a type of the kernel
    /// that flushes it) and all software caches. A tuple combines several.
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

    /// After the last of its generations, an allocator takes 2^32 new ones, which are not those of another allocator.
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
