//! Moving data between address spaces (Tzou 5.3.4): copied, or remapped at once, or remapped when it is used.
//!
//! A message of so many pages goes from one program to another, and back, and so on. The sender makes a system call, the kernel
//! passes the message, the receiver runs; if it accesses the message, it reads a word of each page. Counted is everything: both ways
//! through the kernel, the IPC region, the address space, the flush, faults and refills.
//!
//! | | the sender's page | the receiver's page |
//! |-|-|-|
//! | copy | stays | written: once, or by way of a buffer as in UNIX (twice) |
//! | remapped at once | unmapped, and flushed | mapped |
//! | remapped lazily | unmapped if it was mapped | mapped by the fault of its first use |
//!
//! A program names what it sends to and receives from by references, and the kernel finds the stream of messages: one for each receiver.
//!
//! So of a message that is only passed on, the lazy kernel changes no page table at all: Figure 5.5's upper curve.

use core::fmt::Write;
use core::sync::atomic::Ordering;

use heapless::Vec;
use tlbkit::{Access, Attr, Fault, PageSize, Pages, Pfn, VirtAddr};
use tlbkit_dash::ipc::{self, IpcError, IpcRegion, LowAction, MessageStep, Passing, Receive, Send};
use tlbkit_dash::objects::{Mode, Received, References, Sent, Stream};

use crate::arch::{self, Console};
use crate::memory::{MMU, Space};
use crate::report::{Count, REPORT};
use crate::trap::{Frame, Trap};
use crate::window::{PAGES, WINDOW, WindowRange, address, vpn};
use crate::{RECEIVE, STACK, frames, load, time, words};

/// The sizes of messages, in pages, and the most.
const SIZES: [usize; 6] = [1, 2, 4, 8, 16, 32];
const MOST: usize = 32;
/// Messages of each size that are counted; as many before them warm the TLB up.
const MESSAGES: usize = 8;
/// The message of Figure 5.6: 8 KB.
const EIGHT: usize = 2;
/// The call that passes a message on by two references, and what the first word of each page is more than its address: `user/moving.rs` knows both.
const PASS: usize = 17;
const SALT: usize = 0x0055_0000;

const USER: Attr = Attr::READ.union(Attr::WRITE).union(Attr::USER);

/// How a message is moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Copy,
    CopyTwice,
    Remap,
    RemapLazily,
}

/// Each, and what the rows call it.
const WAYS: [(How, &str); 4] = [
    (How::Copy, "copy"),
    (How::CopyTwice, "copy-twice"),
    (How::Remap, "remap-at-once"),
    (How::RemapLazily, "remap-lazily"),
];

/// A part of what a message takes, none within another.
#[derive(Clone, Copy, Debug)]
enum Cost {
    Send,
    Refer,
    Object,
    Transfer,
    Unmap,
    FindOut,
    Map,
    Receive,
}

const PARTS: [&str; 8] = [
    "user-level_send:_trap,_and_switch_to_the_kernel",
    "convert_and_check_object_references",
    "send_to_a_stream,_and_receive_from_one",
    "transfer_the_ownerships",
    "invalidate_PTEs,_and_flush",
    "look_ownerships_up_in_page_faults",
    "update_PTEs_in_page_faults",
    "receive:_switch,_access,_faults,_refills",
];

/// A program in an address space.
struct Party {
    space: Space,
    frame: Frame,
    references: References<usize, 2>,
}

impl Party {
    fn new(kernel: &Space, programs: &[u8], me: usize) -> Self {
        let (space, entry) = load::load(kernel, programs);
        // The stack, and a page behind the messages: no message costs the table a node.
        let parts = [WindowRange { first: PAGES - STACK, len: STACK }, WindowRange { first: MOST, len: 1 }];
        for page in parts.into_iter().flat_map(WindowRange::pages) {
            let frame = frames::take().expect("there is memory for a stack");
            space.map(Pages::one(page), frame, USER).expect("nothing is there");
        }
        let mut references = References::new();
        // What it receives from, and what it sends to: `user/moving.rs` knows in which order.
        assert_eq!([me, 1 - me].map(|stream| references.grant(stream)), [Some(0), Some(1)]);
        Self { references, space, frame: Frame::new(entry, WINDOW + PAGES * PageSize::K4.bytes(), RECEIVE) }
    }
}

/// Two programs and a message between them.
struct Mail<'p> {
    how: How,
    parties: &'p mut [Party; 2],
    /// The one that sends the next message.
    sender: usize,
    /// Which space owns which page, and what is mapped where.
    region: IpcRegion<MOST, 2>,
    /// The messages that go to each: only the sender's name, as its pages are the region's.
    streams: [Stream<usize, usize, 1>; 2],
    /// The frames of the message: one each, or for copies one each in both spaces and, in between, in the kernel.
    frames: [Vec<Pfn, MOST>; 3],
    /// What each part took, if that is counted.
    meter: Option<[usize; PARTS.len()]>,
}

/// Runs it all, and ends the machine. The counter of instructions goes up by `unit` for each.
pub(crate) fn run(kernel: &Space, programs: &[u8], unit: usize) -> ! {
    let mut parties = [0, 1].map(|me| Party::new(kernel, programs, me));
    for who in 0..2 {
        // Up to its first message.
        let mut mail = Mail::new(&mut parties, How::RemapLazily, 0);
        mail.go_on(who);
    }
    let insns = |mail: &mut Mail<'_>, accessed| {
        (0..MESSAGES).for_each(|_| mail.pass(accessed));
        mail.meter = mail.meter.map(|_| Default::default());
        let begin = arch::instructions();
        (0..MESSAGES).for_each(|_| mail.pass(accessed));
        arch::instructions().wrapping_sub(begin) / unit / MESSAGES
    };
    for (how, name) in WAYS {
        for (accessed, word) in [(false, "no"), (true, "yes")] {
            let _ = write!(Console, "moving how={name} accessed={word}");
            for pages in SIZES {
                let mut mail = Mail::new(&mut parties, how, pages);
                let all = insns(&mut mail, accessed);
                mail.end();
                let _ = write!(Console, " {}K={all}", 4 * pages);
            }
            let _ = writeln!(Console);
        }
    }
    let mut mail = Mail::new(&mut parties, How::RemapLazily, EIGHT);
    mail.meter = Some(Default::default());
    let all = insns(&mut mail, true);
    let mut parts = mail.meter.take().unwrap_or_default();
    parts[Cost::Receive as usize] -= parts[Cost::FindOut as usize] + parts[Cost::Map as usize];
    mail.end();
    let _ = writeln!(Console, "passing part=all insns={all}");
    for (name, part) in PARTS.iter().zip(parts) {
        let _ = writeln!(Console, "passing part={name} insns={}", part / unit / MESSAGES);
    }
    assert_eq!(MMU.idle(), Ok(()));
    drop(parties);
    REPORT.end(frames::in_use(), MMU.lost())
}

impl<'p> Mail<'p> {
    /// Returns two programs, the first of which has a message of `count` pages for the other.
    fn new(parties: &'p mut [Party; 2], how: How, count: usize) -> Self {
        let (region, frames) = (IpcRegion::new(), Default::default());
        let mut streams = [(); 2].map(|()| Stream::new(Mode::DualProcess));
        assert_eq!(streams[1].receive(1), Ok(Received::Blocked));
        let mut mail = Self { how, parties, sender: 0, region, streams, frames, meter: None };
        let copies = matches!(how, How::Copy | How::CopyTwice);
        for index in 0..count {
            for owner in 0..if copies { 3 } else { 1 } {
                let frame = frames::take().expect("there is memory for a message");
                // Only the sender's is right.
                let word = if owner == 0 { address(index).get() + SALT } else { 0 };
                frames::words(frame)[0].store(word, Ordering::Relaxed);
                let _ = mail.frames[owner].push(frame);
                if copies && owner < 2 {
                    mail.map(owner, index, frame);
                }
            }
            if !copies {
                let done = mail
                    .region
                    .get_ownership(0)
                    .and_then(|page| mail.region.mapin(0, page, ipc::Access::Write));
                mail.act(done);
            }
        }
        mail
    }

    /// Lets a program go on up to its next call, and returns what that says, and the references that it names.
    fn go_on(&mut self, who: usize) -> [usize; 3] {
        assert_eq!(self.parties[who].space.activate(), Ok(()));
        time::begin_slice();
        loop {
            let trap = arch::run(&mut self.parties[who].frame);
            let was_full = arch::misses(|_| ());
            match trap {
                Trap::Call => {
                    let (number, [said, sends, receives, _]) = self.parties[who].frame.call();
                    assert_eq!(number, PASS, "the program asks for something else");
                    return [said, sends, receives];
                }
                // There is room now for what has missed.
                Trap::Fault(..) if was_full => {}
                Trap::Fault(at, access) => self.fault(who, at, access),
                Trap::Timer => time::begin_slice(),
                Trap::Interrupt => {}
                Trap::Illegal => panic!("a program has done what it must not do"),
            }
        }
    }

    /// A fault in the region maps the page, if the program owns it.
    fn fault(&mut self, who: usize, at: VirtAddr, access: Access) {
        let index = at.get().wrapping_sub(WINDOW) / PageSize::K4.bytes();
        match self.parties[who].space.fault(at, access) {
            Ok(Fault::Retry) => {}
            Ok(Fault::NotMapped) if index < MOST => {
                let done =
                    self.timed(Cost::FindOut, |mail| mail.region.mapin(who, index, ipc::Access::Write));
                self.act(done);
            }
            other => panic!("{access:?} at {at}: {other:?}"),
        }
    }

    /// Sends the message, and lets its receiver run.
    fn pass(&mut self, accessed: bool) {
        let (from, to) = (self.sender, 1 - self.sender);
        let count = self.frames[0].len();
        let [_, sends, receives] = self.timed(Cost::Send, |mail| {
            mail.parties[from].frame.answer(0);
            mail.go_on(from)
        });
        let named = self.timed(Cost::Refer, |mail| {
            let references = &mail.parties[from].references;
            references.object(sends).zip(references.object(receives))
        });
        let (sends, receives) = named.expect("the program has both references");
        let passed = self.timed(Cost::Object, |mail| {
            let sent = mail.streams[sends].send(from, from);
            (sent, mail.streams[receives].receive(from))
        });
        assert_eq!(passed, (Ok(Sent::Deliver(to, from)), Ok(Received::Blocked)));
        for index in 0..count {
            let copy = |from: Pfn, to: Pfn| words::copy(frames::words(from), frames::words(to));
            match self.how {
                How::Copy => copy(self.frames[from][index], self.frames[to][index]),
                How::CopyTwice => {
                    copy(self.frames[from][index], self.frames[2][index]);
                    copy(self.frames[2][index], self.frames[to][index]);
                }
                How::Remap | How::RemapLazily => self.transfer(from, to, index),
            }
        }
        let [wrong, ..] = self.timed(Cost::Receive, |mail| {
            mail.parties[to].frame.answer(if accessed { count } else { 0 });
            mail.go_on(to)
        });
        REPORT.check(wrong == 0, Count::Failures, || "a message is not what was sent");
        self.sender = to;
    }

    /// Moves the ownership of a page, as the message-passing system does for a receiver that trusts no other.
    fn transfer(&mut self, from: usize, to: usize, index: usize) {
        let immediate_use = if self.how == How::Remap { ipc::Access::Write } else { ipc::Access::None };
        let mut passing = Passing::new();
        passing.send(Send::default());
        passing.receive(Receive { trust: false, immediate_use });
        while let Some(step) = passing.step() {
            let done = self.timed(Cost::Transfer, |mail| match step {
                MessageStep::Duplicate { ownership_only } => {
                    mail.region.duplicate(from, index, ownership_only)
                }
                MessageStep::StartTransfer { ownership_only } => {
                    mail.region.start_transfer(from, to, index, ownership_only)
                }
                MessageStep::FinishTransfer => mail.region.finish_transfer(from, index),
                MessageStep::Mapin(access) => mail.region.mapin(to, index, access),
            });
            self.act(done);
        }
    }

    /// Does to the address spaces what the region asks for.
    fn act(&mut self, asked: Result<LowAction, IpcError>) {
        match asked {
            Ok(LowAction::Nothing) => {}
            Ok(LowAction::Map { space, page, .. }) => {
                self.timed(Cost::Map, |mail| mail.map(space, page, mail.frames[0][page]));
            }
            Ok(LowAction::Reduce { space, page, .. }) => {
                self.timed(Cost::Unmap, |mail| {
                    let unmapped = mail.parties[space].space.unmap(Pages::one(vpn(page)));
                    unmapped.expect("no call is under way");
                    // What every TLB had is flushed by now.
                    let _ = mail.region.reduced(space, page).expect("it was asked for");
                });
            }
            other => panic!("the IPC region: {other:?}"),
        }
    }

    fn map(&mut self, owner: usize, index: usize, frame: Pfn) {
        frames::share(frame);
        // Dirty from the beginning: a message is written before it is sent.
        let attr = USER | Attr::DIRTY;
        self.parties[owner].space.map(Pages::one(vpn(index)), frame, attr).expect("nothing is there");
    }

    /// Counts the instructions of a part, if that is wanted.
    fn timed<T>(&mut self, part: Cost, call: impl FnOnce(&mut Self) -> T) -> T {
        let begin = arch::instructions();
        let result = call(self);
        if let Some(meter) = &mut self.meter {
            meter[part as usize] += arch::instructions().wrapping_sub(begin);
        }
        result
    }

    /// Takes the message away.
    fn end(self) {
        REPORT.check(self.region.check(), Count::Failures, || "the IPC region contradicts itself");
        let pages = WindowRange { first: 0, len: MOST }.pages();
        for party in &mut *self.parties {
            party.space.unmap(pages).expect("no call is under way");
        }
        self.frames.into_iter().flatten().for_each(|frame| frames::release(frame, false));
    }
}
