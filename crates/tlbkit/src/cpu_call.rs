//! A call under way on this CPU: its flushes, its shootdowns, and the switch of address spaces.
//!
//! `docs/embedding.md`, section 2, lists the steps from a change to the release of its frames. The edit changes the entries
//! before it calls [`System::run`]: [`PriorEdit::update`] only returns the nodes and frames that those changes uncovered.

use core::fmt;

use heapless::Vec;
use tlbkit_addr::{Asid, CpuSet, Flush, FlushScope, Pages, Vpn};
use tlbkit_pagetable::format::Format as _;
use tlbkit_pagetable::nodes::Store;
use tlbkit_pagetable::{Carried, Error, Retired, Run, Turn};
use tlbkit_shootdown::{
    Algorithm, Edit, LocalCpu, LowRights, OpId, Outcome, Plan, SharedSpace, SwitchKind, Synchronous, System,
};

use crate::asids::Held;
use crate::block::{Block, Handle};
use crate::counted::typed;
use crate::cpu::{Cpu, Entered, QUEUE, Retried};
use crate::fault::Report;
use crate::settle::flush_of_fault;
use crate::storage::{Table, turn};
use crate::{Access, Kernel, Machine, Mmu, Overdue, Reason, visit};

/// The number of runs of frames that can wait for one shootdown.
pub(crate) const RUNS: usize = 16;

/// The nodes and frames that changes uncovered. No code may use them again before every TLB has flushed their translations.
#[derive(Debug)]
pub(crate) struct Uncovered {
    nodes: Carried<'static>,
    runs: UncoveredRuns,
}

/// Runs of frames that wait for a shootdown.
pub(crate) type UncoveredRuns = Vec<Run, RUNS, u8>;

/// The shootdown system. Every operation is synchronous: the initiator waits until all CPUs have replied.
pub(crate) type Shootdowns<const CPUS: usize> =
    System<Option<Uncovered>, Synchronous<Option<Uncovered>>, CPUS, QUEUE>;

/// A call under way on this CPU, with interrupts masked. A CPU has at most one.
pub(crate) struct CpuCall<K: Kernel, const CPUS: usize> {
    mmu: &'static Mmu<K, CPUS>,
    cpu: usize,
    own: Entered<'static, K, CPUS>,
    /// Whether the shootdown system has refused an operation, so that its flush has not taken place.
    refused: bool,
}

/// The reason why no call can begin: one byte, which stays in a register.
pub(crate) enum NotReady {
    /// The CPU is inside another call.
    Nested,
    /// A CPU with this number is online already.
    Online,
    /// The shootdown system refuses the CPU.
    Unflushed,
}

impl NotReady {
    pub(crate) const fn error(self) -> Error {
        match self {
            Self::Nested => Error::Nested,
            Self::Online => Error::Online,
            Self::Unflushed => Error::Unflushed,
        }
    }
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
    const PLAN: Plan = plan::<K::Machine>();

    /// Whether walks see this CPU's stores only after a barrier of this CPU (AArch64). A CPU that flushes for itself before it
    /// asks others executes the barrier there. A CPU that does not run the address space executes it alone: a CPU that waits
    /// may find the request, and flush, before it is interrupted.
    const BARRIER: bool = matches!(<K::Machine as Machine>::Format::APPEARS, FlushScope::Barrier);

    /// Whether two translations of one address in a TLB are an error (AArch64: a TLB conflict; MIPS: a machine check), and not only
    /// a choice between them.
    const BREAKS: bool =
        <K::Machine as Machine>::Format::BREAK || <K::Machine as Machine>::Format::BREAK_FRAME;

    /// Begins a call on this CPU, whose interrupts are masked, and brings the CPU online.
    ///
    /// # Errors
    ///
    /// [`Error::Nested`] if the CPU is inside another call.
    #[inline(always)]
    pub(crate) fn begin(mmu: &'static Mmu<K, CPUS>) -> Result<Self, Error> {
        loop {
            match Self::if_online(mmu) {
                Some(call) => return Ok(call),
                None => Self::prepare(mmu, &mut Wait::new()).map_err(NotReady::error)?,
            }
        }
    }

    /// Begins a call on this CPU, as [`begin`](Self::begin) does, and takes the right to write the table of `space`, which is one
    /// of `mmu`. Returns `None` if the CPU would have to wait: see [`ready`](Self::ready).
    #[inline(always)]
    pub(crate) fn in_turn<'s>(
        mmu: &'static Mmu<K, CPUS>,
        space: &'s Block<K, CPUS>,
    ) -> Option<(Self, Turn<'s, 'static, Table<K>>)> {
        let call = Self::if_online(mmu)?;
        let turn = turn::<K, CPUS>(&space.table)?;
        Some((call, turn))
    }

    /// Waits after a call could not begin on this CPU, whose interrupts need not be masked: brings the CPU online, then serves
    /// shootdowns until no CPU writes the table of `space`, which is one of `mmu`. It is a separate function, so that the call that
    /// is tried afterwards need not save registers for it.
    ///
    /// # Errors
    ///
    /// [`NotReady::Nested`] if the CPU is inside another call.
    #[inline(always)]
    pub(crate) fn ready(mmu: &'static Mmu<K, CPUS>, space: &Block<K, CPUS>) -> Result<(), NotReady> {
        // With one CPU there is no other CPU to wait for.
        if CPUS == 1 { Err(NotReady::Nested) } else { Self::ready_more(mmu, space) }
    }

    #[cold]
    #[inline(never)]
    fn ready_more(mmu: &'static Mmu<K, CPUS>, space: &Block<K, CPUS>) -> Result<(), NotReady> {
        let mut wait = Wait::new();
        // Interrupts are unmasked now and then.
        let mut step = || {
            mmu.kernel().masked(|| {
                Self::prepare(mmu, &mut wait)?;
                Ok(turn::<K, CPUS>(&space.table).is_some())
            })
        };
        while !step()? {}
        Ok(())
    }

    /// Prepares a call that could not begin: brings this CPU online, or, if it is online already, serves shootdowns. It is a
    /// separate function, so that the call that begins afterwards keeps its values in registers.
    #[inline(always)]
    fn prepare(mmu: &'static Mmu<K, CPUS>, wait: &mut Wait) -> Result<(), NotReady> {
        // With one CPU there is no other CPU to wait for.
        if CPUS == 1 { Err(NotReady::Nested) } else { Self::prepare_more(mmu, wait) }
    }

    #[cold]
    #[inline(never)]
    fn prepare_more(mmu: &'static Mmu<K, CPUS>, wait: &mut Wait) -> Result<(), NotReady> {
        let mut call = Self::enter(mmu).map_err(|_| NotReady::Nested)?;
        if call.own.handle.is_some() {
            call.wait(wait);
            return Ok(());
        }
        call.go_online()
    }

    /// Brings this CPU online, which no CPU of this number is.
    ///
    /// # Errors
    ///
    /// Those of [`Mmu::online`].
    pub(crate) fn first(mmu: &'static Mmu<K, CPUS>) -> Result<(), NotReady> {
        let mut call = Self::enter(mmu).map_err(|_| NotReady::Nested)?;
        if CPUS == 1 {
            return Ok(());
        }
        if call.own.handle.is_some() { Err(NotReady::Online) } else { call.go_online() }
    }

    /// Gives this CPU a handle, and makes it flush the changes of the kernel's own address space from now on.
    fn go_online(&mut self) -> Result<(), NotReady> {
        let mmu = self.mmu;
        let handle = mmu.shootdowns().attach(self.cpu).map_err(|_| NotReady::Online)?;
        self.own.set_handle(Some(handle));
        self.switch(SwitchKind::In, mmu.online_cpus(), Asid::default());
        // Orders the changes of the kernel's own address space, which this CPU did not flush while it was offline, before the
        // walks of this CPU.
        mmu.kernel().flush(&everything::<K>(), None);
        if self.refused { Err(NotReady::Unflushed) } else { Ok(()) }
    }

    /// Begins a call on this CPU. A CPU that is offline stays offline.
    ///
    /// # Errors
    ///
    /// [`Error::Nested`] if the CPU is inside another call.
    #[inline(always)]
    pub(crate) fn enter(mmu: &'static Mmu<K, CPUS>) -> Result<Self, Error> {
        Self::enter_by(mmu, Cpu::enter).ok_or(Error::Nested)
    }

    /// Begins a call on this CPU, unless the CPU is inside another call or not online yet.
    #[inline(always)]
    pub(crate) fn if_online(mmu: &'static Mmu<K, CPUS>) -> Option<Self> {
        Self::enter_by(mmu, Cpu::enter_online)
    }

    #[inline(always)]
    fn enter_by(
        mmu: &'static Mmu<K, CPUS>,
        enter: impl FnOnce(&'static Cpu<K, CPUS>) -> Option<Entered<'static, K, CPUS>>,
    ) -> Option<Self> {
        let cpu = mmu.this_cpu();
        let own = enter(mmu.cpu(cpu)?)?;
        Some(Self { mmu, cpu, own, refused: false })
    }

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
    fn switch(&mut self, change: SwitchKind, cpus: &SharedSpace, asid: Asid) {
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

    /// Replies to the requests of other CPUs.
    #[cold]
    pub(crate) fn serve(&mut self) {
        if CPUS == 1 || !self.mmu.shootdowns().is_asked(self.cpu) {
            return;
        }
        self.own.forget_retried();
        if let Some(handle) = &mut self.own.handle {
            // The poll fails only with the handle of another system, which does not exist here.
            let _ = self.mmu.shootdowns().poll(handle, &mut ThisCpu::new(self.mmu));
        }
    }

    /// Pauses while another CPU edits an address space, and serves shootdowns: that CPU may be waiting for a reply of this one.
    #[cold]
    fn wait(&mut self, wait: &mut Wait) {
        self.own.forget_retried();
        self.mmu.kernel().pause();
        self.serve();
        if wait.is_overdue::<K>() {
            Mmu::<K, CPUS>::OVERDUE(self.mmu.kernel(), Overdue::Edit);
        }
    }

    /// Waits for the right to write the table of `space` while another CPU has it.
    #[cold]
    pub(crate) fn wait_for<'s>(&mut self, space: &'s Block<K, CPUS>) -> Turn<'s, 'static, Table<K>> {
        let mut wait = Wait::new();
        loop {
            self.wait(&mut wait);
            if let Some(turn) = turn::<K, CPUS>(&space.table) {
                return turn;
            }
        }
    }

    /// Answers the fault of an access to a page whose leaf entry allows it: flushes what this CPU's TLB may hold of the page, so that
    /// the access can be repeated, or returns the reason why a repeat would fault again. `users` tells whether the page is the user's,
    /// and `is_new` whether this call has set a status bit that the entry lacked. The result is a byte, because each caller copies a
    /// [`Fault`](crate::Fault), which has room for a leaf.
    ///
    /// If the call before on this CPU has answered the same fault, and this CPU runs the address space, then nothing has changed since
    /// that flush. A change that forbids the access waits for this CPU's reply, and keeps the right to write until then. A CPU that
    /// replies, or that waits for the right to write, [forgets](Entered::forget_retried) the fault before.
    #[inline(never)]
    pub(crate) fn retry(
        &mut self,
        space: &Block<K, CPUS>,
        page: Vpn,
        access: Access,
        users: bool,
        is_new: bool,
    ) -> Option<Reason> {
        let runs = space.is_kernels() || self.runs(space);
        if !runs && access.report != Report::Nothing {
            return Some(Reason::OtherRoot);
        }
        let fault = Retried { page, access, space: core::ptr::from_ref(space).addr() };
        if !is_new && self.own.just_retried() == Some(fault) {
            return Some(access.repeated(users));
        }
        if access.report == Report::Conflict {
            self.mmu.kernel().flush(&everything::<K>(), None);
        } else {
            self.flush(space, &flush_of_fault(page));
        }
        if runs {
            self.own.retries(fault);
        }
        None
    }

    /// Tells whether this CPU runs the address space.
    pub(crate) fn runs(&self, space: &Block<K, CPUS>) -> bool {
        self.own.runs.as_ref().is_some_and(|runs| core::ptr::eq::<Block<K, CPUS>>(&**runs, space))
    }

    /// States that this call answers no fault, so that it need not keep what [`Entered::just_retried`] asks for.
    #[inline(always)]
    pub(crate) fn answers_no_fault(&mut self) {
        self.own.answers_no_fault();
    }

    /// Makes the next call find the fault that the call before this one has answered with [`Fault::Retry`](crate::Fault::Retry).
    pub(crate) fn pass_on_fault(&mut self) {
        self.own.pass_on();
    }

    /// Makes this CPU run no process: it runs the kernel's own address space, if it has run an address space that shares it.
    /// Otherwise it translates by a root of the kernel's.
    pub(crate) fn idle(&mut self) {
        let half = self.own.half.clone();
        self.switch_to(half.as_ref());
    }

    /// Makes this CPU run an address space, or none.
    pub(crate) fn switch_to(&mut self, space: Option<&Handle<K, CPUS>>) {
        let (mmu, kernel) = (self.mmu, self.mmu.kernel());
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
                kernel.load(K::Machine::root(space.root(), given.asid));
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
        // The TLB holds no translation of the old kernel half any more, so its handle may be dropped.
        let _other = space.map(|_| core::mem::replace(&mut self.own.half, half.cloned()));
        // The CPU no longer walks the table of the address space that it leaves.
        if let Some(before) = before
            && !space.is_some_and(|space| space.is(&before))
        {
            self.switch(SwitchKind::Out, &before.cpus, under(before.number.held()).unwrap_or_default());
        }
    }

    /// Tells whether this CPU has never run the address space. If so, it must flush before it runs the address space: a write of
    /// the root register does not order earlier stores before later walks (RISC-V: `satp`; AArch64 needs a barrier), but a flush
    /// does. The CPUs that have run the kernel's own address space are in its own set, although every online CPU flushes its
    /// changes. With one CPU the kernel's own address space is [flushed when it is new](crate::AddressSpace::lending).
    fn is_new_to(&self, space: &Block<K, CPUS>) -> bool {
        if CPUS == 1 { space.held() == Held::Never } else { !space.cpus.members.load().contains(self.cpu) }
    }

    /// Flushes this CPU's TLB, unless no CPU has ever run the address space.
    #[inline(always)]
    pub(crate) fn flush(&self, space: &Block<K, CPUS>, flush: &Flush) {
        if let Some(asid) = under(space.held()) {
            self.mmu.kernel().flush(&crate::Flush::counted::<K::Machine>(flush), tag(asid));
        }
    }

    /// Gives frames that no CPU can reach any more back to the kernel.
    #[inline]
    pub(crate) fn release(&self, run: Run) {
        self.mmu.kernel().release(typed::<K, _>(run));
    }

    /// Returns `result`, or an error if a change was made whose shootdown was refused.
    #[inline]
    pub(crate) fn checked<R>(&self, result: Result<R, Error>) -> Result<R, Error> {
        match result {
            Ok(_) if self.is_refused() => Err(Error::Unflushed),
            result => result,
        }
    }

    /// Tells whether a change was made whose shootdown was refused.
    #[inline(always)]
    pub(crate) const fn is_refused(&self) -> bool {
        CPUS > 1 && self.refused
    }

    /// Executes `flush` on every CPU that may hold the translations that it names.
    #[inline(always)]
    pub(crate) fn flush_everywhere(&mut self, space: &Block<K, CPUS>, flush: &Flush) {
        if self.is_alone(space) {
            self.flush(space, flush);
        } else {
            self.shoot(space, flush, None);
        }
    }

    /// Tells whether no other CPU may hold a translation of the address space or walk its table. A CPU that joins later sees the
    /// table as it is now.
    #[inline(always)]
    pub(crate) fn is_alone(&self, space: &Block<K, CPUS>) -> bool {
        if CPUS == 1 {
            return true;
        }
        let alone = visit::is_alone(space.cpus(), self.cpu);
        self.mmu.kernel().stored(Store::Fence);
        alone
    }

    /// Flushes a batch of changes on every CPU, then gives the nodes and frames that they uncovered back.
    pub(crate) fn complete(
        &mut self,
        space: &Block<K, CPUS>,
        retired: Retired<'static>,
        runs: UncoveredRuns,
    ) {
        let flush = retired.flush().clone();
        // `across_cpus` succeeds, because the storage is in shared mode. Otherwise the nodes would be lost, and counted as lost.
        let uncovered = retired.across_cpus().ok().map(|nodes| Uncovered { nodes, runs });
        self.shoot(space, &flush, uncovered);
    }

    /// Executes `flush` on every CPU that may hold the translations that it names, then gives the nodes and frames in `uncovered`
    /// back.
    ///
    /// If the system refuses the operation, nothing is given back: the next change of the table takes up the nodes and a flush of
    /// everything, and the frames are lost. [`checked`](Self::checked) then returns an error.
    pub(crate) fn shoot(&mut self, space: &Block<K, CPUS>, flush: &Flush, uncovered: Option<Uncovered>) {
        let (mmu, kernel) = (self.mmu, self.mmu.kernel());
        if CPUS == 1 || self.is_alone(space) {
            self.flush(space, flush);
            return hand_back(kernel, uncovered);
        }
        if Self::BARRIER && !space.cpus().running.load().contains(self.cpu) {
            let mut barrier = Flush::none();
            barrier.add(FlushScope::Barrier, Pages::one(Vpn::new(0)));
            self.flush(space, &barrier);
        }
        let mut made = PriorEdit { space, flush, uncovered };
        let done = match &mut self.own.handle {
            Some(handle) => {
                mmu.shootdowns().run(handle, &mut ThisCpu::new(mmu), Self::PLAN, &mut made).is_ok()
            }
            None => false,
        };
        self.refused |= !done;
    }
}

/// Returns the ASID under which TLBs may hold translations, if they may.
#[inline]
fn under(held: Held) -> Option<Asid> {
    match held {
        Held::Never => None,
        Held::Under(asid) => Some(asid),
    }
}

/// Returns the ASID that a flush names, or `None` for 0: that is the number of the kernel's own address space, whose
/// translations TLBs may hold under any ASID.
fn tag(asid: Asid) -> Option<Asid> {
    (asid != Asid::default()).then_some(asid)
}

/// Returns a flush of everything.
pub(crate) const fn everything<K: Kernel>() -> crate::Flush<'static> {
    const EVERYTHING: &Flush = &Flush::everything();
    crate::Flush::counted::<K::Machine>(EVERYTHING)
}

/// Gives nodes and frames that no CPU can reach any more back to the kernel.
fn hand_back<K: Kernel>(kernel: &K, uncovered: Option<Uncovered>) {
    let Some(Uncovered { nodes, runs }) = uncovered else { return };
    // If a release unwinds, the nodes become a debt of the table.
    Released { kernel, runs }.release();
    // SAFETY: every CPU that might have walked the nodes has left its walk and flushed: `hand_back` is called when the shootdown
    // has completed, or when no other CPU may hold a translation and this CPU has flushed.
    unsafe { nodes.into_retired().reclaim() };
}

/// Frames that are being released, because no CPU can reach them any more. If a release unwinds, the drop of this value releases
/// the rest.
struct Released<'k, K: Kernel> {
    kernel: &'k K,
    runs: UncoveredRuns,
}

impl<K: Kernel> Released<'_, K> {
    fn release(mut self) {
        self.release_all();
    }

    fn release_all(&mut self) {
        while let Some(run) = self.runs.pop() {
            self.kernel.release(typed::<K, _>(run));
        }
    }
}

impl<K: Kernel> Drop for Released<'_, K> {
    fn drop(&mut self) {
        self.release_all();
    }
}

/// A change that has been made already. The edit is the address space's only writer, so no other change comes in between.
struct PriorEdit<'a, K: Kernel, const CPUS: usize> {
    space: &'a Block<K, CPUS>,
    flush: &'a Flush,
    uncovered: Option<Uncovered>,
}

impl<K: Kernel, const CPUS: usize> Edit for PriorEdit<'_, K, CPUS> {
    type Payload = Option<Uncovered>;

    fn exclude(&mut self) -> bool {
        true
    }

    fn release(&mut self) {}

    fn update(&mut self) -> Option<Uncovered> {
        self.uncovered.take()
    }

    fn space(&self) -> &SharedSpace {
        self.space.cpus()
    }

    fn asid(&self) -> Asid {
        under(self.space.held()).unwrap_or_default()
    }

    fn flush(&self) -> &Flush {
        self.flush
    }
}

/// How often this CPU has paused while it waits for another one.
pub(crate) struct Wait(u32);

impl Wait {
    pub(crate) const fn new() -> Self {
        Self(0)
    }

    /// Counts a pause, and tells whether it is the last one of those that the kernel considers normal.
    fn is_overdue<K: Kernel>(&mut self) -> bool {
        self.0 = (self.0 + 1) % K::PATIENCE;
        self.0 == 0
    }
}

/// This CPU's functions, as the shootdown system calls them.
struct ThisCpu<K: Kernel, const CPUS: usize> {
    mmu: &'static Mmu<K, CPUS>,
    /// The CPUs that were interrupted.
    asked: CpuSet,
    wait: Wait,
}

impl<K: Kernel, const CPUS: usize> ThisCpu<K, CPUS> {
    const fn new(mmu: &'static Mmu<K, CPUS>) -> Self {
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

impl<K: Kernel, const CPUS: usize> LocalCpu<Option<Uncovered>> for ThisCpu<K, CPUS> {
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

    fn complete(&mut self, _op: OpId, payload: Option<Uncovered>, _outcome: Outcome) {
        hand_back(self.mmu.kernel(), payload);
    }
}

impl<K: Kernel, const CPUS: usize> fmt::Debug for CpuCall<K, CPUS> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CpuCall").field("cpu", &self.cpu).finish_non_exhaustive()
    }
}

#[cfg(test)]
#[cfg(target_pointer_width = "64")]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Mutex;
    use std::sync::atomic::Ordering;

    use super::{Released, UncoveredRuns};
    use crate::host::unwinding::{RELEASE, as_machine};
    use crate::host::{Use, machine, run_as};
    use crate::{AddressSpace, Attr, Error, PageSize, Pages, Run, VirtAddr, arch};

    #[test]
    fn what_is_behind_a_release_that_unwinds_is_released() {
        let kernel = as_machine::<arch::Sv39>(64).kernel();
        let frames = [0, 1, 2].map(|at| kernel.0.data(at).unwrap());
        let runs: UncoveredRuns =
            frames.map(|first| Run { first, len: 1, dirty: false }).into_iter().collect();
        kernel.unwinds_at(RELEASE, 1);
        assert!(catch_unwind(AssertUnwindSafe(|| Released { kernel, runs }.release())).is_err());
        let left = frames.iter().filter(|&&frame| kernel.0.mappings(frame) != Use::Free).count();
        assert_eq!(left, 1, "the one that the kernel was given when it unwound");
    }

    #[test]
    fn a_cpu_is_waited_for_while_the_kernel_may_look_pages_up() {
        static SEEN: Mutex<Vec<(bool, bool)>> = Mutex::new(Vec::new());
        run_as(0);
        let mmu = machine::<2>(64);
        let half = Pages::count(VirtAddr::new(4 << 30).vpn(PageSize::K4), 1 << 18).unwrap();
        let at = VirtAddr::new(0x1000);
        let page = |at: VirtAddr| Pages::one(at.vpn(PageSize::K4));
        let user = AddressSpace::new(mmu).unwrap();
        user.map(page(at), mmu.kernel().data(1).unwrap(), Attr::READ).unwrap();
        let kernels = AddressSpace::lending(mmu, half).unwrap();
        kernels.map(Pages::one(half.first()), mmu.kernel().data(2).unwrap(), Attr::READ).unwrap();
        let shares = AddressSpace::sharing(&kernels).unwrap();
        shares.activate().unwrap();
        drop((kernels, shares));
        let on_release = move || {
            let found = user.lookup(at).is_some();
            SEEN.lock().unwrap().push((found, mmu.online_cpus().running.contains(0)));
        };
        assert!(mmu.kernel().on_release.set(Box::new(on_release)).is_ok());
        // The CPU has the last handle of the kernel's own address space, which therefore ends before the CPU is offline.
        mmu.offline().unwrap();
        assert_eq!(*SEEN.lock().unwrap(), [(true, true)]);
        assert!(!mmu.online_cpus().running.contains(0), "and then it is");
    }

    #[test]
    fn a_shootdown_that_is_refused_is_reported_and_made_up_for() {
        refuse(false);
        refuse(true);
    }

    /// Makes the shootdown of one page fail. `has_neighbour` tells whether another page is mapped in the same node.
    fn refuse(has_neighbour: bool) {
        run_as(0);
        let mmu = machine::<2>(64);
        let host = mmu.kernel();
        let space = AddressSpace::new(mmu).unwrap();
        space.activate().unwrap();
        let page = |at| Pages::one(VirtAddr::new(at).vpn(PageSize::K4));
        let rights = Attr::READ | Attr::WRITE | Attr::USER;
        let frame = host.data(1).unwrap();
        space.map(page(0x1000), frame, rights).unwrap();
        if has_neighbour {
            space.map(page(0x3000), host.data(3).unwrap(), rights).unwrap();
        }
        // Adds a CPU that the system does not have, which breaks the promises of `Kernel`: the system refuses the operation.
        assert!(space.0.cpus().members.insert(5));
        assert_eq!(space.unmap(page(0x1000)), Err(Error::Unflushed));
        assert_eq!(host.mappings(frame), Use::Data(1), "a CPU may still use it");
        assert!(space.0.cpus().members.remove(5));
        let before = host.full_flushes.load(Ordering::Relaxed);
        space.map(page(0x2000), host.data(2).unwrap(), rights).unwrap();
        assert_eq!(host.full_flushes.load(Ordering::Relaxed), before + 1);
        mmu.idle().unwrap();
    }
}
