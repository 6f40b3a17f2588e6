//! Address spaces.

use core::fmt;
use core::ops::ControlFlow;

use tlbkit_addr::{Asid, Pages, Pfn, PhysAddr, VirtAddr};
use tlbkit_pagetable::{Entry, Error, Footprint, Leaf, Mark, PageRanges, Table as _};
use tlbkit_shootdown::SectionKind;

use crate::block::{Handle, Place, Role};
use crate::counted::{counted, typed};
use crate::cpu_call::{CpuCall, everything, under};
use crate::edit::Whole;
use crate::storage::Table;
use crate::table::{RELEASED, SpaceTable as _};
use crate::{FrameOf, Kernel, Machine, Mmu, MultiLevel, PagesOf};

mod changes;

/// A handle to a virtual address space: a page table, an ASID, and the CPUs that run it.
///
/// Any CPU may look up, change and run it at any time. Only one CPU changes a [range](Self::edit_in) at a time; a CPU that waits for
/// its turn serves shootdowns and unmasks interrupts now and then. Otherwise every method masks interrupts while it runs. (A fault on
/// a page that is [shared](Self::sharing) waits with interrupts masked, and serves shootdowns.)
///
/// # Long calls
///
/// A call that handles many pages does so in parts, and unmasks interrupts between two parts, if they were not masked when it was
/// called. The caller of an [`edit`](Self::edit) has them masked, so the changes in one edit are not interrupted. Between two parts
/// another CPU, or an interrupt handler of this CPU, may change the address space.
///
/// | call | a part | instructions |
/// |-|-|-|
/// | [`unmap`](Self::unmap) | about 8192 nodes and entries, of which a node without other entries is one; then the frames of 512 entries at a time | 211,709 |
/// | [`fork`](Self::fork) | about 8192 entries, and a shootdown; of a [guarded](crate::Guarded) table all entries | 285,990 |
/// | [`protect`](Self::protect) | about 8192 entries, and a shootdown | |
/// | the drop of the last handle | 512 entries | 59,754 |
/// | [`for_each`](Self::for_each), [`for_each_mark`](Self::for_each_mark) | 512 visits | |
/// | [`copy_from_user`](Self::copy_from_user), [`copy_to_user`](Self::copy_to_user) | a base page | 2,682 |
/// | [`map_each`](Self::map_each), [`resize`](Self::resize), [`move_pages`](Self::move_pages) and every other | the whole range: all or nothing | |
///
/// `cargo test -p tlbkit --test all ranges` counts the stores, frames and nodes of each part. The last column has the most
/// instructions that a call executes with interrupts masked, for 4 GiB of pages of 4 KiB on RISC-V, no frame the neighbour of the one
/// before: `cargo xtask boot --machine riscv64 --stress` prints it, with the methods of that kernel, on one hart. With several CPUs
/// the wait for a shootdown comes on top.
///
/// # Handles
///
/// Clones are handles to the same address space, and each CPU that [runs](Self::activate) it keeps a handle. When the last
/// handle is dropped, every mapped frame and every payload is released ([`Kernel::release`], [`Kernel::release_payload`]) and
/// the nodes go back to the kernel ([`Kernel::give_frame`]). That costs a load of every entry of every node, empty ones included,
/// and no shootdown. With one page mapped, an address space for Sv39 takes four frames: the control block that the handles share, the
/// root node, and two nodes below it.
pub struct AddressSpace<K: Kernel, const CPUS: usize = 1>(pub(crate) Handle<K, CPUS>);

impl<K: Kernel, const CPUS: usize> Clone for AddressSpace<K, CPUS> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

/// The kernel's own address space, and those that share it: of [multi-level](MultiLevel) tables.
impl<K: Kernel<Machine: Machine<Table = MultiLevel>>, const CPUS: usize> AddressSpace<K, CPUS> {
    /// Returns the kernel's own address space: others can [share](Self::sharing) its pages in `ranges`, one to
    /// [eight](tlbkit_pagetable::PageRanges::MOST) of them in any order, each of which begins and ends with a top-level slot. Costs one
    /// node for each slot in a range, none for those between two ranges, and with one CPU a flush.
    ///
    /// Mappings of these pages may be [`Attr::GLOBAL`](crate::Attr::GLOBAL). Every online CPU flushes the changes of this address
    /// space. A CPU that runs an address space which shares it keeps a handle to it, until the CPU runs an address space that does
    /// not (the switch costs a flush of everything) or goes [offline](Mmu::offline).
    ///
    /// # Errors
    ///
    /// Those of [`Mpt::lend`](tlbkit_pagetable::mpt::Mpt::lend) and [`new`](Self::new).
    pub fn lending<const RANGES: usize>(
        mmu: &'static Mmu<K, CPUS>,
        ranges: [PagesOf<K>; RANGES],
    ) -> Result<Self, Error> {
        let ranges = ranges.map(counted::<K>);
        mmu.kernel().masked(|| {
            let mut place = Place::take(mmu)?;
            let mut table = Table::<K>::empty(mmu.storage(), None, place.locks())?;
            if let Err(why) = table.lend(ranges) {
                drop(place.fill(table, Role::Users { lender: None }));
                return Err(why);
            }
            Ok(Self::kernels_own(
                mmu,
                place.fill(table, Role::Kernels { lent: Some(PageRanges::new(ranges)) }),
            ))
        })
    }

    /// Returns the kernel's own address space where the kernel's half has a root register of its own, in an [`Mmu`] of its own: on
    /// AArch64 the half of `TTBR1_EL1` ([`crate::arch`], "AArch64: two halves"). It lends nothing, so only its root is allocated.
    ///
    /// As in one that [lends](Self::lending), mappings may be [`Attr::GLOBAL`](crate::Attr::GLOBAL), and every online CPU flushes its
    /// changes. Each CPU [activates](Self::activate) it once, at boot: that loads its root.
    ///
    /// # Errors
    ///
    /// Those of [`new`](Self::new).
    pub fn kernels(mmu: &'static Mmu<K, CPUS>) -> Result<Self, Error> {
        mmu.kernel().masked(|| {
            let mut place = Place::take(mmu)?;
            let table = Table::<K>::empty(mmu.storage(), None, place.locks())?;
            Ok(Self::kernels_own(mmu, place.fill(table, Role::Kernels { lent: None })))
        })
    }

    fn kernels_own(mmu: &'static Mmu<K, CPUS>, handle: Handle<K, CPUS>) -> Self {
        if CPUS == 1 {
            // Orders the stores that built the table before the walks of this CPU. One of several CPUs does that when it first
            // runs the address space.
            mmu.kernel().flush(&everything::<K>(), None);
        }
        Self(handle)
    }

    /// Returns an address space that shares the pages which `kernel` [lends](Self::lending), or itself shares. The new address
    /// space maps these pages as the lender does, now and later. No other page is mapped.
    ///
    /// # Errors
    ///
    /// [`Error::NothingLent`] if `kernel` neither lends pages nor shares them; those of [`new`](Self::new).
    pub fn sharing(kernel: &Self) -> Result<Self, Error> {
        let (mmu, kernel) = (kernel.0.mmu, kernel.0.lender().unwrap_or(&kernel.0));
        if kernel.lent().is_none() {
            return Err(Error::NothingLent);
        }
        mmu.kernel().masked(|| Self::beside(mmu, Some(kernel)))
    }
}

impl<K: Kernel, const CPUS: usize> AddressSpace<K, CPUS> {
    /// Returns an empty address space.
    ///
    /// # Errors
    ///
    /// [`Error::NoMemory`]; [`Error::FrameTooLarge`] if [`Kernel::take_frame`] has returned a frame that can be no node.
    pub fn new(mmu: &'static Mmu<K, CPUS>) -> Result<Self, Error> {
        mmu.kernel().masked(|| Self::beside(mmu, None))
    }

    /// Returns an empty address space, which shares what `lender` lends.
    pub(crate) fn beside(
        mmu: &'static Mmu<K, CPUS>,
        lender: Option<&Handle<K, CPUS>>,
    ) -> Result<Self, Error> {
        let mut place = Place::take(mmu)?;
        let lends: Option<*const Table<K>> = lender.map(|lender| &raw const *lender.table);
        // SAFETY: the new block keeps a handle to the lender, whose block therefore outlives the new table.
        let lender_table = lends.map(|table| unsafe { &*table });
        let table = Table::<K>::empty(mmu.storage(), lender_table, place.locks())?;
        Ok(Self(place.fill(table, Role::Users { lender: lender.cloned() })))
    }

    /// Returns the `Mmu` that the address space belongs to.
    pub fn mmu(&self) -> &'static Mmu<K, CPUS> {
        self.0.mmu
    }

    /// Returns the leaf that maps `at`. An address outside the address space is not mapped.
    ///
    /// Costs one load a level; and on a CPU of several that does not run the address space, up to four atomic updates of its sets of
    /// CPUs and a fence.
    #[inline]
    pub fn lookup(&self, at: VirtAddr) -> Option<Leaf<FrameOf<K>>> {
        // SAFETY: interrupts are masked, and a lookup serves no shootdown.
        let leaf =
            self.mmu().kernel().masked(|| unsafe { self.0.pinned(|pinned| self.0.table.lookup(pinned, at)) });
        typed::<K, _>(leaf)
    }

    /// Returns what the entry for the page of `at` holds: a leaf, a mark, or nothing.
    ///
    /// Costs as much as [`lookup`](Self::lookup).
    pub fn entry(&self, at: VirtAddr) -> Entry<FrameOf<K>> {
        // SAFETY: interrupts are masked, and a lookup serves no shootdown.
        let entry =
            self.mmu().kernel().masked(|| unsafe { self.0.pinned(|pinned| self.0.table.entry(pinned, at)) });
        typed::<K, _>(entry)
    }

    /// Visits every mark of a page of `pages`, in ascending order, with the page's address; otherwise as
    /// [`for_each`](Self::for_each).
    ///
    /// # Errors
    ///
    /// [`Error::Nested`] inside another visit or edit on this CPU; [`Error::Unflushed`] as for [`edit`](Self::edit).
    pub fn for_each_mark(
        &self,
        pages: PagesOf<K>,
        mut visit: impl FnMut(VirtAddr, Mark) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, Error> {
        self.visit(counted::<K>(pages), &mut |at, entry| {
            entry.mark().map_or(ControlFlow::Continue(()), |mark| visit(at, mark))
        })
    }

    /// Visits every leaf and every mark, in bounded parts; see [`for_each`](Self::for_each).
    fn visit(
        &self,
        pages: Pages,
        visit: &mut dyn FnMut(VirtAddr, Entry) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, Error> {
        let (space, base) = (self.0.table.space(), self.0.base());
        // The first page that has not been visited, from the first visit on.
        let mut next = None;
        let mut rest = Some(pages);
        let mut result = ControlFlow::Continue(());
        while let Some(pages) = rest {
            let mut left = RELEASED;
            let mut found = |at: VirtAddr, entry: Entry| {
                let whole = entry.leaf().map_or(Pages::one(at.vpn(base)), |leaf| space.pages_of(&leaf));
                let behind = next.filter(|&next| whole.first() < next);
                // Another CPU has joined pages of which some have been visited: the others are visited one by one.
                let parts = match (behind, entry) {
                    (None, _) => {
                        next = whole.last().checked_add(1);
                        result = visit(at, entry);
                        left -= 1;
                        None
                    }
                    (Some(next), Entry::Leaf(leaf)) => {
                        Pages::new(next, whole.last().min(pages.last())).map(|parts| (leaf, parts))
                    }
                    (Some(_), _) => None,
                };
                if let Some((leaf, parts)) = parts {
                    for page in parts {
                        let frame = Pfn::new(leaf.frame.get() + (page.get() - whole.first().get()));
                        next = page.checked_add(1);
                        let at = page.address(base);
                        result = visit(at, Entry::Leaf(Leaf { at, size: base, frame, attr: leaf.attr }));
                        left -= 1;
                        if result.is_break() || left == 0 {
                            break;
                        }
                    }
                }
                if result.is_break() || left == 0 {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            };
            let flow = self.mmu().call(|_| {
                // SAFETY: interrupts are masked; this CPU is inside a call, so that it serves no shootdown during `visit`.
                Ok(unsafe { self.0.using(|pinned| self.0.table.for_each_entry(pinned, pages, &mut found)) })
            })?;
            let is_over = flow.is_continue() || result.is_break();
            rest = next.filter(|_| !is_over).and_then(|next| Pages::new(next, pages.last()));
        }
        Ok(result)
    }

    /// Returns the physical address that `at` is translated to.
    ///
    /// Costs as much as [`lookup`](Self::lookup).
    #[inline]
    pub fn translate(&self, at: VirtAddr) -> Option<PhysAddr> {
        let mmu = self.mmu();
        let walk = || {
            let _section = mmu.section(self.0.root(), SectionKind::Walk);
            // SAFETY: interrupts are masked, and a walk serves no shootdown.
            unsafe { self.0.pin(mmu) }.map(|pinned| self.0.table.translate(pinned, at))
        };
        match mmu.kernel().masked(walk) {
            Some(found) => found,
            None => self.translate_elsewhere(at),
        }
    }

    /// Translates an address on a CPU that does not run the address space.
    #[cold]
    #[inline(never)]
    fn translate_elsewhere(&self, at: VirtAddr) -> Option<PhysAddr> {
        // SAFETY: interrupts are masked, and a walk serves no shootdown.
        self.mmu().kernel().masked(|| unsafe { self.0.pinned(|pinned| self.0.table.translate(pinned, at)) })
    }

    /// Returns the value of the root register by which a CPU translates with this address space: for code of the kernel's that writes
    /// the register itself. [`Kernel::load`] gets the value, too.
    ///
    /// | address space | value | what the kernel may do with it |
    /// |-|-|-|
    /// | the kernel's own ([`lending`](Self::lending), [`kernels`](Self::kernels)) | always the same, with ASID 0 | A CPU that boots may load it before it is [online](Mmu::online), while no other CPU removes or restricts a mapping of the address space: nobody waits for that CPU yet. A CPU that is online may load it at any time, and with it a root of the kernel's own in place of the one that `load` got last, until it returns to that one: it is asked to flush every change |
    /// | any other | that of `load`, on a CPU that runs the address space; on another CPU `None` | A trampoline to user mode may load it as long as the CPU runs the address space: until the next [`activate`](Self::activate) of another one, [`idle`](Mmu::idle) or [`offline`](Mmu::offline) there. With its ASID no other CPU can use the value |
    ///
    /// The handle that the caller, or the CPU that runs the address space, keeps is what keeps the nodes: the value does not. Between
    /// two roots with different ASIDs no flush is needed. Where the CPUs have no ASIDs, or [fewer](Kernel::asid_bits) than one for
    /// each CPU and one more, both roots have ASID 0, so each write of the register is followed by a flush of everything, as the
    /// register's own write is on x86-64.
    ///
    /// # Errors
    ///
    /// [`Error::Nested`] inside an edit or a visit on this CPU, except for the kernel's own address space.
    pub fn root(&self) -> Result<Option<usize>, Error> {
        let root = |asid| K::Machine::root(self.0.root(), asid);
        if self.0.is_kernels() {
            return Ok(Some(root(Asid::default())));
        }
        self.mmu().kernel().masked(|| {
            let mut call = CpuCall::enter(self.mmu())?;
            call.pass_on_fault();
            let asid = call.runs(&self.0).then(|| under(self.0.held()).unwrap_or_default());
            Ok(asid.map(root))
        })
    }

    /// Returns the memory that the page table takes, without the control block.
    pub fn footprint(&self) -> Footprint {
        self.0.table.footprint()
    }

    /// Visits every leaf that maps a page of `pages`, in ascending order, until `visit` breaks. A concurrent change may or may
    /// not be observed. If another CPU joins pages of which some have been visited, the others are visited one by one, as leaves of the
    /// base size: no page is visited twice, and no leaf begins before the end of the leaf that was visited before it.
    ///
    /// `visit` runs with interrupts masked, and this CPU serves no shootdown until it returns: the others wait for it. Inside it a
    /// change, another visit or a switch returns [`Error::Nested`]. After 512 visits interrupts are unmasked for a moment.
    ///
    /// # Errors
    ///
    /// [`Error::Nested`] inside another visit or edit on this CPU; [`Error::Unflushed`] as for [`edit`](Self::edit).
    pub fn for_each(
        &self,
        pages: PagesOf<K>,
        mut visit: impl FnMut(Leaf<FrameOf<K>>) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, Error> {
        self.visit(counted::<K>(pages), &mut |_, entry| {
            entry.leaf().map_or(ControlFlow::Continue(()), |leaf| visit(typed::<K, _>(leaf)))
        })
    }

    /// Returns the first address of `pages` that is in use: mapped, or [marked](crate::Edit::mark). `None` means that all of `pages`
    /// are free. Pages that are [shared](Self::sharing) count, too.
    ///
    /// Costs a load for each empty entry of a node before that page: in a multi-level table at most one node a level, because a node
    /// has an entry that is in use, or is freed. (Only the end of the range may cost another node a level.)
    ///
    /// # Errors
    ///
    /// [`Error::Nested`] inside an edit or a visit on this CPU ([`Edit::first_used`](crate::Edit::first_used));
    /// [`Error::Unflushed`] as for [`edit`](Self::edit).
    pub fn first_used(&self, pages: PagesOf<K>) -> Result<Option<VirtAddr>, Error> {
        let pages = counted::<K>(pages);
        let mut first = None;
        let _ = self.visit(pages, &mut |at, _| {
            // A larger page may begin before the range.
            first = Some(at.max(pages.first().address(self.0.base())));
            ControlFlow::Break(())
        })?;
        Ok(first)
    }

    /// Returns the address of the first page of `pages` that is a hole: neither mapped nor [marked](crate::Edit::mark). `None` means
    /// that all of `pages` are in use. Another CPU may make a hole where this call has looked already.
    ///
    /// Costs a visit of each entry before the hole, in [parts](Self#long-calls) of 512.
    ///
    /// # Errors
    ///
    /// [`Error::Nested`] inside an edit or a visit on this CPU ([`Edit::first_hole`](crate::Edit::first_hole));
    /// [`Error::Unflushed`] as for [`edit`](Self::edit).
    pub fn first_hole(&self, pages: PagesOf<K>) -> Result<Option<VirtAddr>, Error> {
        let pages = counted::<K>(pages);
        let mut whole = Whole::new(&self.0, pages);
        let _ = self.visit(pages, &mut |at, entry| whole.visit(at, entry))?;
        Ok(whole.hole())
    }

    /// Makes this CPU run the address space: assigns an ASID if the address space has none, and loads the root register
    /// ([`Kernel::load`]). The CPU keeps a handle until it activates another address space, or [idles](Mmu::idle).
    ///
    /// The translations of the address space that the CPU ran before stay in its TLB under their ASID, if the machine has ASIDs. The
    /// CPU flushes this address space if it is new to the CPU, and its whole TLB if a new generation of ASIDs begins, or if the
    /// address space shares another kernel half. Without ASIDs each call flushes the whole TLB, also that of the address space which
    /// the CPU runs already, and twice if the address space is new to the CPU. With ASIDs, a call for the address space that the CPU
    /// runs already only loads the root register.
    ///
    /// `cargo xtask instructions AddressSpace activate` counts the instructions, without those of the kernel's flush.
    ///
    /// # Errors
    ///
    /// [`Error::Nested`] inside an edit or a visit on this CPU; [`Error::Unflushed`] as for [`edit`](Self::edit).
    pub fn activate(&self) -> Result<(), Error> {
        self.mmu().call(|call| {
            if call.runs(&self.0) {
                call.pass_on_fault();
                if call.load_again() {
                    return Ok(());
                }
            }
            call.switch_to(Some(&self.0));
            Ok(())
        })
    }
}

impl<K: Kernel, const CPUS: usize> fmt::Debug for AddressSpace<K, CPUS> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
