//! The mapping benchmark (Elphinstone et al. 3.3, after Appel and Li): write-protect pages of a client, then unprotect
//! them one by one in random order.
//!
//! The server is a program that makes a system call for each page (PROT1), or one for all (PROTN) and then one for each
//! that it unprotects. The pages are 128 in a row, or 16 at random in regions of 64 KB (which they fill) to 16 MB; the
//! client has nothing else, or a segment of 64 MB beside, which is left alone. The whole cost is counted: the server's
//! way into the kernel and back, the table, and the flush.

use tlbkit_addr::{Attr, Pfn};
use tlbkit_malta::check::{Checks, Random};
use tlbkit_malta::trap;
use tlbkit_pagetable::{Change, Holes};

use crate::machine::{self, Space, pages, word};
use crate::measure::counted;
use crate::tables::{Nodes, Structure};
use crate::user::{PROTECT, PROTECT_ALL, Program, Task, UNPROTECT};

/// Where the pages are, the segment, and the server's list of pages.
const REGION: u32 = 0x1000_0000;
const SEGMENT: u32 = 0x3000_0000;
const LIST: u32 = 0x0050_0000;
/// Pages of the segment.
const SEGMENT_PAGES: u32 = 64 << 20 >> 12;

/// Sparse regions by the logarithm of their pages: 64 KB, 256 KB, 1 MB, 4 MB, 16 MB.
pub const REGIONS: [u32; 5] = [4, 6, 8, 10, 12];

/// What a page takes, in instructions: protected by a call for each, or by one for all, and unprotected one by one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cost {
    pub prot1: u32,
    pub protn: u32,
}

/// What the compact region and the sparse ones take: alone, and beside a segment of 64 MB.
#[derive(Clone, Copy, Debug, Default)]
pub struct Costs {
    pub compact: [Cost; 2],
    pub sparse: [[Cost; 2]; REGIONS.len()],
}

/// Runs it all.
pub fn run<S: Structure>(nodes: &'static Nodes<S::Window>, code: Pfn, checks: &mut Checks) -> Costs {
    // One frame stands for all of the segment: no code looks at it.
    let frame = machine::take();
    let mut costs = Costs::default();
    for beside in 0..2 {
        let mut one =
            |log, sparse| client::<S>(nodes, code, (beside == 1).then_some(frame), log, sparse, checks);
        costs.compact[beside] = one(7, false);
        for (cost, log) in costs.sparse.iter_mut().zip(REGIONS) {
            cost[beside] = one(log, true);
        }
    }
    machine::give(frame);
    costs
}

/// Measures one client: `2^log` pages, all of them or 16 at random.
fn client<S: Structure>(
    nodes: &'static Nodes<S::Window>,
    code: Pfn,
    segment: Option<Pfn>,
    log: u32,
    sparse: bool,
    checks: &mut Checks,
) -> Cost {
    let list = draw(log, sparse);
    let mut client = Space::<S>::new(nodes);
    let own = list.iter().map(|&at| (at, machine::take()));
    let beside = segment
        .into_iter()
        .flat_map(|frame| (0..SEGMENT_PAGES).map(move |page| (SEGMENT + (page << 12), frame)));
    for (at, frame) in own.chain(beside) {
        let mapped = client.map_page(at, frame, Attr::WRITE | Attr::DIRTY);
        checks.check(mapped.is_ok(), |say| say(format_args!("{at:#x} cannot be mapped: {mapped:?}")));
    }
    // The client runs: the TLB gets to know its pages.
    client.activate();
    for &at in &list {
        let read = trap::load(at);
        checks.check(read.is_ok(), |say| say(format_args!("the client cannot read {at:#x}: {read:?}")));
    }
    let mut serve =
        |client: &mut Space<S>, call, list: &[u32]| serve(nodes, code, client, 1 << log, call, list, checks);
    let unprotected = shuffle(list.clone());
    let protect_one = serve(&mut client, PROTECT, &list);
    let unprotect = serve(&mut client, UNPROTECT, &unprotected);
    let protect_all = serve(&mut client, PROTECT_ALL, &[REGION]);
    let again = serve(&mut client, UNPROTECT, &unprotected);
    client.activate();
    for &at in &list {
        // SAFETY: the page is the client's, and no other code looks at it.
        let written = unsafe { trap::store(at, at) };
        checks.check(written.is_ok(), |say| say(format_args!("{at:#x} was unprotected: {written:?}")));
    }
    client.end(|frame| segment == Some(frame));
    let each = list.len() as u32;
    Cost { prot1: (protect_one + unprotect) / each, protn: (protect_all + again) / each }
}

/// Addresses of pages, the server's list of them at most.
type List = heapless::Vec<u32, 128>;

/// Returns the pages of a region: 16 at random without repetition, or all.
fn draw(log: u32, sparse: bool) -> List {
    let mut list = List::new();
    let mut random = Random::new(log);
    let wanted = if sparse { 16 } else { 1 << log };
    while list.len() < wanted {
        let page = if sparse { random.below(1 << log) } else { list.len() as u32 };
        let at = REGION + (page << 12);
        if !list.contains(&at) {
            // There is room for what is wanted.
            let _ = list.push(at);
        }
    }
    list
}

/// Returns the pages in random order.
fn shuffle(mut list: List) -> List {
    let mut random = Random::new(7);
    for last in (1..list.len()).rev() {
        list.swap(last, random.below(last as u32 + 1) as usize);
    }
    list
}

/// Runs a server that makes a call for each of these pages of a client, or for all that the region has, and returns the
/// instructions from its first to its last.
fn serve<S: Structure>(
    nodes: &'static Nodes<S::Window>,
    code: Pfn,
    client: &mut Space<S>,
    whole: usize,
    call: u32,
    list: &[u32],
    checks: &mut Checks,
) -> u32 {
    let frame = machine::take();
    for (index, &at) in list.iter().enumerate() {
        // SAFETY: the frame was just taken, and has room for a list.
        unsafe { word(frame).add(index).write_volatile(at) };
    }
    let mut server = Task::<S>::new(nodes, code, Program::List, [LIST, list.len() as u32, call, 0]);
    let mapped = server.space.map_page(LIST, frame, Attr::empty());
    checks.check(mapped.is_ok(), |say| say(format_args!("no list: {mapped:?}")));
    let (served, instructions) = counted(|| {
        let mut served = 0;
        loop {
            let (call, at) = server.run();
            let (count, holes, change) = match call {
                PROTECT => (1, Holes::Refuse, Change::clear(Attr::WRITE)),
                UNPROTECT => (1, Holes::Refuse, Change::set(Attr::WRITE)),
                PROTECT_ALL => (whole, Holes::Skip, Change::clear(Attr::WRITE)),
                _ => return served,
            };
            served += usize::from(client.protect(pages(at, count), holes, change).is_ok());
        }
    });
    checks.check(served == list.len(), |say| {
        say(format_args!("the server made {served} calls of {}", list.len()));
    });
    server.space.end(|frame| frame == code);
    instructions
}
