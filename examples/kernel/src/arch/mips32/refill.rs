//! The refill handler, and where it finds the root of the table that this CPU walks: in ErrorEPC.

use tlbkit_refill::features::Features;
use tlbkit_refill::handler::{Form, Front, Handler, Mpt, Place, Root, Spec, Walk, Write};

use super::{cp0, tlb, vectors};
use crate::memory::Words;

const SPEC: Spec = Spec {
    features: Features::R2,
    place: Place::VECTOR,
    // The plain form uses no memory but the table.
    block: 0x8000_1000,
    root: Root::ErrorEpc,
    front: Front::None,
    walk: match Mpt::of::<<super::Machine as tlbkit::Machine>::Geometry>() {
        Ok(walk) => Walk::Mpt(walk),
        Err(_) => panic!("two levels of ten bits"),
    },
    form: Form::PLAIN,
    write: Write::Random,
};
const HANDLER: Handler = match SPEC.assemble() {
    Ok(handler) => handler,
    Err(_) => panic!("the handler does not fit"),
};

/// What Context begins with.
pub(super) const CONTEXT: u32 = SPEC.context();

/// A root node without an entry, for CPUs that run no address space.
static EMPTY: Words = Words::new();

/// Writes the handler to its vector.
pub(super) fn install() {
    // SAFETY: the handler goes by the root that `set_root` has written.
    unsafe { vectors::install(HANDLER.refill.words(), HANDLER.general.words(), HANDLER.tail.words()) };
}

/// Lets this CPU walk the table of `root`, a value of [`Machine::root`](tlbkit::Machine::root), from now on; none if it is 0.
///
/// # Safety
///
/// It is the root of an address space that lives until another one is set, or 0.
pub(crate) unsafe fn set_root(root: usize) {
    const ASID: usize = 0xff;
    let node = if root == 0 { core::ptr::from_ref(&EMPTY).addr() } else { super::KSEG0 | root & !0xfff };
    // SAFETY: the caller's promise; nobody else uses ErrorEPC while there is no reset, NMI or cache error.
    unsafe {
        cp0::error_epc::write(node as u32);
        tlb::switch((root & ASID) as u32);
    }
}
