//! An operation on a machine with one CPU: the edit and the local flush, without requests, stops and flags.

use super::{CpuHandle, Edit, LocalCpu, System};
use crate::operation::Hold;
use crate::{Misuse, OpId, Order, Outcome, Plan};

impl<P, E, const CPUS: usize, const N: usize, const W: usize, const SLOTS: usize>
    System<P, E, CPUS, N, W, SLOTS>
where
    E: Edit<W, Payload = P>,
{
    /// Implements [`run`](Self::run) for `CPUS` 1. The CPU's own late status write may restore the old entry, so a TLB-first plan
    /// still flushes before the update, 2-phase waits for the write, and an optimistic plan makes its rounds.
    #[inline]
    pub(super) fn run_alone<X: Edit<W, Payload = P>>(
        &self,
        handle: &mut CpuHandle<'_, N, W, SLOTS>,
        local: &mut impl LocalCpu<P, W>,
        plan: Plan,
        edit: &mut X,
    ) -> Result<(OpId, Outcome), Misuse> {
        self.check(handle)?;
        if !plan.allows(edit.low_rights()) {
            return Err(Misuse::OtherRights);
        }
        let slot = self.slot(0, 0)?;
        let id = Self::name(0, slot, 0);
        edit.begin(id);
        while !edit.exclude() {
            local.pause();
        }
        if plan.stops_repliers() && self.hardware.status_overwrites() {
            local.drain();
        }
        let flush = |edit: &X, local: &mut _| {
            if edit.space().members.contains(0) {
                LocalCpu::flush(local, Some(edit.asid()), edit.flush(), true);
            }
        };
        let order = plan.algorithm().order();
        if matches!(order, Order::TlbFirst) {
            edit.set_tentative();
            edit.set_changing(true);
            flush(edit, local);
        }
        // If a call below panics, the payload is leaked, because the TLB may still lead to it.
        let mut payload = Hold::new(Some(edit.update()));
        if matches!(order, Order::TlbFirst) {
            edit.set_changing(false);
        } else {
            flush(edit, local);
        }
        let mut outcome = Outcome::Done;
        if matches!(order, Order::Optimistic) {
            let mut round = 1_u8;
            outcome = loop {
                let unchanged = edit.check();
                if round >= plan.rounds() && (unchanged || plan.is_conditional()) {
                    break if unchanged { Outcome::Done } else { Outcome::Overwritten };
                }
                round = round.saturating_add(1);
                if let Some(payload) = payload.place() {
                    edit.update_again(payload);
                }
                flush(edit, local);
            };
        }
        edit.release();
        local.changed();
        local.ended(id, outcome);
        if let Some(payload) = payload.take() {
            local.complete(id, payload, outcome);
        }
        Ok((id, outcome))
    }
}
