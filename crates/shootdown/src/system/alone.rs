//! An operation on a machine with one CPU: the edit and the local flush, without requests, stops and flags.

use super::{CpuHandle, Edit, LocalCpu, System};
use crate::{Misuse, OpId, Order, Outcome, Plan};

impl<P, E, const CPUS: usize, const N: usize, const W: usize, const SLOTS: usize>
    System<P, E, CPUS, N, W, SLOTS>
where
    E: Edit<W, Payload = P>,
{
    /// Implements [`run`](Self::run) for `CPUS` 1. An optimistic plan still makes its rounds, because the CPU's own late
    /// status write may restore the old entry.
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
        if matches!(plan.algorithm().order(), Order::TlbFirst) {
            edit.set_tentative();
        }
        let mut payload = edit.update();
        let (mut round, mut outcome) = (1, Outcome::Done);
        loop {
            if edit.space().members.contains(0) {
                local.flush(Some(edit.asid()), edit.flush(), true);
            }
            if !matches!(plan.algorithm().order(), Order::Optimistic) {
                break;
            }
            let unchanged = edit.check();
            if round >= plan.rounds() && (unchanged || plan.is_conditional()) {
                outcome = if unchanged { Outcome::Done } else { Outcome::Overwritten };
                break;
            }
            round = round.saturating_add(1);
            edit.update_again(&mut payload);
        }
        edit.release();
        local.changed();
        local.ended(id, outcome);
        local.complete(id, payload, outcome);
        Ok((id, outcome))
    }
}
