//! Lowering the rights of a page: the change that a shootdown is for.

use core::sync::atomic::Ordering;

use heapless::Vec;
use tlbkit_addr::{Asid, Attr, Flush, FlushScope, Pages};
use tlbkit_pagetable::{Carried, Change, Holes, Run as Frames, Runs};
use tlbkit_shootdown::{Edit, Plan, SharedSpace, System};

use super::arena::Frame;
use super::masked::Masked;
use super::run::{CHANGING, Model, PENDING, REQUESTS, Run, SLOTS, SPACE, State, address, vpn};
use super::{CPUS, MIPS};

/// The shootdowns of a run.
pub(super) type Shootdowns = System<Held, Lower, CPUS, REQUESTS, 1, SLOTS>;

/// Returns the shootdowns of a run that follows this plan.
pub(super) fn shootdowns(plan: Plan) -> Shootdowns {
    System::new(MIPS).with_rendezvous(plan.rendezvous())
}

/// What to do to a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Unmap it. Its frame is free when no walker can reach it any more.
    Unmap,
    /// Take away the right to store.
    Protect,
}

/// What an operation uncovers.
#[derive(Debug, Default)]
pub(super) struct Held {
    /// The nodes that the table gave up, and those that have waited for an operation.
    pub(super) nodes: Vec<Carried<'static>, { PENDING + 1 }>,
    /// The frame, and the page that it was mapped at.
    pub(super) frame: Option<(Frame, usize)>,
}

/// The change, as the shootdown makes it.
pub(super) struct Lower {
    run: &'static Run,
    page: usize,
    kind: Kind,
    flush: Flush,
}

impl Lower {
    /// Returns a change that has not begun.
    pub(super) fn new(run: &'static Run, page: usize, kind: Kind) -> Self {
        let mut flush = Flush::none();
        flush.add(FlushScope::Everywhere, Pages::one(vpn(page)));
        Self { run, page, kind, flush }
    }

    /// Returns the model.
    #[expect(clippy::mut_from_ref, reason = "the exclusion stands for the borrow")]
    fn model(&self) -> &mut Model {
        // SAFETY: called between `exclude` and `release` only, and by one action of the operation at a time.
        unsafe { self.run.model() }
    }
}

impl Edit for Lower {
    type Payload = Held;

    fn exclude(&mut self) -> bool {
        self.run.exclude()
    }

    fn release(&mut self) {
        if let State::ReadOnly(frame, stored) = &mut self.model().states[self.page]
            && self.kind == Kind::Protect
        {
            // Every TLB knows: from here on no CPU stores.
            *stored = frame.stored();
        }
        self.run.release();
    }

    fn set_tentative(&mut self) {
        let readable = self.kind == Kind::Protect;
        self.run.tentative[self.page].readable.store(readable, Ordering::SeqCst);
    }

    fn set_changing(&mut self, on: bool) {
        self.run.tentative[self.page].changing.store(on, Ordering::SeqCst);
        if on {
            CHANGING.fetch_add(1, Ordering::SeqCst);
        } else {
            CHANGING.fetch_sub(1, Ordering::SeqCst);
        }
    }

    fn update(&mut self) -> Held {
        let (run, model) = (self.run, self.model());
        let mut held = Held::default();
        held.nodes.extend(core::mem::take(&mut model.pending));
        let pages = Pages::one(vpn(self.page));
        let retired = match (self.kind, model.states[self.page]) {
            (Kind::Unmap, State::Writable(frame) | State::ReadOnly(frame, _)) => {
                if let State::ReadOnly(_, stored) = model.states[self.page] {
                    run.still(frame, stored);
                }
                model.states[self.page] = State::Unmapped;
                held.frame = Some((frame, self.page));
                let mut room: [Option<Frames>; 1] = [None];
                let mut frames = Runs::new(&mut room);
                let (_, retired) = run.edit(|writer| writer.unmap(pages, Holes::Refuse, Some(&mut frames)));
                if frames.iter().next().map(|run| run.first) != Some(frame.number()) {
                    run.wrong(format_args!("page {} was mapped to {room:?}, not to {frame:?}", self.page));
                }
                retired
            }
            (Kind::Protect, State::Writable(frame)) => {
                model.states[self.page] = State::ReadOnly(frame, 0);
                let change = Change::clear(Attr::WRITE | Attr::DIRTY);
                run.edit(|writer| writer.protect(pages, Holes::Refuse, change)).1
            }
            // Another CPU was first: an operation that changes nothing.
            _ => return held,
        };
        run.counts.nodes.fetch_add(retired.nodes(), Ordering::Relaxed);
        if let Err(_) | Ok(Err(_)) = retired.across_cpus().map(|nodes| held.nodes.push(nodes)) {
            run.wrong(format_args!("nodes leak"));
        }
        held
    }

    fn check(&mut self) -> bool {
        // SAFETY: an operation runs with interrupts off, except where it sleeps.
        let masked = unsafe { Masked::assume() };
        match (self.run.look_up(&masked, address(self.page)), self.kind) {
            (None, _) => true,
            (Some(leaf), Kind::Protect) => !leaf.attr.contains(Attr::WRITE),
            (Some(_), Kind::Unmap) => false,
        }
    }

    fn space(&self) -> &SharedSpace {
        &self.run.space
    }

    fn asid(&self) -> Asid {
        SPACE
    }

    fn flush(&self) -> &Flush {
        &self.flush
    }
}
