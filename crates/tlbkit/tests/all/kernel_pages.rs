//! Pages that the kernel maps for itself: every CPU can use them when the call returns.
#![cfg(target_pointer_width = "64")]

use std::sync::atomic::Ordering::Relaxed;

use crate::host::{Host, Log, machine, run_as};
use tlbkit::{AddressSpace, Attr, Change, Error, Mark, Mmu, PageSize, Pages, VirtAddr};
use tlbkit_witness::check::{Arch, check};
use tlbkit_witness::event::{Access as Kind, Event};

const RW: Attr = Attr::READ.union(Attr::WRITE);
/// As a kernel maps a page for itself.
const KERNEL: Attr = RW.union(Attr::GLOBAL).union(Attr::ACCESSED).union(Attr::DIRTY);
const STACK: usize = 0xffff_ffff_9000_0000;

fn pages(at: usize, count: usize) -> Pages {
    Pages::count(VirtAddr::new(at).vpn(PageSize::K4), count).unwrap()
}

type Space = AddressSpace<Host, 2>;

/// Two CPUs, of which the second serves shootdowns while the first waits.
fn two_cpus(log: &'static Log) -> &'static Mmu<Host, 2> {
    run_as(0);
    let mmu = machine::<2>(256);
    let host = mmu.kernel();
    host.log.set(log).ok();
    let other = move || {
        run_as(1);
        if host.pending() {
            mmu.on_interrupt();
        }
        run_as(0);
    };
    host.meanwhile.set(Box::new(other)).ok();
    mmu
}

/// A kernel whose upper half both CPUs run, with a page beside `STACK`, so that the node is there.
fn lender(mmu: &'static Mmu<Host, 2>) -> Space {
    let half = Pages::new(
        VirtAddr::new(0xffff_ffff_8000_0000).vpn(PageSize::K4),
        VirtAddr::new(usize::MAX).vpn(PageSize::K4),
    );
    let kernel = AddressSpace::lending(mmu, [half.unwrap()]).unwrap();
    kernel.map(pages(STACK + 0x1000, 1), mmu.kernel().data(1).unwrap(), KERNEL).unwrap();
    on_both(&kernel);
    kernel
}

fn on_both(space: &Space) {
    for cpu in [1, 0] {
        run_as(cpu);
        space.activate().unwrap();
    }
}

/// CPU 1 stores to a page of the kernel, and the log up to there is checked.
fn store_on_the_other(host: &Host, log: &Log, space: &Space, at: usize) -> Result<(), String> {
    let reaches = space.translate(VirtAddr::new(at)).map(|to| to.get() as u64);
    run_as(1);
    host.say(Event::Access { at: at as u64, kind: Kind::Store, user: false, reaches });
    run_as(0);
    let mut text = String::new();
    log.write(&mut text).unwrap();
    check(Arch::Sv39, &text).map(drop).map_err(|why| format!("{why:?}"))
}

/// The calls by which a kernel gets a page that it can use.
fn each_way(space: &Space, attr: Attr) {
    let host = space.mmu().kernel();
    let frame = || host.data(2).unwrap();
    space.map(pages(STACK, 1), frame(), attr).unwrap();
    space.map_linear(pages(STACK + 0x2000, 1), frame(), attr).unwrap();
    space.map_each(pages(STACK + 0x3000, 1), [frame()], attr).unwrap();
    // In a node that is not there yet.
    space.map(pages(STACK + 0x40_0000, 1), frame(), attr).unwrap();
    space.edit(|edit| edit.cursor(VirtAddr::new(STACK + 0x4000))?.map(frame(), attr)).unwrap();
    let kept = attr & Mark::KEPT;
    space.mark(VirtAddr::new(STACK + 0x80_0000), Mark::Payload(3, kept)).unwrap();
    space.fill(VirtAddr::new(STACK + 0x80_0000), 3, frame()).unwrap();
    space.protect(pages(STACK + 0x80_0000, 1), Change::set(Attr::ACCESSED | Attr::DIRTY)).unwrap();
}

/// A page and a node that move to where nothing was. The other CPU is interrupted for the place that they leave.
fn move_there(space: &Space, attr: Attr) {
    for (from, to) in [(0x100_1000, 0xc0_0000), (0x180_0000, 0x140_0000)] {
        space.map(pages(STACK + from, 1), space.mmu().kernel().data(2).unwrap(), attr).unwrap();
        assert_eq!(space.move_pages(pages(STACK + from, 1), VirtAddr::new(STACK + to)), Ok(1));
    }
}

const PLACES: [usize; 6] = [0, 0x2000, 0x3000, 0x40_0000, 0x4000, 0x80_0000];
const MOVED: [usize; 2] = [0xc0_0000, 0x140_0000];

#[test]
fn a_new_page_of_the_kernel_on_another_cpu() {
    static LOG: Log = Log::new();
    let mmu = two_cpus(&LOG);
    let kernel = lender(mmu);
    let before = mmu.kernel().interrupted.load(Relaxed);
    each_way(&kernel, KERNEL);
    assert!(mmu.kernel().interrupted.load(Relaxed) > before);
    move_there(&kernel, KERNEL);
    for place in PLACES.into_iter().chain(MOVED) {
        let verdict = store_on_the_other(mmu.kernel(), &LOG, &kernel, STACK + place);
        assert!(verdict.is_ok(), "{place:#x}: {verdict:?}");
    }
    std::mem::forget(kernel);
}

/// A right that a page of the kernel gets, one at a time and in a range.
#[test]
fn a_right_that_is_added_to_a_page_of_the_kernel() {
    static LOG: Log = Log::new();
    let mmu = two_cpus(&LOG);
    let kernel = lender(mmu);
    kernel
        .map_each(
            pages(STACK + 0x2000, 3),
            (0..3).map(|_| mmu.kernel().data(2).unwrap()),
            KERNEL - Attr::WRITE,
        )
        .unwrap();
    let interrupted = || mmu.kernel().interrupted.load(Relaxed);
    let before = interrupted();
    kernel.protect(pages(STACK + 0x2000, 1), Change::set(Attr::WRITE)).unwrap();
    kernel.protect(pages(STACK + 0x3000, 2), Change::set(Attr::WRITE)).unwrap();
    assert_eq!(interrupted(), before + 2);
    for page in [0x2000, 0x3000, 0x4000] {
        let verdict = store_on_the_other(mmu.kernel(), &LOG, &kernel, STACK + page);
        assert!(verdict.is_ok(), "{verdict:?}");
    }
    std::mem::forget(kernel);
}

/// A page of a process that is not the user's: a trap context, or the stack of a kernel without a half of its own.
#[test]
fn a_supervisors_page_of_a_process() {
    static LOG: Log = Log::new();
    let mmu = two_cpus(&LOG);
    let process = AddressSpace::new(mmu).unwrap();
    process.map(pages(STACK + 0x1000, 1), mmu.kernel().data(1).unwrap(), RW | Attr::USER).unwrap();
    on_both(&process);
    each_way(&process, KERNEL - Attr::GLOBAL);
    move_there(&process, KERNEL - Attr::GLOBAL);
    for place in PLACES.into_iter().chain(MOVED) {
        let verdict = store_on_the_other(mmu.kernel(), &LOG, &process, STACK + place);
        assert!(verdict.is_ok(), "{place:#x}: {verdict:?}");
    }
    for cpu in [1, 0] {
        run_as(cpu);
        mmu.idle().unwrap();
    }
}

/// A user's page that becomes the kernel's: by another frame, or by a change of its rights, one page at a time and in a range. Its
/// node was linked by a map that flushed here alone, so the other CPU may keep the absence of the node.
#[test]
fn a_users_page_becomes_the_kernels() {
    static LOG: Log = Log::new();
    let mmu = two_cpus(&LOG);
    let process = AddressSpace::new(mmu).unwrap();
    process.map(pages(STACK + 0x1000, 1), mmu.kernel().data(1).unwrap(), RW | Attr::USER).unwrap();
    on_both(&process);
    let users = (KERNEL - Attr::GLOBAL) | Attr::USER;
    let place = |number: usize| STACK + number * 0x40_0000;
    for number in 1..6 {
        let frames = [0; 2].map(|pattern| mmu.kernel().data(pattern).unwrap());
        process.map_each(pages(place(number), 2), frames, users).unwrap();
    }
    let other = || mmu.kernel().data(1).unwrap();
    process.replace(VirtAddr::new(place(1)), other(), users - Attr::USER).unwrap();
    process.edit(|edit| edit.replace(VirtAddr::new(place(2)), other(), users - Attr::USER)).unwrap();
    process.protect(pages(place(3), 1), Change::clear(Attr::USER)).unwrap();
    process.protect(pages(place(4), 2), Change::clear(Attr::USER)).unwrap();
    process.edit(|edit| edit.protect(pages(place(5), 1), Change::clear(Attr::USER))).unwrap();
    for number in 1..6 {
        let verdict = store_on_the_other(mmu.kernel(), &LOG, &process, place(number));
        assert!(verdict.is_ok(), "{number}: {verdict:?}");
    }
    for cpu in [1, 0] {
        run_as(cpu);
        mmu.idle().unwrap();
    }
}

/// A page of the kernel that was copied at the next store has its right to write on every CPU.
#[test]
fn a_page_of_the_kernel_is_unshared() {
    static LOG: Log = Log::new();
    let mmu = two_cpus(&LOG);
    let kernel = lender(mmu);
    let (page, at) = (pages(STACK, 1), VirtAddr::new(STACK));
    kernel.map(page, mmu.kernel().data(1).unwrap(), KERNEL).unwrap();
    kernel.protect(page, Change::COPY_ON_WRITE).unwrap();
    let before = mmu.kernel().interrupted.load(Relaxed);
    kernel.unshare(at, |_| true, |_| Err(Error::Busy)).unwrap();
    assert!(mmu.kernel().interrupted.load(Relaxed) > before);
    let verdict = store_on_the_other(mmu.kernel(), &LOG, &kernel, STACK);
    assert!(verdict.is_ok(), "{verdict:?}");
    std::mem::forget(kernel);
}

/// The pages of users keep the cheap path: no CPU is interrupted, and one that faults is told to repeat.
#[test]
fn a_users_page_interrupts_no_cpu() {
    static LOG: Log = Log::new();
    let mmu = two_cpus(&LOG);
    let process = AddressSpace::new(mmu).unwrap();
    process.map(pages(STACK + 0x1000, 1), mmu.kernel().data(1).unwrap(), RW | Attr::USER).unwrap();
    on_both(&process);
    let before = mmu.kernel().interrupted.load(Relaxed);
    each_way(&process, RW | Attr::USER | Attr::ACCESSED | Attr::DIRTY);
    assert_eq!(mmu.kernel().interrupted.load(Relaxed), before);
    for cpu in [1, 0] {
        run_as(cpu);
        mmu.idle().unwrap();
    }
}

/// Several maps in one edit ask once; a CPU that is alone asks nobody.
#[test]
fn several_pages_of_the_kernel_cost_one_shootdown() {
    static LOG: Log = Log::new();
    let mmu = two_cpus(&LOG);
    let kernel = lender(mmu);
    let interrupted = || mmu.kernel().interrupted.load(Relaxed);
    let before = interrupted();
    let map_all = || {
        kernel.edit(|edit| {
            (2..9).try_for_each(|page| {
                edit.map(pages(STACK + page * 0x1000, 1), mmu.kernel().data(2).unwrap(), KERNEL)
            })
        })
    };
    map_all().unwrap();
    assert_eq!(interrupted(), before + 1);
    kernel.unmap(pages(STACK + 0x2000, 7)).unwrap();
    run_as(1);
    mmu.offline().unwrap();
    run_as(0);
    let before = interrupted();
    map_all().unwrap();
    assert_eq!(interrupted(), before);
    std::mem::forget(kernel);
}

/// What the message says where a CPU calls from inside a call of its own.
#[test]
fn nested_says_that_the_cpu_is_inside_a_call() {
    static LOG: Log = Log::new();
    let mmu = two_cpus(&LOG);
    let kernel = lender(mmu);
    let inside =
        kernel.edit(|_| Ok(kernel.map(pages(STACK, 1), mmu.kernel().data(2).unwrap(), KERNEL))).unwrap();
    assert_eq!(inside, Err(Error::Nested));
    assert!(Error::Nested.to_string().contains("inside an edit, a visit, or a method of the kernel"));
    // What a handler may ask there.
    let seen = kernel.edit(|_| Ok(kernel.lookup(VirtAddr::new(STACK + 0x1000)))).unwrap();
    assert!(seen.is_some());
    std::mem::forget(kernel);
}
