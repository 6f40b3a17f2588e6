//! The TLB: entries for pairs of pages.

use super::{Stop, merge};

/// A TLB entry, as `tlbwi` stores it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// The size of the pages: address bits that are set here are not compared.
    pub page_mask: u64,
    /// The address of the pair, and the ASID.
    pub hi: u64,
    /// The EntryLo of the even page and of the odd page. Both have the same G bit.
    pub lo: [u64; 2],
}

/// The page that an address matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Match {
    /// The index of the entry.
    pub index: usize,
    /// The EntryLo of the page.
    pub lo: u64,
    /// The size of the page, in bytes.
    pub bytes: u64,
}

/// The bits of an address that are compared: the pair's number.
const PAIR: u64 = !0x1fff;
/// The ASID in EntryHi.
const ASID: u64 = 0xff;

impl Entry {
    /// Tells whether the entry is for every address space.
    pub const fn is_global(&self) -> bool {
        self.lo[0] & self.lo[1] & 1 != 0
    }

    const fn overlaps(&self, other: &Self) -> bool {
        (self.hi ^ other.hi) & PAIR & !(self.page_mask | other.page_mask) == 0
            && (self.is_global() || other.is_global() || (self.hi ^ other.hi) & ASID == 0)
    }

    const fn matches(&self, at: u64, asid: u64) -> bool {
        (self.hi ^ at) & PAIR & !self.page_mask == 0 && (self.is_global() || (self.hi ^ asid) & ASID == 0)
    }
}

/// A TLB of `N` entries.
#[derive(Clone, Debug)]
pub struct Tlb<const N: usize> {
    entries: [Option<Entry>; N],
}

impl<const N: usize> Tlb<N> {
    pub(super) const fn new() -> Self {
        Self { entries: [None; N] }
    }

    /// Returns the entries; an empty entry is `None`.
    pub const fn entries(&self) -> &[Option<Entry>; N] {
        &self.entries
    }

    /// Empties the TLB.
    pub fn flush(&mut self) {
        self.entries = [None; N];
    }

    /// Empties every entry for which `which` returns false.
    pub fn retain(&mut self, mut which: impl FnMut(&Entry) -> bool) {
        for entry in &mut self.entries {
            *entry = entry.filter(&mut which);
        }
    }

    /// Returns the page that matches an address in the address space with this ASID. At most one entry matches, because
    /// [`write`](Self::write) refuses a second.
    pub fn find(&self, at: u64, asid: u64) -> Option<Match> {
        let entries = self.entries.iter().enumerate();
        let mut entries = entries.filter_map(|(index, entry)| Some((index, (*entry)?)));
        let (index, entry) = entries.find(|(_, entry)| entry.matches(at, asid))?;
        let bytes = (entry.page_mask >> 1) + 0x1000;
        let lo = if at & bytes == 0 { entry.lo[0] } else { entry.lo[1] };
        Some(Match { index, lo, bytes })
    }

    /// Reads an entry.
    pub(super) fn read(&self, index: u64) -> Entry {
        self.entries.get(index as usize).copied().flatten().unwrap_or_default()
    }

    /// Writes an entry, as `tlbwi` does: the entry is global if both halves have the G bit.
    ///
    /// # Errors
    ///
    /// [`Stop::Duplicate`] if another entry matches some of the addresses of `entry`.
    pub fn write(&mut self, index: u64, entry: Entry) -> Result<(), Stop> {
        let global = entry.lo[0] & entry.lo[1] & 1;
        let lo = entry.lo.map(|lo| merge(lo, global, 1));
        let new = Entry { hi: entry.hi & !entry.page_mask, lo, ..entry };
        let others = self.entries.iter().enumerate().filter(|&(other, _)| other as u64 != index);
        if others.filter_map(|(_, old)| *old).any(|old| old.overlaps(&new)) {
            return Err(Stop::Duplicate { at: entry.hi & PAIR });
        }
        if let Some(place) = self.entries.get_mut(index as usize) {
            *place = Some(new);
        }
        Ok(())
    }
}
