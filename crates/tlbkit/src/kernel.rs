//! The trait that a kernel implements: everything that only the kernel can do.

use tlbkit_addr::{Asid, PhysAddr};
use tlbkit_pagetable::Run;
use tlbkit_pagetable::nodes::{Record, Store};

use crate::{CpuSet, Deferred, Flush, FrameOf, Machine};

/// What a CPU has waited for longer than it should: see [`Kernel::overdue`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overdue {
    /// These CPUs have been interrupted for a shootdown, and have not called [`Mmu::on_interrupt`](crate::Mmu::on_interrupt) since. (If
    /// each of them has, they have not finished what it does.)
    Replies(CpuSet),
    /// These CPUs are inside a lookup, a visit or a copy from or to user memory, and do not come to an end: this CPU, which has
    /// [broadcast](Kernel::BROADCAST) its flush, waits for nothing else.
    Walks(CpuSet),
    /// Another CPU changes an address space, and does not come to an end.
    Edit,
}

/// The beginning or the end of a walk of a page table by software: see [`Kernel::walking`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Walking {
    /// This CPU begins a walk, and is in no other.
    Begin {
        /// The physical address of the root node.
        root: PhysAddr,
        /// Whether the walk uses what it finds, as a visit and a copy do. A lookup ends with what it has found.
        uses: bool,
    },
    /// The walk is over.
    End,
}

/// A method that flushes the TLBs of several CPUs: see [`Kernel::BROADCAST`].
pub type Broadcast<K> = fn(&K, &Flush<'_>, Option<Asid>, CpuSet) -> bool;

/// A kernel, as [`Mmu`](crate::Mmu) needs it: frames, this CPU's TLB, interrupts to the other CPUs.
///
/// Every method may be called on any CPU, with interrupts masked ([`masked`](Self::masked)). What that means for the kernel's locks:
///
/// - The methods that take and give (`take_frame` to `release_payload` in the list below, and `share_payload`) may take locks. Where
///   the kernel holds such a lock, it masks interrupts, and makes no change, visit or switch of an address space: it holds the lock
///   for a few instructions.
/// - These methods may wait for such a lock as the kernel waits for its other locks, by calling
///   [`Mmu::on_interrupt`](crate::Mmu::on_interrupt) again and again. So one type of lock serves for all. Inside a change that call
///   serves nothing, and has the interrupt come again afterwards; the holder of the lock does not wait for this CPU.
/// - It is the only call into the [`Mmu`](crate::Mmu) that they may make, but for `clear_frame` and `copy_frame`. Another one that needs this CPU (a change, a visit, a switch)
///   returns [`Error::Nested`](crate::Error::Nested), unless a new address space or the drop of a last handle has called the method.
///
/// A kernel for several CPUs also implements [`cpu`](Self::cpu), [`interrupt`](Self::interrupt) and [`overdue`](Self::overdue).
/// Without one of them its [`Mmu`](crate::Mmu) compiles for one CPU only:
///
/// ```
/// # use tlbkit::{AddressSpace, Asid, Flush, Kernel, Mmu, PhysAddr, Record, Run, arch};
/// struct Mine;
/// // SAFETY: it has no frames.
/// unsafe impl Kernel for Mine {
///     // No `cpu`, `interrupt` and `overdue`.
/// #   type Machine = arch::Sv32;
/// #   fn take_frame(&self) -> Option<PhysAddr> { None }
/// #   fn give_frame(&self, _: PhysAddr) {}
/// #   fn memory(&self, _: PhysAddr) -> *mut u8 { core::ptr::null_mut() }
/// #   fn record(&self, _: PhysAddr) -> Option<&Record> { None }
/// #   fn release(&self, _: Run) {}
/// #   fn flush(&self, _: &Flush, _: Option<Asid>) {}
/// #   fn masked<R>(&self, f: impl FnOnce() -> R) -> R { f() }
/// #   fn load(&self, _: usize) {}
/// #   fn unload(&self) {}
/// }
/// static MMU: Mmu<Mine, 1> = Mmu::new(Mine);
/// assert!(AddressSpace::new(&MMU).is_err(), "there is no frame");
/// MMU.idle().unwrap();
/// ```
///
/// ```compile_fail,E0080
/// # use tlbkit::{AddressSpace, Asid, Flush, Kernel, Mmu, PhysAddr, Record, Run, arch};
/// struct Mine;
/// // SAFETY: it has no frames.
/// unsafe impl Kernel for Mine {
///     // No `cpu`, `interrupt` and `overdue`.
/// #   type Machine = arch::Sv32;
/// #   fn take_frame(&self) -> Option<PhysAddr> { None }
/// #   fn give_frame(&self, _: PhysAddr) {}
/// #   fn memory(&self, _: PhysAddr) -> *mut u8 { core::ptr::null_mut() }
/// #   fn record(&self, _: PhysAddr) -> Option<&Record> { None }
/// #   fn release(&self, _: Run) {}
/// #   fn flush(&self, _: &Flush, _: Option<Asid>) {}
/// #   fn masked<R>(&self, f: impl FnOnce() -> R) -> R { f() }
/// #   fn load(&self, _: usize) {}
/// #   fn unload(&self) {}
/// }
/// static MMU: Mmu<Mine, 2> = Mmu::new(Mine);
/// assert!(AddressSpace::new(&MMU).is_err(), "there is no frame");
/// MMU.idle().unwrap();
/// ```
///
/// # Safety
///
/// An implementation promises that
///
/// - **frames**: [`take_frame`](Self::take_frame) returns frames that have no other owner until
///   [`give_frame`](Self::give_frame) gets them back, and not the one at 0. A frame is as large as a base page of the
///   [`Machine`](Self::Machine): 4 KiB, unless it has another granule. [`memory`](Self::memory) of such a frame is
///   aligned to its size, and stays mapped for reading and writing on every CPU, in every address space, until then;
/// - **zeroed frames**: [`take_zeroed_frame`](Self::take_zeroed_frame) keeps the promise on frames, and every byte of its frames
///   is zero;
/// - **user memory**: where [`user_memory`](Self::user_memory) calls `access`, it does so once, with a pointer to the frame, which is
///   aligned to the frame's size and mapped for reading and writing. From then on until `access` returns, the frame holds nothing but
///   bytes of programs: no node, no stack, and no other value of the kernel's. Rust code accesses the bytes meanwhile by atomic loads,
///   stores and exchanges of aligned words ([`AtomicUsize`](core::sync::atomic::AtomicUsize)), or not at all; programs and devices
///   access them as they like;
/// - **records**: [`record`](Self::record) returns a cell of its own for each frame, the same at each call, that no
///   other code uses while [`take_frame`](Self::take_frame) has given the frame away;
/// - **deferred**: [`deferred`](Self::deferred) returns the same memory at each call, or at each call none;
/// - **one `Mmu`**: each CPU uses only one [`Mmu`](crate::Mmu) for each root register, because two would give the same ASID to two
///   address spaces. Two of them are those of AArch64's halves ([`crate::arch`], "AArch64: two halves");
/// - **CPU**: [`cpu`](Self::cpu) returns the number of the CPU that calls it, which is below the `CPUS` of the `Mmu` and no other
///   CPU's. (With `CPUS` 1 it is not called, and no second CPU uses the `Mmu` or an address space of it.) While a closure runs in
///   [`masked`](Self::masked), it stays on its CPU, and that CPU takes no interrupt whose handler uses the [`Mmu`](crate::Mmu) or
///   edits an address space;
/// - **TLB**: when [`flush`](Self::flush) returns, this CPU's TLB and walk caches hold nothing that the flush names,
///   and every page-table walk that this CPU began before has ended. So has every load and store of this CPU that a translation which
///   the flush names has translated: what this CPU, or another one that this CPU answers, stores to the same frame afterwards comes
///   after it. Stores to page tables that precede the call are visible to the walks that follow it;
/// - **broadcast**: when the method of [`BROADCAST`](Self::BROADCAST) returns true, the promise on the TLB holds for each CPU of the set,
///   as if that CPU had called [`flush`](Self::flush). It does not unwind, look anything up, or call
///   [`Mmu::on_interrupt`](crate::Mmu::on_interrupt);
/// - **root**: when [`load`](Self::load) returns, this CPU translates by the root of that call, until the next call of `load` or
///   [`unload`](Self::unload). Meanwhile, and in place of that root for a while, the kernel may load a root of its own with ASID 0:
///   one that belongs to no [`AddressSpace`](crate::AddressSpace), or that of the kernel's own
///   ([`lending`](crate::AddressSpace::lending)), whose changes every online CPU flushes. A write of the root register by the kernel
///   itself keeps the promise on walks below. If CPUs have no ASIDs, each such write is followed by a flush of everything;
/// - **walks**: when `load` or `unload` returns, every walk that this CPU's hardware began from another root has ended: it reads no
///   node of that address space any more, and sets no status bit there. So has every load and store that a translation of that root has
///   translated. The nodes and the frames are freed without a flush when the last CPU has left. A write of `CR3` waits for such walks;
///   after a write of `satp` or `TTBR0_EL1` the kernel waits for them as its CPUs require (AArch64: `isb`, then `dsb nsh`);
/// - **returns**: [`memory`](Self::memory), [`record`](Self::record), [`flush`](Self::flush),
///   [`interrupt`](Self::interrupt), [`pause`](Self::pause), [`stored`](Self::stored),
///   [`walking`](Self::walking), [`deferred`](Self::deferred), `load` and `unload` return: they do not
///   unwind, they look nothing up in an address space, and they do not call [`Mmu::on_interrupt`](crate::Mmu::on_interrupt).
///   [`cpu`](Self::cpu) and [`overdue`](Self::overdue) do not unwind either;
/// - **machine**: every CPU is of the type [`Machine`](Self::Machine) and has [`asid_bits`](Self::asid_bits) bits of ASID.
pub unsafe trait Kernel: Sync + Sized + 'static {
    /// The entry format, the geometry, and the root register: [`arch::Sv39`](crate::arch::Sv39), for example.
    type Machine: Machine;

    /// The number of pauses after which a wait for another CPU is [`overdue`](Self::overdue). The default is two to the power of 26:
    /// seconds, with a `pause` of one instruction.
    const PATIENCE: u32 = 1 << 26;

    /// How this CPU flushes the TLBs of all CPUs without their help, if the machine can:
    ///
    /// | machine | the method executes |
    /// |-|-|
    /// | AArch64 | `dsb ishst`; `tlbi ...is` in place of `tlbi ...`; `dsb ish`, `isb` |
    /// | x86-64 with FEAT_INVLPGB | `invlpgb`, `tlbsync`; and what [`flush`](Self::flush) does |
    /// | RISC-V | a `fence`; the SBI's `sbi_remote_sfence_vma_asid`, or without an ASID `sbi_remote_sfence_vma`, for the CPUs of the set; and what `flush` does |
    ///
    /// A change then interrupts no CPU. `tlbkit` calls the method in place of [`interrupt`](Self::interrupt), with the flush, the ASID as
    /// [`flush`](Self::flush) gets it, and the CPUs that may hold what the flush names: the calling one may be among them or not, and the
    /// set is empty if all of them are offline. For what no such instruction does, ending the walks of other CPUs by software, `tlbkit`
    /// keeps a word for each CPU that says whether the CPU is in such a walk. It costs each lookup and visit two stores and a fence. The
    /// rest of a visit or copy under way is waited for, as an interrupt would be. Page-table nodes that a lookup under way may be in do not
    /// go back to the kernel at once, and nobody waits: a few are kept until a later broadcast, a switch of address spaces, or
    /// [`Mmu::reclaim`](crate::Mmu::reclaim).
    ///
    /// The method returns false if it cannot do so: on a CPU without the instruction, after an error of the firmware, or where an
    /// erratum demands that each CPU executes something. `tlbkit` then interrupts the CPUs, as it does by the default, `None`; so
    /// [`interrupt`](Self::interrupt) is needed in any case.
    ///
    /// Where software loads the TLB no flush reaches another CPU, and its refill handler is in no section. There the [`Mmu`](crate::Mmu) does
    /// not compile:
    ///
    /// ```compile_fail,E0080
    /// # use tlbkit::{Asid, Broadcast, Flush, Kernel, Mmu, PhysAddr, Record, Run, arch};
    /// struct Mine;
    /// // SAFETY: it has no frames.
    /// unsafe impl Kernel for Mine {
    ///     type Machine = arch::Mips32;
    ///     const BROADCAST: Option<Broadcast<Self>> = Some(|_, _, _, _| true);
    /// #   fn take_frame(&self) -> Option<PhysAddr> { None }
    /// #   fn give_frame(&self, _: PhysAddr) {}
    /// #   fn memory(&self, _: PhysAddr) -> *mut u8 { core::ptr::null_mut() }
    /// #   fn record(&self, _: PhysAddr) -> Option<&Record> { None }
    /// #   fn release(&self, _: Run) {}
    /// #   fn flush(&self, _: &Flush, _: Option<Asid>) {}
    /// #   fn masked<R>(&self, f: impl FnOnce() -> R) -> R { f() }
    /// #   fn load(&self, _: usize) {}
    /// #   fn unload(&self) {}
    /// }
    /// static MMU: Mmu<Mine, 1> = Mmu::new(Mine);
    /// ```
    const BROADCAST: Option<Broadcast<Self>> = None;

    /// Returns the memory in which the frames and nodes of [deferred unmaps](crate::AddressSpace::unmap_deferred) wait, of one
    /// [`Mmu`](crate::Mmu) alone; or `None`, the default, if none wait: then a map need not look for them.
    ///
    /// A kernel that gives memory calls [`Mmu::flush_deferred`](crate::Mmu::flush_deferred) when it has no frames left: after the call that
    /// returned [`Error::NoMemory`](tlbkit_pagetable::Error::NoMemory), and not in [`take_frame`](Self::take_frame), where it returns
    /// [`Error::Nested`](tlbkit_pagetable::Error::Nested).
    #[inline(always)]
    fn deferred(&self) -> Option<&Deferred> {
        None
    }

    /// Returns the number of the CPU that calls this, counted from 0. Every CPU has another number: [`Mmu::online`](crate::Mmu::online)
    /// returns an error on the second CPU that has the same. A kernel for one CPU does not need this method, which is never called
    /// there.
    fn cpu(&self) -> usize {
        const { assert!(align_of::<Self>() == 0, "an `Mmu` for several CPUs needs `Kernel::cpu`") };
        0
    }

    /// Takes a frame, or returns `None` if memory is exhausted.
    ///
    /// Nodes are among the first 2<sup>31</sup> frames of memory (8 TiB of 4 KiB frames, 128 TiB of 64 KiB); pages may be anywhere. A
    /// frame beyond is given back at once, as one without a [record](Self::record) is. A new address space returns
    /// [`Error::FrameTooLarge`](crate::Error::FrameTooLarge) with such a frame; another call that needs a node returns
    /// [`Error::NoMemory`](crate::Error::NoMemory). So a kernel author's own test, whose frames are memory of a host's heap, subtracts
    /// the first frame's address from those that it returns here, and adds it in [`memory`](Self::memory).
    fn take_frame(&self) -> Option<PhysAddr>;

    /// Takes back a frame that [`take_frame`](Self::take_frame) returned: it was a page-table node, or the control block
    /// of an address space, and no CPU can reach it any more.
    fn give_frame(&self, frame: PhysAddr);

    /// Takes a frame whose bytes are all zero, if the kernel has one ready: `tlbkit` need not clear it then. The
    /// promises are those of [`take_frame`](Self::take_frame).
    #[inline]
    fn take_zeroed_frame(&self) -> Option<PhysAddr> {
        None
    }

    /// Takes back a frame whose bytes are all zero, otherwise as [`give_frame`](Self::give_frame). A kernel that keeps some of
    /// these frames for [`take_zeroed_frame`](Self::take_zeroed_frame) avoids clearing them twice.
    #[inline]
    fn give_zeroed_frame(&self, frame: PhysAddr) {
        self.give_frame(frame);
    }

    /// Returns the address at which a frame is mapped: with a direct map, its physical address plus a constant.
    fn memory(&self, frame: PhysAddr) -> *mut u8;

    /// Calls `access` with the address at which a frame is mapped, if the frame holds memory of user programs; otherwise returns
    /// `None`. [`copy_from_user`](crate::AddressSpace::copy_from_user), [`copy_to_user`](crate::AddressSpace::copy_to_user),
    /// [`Mmu::clear_frame`](crate::Mmu::clear_frame) and [`Mmu::copy_frame`](crate::Mmu::copy_frame) access frames by this method alone.
    /// By the default, which returns `None`, they fail with [`Error::NotUserMemory`](crate::Error::NotUserMemory).
    ///
    /// `frame` may be any frame, also one that the kernel does not have: [`map`](crate::AddressSpace::map) is safe and takes any
    /// number. So the method looks up what the frame is used for, and while `access` runs, the frame must not become something
    /// else. A kernel whose user memory is an array of its own need only compare addresses. One that counts the uses of its frames
    /// adds one, if the frame has a count of user memory, and takes it away after `access`: `memory.rs` in `docs/embedding.md`.
    ///
    /// It may take the locks that the methods which take and give may take, but holds none while it calls `access`. That function
    /// copies at most a frame, and does not unwind.
    fn user_memory<R>(&self, frame: PhysAddr, access: impl FnOnce(*mut u8) -> R) -> Option<R> {
        let _ = (frame, access);
        None
    }

    /// Returns the record of a frame, a cell of 32 bits: for example a field of the kernel's page structs, or an element of an
    /// array. Returns `None` for frames that must not become page-table nodes.
    ///
    /// Each change of a page writes the record of the page's node. On several CPUs a record on a cache line of its own, as in a page
    /// struct, lets threads fault beside each other: two of them are 1.6 times as fast as one (`cargo xtask bench --summary disjoint`), and
    /// with records side by side as fast as one.
    fn record(&self, frame: PhysAddr) -> Option<&Record>;

    /// Takes notice that one mapping of each of these frames is gone from its page table, and that no CPU can use that mapping any
    /// more: no TLB and no walk has it, and no load or store that it has translated is under way.
    ///
    /// The frame may be one that [`take_frame`](Self::take_frame) has never returned: that of any page which the kernel has mapped, of a
    /// device, or of the kernel's own image ([`AddressSpace::take_over`](crate::AddressSpace::take_over)). Such a frame must not become
    /// free here, unless the kernel counts its uses.
    ///
    /// A frame that a call has taken over ([`Edit::map_with`](crate::Edit::map_with), [`Edit::fill`](crate::Edit::fill),
    /// [`Edit::unshare`](crate::Edit::unshare)) comes back here, too, if the call could not map it.
    /// `run.dirty` tells whether any of the frames was written through that mapping. A kernel that counts the mappings of a frame
    /// counts one less.
    ///
    /// After the end of an address space a TLB may still hold its mappings, under a number that no CPU uses again before that TLB
    /// was flushed.
    fn release(&self, run: Run<FrameOf<Self>>);

    /// Does what [`release`](Self::release) does with each of these runs, of which there are 2 to 16, in no order. A kernel whose frames
    /// are behind a lock implements this method, and takes the lock once; the default calls `release` for each run.
    ///
    /// An unmap of many pages and the end of an address space call it, if the frames are scattered. All the runs are the kernel's, also
    /// if this method unwinds.
    fn release_all(&self, runs: &[Run<FrameOf<Self>>]) {
        runs.iter().for_each(|&run| self.release(run));
    }

    /// Takes notice that [`AddressSpace::fork`](crate::AddressSpace::fork) maps each of these frames once more, or that the caller of
    /// [`Edit::freeze`](crate::Edit::freeze) holds the frame. A kernel that counts the mappings of a frame counts one more.
    fn share(&self, run: Run<FrameOf<Self>>) {
        let _ = run;
    }

    /// Takes notice that a page no longer has this [`Mark::Payload`](crate::Mark::Payload): it was unmapped, or its address
    /// space is gone. A kernel that counts the pages with a payload (the holders of a swap slot) counts one less. This method
    /// is not called for a payload that belongs to the caller from then on, as after [`Edit::mark`](crate::Edit::mark) and
    /// [`Edit::fill`](crate::Edit::fill).
    fn release_payload(&self, payload: u64) {
        let _ = payload;
    }

    /// Takes notice that [`AddressSpace::fork`](crate::AddressSpace::fork) gives this payload to one more page.
    fn share_payload(&self, payload: u64) {
        let _ = payload;
    }

    /// Flushes the translations that `flush` names from this CPU's TLB: those of the address space `asid`, or, if `asid` is
    /// `None`, those of every address space and the global ones. [`Flush::by_address`] returns their addresses.
    ///
    /// If [`flush.links()`](Flush::links) is set, a link between page-table nodes has changed, and the CPU's caches of upper
    /// levels must be flushed too (RISC-V: `sfence.vma` without an address).
    ///
    /// A kernel marks this method `#[inline(always)]`, and its function behind it: most flushes are of one page, and where `tlbkit` calls the
    /// method the compiler knows that, so that a few instructions remain of about 60.
    ///
    /// **Errata.** Some CPUs need more than their architecture says: the same invalidation twice, or a barrier on every CPU. Its place is
    /// the end of this method. When translations are taken away, each CPU that runs the address space executes this method, and nothing is
    /// released before the last one has returned. (A CPU that has left the address space has executed [`load`](Self::load) or
    /// [`unload`](Self::unload), where the same promise holds.) A [broadcast](Self::BROADCAST) takes the place of all that: it does what
    /// they need, or returns false. `docs/embedding-aarch64.md` lists errata of AArch64's CPUs.
    ///
    /// A flush of scope [`FlushScope::Barrier`](tlbkit_addr::FlushScope::Barrier) names no translation. When this method returns,
    /// the walks of every CPU see this CPU's stores (AArch64: `dsb ishst`). Only AArch64 gets one: on RISC-V and MIPS32 a new page is of
    /// scope [`Local`](tlbkit_addr::FlushScope::Local), and its flush orders the stores, too; x86-64 needs nothing.
    fn flush(&self, flush: &Flush<'_>, asid: Option<Asid>);

    /// Interrupts these CPUs, of which the calling one may be one. The interrupt's handler on each calls
    /// [`Mmu::on_interrupt`](crate::Mmu::on_interrupt). A kernel for one CPU does not need this method, which is never called there.
    fn interrupt(&self, cpus: CpuSet) {
        const { assert!(align_of::<Self>() == 0, "an `Mmu` for several CPUs needs `Kernel::interrupt`") };
        let _ = cpus;
    }

    /// Takes notice that this CPU has waited for another one for [`PATIENCE`](Self::PATIENCE) pauses, and goes on waiting: it cannot
    /// do without the other CPU. It is called again after as many pauses more.
    ///
    /// Something is wrong: the handler of the interrupt that [`interrupt`](Self::interrupt) sends does not call
    /// [`Mmu::on_interrupt`](crate::Mmu::on_interrupt); or a CPU keeps interrupts masked, or waits inside an edit, a visit or a method of
    /// this trait for a lock whose holder waits for that CPU. So a kernel prints `what` and stops. A kernel for one CPU does not need
    /// this method, which is never called there.
    fn overdue(&self, what: Overdue) {
        const { assert!(align_of::<Self>() == 0, "an `Mmu` for several CPUs needs `Kernel::overdue`") };
        let _ = what;
    }

    /// Waits a short time while this CPU waits for another one, with interrupts masked: a pause instruction, or a call that lets
    /// a hypervisor run the other CPU. It must return by itself. After each pause this CPU serves the requests of other CPUs, so
    /// the method may acknowledge an interrupt from another CPU that ended the pause. Where each half of the addresses has an `Mmu` of its
    /// own, this method of either calls `on_interrupt` of the other one: see [`crate::arch`], "AArch64: two halves".
    fn pause(&self) {
        core::hint::spin_loop();
    }

    /// Runs `f` with this CPU's interrupts masked, and restores the previous state.
    fn masked<R>(&self, f: impl FnOnce() -> R) -> R;

    /// Takes notice of each store to a page table, with physical addresses: called after the store, on the CPU that made it. A
    /// kernel that records its stores (`docs/witness.md`) overrides this method; the default is empty, and costs no instruction.
    #[inline(always)]
    fn stored(&self, store: Store) {
        let _ = store;
    }

    /// Takes notice that this CPU begins or ends a walk of a page table by software, for which changes that are
    /// [broadcast](Self::BROADCAST), or their nodes, wait: called while such changes see the walk. A kernel that records its walks
    /// (`docs/witness.md`) overrides this method; the default is empty, and costs no instruction. Without `BROADCAST` it is never called.
    #[inline(always)]
    fn walking(&self, walk: Walking) {
        let _ = walk;
    }

    /// Makes this CPU translate by `root`, a value of [`Machine::root`]: writes `satp`, `CR3` or `TTBR0_EL1`; or `TTBR1_EL1`, if the
    /// [`Machine`](Self::Machine) is the upper half of AArch64. It need not flush anything. A kernel that returns to user mode
    /// through a trampoline keeps the value for the trampoline.
    ///
    /// Each [`activate`](crate::AddressSpace::activate) calls it, also that of the address space which the CPU runs already, and so does
    /// [`Mmu::idle`](crate::Mmu::idle) with the root of the kernel's own address space.
    fn load(&self, root: usize);

    /// Makes this CPU translate by a root of the kernel's own: one that maps what the CPU needs while it runs no address space. A CPU
    /// that goes [offline](crate::Mmu::offline) does that, and a CPU that [idles](crate::Mmu::idle) before it has first run an address
    /// space that shares the [kernel's own](crate::AddressSpace::lending) (or if there is none). After that an idle CPU runs the
    /// kernel's own address space, whose root `load` gets.
    ///
    /// On AArch64 and MIPS32 a switch calls it, too, between address spaces that share different ones of the kernel's own, and where there
    /// are no ASIDs, or fewer than CPUs. On RISC-V and x86-64 no switch does: a kernel whose CPUs never go offline, and idle only after the
    /// first `activate` of an address space that shares the kernel's own, may have this method panic, if a panic does not unwind.
    ///
    /// Where two translations of one address in the TLB are an error (AArch64, MIPS32), that root maps nothing that address spaces
    /// map otherwise: with it loaded, `tlbkit` flushes the translations of one kernel half before it loads a root with another.
    fn unload(&self);

    /// Returns how many bits of ASID every CPU has, at most [`Machine::ASID_BITS`]; 0 if there is none. The default is the most
    /// that the architecture allows. RISC-V and AArch64 let a CPU have fewer: measure it at boot, because with a value that is too
    /// large two address spaces use each other's translations. `cpu.rs` of `docs/embedding.md` has the code for each machine.
    ///
    /// Each switch of address spaces calls it, and each call returns the same value: one that the kernel has kept.
    fn asid_bits(&self) -> u32 {
        Self::Machine::ASID_BITS
    }
}
