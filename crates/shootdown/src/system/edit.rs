//! What a kernel says of a change, and of a CPU.

use core::convert::Infallible;
use core::marker::PhantomData;

use tlbkit_addr::{Asid, CpuSet, Flush};

use crate::sync::relax;
use crate::{LowRights, OpId, Outcome, SharedSpace};

/// A change of page-table entries, as a kernel knows how to make it. Each call is one action of a
/// [`Requester`](crate::Requester), whose documentation says what it must do.
///
/// The calls come from one CPU at a time, in the order of the plan's algorithm. If one panics, the operation never ends:
/// its slot and its payload are lost, and a CPU that waits for it waits for ever.
pub trait Edit<const W: usize = 1> {
    /// What an update uncovers, and what must not be used again while any CPU can reach it: page-table nodes, frames.
    type Payload;

    /// Takes notice of the operation's name, before anything else is asked.
    fn begin(&mut self, _op: OpId) {}
    /// [`Action::Exclude`](crate::Action::Exclude).
    fn exclude(&mut self) -> bool;
    /// [`Action::Release`](crate::Action::Release). It may come on another CPU than [`exclude`](Self::exclude): the one
    /// that gave the last acknowledgement of an asynchronous operation. A lock that belongs to a CPU will not do there.
    fn release(&mut self);
    /// [`Action::SetTentative`](crate::Action::SetTentative); nothing unless the plan is TLB-first.
    fn set_tentative(&mut self) {}
    /// [`Action::SetChanging`](crate::Action::SetChanging) of TLB-first, whose miss handlers look at the flag. (2-phase's
    /// is the driver's.)
    fn set_changing(&mut self, _on: bool) {}
    /// [`Action::Update`](crate::Action::Update), the first time: changes the entry, and returns what that uncovers.
    fn update(&mut self) -> Self::Payload;
    /// [`Action::Update`](crate::Action::Update) in a further round: changes the entry once more, since the hardware may
    /// have written the old one back, and adds what that uncovers. Nothing unless the plan is optimistic.
    fn update_again(&mut self, _payload: &mut Self::Payload) {}
    /// [`Action::Check`](crate::Action::Check); always true unless the plan is optimistic.
    fn check(&mut self) -> bool {
        true
    }
    /// Returns what the hardware does with the new entry: nothing unless the page stays mapped.
    fn low_rights(&self) -> LowRights {
        LowRights::NeverWriteBack
    }
    /// Tells whether a walk may be in what the update has uncovered, as in page-table nodes. No walk is in a frame of
    /// data, so frames are free when every TLB has been flushed: they need not wait for walks to end where a flush does
    /// not end them.
    fn is_walked(&self, _payload: &Self::Payload) -> bool {
        true
    }
    /// Returns the address space's CPUs.
    fn space(&self) -> &SharedSpace<W>;
    /// Returns the address space's identifier.
    fn asid(&self) -> Asid;
    /// Returns what is to be flushed: asked after [`update`](Self::update), or after
    /// [`set_tentative`](Self::set_tentative) if the plan is TLB-first. With 2-phase it is asked before.
    fn flush(&self) -> &Flush;
}

/// The edit of a [`System`](crate::System) in which no operation is left to the repliers: the type has no value.
#[derive(Debug)]
pub struct Synchronous<P>(Infallible, PhantomData<fn() -> P>);

impl<P, const W: usize> Edit<W> for Synchronous<P> {
    type Payload = P;

    fn exclude(&mut self) -> bool {
        match self.0 {}
    }
    fn release(&mut self) {
        match self.0 {}
    }
    fn update(&mut self) -> P {
        match self.0 {}
    }
    fn space(&self) -> &SharedSpace<W> {
        match self.0 {}
    }
    fn asid(&self) -> Asid {
        match self.0 {}
    }
    fn flush(&self) -> &Flush {
        match self.0 {}
    }
}

/// What a kernel can do on the CPU at hand.
pub trait LocalCpu<P, const W: usize = 1> {
    /// Flushes `what` of an address space from this CPU's TLB, or of all spaces if none is given; with `drain`, when its
    /// status writes are in memory. The CPU has left the walks that it was in when this returns.
    fn flush(&mut self, space: Option<Asid>, what: &Flush, drain: bool);
    /// Waits until this CPU's status writes are in memory. Asked of a CPU that stops for 2-phase or ceases to run an
    /// address space, and only where they could undo a change. A flush that drains does it at the cost of the TLB; a
    /// machine that can wait without a flush implements this method.
    fn drain(&mut self) {
        self.flush(None, &everything(), true);
    }
    /// Interrupts other CPUs, each of which is to call [`System::poll`](crate::System::poll). There is at least one.
    fn interrupt(&mut self, cpus: CpuSet<W>);
    /// Takes notice that an operation has ended: from now on every TLB is consistent with the entry.
    fn ended(&mut self, _op: OpId, _outcome: Outcome) {}
    /// Takes back what the update of an operation returned: no CPU can reach it any more, by a translation or a walk
    /// (unless the outcome says that it is in use again). Called once for each payload: as the operation ends, or
    /// later if its plan was TLB-first, or flushed remotely and [`RemoteTlbs::ends_walks`] is false
    /// ([`System::drain`](crate::System::drain)).
    fn complete(&mut self, op: OpId, payload: P, outcome: Outcome);
    /// Lets time pass while this CPU waits for another: a pause instruction, or a yield on host threads. A kernel
    /// whose CPUs sleep here has [`changed`](Self::changed) wake them.
    fn pause(&mut self) {
        relax();
    }
    /// Takes notice that something has changed for which another CPU may be in [`pause`](Self::pause): the last
    /// acknowledgement, a stopped CPU, a continuing signal, an exclusion given up. The kernel wakes each CPU that was
    /// about to wait, or had begun to, when this is called.
    ///
    /// A CPU sleeps without losing a wake-up if it says that it may wait before it calls into [`System`](crate::System),
    /// and if interrupts are disabled from there until it sleeps: nothing happens between the look that made it wait and
    /// [`pause`](Self::pause). The interrupt that ends the sleep may have been for a request too, so call
    /// [`System::poll`](crate::System::poll) once more after whatever may have slept.
    fn changed(&mut self) {}
    /// The other CPUs' TLBs, if this CPU can flush them itself. Only plans with
    /// [`Style::Remote`](crate::Style::Remote) ask for them.
    fn remote(&mut self) -> Option<&mut dyn RemoteTlbs<W>> {
        None
    }
}

/// The TLBs of other CPUs, where one CPU can have them flushed without their help (algorithms with two primes). What a
/// flush tells when it is done differs:
///
/// | way | a flush of some CPUs | walks by hardware | walks by software |
/// |-|-|-|-|
/// | control registers in reach of all (MC88200) | one after the other | ended | ended, if the kernel asks for it |
/// | `TLBI ...IS`, then `DSB ISH` (AArch64) | one instruction for all | ended | not ended |
/// | `INVLPGB`, then `TLBSYNC` (x86-64) | one instruction for all | ended | not ended |
/// | SBI remote fence (RISC-V) | one call for a set of harts | ended | not ended |
///
/// A walk by software is a miss handler's, or a lookup in the kernel. An interprocessor interrupt ends it, since the
/// walker masks it; firmware does its fence in machine mode, masked or not, and hardware asks no CPU. So whatever a
/// walk may be in stays with the [`System`](crate::System) until the CPU replies to something else
/// ([`System::drain`](crate::System::drain)), unless [`ends_walks`](Self::ends_walks) says that it need not.
pub trait RemoteTlbs<const W: usize = 1> {
    /// Has CPUs flush `what` of an address space, or of all if none is given; with `drain`, also wait for the status
    /// writes under way there. Returns the flush's number.
    fn flush(&mut self, cpus: CpuSet<W>, space: Option<Asid>, what: &Flush, drain: bool) -> u32;
    /// Tells whether flush `ticket` is done on all its CPUs.
    fn is_flushed(&mut self, ticket: u32) -> bool;
    /// Tells whether a flush that is done has ended the walks by software that were under way on its CPUs. So it is where
    /// no software walks.
    fn ends_walks(&self) -> bool {
        false
    }
}

/// Returns the flush of a whole address space.
pub(super) fn everything() -> Flush {
    let mut flush = Flush::none();
    flush.add_all(tlbkit_addr::FlushScope::Everywhere);
    flush
}
