//! Guarded page tables for machines whose TLB is loaded by software.

use core::ops::ControlFlow;

use heapless::Vec;
use tlbkit_addr::{Attr, Pages, PhysAddr, VirtAddr, Vpn};
use tlbkit_pagetable::format::Format;
use tlbkit_pagetable::gpt::{Fixed, Gpt, Kseg0};
use tlbkit_pagetable::nodes::Nodes;
use tlbkit_pagetable::{
    AnyCursor, Change, Entry, Error, Holes, Leaf, Mark, Pinned, Radix, Run, Shared, Table as _, Turn, Writer,
    mpt,
};

use crate::Kernel;
use crate::table::{Frames, Sealed, SpaceTable, TableKind, is_users};

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

    fn copy_on_write<K: Kernel>(
        &self,
        writer: &mut Writer<'_, 'static, Self>,
        child: &mut Writer<'_, 'static, Self>,
        kernel: &K,
    ) -> Result<(), Error> {
        let space = self.space();
        each_entry(self, |at, entry| match entry {
            Entry::Leaf(leaf) if !is_users::<F>(leaf.attr) => Ok(()),
            Entry::Leaf(leaf) => {
                let pages = space.pages_of(&leaf);
                let attr =
                    if is_writable(leaf.attr) { Change::COPY_ON_WRITE.apply(leaf.attr) } else { leaf.attr };
                let run = Run { first: leaf.frame, len: pages.len(), dirty: false };
                kernel.share(run);
                let mapped = child.map(pages, leaf.frame, leaf.size, attr.difference(FORGOTTEN));
                mapped.inspect_err(|_| kernel.release(run))
            }
            Entry::Mark(mark) => {
                if let Mark::Payload(payload, _) = mark {
                    kernel.share_payload(payload);
                }
                let marked = child.mark(at, Some(mark)).map(drop);
                marked.inspect_err(|_| {
                    if let Mark::Payload(payload, _) = mark {
                        kernel.release_payload(payload);
                    }
                })
            }
            Entry::Empty => Ok(()),
        })?;
        each_entry(self, |_, entry| {
            let shared = |leaf: &Leaf| is_writable(leaf.attr) && is_users::<F>(leaf.attr);
            if let Some(leaf) = entry.leaf().filter(shared) {
                writer.protect(space.pages_of(&leaf), Holes::Refuse, Change::COPY_ON_WRITE)?;
            }
            Ok(())
        })
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
