//! What the lock guards: which page is where, and what is to be done.

use heapless::{Deque, Vec};
use tlbkit::shootdown::{OpId, Outcome, Plan};
use tlbkit::{Attr, PageSize, Pages};
use tlbkit_dash::ipc::{Access, IpcError, IpcRegion, LowAction, Passing, Receive};
use tlbkit_dash::pageout::{PageAction, PageOut};
use tlbkit_dash::tolerance::Entry;
use tlbkit_dash::unmapping::{Config, Dash, Hint, SharingId, Tables as _, Ticket, Unmapping};

use super::cpu::entry_lo;
use super::spaces::{Spaces, asid};
use super::{CPUS, FRAMES, MAILED, PAGED, SPACES, Table, vpn, wrong};
use crate::words::{Words, copy, fill};

/// Unmappings in flight: one for each frame of the segment, and one for each mapping of the region.
const PENDING: usize = FRAMES + MAILED * SPACES;
/// Operations: those of the segment's unmappings count twice.
const WAITING: usize = (FRAMES + MAILED) * SPACES;
/// How many frames are to be clean.
const CLEAN: usize = 2;

/// The frames: those of the segment, then the IPC region's. Programs reach them through the TLB, with other instructions than
/// Rust's; both are atomic.
static FRAME: [Words; FRAMES + MAILED] = [const { Words::new() }; FRAMES + MAILED];
/// The disk of the segment.
static DISK: [Words; PAGED] = [const { Words::new() }; PAGED];

/// The machine-dependent interface.
pub(super) type Interface = Dash<Spaces, Message, PENDING, SPACES>;

/// What an unmapping is for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Message {
    /// A frame of the segment is to be free.
    PageOut(usize),
    /// A mapping of the region is to allow less: the space, and the page there.
    Reduced(usize, usize),
}

/// Letters between two CPUs: the page of the next one, and which it is.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Talk {
    pub(super) page: usize,
    pub(super) number: u32,
    pub(super) passing: Passing,
    /// What the receiver has asked for.
    pub(super) asked: Receive,
}

/// What the program at hand can do about a fault in the segment.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
    /// Try again.
    Again,
    /// Read the page into this frame, and call [`Vm::read`].
    Read(usize),
    /// Wait until something changes.
    Wait,
}

/// What has been done.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Done {
    /// Pages written to the disk, and pages that were used again before they were gone.
    pub(super) written: usize,
    pub(super) reclaimed: usize,
    /// Pages of the region that were copied.
    pub(super) copies: usize,
}

/// What the lock guards.
pub(super) struct Vm {
    pub(super) dash: Interface,
    frames: PageOut<FRAMES>,
    /// The page that each frame has, and the frame that each page has.
    pages: [Option<usize>; FRAMES],
    places: [Option<usize>; PAGED],
    /// Frames that are to be written.
    laundry: Vec<usize, FRAMES>,
    pub(super) region: IpcRegion<MAILED, SPACES>,
    pub(super) talks: [Talk; CPUS / 2],
    /// Operations that have not been started: the space, the page there, the unmapping; and those that have not ended.
    pub(super) waiting: Deque<(usize, usize, Unmapping), WAITING>,
    pub(super) flights: Vec<(OpId, Ticket, usize), WAITING>,
    /// Unmappings that have not ended.
    pub(super) due: usize,
    pub(super) counts: Done,
}

impl Vm {
    /// Returns the kernel of two empty spaces, the first letters' pages in place.
    pub(super) fn new(plan: Plan, tables: [&'static Table; SPACES]) -> Self {
        FRAME.iter().chain(&DISK).for_each(|words| fill(&words.0, 0));
        // A caller waits for a reduction in the region, and no caller waits for a page to leave.
        let config = Config { page: PageSize::K4, prompt: plan.waited_for(), cheap: plan };
        let mut dash = Interface::new(Spaces::new(tables), config);
        let segment = Pages::count(vpn(0), PAGED).expect("it is in the address space");
        for space in 0..SPACES {
            dash.share(asid(space), SharingId::Group(1), segment).expect("there is room for the segment");
        }
        let mut region = IpcRegion::new();
        let talks = core::array::from_fn(|_| Talk {
            page: region.get_ownership(0).expect("the region has a page for each"),
            ..Talk::default()
        });
        Self {
            dash,
            frames: PageOut::new(CLEAN),
            pages: [None; FRAMES],
            places: [None; PAGED],
            laundry: Vec::new(),
            region,
            talks,
            waiting: Deque::new(),
            flights: Vec::new(),
            due: 0,
            counts: Done::default(),
        }
    }

    /// Returns the word of EntryLo of a page in the table.
    pub(super) fn word(&self, space: usize, page: usize) -> Option<u32> {
        self.dash.tables().entry(asid(space), vpn(page)).and_then(entry_lo)
    }

    fn map(&mut self, space: usize, page: usize, frame: usize, attr: Attr) {
        let entry = Entry { frame: FRAME[frame].frame(), attr };
        if let Err(why) = self.dash.map(asid(space), vpn(page), entry) {
            wrong(format_args!("page {page} of space {space}, frame {frame}: {why}"));
        }
    }

    /// Has a page unmapped, or made read-only, in every space that shares it.
    fn unmap(&mut self, space: usize, page: usize, readonly: bool, message: Message) {
        let hint = Hint { slow: matches!(message, Message::PageOut(_)), conditional: false };
        let unmapping = match self.dash.unmap_asynch(asid(space), vpn(page), readonly, message, hint) {
            Ok(unmapping) => unmapping,
            Err((why, _)) => return wrong(format_args!("page {page} of space {space} stays: {why}")),
        };
        self.due += 1;
        match self.dash.spaces_of(unmapping.ticket) {
            Ok(spaces) => {
                for of in spaces {
                    let space = usize::from(of.get()) - 1;
                    if self.waiting.push_back((space, page, unmapping.clone())).is_err() {
                        wrong(format_args!("too many operations wait"));
                    }
                }
            }
            Err(why) => wrong(format_args!("{:?}: {why}", unmapping.ticket)),
        }
    }

    /// The unmapper: keeps as many frames clean as there are to be.
    fn unmapper(&mut self) {
        while let PageAction::Unmap(frame) = self.frames.unmapper() {
            match self.pages[frame] {
                Some(page) => self.unmap(0, page, false, Message::PageOut(frame)),
                None => wrong(format_args!("frame {frame} is in use, and has no page")),
            }
        }
    }

    /// A page of the segment is not mapped.
    pub(super) fn fault(&mut self, page: usize) -> Fault {
        let fault = match self.places[page] {
            Some(frame) => match self.frames.fault(frame) {
                Ok(_) => {
                    self.counts.reclaimed += 1;
                    self.map(0, page, frame, Attr::READ | Attr::WRITE);
                    Fault::Again
                }
                // In use: another CPU has mapped it since, or reads it.
                Err(_) if self.dash.fault(asid(0), vpn(page), Attr::READ) => Fault::Again,
                Err(_) => Fault::Wait,
            },
            None => match self.frames.page_in() {
                Some(frame) => {
                    if let Some(before) = self.pages[frame].replace(page) {
                        self.places[before] = None;
                    }
                    self.places[page] = Some(frame);
                    Fault::Read(frame)
                }
                None => Fault::Wait,
            },
        };
        self.unmapper();
        fault
    }

    /// A page has been read into its frame.
    pub(super) fn read(&mut self, page: usize, frame: usize) {
        if let Err(why) = self.frames.read(frame) {
            wrong(format_args!("{why}"));
        }
        self.map(0, page, frame, Attr::READ | Attr::WRITE);
    }

    /// Takes a frame that is to be written, with its page.
    pub(super) fn launder(&mut self) -> Option<(usize, usize)> {
        let frame = self.laundry.pop()?;
        Some((frame, self.pages[frame]?))
    }

    /// A frame has been written, or could not be.
    pub(super) fn laundered(&mut self, frame: usize, page: usize, written: bool) {
        let done = if written {
            self.counts.written += 1;
            self.frames.written(frame)
        } else {
            self.frames.write_failed(frame).map(|action| {
                if let PageAction::Map(frame) = action {
                    self.map(0, page, frame, Attr::READ | Attr::WRITE);
                }
            })
        };
        if let Err(why) = done {
            wrong(format_args!("{why}"));
        }
    }

    /// An operation has ended, and perhaps with it an unmapping.
    pub(super) fn ended(&mut self, op: OpId, outcome: Outcome) {
        let Some(at) = self.flights.iter().position(|(of, ..)| *of == op) else {
            return wrong(format_args!("{op:?} has ended, and has not begun"));
        };
        let (_, ticket, space) = self.flights.swap_remove(at);
        let ended = match self.dash.completed(ticket, asid(space), outcome) {
            Ok(Some(ended)) => ended,
            Ok(None) => return,
            Err(why) => return wrong(format_args!("{ticket:?} in space {space}: {why}")),
        };
        self.due -= 1;
        match ended.message {
            Some(Message::PageOut(frame)) => {
                let dirty = ended.status.contains(Attr::DIRTY);
                match self.frames.unmapped(frame, ended.outcome, dirty) {
                    Ok(PageAction::Write(frame)) => {
                        // One for each frame: it fits.
                        let _ = self.laundry.push(frame);
                    }
                    Ok(_) => {}
                    Err(why) => wrong(format_args!("{why}")),
                }
            }
            Some(Message::Reduced(space, page)) => {
                if ended.outcome != Outcome::Done {
                    wrong(format_args!("page {page} of space {space}: {:?}", ended.outcome));
                }
                let more = self.region.reduced(space, page);
                self.act(more);
            }
            None => wrong(format_args!("{ticket:?}: the message is lost")),
        }
        self.check();
    }

    fn check(&self) {
        if !(self.dash.check() && self.frames.check() && self.region.check()) {
            wrong(format_args!("an invariant does not hold"));
        }
    }

    /// Does what the region asks for. Tells whether the call is through; if not, it is to be repeated when something has changed.
    pub(super) fn act(&mut self, asked: Result<LowAction, IpcError>) -> bool {
        let frame = |page: usize| FRAMES + page;
        let vm_page = |page: usize| PAGED + page;
        match asked {
            Ok(LowAction::Nothing) => return true,
            Ok(LowAction::Wait { .. }) => return false,
            Ok(LowAction::Map { space, page, access }) => {
                let attr = if access == Access::Write { Attr::READ | Attr::WRITE } else { Attr::READ };
                self.map(space, vm_page(page), frame(page), attr);
                return true;
            }
            Ok(LowAction::Reduce { space, page, access }) => self.reduce(space, page, access),
            Ok(LowAction::Copy { space, page, copy: other, reduce }) => {
                copy(&FRAME[frame(page)].0, &FRAME[frame(other)].0);
                self.counts.copies += 1;
                self.map(space, vm_page(other), frame(other), Attr::READ | Attr::WRITE);
                if let Some(access) = reduce {
                    self.reduce(space, page, access);
                }
                return true;
            }
            Err(why) => wrong(format_args!("the region refuses: {why}")),
        }
        false
    }

    /// Maps a page of the region for a use, as far as the space owns it. Tells whether the call is through.
    pub(super) fn mapin(&mut self, space: usize, page: usize, access: Access) -> bool {
        let asked = self.region.mapin(space, page, access);
        self.act(asked)
    }

    fn reduce(&mut self, space: usize, page: usize, access: Access) {
        self.unmap(space, PAGED + page, access == Access::Read, Message::Reduced(space, page));
    }

    /// Looks once more, and unmaps everything, when all CPUs have left.
    pub(super) fn audit(&mut self) {
        self.check();
        if self.due > 0 || !self.waiting.is_empty() || !self.flights.is_empty() {
            wrong(format_args!("{} unmappings have not ended", self.due));
        }
        self.dash.tables().clear();
    }
}

/// Reads a page from the disk to a frame of the segment.
pub(super) fn read(page: usize, frame: usize) {
    copy(&DISK[page].0, &FRAME[frame].0);
}

/// Writes it there.
pub(super) fn write(page: usize, frame: usize) {
    copy(&FRAME[frame].0, &DISK[page].0);
}
