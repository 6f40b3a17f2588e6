//! The loop of a replier, and the switch of a CPU to or from an address space.

use tlbkit_addr::Asid;

use super::edit::everything;
use super::slot::{LEFT, TAKEN};
use super::{CpuHandle, Edit, LocalCpu, Post, System};
use crate::sync::{Ordering, fence};
use crate::{
    Duty, Misuse, OpId, Reply, Request, SharedSpace, Switch, SwitchAction, SwitchKind, Target, Work,
};

impl<P, E, const CPUS: usize, const N: usize, const W: usize, const SLOTS: usize>
    System<P, E, CPUS, N, W, SLOTS>
where
    E: Edit<W, Payload = P>,
{
    /// Replies to the requests in this CPU's mailboxes. A kernel calls it in the handler of the interprocessor interrupt,
    /// and may call it at any other time. Without a request it costs two loads.
    ///
    /// The caller has disabled these interrupts:
    ///
    /// - every interrupt whose handler calls this method;
    /// - if plans use 2-phase: every interrupt whose handler may access the pages, because the CPU may stop here (Tzou
    ///   3.3.1).
    ///
    /// # Errors
    ///
    /// None if there is no request. [`Misuse::OtherSystem`] if the handle belongs to another system. Otherwise only if a mailbox
    /// held a request of an operation that does not exist: now, or in an earlier wait of [`run`](Self::run) or
    /// [`start`](Self::start), which do not report it ([`switch`](Self::switch) returns such an error, too). All other requests in
    /// the mailboxes have had their reply.
    #[inline]
    pub fn poll(
        &self,
        handle: &mut CpuHandle<'_, N, W, SLOTS>,
        local: &mut impl LocalCpu<P, W>,
    ) -> Result<(), Misuse> {
        if self.is_asked(handle.me) { self.poll_both(handle, local) } else { Ok(()) }
    }

    #[cold]
    fn poll_both(
        &self,
        handle: &mut CpuHandle<'_, N, W, SLOTS>,
        local: &mut impl LocalCpu<P, W>,
    ) -> Result<(), Misuse> {
        self.check(handle)?;
        if E::ONLY_PTE_FIRST {
            return self.reply_straight(handle, local);
        }
        // Flushes come first, because a requester that waits for a flush would also wait while this CPU is stopped.
        for of in [Post::Flushes, Post::Stops] {
            if !self.mailbox(of, handle.me)?.is_empty() && handle.replier(of).is_idle() {
                handle.replier(of).interrupt();
                let replied = self.reply(handle, local, of);
                handle.note(replied);
            }
        }
        handle.wrong.take().map_or(Ok(()), Err)
    }

    /// Tells whether a request waits in one of the mailboxes of `cpu`, because the CPU has not taken it yet. Costs two loads.
    #[inline]
    pub fn is_asked(&self, cpu: usize) -> bool {
        [Post::Flushes, Post::Stops]
            .into_iter()
            .any(|of| self.mailbox(of, cpu).is_ok_and(|mailbox| !mailbox.is_empty()))
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
                    // This CPU has flushed, and the requester that stopped it may be waiting for that.
                    local.changed();
                    handle.replier(of).did()?;
                }
                Reply::Take => {
                    let work = match of {
                        Post::Stops => self.take_stopped(handle.me, local)?,
                        Post::Flushes => self.mailbox(of, handle.me)?.take(),
                    };
                    handle.replier(of).took(work)?;
                }
                Reply::Flush { what, drain } => {
                    match (what, handle.replier(of).request()) {
                        (Target::Listed(space), Some(&Request { op, .. })) => {
                            let slot = self.slot(op.cpu, op.slot)?;
                            // SAFETY: the requester wrote the list before it sent this request, and writes it again only
                            // after this CPU has acknowledged or, in 2-phase, continued. Both come after this read.
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
                    // The operation in the slot does not end before this CPU has acknowledged, so its state is valid.
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

    /// Takes the next request to stop, if there is one. A CPU takes such a request only while it is stopped, because the
    /// requester that finds its request taken waits for this CPU's next continuing ([`wait_until_flushed`](Self::wait_until_flushed)).
    /// A CPU that has continued and looks again is not stopped. It stops if the mailbox has a request, and continues if that was
    /// refused.
    fn take_stopped(
        &self,
        me: usize,
        local: &mut impl LocalCpu<P, W>,
    ) -> Result<Option<Work<W, SLOTS>>, Misuse> {
        let mailbox = self.mailbox(Post::Stops, me)?;
        if self.is_stopped(me)? {
            return Ok(mailbox.take());
        }
        // A full fence has followed the store that cleared this CPU's flag (`set_stopped`).
        while !mailbox.is_empty() {
            self.stop(me, local);
            let work = mailbox.take();
            if work.is_some() {
                return Ok(work);
            }
            self.set_stopped(me, false);
            local.changed();
        }
        Ok(None)
    }

    /// Passes the result of a counted acknowledgement to the replier. `finish` says that the CPU which counts the last
    /// acknowledgement must take the operation over; otherwise its requester waits for that count. If there was no
    /// acknowledgement to count, no CPU waits for it, and this CPU takes nothing over.
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

    /// Passes the state of a continuing signal to the replier, which does not wait for an operation that does not exist.
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

    /// Tells whether an operation's continuing signal is set, or the operation has ended.
    fn has_continued(&self, cpu: u16, slot: u16, generation: Option<u32>) -> Result<bool, Misuse> {
        let slot = self.slot(cpu, slot)?;
        let state = slot.state.load(Ordering::Acquire);
        let other = generation.is_some_and(|of| of & 0xffff != slot.word.load(Ordering::Acquire) >> 16);
        Ok(other || state != TAKEN)
    }

    /// Carries out `change` for this CPU and the address space with the identifier `asid`.
    ///
    /// The caller ensures:
    ///
    /// - interrupts are disabled, at least every interrupt whose handler calls [`poll`](Self::poll);
    /// - the CPU uses the space, and has its root installed, only between the end of a [`SwitchKind::In`] and the begin of
    ///   any other change.
    ///
    /// With [`SwitchKind::Out`] a CPU keeps its translations, and does not flush. If status writes can undo a change,
    /// [`LocalCpu::drain`] waits for those under way. On hardware whose cache lines
    /// [need the entry](crate::Hardware::lines_need_entry), a CPU that leaves flushes the space while it still counts as running it.
    ///
    /// # Errors
    ///
    /// [`Misuse::OtherSystem`] if the handle belongs to another system; [`Misuse::StillRuns`] if the CPU runs another space
    /// and `change` is [`SwitchKind::Offline`]. In both cases nothing has been done. Otherwise as [`poll`](Self::poll),
    /// after the change has been carried out.
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
                    // A change that is under way now may have ended when `IsChanging` asks; the count of begun changes
                    // reveals it.
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
                SwitchAction::IsChanging if E::ONLY_PTE_FIRST => false,
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
                    // A CPU that does not run the space gets no request to flush, so no operation would wait for its
                    // status writes, or for its cache lines.
                    if self.hardware.lines_need_entry {
                        local.flush(Some(asid), &everything(), true);
                    } else if self.hardware.status_overwrites() {
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
                SwitchAction::Leave => space.members.remove(me),
                SwitchAction::Finished => return handle.wrong.take().map_or(Ok(()), Err),
            };
            switch.did(yes)?;
        }
    }
}
