//! The loop of a CPU that is asked to flush, and of one that comes and goes.

use tlbkit_addr::Asid;

use super::edit::everything;
use super::slot::{LEFT, TAKEN};
use super::{CpuHandle, Edit, LocalCpu, Post, System};
use crate::sync::{Ordering, fence};
use crate::{Duty, Misuse, OpId, Reply, Request, SharedSpace, Switch, SwitchAction, SwitchKind, Target};

impl<P, E, const CPUS: usize, const N: usize, const W: usize, const SLOTS: usize>
    System<P, E, CPUS, N, W, SLOTS>
where
    E: Edit<W, Payload = P>,
{
    /// Replies to what is in this CPU's mailboxes: on an interrupt, or whenever it suits. Two loads if there is
    /// nothing.
    ///
    /// Called with the interrupts disabled whose handlers poll; where plans of 2-phase are used, also those whose handlers
    /// may touch the pages, for the CPU may stop here (Tzou 3.3.1).
    ///
    /// # Errors
    ///
    /// [`Misuse::OtherSystem`], told where there is something to reply to; otherwise only if a mailbox holds a request of
    /// an operation that does not exist: this one or, where that could not be told, the one that [`start`](Self::start)
    /// came upon as it waited. All others in it have had their reply even so.
    #[inline]
    pub fn poll(
        &self,
        handle: &mut CpuHandle<'_, N, W, SLOTS>,
        local: &mut impl LocalCpu<P, W>,
    ) -> Result<(), Misuse> {
        let asked = |of| self.mailbox(of, handle.me).is_ok_and(|mailbox| !mailbox.is_empty());
        if asked(Post::Flushes) || asked(Post::Stops) { self.poll_both(handle, local) } else { Ok(()) }
    }

    #[cold]
    fn poll_both(
        &self,
        handle: &mut CpuHandle<'_, N, W, SLOTS>,
        local: &mut impl LocalCpu<P, W>,
    ) -> Result<(), Misuse> {
        self.check(handle)?;
        // A requester that waits for a flush waits less if this CPU does not stop first.
        for of in [Post::Flushes, Post::Stops] {
            if !self.mailbox(of, handle.me)?.is_empty() && handle.replier(of).is_idle() {
                handle.replier(of).interrupt();
                let replied = self.reply(handle, local, of);
                handle.note(replied);
            }
        }
        handle.wrong.take().map_or(Ok(()), Err)
    }

    /// Runs one of this CPU's two repliers until it is idle.
    #[cold]
    pub(super) fn reply(
        &self,
        handle: &mut CpuHandle<'_, N, W, SLOTS>,
        local: &mut impl LocalCpu<P, W>,
        of: Post,
    ) -> Result<(), Misuse> {
        loop {
            match handle.replier(of).next() {
                Reply::Idle => return handle.wrong.take().map_or(Ok(()), Err),
                Reply::Enter => {
                    self.stop(handle.me, local);
                    handle.replier(of).did()?;
                }
                Reply::Leave => {
                    self.set_stopped(handle.me, false);
                    // This CPU has flushed: the requester that stopped it may be waiting for that.
                    local.changed();
                    handle.replier(of).did()?;
                }
                Reply::Take => {
                    let work = self.mailbox(of, handle.me)?.take();
                    handle.replier(of).took(work)?;
                }
                Reply::Flush { what, drain } => {
                    match (what, handle.replier(of).request()) {
                        (Target::Listed(space), Some(&Request { op, .. })) => {
                            let slot = self.slot(op.cpu, op.slot)?;
                            // SAFETY: the operation waits for this CPU, which was asked after the list was written: it
                            // is not written again before this CPU has acknowledged, or gone on.
                            slot.flush.with(|flush| local.flush(Some(space), unsafe { &*flush }, drain));
                        }
                        (what, _) => what.with(|space, flush| local.flush(space, flush, drain)),
                    }
                    handle.replier(of).did()?;
                }
                Reply::Acknowledge(op) => {
                    let finishes = |request: &Request| request.duty == Duty::FlushAndFinish;
                    let finish = handle.replier(of).request().is_some_and(finishes);
                    let left = self.reply_to(op);
                    Self::counted(handle, local, of, left, finish)?;
                }
                Reply::AcknowledgeSlot { cpu, slot } => {
                    // It does not end before it is acknowledged.
                    let finish =
                        self.slot(cpu, slot).is_ok_and(|slot| slot.state.load(Ordering::Acquire) == LEFT);
                    let left = self.count_down(cpu, slot, None);
                    Self::counted(handle, local, of, left, finish)?;
                }
                Reply::TakeOver { cpu, slot } => {
                    let driven = self.slot(cpu, slot).and_then(|at| {
                        let generation = at.word.load(Ordering::Relaxed) >> 16;
                        Self::take_over(at, handle.me)?;
                        self.drive(handle, local, at, OpId { cpu, slot, generation })
                    });
                    handle.note(driven);
                    handle.replier(of).did()?;
                }
                Reply::MayContinue(op) => {
                    let yes = self.has_continued(op.cpu, op.slot, Some(op.generation));
                    Self::may_continue(handle, local, of, yes)?;
                }
                Reply::MayContinueSlot { cpu, slot } => {
                    let yes = self.has_continued(cpu, slot, None);
                    Self::may_continue(handle, local, of, yes)?;
                }
            }
        }
    }

    /// An acknowledgement has been counted; the CPU that counts the last one is to `finish` the operation, or its
    /// requester waits for that. Where there was none to count, no CPU waits for it, and there is nothing to take over.
    fn counted(
        handle: &mut CpuHandle<'_, N, W, SLOTS>,
        local: &mut impl LocalCpu<P, W>,
        of: Post,
        left: Result<u32, Misuse>,
        finish: bool,
    ) -> Result<(), Misuse> {
        if left == Ok(0) {
            local.changed();
        }
        let left = handle.note(left).filter(|_| finish).unwrap_or(u32::MAX);
        handle.replier(of).counted(left)
    }

    /// Of an operation that does not exist there is nothing to wait for.
    fn may_continue(
        handle: &mut CpuHandle<'_, N, W, SLOTS>,
        local: &mut impl LocalCpu<P, W>,
        of: Post,
        yes: Result<bool, Misuse>,
    ) -> Result<(), Misuse> {
        if yes == Ok(false) {
            local.pause();
        }
        let yes = handle.note(yes).unwrap_or(true);
        handle.replier(of).may_continue(yes)
    }

    /// An operation that has ended has continued.
    fn has_continued(&self, cpu: u16, slot: u16, generation: Option<u32>) -> Result<bool, Misuse> {
        let slot = self.slot(cpu, slot)?;
        let state = slot.state.load(Ordering::Acquire);
        let other = generation.is_some_and(|of| of & 0xffff != slot.word.load(Ordering::Acquire) >> 16);
        Ok(other || state != TAKEN)
    }

    /// Carries out `change` for this CPU and an address space, which has the identifier `asid`.
    ///
    /// Called with interrupts disabled, or at least that one whose handler polls. The CPU uses the space, and has its
    /// root installed, only after a [`SwitchKind::In`] and before any other one.
    ///
    /// A CPU that leaves the space keeps its translations, and nothing is flushed; where the hardware writes status
    /// bits back over a change, [`LocalCpu::drain`] waits for those under way. On hardware whose cache lines
    /// [need the entry](crate::Hardware::lines_need_entry), a CPU that leaves forgets.
    ///
    /// # Errors
    ///
    /// [`Misuse::OtherSystem`]; [`Misuse::StillRuns`] if the CPU is to go offline and runs another space. Then nothing has
    /// been done. Otherwise as [`poll`](Self::poll), and the change has been carried out.
    pub fn switch(
        &self,
        handle: &mut CpuHandle<'_, N, W, SLOTS>,
        local: &mut impl LocalCpu<P, W>,
        change: SwitchKind,
        space: &SharedSpace<W>,
        asid: Asid,
    ) -> Result<(), Misuse> {
        self.check(handle)?;
        let me = handle.me;
        let runs = self.runs.get(me).ok_or(Misuse::NoSuchCpu { cpu: me })?;
        let count = |up: bool| {
            let now = runs.load(Ordering::Relaxed);
            runs.store(if up { now + 1 } else { now.saturating_sub(1) }, Ordering::Relaxed);
        };
        if change == SwitchKind::Offline
            && runs.load(Ordering::Relaxed) > usize::from(space.running.contains(me))
        {
            return Err(Misuse::StillRuns { cpu: me });
        }
        let change = match change {
            SwitchKind::Out if self.hardware.lines_need_entry => SwitchKind::OutAndForget,
            other => other,
        };
        let mut changes = 0;
        let mut switch = Switch::new(&self.stopping(), change);
        loop {
            let yes = match switch.next() {
                SwitchAction::Open => {
                    self.mailbox(Post::Flushes, me)?.open();
                    self.mailbox(Post::Stops, me)?.open();
                    false
                }
                SwitchAction::Join => {
                    // What changes now may be over before this CPU looks again.
                    changes = space.changes();
                    let changing = space.is_changing();
                    space.members.insert(me);
                    changing
                }
                SwitchAction::SetRunning => {
                    let absent = space.running.insert(me);
                    fence(Ordering::SeqCst);
                    if absent {
                        count(true);
                    }
                    absent
                }
                SwitchAction::IsChanging => {
                    let changing = space.is_changing();
                    let begun = core::mem::replace(&mut changes, space.changes()) != changes;
                    if changing {
                        local.pause();
                        let served = self.poll(handle, local);
                        handle.note(served);
                    }
                    changing || begun
                }
                SwitchAction::TakeStale => space.stale.remove(me),
                SwitchAction::FlushSpace => {
                    local.flush(Some(asid), &everything(), true);
                    false
                }
                SwitchAction::Drain => {
                    // A CPU that does not run the space is not asked to flush before it does, so nothing else would
                    // wait for a write of its own.
                    if self.hardware.status_overwrites() {
                        local.drain();
                    }
                    false
                }
                SwitchAction::ClearRunning => {
                    let present = space.running.remove(me);
                    if present {
                        count(false);
                    }
                    present
                }
                SwitchAction::Close => {
                    self.mailbox(Post::Flushes, me)?.close();
                    self.mailbox(Post::Stops, me)?.close();
                    false
                }
                SwitchAction::Serve => {
                    let served = self.poll(handle, local);
                    handle.note(served);
                    false
                }
                SwitchAction::FlushAll => {
                    local.flush(None, &everything(), true);
                    false
                }
                SwitchAction::Part => space.members.remove(me),
                SwitchAction::Finished => return handle.wrong.take().map_or(Ok(()), Err),
            };
            switch.did(yes)?;
        }
    }
}
