//! Lowering the rights of a page: the change that a shootdown is for.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, Ordering};

use heapless::Vec;
use tlbkit_addr::{Attr, Pages};
use tlbkit_pagetable::{Carried, Change, Holes, Run as Frames, Runs};
use tlbkit_shootdown::{Edit, Order, SharedSpace, Target};

use super::CPUS;
use super::arena::Frame;
use super::masked::Masked;
use super::run::{CHANGING, Model, PENDING, Run, SLOTS, SPACE, State, address, vpn};

/// What to do to a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Unmap it. Its frame is free when nobody can reach it any more.
    Unmap,
    /// Take away the right to store.
    Protect,
}

/// An operation's payload: the nodes and the frame that it has uncovered.
///
/// What they are is known in the midst of the operation; so the payload is a place for them.
#[derive(Debug)]
pub(super) struct Hold {
    taken: AtomicBool,
    held: UnsafeCell<Held>,
}

// SAFETY: `held` is touched by who runs the operation that has taken the place: one CPU after the other, in the order
// that the shootdown's acknowledgements make.
unsafe impl Sync for Hold {}

#[derive(Debug, Default)]
pub(super) struct Held {
    pub(super) nodes: Vec<Carried<'static>, { PENDING + 1 }>,
    /// The frame, and the page that it was mapped at.
    pub(super) frame: Option<(Frame, usize)>,
    done: bool,
}

/// A place for each operation that a CPU may have in flight.
static HOLDS: [[Hold; SLOTS]; CPUS] = [const { [const { Hold::new() }; SLOTS] }; CPUS];

impl Hold {
    const fn new() -> Self {
        let held = Held { nodes: Vec::new(), frame: None, done: false };
        Self { taken: AtomicBool::new(false), held: UnsafeCell::new(held) }
    }

    /// Takes a free place of CPU `me`, if there is one.
    pub(super) fn take(me: usize) -> Option<&'static Self> {
        HOLDS[me].iter().find(|place| !place.taken.swap(true, Ordering::Acquire))
    }

    /// Gives the place back, and returns what was in it.
    ///
    /// # Safety
    ///
    /// The operation has completed, on this CPU.
    pub(super) unsafe fn give_back(&self) -> Held {
        // SAFETY: the caller's promise.
        let held = unsafe { core::mem::take(&mut *self.held.get()) };
        self.taken.store(false, Ordering::Release);
        held
    }
}

/// The change, as the shootdown makes it.
pub(super) struct Lower {
    pub(super) run: &'static Run,
    pub(super) page: usize,
    pub(super) kind: Kind,
    pub(super) hold: &'static Hold,
}

impl Lower {
    /// Returns the model, and the payload.
    #[expect(clippy::mut_from_ref, reason = "the exclusion stands for the borrow")]
    fn parts(&self) -> (&mut Model, &mut Held) {
        // SAFETY: called between `exclude` and `release` only, and by one action of the operation at a time.
        unsafe { (self.run.model(), &mut *self.hold.held.get()) }
    }

    /// Takes along the nodes that have waited for an operation.
    fn collect(&self) {
        let (model, held) = self.parts();
        while let Some(nodes) = model.pending.pop() {
            if held.nodes.push(nodes).is_err() {
                self.run.wrong(format_args!("nodes leak"));
            }
        }
    }

    /// Returns whether the update comes after the acknowledgements, and not before them or while everybody stops.
    fn updates_last(&self) -> bool {
        self.run.plan.algorithm().order() == Order::TlbFirst
    }
}

impl Edit<1> for Lower {
    fn exclude(&self) -> bool {
        self.run.exclude()
    }

    fn release(&self) {
        let (model, _) = self.parts();
        if let State::ReadOnly(frame, stored) = &mut model.states[self.page]
            && self.kind == Kind::Protect
        {
            // Every TLB knows: from here on nobody stores.
            *stored = frame.stored();
        }
        self.run.release();
    }

    fn set_tentative(&self) {
        let readable = self.kind == Kind::Protect;
        self.run.tentative[self.page].readable.store(readable, Ordering::SeqCst);
        // Whoever acknowledges is out of these nodes, too.
        self.collect();
    }

    fn set_changing(&self, on: bool) {
        self.run.tentative[self.page].changing.store(on, Ordering::SeqCst);
        if on {
            CHANGING.fetch_add(1, Ordering::SeqCst);
        } else {
            CHANGING.fetch_sub(1, Ordering::SeqCst);
        }
    }

    fn update(&self) {
        let run = self.run;
        if !self.updates_last() {
            self.collect();
        }
        let (model, held) = self.parts();
        if core::mem::replace(&mut held.done, true) {
            return;
        }
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
            // Somebody has been there first: an operation that changes nothing.
            _ => return,
        };
        run.counts.nodes.fetch_add(retired.nodes(), Ordering::Relaxed);
        if self.updates_last() {
            // A walk may have entered these nodes after its CPU had acknowledged: the next operation takes them.
            run.keep(model, retired);
        } else if let Err(_) | Ok(Err(_)) = retired.across_cpus().map(|nodes| held.nodes.push(nodes)) {
            run.wrong(format_args!("nodes leak"));
        }
    }

    fn check(&self) -> bool {
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

    fn what(&self) -> Target {
        Target::Pages(SPACE, Pages::one(vpn(self.page)))
    }
}
