//! The kernel of `docs/embedding.md`: what its files do of virtual memory, tried by loads and stores of the kernel in a process's pages. A
//! file of `cpu` is a machine's part of the guide; a file of `board` is what runs before, and how faults come to the kernel.
#![no_std]
#![no_main]

use core::fmt::Write;
use core::mem::ManuallyDrop;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use spin::Mutex;
use tlbkit::{Access, AddressSpace, Attr, Change, PageSize, Pages, Pfn, Stopped, SupervisorPages, VirtAddr};

#[cfg_attr(target_arch = "aarch64", path = "board/aarch64.rs")]
#[cfg_attr(target_arch = "riscv64", path = "board/riscv64.rs")]
#[cfg_attr(target_arch = "x86_64", path = "board/x86_64.rs")]
mod board;
#[cfg_attr(target_arch = "aarch64", path = "cpu/aarch64.rs")]
#[cfg_attr(target_arch = "riscv64", path = "cpu/riscv64.rs")]
#[cfg_attr(target_arch = "x86_64", path = "cpu/x86_64.rs")]
mod cpu;
mod memory;
#[cfg_attr(target_arch = "aarch64", path = "upper.rs")]
mod own;
mod swap;

use board::Console;
use memory::{MMU, Mine, put, take};
use own::{Own, boot};
use swap::page_fault;

/// The process that runs.
static CURRENT: Mutex<Option<AddressSpace<Mine>>> = Mutex::new(None);
/// Whether the last access was refused.
static REFUSED: AtomicBool = AtomicBool::new(false);
static CHECKS: AtomicUsize = AtomicUsize::new(0);
static FAILURES: AtomicUsize = AtomicUsize::new(0);

/// Resolves a page fault of the process that runs. Returns `false` if the access is refused.
fn fault(at: VirtAddr, access: Access) -> bool {
    let process = CURRENT.lock().clone().expect("a process runs");
    let is_resolved = page_fault(&process, at, access.by_user()).expect("there is memory");
    REFUSED.fetch_or(!is_resolved, Ordering::Relaxed);
    is_resolved
}

/// Loads a word of the process's; `None` if it must not.
fn load(at: usize) -> Option<u64> {
    let word = board::load(at);
    (!REFUSED.swap(false, Ordering::Relaxed)).then_some(word)
}

/// Stores a word of the process's; tells whether it may.
fn store(at: usize, word: u64) -> bool {
    board::store(at, word);
    !REFUSED.swap(false, Ordering::Relaxed)
}

fn check(holds: bool, what: &str) {
    CHECKS.fetch_add(1, Ordering::Relaxed);
    if !holds {
        FAILURES.fetch_add(1, Ordering::Relaxed);
        let _ = writeln!(Console, "{what}");
    }
}

fn run_process(process: &AddressSpace<Mine>) {
    process.activate().expect("nothing else is under way");
    *CURRENT.lock() = Some(process.clone());
}

/// A page of 2 MiB that two processes share: each copies the parts that it writes.
fn large(kernel: &Own) {
    const AT: usize = 0x2000_0000;
    const PARTS: usize = 512;
    // The kernel has just begun: it gives out its last frame first, and the others in descending order.
    let mut frames = [Pfn::new(0); 2 * PARTS - 1];
    frames.fill_with(|| take(None).expect("there is memory"));
    let last = frames.iter().position(|frame| frame.get() % PARTS == PARTS - 1).expect("one ends a page");
    let first = frames[last + PARTS - 1];
    check(frames[last].get() - first.get() == PARTS - 1, "the frames are in a row");
    let others = frames[..last].iter().chain(&frames[last + PARTS..]);
    others.rev().for_each(|&frame| put(frame));
    let parent = own::process(kernel).expect("there is memory");
    let pages = Pages::count(VirtAddr::new(AT).vpn(PageSize::K4), PARTS).expect("they are in range");
    let user = Attr::READ | Attr::WRITE | Attr::USER;
    parent.map_linear(pages, first, user).expect("nothing is there");
    let at = |part: usize| AT + part * PageSize::K4.bytes();
    run_process(&parent);
    (0..PARTS).for_each(|part| check(store(at(part), part as u64), "a large page can be written"));
    let child = parent.fork(SupervisorPages::LeftOut).expect("there is memory");
    let has = |space: &AddressSpace<Mine>, written: &[(usize, u64)], what: &str| {
        run_process(space);
        for part in 0..PARTS {
            let word = written.iter().find(|write| write.0 == part).map_or(part as u64, |write| write.1);
            check(load(at(part)) == Some(word), what);
        }
    };
    check(store(at(9), 1000), "the parent may write a part of a large page");
    has(&child, &[], "the child has the large page as it was");
    check(store(at(10), 2000) && store(at(9), 3000), "the child may write parts of it");
    has(&parent, &[(9, 1000)], "the parent does not see what the child writes");
    has(&child, &[(9, 3000), (10, 2000)], "the child has what it wrote");
    run_process(&parent);
    drop(child);
    check(store(at(10), 4000), "the parent may write what it has alone");
    has(&parent, &[(9, 1000), (10, 4000)], "the parent has what it wrote");
    *CURRENT.lock() = None;
    MMU.idle().expect("nothing else is under way");
}

/// A disk in memory.
mod disk {
    use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

    use tlbkit::{PageSize, Pfn};

    pub const SLOTS: usize = 4;
    static PAGES: [[AtomicU64; 512]; SLOTS] = [const { [const { AtomicU64::new(0) }; 512] }; SLOTS];

    fn words(frame: Pfn) -> &'static [AtomicU64; 512] {
        let at = super::cpu::memory(frame.address(PageSize::K4));
        // SAFETY: a frame of RAM is as large, and this program reaches its words by atomic accesses and by those of user pages.
        unsafe { &*at.cast() }
    }

    pub fn write(slot: u64, frame: Pfn) {
        words(frame)
            .iter()
            .zip(&PAGES[slot as usize])
            .for_each(|(from, to)| to.store(from.load(Relaxed), Relaxed));
    }

    pub fn read(slot: u64, frame: Pfn) {
        PAGES[slot as usize]
            .iter()
            .zip(words(frame))
            .for_each(|(from, to)| to.store(from.load(Relaxed), Relaxed));
    }
}

/// A page goes out and comes back, with what it held and what it may: also where it is written meanwhile, and after a fork.
fn page_out_and_in(parent: &AddressSpace<Mine>, at: usize, round: u64) {
    let page = VirtAddr::new(at);
    check(store(at, round) && swap::page_out(parent, page) == Ok(()), "a page goes out");
    check(parent.lookup(page).is_none() && load(at) == Some(round), "and comes back");
    let child = parent.fork(SupervisorPages::LeftOut).expect("there is memory");
    check(swap::page_out(parent, page) == Ok(()) && load(at) == Some(round), "also a page that others have");
    check(swap::page_out(parent, page) == Ok(()), "and again");
    let both = parent.fork(SupervisorPages::LeftOut).expect("there is memory");
    check(store(at, !round), "it may be written when it is back");
    run_process(&both);
    check(load(at) == Some(round), "a copy has what was out");
    check(swap::page_out(&both, page) == Ok(()), "it goes out");
    let pages = Pages::one(page.vpn(PageSize::K4));
    check(both.protect(pages, Change::READ_ONLY).is_ok(), "what it may changes while it is out");
    check(!store(at, 1) && load(at) == Some(round), "and it comes back with that");
    run_process(&child);
    check(load(at) == Some(round), "the first copy has its own");
    run_process(parent);
    check(load(at) == Some(!round), "the parent has what it wrote");
}

/// System calls read and write the process's memory: at an odd address, over the end of a page, in pages that are shared or out.
fn copy_in_and_out(process: &AddressSpace<Mine>, at: usize, round: u64) {
    let end = VirtAddr::new(at + 0xffe);
    let child = process.fork(SupervisorPages::LeftOut).expect("there is memory");
    let word = round.to_ne_bytes();
    // The page behind it is the last one of the heap's end, and has never been used.
    let next = VirtAddr::new(at - 0x1002);
    let mut found = [0; 8];
    check(
        child.copy_to_user(next, &word, page_fault) == Ok(()),
        "a system call writes a page and the one after it",
    );
    check(child.copy_from_user(next, &mut found, page_fault) == Ok(()) && found == word, "and reads them");
    check(process.lookup(next).is_none(), "in its own process");
    let before = load(at);
    check(swap::page_out(process, VirtAddr::new(at)) == Ok(()), "the page goes out");
    check(process.copy_to_user(VirtAddr::new(at + 8), &word, page_fault) == Ok(()), "what is out is written");
    check(load(at) == before && load(at + 8) == Some(round), "beside what is there");
    let stopped = Err(Stopped { copied: 2, error: None });
    check(child.copy_from_user(end, &mut found, page_fault) == stopped, "there is nothing behind the heap");
    check(MMU.clear_frame(Pfn::new(0x8_0000)).is_err(), "the kernel's own frame is none of user memory");
}

/// More processes than there is memory for, one after the other.
const PROCESSES: u64 = 3000;

extern "C" fn run() -> ! {
    const AT: usize = 0x3fff_f000;
    cpu::prepare();
    let kernel = ManuallyDrop::new(boot().expect("there is memory"));
    large(&kernel);
    for round in 1..=PROCESSES {
        let parent = own::process(&kernel).expect("what processes had has come back");
        run_process(&parent);
        check(store(AT, round) && load(AT) == Some(round), "a page is there when it is first used");
        let child = parent.fork(SupervisorPages::LeftOut).expect("there is memory");
        check(store(AT, !round), "the parent may write");
        run_process(&child);
        check(load(AT) == Some(round), "the child has what was");
        check(store(AT, 2 * round) && load(AT) == Some(2 * round), "the child may write");
        run_process(&parent);
        check(load(AT) == Some(!round), "the parent has what it wrote");
        let page = Pages::one(VirtAddr::new(AT).vpn(PageSize::K4));
        check(parent.unmap(page) == Ok(1) && load(AT) == Some(0), "what is unmapped is gone");
        check(load(8).is_none() && !store(8, 1), "nothing is there");
        page_out_and_in(&parent, AT, round);
        copy_in_and_out(&parent, AT, round);
        *CURRENT.lock() = None;
        MMU.idle().expect("nothing else is under way");
    }
    check(MMU.lost() == 0, "no node is lost");
    end()
}

fn end() -> ! {
    let [checks, failures] = [&CHECKS, &FAILURES].map(|count| count.load(Ordering::Relaxed));
    let _ = writeln!(Console, "row machine={} cpus=1 checks={checks} failures={failures}", board::NAME);
    board::stop()
}

#[panic_handler]
fn panic(why: &core::panic::PanicInfo<'_>) -> ! {
    check(false, "it panicked");
    let _ = writeln!(Console, "{why}");
    end()
}
