//! Pages that go out to a disk, and come back.

use core::sync::atomic::{
    AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};

use tlbkit::{Access, AddressSpace, Error, Fault, VirtAddr};

use super::disk;
use super::memory::{self, Mine, put, take};

/// For each slot of the disk, how many pages have it as their payload, and how many CPUs are writing or reading it.
static HOLDERS: [AtomicUsize; disk::SLOTS] = [const { AtomicUsize::new(0) }; disk::SLOTS];

/// `Kernel::share_payload`.
pub fn hold(slot: u64) {
    HOLDERS[slot as usize].fetch_add(1, Relaxed);
}

/// `Kernel::release_payload`.
pub fn let_go(slot: u64) {
    HOLDERS[slot as usize].fetch_sub(1, Release);
}

/// Pages out the page at `at`. After `Err(Error::Changed)` the page stays: a CPU has stored to it meanwhile.
pub fn page_out(process: &AddressSpace<Mine>, at: VirtAddr) -> Result<(), Error> {
    let is_free = |slot: &usize| HOLDERS[*slot].compare_exchange(0, 1, Acquire, Relaxed).is_ok();
    let slot = (0..disk::SLOTS).find(is_free).ok_or(Error::NoRoom)? as u64;
    let done = process.freeze(at).and_then(|leaf| {
        // No CPU stores to the frame, which is this function's, too. No page names the slot.
        disk::write(slot, leaf.frame);
        let done = process.page_out(at, leaf.frame, slot);
        put(leaf.frame);
        done
    });
    // If it succeeded, this function's hold of the slot is the page's now.
    done.inspect_err(|_| let_go(slot))
}

/// Resolves a page fault as `memory::page_fault` does, also of a page that is out.
pub fn page_fault(process: &AddressSpace<Mine>, at: VirtAddr, access: Access) -> Result<bool, Error> {
    if memory::page_fault(process, at, access)? {
        return Ok(true);
    }
    let fault = process.edit(|edit| {
        let fault = edit.fault(at, access)?;
        // The slot is held in the edit that finds it: until it is let go, it has these contents.
        if let Fault::Swapped(slot) = fault {
            hold(slot);
        }
        Ok(fault)
    })?;
    let slot = match fault {
        Fault::Swapped(slot) => slot,
        // Another CPU has brought the page in meanwhile.
        Fault::Retry | Fault::CopyOnWrite(_) => return Ok(true),
        _ => return Ok(false),
    };
    let filled = take(None).and_then(|frame| {
        disk::read(slot, frame);
        process.fill(at, slot, frame)
    });
    let_go(slot);
    match filled {
        // The page has a frame in place of the slot.
        Ok(()) => let_go(slot),
        // Another CPU was faster.
        Err(Error::Changed { .. } | Error::Occupied { .. } | Error::NotMapped { .. }) => {}
        Err(why) => return Err(why),
    }
    Ok(true)
}
