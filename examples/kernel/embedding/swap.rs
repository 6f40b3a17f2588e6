use super::disk;
use super::memory::{Mine, page_fault as fault_in_memory, put, take};
use core::sync::atomic::{AtomicUsize, Ordering::{Acquire, Relaxed, Release}};
use tlbkit::{Access, AddressSpace, Error, Fault, VirtAddr};

/// How many pages have each slot of the disk as their payload, and how many harts are writing or reading it.
static HOLDERS: [AtomicUsize; disk::SLOTS] = [const { AtomicUsize::new(0) }; disk::SLOTS];

/// `Kernel::share_payload`.
pub fn hold(slot: u64) { HOLDERS[slot as usize].fetch_add(1, Relaxed); }
/// `Kernel::release_payload`.
pub fn let_go(slot: u64) { HOLDERS[slot as usize].fetch_sub(1, Release); }

/// Pages out the page at `at`. After `Err(Error::Changed)` it stays: a hart has stored to it meanwhile.
pub fn page_out(process: &AddressSpace<Mine>, at: VirtAddr) -> Result<(), Error> {
    let is_free = |slot: &usize| HOLDERS[*slot].compare_exchange(0, 1, Acquire, Relaxed).is_ok();
    let slot = (0..disk::SLOTS).find(is_free).ok_or(Error::NoRoom)? as u64;
    let done = process.freeze(at).and_then(|leaf| {
        // No hart stores to the frame, which is this function's, too. No page names the slot.
        disk::write(slot, leaf.frame);
        let done = process.page_out(at, leaf.frame, slot);
        put(leaf.frame);
        done
    });
    done.inspect_err(|_| let_go(slot)) // Otherwise the page has it now.
}

/// Resolves a page fault as `memory::page_fault` does, also of a page that is out.
pub fn page_fault(process: &AddressSpace<Mine>, at: VirtAddr, access: Access) -> Result<bool, Error> {
    if fault_in_memory(process, at, access)? { return Ok(true) }
    // The slot is held in the edit that finds it: until it is let go, it has these contents.
    let hold_it = |fault: &Fault| if let &Fault::Swapped(slot) = fault { hold(slot) };
    let slot = match process.edit(|edit| edit.fault(at, access).inspect(hold_it))? {
        Fault::Swapped(slot) => slot,
        Fault::Retry | Fault::CopyOnWrite(_) => return Ok(true), // Another hart has brought it in meanwhile.
        _ => return Ok(false),
    };
    let filled = take(None).and_then(|frame| {
        disk::read(slot, frame);
        process.fill(at, slot, frame).inspect_err(|_| put(frame))
    });
    let_go(slot);
    match filled {
        Ok(()) => let_go(slot), // The page has its frame for it.
        // Another hart was faster.
        Err(Error::Changed { .. } | Error::Occupied { .. } | Error::NotMapped { .. }) => {}
        Err(why) => return Err(why),
    }
    Ok(true)
}
