//! Guarded page tables for machines whose TLB is loaded by software.

use core::ops::ControlFlow;

use heapless::Vec;
use tlbkit_addr::{Attr, PageSize, Pages, Pfn, PhysAddr, VirtAddr, Vpn};
use tlbkit_pagetable::format::Format;
use tlbkit_pagetable::gpt::{Fixed, Gpt, Kseg0};
use tlbkit_pagetable::mpt::Held;
use tlbkit_pagetable::nodes::Nodes;
use tlbkit_pagetable::{
    AnyCursor, Change, Entry, Error, Frames as Sink, Holes, Leaf, Mark, Pinned, Radix, Run, Shared,
    Table as _, Turn, Writer, destroy, mpt,
};

use crate::Kernel;
use crate::table::{Copied, Detached, Frames, PART, Sealed, SpaceTable, TableKind, is_users};

/// A guarded table ([`tlbkit_pagetable::gpt`]) with nodes of 16 slots: [`Mips32<Guarded>`](crate::arch::Mips32). Its memory is
/// proportional to the mapped pages, wherever they are; [`crate::arch`] has its costs and its limits. Nodes are small: nodes of the
/// same size share frames, also those of different address spaces.
///
/// Address spaces cannot share a part of a guarded table:
///
/// ```compile_fail,E0599
/// # use tlbkit::{AddressSpace, Guarded, Kernel, Mmu, Pages, arch};
/// fn lend<K: Kernel<Machine = arch::Mips32<Guarded>>>(mmu: &'static Mmu<K>, pages: Pages) {
///     let _ = AddressSpace::lending(mmu, pages);
/// }
/// ```
#[derive(Debug)]
pub struct Guarded;

impl Guarded {
    /// The base-two logarithm of the number of slots of a node, for `tlbkit_refill::handler::Gpt::fixed`.
    pub const WIDTH: u32 = 4;
}

/// The size of the nodes.
type Size = Fixed<{ Guarded::WIDTH }>;
type Table<G, F, N> = Gpt<'static, G, F, N, Kseg0<Size>, Size>;

impl Sealed for Guarded {}

impl<G: Radix, F: Format<Word = u32>> TableKind<G, F> for Guarded {
    type Storage<K: Kernel> = Frames<F, K>;
    type Table<K: Kernel> = Table<G, F, Self::Storage<K>>;

    fn storage<K: Kernel>(frames: &'static Frames<F, K>) -> &'static Self::Storage<K> {
        frames
    }
}

impl<G: Radix, F: Format<Word = u32>, N> SpaceTable<G, F, N> for Table<G, F, N>
where
    N: Nodes<Word = u32, Mode = Shared> + 'static,
{
    type Walk<'c> = AnyCursor<'c, 'static, Self>;

    const SLOTS: bool = false;

    fn new(nodes: &'static N, _lender: Option<&'static Self>) -> Result<Self, Error> {
        // There is no lender, because guarded tables cannot lend.
        Self::new(nodes)
    }

    fn root(&self, at: PhysAddr) -> PhysAddr {
        // The table begins with its root word.
        at
    }

    fn slot<'w>(
        _turn: &'w mut Turn<'_, 'static, Self>,
        _page: Vpn,
    ) -> Option<mpt::Slot<'w, 'static, G, F, N>> {
        None
    }

    fn cursor<'c>(writer: &'c mut Writer<'_, 'static, Self>, page: Vpn) -> Result<Self::Walk<'c>, Error> {
        writer.any_cursor(page)
    }

    type Detached = Ended<Self>;

    /// A guarded table has no place where frames can wait, so that all of them go to `frames`.
    fn detach(
        writer: &mut Writer<'_, 'static, Self>,
        pages: Pages,
        frames: &mut dyn Sink,
    ) -> Result<(Self::Detached, Option<Vpn>), Error> {
        let table = writer.table();
        let (mut runs, mut next, mut stop, mut left) = (0, None, None, PART);
        // SAFETY: the caller is the writer, and the visit changes nothing.
        let _ = table.for_each_run(unsafe { Pinned::by(table) }, pages, &mut |page, run| {
            if next != Some(run.first) {
                runs += 1;
            }
            if frames.reserve(runs).is_err() || left == 0 {
                stop = Some(page);
                return ControlFlow::Break(());
            }
            next = run.first.checked_add(run.len);
            left -= 1;
            ControlFlow::Continue(())
        });
        let part = stop.map_or(Some(pages), |stop| Pages::new(pages.first(), stop.checked_sub(1)?));
        if let Some(part) = part {
            writer.unmap(part, Holes::Skip, Some(&mut Counted(frames)))?;
        }
        Ok((Ended { table: None, next: None }, stop))
    }

    unsafe fn clear_detached(
        _writer: &mut Writer<'_, 'static, Self>,
        _pages: Pages,
        _detached: &mut Self::Detached,
        _held: &mut dyn FnMut(Held),
    ) {
    }

    fn detach_all(self) -> Self::Detached {
        Ended { table: Some(self), next: Some(Vpn::new(0)) }
    }

    fn part(&self, pinned: Pinned<'_>, pages: Pages) -> Pages {
        let (space, mut left, mut part) = (self.space(), PART, pages);
        let _ = self.for_each_entry(pinned, pages, &mut |at, entry| {
            left -= 1;
            if left > 0 {
                return ControlFlow::Continue(());
            }
            let whole = entry.leaf().map_or(Pages::one(at.vpn(G::BASE)), |leaf| space.pages_of(&leaf));
            let end = whole.last().min(pages.last());
            part = Pages::new(pages.first(), end).unwrap_or(pages);
            ControlFlow::Break(())
        });
        part
    }

    type Copying = ();

    /// Copies the table in one part.
    fn copy_on_write<K: Kernel>(
        &self,
        writer: &mut Writer<'_, 'static, Self>,
        child: &mut Writer<'_, 'static, Self>,
        kernel: &K,
        _copying: &mut Option<()>,
    ) -> Result<Copied, Error> {
        let space = self.space();
        each_entry(self, |at, entry| match entry {
            Entry::Leaf(leaf) if !is_users::<F>(leaf.attr) => Ok(()),
            Entry::Leaf(leaf) => {
                let pages = space.pages_of(&leaf);
                let attr =
                    if is_writable(leaf.attr) { Change::COPY_ON_WRITE.apply(leaf.attr) } else { leaf.attr };
                let run = Run { dirty: false, ..leaf.run(G::BASE) };
                let share = Share::new(kernel, Held::Frames(run));
                child.map(pages, leaf.frame, leaf.size, attr.difference(FORGOTTEN))?;
                share.keep();
                Ok(())
            }
            Entry::Mark(mark) => {
                let share = Share::new(kernel, Held::Mark(mark));
                child.mark(at, Some(mark))?;
                share.keep();
                Ok(())
            }
            Entry::Empty => Ok(()),
        })?;
        each_entry(self, |_, entry| {
            let shared = |leaf: &Leaf| is_writable(leaf.attr) && is_users::<F>(leaf.attr);
            if let Some(leaf) = entry.leaf().filter(shared) {
                writer.protect(space.pages_of(&leaf), Holes::Refuse, Change::COPY_ON_WRITE)?;
            }
            Ok(())
        })?;
        Ok(Copied::All)
    }
}

/// A sink for frames whose runs have been counted, so that there is room for all of them.
struct Counted<'f>(&'f mut dyn Sink);

impl Sink for Counted<'_> {
    fn reserve(&mut self, _leaves: usize) -> Result<(), Error> {
        Ok(())
    }

    fn push(&mut self, frame: Pfn, size: PageSize, base: PageSize, attr: Attr) {
        self.0.push(frame, size, base, attr);
    }

    fn marked(&mut self, at: VirtAddr, mark: Mark) {
        self.0.marked(at, mark);
    }
}

/// A table that is no address space's any more.
#[derive(Debug)]
pub struct Ended<T> {
    table: Option<T>,
    /// The first page that has not been visited.
    next: Option<Vpn>,
}

impl<G: Radix, F: Format<Word = u32>, N> Detached for Ended<Table<G, F, N>>
where
    N: Nodes<Word = u32, Mode = Shared> + 'static,
{
    unsafe fn release(&mut self, most: usize, held: &mut dyn FnMut(Held)) -> bool {
        let Some(table) = &self.table else { return true };
        let (space, next, mut left) = (table.space(), &mut self.next, most);
        for half in space.halves().into_iter().flatten() {
            let Some(pages) = next.and_then(|next| Pages::new(next.max(half.first()), half.last())) else {
                continue;
            };
            // SAFETY: no other code uses the table.
            let flow = table.for_each_entry(unsafe { Pinned::by(table) }, pages, &mut |at, entry| {
                let end = match entry {
                    Entry::Leaf(leaf) => space.pages_of(&leaf).last(),
                    Entry::Mark(_) | Entry::Empty => at.vpn(G::BASE),
                };
                // The entry is not visited again if `held` unwinds.
                *next = end.checked_add(1);
                match entry {
                    Entry::Leaf(leaf) => held(Held::Frames(leaf.run(G::BASE))),
                    Entry::Mark(mark) => held(Held::Mark(mark)),
                    Entry::Empty => {}
                }
                left -= 1;
                if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            if flow.is_break() {
                return false;
            }
        }
        *next = None;
        if let Some(table) = self.table.take() {
            // SAFETY: by this function's contract no CPU walks the table, and none will.
            unsafe { destroy(table).reclaim() };
        }
        true
    }
}

/// Shares the frames or the payload of an entry that a fork copies. If the copy fails or unwinds before the child has the entry, the
/// drop of this value takes the share back.
struct Share<'k, K: Kernel> {
    kernel: &'k K,
    held: Option<Held>,
}

impl<'k, K: Kernel> Share<'k, K> {
    fn new(kernel: &'k K, held: Held) -> Self {
        match held {
            Held::Frames(run) => kernel.share(run),
            Held::Mark(Mark::Payload(payload, _)) => kernel.share_payload(payload),
            Held::Mark(Mark::Guard) => {}
        }
        Self { kernel, held: Some(held) }
    }

    /// The child has the entry.
    fn keep(mut self) {
        self.held = None;
    }
}

impl<K: Kernel> Drop for Share<'_, K> {
    fn drop(&mut self) {
        match self.held {
            Some(Held::Frames(run)) => self.kernel.release(run),
            Some(Held::Mark(Mark::Payload(payload, _))) => self.kernel.release_payload(payload),
            Some(Held::Mark(Mark::Guard)) | None => {}
        }
    }
}

/// The attributes that the copy of a page does not have.
const FORGOTTEN: Attr = Attr::DIRTY.union(Attr::GLOBAL);

/// Tells whether a page is writable memory.
fn is_writable(attr: Attr) -> bool {
    attr.contains(Attr::WRITE) && !attr.intersects(Attr::DEVICE.union(Attr::UNCACHED))
}

/// Calls `visit` with each leaf and each mark, and the address of its page, in ascending order. `visit` may change the entry that
/// it is called with. The caller has the right to write the table.
fn each_entry<G: Radix, F: Format<Word = u32>, N: Nodes<Word = u32>>(
    table: &Table<G, F, N>,
    mut visit: impl FnMut(VirtAddr, Entry) -> Result<(), Error>,
) -> Result<(), Error> {
    for half in table.space().halves().into_iter().flatten() {
        let mut rest = Some(half);
        while let Some(pages) = rest {
            let mut some = Vec::<(VirtAddr, Entry), 16>::new();
            // SAFETY: the caller is the writer, and frees nothing during the visit.
            let flow = table.for_each_entry(unsafe { Pinned::by(table) }, pages, &mut |at, entry| {
                let _ = some.push((at, entry));
                if some.is_full() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            let last = some.last().map(|&(at, entry)| match entry {
                Entry::Leaf(leaf) => table.space().pages_of(&leaf).last(),
                _ => at.vpn(G::BASE),
            });
            let next = last.filter(|_| flow.is_break()).and_then(|last| last.checked_add(1));
            rest = next.and_then(|next| Pages::new(next, half.last()));
            some.into_iter().try_for_each(|(at, entry)| visit(at, entry))?;
        }
    }
    Ok(())
}
