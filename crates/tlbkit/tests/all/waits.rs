//! What a CPU waits for: other CPUs' replies, other CPUs' edits, and the locks of the kernel's own allocator. A wait that has no end
//! says so.
#![cfg(target_pointer_width = "64")]

use crate::host;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex};

use crate::host::{Host, Met, machine, run_as};
use tlbkit::{AddressSpace, Attr, Change, CpuSet, Error, Mmu, Overdue, PageSize, Pages, VirtAddr};

const RW: Attr = Attr::READ.union(Attr::WRITE).union(Attr::USER);

fn page(number: usize) -> Pages {
    Pages::one(VirtAddr::new(number << 12).vpn(PageSize::K4))
}

/// Pages of different last-level nodes.
fn far(number: usize) -> Pages {
    page(number << 9)
}

fn only(cpu: usize) -> CpuSet {
    [cpu].into_iter().collect()
}

/// The lock of a kernel with one type of lock: a CPU that waits for it serves shootdowns.
struct Lock<const CPUS: usize> {
    held: AtomicBool,
    mmu: &'static Mmu<Host, CPUS>,
    waits: AtomicUsize,
}

impl<const CPUS: usize> Lock<CPUS> {
    fn of(mmu: &'static Mmu<Host, CPUS>) -> Arc<Self> {
        Arc::new(Self { held: AtomicBool::new(false), mmu, waits: AtomicUsize::new(0) })
    }

    fn with<R>(&self, f: impl FnOnce() -> R) -> R {
        while self.held.swap(true, Ordering::Acquire) {
            self.waits.fetch_add(1, Ordering::Relaxed);
            let _ = self.mmu.kernel().pending();
            self.mmu.on_interrupt();
            std::thread::yield_now();
        }
        let result = f();
        self.held.store(false, Ordering::Release);
        result
    }
}

/// Waits until all of `count` CPUs have come here, and serves shootdowns meanwhile.
fn meet<const CPUS: usize>(mmu: &'static Mmu<Host, CPUS>, came: &AtomicUsize, count: usize) {
    came.fetch_add(1, Ordering::SeqCst);
    while came.load(Ordering::SeqCst) < count {
        mmu.on_interrupt();
        std::thread::yield_now();
    }
}

/// Four CPUs change one address space and their own, and all frames come from behind one lock, which CPUs hold outside of changes,
/// too. A CPU waits for the lock inside changes, where it cannot serve, and outside of them, where it does.
#[test]
fn frames_come_from_behind_a_contended_lock() {
    const CPUS: usize = 4;
    const ROUNDS: usize = if cfg!(miri) { 8 } else { 1000 };
    let mmu = machine::<CPUS>(1024);
    let host = mmu.kernel();
    let lock = Lock::of(mmu);
    let inner = Arc::clone(&lock);
    // The holder lets another CPU run, so that this one finds the lock taken.
    let behind = move || inner.with(std::thread::yield_now);
    assert!(host.on_frame.set(Box::new(behind)).is_ok());
    let inner = Arc::clone(&lock);
    assert!(host.on_release.set(Box::new(move || inner.with(std::thread::yield_now))).is_ok());
    let shared = AddressSpace::new(mmu).unwrap();
    let (start, done) = (Barrier::new(CPUS), AtomicUsize::new(0));
    let stale = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for cpu in 0..CPUS {
            let (shared, lock, start, done, stale) = (&shared, &lock, &start, &done, &stale);
            scope.spawn(move || {
                run_as(cpu);
                mmu.online().unwrap();
                shared.activate().unwrap();
                start.wait();
                for round in 0..ROUNDS {
                    // Each CPU has pages of its own in the shared address space: a map takes nodes, an unmap asks all CPUs.
                    let (mine, at) = (far(1 + cpu), far(1 + cpu).first().address(PageSize::K4));
                    let pattern = (cpu * ROUNDS + round) as u64;
                    let frame = lock.with(|| host.data(pattern)).unwrap();
                    shared.map(mine, frame, RW).unwrap();
                    match host.access(at, true) {
                        Met::Memory(met) => {
                            let word = host.word(met).load(Ordering::Relaxed);
                            stale.fetch_add(usize::from(word != pattern), Ordering::Relaxed);
                        }
                        // Another CPU has not been asked: this one repeats the access.
                        Met::Fault => {}
                    }
                    assert_eq!(shared.unmap(mine), Ok(1));
                    // A new address space takes its frames outside of any change.
                    if round % 8 == 0 {
                        let own = AddressSpace::new(mmu).unwrap();
                        let frame = lock.with(|| host.data(pattern)).unwrap();
                        own.map(mine, frame, RW).unwrap();
                    }
                    if host.pending() {
                        mmu.on_interrupt();
                    }
                }
                mmu.idle().unwrap();
                meet(mmu, done, CPUS);
                mmu.offline().unwrap();
            });
        }
    });
    drop(shared);
    assert_eq!((host.in_use(), mmu.lost(), stale.into_inner()), (0, 0, 0));
    assert!(lock.waits.load(Ordering::Relaxed) > 0, "the lock is contended");
    assert!(host.interrupted.load(Ordering::Relaxed) > 0, "CPUs ask each other");
}

/// The kernel holds the lock of its frames during a change: two CPUs wait for each other, and one says so.
#[test]
fn a_lock_that_is_held_over_a_change_is_reported() {
    let mmu = machine::<2>(64);
    let host = mmu.kernel();
    let lock = Lock::of(mmu);
    let inner = Arc::clone(&lock);
    let space = AddressSpace::new(mmu).unwrap();
    run_as(0);
    space.map(page(1), host.data(1).unwrap(), RW).unwrap();
    let (held, done) = (AtomicBool::new(false), AtomicUsize::new(0));
    let behind = move || {
        if host::cpu() == 1 {
            inner.with(|| ());
        }
    };
    assert!(host.on_frame.set(Box::new(behind)).is_ok());
    let other = AddressSpace::new(mmu).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            run_as(1);
            mmu.online().unwrap();
            space.activate().unwrap();
            held.store(true, Ordering::SeqCst);
            while !lock.held.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            // Inside this map the CPU waits for the lock.
            other.map(far(1), host.data(2).unwrap(), RW).unwrap();
            meet(mmu, &done, 2);
            mmu.offline().unwrap();
        });
        let watch = scope.spawn(|| {
            while host.overdue.lock().unwrap().is_empty() {
                std::thread::yield_now();
            }
            // A real kernel stops here.
            lock.held.store(false, Ordering::SeqCst);
        });
        mmu.online().unwrap_err();
        while !held.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        lock.held.store(true, Ordering::SeqCst);
        while lock.waits.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        assert_eq!(space.unmap(page(1)), Ok(1));
        watch.join().unwrap();
        meet(mmu, &done, 2);
    });
    assert_eq!(host.overdue.lock().unwrap()[0], Overdue::Replies(only(1)));
}

/// A CPU acknowledges its interrupt while it waits for a lock inside a change, where it cannot serve: the interrupt comes again.
#[test]
fn an_interrupt_that_is_taken_inside_a_change_comes_again() {
    let mmu = machine::<2>(64);
    let host = mmu.kernel();
    let (space, other) = (AddressSpace::new(mmu).unwrap(), AddressSpace::new(mmu).unwrap());
    run_as(0);
    space.map(page(1), host.data(1).unwrap(), RW).unwrap();
    let (inside, unmapped) = (Arc::new(AtomicBool::new(false)), AtomicBool::new(false));
    let is_inside = Arc::clone(&inside);
    let waits = move || {
        if host::cpu() == 1 && !is_inside.swap(true, Ordering::SeqCst) {
            while !host.pending() {
                std::thread::yield_now();
            }
            mmu.on_interrupt();
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            run_as(1);
            space.activate().unwrap();
            assert!(host.on_frame.set(Box::new(waits)).is_ok());
            other.map(far(1), host.data(2).unwrap(), RW).unwrap();
            assert!(!unmapped.load(Ordering::SeqCst), "the change has served nothing");
            assert!(host.pending(), "the interrupt has come again");
            mmu.on_interrupt();
            assert!(!host.pending(), "and no more");
            mmu.idle().unwrap();
        });
        while !inside.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        assert_eq!(space.unmap(page(1)), Ok(1));
        unmapped.store(true, Ordering::SeqCst);
    });
}

#[test]
fn a_handler_that_serves_nothing_is_reported() {
    let mmu = machine::<3>(64);
    let host = mmu.kernel();
    run_as(0);
    let space = AddressSpace::new(mmu).unwrap();
    space.map(page(1), host.data(1).unwrap(), RW).unwrap();
    let (ready, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for cpu in [1, 2] {
            let (ready, done, space) = (&ready, &done, &space);
            scope.spawn(move || {
                run_as(cpu);
                space.activate().unwrap();
                ready.fetch_add(1, Ordering::SeqCst);
                // The handler of CPU 2 forgets what it is for, until somebody complains.
                while cpu == 2 && host.overdue.lock().unwrap().is_empty() {
                    let _ = host.pending();
                    std::thread::yield_now();
                }
                meet(mmu, done, 3);
                mmu.idle().unwrap();
            });
        }
        while ready.load(Ordering::SeqCst) < 2 {
            std::thread::yield_now();
        }
        assert_eq!(space.unmap(page(1)), Ok(1));
        meet(mmu, &done, 3);
    });
    let overdue = host.overdue.lock().unwrap();
    assert!(matches!(overdue[0], Overdue::Replies(cpus) if cpus.contains(2)), "{overdue:?}");
}

#[test]
fn an_edit_that_has_no_end_is_reported() {
    let mmu = machine::<2>(64);
    let host = mmu.kernel();
    let space = AddressSpace::new(mmu).unwrap();
    let inside = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            run_as(1);
            let edited = space.edit(|_| {
                inside.store(true, Ordering::SeqCst);
                while host.overdue.lock().unwrap().is_empty() {
                    std::thread::yield_now();
                }
                Ok(())
            });
            assert_eq!(edited, Ok(()));
        });
        run_as(0);
        while !inside.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        space.map(page(1), host.data(1).unwrap(), RW).unwrap();
    });
    assert_eq!(host.overdue.lock().unwrap()[0], Overdue::Edit);
}

/// `Kernel::cpu` gives two CPUs one number: the second CPU is told, before it has done anything.
#[test]
fn two_cpus_with_one_number_are_found_at_the_start() {
    let mmu = machine::<2>(64);
    run_as(0);
    assert_eq!(mmu.online(), Ok(()));
    let other = std::thread::spawn(|| {
        run_as(0);
        mmu.online()
    });
    assert_eq!(other.join().unwrap(), Err(Error::Online));
    // A CPU that was offline in between is not a second one.
    mmu.offline().unwrap();
    assert_eq!(mmu.online(), Ok(()));
    let other = std::thread::spawn(|| {
        run_as(1);
        mmu.online()
    });
    assert_eq!(other.join().unwrap(), Ok(()));
    // With one CPU there is nothing to find.
    let mmu = machine::<1>(64);
    assert_eq!([mmu.online(), mmu.online()], [Ok(()); 2]);
}

/// A method of the kernel makes a change: the error says what is wrong.
#[test]
fn a_change_from_a_method_of_the_kernel_is_refused() {
    for cpus_are_two in [false, true] {
        if cpus_are_two { refused::<2>() } else { refused::<1>() }
    }
}

fn refused<const CPUS: usize>() {
    run_as(0);
    let mmu = machine::<CPUS>(64);
    let host = mmu.kernel();
    let space = AddressSpace::new(mmu).unwrap();
    let other = AddressSpace::new(mmu).unwrap();
    let said = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&said);
    let calls = move || {
        let results = [
            other.map(page(1), tlbkit::Pfn::new(1), RW),
            other.protect(page(1), Change::READ_ONLY).map(drop),
            other.activate(),
            other.edit(|_| Ok(())),
            mmu.idle(),
            mmu.offline(),
        ];
        // This one is allowed, and returns at once.
        mmu.on_interrupt();
        log.lock().unwrap().push(results);
    };
    let on_release = calls.clone();
    space.map(page(0), host.data(1).unwrap(), RW).unwrap();
    let _ = (host.on_frame.set(Box::new(calls)), host.on_release.set(Box::new(on_release)));
    // It takes nodes, and gives them and a frame back.
    space.map(far(1), host.data(2).unwrap(), RW).unwrap();
    space.unmap(far(1)).unwrap();
    let said = said.lock().unwrap();
    assert!(said.len() >= 3, "{}", said.len());
    assert!(said.iter().flatten().all(|result| *result == Err(Error::Nested)), "{said:?}");
}

/// A CPU that runs no process uses what the kernel has mapped since, because it runs the kernel's own address space.
#[test]
fn an_idle_cpu_sees_what_the_kernel_maps() {
    run_as(0);
    let mmu = machine::<1>(64);
    let lent = Pages::count(VirtAddr::new(4 << 30).vpn(PageSize::K4), 1 << 18).unwrap();
    let kernel = AddressSpace::lending(mmu, [lent]).unwrap();
    let process = AddressSpace::sharing(&kernel).unwrap();
    let host = mmu.kernel();
    let access = |number: usize| host.access(VirtAddr::new((4 << 30) + number * 4096), false);
    let map = |number: usize| {
        let page = Pages::one(VirtAddr::new((4 << 30) + number * 4096).vpn(PageSize::K4));
        kernel.map(page, host.data(number as u64).unwrap(), RW | Attr::GLOBAL).unwrap();
    };
    // It has not run any yet.
    mmu.idle().unwrap();
    map(1);
    assert_eq!(access(1), Met::Fault);
    process.activate().unwrap();
    mmu.idle().unwrap();
    map(2);
    assert!([1, 2].iter().all(|&number| matches!(access(number), Met::Memory(_))));
    // The process is gone, as its last handle is.
    let own = host.data(9).unwrap();
    process.map(page(1), own, RW).unwrap();
    drop(process);
    assert_eq!(host.mappings(own), host::Use::Free);
    mmu.offline().unwrap();
    assert_eq!(access(1), Met::Fault);
    drop(kernel);
    assert_eq!(host.in_use(), 0);
}
