//! The shared property suite over multi-level tables.
#![cfg(not(tlbkit_loom))]

mod common;

use common::{Odd, Pair};
use tlbkit_conformance::conformance;
use tlbkit_pagetable::format::{Compact32, EntryLo, Paper};
use tlbkit_pagetable::geometry::Va32;
use tlbkit_pagetable::mpt::Mpt;
use tlbkit_pagetable::{Shared, Solo};

conformance!(va32_compact32_solo, Compact32, Solo, |nodes| Mpt::<Va32, Compact32, _>::new(nodes));
conformance!(va32_compact32_shared, Compact32, Shared, |nodes| Mpt::<Va32, Compact32, _>::new(nodes));
conformance!(va32_entrylo_solo, EntryLo, Solo, |nodes| Mpt::<Va32, EntryLo, _>::new(nodes));
conformance!(va32_entrylo_shared, EntryLo, Shared, |nodes| Mpt::<Va32, EntryLo, _>::new(nodes));
conformance!(va32_paper_shared, Paper, Shared, |nodes| Mpt::<Va32, Paper, _>::new(nodes));
conformance!(odd_compact32_solo, Compact32, Solo, |nodes| Mpt::<Odd, Compact32, _>::new(nodes));
conformance!(odd_paper_shared, Paper, Shared, |nodes| Mpt::<Odd, Paper, _>::new(nodes));
conformance!(pair_compact32_solo, Compact32, Solo, |nodes| Mpt::<Pair, Compact32, _>::new(nodes));

#[cfg(target_pointer_width = "64")]
mod wide {
    use super::*;
    use common::rebased::Rebased;
    use common::{Ends, Full};
    use tlbkit_pagetable::format::{Aarch64, Compact, Sv39, X86};
    use tlbkit_pagetable::geometry::{Va39, Va48, Va57, Va64};

    conformance!(va39_compact_solo, Compact, Solo, |nodes| Mpt::<Va39, Compact, _>::new(nodes));
    conformance!(va39_compact_shared, Compact, Shared, |nodes| Mpt::<Va39, Compact, _>::new(nodes));
    conformance!(va48_compact_solo, Compact, Solo, |nodes| Mpt::<Va48, Compact, _>::new(nodes));
    conformance!(va48_compact_shared, Compact, Shared, |nodes| Mpt::<Va48, Compact, _>::new(nodes));
    conformance!(va39_sv39_solo, Sv39, Solo, |nodes| Mpt::<Va39, Sv39, _>::new(nodes));
    conformance!(va39_sv39_shared, Sv39, Shared, |nodes| Mpt::<Va39, Sv39, _>::new(nodes));
    conformance!(va57_sv39_shared, Sv39, Shared, |nodes| Mpt::<Va57, Sv39, _>::new(nodes));
    conformance!(va48_x86_shared, X86, Shared, |nodes| Mpt::<Va48, X86, _>::new(nodes));
    conformance!(va48_aarch64_shared, Aarch64, Shared, |nodes| Mpt::<Va48, Aarch64, _>::new(nodes));
    conformance!(va64_paper_solo, Paper, Solo, |nodes| Mpt::<Va64, Paper, _>::new(nodes));
    conformance!(va64_paper_shared, Paper, Shared, |nodes| Mpt::<Va64, Paper, _>::new(nodes));
    conformance!(va64_compact32_shared, Compact32, Shared, |nodes| Mpt::<Va64, Compact32, _>::new(nodes));
    conformance!(full_compact_solo, Compact, Solo, |nodes| Mpt::<Full, Compact, _>::new(nodes));
    conformance!(ends_solo, Rebased<14>, Solo, |nodes| Mpt::<Ends, Rebased<14>, _>::new(nodes));
    conformance!(odd_compact_shared, Compact, Shared, |nodes| Mpt::<Odd, Compact, _>::new(nodes));
}
