//! The control block of an address space, and the handles that share it.
//!
//! A block lives in a frame of the kernel, so that its address never changes: CPUs that run the address space keep a
//! handle to the block, and [`System`](tlbkit_shootdown::System) reads its sets of CPUs from other CPUs. The frame goes back
//! to the kernel when the last handle is dropped.

use core::fmt;
use core::mem::ManuallyDrop;
use core::ops::Deref;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicUsize, Ordering, fence};

use tlbkit_addr::{Attr, PageSize, Pages, PhysAddr, VirtAddr, Vpn};
use tlbkit_pagetable::{Error, Geometry as _, NodeLocks, PageRanges, Pinned, Radix as _, Table as _};
use tlbkit_shootdown::SectionKind;

use crate::asids::{Held, Number};
use crate::cpu_set::{SharedSpace, WORDS};
use crate::detached::Detachment;
use crate::mmu::Announced;
use crate::storage::Table;
use crate::table::SpaceTable as _;
use crate::visit::Visit;
use crate::{Kernel, Machine, Mmu};

/// The shape of a kernel's page tables.
pub(crate) type Shape<K> = <<K as Kernel>::Machine as Machine>::Geometry;

/// The part of an address space that its handles share. The block begins with the table, at the frame's address.
#[repr(C)]
pub(crate) struct Block<K: Kernel, const CPUS: usize> {
    pub(crate) table: ManuallyDrop<Table<K>>,
    handles: AtomicUsize,
    frame: PhysAddr,
    pub(crate) mmu: &'static Mmu<K, CPUS>,
    /// The CPUs that may hold its translations, those that run it, and those that must flush first.
    pub(crate) cpus: SharedSpace,
    pub(crate) number: Number,
    /// The number of the last [deferred](crate::Deferred) run of frames of this address space, and one: 0 if there was none.
    pub(crate) deferred: AtomicUsize,
    /// How many flushes of its changes have been [broadcast](crate::Kernel::BROADCAST).
    broadcasts: AtomicUsize,
    /// Whether this is the kernel's own address space, which every CPU uses.
    kernels: bool,
    /// The pages that this address space, the kernel's own, lends to others: none if the kernel's half has a root register of its own.
    lends: Option<PageRanges>,
    /// The lender: the address space whose pages this one shares. It lives as long as this one.
    lender: Option<Handle<K, CPUS>>,
}

/// A counted reference to a [`Block`].
pub(crate) struct Handle<K: Kernel, const CPUS: usize>(NonNull<Block<K, CPUS>>);

// SAFETY: a handle gives shared references to its block, and the CPU that drops the last handle drops the block. The table in the
// block is in shared mode, and its storage is that of a static `Mmu`.
unsafe impl<K: Kernel, const CPUS: usize> Send for Handle<K, CPUS> {}
// SAFETY: a shared handle gives shared references to the block, or a clone of itself, which is `Send`; the table in the block is in
// shared mode.
unsafe impl<K: Kernel, const CPUS: usize> Sync for Handle<K, CPUS> {}

/// What an address space is to the others.
pub(crate) enum Role<K: Kernel, const CPUS: usize> {
    /// The kernel's own, which lends pages unless the kernel's half has a root register of its own.
    Kernels { lent: Option<PageRanges> },
    /// A program's, which shares the pages that its lender lends.
    Users { lender: Option<Handle<K, CPUS>> },
}

/// The number of frames, from address 0 on, of which nodes can be: the storage links free nodes by numbers of 31 bits.
const NODE_FRAMES: u64 = 1 << 31;

/// Where the locks of an address space's table are in the frame of its block.
const LOCKS_AT: usize = 4096 - size_of::<NodeLocks>();

/// A frame for a block. It goes back to the kernel if it is not filled.
pub(crate) struct Place<K: Kernel, const CPUS: usize> {
    mmu: &'static Mmu<K, CPUS>,
    at: NonNull<Block<K, CPUS>>,
    frame: GivenBack<'static, K>,
}

impl<K: Kernel, const CPUS: usize> Place<K, CPUS> {
    /// Takes a frame. It is taken before the table is made, so that no table is lost if the kernel has no frame, or unwinds.
    ///
    /// # Errors
    ///
    /// [`Error::NoMemory`]; [`Error::FrameTooLarge`] if no node can be in the kernel's frame.
    pub(crate) fn take(mmu: &'static Mmu<K, CPUS>) -> Result<Self, Error> {
        const { assert!(size_of::<Block<K, CPUS>>() <= LOCKS_AT, "the block and the locks fit a frame") };
        let none = Error::NoMemory { wanted: 1, pending: 0 };
        let frame = GivenBack(mmu.kernel(), mmu.kernel().take_frame().ok_or(none)?);
        // The block could be there. But the kernel's next frame is one for a node, and the storage of nodes cannot say why it has not
        // taken that.
        let number = frame.1.pfn(Shape::<K>::BASE);
        if number.get() as u64 >= NODE_FRAMES {
            return Err(Error::FrameTooLarge { frame: number });
        }
        let at = NonNull::new(mmu.kernel().memory(frame.1).cast::<Block<K, CPUS>>()).ok_or(none)?;
        Ok(Self { mmu, at, frame })
    }

    /// Makes the locks by which several CPUs write the table. With one CPU there are none.
    pub(crate) fn locks(&mut self) -> Option<&'static mut NodeLocks> {
        if CPUS == 1 {
            return None;
        }
        // SAFETY: the kernel maps the frame, which has at least 4096 bytes and is aligned to them, at this address. The block does not
        // reach to the locks, which are free if they are zeros. No other code uses the frame until it is given back, which is after the drop of the table in it.
        unsafe {
            let locks = self.at.cast::<NodeLocks>().byte_add(LOCKS_AT);
            locks.write_bytes(0, 1);
            Some(&mut *locks.as_ptr())
        }
    }

    /// Moves a table into a block in the frame.
    pub(crate) fn fill(self, table: Table<K>, role: Role<K, CPUS>) -> Handle<K, CPUS> {
        let Self { mmu, at, frame } = self;
        let (kernels, lends, lender) = match role {
            Role::Kernels { lent } => (true, lent, None),
            Role::Users { lender } => (false, None, lender),
        };
        let block = Block {
            table: ManuallyDrop::new(table),
            handles: AtomicUsize::new(1),
            frame: frame.1,
            mmu,
            cpus: SharedSpace::new(),
            deferred: AtomicUsize::new(0),
            broadcasts: AtomicUsize::new(0),
            number: if kernels { Number::every() } else { Number::new() },
            kernels,
            lends,
            lender,
        };
        // SAFETY: the kernel maps the frame at this address, and no other code uses the frame until it is given back. A frame is
        // aligned to at least 4096 bytes and has at least that size, and the block is no larger.
        unsafe { at.write(block) };
        core::mem::forget(frame);
        Handle(at)
    }
}

impl<K: Kernel, const CPUS: usize> Handle<K, CPUS> {
    /// Returns the kernel's own address space if this one shares its pages, which may be global.
    pub(crate) fn half(&self) -> Option<&Self> {
        if self.is_kernels() { Some(self) } else { self.lender() }
    }

    /// Tells whether both are handles of one block.
    pub(crate) fn is(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl<K: Kernel, const CPUS: usize> Deref for Handle<K, CPUS> {
    type Target = Block<K, CPUS>;

    #[inline]
    fn deref(&self) -> &Block<K, CPUS> {
        // SAFETY: the block is live until its last handle is dropped, and only shared references to it are given.
        unsafe { self.0.as_ref() }
    }
}

impl<K: Kernel, const CPUS: usize> Clone for Handle<K, CPUS> {
    fn clone(&self) -> Self {
        // The count can reach its maximum only if handles are leaked. It then stays at the maximum, and the block is never
        // dropped.
        let more = |count: usize| Some(count.saturating_add(1));
        let _ = self.handles.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        Self(self.0)
    }
}

impl<K: Kernel, const CPUS: usize> Drop for Handle<K, CPUS> {
    fn drop(&mut self) {
        let fewer = |count: usize| if count == usize::MAX { None } else { Some(count - 1) };
        if self.handles.fetch_update(Ordering::Release, Ordering::Relaxed, fewer) != Ok(1) {
            return;
        }
        // Pairs with the releases of the other drops: all other uses of the block happen before its drop.
        fence(Ordering::Acquire);
        let _frame = GivenBack(self.mmu.kernel(), self.frame);
        // SAFETY: this was the last handle: no other code reaches the block, now or later.
        unsafe { self.0.drop_in_place() };
    }
}

/// A frame that goes back to the kernel when this value is dropped, also if the end of the block unwinds.
struct GivenBack<'k, K: Kernel>(&'k K, PhysAddr);

impl<K: Kernel> Drop for GivenBack<'_, K> {
    fn drop(&mut self) {
        self.0.masked(|| self.0.give_frame(self.1));
    }
}

impl<K: Kernel, const CPUS: usize> Block<K, CPUS> {
    /// Returns the base page size.
    #[inline(always)]
    pub(crate) fn base(&self) -> PageSize {
        self.table.space().base()
    }

    /// Tells whether this is the kernel's own address space, which every CPU uses.
    #[inline(always)]
    pub(crate) fn is_kernels(&self) -> bool {
        self.kernels
    }

    /// Returns the CPUs that may hold translations of this address space: all online CPUs, if it is the kernel's own.
    #[inline]
    pub(crate) fn cpus(&self) -> &SharedSpace {
        if self.is_kernels() { self.mmu.online_cpus() } else { &self.cpus }
    }

    /// Returns the ASID under which TLBs may hold translations of this address space. For the kernel's own address space it is 0,
    /// which means any ASID.
    #[inline]
    pub(crate) fn held(&self) -> Held {
        self.number.held()
    }

    /// Returns the address of the block, which no other live one has.
    pub(crate) fn address(&self) -> usize {
        core::ptr::from_ref(self).addr()
    }

    /// Counts a broadcast. The caller has the right to write the pages that it flushes.
    pub(crate) fn count_broadcast(&self) {
        self.broadcasts.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns how many broadcasts there have been: always 0 where the machine does not broadcast.
    #[inline(always)]
    pub(crate) fn broadcasts(&self) -> usize {
        if Mmu::<K, CPUS>::BROADCASTS { self.broadcasts.load(Ordering::Relaxed) } else { 0 }
    }

    /// Returns the pages that this address space lends to others, or shares with its lender.
    pub(crate) fn lent(&self) -> Option<&PageRanges> {
        self.lender().map_or(self.lends.as_ref(), |lender| lender.lends.as_ref())
    }

    /// Returns the lender, if there is one.
    pub(crate) const fn lender(&self) -> Option<&Handle<K, CPUS>> {
        self.lender.as_ref()
    }

    /// Returns the lender, if the page of `at` belongs to it.
    #[inline(never)]
    pub(crate) fn lender_of(&self, at: VirtAddr) -> Option<&Handle<K, CPUS>> {
        let page = at.vpn(self.base());
        self.lender().filter(|lender| lender.lends.as_ref().is_some_and(|lent| lent.contains(page)))
    }

    /// Tells whether a page of `size` can be mapped among `pages`: a page that fills a top-level slot cannot take the place of
    /// a lent slot, because other tables keep a copy of the slot's link.
    pub(crate) fn has_place_for(&self, size: PageSize, pages: Pages) -> bool {
        let slot = Shape::<K>::VA_BITS - Shape::<K>::WIDTHS.first().copied().unwrap_or(0);
        size.shift() < slot || self.lent().is_none_or(|lent| lent.first_in(pages).is_none())
    }

    /// Returns the physical address for the root register: that of the root node, or of the root word.
    pub(crate) fn root(&self) -> PhysAddr {
        self.table.root(self.frame)
    }

    /// Calls `walk` on this CPU, which serves no shootdown until `walk` returns. What `walk` returns may be stale.
    ///
    /// # Safety
    ///
    /// Interrupts are masked, and `walk` does not serve shootdowns.
    #[inline]
    pub(crate) unsafe fn pinned<R>(&self, walk: impl FnOnce(Pinned<'_>) -> R) -> R {
        let _section = self.mmu.section(self.root(), SectionKind::Walk);
        // SAFETY: this function's contract.
        unsafe { self.walk(walk) }
    }

    /// Does what [`pinned`](Self::pinned) does, for a `walk` that also uses what it finds: changes wait for it.
    ///
    /// # Safety
    ///
    /// As for [`pinned`](Self::pinned).
    #[inline]
    pub(crate) unsafe fn using<R>(&self, walk: impl FnOnce(Pinned<'_>) -> R) -> R {
        let _section = self.mmu.section(self.root(), SectionKind::Use);
        // SAFETY: this function's contract.
        unsafe { self.walk(walk) }
    }

    /// Begins a section for the walk of a writer, if it comes to pages that are shared: another CPU may write them.
    #[inline]
    pub(crate) fn section_of_shared(&self, pages: Pages) -> Announced<K, CPUS> {
        let shares = || self.lender().and(self.lent()).is_some_and(|lent| lent.first_in(pages).is_some());
        if Mmu::<K, CPUS>::BROADCASTS && shares() {
            self.mmu.section(self.root(), SectionKind::Walk)
        } else {
            self.mmu.no_section()
        }
    }

    /// Calls `walk` in a section.
    ///
    /// # Safety
    ///
    /// As for [`pinned`](Self::pinned).
    #[inline]
    unsafe fn walk<R>(&self, walk: impl FnOnce(Pinned<'_>) -> R) -> R {
        // SAFETY: by this function's contract interrupts are masked, and `walk` serves no shootdown.
        match unsafe { self.pin(self.mmu) } {
            Some(pinned) => walk(pinned),
            None => self.visiting(self.mmu.this_cpu(), walk),
        }
    }

    /// Begins a walk of this CPU, which is inside an edit, to pages that other CPUs may write: they wait for this CPU until the visit is
    /// over.
    #[cold]
    #[inline(never)]
    pub(crate) fn visit_beside(&self) -> (Announced<K, CPUS>, Visit<'_, WORDS>) {
        (self.mmu.section(self.root(), SectionKind::Walk), Visit::begin(self.cpus(), self.mmu.this_cpu()))
    }

    /// Proves that no node is freed which this CPU may walk, if it runs the address space, which is one of `mmu`.
    ///
    /// # Safety
    ///
    /// While the proof exists, interrupts are masked, this CPU is in a [section](Mmu::section), and it serves no shootdown.
    #[inline(always)]
    pub(crate) unsafe fn pin(&self, mmu: &'static Mmu<K, CPUS>) -> Option<Pinned<'_>> {
        // Every online CPU runs the kernel's own address space, so a change of that address space waits for the CPU, too.
        let runs = |cpu| {
            self.cpus.running.contains(cpu) || self.is_kernels() && mmu.online_cpus().running.contains(cpu)
        };
        if CPUS == 1 || runs(mmu.this_cpu()) {
            // SAFETY: by this function's contract this CPU acknowledges no shootdown while the proof exists, and is in a section. A
            // change that retires nodes waits for the acknowledgement of every CPU that runs the address space, or keeps the nodes: until
            // each has left its section, or, after a deferred unmap, until a flush of all online CPUs, of which this CPU is one (it
            // acknowledges none now); with one CPU no other CPU makes changes.
            return Some(unsafe { Pinned::by(self) });
        }
        None
    }

    /// Calls `walk` on a CPU that does not run the address space. During the call the CPU is in the address space's sets of CPUs.
    /// Only [`walk`](Self::walk) calls this function.
    #[cold]
    fn visiting<R>(&self, cpu: usize, walk: impl FnOnce(Pinned<'_>) -> R) -> R {
        // No CPU waits for a CPU that is not online. A CPU inside a call is online.
        let _ = self.mmu.call(|_| Ok(()));
        let _visit = Visit::begin(self.cpus(), cpu);
        // SAFETY: by the contract of `Self::walk`, the only caller, this CPU is in a section and serves no shootdown during `walk`. A
        // change that retires nodes waits for this CPU, or keeps the nodes, because the CPU is in the address space's sets. The flush of
        // deferred unmaps waits for it because the call above has brought it online.
        walk(unsafe { Pinned::by(self) })
    }

    /// Tells whether the page may have a global mapping: no address space maps it differently.
    #[inline(never)]
    pub(crate) fn may_be_global(&self, page: Vpn) -> bool {
        self.check_global(Attr::GLOBAL, Pages::one(page)).is_ok()
    }

    /// Returns an error for a global mapping of pages that other address spaces may map differently.
    #[inline]
    pub(crate) fn check_global(&self, attr: Attr, pages: Pages) -> Result<(), Error> {
        // The kernel's own address space, in a half that no other one has, or among the pages that it lends.
        let alike = self.kernels && self.lends.as_ref().is_none_or(|lent| lent.cover(pages));
        if attr.contains(Attr::GLOBAL) && !alike {
            return Err(Error::WrongAttr { attr: Attr::GLOBAL });
        }
        Ok(())
    }

    /// Checks that all of `pages` are in range, and that none is shared.
    pub(crate) fn check_own(&self, pages: Pages) -> Result<(), Error> {
        self.table.space().check_pages(pages)?;
        let shared = self.lender().and(self.lent()).and_then(|lent| lent.first_in(pages));
        shared.map_or(Ok(()), |shared| Err(Error::Borrowed { at: shared.address(self.base()) }))
    }

    /// Returns the ranges of pages that this address space owns: all that its table can map, except those that it shares.
    pub(crate) fn own(&self) -> impl Iterator<Item = Pages> + use<K, CPUS> {
        let shared = self.lender().and(self.lent()).copied();
        self.table.space().halves().into_iter().flatten().flat_map(move |half| {
            let gaps = shared.map(|shared| shared.gaps(half));
            let whole = if gaps.is_none() { Some(half) } else { None };
            gaps.into_iter().flatten().chain(whole)
        })
    }
}

impl<K: Kernel, const CPUS: usize> Drop for Block<K, CPUS> {
    fn drop(&mut self) {
        let mut end = Detachment::new(self.mmu);
        // SAFETY: no code has taken the table before, and none uses this field again.
        let debt = unsafe { ManuallyDrop::take(&mut self.table) }.detach_all(end.add(false));
        // SAFETY: no CPU has the root loaded, because each CPU that runs the address space keeps a handle, and no CPU visits it without
        // one. A TLB may hold its translations under its ASID, which no other address space gets before every CPU has flushed.
        unsafe {
            end.flushed();
            self.mmu.kernel().masked(|| debt.reclaim());
        }
        end.end();
        self.mmu.kernel().masked(|| self.mmu.collect());
    }
}

impl<K: Kernel, const CPUS: usize> fmt::Debug for Handle<K, CPUS> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AddressSpace")
            .field("table", &*self.table)
            .field("cpus", &self.cpus)
            .finish_non_exhaustive()
    }
}
