//! What remembers translations: the hardware TLB and, in front of the table, a software TLB cache.
//!
//! Both forget by one trait of `tlbkit-stlb`; a tuple of both forgets in the hardware first, as it says one must.

use tlbkit_addr::{PageSize, Pages, VirtAddr};
use tlbkit_stlb::{BadMemory, Direct, Invalidate, Mips32, Space};

use crate::arch::tlb;
use crate::args::Inject;
use crate::memory;

/// The hardware TLB of this CPU.
#[derive(Debug)]
pub struct Hardware {
    /// Whether it forgets no pages, or not everything: a planted fault.
    pub inject: Option<Inject>,
}

impl Invalidate<Mips32> for Hardware {
    fn invalidate_pages(&mut self, space: Space<Mips32>, pages: Pages) {
        if self.inject == Some(Inject::DropFlush) {
            return;
        }
        let asid = space.asid() as u32;
        // A probe for each pair, or a look at every entry if that is less.
        if pages.len() > 2 * tlb::entries() {
            tlb::forget_all(|entry| entry.is_in(asid) && maps_any(entry, pages));
        } else {
            // A probe finds the entry of a larger page by any of its addresses.
            let (first, last) = (pages.first().get() >> 1, pages.last().get() >> 1);
            (first..=last).for_each(|pair| tlb::forget((pair << 13) as u32, asid));
        }
    }

    fn invalidate_global(&mut self, pages: Pages) {
        tlb::forget_all(|entry| maps_any(entry, pages));
    }

    fn invalidate_space(&mut self, space: Space<Mips32>) {
        tlb::forget_all(|entry| entry.is_in(space.asid() as u32));
    }

    fn invalidate_all(&mut self) {
        if self.inject != Some(Inject::SkipInvalidation) {
            tlb::forget_all(|_| true);
        }
    }
}

/// Tells whether an entry maps any page of a range.
fn maps_any(entry: &tlb::Entry, pages: Pages) -> bool {
    let [first, last] = entry.reach().map(|at| VirtAddr::new(at as usize).vpn(PageSize::K4));
    Pages::new(first, last).is_some_and(|mapped| mapped.intersect(pages).is_some())
}

/// A software TLB cache, in the window of its CPU.
#[derive(Debug)]
pub enum Software {
    /// There is none.
    None,
    /// 512 entries, 8 KiB: S8k.
    Small(Direct<'static, Mips32, 512>),
    /// 8192 entries, 128 KiB: S128k.
    Large(Direct<'static, Mips32, 8192>),
}

impl Software {
    /// Returns an empty cache for the CPU of `sets` sets, of which there may be 0, 512 or 8192.
    ///
    /// # Errors
    ///
    /// If the memory does not do.
    ///
    /// # Safety
    ///
    /// The CPU has no other cache.
    pub unsafe fn new(cpu: usize, sets: usize) -> Result<Self, BadMemory> {
        // SAFETY: the window is this cache's alone.
        let memory = unsafe { memory::window(cpu, 16 * sets) };
        match sets {
            0 => Ok(Self::None),
            512 => Direct::new(memory).map(Self::Small),
            _ => Direct::new(memory).map(Self::Large),
        }
    }
}

/// Does the same in either cache, in one with a planted fault nothing.
macro_rules! forget {
    ($self:ident, $cache:ident => $do:expr) => {
        match $self {
            Self::None => {}
            Self::Small($cache) => $do,
            Self::Large($cache) => $do,
        }
    };
}

impl Invalidate<Mips32> for Software {
    fn invalidate_pages(&mut self, space: Space<Mips32>, pages: Pages) {
        forget!(self, cache => cache.invalidate_pages(space, pages));
    }

    fn invalidate_global(&mut self, pages: Pages) {
        forget!(self, cache => cache.invalidate_global(pages));
    }

    fn invalidate_space(&mut self, space: Space<Mips32>) {
        forget!(self, cache => cache.invalidate_space(space));
    }

    fn invalidate_all(&mut self) {
        forget!(self, cache => cache.invalidate_all());
    }
}
