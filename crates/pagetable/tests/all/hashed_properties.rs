//! The shared property suite over hashed and clustered tables: fixed and growing, chains short and long.

use crate::common::{Odd, Pair};
use tlbkit_pagetable::cpt::Cpt32;
use tlbkit_pagetable::format::{Compact32, EntryLo};
use tlbkit_pagetable::geometry::Va32;
use tlbkit_pagetable::hpt::{Buckets, Hashed, Hpt32};
use tlbkit_pagetable::{Shared, Solo};

conformance!(hpt32_compact32_shared, Compact32, Shared, |nodes| Hpt32::<_, Compact32>::new(nodes));
conformance!(hpt32_entrylo_shared, EntryLo, Shared, |nodes| Hpt32::<_, EntryLo>::new(nodes));
conformance!(cpt32_compact32_shared, Compact32, Shared, |nodes| Cpt32::<_, Compact32>::new(nodes), keeps);

// Few buckets: everything is in long chains. With two, checks after each store took half of this file's time.
type Chain<'n, N> = Hashed<'n, Odd, Compact32, N, Buckets<0, 3, 0>>;
type Few<'n, N> = Hashed<'n, Odd, Compact32, N, Buckets<2, 1, 0>>;
type Pairs32<'n, N> = Hashed<'n, Va32, Compact32, N, Buckets<1, 3, 0>>;
type Grows<'n, N> = Hashed<'n, Odd, Compact32, N, Buckets<1, 1, 100>>;

conformance!(chain_odd_solo, Compact32, Solo, |nodes| Chain::new(nodes));
conformance!(chain_odd_shared, Compact32, Shared, |nodes| Chain::new(nodes));
conformance!(few_odd_shared, Compact32, Shared, |nodes| Few::new(nodes));
conformance!(grows_odd_shared, Compact32, Shared, |nodes| Grows::new(nodes), keeps);
conformance!(pairs_32_shared, Compact32, Shared, |nodes| Pairs32::new(nodes));
conformance!(pair_solo, Compact32, Solo, |nodes| Hashed::<Pair, Compact32, _, Buckets<0, 1, 0>>::new(nodes));

/// The second page of 8 KiB finds the first bucket free that the first one frees, which nothing counts on before.
#[test]
fn a_resize_may_need_less_than_it_reserves() {
    use tlbkit_conformance::prelude::*;
    let pages = || Pages::new(Vpn::new(0), Vpn::new(3)).unwrap();
    let map = Op::Map { pages: pages(), frame: Pfn::new(0), size: PageSize::K4, attr: Attr::READ };
    let ops = [map, Op::Resize { pages: pages(), to: PageSize::from_shift(13).unwrap() }];
    replay::<chain_odd_solo::Tested>(Property::FailsCleanly, &ops).unwrap();
}

#[cfg(target_pointer_width = "64")]
mod wide {
    use super::*;
    use crate::common::Full;
    use tlbkit_pagetable::cpt::{C128k, Cpt8, Cpt16};
    use tlbkit_pagetable::format::{Compact, Paper};
    use tlbkit_pagetable::geometry::Va64;
    use tlbkit_pagetable::hpt::Hr;

    conformance!(hr_shared, Compact, Shared, |nodes| Hr::new(nodes), keeps);
    conformance!(few_eights_solo, Paper, Solo, |nodes| Hashed::<Va64, Paper, _, Buckets<3, 2, 0>>::new(
        nodes
    ));
    conformance!(c128k_shared, Paper, Shared, |nodes| C128k::new(nodes));
    conformance!(cpt8_solo, Compact, Solo, |nodes| Cpt8::new(nodes), keeps);
    conformance!(cpt16_shared, Compact, Shared, |nodes| Cpt16::new(nodes), keeps);
    conformance!(
        full_shared,
        Compact,
        Shared,
        |nodes| Hashed::<Full, Compact, _, Buckets<1, 1, 100>>::new(nodes),
        keeps
    );
}

/// More pairings of formats, geometries and modes that the gate has, each of which the lines above have with another one:
/// `cargo xtask test --full`.
#[cfg(all(tlbkit_full, target_pointer_width = "64"))]
mod full {
    use super::*;
    use tlbkit_pagetable::cpt::{C128k, Cpt4};
    use tlbkit_pagetable::format::{Compact, Paper};
    use tlbkit_pagetable::hpt::{H8k, Hr, HrSmall, PaperHr};

    conformance!(hpt32_compact32_solo, Compact32, Solo, |nodes| Hpt32::<_, Compact32>::new(nodes));
    conformance!(cpt32_entrylo_solo, EntryLo, Solo, |nodes| Cpt32::<_, EntryLo>::new(nodes), keeps);
    conformance!(few_odd_solo, Compact32, Solo, |nodes| Few::new(nodes));
    conformance!(h8k_solo, Paper, Solo, |nodes| H8k::new(nodes));
    conformance!(paper_hr_shared, Paper, Shared, |nodes| PaperHr::new(nodes), keeps);
    conformance!(hr_small_shared, Compact32, Shared, |nodes| HrSmall::new(nodes), keeps);
    conformance!(c128k_solo, Paper, Solo, |nodes| C128k::new(nodes));
    conformance!(cpt4_shared, Compact, Shared, |nodes| Cpt4::new(nodes), keeps);
    conformance!(h8k_shared, Paper, Shared, |nodes| H8k::new(nodes));
    conformance!(hr_solo, Compact, Solo, |nodes| Hr::new(nodes), keeps);
}
