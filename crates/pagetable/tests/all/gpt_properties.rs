//! The shared property suite over guarded tables: fixed and adaptive node sizes, both layouts.

use crate::common::{Odd, Pair};
use tlbkit_pagetable::format::{Compact32, EntryLo};
use tlbkit_pagetable::geometry::Va32;
use tlbkit_pagetable::gpt::{Adaptive, Fixed, Gpt, Gpt32, OneWord};
use tlbkit_pagetable::{Shared, Solo};

conformance!(ga_va32_compact32_shared, Compact32, Shared, |nodes| {
    Gpt::<Va32, Compact32, _, OneWord, Adaptive>::new(nodes)
});
// Break before make, and halves of a TLB entry.
conformance!(g16_va32_entrylo_solo, EntryLo, Solo, |nodes| Gpt::<Va32, EntryLo, _, OneWord, Fixed<4>>::new(
    nodes
));
// What MIPS32 handlers walk.
conformance!(ga32_shared, EntryLo, Shared, |nodes| Gpt32::<_>::new(nodes));
conformance!(g2_32_shared, EntryLo, Shared, |nodes| Gpt32::<_, Fixed<1>>::new(nodes));
conformance!(g16_32_shared, EntryLo, Shared, |nodes| Gpt32::<_, Fixed<4>>::new(nodes));
conformance!(g256_32_solo, EntryLo, Solo, |nodes| Gpt32::<_, Fixed<8>>::new(nodes));
conformance!(ga_odd_compact32_solo, Compact32, Solo, |nodes| {
    Gpt::<Odd, Compact32, _, OneWord, Adaptive>::new(nodes)
});
conformance!(g4_pair_compact32_solo, Compact32, Solo, |nodes| {
    Gpt::<Pair, Compact32, _, OneWord, Fixed<2>>::new(nodes)
});

#[cfg(target_pointer_width = "64")]
mod wide {
    use super::*;
    use crate::common::rebased::Rebased;
    use crate::common::{Ends, Full};
    use tlbkit_pagetable::format::{Compact, Paper};
    use tlbkit_pagetable::geometry::Va64;
    use tlbkit_pagetable::gpt::TwoWords;

    conformance!(ga_va64_compact_shared, Compact, Shared, |nodes| {
        Gpt::<Va64, Compact, _, OneWord, Adaptive>::new(nodes)
    });
    conformance!(ga_full_compact_shared, Compact, Shared, |nodes| {
        Gpt::<Full, Compact, _, OneWord, Adaptive>::new(nodes)
    });
    conformance!(ga_ends_solo, Rebased<14>, Solo, |nodes| {
        Gpt::<Ends, Rebased<14>, _, OneWord, Adaptive>::new(nodes)
    });
    conformance!(g16_va64_paper_solo, Paper, Solo, |nodes| Gpt::<Va64, Paper, _, TwoWords, Fixed<4>>::new(
        nodes
    ));
}

/// More pairings of formats, geometries and modes that the gate has, each of which the lines above have with another one:
/// `cargo xtask test --full`.
#[cfg(all(tlbkit_full, target_pointer_width = "64"))]
mod full {
    use super::*;
    use tlbkit_pagetable::format::{Compact, Paper};
    use tlbkit_pagetable::geometry::{Va48, Va64};
    use tlbkit_pagetable::gpt::TwoWords;

    conformance!(ga_va32_entrylo_shared, EntryLo, Shared, |nodes| {
        Gpt::<Va32, EntryLo, _, OneWord, Adaptive>::new(nodes)
    });
    conformance!(g8_32_solo, EntryLo, Solo, |nodes| Gpt32::<_, Fixed<3>>::new(nodes));
    conformance!(g2_va32_compact32_shared, Compact32, Shared, |nodes| {
        Gpt::<Va32, Compact32, _, OneWord, Fixed<1>>::new(nodes)
    });
    conformance!(ga_va48_compact_solo, Compact, Solo, |nodes| {
        Gpt::<Va48, Compact, _, OneWord, Adaptive>::new(nodes)
    });
    conformance!(g16_va64_compact_shared, Compact, Shared, |nodes| {
        Gpt::<Va64, Compact, _, OneWord, Fixed<4>>::new(nodes)
    });
    conformance!(g256_va48_compact_shared, Compact, Shared, |nodes| {
        Gpt::<Va48, Compact, _, OneWord, Fixed<8>>::new(nodes)
    });
    conformance!(g2_va64_paper_solo, Paper, Solo, |nodes| Gpt::<Va64, Paper, _, TwoWords, Fixed<1>>::new(
        nodes
    ));
    conformance!(g8_odd_compact32_shared, Compact32, Shared, |nodes| {
        Gpt::<Odd, Compact32, _, OneWord, Fixed<3>>::new(nodes)
    });
    conformance!(ga_va64_paper_solo, Paper, Solo, |nodes| Gpt::<Va64, Paper, _, TwoWords, Adaptive>::new(
        nodes
    ));
}
