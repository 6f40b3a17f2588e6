//! The TLB: pairs of pages, loaded by software.
//!
//! EntryHi is also the register that says which address space runs: whatever uses it for something else puts it back.

use core::arch::asm;

use crate::cp0;

/// EntryHi: the address space.
pub const ASID: u32 = 0xff;
/// EntryHi: the page pair.
pub const VPN2: u32 = !0x1fff;
/// EntryLo: in all address spaces.
pub const GLOBAL: u32 = 1;
/// EntryLo of a page of the kernel's memory: cached, writable, valid, in all address spaces.
const KERNEL: u32 = 0b01_1111;
/// The last 32 KiB, which a load reaches from register 0. They are for what is wired there.
const NEAR: u32 = 0xffff_8000;

/// An entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    pub hi: u32,
    pub mask: u32,
    pub lo: [u32; 2],
}

impl Entry {
    /// Returns an entry that matches nothing: kseg0 is not mapped. Each index has its own, so that no two match.
    fn nothing(index: usize) -> Self {
        Self { hi: 0x8000_0000 + ((index as u32) << 13), mask: 0, lo: [0, 0] }
    }

    /// Tells whether it can match any address at all.
    pub fn is_live(&self) -> bool {
        !(0x8000_0000..0xc000_0000).contains(&self.hi)
    }

    /// Tells whether it is the wired one.
    fn is_wired(&self) -> bool {
        self.hi >= NEAR
    }

    /// Tells whether it matches in an address space.
    pub fn is_in(&self, asid: u32) -> bool {
        self.hi & ASID == asid || self.lo[0] & self.lo[1] & GLOBAL != 0
    }

    /// Returns the first and the last address that it maps.
    pub fn reach(&self) -> [u32; 2] {
        let inside = self.mask | !VPN2;
        [self.hi & !inside, self.hi | inside]
    }

    /// Tells whether there is an address that both match.
    pub fn overlaps(&self, other: &Self) -> bool {
        let both = VPN2 & !(self.mask | other.mask);
        (self.hi ^ other.hi) & both == 0 && (self.is_in(other.hi & ASID) || other.is_in(self.hi & ASID))
    }
}

/// Returns where the kernel's memory at `at` is seen near register 0, once it is [wired](wire): as far into 32 KiB as it is
/// anyway, so that a cache which finds lines by virtual addresses has them once.
pub const fn near(at: u32) -> u32 {
    NEAR | at & !NEAR
}

/// Shows a page of the kernel's memory, the one that `at` in kseg0 is in, [near](near) register 0, for good: in the first
/// entry, which `tlbwr` writes no more.
///
/// # Safety
///
/// The TLB has no other such entry.
pub unsafe fn wire(at: u32) {
    let frame = (at & 0x1fff_ffff) >> 12;
    let mut lo = [GLOBAL; 2];
    lo[frame as usize & 1] |= frame << 6 | KERNEL;
    write(0, Entry { hi: near(at) & VPN2, mask: 0, lo });
    // SAFETY: the entry is there.
    unsafe { cp0::wired::write(1) };
}

/// Returns how many entries there are.
pub fn entries() -> usize {
    ((cp0::config1::read() >> 25 & 63) + 1) as usize
}

/// Returns the address space that runs.
pub fn current() -> u32 {
    cp0::entry_hi::read() & ASID
}

/// Makes `asid` the address space that runs.
///
/// # Safety
///
/// The refill handler serves that address space from now on.
pub unsafe fn switch(asid: u32) {
    // SAFETY: the caller's promise.
    unsafe { cp0::entry_hi::write(asid) };
}

/// Reads the entry of an index.
pub fn read(index: usize) -> Entry {
    let current = cp0::entry_hi::read();
    // SAFETY: reads an entry into the registers that stand for one, and puts back the one that means more.
    unsafe {
        cp0::index::write(index as u32);
        asm!("tlbr", options(nostack));
        cp0::barrier();
        let entry = Entry {
            hi: cp0::entry_hi::read(),
            mask: cp0::page_mask::read(),
            lo: [cp0::entry_lo0::read(), cp0::entry_lo1::read()],
        };
        cp0::entry_hi::write(current);
        cp0::page_mask::write(0);
        entry
    }
}

fn write(index: usize, entry: Entry) {
    let current = cp0::entry_hi::read();
    // SAFETY: the caller answers for the entry; EntryHi holds the current address space again before any access to one.
    unsafe {
        cp0::index::write(index as u32);
        load(entry);
        asm!("tlbwi", options(nostack));
        cp0::barrier();
        cp0::entry_hi::write(current);
        cp0::page_mask::write(0);
    }
}

/// Writes an entry.
///
/// # Safety
///
/// The table says the same, and no other entry matches these addresses.
pub unsafe fn write_at(index: usize, entry: Entry) {
    write(index, entry);
}

/// Writes an entry in place of the one at an index.
///
/// # Safety
///
/// The table says the same, and the TLB holds no entry for these addresses but that one.
pub unsafe fn replace(index: usize, entry: Entry) {
    write(index, entry);
}

/// # Safety
///
/// EntryHi is put back afterwards.
unsafe fn load(entry: Entry) {
    // SAFETY: the caller's promise.
    unsafe {
        cp0::page_mask::write(entry.mask);
        cp0::entry_hi::write(entry.hi);
        cp0::entry_lo0::write(entry.lo[0]);
        cp0::entry_lo1::write(entry.lo[1]);
    }
}

/// Returns the index of the entry that matches an address in an address space.
pub fn probe(at: u32, asid: u32) -> Option<usize> {
    let current = cp0::entry_hi::read();
    // SAFETY: `tlbp` changes Index alone; EntryHi is put back.
    unsafe {
        cp0::entry_hi::write(at & VPN2 | asid);
        asm!("tlbp", options(nostack));
        cp0::barrier();
        cp0::entry_hi::write(current);
    }
    let index = cp0::index::read();
    (index >> 31 == 0).then_some(index as usize)
}

/// Forgets the entry that matches an address in an address space, if there is one.
pub fn forget(at: u32, asid: u32) {
    if let Some(index) = probe(at, asid) {
        write(index, Entry::nothing(index));
    }
}

/// Forgets every entry that `is_stale`, but for the wired one.
pub fn forget_all(is_stale: impl Fn(&Entry) -> bool) {
    for index in 0..entries() {
        let entry = read(index);
        if entry.is_live() && !entry.is_wired() && is_stale(&entry) {
            write(index, Entry::nothing(index));
        }
    }
}

/// Forgets everything, whatever the TLB contains: after reset that may be anything.
pub fn reset() {
    for index in 0..entries() {
        write(index, Entry::nothing(index));
    }
}

/// Returns how many pairs of entries match one address: there must be none. Costs the square of the entries.
pub fn duplicates() -> usize {
    let all: heapless::Vec<Entry, 64> = (0..entries()).map(read).filter(Entry::is_live).collect();
    let pairs =
        |(at, entry): (usize, &Entry)| all[at + 1..].iter().filter(|other| entry.overlaps(other)).count();
    all.iter().enumerate().map(pairs).sum()
}
