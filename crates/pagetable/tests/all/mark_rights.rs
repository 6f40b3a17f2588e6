//! A mark keeps the attributes of its page, in every format.
#![cfg(target_pointer_width = "64")]

use tlbkit_addr::{Attr, Pfn, VirtAddr};
use tlbkit_pagetable::format::{
    Aarch64, Compact, Compact32, EntryLo, EntryLoCow, EntryLoCowCoherent, Format, Paper, RiscvOf, Sv32, Sv39,
    X86, X86Of, change_mark, check_attr, check_change, fill_word, mark_of, mark_word, payload_bits,
};
use tlbkit_pagetable::{Change, Entry, Error, Mark};

/// Calls a function of each format.
macro_rules! each {
    ($check:ident) => {
        $check::<Sv39>();
        $check::<RiscvOf<true, true, true>>();
        $check::<Sv32>();
        $check::<X86>();
        $check::<X86Of<true, true>>();
        $check::<X86Of<false, false, false>>();
        $check::<Aarch64>();
        $check::<EntryLo>();
        $check::<EntryLoCow>();
        $check::<EntryLoCowCoherent>();
        $check::<Compact>();
        $check::<Compact32>();
        $check::<Paper>();
    };
}

/// Every set of attributes that a mark keeps and the format has.
fn kept<F: Format>() -> impl Iterator<Item = Attr> {
    let known = F::IMPLIED.union(F::OPTIONAL);
    (0..=Mark::KEPT.bits())
        .map(Attr::from_bits_retain)
        .filter(move |&attr| Mark::KEPT.contains(attr) && known.contains(attr))
        .filter(|&attr| check_attr::<F>(attr).is_ok())
}

/// The attributes of a leaf that is mapped with these.
fn of_leaf<F: Format>(attr: Attr) -> Attr {
    F::attr(F::leaf(Pfn::new(0), F::BASE, attr, true).unwrap(), true)
}

#[test]
fn a_mark_keeps_what_a_leaf_has() {
    fn check<F: Format>() {
        let bits = payload_bits::<F>().unwrap();
        for attr in kept::<F>() {
            for payload in [0, 1, (1 << bits) - 1, 0x00aa_aaaa_5555 & ((1 << bits) - 1)] {
                let word = mark_word::<F>(Mark::Payload(payload, attr)).unwrap();
                assert!(!F::is_leaf(word, true));
                let mark = Mark::Payload(payload, of_leaf::<F>(attr));
                assert_eq!(mark_of::<F>(word), Some(mark), "{attr:?}");
                // The page has the same attributes when it is filled.
                let at = VirtAddr::new(0x1000);
                let leaf = fill_word::<F>(at, Entry::Mark(mark), payload, Pfn::new(16)).unwrap();
                assert_eq!(
                    (F::frame(leaf, F::BASE), F::attr(leaf, true)),
                    (Pfn::new(16), of_leaf::<F>(attr))
                );
                let other = fill_word::<F>(at, Entry::Mark(mark), payload ^ 1, Pfn::new(16));
                assert_eq!(other, Err(Error::Changed { at }));
            }
            let large = Mark::Payload(1 << bits, attr);
            assert_eq!(mark_word::<F>(large), Err(Error::WrongMark));
        }
        let guard = mark_word::<F>(Mark::Guard).unwrap();
        assert_eq!((mark_of::<F>(guard), F::is_leaf(guard, true)), (Some(Mark::Guard), false));
        assert_eq!(mark_of::<F>(F::Word::default()), None);
    }
    each!(check);
    let bits = [payload_bits::<Sv39>(), payload_bits::<X86>(), payload_bits::<X86Of<true, true>>()];
    assert_eq!(bits, [Some(56), Some(54), Some(50)]);
    let bits = [payload_bits::<Sv32>(), payload_bits::<EntryLoCow>(), payload_bits::<Compact32>()];
    assert_eq!(bits, [Some(24), Some(24), Some(25)]);
}

/// What a leaf that stays mapped would have after the change, the page has when it comes back.
#[test]
fn a_change_of_a_mark_is_that_of_a_leaf() {
    fn check<F: Format>() {
        let changes = [
            Change::READ_ONLY,
            Change::COPY_ON_WRITE,
            Change::clear(Attr::READ | Attr::WRITE | Attr::EXEC),
            Change::clear(Attr::READ),
            Change::set(Attr::WRITE),
            Change::set(Attr::READ),
            Change::clear(Attr::EXEC),
            Change { clear: Attr::KEY, set: Attr::of_key(5) },
            Change::clear(Attr::DIRTY | Attr::ACCESSED),
        ];
        for change in changes.into_iter().filter(|&change| check_change::<F>(change).is_ok()) {
            for attr in kept::<F>() {
                let leaf = F::leaf(Pfn::new(0), F::BASE, attr, true).unwrap();
                let wanted = F::attr(F::change(leaf, change, true), true) & Mark::KEPT;
                let word = change_mark::<F>(mark_word::<F>(Mark::Payload(7, attr)).unwrap(), change);
                assert_eq!(
                    mark_of::<F>(word),
                    Some(Mark::Payload(7, of_leaf::<F>(wanted))),
                    "{attr:?} {change:?}"
                );
            }
            let guard = mark_word::<F>(Mark::Guard).unwrap();
            assert_eq!(change_mark::<F>(guard, change), guard);
            assert_eq!(change_mark::<F>(F::Word::default(), change), F::Word::default());
        }
    }
    each!(check);
}

/// G of a pair is in an absent word, too, and stays.
#[test]
fn a_change_of_a_mark_leaves_the_bit_of_its_pair() {
    let word = mark_word::<EntryLoCow>(Mark::Payload(9, Attr::READ | Attr::WRITE)).unwrap() | 1;
    let changed = change_mark::<EntryLoCow>(word, Change::READ_ONLY);
    let rights = Attr::READ | Attr::EXEC | Attr::USER;
    assert_eq!((changed & 1, mark_of::<EntryLoCow>(changed)), (1, Some(Mark::Payload(9, rights))));
}

#[test]
fn what_a_mark_cannot_keep_is_refused() {
    fn lost<W>(attr: Attr) -> Result<W, Error> {
        Err(Error::WrongAttr { attr })
    }
    for attr in [Attr::GLOBAL, Attr::ACCESSED, Attr::DIRTY, Attr::DEVICE] {
        assert_eq!(mark_word::<Sv39>(Mark::Payload(1, Attr::READ | attr)), lost(attr));
        assert_eq!(mark_word::<Sv32>(Mark::Payload(1, Attr::READ | attr)), lost(attr));
    }
    assert_eq!(mark_word::<Aarch64>(Mark::Payload(1, Attr::READ | Attr::TAGGED)), lost(Attr::TAGGED));
    assert_eq!(mark_word::<EntryLo>(Mark::Payload(1, Attr::COPY_ON_WRITE)), lost(Attr::COPY_ON_WRITE));
}
