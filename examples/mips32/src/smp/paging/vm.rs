//! What the kernel's lock guards: which page is where, and what is to be done.

use heapless::{Deque, Vec};
use tlbkit_addr::{Attr, PageSize, Pages};
use tlbkit_dash::ipc::{Access, IpcError, IpcRegion, LowAction, Passing, Receive};
use tlbkit_dash::pageout::{PageAction, PageOut};
use tlbkit_dash::tolerance::Entry;
use tlbkit_dash::unmapping::{Config, Dash, Hint, SharingId, Ticket, Unmapping};
use tlbkit_shootdown::{Outcome, Plan};

use super::spaces::{Spaces, asid};
use super::{FRAME, FRAMES, MAILED, Memory, PAGED, SPACES, vpn, wrong};
use crate::smp::{CPUS, Shot};

/// Unmappings in flight: one for each frame of the segment, and one for each mapping of the region.
const PENDING: usize = FRAMES + MAILED * SPACES;
/// Operations that have not been started: those of the segment's unmappings count twice.
const WAITING: usize = FRAMES * SPACES + MAILED * SPACES;

/// How many frames are to be clean.
const CLEAN: usize = 2;

/// The machine-dependent interface.
pub(super) type Interface = Dash<Spaces, Message, PENDING, SPACES>;

/// What an operation hands back when it ends: whose it was.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ended {
    pub(super) ticket: Ticket,
    pub(super) space: usize,
}

/// What an unmapping is for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Message {
    /// A frame of the segment is to be free.
    PageOut(usize),
    /// A mapping of the region is to allow less: the space, and the page there.
    Reduced(usize, usize),
}

/// Which space tells which, and about which page.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Talk {
    pub(super) page: usize,
    /// Which letter is next.
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
    /// Pages written to the backing store.
    pub(super) written: usize,
    /// Pages that were used again before they were gone.
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
    /// Operations that have not been started: the space, the page there, the unmapping.
    pub(super) waiting: Deque<(usize, usize, Unmapping), WAITING>,
    /// Unmappings that have not ended.
    pub(super) due: usize,
    pub(super) counts: Done,
}

impl Vm {
    /// Returns the kernel of two empty spaces, the first letters' pages in place.
    pub(super) fn new(plan: Plan, tables: [&'static Shot; SPACES]) -> Self {
        // A caller waits for a reduction in the region, and no caller waits for a page to leave.
        let config = Config { page: PageSize::K4, prompt: plan.waited_for(), cheap: plan };
        let mut dash = Interface::new(Spaces::new(tables, FRAME[0].number()), config);
        let segment = Pages::count(vpn(0), PAGED);
        for space in 0..SPACES {
            let shared = segment.map(|pages| dash.share(asid(space), SharingId::Group(1), pages));
            if !matches!(shared, Some(Ok(()))) {
                wrong(format_args!("the segment is not shared: {shared:?}"));
            }
        }
        let mut region = IpcRegion::new();
        let talks = core::array::from_fn(|_| match region.get_ownership(0) {
            Ok(page) => Talk { page, ..Talk::default() },
            Err(why) => panic!("the region has a page for each: {why}"),
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
            due: 0,
            counts: Done::default(),
        }
    }

    fn map(&mut self, space: usize, page: usize, frame: usize, attr: Attr) {
        let entry = Entry { frame: FRAME[frame].number(), attr };
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
        if written {
            self.counts.written += 1;
            if let Err(why) = self.frames.written(frame) {
                wrong(format_args!("{why}"));
            }
            return;
        }
        match self.frames.write_failed(frame) {
            Ok(PageAction::Map(frame)) => self.map(0, page, frame, Attr::READ | Attr::WRITE),
            Ok(_) => {}
            Err(why) => wrong(format_args!("{why}")),
        }
    }

    /// An operation has ended, and perhaps with it an unmapping.
    pub(super) fn completed(&mut self, Ended { ticket, space }: Ended, outcome: Outcome) {
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

    /// Does what the region asks for. Tells whether the call is through; if not, it is to be repeated when something has
    /// changed.
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
            Ok(LowAction::Copy { space, page, copy, reduce }) => {
                FRAME[frame(copy)].copy_from(&FRAME[frame(page)]);
                self.counts.copies += 1;
                self.map(space, vm_page(copy), frame(copy), Attr::READ | Attr::WRITE);
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

    /// Looks once more, when all CPUs have left.
    pub(super) fn audit(&mut self) {
        self.check();
        if self.due > 0 || !self.waiting.is_empty() {
            wrong(format_args!("{} unmappings have not ended", self.due));
        }
    }
}

/// Returns the memory of a frame of the segment.
pub(super) fn memory(frame: usize) -> &'static Memory {
    &FRAME[frame]
}
