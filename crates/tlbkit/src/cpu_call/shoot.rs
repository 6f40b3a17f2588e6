//! The flushes and shootdowns of a call, and the release of what they were for.
//!
//! The edit changes the entries before it calls [`System::run`](tlbkit_shootdown::System::run), and gives the nodes and frames that
//! those changes uncovered back when that has returned.

use tlbkit_addr::{Asid, Flush, FlushScope, Pages, Vpn};
use tlbkit_pagetable::format::Format as _;
use tlbkit_pagetable::nodes::Store;
use tlbkit_pagetable::{Pending, Run};
use tlbkit_shootdown::{Algorithm, Edit, LocalCpu, LowRights, OpId, Outcome, Plan};

use super::{CpuCall, Wait};
use crate::asids::Held;
use crate::block::Block;
use crate::counted::typed;
use crate::cpu_set::{SharedSpace, WORDS};
use crate::runs::UncoveredRuns;
use crate::{CpuSet, Kernel, Machine, Mmu, Overdue, visit};

/// How a flush has been executed.
enum Executed {
    /// By each CPU that may hold the translations. It has left its walks.
    Everywhere,
    /// By a broadcast: a CPU may still be in a walk by software, or use what it has found.
    Broadcast,
    /// The shootdown system has refused the operation.
    Refused,
}

/// Returns the plan with PTE-first: entries change, then TLBs are flushed (Tzou 3.2.1). It suits every machine whose hardware
/// writes no status bit over a change; any other machine does not compile.
#[expect(clippy::panic, reason = "called only in a constant, where a panic is a compile-time error")]
const fn plan<M: Machine>() -> Plan {
    match Plan::new(Algorithm::PteFirst, &M::HARDWARE, LowRights::NeverWriteBack) {
        Ok(plan) => plan,
        Err(_) => panic!("this hardware writes status bits over a change of the entry"),
    }
}

impl<K: Kernel, const CPUS: usize> CpuCall<K, CPUS> {
    pub(super) const PLAN: Plan = plan::<K::Machine>();

    /// Whether walks see this CPU's stores only after a barrier of this CPU (AArch64). A CPU that flushes for itself before it
    /// asks others executes the barrier there. A CPU that does not run the address space executes it alone: a CPU that waits
    /// may find the request, and flush, before it is interrupted.
    const BARRIER: bool = matches!(<K::Machine as Machine>::Format::APPEARS, FlushScope::Barrier);

    /// Flushes this CPU's TLB, unless no CPU has ever run the address space.
    #[inline(always)]
    pub(crate) fn flush(&self, space: &Block<K, CPUS>, flush: &Flush) {
        if let Some(asid) = under(space.held()) {
            self.mmu.kernel().flush(&crate::Flush::counted::<K::Machine>(flush), tag(asid));
        }
    }

    /// Returns the list of the frames that the changes of this call have uncovered. It is the CPU's: at the beginning and at the end of a
    /// call, and of an edit, it is empty.
    #[inline(always)]
    pub(crate) fn uncovered(&mut self) -> &mut UncoveredRuns {
        &mut self.own.uncovered
    }

    /// Gives the frames in the list, which no CPU can reach any more, back to the kernel.
    #[inline]
    pub(crate) fn release(&mut self) {
        self.own.uncovered.release(self.mmu.kernel());
    }

    /// Gives a frame that no CPU can reach any more back to the kernel.
    #[inline(always)]
    pub(crate) fn release_one(&self, run: Run) {
        self.mmu.kernel().release(typed::<K, _>(run));
    }

    /// Executes `flush` on every CPU that may hold the translations that it names.
    #[inline(always)]
    pub(crate) fn flush_everywhere(&mut self, space: &Block<K, CPUS>, flush: &Flush) {
        if self.is_alone(space) {
            self.flush(space, flush);
        } else {
            self.shoot(space, flush);
        }
    }

    /// Tells whether no other CPU may hold a translation of the address space or walk its table. A CPU that joins later sees the
    /// table as it is now.
    #[inline(always)]
    pub(crate) fn is_alone(&self, space: &Block<K, CPUS>) -> bool {
        self.is_alone_after(space, false)
    }

    /// Does what [`is_alone`](Self::is_alone) does, after a change that may have been
    /// [in order](tlbkit_pagetable::mpt::Stale::in_order).
    #[inline(always)]
    pub(crate) fn is_alone_after(&self, space: &Block<K, CPUS>, in_order: bool) -> bool {
        if CPUS == 1 {
            return true;
        }
        let alone = visit::is_alone(space.cpus(), self.cpu, in_order);
        self.mmu.kernel().stored(Store::Fence);
        alone
    }

    /// Executes the flush of `pending` on every CPU that may hold the translations that it names, then gives the nodes of `pending` and
    /// the frames in the list back.
    ///
    /// If the system refuses the operation, nothing is given back: the frames are lost, and `pending` stays as it is. If the caller drops
    /// it, the next writer of the table takes up its nodes and a flush of everything. [`checked`](Self::checked) returns an error then.
    pub(crate) fn complete(&mut self, space: &Block<K, CPUS>, pending: Pending<'_, 'static>) {
        match self.execute(space, pending.flush()) {
            Executed::Everywhere => {
                // If the release unwinds, the nodes stay in the obligation.
                self.release();
                // SAFETY: every CPU that might have walked the nodes has left its walk and flushed: all CPUs have replied, or no other
                // CPU may hold a translation and this CPU has flushed.
                unsafe { pending.complete() };
            }
            Executed::Broadcast => self.after_broadcast(space, Some(pending)),
            Executed::Refused => self.uncovered().lose(),
        }
    }

    /// Executes `flush` on every CPU that may hold the translations that it names.
    pub(crate) fn shoot(&mut self, space: &Block<K, CPUS>, flush: &Flush) {
        if let Executed::Broadcast = self.execute(space, flush) {
            self.after_broadcast(space, None);
        }
    }

    #[inline(always)]
    fn execute(&mut self, space: &Block<K, CPUS>, flush: &Flush) -> Executed {
        if self.is_alone(space) {
            self.flush(space, flush);
            return Executed::Everywhere;
        }
        self.execute_everywhere(space, flush)
    }

    /// Executes a flush when other CPUs may have to.
    #[inline(never)]
    fn execute_everywhere(&mut self, space: &Block<K, CPUS>, flush: &Flush) -> Executed {
        if self.broadcast(space, flush) {
            return Executed::Broadcast;
        }
        if Self::BARRIER && !space.cpus().running.load().contains(self.cpu) {
            let mut barrier = Flush::none();
            barrier.add(FlushScope::Barrier, Pages::one(Vpn::new(0)));
            self.flush(space, &barrier);
        }
        let asid = under(space.held()).unwrap_or_default();
        if self.ask_all(space.cpus(), asid, flush) { Executed::Everywhere } else { Executed::Refused }
    }

    /// Has each of `cpus` execute a flush, and waits until all have. Returns false if the shootdown system has refused the operation.
    pub(super) fn ask_all(&mut self, cpus: &SharedSpace, asid: Asid, flush: &Flush) -> bool {
        let (mmu, mut made) = (self.mmu, PriorEdit { cpus, asid, flush });
        let done = self.own.handle.as_mut().is_some_and(|handle| {
            mmu.shootdowns().run(handle, &mut ThisCpu::new(mmu), Self::PLAN, &mut made).is_ok()
        });
        self.refused |= !done;
        done
    }
}

/// Returns the ASID under which TLBs may hold translations, if they may.
#[inline]
pub(crate) fn under(held: Held) -> Option<Asid> {
    match held {
        Held::Never => None,
        Held::Under(asid) => Some(asid),
    }
}

/// Returns the ASID that a flush names, or `None` for 0: that is the number of the kernel's own address space, whose
/// translations TLBs may hold under any ASID.
pub(super) fn tag(asid: Asid) -> Option<Asid> {
    (asid != Asid::default()).then_some(asid)
}

/// Returns a flush of everything.
pub(crate) const fn everything<K: Kernel>() -> crate::Flush<'static> {
    const EVERYTHING: &Flush = &Flush::everything();
    crate::Flush::counted::<K::Machine>(EVERYTHING)
}

/// Changes that have been made already.
struct PriorEdit<'a> {
    cpus: &'a SharedSpace,
    asid: Asid,
    flush: &'a Flush,
}

impl Edit<WORDS> for PriorEdit<'_> {
    type Payload = ();

    fn exclude(&mut self) -> bool {
        true
    }

    fn release(&mut self) {}

    fn update(&mut self) {}

    fn space(&self) -> &SharedSpace {
        self.cpus
    }

    fn asid(&self) -> Asid {
        self.asid
    }

    fn flush(&self) -> &Flush {
        self.flush
    }
}

/// This CPU's functions, as the shootdown system calls them.
pub(super) struct ThisCpu<K: Kernel, const CPUS: usize> {
    mmu: &'static Mmu<K, CPUS>,
    /// The CPUs that were interrupted.
    asked: CpuSet,
    wait: Wait,
}

impl<K: Kernel, const CPUS: usize> ThisCpu<K, CPUS> {
    pub(super) const fn new(mmu: &'static Mmu<K, CPUS>) -> Self {
        Self { mmu, asked: CpuSet::empty(), wait: Wait::new() }
    }

    #[cold]
    fn report(&self) {
        // A CPU that has taken its requests is replying to them.
        let silent: CpuSet = self.asked.iter().filter(|&cpu| self.mmu.shootdowns().is_asked(cpu)).collect();
        let silent = if silent.is_empty() { self.asked } else { silent };
        Mmu::<K, CPUS>::OVERDUE(self.mmu.kernel(), Overdue::Replies(silent));
    }
}

impl<K: Kernel, const CPUS: usize> LocalCpu<(), WORDS> for ThisCpu<K, CPUS> {
    fn flush(&mut self, space: Option<Asid>, what: &Flush, _drain: bool) {
        self.mmu.kernel().flush(&crate::Flush::counted::<K::Machine>(what), space.and_then(tag));
    }

    fn interrupt(&mut self, cpus: CpuSet) {
        self.asked = self.asked.union(cpus);
        Mmu::<K, CPUS>::INTERRUPT(self.mmu.kernel(), cpus);
    }

    fn pause(&mut self) {
        self.mmu.kernel().pause();
        if self.wait.is_overdue::<K>() {
            self.report();
        }
    }

    fn complete(&mut self, _op: OpId, (): (), _outcome: Outcome) {}
}
