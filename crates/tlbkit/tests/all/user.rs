//! Copies from and to user memory, by what its programs and the kernel's page-fault handler see.
#![cfg(target_pointer_width = "64")]

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::host::{Host, Use, machine, run_as};
use tlbkit::{
    Access, AddressSpace, Attr, Error, Fault, Kernel as _, Mapping, Mark, Mmu, PageSize, Pages, Pfn,
    PhysAddr, Stopped, SupervisorPages, VirtAddr,
};

const RW: Attr = Attr::READ.union(Attr::WRITE).union(Attr::USER);
const LOAD: Access = Access::LOAD.by_user();
const STORE: Access = Access::STORE.by_user();
const NO_MEMORY: Error = Error::NoMemory { wanted: 1, pending: 0 };
/// Where the handler maps pages, which hold this word everywhere.
const HEAP: usize = 0x4_0000;
const FRESH: u64 = 0x0707_0707_0707_0707;

fn pages(at: usize, count: usize) -> Pages {
    Pages::count(VirtAddr::new(at).vpn(PageSize::K4), count).unwrap()
}

fn at(at: usize) -> VirtAddr {
    VirtAddr::new(at)
}

/// The kernel's page-fault handler.
fn handler<const CPUS: usize>(
    space: &AddressSpace<Host, CPUS>,
    at: VirtAddr,
    access: Access,
) -> Result<bool, Error> {
    let (mmu, host) = (space.mmu(), space.mmu().kernel());
    let page = Pages::one(at.vpn(PageSize::K4));
    match space.fault(at, access)? {
        Fault::Retry => {}
        Fault::NotMapped if (HEAP..HEAP + 0x1_0000).contains(&at.get()) => {
            space.map_with(page, RW, |_| host.data(FRESH).ok_or(NO_MEMORY))?;
        }
        Fault::CopyOnWrite(_) => {
            let is_sole = |frame| host.mappings(frame) == Use::Data(1);
            let copy = |of| {
                let new = host.data(0).ok_or(NO_MEMORY)?;
                mmu.copy_frame(of, new).map(|()| new)
            };
            space.unshare(at, is_sole, copy)?;
        }
        Fault::Swapped(slot) => space.fill(at, slot, host.data(slot).ok_or(NO_MEMORY)?)?,
        _ => return Ok(false),
    }
    Ok(true)
}

fn refused(copied: usize) -> Result<(), Stopped> {
    Err(Stopped { copied, error: None })
}

fn failed(copied: usize, error: Error) -> Result<(), Stopped> {
    Err(Stopped { copied, error: Some(error) })
}

/// Returns the bytes of user memory, as frames have them.
fn found(space: &AddressSpace<Host>, from: usize, len: usize) -> Vec<u8> {
    let byte = |from: usize| {
        let phys = space.translate(at(from)).unwrap();
        let word = space.mmu().kernel().word(PhysAddr::new(phys.get() & !7));
        word.load(Ordering::Relaxed).to_ne_bytes()[phys.get() % 8]
    };
    (from..from + len).map(byte).collect()
}

/// Every alignment of both ends around the end of a page, to frames that are not neighbours.
#[test]
fn bytes_go_where_the_program_has_them_and_nowhere_else() {
    run_as(0);
    let mmu = machine::<1>(64);
    let space = AddressSpace::new(mmu).unwrap();
    let frames = [1, 2, 3].map(|word| mmu.kernel().data(word).unwrap());
    space.map_each(pages(0x1000, 2), [frames[2], frames[0]], RW).unwrap();
    const FIRST: usize = 0x1fe0;
    let mut model = vec![0x55; 64];
    assert_eq!(space.copy_to_user(at(FIRST), &model, handler), Ok(()));
    let mut next = 0_u8;
    // Every one is too many for an interpreter.
    const STEP: usize = if cfg!(miri) { 7 } else { 1 };
    for begin in (0..40).step_by(STEP) {
        for len in (0..24).step_by(STEP) {
            let bytes: Vec<u8> = std::iter::repeat_with(|| {
                next = next.wrapping_mul(5).wrapping_add(17);
                next
            })
            .take(len)
            .collect();
            model[begin..begin + len].copy_from_slice(&bytes);
            assert_eq!(space.copy_to_user(at(FIRST + begin), &bytes, handler), Ok(()));
            assert_eq!(found(&space, FIRST, 64), model, "{len} bytes from {begin} on");
            let mut read = vec![0xee; len + 2];
            assert_eq!(space.copy_from_user(at(FIRST + begin), &mut read[1..=len], handler), Ok(()));
            assert_eq!((read[0], read[len + 1], &read[1..=len]), (0xee, 0xee, &bytes[..]));
        }
    }
    assert_eq!(found(&space, FIRST - 8, 8), 3_u64.to_ne_bytes(), "before it");
    assert_eq!(found(&space, FIRST + 64, 8), 1_u64.to_ne_bytes(), "and behind");
}

#[test]
fn the_handler_is_called_where_a_program_would_fault() {
    run_as(0);
    let mmu = machine::<1>(64);
    let space = AddressSpace::new(mmu).unwrap();
    let frame = mmu.kernel().data(9).unwrap();
    // A page of which the hardware would note the access.
    space.map(pages(HEAP + 0x2000, 1), frame, RW).unwrap();
    let mut faults = Vec::new();
    let mut handled = |space: &AddressSpace<Host>, at: VirtAddr, access: Access| {
        faults.push((at.get(), access));
        handler(space, at, access)
    };
    let mut bytes = vec![0xff; 0x2010];
    assert_eq!(space.copy_from_user(at(HEAP + 0xff9), &mut bytes, &mut handled), Ok(()));
    assert!(bytes[..0x1007].iter().all(|&byte| byte == 7));
    assert_eq!(bytes[0x1007..0x100f], 9_u64.to_ne_bytes());
    assert_eq!(space.copy_to_user(at(HEAP + 0x2ffc), &[1; 8], &mut handled), Ok(()));
    let status = |page: usize| space.lookup(at(page)).unwrap().attr & (Attr::ACCESSED | Attr::DIRTY);
    assert_eq!(status(HEAP), Attr::ACCESSED);
    assert_eq!(status(HEAP + 0x2000), Attr::ACCESSED | Attr::DIRTY, "the program's page is dirty");
    // Once where nothing is mapped, and once where a status bit is missing, as for hardware that sets none.
    let twice = |at: usize, access| [(at, access), (at, access)];
    let wanted = [
        &twice(HEAP + 0xff9, LOAD)[..],
        &twice(HEAP + 0x1000, LOAD),
        &[(HEAP + 0x2000, LOAD)],
        &twice(HEAP + 0x3000, LOAD)[..],
        &[(HEAP + 0x2ffc, STORE), (HEAP + 0x3000, STORE)],
    ];
    assert_eq!(faults, wanted.concat());
    // Nothing of it is another program's, and no call is needed for no byte.
    assert_eq!(space.copy_from_user(at(0xdead_0000_0000_0000), &mut [], |_, _, _| panic!("nothing")), Ok(()));
    mmu.idle().unwrap();
    drop(space);
    assert_eq!(mmu.kernel().in_use(), 0);
}

#[test]
fn a_copy_to_a_page_that_others_have_gets_a_copy_first() {
    run_as(0);
    let mmu = machine::<1>(64);
    let host = mmu.kernel();
    let parent = AddressSpace::new(mmu).unwrap();
    let frames = [1, 2].map(|word| host.data(word).unwrap());
    parent.map_each(pages(0x1000, 2), frames, RW).unwrap();
    let child = parent.fork(SupervisorPages::LeftOut).unwrap();
    let mut read = [0; 8];
    assert_eq!(child.copy_from_user(at(0x1ffc), &mut read, handler), Ok(()));
    assert_eq!((host.mappings(frames[0]), host.mappings(frames[1])), (Use::Data(2), Use::Data(2)));
    assert_eq!(child.copy_to_user(at(0x1ffc), &[0xaa; 8], handler), Ok(()));
    assert_eq!((host.mappings(frames[0]), host.mappings(frames[1])), (Use::Data(1), Use::Data(1)));
    assert_eq!(found(&parent, 0x1ffc, 8), read);
    assert_eq!(found(&child, 0x1ff8, 16)[4..12], [0xaa; 8]);
    assert_eq!(found(&child, 0x1ff0, 8), 1_u64.to_ne_bytes(), "the rest is a copy");
    // The last one that has the frame keeps it.
    drop(child);
    assert_eq!(parent.copy_to_user(at(0x1000), &[1], handler), Ok(()));
    assert_eq!(parent.lookup(at(0x1000)).unwrap().frame, frames[0]);
}

#[test]
fn a_page_that_is_out_comes_in_for_a_copy() {
    run_as(0);
    let mmu = machine::<1>(64);
    let host = mmu.kernel();
    let space = AddressSpace::new(mmu).unwrap();
    space.mark(at(0x1000), Mark::Payload(5, RW)).unwrap();
    space.mark(at(0x2000), Mark::Payload(6, Attr::READ | Attr::USER)).unwrap();
    let mut read = [0; 16];
    assert_eq!(space.copy_from_user(at(0x1ff8), &mut read, handler), Ok(()));
    assert_eq!(read[..8], 5_u64.to_ne_bytes());
    assert_eq!(read[8..], 6_u64.to_ne_bytes());
    // With the rights that it had.
    assert_eq!(space.copy_to_user(at(0x1ff8), &read, handler), refused(8));
    drop(space);
    assert_eq!(host.in_use(), 0);
}

#[test]
fn what_a_program_may_not_access_stops_the_copy() {
    run_as(0);
    let mmu = machine::<1>(64);
    let host = mmu.kernel();
    let space = AddressSpace::new(mmu).unwrap();
    let data = |word| host.data(word).unwrap();
    let status = Attr::ACCESSED | Attr::DIRTY;
    space.map(pages(0x1000, 1), data(1), RW | status).unwrap();
    let mut bytes = [0; 12];
    let next = |attr: Attr| space.map(pages(0x2000, 1), data(2), attr | status).unwrap();
    let gone = || assert_eq!(space.unmap(pages(0x2000, 1)), Ok(1));
    // The kernel's own page, which the kernel may write and the program may not.
    next(Attr::READ | Attr::WRITE);
    assert_eq!(space.copy_from_user(at(0x1ff8), &mut bytes, handler), refused(8));
    assert_eq!(space.copy_to_user(at(0x1ff8), &[9; 12], handler), refused(8));
    assert_eq!(found(&space, 0x1ff8, 16), [[9; 8], 2_u64.to_ne_bytes()].concat());
    gone();
    // One that can be read alone, one that is closed, and a guard.
    next(Attr::READ | Attr::USER);
    assert_eq!(space.copy_from_user(at(0x1ff8), &mut bytes, handler), Ok(()));
    assert_eq!(space.copy_to_user(at(0x1ff8), &bytes, handler), refused(8));
    space.set_rights(pages(0x2000, 1), Mapping::Private, Attr::empty()).unwrap();
    assert_eq!(space.copy_from_user(at(0x1ffc), &mut bytes, handler), refused(4));
    gone();
    space.mark(at(0x2000), Mark::Guard).unwrap();
    assert_eq!(space.copy_from_user(at(0x1fff), &mut bytes, handler), refused(1));
    // Wild addresses: nothing there, no page can be there, and the end of all addresses.
    for wild in [0, 0x3000, (1 << 38) - 1, 1 << 38, 0xdead_beef_0000_0000, usize::MAX - 3, usize::MAX] {
        assert_eq!(space.copy_from_user(at(wild), &mut bytes, handler), refused(0), "{wild:#x}");
        assert_eq!(space.copy_to_user(at(wild), &bytes, handler), refused(0), "{wild:#x}");
    }
    space.map(pages(usize::MAX & !0xfff, 1), data(3), RW | status).unwrap();
    assert_eq!(space.copy_to_user(at(usize::MAX - 4), &bytes, handler), refused(5));
    assert_eq!(space.copy_from_user(at(usize::MAX - 11), &mut bytes, handler), Ok(()));
    space.map(pages((1 << 38) - 0x1000, 1), data(4), RW | status).unwrap();
    assert_eq!(space.copy_from_user(at((1 << 38) - 6), &mut bytes, handler), refused(6));
}

#[test]
fn an_error_stops_the_copy_and_says_which_bytes_are_copied() {
    run_as(0);
    let mmu = machine::<1>(64);
    let host = mmu.kernel();
    let space = AddressSpace::new(mmu).unwrap();
    assert_eq!(space.copy_to_user(at(HEAP), &[1; 8], handler), Ok(()));
    host.allowance.store(0, Ordering::Relaxed);
    let mut bytes = [0xff; 0x1008];
    assert_eq!(space.copy_from_user(at(HEAP + 4), &mut bytes, handler), failed(0xffc, NO_MEMORY));
    assert_eq!((&bytes[..4], bytes[0xffb], bytes[0xffc]), (&[1; 4][..], 7, 0xff));
    host.allowance.store(usize::MAX, Ordering::Relaxed);
    let nested = space.edit(|_| Ok(space.copy_to_user(at(HEAP), &[2], handler)));
    assert_eq!(nested, Ok(failed(0, Error::Nested)));
    // A frame that the kernel has freed while a page names it: a mistake of safe code, which stores to nobody's memory.
    let frame = host.data(3).unwrap();
    space.map(pages(0x1000, 1), frame, RW | Attr::ACCESSED | Attr::DIRTY).unwrap();
    host.put_back(frame);
    assert_eq!(space.copy_to_user(at(0x1000), &[1], handler), failed(0, Error::NotUserMemory { frame }));
    assert_eq!(host.word(PhysAddr::new(frame.get() << 12)).load(Ordering::Relaxed), !0);
    assert_eq!(mmu.clear_frame(frame), Err(Error::NotUserMemory { frame }));
    let other = host.data(4).unwrap();
    assert_eq!(other, frame);
    let node = Pfn::new(host.take_frame().unwrap().get() >> 12);
    assert_eq!(mmu.copy_frame(node, frame), Err(Error::NotUserMemory { frame: node }));
    assert_eq!(mmu.copy_frame(frame, node), Err(Error::NotUserMemory { frame: node }));
    let beyond = Pfn::new(frame.get() | 1 << 52);
    assert_eq!(
        mmu.clear_frame(beyond),
        Err(Error::NotUserMemory { frame: beyond }),
        "there is no such frame"
    );
    let why = Error::NotUserMemory { frame: node };
    let said = [None, Some(why)].map(|error| Stopped { copied: 5, error }.to_string());
    assert!(said.iter().all(|said| said.contains("after 5 bytes: ")), "{said:?}");
    assert!(said[0].contains("may not") && said[1].contains("Kernel::user_memory"), "{said:?}");
    host.give_frame(node.address(PageSize::K4));
}

/// A program on another CPU stores to the bytes beside those that are copied.
#[test]
fn a_part_of_a_word_leaves_the_other_bytes_to_the_program() {
    const ROUNDS: u64 = if cfg!(miri) { 20 } else { 20_000 };
    run_as(0);
    let mmu = machine::<1>(64);
    let host = mmu.kernel();
    let space = AddressSpace::new(mmu).unwrap();
    let frame = host.data(0).unwrap();
    space.map(pages(0x1000, 1), frame, RW | Attr::ACCESSED | Attr::DIRTY).unwrap();
    let word = host.word(frame.address(PageSize::K4));
    // The program counts in the upper half of the word, as long as the kernel copies to the lower one.
    let (start, is_over) = (Barrier::new(2), AtomicBool::new(false));
    let counted = std::thread::scope(|scope| {
        let program = scope.spawn(|| {
            start.wait();
            let mut counted = 0_u64;
            while !is_over.load(Ordering::Relaxed) {
                word.fetch_add(1 << 32, Ordering::Relaxed);
                counted += 1;
            }
            counted
        });
        start.wait();
        for round in 0..ROUNDS as u32 {
            assert_eq!(space.copy_to_user(at(0x1000), &round.to_le_bytes()[..3], handler), Ok(()));
        }
        is_over.store(true, Ordering::Relaxed);
        program.join().unwrap()
    });
    assert_eq!(word.load(Ordering::Relaxed), counted << 32 | (ROUNDS - 1));
}

/// While a CPU copies, another one forks: what the copy stores after the fork is in the parent alone.
#[test]
fn a_fork_waits_for_a_copy_that_is_under_way() {
    const ROUNDS: usize = if cfg!(miri) { 3 } else { 300 };
    let mmu: &'static Mmu<Host, 2> = machine::<2>(128);
    run_as(0);
    mmu.online().unwrap();
    let space = AddressSpace::new(mmu).unwrap();
    assert_eq!(space.copy_to_user(at(HEAP), &[0; 64], handler), Ok(()));
    let (start, is_over, has_left) = (Barrier::new(2), AtomicBool::new(false), AtomicBool::new(false));
    let read = |space: &AddressSpace<Host, 2>| {
        let mut bytes = [0; 64];
        assert_eq!(space.copy_from_user(at(HEAP), &mut bytes, handler), Ok(()));
        bytes
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            run_as(1);
            space.activate().unwrap();
            start.wait();
            for round in 0_u64.. {
                if mmu.kernel().pending() {
                    mmu.on_interrupt();
                }
                if is_over.load(Ordering::SeqCst) {
                    break;
                }
                let bytes = [round.to_ne_bytes(); 8];
                assert_eq!(space.copy_to_user(at(HEAP), bytes.as_flattened(), handler), Ok(()));
            }
            mmu.offline().unwrap();
            has_left.store(true, Ordering::SeqCst);
        });
        start.wait();
        for _ in 0..ROUNDS {
            let child = space.fork(SupervisorPages::LeftOut).unwrap();
            let before = read(&child);
            for _ in 0..4 {
                std::thread::yield_now();
                if mmu.kernel().pending() {
                    mmu.on_interrupt();
                }
            }
            assert_eq!(read(&child), before);
        }
        is_over.store(true, Ordering::SeqCst);
        // The other CPU may wait for this one.
        while !has_left.load(Ordering::SeqCst) {
            mmu.on_interrupt();
            std::thread::yield_now();
        }
    });
}
