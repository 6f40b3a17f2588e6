//! What remembers translations: the hardware TLB and, in front of the table, a software TLB cache.
//!
//! Both forget by one trait of `tlbkit-stlb`; a tuple of both forgets in the hardware first, as it says one must.

use tlbkit_addr::{PageSize, Pages, VirtAddr};
use tlbkit_stlb::{AsidTag, BadMemory, Direct, Invalidate, Mips32};

use crate::arch::tlb;
use crate::args::Inject;
use crate::memory;

/// The hardware TLB of this CPU.
#[derive(Debug)]
pub struct Hardware {
    inject: Option<Inject>,
    /// How often it forgot everything.
    pub cleared: u32,
}

impl Hardware {
    /// Returns the TLB; with a planted fault it forgets no pages, or not everything.
    pub const fn new(inject: Option<Inject>) -> Self {
        Self { inject, cleared: 0 }
    }
}

impl Invalidate<Mips32> for Hardware {
    fn invalidate_pages(&mut self, space: AsidTag<Mips32>, pages: Pages) {
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

    fn invalidate_space(&mut self, space: AsidTag<Mips32>) {
        tlb::forget_all(|entry| entry.is_in(space.asid() as u32));
    }

    fn invalidate_all(&mut self) {
        self.cleared += 1;
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

/// A software TLB cache, in the window of its CPU: none, or of one of two sizes.
#[derive(Debug)]
pub enum Software {
    None,
    /// 512 entries, 8 KiB: S8k.
    Small(Direct<'static, Mips32, 512>),
    /// 8192 entries, 128 KiB: S128k.
    Large(Direct<'static, Mips32, 8192>),
    /// A cache that is told nothing: a planted fault. The handler goes on using it.
    Deaf,
}

impl Software {
    /// Returns the empty cache of a CPU, which is as large as the refill handler expects it to be.
    ///
    /// # Errors
    ///
    /// If the memory is unsuitable.
    ///
    /// # Safety
    ///
    /// The CPU has no other cache in use.
    pub unsafe fn new(cpu: usize, sets: usize, inject: Option<Inject>) -> Result<Self, BadMemory> {
        // SAFETY: the window is this cache's alone.
        let memory = unsafe { memory::window(cpu, 16 * sets) };
        let cache = match sets {
            0 => Self::None,
            512 => Self::Small(Direct::new(memory)?),
            _ => Self::Large(Direct::new(memory)?),
        };
        let is_deaf = sets > 0 && inject == Some(Inject::SkipInvalidation);
        Ok(if is_deaf { Self::Deaf } else { cache })
    }
}

/// Does the same in either cache.
macro_rules! either {
    ($self:ident, $cache:ident => $do:expr) => {
        match $self {
            Self::None | Self::Deaf => {}
            Self::Small($cache) => $do,
            Self::Large($cache) => $do,
        }
    };
}

impl Invalidate<Mips32> for Software {
    fn invalidate_pages(&mut self, space: AsidTag<Mips32>, pages: Pages) {
        either!(self, cache => cache.invalidate_pages(space, pages));
    }

    fn invalidate_global(&mut self, pages: Pages) {
        either!(self, cache => cache.invalidate_global(pages));
    }

    fn invalidate_space(&mut self, space: AsidTag<Mips32>) {
        either!(self, cache => cache.invalidate_space(space));
    }

    fn invalidate_all(&mut self) {
        either!(self, cache => cache.invalidate_all());
    }
}
