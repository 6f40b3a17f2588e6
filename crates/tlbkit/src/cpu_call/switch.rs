//! The switch of address spaces on this CPU: the ASID, the root register, the flushes in between, and the sets of CPUs.

use tlbkit_addr::Asid;
use tlbkit_pagetable::format::Format as _;
use tlbkit_shootdown::SwitchKind;

use super::CpuCall;
use super::shoot::{ThisCpu, everything, tag, under};
use crate::asids::Held;
use crate::block::{Block, Handle};
use crate::cpu_set::SharedSpace;
use crate::{Kernel, Machine};

impl<K: Kernel, const CPUS: usize> CpuCall<K, CPUS> {
    /// Whether two translations of one address in a TLB are an error (AArch64: a TLB conflict; MIPS: a machine check), and not only
    /// a choice between them.
    const BREAKS: bool =
        <K::Machine as Machine>::Format::BREAK || <K::Machine as Machine>::Format::BREAK_FRAME;

    /// Makes this CPU leave its address space and take part in no more shootdowns.
    pub(crate) fn go_offline(&mut self) {
        self.switch_to(None);
        if let Some(half) = self.own.half.take() {
            self.mmu.kernel().flush(&everything::<K>(), None);
            // The drop of the last handle ends the kernel's own address space and calls `Kernel::release`, which may look up a
            // page. This CPU is still online here, so other CPUs wait for it before they free the nodes of that walk.
            drop(half);
        }
        self.switch(SwitchKind::Offline, self.mmu.online_cpus(), Asid::default());
        if CPUS == 1 {
            self.mmu.kernel().flush(&everything::<K>(), None);
        }
        self.own.set_handle(None);
    }

    /// Tells the shootdown system that this CPU starts or stops running an address space.
    pub(super) fn switch(&mut self, change: SwitchKind, cpus: &SharedSpace, asid: Asid) {
        // With one CPU there is no handle. The compiler learns that here, and leaves the code of the switch out.
        if CPUS == 1 {
            return;
        }
        let Some(handle) = &mut self.own.handle else { return };
        // The switch succeeds: the handle is this system's, and a CPU that goes offline runs no address space. Otherwise
        // `refused` reports the error.
        let done = self.mmu.shootdowns().switch(handle, &mut ThisCpu::new(self.mmu), change, cpus, asid);
        self.refused |= done.is_err();
    }

    /// Makes this CPU run no process: it runs the kernel's own address space, if it has run an address space that shares it.
    /// Otherwise it translates by a root of the kernel's.
    pub(crate) fn idle(&mut self) {
        let half = self.own.half.clone();
        self.switch_to(half.as_ref());
    }

    /// Makes this CPU run an address space that it runs already. Returns false if that takes more than to load the root.
    ///
    /// The CPU is in the sets of the address space, and has its number: a new generation of numbers leaves that to the address space.
    /// What the CPU has to flush then, it flushes before it runs another one. The change of another CPU asks this one to flush, so no
    /// mark asks for it.
    #[inline(always)]
    pub(crate) fn load_again(&mut self) -> bool {
        let Some(root) = self.own.root else { return false };
        self.mmu.kernel().load(root);
        self.mmu.collect();
        true
    }

    /// Makes this CPU run an address space, or none.
    pub(crate) fn switch_to(&mut self, space: Option<&Handle<K, CPUS>>) {
        let (mmu, kernel) = (self.mmu, self.mmu.kernel());
        // A call below may unwind, or be refused.
        let mut root = None;
        self.own.root = None;
        let asids = mmu.asids();
        let half = space.and_then(Handle::half);
        let bits = kernel.asid_bits().min(K::Machine::ASID_BITS);
        match space {
            Some(space) => {
                let is_new = self.is_new_to(space);
                let given = asids.run(&space.number, self.cpu, bits);
                self.switch(SwitchKind::In, &space.cpus, given.asid);
                if self.refused {
                    // No other CPU would ask this CPU to flush, so it does not switch.
                    return;
                }
                let numbered = given.asid != Asid::default();
                if given.flush && numbered {
                    // The flush comes before the CPU uses the new ASID: the TLB may hold links under that ASID from an earlier
                    // generation, whose nodes may have other owners now. The address space that this CPU leaves has a reserved
                    // ASID.
                    kernel.flush(&everything::<K>(), None);
                } else if is_new {
                    // Orders the stores that built the table before the walks from the new root.
                    kernel.flush(&everything::<K>(), tag(given.asid));
                }
                let is_half = |before: &Handle<K, CPUS>| half.is_some_and(|half| half.is(before));
                // Whether the TLB may hold translations that this address space must not use although it has an ASID of its own:
                // the machine has no ASIDs, or the TLB holds global translations of another kernel half.
                let mixes = (given.flush && !numbered) || !self.own.half.as_ref().is_none_or(is_half);
                if mixes && Self::BREAKS {
                    // The old translations must be gone before a walk from the new root loads others beside them, and before the
                    // flush the CPU must walk from the old root no more.
                    kernel.unload();
                    kernel.flush(&everything::<K>(), None);
                }
                let loaded = K::Machine::root(space.root(), given.asid);
                kernel.load(loaded);
                root = numbered.then_some(loaded);
                if mixes && !Self::BREAKS {
                    kernel.flush(&everything::<K>(), None);
                }
            }
            None => {
                let mixes = asids.idle(self.cpu, bits);
                kernel.unload();
                if mixes {
                    kernel.flush(&everything::<K>(), None);
                }
            }
        }
        // The CPU now translates by the new root. The state records that before a call of the kernel that may unwind, such as the
        // end of an address space.
        let before = core::mem::replace(&mut self.own.runs, space.cloned());
        self.own.root = root;
        // The TLB holds no translation of the old kernel half any more, so its handle may be dropped.
        let _other = space.map(|_| core::mem::replace(&mut self.own.half, half.cloned()));
        // The CPU no longer walks the table of the address space that it leaves.
        if let Some(before) = before
            && !space.is_some_and(|space| space.is(&before))
        {
            self.switch(SwitchKind::Out, &before.cpus, under(before.number.held()).unwrap_or_default());
        }
        mmu.collect();
    }

    /// Tells whether this CPU has never run the address space. If so, it must flush before it runs the address space: a write of
    /// the root register does not order earlier stores before later walks (RISC-V: `satp`; AArch64 needs a barrier), but a flush
    /// does. The CPUs that have run the kernel's own address space are in its own set, although every online CPU flushes its
    /// changes. With one CPU the kernel's own address space is [flushed when it is new](crate::AddressSpace::lending).
    fn is_new_to(&self, space: &Block<K, CPUS>) -> bool {
        if CPUS == 1 { space.held() == Held::Never } else { !space.cpus.members.load().contains(self.cpu) }
    }
}
