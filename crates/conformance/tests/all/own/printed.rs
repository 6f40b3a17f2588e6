printed! { LostPage:
#[test]
fn repeats() {
    use tlbkit_conformance::prelude::*;
    let ops = [
        Op::Map { pages: Pages::new(Vpn::new(0x0), Vpn::new(0x1ff)).unwrap(), frame: Pfn::new(0x0), size: PageSize::from_shift(21).unwrap(), attr: Attr::from_bits_retain(0x5) },
    ];
    replay::<crate::own::Tested>(Property::Agrees, &ops).unwrap();
}
}

printed! { FreedAtOnce:
#[test]
fn repeats() {
    use tlbkit_conformance::prelude::*;
    let ops = [
        Op::Map { pages: Pages::new(Vpn::new(0xfffffffffffff), Vpn::new(0xfffffffffffff)).unwrap(), frame: Pfn::new(0xffff), size: PageSize::from_shift(12).unwrap(), attr: Attr::from_bits_retain(0x5) },
        Op::Move { pages: Pages::new(Vpn::new(0xffffffffc0000), Vpn::new(0xfffffffffffff)).unwrap(), to: Vpn::new(0x3) },
    ];
    replay::<crate::own::Tested>(Property::HoldsBack, &ops).unwrap();
}
}

printed! { ZeroedFirst:
#[test]
fn repeats() {
    use tlbkit_conformance::prelude::*;
    let ops = [
        Op::Map { pages: Pages::new(Vpn::new(0x0), Vpn::new(0x0)).unwrap(), frame: Pfn::new(0x0), size: PageSize::from_shift(12).unwrap(), attr: Attr::from_bits_retain(0x5) },
        Op::Map { pages: Pages::new(Vpn::new(0xfffffffffffff), Vpn::new(0xfffffffffffff)).unwrap(), frame: Pfn::new(0x53b), size: PageSize::from_shift(12).unwrap(), attr: Attr::from_bits_retain(0x5) },
        Op::Resize { pages: Pages::new(Vpn::new(0x3fffc00), Vpn::new(0x3fffdff)).unwrap(), to: PageSize::from_shift(21).unwrap() },
        Op::Resize { pages: Pages::new(Vpn::new(0x0), Vpn::new(0x3ff)).unwrap(), to: PageSize::from_shift(21).unwrap() },
        Op::Map { pages: Pages::new(Vpn::new(0x2000000), Vpn::new(0x2000001)).unwrap(), frame: Pfn::new(0x0), size: PageSize::from_shift(12).unwrap(), attr: Attr::from_bits_retain(0x15) },
        Op::Protect { pages: Pages::new(Vpn::new(0xfffffffffffff), Vpn::new(0xfffffffffffff)).unwrap(), holes: Holes::Skip, change: Change { clear: Attr::from_bits_retain(0x22), set: Attr::from_bits_retain(0x4) } },
        Op::Resize { pages: Pages::new(Vpn::new(0xffffffdf1e000), Vpn::new(0xffffffdf3d5ff)).unwrap(), to: PageSize::from_shift(30).unwrap() },
        Op::Map { pages: Pages::new(Vpn::new(0x1ffffff), Vpn::new(0x1ffffff)).unwrap(), frame: Pfn::new(0x1658), size: PageSize::from_shift(13).unwrap(), attr: Attr::from_bits_retain(0x5) },
        Op::Drain { pages: Pages::new(Vpn::new(0x80000), Vpn::new(0x17ffff)).unwrap(), most: 2 },
        Op::Map { pages: Pages::new(Vpn::new(0x0), Vpn::new(0x8)).unwrap(), frame: Pfn::new(0x0), size: PageSize::from_shift(12).unwrap(), attr: Attr::from_bits_retain(0x5) },
        Op::Map { pages: Pages::new(Vpn::new(0x0), Vpn::new(0x0)).unwrap(), frame: Pfn::new(0x0), size: PageSize::from_shift(12).unwrap(), attr: Attr::from_bits_retain(0x85) },
        Op::Unmap { pages: Pages::new(Vpn::new(0x9), Vpn::new(0x9)).unwrap(), holes: Holes::Refuse },
        Op::Map { pages: Pages::new(Vpn::new(0x3fff600), Vpn::new(0x3ffffff)).unwrap(), frame: Pfn::new(0xa800), size: PageSize::from_shift(12).unwrap(), attr: Attr::from_bits_retain(0x8d) },
        Op::Drain { pages: Pages::new(Vpn::new(0x1), Vpn::new(0x1)).unwrap(), most: usize::MAX },
        Op::Map { pages: Pages::new(Vpn::new(0x400), Vpn::new(0x1f1ff)).unwrap(), frame: Pfn::new(0x1400), size: PageSize::from_shift(12).unwrap(), attr: Attr::from_bits_retain(0x85) },
        Op::Resize { pages: Pages::new(Vpn::new(0x2000000), Vpn::new(0x20001ff)).unwrap(), to: PageSize::from_shift(12).unwrap() },
        Op::Resize { pages: Pages::new(Vpn::new(0x0), Vpn::new(0x19ff)).unwrap(), to: PageSize::from_shift(21).unwrap() },
        Op::Map { pages: Pages::new(Vpn::new(0xffffffffffffe), Vpn::new(0xfffffffffffff)).unwrap(), frame: Pfn::new(0xfffe), size: PageSize::from_shift(13).unwrap(), attr: Attr::from_bits_retain(0x5) },
        Op::Map { pages: Pages::new(Vpn::new(0xffffffdf00000), Vpn::new(0xffffffdf001ff)).unwrap(), frame: Pfn::new(0xac01), size: PageSize::from_shift(12).unwrap(), attr: Attr::from_bits_retain(0x825) },
        Op::Map { pages: Pages::new(Vpn::new(0xffffffffe0e00), Vpn::new(0xfffffffffffff)).unwrap(), frame: Pfn::new(0xd200), size: PageSize::from_shift(21).unwrap(), attr: Attr::from_bits_retain(0x421) },
        Op::Map { pages: Pages::new(Vpn::new(0x1fffe00), Vpn::new(0x1ffffff)).unwrap(), frame: Pfn::new(0x7a00), size: PageSize::from_shift(12).unwrap(), attr: Attr::from_bits_retain(0xf) },
    ];
    replay::<crate::own::Tested>(Property::PublishesInOrder, &ops).unwrap();
}
}

printed! { ReadsTwice:
#[test]
fn repeats() {
    use tlbkit_conformance::prelude::*;
    let ops = [
        Op::Map { pages: Pages::new(Vpn::new(0x0), Vpn::new(0x0)).unwrap(), frame: Pfn::new(0x0), size: PageSize::from_shift(12).unwrap(), attr: Attr::from_bits_retain(0x5) },
        Op::Drain { pages: Pages::new(Vpn::new(0x1), Vpn::new(0x1)).unwrap(), most: usize::MAX },
        Op::Map { pages: Pages::new(Vpn::new(0x400), Vpn::new(0x1f1ff)).unwrap(), frame: Pfn::new(0x1400), size: PageSize::from_shift(12).unwrap(), attr: Attr::from_bits_retain(0x85) },
        Op::Resize { pages: Pages::new(Vpn::new(0x2000000), Vpn::new(0x20001ff)).unwrap(), to: PageSize::from_shift(12).unwrap() },
        Op::Resize { pages: Pages::new(Vpn::new(0x0), Vpn::new(0x19ff)).unwrap(), to: PageSize::from_shift(21).unwrap() },
        Op::Map { pages: Pages::new(Vpn::new(0xfffffffffffff), Vpn::new(0xfffffffffffff)).unwrap(), frame: Pfn::new(0xa17c), size: PageSize::from_shift(12).unwrap(), attr: Attr::from_bits_retain(0x805) },
        Op::Move { pages: Pages::new(Vpn::new(0xc00), Vpn::new(0x27ff)).unwrap(), to: Vpn::new(0x1fffffd) },
        Op::Map { pages: Pages::new(Vpn::new(0x2000000), Vpn::new(0x2000001)).unwrap(), frame: Pfn::new(0x0), size: PageSize::from_shift(12).unwrap(), attr: Attr::from_bits_retain(0x41) },
        Op::Map { pages: Pages::new(Vpn::new(0xffffffdf00000), Vpn::new(0xffffffdf00000)).unwrap(), frame: Pfn::new(0xdf9a), size: PageSize::from_shift(12).unwrap(), attr: Attr::from_bits_retain(0x47) },
        Op::Map { pages: Pages::new(Vpn::new(0xffffffffe0000), Vpn::new(0xffffffffe01ff)).unwrap(), frame: Pfn::new(0x1), size: PageSize::from_shift(12).unwrap(), attr: Attr::from_bits_retain(0x805) },
        Op::Fill { page: Vpn::new(0x0), payload: 0x2, frame: Pfn::new(0x7b5) },
        Op::Protect { pages: Pages::new(Vpn::new(0xfffffffffffff), Vpn::new(0xfffffffffffff)).unwrap(), holes: Holes::Skip, change: Change { clear: Attr::from_bits_retain(0x18), set: Attr::from_bits_retain(0x104) } },
        Op::Map { pages: Pages::new(Vpn::new(0xf1), Vpn::new(0xf2)).unwrap(), frame: Pfn::new(0xf1), size: PageSize::from_shift(12).unwrap(), attr: Attr::from_bits_retain(0x47) },
    ];
    replay::<crate::own::Tested>(Property::WalksBeside, &ops).unwrap();
}
}

printed! { WipedJoined:
#[test]
fn repeats() {
    use tlbkit_conformance::prelude::*;
    let ops = [
        Op::Map { pages: Pages::new(Vpn::new(0x0), Vpn::new(0x0)).unwrap(), frame: Pfn::new(0x0), size: PageSize::from_shift(12).unwrap(), attr: Attr::from_bits_retain(0x5) },
        Op::Map { pages: Pages::new(Vpn::new(0x0), Vpn::new(0x1fff)).unwrap(), frame: Pfn::new(0x0), size: PageSize::from_shift(12).unwrap(), attr: Attr::from_bits_retain(0x41) },
        Op::Unmap { pages: Pages::new(Vpn::new(0xffffffc000000), Vpn::new(0xfffffffffffff)).unwrap(), holes: Holes::Refuse },
        Op::Map { pages: Pages::new(Vpn::new(0x3fffc00), Vpn::new(0x3ffffff)).unwrap(), frame: Pfn::new(0x7200), size: PageSize::from_shift(12).unwrap(), attr: Attr::from_bits_retain(0x5) },
        Op::Map { pages: Pages::new(Vpn::new(0xffffffdf00000), Vpn::new(0xffffffdf01bff)).unwrap(), frame: Pfn::new(0x0), size: PageSize::from_shift(12).unwrap(), attr: Attr::from_bits_retain(0x41) },
        Op::Protect { pages: Pages::new(Vpn::new(0x2000000), Vpn::new(0x2000000)).unwrap(), holes: Holes::Skip, change: Change { clear: Attr::from_bits_retain(0x20), set: Attr::from_bits_retain(0x200) } },
        Op::Protect { pages: Pages::new(Vpn::new(0xffffffffffffe), Vpn::new(0xfffffffffffff)).unwrap(), holes: Holes::Refuse, change: Change { clear: Attr::from_bits_retain(0x810), set: Attr::from_bits_retain(0x40) } },
        Op::Lookup { at: VirtAddr::new(0x1fffc0031f) },
        Op::Map { pages: Pages::new(Vpn::new(0xfffffff7bb600), Vpn::new(0xfffffff7bb7ff)).unwrap(), frame: Pfn::new(0xb600), size: PageSize::from_shift(12).unwrap(), attr: Attr::from_bits_retain(0x41) },
    ];
    replay::<crate::own::Tested>(Property::WalksBeside, &ops).unwrap();
}
}

printed! { MarkBroken:
#[test]
fn repeats() {
    use tlbkit_conformance::prelude::*;
    let ops = [
        Op::Mark { page: Vpn::new(0x0), mark: Some(Mark::Guard) },
    ];
    replay::<crate::Marks>(Property::PublishesInOrder, &ops).unwrap();
}
}

printed! { EntryTwice:
#[test]
fn repeats() {
    use tlbkit_conformance::prelude::*;
    let ops = [
        Op::Map { pages: Pages::new(Vpn::new(0x0), Vpn::new(0x1ff)).unwrap(), frame: Pfn::new(0x0), size: PageSize::from_shift(12).unwrap(), attr: Attr::from_bits_retain(0x5) },
        Op::Move { pages: Pages::new(Vpn::new(0x0), Vpn::new(0x3ffff)).unwrap(), to: Vpn::new(0x1fffe00) },
        Op::Map { pages: Pages::new(Vpn::new(0xffffffc000006), Vpn::new(0xffffffc000006)).unwrap(), frame: Pfn::new(0x6), size: PageSize::from_shift(12).unwrap(), attr: Attr::from_bits_retain(0xf) },
        Op::Protect { pages: Pages::new(Vpn::new(0xf4), Vpn::new(0xf4)).unwrap(), holes: Holes::Refuse, change: Change { clear: Attr::from_bits_retain(0x800), set: Attr::from_bits_retain(0x80) } },
        Op::Map { pages: Pages::new(Vpn::new(0x3ffffff), Vpn::new(0x3ffffff)).unwrap(), frame: Pfn::new(0xffff), size: PageSize::from_shift(12).unwrap(), attr: Attr::from_bits_retain(0x85) },
        Op::Fill { page: Vpn::new(0xfffffffffffff), payload: 0x101b675, frame: Pfn::new(0xb776) },
        Op::Protect { pages: Pages::new(Vpn::new(0x0), Vpn::new(0x0)).unwrap(), holes: Holes::Skip, change: Change { clear: Attr::from_bits_retain(0x40), set: Attr::from_bits_retain(0x880) } },
        Op::ForEach { pages: Pages::new(Vpn::new(0xfffffffffffef), Vpn::new(0xffffffffffff0)).unwrap(), stop: usize::MAX },
        Op::Mark { page: Vpn::new(0xffffffc000000), mark: Some(Mark::Payload(0x0, Attr::from_bits_retain(0x5))) },
    ];
    replay::<crate::Marks>(Property::WalksBeside, &ops).unwrap();
}
}

printed! { MarkKept:
#[test]
fn repeats() {
    use tlbkit_conformance::prelude::*;
    let ops = [
        Op::Map { pages: Pages::new(Vpn::new(0x0), Vpn::new(0x0)).unwrap(), frame: Pfn::new(0x0), size: PageSize::from_shift(12).unwrap(), attr: Attr::from_bits_retain(0x5) },
        Op::Map { pages: Pages::new(Vpn::new(0x1), Vpn::new(0x10)).unwrap(), frame: Pfn::new(0x1), size: PageSize::from_shift(12).unwrap(), attr: Attr::from_bits_retain(0x47) },
        Op::Map { pages: Pages::new(Vpn::new(0x200), Vpn::new(0x15ff)).unwrap(), frame: Pfn::new(0xde00), size: PageSize::from_shift(21).unwrap(), attr: Attr::from_bits_retain(0x95) },
        Op::Map { pages: Pages::new(Vpn::new(0x400000b), Vpn::new(0x400000b)).unwrap(), frame: Pfn::new(0x5d68), size: PageSize::from_shift(12).unwrap(), attr: Attr::from_bits_retain(0x80d) },
        Op::Protect { pages: Pages::new(Vpn::new(0x3fffff7), Vpn::new(0x3ffffff)).unwrap(), holes: Holes::Refuse, change: Change { clear: Attr::from_bits_retain(0x108), set: Attr::from_bits_retain(0x100) } },
        Op::Protect { pages: Pages::new(Vpn::new(0x4000000), Vpn::new(0x4000000)).unwrap(), holes: Holes::Skip, change: Change { clear: Attr::from_bits_retain(0x801), set: Attr::from_bits_retain(0x3) } },
        Op::Unmap { pages: Pages::new(Vpn::new(0xffffffc000400), Vpn::new(0xffffffc000dfe)).unwrap(), holes: Holes::Refuse },
        Op::Replace { at: VirtAddr::new(0xffffffc000002f85), frame: Pfn::new(0x2), attr: Attr::from_bits_retain(0xf) },
        Op::Map { pages: Pages::new(Vpn::new(0xfffffffffff05), Vpn::new(0xfffffffffff05)).unwrap(), frame: Pfn::new(0xff05), size: PageSize::from_shift(12).unwrap(), attr: Attr::from_bits_retain(0x5) },
        Op::Protect { pages: Pages::new(Vpn::new(0x0), Vpn::new(0x3ffca00)).unwrap(), holes: Holes::Skip, change: Change { clear: Attr::from_bits_retain(0x208), set: Attr::from_bits_retain(0x4) } },
        Op::Drain { pages: Pages::new(Vpn::new(0x0), Vpn::new(0x0)).unwrap(), most: usize::MAX },
        Op::Map { pages: Pages::new(Vpn::new(0x3fffffd), Vpn::new(0x3fffffd)).unwrap(), frame: Pfn::new(0xfffd), size: PageSize::from_shift(12).unwrap(), attr: Attr::from_bits_retain(0xf) },
        Op::Resize { pages: Pages::new(Vpn::new(0xfffffffffee00), Vpn::new(0xfffffffffffff)).unwrap(), to: PageSize::from_shift(21).unwrap() },
        Op::Move { pages: Pages::new(Vpn::new(0xffffffdf00000), Vpn::new(0xffffffdf003ff)).unwrap(), to: Vpn::new(0xffffffca54800) },
        Op::Resize { pages: Pages::new(Vpn::new(0xffffffffffc00), Vpn::new(0xffffffffffdff)).unwrap(), to: PageSize::from_shift(12).unwrap() },
        Op::Lookup { at: VirtAddr::new(0xffffffe71b40000b) },
    ];
    replay::<crate::Marks>(Property::SurvivesUnwinding, &ops).unwrap();
}
}

