//! The refill vector of a run: the table's handler, and before it a look at TLB-first's flag.

use heapless::Vec;
use tlbkit_refill::features::{Endian, Features};
use tlbkit_refill::handler::{Form, Front, Place, Root, Spec, Walk, Write};
use tlbkit_shootdown::{Order, Plan};

use super::run::CHANGING;
use crate::arch::{tlb, vectors};
use crate::vm::machine::BLOCK;

/// Words up to the general vector.
const ROOM: usize = Place::VECTOR.general as usize / 4;

/// Shows this CPU the block within reach of register 0: from there the handler loads the root with one instruction.
///
/// # Safety
///
/// The CPU has wired nothing, and there is no such entry in its TLB.
pub(super) unsafe fn wire() {
    // SAFETY: the caller's promise.
    unsafe { tlb::wire((&raw const BLOCK).addr() as u32) };
}

/// Writes the vectors: the handler of a table that is walked like this.
///
/// TLB-first's miss handler looks at a flag of the entry. Here the vector looks at one word, whether any entry is
/// changing; if so, it passes the miss on, and the kernel looks at the entry's own.
///
/// All CPUs run the same code, with the same block, of which the plain form of these handlers reads the root alone: right
/// where they are all in one address space. Otherwise the root is in a register of each.
///
/// # Safety
///
/// Where `root` says, a CPU that uses an address space afterwards has that one's root.
pub(super) unsafe fn install(plan: &Plan, walk: Walk, root: Root) {
    let mut words: Vec<u32, ROOM> = Vec::new();
    if plan.algorithm().order() == Order::TlbFirst {
        let flag = (&raw const CHANGING).addr() as u32;
        // The lower half is added with its sign.
        let high = flag.wrapping_add(0x8000) >> 16;
        words.extend([
            0x3c1a_0000 | high,              // lui  k0, %hi(CHANGING)
            0x8f5a_0000 | flag & 0xffff,     // lw   k0, %lo(CHANGING)(k0)
            0x1740_0000 | (ROOM as u32 - 3), // bnez k0, the general vector
            0,                               // nop
        ]);
    }
    let before = words.len();
    let place = Place {
        general: Place::VECTOR.general - 4 * before as i32,
        room: Place::VECTOR.room - before,
        tail: Place::VECTOR.tail - 4 * before as i32,
        ..Place::VECTOR
    };
    let endian = if cfg!(target_endian = "big") { Endian::Big } else { Endian::Little };
    let spec = Spec {
        features: Features::R2.with_endian(endian),
        place,
        block: tlb::near((&raw const BLOCK).addr() as u32),
        root,
        front: Front::None,
        walk,
        form: Form::PLAIN,
        // Misses are not counted here.
        write: Write::Random,
    };
    let handler = match spec.assemble() {
        Ok(handler) => handler,
        Err(error) => panic!("no handler for this table: {error}"),
    };
    words.extend(handler.refill.words().iter().copied());
    // SAFETY: the caller's promise. The words before the handler pass a miss on with everything but k0 intact.
    unsafe { vectors::install(&words, handler.general.words(), handler.tail.words()) };
}
