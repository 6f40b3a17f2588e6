//! Guarded page tables for machines whose TLB is loaded by software.

use core::ops::ControlFlow;

use tlbkit_addr::{Attr, Pages, PhysAddr, VirtAddr, Vpn};
use tlbkit_pagetable::format::Format;
use tlbkit_pagetable::gpt::{self, Fixed, Gpt, Kseg0};
use tlbkit_pagetable::nodes::Nodes;
use tlbkit_pagetable::{
    AnyCursor, Change, Entry, Error, Holes, Leaf, NodeLocks, PageTurn, Pinned, Radix, Retired, Run, Shared,
    Table as _, Uncovered, Writer, destroy, mpt,
};

use crate::Kernel;
use crate::edit::after;
use crate::owned::Owned;
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
///     let _ = AddressSpace::lending(mmu, [pages]);
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
    type Cursor<'c> = AnyCursor<'c, 'static, Self>;

    const SLOTS: bool = false;

    fn empty(
        nodes: &'static N,
        _lender: Option<&'static Self>,
        _locks: Option<&'static mut NodeLocks>,
    ) -> Result<Self, Error> {
        // There is no lender, because guarded tables cannot lend.
        Self::new(nodes)
    }

    fn root(&self, at: PhysAddr) -> PhysAddr {
        // The table begins with its root word.
        at
    }

    fn slot<'w>(_turn: &'w mut PageTurn<'_, 'static, Self>) -> Option<mpt::Slot<'w, 'static, G, F, N>> {
        None
    }

    fn cursor<'c>(writer: &'c mut Writer<'_, 'static, Self>, page: Vpn) -> Result<Self::Cursor<'c>, Error> {
        writer.any_cursor(page)
    }

    type Detached = Leaves<G, F, N>;

    fn nothing(_nodes: &'static N) -> Self::Detached {
        Leaves { leaves: None, table: None, nodes: None }
    }

    fn detach(
        writer: &mut Writer<'_, 'static, Self>,
        pages: Pages,
        detached: &mut Self::Detached,
    ) -> Result<Option<Vpn>, Error> {
        let table = writer.table();
        // SAFETY: the caller is the writer, and the visit changes nothing.
        let part = first_part(table, unsafe { Pinned::by(table) }, pages, PART);
        detached.leaves = Some(writer.detach(part)?);
        Ok(after(pages, part.len()).map(|rest| rest.first()))
    }

    /// No frame waits in an entry of the table.
    unsafe fn clear_detached(
        _writer: &mut Writer<'_, 'static, Self>,
        _pages: Pages,
        _detached: &mut Self::Detached,
        _hand_over: &mut dyn FnMut(Uncovered),
    ) {
    }

    fn detach_all(self, detached: &mut Self::Detached) -> Retired<'static> {
        let none = self.batch();
        detached.table = Some(self);
        none
    }

    fn part(&self, pinned: Pinned<'_>, pages: Pages) -> Pages {
        first_part(self, pinned, pages, PART)
    }

    fn are_users(writer: &mut Writer<'_, 'static, Self>, pages: Pages) -> bool {
        let table = writer.table();
        // SAFETY: the caller is the writer, and the visit changes nothing.
        let pinned = unsafe { Pinned::by(table) };
        let users = table.for_each(pinned, pages, &mut |leaf| {
            if leaf.attr.contains(Attr::USER) { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        users.is_continue()
    }

    type Copying = ();

    /// Copies the table in one part.
    fn copy_on_write<K: Kernel>(
        writer: &mut Writer<'_, 'static, Self>,
        child: &mut Writer<'_, 'static, Self>,
        kernel: &K,
        _copying: &mut Option<()>,
    ) -> Result<Copied, Error> {
        let (table, space) = (writer.table(), writer.table().space());
        each_entry(table, |at, entry| match entry {
            Entry::Leaf(leaf) if !is_users::<F>(leaf.attr) => Ok(()),
            Entry::Leaf(leaf) => {
                let pages = space.pages_of(&leaf);
                let attr =
                    if is_writable(leaf.attr) { Change::COPY_ON_WRITE.apply(leaf.attr) } else { leaf.attr };
                let run = Run { dirty: false, ..leaf.run(G::BASE) };
                let share = Owned::shared(kernel, Uncovered::Frames(run));
                child.map(pages, leaf.frame, leaf.size, attr.difference(FORGOTTEN))?;
                share.keep();
                Ok(())
            }
            Entry::Mark(mark) => {
                let share = Owned::shared(kernel, Uncovered::Mark(mark));
                child.mark(at, Some(mark))?;
                share.keep();
                Ok(())
            }
            Entry::Empty => Ok(()),
        })?;
        each_entry(table, |_, entry| {
            let shared = |leaf: &Leaf| is_writable(leaf.attr) && is_users::<F>(leaf.attr);
            if let Some(leaf) = entry.leaf().filter(shared) {
                writer.protect(space.pages_of(&leaf), Holes::Refuse, Change::COPY_ON_WRITE)?;
            }
            Ok(())
        })?;
        Ok(Copied::All)
    }
}

/// Returns the first part of `pages` that has `most` entries. It does not end within a leaf.
fn first_part<G: Radix, F: Format<Word = u32>, N: Nodes<Word = u32>>(
    table: &Table<G, F, N>,
    pinned: Pinned<'_>,
    pages: Pages,
    most: usize,
) -> Pages {
    let (space, mut left, mut part) = (table.space(), most, pages);
    let _ = table.for_each_entry(pinned, pages, &mut |at, entry| {
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

/// Leaves of a guarded table, and the table from which more are taken, if it is no address space's any more.
#[derive(Debug)]
pub struct Leaves<G: Radix, F: Format<Word = u32>, N: Nodes<Word = u32> + 'static> {
    leaves: Option<gpt::Detached<'static, G, F, N, Size>>,
    table: Option<Table<G, F, N>>,
    /// Nodes that are to be freed next. Each is out of the obligation before it is freed, so that a call that unwinds can be repeated.
    nodes: Option<Retired<'static>>,
}

impl<G: Radix, F: Format<Word = u32>, N> Detached for Leaves<G, F, N>
where
    N: Nodes<Word = u32, Mode = Shared> + 'static,
{
    unsafe fn release(&mut self, most: usize, hand_over: &mut dyn FnMut(Uncovered)) -> bool {
        if let Some(leaves) = &mut self.leaves {
            // SAFETY: this function's contract.
            if !unsafe { leaves.release(most, hand_over) } {
                return false;
            }
            self.leaves = None;
        }
        if let Some(nodes) = &mut self.nodes {
            // SAFETY: by this function's contract no CPU walks the table, and none will.
            unsafe { nodes.complete() };
            self.nodes = None;
        }
        let Some(table) = &self.table else { return true };
        (self.leaves, self.nodes) = match take_some(table, most) {
            Some((leaves, nodes)) => (Some(leaves), Some(nodes)),
            None => (None, self.table.take().map(destroy)),
        };
        false
    }
}

/// Takes up to `most` entries out of a table which no other code uses. Returns their leaves, and the nodes that have no more; `None` if
/// the table has no entry.
fn take_some<G: Radix, F: Format<Word = u32>, N>(
    table: &Table<G, F, N>,
    most: usize,
) -> Option<(gpt::Detached<'static, G, F, N, Size>, Retired<'static>)>
where
    N: Nodes<Word = u32, Mode = Shared> + 'static,
{
    for half in table.space().halves().into_iter().flatten() {
        // SAFETY: no other code uses the table.
        let part = first_part(table, unsafe { Pinned::by(table) }, half, most);
        let Ok(mut writer) = Writer::new(table) else { continue };
        if let Ok(leaves) = writer.detach(part)
            && !leaves.is_empty()
        {
            return Some((leaves, writer.finish()));
        }
    }
    None
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
            let (mut some, mut count) = ([(VirtAddr::new(0), Entry::Empty); 16], 0);
            // SAFETY: the caller is the writer, and frees nothing during the visit.
            let flow = table.for_each_entry(unsafe { Pinned::by(table) }, pages, &mut |at, entry| {
                if let Some(place) = some.get_mut(count) {
                    *place = (at, entry);
                    count += 1;
                }
                if count == some.len() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            let some = some.into_iter().take(count);
            let last = some.clone().next_back().map(|(at, entry)| match entry {
                Entry::Leaf(leaf) => table.space().pages_of(&leaf).last(),
                _ => at.vpn(G::BASE),
            });
            let next = last.filter(|_| flow.is_break()).and_then(|last| last.checked_add(1));
            rest = next.and_then(|next| Pages::new(next, half.last()));
            { some }.try_for_each(|(at, entry)| visit(at, entry))?;
        }
    }
    Ok(())
}
