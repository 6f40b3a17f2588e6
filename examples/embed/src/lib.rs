//! What a kernel embeds, a function for each thing, so that their code can be measured and looked at.
//!
//! `edit_space_` are what a page fault and a system call do to an address space. A lookup of one CPU is a hit; on several CPUs a
//! CPU that does not run the address space comes online first.
//!
//! `hit_` are the paths of a TLB refill and of an interrupt: from none of them, nor from `edit_space_`, may a panic,
//! an allocation or floating point be reachable. `edit_` are the changes, and `miss_` is what comes with a miss.
#![no_std]

use core::panic::PanicInfo;

use tlbkit_addr::{Asid, Attr, CpuSet, Flush, PageSize, Pages, Pfn, VirtAddr};
use tlbkit_pagetable::format::{Compact32, EntryLo};
use tlbkit_pagetable::geometry::Va32;
use tlbkit_pagetable::gpt::{Adaptive, Gpt, OneWord};
use tlbkit_pagetable::lpt::MipsLpt;
use tlbkit_pagetable::mpt::Mpt;
use tlbkit_pagetable::nodes::Slab;
use tlbkit_pagetable::{Error, Holes, Leaf, Local, Pinned, Shared, Solo, Table, cpt, hpt};
use tlbkit_shootdown::{CpuHandle, Edit, LocalCpu as Cpu, Misuse, OpId, Outcome, SharedSpace, System};
use tlbkit_stlb::{AsidTag, Assoc, Direct, Mips32, Pair, Probe, Ptlb, Shared as SharedStlb, Ticket, Victim};
use tlbkit_superpage::{Action, ApproxOnline, Miss, Policy};

unsafe extern "C" {
    /// This function is defined nowhere: code that refers to it can panic.
    safe fn tlbkit_panicked() -> !;
    safe fn tlbkit_kernel();
}

#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    tlbkit_panicked()
}

/// Writes a lookup in shared mode for each table.
macro_rules! lookups {
    ($($name:ident: $table:ty;)+) => {$(
        /// Looks an address up.
        #[unsafe(no_mangle)]
        pub fn $name(table: &$table, at: VirtAddr) -> Option<Leaf> {
            // SAFETY: the caller is the handler of a TLB refill, which acknowledges no shootdown.
            table.lookup(unsafe { Pinned::by(table) }, at)
        }
    )+};
}

/// Writes the changes of one page for each table.
macro_rules! edits {
    ($($map:ident, $unmap:ident: $table:ty;)+) => {$(
        /// Maps a page.
        #[unsafe(no_mangle)]
        pub fn $map(table: &mut Local<'static, $table, fn(&Flush)>, at: VirtAddr, frame: Pfn) -> Result<(), Error> {
            table.map(Pages::one(at.vpn(PageSize::K4)), frame, PageSize::K4, Attr::READ | Attr::WRITE)
        }

        /// Unmaps a page.
        #[unsafe(no_mangle)]
        pub fn $unmap(table: &mut Local<'static, $table, fn(&Flush)>, at: VirtAddr) -> Result<usize, Error> {
            table.unmap(Pages::one(at.vpn(PageSize::K4)), Holes::Refuse)
        }
    )+};
}

type Nodes<'n> = Slab<'n, u32, Shared>;
type Alone<'n> = Slab<'n, u32, Solo>;

lookups! {
    hit_mpt: Mpt<'_, Va32, EntryLo, Nodes<'_>>;
    hit_lpt: MipsLpt<'_, Nodes<'_>>;
    hit_gpt: Gpt<'_, Va32, Compact32, Nodes<'_>, OneWord, Adaptive>;
    hit_hpt: hpt::Hpt32<'_, Nodes<'_>>;
    hit_cpt: cpt::Cpt32<'_, Nodes<'_>>;
}

edits! {
    edit_mpt_map, edit_mpt_unmap: Mpt<'static, Va32, EntryLo, Alone<'static>>;
    edit_lpt_map, edit_lpt_unmap: MipsLpt<'static, Alone<'static>>;
    edit_gpt_map, edit_gpt_unmap: Gpt<'static, Va32, Compact32, Alone<'static>, OneWord, Adaptive>;
    edit_hpt_map, edit_hpt_unmap: hpt::Hpt32<'static, Alone<'static>>;
    edit_cpt_map, edit_cpt_unmap: cpt::Cpt32<'static, Alone<'static>>;
}

/// Looks an address up in a direct-mapped cache.
#[unsafe(no_mangle)]
pub fn hit_stlb(cache: &Direct<'_, Mips32, 1024>, at: VirtAddr, space: AsidTag<Mips32>) -> Option<Pair> {
    cache.lookup(at, space)
}

/// Looks an address up in a cache of two ways.
#[unsafe(no_mangle)]
pub fn hit_stlb_ways(
    cache: &Assoc<'_, Mips32, 512, 2>,
    at: VirtAddr,
    space: AsidTag<Mips32>,
) -> Option<Pair> {
    cache.lookup(at, space)
}

/// Looks an address up in a cache with victims.
#[unsafe(no_mangle)]
pub fn hit_stlb_victim(
    cache: &mut Victim<'_, Mips32, 1024, 8>,
    at: VirtAddr,
    space: AsidTag<Mips32>,
) -> Option<Pair> {
    cache.lookup(at, space)
}

/// Looks an address up in a cache that CPUs share.
#[unsafe(no_mangle)]
pub fn hit_stlb_shared(
    cache: &SharedStlb<'_, Mips32, 512, 2>,
    at: VirtAddr,
    space: AsidTag<Mips32>,
) -> Result<Pair, Ticket> {
    cache.lookup(at, space)
}

/// The TLB, which the kernel can ask.
#[derive(Debug)]
pub struct Tlb;

impl Probe<Mips32> for Tlb {
    fn probe(&mut self, _: VirtAddr, _: AsidTag<Mips32>) -> Option<Pair> {
        tlbkit_kernel();
        None
    }
}

/// Returns the entry to load for a message's receiver.
#[unsafe(no_mangle)]
pub fn hit_ptlb(table: &mut Ptlb<'_, Mips32, 64>, at: VirtAddr, space: AsidTag<Mips32>) -> Option<Pair> {
    table.prefetch(at, space, &mut Tlb)
}

/// Charges a miss.
#[unsafe(no_mangle)]
pub fn miss_superpage(policy: &mut ApproxOnline<'_>, miss: Miss) -> Option<Action> {
    policy.on_miss(miss)
}

/// A change of an entry, all of it the kernel's.
#[derive(Debug)]
pub struct Change(SharedSpace, Flush);

impl Edit for Change {
    type Payload = usize;

    fn exclude(&mut self) -> bool {
        tlbkit_kernel();
        true
    }
    fn release(&mut self) {
        tlbkit_kernel();
    }
    fn update(&mut self) -> usize {
        tlbkit_kernel();
        0
    }
    fn space(&self) -> &SharedSpace {
        &self.0
    }
    fn asid(&self) -> Asid {
        Asid::default()
    }
    fn flush(&self) -> &Flush {
        &self.1
    }
}

impl Cpu<usize> for Tlb {
    fn flush(&mut self, _: Option<Asid>, _: &Flush, _: bool) {
        tlbkit_kernel();
    }
    fn interrupt(&mut self, _: CpuSet) {
        tlbkit_kernel();
    }
    fn complete(&mut self, _: OpId, _: usize, _: Outcome) {
        tlbkit_kernel();
    }
}

/// Replies to a shootdown.
#[unsafe(no_mangle)]
pub fn hit_shootdown(
    system: &System<usize, Change, 4, 4, 1, 2>,
    handle: &mut CpuHandle<'_, 4, 1, 2>,
) -> Result<(), Misuse> {
    system.poll(handle, &mut Tlb)
}

mod spaces;

#[cfg(target_pointer_width = "64")]
mod wide {
    use super::*;
    use tlbkit_pagetable::format::{Aarch64, Sv39, X86};
    use tlbkit_pagetable::geometry::{Va39, Va48};
    use tlbkit_pagetable::{gpt, mpt};
    use tlbkit_stlb::Page64;

    type Nodes<'n> = Slab<'n, u64, Shared>;

    lookups! {
        hit_mpt_four: mpt::Mpt4<'_, Nodes<'_>>;
        hit_mpt_sv39: Mpt<'_, Va39, Sv39, Nodes<'_>>;
        hit_mpt_x86: Mpt<'_, Va48, X86, Nodes<'_>>;
        hit_mpt_aarch64: Mpt<'_, Va48, Aarch64, Nodes<'_>>;
        hit_gpt_wide: gpt::Gpt48<'_, Nodes<'_>>;
        hit_hpt_grows: hpt::Hr<'_, Nodes<'_>>;
        hit_cpt_wide: cpt::Cpt8<'_, Nodes<'_>>;
    }

    type Solitary<'n> = Slab<'n, u64, Solo>;

    // One CPU, and its MMU beside it.
    edits! {
        edit_sv39_map, edit_sv39_unmap: Mpt<'static, Va39, Sv39, Solitary<'static>>;
        edit_x86_map, edit_x86_unmap: Mpt<'static, Va48, X86, Solitary<'static>>;
        edit_aarch64_map, edit_aarch64_unmap: Mpt<'static, Va48, Aarch64, Solitary<'static>>;
    }

    /// Looks an address up in a direct-mapped cache.
    #[unsafe(no_mangle)]
    pub fn hit_stlb_page(
        cache: &Direct<'_, Page64, 1024>,
        at: VirtAddr,
        space: AsidTag<Page64>,
    ) -> Option<u64> {
        cache.lookup(at, space)
    }
}
