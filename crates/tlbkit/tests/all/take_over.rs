//! The table that a bootloader has left: what an address space takes over of it, and whose its frames are.
#![cfg(target_pointer_width = "64")]

use std::sync::atomic::Ordering;

use crate::host::{Host, Met, Use, machine, run_as};
use tlbkit::{AddressSpace, Attr, Error, Mmu, PageSize, Pages, Pfn, PhysAddr, Run, VirtAddr};

const GIB: usize = 1 << 30;
/// The slot that the kernel lends, and the one before it.
const LENT: usize = 4 * GIB;
const BELOW: usize = 3 * GIB;
const V: u64 = 1;
/// R, X, U, A and D: this machine's CPUs access pages as user mode does.
const TEXT: u64 = V | 2 | 8 | 16 | 64 | 128;
const GLOBAL: u64 = 32;
const UNLESS_GLOBAL: Attr =
    Attr::READ.union(Attr::EXEC).union(Attr::USER).union(Attr::ACCESSED).union(Attr::DIRTY);

fn slot(at: usize) -> Pages {
    Pages::count(VirtAddr::new(at).vpn(PageSize::K4), GIB / 4096).unwrap()
}

fn page(at: usize) -> Pages {
    Pages::one(VirtAddr::new(at).vpn(PageSize::K4))
}

/// A table of a bootloader, in frames that the kernel does not give out: each slot leads to a node of two pages, by links through one
/// node more. Those of `LENT` are global, because the root's link is.
struct Boot {
    root: PhysAddr,
    nodes: [Pfn; 3],
    pages: [Pfn; 2],
}

impl Boot {
    fn new<const CPUS: usize>(mmu: &'static Mmu<Host, CPUS>) -> Self {
        let host = mmu.kernel();
        let nodes = [(); 3].map(|()| host.data(0).unwrap());
        let pages = [7, 8].map(|word| host.data(word).unwrap());
        let [root, middle, last] = nodes.map(|node| node.address(PageSize::K4));
        let set = |node: PhysAddr, slot: usize, to: Pfn, bits: u64| {
            let word = host.word(PhysAddr::new(node.get() + slot * 8));
            word.store((to.get() as u64) << 10 | bits, Ordering::Relaxed);
        };
        set(root, BELOW >> 30, nodes[1], V);
        set(root, LENT >> 30, nodes[1], V | GLOBAL);
        set(root, 9, nodes[0], V);
        set(middle, 0, nodes[2], V);
        set(middle, 1, Pfn::new(0x4_0000), TEXT);
        set(last, 0, pages[0], TEXT);
        // A bit for software, which says nothing here.
        set(last, 5, pages[1], TEXT | 1 << 8);
        Self { root, nodes, pages }
    }

    /// The bootloader's uses of its frames end.
    fn end(self, host: &Host) {
        self.nodes.into_iter().chain(self.pages).for_each(|frame| host.put_back(frame));
    }
}

#[test]
fn what_a_bootloader_has_mapped_stays_mapped() {
    let mmu = machine::<1>(64);
    let (host, boot) = (mmu.kernel(), Boot::new(mmu));
    let kernel = AddressSpace::lending(mmu, [slot(LENT)]).unwrap();
    // The page of 2 MiB is none of this machine's memory, so it is left out.
    let first = Pages::count(slot(LENT).first(), 512).unwrap();
    // SAFETY: nobody changes the table, whose nodes are in the arena.
    let taken = unsafe { kernel.take_over(boot.root, first, |run| tlbkit::Kernel::share(host, run)) };
    assert_eq!(taken, Ok(2));
    let found = [0, 0x5000, 0x1000].map(|at| kernel.lookup(VirtAddr::new(LENT + at)));
    let attr = UNLESS_GLOBAL | Attr::GLOBAL;
    assert_eq!(found[0].map(|leaf| (leaf.frame, leaf.attr)), Some((boot.pages[0], attr)));
    assert_eq!(found[1].map(|leaf| (leaf.frame, leaf.attr)), Some((boot.pages[1], attr)));
    assert_eq!(found[2], None);
    // A CPU uses them without the bootloader's nodes, in any address space.
    let user = AddressSpace::sharing(&kernel).unwrap();
    user.activate().unwrap();
    let at = VirtAddr::new(LENT + 0x5010);
    let memory = Met::Memory(PhysAddr::new((boot.pages[1].get() << 12) + 0x10));
    boot.nodes.into_iter().for_each(|node| host.word(node.address(PageSize::K4)).store(0, Ordering::Relaxed));
    assert_eq!(host.access(at, false), memory);
    // A page that is unmapped is released, and the bootloader's use of its frame stays.
    assert_eq!(boot.pages.map(|frame| host.mappings(frame)), [Use::Data(2); 2]);
    kernel.unmap(page(LENT + 0x5000)).unwrap();
    assert_eq!(host.access(at, false), Met::Fault);
    assert_eq!(boot.pages.map(|frame| host.mappings(frame)), [Use::Data(2), Use::Data(1)]);
    mmu.offline().unwrap();
    drop((user, kernel));
    assert_eq!(boot.pages.map(|frame| host.mappings(frame)), [Use::Data(1); 2]);
    boot.end(host);
    assert_eq!(host.in_use(), 0);
}

#[test]
fn frames_that_the_kernel_has_never_given_are_released_as_others_are() {
    let mmu = machine::<1>(64);
    let (host, boot) = (mmu.kernel(), Boot::new(mmu));
    let space = AddressSpace::new(mmu).unwrap();
    let first = Pages::count(slot(BELOW).first(), 512).unwrap();
    let mut runs: Vec<Run> = Vec::new();
    // SAFETY: nobody changes the table, whose nodes are in the arena.
    assert_eq!(unsafe { space.take_over(boot.root, first, |run| runs.push(run)) }, Ok(2));
    // Each was shown before it was mapped; the caller has counted none, so the release takes the only use away.
    assert_eq!(runs, boot.pages.map(|first| Run { first, len: 1, dirty: true }));
    drop(space);
    assert_eq!(boot.pages.map(|frame| host.mappings(frame)), [Use::Free; 2]);
    boot.nodes.into_iter().for_each(|node| host.put_back(node));
    assert_eq!(host.in_use(), 0, "and the bootloader's nodes are not given back");
}

#[test]
fn a_table_that_cannot_be_taken_over_changes_nothing() {
    let mmu = machine::<1>(64);
    let (host, boot) = (mmu.kernel(), Boot::new(mmu));
    let kernel = AddressSpace::lending(mmu, [slot(LENT)]).unwrap();
    let user = AddressSpace::sharing(&kernel).unwrap();
    let before = host.in_use();
    let take = |space: &AddressSpace<Host>, pages| {
        // SAFETY: nobody changes the table, whose nodes are in the arena.
        unsafe { space.take_over(boot.root, pages, |_| panic!("nothing is mapped")) }
    };
    // A recursive slot; a slot that is shared; global pages, where address spaces differ.
    assert_eq!(take(&kernel, slot(9 * GIB)), Err(Error::Endless { at: VirtAddr::new(9 * GIB) }));
    assert_eq!(take(&user, slot(LENT)), Err(Error::Borrowed { at: VirtAddr::new(LENT) }));
    let other = AddressSpace::new(mmu).unwrap();
    assert_eq!(take(&other, slot(LENT)), Err(Error::Foreign { at: VirtAddr::new(LENT) }));
    drop(other);
    // Too little memory: two nodes are wanted, and one is there.
    host.allowance.store(1, Ordering::Relaxed);
    assert!(matches!(take(&user, slot(BELOW)), Err(Error::NoMemory { wanted: 2, .. })));
    host.allowance.store(usize::MAX, Ordering::Relaxed);
    // Write without read, which is reserved, in the last page of the range.
    let word = host.word(PhysAddr::new(boot.nodes[2].address(PageSize::K4).get() + 511 * 8));
    word.store(V | 4, Ordering::Relaxed);
    let first = Pages::count(slot(LENT).first(), 512).unwrap();
    assert_eq!(take(&kernel, first), Err(Error::Foreign { at: first.last().address(PageSize::K4) }));
    assert_eq!((kernel.lookup(VirtAddr::new(LENT)), user.lookup(VirtAddr::new(BELOW))), (None, None));
    assert_eq!(host.in_use(), before);
}

/// A page of the kernel is in force on every CPU when the call returns.
#[test]
fn other_cpus_are_told_of_the_kernels_pages() {
    let mmu = machine::<2>(64);
    let (host, boot) = (mmu.kernel(), Boot::new(mmu));
    run_as(0);
    let kernel = AddressSpace::lending(mmu, [slot(LENT)]).unwrap();
    run_as(1);
    kernel.activate().unwrap();
    let other = move || {
        run_as(1);
        if mmu.kernel().pending() {
            mmu.on_interrupt();
        }
        run_as(0);
    };
    host.meanwhile.set(Box::new(other)).ok();
    run_as(0);
    // SAFETY: nobody changes the table, whose nodes are in the arena.
    unsafe { kernel.take_over(boot.root, page(LENT), |run| tlbkit::Kernel::share(host, run)) }.unwrap();
    assert_eq!(host.interrupted.load(Ordering::Relaxed), 1);
    run_as(1);
    assert!(matches!(host.access(VirtAddr::new(LENT), false), Met::Memory(_)));
    mmu.offline().unwrap();
}
