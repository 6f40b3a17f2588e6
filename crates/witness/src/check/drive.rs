//! Runs page-table code under the checker: arbitrary bytes are decoded as changes, and the code must be correct for every interleaving of
//! the CPUs' walks.

use core::fmt;
use std::cell::RefCell;
use std::rc::Rc;
use std::vec;
use std::vec::Vec;

use super::{Arch, Checked, Checker, Refusal};
use crate::event::Event;

/// The state of a page of an address space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Page {
    /// Not mapped.
    #[default]
    Absent,
    /// Mapped, and may be read.
    Read,
    /// Mapped, and may be read and written.
    Write,
}

/// Page-table code of a kernel, or a model of it, as [`drive`] drives it.
///
/// The code passes each of its events to [`Log::say`], in the order in which they happen: stores to tables, loads of roots, fences,
/// barriers, interrupts, and memory that it takes and gives back.
pub trait Kernel {
    /// Returns how many CPUs there are.
    fn cpus(&self) -> usize;

    /// Returns how many address spaces there are.
    fn spaces(&self) -> usize;

    /// Returns how many pages of an address space are changed.
    fn pages(&self) -> usize;

    /// Returns the virtual address of a page.
    fn va(&self, page: usize) -> u64;

    /// Makes a CPU load the root of an address space.
    fn run(&mut self, cpu: usize, space: usize);

    /// Makes a CPU change a page to the state `to`. When this returns, the change is in force on every CPU.
    fn set(&mut self, cpu: usize, space: usize, page: usize, to: Page);
}

/// The log to which code under test writes its events.
#[derive(Clone, Debug)]
pub struct Log {
    shared: Rc<RefCell<Shared>>,
}

#[derive(Debug)]
struct Shared {
    checker: Checker,
    events: Vec<(usize, Event)>,
    refused: Option<Refusal>,
}

/// The checker's refusal, and the log up to the refused event.
#[derive(Clone, Debug)]
pub struct Broken {
    /// The refusal. Its line numbers count the events from 1.
    pub refusal: Refusal,
    /// The events, each with its CPU. `Display` writes them in the text form, for `tlblab witness`.
    pub events: Vec<(usize, Event)>,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.refusal)?;
        self.events.iter().try_for_each(|(cpu, event)| writeln!(f, "{cpu} {event}"))
    }
}

impl core::error::Error for Broken {}

impl Log {
    fn new(arch: Arch) -> Self {
        let shared = Shared { checker: Checker::new(arch), events: Vec::new(), refused: None };
        Self { shared: Rc::new(RefCell::new(shared)) }
    }

    /// Passes an event of `cpu` to the checker. After a refused event, further events are ignored.
    pub fn say(&self, cpu: usize, event: Event) {
        let mut shared = self.shared.borrow_mut();
        if shared.refused.is_none() {
            shared.events.push((cpu, event));
            shared.refused = shared.checker.say(cpu, event).err();
        }
    }

    fn verdict(&self) -> Result<Checked, Broken> {
        let shared = self.shared.borrow();
        match &shared.refused {
            Some(refusal) => Err(Broken { refusal: refusal.clone(), events: shared.events.clone() }),
            None => Ok(shared.checker.checked()),
        }
    }
}

/// Drives page-table code with changes, any three bytes each, under a checker of `arch`. `begin` returns the
/// code, which keeps the log that it is given.
///
/// Any CPU changes any page of any address space, or loads any of the roots. When [`Kernel::set`] returns, a change that takes rights or
/// pages from the address space that its CPU runs counts as promised: the code must have flushed every entry that a CPU may have read
/// meanwhile. The input is bytes, which proptest can shrink and a fuzzer can generate, so a property takes one line, and so does a fuzz
/// target:
///
/// ```
/// use proptest::collection::vec;
/// use proptest::prelude::*;
/// use tlbkit_witness::check::{Arch, Sample, drive};
///
/// proptest!(|(changes in vec(any::<[u8; 3]>(), 0..60))| {
///     // Your kernel in the place of `Sample`.
///     drive(Arch::Sv39, &changes, |log| Sample::new(Arch::Sv39, log))?;
/// });
/// ```
///
/// # Errors
///
/// The first event that breaks a rule, or that cannot have happened, with the log up to this event.
pub fn drive<K: Kernel>(
    arch: Arch,
    changes: &[[u8; 3]],
    begin: impl FnOnce(Log) -> K,
) -> Result<Checked, Broken> {
    let log = Log::new(arch);
    let mut kernel = begin(log.clone());
    let (cpus, spaces, pages) = (kernel.cpus(), kernel.spaces(), kernel.pages());
    let mut running = vec![None; cpus];
    let mut are = vec![Page::Absent; spaces * pages];
    for (id, step) in (0..).zip(changes) {
        log.verdict()?;
        let (cpu, space) = (usize::from(step[1]) % cpus, usize::from(step[1]) / cpus % spaces);
        if step[0] % 4 == 0 {
            kernel.run(cpu, space);
            running[cpu] = Some(space);
            continue;
        }
        let page = usize::from(step[2]) % pages;
        let to = [Page::Absent, Page::Read, Page::Write][usize::from(step[0]) / 4 % 3];
        let was = core::mem::replace(&mut are[space * pages + page], to);
        let lowers = to < was && running[cpu] == Some(space);
        let first = kernel.va(page);
        if lowers {
            log.say(cpu, Event::Lower { id, first, last: first | 0xfff, root: None });
        }
        kernel.set(cpu, space, page, to);
        if lowers {
            log.say(cpu, Event::Done { id });
        }
    }
    log.verdict()
}
