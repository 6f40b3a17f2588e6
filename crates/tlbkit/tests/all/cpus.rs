//! Four CPUs that run, change, fork and drop address spaces at the same time: no user program ever sees a page that is
//! not its own.
#![cfg(target_pointer_width = "64")]

use std::cell::Cell;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Barrier, Mutex};

use crate::host::{Host, Met, Use, any_machine, machine, run_as};
use tlbkit::{
    Access, AddressSpace, Attr, Change, Error, Fault, Mmu, PageSize, Pages, SupervisorPages, VirtAddr,
};

const CPUS: usize = 4;
const ROUNDS: usize = if cfg!(miri) { 12 } else { 3000 };
const SLOTS: usize = 12;
const RW: Attr = Attr::READ.union(Attr::WRITE).union(Attr::USER);

type Space<const BROADCASTS: bool> = AddressSpace<Host<BROADCASTS>, CPUS>;

/// An address space, and what its pages hold: the name of the family that may see them.
struct Process<const BROADCASTS: bool> {
    space: Space<BROADCASTS>,
    family: u64,
}

fn page(slot: usize) -> Pages {
    // Pages of several nodes.
    Pages::one(VirtAddr::new((slot % 4) << 30 | (slot / 4) << 21 | slot << 12).vpn(PageSize::K4))
}

fn address(slot: usize) -> VirtAddr {
    page(slot).first().address(PageSize::K4)
}

/// What a page of a family holds.
fn pattern(family: u64, slot: usize) -> u64 {
    family << 16 | slot as u64
}

thread_local! {
    /// How often this CPU's programs have read what is not theirs.
    static STALE: Cell<usize> = const { Cell::new(0) };
}

/// A generator of numbers, one for each CPU.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end as u64) as usize
    }
}

/// One access of the user program that this CPU runs, and the handler behind it.
fn access<const BROADCASTS: bool>(process: &Process<BROADCASTS>, slot: usize, store: bool) {
    let (host, space) = (process.space.mmu().kernel(), &process.space);
    let kind = if store { Access::STORE } else { Access::LOAD }.by_user();
    for _ in 0..8 {
        // No CPU reuses the frame before the access has ended.
        let done = host.access_by(address(slot), store, |met| {
            let Met::Memory(at) = met else { return false };
            let word = host.word(at);
            if store {
                word.store(pattern(process.family, slot), Ordering::Relaxed);
            } else {
                let wrong = word.load(Ordering::Relaxed) != pattern(process.family, slot);
                STALE.with(|stale| stale.set(stale.get() + usize::from(wrong)));
            }
            true
        });
        if done {
            return;
        }
        match space.fault(address(slot), kind) {
            Ok(Fault::Retry) => {}
            Ok(Fault::CopyOnWrite(_)) => {
                let is_sole = |frame| host.mappings(frame) == Use::Data(1);
                let copy = |_| {
                    let frame = host.data(pattern(process.family, slot));
                    frame.ok_or(Error::NoMemory { wanted: 1, pending: 0 })
                };
                // Another CPU may have been first.
                if space.unshare(address(slot), is_sole, copy).is_err() {
                    return;
                }
            }
            Ok(_) => return,
            Err(error) => panic!("{error}"),
        }
    }
}

fn step<const BROADCASTS: bool>(
    mmu: &'static Mmu<Host<BROADCASTS>, CPUS>,
    processes: &[Mutex<Option<Process<BROADCASTS>>>],
    numbers: &mut Numbers,
) {
    let host = mmu.kernel();
    let at = numbers.below(processes.len());
    let slot = numbers.below(SLOTS);
    // The lock is for this table of processes, not for their address spaces.
    let held = processes[at].lock().unwrap();
    let process =
        held.as_ref().map(|process| Process { space: process.space.clone(), family: process.family });
    drop(held);
    let Some(process) = process else {
        static FAMILY: AtomicUsize = AtomicUsize::new(1);
        let family = FAMILY.fetch_add(1, Ordering::Relaxed) as u64;
        if let Ok(space) = AddressSpace::new(mmu) {
            processes[at].lock().unwrap().get_or_insert(Process { space, family });
        }
        return;
    };
    let space = &process.space;
    match numbers.below(16) {
        0..6 => {
            space.activate().unwrap();
            for _ in 0..4 {
                access(&process, numbers.below(SLOTS), numbers.below(3) == 0);
            }
        }
        6..9 => {
            if let Some(frame) = host.data(pattern(process.family, slot))
                && space.map(page(slot), frame, RW).is_err()
            {
                host.put_back(frame);
            }
        }
        9 => {
            let _ = space.lookup(address(slot));
            let all = Pages::new(page(0).first(), page(3).last()).unwrap();
            let each = space.for_each(all, |leaf| {
                // The frame stays what it is during the visit.
                let word = host.word(leaf.frame.address(PageSize::K4)).load(Ordering::Relaxed);
                let wrong = word >> 16 != process.family;
                STALE.with(|stale| stale.set(stale.get() + usize::from(wrong)));
                ControlFlow::Continue(())
            });
            assert_eq!(each, Ok(ControlFlow::Continue(())));
        }
        10 => assert!(space.unmap(page(slot)).unwrap() <= SLOTS),
        11 => {
            let all = Pages::new(page(0).first(), page(3).last()).unwrap();
            assert!(space.unmap(all).unwrap() <= SLOTS);
        }
        12 => assert!(space.protect(page(slot), Change::clear(Attr::WRITE)).unwrap() <= SLOTS),
        13 => {
            if let Ok(child) = space.fork(SupervisorPages::LeftOut) {
                let mut other = processes[numbers.below(processes.len())].lock().unwrap();
                *other = Some(Process { space: child, family: process.family });
            }
        }
        14 => {
            let mut word = [0; 8];
            if space.copy_from_user(address(slot), &mut word, |_, _, _| Ok(false)).is_ok() {
                let wrong = u64::from_ne_bytes(word) != pattern(process.family, slot);
                STALE.with(|stale| stale.set(stale.get() + usize::from(wrong)));
            }
        }
        _ => {
            *processes[at].lock().unwrap() = None;
            if numbers.below(2) == 0 {
                mmu.idle().unwrap();
            }
        }
    }
}

/// Runs programs on all CPUs, and returns how often one has read what is not its own.
fn run<const BROADCASTS: bool>(asid_bits: u32) -> usize {
    let mmu = any_machine::<CPUS, BROADCASTS>(if cfg!(miri) { 96 } else { 512 });
    mmu.kernel().asid_bits.store(asid_bits, Ordering::Relaxed);
    let stale = AtomicUsize::new(0);
    let processes: Vec<Mutex<Option<Process<BROADCASTS>>>> = (0..6).map(|_| Mutex::new(None)).collect();
    let (start, finished) = (Barrier::new(CPUS), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for cpu in 0..CPUS {
            let (processes, start, finished, stale) = (&processes, &start, &finished, &stale);
            scope.spawn(move || {
                run_as(cpu);
                let mut numbers = Numbers(0x9e37_79b9 + cpu as u64 * 0x1234_5678_9abc);
                start.wait();
                for _ in 0..ROUNDS {
                    step(mmu, processes, &mut numbers);
                    if mmu.kernel().pending() {
                        mmu.on_interrupt();
                    }
                }
                mmu.idle().unwrap();
                stale.fetch_add(STALE.get(), Ordering::Relaxed);
                finished.fetch_add(1, Ordering::SeqCst);
                // Others may be waiting for this CPU.
                while finished.load(Ordering::SeqCst) < CPUS {
                    mmu.on_interrupt();
                    std::thread::yield_now();
                }
            });
        }
    });
    drop(processes);
    assert_eq!((mmu.reclaim(), mmu.kernel().in_use(), mmu.lost()), (0, 0, 0));
    let counts =
        [&mmu.kernel().interrupted, &mmu.kernel().broadcasts].map(|count| count.load(Ordering::Relaxed) > 0);
    assert_eq!(counts, [!BROADCASTS, BROADCASTS]);
    stale.into_inner()
}

#[test]
fn no_program_sees_what_is_not_its_own() {
    assert_eq!((run::<false>(16), run::<true>(16)), (0, 0));
}

#[test]
fn nor_where_numbers_run_out_all_the_time() {
    assert_eq!((run::<false>(3), run::<true>(3)), (0, 0));
}

#[test]
fn nor_where_there_are_no_numbers() {
    assert_eq!((run::<false>(0), run::<true>(0)), (0, 0));
}

/// One page that CPU 1 has in its TLB when CPU 0 unmaps it. Returns what CPU 1 meets there after that.
fn after_an_unmap(forgets: bool) -> Met {
    let mmu = machine::<2>(64);
    let host = mmu.kernel();
    host.forgets.store(forgets, Ordering::Relaxed);
    let space = AddressSpace::new(mmu).unwrap();
    let (loaded, unmapped) = (AtomicBool::new(false), AtomicBool::new(false));
    let at = address(0);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            run_as(1);
            space.activate().unwrap();
            while !matches!(host.access(at, false), Met::Memory(_)) {
                std::thread::yield_now();
            }
            loaded.store(true, Ordering::SeqCst);
            while !unmapped.load(Ordering::SeqCst) {
                mmu.on_interrupt();
                std::thread::yield_now();
            }
            let met = host.access(at, false);
            mmu.idle().unwrap();
            met
        });
        run_as(0);
        space.map(page(0), host.data(7).unwrap(), RW).unwrap();
        while !loaded.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        assert_eq!(space.unmap(page(0)), Ok(1));
        unmapped.store(true, Ordering::SeqCst);
        other.join().unwrap()
    })
}

/// With the control: on a machine that leaves the flushes out, the other CPU still has the page.
#[test]
fn an_unmapped_page_is_gone_from_the_other_cpu() {
    assert_eq!(after_an_unmap(false), Met::Fault);
    assert!(matches!(after_an_unmap(true), Met::Memory(_)));
}

/// A kernel says how its CPUs wait: a hypervisor's guest must not spin while the CPU that it waits for is not run.
#[test]
fn who_waits_for_another_cpu_waits_as_the_kernel_says() {
    let mmu = machine::<2>(64);
    let host = mmu.kernel();
    let space = AddressSpace::new(mmu).unwrap();
    let runs = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            run_as(1);
            space.activate().unwrap();
            runs.store(true, Ordering::SeqCst);
            // It does not reply before a CPU has waited.
            while host.pauses.load(Ordering::Relaxed) == 0 {
                std::thread::yield_now();
            }
            while !host.pending() {
                std::thread::yield_now();
            }
            mmu.on_interrupt();
            mmu.idle().unwrap();
        });
        run_as(0);
        space.map(page(0), host.data(7).unwrap(), RW).unwrap();
        while !runs.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        assert_eq!(space.unmap(page(0)), Ok(1));
        other.join().unwrap();
    });
    assert!(host.pauses.load(Ordering::Relaxed) > 0);
}

#[test]
fn an_interrupt_with_nothing_behind_it_lets_no_time_pass() {
    run_as(0);
    let mmu = machine::<CPUS>(64);
    mmu.online().unwrap();
    mmu.on_interrupt();
    assert_eq!(mmu.kernel().pauses.load(Ordering::Relaxed), 0);
}
