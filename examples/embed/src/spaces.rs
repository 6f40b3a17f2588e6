//! Address spaces on every machine, with one CPU and with four.

use tlbkit::{
    Access, AddressSpace, Asid, Attr, Change, CpuSet, Error, Fault, Flush, Guarded, Kernel, Leaf, Overdue,
    PageSize, Pages, Pfn, PhysAddr, Record, Run, VirtAddr, arch,
};

unsafe extern "C" {
    safe fn tlbkit_cpu() -> usize;
    safe fn tlbkit_take_frame() -> usize;
    safe fn tlbkit_give_frame(frame: usize);
    safe fn tlbkit_memory(frame: usize) -> *mut u8;
    safe fn tlbkit_record(frame: usize) -> Option<&'static Record>;
    safe fn tlbkit_release(first: usize, len: usize);
    safe fn tlbkit_flush(at: usize, asid: usize);
    safe fn tlbkit_interrupt(cpus: usize);
    safe fn tlbkit_mask(to: usize) -> usize;
    safe fn tlbkit_load(root: usize);
}

/// Writes a kernel on a machine, and what it does to an address space on so many CPUs.
macro_rules! spaces {
    ($($kernel:ident: $machine:ty, $cpus:literal, $map:ident, $unmap:ident, $protect:ident, $replace:ident,
        $fault:ident, $lookup:ident, $interrupt:ident;)+) => {$(
        /// A kernel whose methods are all defined outside of this crate.
        #[derive(Debug)]
        pub struct $kernel;

        // SAFETY: the functions are a kernel's that keeps the promises.
        unsafe impl Kernel for $kernel {
            type Machine = $machine;

            fn cpu(&self) -> usize {
                tlbkit_cpu()
            }
            fn take_frame(&self) -> Option<PhysAddr> {
                Some(tlbkit_take_frame()).filter(|&frame| frame != 0).map(PhysAddr::new)
            }
            fn give_frame(&self, frame: PhysAddr) {
                tlbkit_give_frame(frame.get());
            }
            fn memory(&self, frame: PhysAddr) -> *mut u8 {
                tlbkit_memory(frame.get())
            }
            fn record(&self, frame: PhysAddr) -> Option<&Record> {
                tlbkit_record(frame.get())
            }
            fn release(&self, run: Run) {
                tlbkit_release(run.first.get(), run.len);
            }
            fn flush(&self, flush: &Flush<'_>, asid: Option<Asid>) {
                let at = flush.by_address_up_to(1).and_then(|mut pages| pages.next()).map_or(0, VirtAddr::get);
                tlbkit_flush(at, asid.map_or(0, |asid| usize::from(asid.get())));
            }
            fn interrupt(&self, cpus: CpuSet) {
                tlbkit_interrupt(cpus.into_iter().fold(0, |bits, cpu| bits | 1 << cpu));
            }
            fn overdue(&self, _what: Overdue) {}
            fn masked<R>(&self, f: impl FnOnce() -> R) -> R {
                let before = tlbkit_mask(0);
                let result = f();
                tlbkit_mask(before);
                result
            }
            fn load(&self, root: usize) {
                tlbkit_load(root);
            }
            fn unload(&self) {
                tlbkit_load(0);
            }
        }

        /// Maps a page.
        #[unsafe(no_mangle)]
        pub fn $map(space: &AddressSpace<$kernel, $cpus>, at: VirtAddr, frame: Pfn) -> Result<(), Error> {
            space.map(Pages::one(at.vpn(PageSize::K4)), frame, Attr::READ | Attr::WRITE | Attr::USER)
        }

        /// Unmaps a page.
        #[unsafe(no_mangle)]
        pub fn $unmap(space: &AddressSpace<$kernel, $cpus>, at: VirtAddr) -> Result<usize, Error> {
            space.unmap(Pages::one(at.vpn(PageSize::K4)))
        }

        /// Takes the right to write away.
        #[unsafe(no_mangle)]
        pub fn $protect(space: &AddressSpace<$kernel, $cpus>, at: VirtAddr) -> Result<usize, Error> {
            space.protect(Pages::one(at.vpn(PageSize::K4)), Change::clear(Attr::WRITE))
        }

        /// Maps a mapped page to another frame.
        #[unsafe(no_mangle)]
        pub fn $replace(space: &AddressSpace<$kernel, $cpus>, at: VirtAddr, frame: Pfn) -> Result<(), Error> {
            space.replace(at, frame, Attr::READ | Attr::WRITE | Attr::USER)
        }

        /// Tells why a store faulted.
        #[unsafe(no_mangle)]
        pub fn $fault(space: &AddressSpace<$kernel, $cpus>, at: VirtAddr) -> Result<Fault, Error> {
            space.fault(at, Access::STORE.by_user())
        }

        /// Looks an address up.
        #[unsafe(no_mangle)]
        pub fn $lookup(space: &AddressSpace<$kernel, $cpus>, at: VirtAddr) -> Option<Leaf> {
            space.lookup(at)
        }

        /// Serves the shootdowns of other CPUs.
        #[unsafe(no_mangle)]
        pub fn $interrupt(mmu: &'static tlbkit::Mmu<$kernel, $cpus>) {
            mmu.on_interrupt();
        }
    )+};
}

spaces! {
    OneMips: arch::Mips32, 1, edit_space_mips1_map, edit_space_mips1_unmap, edit_space_mips1_protect,
        edit_space_mips1_replace, edit_space_mips1_fault, hit_space_mips1_lookup, edit_space_mips1_interrupt;
    FourMips: arch::Mips32Coherent, 4, edit_space_mips4_map, edit_space_mips4_unmap, edit_space_mips4_protect,
        edit_space_mips4_replace, edit_space_mips4_fault, edit_space_mips4_lookup, edit_space_mips4_interrupt;
    OneGuarded: arch::Mips32<Guarded>, 1, edit_space_gpt1_map, edit_space_gpt1_unmap, edit_space_gpt1_protect,
        edit_space_gpt1_replace, edit_space_gpt1_fault, hit_space_gpt1_lookup, edit_space_gpt1_interrupt;
    FourGuarded: arch::Mips32Coherent<Guarded>, 4, edit_space_gpt4_map, edit_space_gpt4_unmap,
        edit_space_gpt4_protect, edit_space_gpt4_replace, edit_space_gpt4_fault, edit_space_gpt4_lookup,
        edit_space_gpt4_interrupt;
}

#[cfg(target_pointer_width = "64")]
spaces! {
    OneSv39: arch::Sv39, 1, edit_space_sv39_1_map, edit_space_sv39_1_unmap, edit_space_sv39_1_protect,
        edit_space_sv39_1_replace, edit_space_sv39_1_fault, hit_space_sv39_1_lookup, edit_space_sv39_1_interrupt;
    FourSv39: arch::Sv39, 4, edit_space_sv39_4_map, edit_space_sv39_4_unmap, edit_space_sv39_4_protect,
        edit_space_sv39_4_replace, edit_space_sv39_4_fault, edit_space_sv39_4_lookup, edit_space_sv39_4_interrupt;
    FourX86: arch::X86_64, 4, edit_space_x86_4_map, edit_space_x86_4_unmap, edit_space_x86_4_protect,
        edit_space_x86_4_replace, edit_space_x86_4_fault, edit_space_x86_4_lookup, edit_space_x86_4_interrupt;
    FourArm: arch::AArch64, 4, edit_space_arm_4_map, edit_space_arm_4_unmap, edit_space_arm_4_protect,
        edit_space_arm_4_replace, edit_space_arm_4_fault, edit_space_arm_4_lookup, edit_space_arm_4_interrupt;
}
