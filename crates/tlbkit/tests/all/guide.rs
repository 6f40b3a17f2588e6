//! The files of docs/embedding.md that are the same on every machine, as the guide has them, with the tables of each machine and memory
//! that is an array. What only instructions can do is left out: no CPU walks here.
#![cfg(target_pointer_width = "64")]
#![allow(clippy::duplicate_mod, reason = "the same files are modules of a kernel of each machine")]

use std::cell::UnsafeCell;

use tlbkit::{Access, Attr};

mod aarch64;
mod riscv64;
mod x86_64;

/// Where memory begins, and its first frame that the kernel gives out.
const RAM: usize = 0x8000_0000;
const FIRST: usize = (RAM + (2 << 20)) >> 12;

#[repr(C, align(4096))]
struct Memory(UnsafeCell<[u8; 34 << 20]>);

// SAFETY: one test uses each, which has one thread.
unsafe impl Sync for Memory {}

const USER: Attr = Attr::READ.union(Attr::WRITE).union(Attr::USER);
const STORE: Access = Access::STORE.by_user();
/// Where the large page is, and its parts.
const AT: usize = 0x40_0000;
const PARTS: usize = 512;

/// A kernel of the guide with the tables of a machine, whose part of an address space is these pages: all but the guide's files.
macro_rules! kernel {
    ($machine:ident, $part:expr) => {
        use std::cell::UnsafeCell;

        use tlbkit::{
            AddressSpace, Attr, Error, Fault, Kernel, Mapping, PageSize, Pages, Pfn, PhysAddr, Stopped,
            SupervisorPages, VirtAddr, Vpn,
        };

        use super::{AT, Memory, PARTS, RAM, STORE, USER};
        use memory::{MMU, Mine, page_fault, put, take};

        static MEMORY: Memory = Memory(UnsafeCell::new([0; _]));

        mod cpu {
            use tlbkit::{Asid, Attr, Error, Flush, Pages, Pfn, PhysAddr};

            use super::{MEMORY, RAM};

            pub(super) use tlbkit::arch::$machine as Machine;

            pub(super) use super::super::FIRST;

            #[allow(dead_code, reason = "the upper half of AArch64 is no part of an address space")]
            pub(super) fn kernels_parts() -> Result<[Pages; 1], Error> {
                $part.map(|part| [part]).ok_or(Error::NoRoom)
            }

            pub(super) fn kernels_pages() -> Result<[(Pages, Pfn, Attr); 1], Error> {
                let [part] = kernels_parts()?;
                let pages = Pages::count(part.first(), 16 << 10).ok_or(Error::NoRoom)?;
                Ok([(pages, Pfn::new(FIRST), Attr::READ | Attr::WRITE)])
            }

            pub(super) fn memory(frame: PhysAddr) -> *mut u8 {
                MEMORY.0.get().cast::<u8>().wrapping_add(frame.get() - RAM)
            }

            pub(super) fn asid_bits() -> u32 {
                12
            }

            pub(super) fn masked<R>(f: impl FnOnce() -> R) -> R {
                f()
            }

            pub(super) fn flush(_flush: &Flush<'_>, _asid: Option<Asid>) {}

            pub(super) fn load(_root: usize) {}

            pub(super) fn unload() {}

            #[allow(dead_code, reason = "only AArch64 has this root")]
            pub(super) fn load_upper(_root: usize) {}

            #[allow(dead_code, reason = "only AArch64 has this root")]
            pub(super) fn unload_upper() {}
        }

        /// No page of the test goes out.
        mod disk {
            use tlbkit::Pfn;

            pub(super) const SLOTS: usize = 1;

            pub(super) fn write(_slot: u64, _frame: Pfn) {}

            pub(super) fn read(_slot: u64, _frame: Pfn) {}
        }

        /// Returns the first word of the page at an address, as the process finds it.
        fn word(process: &AddressSpace<Mine>, at: usize) -> usize {
            let found = process.translate(VirtAddr::new(at)).unwrap();
            // SAFETY: the frame is in the array, and the thread has no reference into it.
            unsafe { cpu::memory(found).cast::<usize>().read() }
        }

        /// Stores a word as the process, with its page-fault handler; tells whether it may.
        fn store(process: &AddressSpace<Mine>, at: usize, word: usize) -> bool {
            for _ in 0..3 {
                let leaf = process.lookup(VirtAddr::new(at));
                if let Some(leaf) = leaf.filter(|leaf| STORE.allowed(leaf.attr)) {
                    let to = leaf.phys(VirtAddr::new(at), PageSize::K4);
                    // SAFETY: the frame is in the array, and the thread has no reference into it.
                    unsafe { cpu::memory(to).cast::<usize>().write(word) };
                    return true;
                }
                if !page_fault(process, VirtAddr::new(at), STORE).unwrap() {
                    return false;
                }
            }
            panic!("{at:#x} faults for ever")
        }

        /// Takes the frames of a large page, which are in a row when the kernel has just begun.
        fn take_large() -> Pfn {
            let mut frames = Vec::new();
            loop {
                frames.push(take(None).unwrap());
                let run = frames.last_chunk::<PARTS>();
                // The kernel gives the last of its frames out first.
                let is_large = |run: &[Pfn; PARTS]| {
                    let [.., first] = *run;
                    let place = |(before, frame): (usize, &Pfn)| frame.get() == first.get() + (PARTS - 1 - before);
                    first.get().is_multiple_of(PARTS) && run.iter().enumerate().all(place)
                };
                if run.is_some_and(is_large) {
                    break;
                }
            }
            let run = frames.split_off(frames.len() - PARTS);
            frames.into_iter().rev().for_each(put);
            run[PARTS - 1]
        }

        /// System calls read and write user memory by the guide's page-fault handler.
        fn copy_in_and_out(process: &AddressSpace<Mine>) {
            let (end, at) = (VirtAddr::new(0x3fff_fff8), VirtAddr::new(0x3fff_dffd));
            let mut read = [0xff; 8];
            let child = process.fork(SupervisorPages::LeftOut).unwrap();
            assert_eq!(child.copy_to_user(at, &[1, 2, 3, 4, 5, 6, 7, 8], page_fault), Ok(()));
            assert_eq!(child.copy_from_user(at, &mut read, page_fault), Ok(()));
            assert_eq!((read, process.lookup(at)), ([1, 2, 3, 4, 5, 6, 7, 8], None));
            let mut beyond = [0xff; 9];
            let stopped = Err(Stopped { copied: 8, error: None });
            assert_eq!(child.copy_from_user(end, &mut beyond, page_fault), stopped);
            assert_eq!(beyond[8], 0xff);
            // Of a node the kernel says that it is none of the programs' memory.
            let node = Pfn::new(process.root().unwrap().map_or(RAM >> 12, |root| root & ((1 << 44) - 1)));
            assert_eq!(MMU.copy_frame(node, node), Err(Error::NotUserMemory { frame: node }));
        }

        #[test]
        #[cfg_attr(miri, ignore = "34 MiB of memory")]
        fn the_kernel_of_the_guide_shares_large_pages() {
            let kernel = std::mem::ManuallyDrop::new(own::boot().unwrap());
            let large = Pages::count(VirtAddr::new(AT).vpn(PageSize::K4), PARTS).unwrap();
            let at = |part: usize| AT + part * 4096;
            // More than memory for as many rounds, if a frame of each round were lost.
            for round in 0..3 {
                let first = take_large();
                let parent = own::process(&kernel).unwrap();
                parent.map_linear(large, first, USER).unwrap();
                (0..PARTS).for_each(|part| assert!(store(&parent, at(part), part)));
                let child = parent.fork(SupervisorPages::LeftOut).unwrap();
                assert!(store(&child, at(9), 1000 + round) && store(&parent, at(10), 2000));
                for part in 0..PARTS {
                    let wanted = |written: usize, by: usize| if part == written { by } else { part };
                    assert_eq!(word(&child, at(part)), wanted(9, 1000 + round));
                    assert_eq!(word(&parent, at(part)), wanted(10, 2000));
                }
                // Nobody else has part 9 now, and nobody the rest when the child is gone.
                let own = parent.translate(VirtAddr::new(at(9)));
                assert!(store(&parent, at(9), 9));
                assert_eq!(parent.translate(VirtAddr::new(at(9))), own);
                drop(child);
                assert!(store(&parent, at(300), 3000));
                assert_eq!(
                    parent.translate(VirtAddr::new(at(300))).map(|at| at.pfn(PageSize::K4).get()),
                    Some(first.get() + 300)
                );
                // Pages of PROT_NONE open again, and a page that must not be written is not.
                parent.set_rights(large, Mapping::Private, Attr::empty()).unwrap();
                assert!(!store(&parent, at(7), 1));
                parent.set_rights(large, Mapping::Private, Attr::READ).unwrap();
                assert!(!store(&parent, at(7), 1));
                parent.set_rights(large, Mapping::Private, Attr::READ | Attr::WRITE).unwrap();
                assert!(store(&parent, at(7), 1) && word(&parent, at(7)) == 1);
                // The first touch of the heap; a wild address; a frame that the kernel does not give out.
                assert!(
                    store(&parent, 0x3fff_f008, 1) && !store(&parent, 8, 1) && !store(&parent, usize::MAX & !7, 1)
                );
                let text = Pfn::new((RAM >> 12) + 5);
                let page = Pages::one(Vpn::new(0x1_0000));
                parent.map(page, text, USER | Attr::COPY_ON_WRITE).unwrap();
                parent.set_rights(page, Mapping::Private, Attr::READ | Attr::WRITE).unwrap();
                let at = 0x1000_0000;
                assert!(
                    matches!(parent.fault(VirtAddr::new(at), STORE), Ok(Fault::CopyOnWrite(leaf)) if leaf.frame == text)
                );
                // A frame that holds none of the programs' memory is not copied, and no frame is lost.
                let refused = page_fault(&parent, VirtAddr::new(at), STORE);
                assert_eq!(refused, Err(Error::NotUserMemory { frame: text }));
                assert_eq!(parent.translate(VirtAddr::new(at)), Some(PhysAddr::new(text.get() << 12)));
                assert_eq!(MMU.clear_frame(text), Err(Error::NotUserMemory { frame: text }));
                copy_in_and_out(&parent);
                drop(parent);
            }
            // Every frame of the kernel's is free again, but those of its own address space.
            let taken: Vec<_> = std::iter::from_fn(|| MMU.kernel().take_frame()).collect();
            assert_eq!((8 << 10) - taken.len(), 1 + kernel.footprint().nodes);
            assert_eq!(MMU.lost(), 0);
        }
    };
}
use kernel;
