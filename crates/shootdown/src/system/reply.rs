//! The loop of a CPU that is asked to flush, and of one that comes and goes.

use super::{Edit, Local, Station, System, TAKEN};
use crate::sync::{Ordering, fence};
use crate::{Change, Misuse, OpId, Reply, SharedSpace, Switch, SwitchAction, Target};

impl<P, E: Edit<W>, const CPUS: usize, const N: usize, const W: usize, const SLOTS: usize>
    System<P, E, CPUS, N, W, SLOTS>
{
    /// Replies to what is in this CPU's mailbox: on an interrupt, or whenever it suits. One load if there is
    /// nothing.
    ///
    /// # Errors
    ///
    /// [`Misuse::Stranger`], told where there is something to reply to; otherwise only if a mailbox holds a request of
    /// an operation that does not exist: this one or, where that could not be told, the one that [`start`](Self::start)
    /// came upon as it waited. All others in it have had their reply even so.
    #[inline]
    pub fn poll(
        &self,
        station: &mut Station<'_, N, W, SLOTS>,
        local: &mut impl Local<P>,
    ) -> Result<(), Misuse> {
        match self.mailboxes.get(station.me) {
            Some(mailbox) if !mailbox.is_empty() && station.replier.is_idle() => {
                self.check(station)?;
                station.replier.interrupt();
                self.reply(station, local)
            }
            _ => Ok(()),
        }
    }

    #[cold]
    pub(super) fn reply(
        &self,
        station: &mut Station<'_, N, W, SLOTS>,
        local: &mut impl Local<P>,
    ) -> Result<(), Misuse> {
        loop {
            match station.replier.next() {
                Reply::Idle => return station.wrong.take().map_or(Ok(()), Err),
                Reply::Enter => {
                    self.stop(station.me, local);
                    station.replier.did()?;
                }
                Reply::Leave => {
                    self.set_stopped(station.me, false);
                    station.replier.did()?;
                }
                Reply::Take => {
                    let work = self.mailbox(station.me)?.take();
                    station.replier.took(work)?;
                }
                Reply::Flush { what, drain } => {
                    local.flush(what, drain);
                    station.replier.did()?;
                }
                Reply::Acknowledge(op) => {
                    let left = self.reply_to(op);
                    Self::counted(station, local, left)?;
                }
                Reply::AcknowledgeSlot { cpu, slot } => {
                    let left = self.count_down(cpu, slot, None);
                    Self::counted(station, local, left)?;
                }
                Reply::TakeOver { cpu, slot } => {
                    let driven = self.slot(cpu, slot).and_then(|at| {
                        let generation = at.word.load(Ordering::Relaxed) >> 16;
                        Self::take_over(at, station.me)?;
                        self.drive(station, local, at, OpId { cpu, slot, generation })
                    });
                    station.note(driven);
                    station.replier.did()?;
                }
                Reply::MayContinue(op) => {
                    let yes = self.has_continued(op.cpu, op.slot, Some(op.generation));
                    Self::may_continue(station, local, yes)?;
                }
                Reply::MayContinueSlot { cpu, slot } => {
                    let yes = self.has_continued(cpu, slot, None);
                    Self::may_continue(station, local, yes)?;
                }
            }
        }
    }

    /// An acknowledgement has been counted. Where there was none to count, nobody waits for it, and there is nothing to
    /// take over.
    fn counted(
        station: &mut Station<'_, N, W, SLOTS>,
        local: &mut impl Local<P>,
        left: Result<u32, Misuse>,
    ) -> Result<(), Misuse> {
        if left == Ok(0) {
            local.changed();
        }
        let left = station.note(left).unwrap_or(u32::MAX);
        station.replier.counted(left)
    }

    /// Of an operation that does not exist there is nothing to wait for.
    fn may_continue(
        station: &mut Station<'_, N, W, SLOTS>,
        local: &mut impl Local<P>,
        yes: Result<bool, Misuse>,
    ) -> Result<(), Misuse> {
        if yes == Ok(false) {
            local.pause();
        }
        let yes = station.note(yes).unwrap_or(true);
        station.replier.may_continue(yes)
    }

    /// An operation that has ended has continued.
    fn has_continued(&self, cpu: u16, slot: u16, generation: Option<u32>) -> Result<bool, Misuse> {
        let slot = self.slot(cpu, slot)?;
        let state = slot.state.load(Ordering::Acquire);
        let other = generation.is_some_and(|of| of & 0xffff != slot.word.load(Ordering::Acquire) >> 16);
        Ok(other || state != TAKEN)
    }

    /// Carries out `change` for this CPU and an address space. `is_changing` tells whether one of the space's
    /// entries is changing (2-phase's gate).
    ///
    /// # Errors
    ///
    /// As [`poll`](Self::poll); the change has been carried out, unless it is [`Misuse::Stranger`].
    pub fn switch(
        &self,
        station: &mut Station<'_, N, W, SLOTS>,
        local: &mut impl Local<P>,
        change: Change,
        space: &SharedSpace<W>,
        what: Target,
        is_changing: impl Fn() -> bool,
    ) -> Result<(), Misuse> {
        self.check(station)?;
        let me = station.me;
        let mut switch = Switch::new(&station.plan, change);
        loop {
            let yes = match switch.next() {
                SwitchAction::Open => {
                    self.mailbox(me)?.open();
                    false
                }
                SwitchAction::Join => space.members.insert(me),
                SwitchAction::SetRunning => {
                    let absent = space.running.insert(me);
                    fence(Ordering::SeqCst);
                    absent
                }
                SwitchAction::IsChanging => {
                    let changing = is_changing();
                    if changing {
                        local.pause();
                        let served = self.poll(station, local);
                        station.note(served);
                    }
                    changing
                }
                SwitchAction::TakeStale => space.stale.remove(me),
                SwitchAction::FlushSpace => {
                    local.flush(what, true);
                    false
                }
                // A flush that drains does both.
                SwitchAction::Drain => {
                    local.flush(what, true);
                    false
                }
                SwitchAction::ClearRunning => space.running.remove(me),
                SwitchAction::Close => {
                    self.mailbox(me)?.close();
                    false
                }
                SwitchAction::Serve => {
                    let served = self.poll(station, local);
                    station.note(served);
                    false
                }
                SwitchAction::FlushAll => {
                    local.flush(Target::All, true);
                    false
                }
                SwitchAction::Part => space.members.remove(me),
                SwitchAction::Finished => return station.wrong.take().map_or(Ok(()), Err),
            };
            switch.did(yes)?;
        }
    }
}
