//! The CPU: frames, what remembers translations, numbers for address spaces, and which address space runs.

use core::cell::RefCell;
use core::ops::{ControlFlow, Deref, DerefMut};

use tlbkit_addr::{Attr, Flush, FlushScope, PageSize, Pages, Pfn, VirtAddr, Vpn};
use tlbkit_malta::stress::PLAIN;
use tlbkit_malta::{KSEG0, cp0, tlb};
use tlbkit_pagetable::{Error, Invalidate, Local, Pinned, Table};
use tlbkit_refill::Block;
use tlbkit_refill::handler::Root;
use tlbkit_stlb::{AsidTag, Asids, Context, Direct, Invalidate as _, Mips32};

use crate::memory::{self, FRAMES};
use crate::tables::{Nodes, Structure};
use crate::{Args, Inject};

/// What the CPU and its refill handler share. The root of the running table may be elsewhere.
pub static BLOCK: Block = Block::new();

/// Address spaces at a time.
const SPACES: usize = 16;

/// The hardware TLB, with a planted fault.
#[derive(Debug)]
struct Hardware(Option<Inject>);

impl tlbkit_stlb::Invalidate<Mips32> for Hardware {
    fn invalidate_pages(&mut self, space: AsidTag<Mips32>, pages: Pages) {
        if self.0 == Some(Inject::DropFlush) {
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
        if self.0 != Some(Inject::SkipInvalidation) {
            tlb::forget_all(|_| true);
        }
    }
}

/// Tells whether an entry maps any page of a range.
fn maps_any(entry: &tlb::Entry, pages: Pages) -> bool {
    let [first, last] = entry.reach().map(|at| VirtAddr::new(at as usize).vpn(PageSize::K4));
    Pages::new(first, last).is_some_and(|mapped| mapped.intersect(pages).is_some())
}

/// A software TLB cache: none, or of one of two sizes: `S8k`, `S128k`.
#[derive(Debug)]
enum Software {
    None,
    Small(Direct<'static, Mips32, 512>),
    Large(Direct<'static, Mips32, 8192>),
}

impl Software {
    /// Does `small` or `large` with the cache, if there is one.
    fn with(
        &mut self,
        small: impl FnOnce(&mut Direct<'static, Mips32, 512>),
        large: impl FnOnce(&mut Direct<'static, Mips32, 8192>),
    ) {
        match self {
            Self::None => {}
            Self::Small(cache) => small(cache),
            Self::Large(cache) => large(cache),
        }
    }
}

impl tlbkit_stlb::Invalidate<Mips32> for Software {
    fn invalidate_pages(&mut self, space: AsidTag<Mips32>, pages: Pages) {
        self.with(|cache| cache.invalidate_pages(space, pages), |cache| cache.invalidate_pages(space, pages));
    }

    fn invalidate_global(&mut self, pages: Pages) {
        self.with(|cache| cache.invalidate_global(pages), |cache| cache.invalidate_global(pages));
    }

    fn invalidate_space(&mut self, space: AsidTag<Mips32>) {
        self.with(|cache| cache.invalidate_space(space), |cache| cache.invalidate_space(space));
    }

    fn invalidate_all(&mut self) {
        self.with(|cache| cache.invalidate_all(), |cache| cache.invalidate_all());
    }
}

/// An address space's number, as far as it has one.
#[derive(Debug, Default)]
struct Slot {
    is_used: bool,
    context: Context<Mips32>,
    number: Option<AsidTag<Mips32>>,
}

/// What the CPU has.
struct Cpu {
    hardware: Hardware,
    software: Software,
    asids: Asids<Mips32>,
    slots: [Slot; SPACES],
    root: Root,
    lazy: bool,
    /// Frames that were given back, the last of which is taken first: that shows stale translations soonest.
    free: heapless::Vec<Pfn, 16384>,
    /// The first frame that was never taken.
    fresh: usize,
    taken: usize,
}

/// The state of the CPU.
struct OneCpu(RefCell<Option<Cpu>>);

// SAFETY: there is one CPU, which takes no interrupt.
unsafe impl Sync for OneCpu {}

static CPU: OneCpu = OneCpu(RefCell::new(None));

/// Runs `f` with the state of the CPU; `f` does not call this again.
fn cpu<R>(f: impl FnOnce(&mut Cpu) -> R) -> R {
    f(CPU.0.borrow_mut().as_mut().expect("it has begun"))
}

/// Begins, with a software TLB cache of so many sets.
pub fn begin(args: &Args, sets: usize) {
    // SAFETY: the window is that cache's alone, and this is called once.
    let memory = unsafe { memory::window(16 * sets) };
    let software = match sets {
        0 => Software::None,
        512 => Software::Small(Direct::new(memory).expect("it is memory for a cache")),
        _ => Software::Large(Direct::new(memory).expect("it is memory for a cache")),
    };
    // A planted fault is a cache that is told nothing: the handler goes on using it.
    let is_deaf = args.inject == Some(Inject::SkipInvalidation);
    *CPU.0.borrow_mut() = Some(Cpu {
        hardware: Hardware(args.inject),
        software: if is_deaf { Software::None } else { software },
        asids: numbers(255),
        slots: Default::default(),
        root: args.root,
        lazy: false,
        free: heapless::Vec::new(),
        fresh: FRAMES.start >> PageSize::K4.shift(),
        taken: 0,
    });
}

/// Returns the allocator of the numbers from 1 to `last`: 0 is given to no space.
fn numbers(last: u8) -> Asids<Mips32> {
    Asids::new(1, u16::from(last)).expect("they are numbers")
}

/// Has the numbers from 1 to `last` for address spaces from now on. There must be no address space.
pub fn renumber(last: u8) {
    forget_everything();
    cpu(|cpu| cpu.asids = numbers(last));
}

/// Forgets every translation of every address space.
pub fn forget_everything() {
    tlb::forget_all(|_| true);
    cpu(|cpu| cpu.software.invalidate_all());
}

/// Says whether translations that are merely weaker than the table's are left in the TLB until they fault.
pub fn be_lazy(lazy: bool) {
    cpu(|cpu| cpu.lazy = lazy);
}

/// Takes a frame.
pub fn take() -> Pfn {
    cpu(|cpu| {
        cpu.taken += 1;
        cpu.free.pop().unwrap_or_else(|| {
            cpu.fresh += 1;
            assert!(cpu.fresh <= FRAMES.end >> PageSize::K4.shift(), "there is no frame");
            Pfn::new(cpu.fresh - 1)
        })
    })
}

/// Takes `count` frames in a row that were never taken, the first one fit for a page of `size`.
pub fn take_run(count: usize, size: PageSize) -> Pfn {
    cpu(|cpu| {
        let mut fresh = cpu.fresh..;
        let first =
            fresh.find(|&first| Pfn::new(first).is_aligned(size, PageSize::K4)).expect("numbers go on");
        cpu.fresh = first + count;
        assert!(cpu.fresh <= FRAMES.end >> PageSize::K4.shift(), "there is no frame");
        Pfn::new(first)
    })
}

/// Gives a frame back that no TLB has a translation to.
pub fn give(frame: Pfn) {
    cpu(|cpu| {
        cpu.taken -= 1;
        cpu.free.push(frame).expect("no more are given back than were taken");
    });
}

/// Returns how many frames are in use, but for those in a row.
pub fn taken() -> usize {
    cpu(|cpu| cpu.taken)
}

/// Returns a frame's first word, through kseg0.
pub fn word(frame: Pfn) -> *mut u32 {
    core::ptr::with_exposed_provenance_mut(KSEG0 + frame.address(PageSize::K4).get())
}

/// Returns a frame that begins with a word.
pub fn frame_of(value: u32) -> Pfn {
    let frame = take();
    // SAFETY: the frame was just taken.
    unsafe { word(frame).write_volatile(value) };
    frame
}

/// Returns the page of an address.
pub fn page(at: u32) -> Vpn {
    VirtAddr::new(at as usize).vpn(PageSize::K4)
}

/// Returns the pages from an address on.
pub fn pages(at: u32, count: usize) -> Pages {
    Pages::count(page(at), count).unwrap_or(Pages::one(page(at)))
}

/// What a table tells of what it has made stale: of the address space of this slot.
#[derive(Debug)]
pub struct Forget(usize);

impl Invalidate for Forget {
    fn invalidate(&mut self, flush: &Flush) {
        cpu(|cpu| {
            // A space that never ran is in no cache. One whose number has gone to another costs that one a few refills.
            let Some(number) = cpu.slots[self.0].number else { return };
            // The TLB may wait for a fault. A software cache may not: it would give the same answer to the refill after it.
            let eager = !(cpu.lazy && flush.scope() == FlushScope::Local);
            if flush.is_all() {
                cpu.hardware.invalidate_space(number);
                cpu.software.invalidate_space(number);
            }
            for &pages in flush.ranges() {
                if eager {
                    cpu.hardware.invalidate_pages(number, pages);
                }
                cpu.software.invalidate_pages(number, pages);
            }
        });
    }
}

/// An address space: a table that flushes for itself.
pub struct Space<S: Structure> {
    table: Local<'static, S::Table<'static>, Forget>,
    slot: usize,
}

impl<S: Structure> Deref for Space<S> {
    type Target = Local<'static, S::Table<'static>, Forget>;

    fn deref(&self) -> &Self::Target {
        &self.table
    }
}

impl<S: Structure> DerefMut for Space<S> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.table
    }
}

impl<S: Structure> Space<S> {
    /// Returns an empty space.
    pub fn new(nodes: &'static Nodes<S::Window>) -> Self {
        let slot = cpu(|cpu| {
            let slot = cpu.slots.iter().position(|slot| !slot.is_used).expect("there are few spaces");
            cpu.slots[slot] = Slot { is_used: true, ..Slot::default() };
            slot
        });
        let table = S::create(nodes).expect("there are nodes for a space");
        Self { table: Local::with(table, Forget(slot)), slot }
    }

    /// Makes it the one that runs.
    pub fn activate(&self) {
        let number = cpu(|cpu| {
            let Cpu { hardware, software, asids, slots, .. } = cpu;
            let slot = &mut slots[self.slot];
            let number = asids.activate(&mut slot.context, &mut (hardware, software));
            slot.number = Some(number);
            number
        });
        self.set_root();
        // SAFETY: the refill handler goes by the root that it has just been given.
        unsafe { tlb::switch(number.asid() as u32) };
    }

    /// Tells the refill handler where the table is, if this space runs: a change may have moved it.
    pub fn set_root(&self) {
        let word = S::WALK.root(S::root(self.table.table()));
        // SAFETY: no other code uses ErrorEPC, as long as there is no reset, NMI or cache error; a scratch register never does, and
        // the CPU has it, or there is no handler with that root.
        unsafe {
            match cpu(|cpu| cpu.root) {
                Root::Block => BLOCK.set_root(word),
                Root::ErrorEpc => cp0::error_epc::write(word),
                Root::Cell => unreachable!("no argument asks for it"),
                Root::KScratch(2) => cp0::kscratch1::write(word),
                Root::KScratch(3) => cp0::kscratch2::write(word),
                Root::KScratch(_) => cp0::kscratch3::write(word),
            }
        }
    }

    /// Maps a page to a frame.
    ///
    /// # Errors
    ///
    /// Those of [`Local::map`].
    pub fn map_page(&mut self, at: u32, frame: Pfn, attr: Attr) -> Result<(), Error> {
        self.table.map(Pages::one(page(at)), frame, PageSize::K4, PLAIN | attr)
    }

    /// Returns what the hardware knows the space by, if it runs.
    pub fn asid(&self) -> u32 {
        cpu(|cpu| cpu.slots[self.slot].number).map_or(0, |number| number.asid() as u32)
    }

    /// Takes the space apart. The frames that are not `shared` are given back.
    pub fn end(self, shared: impl Fn(Pfn) -> bool) {
        for pages in self.table.table().space().halves().into_iter().flatten() {
            // SAFETY: nothing is reclaimed meanwhile.
            let pinned = unsafe { Pinned::by(&self) };
            let _ = self.table.table().for_each(pinned, pages, &mut |leaf| {
                if !shared(leaf.frame) {
                    // What the TLB still has of the space is found under its number alone, which no other space gets before the TLB
                    // has forgotten everything.
                    give(leaf.frame);
                }
                ControlFlow::Continue(())
            });
        }
        // For the same reason there is nothing to flush.
        cpu(|cpu| cpu.slots[self.slot] = Slot::default());
        self.table.destroy();
    }
}
