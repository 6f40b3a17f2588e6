//! What cannot be assembled is refused, and by what name.

mod common;

use common::tables::Kind;
use common::{Base32, Config};
use tlbkit_pagetable::geometry::{Va32, Va48};
use tlbkit_refill::Error;
use tlbkit_refill::asm::{Asm, Cp0, K0, K1};
use tlbkit_refill::features::{Features, Isa};
use tlbkit_refill::handler::{Form, Hashed, Lpt, Mpt, Place, Root, Spec, Stlb, Write};

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

#[test]
fn shapes_that_no_handler_knows() {
    assert_eq!(Mpt::of::<Va48>(), Err(Error::Geometry));
    assert!(Mpt::of::<Va32>().is_ok());
    assert_eq!(Lpt::of::<Va32, 0x8000_0000>(), Err(Error::BadAddress { address: 0x8000_0000 }));
    assert!(Lpt::of::<Va32, 0xc040_0000>().is_ok());
    assert_eq!(Hashed::of::<Va32>(0, 10, 0), Err(Error::Geometry));
    assert!(Hashed::of::<Va32>(1, 1, 100).is_ok());
    assert_eq!(Hashed::of::<Va32>(1, 19, 0), Err(Error::Geometry));
    assert_eq!(Stlb::new(0x8040_0000, 64), Err(Error::BadAddress { address: 0x8040_0000 }));
    assert_eq!(Stlb::new(0x8080_0000, 48), Err(Error::Geometry));
}

#[test]
fn code_that_is_none() {
    let mut a = Asm::new(Isa::R1);
    a.ins(K0, K1, 3, 9);
    assert_eq!(a.finish(9), Err(Error::NoInstruction { word: 0, needs: Isa::R2 }));

    let mut a = Asm::new(Isa::R2);
    a.dmfc0(K0, Cp0::BadVAddr);
    assert_eq!(a.finish(9), Err(Error::NoInstruction { word: 0, needs: Isa::Mips3 }));

    let mut a = Asm::new(Isa::R2);
    a.nop();
    a.ext(K0, K1, 30, 3);
    assert_eq!(a.finish(9), Err(Error::TooWide { word: 1 }));

    let mut a = Asm::new(Isa::R2);
    let nowhere = a.label();
    a.b(nowhere);
    assert_eq!(a.clone().finish(9), Err(Error::UnboundLabel { word: 0 }));
    a.bind_at(nowhere, 0x8001);
    assert_eq!(a.clone().finish(9), Err(Error::TooFar { word: 0 }));
    a.bind_at(nowhere, 0x8000);
    assert!(a.finish(9).is_ok());
}
