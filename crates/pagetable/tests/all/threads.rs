//! Real walkers beside a real writer, of every table.

use crate::common::kinds;
use tlbkit_conformance::threads::race;
use tlbkit_conformance::{Fault, Instrumented, threads};
#[cfg(all(target_pointer_width = "64", not(miri)))]
use tlbkit_pagetable::format;
use tlbkit_pagetable::format::{Compact32, EntryLo, Format};
#[cfg(all(target_pointer_width = "64", not(miri)))]
use tlbkit_pagetable::geometry;
use tlbkit_pagetable::geometry::Va32;
use tlbkit_pagetable::nodes::{Chunk, Slab};
use tlbkit_pagetable::{Shared, lpt, mpt};

macro_rules! kind {
    ($name:ident, $kind:ident, $change:ident) => {
        threads!($name, Compact32, |nodes| kinds::$kind::<Va32, Compact32, _>::new(nodes));
    };
}

each_kind!(kind);
threads!(mpt_va32_entrylo, EntryLo, |nodes| mpt::Mpt::<Va32, EntryLo, _>::new(nodes));
threads!(lpt_mips, EntryLo, |nodes| lpt::MipsLpt::new(nodes));
#[cfg(all(target_pointer_width = "64", not(miri)))]
threads!(mpt_va48_compact, format::Compact, |nodes| mpt::Mpt4::new(nodes));
// Hardware's formats: in place, or broken first.
#[cfg(all(target_pointer_width = "64", not(miri)))]
threads!(mpt_va39_sv39, format::Sv39, |nodes| mpt::Mpt::<geometry::Va39, format::Sv39, _>::new(nodes));
#[cfg(all(target_pointer_width = "64", not(miri)))]
threads!(mpt_va48_aarch64, format::Aarch64, |nodes| mpt::Mpt::<geometry::Va48, format::Aarch64, _>::new(
    nodes
));

macro_rules! writers {
    ($name:ident, $format:ty, $table:ty) => {
        threads!($name, $format, |nodes, locks| <$table>::new(nodes).map(|table| table.with_locks(locks)));
    };
}

writers!(writers_va32_compact, Compact32, mpt::Mpt<'_, Va32, Compact32, _>);
writers!(writers_va32_entrylo, EntryLo, mpt::Mpt<'_, Va32, EntryLo, _>);
#[cfg(all(target_pointer_width = "64", not(miri)))]
writers!(writers_va39_sv39, format::Sv39, mpt::Mpt<'_, geometry::Va39, format::Sv39, _>);
#[cfg(all(target_pointer_width = "64", not(miri)))]
writers!(writers_va48_aarch64, format::Aarch64, mpt::Mpt<'_, geometry::Va48, format::Aarch64, _>);
#[cfg(all(target_pointer_width = "64", not(miri)))]
writers!(writers_va48_x86, format::X86, mpt::Mpt<'_, geometry::Va48, format::X86, _>);

/// The check can fail: a walker sees a frame that the writer never mapped.
#[test]
fn a_planted_fault_is_seen() {
    let mut memory = vec![Chunk::ZERO; 64];
    let nodes = Instrumented::new(Slab::<u32, Shared>::new(&mut memory, 0).unwrap());
    // Four pages stay, and each of the first two changes stores the four PTEs of each of three blocks. The next store is in
    // the promotion of the first block, so that the writer itself does not stumble over it. Bit 20 is none that tells the
    // size.
    nodes
        .plant(Fault::Wrong, 28, (Compact32::STEP << 8).into(), |word| Compact32::is_leaf(word as u32, true));
    let seen = race(mpt::Mpt::<Va32, Compact32, _>::new(&nodes).unwrap());
    assert!(nodes.planted());
    let seen = seen.unwrap_err();
    assert!(seen.contains("in generations"), "{seen}");
}
