//! Entry formats: what goes in comes out, changes touch nothing else, and words are those of the manuals.

use proptest::prelude::*;
use tlbkit_addr::{Attr, FlushScope, PageSize, Pfn};
#[cfg(target_pointer_width = "64")]
use tlbkit_pagetable::format::{
    Aarch64, Aarch64Guest, Aarch64Of, Compact, Ept, EptOf, RiscvOf, Sv39, Sv39x4, X86, X86Of,
};
use tlbkit_pagetable::format::{
    Compact32, EntryLo, EntryLoCoherent, EntryLoCow, EntryLoCowCoherent, Format, Paper, Sv32, check_change,
};
use tlbkit_pagetable::nodes::NodeAddr;
use tlbkit_pagetable::{Change, Error, Word};

/// What a test knows of a format besides the trait.
struct Known {
    /// Sizes of leaves where only leaves stand, and above, as shifts.
    last: &'static [u32],
    above: &'static [u32],
    frame_bits: u32,
    /// How many of them, from the lowest on, are one field; 0 for all.
    in_a_row: u32,
    node_bits: u32,
    /// Whether a device page is always uncached.
    device_uncached: bool,
    /// Whether a page that can be written or executed can be read.
    reads: bool,
}

const SOFT: &[u32] = &[12, 14, 16, 18, 20, 21, 22, 24, 30];
const MASKED: &[u32] = &[12, 14, 16, 18, 20, 22, 24, 26, 28];
const LARGER: &[u32] = &[14, 16, 18, 20, 22, 24, 26, 28];
const COMPACT: Known = Known {
    last: SOFT,
    above: SOFT,
    frame_bits: 44,
    in_a_row: 0,
    node_bits: 48,
    device_uncached: false,
    reads: false,
};
const COMPACT32: Known = Known { frame_bits: 20, node_bits: 32, ..COMPACT };
const MIPS: Known = Known {
    last: MASKED,
    above: LARGER,
    frame_bits: 24,
    in_a_row: 0,
    node_bits: 32,
    device_uncached: false,
    reads: false,
};
const MIPS_FRAMES: Known = Known { node_bits: 29, ..MIPS };
const SV39: Known = Known {
    last: &[12],
    above: &[21, 30],
    frame_bits: 44,
    in_a_row: 0,
    node_bits: 56,
    device_uncached: false,
    reads: true,
};
const SV32: Known = Known { above: &[22], frame_bits: 22, node_bits: 34, ..SV39 };
const NAPOT: Known = Known { last: &[12, 16], device_uncached: true, ..SV39 };
const X86_64: Known = Known { frame_bits: 40, node_bits: 52, device_uncached: true, ..SV39 };
const ARM: Known = Known { frame_bits: 36, node_bits: 48, device_uncached: true, ..SV39 };
const ARM_RUNS: Known = Known { last: &[12, 16], above: &[21, 25, 30, 34], ..ARM };
const ARM_K16: Known = Known { last: &[14, 21], above: &[25, 30], frame_bits: 34, ..ARM };
const ARM_K64: Known = Known { last: &[16, 21], above: &[29, 34], frame_bits: 32, ..ARM };
const ARM_52: Known = Known {
    last: &[12, 16],
    above: &[21, 25, 30, 34, 39],
    frame_bits: 40,
    in_a_row: 38,
    node_bits: 52,
    ..ARM
};
const ARM_52_K16: Known = Known { last: &[14], above: &[25, 36], frame_bits: 38, in_a_row: 36, ..ARM_52 };
const ARM_52_K64: Known =
    Known { last: &[16, 21], above: &[29, 34, 42], frame_bits: 36, in_a_row: 32, ..ARM_52 };

fn size(shift: u32) -> PageSize {
    PageSize::from_shift(shift).unwrap()
}

/// Raw choices, cut down to what a format can do.
#[derive(Clone, Copy, Debug)]
struct Choice {
    frame: u64,
    node: u64,
    size: usize,
    last: bool,
    attr: u32,
    set: u32,
    clear: u32,
}

fn choice() -> impl Strategy<Value = Choice> {
    (any::<u64>(), any::<u64>(), any::<usize>(), any::<bool>(), any::<u32>(), any::<u32>(), any::<u32>())
        .prop_map(|(frame, node, size, last, attr, set, clear)| Choice {
            frame,
            node,
            size,
            last,
            attr,
            set,
            clear,
        })
}

fn check<F: Format>(known: &Known, c: Choice) {
    let can = |bits: u32| {
        let attr = Attr::from_bits_truncate(bits) & F::OPTIONAL;
        // Not every variety of memory has a type.
        let typed = F::leaf(Pfn::new(0), F::BASE, attr, true).is_ok();
        if typed { attr } else { attr - Attr::VARIETY }
    };
    let normal = |attr: Attr| {
        let device = known.device_uncached && attr.contains(Attr::DEVICE);
        // Where hardware has a bit for any access, what can be written or executed can be read.
        let read = known.reads && attr.intersects(Attr::WRITE | Attr::EXEC);
        let attr = if read { attr | Attr::READ } else { attr };
        let access = Attr::READ | Attr::WRITE | Attr::EXEC;
        let closed = F::CLOSES && !attr.intersects(access);
        let implied = if closed { F::IMPLIED - access } else { F::IMPLIED };
        attr | implied | if device { Attr::UNCACHED } else { Attr::empty() }
    };
    let sizes = if c.last { known.last } else { known.above };
    let size = size(sizes[c.size % sizes.len()]);
    let frame = (c.frame & ((1 << known.frame_bits) - 1)) as usize & !(size.mask() >> F::BASE.shift());
    let attr = normal(can(c.attr));

    let leaf = F::leaf(Pfn::new(frame), size, can(c.attr), c.last).unwrap();
    let reads = |word: F::Word| {
        assert!(F::is_leaf(word, c.last));
        assert!(c.last || !F::is_link(word));
        // Formats that find the size by level are told it, or the one of a run's slots.
        let at_level = |slot: PageSize| F::size(word, slot) == size;
        assert!(sizes.iter().any(|&slot| at_level(self::size(slot))), "{size}");
        assert_eq!(F::frame(word, size), Pfn::new(frame));
        F::attr(word, c.last)
    };
    assert_eq!(reads(leaf), attr);
    let in_a_row = if known.in_a_row == 0 { usize::MAX } else { (1 << known.in_a_row) - 1 };
    if c.last && size == F::BASE {
        // Entries of base pages with the same attributes differ by their frames alone, and say what they were made of.
        let first = F::leaf(Pfn::new(0), size, can(c.attr), true).unwrap();
        assert_eq!(F::leading_to(first, Pfn::new(frame)), leaf);
        assert_eq!(F::leaf(Pfn::new(0), size, F::attr(leaf, true), true), Ok(first));
    }

    // What the format does not have is nothing to lose.
    let stray = Attr::from_bits_truncate(c.clear).difference(F::IMPLIED | F::OPTIONAL);
    let access = Attr::READ | Attr::WRITE | Attr::EXEC;
    let closes = F::CLOSES && c.frame.is_multiple_of(3);
    let lost = if closes { access & (F::IMPLIED | F::OPTIONAL) } else { Attr::empty() };
    let set = if closes { can(c.set) - access } else { can(c.set) } - F::FIXED;
    let change = Change { set, clear: (can(c.clear) - F::FIXED) | lost | stray };
    assert_eq!(check_change::<F>(change), Ok(()));
    assert_eq!(reads(F::change(leaf, change, c.last)), normal(change.apply(attr)));
    if let Some(masks) = F::masks(change, c.last) {
        assert_eq!(masks.apply(leaf), F::change(leaf, change, c.last));
    }

    // What hardware notes between a look and a change does not concern the bits that change.
    let status = Attr::ACCESSED | Attr::DIRTY;
    let noted = F::change(leaf, Change::set(can(c.node as u32) & status), c.last);
    let other = Change { set: change.set - status, clear: change.clear - status };
    let bits = |word: F::Word| word ^ F::change(word, other, c.last);
    assert!(!F::FLIPS || bits(noted) == bits(leaf));

    // A leaf that has all status bits does not change when they are set; a writable leaf with both has all of them.
    let set_both = |leaf| F::change(leaf, Change::set(status & F::OPTIONAL), c.last);
    assert!(!F::has_all_status(leaf) || set_both(leaf) == leaf);
    let written = F::change(leaf, Change::set(can(Attr::WRITE.bits()) - F::FIXED), c.last);
    assert!(!F::STATUS || F::has_all_status(set_both(written)));

    // The next page of a range is some steps away.
    let step = size.pages(F::BASE).unwrap();
    if let Ok(next) = F::leaf(Pfn::new(frame + step), size, can(c.attr), c.last)
        && frame & !in_a_row == (frame + step) & !in_a_row
    {
        assert_eq!(leaf.advance(F::STEP, step), next);
    }
    assert_eq!(F::beside(leaf, leaf), leaf);

    let node = NodeAddr::new((c.node & ((1 << known.node_bits) - 1)) as usize & !(F::LINK_ALIGN - 1));
    if node.get() != 0 && F::REACH.last(node).is_some_and(|last| node.get() <= last) {
        let link = F::link(node);
        assert!(F::is_link(link) && !F::is_leaf(link, false));
        assert_eq!(F::node(link), node);
        assert_eq!(F::beside(leaf, link), link);
    }
    assert!(!F::is_leaf(F::Word::ZERO, c.last) && !F::is_link(F::Word::ZERO));

    // A mark is no leaf where only leaves stand, whatever its bits.
    assert!(F::ABSENT <= 62 && F::absent_bits(F::Word::ZERO) == 0);
    if F::ABSENT > 0 {
        let bits = c.frame & ((1 << F::ABSENT) - 1);
        // As marks are.
        let bits = if bits & 3 == 0 { bits | c.node & 1 } else { bits };
        let bits = if bits & 3 == 0 { 0 } else { bits };
        let mark = F::absent(bits);
        assert_eq!(F::absent_bits(mark), bits);
        assert_eq!(mark == F::Word::ZERO, bits == 0);
        assert!(!F::is_leaf(mark, true));
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 16 } else { 2048 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn formats_of_32_bits_and_of_software_round_trip(c in choice()) {
        check::<Compact32>(&COMPACT32, c);
        check::<Paper>(&COMPACT32, c);
        check::<EntryLo>(&MIPS, c);
        check::<EntryLoCoherent>(&MIPS, c);
        check::<EntryLoCow>(&MIPS_FRAMES, c);
        check::<EntryLoCowCoherent>(&MIPS_FRAMES, c);
        check::<Sv32>(&SV32, c);
        #[cfg(target_pointer_width = "64")]
        check::<Compact>(&COMPACT, c);
    }

    #[test]
    #[cfg(target_pointer_width = "64")]
    fn formats_that_hardware_walks_round_trip(c in choice()) {
        check::<Sv39>(&SV39, c);
        check::<RiscvOf<false, true, true>>(&NAPOT, c);
        check::<Aarch64Of<12, true, false>>(&ARM_RUNS, c);
        check::<Aarch64Of<14, true, false>>(&ARM_K16, c);
        check::<Aarch64Of<16, true, true>>(&ARM_K64, c);
        check::<Aarch64Of<12, true, false, true>>(&ARM_52, c);
        check::<Aarch64Of<14, false, false, true>>(&ARM_52_K16, c);
        check::<Aarch64Of<16, true, true, true>>(&ARM_52_K64, c);
        check::<X86>(&X86_64, c);
        check::<X86Of<true, true>>(&X86_64, c);
        check::<X86Of<false, true, false>>(&X86_64, c);
        check::<Aarch64>(&ARM, c);
        check::<Sv39x4>(&SV39, c);
        check::<RiscvOf<false, true, true, true>>(&NAPOT, c);
        check::<Ept>(&X86_64, c);
        check::<EptOf<false, true>>(&X86_64, c);
        check::<Aarch64Guest>(&ARM, c);
    }

    /// What the TLB sees of an EntryLo word: the attribute fields, and the frame above the page size.
    #[test]
    fn entrylo_words_mean_to_hardware_what_they_mean_to_us(c in choice()) {
        let attr = Attr::from_bits_truncate(c.attr) & (EntryLo::OPTIONAL | EntryLo::IMPLIED);
        let size = size(MASKED[c.size % MASKED.len()]);
        let frame = c.frame as u32 & 0xff_ffff & !(size.mask() >> 12) as u32;
        let last = c.last || size == PageSize::K4;
        let word = EntryLo::leaf(Pfn::new(frame as usize), size, attr, last).unwrap();

        let used = 0x3fff_ffff & !((size.mask() >> 12 << 6) as u32);
        let c = if attr.contains(Attr::UNCACHED) { 2 } else { 3 };
        let v = u32::from(attr.intersects(RX | Attr::WRITE));
        let d = u32::from(attr.contains(if v == 1 { Attr::WRITE | Attr::DIRTY } else { Attr::DIRTY }));
        let g = u32::from(attr.contains(Attr::GLOBAL));
        prop_assert_eq!(word & used, frame << 6 | c << 3 | d << 2 | v << 1 | g);

        // A refill handler tells links by bit 31 where leaves are larger than 4 KiB.
        if size != PageSize::K4 {
            prop_assert_eq!(word >> 31, 0);
        }
    }
}

const RW: Attr = Attr::READ.union(Attr::WRITE);
const RX: Attr = Attr::READ.union(Attr::EXEC);
const USED: Attr = Attr::ACCESSED.union(Attr::DIRTY);

fn word<F: Format>(frame: usize, shift: u32, attr: Attr) -> u64 {
    F::leaf(Pfn::new(frame), size(shift), attr, shift < 21).unwrap().to_u64()
}

#[test]
fn entrylo_golden_words() {
    let word = word::<EntryLo>;
    let dirty = RW | Attr::DIRTY;
    // PFN 0x12345 is 0x48d140 in place; C = 3 is 0x18.
    assert_eq!(word(0x12345, 12, Attr::READ), 0x0048_d15a);
    assert_eq!(word(0x12345, 12, RW), 0x8048_d15a);
    assert_eq!(word(0x12345, 12, dirty), 0x0048_d15e);
    assert_eq!(word(0x12345, 12, Attr::READ | Attr::DIRTY), 0xc048_d15a);
    assert_eq!(word(0x12345, 12, dirty | Attr::GLOBAL), 0x0048_d15f);
    assert_eq!(word(0x12345, 12, dirty | Attr::UNCACHED), 0x0048_d156);
    // 16 KiB: digit 0; 64 KiB: digit 1; 16 MiB: digit 5.
    assert_eq!(word(0x12344, 14, Attr::READ), 0x4048_d15a);
    assert_eq!(word(0x12344, 14, RW), 0x4048_d19a);
    assert_eq!(word(0x12344, 14, Attr::READ | Attr::DIRTY), 0x4048_d1da);
    assert_eq!(word(0x12340, 16, dirty), 0x4048_d11e);
    assert_eq!(word(0x12000, 24, dirty), 0x4049_001e);
    // Where caches are coherent C is 5, 0x28.
    let coherent = |attr| EntryLoCoherent::leaf(Pfn::new(0x12345), PageSize::K4, attr, true).unwrap();
    assert_eq!(coherent(dirty), 0x0048_d16e);
    assert_eq!(coherent(dirty | Attr::UNCACHED), 0x0048_d156);
    // A node in kseg0 is its own link; a frame's is where kseg0 shows it.
    assert_eq!(EntryLo::link(NodeAddr::new(0x8012_3000)), 0x8012_3000);
    assert_eq!(EntryLoCow::link(NodeAddr::new(0x12_3000)), 0x8012_3000);
    // A page that is copied on a write has no D, and another C that caches alike: 5 is 0x28, 4 is 0x20, 7 is 0x38.
    let cow = |attr| EntryLoCow::leaf(Pfn::new(0x12345), PageSize::K4, attr, true).unwrap();
    let cow_coherent = |attr| EntryLoCowCoherent::leaf(Pfn::new(0x12345), PageSize::K4, attr, true).unwrap();
    let copied = Attr::READ | Attr::COPY_ON_WRITE;
    assert_eq!((cow(dirty), cow(copied), cow(copied | Attr::DIRTY)), (0x0048_d15e, 0x0048_d16a, 0xc048_d16a));
    assert_eq!((cow_coherent(dirty), cow_coherent(copied)), (0x0048_d16e, 0x0048_d162));
    assert_eq!((cow(RW | Attr::UNCACHED), cow(copied | Attr::UNCACHED)), (0x8048_d152, 0x0048_d17a));
}

#[test]
fn an_absent_half_of_a_global_pair_says_global_and_nothing_else() {
    let leaf = |attr| EntryLo::leaf(Pfn::new(5), PageSize::K4, attr, true).unwrap();
    let (global, local) = (leaf(RW | Attr::GLOBAL), leaf(RW));
    assert_eq!(EntryLo::beside(global, 0), 1);
    assert_eq!(EntryLo::beside(local, 1), 0);
    assert_eq!(EntryLo::beside(0, 1), 0);
    assert_eq!(EntryLo::beside(1, 1), 0, "two absent halves are not global");
    assert_eq!(EntryLo::beside(0, global), global);
    assert_eq!(EntryLo::beside(global, local), local);
    assert!(!EntryLo::is_leaf(1, true) && !EntryLo::is_link(1));
}

#[test]
#[cfg(target_pointer_width = "64")]
fn sv39_golden_words() {
    let word = word::<Sv39>;
    // PPN 0x12345 is 0x48d1400 in place.
    assert_eq!(word(0x12345, 12, Attr::READ), 0x048d_1403);
    assert_eq!(word(0x12345, 12, RW | USED), 0x048d_14c7);
    assert_eq!(word(0x12345, 12, RX | Attr::USER | Attr::ACCESSED), 0x048d_145b);
    assert_eq!(word(0x200, 21, RW | USED | Attr::GLOBAL), 0x0008_00e7);
    assert_eq!(Sv39::link(NodeAddr::new(0x8020_1000)), 0x2008_0401);
}

#[test]
#[cfg(target_pointer_width = "64")]
fn riscv_golden_words_of_svnapot_and_svpbmt() {
    type Napot = RiscvOf<true, true, true>;
    let (n, nc, io) = (1 << 63, 1 << 61, 1 << 62);
    // The PPN of a page of 64 KiB ends in 1000: 0x12348.
    assert_eq!(word::<Napot>(0x12340, 16, RW | USED), n | 0x048d_20c7);
    let leaf = |size| Napot::frame(n | 0x048d_20c7, size);
    assert_eq!(
        (leaf(PageSize::K64), Napot::size(n | 0x048d_20c7, PageSize::K4)),
        (Pfn::new(0x12340), PageSize::K64)
    );
    assert_eq!(word::<Napot>(0x12345, 12, RW | Attr::UNCACHED), nc | 0x048d_1407);
    assert_eq!(word::<Napot>(0x12345, 12, RW | Attr::DEVICE), io | 0x048d_1407);
    assert_eq!(word::<Napot>(0x12345, 12, RW | Attr::SOFT_1), 0x048d_1607);
    let device = word::<Napot>(0x12345, 12, RW | Attr::DEVICE);
    assert_eq!(Napot::change(device, Change::clear(Attr::DEVICE), true), nc | 0x048d_1407);
    assert_eq!(Napot::change(device, Change::clear(Attr::MEMORY), true), 0x048d_1407);
    // A hart without the extensions faults on these bits: no word of its formats has them.
    let wrong = Err(Error::WrongSize { size: PageSize::K64 });
    assert_eq!(Sv39::leaf(Pfn::new(0x12340), PageSize::K64, RW, true), wrong);
    assert!(!Sv39::OPTIONAL.contains(Attr::UNCACHED));
}

#[test]
fn sv32_golden_words() {
    let word = |frame, shift, attr| Sv32::leaf(Pfn::new(frame), size(shift), attr, shift == 12).unwrap();
    assert_eq!(word(0x12345, 12, Attr::READ), 0x048d_1403);
    assert_eq!(word(0x12345, 12, RW | USED), 0x048d_14c7);
    // The last frame below 2^34, and a megapage of four mebibytes.
    assert_eq!(word(0x3f_ffff, 12, RX | Attr::USER), 0xffff_fc1b);
    assert_eq!(word(0x400, 22, RW | Attr::GLOBAL), 0x0010_0027);
    assert_eq!(Sv32::link(NodeAddr::new(0x8020_1000)), 0x2008_0401);
    assert_eq!(Sv32::node(0x2008_0401), NodeAddr::new(0x8020_1000));
    let two = PageSize::M2;
    assert_eq!(Sv32::leaf(Pfn::new(0), two, RW, false), Err(Error::WrongSize { size: two }));
}

#[test]
#[cfg(target_pointer_width = "64")]
fn x86_64_golden_words() {
    let word = word::<X86>;
    let no_execute = 1 << 63;
    assert_eq!(word(0x12345, 12, RX), 0x1234_5001);
    assert_eq!(word(0x12345, 12, RW), no_execute | 0x1234_5003);
    assert_eq!(word(0x12345, 12, RX | Attr::WRITE | Attr::USER | USED), 0x1234_5067);
    assert_eq!(word(0x12345, 12, RW | Attr::UNCACHED), no_execute | 0x1234_5013);
    assert_eq!(word(0xfee00, 12, RW | Attr::DEVICE | Attr::GLOBAL), no_execute | 0xfee0_011b);
    assert_eq!(word(0x200, 21, RX | USED), 0x0020_00e1);
    assert_eq!(word(0x40000, 30, RW | Attr::GLOBAL), no_execute | 0x4000_0183);
    assert_eq!(word(0x12345, 12, RX | Attr::SOFTWARE), 1 << 52 | 0x1234_5601);
    assert_eq!(X86::link(NodeAddr::new(0x1000)), 0x1007);
    // Hardware sets A in links.
    assert_eq!(X86::node(0x1027), NodeAddr::new(0x1000));
}

/// Where EFER.NXE is off, XD is reserved in every entry.
#[test]
#[cfg(target_pointer_width = "64")]
fn x86_64_golden_words_without_xd() {
    type Old = X86Of<false, false, false>;
    let word = word::<Old>;
    assert_eq!((word(0x12345, 12, Attr::READ), word(0x200, 21, RW | USED)), (0x1234_5001, 0x0020_00e3));
    // Closed, it is not present; opened, it can be executed.
    let closed = word(0x12345, 12, Attr::USER);
    assert_eq!((closed, Old::attr(closed, true)), (0x1234_5804, Attr::USER));
    let open = Old::change(closed, Change::set(Attr::READ), true);
    assert_eq!((open, Old::attr(open, true)), (0x1234_5005, RX | Attr::USER));
    let closing = Change::clear(RX | Attr::WRITE);
    assert_eq!((check_change::<Old>(closing), Old::change(open, closing, true)), (Ok(()), closed));
    let refused = Err(Error::WrongAttr { attr: Attr::EXEC });
    assert_eq!(check_change::<Old>(Change::clear(Attr::EXEC)), refused);
}

/// PAT is bit 7 of a 4 KiB leaf, and bit 12 of a larger one; a key is bits 62 to 59.
#[test]
#[cfg(target_pointer_width = "64")]
fn x86_64_golden_words_of_pat_and_keys() {
    type Pat = X86Of<true, true>;
    let no_execute = 1 << 63;
    assert_eq!(word::<Pat>(0x12345, 12, RW | Attr::UNCACHED), no_execute | 0x1234_5083);
    assert_eq!(word::<Pat>(0x200, 21, RW | Attr::UNCACHED), no_execute | 0x0020_1083);
    assert_eq!(word::<Pat>(0x40000, 30, RX | Attr::UNCACHED), 0x4000_1081);
    assert_eq!(word::<Pat>(0xfee00, 12, RW | Attr::DEVICE), no_execute | 0xfee0_001b);
    assert_eq!(word::<Pat>(0x200, 21, RX | Attr::DEVICE), 0x0020_0099);
    // A change knows where the bit is; PS stays, and so does the frame.
    for (frame, shift, plain) in [(0x12345, 12, 0x1234_5001), (0x200, 21, 0x0020_0081)] {
        let last = shift == 12;
        let pat = word::<Pat>(frame, shift, RX | Attr::UNCACHED);
        assert_eq!(Pat::change(pat, Change::clear(Attr::UNCACHED), last), plain);
        assert_eq!(Pat::change(plain, Change::set(Attr::UNCACHED), last), pat);
        assert_eq!(Pat::change(pat, Change::set(Attr::WRITE), last), pat | 2);
        assert_eq!(
            (Pat::attr(pat, last), Pat::frame(pat, size(shift))),
            (RX | Attr::UNCACHED, Pfn::new(frame))
        );
    }
    let keyed = |key| word::<Pat>(0x12345, 12, RX | Attr::of_key(key));
    assert_eq!([keyed(0), keyed(1), keyed(15)], [0x1234_5001, 1 << 59 | 0x1234_5001, 15 << 59 | 0x1234_5001]);
    let five = Change { clear: Attr::KEY, set: Attr::of_key(5) };
    assert_eq!((Pat::change(keyed(10), five, true), Pat::attr(keyed(10), true).key()), (keyed(5), 10));
    assert_eq!(
        (five.scope(), Change::set(Attr::KEY_1).scope()),
        (FlushScope::Everywhere, FlushScope::Everywhere)
    );
    // IA32_PAT: of the fifth field, PAT without PCD and PWT, the type is 1, write-combining.
    assert_eq!(Pat::IA32_PAT >> 32 & 0xff, 1);
    assert!(!X86::OPTIONAL.intersects(Attr::KEY));
}

#[test]
#[cfg(target_pointer_width = "64")]
fn aarch64_golden_words() {
    let word = word::<Aarch64>;
    let (dbm, pxn, uxn, was_dirty) = (1 << 51, 1 << 53, 1 << 54, 1 << 55);
    // nG 0x800, AF 0x400, inner shareable 0x300, read-only 0x80, EL0 0x40.
    assert_eq!(word(0x12345, 12, Attr::READ), pxn | uxn | 0x1234_5b83);
    assert_eq!(word(0x12345, 12, RX | Attr::ACCESSED), uxn | 0x1234_5f83);
    assert_eq!(word(0x12345, 12, RX | Attr::USER | Attr::ACCESSED), pxn | 0x1234_5fc3);
    assert_eq!(word(0x12345, 12, RW | Attr::ACCESSED), dbm | pxn | uxn | 0x1234_5f83);
    assert_eq!(word(0x12345, 12, RW | USED), dbm | pxn | uxn | 0x1234_5f03);
    assert_eq!(word(0x12345, 12, Attr::READ | USED), was_dirty | pxn | uxn | 0x1234_5f83);
    assert_eq!(word(0x09000, 12, RW | USED | Attr::DEVICE), dbm | pxn | uxn | 0x0900_0f0b);
    assert_eq!(word(0x09000, 12, RW | USED | Attr::UNCACHED), dbm | pxn | uxn | 0x0900_0f07);
    assert_eq!(word(0x200, 21, RW | USED | Attr::GLOBAL), dbm | pxn | uxn | 0x0020_0701);
    assert_eq!(word(0x12345, 12, Attr::READ | Attr::SOFTWARE), 7 << 56 | pxn | uxn | 0x1234_5b83);
    assert_eq!(Aarch64::link(NodeAddr::new(0x4008_0000)), 0x4008_0003);
}

/// Eight types, and nothing else.
#[test]
#[cfg(target_pointer_width = "64")]
fn aarch64_golden_words_of_memory_types() {
    assert_eq!(Aarch64::MAIR, 0x0c08_00f0_bb04_44ff);
    let types = [
        Attr::empty(),
        Attr::UNCACHED,
        Attr::DEVICE,
        Attr::WRITE_THROUGH,
        Attr::TAGGED,
        Attr::STRICT,
        Attr::REORDERED,
        Attr::GATHERED,
    ];
    for (index, kind) in (0..).zip(types) {
        let plain = word::<Aarch64>(0x12345, 12, Attr::READ);
        let word = word::<Aarch64>(0x12345, 12, Attr::READ | kind);
        assert_eq!(word, plain | index << 2);
        let brings = if kind.contains(Attr::DEVICE) { Attr::UNCACHED } else { Attr::empty() };
        assert_eq!(Aarch64::attr(word, true), Attr::READ | kind | brings);
        let closed = Aarch64::change(word, Change::clear(Attr::READ), true);
        assert_eq!(Aarch64::change(closed, Change::set(Attr::READ), true), word);
    }
    for wrong in [Attr::VARIETY, Attr::UNCACHED | Attr::VARIETY_1, Attr::UNCACHED | Attr::VARIETY_2] {
        let attr = Attr::READ | wrong;
        assert_eq!(Aarch64::leaf(Pfn::new(0), PageSize::K4, attr, true), Err(Error::WrongAttr { attr }));
    }
    for variety in [Attr::VARIETY_1, Attr::VARIETY_2] {
        let refused = Err(Error::WrongAttr { attr: variety });
        assert_eq!(check_change::<Aarch64>(Change::set(variety)), refused);
        assert_eq!(check_change::<Aarch64>(Change::clear(variety)), refused);
        assert_eq!(Change::set(variety).scope(), FlushScope::Everywhere);
        assert!(
            ![Sv39::OPTIONAL, X86::OPTIONAL, Compact::OPTIONAL].iter().any(|all| all.intersects(variety))
        );
    }
}

#[test]
#[cfg(target_pointer_width = "64")]
fn aarch64_golden_words_of_runs_and_larger_granules() {
    type Runs = Aarch64Of<12, true, false>;
    type K16 = Aarch64Of<14, true, false>;
    type K64 = Aarch64Of<16, true, false>;
    let (run, never) = (1 << 52, 3 << 53);
    // Each slot has an address of its own: the first has that of the page.
    let word = word::<Runs>(0x12340, 16, Attr::READ);
    assert_eq!((word, word.advance(Runs::STEP, 1)), (run | never | 0x1234_0b83, run | never | 0x1234_1b83));
    assert_eq!(Runs::frame(word.advance(Runs::STEP, 15), PageSize::K64), Pfn::new(0x12340));
    let leaf = |shift, last| Runs::leaf(Pfn::new(0), size(shift), Attr::READ, last).unwrap();
    let plain = [leaf(12, true), leaf(21, false), leaf(30, false)];
    assert_eq!([leaf(16, true), leaf(25, false), leaf(34, false)], plain.map(|word| run | word));
    for (slot, shift) in [(12, 16), (21, 25), (30, 34)] {
        assert_eq!(Runs::size(run | plain[0], size(slot)), size(shift));
    }
    // 16 KiB: 128 pages of the last level, 32 blocks above. 64 KiB: 32 of either.
    assert_eq!([K16::size(run, size(14)), K16::size(run, size(25))], [size(21), size(30)]);
    assert_eq!([K64::size(run, size(16)), K64::size(run, size(29))], [size(21), size(34)]);
    let of_frame = |word: Result<u64, Error>| word.unwrap() & 0xffff_ffff_f003;
    assert_eq!(of_frame(K16::leaf(Pfn::new(3), size(14), RW, true)), 0xc003);
    assert_eq!(of_frame(K16::leaf(Pfn::new(0x800), size(25), RW, false)), 0x0200_0001);
    assert_eq!(of_frame(K64::leaf(Pfn::new(3), size(16), RW, true)), 0x3_0003);
    assert_eq!(of_frame(K64::leaf(Pfn::new(0x2000), size(29), RW, false)), 0x2000_0001);
    for (shift, last) in [(12, true), (22, false), (36, false)] {
        let refused = Err(Error::WrongSize { size: size(shift) });
        assert_eq!(K16::leaf(Pfn::new(0), size(shift), RW, last), refused);
    }
    assert_eq!(Aarch64::leaf(Pfn::new(0), size(16), RW, true), Err(Error::WrongSize { size: size(16) }));
}

/// The highest bits of an address of 52 stand where SH is with granules of 4 and 16 KiB, and below the others with one of
/// 64 KiB.
#[test]
#[cfg(target_pointer_width = "64")]
fn aarch64_golden_words_of_52_bits() {
    type K4 = Aarch64Of<12, false, false, true>;
    type K16 = Aarch64Of<14, false, false, true>;
    type K64 = Aarch64Of<16, false, false, true>;
    let never = 3 << 53;
    let high = |bit: u32, granule: u32| 1 << (bit - granule);
    let k4 = word::<K4>;
    assert_eq!(k4(0x12345, 12, Attr::READ), never | 0x1234_5883);
    assert_eq!(k4(high(50, 12), 12, Attr::READ), never | 0x983);
    assert_eq!(k4(high(51, 12), 12, Attr::READ), never | 0xa83);
    assert_eq!(k4(high(49, 12), 12, Attr::READ), never | 1 << 49 | 0x883);
    assert_eq!(k4(high(51, 12), 21, Attr::READ), never | 0xa81);
    assert_eq!(K4::link(NodeAddr::new(0xd_0000_4008_0000)), 1 << 48 | 0x4008_0303);
    assert_eq!(K16::link(NodeAddr::new(0x8_0000_4008_0000)), 0x4008_0203);
    assert_eq!(K64::link(NodeAddr::new(0xd_0000_4008_0000)), 0x4008_d003);
    let page = |word: Result<u64, Error>| word.unwrap();
    assert_eq!(page(K16::leaf(Pfn::new(high(51, 14)), size(14), Attr::READ, true)), never | 0xa83);
    // There SH stays.
    assert_eq!(page(K64::leaf(Pfn::new(high(48, 16)), size(16), Attr::READ, true)), never | 0x1b83);
    assert_eq!(page(K64::leaf(Pfn::new(high(51, 16)), size(29), Attr::READ, false)), never | 0x8b81);
    // FEAT_LPA2 and FEAT_LPA add blocks one level further up.
    assert_eq!(k4(0x800_0000, 39, Attr::READ), never | 1 << 39 | 0x881);
    assert_eq!(k4(high(51, 12), 39, Attr::READ), never | 0xa81);
    assert_eq!(page(K16::leaf(Pfn::new(high(36, 14)), size(36), Attr::READ, false)), never | 1 << 36 | 0x881);
    assert_eq!(page(K64::leaf(Pfn::new(high(51, 16)), size(42), Attr::READ, false)), never | 0x8b81);
    for narrow in [Aarch64::leaf, Aarch64Of::<12, true, false>::leaf] {
        let refused = Err(Error::WrongSize { size: size(39) });
        assert_eq!(narrow(Pfn::new(0), size(39), Attr::READ, false), refused);
    }
    type Runs = Aarch64Of<12, true, false, true>;
    for shift in [39, 43] {
        let leaf = Runs::leaf(Pfn::new(0), size(shift), Attr::READ, false);
        assert_eq!(
            leaf.map(|word| word >> 52 & 1).ok(),
            (shift == 39).then_some(0),
            "of them there are no runs"
        );
    }
    ends_at::<K4>(52 - 12);
    for frame in [Pfn::new(1 << 36), Pfn::new(usize::MAX)] {
        assert_eq!(K64::leaf(frame, size(16), Attr::READ, true), Err(Error::FrameTooLarge { frame }));
    }
}

/// Hardware takes no notice of what stands in an entry whose bit 0 is clear: there the page that allows nothing is kept with its
/// frame and its other attributes, and there marks are.
#[test]
#[cfg(target_pointer_width = "64")]
fn hardware_finds_closed_pages_and_marks_not_present() {
    fn check<F: Format<Word = u64>>() {
        let kept = (Attr::USER | Attr::DIRTY | Attr::ACCESSED | Attr::COPY_ON_WRITE) & F::OPTIONAL;
        for (frame, shift) in [(0x12345, 12), (0x200, 21), (0x40000, 30)] {
            let last = shift == 12;
            let leaf = |word| (F::is_leaf(word, last), F::frame(word, size(shift)), F::attr(word, last));
            let closed = word::<F>(frame, shift, kept);
            assert_eq!((closed & 1, leaf(closed)), (0, (true, Pfn::new(frame), kept)));
            assert!(last || !F::is_link(closed));
            // A right opens it, and it closes when the last is gone.
            let open = F::change(closed, Change::set(Attr::WRITE), last);
            assert_eq!((open & 1, leaf(open).2), (1, kept | RW));
            assert_eq!(
                F::change(open, Change::clear(Attr::READ), last),
                open,
                "what can be written can be read"
            );
            assert_eq!(F::change(open, Change::clear(RX | Attr::WRITE), last), closed);
            let read = F::change(open, Change::clear(Attr::WRITE), last);
            assert_eq!((read & 1, F::change(read, Change::clear(Attr::READ), last)), (1, closed));
            assert_eq!(leaf(F::change(closed, Change::clear(Attr::DIRTY), last)).2, kept - Attr::DIRTY);
        }
        for bits in [1, 2, 3, 0x1234_5678, (1 << F::ABSENT) - 1] {
            assert_eq!((F::absent(bits) & 1, F::absent_bits(F::absent(bits))), (0, bits));
        }
    }
    check::<Sv39>();
    check::<X86>();
    check::<Aarch64>();
    check::<Aarch64Of<12, false, false, true>>();
    check::<Sv39x4>();
    check::<Ept>();
    check::<Aarch64Guest>();
    // As many as the formats leave; on x86-64 small ones lead a speculating processor to no memory.
    assert_eq!([Sv39::ABSENT, X86::ABSENT, Aarch64::ABSENT, Compact::ABSENT], [62; 4]);
    assert_eq!([Compact32::ABSENT, Paper::ABSENT], [30; 2]);
    // And without S, by which a refill handler tells larger pages.
    assert_eq!((EntryLo::ABSENT, EntryLo::absent((1 << EntryLo::ABSENT) - 1)), (28, 0x3fff_fffc));
    // 0x2469 is 9 in the ten upper bits, inverted, and 0x069 in the ten lower ones.
    assert_eq!(X86::absent(0x1234 << 1 | 1), 0xffff_ffff_ffff_60d2);
}

/// A TLB takes an entry without V, whatever else is in it, and an access to it faults.
#[test]
fn a_closed_page_of_mips_has_no_v_and_keeps_the_rest() {
    type Cow = EntryLoCow;
    let kept = Attr::USER | Attr::DIRTY | Attr::GLOBAL | Attr::COPY_ON_WRITE;
    let closed = |attr, shift| Cow::leaf(Pfn::new(0x12344), size(shift), attr, true).unwrap();
    // S is 3 for a page of 4 KiB, and 1 for larger ones, whose digit is 3; D tells dirty ones.
    assert_eq!((closed(Attr::USER, 12), closed(Attr::DIRTY, 12)), (0xc048_d118, 0xc048_d11c));
    assert_eq!((closed(kept, 12), closed(kept, 14)), (0xc048_d12d, 0x4048_d1ed));
    for shift in [12, 14] {
        let word = closed(kept, shift);
        assert_eq!((word & 2, Cow::is_leaf(word, true), Cow::attr(word, true)), (0, true, kept));
        assert_eq!(
            (Cow::frame(word, size(shift)), Cow::size(word, PageSize::K4)),
            (Pfn::new(0x12344), size(shift))
        );
        // Any right opens it for loads and fetches; all go together.
        let open = Cow::change(word, Change::set(Attr::READ), true);
        assert_eq!((open & 6, Cow::attr(open, true)), (2, kept | RX));
        let closing = Change::clear(RX | Attr::WRITE);
        assert_eq!((check_change::<Cow>(closing), Cow::change(open, closing, true)), (Ok(()), word));
        let written = Cow::change(word, Change::set(RW), true);
        assert_eq!((written & 6, Cow::change(written, closing, true)), (6, word));
        // The absent half beside a global page that is closed is as that of an open one.
        assert_eq!((Cow::beside(word, 0), Cow::beside(closed(Attr::USER, shift), 1)), (1, 0));
    }
    // Above the last level a leaf has S = 1, closed or not, and a link has not.
    let above = |attr| Cow::leaf(Pfn::new(0x12000), size(24), attr, false).unwrap();
    for word in [above(Attr::empty()), above(Attr::READ), above(RW | Attr::DIRTY)] {
        assert_eq!((word >> 30, Cow::is_leaf(word, false), Cow::is_link(word)), (1, true, false));
    }
    let refused = Cow::leaf(Pfn::new(0), PageSize::K4, Attr::READ, false);
    assert_eq!(refused, Err(Error::WrongSize { size: PageSize::K4 }));
    let reach = |at: usize| EntryLo::REACH.last(NodeAddr::new(at));
    assert_eq!(
        (reach(0x3fff_ffff), reach(0x4000_0000), reach(0x8000_0000)),
        (Some(0x3fff_ffff), None, Some(usize::MAX))
    );
    // Marks have S = 0, and so are no leaves.
    assert!(!Cow::is_leaf(Cow::absent((1 << Cow::ABSENT) - 1), true));
    for lost in [Attr::READ, Attr::EXEC, RX] {
        assert_eq!(check_change::<Cow>(Change::clear(lost)), Err(Error::WrongAttr { attr: lost }));
    }
}

/// The last frame that a format has bits for, and the first that it has not.
fn ends_at<F: Format>(frame_bits: u32) {
    let last = Pfn::new((1 << frame_bits) - 1);
    let leaf = F::leaf(last, PageSize::K4, Attr::READ, true).unwrap();
    assert_eq!((F::frame(leaf, PageSize::K4), F::attr(leaf, true)), (last, Attr::READ | F::IMPLIED));
    for frame in [Pfn::new(1 << frame_bits), Pfn::new(usize::MAX)] {
        assert_eq!(F::leaf(frame, PageSize::K4, Attr::READ, true), Err(Error::FrameTooLarge { frame }));
    }
}

#[test]
fn physical_memory_ends_where_the_manuals_say() {
    // 4 GiB for a word that holds an address; EntryLo has a PFN of 24 bits: 64 GiB.
    ends_at::<Compact32>(32 - 12);
    ends_at::<Paper>(32 - 12);
    ends_at::<EntryLo>(36 - 12);
    #[cfg(target_pointer_width = "64")]
    {
        ends_at::<Compact>(64 - 12);
        // A PPN of 44 bits; a physical address of 52 bits; one of 48.
        ends_at::<Sv39>(56 - 12);
        ends_at::<X86>(52 - 12);
        ends_at::<Aarch64>(48 - 12);
        ends_at::<Sv39x4>(56 - 12);
        ends_at::<Ept>(52 - 12);
        ends_at::<Aarch64Guest>(48 - 12);
    }
}

#[test]
fn sizes_that_hardware_does_not_have_are_refused() {
    let k4 = PageSize::K4;
    let wrong = size(13);
    assert_eq!(EntryLo::leaf(Pfn::new(0), wrong, RW, true), Err(Error::WrongSize { size: wrong }));
    #[cfg(target_pointer_width = "64")]
    {
        let large = Err(Error::WrongSize { size: PageSize::M2 });
        assert_eq!(X86::leaf(Pfn::new(0), PageSize::M2, RW, true), large);
        assert_eq!(Sv39::leaf(Pfn::new(0), k4, RW, false), Err(Error::WrongSize { size: k4 }));
    }
}

/// Of all powers of two, a format has these where only leaves stand, and these above; the last of its frames can be the end of a
/// page of each size, and none behind it the beginning.
#[cfg(target_pointer_width = "64")]
fn has_sizes<F: Format>(last: &[u32], above: &[u32], phys: u32) {
    for (sizes, is_last) in [(last, true), (above, false)] {
        for shift in F::BASE.shift()..48 {
            let size = size(shift);
            let pages = size.pages(F::BASE).unwrap();
            let end = 1 << (phys - F::BASE.shift());
            let leaf = F::leaf(Pfn::new(end - pages), size, RW, is_last);
            if !sizes.contains(&shift) {
                assert_eq!(leaf, Err(Error::WrongSize { size }), "last level: {is_last}");
                continue;
            }
            assert_eq!(F::frame(leaf.unwrap(), size), Pfn::new(end - pages));
            for frame in [end, end << 1, end << (usize::BITS - 1 - end.trailing_zeros())] {
                let frame = Pfn::new(frame);
                assert_eq!(F::leaf(frame, size, RW, is_last), Err(Error::FrameTooLarge { frame }));
            }
        }
    }
}

#[cfg(target_pointer_width = "64")]
#[test]
fn a_size_stands_at_its_level_alone() {
    has_sizes::<Sv39>(&[12], &[21, 30], 56);
    has_sizes::<RiscvOf<true, true, true>>(&[12, 16], &[21, 30], 56);
    has_sizes::<X86>(&[12], &[21, 30], 52);
    has_sizes::<X86Of<true, true, false>>(&[12], &[21, 30], 52);
    has_sizes::<Aarch64>(&[12], &[21, 30], 48);
    has_sizes::<Aarch64Of<12, true, false>>(&[12, 16], &[21, 25, 30, 34], 48);
    has_sizes::<Aarch64Of<14, true, false>>(&[14, 21], &[25, 30], 48);
    has_sizes::<Aarch64Of<16, true, false>>(&[16, 21], &[29, 34], 48);
    has_sizes::<Aarch64Of<12, true, false, true>>(&[12, 16], &[21, 25, 30, 34, 39], 52);
    has_sizes::<Aarch64Of<14, true, false, true>>(&[14, 21], &[25, 30, 36], 52);
    has_sizes::<Aarch64Of<16, true, false, true>>(&[16, 21], &[29, 34, 42], 52);
    has_sizes::<Aarch64Of<12, false, false, true>>(&[12], &[21, 30, 39], 52);
    has_sizes::<Sv39x4>(&[12], &[21, 30], 56);
    has_sizes::<Ept>(&[12], &[21, 30], 52);
    has_sizes::<Aarch64Guest>(&[12], &[21, 30], 48);
}

/// The kernel's own bits are in no TLB: to set or clear them costs nothing.
#[test]
fn bits_of_software_need_no_flush() {
    for soft in [Attr::SOFT_1, Attr::SOFT_2, Attr::SOFTWARE] {
        assert_eq!(
            (Change::set(soft).scope(), Change::clear(soft).scope()),
            (FlushScope::Nowhere, FlushScope::Nowhere)
        );
    }
    let mark = Attr::COPY_ON_WRITE;
    assert_eq!(Change::set(mark).scope(), FlushScope::Nowhere);
    assert_eq!(Change::clear(mark).scope(), FlushScope::Nowhere);
    assert_eq!(Change { clear: Attr::WRITE, set: mark }.scope(), FlushScope::Everywhere);
    assert_eq!(Change { clear: mark, set: Attr::WRITE }.scope(), FlushScope::Local);
}
