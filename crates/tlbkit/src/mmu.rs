//! The state that all address spaces of a machine share: node storage, ASIDs, the shootdown system.

use core::fmt;

use tlbkit_pagetable::Error;
use tlbkit_pagetable::nodes::{Pieces, Reclaim as _};
use tlbkit_shootdown::SharedSpace;

use crate::asids::Asids;
use crate::cpu::Cpu;
use crate::cpu_call::{CpuCall, Shootdowns};
use crate::source::Source;
use crate::storage::{Frames, Storage, storage};
use crate::{Kernel, Machine};

/// The virtual memory of a machine with up to `CPUS` CPUs: the state that its [`AddressSpace`](crate::AddressSpace)s share. A
/// kernel has one, in a static.
///
/// With one CPU no shootdown is compiled in: a change flushes this CPU's TLB.
pub struct Mmu<K: Kernel, const CPUS: usize = 1> {
    frames: Frames<K>,
    asids: Asids<CPUS>,
    shootdowns: Shootdowns<CPUS>,
    /// The CPUs that are online: they use the kernel's own address space, whatever address space they run.
    online: SharedSpace,
    cpus: [Cpu<K, CPUS>; CPUS],
}

impl<K: Kernel, const CPUS: usize> Mmu<K, CPUS> {
    /// Returns the virtual memory of `kernel`: no address space, no CPU online.
    pub const fn new(kernel: K) -> Self {
        const { assert!(CPUS <= usize::BITS as usize, "a CPU for each bit of a word, at most") };
        Self {
            frames: Pieces::new(Source(kernel)),
            asids: Asids::new(),
            shootdowns: Shootdowns::new(K::Machine::HARDWARE),
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
    /// A CPU calls this method before it first uses the kernel's own address space;
    /// [`activate`](crate::AddressSpace::activate) has the same effect.
    ///
    /// # Errors
    ///
    /// [`Error::Busy`] inside an edit or a visit on this CPU; [`Error::Unflushed`] as for
    /// [`AddressSpace::edit`](crate::AddressSpace::edit).
    pub fn online(&'static self) -> Result<(), Error> {
        self.call(|_| Ok(()))
    }

    /// Makes this CPU leave its address space and take part in no more shootdowns, and flushes its TLB. From then on the CPU must
    /// not use the kernel's own address space until it is [`online`](Self::online) again. Every lookup, visit, change and switch on
    /// the CPU brings it online again, so this call is the last one before the CPU stops.
    ///
    /// # Errors
    ///
    /// [`Error::Busy`] inside an edit or a visit on this CPU; [`Error::Unflushed`] as for
    /// [`AddressSpace::edit`](crate::AddressSpace::edit).
    pub fn offline(&'static self) -> Result<(), Error> {
        self.call(|call| {
            call.go_offline();
            Ok(())
        })
    }

    /// Makes this CPU leave its address space: loads a root of the kernel's own ([`Kernel::unload`]), and drops the handle that
    /// the CPU keeps.
    ///
    /// # Errors
    ///
    /// [`Error::Busy`] inside an edit or a visit on this CPU; [`Error::Unflushed`] as for
    /// [`AddressSpace::edit`](crate::AddressSpace::edit).
    pub fn idle(&'static self) -> Result<(), Error> {
        self.call(|call| {
            call.switch_to(None);
            Ok(())
        })
    }

    /// Serves the shootdowns that other CPUs ask of this one. The handler of the interrupt that [`Kernel::interrupt`]
    /// sends calls this method; a call without a pending request is harmless. Inside an edit or a visit this method does
    /// nothing: interrupts are masked there, and the interrupt is taken when they are unmasked.
    ///
    /// Costs a few loads and stores if there is nothing to do, and nothing with one CPU.
    pub fn on_interrupt(&'static self) {
        if CPUS == 1 {
            return;
        }
        self.kernel().masked(|| {
            // An interrupt that comes late does not bring a CPU online again.
            if let Ok(mut call) = CpuCall::enter(self) {
                call.serve();
            }
        });
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

    /// Returns the number of this CPU, which is below `CPUS`.
    #[inline(always)]
    pub(crate) fn this_cpu(&self) -> usize {
        // With one CPU the number is 0.
        let cpu = if CPUS == 1 { 0 } else { self.kernel().cpu() };
        // SAFETY: `Kernel::cpu` promises a number below `CPUS`.
        unsafe { core::hint::assert_unchecked(cpu < CPUS) };
        cpu
    }

    pub(crate) fn cpu(&'static self, cpu: usize) -> Option<&'static Cpu<K, CPUS>> {
        self.cpus.get(cpu)
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
