//! The shared property suite over multi-level tables.

use crate::common::{Odd, Pair};
use tlbkit_pagetable::format::{Compact32, EntryLo, Sv32};
use tlbkit_pagetable::geometry::{Va32, Va32M4};
use tlbkit_pagetable::mpt::Mpt;
use tlbkit_pagetable::{Shared, Solo};

conformance!(va32_compact32_shared, Compact32, Shared, |nodes| Mpt::<Va32, Compact32, _>::new(nodes));
conformance!(va32_entrylo_shared, EntryLo, Shared, |nodes| Mpt::<Va32, EntryLo, _>::new(nodes));
conformance!(va32_sv32_solo, Sv32, Solo, |nodes| Mpt::<Va32M4, Sv32, _>::new(nodes));
conformance!(odd_compact32_solo, Compact32, Solo, |nodes| Mpt::<Odd, Compact32, _>::new(nodes));
conformance!(pair_compact32_solo, Compact32, Solo, |nodes| Mpt::<Pair, Compact32, _>::new(nodes));

#[cfg(target_pointer_width = "64")]
mod wide {
    use super::*;
    use crate::common::rebased::Rebased;
    use crate::common::{Ends, Full};
    use tlbkit_pagetable::format::{Aarch64, Aarch64Of, Compact, Paper, RiscvOf, Sv39, X86};
    use tlbkit_pagetable::geometry::{Napot, Runs, Va39, Va48, Va64};

    conformance!(va48_compact_solo, Compact, Solo, |nodes| Mpt::<Va48, Compact, _>::new(nodes));
    conformance!(va39_sv39_shared, Sv39, Shared, |nodes| Mpt::<Va39, Sv39, _>::new(nodes));
    conformance!(va48_x86_shared, X86, Shared, |nodes| Mpt::<Va48, X86, _>::new(nodes));
    conformance!(va48_aarch64_shared, Aarch64, Shared, |nodes| Mpt::<Va48, Aarch64, _>::new(nodes));
    // Contiguous runs, whose status hardware notes in any slot.
    type Svnapot = RiscvOf<true, true, true>;
    type Contiguous = Aarch64Of<12, true, false>;
    type ContiguousBbm2 = Aarch64Of<12, true, true>;
    conformance!(va48_svnapot_shared, Svnapot, Shared, |nodes| Mpt::<Napot<Va48>, Svnapot, _>::new(nodes));
    conformance!(va48_contiguous_shared, Contiguous, Shared, |nodes| Mpt::<Runs<Va48>, Contiguous, _>::new(
        nodes
    ));
    conformance!(
        va48_bbm2_shared,
        ContiguousBbm2,
        Shared,
        |nodes| Mpt::<Runs<Va48>, ContiguousBbm2, _>::new(nodes)
    );
    conformance!(va64_paper_solo, Paper, Solo, |nodes| Mpt::<Va64, Paper, _>::new(nodes));
    conformance!(full_compact_solo, Compact, Solo, |nodes| Mpt::<Full, Compact, _>::new(nodes));
    conformance!(ends_solo, Rebased<14>, Solo, |nodes| Mpt::<Ends, Rebased<14>, _>::new(nodes));
}

/// More pairings of formats, geometries and modes that the gate has, each of which the lines above have with another one:
/// `cargo xtask test --full`.
#[cfg(all(tlbkit_full, target_pointer_width = "64"))]
mod full {
    use super::*;
    use tlbkit_pagetable::format::{Aarch64Of, Compact, Paper, RiscvOf, Sv39, X86Of};
    use tlbkit_pagetable::geometry::{Napot, Runs, Va39, Va48, Va48K16, Va53, Va53K16, Va53K64, Va57, Va64};

    // Without runs, which have 128 slots here: this looks at each of them after each store.
    type Granule16 = Aarch64Of<14, false, false>;
    type Lpa2Granule16 = Aarch64Of<14, false, false, true>;
    type Lpa = Aarch64Of<16, true, false, true>;
    type Svnapot = RiscvOf<true, true, true>;
    type Contiguous = Aarch64Of<12, true, false>;

    conformance!(va32_entrylo_solo, EntryLo, Solo, |nodes| Mpt::<Va32, EntryLo, _>::new(nodes));
    conformance!(va32_sv32_shared, Sv32, Shared, |nodes| Mpt::<Va32M4, Sv32, _>::new(nodes));
    conformance!(va32_paper_shared, Paper, Shared, |nodes| Mpt::<Va32, Paper, _>::new(nodes));
    conformance!(va39_compact_solo, Compact, Solo, |nodes| Mpt::<Va39, Compact, _>::new(nodes));
    conformance!(va48_compact_shared, Compact, Shared, |nodes| Mpt::<Va48, Compact, _>::new(nodes));
    conformance!(va39_sv39_solo, Sv39, Solo, |nodes| Mpt::<Va39, Sv39, _>::new(nodes));
    conformance!(va57_sv39_shared, Sv39, Shared, |nodes| Mpt::<Va57, Sv39, _>::new(nodes));
    conformance!(va48_keys_shared, X86Of<true, true>, Shared, |nodes| Mpt::<Va48, X86Of<true, true>, _>::new(nodes));
    conformance!(va39_svnapot_solo, Svnapot, Solo, |nodes| Mpt::<Napot<Va39>, Svnapot, _>::new(nodes));
    conformance!(va48_contiguous_solo, Contiguous, Solo, |nodes| Mpt::<Runs<Va48>, Contiguous, _>::new(
        nodes
    ));
    conformance!(va48k16_granule_shared, Granule16, Shared, |nodes| Mpt::<Va48K16, Granule16, _>::new(nodes));
    conformance!(va53k16_lpa2_shared, Lpa2Granule16, Shared, |nodes| Mpt::<Va53K16, Lpa2Granule16, _>::new(
        nodes
    ));
    conformance!(va53k64_lpa_shared, Lpa, Shared, |nodes| Mpt::<Runs<Va53K64>, Lpa, _>::new(nodes));
    conformance!(va64_paper_shared, Paper, Shared, |nodes| Mpt::<Va64, Paper, _>::new(nodes));
    conformance!(va64_compact32_shared, Compact32, Shared, |nodes| Mpt::<Va64, Compact32, _>::new(nodes));
    conformance!(odd_compact_shared, Compact, Shared, |nodes| Mpt::<Odd, Compact, _>::new(nodes));
    type Svade = RiscvOf<false, true, false>;
    // 52 bits of address. Nodes of 64 KiB take this suite longest: those of 48 bits, which have the same shape, are left to
    // `manuals.rs` and to the judge.
    type Lpa2 = Aarch64Of<12, true, true, true>;
    conformance!(va32_compact32_solo, Compact32, Solo, |nodes| Mpt::<Va32, Compact32, _>::new(nodes));
    conformance!(odd_paper_shared, Paper, Shared, |nodes| Mpt::<Odd, Paper, _>::new(nodes));
    conformance!(va39_compact_shared, Compact, Shared, |nodes| Mpt::<Va39, Compact, _>::new(nodes));
    conformance!(va39_svade_shared, Svade, Shared, |nodes| Mpt::<Napot<Va39>, Svade, _>::new(nodes));
    conformance!(va53_lpa2_shared, Lpa2, Shared, |nodes| Mpt::<Runs<Va53>, Lpa2, _>::new(nodes));
}
