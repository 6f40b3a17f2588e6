//! Random changes and accesses, with a model kept beside the tables.
//!
//! Four address spaces with 256 pages each that may be mapped. Most steps read a page, some write, map, unmap, protect
//! and unprotect, few delete a space and begin another in its place. The model knows what each page must answer: its
//! word, or a refusal. Numbers for address spaces are scarce, so that they begin anew often; half of the changes that
//! raise rights leave the TLB as it is, so that spurious faults happen.

use tlbkit_addr::{Attr, PageSize, Pages, Vpn};
use tlbkit_pagetable::{Change, Holes};

use super::check::Checks;
use super::{Random, corrupt, instructions, sweep};
use crate::arch::{cp0, tlb};
use crate::vm::fault::Refusal;
use crate::vm::frames::word;
use crate::vm::machine::Machine;
use crate::vm::space::{self, PLAIN, Region, Space};
use crate::vm::structure::Structure;

/// Address spaces, and the pages of each.
const SPACES: usize = 4;
const PAGES: usize = 256;
/// The first so many are side by side and mapped on demand.
const DEMAND: usize = 64;
const COMPACT: u32 = 0x1000_0000;

/// Numbers for address spaces: twice as many as there are spaces, so that they soon run out.
pub const NUMBERS: u8 = 8;

/// What a page must be.
#[derive(Clone, Copy, Debug, Default)]
struct Page {
    mapped: bool,
    write: bool,
    /// Its first word.
    value: u32,
}

/// An address space, and what must be in it.
struct Modelled<'n, S: Structure> {
    space: Space<'n, S>,
    pages: [Page; PAGES],
}

/// The outcome.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stressed {
    pub refills: u32,
    pub steps: u32,
}

/// Takes random steps until there were so many refills.
pub fn run<S: Structure>(
    machine: &mut Machine<S>,
    refills: u32,
    seed: u32,
    corrupted: bool,
    checks: &mut Checks,
) -> Stressed {
    let frames = machine.frames.taken();
    let mut run =
        Run { random: Random::new(seed), checks, done: Stressed::default(), at: addresses(seed), born: 0 };
    let mut spaces: [_; SPACES] = core::array::from_fn(|_| Some(run.begin(machine)));
    let mut current = 0;
    while run.done.refills < refills {
        run.done.steps += 1;
        cp0::put_timer_off();
        if run.random.below(8) == 0 {
            current = run.random.below(SPACES as u32) as usize;
        }
        let Some(modelled) = &mut spaces[current] else { break };
        if run.step(machine, modelled)
            && let Some(old) = spaces[current].take()
        {
            machine.delete(old.space, |_| false);
            spaces[current] = Some(run.begin(machine));
        }
        if run.done.steps.is_multiple_of(1024) {
            spaces.iter().flatten().for_each(|modelled| run.compare(modelled));
            let duplicates = tlb::duplicates();
            run.checks.check(duplicates == 0, |say| {
                say(format_args!("{duplicates} pairs of TLB entries match one address"));
            });
        }
        if corrupted && run.done.steps.is_multiple_of(4096) {
            run.corrupt(machine, &mut spaces);
        }
    }
    spaces.into_iter().flatten().for_each(|modelled| machine.delete(modelled.space, |_| false));
    run.leaks(machine, frames);
    run.done
}

/// The addresses of the pages: neighbours, then pages of a sparse set that is without repetition.
fn addresses(seed: u32) -> heapless::Vec<u32, PAGES> {
    let mut all: heapless::Vec<u32, PAGES> = (0..DEMAND as u32).map(|page| COMPACT + (page << 12)).collect();
    for at in sweep::sparse(seed, 4 * PAGES as u32) {
        if !all.contains(&at) && all.push(at).is_err() {
            break;
        }
    }
    all
}

/// A run under way.
struct Run<'c> {
    random: Random,
    checks: &'c mut Checks,
    done: Stressed,
    at: heapless::Vec<u32, PAGES>,
    /// How many address spaces there were.
    born: u32,
}

impl Run<'_> {
    /// Begins an address space, whose contents are like no other's.
    fn begin<S: Structure>(&mut self, machine: &mut Machine<S>) -> Modelled<'static, S> {
        self.born += 1;
        let Ok(mut space) = Space::new(machine.nodes, self.born << 4 | 5) else {
            panic!("no nodes for a space")
        };
        space.allow(Region { pages: space::pages(COMPACT, DEMAND), write: true });
        Modelled { space, pages: [Page::default(); PAGES] }
    }

    /// Takes a step in an address space, and tells whether it is to be deleted.
    fn step<S: Structure>(&mut self, machine: &mut Machine<S>, modelled: &mut Modelled<'_, S>) -> bool {
        let index = self.random.below(self.at.len() as u32) as usize;
        machine.lazy = self.random.below(2) == 0;
        match self.random.below(1000) {
            0..800 => self.read(machine, modelled, index),
            800..880 => self.write(machine, modelled, index),
            880..920 => self.map(machine, modelled, index),
            920..950 => self.unmap(machine, modelled, index),
            950..970 => self.protect(machine, modelled, index, 1, Change::clear(Attr::WRITE)),
            970..990 => {
                // Read before and written after, so that the TLB has the weaker translation in between.
                self.read(machine, modelled, index);
                self.protect(machine, modelled, index, 1, Change::set(Attr::WRITE | Attr::DIRTY));
                self.write(machine, modelled, index);
            }
            990..995 => self.protect(machine, modelled, 0, DEMAND, Change::clear(Attr::WRITE)),
            995..999 => self.protect(machine, modelled, 0, DEMAND, Change::set(Attr::WRITE)),
            _ => return true,
        }
        false
    }

    /// What an access to a page that is not mapped makes of it; a refusal, if it is refused.
    fn touched<S: Structure>(&self, modelled: &Modelled<'_, S>, index: usize) -> Result<Page, Refusal> {
        let page = modelled.pages[index];
        if page.mapped {
            Ok(page)
        } else if index < DEMAND {
            Ok(Page { mapped: true, write: true, value: modelled.space.content(self.page(index)) })
        } else {
            Err(Refusal::NoRegion)
        }
    }

    fn page(&self, index: usize) -> Vpn {
        space::page(self.at[index])
    }

    fn read<S: Structure>(&mut self, machine: &mut Machine<S>, modelled: &mut Modelled<'_, S>, index: usize) {
        let at = self.at[index];
        let expected = self.touched(modelled, index);
        let read = machine.read(&mut modelled.space, at);
        if let Ok(touched) = read
            && instructions(touched.ticks) > 2
        {
            self.done.refills += 1;
        }
        let read = read.map(|touched| touched.value);
        self.checks.check(read == expected.map(|page| page.value), |say| {
            say(format_args!("{at:#x} reads {read:x?} and not {expected:x?}"));
        });
        if let Ok(page) = expected {
            modelled.pages[index] = page;
        }
    }

    fn write<S: Structure>(
        &mut self,
        machine: &mut Machine<S>,
        modelled: &mut Modelled<'_, S>,
        index: usize,
    ) {
        let at = self.at[index];
        let value = self.random.below(1 << 16) << 8 | 0xff;
        let page = self.touched(modelled, index);
        let expected = page.and_then(|page| if page.write { Ok(()) } else { Err(Refusal::Protection) });
        let written = machine.write(&mut modelled.space, at, value);
        self.checks.check(written == expected, |say| {
            say(format_args!("a store to {at:#x}: {written:?} and not {expected:?}"));
        });
        if let Ok(page) = page {
            modelled.pages[index] = if expected.is_ok() { Page { value, ..page } } else { page };
        }
    }

    fn map<S: Structure>(&mut self, machine: &mut Machine<S>, modelled: &mut Modelled<'_, S>, index: usize) {
        if modelled.pages[index].mapped {
            return;
        }
        let value = self.random.below(1 << 16) << 8 | 0xee;
        let write = self.random.below(2) == 0;
        let Some(frame) = machine.frames.take() else { panic!("no frame") };
        // SAFETY: the frame was just taken.
        unsafe { word(frame).write_volatile(value) };
        let attr = if write { PLAIN | Attr::WRITE } else { PLAIN };
        let mapped = machine.map(&mut modelled.space, Pages::one(self.page(index)), frame, attr);
        self.checks.check(mapped.is_ok(), |say| say(format_args!("{:#x}: {mapped:?}", self.at[index])));
        modelled.pages[index] = Page { mapped: true, write, value };
    }

    fn unmap<S: Structure>(
        &mut self,
        machine: &mut Machine<S>,
        modelled: &mut Modelled<'_, S>,
        index: usize,
    ) {
        let page = modelled.pages[index];
        let unmapped = machine.unmap(&mut modelled.space, self.page(index));
        self.checks.check(unmapped.is_ok() == page.mapped, |say| {
            say(format_args!("{:#x}: {unmapped:?}", self.at[index]));
        });
        if let Ok(frame) = unmapped {
            // The next owner's first word: a CPU that still reads through an old translation finds it.
            // SAFETY: the frame was unmapped, and no TLB knows it.
            unsafe { machine.frames.give(frame) };
        }
        modelled.pages[index] = Page::default();
    }

    fn protect<S: Structure>(
        &mut self,
        machine: &mut Machine<S>,
        modelled: &mut Modelled<'_, S>,
        first: usize,
        count: usize,
        change: Change,
    ) {
        let pages = space::pages(self.at[first], count);
        let changed = machine.protect(&mut modelled.space, pages, Holes::Skip, change);
        let mut mapped = 0;
        for page in modelled.pages.iter_mut().skip(first).take(count).filter(|page| page.mapped) {
            mapped += 1;
            page.write =
                change.apply(if page.write { Attr::WRITE } else { Attr::empty() }).contains(Attr::WRITE);
        }
        self.checks
            .check(changed == Ok(mapped), |say| say(format_args!("{pages}: {changed:?} and not {mapped}")));
    }

    /// Compares the table with the model.
    fn compare<S: Structure>(&mut self, modelled: &Modelled<'_, S>) {
        for (&at, page) in self.at.iter().zip(&modelled.pages) {
            let leaf = modelled.space.lookup(space::page(at).address(PageSize::K4));
            let found = leaf.map(|leaf| leaf.attr.contains(Attr::WRITE));
            let expected = page.mapped.then_some(page.write);
            self.checks
                .check(found == expected, |say| say(format_args!("the table has {leaf:?} at {at:#x}")));
        }
    }

    /// Corrupts the guards of mapped pages one by one, and reads each page meanwhile.
    fn corrupt<S: Structure>(&mut self, machine: &mut Machine<S>, spaces: &mut [Option<Modelled<'_, S>>]) {
        for modelled in spaces.iter_mut().flatten() {
            for index in DEMAND..PAGES {
                let Some(leaf) = modelled.space.lookup(self.page(index).address(PageSize::K4)) else {
                    continue;
                };
                let restore = corrupt::guard::<S>(&leaf);
                machine.forget_everything();
                let at = self.at[index];
                let read = machine.read(&mut modelled.space, at).map(|touched| touched.value);
                self.checks.check(read == Ok(modelled.pages[index].value), |say| {
                    say(format_args!("{at:#x} reads {read:x?} and not {:#x}", modelled.pages[index].value));
                });
                drop(restore);
                machine.forget_everything();
            }
        }
    }

    /// Looks for what should have come back.
    fn leaks<S: Structure>(&mut self, machine: &Machine<S>, frames: usize) {
        let usage = machine.nodes.usage();
        self.checks.check(usage.nodes == 0, |say| say(format_args!("{} nodes have leaked", usage.nodes)));
        let taken = machine.frames.taken();
        self.checks
            .check(taken == frames, |say| say(format_args!("{taken} frames are in use, before {frames}")));
    }
}
