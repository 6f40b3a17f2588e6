//! What a kernel may do that goes wrong, and machines that none of the other tests has.
#![cfg(target_pointer_width = "64")]

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;

use crate::host::unwinding::{RELEASE, SHARE, as_machine, as_machines};
use crate::host::{Met, Use, machine, run_as};
use tlbkit::pagetable::format;
use tlbkit::pagetable::geometry::Va39;
use tlbkit::shootdown::Hardware;
use tlbkit::{
    AddressSpace, Asid, Attr, Base, Kernel, Machine, PageSize, Pages, Pfn, PhysAddr, SupervisorPages,
    VirtAddr, arch,
};

const RW: Attr = Attr::READ.union(Attr::WRITE).union(Attr::USER);

fn pages(at: usize, count: usize) -> Pages {
    Pages::count(VirtAddr::new(at).vpn(PageSize::K4), count).unwrap()
}

/// Sv39 with a root register that has two bits for a number.
struct Narrow;

// SAFETY: no CPU walks the table.
unsafe impl Machine for Narrow {
    type Geometry = Va39;
    type Format = format::Sv39;
    type Table = tlbkit::MultiLevel;
    type Base = Base<12>;
    const HARDWARE: Hardware = Hardware::RISCV_SVADU;
    const ASID_BITS: u32 = 2;

    fn root(node: PhysAddr, asid: Asid) -> usize {
        assert!(asid.get() < 4, "the number goes over into the mode");
        arch::Sv39::root(node, asid)
    }
}

#[test]
fn no_number_is_larger_than_the_root_register_has_room_for() {
    let mmu = as_machine::<Narrow>(64);
    assert_eq!(mmu.kernel().asid_bits(), 16, "what the kernel claims");
    let spaces: Vec<_> = (0..8).map(|_| AddressSpace::new(mmu).unwrap()).collect();
    spaces.iter().for_each(|space| space.activate().unwrap());
    mmu.idle().unwrap();
}

#[test]
fn what_no_cpu_has_run_is_in_no_tlb() {
    for bits in [0, 16] {
        let mmu = machine::<1>(64);
        let host = mmu.kernel();
        host.asid_bits.store(bits, Ordering::Relaxed);
        let space = AddressSpace::new(mmu).unwrap();
        let map = |at| space.map(pages(at, 1), host.data(1).unwrap(), RW).unwrap();
        map(0x1000);
        map(0x2000);
        assert_eq!(space.unmap(pages(0x2000, 1)), Ok(1));
        assert_eq!(host.flushes.load(Ordering::Relaxed), 0, "with {bits} bits");
        space.activate().unwrap();
        let before = host.flushes.load(Ordering::Relaxed);
        map(0x3000);
        assert_eq!(host.flushes.load(Ordering::Relaxed), before + 1, "with {bits} bits");
        mmu.idle().unwrap();
    }
}

/// A load of the root register orders nothing: the stores that made a table come before the walks of a CPU that is new to it
/// by that CPU's flush.
#[test]
fn a_cpu_that_is_new_to_an_address_space_flushes_before_it_runs_it() {
    fn check<const CPUS: usize>() {
        let mmu = machine::<CPUS>(64);
        let host = mmu.kernel();
        let spaces = [0, 1].map(|_| AddressSpace::new(mmu).unwrap());
        for cpu in 0..CPUS {
            run_as(cpu);
            mmu.idle().unwrap(); // The CPU is online.
            for space in &spaces {
                let before = host.flushes.load(Ordering::Relaxed);
                space.activate().unwrap();
                assert_eq!(host.flushes.load(Ordering::Relaxed), before + 1, "CPU {cpu} of {CPUS}");
            }
            // It has flushed, or been asked to, whatever has changed since.
            let before = host.flushes.load(Ordering::Relaxed);
            spaces[0].activate().unwrap();
            assert_eq!(host.flushes.load(Ordering::Relaxed), before, "CPU {cpu} of {CPUS}");
            mmu.idle().unwrap();
        }
        run_as(0);
    }
    check::<1>();
    check::<2>();
}

/// The same of the kernel's own address space, to which no change is made between its beginning and its first use; and of a CPU
/// that comes back, which was not asked to flush its changes.
#[test]
fn the_kernels_own_address_space_is_flushed_before_a_cpu_runs_it() {
    fn check<const CPUS: usize>() {
        let mmu = machine::<CPUS>(64);
        let flushes = || mmu.kernel().flushes.load(Ordering::Relaxed);
        for cpu in 0..CPUS {
            run_as(cpu);
            mmu.idle().unwrap(); // The CPU is online.
        }
        run_as(0);
        let before = flushes();
        let kernel = AddressSpace::lending(mmu, [pages(4 << 30, 1 << 18)]).unwrap();
        for cpu in 0..CPUS {
            run_as(cpu);
            let before = if CPUS == 1 { before } else { flushes() };
            kernel.activate().unwrap();
            assert_eq!(flushes(), before + 1, "CPU {cpu} of {CPUS}");
            mmu.idle().unwrap();
            let before = flushes();
            kernel.activate().unwrap();
            assert_eq!(flushes(), before, "CPU {cpu} of {CPUS} has flushed");
            mmu.idle().unwrap();
            mmu.offline().unwrap();
            let before = flushes();
            kernel.activate().unwrap();
            assert!(CPUS == 1 || flushes() > before, "CPU {cpu} of {CPUS} comes back");
            mmu.idle().unwrap();
            mmu.offline().unwrap();
        }
        run_as(0);
    }
    check::<1>();
    check::<2>();
}

/// A CPU that does not run the address space asks another one to flush. Where a store is seen by walks only after a barrier of
/// the CPU that stored, the barrier comes first: the other CPU may find the request before it is interrupted.
#[test]
fn a_barrier_comes_before_a_request_where_stores_need_one() {
    fn check<M: Machine<Base = Base<12>>>(barriers: usize) {
        let mmu = as_machines::<M, 2>(64);
        let host = &mmu.kernel().0;
        let flushes = || host.flushes.load(Ordering::Relaxed);
        let space = AddressSpace::new(mmu).unwrap();
        run_as(1);
        space.activate().unwrap();
        space.map(pages(0x1000, 1), host.data(1).unwrap(), RW).unwrap();
        run_as(0);
        mmu.idle().unwrap(); // The CPU is online.
        let before = flushes();
        let found = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(usize::MAX));
        let counted = found.clone();
        let meanwhile = move || {
            // The request is there, and CPU 1 has not looked at it.
            counted.fetch_min(mmu.kernel().0.flushes.load(Ordering::Relaxed), Ordering::Relaxed);
            run_as(1);
            mmu.on_interrupt();
            run_as(0);
        };
        assert!(host.meanwhile.set(Box::new(meanwhile)).is_ok());
        assert_eq!(space.unmap(pages(0x1000, 1)), Ok(1));
        assert_eq!(found.load(Ordering::Relaxed) - before, barriers);
        assert_eq!(flushes() - before, barriers + 1);
        run_as(1);
        mmu.idle().unwrap();
        run_as(0);
    }
    check::<arch::AArch64>(1);
    check::<arch::Sv39>(0);
    check::<arch::X86_64>(0);
}

#[test]
#[cfg(not(miri))] // Hundreds of frames, each written word by word.
fn a_range_costs_one_flush_however_its_frames_are_scattered() {
    let mmu = machine::<1>(1024);
    let host = mmu.kernel();
    let space = AddressSpace::new(mmu).unwrap();
    space.activate().unwrap();
    let frames: Vec<Pfn> = (0..512).map(|_| host.data(1).unwrap()).collect();
    space.map_each(pages(0x20_0000, 512), frames.iter().copied(), RW).unwrap();
    let before = host.flushes.load(Ordering::Relaxed);
    assert_eq!(space.unmap(pages(0x20_0000, 512)), Ok(512));
    assert_eq!(host.flushes.load(Ordering::Relaxed) - before, 1);
    assert!(frames.iter().all(|&frame| host.mappings(frame) == Use::Free));
    // Frames that continue nothing, more than the list has room for.
    let every_second: Vec<Pfn> = {
        let frames: Vec<Pfn> = (0..80).map(|_| host.data(1).unwrap()).collect();
        frames.chunks(2).for_each(|pair| host.put_back(pair[1]));
        frames.into_iter().step_by(2).collect()
    };
    space.map_each(pages(0x20_0000, 40), every_second, RW).unwrap();
    let before = host.flushes.load(Ordering::Relaxed);
    assert_eq!(space.unmap(pages(0x20_0000, 512)), Ok(40));
    assert_eq!(host.flushes.load(Ordering::Relaxed) - before, 1);
    mmu.idle().unwrap();
}

#[test]
fn a_page_that_is_mapped_anew_is_broken_first_where_the_machine_wants_it() {
    let mmu = as_machine::<arch::AArch64>(64);
    let host = &mmu.kernel().0;
    let space = AddressSpace::new(mmu).unwrap();
    let frames = [1, 2, 3].map(|pattern| host.data(pattern).unwrap());
    // No CPU walks the table, but a flush is one.
    space.map(pages(0x1000, 1), frames[0], RW).unwrap();
    let by_range = space.edit(|edit| {
        edit.unmap(pages(0x1000, 1))?;
        edit.map(pages(0x2000, 1), frames[1], RW)?;
        let released = host.mappings(frames[0]);
        edit.map(pages(0x1000, 1), frames[2], RW)?;
        Ok((released, host.mappings(frames[0])))
    });
    assert_eq!(by_range, Ok((Use::Data(1), Use::Free)));
    let at_cursor = space.edit(|edit| {
        let mut cursor = edit.cursor(VirtAddr::new(0x2000))?;
        cursor.unmap()?;
        let released = host.mappings(frames[1]);
        let frame = host.data(4).unwrap();
        cursor.map(frame, RW)?;
        Ok((released, host.mappings(frames[1])))
    });
    assert_eq!(at_cursor, Ok((Use::Data(1), Use::Free)));
}

/// A linear range is mapped in runs where it can be: pages in 16 slots, which are changed and released as one.
#[test]
fn a_linear_range_is_mapped_in_contiguous_runs() {
    fn check<M: Machine<Base = Base<12>>>() {
        let mmu = as_machine::<M>(128);
        let host = &mmu.kernel().0;
        let space = AddressSpace::new(mmu).unwrap();
        let frames: Vec<Pfn> = (0..56).map(|_| host.data(1).unwrap()).collect();
        assert!(
            frames.windows(2).all(|pair| pair[1].get() == pair[0].get() + 1),
            "the host's frames continue each other"
        );
        // From three pages before a multiple of 64 KiB on, in both memories.
        let first = frames.iter().position(|frame| frame.get() % 16 == 13).unwrap();
        let whole = pages(0x4_d000, 3 + 32 + 2);
        space.edit(|edit| edit.map_linear(whole, frames[first], RW)).unwrap();
        let size = |at: usize| {
            space.edit(|edit| Ok(edit.cursor(VirtAddr::new(at))?.look().map(|leaf| leaf.size))).unwrap()
        };
        let (k4, k64) = (Some(PageSize::K4), Some(PageSize::K64));
        assert_eq!(
            [0x4_d000, 0x4_f000, 0x5_0000, 0x6_f000, 0x7_0000, 0x7_1000].map(size),
            [k4, k4, k64, k64, k4, k4]
        );
        // A part of a run: it is split first.
        assert_eq!(space.unmap(pages(0x5_1000, 1)), Ok(1));
        assert_eq!([0x5_0000, 0x5_1000, 0x6_0000].map(size), [k4, None, k64]);
        assert_eq!(space.unmap(pages(0x5_0000, 16)), Ok(15));
        let mapped = |at: usize| host.mappings(frames[first + at]);
        assert_eq!([2, 3, 18, 19].map(mapped), [Use::Data(1), Use::Free, Use::Free, Use::Data(1)]);
        let child = space.fork(SupervisorPages::LeftOut).unwrap();
        assert_eq!([2, 19, 34].map(mapped), [Use::Data(2); 3]);
        drop(child);
        assert_eq!(space.unmap(whole), Ok(3 + 16 + 2));
        assert!((0..whole.len()).all(|at| mapped(at) == Use::Free));
    }
    check::<arch::Sv39Svnapot>();
    check::<arch::AArch64Runs>();
}

#[test]
fn a_fork_whose_kernel_unwinds_releases_no_frame_that_it_has_not_shared() {
    let mmu = as_machine::<arch::Sv39>(64);
    let kernel = mmu.kernel();
    let space = AddressSpace::new(mmu).unwrap();
    let frames: Vec<Pfn> = (0..3).map(|at| kernel.0.data(at).unwrap()).collect();
    space.map_each(pages(0x1000, 3), frames.iter().copied(), RW).unwrap();
    kernel.unwinds_at(SHARE, 1);
    assert!(catch_unwind(AssertUnwindSafe(|| space.fork(SupervisorPages::LeftOut))).is_err());
    kernel.unwinds_at(SHARE, 0);
    assert!(frames.iter().all(|&frame| kernel.0.mappings(frame) == Use::Data(1)));
    let child = space.fork(SupervisorPages::LeftOut).unwrap();
    assert!(frames.iter().all(|&frame| kernel.0.mappings(frame) == Use::Data(2)));
    drop(child);
    assert_eq!(space.unmap(pages(0, 16)), Ok(3));
    assert!(frames.iter().all(|&frame| kernel.0.mappings(frame) == Use::Free));
}

#[test]
fn a_cpu_keeps_what_it_runs_though_the_end_of_another_unwinds() {
    let mmu = as_machine::<arch::Sv39>(64);
    let kernel = mmu.kernel();
    let half = 0xffff_ffc0_0000_0000;
    let own = AddressSpace::lending(mmu, [pages(half, 2 << 18)]).unwrap();
    own.map(pages(half, 1), kernel.0.data(1).unwrap(), RW).unwrap();
    let user = AddressSpace::sharing(&own).unwrap();
    user.activate().unwrap();
    drop((user, own));
    // The CPU's is the last handle of the kernel's own, whose global translations its TLB may hold.
    mmu.idle().unwrap();
    let next = AddressSpace::new(mmu).unwrap();
    let frame = kernel.0.data(2).unwrap();
    next.map(pages(0x1000, 1), frame, RW).unwrap();
    kernel.unwinds_at(RELEASE, 1);
    assert!(catch_unwind(AssertUnwindSafe(|| next.activate())).is_err());
    kernel.unwinds_at(RELEASE, 0);
    drop(next);
    assert_eq!(kernel.0.access(VirtAddr::new(0x1000), false), Met::Memory(PhysAddr::new(frame.get() * 4096)));
    mmu.idle().unwrap();
    assert_eq!(kernel.0.mappings(frame), Use::Free);
}

#[test]
fn a_cursor_walks_over_an_address_space() {
    let mmu = machine::<1>(64);
    let host = mmu.kernel();
    let space = AddressSpace::new(mmu).unwrap();
    space.activate().unwrap();
    let at = [0x1000, 0x1f_f000, 0x20_0000, 0x4000_0000].map(VirtAddr::new);
    for at in at {
        space.map(Pages::one(at.vpn(PageSize::K4)), host.data(at.get() as u64).unwrap(), RW).unwrap();
    }
    let last = VirtAddr::new(0x3f_ffff_f000);
    let visited = space.edit(|edit| {
        let mut cursor = edit.cursor(VirtAddr::new(0))?;
        let mut visited = BTreeSet::new();
        while let Some(leaf) = cursor.next_mapped(last) {
            visited.insert(leaf.at);
            assert_eq!(cursor.at(), leaf.at);
            cursor.unmap()?;
            assert_ne!(host.mappings(leaf.frame), Use::Free, "before the flush");
        }
        Ok(visited)
    });
    assert_eq!(visited.unwrap(), BTreeSet::from(at));
    mmu.idle().unwrap();
    drop(space);
    assert_eq!(host.in_use(), 0);
}
