//! The shared property suite over linear tables.

use tlbkit_pagetable::Shared;
use tlbkit_pagetable::format::EntryLo;
use tlbkit_pagetable::geometry::Va32;
use tlbkit_pagetable::lpt::{Linear, Lpt};

const KSEG2: usize = 0xc000_0000;

type Mips = Linear<Va32, EntryLo, KSEG2>;

conformance!(mips_shared, Mips, Shared, |nodes| Lpt::<Va32, EntryLo, _, KSEG2>::new(nodes));

#[cfg(target_pointer_width = "64")]
mod wide {
    use super::*;
    use tlbkit_pagetable::Solo;
    use tlbkit_pagetable::format::{Compact, Paper};
    use tlbkit_pagetable::geometry::{Va48, Va64};
    use tlbkit_pagetable::lpt::PaperLpt;

    const BELOW_TOP: usize = 0xff00_0000_0000_0000;

    type Book = Linear<Va64, Paper, BELOW_TOP>;
    type Four = Linear<Va48, Compact, BELOW_TOP>;

    conformance!(paper_solo, Book, Solo, |nodes| PaperLpt::new(nodes));
    conformance!(va48_compact_shared, Four, Shared, |nodes| Lpt::<Va48, Compact, _, BELOW_TOP>::new(nodes));
}

/// More pairings of formats, geometries and modes that the gate has, each of which the lines above have with another one:
/// `cargo xtask test --full`.
#[cfg(all(tlbkit_full, target_pointer_width = "64"))]
mod full {
    use super::*;
    use tlbkit_pagetable::Solo;
    use tlbkit_pagetable::format::{Compact32, Paper};
    use tlbkit_pagetable::geometry::Va64;
    use tlbkit_pagetable::lpt::PaperLpt;

    type Soft = Linear<Va32, Compact32, KSEG2>;
    type Book = Linear<Va64, Paper, 0xff00_0000_0000_0000>;

    conformance!(compact32_shared, Soft, Shared, |nodes| Lpt::<Va32, Compact32, _, KSEG2>::new(nodes));
    conformance!(paper_shared, Book, Shared, |nodes| PaperLpt::new(nodes));
    conformance!(mips_solo, Mips, Solo, |nodes| Lpt::<Va32, EntryLo, _, KSEG2>::new(nodes));
}
