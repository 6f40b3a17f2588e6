//! The kernel's own address space, where it has a root register of its own: AArch64's upper half.

use tlbkit::{AddressSpace, Asid, Attr, Error, Flush, Kernel, Mmu, PhysAddr, Record, Run, arch};

use super::cpu;
use super::memory::{MMU, Mine, prepare};

/// The kernel, as `tlbkit` knows it in the upper half: it has the frames of [`Mine`].
pub struct Upper;

static UPPER: Mmu<Upper> = Mmu::new(Upper);

/// The kernel's own address space, which is never dropped.
pub type Own = AddressSpace<Upper>;

// SAFETY: frames and records are those of `Mine`, whose promises hold here; `flush` flushes both halves. A root of the upper half maps
// the kernel as the boot's table does, and it is in force when `load` returns.
unsafe impl Kernel for Upper {
    type Machine = arch::AArch64Upper;

    fn take_frame(&self) -> Option<PhysAddr> {
        MMU.kernel().take_frame()
    }

    fn give_frame(&self, frame: PhysAddr) {
        MMU.kernel().give_frame(frame);
    }

    fn memory(&self, frame: PhysAddr) -> *mut u8 {
        MMU.kernel().memory(frame)
    }

    fn record(&self, frame: PhysAddr) -> Option<&Record> {
        MMU.kernel().record(frame)
    }

    fn release(&self, run: Run) {
        MMU.kernel().release(run);
    }

    fn flush(&self, flush: &Flush<'_>, asid: Option<Asid>) {
        cpu::flush(flush, asid);
    }

    fn masked<R>(&self, f: impl FnOnce() -> R) -> R {
        cpu::masked(f)
    }

    fn load(&self, root: usize) {
        cpu::load_upper(root);
    }

    fn unload(&self) {
        cpu::unload_upper();
    }
}

/// Frees memory, and returns the kernel's own address space, by which this CPU translates from now on.
pub fn boot() -> Result<Own, Error> {
    prepare();
    let kernel = AddressSpace::kernels(&UPPER)?;
    for (pages, frame, rights) in cpu::kernels_pages()? {
        kernel.map_linear(pages, frame, rights | Attr::GLOBAL | Attr::ACCESSED | Attr::DIRTY)?;
    }
    kernel.activate()?;
    Ok(kernel)
}

/// Returns the address space of a new process, which is the whole lower half. Nothing of the kernel's is in it.
pub fn process(_kernel: &Own) -> Result<AddressSpace<Mine>, Error> {
    AddressSpace::new(&MMU)
}
