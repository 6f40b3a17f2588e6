//! Numbers for address spaces, and what happens when they run out.

use tlbkit_addr::Asid;

use crate::{AsidRange, Invalidate, Layout, Space};

/// Hands out ASIDs in generations, so that a number is never used twice while anything remembers its first use.
///
/// Within a generation each number is given to one address space only; a dead one's number stays unused. When they
/// run out, a new generation begins: everything is forgotten, and each address space gets a new number when it
/// runs next. An address space may thus die without any invalidation.
///
/// One for each CPU, beside the per-CPU cache. Where CPUs share a cache and numbers, the beginning of a generation is
/// a shootdown and the kernel's own affair, with [`Shared::invalidate_space`](crate::Shared::invalidate_space).
///
/// ```
/// use tlbkit_stlb::{Asids, Context, Direct, Invalidate, Memory, Page64};
///
/// let mut memory = Memory::<1024>::new();
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
    generation: u64,
    first: Space<L>,
    last: Space<L>,
    /// The next number to give, or `None` if this generation has no more.
    next: Option<Space<L>>,
}

/// What an address space keeps to know its number by: belongs in its control block. Starts without a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Context<L> {
    given: Option<(u64, Space<L>)>,
}

impl<L> Default for Context<L> {
    fn default() -> Self {
        Self { given: None }
    }
}

impl<L: Layout> Asids<L> {
    /// Returns the allocator of the numbers `first..=last`.
    ///
    /// # Errors
    ///
    /// [`AsidRange`] if the tag has no room for `last`, or `last` is below `first`.
    pub fn new(first: u16, last: u16) -> Result<Self, AsidRange> {
        let space = |number| {
            let out_of_range = AsidRange { asid: number as usize, bits: L::ASID_BITS };
            Asid::new(number, L::ASID_BITS).ok_or(out_of_range).and_then(Space::new)
        };
        if last < first {
            return Err(AsidRange { asid: first as usize, bits: L::ASID_BITS });
        }
        let (first, last) = (space(first)?, space(last)?);
        Ok(Self { generation: 0, first, last, next: Some(first) })
    }

    /// Returns the number under which an address space is to run now, giving it one if it has none of this generation.
    ///
    /// Call it at each switch to the address space. If a new generation has to begin, everything in `caches` is
    /// forgotten first: that must be all that remembers numbers, the hardware TLB (a type of the kernel's that
    /// flushes it) as well as the software caches; a tuple holds several.
    pub fn activate(&mut self, context: &mut Context<L>, caches: &mut impl Invalidate<L>) -> Space<L> {
        if let Some((generation, space)) = context.given
            && generation == self.generation
        {
            return space;
        }
        let space = self.next.unwrap_or_else(|| {
            caches.invalidate_all();
            // Not reached twice with one number in the age of the universe.
            self.generation = self.generation.wrapping_add(1);
            self.first
        });
        self.next = (space != self.last).then(|| space.successor());
        context.given = Some((self.generation, space));
        space
    }
}
