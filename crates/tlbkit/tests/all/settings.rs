//! What the control registers of a CPU must hold.
#![cfg(target_pointer_width = "64")]

use tlbkit::arch::{
    AArch64, AArch64Control, AArch64K16, AArch64K64, AArch64Of, AArch64Upper, Setting, X86_64, X86_64G1,
    X86_64La57, X86_64La57G1, X86Control,
};

/// The registers of a processor with everything on, and with four levels.
const X86: X86Control =
    X86Control { cr0: 1 << 31 | 1 << 16 | 1, cr4: 1 << 17 | 1 << 7 | 1 << 5, efer: 0xd01 };

fn field(wrong: Result<(), Setting>) -> Option<&'static str> {
    wrong.err().map(|setting| setting.field)
}

#[test]
fn each_field_that_x86_64_relies_on_is_named() {
    let five = X86Control { cr4: X86.cr4 | 1 << 12, ..X86 };
    assert_eq!((X86_64::check(X86, 12), X86_64G1::check(X86, 0)), (Ok(()), Ok(())));
    assert_eq!((X86_64La57::check(five, 12), X86_64La57G1::check(five, 0)), (Ok(()), Ok(())));
    assert_eq!(field(X86_64::check(five, 12)), Some("CR4.LA57"));
    assert_eq!(field(X86_64G1::check(five, 12)), Some("CR4.LA57"));
    assert_eq!(field(X86_64La57::check(X86, 12)), Some("CR4.LA57"));
    assert_eq!(field(X86_64La57G1::check(X86, 12)), Some("CR4.LA57"));
    assert_eq!(field(X86_64::check(X86Control { cr0: X86.cr0 & !(1 << 16), ..X86 }, 12)), Some("CR0.WP"));
    assert_eq!(field(X86_64::check(X86Control { efer: 0x501, ..X86 }, 12)), Some("EFER.NXE"));
    let without = X86Control { cr4: 1 << 7 | 1 << 5, ..X86 };
    assert_eq!((field(X86_64::check(without, 12)), X86_64::check(without, 0)), (Some("CR4.PCIDE"), Ok(())));
    let said = X86_64::check(without, 12).unwrap_err().to_string();
    assert_eq!(said, "CR4.PCIDE must be 0x1: otherwise bit 63 of CR3 is reserved, and `asid_bits` is not 0");
}

/// TCR_EL1 for both halves with a granule of 4 KiB, and ASIDs of 16 bits.
const TCR: u64 = 16 | 16 << 16 | 5 << 8 | 3 << 12 | 5 << 24 | 3 << 28 | 2 << 30 | 1 << 36;
const ARM: AArch64Control = AArch64Control { mair: AArch64::MAIR_EL1, tcr: TCR };

#[test]
fn each_field_that_aarch64_relies_on_is_named() {
    assert_eq!((AArch64::check(ARM, 16), AArch64Upper::check(ARM, 0)), (Ok(()), Ok(())));
    let lower = |bits: u64| field(AArch64::check(AArch64Control { tcr: TCR ^ bits, ..ARM }, 16));
    let upper = |bits: u64| field(AArch64Upper::check(AArch64Control { tcr: TCR ^ bits, ..ARM }, 0));
    let halves = [
        (1, 1 << 16, ["T0SZ", "T1SZ"]),
        (1 << 5, 1 << 21, ["T0SZ", "T1SZ"]),
        (1 << 7, 1 << 23, ["EPD0", "EPD1"]),
        (1 << 8, 1 << 24, ["IRGN0[0]", "IRGN1[0]"]),
        (1 << 10, 1 << 26, ["ORGN0[0]", "ORGN1[0]"]),
        (1 << 13, 1 << 29, ["SH0[1]", "SH1[1]"]),
        (1 << 14, 1 << 30, ["TG0", "TG1"]),
        (1 << 15, 1 << 31, ["TG0", "TG1"]),
    ];
    for (of_lower, of_upper, [in_lower, in_upper]) in halves {
        assert_eq!((lower(of_lower), upper(of_lower)), (Some(in_lower), None));
        assert_eq!((lower(of_upper), upper(of_upper)), (None, Some(in_upper)));
    }
    assert_eq!((lower(1 << 22), upper(1 << 59)), (Some("A1"), Some("DS")));
    assert_eq!((lower(1 << 36), upper(1 << 36)), (Some("AS"), None));
    assert_eq!(AArch64::check(AArch64Control { tcr: TCR ^ 1 << 36, ..ARM }, 8), Ok(()));
    assert_eq!(field(AArch64::check(AArch64Control { mair: 0xff, ..ARM }, 16)), Some("MAIR_EL1"));
    // Write-back without allocation on a write, and outer shareable.
    assert_eq!((lower(1 << 9 | 1 << 11 | 1 << 12), lower(3 << 37)), (None, None));
}

#[test]
fn the_fields_are_those_of_the_granule() {
    let with = |lower: u64, upper: u64, tsz: u64| AArch64Control {
        tcr: TCR & !(3 << 14 | 3 << 30 | 63 | 63 << 16) | lower << 14 | upper << 30 | tsz | tsz << 16,
        ..ARM
    };
    assert_eq!(AArch64K16::check(with(2, 1, 17), 16), Ok(()));
    assert_eq!(AArch64Of::<47, 14, false, true>::check(with(2, 1, 17), 0), Ok(()));
    assert_eq!(AArch64K64::check(with(1, 3, 16), 16), Ok(()));
    assert_eq!(AArch64Of::<48, 16, false, true>::check(with(1, 3, 16), 0), Ok(()));
    type Wide = AArch64Of<52, 12, false, false, true>;
    let wide = AArch64Control { tcr: with(0, 2, 12).tcr | 1 << 59, ..ARM };
    assert_eq!((Wide::check(wide, 16), field(Wide::check(with(0, 2, 12), 16))), (Ok(()), Some("DS")));
    assert_eq!(AArch64Of::<52, 16, false, false, true>::check(with(1, 3, 12), 16), Ok(()));
}
