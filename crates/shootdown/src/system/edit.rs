//! The traits that a kernel implements: a change of entries, the CPU, and the TLBs of other CPUs.

use core::convert::Infallible;
use core::marker::PhantomData;

use tlbkit_addr::{Asid, CpuSet, Flush};

use crate::sync::relax;
use crate::{LowRights, OpId, Outcome, SharedSpace};

/// A change of page-table entries, as a kernel knows how to make it. Each call is one action of a
/// [`Requester`](crate::Requester), whose documentation says what it must do.
///
/// The calls come from one CPU at a time, in the order of the plan's algorithm. If a call panics, the operation never ends:
/// its slot and its payload are lost, and a CPU that waits for the operation waits for ever.
pub trait Edit<const W: usize = 1> {
    /// The objects that an update unlinks, such as page-table nodes and frames. The kernel must not use them again while any
    /// CPU can reach them.
    type Payload;

    /// Whether every operation of a [`System`](crate::System) with this edit type is [PTE-first](crate::Algorithm::PteFirst) and waited
    /// for, in its printed [form](crate::Form) whatever the plan says. The system then refuses other plans ([`Misuse::OtherPlan`](crate::Misuse::OtherPlan)), and has no code of theirs: on four harts
    /// `cargo xtask cost --machine riscv64` links 30 KB less with it.
    const ONLY_PTE_FIRST: bool = false;

    /// Receives the operation's name when the operation begins. Only [`low_rights`](Self::low_rights) and [`space`](Self::space)
    /// may be called before; an operation that is refused does not begin.
    fn begin(&mut self, _op: OpId) {}
    /// [`Action::Exclude`](crate::Action::Exclude).
    fn exclude(&mut self) -> bool;
    /// [`Action::Release`](crate::Action::Release). With an asynchronous plan, the call may come on another CPU than
    /// [`exclude`](Self::exclude): the CPU that gave the last acknowledgement. So the exclusion must not be a lock that a
    /// CPU owns.
    fn release(&mut self);
    /// [`Action::SetTentative`](crate::Action::SetTentative), before [`update`](Self::update). Only TLB-first plans call it.
    fn set_tentative(&mut self) {}
    /// [`Action::SetChanging`](crate::Action::SetChanging) of TLB-first, whose miss handlers read the flag.
    /// ([`System`](crate::System) keeps the flag of 2-phase.)
    fn set_changing(&mut self, _on: bool) {}
    /// [`Action::Update`](crate::Action::Update) in the first round: changes the entry, and returns the objects that the
    /// change unlinks.
    fn update(&mut self) -> Self::Payload;
    /// [`Action::Update`](crate::Action::Update) in a further round: changes the entry again, because the hardware may have
    /// written the old one back, and adds the objects that this change unlinks to the payload. Only optimistic plans call
    /// it.
    fn update_again(&mut self, _payload: &mut Self::Payload) {}
    /// [`Action::Check`](crate::Action::Check). Only optimistic plans call it.
    fn check(&mut self) -> bool {
        true
    }
    /// Returns whether the hardware may write status bits to the new entry. The default is for an edit that unmaps pages.
    fn low_rights(&self) -> LowRights {
        LowRights::NeverWriteBack
    }
    /// Tells whether a walk may read the payload, for instance because it has page-table nodes. No walk reads a frame of
    /// data, so such a frame is free as soon as every TLB has been flushed, even if a flush does not end walks.
    fn is_walked(&self, _payload: &Self::Payload) -> bool {
        true
    }
    /// Returns the CPU sets of the address space.
    fn space(&self) -> &SharedSpace<W>;
    /// Returns the address space's identifier.
    fn asid(&self) -> Asid;
    /// Returns the flush that the change needs. It is called after [`update`](Self::update); but with a TLB-first plan perhaps
    /// after [`set_tentative`](Self::set_tentative) already, and with 2-phase perhaps after [`exclude`](Self::exclude).
    fn flush(&self) -> &Flush;
}

/// The edit type of a [`System`](crate::System) without asynchronous operations. The type has no value.
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

/// The edit type of a [`System`](crate::System) whose operations are all [PTE-first](crate::Algorithm::PteFirst) and waited for. The type
/// has no value.
#[derive(Debug)]
pub struct PteFirst<P>(Synchronous<P>);

impl<P, const W: usize> Edit<W> for PteFirst<P> {
    type Payload = P;
    const ONLY_PTE_FIRST: bool = true;

    fn exclude(&mut self) -> bool {
        Edit::<W>::exclude(&mut self.0)
    }
    fn release(&mut self) {
        Edit::<W>::release(&mut self.0);
    }
    fn update(&mut self) -> P {
        Edit::<W>::update(&mut self.0)
    }
    fn space(&self) -> &SharedSpace<W> {
        self.0.space()
    }
    fn asid(&self) -> Asid {
        Edit::<W>::asid(&self.0)
    }
    fn flush(&self) -> &Flush {
        Edit::<W>::flush(&self.0)
    }
}

/// The operations of the CPU that calls [`System`](crate::System).
///
/// If a call panics, the CPU serves no further request with its handle, and a CPU that waits for its reply waits for ever.
pub trait LocalCpu<P, const W: usize = 1> {
    /// Flushes `what` from this CPU's TLB, of one address space, or of all if `space` is `None`. With `drain`, first waits
    /// until this CPU's status writes are in memory. When the call returns, the CPU has left the walks that it was in.
    fn flush(&mut self, space: Option<Asid>, what: &Flush, drain: bool);
    /// Waits until this CPU's status writes are in memory. It is called when this CPU stops for 2-phase or stops running an
    /// address space, and only if status writes could undo a change. The default flushes the whole TLB; a machine that can
    /// wait without a flush should implement this method.
    fn drain(&mut self) {
        self.flush(None, &everything(), true);
    }
    /// Interrupts `cpus`, which is not empty. Each of these CPUs must call [`System::poll`](crate::System::poll).
    fn interrupt(&mut self, cpus: CpuSet<W>);
    /// Receives the end of an operation: from now on every TLB is consistent with the entry.
    fn ended(&mut self, _op: OpId, _outcome: Outcome) {}
    /// Receives the payload that the update of an operation returned. No CPU can reach the payload any more, by a translation or a
    /// walk (unless the outcome says that the page is in use again). It is called once for each payload: when the operation ends
    /// or, for a payload that is [carried](crate::System::run), later.
    fn complete(&mut self, op: OpId, payload: P, outcome: Outcome);
    /// Lets time pass while this CPU waits for another CPU: by a pause instruction, or a yield on host threads. If a kernel's CPUs
    /// sleep here, [`changed`](Self::changed) must wake them. Nothing calls `changed` at the end of a remote flush, so a kernel
    /// with [`remote`](Self::remote) TLBs does not sleep here.
    fn pause(&mut self) {
        relax();
    }
    /// Receives that a state has changed for which another CPU may wait in [`pause`](Self::pause): the last acknowledgement, a CPU
    /// that has stopped or continued, a continuing signal, or the release of an exclusion. A kernel whose CPUs sleep must wake each
    /// CPU that waits, or is about to wait, when this is called.
    ///
    /// A CPU loses no wake-up if it announces that it may wait before it calls [`System`](crate::System), and keeps
    /// interrupts disabled from there until it sleeps: `System` does nothing between the load that makes it wait and
    /// [`pause`](Self::pause). The interrupt that ends the sleep may also have been for a request, so the kernel calls
    /// [`System::poll`](crate::System::poll) after each call that may have slept.
    fn changed(&mut self) {}
    /// Returns the other CPUs' TLBs, if this CPU can flush them itself. Plans with [`Style::Remote`](crate::Style::Remote) use
    /// them, and so does the release of a payload that was carried, if a flush [ends walks](RemoteTlbs::ends_walks).
    fn remote(&mut self) -> Option<&mut dyn RemoteTlbs<W>> {
        None
    }
}

/// The TLBs of other CPUs, on a machine where one CPU can flush them without those CPUs' help (algorithms with two primes).
/// The machines differ in what has ended when such a flush is done:
///
/// | way | a flush of some CPUs | walks by hardware | walks by software |
/// |-|-|-|-|
/// | control registers that every CPU can access (MC88200) | one after the other | ended | ended, if the kernel asks for it |
/// | `TLBI ...IS`, then `DSB ISH` (AArch64) | one instruction for all | ended | not ended |
/// | `INVLPGB`, then `TLBSYNC` (x86-64) | one instruction for all | ended | not ended |
/// | SBI remote fence (RISC-V) | one call for a set of harts | ended | not ended |
///
/// A walk by software is that of a miss handler, or a lookup in the kernel. The walker masks interprocessor interrupts, so a
/// CPU that replies to one has left its walk. Firmware executes its fence in machine mode even if interrupts are masked, and
/// a flush by hardware interrupts no CPU; both can complete during a walk. A miss handler that has read the old entry must
/// not load it after the flush: [`flush`](Self::flush) waits for such a handler. The [`System`](crate::System) keeps a
/// payload that a walk may read until the CPU replies to a request ([`System::drain`](crate::System::drain)), unless
/// [`ends_walks`](Self::ends_walks) returns true.
pub trait RemoteTlbs<const W: usize = 1> {
    /// Starts a flush of `what` on `cpus`, of one address space, or of all if `space` is `None`. With `drain`, the flush
    /// also waits for the status writes under way on these CPUs and, where software loads TLBs, for the miss handlers that have
    /// read an entry and not loaded it yet. Returns the number of the flush.
    ///
    /// `cpus` may be empty, and `what` may name nothing: such a flush only ends walks.
    fn flush(&mut self, cpus: CpuSet<W>, space: Option<Asid>, what: &Flush, drain: bool) -> u32;
    /// Tells whether flush number `ticket` is done on all its CPUs.
    fn is_flushed(&mut self, ticket: u32) -> bool;
    /// Tells whether a completed flush has ended the walks by software that were under way on its CPUs. It is also true on a
    /// machine on which no software walks.
    fn ends_walks(&self) -> bool {
        false
    }
}

/// Returns a flush of a whole address space.
pub(super) fn everything() -> Flush {
    let mut flush = Flush::none();
    flush.add_all(tlbkit_addr::FlushScope::Everywhere);
    flush
}
