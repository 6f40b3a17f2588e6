//! What only the kernel can do, said once.

use tlbkit_addr::{Asid, CpuSet, Flush, PhysAddr};
use tlbkit_pagetable::Run;
use tlbkit_pagetable::nodes::{Record, Store};

use crate::Machine;

/// A kernel, as [`Mmu`](crate::Mmu) needs it: frames, this CPU's TLB, interrupts to the other CPUs.
///
/// Every method may be called on any CPU, with interrupts masked ([`masked`](Self::masked)): a lock that one of them
/// takes is one that this kernel holds with interrupts masked everywhere. None may call back into the
/// [`Mmu`](crate::Mmu) or an [`AddressSpace`](crate::AddressSpace) of it: such a call is refused with
/// [`Error::Busy`](crate::Error::Busy).
///
/// # Safety
///
/// An implementation promises that
///
/// - **frames**: [`take_frame`](Self::take_frame) returns 4 KiB frames that have no other owner until
///   [`give_frame`](Self::give_frame) gets them back, and not the one at 0. [`memory`](Self::memory) of such a frame is
///   aligned to 4 KiB, and stays mapped for reading and writing on every CPU, in every address space, until then;
/// - **zeroed frames**: so does [`take_zeroed_frame`](Self::take_zeroed_frame), and every byte of its frames is zero;
/// - **records**: [`record`](Self::record) returns a cell of its own for each frame, the same at each call, that no
///   other code uses while [`take_frame`](Self::take_frame) has given the frame away;
/// - **one**: a CPU uses one [`Mmu`](crate::Mmu): two would give the same ASID to two address spaces;
/// - **CPU**: [`cpu`](Self::cpu) names the CPU that calls it, and is below the `CPUS` of the `Mmu`. While a closure runs in [`masked`](Self::masked), it stays
///   on its CPU, and that CPU takes no interrupt whose handler uses the [`Mmu`](crate::Mmu) or edits an address space;
/// - **TLB**: when [`flush`](Self::flush) returns, this CPU's TLB and walk caches hold nothing that the flush names,
///   and every page-table walk that this CPU began before has ended. Stores to page tables that precede the call are
///   visible to the walks that follow it;
/// - **root**: when [`load`](Self::load) returns, this CPU translates by that root, by a root that a later call
///   of `load` or [`unload`](Self::unload) names, or by one that belongs to no [`AddressSpace`](crate::AddressSpace),
///   and has ASID 0;
/// - **returns**: [`memory`](Self::memory), [`record`](Self::record), [`flush`](Self::flush),
///   [`interrupt`](Self::interrupt), [`pause`](Self::pause), [`stored`](Self::stored), `load` and `unload` return: they do not unwind, and they look
///   nothing up in an address space;
/// - **machine**: every CPU is a [`Machine`](Self::Machine), with [`asid_bits`](Self::asid_bits) bits of ASID.
pub unsafe trait Kernel: Sync + Sized + 'static {
    /// The entry format, the geometry, and the root register: [`arch::Sv39`](crate::arch::Sv39), for example.
    type Machine: Machine;

    /// Returns the number of the CPU that calls this, counted from 0.
    fn cpu(&self) -> usize;

    /// Takes a frame of 4 KiB, or returns `None` if memory is exhausted.
    fn take_frame(&self) -> Option<PhysAddr>;

    /// Takes back a frame that [`take_frame`](Self::take_frame) returned: it was a page-table node, and no CPU can reach
    /// it any more.
    fn give_frame(&self, frame: PhysAddr);

    /// Takes a frame of 4 KiB all of whose bytes are zero, if there is one at hand: it need not be cleared then. The promises
    /// are those of [`take_frame`](Self::take_frame).
    #[inline]
    fn take_zeroed_frame(&self) -> Option<PhysAddr> {
        None
    }

    /// Takes back a frame as [`give_frame`](Self::give_frame) does, all of whose bytes are zero. A kernel that keeps a few of
    /// them apart for [`take_zeroed_frame`](Self::take_zeroed_frame) saves clearing them twice.
    #[inline]
    fn give_zeroed_frame(&self, frame: PhysAddr) {
        self.give_frame(frame);
    }

    /// Returns where the memory of a frame is mapped: with a direct map, its address plus a constant.
    fn memory(&self, frame: PhysAddr) -> *mut u8;

    /// Returns the record of a frame, a cell of 32 bits, as a field of the kernel's page structs or an array have it; `None`
    /// for frames that are not to be page-table nodes.
    fn record(&self, frame: PhysAddr) -> Option<&Record>;

    /// One mapping of each of these frames is gone from every page table and every TLB. `run.dirty` tells whether any
    /// of them was written through it. A kernel that counts the mappings of a frame counts one less.
    fn release(&self, run: Run);

    /// [`AddressSpace::fork`](crate::AddressSpace::fork) has mapped each of these frames once more. A kernel that
    /// counts the mappings of a frame counts one more.
    fn share(&self, run: Run) {
        let _ = run;
    }

    /// A page had this [`Mark::Payload`](crate::Mark::Payload) and has it no more: it was unmapped, or its address space is
    /// gone. A kernel that counts the pages with a payload (the holders of a swap slot) counts one less. What a call
    /// returns to its caller, as [`Edit::mark`](crate::Edit::mark) and [`Edit::fill`](crate::Edit::fill) do, is not told
    /// here.
    fn release_payload(&self, payload: u64) {
        let _ = payload;
    }

    /// [`AddressSpace::fork`](crate::AddressSpace::fork) gives this payload to one more page.
    fn share_payload(&self, payload: u64) {
        let _ = payload;
    }

    /// Forgets what `flush` names on this CPU: of the address space `asid`, or of every one and of global translations
    /// if that is `None`.
    ///
    /// If [`flush.links()`](Flush::links) is set, a link between page-table nodes has changed, and what the CPU caches
    /// of upper levels must go too (RISC-V: `sfence.vma` without an address).
    fn flush(&self, flush: &Flush, asid: Option<Asid>);

    /// Interrupts these CPUs. Each calls [`Mmu::on_interrupt`](crate::Mmu::on_interrupt). Never called with one CPU.
    fn interrupt(&self, cpus: CpuSet) {
        let _ = cpus;
    }

    /// Lets time pass while this CPU waits for another one, with interrupts masked: a pause instruction, or whatever lets
    /// a hypervisor run the other CPU meanwhile. It returns by itself, after a while. After each pause this CPU replies to what
    /// others have asked of it, so an interrupt of theirs that ends a pause can be taken back here.
    fn pause(&self) {
        core::hint::spin_loop();
    }

    /// Runs `f` with this CPU's interrupts masked, and restores what was before.
    fn masked<R>(&self, f: impl FnOnce() -> R) -> R;

    /// Hears of each store to a page table, after it and on the CPU that made it, with physical addresses. A kernel that
    /// records what it does (`docs/witness.md`) overrides this; the default is empty, and costs no instruction.
    #[inline(always)]
    fn stored(&self, store: Store) {
        let _ = store;
    }

    /// Makes this CPU translate by `root`, a value that [`Machine::root`] made: writes `satp`, `CR3`, `TTBR0_EL1`. It
    /// flushes nothing, where the register allows it. A kernel that returns to user mode by a trampoline keeps the
    /// value for that.
    fn load(&self, root: usize);

    /// Makes this CPU translate by a root of the kernel's own.
    fn unload(&self);

    /// Returns how many bits of ASID the CPUs have, at most [`Machine::ASID_BITS`]; 0 if there is none.
    fn asid_bits(&self) -> u32 {
        Self::Machine::ASID_BITS
    }
}
