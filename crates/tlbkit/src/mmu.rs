//! The state that all address spaces of a machine share: node storage, ASIDs, the shootdown system.

use core::fmt;
use core::sync::atomic::AtomicUsize;

use tlbkit_addr::PhysAddr;
use tlbkit_pagetable::nodes::{Pieces, Reclaim as _};
use tlbkit_pagetable::{Error, Geometry as _};
use tlbkit_shootdown::{Broadcast, SectionKind};

use crate::asids::Asids;
use crate::block::Shape;
use crate::cpu::Cpu;
use crate::cpu_call::{CpuCall, NotReady, Shootdowns};
use crate::cpu_set::SharedSpace;
use crate::limbo::Limbo;
use crate::section::{Section, is_inside};
use crate::storage::{Frames, Source, Storage, storage};
use crate::{BasePage as _, CpuSet, Kernel, Machine, Overdue, Walking};

/// The virtual memory of a machine with up to `CPUS` CPUs: the state that its [`AddressSpace`](crate::AddressSpace)s share. A
/// kernel has one, in a static; or one for each half of AArch64's addresses ([`crate::arch`]). `CPUS` is at most
/// [`CpuSet::CAPACITY`]: with the feature `many-cpus` 1024, otherwise as many as a `usize` has bits.
///
/// With one CPU a change flushes this CPU's TLB, and an optimized program has no code that requests or serves a shootdown.
pub struct Mmu<K: Kernel, const CPUS: usize = 1> {
    frames: Frames<K>,
    asids: Asids<CPUS>,
    shootdowns: Shootdowns<CPUS>,
    /// The epoch in which a [section](crate::section) begins, where flushes are broadcast.
    epoch: AtomicUsize,
    pub(crate) limbo: Limbo,
    /// The CPUs that are online: they use the kernel's own address space, whatever address space they run.
    online: SharedSpace,
    cpus: [Cpu<K, CPUS>; CPUS],
}

impl<K: Kernel, const CPUS: usize> Mmu<K, CPUS> {
    /// Returns the virtual memory of `kernel`: no address space, no CPU online.
    pub const fn new(kernel: K) -> Self {
        const { assert!(CPUS <= CpuSet::CAPACITY, "more CPUs than a word has bits need the feature `many-cpus`") };
        const {
            let sizes = (<K::Machine as Machine>::Base::SIZE, Shape::<K>::BASE);
            assert!(
                sizes.0.shift() == sizes.1.shift(),
                "`Machine::Base` has the size of the geometry's base page"
            );
        }
        const {
            // A refill handler walks without a section, and no broadcast waits for it.
            assert!(
                K::BROADCAST.is_none() || Broadcast::suits(&K::Machine::HARDWARE).is_ok(),
                "no flush reaches the other CPUs where software loads the TLB"
            );
        }
        const { assert!(K::PATIENCE > 0, "a wait for another CPU takes at least one pause") };
        Self {
            frames: Pieces::new(Source(kernel)),
            asids: Asids::new(),
            shootdowns: Shootdowns::new(K::Machine::HARDWARE),
            epoch: AtomicUsize::new(0),
            limbo: Limbo::new(),
            online: SharedSpace::new(),
            cpus: [const { Cpu::new() }; CPUS],
        }
    }

    /// Returns the kernel.
    #[inline]
    pub const fn kernel(&self) -> &K {
        &self.frames.source().0
    }

    /// Makes this CPU take part in shootdowns from now on: of the kernel's own address space, and of those that the CPU runs.
    ///
    /// Each of several CPUs calls this method first of all, once, before it uses the kernel's own address space: if
    /// [`Kernel::cpu`] gives two CPUs one number, the second of them gets [`Error::Online`], and not other programs' memory. (A
    /// lookup, visit, change or switch on a CPU that is offline brings it online, too, without that check.) With one CPU the method
    /// does nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Online`] if a CPU with this number is online; [`Error::Nested`] if it is in a call;
    /// [`Error::Unflushed`] as for [`AddressSpace::edit`](crate::AddressSpace::edit).
    pub fn online(&'static self) -> Result<(), Error> {
        self.kernel().masked(|| CpuCall::first(self)).map_err(NotReady::error)
    }

    /// Makes this CPU leave its address space and take part in no more shootdowns, and flushes its TLB. From then on the CPU must
    /// not use the kernel's own address space until it is [`online`](Self::online) again. Every lookup, visit, change and switch on
    /// the CPU brings it online again, so this call is the last one before the CPU stops.
    ///
    /// # Errors
    ///
    /// [`Error::Nested`] inside an edit or a visit on this CPU; [`Error::Unflushed`] as for
    /// [`AddressSpace::edit`](crate::AddressSpace::edit).
    pub fn offline(&'static self) -> Result<(), Error> {
        self.call(|call| {
            call.go_offline();
            Ok(())
        })
    }

    /// Makes this CPU leave its address space, and drops the handle that the CPU keeps.
    ///
    /// A CPU that has run the kernel's own address space ([`lending`](crate::AddressSpace::lending)), or one that shares it, runs the
    /// kernel's own address space from now on: all that the kernel has mapped there, and will map, stays accessible. Another CPU
    /// loads a root of the kernel's own ([`Kernel::unload`]).
    ///
    /// # Errors
    ///
    /// [`Error::Nested`] inside an edit or a visit on this CPU; [`Error::Unflushed`] as for
    /// [`AddressSpace::edit`](crate::AddressSpace::edit).
    pub fn idle(&'static self) -> Result<(), Error> {
        self.call(|call| {
            call.idle();
            Ok(())
        })
    }

    /// Serves the shootdowns that other CPUs ask of this one. The handler of the interrupt that [`Kernel::interrupt`]
    /// sends calls this method; a call without a pending request is harmless. Inside an edit, a visit or a method of [`Kernel`] that
    /// one of them has called, this CPU cannot serve: if there is a request, the method interrupts this CPU again
    /// ([`Kernel::interrupt`]), because the caller may have acknowledged the interrupt. Interrupts are masked there, so the interrupt
    /// is taken afterwards.
    ///
    /// Costs a few loads and stores if there is nothing to do, and nothing with one CPU.
    pub fn on_interrupt(&'static self) {
        if CPUS == 1 {
            return;
        }
        self.kernel().masked(|| {
            // An interrupt that comes late does not bring a CPU online again.
            if let Ok(mut call) = CpuCall::enter(self) {
                call.pass_on_fault();
                call.serve();
            } else if self.shootdowns.is_asked(self.this_cpu()) {
                let mut this = CpuSet::empty();
                this.insert(self.this_cpu());
                Self::INTERRUPT(self.kernel(), this);
            }
        });
    }

    /// Gives page-table nodes back that wait until walks by software have ended ([`Kernel::BROADCAST`]), and returns how many have to
    /// wait on. A later broadcast, or the next switch of address spaces on any CPU, does the same: so a kernel calls this method only when it
    /// is short of memory. Costs a load if no node waits; otherwise a load for each CPU. Without [`Kernel::BROADCAST`] no node waits.
    pub fn reclaim(&'static self) -> usize {
        self.kernel().masked(|| self.collect());
        self.limbo.nodes()
    }

    /// Gives the nodes back that no walk by software may be in any more, with interrupts masked.
    #[inline]
    pub(crate) fn collect(&'static self) {
        if Self::BROADCASTS && self.limbo.nodes() > 0 {
            self.collect_some();
        }
    }

    #[cold]
    #[inline(never)]
    fn collect_some(&'static self) {
        let is_left =
            |since| self.cpus.iter().all(|cpu| !is_inside(&cpu.section, SectionKind::Walk, Some(since)));
        while let Some(nodes) = self.limbo.take(is_left) {
            // SAFETY: a broadcast had flushed every TLB before the nodes were kept, and no CPU is in a walk that began before.
            unsafe { nodes.into_retired().reclaim() };
        }
    }

    /// Whether flushes are broadcast, so that walks by software are in [sections](crate::section).
    pub(crate) const BROADCASTS: bool = CPUS > 1 && K::BROADCAST.is_some();

    /// Begins a section on this CPU, whose interrupts are masked, for a walk of the table of `root`. Without broadcasts this does nothing.
    #[inline(always)]
    pub(crate) fn section(&'static self, root: PhysAddr, kind: SectionKind) -> Announced<K, CPUS> {
        if !Self::BROADCASTS {
            return self.no_section();
        }
        let begin = |cpu: &'static Cpu<K, CPUS>| Section::begin(&self.epoch, &cpu.section, kind);
        let section = self.cpu(self.this_cpu()).map_or(Section::NONE, begin);
        if section.has_begun() {
            self.kernel().walking(Walking::Begin { root, uses: matches!(kind, SectionKind::Use) });
        }
        Announced { mmu: self, section }
    }

    /// Returns a section that nobody asks for.
    #[inline(always)]
    pub(crate) const fn no_section(&'static self) -> Announced<K, CPUS> {
        Announced { mmu: self, section: Section::NONE }
    }

    /// Returns those of `cpus` that may be in a section of this kind that began in the epoch `since` or before: see [`is_inside`].
    pub(crate) fn inside(&self, cpus: CpuSet, kind: SectionKind, since: Option<usize>) -> CpuSet {
        let is_in = |&cpu: &usize| self.cpus.get(cpu).is_some_and(|of| is_inside(&of.section, kind, since));
        cpus.iter().filter(is_in).collect()
    }

    pub(crate) const fn epoch(&self) -> &AtomicUsize {
        &self.epoch
    }

    /// Returns the number of leaked nodes: 0 unless the kernel panicked during a change and went on.
    pub fn lost(&self) -> usize {
        self.frames.held().lost()
    }

    /// Calls `f` inside a call on this CPU, with interrupts masked.
    #[inline(always)]
    pub(crate) fn call<R>(
        &'static self,
        f: impl FnOnce(&mut CpuCall<K, CPUS>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        self.kernel().masked(|| {
            let mut call = CpuCall::begin(self)?;
            let result = f(&mut call);
            call.checked(result)
        })
    }

    /// Returns the address of this value, which tells it from another one.
    pub(crate) fn address(&'static self) -> usize {
        core::ptr::from_ref(self).addr()
    }

    pub(crate) fn storage(&'static self) -> &'static Storage<K> {
        storage::<K>(&self.frames)
    }

    pub(crate) const fn asids(&self) -> &Asids<CPUS> {
        &self.asids
    }

    pub(crate) const fn shootdowns(&'static self) -> &'static Shootdowns<CPUS> {
        &self.shootdowns
    }

    pub(crate) const fn online_cpus(&'static self) -> &'static SharedSpace {
        &self.online
    }

    /// What a kernel does only for several CPUs. With one CPU these constants do not name the methods of [`Kernel`], whose
    /// defaults do not compile.
    const CPU: fn(&K) -> usize = if CPUS == 1 { |_| 0 } else { K::cpu };
    pub(crate) const INTERRUPT: fn(&K, CpuSet) = if CPUS == 1 { |_, _| () } else { K::interrupt };
    pub(crate) const OVERDUE: fn(&K, Overdue) = if CPUS == 1 { |_, _| () } else { K::overdue };

    /// Returns the number of this CPU, which is below `CPUS`.
    #[inline(always)]
    pub(crate) fn this_cpu(&self) -> usize {
        let cpu = Self::CPU(self.kernel());
        // SAFETY: `Kernel::cpu` promises a number below `CPUS`.
        unsafe { core::hint::assert_unchecked(cpu < CPUS) };
        cpu
    }

    pub(crate) fn cpu(&'static self, cpu: usize) -> Option<&'static Cpu<K, CPUS>> {
        self.cpus.get(cpu)
    }
}

/// A [section](crate::section) of this CPU, of which the kernel takes notice.
pub(crate) struct Announced<K: Kernel, const CPUS: usize> {
    mmu: &'static Mmu<K, CPUS>,
    /// It is dropped, and so ends, after the kernel has taken notice.
    section: Section<'static>,
}

impl<K: Kernel, const CPUS: usize> Drop for Announced<K, CPUS> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.section.has_begun() {
            self.mmu.kernel().walking(Walking::End);
        }
    }
}

impl<K: Kernel, const CPUS: usize> fmt::Debug for Mmu<K, CPUS> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mmu")
            .field("frames", &self.frames)
            .field("online", &self.online)
            .finish_non_exhaustive()
    }
}
