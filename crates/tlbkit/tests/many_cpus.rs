//! More CPUs than a word has bits: `cargo test -p tlbkit --features many-cpus --test many_cpus`.
#![cfg(target_pointer_width = "64")]

#[path = "all/host/mod.rs"]
mod host;

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

use host::{Host, Met, cpu, machine, run_as};
use tlbkit::{AddressSpace, Attr, CpuSet, Kernel as _, Mmu, Overdue, PageSize, Pages, VirtAddr};

const CPUS: usize = 130;
const USER: Attr = Attr::READ.union(Attr::WRITE).union(Attr::USER);

thread_local! {
    static SERVING: Cell<bool> = const { Cell::new(false) };
}

/// Takes the interrupts of all CPUs but `silent`, while one of them waits.
fn serve(mmu: &'static Mmu<Host, CPUS>, silent: usize) {
    let me = cpu();
    if SERVING.replace(true) {
        return;
    }
    for cpu in (0..CPUS).filter(|&cpu| cpu != me && cpu != silent) {
        run_as(cpu);
        if mmu.kernel().pending() {
            mmu.on_interrupt();
        }
    }
    run_as(me);
    SERVING.set(false);
}

fn page(at: usize) -> Pages {
    Pages::one(VirtAddr::new(at).vpn(PageSize::K4))
}

#[test]
fn a_shootdown_reaches_every_cpu_and_waits_for_each() {
    let mmu = machine::<CPUS>(64);
    let host = mmu.kernel();
    let silent: &'static AtomicUsize = Box::leak(Box::new(AtomicUsize::new(CPUS)));
    let waits: &'static AtomicUsize = Box::leak(Box::new(AtomicUsize::new(0)));
    let meanwhile = move || {
        // The silent CPU serves in the end.
        if waits.fetch_add(1, Ordering::Relaxed) > 2 * (1 << 12) {
            silent.store(CPUS, Ordering::Relaxed);
        }
        serve(mmu, silent.load(Ordering::Relaxed));
    };
    assert!(host.meanwhile.set(Box::new(meanwhile)).is_ok());
    run_as(0);
    let half = Pages::count(VirtAddr::new(4 << 30).vpn(PageSize::K4), 1 << 18).unwrap();
    let kernel = AddressSpace::lending(mmu, [half]).unwrap();
    let space = AddressSpace::sharing(&kernel).unwrap();
    let (own, lent) = (VirtAddr::new(0x1000), VirtAddr::new(4 << 30));
    space.map(page(own.get()), host.data(7).unwrap(), USER).unwrap();
    kernel.map(page(lent.get()), host.data(8).unwrap(), USER | Attr::GLOBAL).unwrap();
    for cpu in 0..CPUS {
        run_as(cpu);
        // The changes so far have brought CPU 0 online.
        assert_eq!(mmu.online().is_ok(), cpu > 0);
        space.activate().unwrap();
        assert!(matches!(host.access(own, true), Met::Memory(_)));
        assert!(matches!(host.access(lent, false), Met::Memory(_)));
    }

    // By the last CPU, which all others are to answer; one of them in the second word does so late.
    run_as(CPUS - 1);
    silent.store(100, Ordering::Relaxed);
    space.unmap(page(own.get())).unwrap();
    assert_eq!(host.interrupted.load(Ordering::Relaxed), CPUS - 1);
    let overdue = host.overdue.lock().unwrap().clone();
    assert_eq!(overdue.first(), Some(&Overdue::Replies(CpuSet::from_iter([100]))));
    // The kernel's own address space, which every CPU that is online uses; and one that two CPUs run.
    run_as(64);
    kernel.unmap(page(lent.get())).unwrap();
    assert_eq!(host.interrupted.load(Ordering::Relaxed), 2 * (CPUS - 1));
    for cpu in 0..CPUS {
        run_as(cpu);
        assert_eq!((host.access(own, false), host.access(lent, false)), (Met::Fault, Met::Fault), "{cpu}");
    }
    let two = AddressSpace::sharing(&kernel).unwrap();
    two.map(page(own.get()), host.data(9).unwrap(), USER).unwrap();
    let before = host.interrupted.load(Ordering::Relaxed);
    for cpu in [63, 128] {
        run_as(cpu);
        two.activate().unwrap();
        assert!(matches!(host.access(own, true), Met::Memory(_)));
    }
    run_as(1);
    two.unmap(page(own.get())).unwrap();
    assert_eq!(host.interrupted.load(Ordering::Relaxed), before + 2);
    for cpu in [63, 128] {
        run_as(cpu);
        assert_eq!(host.access(own, false), Met::Fault);
    }

    for cpu in (0..CPUS).rev() {
        run_as(cpu);
        mmu.offline().unwrap();
    }
    drop((two, space, kernel));
    assert_eq!((host.in_use(), mmu.lost()), (0, 0));
    assert_eq!(host.cpu(), 0);
}
