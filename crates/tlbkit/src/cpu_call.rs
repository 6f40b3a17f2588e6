//! A call under way on this CPU: how it begins, waits and answers a fault. Its flushes and shootdowns are in `shoot.rs`, the switch of
//! address spaces in `switch.rs`.
//!
//! `docs/embedding.md`, section 2, lists the steps from a change to the release of its frames.

use core::fmt;

use tlbkit_addr::{Asid, Attr, Pages, Vpn};
use tlbkit_pagetable::{Error, Turn};
use tlbkit_shootdown::{PteFirst, SwitchKind, System};

use self::shoot::ThisCpu;
use crate::block::Block;
use crate::cpu::{Cpu, Entered, QUEUE, Retried};
use crate::cpu_set::WORDS;
use crate::fault::Report;
use crate::settle::{flush_of_fault, status};
use crate::storage::{Table, turn};
use crate::{Access, Kernel, Mmu, Overdue, Reason};

mod broadcast;
mod deferred;
mod shoot;
mod switch;

pub(crate) use self::shoot::{everything, under};

/// The shootdown system. Every operation is PTE-first, and the initiator waits until all CPUs have replied.
pub(crate) type Shootdowns<const CPUS: usize> = System<(), PteFirst<()>, CPUS, QUEUE, WORDS>;

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

impl<K: Kernel, const CPUS: usize> CpuCall<K, CPUS> {
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

    /// Begins a call on this CPU, as [`begin`](Self::begin) does, and takes the right to write `pages` of the table of `space`, which is
    /// one of `mmu`, or with `None` all of it. Returns `None` if the CPU would have to wait: see [`ready`](Self::ready).
    #[inline(always)]
    pub(crate) fn in_turn<'s>(
        mmu: &'static Mmu<K, CPUS>,
        space: &'s Block<K, CPUS>,
        pages: Option<Pages>,
    ) -> Option<(Self, Turn<'s, 'static, Table<K>>)> {
        let mut call = Self::if_online(mmu)?;
        let turn = call.turn(space, pages)?;
        Some((call, turn))
    }

    /// Takes the right to write `pages` of the table of `space`, unless another CPU writes a range that overlaps. Serves shootdowns while
    /// CPUs that change single pages end.
    #[inline(always)]
    fn turn<'s>(
        &mut self,
        space: &'s Block<K, CPUS>,
        pages: Option<Pages>,
    ) -> Option<Turn<'s, 'static, Table<K>>> {
        let mut wait = Wait::new();
        turn::<K, CPUS>(&space.table, pages, &mut || {
            self.wait(&mut wait);
            true
        })
    }

    /// Waits after a call could not begin on this CPU, whose interrupts need not be masked: brings the CPU online, then serves
    /// shootdowns until no CPU writes a range with one of `pages` of the table of `space`, which is one of `mmu`. It is a separate function, so that the call that
    /// is tried afterwards need not save registers for it.
    ///
    /// # Errors
    ///
    /// [`NotReady::Nested`] if the CPU is inside another call; those of [`Mmu::online`](crate::Mmu::online) if it cannot come
    /// online.
    #[cold]
    #[inline(never)]
    pub(crate) fn ready(
        mmu: &'static Mmu<K, CPUS>,
        space: &Block<K, CPUS>,
        pages: Option<Pages>,
    ) -> Result<(), NotReady> {
        let mut wait = Wait::new();
        // Interrupts are unmasked now and then.
        let mut step = || {
            mmu.kernel().masked(|| {
                Self::prepare(mmu, &mut wait)?;
                // The call waits for changes of single pages, with its range in the list, so that no more of them begin.
                Ok(Turn::may_be_taken(&*space.table, pages))
            })
        };
        while !step()? {}
        Ok(())
    }

    /// Prepares a call that could not begin: brings this CPU online, or, if it is online already, serves shootdowns. It is a
    /// separate function, so that the call that begins afterwards keeps its values in registers.
    #[cold]
    #[inline(never)]
    fn prepare(mmu: &'static Mmu<K, CPUS>, wait: &mut Wait) -> Result<(), NotReady> {
        if CPUS == 1 {
            // There is no other CPU to wait for.
            return Err(NotReady::Nested);
        }
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

    /// Waits for the right to write `pages` of the table of `space`.
    #[cold]
    pub(crate) fn wait_for<'s>(
        &mut self,
        space: &'s Block<K, CPUS>,
        pages: Pages,
    ) -> Turn<'s, 'static, Table<K>> {
        let mut wait = Wait::new();
        loop {
            if let Some(turn) = self.turn(space, Some(pages)) {
                return turn;
            }
            self.wait(&mut wait);
        }
    }

    /// Answers the fault of an access to a page whose leaf entry allows it: flushes what this CPU's TLB may hold of the page, so that
    /// the access can be repeated, or returns the reason why a repeat would fault again. `attr` are the attributes that the entry had
    /// before this call, which has set the status bits that the access needs and `attr` lacks. The result is a byte, because each
    /// caller copies a [`Fault`](crate::Fault), which has room for a leaf.
    ///
    /// If the call before on this CPU has answered the same fault, and this CPU runs the address space, then nothing has changed since
    /// that flush. A change that forbids the access waits for this CPU's reply, and keeps the right to write until then. A CPU that
    /// replies, or that waits for the right to write, [forgets](Entered::forget_retried) the fault before. A change that is broadcast
    /// waits for no reply, and is counted: the caller has the right to write, so it finds the count of each change before.
    #[inline(never)]
    pub(crate) fn retry(
        &mut self,
        space: &Block<K, CPUS>,
        page: Vpn,
        access: Access,
        attr: Attr,
    ) -> Option<Reason> {
        let runs = space.is_kernels() || self.runs(space);
        if !runs && access.report != Report::Nothing {
            return Some(Reason::OtherRoot);
        }
        let fault = Retried {
            page,
            access,
            space: core::ptr::from_ref(space).addr(),
            broadcasts: space.broadcasts(),
        };
        if attr.contains(status::<K>(access)) && self.own.just_retried() == Some(fault) {
            return Some(access.repeated(attr.contains(Attr::USER)));
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

impl<K: Kernel, const CPUS: usize> fmt::Debug for CpuCall<K, CPUS> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CpuCall").field("cpu", &self.cpu).finish_non_exhaustive()
    }
}

#[cfg(test)]
#[cfg(target_pointer_width = "64")]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::Ordering;

    use crate::host::{Use, machine, run_as};
    use crate::{AddressSpace, Attr, Error, PageSize, Pages, VirtAddr};

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
        let kernels = AddressSpace::lending(mmu, [half]).unwrap();
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
