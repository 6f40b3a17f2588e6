//! Address spaces at their exact edges, in the numbers of the machines' manuals.

use crate::common::{Ends, Odd};
use tlbkit_addr::{Attr, PageSize, Pages, Pfn, VirtAddr, Vpn};
use tlbkit_pagetable::geometry::Va32;
use tlbkit_pagetable::{Error, Half, Leaf, Space};

/// What is known of a space besides its constants.
#[derive(Debug)]
struct Known {
    space: Space,
    bits: u32,
    /// The logarithms of the page sizes.
    sizes: &'static [u32],
    /// The last address of the lower, or only, half.
    low: usize,
    /// The first address of the upper half, which ends at the top.
    high: Option<usize>,
}

fn spaces() -> Vec<Known> {
    let masks = &[12, 14, 16, 18, 20, 22, 24];
    let mut spaces = vec![
        Known { space: Space::of::<Va32>(), bits: 32, sizes: masks, low: 0xffff_ffff, high: None },
        Known {
            space: Space::of::<Odd>(),
            bits: 24,
            sizes: &[12, 13, 16, 19, 21],
            low: 0xff_ffff,
            high: None,
        },
        Known {
            space: Space::of::<Ends>(),
            bits: 17,
            sizes: &[14, 15, 16],
            low: 0xffff,
            high: Some(usize::MAX - 0xffff),
        },
    ];
    #[cfg(target_pointer_width = "64")]
    {
        use crate::common::Full;
        use tlbkit_pagetable::geometry::{Va39, Va48, Va57, Va64};

        let levels = &[12, 21, 30];
        let high = Some(0xffff_ffc0_0000_0000);
        spaces.push(Known { space: Space::of::<Va39>(), bits: 39, sizes: levels, low: 0x3f_ffff_ffff, high });
        let high = Some(0xffff_8000_0000_0000);
        spaces.push(Known {
            space: Space::of::<Va48>(),
            bits: 48,
            sizes: levels,
            low: 0x7fff_ffff_ffff,
            high,
        });
        let high = Some(0xff00_0000_0000_0000);
        spaces.push(Known {
            space: Space::of::<Va57>(),
            bits: 57,
            sizes: levels,
            low: 0xff_ffff_ffff_ffff,
            high,
        });
        spaces.push(Known {
            space: Space::of::<Va64>(),
            bits: 64,
            sizes: masks,
            low: usize::MAX,
            high: None,
        });
        let (low, high) = (0x7fff_ffff_ffff_ffff, Some(0x8000_0000_0000_0000));
        spaces.push(Known { space: Space::of::<Full>(), bits: 64, sizes: &[12, 14, 19, 28, 39], low, high });
    }
    spaces
}

fn size(shift: u32) -> PageSize {
    PageSize::from_shift(shift).unwrap()
}

fn pages(first: Vpn, last: Vpn) -> Pages {
    Pages::new(first, last).unwrap()
}

#[test]
fn a_space_is_what_its_machine_can_address() {
    for known in spaces() {
        let Known { space, bits, sizes, low, high } = known;
        let base = space.base();
        assert_eq!(
            (space.va_bits(), space.half() == Half::Both, base.shift()),
            (bits, high.is_some(), sizes[0])
        );
        assert!(space.sizes().iter().map(|size| size.shift()).eq(sizes.iter().copied()), "{space:?}");

        let half = |first, last| pages(VirtAddr::new(first).vpn(base), VirtAddr::new(last).vpn(base));
        assert_eq!(space.halves(), [Some(half(0, low)), high.map(|high| half(high, usize::MAX))]);

        let holds = |at| space.holds(VirtAddr::new(at));
        assert!(holds(0) && holds(low), "{space:?}");
        match high {
            Some(high) => {
                assert!(holds(high) && holds(usize::MAX), "{space:?}");
                // The hole between them, if there is one, begins and ends there.
                assert_eq!((holds(low + 1), holds(high - 1)), (low + 1 == high, low + 1 == high));
            }
            None => assert_eq!(low.checked_add(1).map(holds), (low < usize::MAX).then_some(false)),
        }
    }
}

#[test]
fn a_range_lies_in_one_half() {
    for Known { space, low, high, .. } in spaces() {
        let base = space.base();
        let page = |at: usize| VirtAddr::new(at).vpn(base);
        let check = |first: usize, last: usize| space.check_pages(pages(page(first), page(last)));
        let out = |at: usize| Err(Error::OutOfRange { at: page(at).address(base) });
        assert_eq!(check(0, low), Ok(()));
        if let Some(high) = high {
            assert_eq!(check(high, usize::MAX), Ok(()));
            assert_eq!(check(low, high), out(high), "both ends can be mapped, but not the way between them");
            assert_eq!(check(0, usize::MAX), out(usize::MAX));
        }
        // The end that the error names is one that cannot be mapped.
        let beyond = low.checked_add(1).filter(|&at| high != Some(at));
        if let Some(beyond) = beyond {
            assert_eq!(check(beyond, beyond), out(beyond));
            assert_eq!(check(low, beyond), out(beyond));
            if let Some(high) = high {
                assert_eq!(check(high - 1, high), out(high - 1));
            }
        }
        // Pages whose addresses no `usize` holds.
        let top = page(usize::MAX);
        let above = top.checked_add(1).unwrap();
        for (range, end) in [
            (pages(top, above), if space.holds(top.address(base)) { above } else { top }),
            (Pages::one(above), above),
            (pages(above, Vpn::new(usize::MAX)), above),
        ] {
            let at = end.address(base);
            assert_eq!(space.check_pages(range), Err(Error::OutOfRange { at }), "{range} of {space:?}");
        }
    }
}

#[test]
fn a_range_begins_and_ends_where_pages_of_the_size_do() {
    let check = |first, last, shift| {
        Space::of::<Va32>().check_sized(pages(Vpn::new(first), Vpn::new(last)), size(shift))
    };
    let off =
        |page, shift| Err(Error::Misaligned { at: Vpn::new(page).address(PageSize::K4), size: size(shift) });
    assert_eq!(check(5, 5, 12), Ok(()));
    assert_eq!(check(4, 7, 14), Ok(()));
    assert_eq!(check(4, 11, 14), Ok(()));
    assert_eq!(check(5, 7, 14), off(5, 14));
    assert_eq!(check(4, 6, 14), off(6, 14));
    assert_eq!(check(4, 8, 14), off(8, 14));
    assert_eq!(check(0, 0xfff, 24), Ok(()));
    for shift in [0, 11, 13, 23, 26] {
        assert_eq!(check(0, 0xf_ffff, shift), Err(Error::WrongSize { size: size(shift) }));
    }
}

#[test]
fn frames_end_where_physical_addresses_do() {
    for Known { space, sizes, .. } in spaces() {
        let base = space.base();
        let check = |frame, frames| space.check_frames(Pfn::new(frame), frames, base);
        let top = usize::MAX >> base.shift();
        assert_eq!(check(top, 1), Ok(()));
        assert_eq!(check(top - 7, 8), Ok(()));
        for (frame, frames) in [(top + 1, 1), (top, 2), (top - 7, 9), (usize::MAX, 1), (usize::MAX, 2)] {
            assert_eq!(
                check(frame, frames),
                Err(Error::FrameTooLarge { frame: Pfn::new(frame) }),
                "{frames}"
            );
        }
        // Of a large page the last frame counts.
        let large = size(sizes[1]);
        let count = large.pages(base).unwrap();
        assert_eq!(space.check_frames(Pfn::new(top + 1 - count), count, large), Ok(()));
        let frame = Pfn::new(count / 2);
        assert_eq!(
            space.check_frames(frame, count, large),
            Err(Error::MisalignedFrame { frame, size: large })
        );
    }
}

#[test]
fn a_leaf_covers_its_pages_and_its_frames() {
    let leaf =
        Leaf { at: VirtAddr::new(0x1_4000), size: PageSize::K16, frame: Pfn::new(8), attr: Attr::READ };
    assert_eq!(Space::of::<Va32>().pages_of(&leaf), pages(Vpn::new(0x14), Vpn::new(0x17)));
    assert_eq!(leaf.phys(VirtAddr::new(0x1_4000), PageSize::K4).get(), 0x8000);
    assert_eq!(leaf.phys(VirtAddr::new(0x1_7fff), PageSize::K4).get(), 0xbfff);
}
