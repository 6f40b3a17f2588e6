//! What `cargo xtask cost` boots: a kernel on one CPU that makes calls of `AddressSpace` and `Mmu`, and says how many instructions and
//! how many bytes of stack each takes. With the feature `four-cpus` three other CPUs might come, and never do.
//!
//! A call is for one page of 4 KiB, unless its name says otherwise. Its instructions are the average of all but the first, which begins
//! a node; its stack is the most of the first four.
#![no_std]
#![no_main]
#![allow(dead_code, reason = "the kernel that is linked uses the rest")]

use core::fmt::Write as _;
use core::hint::black_box;
use core::mem::ManuallyDrop;
use core::ops::ControlFlow;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use tlbkit::{
    Access, AddressSpace, Asid, Attr, Change, Error, Fault, Flush, FlushScope, Kernel as _, Mapping, Mark,
    PageSize, Pages, Pfn, Run, Stopped, SupervisorPages, VirtAddr, addr,
};

#[cfg_attr(target_arch = "aarch64", path = "../../kernel/embedding/board/aarch64.rs")]
#[cfg_attr(target_arch = "riscv64", path = "../../kernel/embedding/board/riscv64.rs")]
#[cfg_attr(target_arch = "x86_64", path = "../../kernel/embedding/board/x86_64.rs")]
mod board;
mod kernel;
mod paint;

use board::Console;
use kernel::{CPUS, Frames, MMU, Space, cpu, cpus, frames};

/// Pages of one node.
const PAGES: usize = 100;
const AT: usize = 0x40_0000;
/// Where nothing is mapped at first.
const ELSEWHERE: usize = 0x80_0000;
/// Where a page of 2 MiB fits, and a frame for it: a device's, because nothing accesses it.
const LARGE: usize = 0x4000_0000;
const LARGE_FRAME: Pfn = Pfn::new(0x10_0000);
const PARTS: usize = 512;

const RIGHTS: Attr = Attr::READ.union(Attr::WRITE);
const USER: Attr = RIGHTS.union(Attr::USER);
/// As the handler of a store's page fault maps a page.
const USED: Attr = USER.union(Attr::ACCESSED).union(Attr::DIRTY);

/// Names a page that is out.
const PAYLOAD: u64 = 7;

/// The stack on which everything is measured: as large as a debug build needs it.
const STACK: usize = 256 << 10;

#[repr(align(16))]
struct Stack([AtomicUsize; STACK / size_of::<usize>()]);

static STACKS: Stack = Stack([const { AtomicUsize::new(0) }; _]);

/// How many calls have returned an error.
static FAILURES: AtomicUsize = AtomicUsize::new(0);

fn page(at: usize) -> Pages {
    Pages::one(VirtAddr::new(at).vpn(PageSize::K4))
}

fn pages(at: usize, count: usize) -> Result<Pages, Error> {
    let at = VirtAddr::new(at);
    Pages::count(at.vpn(PageSize::K4), count).ok_or(Error::OutOfRange { at })
}

fn take() -> Result<Pfn, Error> {
    kernel::take().ok_or(Error::NoMemory { wanted: 1, pending: 0 })
}

fn copied(result: Result<(), Stopped>) -> Result<(), Error> {
    result.map_err(|stopped| stopped.error.unwrap_or(Error::NoRoom))
}

/// A call that is measured: it gets 0, 1 and so on.
type Call<'c> = &'c mut dyn FnMut(usize) -> Result<(), Error>;

/// Makes a call so many times. Returns the sum of the instructions of all but the first, and the most stack that it took.
#[inline(never)]
fn count(times: usize, call: Call<'_>) -> Result<(usize, usize), Error> {
    const PAINTED: usize = 4;
    let (mut sum, mut stack) = (0, 0);
    for time in 0..times {
        let (mut result, mut took) = (Ok(()), 0);
        let mut counted = || {
            let begin = cpus::instructions();
            result = call(time);
            took = cpus::instructions() - begin;
        };
        if time < PAINTED {
            stack = stack.max(paint::depth(&mut counted));
        } else {
            counted();
        }
        result?;
        if time > 0 || times == 1 {
            sum += took;
        }
    }
    Ok((sum, stack))
}

/// Makes a call so many times, and says what it takes for each of `parts`.
fn each_of(name: &str, times: usize, parts: usize, call: Call<'_>) {
    let counted = times.saturating_sub(1).max(1);
    let nothing = count(times, &mut |_| Ok(())).map_or(0, |(sum, _)| sum);
    match count(times, call) {
        Ok((sum, stack)) => {
            let instructions = sum.saturating_sub(nothing) / (counted * parts);
            let _ = writeln!(Console, "call name={name} instructions={instructions} stack={stack}");
        }
        Err(why) => {
            FAILURES.fetch_add(1, Relaxed);
            let _ = writeln!(Console, "{name}: {why}");
        }
    }
}

/// Makes a call for each page of a node, and says what it takes.
fn each(name: &str, call: Call<'_>) {
    each_of(name, PAGES, 1, call);
}

/// Makes a call once, and says what it takes.
fn once(name: &str, call: Call<'_>) {
    each_of(name, 1, 1, call);
}

/// The address of a page.
fn at(index: usize) -> VirtAddr {
    VirtAddr::new(black_box(AT + index * PageSize::K4.bytes()))
}

fn page_of(index: usize) -> Pages {
    Pages::one(at(index).vpn(PageSize::K4))
}

/// Calls for one page each.
fn one_by_one(space: &Space) -> Result<(), Error> {
    let [one, other] = [take()?, take()?];
    // Held for each mapping to come: no frame becomes free here.
    frames(|frames| {
        (0..8 * PAGES).for_each(|_| [one, other].into_iter().for_each(|frame| frames.hold(frame)))
    });
    each("edit,_without_a_change", &mut |_| space.edit(|_| Ok(())));
    each("map", &mut |index| space.map(page_of(index), one, USER));
    each("lookup", &mut |index| space.lookup(at(index)).map(drop).ok_or(Error::NoRoom));
    each("translate", &mut |index| space.translate(at(index)).map(drop).ok_or(Error::NoRoom));
    each("entry", &mut |index| {
        black_box(space.entry(at(index)));
        Ok(())
    });
    each("fault,_a_status_bit", &mut |index| space.fault(at(index), Access::STORE.by_user()).map(drop));
    each("protect", &mut |index| space.protect(page_of(index), Change::READ_ONLY).map(drop));
    each("set_rights", &mut |index| space.set_rights(page_of(index), Mapping::Shared, RIGHTS).map(drop));
    each("replace", &mut |index| space.replace(at(index), other, USED));
    each("freeze", &mut |index| space.freeze(at(index)).map(drop));
    each("page_out", &mut |index| space.page_out(at(index), other, PAYLOAD));
    each("fill", &mut |index| space.fill(at(index), PAYLOAD, other));
    each("move_pages", &mut |index| {
        space.move_pages(page_of(index), VirtAddr::new(ELSEWHERE + index * PageSize::K4.bytes())).map(drop)
    });
    space.move_pages(pages(ELSEWHERE, PAGES)?, at(0))?;
    each("unmap", &mut |index| space.unmap(page_of(index)).map(drop));
    each("mark", &mut |index| space.mark(at(index), Mark::Guard).map(drop));
    space.unmap(pages(AT, PAGES)?)?;
    space.map_with(pages(AT, PAGES)?, USER, |_| take())?;
    each("unmap,_and_free_the_frame", &mut |index| space.unmap(page_of(index)).map(drop));
    each("Kernel::flush,_of_a_page", &mut |index| {
        let mut flush = addr::Flush::none();
        flush.add(FlushScope::Everywhere, page_of(index));
        MMU.kernel().flush(&Flush::of::<cpu::Machine>(&flush), Asid::new(1, cpu::asid_bits()));
        Ok(())
    });
    each("Kernel::release,_of_a_frame", &mut |_| {
        MMU.kernel().release(Run { first: black_box(one), len: 1, dirty: false });
        Ok(())
    });
    let user = [0x5a; 64];
    space.map(page(AT), one, USED)?;
    each("copy_to_user,_64_bytes", &mut |_| copied(space.copy_to_user(at(0), &user, |_, _, _| Ok(false))));
    each("copy_from_user,_64_bytes", &mut |_| {
        let mut bytes = [0; 64];
        let done = copied(space.copy_from_user(at(0), &mut bytes, |_, _, _| Ok(false)));
        black_box(bytes);
        done
    });
    each("clear_frame", &mut |_| MMU.clear_frame(one));
    each("copy_frame", &mut |_| MMU.copy_frame(one, other));
    space.unmap(page(AT)).map(drop)
}

/// A process's pages, whose frames are scattered: page faults, fork and drop.
fn of_a_process(kernel: Option<&Space>, space: &Space) -> Result<(), Error> {
    let mut scattered = [Pfn::new(0); PAGES];
    for index in 0..PAGES {
        scattered[index * 37 % PAGES] = take()?;
    }
    each(
        "page_fault_at_the_first_use",
        &mut |index| match space.fault(at(index), Access::STORE.by_user())? {
            Fault::NotMapped => space.map_with(page_of(index), USED, |_| Ok(scattered[index])),
            _ => Err(Error::NoRoom),
        },
    );
    let mut child = None;
    each_of("fork,_a_page_of_100", 1, PAGES, &mut |_| {
        child = Some(space.fork(SupervisorPages::LeftOut)?);
        Ok(())
    });
    each("page_fault_of_a_copy_on_write_page", &mut |index| match space
        .fault(at(index), Access::STORE.by_user())?
    {
        Fault::CopyOnWrite(_) => space.unshare(at(index), |_| false, |_| take()),
        _ => Err(Error::NoRoom),
    });
    each_of("drop,_a_page_of_100", 1, PAGES, &mut |_| {
        drop(child.take());
        Ok(())
    });
    let mut new = [const { None }; 4];
    each_of(if kernel.is_some() { "sharing" } else { "new" }, 4, 1, &mut |index| {
        new[index] = Some(process(kernel)?);
        Ok(())
    });
    each_of("drop,_nothing_mapped", 4, 1, &mut |index| {
        new[index] = None;
        Ok(())
    });
    if kernel.is_some() {
        once("new", &mut |_| {
            new[0] = Some(process(None)?);
            Ok(())
        });
    }
    let other = process(kernel)?;
    other.activate()?;
    each("activate,_another_space", &mut |index| {
        if index % 2 == 0 { space.activate() } else { other.activate() }
    });
    each("activate,_the_same_space", &mut |_| space.activate());
    each("idle", &mut |_| MMU.idle());
    each("on_interrupt", &mut |_| {
        MMU.on_interrupt();
        Ok(())
    });
    each("root", &mut |_| space.root().map(drop));
    space.activate()
}

/// Calls for many pages, each made once.
fn many_at_once(space: &Space) -> Result<(), Error> {
    let all = pages(AT, PAGES)?;
    let sum = |_| ControlFlow::Continue(());
    each_of("for_each,_a_page_of_100", 1, PAGES, &mut |_| space.for_each(all, sum).map(drop));
    each_of("first_hole,_a_page_of_100", 1, PAGES, &mut |_| space.first_hole(all).map(drop));
    once("footprint", &mut |_| {
        black_box(space.footprint());
        Ok(())
    });
    once("first_used", &mut |_| space.first_used(all).map(drop));
    each_of("protect,_a_page_of_100", 1, PAGES, &mut |_| space.protect(all, Change::READ_ONLY).map(drop));
    each_of("set_rights,_a_page_of_100", 1, PAGES, &mut |_| {
        space.set_rights(all, Mapping::Private, RIGHTS).map(drop)
    });
    once("move_pages,_100", &mut |_| space.move_pages(all, VirtAddr::new(ELSEWHERE)).map(drop));
    each_of("unmap,_a_page_of_100", 1, PAGES, &mut |_| space.unmap(pages(ELSEWHERE, PAGES)?).map(drop));
    let [frame, held] = [take()?, take()?];
    frames(|frames| {
        (0..4 * PAGES).for_each(|_| [frame, held].into_iter().for_each(|frame| frames.hold(frame)))
    });
    let each_frame = || (0..PAGES).map(|index| if index % 2 == 0 { frame } else { held });
    each_of("map_each,_a_page_of_100", 1, PAGES, &mut |_| space.map_each(all, each_frame(), USER));
    once("unmap_whole,_100", &mut |_| space.unmap_whole(all).map(drop));
    each_of("map_with,_a_page_of_100", 1, PAGES, &mut |_| space.map_with(all, USER, |_| Ok(frame)));
    once("protect_whole,_100", &mut |_| space.protect_whole(all, Change::READ_ONLY).map(drop));
    once("set_rights_whole,_100", &mut |_| space.set_rights_whole(all, Mapping::Shared, RIGHTS).map(drop));
    space.unmap(all)?;
    once("mark_pages,_100", &mut |_| space.mark_pages(all, Mark::Guard));
    once("for_each_mark,_100", &mut |_| space.for_each_mark(all, |_, _| ControlFlow::Continue(())).map(drop));
    space.unmap(all)?;
    large_pages(space)
}

/// Pages of 2 MiB, which are split and joined.
fn large_pages(space: &Space) -> Result<(), Error> {
    let whole = pages(LARGE, PARTS)?;
    let map = || space.map_linear(whole, LARGE_FRAME, USED);
    once("map_linear,_2_MiB", &mut |_| map());
    once("resize,_split", &mut |_| space.resize(whole, PageSize::K4));
    once("resize,_join", &mut |_| space.resize(whole, PageSize::M2));
    once("protect,_a_part_of_2_MiB", &mut |_| {
        space.protect(page(LARGE + 8 * PageSize::K4.bytes()), Change::READ_ONLY).map(drop)
    });
    space.unmap(whole)?;
    map()?;
    once("unmap,_a_part_of_2_MiB", &mut |_| space.unmap(page(LARGE + 9 * PageSize::K4.bytes())).map(drop));
    space.unmap(whole)?;
    map()?;
    once("replace_sized,_2_MiB", &mut |_| {
        space.replace_sized(VirtAddr::new(LARGE), LARGE_FRAME, PageSize::M2, USED)
    });
    let child = space.fork(SupervisorPages::LeftOut)?;
    once("unshare,_a_part_of_2_MiB", &mut |_| space.unshare(VirtAddr::new(LARGE), |_| false, |_| take()));
    drop(child);
    once("unmap,_2_MiB", &mut |_| space.unmap(whole).map(drop));
    Ok(())
}

/// Unmaps whose flush waits, because another CPU runs the address space, and the flush, when that CPU is offline again. Without memory
/// for them there is no other CPU, and they are unmaps.
fn later(space: &Space) -> Result<(), Error> {
    // This CPU does what the other one would do.
    let elsewhere = |call: &dyn Fn() -> Result<(), Error>| {
        if !cfg!(feature = "deferring") {
            return Ok(());
        }
        cpus::begin(CPUS - 1);
        let done = call();
        cpus::begin(0);
        done
    };
    let run = || elsewhere(&|| MMU.online().and_then(|()| space.activate()));
    let leave = || elsewhere(&|| MMU.offline());
    let held = take()?;
    frames(|frames| (0..PAGES).for_each(|_| frames.hold(held)));
    space.map_with(pages(AT, PAGES)?, USED, |_| take())?;
    space.map(page(ELSEWHERE), held, USED)?;
    run()?;
    each("unmap_deferred", &mut |index| space.unmap_deferred(page_of(index)).map(drop));
    each("map,_while_100_unmaps_wait", &mut |index| {
        space.map(page(ELSEWHERE + (index + 1) * PageSize::K4.bytes()), held, USED)
    });
    leave()?;
    each_of("flush_deferred,_a_page_of_100", 1, PAGES, &mut |_| MMU.flush_deferred().map(drop));
    run()?;
    space.unmap_deferred(page(ELSEWHERE))?;
    leave()?;
    once("flush_deferred,_one_page", &mut |_| MMU.flush_deferred().map(drop));
    once("flush_deferred,_nothing_waits", &mut |_| MMU.flush_deferred().map(drop));
    space.unmap(pages(ELSEWHERE, PAGES + 1)?).map(drop)
}

/// Returns the kernel's own address space, which is never dropped: its pages are those of every process.
#[cfg(not(target_arch = "aarch64"))]
fn kernels() -> Result<Option<ManuallyDrop<Space>>, Error> {
    let mut own = None;
    once("lending", &mut |_| {
        own = Some(ManuallyDrop::new(AddressSpace::lending(&MMU, cpu::kernels_parts()?)?));
        Ok(())
    });
    once("map_linear,_the_kernel", &mut |_| {
        let (own, mapped) = (own.as_ref().ok_or(Error::NoRoom)?, Attr::GLOBAL | Attr::ACCESSED | Attr::DIRTY);
        let mut parts = cpu::kernels_pages()?.into_iter();
        parts.try_for_each(|(pages, frame, rights)| own.map_linear(pages, frame, rights | mapped))
    });
    Ok(own)
}

/// The kernel keeps the boot's table, in a root register of its own.
#[cfg(target_arch = "aarch64")]
fn kernels() -> Result<Option<ManuallyDrop<Space>>, Error> {
    Ok(None)
}

/// Returns the address space of a new process.
fn process(kernel: Option<&Space>) -> Result<Space, Error> {
    kernel.map_or_else(|| AddressSpace::new(&MMU), AddressSpace::sharing)
}

/// Checks that the counter counts instructions: those of a loop of two, and no more, for each time.
fn check_counter() {
    #[inline(never)]
    fn counted(times: usize) -> usize {
        let begin = cpus::instructions();
        cpus::execute(times);
        cpus::instructions() - begin
    }
    let counted = counted(2000) - counted(1000);
    if counted != 2000 {
        FAILURES.fetch_add(1, Relaxed);
        let _ = writeln!(Console, "2000 instructions are counted as {counted}");
    }
}

fn all() -> Result<(), Error> {
    check_counter();
    frames(Frames::prepare);
    once("online", &mut |_| MMU.online());
    let kernel = kernels()?;
    let space = process(kernel.as_deref())?;
    space.activate()?;
    one_by_one(&space)?;
    of_a_process(kernel.as_deref(), &space)?;
    many_at_once(&space)?;
    later(&space)?;
    MMU.idle()?;
    drop(space);
    once("offline", &mut |_| MMU.offline());
    Ok(())
}

extern "C" fn run() -> ! {
    cpus::begin(0);
    cpu::prepare();
    cpus::on_stack(STACKS.0.as_ptr_range().end.addr(), measure)
}

extern "C" fn measure() -> ! {
    if let Err(why) = all() {
        FAILURES.fetch_add(1, Relaxed);
        let _ = writeln!(Console, "{why}");
    }
    end()
}

fn end() -> ! {
    let failures = FAILURES.load(Relaxed);
    let _ = writeln!(Console, "row machine={} cpus=1 failures={failures}", board::NAME);
    board::stop()
}

/// No page of this kernel faults.
fn fault(at: VirtAddr, access: Access) -> bool {
    panic!("a page fault at {at}: {access:?}")
}

#[panic_handler]
fn panic(why: &core::panic::PanicInfo<'_>) -> ! {
    FAILURES.fetch_add(1, Relaxed);
    let _ = writeln!(Console, "{why}");
    end()
}
