//! The shared form as the machine drives it, where the words of its entries are atomic.

use tlbkit_addr::{Pages, VirtAddr};
use tlbkit_stlb::{AsidTag, EntryLayout, Invalidate, Shared, Ticket};

use super::Subject;

/// The shared form, on one CPU.
pub(crate) struct OfMany<'a, L: EntryLayout<Tag = u64, Data = u64>, const SETS: usize, const WAYS: usize> {
    cache: Shared<'a, L, SETS, WAYS>,
    ticket: Option<Ticket>,
}

impl<'a, L: EntryLayout<Tag = u64, Data = u64>, const SETS: usize, const WAYS: usize>
    OfMany<'a, L, SETS, WAYS>
{
    pub(crate) const fn new(cache: Shared<'a, L, SETS, WAYS>) -> Self {
        Self { cache, ticket: None }
    }
}

impl<L: EntryLayout<Tag = u64, Data = u64>, const SETS: usize, const WAYS: usize> Invalidate<L>
    for OfMany<'_, L, SETS, WAYS>
{
    fn invalidate_pages(&mut self, space: AsidTag<L>, pages: Pages) {
        self.cache.invalidate_pages(space, pages);
    }
    fn invalidate_global(&mut self, pages: Pages) {
        self.cache.invalidate_global(pages);
    }
    fn invalidate_space(&mut self, space: AsidTag<L>) {
        self.cache.invalidate_space(space);
    }
    fn invalidate_all(&mut self) {
        self.cache.invalidate_all();
    }
}

impl<L: EntryLayout<Tag = u64, Data = u64>, const SETS: usize, const WAYS: usize> Subject<L>
    for OfMany<'_, L, SETS, WAYS>
{
    fn find(&mut self, at: VirtAddr, space: AsidTag<L>) -> Option<u64> {
        match self.cache.lookup(at, space) {
            Ok(data) => Some(data),
            Err(ticket) => {
                self.ticket = Some(ticket);
                None
            }
        }
    }
    fn fill(&mut self, at: VirtAddr, space: AsidTag<L>, data: u64) {
        assert!(self.cache.fill(self.ticket.take().unwrap(), at, space, data), "no other code is there");
    }
}
