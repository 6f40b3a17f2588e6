//! What cannot be assembled is refused, and by what name.

use crate::common::tables::Kind;
use crate::common::{Base32, Config};
use tlbkit_addr::PageSize;
use tlbkit_pagetable::format::EntryLo;
use tlbkit_pagetable::geometry::{Va32, Va48, Va64};
use tlbkit_pagetable::lpt::Linear;
use tlbkit_pagetable::{Geometry, Radix};
use tlbkit_refill::features::Features;
use tlbkit_refill::handler::{Form, Gpt, Hashed, Lpt, Mpt, Place, Root, Spec, Stlb, Write};
use tlbkit_refill::{Error, mips3};

fn spec() -> Spec {
    let config = Config {
        features: Features::R2,
        root: Root::Block,
        stlb: true,
        form: Form::PLAIN,
        write: Write::Random,
        near: false,
    };
    config.spec(Kind::Mpt.walk::<Base32>())
}

#[test]
fn parts_that_do_not_go_together() {
    assert!(spec().assemble().is_ok());
    let reporting = Spec { form: Form::REPORTING, ..spec() };
    assert_eq!(reporting.assemble(), Err(Error::ReportNeedsIndex));
    let scratch = Spec { root: Root::KScratch(2), ..spec() };
    assert_eq!(scratch.assemble(), Err(Error::NoKScratch { select: 2 }));
    assert!(Spec { features: Features::P5600, ..scratch }.assemble().is_ok());
    let mips3 = Spec { features: Features::MIPS3, ..spec() };
    assert_eq!(mips3.assemble(), Err(Error::Unsupported));
    assert!(Spec { block: 0xffff_8000, ..spec() }.assemble().is_ok());
    for block in [0x0000_1000, 0xa000_1000, 0x8000_1004, 0xffff_7fe0, 0xffff_8004] {
        assert_eq!(Spec { block, ..spec() }.assemble(), Err(Error::BadAddress { address: block }));
    }
}

#[test]
fn places_that_are_too_small() {
    let place = Place { room: 11, ..Place::VECTOR };
    assert_eq!(Spec { place, ..spec() }.assemble(), Err(Error::TooLong { words: 12, room: 11 }));
    let place = Place { tail_room: 3, ..Place::VECTOR };
    assert!(matches!(Spec { place, ..spec() }.assemble(), Err(Error::TooLong { room: 3, .. })));
    let place = Place { tail: 0x10_0000, ..Place::VECTOR };
    assert!(matches!(Spec { place, ..spec() }.assemble(), Err(Error::TooFar { .. })));
}

/// The refill vectors are 0x80 apart, the cache error vector is at 0x100 and the general one at 0x180, and the tail ends
/// with the page.
#[test]
fn places_end_where_the_next_thing_begins() {
    let ends = |place: Place, from: i32| {
        let behind = |words: usize| 4 * words as i32;
        let tail = from + place.tail;
        (from + behind(place.room), from + place.general, tail, tail + behind(place.tail_room))
    };
    assert_eq!(ends(Place::VECTOR, 0), (0x100, 0x180, 0x400, 0x1000));
    assert_eq!(ends(Place::WIDE, 0), (0x180, 0x180, 0x400, 0x1000));
    assert_eq!(ends(Place::VECTOR_64, 0x80), (0x100, 0x180, 0x400, 0x1000));
}

/// A shape: bits of an address, of the base page, and of the levels.
macro_rules! shapes {
    ($($name:ident $bits:literal $widths:expr, $sizes:expr;)*) => { $(
        #[derive(Debug)]
        struct $name;

        impl Geometry for $name {
            const VA_BITS: u32 = $bits;
            const BASE: PageSize = Self::SIZES[0];
            const SIZES: &'static [PageSize] = &sizes($sizes);
        }

        impl Radix for $name {
            const WIDTHS: &'static [u32] = &$widths;
        }
    )* };
}

const fn sizes<const N: usize>(shifts: [u32; N]) -> [PageSize; N] {
    let mut sizes = [PageSize::K4; N];
    let mut at = 0;
    while at < N {
        sizes[at] = PageSize::from_shift(shifts[at]).unwrap();
        at += 1;
    }
    sizes
}

shapes! {
    Narrow 30 [10, 8], [12];
    Coarse 32 [10, 8], [14];
    Deep 32 [8, 6, 6], [12];
    WideTop 32 [12, 8], [12];
    WideLeaf 32 [8, 12], [12];
    LinearTop 30 [8, 10], [12];
    Odd 32 [10, 10], [12, 14, 15];
    Largest 32 [10, 10], [12, 26];
    TooLarge 32 [10, 10], [12, 28];
    Uneven 32 [10, 10], [12, 14, 18];
    Wide64 64 [4, 8, 8, 8, 8, 8, 8], [12];
    Coarse64 64 [2, 8, 8, 8, 8, 8, 8], [14];
    Nine64 64 [1, 1, 10, 10, 10, 10, 6, 2, 2], [12];
    Eight64 64 [2, 10, 10, 10, 10, 6, 2, 2], [12];
    WideTop64 64 [11, 8, 8, 8, 8, 9], [12];
    WideLeaf64 64 [9, 8, 8, 8, 8, 11], [12];
    Linear64 64 [2, 10, 10, 10, 10, 10], [12];
    Tens64 64 [10, 10, 10, 10, 10, 2], [12];
    Narrow60 60 [10, 10, 10, 10, 8], [12];
}

/// Where a linear table may be.
const AT: usize = 0xc040_0000;

#[test]
fn shapes_that_no_two_level_handler_knows() {
    assert!(Mpt::of::<Va32>().is_ok());
    assert_eq!(Mpt::of::<Va48>(), Err(Error::Geometry));
    assert_eq!(Mpt::of::<Narrow>(), Err(Error::Geometry));
    assert_eq!(Mpt::of::<Coarse>(), Err(Error::Geometry));
    assert_eq!(Mpt::of::<Deep>(), Err(Error::Geometry));
    assert_eq!(Mpt::of::<WideTop>(), Err(Error::Geometry));
    assert_eq!(Mpt::of::<WideLeaf>(), Err(Error::Geometry));
    // The nodes of a linear table are elsewhere.
    assert_eq!(Mpt::of::<Linear<Va32, EntryLo, AT>>(), Err(Error::Geometry));
}

#[test]
fn places_where_no_linear_table_can_be() {
    assert!(Lpt::of::<Va32, AT>().is_ok());
    assert!(Lpt::of::<Va32, 0xc000_0000>().is_ok());
    assert!(Lpt::of::<Va32, 0xff80_0000>().is_ok());
    assert_eq!(Lpt::of::<LinearTop, AT>(), Err(Error::Geometry));
    assert_eq!(Lpt::of::<Va32, 0x8000_0000>(), Err(Error::BadAddress { address: 0x8000_0000 }));
    assert_eq!(Lpt::of::<Va32, 0xbfc0_0000>(), Err(Error::BadAddress { address: 0xbfc0_0000 }));
    assert_eq!(Lpt::of::<Va32, 0xc020_0000>(), Err(Error::BadAddress { address: 0xc020_0000 }));
}

#[test]
fn shapes_that_no_hashed_handler_knows() {
    let of = |cluster, buckets| Hashed::of::<Va32>(cluster, buckets, 0).is_ok();
    // Blocks of 2 to 16 pages, arrays of at most 4 MiB.
    assert_eq!([0, 1, 4, 5].map(|cluster| of(cluster, 10)), [false, true, true, false]);
    assert_eq!([18, 19].map(|buckets| of(1, buckets)), [true, false]);
    assert_eq!([15, 16].map(|buckets| of(4, buckets)), [true, false]);
    // One that grows has no size.
    assert!(Hashed::of::<Va32>(1, 19, 100).is_ok());
    assert_eq!(Hashed::of::<Va32>(0, 10, 0), Err(Error::Geometry));
    assert_eq!(Hashed::of::<Narrow>(1, 10, 0), Err(Error::Geometry));
    assert_eq!(Hashed::of::<Coarse>(1, 10, 0), Err(Error::Geometry));
    // From one granularity of tags to the next it is equally far, or there is one alone.
    assert_eq!(Hashed::of::<Uneven>(1, 10, 0), Err(Error::Geometry));
    assert!(Hashed::of::<Uneven>(2, 10, 0).is_ok());
}

#[test]
fn shapes_that_no_guarded_handler_knows() {
    let fixed = |width| Gpt::fixed::<Va32>(width).is_ok();
    assert_eq!([0, 1, 2, 3, 8, 9].map(fixed), [false, true, true, true, true, false]);
    let adaptive: [fn() -> Result<Gpt, Error>; 4] =
        [Gpt::adaptive::<Narrow>, Gpt::adaptive::<Coarse>, Gpt::adaptive::<Odd>, Gpt::adaptive::<TooLarge>];
    assert_eq!(adaptive.map(|of| of()), [Err(Error::Geometry); 4]);
    assert!(Gpt::adaptive::<Largest>().is_ok() && Gpt::fixed::<Largest>(4).is_ok());
    assert_eq!(Gpt::fixed::<TooLarge>(4), Err(Error::Geometry));
}

#[test]
fn caches_that_no_handler_knows() {
    let new = |sets| Stlb::new(0x8080_0000, sets).is_ok();
    assert_eq!([0, 1, 2, 48, 1 << 19, 1 << 20].map(new), [false, false, true, false, true, false]);
    for base in [0x0080_0000, 0xa080_0000, 0x8040_0000, 0x8080_0010] {
        assert_eq!(Stlb::new(base, 64), Err(Error::BadAddress { address: base }));
    }
    assert_eq!(Stlb::new(0x9f80_0000, 64).map(|cache| cache.base()), Ok(0x9f80_0000));
}

#[test]
fn shapes_that_no_wide_handler_knows() {
    assert!(mips3::Mpt::of::<Va64>().is_ok() && mips3::Mpt::of::<Wide64>().is_ok());
    assert!(mips3::Mpt::of::<Eight64>().is_ok());
    let others: [fn() -> Result<mips3::Mpt, Error>; 7] = [
        mips3::Mpt::of::<Va32>,
        mips3::Mpt::of::<Narrow60>,
        mips3::Mpt::of::<Coarse64>,
        mips3::Mpt::of::<Nine64>,
        mips3::Mpt::of::<WideTop64>,
        mips3::Mpt::of::<WideLeaf64>,
        mips3::Mpt::of::<Linear<Linear64, EntryLo, AT>>,
    ];
    assert_eq!(others.map(|of| of()), [Err(Error::Geometry); 7]);
    let guarded = |width| mips3::Gpt::fixed(width).is_ok();
    assert_eq!([0, 1, 12, 13].map(guarded), [false, true, true, false]);
    let hashed = |cluster, buckets| mips3::Hashed::of(cluster, buckets).is_ok();
    assert_eq!([0, 1, 4, 5].map(|cluster| hashed(cluster, 8)), [false, true, true, false]);
    assert_eq!([0, 1, 16, 17].map(|buckets| hashed(1, buckets)), [false, true, true, false]);
    let growing = [0, 1, 3, 4, 5].map(mips3::Hashed::growing);
    assert_eq!(growing.map(|walk| walk.is_ok()), [false, true, true, true, false]);
    let larger = growing.map(|walk| walk.and_then(mips3::Hashed::with_larger_pages).is_ok());
    assert_eq!(larger, [false, false, true, false, false]);
    assert!(mips3::Lpt::of::<Va64, { 0xff << 56 }>().is_ok());
    assert_eq!(mips3::Lpt::of::<Va64, { 0xfe << 56 }>(), Err(Error::Geometry));
    let cache = |bytes| mips3::Stlb::new(0x8001_0000, bytes).is_ok();
    assert_eq!([16, 32, 48, 4 << 20, 8 << 20].map(cache), [false, true, false, true, false]);
    for base in [0x0001_0000, 0xa001_0000, 0x8000_8000] {
        assert_eq!(mips3::Stlb::new(base, 32), Err(Error::BadAddress { address: base }));
    }
    let walk = mips3::Walk::Mpt(mips3::Mpt::of::<Va64>().unwrap());
    let assemble = |block| mips3::Spec { block, cache: None, walk }.assemble().map(|_| ());
    // A shift by 32 is the first of the other kind.
    let tens = mips3::Walk::Mpt(mips3::Mpt::of::<Tens64>().unwrap());
    assert!(mips3::Spec { block: 0x8000_1000, cache: None, walk: tens }.assemble().is_ok());
    assert_eq!(assemble(0x9fff_fff0), Ok(()));
    for block in [0x1000, 0xa000_1000, 0x8000_1008] {
        assert_eq!(assemble(block), Err(Error::BadAddress { address: block }));
    }
}
