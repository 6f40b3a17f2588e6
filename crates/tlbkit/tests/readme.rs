//! The first example of the README, run on the modelled machine. The README repeats these lines.
#![cfg(target_pointer_width = "64")]

mod host;

use std::cell::Cell;
use std::sync::atomic::Ordering;

use host::{Host, Met, machine};
use tlbkit::{Access, AddressSpace, Attr, Error, Fault, Mmu, PageSize, Pages, Pfn, PhysAddr, VirtAddr};

type Mine = Host;

const USER: Attr = Attr::READ.union(Attr::WRITE).union(Attr::USER);

thread_local! {
    static MMU: Cell<Option<&'static Mmu<Mine>>> = const { Cell::new(None) };
}

/// Takes a frame and clears it.
fn zeroed_frame() -> Result<Pfn, Error> {
    let none = Error::NoMemory { wanted: 1, pending: 0 };
    MMU.get().and_then(|mmu| mmu.kernel().data(0)).ok_or(none)
}

/// Takes a frame and copies what another holds.
fn copy_of(frame: Pfn) -> Result<Pfn, Error> {
    let copy = zeroed_frame()?;
    let word = |frame: Pfn| MMU.get().unwrap().kernel().word(PhysAddr::new(frame.get() * 4096));
    word(copy).store(word(frame).load(Ordering::Relaxed), Ordering::Relaxed);
    Ok(copy)
}

/// Takes a frame and reads into it what a page of the swap device holds.
fn read_back(slot: u64) -> Result<Pfn, Error> {
    let none = Error::NoMemory { wanted: 1, pending: 0 };
    MMU.get().and_then(|mmu| mmu.kernel().data(slot)).ok_or(none)
}

/// Takes a frame back that nothing maps.
fn give_back(frame: Pfn) {
    MMU.get().unwrap().kernel().put_back(frame);
}

// README: begin
/// Resolves a page fault at `at`. Returns `false` if the process may not make this access.
fn page_fault(process: &AddressSpace<Mine>, at: VirtAddr, access: Access) -> Result<bool, Error> {
    let page = Pages::one(at.vpn(PageSize::K4));
    process.edit(|edit| {
        match edit.fault(at, access)? {
            Fault::Retry => {} // The TLB held an older entry, which is flushed now.
            Fault::NotMapped => {
                let frame = zeroed_frame()?;
                edit.map(page, frame, USER).inspect_err(|_| give_back(frame))?;
            }
            Fault::CopyOnWrite(leaf) => {
                let frame = copy_of(leaf.frame)?;
                edit.replace(at, frame, USER).inspect_err(|_| give_back(frame))?;
            }
            Fault::Swapped(slot) => {
                let frame = read_back(slot)?;
                edit.fill(at, frame, USER).inspect_err(|_| give_back(frame))?;
            }
            Fault::NoRight(_) | Fault::Closed(_) | Fault::Guard => return Ok(false),
        }
        Ok(true)
    })
}
// README: end

#[test]
fn the_readme_has_the_lines_that_run_here() {
    let ours = include_str!("readme.rs");
    let begin = ours.find("// README: begin\n").unwrap() + "// README: begin\n".len();
    let lines = &ours[begin..ours.find("// README: end").unwrap()];
    assert!(include_str!("../../../README.md").contains(lines), "the README's example is another");
}

#[test]
fn a_process_and_its_fork_run_on_it() {
    let mmu = machine::<1>(64);
    MMU.set(Some(mmu));
    let before = mmu.kernel().in_use();
    let process: AddressSpace<Mine> = AddressSpace::new(mmu).unwrap();
    process.activate().unwrap();
    let at = VirtAddr::new(0x40_0000);
    let store = |space: &AddressSpace<Mine>| {
        for _ in 0..4 {
            if let Met::Memory(phys) = mmu.kernel().access(at, true) {
                return phys;
            }
            assert_eq!(page_fault(space, at, Access::STORE.by_user()), Ok(true));
        }
        panic!("it faults for ever");
    };
    let first = store(&process);
    let child = process.fork().unwrap();
    let second = store(&process);
    assert_ne!(first, second);
    assert_eq!(child.translate(at), Some(first));
    mmu.idle().unwrap();
    drop((process, child));
    assert_eq!(mmu.kernel().in_use(), before);
}
