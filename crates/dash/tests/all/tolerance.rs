//! What an inconsistency costs (5.1): the text's own cases, and what none of them may allow.

use proptest::prelude::*;
use tlbkit_addr::{Attr, FlushScope, Pfn};
use tlbkit_dash::tolerance::{Advice, Context, Entry, Tolerance, classify};

fn entry() -> impl Strategy<Value = Option<Entry>> {
    let some = (0..3usize, 0..512u32)
        .prop_map(|(frame, bits)| Entry { frame: Pfn::new(frame), attr: Attr::from_bits_truncate(bits) });
    proptest::option::of(some)
}

fn context() -> impl Strategy<Value = Context> {
    prop_oneof![
        Just(Context::Plain),
        Just(Context::PageOut),
        any::<bool>().prop_map(|trusted| Context::Sent { trusted }),
        Just(Context::KernelOwn),
        Just(Context::CopyOnWrite),
    ]
}

proptest! {
    /// 5.1.1: what is skipped as safe can only be refused something, never be allowed too much.
    #[test]
    fn safe_means_that_the_old_copy_allows_no_more(old in entry(), new in entry(), context in context()) {
        if classify(old, new, context) == Tolerance::Safe {
            let rights = |e: Option<Entry>| e.map_or(Attr::empty(), |e| e.attr.intersection(Attr::RIGHTS));
            prop_assert!(rights(new).contains(rights(old)));
            if !rights(old).is_empty() {
                prop_assert_eq!(new.map(|e| e.frame), old.map(|e| e.frame));
            }
        }
    }

    /// 5.3.5: reprotection for copy-on-write is flushed, whatever else is true.
    #[test]
    fn copy_on_write_is_never_tolerated(frame in 0..9usize, bits in 0..512u32) {
        let attr = Attr::from_bits_truncate(bits) | Attr::WRITE;
        let old = Entry { frame: Pfn::new(frame), attr };
        let new = Entry { attr: attr.difference(Attr::WRITE), ..old };
        prop_assert_eq!(classify(Some(old), Some(new), Context::CopyOnWrite).advice(), Advice::Flush);
    }

    /// A transient inconsistency keeps reaching the same frame.
    #[test]
    fn deferring_never_exchanges_a_frame(old in entry(), new in entry(), context in context()) {
        if classify(old, new, context) == Tolerance::Transient {
            prop_assert!(new.is_none_or(|new| Some(new.frame) == old.map(|old| old.frame)));
        }
    }
}

proptest! {
    /// One rule: what a page table asks every CPU to flush is safe for no protocol, unless it is a referenced bit, or a dirty bit
    /// of a page that is not writable; and everything else is.
    #[test]
    fn safe_is_what_page_tables_do_not_flush_everywhere(old in 1..1024u32, new in 0..1024u32) {
        let [old, new] = [old, new].map(Attr::from_bits_truncate);
        prop_assume!(old.intersects(Attr::RIGHTS) && old.contains(Attr::WRITE));
        let [before, after] = [old, new].map(|attr| Some(Entry { frame: Pfn::new(1), attr }));
        let everywhere = FlushScope::of_change(old.difference(new | Attr::ACCESSED), new.difference(old)) == FlushScope::Everywhere;
        prop_assert_eq!(classify(before, after, Context::Plain) == Tolerance::Safe, !everywhere);
    }
}

/// The kernel loses a page that user mode gets, where supervisor mode may not use what user mode may (PXN, SUM, SMAP).
#[test]
fn a_page_that_user_mode_gets_is_flushed() {
    let kernels = Entry { frame: Pfn::new(1), attr: Attr::READ };
    let users = Entry { attr: Attr::READ | Attr::USER, ..kernels };
    assert_eq!(classify(Some(kernels), Some(users), Context::Plain), Tolerance::Intolerable);
    assert_eq!(classify(None, Some(users), Context::Plain), Tolerance::Safe);
}

#[test]
fn the_cases_of_5_1() {
    let rw = Entry { frame: Pfn::new(1), attr: Attr::READ | Attr::WRITE | Attr::DIRTY };
    let ro = Entry { attr: Attr::READ | Attr::DIRTY, ..rw };
    assert_eq!(classify(Some(ro), Some(rw), Context::Plain), Tolerance::Safe);
    assert_eq!(classify(None, Some(rw), Context::Plain), Tolerance::Safe);
    assert_eq!(classify(Some(rw), None, Context::Plain), Tolerance::Intolerable);
    assert_eq!(classify(Some(rw), None, Context::PageOut), Tolerance::Transient);
    assert_eq!(classify(Some(rw), None, Context::Sent { trusted: false }), Tolerance::Transient);
    assert_eq!(classify(Some(rw), Some(ro), Context::Sent { trusted: true }), Tolerance::Trusted);
    assert_eq!(classify(Some(rw), None, Context::KernelOwn), Tolerance::Trusted);
    // Clearing the dirty bit of a page that stays writable: later writes would go unrecorded (Table 2.2).
    let clean = Entry { attr: Attr::READ | Attr::WRITE, ..rw };
    assert_eq!(classify(Some(rw), Some(clean), Context::Plain), Tolerance::Intolerable);
    let unreferenced = Entry { attr: rw.attr, ..rw };
    let referenced = Entry { attr: rw.attr | Attr::ACCESSED, ..rw };
    assert_eq!(classify(Some(referenced), Some(unreferenced), Context::Plain), Tolerance::Safe);
}
