//! Two programs and a message between them.

use heapless::Vec;
use tlbkit_addr::{Attr, PageSize, Pfn};
use tlbkit_dash::ipc::{Access, IpcError, IpcRegion, LowAction, MessageStep, Passing, Receive, Send};

use super::SIZES;
use crate::memory::KSEG0;
use crate::task::{Event, Task};
use crate::user::{DONE, Program};
use crate::vm::fault::Refusal;
use crate::vm::frames::word;
use crate::vm::machine::Machine;
use crate::vm::space::{PLAIN, page, pages};
use crate::vm::structure::Structure;
use crate::work::check::Checks;
use crate::work::counted;

/// How a message is moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    Copy,
    CopyTwice,
    Remap,
    RemapLazily,
}

impl How {
    pub(super) const ALL: [Self; 4] = [Self::Copy, Self::CopyTwice, Self::Remap, Self::RemapLazily];

    const fn copies(self) -> bool {
        matches!(self, Self::Copy | Self::CopyTwice)
    }
}

/// The most pages of a message.
const MOST: usize = SIZES[SIZES.len() - 1];

/// Where the IPC region is, the same in all address spaces (5.3.4.4).
const REGION: u32 = 0x1000_0000;
/// What the first word of each page is more than its address.
const SALT: u32 = 0x0055_0000;

/// Pages may be stored to without a trap.
const WRITABLE: Attr = PLAIN.union(Attr::WRITE).union(Attr::DIRTY);

/// Two programs and a message between them.
pub(super) struct Mail<S: Structure> {
    how: How,
    tasks: [Task<'static, S>; 2],
    /// The task that sends the next message.
    sender: usize,
    /// Which space owns which page, and what is mapped where.
    region: IpcRegion<MOST, 2>,
    /// The frames of the message: one each, or for copies one each in both spaces and, in between, in the kernel.
    frames: [Vec<Pfn, MOST>; 3],
    pub(super) meter: Option<Meter>,
}

impl<S: Structure> Mail<S> {
    /// Returns two new programs, the first of which has a message of `count` pages for the other.
    pub(super) fn new(machine: &mut Machine<S>, code: Pfn, how: How, count: usize) -> Self {
        let tasks = [0, 1].map(|_| match machine.task(code, Program::Message, [0; 4], 0) {
            Ok(task) => task,
            Err(error) => panic!("no memory for a task: {error}"),
        });
        let mut mail =
            Self { how, tasks, sender: 0, region: IpcRegion::new(), frames: Default::default(), meter: None };
        for index in 0..count {
            for (owner, frames) in mail.frames.iter_mut().enumerate().take(if how.copies() { 3 } else { 1 }) {
                let Some(frame) = machine.frames.take() else { panic!("no frame for a message") };
                // Only the sender's is right.
                let content = if owner == 0 { address(index) + SALT } else { 0 };
                // SAFETY: the frame was just taken.
                unsafe { word(frame).write_volatile(content) };
                let _ = frames.push(frame);
            }
            if how.copies() {
                for owner in [0, 1] {
                    mail.map(machine, owner, index, mail.frames[owner][index]);
                }
            } else {
                let done =
                    mail.region.get_ownership(0).and_then(|page| mail.region.mapin(0, page, Access::Write));
                mail.act(machine, done);
            }
        }
        mail
    }

    /// Sends the message, and lets its receiver run.
    pub(super) fn pass(&mut self, machine: &mut Machine<S>, accessed: bool, checks: &mut Checks) {
        let (from, to) = (self.sender, 1 - self.sender);
        let count = self.frames[0].len();
        self.begin(from, Program::Message, [0; 4]);
        let sent = self.timed(Part::Send, |mail| machine.run(&mut mail.tasks[from]));
        checks.check(matches!(sent, Event::Call(DONE, _)), |say| {
            say(format_args!("instead of a message: {sent:?}"));
        });
        for index in 0..count {
            match self.how {
                How::Copy => copy(self.frames[from][index], self.frames[to][index]),
                How::CopyTwice => {
                    copy(self.frames[from][index], self.frames[2][index]);
                    copy(self.frames[2][index], self.frames[to][index]);
                }
                How::Remap | How::RemapLazily => self.transfer(machine, from, to, index),
            }
        }
        if accessed {
            self.begin(to, Program::Sweep, [REGION, PageSize::K4.bytes() as u32, count as u32, SALT]);
        } else {
            self.begin(to, Program::Message, [0; 4]);
        }
        let received = self.timed(Part::Receive, |mail| mail.receive(machine, to));
        checks.check(matches!(received, Event::Call(DONE, [0, ..])), |say| {
            say(format_args!("{} of {count} pages: {received:?}", self.how));
        });
        self.sender = to;
    }

    /// Lets a program begin anew.
    fn begin(&mut self, owner: usize, program: Program, arguments: [u32; 4]) {
        let frame = &mut self.tasks[owner].frame;
        frame.epc = program.entry();
        frame.registers[4..8].copy_from_slice(&arguments);
    }

    /// Runs the receiver. A fault in the region maps the page, if the receiver owns it.
    fn receive(&mut self, machine: &mut Machine<S>, to: usize) -> Event {
        loop {
            match machine.run(&mut self.tasks[to]) {
                Event::Refused(Refusal::NoRegion, at)
                    if (REGION..REGION + (MOST << 12) as u32).contains(&at) =>
                {
                    let index = (at - REGION) as usize >> 12;
                    let done = self.timed(Part::FindOut, |mail| mail.region.mapin(to, index, Access::Write));
                    self.act(machine, done);
                }
                event => return event,
            }
        }
    }

    /// Moves the ownership of a page, as the message-passing system does for a receiver that trusts no other.
    fn transfer(&mut self, machine: &mut Machine<S>, from: usize, to: usize, index: usize) {
        let immediate_use = if self.how == How::Remap { Access::Write } else { Access::None };
        let mut passing = Passing::new();
        passing.send(Send::default());
        passing.receive(Receive { trust: false, immediate_use });
        while let Some(step) = passing.step() {
            let done = self.timed(Part::Transfer, |mail| match step {
                MessageStep::Duplicate { ownership_only } => {
                    mail.region.duplicate(from, index, ownership_only)
                }
                MessageStep::StartTransfer { ownership_only } => {
                    mail.region.start_transfer(from, to, index, ownership_only)
                }
                MessageStep::FinishTransfer => mail.region.finish_transfer(from, index),
                MessageStep::Mapin(access) => mail.region.mapin(to, index, access),
            });
            self.act(machine, done);
        }
    }

    /// Does to the page table what the region asks for.
    fn act(&mut self, machine: &mut Machine<S>, asked: Result<LowAction, IpcError>) {
        match asked {
            Ok(LowAction::Nothing) => {}
            Ok(LowAction::Map { space, page, .. }) => {
                self.timed(Part::Map, |mail| mail.map(machine, space, page, mail.frames[0][page]));
            }
            Ok(LowAction::Reduce { space, page: index, .. }) => {
                self.timed(Part::Unmap, |mail| {
                    let unmapped = machine.unmap(&mut mail.tasks[space].space, page(address(index)));
                    // One CPU: what the TLB had is forgotten by now.
                    if let (Err(_), _) | (_, Err(_)) = (unmapped, mail.region.reduced(space, index)) {
                        panic!("page {index} of the message was not mapped");
                    }
                });
            }
            Ok(other) => panic!("{other:?} was not asked for"),
            Err(error) => panic!("the IPC region refuses: {error}"),
        }
    }

    fn map(&mut self, machine: &mut Machine<S>, owner: usize, index: usize, frame: Pfn) {
        let mapped = machine.map(&mut self.tasks[owner].space, pages(address(index), 1), frame, WRITABLE);
        if let Err(error) = mapped {
            panic!("page {index} of the message cannot be mapped: {error}");
        }
    }

    /// Counts the instructions of a part, if that is wanted.
    fn timed<T>(&mut self, part: Part, call: impl FnOnce(&mut Self) -> T) -> T {
        if self.meter.is_none() {
            return call(self);
        }
        let (result, insns) = counted(|| call(self));
        if let Some(meter) = &mut self.meter {
            meter.0[part as usize] += insns;
        }
        result
    }

    /// Ends the programs.
    pub(super) fn delete(self, machine: &mut Machine<S>, checks: &mut Checks) {
        checks.check(self.region.check(), |say| say(format_args!("the IPC region contradicts itself")));
        for task in self.tasks {
            machine.delete(task.space, |_| true);
        }
        machine.forget_everything();
        for frame in self.frames.into_iter().flatten() {
            // SAFETY: no table has it, nor any TLB.
            unsafe { machine.frames.give(frame) };
        }
    }
}

/// Returns where a page of the message is.
const fn address(index: usize) -> u32 {
    REGION + (index << 12) as u32
}

/// Copies a frame, eight words at a time: a loop of single ones takes two and a half times as many instructions.
fn copy(from: Pfn, to: Pfn) {
    const PIECE: usize = 8;
    let memory = |frame: Pfn| KSEG0 + frame.address(PageSize::K4).get();
    let from = core::ptr::with_exposed_provenance::<[u32; PIECE]>(memory(from));
    let to = core::ptr::with_exposed_provenance_mut::<[u32; PIECE]>(memory(to));
    for piece in 0..PageSize::K4.bytes() / size_of::<[u32; PIECE]>() {
        // SAFETY: both frames are the message's, and different.
        unsafe { to.add(piece).write(from.add(piece).read()) };
    }
}

/// A part of what a message takes. Map is within Transfer's neighbours or within Receive, FindOut within Receive.
#[derive(Clone, Copy, Debug)]
enum Part {
    Send,
    Transfer,
    Unmap,
    Map,
    FindOut,
    Receive,
}

/// Instructions by part.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Meter([u32; 6]);

impl Meter {
    /// Returns the parts, none of them within another.
    pub(super) fn parts(self) -> [(&'static str, u32); 6] {
        let of = |part| self.0[part as usize];
        [
            ("user-level_send:_trap,_and_switch_to_the_kernel", of(Part::Send)),
            ("transfer_the_ownerships", of(Part::Transfer)),
            ("invalidate_PTEs,_and_flush", of(Part::Unmap)),
            ("look_ownerships_up_in_page_faults", of(Part::FindOut)),
            ("update_PTEs_in_page_faults", of(Part::Map)),
            (
                "receive:_switch,_access,_faults,_refills",
                of(Part::Receive).saturating_sub(of(Part::FindOut) + of(Part::Map)),
            ),
        ]
    }
}
