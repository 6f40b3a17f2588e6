//! Two address spaces side by side, each under a number of its own (an ASID), where the TLB may hold translations of both.
//!
//! ```text
//!   an operation on either space ──> flush what it says, under the space's number
//!   switch ───────────────────────> the root and the number, and no flush
//!   exchange of the numbers ──────> the other space runs under the number that the TLB knows, which is forgotten first
//! ```
//!
//! After each of them, accesses in the space that runs must be as its own table says. No page is global: what is, is in
//! every space.

use core::fmt::Write;
use core::sync::atomic::{AtomicUsize, Ordering};

use tlbkit_addr::{Attr, Flush};
use tlbkit_pagetable::{Holes, Local};

use crate::control::{self, Control};
use crate::machine::{self, Console};
use crate::{
    ACCESSES, ATTEMPTS, CONTROL, Difference, Judged, OPERATIONS, REGION, Random, Scope, Storage, Tally, Tree,
    look_around, operate, pages, places, range,
};

/// The number of each space. None is 0, under which the table before has run.
static NUMBERS: [AtomicUsize; 2] =
    [AtomicUsize::new(machine::SPACE_NUMBERS[0]), AtomicUsize::new(machine::SPACE_NUMBERS[1])];

/// What the operations of the spaces are.
const SCOPE: Scope =
    Scope { places: machine::SPACE_PLACES, attributes: machine::ATTRIBUTES.difference(Attr::GLOBAL) };

fn number(space: usize) -> usize {
    NUMBERS[space].load(Ordering::Relaxed)
}

/// Tells the processor what has changed in a space, whether it runs or not, unless the control is that nothing does.
fn flush<const SPACE: usize>(flush: &Flush) {
    if !control::is_on(Control::Flush) {
        machine::flush_of(flush, number(SPACE));
    }
}

/// The spaces, and which of them runs.
struct Spaces<'n> {
    tables: [Judged<'n>; 2],
    running: usize,
    switches: usize,
    exchanges: usize,
}

impl Spaces<'_> {
    /// Runs a space, under its number.
    fn switch(&mut self, to: usize) {
        self.running = to;
        self.switches += 1;
        if !control::is_on(Control::Switch) {
            machine::switch(self.tables[to].table().root(), number(to));
        }
    }

    /// Runs the other space under the number of the one that runs, which gets the other's.
    fn exchange(&mut self) {
        let numbers = [number(1), number(0)];
        for (cell, number) in NUMBERS.iter().zip(numbers) {
            cell.store(number, Ordering::Relaxed);
        }
        self.exchanges += 1;
        self.switch(1 - self.running);
        if !control::is_on(Control::Reuse) {
            numbers.into_iter().for_each(machine::forget);
        }
    }

    /// Makes an operation on one of the spaces, and looks around in the one that runs; then, perhaps, in the other.
    fn round(&mut self, random: &mut Random, tally: &mut Tally) -> Result<(), Difference> {
        let (pages, size) = range(random, &SCOPE);
        let which = random.below(2);
        match operate(&mut self.tables[which], pages, size, random, &SCOPE) {
            Ok(()) => tally.done += 1,
            Err(_) => tally.refused += 1,
        }
        look_around(&self.tables[self.running], pages, random, tally)?;
        match random.below(8) {
            0 => self.exchange(),
            1..=4 => self.switch(1 - self.running),
            _ => return Ok(()),
        }
        look_around(&self.tables[self.running], pages, random, tally)
    }

    /// Unmaps everything but the kernel.
    fn clear(&mut self) {
        for table in &mut self.tables {
            for &place in &places()[..SCOPE.places] {
                if table.unmap(pages(place, REGION), Holes::Skip).is_err() {
                    machine::stop("a table is not to be emptied", 2);
                }
            }
        }
    }

    /// Switches a control on, until the judge finds something wrong.
    fn must_find(&mut self, control: Control, random: &mut Random) {
        self.clear();
        control::switch_to(control);
        let mut tally = Tally::default();
        // A switch makes QEMU forget most of what a missing flush would leave in the TLB.
        let found = (0..20 * CONTROL).find_map(|_| self.round(random, &mut tally).err());
        control::switch_to(Control::Nothing);
        if found.is_none() {
            let _ =
                writeln!(Console, "{}: two spaces: {control:?} is wrong, and goes unnoticed", machine::NAME);
            machine::stop("a control is not found", 4);
        }
        let after = tally.done + tally.refused;
        let _ = writeln!(
            Console,
            "{}: two spaces: control {control:?} is found after {after} operations",
            machine::NAME
        );
        // What no switch and no flush has made known is made known now.
        self.switch(self.running);
        machine::flush(&crate::everything());
    }
}

/// Judges two spaces.
pub(crate) fn judge(slab: &Storage<'_>, random: &mut Random) {
    let space = |flush: fn(&Flush)| {
        let Ok(tree) = Tree::new(slab) else { machine::stop("no table", 2) };
        let mut table: Judged<'_> = Local::new(tree, flush);
        if machine::map_kernel(&mut table).is_err() {
            machine::stop("the kernel does not fit into its table", 2);
        }
        table
    };
    let tables = [space(flush::<0>), space(flush::<1>)];
    let mut spaces = Spaces { tables, running: 0, switches: 0, exchanges: 0 };
    spaces.switch(0);
    let mut tally = Tally::default();
    while tally.done < OPERATIONS || tally.allowed < ACCESSES {
        if tally.done + tally.refused == ATTEMPTS {
            machine::stop("too few operations on two spaces succeed, or too few accesses are allowed", 3);
        }
        if let Err(found) = spaces.round(random, &mut tally) {
            let _ = writeln!(Console, "{}: two spaces: {found}", machine::NAME);
            machine::stop("lookup and the MMU do not agree", 1);
        }
    }
    let Tally { done, allowed, faults, .. } = tally;
    let Spaces { switches, exchanges, .. } = spaces;
    let _ = writeln!(
        Console,
        "{}: two spaces: {done} operations, {switches} switches and {exchanges} exchanges of numbers; {allowed} accesses \
         and {faults} faults are as lookup says",
        machine::NAME,
    );
    for control in [Control::Rights, Control::Switch] {
        spaces.must_find(control, random);
    }
    for (control, seen) in [(Control::Flush, machine::FLUSHES), (Control::Reuse, machine::NUMBERS)] {
        if seen {
            spaces.must_find(control, random);
        }
    }
}
