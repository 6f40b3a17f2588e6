//! The mapping benchmark (Elphinstone et al. 3.3, after Appel and Li): write-protect pages of a client, then unprotect
//! them one by one in random order.
//!
//! The server is a program that makes a system call for each page (PROT1), or one for all (PROTN) and then one for each
//! that it unprotects. The pages are 128 in a row, or 16 at random in regions of 64 KB (which they fill) to 16 MB; the
//! client has nothing else, or a segment of 64 MB beside, which is left alone. The whole cost is counted: the server's
//! way into the kernel and back, the table, and the flush.

use tlbkit_addr::{Attr, Pages, Pfn};
use tlbkit_pagetable::{Change, Holes};

use super::check::Checks;
use super::{Random, counted};
use crate::task::{Event, Task};
use crate::user::{PROTECT, PROTECT_ALL, Program, UNPROTECT};
use crate::vm::frames::word;
use crate::vm::machine::Machine;
use crate::vm::space::{self, PLAIN, Space};
use crate::vm::structure::Structure;

/// Where the pages are, the segment, and the server's list of pages.
const REGION: u32 = 0x1000_0000;
const SEGMENT: u32 = 0x3000_0000;
const LIST: u32 = 0x0050_0000;
/// Pages of the segment.
const SEGMENT_PAGES: usize = 64 << 20 >> 12;

/// Sparse regions by the logarithm of their pages: 64 KB, 256 KB, 1 MB, 4 MB, 16 MB.
pub const REGIONS: [u32; 5] = [4, 6, 8, 10, 12];

/// What a page takes, in instructions.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cost {
    /// Protected by a call for each, and unprotected so.
    pub prot1: u32,
    /// Protected by one call for all, and unprotected one by one.
    pub protn: u32,
}

/// What a region takes: alone, and beside a segment of 64 MB.
#[derive(Clone, Copy, Debug, Default)]
pub struct Row {
    pub alone: Cost,
    pub beside: Cost,
}

/// The compact region, and the sparse ones.
#[derive(Clone, Copy, Debug, Default)]
pub struct Costs {
    pub compact: Row,
    pub sparse: [Row; REGIONS.len()],
}

/// Runs it all.
pub fn run<S: Structure>(machine: &mut Machine<S>, code: Pfn, checks: &mut Checks) -> Costs {
    // One frame stands for all of the segment: no code looks at it.
    let Some(frame) = machine.frames.take() else { panic!("no frame") };
    let mut costs = Costs::default();
    for beside in [false, true] {
        let mut one = |log, sparse| client(machine, code, beside.then_some(frame), log, sparse, checks);
        let compact = one(7, false);
        let sparse = REGIONS.map(|log| one(log, true));
        let place = |row: &mut Row, cost| if beside { row.beside = cost } else { row.alone = cost };
        place(&mut costs.compact, compact);
        costs.sparse.iter_mut().zip(sparse).for_each(|(row, cost)| place(row, cost));
    }
    // SAFETY: the clients are gone.
    unsafe { machine.frames.give(frame) };
    costs
}

/// Measures one client: `2^log` pages, all of them or 16 at random.
fn client<S: Structure>(
    machine: &mut Machine<S>,
    code: Pfn,
    segment: Option<Pfn>,
    log: u32,
    sparse: bool,
    checks: &mut Checks,
) -> Cost {
    let pages = draw(log, sparse);
    let Ok(mut client) = Space::new(machine.nodes, 0) else { panic!("no nodes for a client") };
    let attr = PLAIN | Attr::WRITE | Attr::DIRTY;
    let mut map = |machine: &mut Machine<S>, page, frame| {
        let mapped = machine.map(&mut client, Pages::one(page), frame, attr);
        checks.check(mapped.is_ok(), |say| say(format_args!("page {page} cannot be mapped: {mapped:?}")));
    };
    for &at in &pages {
        let Some(frame) = machine.frames.take() else { panic!("no frame") };
        map(machine, space::page(at), frame);
    }
    if let Some(frame) = segment {
        space::pages(SEGMENT, SEGMENT_PAGES).iter().for_each(|page| map(machine, page, frame));
    }
    // The client runs: the TLB gets to know its pages.
    for &at in &pages {
        let read = machine.read(&mut client, at);
        checks.check(read.is_ok(), |say| say(format_args!("the client cannot read {at:#x}: {read:?}")));
    }
    let mut server = Server { code, whole: 1 << log, checks };
    let unprotected = shuffle(pages.clone());
    let protect_one = server.run(machine, &mut client, PROTECT, &pages);
    let unprotect = server.run(machine, &mut client, UNPROTECT, &unprotected);
    let protect_all = server.run(machine, &mut client, PROTECT_ALL, &[REGION]);
    let again = server.run(machine, &mut client, UNPROTECT, &unprotected);
    for &at in &pages {
        let written = machine.write(&mut client, at, at);
        checks.check(written.is_ok(), |say| say(format_args!("{at:#x} was unprotected: {written:?}")));
    }
    machine.delete(client, |frame| segment == Some(frame));
    let each = pages.len() as u32;
    Cost { prot1: (protect_one + unprotect) / each, protn: (protect_all + again) / each }
}

/// Addresses of pages, the server's list of them at most.
type List = heapless::Vec<u32, 128>;

/// Returns the pages of a region: 16 at random without repetition, or all.
fn draw(log: u32, sparse: bool) -> List {
    let mut pages = List::new();
    let mut random = Random::new(log);
    let wanted = if sparse { 16 } else { 1 << log };
    while pages.len() < wanted {
        let page = if sparse { random.below(1 << log) } else { pages.len() as u32 };
        let at = REGION + (page << 12);
        if !pages.contains(&at) {
            // There is room for what is wanted.
            let _ = pages.push(at);
        }
    }
    pages
}

/// Returns the pages in random order.
fn shuffle(mut pages: List) -> List {
    let mut random = Random::new(7);
    for last in (1..pages.len()).rev() {
        pages.swap(last, random.below(last as u32 + 1) as usize);
    }
    pages
}

/// The server that changes the client's pages.
struct Server<'c> {
    code: Pfn,
    /// Pages of the whole region.
    whole: usize,
    checks: &'c mut Checks,
}

impl Server<'_> {
    /// Runs a server that makes a call for each of these pages, and returns the instructions from its first to its last.
    fn run<S: Structure>(
        &mut self,
        machine: &mut Machine<S>,
        client: &mut Space<'_, S>,
        call: u32,
        pages: &[u32],
    ) -> u32 {
        let (code, Some(list)) = (self.code, machine.frames.take()) else { panic!("no frame") };
        for (index, &at) in pages.iter().enumerate() {
            // SAFETY: the frame was just taken, and has room for a list.
            unsafe { word(list).add(index).write_volatile(at) };
        }
        let arguments = [LIST, pages.len() as u32, call, 0];
        let Ok(mut server) = machine.task(code, Program::List, arguments, 0) else {
            panic!("no nodes for a server")
        };
        let mapped = machine.map(&mut server.space, space::pages(LIST, 1), list, PLAIN);
        self.checks.check(mapped.is_ok(), |say| say(format_args!("no list: {mapped:?}")));
        let (served, instructions) = counted(|| self.serve(machine, client, &mut server));
        self.checks.check(served == pages.len(), |say| {
            say(format_args!("the server made {served} calls of {}", pages.len()));
        });
        machine.delete(server.space, |frame| frame == code);
        instructions
    }

    /// Serves the calls of a server until its end, and returns how many succeeded.
    fn serve<S: Structure>(
        &self,
        machine: &mut Machine<S>,
        client: &mut Space<'_, S>,
        server: &mut Task<'_, S>,
    ) -> usize {
        let mut served = 0;
        loop {
            let Event::Call(call, [at, ..]) = machine.run(server) else { return served };
            let (pages, holes, change) = match call {
                PROTECT => (1, Holes::Refuse, Change::clear(Attr::WRITE)),
                UNPROTECT => (1, Holes::Refuse, Change::set(Attr::WRITE)),
                PROTECT_ALL => (self.whole, Holes::Skip, Change::clear(Attr::WRITE)),
                _ => return served,
            };
            let done = machine.protect(client, space::pages(at, pages), holes, change);
            served += usize::from(done.is_ok());
        }
    }
}
