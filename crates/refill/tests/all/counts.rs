//! How many instructions a refill takes: the shortest way through each handler, counted by the interpreter.

use crate::common::tables::{Kind, with};
use crate::common::{Base32, Config, Sabotage, Step};
use tlbkit_pagetable::Radix;
use tlbkit_pagetable::geometry::Va32;
use tlbkit_refill::features::Features;
use tlbkit_refill::handler::{Form, Root, Write};

const R2: Config = Config {
    features: Features::R2,
    root: Root::Block,
    stlb: false,
    form: Form::PLAIN,
    write: Write::Random,
    near: false,
};

/// A page is mapped and touched; the TLB forgets it, and it is touched again: then the cache hits.
fn count<G: Radix>(kind: Kind, config: Config, size: usize) -> u64 {
    let map = |first| Step::Map { first, count: 1, frame: 0x40, size, attr: 0 };
    let touch = Step::Touch { page: 0, ago: None, offset: 0, store: false };
    let steps = [map(0), map(1 << (2 * size)), touch, Step::Forget, touch];
    with::<G>(kind, &config, &steps, Sabotage::default()).unwrap().fewest.unwrap()
}

/// Returns the counts of pages of 4 KiB with the root in memory, in memory that register 0 reaches, and in a register, in
/// the form for larger pages, in the one that reports, and with `tlbwi`.
fn counts(kind: Kind) -> [u64; 6] {
    let register = Config { root: Root::ErrorEpc, ..R2 };
    [
        count::<Base32>(kind, R2, 0),
        count::<Base32>(kind, Config { near: true, ..R2 }, 0),
        count::<Base32>(kind, register, 0),
        count::<Va32>(kind, Config { form: Form::SIZED, ..R2 }, 0),
        count::<Base32>(kind, Config { form: Form::REPORTING, write: Write::Index, ..R2 }, 0),
        count::<Base32>(kind, Config { write: Write::Index, ..R2 }, 0),
    ]
}

#[test]
fn tables_alone() {
    let kinds = [
        Kind::Mpt,
        Kind::Lpt,
        Kind::Hpt,
        Kind::HptLarge,
        Kind::HptGrows,
        Kind::Cpt,
        Kind::CptGrows,
        Kind::G16,
    ];
    let table = kinds.map(|kind| (kind, counts(kind)));
    let expected = [
        (Kind::Mpt, [16, 15, 15, 18, 45, 18]),
        (Kind::Lpt, [9, 9, 9, 11, 38, 11]),
        (Kind::Hpt, [17, 16, 16, 17, 46, 19]),
        (Kind::HptLarge, [17, 16, 16, 17, 46, 19]),
        (Kind::HptGrows, [24, 23, 23, 24, 53, 26]),
        (Kind::Cpt, [17, 16, 16, 19, 46, 19]),
        (Kind::CptGrows, [24, 23, 23, 26, 53, 26]),
        // The leaf alone: `gpt.rs` counts what the nodes above it take.
        (Kind::G16, [16, 15, 15, 16, 45, 18]),
    ];
    assert_eq!(table, expected);
}

#[test]
fn a_hit_in_the_cache() {
    for kind in Kind::ALL {
        let stlb = |form, write| count::<Base32>(kind, Config { stlb: true, form, write, ..R2 }, 0);
        assert_eq!(stlb(Form::PLAIN, Write::Random), 12, "{kind:?}");
        assert_eq!(stlb(Form::SIZED, Write::Random), 14, "{kind:?}");
        assert_eq!(stlb(Form::PLAIN, Write::Index), 14, "{kind:?}");
    }
}

/// Pages of 16 KiB, 64 KiB and 4 MiB beside one of their size. A hashed table is probed for one size after the other.
#[test]
fn larger_pages() {
    let sized = |kind, size| count::<Va32>(kind, Config { form: Form::SIZED, ..R2 }, size);
    let kinds = [Kind::Mpt, Kind::Hpt, Kind::Cpt, Kind::G16];
    let table = kinds.map(|kind| (kind, [1, 2, 5].map(|size| sized(kind, size))));
    let expected = [
        (Kind::Mpt, [91, 91, 78]),
        (Kind::Hpt, [139, 181, 307]),
        (Kind::Cpt, [102, 146, 188]),
        (Kind::G16, [45, 45, 45]),
    ];
    assert_eq!(table, expected);
}
