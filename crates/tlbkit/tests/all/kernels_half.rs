//! The kernel's half, which every address space shares: which CPUs are told of its changes, and what is not to get out
//! of it.
#![cfg(target_pointer_width = "64")]

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::host::{Host, Met, Use, machine, run_as};
use tlbkit::{
    Access, AddressSpace, Attr, Change, Error, Fault, Mmu, PageSize, Pages, Pfn, SupervisorPages, VirtAddr,
};

const GIB: usize = 1 << 30;
/// The top-level slots that are lent, and a page in them that user programs may read, so that this machine's can.
const LENT: usize = 4 * GIB;
const AT: VirtAddr = VirtAddr::new(LENT + 0x5000);
const READ: Attr = Attr::READ.union(Attr::USER);
const GLOBAL: Attr = READ.union(Attr::GLOBAL);

fn lending<const CPUS: usize>(mmu: &'static Mmu<Host, CPUS>) -> AddressSpace<Host, CPUS> {
    let pages = Pages::count(VirtAddr::new(LENT).vpn(PageSize::K4), 2 * GIB / 4096).unwrap();
    AddressSpace::lending(mmu, [pages]).unwrap()
}

fn page() -> Pages {
    Pages::one(AT.vpn(PageSize::K4))
}

#[test]
fn a_cpu_whose_first_call_is_a_lookup_is_told_of_changes() {
    let mmu = machine::<2>(64);
    let kernel = lending(mmu);
    let user = AddressSpace::sharing(&kernel).unwrap();
    kernel.map(page(), mmu.kernel().data(7).unwrap(), GLOBAL).unwrap();
    // 1: CPU 1 has the translation. 2: it is unmapped.
    let step = AtomicUsize::new(0);
    let after = std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            run_as(1);
            assert!(kernel.lookup(AT).is_some());
            user.activate().unwrap();
            assert!(matches!(mmu.kernel().access(AT, false), Met::Memory(_)));
            step.store(1, Ordering::SeqCst);
            while step.load(Ordering::SeqCst) < 2 {
                mmu.on_interrupt();
                std::thread::yield_now();
            }
            let after = mmu.kernel().access(AT, false);
            mmu.idle().unwrap();
            mmu.offline().unwrap();
            after
        });
        run_as(0);
        while step.load(Ordering::SeqCst) < 1 {
            std::thread::yield_now();
        }
        let unmapped = kernel.unmap(page());
        step.store(2, Ordering::SeqCst);
        assert_eq!(unmapped, Ok(1));
        other.join().unwrap()
    });
    assert_eq!(after, Met::Fault);
}

#[test]
fn a_late_interrupt_brings_no_cpu_online() {
    let mmu = machine::<2>(64);
    run_as(0);
    let kernel = lending(mmu);
    kernel.map(page(), mmu.kernel().data(7).unwrap(), GLOBAL).unwrap();
    let done = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            run_as(1);
            mmu.online().unwrap();
            mmu.offline().unwrap();
            mmu.on_interrupt();
            // It could stop here; a CPU that is asked even so would keep the other one waiting.
            done.store(1, Ordering::SeqCst);
            while done.load(Ordering::SeqCst) < 2 {
                mmu.on_interrupt();
                std::thread::yield_now();
            }
        });
        while done.load(Ordering::SeqCst) < 1 {
            std::thread::yield_now();
        }
        let unmapped = kernel.unmap(page());
        done.store(2, Ordering::SeqCst);
        other.join().unwrap();
        assert_eq!(unmapped, Ok(1));
    });
    assert_eq!(mmu.kernel().interrupted.load(Ordering::Relaxed), 0);
}

#[test]
fn a_fault_in_the_kernels_half_is_mended_there() {
    let mmu = machine::<2>(64);
    run_as(0);
    let kernel = lending(mmu);
    let user = AddressSpace::sharing(&kernel).unwrap();
    kernel.map(page(), mmu.kernel().data(7).unwrap(), GLOBAL).unwrap();
    // What hardware without Svadu leaves to software.
    run_as(1);
    user.activate().unwrap();
    assert_eq!(user.fault(AT, Access::LOAD.by_user()), Ok(Fault::Retry));
    assert!(kernel.lookup(AT).unwrap().attr.contains(Attr::ACCESSED));
    assert!(matches!(mmu.kernel().access(AT, false), Met::Memory(_)));
    // More rights are made known: the kernel has no handler for a fault on a page that it may use.
    let other = move || {
        run_as(1);
        if mmu.kernel().pending() {
            mmu.on_interrupt();
        }
        run_as(0);
    };
    mmu.kernel().meanwhile.set(Box::new(other)).ok();
    run_as(0);
    assert_eq!(mmu.kernel().interrupted.load(Ordering::Relaxed), 0);
    kernel.protect(page(), Change::set(Attr::WRITE | Attr::DIRTY)).unwrap();
    assert_eq!(mmu.kernel().interrupted.load(Ordering::Relaxed), 1);
    run_as(1);
    assert!(matches!(mmu.kernel().access(AT, true), Met::Memory(_)));
    mmu.idle().unwrap();
}

#[test]
fn a_fault_in_the_kernels_half_does_not_release_what_the_edit_has_unmapped() {
    static SEEN: Mutex<Vec<Met>> = Mutex::new(Vec::new());
    run_as(0);
    let mmu = machine::<1>(64);
    let kernel = lending(mmu);
    let user = AddressSpace::sharing(&kernel).unwrap();
    kernel.map(page(), mmu.kernel().data(7).unwrap(), GLOBAL).unwrap();
    let own = VirtAddr::new(0x1000);
    user.map(Pages::one(own.vpn(PageSize::K4)), mmu.kernel().data(1).unwrap(), READ).unwrap();
    user.activate().unwrap();
    assert!(matches!(mmu.kernel().access(own, false), Met::Memory(_)), "the TLB has the translation");
    let on_release = move || SEEN.lock().unwrap().push(mmu.kernel().access(own, false));
    assert!(mmu.kernel().on_release.set(Box::new(on_release)).is_ok());
    let answer = user.edit(|edit| {
        edit.unmap(Pages::one(own.vpn(PageSize::K4)))?;
        // The answer to a store needs no flush.
        edit.fault(AT, Access::STORE.by_user())
    });
    assert!(matches!(answer, Ok(Fault::NoRight(_))), "{answer:?}");
    assert_eq!(*SEEN.lock().unwrap(), [Met::Fault]);
    mmu.idle().unwrap();
}

#[test]
fn what_is_global_is_forgotten_before_another_half_is_there() {
    let mmu = machine::<1>(64);
    let kernel = lending(mmu);
    let user = AddressSpace::sharing(&kernel).unwrap();
    kernel.map(page(), mmu.kernel().data(7).unwrap(), GLOBAL).unwrap();
    user.activate().unwrap();
    assert!(matches!(mmu.kernel().access(AT, false), Met::Memory(_)));
    mmu.idle().unwrap();
    drop((user, kernel));
    // It shares nothing: what the TLB holds of every address space is none of its own.
    let other = AddressSpace::new(mmu).unwrap();
    other.activate().unwrap();
    assert_eq!(mmu.kernel().access(AT, false), Met::Fault);
    mmu.offline().unwrap();
    drop(other);
    assert_eq!(mmu.kernel().in_use(), 0);
}

#[test]
fn a_cpu_that_goes_offline_flushes_and_lets_the_kernels_half_go() {
    let mmu = machine::<1>(64);
    let kernel = lending(mmu);
    kernel.map(page(), mmu.kernel().data(7).unwrap(), GLOBAL).unwrap();
    kernel.activate().unwrap();
    let before = mmu.kernel().full_flushes.load(Ordering::Relaxed);
    mmu.offline().unwrap();
    assert!(mmu.kernel().full_flushes.load(Ordering::Relaxed) > before);
    drop(kernel);
    assert_eq!(mmu.kernel().in_use(), 0);
}

#[test]
fn whoever_shares_with_one_that_shares_has_the_kernels_half() {
    let mmu = machine::<1>(64);
    let kernel = lending(mmu);
    let first = AddressSpace::sharing(&kernel).unwrap();
    let second = AddressSpace::sharing(&first).unwrap();
    let frame = mmu.kernel().data(7).unwrap();
    kernel.map(page(), frame, GLOBAL).unwrap();
    assert_eq!(second.lookup(AT).map(|leaf| leaf.frame), Some(frame));
    let own = mmu.kernel().data(8).unwrap();
    assert_eq!(second.map(page(), own, READ), Err(Error::Borrowed { at: AT }));
    mmu.kernel().put_back(own);
    drop((first, second, kernel));
    assert_eq!(mmu.kernel().mappings(frame), Use::Free);
    assert_eq!(mmu.kernel().in_use(), 0);
}

#[test]
fn a_direct_map_is_made_of_the_largest_pages_that_can_be_lent() {
    let mmu = machine::<1>(64);
    let kernel = lending(mmu);
    let all = Pages::count(VirtAddr::new(LENT).vpn(PageSize::K4), GIB / 4096).unwrap();
    kernel.map_linear(all, Pfn::new(0x8000_0000 / 4096), Attr::READ).unwrap();
    assert_eq!(kernel.lookup(AT).map(|leaf| leaf.size), Some(PageSize::M2));
    // Nothing of this machine's memory: it must not be released.
    std::mem::forget(kernel);
}

/// Two top-level slots of Sv39 that are far apart cost two nodes, and those between them are each address space's own.
#[test]
fn several_ranges_are_lent_and_what_is_between_them_is_not() {
    let mmu = machine::<1>(64);
    let slot = |gib: usize| Pages::count(VirtAddr::new(gib * GIB).vpn(PageSize::K4), GIB / 4096).unwrap();
    let at = |gib: usize| slot(gib).first().address(PageSize::K4);
    let kernel = AddressSpace::lending(mmu, [slot(9), slot(4)]).unwrap();
    assert_eq!(mmu.kernel().in_use(), 4, "the control block, the root, and a node for each slot");
    let user = AddressSpace::sharing(&kernel).unwrap();
    let frame = |word| mmu.kernel().data(word).unwrap();
    for gib in [4, 9] {
        kernel.map(Pages::one(slot(gib).first()), frame(1), GLOBAL).unwrap();
        let own = Pages::one(slot(gib).first());
        assert_eq!(user.map(own, Pfn::new(0), READ), Err(Error::Borrowed { at: at(gib) }));
    }
    for gib in [3, 5, 8, 10] {
        let page = Pages::one(slot(gib).first());
        assert_eq!(kernel.map(page, Pfn::new(0), GLOBAL), Err(Error::WrongAttr { attr: Attr::GLOBAL }));
        user.map(page, frame(2), if gib == 5 { Attr::READ } else { READ }).unwrap();
    }
    let both = Pages::new(slot(8).first(), slot(9).first()).unwrap();
    assert_eq!(user.unmap(both), Err(Error::Borrowed { at: at(9) }));
    // A copy has the pages between the ranges, the supervisor's too, and shares the ranges.
    let mut copied = Vec::new();
    let mut copy = |leaf: tlbkit::Leaf| {
        copied.push(leaf.at);
        mmu.kernel().data(3).ok_or(Error::NoRoom)
    };
    let child = user.fork(SupervisorPages::Copied(&mut copy)).unwrap();
    assert_eq!(copied, [at(5)]);
    child.activate().unwrap();
    for gib in [3, 4, 8, 9, 10] {
        assert!(matches!(mmu.kernel().access(at(gib), false), Met::Memory(_)), "{gib}");
    }
    mmu.idle().unwrap();
    mmu.offline().unwrap();
    drop((child, user, kernel));
    assert_eq!(mmu.kernel().in_use(), 0);
}

/// docs/embedding.md, "Trampolines and two roots": the kernel's root maps what no process has, and both map the trampoline.
#[test]
fn the_kernel_runs_by_a_root_of_its_own_while_a_process_is_active() {
    let mmu = machine::<2>(64);
    let host = mmu.kernel();
    run_as(0);
    let slot = Pages::count(VirtAddr::new(LENT).vpn(PageSize::K4), GIB / 4096).unwrap();
    let kernel = AddressSpace::lending(mmu, [slot]).unwrap();
    let (inside, own) = (VirtAddr::new(GIB), VirtAddr::new(0x1000));
    let one = |at: VirtAddr| Pages::one(at.vpn(PageSize::K4));
    kernel.map(page(), host.data(7).unwrap(), GLOBAL).unwrap();
    kernel.map(one(inside), host.data(8).unwrap(), READ).unwrap();
    assert_eq!(kernel.map(one(own), Pfn::new(0), GLOBAL), Err(Error::WrongAttr { attr: Attr::GLOBAL }));
    let process = AddressSpace::sharing(&kernel).unwrap();
    process.map(one(own), host.data(9).unwrap(), READ).unwrap();

    run_as(1);
    kernel.activate().unwrap();
    let kernels_root = host.root() & !(0xffff << 44);
    process.activate().unwrap();
    let users_root = host.root();
    let meets = |root: usize| {
        tlbkit::Kernel::load(host, root);
        [AT, inside, own].map(|at| matches!(host.access(at, false), Met::Memory(_)))
    };
    for _ in 0..2 {
        assert_eq!(meets(kernels_root), [true, true, false]);
        assert_eq!(meets(users_root), [true, false, true]);
    }
    // On the kernel's root this CPU answers for both address spaces.
    let _ = meets(kernels_root);
    let serve = move || {
        run_as(1);
        if mmu.kernel().pending() {
            mmu.on_interrupt();
        }
        run_as(0);
    };
    assert!(host.meanwhile.set(Box::new(serve)).is_ok());
    run_as(0);
    kernel.unmap(one(inside)).unwrap();
    process.unmap(one(own)).unwrap();
    run_as(1);
    assert_eq!((meets(kernels_root), meets(users_root)), ([true, false, false], [true, false, false]));
    assert_eq!(host.mistaken.load(Ordering::Relaxed), 0);
    mmu.offline().unwrap();
    run_as(0);
    mmu.offline().unwrap();
    drop((process, kernel));
    assert_eq!(host.in_use(), 0);
}
