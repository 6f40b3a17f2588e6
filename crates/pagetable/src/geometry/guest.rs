//! The spaces of a guest's physical addresses, which the second stage of a hypervisor's machine translates.

use core::marker::PhantomData;

use tlbkit_addr::PageSize;

use super::{Geometry, Radix, Stage, sizes, widths};
#[cfg(doc)]
use super::{Va39, Va48, Va57};

/// The guest-physical addresses of RISC-V's G-stage: two bits more than `G`, which is [`Va39`] (Sv39x4), [`Va48`] (Sv48x4) or
/// [`Va57`] (Sv57x4), zero-extended. The root has 2048 entries, 16 KiB.
#[derive(Clone, Copy, Debug)]
pub struct GuestX4<G>(PhantomData<G>);

impl<G: Radix> GuestX4<G> {
    const ALL: &'static [u32; 5] = &widths(G::VA_BITS + 2, G::WIDTHS.len(), 9);
}

impl<G: Radix> Geometry for GuestX4<G> {
    const VA_BITS: u32 = {
        assert!(matches!((G::VA_BITS, G::WIDTHS.len()), (39, 3) | (48, 4) | (57, 5)), "Sv39, Sv48 or Sv57");
        G::VA_BITS + 2
    };
    const BASE: PageSize = PageSize::K4;
    const STAGE: Stage = Stage::Riscv;
    const SIZES: &'static [PageSize] = &sizes([12, 21, 30]);
}

impl<G: Radix> Radix for GuestX4<G> {
    const WIDTHS: &'static [u32] = Self::ALL.split_at(G::WIDTHS.len()).0;
}

/// The guest-physical addresses of x86-64's EPT in four levels of nine bits (`LEVELS` is 4: 48 bits) or five (57 bits),
/// zero-extended.
#[derive(Clone, Copy, Debug)]
pub struct GuestEpt<const LEVELS: usize = 4>;

impl<const LEVELS: usize> Geometry for GuestEpt<LEVELS> {
    const VA_BITS: u32 = {
        assert!(LEVELS == 4 || LEVELS == 5, "an EPT page walk has four levels or five");
        12 + 9 * LEVELS as u32
    };
    const BASE: PageSize = PageSize::K4;
    const STAGE: Stage = Stage::Ept;
    const SIZES: &'static [PageSize] = &sizes([12, 21, 30]);
}

impl<const LEVELS: usize> Radix for GuestEpt<LEVELS> {
    const WIDTHS: &'static [u32] = {
        let most: &'static [u32] = &[9; 5];
        most.split_at(LEVELS).0
    };
}

/// The intermediate physical addresses of AArch64's stage 2 with the granule of 4 KiB: `BITS` bits, zero-extended, in `LEVELS`
/// levels. T0SZ of VTCR_EL2 is 64 - `BITS`, and SL0 is `LEVELS` - 2.
///
/// Each level but the root has nine index bits, the root the rest of the bits, one to thirteen: a root of more than nine bits
/// is 2 to 16 *concatenated* tables of 4 KiB. So 40 bits are three levels with a root of two tables, 8 KiB.
///
/// | `LEVELS` | `BITS` | the walk starts at | SL0 |
/// |-|-|-|-|
/// | 2 | 25 to 34 | level 2 | 0 |
/// | 3 | 31 to 43 | level 1 | 1 |
/// | 4 | 40 to 48 | level 0 | 2, which needs a physical address of more than 42 bits (ID_AA64MMFR0_EL1.PARange) |
#[derive(Clone, Copy, Debug)]
pub struct GuestIpa<const BITS: u32, const LEVELS: usize>;

impl<const BITS: u32, const LEVELS: usize> GuestIpa<BITS, LEVELS> {
    const ALL: &'static [u32; 5] = &widths(BITS, LEVELS, 9);
}

impl<const BITS: u32, const LEVELS: usize> Geometry for GuestIpa<BITS, LEVELS> {
    const VA_BITS: u32 = {
        assert!(
            matches!((LEVELS, BITS), (2, 25..=34) | (3, 31..=43) | (4, 40..=48)),
            "VTCR_EL2 has no such T0SZ and SL0"
        );
        BITS
    };
    const BASE: PageSize = PageSize::K4;
    const STAGE: Stage = Stage::Aarch64;
    const SIZES: &'static [PageSize] = if LEVELS == 2 { &sizes([12, 21]) } else { &sizes([12, 21, 30]) };
}

impl<const BITS: u32, const LEVELS: usize> Radix for GuestIpa<BITS, LEVELS> {
    const WIDTHS: &'static [u32] = Self::ALL.split_at(LEVELS).0;
}
