//! Random changes and accesses, with a model kept beside the tables.
//!
//! Most steps read a page, some write, map, unmap, protect and unprotect, few delete an address space and begin another in its
//! place. The model knows what each page must answer: its word, or a refusal. Half of the changes that raise rights may leave the TLB
//! as it is, so that spurious faults happen (Tzou 5.1.1, safe inconsistency).

use core::ops::DerefMut;

use tlbkit_addr::{Attr, PageSize, Pages, Pfn, VirtAddr, Vpn};
use tlbkit_pagetable::format::{EntryLo, Format};
use tlbkit_pagetable::{Change, Holes, Invalidate, Leaf, Local, Private};

use crate::check::{Checks, Random};
use crate::println;

/// What every page may be: MIPS cannot forbid reading or execution.
pub const PLAIN: Attr = EntryLo::IMPLIED;

/// The code of a load's fault, and that of a store's.
const LOAD: u32 = 2;
const MODIFIED: u32 = 1;

/// Why an access failed: the code of the exception, and the address that the hardware names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    pub code: u32,
    pub at: usize,
}

/// A machine with a kind of table.
pub trait Machine {
    type Table: Private<'static>;
    type Flush: Invalidate;
    /// An address space: a table whose flush goes to this machine.
    type Space: DerefMut<Target = Local<'static, Self::Table, Self::Flush>>;
    /// Address spaces at a time, four at most.
    const SPACES: usize;

    /// Returns an empty address space, and deletes one.
    fn begin(&mut self) -> Self::Space;
    fn end(&mut self, space: Self::Space);
    /// Makes an address space the one that runs.
    fn activate(&mut self, space: &Self::Space);
    /// Loads a word of the address space that runs.
    ///
    /// # Errors
    ///
    /// The fault.
    fn load(&mut self, at: usize) -> Result<u32, Fault>;
    /// Stores one.
    ///
    /// # Errors
    ///
    /// The fault.
    fn store(&mut self, at: usize, value: u32) -> Result<(), Fault>;
    /// Takes a frame, and gives one back that no TLB knows.
    fn take(&mut self) -> Pfn;
    fn give(&mut self, frame: Pfn);
    /// Returns a frame's first word.
    fn word(&self, frame: Pfn) -> *mut u32;
    /// Tells whether the TLB has an address of the space that runs.
    fn has(&self, at: usize) -> bool;
    /// Forgets the TLB's entry of an address of the space that runs.
    fn forget(&mut self, at: usize);
    /// Says whether translations that are merely weaker than the table's may stay in the TLB until they fault.
    fn be_lazy(&mut self, lazy: bool);
    /// Returns how many pairs of TLB entries match one address.
    fn duplicates(&self) -> usize;
    /// If that is the planted fault, changes the word by which a walk finds this leaf, while `meanwhile` runs.
    fn corrupt(&mut self, _leaf: &Leaf, _meanwhile: &mut dyn FnMut(&mut Self)) {}
}

/// The pages of each address space: at most so many.
const PAGES: usize = 256;

/// What a page must be.
#[derive(Clone, Copy, Debug, Default)]
struct Page {
    mapped: bool,
    write: bool,
    /// Its first word.
    value: u32,
}

/// The outcome.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stressed {
    pub refills: u32,
    pub faults: u32,
    pub steps: u32,
    /// Faults that the table no longer stood for.
    pub spurious: u32,
}

/// A run under way.
struct Run<'r, M: Machine> {
    machine: &'r mut M,
    random: Random,
    checks: &'r mut Checks,
    done: Stressed,
    /// Where the pages are.
    at: &'r [usize],
    /// How many of them, the first ones, are side by side.
    dense: usize,
}

type Modelled<M> = (<M as Machine>::Space, [Page; PAGES]);

/// Takes random steps until there were so many refills. Of the pages, whose addresses are `at`, the first `dense` are side by side.
pub fn run<M: Machine>(
    machine: &mut M,
    at: &[usize],
    dense: usize,
    refills: u32,
    seed: u32,
    checks: &mut Checks,
) -> Stressed {
    assert!(at.len() <= PAGES, "{} pages are too many", at.len());
    let (random, done) = (Random::new(seed), Stressed::default());
    let mut run = Run { machine, random, checks, done, at, dense };
    let mut spaces: heapless::Vec<Modelled<M>, 4> =
        (0..M::SPACES).map(|_| (run.machine.begin(), [Page::default(); PAGES])).collect();
    let mut current = 0;
    while run.done.refills < refills {
        run.done.steps += 1;
        if run.random.below(8) == 0 {
            current = run.random.below(M::SPACES as u32) as usize;
        }
        if run.step(&mut spaces[current]) {
            let (old, pages) =
                core::mem::replace(&mut spaces[current], (run.machine.begin(), [Page::default(); PAGES]));
            run.delete(old, pages);
        }
        if run.done.steps.is_multiple_of(1024) {
            spaces.iter().for_each(|modelled| run.compare(modelled));
            let duplicates = run.machine.duplicates();
            run.checks.check(duplicates == 0, |say| {
                say(format_args!("{duplicates} pairs of TLB entries match one address"));
            });
        }
        if run.done.steps.is_multiple_of(4096) {
            spaces.iter().for_each(|modelled| run.corrupt(modelled));
        }
    }
    spaces.into_iter().for_each(|(space, pages)| run.delete(space, pages));
    run.done
}

impl<M: Machine> Run<'_, M> {
    fn page(&self, index: usize) -> Vpn {
        VirtAddr::new(self.at[index]).vpn(PageSize::K4)
    }

    /// Takes a step in the address space that runs, and tells whether it is to be deleted.
    fn step(&mut self, modelled: &mut Modelled<M>) -> bool {
        let index = self.random.below(self.at.len() as u32) as usize;
        let lazy = self.random.below(2) == 0;
        self.machine.be_lazy(lazy);
        let dense = self.dense;
        match self.random.below(1000) {
            0..720 => self.read(modelled, index),
            720..820 => self.write(modelled, index),
            820..890 => self.map(modelled, index),
            890..930 => self.unmap(modelled, index),
            930..960 => self.protect(modelled, index, 1, false),
            960..990 => {
                // Read before and written after, so that the TLB has the weaker translation in between.
                self.read(modelled, index);
                self.protect(modelled, index, 1, true);
                self.write(modelled, index);
            }
            990..995 if dense > 0 => self.protect(modelled, 0, dense, false),
            995..999 if dense > 0 => self.protect(modelled, 0, dense, true),
            999 => return true,
            _ => {}
        }
        false
    }

    /// Accesses a word until that succeeds or is refused: then the answer is the fault's code.
    fn access(&mut self, space: &mut M::Space, index: usize, store: Option<u32>) -> Result<u32, u32> {
        let at = self.at[index];
        self.machine.activate(space);
        let missed = !self.machine.has(at);
        for _ in 0..4 {
            // A change may have moved the root.
            self.machine.activate(space);
            let fault = match store {
                None => self.machine.load(at),
                Some(value) => self.machine.store(at, value).map(|()| value),
            };
            let fault = match fault {
                Ok(value) => {
                    self.done.refills += u32::from(missed);
                    return Ok(value);
                }
                Err(fault) => fault,
            };
            self.done.faults += 1;
            let named = fault.at == at && (fault.code == LOAD) == store.is_none();
            self.checks
                .check(named, |say| say(format_args!("the fault at {at:#x} is said to be {fault:x?}")));
            let page = Pages::one(self.page(index));
            match space.lookup(VirtAddr::new(at)).map(|leaf| leaf.attr) {
                None => return Err(fault.code),
                Some(attr) if store.is_some() && !attr.contains(Attr::WRITE) => return Err(fault.code),
                // There is no dirty bit but that which allows stores.
                Some(attr) if store.is_some() && !attr.contains(Attr::DIRTY) => {
                    let marked = space.protect(page, Holes::Refuse, Change::set(Attr::DIRTY));
                    self.checks
                        .check(marked == Ok(1), |say| say(format_args!("{at:#x} stays clean: {marked:?}")));
                }
                Some(_) => self.done.spurious += 1,
            }
            self.machine.forget(at);
        }
        Err(u32::MAX)
    }

    fn read(&mut self, (space, pages): &mut Modelled<M>, index: usize) {
        let (at, page) = (self.at[index], pages[index]);
        let found = self.access(space, index, None);
        let expected = if page.mapped { Ok(page.value) } else { Err(LOAD) };
        self.checks.check(found == expected, |say| {
            say(format_args!("{at:#x} reads {found:x?} and not {expected:x?}"));
        });
    }

    fn write(&mut self, (space, pages): &mut Modelled<M>, index: usize) {
        let at = self.at[index];
        let value = self.random.below(1 << 16) << 8 | 0xff;
        let stored = self.access(space, index, Some(value));
        let page = &mut pages[index];
        let holds = match stored {
            Ok(_) => page.mapped && page.write,
            Err(code) => {
                !(page.mapped && page.write) && code != u32::MAX && (page.mapped || code != MODIFIED)
            }
        };
        self.checks.check(holds, |say| say(format_args!("a store to {at:#x}, {page:x?}: {stored:x?}")));
        if stored.is_ok() {
            page.value = value;
        }
    }

    fn map(&mut self, (space, pages): &mut Modelled<M>, index: usize) {
        if pages[index].mapped {
            return;
        }
        let value = self.random.below(1 << 16) << 8 | 0xee;
        let write = self.random.below(2) == 0;
        let frame = self.machine.take();
        // SAFETY: the frame was just taken.
        unsafe { self.machine.word(frame).write_volatile(value) };
        let attr = if write { PLAIN | Attr::WRITE } else { PLAIN };
        let mapped = space.map(Pages::one(self.page(index)), frame, PageSize::K4, attr);
        self.checks.check(mapped.is_ok(), |say| say(format_args!("{:#x}: {mapped:?}", self.at[index])));
        pages[index] = Page { mapped: true, write, value };
    }

    fn unmap(&mut self, (space, pages): &mut Modelled<M>, index: usize) {
        let page = Pages::one(self.page(index));
        let leaf = space.lookup(VirtAddr::new(self.at[index]));
        let unmapped = space.unmap(page, Holes::Refuse);
        self.checks.check(unmapped.is_ok() == pages[index].mapped, |say| {
            say(format_args!("{:#x}: {unmapped:?}", self.at[index]));
        });
        // The next owner's first word: a CPU that still reads through an old translation finds it.
        leaf.iter().for_each(|leaf| self.machine.give(leaf.frame));
        pages[index] = Page::default();
    }

    fn protect(&mut self, (space, pages): &mut Modelled<M>, first: usize, count: usize, write: bool) {
        // One page is made dirty at once, so that its next store finds the older entry of a lazy TLB and nothing else.
        let more = if count == 1 { Attr::DIRTY } else { Attr::empty() };
        let change =
            if write { Change::set(Attr::WRITE | more) } else { Change::clear(Attr::WRITE | Attr::DIRTY) };
        let Some(range) = Pages::count(self.page(first), count) else { return };
        let changed = space.protect(range, Holes::Skip, change);
        let mapped = pages[first..first + count].iter_mut().filter(|page| page.mapped);
        let mapped = mapped.map(|page| page.write = write).count();
        self.checks.check(changed == Ok(mapped), |say| {
            say(format_args!("{range}: {changed:?} and not {mapped}"));
        });
    }

    /// Compares a table with the model.
    fn compare(&mut self, (space, pages): &Modelled<M>) {
        for (&at, page) in self.at.iter().zip(pages) {
            let found = space.lookup(VirtAddr::new(at)).map(|leaf| leaf.attr.contains(Attr::WRITE));
            let expected = page.mapped.then_some(page.write);
            self.checks
                .check(found == expected, |say| say(format_args!("the table has {found:?} at {at:#x}")));
        }
    }

    /// Corrupts the words by which walks find mapped pages, one by one, and reads each page meanwhile.
    fn corrupt(&mut self, (space, pages): &Modelled<M>) {
        let checks = &mut *self.checks;
        for (&at, page) in self.at.iter().zip(pages).skip(self.dense) {
            let Some(leaf) = space.lookup(VirtAddr::new(at)) else { continue };
            self.machine.corrupt(&leaf, &mut |machine| {
                machine.activate(space);
                let read = machine.load(at);
                checks.check(read == Ok(page.value), |say| {
                    say(format_args!("{at:#x} reads {read:x?} and not {:#x}", page.value));
                });
            });
        }
    }

    fn delete(&mut self, space: M::Space, pages: [Page; PAGES]) {
        for (&at, _) in self.at.iter().zip(pages).filter(|(_, page)| page.mapped) {
            let leaf = space.lookup(VirtAddr::new(at));
            self.checks.check(leaf.is_some(), |say| say(format_args!("{at:#x} has gone")));
            leaf.iter().for_each(|leaf| self.machine.give(leaf.frame));
        }
        self.machine.end(space);
    }
}

/// Prints what was done, for people and for programs.
pub fn report(
    name: &str,
    words: usize,
    Stressed { refills, faults, steps, spurious }: Stressed,
    checks: Checks,
) {
    println!(
        "  stress             {steps} steps, {refills} refills, {faults} faults, {spurious} of them spurious"
    );
    println!(
        "stress table={name} words={words} refills={refills} faults={faults} checks={} failures={}",
        checks.done, checks.failed
    );
}
