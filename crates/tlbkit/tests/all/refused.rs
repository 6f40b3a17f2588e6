//! Faults that a repeat does not mend: what the machines' fault registers say, and what `fault` answers to it.
#![cfg(target_pointer_width = "64")]

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::host::{Host, Met, machine, run_as};
use tlbkit::{Access, AddressSpace, Attr, Change, Fault, Mmu, PageSize, Pages, Reason, VirtAddr};

const RW: Attr = Attr::READ.union(Attr::WRITE).union(Attr::USER);
const USED: Attr = RW.union(Attr::ACCESSED).union(Attr::DIRTY);
const M2: usize = 2 << 20;

fn pages(at: usize, count: usize) -> Pages {
    Pages::count(VirtAddr::new(at).vpn(PageSize::K4), count).unwrap()
}

fn at(at: usize) -> VirtAddr {
    VirtAddr::new(at)
}

/// A machine whose CPU runs an address space with a page at `M2`.
fn one_page(attr: Attr) -> (&'static Mmu<Host>, AddressSpace<Host>) {
    run_as(0);
    let mmu = machine::<1>(64);
    let space = AddressSpace::new(mmu).unwrap();
    space.map(pages(M2, 1), mmu.kernel().data(0).unwrap(), attr).unwrap();
    space.activate().unwrap();
    (mmu, space)
}

/// What an access does, and its first two faults on a user's page that allows everything: `None` is a retry.
type Seen = (&'static str, bool, [Option<Reason>; 2]);

fn seen(access: Access) -> Seen {
    let all = RW | Attr::EXEC;
    let kinds = [("load", Attr::READ), ("store", Attr::WRITE), ("fetch", Attr::EXEC)];
    let does = kinds.iter().find(|(_, right)| access.allowed(*right | Attr::USER)).unwrap().0;
    let others = kinds.iter().filter(|(_, right)| access.allowed(*right | Attr::USER)).count();
    assert_eq!(others, 1, "one of the three");
    let by_user = !access.allowed(all.difference(Attr::USER));
    let (mmu, space) = one_page(all | Attr::ACCESSED | Attr::DIRTY);
    let answers = [(); 2].map(|()| match space.fault(at(M2), access).unwrap() {
        Fault::Retry => None,
        Fault::Refused(reason) => Some(reason),
        other => panic!("{other:?}"),
    });
    mmu.idle().unwrap();
    (does, by_user, answers)
}

/// The reasons that the machine reports, and those of a fault that comes again.
const fn at_once(reason: Reason) -> [Option<Reason>; 2] {
    [Some(reason), Some(reason)]
}
const fn again(reason: Reason) -> [Option<Reason>; 2] {
    [None, Some(reason)]
}

#[test]
fn error_codes_of_x86_64() {
    const P: u64 = 1;
    const W: u64 = 2;
    const U: u64 = 4;
    let table: &[(u64, Seen)] = &[
        (0, ("load", false, again(Reason::OtherRoot))),
        (U, ("load", true, again(Reason::OtherRoot))),
        (W, ("store", false, again(Reason::OtherRoot))),
        (U | W, ("store", true, again(Reason::OtherRoot))),
        (P | U, ("load", true, again(Reason::Unknown))),
        (P | U | W, ("store", true, again(Reason::Unknown))),
        (P | U | 1 << 4, ("fetch", true, again(Reason::Unknown))),
        // SMAP refuses the load; the store may be refused by an older entry of the TLB, too, and SMEP's fetch by one with XD.
        (P, ("load", false, at_once(Reason::UserPage))),
        (P | W, ("store", false, again(Reason::UserPage))),
        (P | 1 << 4, ("fetch", false, again(Reason::UserPage))),
        (P | U | 1 << 3, ("load", true, at_once(Reason::Entry))),
        (P | U | W | 1 << 5, ("store", true, at_once(Reason::ProtectionKey))),
        (P | U | W | 1 << 6, ("store", true, at_once(Reason::ShadowStack))),
        (U | 1 << 6, ("load", true, again(Reason::OtherRoot))),
        (P | U | 1 << 7, ("load", true, at_once(Reason::Memory))),
        (P | U | 1 << 15, ("load", true, at_once(Reason::Memory))),
        (P | U | W | 1 << 31, ("store", true, at_once(Reason::Memory))),
    ];
    for &(error, expected) in table {
        assert_eq!(seen(Access::from_x86_64(error)), expected, "{error:#x}");
    }
}

#[test]
fn causes_of_riscv() {
    const SPP: usize = 1 << 8;
    const SUM: usize = 1 << 18;
    let (fetch, load, store) = (12, 13, 15);
    let table: &[(usize, usize, Seen)] = &[
        (fetch, 0, ("fetch", true, again(Reason::Unknown))),
        (load, 0, ("load", true, again(Reason::Unknown))),
        (store, SUM, ("store", true, again(Reason::Unknown))),
        (load, SPP, ("load", false, at_once(Reason::UserPage))),
        (store, SPP, ("store", false, at_once(Reason::UserPage))),
        (load, SPP | SUM, ("load", false, again(Reason::UserPage))),
        (fetch, SPP | SUM, ("fetch", false, at_once(Reason::UserPage))),
        (0, 0, ("fetch", true, at_once(Reason::Alignment))),
        (1, 0, ("fetch", true, at_once(Reason::Memory))),
        (4, SPP, ("load", false, at_once(Reason::Alignment))),
        (5, 0, ("load", true, at_once(Reason::Memory))),
        (6, 0, ("store", true, at_once(Reason::Alignment))),
        (7, SPP, ("store", false, at_once(Reason::Memory))),
    ];
    for &(scause, sstatus, expected) in table {
        assert_eq!(seen(Access::from_riscv(scause, sstatus).unwrap()), expected, "{scause} {sstatus:#x}");
    }
    let others = (0..64).filter(|cause| !table.iter().any(|row| row.0 == *cause));
    for scause in others.chain((0..16).map(|interrupt| 1 << 63 | interrupt)) {
        assert_eq!(Access::from_riscv(scause, 0), None, "{scause:#x}");
    }
    // Make eXecutable Readable.
    let load = Access::from_riscv(13, 1 << 19).unwrap();
    assert!(load.allowed(Attr::EXEC | Attr::USER) && load.allowed(Attr::READ | Attr::USER));
    assert!(!load.allowed(Attr::WRITE | Attr::USER));
}

#[test]
#[cfg_attr(miri, ignore = "hundreds of frames or machines, each written word by word")]
fn syndromes_of_aarch64() {
    let classes: [(u64, &str, bool); 4] =
        [(0x20, "fetch", true), (0x21, "fetch", false), (0x24, "load", true), (0x25, "load", false)];
    let class = |class: u64| class << 26 | 1 << 25;
    for class_of in (0..64).filter(|of| !classes.iter().any(|row| row.0 == *of)) {
        assert_eq!(Access::from_aarch64(class(class_of) | 7), None, "{class_of:#x}");
    }
    // Every fault status code, by ranges of the manual's table.
    let status = |user: bool, code: u64| {
        let unknown = if user { Reason::Unknown } else { Reason::UserPage };
        match code {
            0..=3 | 0x29 | 0x2c => at_once(Reason::Entry),
            4..=7 | 0x2a | 0x2b => again(Reason::OtherRoot),
            8..=15 | 0x30 => again(unknown),
            0x10 | 0x12..=0x18 | 0x1b..=0x1f | 0x22..=0x28 | 0x31 => at_once(Reason::Memory),
            0x21 => at_once(Reason::Alignment),
            _ => at_once(Reason::Unknown),
        }
    };
    for (of, does, user) in classes {
        for code in 0..64 {
            let access = Access::from_aarch64(class(of) | code).unwrap();
            assert_eq!(seen(access), (does, user, status(user, code)), "{of:#x} {code:#x}");
        }
    }
    let data = |bits: u64| seen(Access::from_aarch64(class(0x24) | 0x0f | bits).unwrap());
    assert_eq!(data(1 << 6), ("store", true, again(Reason::Unknown)));
    // A cache maintenance instruction sets WnR.
    assert_eq!(data(1 << 6 | 1 << 8), ("load", true, again(Reason::Unknown)));
    assert_eq!(data(1 << 7), ("load", true, at_once(Reason::Memory)));
    assert_eq!(data(1 << 38), ("load", true, at_once(Reason::ProtectionKey)));
    assert_eq!(data(1 << 40), ("load", true, at_once(Reason::ShadowStack)));
    // These bits belong to permission faults.
    let translation = Access::from_aarch64(class(0x24) | 7 | 1 << 38 | 1 << 40).unwrap();
    assert_eq!(seen(translation), ("load", true, again(Reason::OtherRoot)));
}

#[test]
fn causes_of_mips32() {
    const USER: u32 = 2 << 3 | 2;
    let again = again(Reason::Unknown);
    let table: &[(u32, Seen)] = &[
        (1, ("store", true, again)),
        (2, ("load", true, again)),
        (3, ("store", true, again)),
        (4, ("load", true, at_once(Reason::Alignment))),
        (5, ("store", true, at_once(Reason::Alignment))),
        (6, ("fetch", true, at_once(Reason::Memory))),
        (7, ("load", true, at_once(Reason::Memory))),
        (19, ("load", true, again)),
        (20, ("fetch", true, again)),
    ];
    for code in 0..32 {
        let access = Access::from_mips32(code << 2 | 1 << 31 | 0xff << 8, USER).map(seen);
        assert_eq!(access, table.iter().find(|row| row.0 == code).map(|row| row.1), "{code}");
    }
    assert!(Access::from_mips32(1 << 2, 2).is_some_and(|access| access.allowed(Attr::WRITE)), "kernel mode");
}

#[test]
fn the_table_answers_before_the_register() {
    let key = Access::from_x86_64(0b10_0111);
    let (mmu, space) = one_page(USED);
    assert_eq!(space.fault(at(M2 + 0x1000), key), Ok(Fault::NotMapped));
    assert_eq!(space.fault(at(M2), key), Ok(Fault::Refused(Reason::ProtectionKey)));
    // A copy comes first; what else the hardware has against the access shows when it is repeated.
    space.protect(pages(M2, 1), Change::COPY_ON_WRITE).unwrap();
    assert!(matches!(space.fault(at(M2), key), Ok(Fault::CopyOnWrite(_))));
    // Where the page has no part in it, its entry does not count.
    for access in [Access::from_riscv(7, 0).unwrap(), Access::from_riscv(6, 0).unwrap()] {
        for place in [M2, M2 + 0x1000, usize::MAX / 2] {
            assert!(matches!(space.fault(at(place), access), Ok(Fault::Refused(_))), "{access:?} {place:#x}");
            let inside = space.edit(|edit| edit.fault(at(place), access));
            assert!(matches!(inside, Ok(Fault::Refused(_))), "{access:?} {place:#x}");
        }
    }
    // A refused access sets no status bit.
    let clean = pages(M2 + 0x2000, 1);
    space.map(clean, mmu.kernel().data(0).unwrap(), RW).unwrap();
    assert_eq!(space.fault(at(M2 + 0x2000), key), Ok(Fault::Refused(Reason::ProtectionKey)));
    assert!(!space.lookup(at(M2 + 0x2000)).unwrap().attr.intersects(Attr::ACCESSED | Attr::DIRTY));
    // A page that is not the user's is refused for no reason of the user's.
    let kernels = pages(M2 + 0x3000, 1);
    space.map(kernels, mmu.kernel().data(0).unwrap(), USED.difference(Attr::USER)).unwrap();
    let load = Access::from_riscv(13, 1 << 8).unwrap();
    let answers = [(); 2].map(|()| space.fault(at(M2 + 0x3000), load).unwrap());
    assert_eq!(answers, [Fault::Retry, Fault::Refused(Reason::Unknown)]);
    mmu.idle().unwrap();
}

/// A kernel of x86-64 with SMAP reads a page of the user's: the processor refuses whatever the TLB holds. A kernel that does not
/// decode its fault register gets the answer at the second fault.
#[test]
fn a_supervisor_reads_a_page_of_the_user() {
    let (mmu, space) = one_page(USED);
    let fault = || space.edit(|edit| edit.fault(at(M2), Access::LOAD)).unwrap();
    assert_eq!([fault(), fault()], [Fault::Retry, Fault::Refused(Reason::UserPage)]);
    // Both methods that answer know of each other's answers.
    let fault = |inside: bool| {
        if inside {
            space.edit(|edit| edit.fault(at(M2), Access::LOAD))
        } else {
            space.fault(at(M2), Access::LOAD)
        }
    };
    for [first, second] in [[false, false], [false, true], [true, false], [true, true]] {
        assert_eq!(fault(first), Ok(Fault::Retry));
        assert_eq!(fault(second), Ok(Fault::Refused(Reason::UserPage)));
    }
    mmu.idle().unwrap();
}

#[test]
#[cfg_attr(miri, ignore = "hundreds of frames or machines, each written word by word")]
fn a_fault_comes_again_on_any_page() {
    run_as(0);
    let mmu = machine::<1>(2048);
    let lent = Pages::count(at(4 << 30).vpn(PageSize::K4), 1 << 18).unwrap();
    let kernel = AddressSpace::lending(mmu, [lent]).unwrap();
    let space = AddressSpace::sharing(&kernel).unwrap();
    let host = mmu.kernel();
    let first =
        (0..1200).map(|_| host.data(0).unwrap()).find(|frame| frame.is_aligned(PageSize::M2, PageSize::K4));
    let first = first.unwrap();
    (1..512).for_each(|_| _ = host.data(0));
    space.edit(|edit| edit.map_sized(pages(M2, 512), first, PageSize::M2, USED)).unwrap();
    kernel.map(pages(4 << 30, 1), host.data(0).unwrap(), USED).unwrap();
    space.activate().unwrap();
    for place in [M2 + 0x5000, 4 << 30] {
        let answers = [(); 3].map(|()| space.fault(at(place), Access::STORE.by_user()).unwrap());
        let refused = Fault::Refused(Reason::Unknown);
        // After the answer the count begins anew: who repeats the access all the same is told again.
        assert_eq!(answers, [Fault::Retry, refused, Fault::Retry], "{place:#x}");
    }
    mmu.idle().unwrap();
}

/// What lies between two faults at the same place.
#[test]
fn a_fault_that_comes_again_later_is_another_one() {
    let (mmu, space) = one_page(USED);
    space.map(pages(M2 + 0x1000, 1), mmu.kernel().data(0).unwrap(), RW).unwrap();
    let fault = |place: usize, access: Access| space.fault(at(place), access).unwrap();
    let (load, store) = (Access::LOAD.by_user(), Access::STORE.by_user());
    let refused = Fault::Refused(Reason::Unknown);
    // Another access, another page, and a status bit that the entry lacked.
    assert_eq!([fault(M2, load), fault(M2, store), fault(M2, load)], [Fault::Retry; 3]);
    assert_eq!([fault(M2 + 0x1000, load), fault(M2, load)], [Fault::Retry; 2]);
    assert_eq!([fault(M2 + 0x1000, load), fault(M2 + 0x1000, store)], [Fault::Retry; 2]);
    assert_eq!(fault(M2 + 0x1000, store), refused);
    // Any change.
    assert_eq!(fault(M2, load), Fault::Retry);
    space.protect(pages(M2 + 0x1000, 1), Change::clear(Attr::WRITE)).unwrap();
    assert_eq!(fault(M2, load), Fault::Retry);
    space.edit(|_| Ok(())).unwrap();
    assert_eq!(fault(M2, load), Fault::Retry);
    // No change: the same address space is activated again, and looked up.
    space.activate().unwrap();
    assert!(space.lookup(at(M2)).is_some());
    mmu.on_interrupt();
    assert_eq!(fault(M2, load), refused);
    // Another address space, which the CPU does not run: a kernel asks for somebody else.
    let other = AddressSpace::new(mmu).unwrap();
    other.map(pages(M2, 1), mmu.kernel().data(0).unwrap(), USED).unwrap();
    assert_eq!([(); 2].map(|()| other.fault(at(M2), load)), [Ok(Fault::Retry); 2]);
    mmu.idle().unwrap();
}

#[test]
fn a_cpu_that_runs_another_address_space_is_told() {
    let (mmu, space) = one_page(USED);
    let other = AddressSpace::new(mmu).unwrap();
    other.activate().unwrap();
    let access = Access::from_riscv(13, 0).unwrap();
    assert_eq!(space.fault(at(M2), access), Ok(Fault::Refused(Reason::OtherRoot)));
    assert_eq!(space.fault(at(M2 + 0x1000), access), Ok(Fault::NotMapped));
    space.activate().unwrap();
    assert_eq!(space.fault(at(M2), access), Ok(Fault::Retry));
    mmu.idle().unwrap();
}

/// Another CPU takes a right and gives it back, again and again: the CPU that faults in between is never told that it is hopeless.
#[test]
fn a_right_that_comes_and_goes_is_no_reason() {
    const ROUNDS: usize = if cfg!(miri) { 20 } else { 3000 };
    let mmu = machine::<2>(64);
    let host = mmu.kernel();
    let space = AddressSpace::new(mmu).unwrap();
    space.map(pages(M2, 1), host.data(0).unwrap(), USED).unwrap();
    let (runs, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let faults = std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            run_as(1);
            space.activate().unwrap();
            runs.store(1, Ordering::SeqCst);
            let mut faults = [0; 2];
            while done.load(Ordering::SeqCst) == 0 {
                if host.access(at(M2), true) == Met::Fault {
                    match space.fault(at(M2), Access::from_riscv(15, 0).unwrap()) {
                        Ok(Fault::Retry) => faults[0] += 1,
                        Ok(Fault::NoRight(_)) => faults[1] += 1,
                        other => panic!("{other:?}"),
                    }
                }
                if host.pending() {
                    mmu.on_interrupt();
                }
            }
            mmu.idle().unwrap();
            mmu.offline().unwrap();
            faults
        });
        run_as(0);
        while runs.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        for _ in 0..ROUNDS {
            space
                .edit(|edit| {
                    edit.protect(pages(M2, 1), Change::clear(Attr::WRITE))?;
                    std::thread::yield_now();
                    edit.protect(pages(M2, 1), Change::set(Attr::WRITE))
                })
                .unwrap();
            space.protect(pages(M2, 1), Change::clear(Attr::WRITE)).unwrap();
            space.protect(pages(M2, 1), Change::set(Attr::WRITE)).unwrap();
        }
        done.store(1, Ordering::SeqCst);
        other.join().unwrap()
    });
    assert!(cfg!(miri) || faults[0] > 0, "{faults:?}");
}
