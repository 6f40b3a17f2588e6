//! Spaces that are one half of all addresses: the lower one, and the upper one, whose addresses begin with ones.
#![cfg(target_pointer_width = "64")]

use tlbkit_addr::{PageSize, Pages, VirtAddr, Vpn};
use tlbkit_pagetable::format::{Aarch64, Aarch64Of, Compact};
use tlbkit_pagetable::geometry::{Arm, Runs};
use tlbkit_pagetable::gpt::{Adaptive, Gpt, OneWord};
use tlbkit_pagetable::hpt::{Buckets, Hashed};
use tlbkit_pagetable::mpt::Mpt;
use tlbkit_pagetable::{Error, Geometry, Half, Radix, Shared, Solo, Space};

type Contiguous = Aarch64Of<12, true, false>;
type Lpa2 = Aarch64Of<12, true, true, true>;

conformance!(lower39_shared, Aarch64, Shared, |nodes| Mpt::<Arm<39, 12>, Aarch64, _>::new(nodes));
conformance!(upper39_shared, Aarch64, Shared, |nodes| Mpt::<Arm<39, 12, true>, Aarch64, _>::new(nodes));
conformance!(lower42_shared, Aarch64, Shared, |nodes| Mpt::<Arm<42, 12>, Aarch64, _>::new(nodes));
conformance!(upper42_solo, Aarch64, Solo, |nodes| Mpt::<Arm<42, 12, true>, Aarch64, _>::new(nodes));
conformance!(upper48_contiguous_shared, Contiguous, Shared, |nodes| Mpt::<
    Runs<Arm<48, 12, true>>,
    Contiguous,
    _,
>::new(nodes));
conformance!(upper52_lpa2_shared, Lpa2, Shared, |nodes| Mpt::<Runs<Arm<52, 12, true>>, Lpa2, _>::new(nodes));
conformance!(upper39_guarded, Compact, Shared, |nodes| {
    Gpt::<Arm<39, 12, true>, Compact, _, OneWord, Adaptive>::new(nodes)
});
conformance!(
    upper39_hashed,
    Compact,
    Shared,
    |nodes| Hashed::<Arm<39, 12, true>, Compact, _, Buckets<1, 1, 100>>::new(nodes),
    keeps
);

/// Checks the ends of a half, and the pages beside it, also by numbers that are of no address.
fn check<G: Radix>(bits: u32, widths: &[u32], upper: bool) {
    let space = Space::of::<G>();
    assert_eq!((G::VA_BITS, G::WIDTHS), (bits, widths));
    assert_eq!(space.half(), if upper { Half::Upper } else { Half::Lower });
    let (first, last) = if upper { (usize::MAX << bits, usize::MAX) } else { (0, (1 << bits) - 1) };
    let base = G::BASE;
    let page = |at: usize| VirtAddr::new(at).vpn(base);
    let all = Pages::new(page(first), page(last)).unwrap();
    assert_eq!(space.halves(), [Some(all), None]);
    assert_eq!(space.check_pages(all), Ok(()));
    for at in [first, first + (1 << (bits - 1)), last] {
        assert!(space.holds(VirtAddr::new(at)), "{at:#x}");
        assert_eq!(space.check_pages(Pages::one(page(at))), Ok(()), "{at:#x}");
    }
    for at in [first.wrapping_sub(1), last.wrapping_add(1), 1 << 55, !(1 << 55)] {
        assert!(!space.holds(VirtAddr::new(at)), "{at:#x}");
        assert!(matches!(space.check_pages(Pages::one(page(at))), Err(Error::OutOfRange { .. })), "{at:#x}");
    }
    // Numbers of pages above all addresses, whose low bits are those of pages in the half.
    for number in [Vpn::new(page(last).get() + 1), Vpn::new(usize::MAX), Vpn::new(page(last).get() | 1 << 63)]
    {
        assert!(space.check_pages(Pages::one(number)).is_err(), "{number}");
    }
    assert!(space.check_pages(Pages::new(Vpn::new(0), page(usize::MAX)).unwrap()).is_err());
    assert_eq!(G::SIZES[0], base);
}

#[test]
fn each_width_has_its_levels() {
    check::<Arm<36, 12>>(36, &[6, 9, 9], false);
    check::<Arm<39, 12, true>>(39, &[9, 9, 9], true);
    check::<Arm<42, 12>>(42, &[3, 9, 9, 9], false);
    check::<Arm<48, 12, true>>(48, &[9, 9, 9, 9], true);
    check::<Arm<52, 12, true>>(52, &[4, 9, 9, 9, 9], true);
    check::<Arm<36, 14>>(36, &[11, 11], false);
    check::<Arm<47, 14, true>>(47, &[11, 11, 11], true);
    check::<Arm<48, 14>>(48, &[1, 11, 11, 11], false);
    check::<Arm<52, 14>>(52, &[5, 11, 11, 11], false);
    check::<Arm<42, 16, true>>(42, &[13, 13], true);
    check::<Arm<48, 16>>(48, &[6, 13, 13], false);
    check::<Arm<52, 16, true>>(52, &[10, 13, 13], true);
    check::<Runs<Arm<52, 16>>>(52, &[10, 13, 13], false);
    assert_eq!(Arm::<52, 12>::SIZES.last(), PageSize::from_shift(39).as_ref());
}
