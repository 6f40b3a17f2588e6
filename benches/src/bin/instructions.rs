//! Does one operation a thousand times in a function of its own, for callgrind to count its instructions.
//!
//! `cargo xtask instructions` runs it for every subject and operation and prints the counts by call; alone it only
//! lists what there is.
#![allow(missing_docs)]

use std::hint::black_box;

use tlbkit_benches::work::{CC1, captured, dense, shuffled, sparse};
use tlbkit_benches::{Fork, Iterate, Resize, Subject, ours, peers, spaces};
use tlbkit_witness::Recorder;
use tlbkit_witness::event::{Event, Fence, Memory};

const CALLS: usize = 1000;
/// The neighbouring pages of which one is unmapped and mapped again.
const REGION: usize = 16384;

// Each operation is a function of its own that callgrind can tell apart, and nothing but the operation is in it.
mod operation {
    use super::{Event, Fence, Fork, Memory, Recorder, Subject};

    #[inline(never)]
    pub(crate) fn hit<S: Subject>(table: &S, va: usize) -> Option<usize> {
        table.translate(va)
    }

    #[inline(never)]
    pub(crate) fn map<S: Subject>(table: &mut S, vpn: usize, pages: usize) {
        if pages == 1 { table.map(vpn, 1) } else { table.map_range(vpn, 1, pages) }
    }

    #[inline(never)]
    pub(crate) fn unmap<S: Subject>(table: &mut S, vpn: usize, pages: usize) {
        if pages == 1 { table.unmap(vpn) } else { table.unmap_range(vpn, pages) }
    }

    #[inline(never)]
    pub(crate) fn protect<S: Subject>(table: &mut S, vpn: usize, pages: usize, writable: bool) {
        table.protect_range(vpn, pages, writable);
    }

    #[inline(never)]
    pub(crate) fn replace<S: Subject>(table: &mut S, vpn: usize, pfn: usize) {
        table.replace(vpn, pfn);
    }

    #[inline(never)]
    pub(crate) fn touch<S: Subject>(table: &mut S, vpn: usize) {
        if table.translate(vpn << 12).is_none() {
            table.map(vpn, 1);
        }
    }

    #[inline(never)]
    pub(crate) fn grow<S: Subject>(table: &mut S, vpn: usize) {
        table.map(vpn, 1);
    }

    #[inline(never)]
    pub(crate) fn remap<S: Subject>(table: &mut S, vpn: usize) {
        table.unmap(vpn);
        table.map(vpn, 1);
    }

    #[inline(never)]
    pub(crate) fn first_use<S: Fork>(space: &mut S, vpn: usize) {
        space.first_use(vpn, vpn);
    }

    #[inline(never)]
    pub(crate) fn fault<S: Fork>(space: &mut S, vpn: usize) -> bool {
        space.fault(vpn)
    }

    #[inline(never)]
    pub(crate) fn mark<S: Fork>(space: &mut S, vpn: usize) {
        space.mark(vpn);
    }

    #[inline(never)]
    pub(crate) fn activate<S: Fork>(space: &S) {
        space.activate();
    }

    #[inline(never)]
    pub(crate) fn fork<S: Fork>(space: &S) -> S {
        space.fork()
    }

    #[inline(never)]
    pub(crate) fn store<const EVENTS: usize>(
        recorder: &Recorder<4, EVENTS>,
        cpu: usize,
        at: u64,
        value: u64,
    ) {
        recorder.record(cpu, Event::Write { at, value });
    }

    #[inline(never)]
    pub(crate) fn fence<const EVENTS: usize>(recorder: &Recorder<4, EVENTS>, cpu: usize, va: u64, asid: u16) {
        let fence = Fence { pages: Some((va, va)), asid: Some(asid), ..Fence::default() };
        recorder.record(cpu, Event::Fence(fence));
    }

    #[inline(never)]
    pub(crate) fn free<const EVENTS: usize>(recorder: &Recorder<4, EVENTS>, cpu: usize, at: u64) {
        recorder.record(cpu, Event::Frame(Memory { at, bytes: 4096, free: true }));
    }
}

/// The first page that tables have, in an address space of any width.
const BASE: usize = 0x345_6000 & !511;

/// Returns a table with half a node's worth of pages mapped from [`BASE`] on, and the first page of the other half.
fn half<S: Subject>() -> (S, usize) {
    let mut table = S::new();
    table.map_range(BASE, 1, 256);
    (table, BASE + 256)
}

/// What every subject does: each operation [`CALLS`] times. Callgrind is told which function to collect.
fn basic<S: Subject>(operation: &str) -> bool {
    match operation {
        "hit dense" | "hit sparse" => {
            let mut table = S::new();
            let pages = if operation == "hit sparse" {
                shuffled(sparse(S::BITS, 8192))
            } else {
                dense(S::BITS, 8192)
            };
            pages.iter().for_each(|&vpn| table.map(vpn, vpn));
            for call in 0..CALLS {
                black_box(operation::hit(&table, pages[call] << 12));
            }
        }
        "map 1" | "unmap 1" | "map 128" | "unmap 128" => {
            let (mut table, first) = half::<S>();
            let pages = if operation.ends_with("128") { 128 } else { 1 };
            for call in 0..CALLS {
                let vpn = first + call % 128;
                operation::map(&mut table, vpn, pages);
                operation::unmap(&mut table, vpn, pages);
            }
        }
        "protect 1" | "protect 128" => {
            let (mut table, _) = half::<S>();
            let pages = if operation.ends_with("128") { 128 } else { 1 };
            for call in 0..CALLS {
                operation::protect(&mut table, BASE, pages, call % 2 == 0);
            }
        }
        "replace 1" => {
            let (mut table, _) = half::<S>();
            (0..CALLS).for_each(|call| operation::replace(&mut table, BASE + call % 128, call + 1));
        }
        // The first pages that a program touches, and neighbouring pages, in a table that is empty at first.
        "touch cc1" => {
            let mut table = S::new();
            captured(S::BITS, CC1)[..CALLS].iter().for_each(|&vpn| operation::touch(&mut table, vpn));
        }
        "grow dense" | "grow mixed" => {
            let mut table = S::new();
            let pages = dense(S::BITS, CALLS);
            let pages = if operation == "grow mixed" { shuffled(pages) } else { pages };
            pages.iter().for_each(|&vpn| operation::grow(&mut table, vpn));
        }
        // One page of a large region is unmapped and mapped again: page after page, or in any order.
        "remap dense" | "remap mixed" => {
            let mut table = S::new();
            let pages = dense(S::BITS, REGION);
            table.map_range(pages[0], 1, REGION);
            let pages = if operation == "remap mixed" { shuffled(pages) } else { pages };
            pages[..CALLS].iter().for_each(|&vpn| operation::remap(&mut table, vpn));
        }
        _ => return false,
    }
    true
}

/// What address spaces do beside that. A fork is one of 100 pages whose frames are no neighbours.
fn space<S: Fork>(operation: &str) -> bool {
    match operation {
        "first use" => {
            let (mut space, first) = half::<S>();
            for call in 0..CALLS {
                let vpn = first + call % 128;
                operation::first_use(&mut space, vpn);
                space.unmap(vpn);
            }
        }
        "fault" => {
            let (mut space, _) = half::<S>();
            (0..128).for_each(|page| assert!(space.fault(BASE + page)));
            (0..CALLS).for_each(|call| assert!(operation::fault(&mut space, BASE + call % 128)));
        }
        "mark" => {
            let (mut space, _) = half::<S>();
            (0..CALLS).for_each(|call| operation::mark(&mut space, BASE + call % 128));
        }
        "activate" => {
            let (space, other) = (S::new(), S::new());
            [&space, &other].iter().cycle().take(CALLS).for_each(|space| operation::activate(*space));
        }
        "fork 100" => {
            let mut space = S::new();
            (0..100).for_each(|page| space.map(BASE + page, 1 + page * 2));
            for _ in 0..CALLS {
                operation::fork(&space).destroy();
                space.unshare(BASE, 100);
            }
        }
        _ => return false,
    }
    true
}

/// What a kernel records with room for so many events of each of four CPUs; with 0 the recorder is off.
fn recorder<const EVENTS: usize>(operation: &str) -> bool {
    let recorder: Box<Recorder<4, EVENTS>> = Box::default();
    for at in 0..CALLS as u64 {
        let cpu = black_box(at as usize % 4);
        match operation {
            "store" => operation::store(&recorder, cpu, 0x8000_0000 + at * 8, at),
            "fence" => operation::fence(&recorder, cpu, at << 12, 7),
            "free" => operation::free(&recorder, cpu, at << 12),
            _ => return false,
        }
    }
    assert_eq!(recorder.events().count(), if EVENTS == 0 { 0 } else { CALLS });
    true
}

const RECORDER: &[&str] = &["store", "fence", "free"];
const BASIC: &[&str] = &[
    "hit dense",
    "hit sparse",
    "map 1",
    "unmap 1",
    "protect 1",
    "replace 1",
    "map 128",
    "unmap 128",
    "protect 128",
    "touch cc1",
    "grow dense",
    "grow mixed",
    "remap dense",
    "remap mixed",
];
const SPACE: &[&str] = &["first use", "fault", "mark", "activate", "fork 100"];

/// What the command line asks for: an operation of a subject, or the names of all.
struct Wanted {
    subject: String,
    operation: String,
}

impl Wanted {
    /// Does the operation, if the subject is of this name and `run` knows the operation; or prints the names of all.
    fn subject(&self, name: &str, run: fn(&str) -> bool, operations: &[&str]) {
        if self.subject.is_empty() {
            operations.iter().for_each(|operation| println!("{name}\t{operation}"));
        } else if self.subject == name && run(&self.operation) {
            std::process::exit(0);
        }
    }

    fn basic<S: Subject>(&self) {
        self.subject(S::NAME, basic::<S>, BASIC);
    }

    fn space<S: Fork>(&self) {
        self.basic::<S>();
        self.subject(S::NAME, space::<S>, SPACE);
    }
}

impl ours::Each for Wanted {
    fn table<S: Subject + Iterate + Resize + 'static>(&mut self) {
        self.basic::<S>();
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut next = || arguments.next().unwrap_or_default();
    let mut wanted = Wanted { subject: next(), operation: next() };
    wanted.subject("Recorder on", recorder::<CALLS>, RECORDER);
    wanted.subject("Recorder off", recorder::<0>, RECORDER);
    wanted.basic::<peers::X86>();
    wanted.basic::<peers::Multiarch>();
    wanted.basic::<peers::Generic>();
    wanted.basic::<peers::Aarch64>();
    wanted.basic::<peers::HashBrown>();
    wanted.basic::<peers::BTree>();
    ours::each(&mut wanted);
    wanted.basic::<spaces::X86Solo>();
    wanted.basic::<spaces::X86Shared>();
    wanted.basic::<spaces::Sv39Solo>();
    wanted.basic::<spaces::Sv39Shared>();
    wanted.space::<spaces::X86Space>();
    wanted.space::<spaces::X86Space4>();
    wanted.space::<spaces::Sv39Space>();
    wanted.space::<spaces::Sv39Space4>();
}
