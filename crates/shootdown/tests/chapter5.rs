//! Chapter 5's machines: their invariants on any sequence of calls, and the text's own cases.

#![cfg(not(loom))]

use std::collections::HashMap;

use proptest::prelude::*;
use tlbkit_addr::{Asid, Attr, PageSize, Pages, Pfn, Vpn};
use tlbkit_shootdown::dash::{Config, Dash, DashError, Hint, SharingId, Tables};
use tlbkit_shootdown::ipc::{Access, IpcError, IpcRegion, LowAction, MessageStep, Passing, Receive, Send};
use tlbkit_shootdown::pageout::{PageAction, PageOut, State};
use tlbkit_shootdown::tolerance::{Advice, Context, Entry, Tolerance, classify};
use tlbkit_shootdown::{Algorithm, Hardware, LowRights, Outcome, Plan};

fn entry() -> impl Strategy<Value = Option<Entry>> {
    let some = (0..3usize, 0..512u16)
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
    fn copy_on_write_is_never_tolerated(frame in 0..9usize, bits in 0..512u16) {
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

/// What can happen to a page on its way out.
#[derive(Clone, Debug)]
enum Event {
    Allocate(bool),
    Zero(usize),
    PageIn,
    Read(usize),
    Unmapper,
    Fault(usize),
    Unmapped(usize, bool, bool),
    Written(usize),
}

fn event() -> impl Strategy<Value = Event> {
    let frame = 0..5usize;
    prop_oneof![
        2 => any::<bool>().prop_map(Event::Allocate),
        1 => frame.clone().prop_map(Event::Zero),
        1 => Just(Event::PageIn),
        1 => frame.clone().prop_map(Event::Read),
        3 => Just(Event::Unmapper),
        2 => frame.clone().prop_map(Event::Fault),
        3 => (frame.clone(), any::<bool>(), any::<bool>()).prop_map(|(f, ok, d)| Event::Unmapped(f, ok, d)),
        2 => frame.prop_map(Event::Written),
    ]
}

proptest! {
    /// Figure 5.4: a page is never allocated while an unmapping or a write of it is in flight, and no dirty page
    /// becomes free unwritten.
    #[test]
    fn no_page_is_reused_before_its_message(events in proptest::collection::vec(event(), 0..200)) {
        let mut pages = PageOut::<5>::new(3);
        let mut unmapping = [false; 5];
        let mut writing = [false; 5];
        for event in events {
            let before = pages.clone();
            match event {
                Event::Allocate(zeroed) => {
                    if let Some(frame) = pages.allocate(zeroed) {
                        prop_assert!(!unmapping[frame] && !writing[frame]);
                        prop_assert_eq!(pages.state(frame), Some(State::InUse));
                    }
                }
                Event::PageIn => {
                    if let Some(frame) = pages.page_in() {
                        prop_assert!(!unmapping[frame] && !writing[frame]);
                    }
                }
                Event::Zero(frame) => prop_assert_eq!(pages.zero(frame).is_ok(), before.state(frame) == Some(State::Clean)),
                Event::Read(frame) => prop_assert_eq!(pages.read(frame).is_ok(), before.state(frame) == Some(State::BeingRead)),
                Event::Unmapper => {
                    if let PageAction::Unmap(frame) = pages.unmapper() {
                        prop_assert_eq!(before.state(frame), Some(State::InUse));
                        prop_assert!(!unmapping[frame] && !writing[frame], "two unmappings of one page");
                        unmapping[frame] = true;
                    }
                }
                Event::Fault(frame) => {
                    if pages.fault(frame).is_ok() {
                        prop_assert_eq!(pages.state(frame), Some(State::InUse));
                    }
                }
                Event::Unmapped(frame, ok, dirty) => {
                    let outcome = if ok { Outcome::Done } else { Outcome::Overwritten };
                    match pages.unmapped(frame, outcome, dirty) {
                        Ok(action) => {
                            prop_assert!(unmapping[frame]);
                            unmapping[frame] = false;
                            writing[frame] = action == PageAction::Write(frame);
                            if pages.state(frame) == Some(State::Clean) {
                                prop_assert!(ok && !dirty);
                            }
                        }
                        Err(_) => prop_assert!(!unmapping[frame]),
                    }
                }
                Event::Written(frame) => {
                    if writing[frame] {
                        prop_assert!(pages.written(frame).is_ok());
                        writing[frame] = false;
                    } else {
                        prop_assert!(pages.written(frame).is_err());
                    }
                }
            }
            prop_assert!(pages.check());
        }
    }
}

#[derive(Default)]
struct Map(HashMap<(Asid, Vpn), Entry>);

impl Tables for Map {
    fn entry(&self, space: Asid, at: Vpn) -> Option<Entry> {
        self.0.get(&(space, at)).copied()
    }
    fn exchange(&mut self, space: Asid, at: Vpn, new: Option<Entry>) -> Option<Entry> {
        match new {
            Some(new) => self.0.insert((space, at), new),
            None => self.0.remove(&(space, at)),
        }
    }
}

fn dash() -> Dash<Map, u32, 3, 4> {
    let plan = |algorithm| Plan::new(algorithm, &Hardware::I386, LowRights::NeverWriteBack).unwrap();
    let config = Config {
        page: PageSize::K4,
        prompt: plan(Algorithm::PteFirst),
        cheap: plan(Algorithm::PteFirstAsync),
    };
    Dash::new(Map::default(), config)
}

fn space(id: u16) -> Asid {
    Asid::new(id, 8).unwrap()
}

const RW: Attr = Attr::READ.union(Attr::WRITE);

proptest! {
    /// Table 5.2: every message comes back exactly once, and the invariants hold after every call.
    #[test]
    fn every_message_comes_back_once(calls in proptest::collection::vec((0..5u8, 0..3usize, any::<bool>()), 0..120)) {
        let mut dash = dash();
        let mut out = Vec::new();
        let (mut sent, mut came) = (0u32, Vec::new());
        for (call, page, flag) in calls {
            let at = Vpn::new(page);
            match call {
                0 => {
                    let new = Entry { frame: Pfn::new(page), attr: RW };
                    prop_assert!(dash.map(space(1), at, new).is_ok());
                }
                1 => match dash.unmap_asynch(space(1), at, flag, sent, Hint { slow: flag, conditional: true }) {
                    Ok(unmapping) => {
                        prop_assert_eq!(unmapping.plan.algorithm() == Algorithm::PteFirstAsync, flag);
                        prop_assert!(unmapping.plan.is_conditional());
                        out.push(unmapping.ticket);
                        sent += 1;
                    }
                    Err((_, message)) => prop_assert_eq!(message, Some(sent)),
                },
                2 if !out.is_empty() => {
                    let ticket = out.swap_remove(page % out.len());
                    let (message, _) = dash.completed(ticket, Outcome::Done).unwrap();
                    came.push(message.unwrap());
                    prop_assert_eq!(dash.completed(ticket, Outcome::Done), Err(DashError::UnknownTicket(ticket)));
                }
                3 if dash.clear_dirty(space(1), at).is_ok() => {
                    prop_assert_eq!(dash.is_dirty(space(1), at), Ok(false));
                }
                _ => {}
            }
            prop_assert!(dash.check());
        }
        for ticket in out {
            came.push(dash.completed(ticket, Outcome::Done).unwrap().0.unwrap());
        }
        came.sort_unstable();
        prop_assert_eq!(came, (0..sent).collect::<Vec<_>>());
    }
}

#[test]
fn a_shared_segment_is_mapped_and_unmapped_everywhere() {
    let mut dash = dash();
    let segment = Pages::new(Vpn::new(8), Vpn::new(15)).unwrap();
    dash.share(space(1), SharingId::Group(5), segment).unwrap();
    dash.share(space(2), SharingId::Group(5), segment).unwrap();
    let page = Entry { frame: Pfn::new(3), attr: RW };
    dash.map(space(1), Vpn::new(9), page).unwrap();
    assert_eq!(dash.tables().entry(space(2), Vpn::new(9)), Some(page));
    let unmapping = dash.unmap_synch(space(2), Vpn::new(9), true, Hint::default()).unwrap();
    assert_eq!(unmapping.plan.algorithm(), Algorithm::PteFirst);
    assert!(!dash.tables().entry(space(1), Vpn::new(9)).unwrap().attr.contains(Attr::WRITE));
    dash.unshare(space(2), segment);
    dash.map(space(1), Vpn::new(10), page).unwrap();
    assert_eq!(dash.tables().entry(space(2), Vpn::new(10)), None);
}

#[test]
fn a_page_that_is_mapped_again_fails_its_unmapping() {
    let mut dash = dash();
    let page = Entry { frame: Pfn::new(3), attr: RW };
    dash.map(space(1), Vpn::new(0), page).unwrap();
    let unmapping =
        dash.unmap_asynch(space(1), Vpn::new(0), false, 1, Hint { slow: true, conditional: true }).unwrap();
    dash.map(space(1), Vpn::new(0), page).unwrap();
    assert_eq!(dash.completed(unmapping.ticket, Outcome::Done), Ok((Some(1), Outcome::Superseded)));
    assert!(dash.fault(space(1), Vpn::new(0), Attr::READ), "a stale copy, and no more");
}

/// Found by the property below: three ownerships of a page that stays mapped for writing, one of which is copied away.
#[test]
fn what_was_duplicated_is_still_known_as_stale_after_a_copy() {
    let mut region = IpcRegion::<2, 1>::new();
    let page = region.get_ownership(0).unwrap();
    region.mapin(0, page, Access::Write).unwrap();
    for _ in 0..2 {
        assert_eq!(region.duplicate(0, page, true), Ok(LowAction::Nothing));
    }
    assert!(matches!(region.make_writable(0, page), Ok(LowAction::Copy { .. })));
    assert!(region.check());
    let reduce = LowAction::Reduce { space: 0, page, access: Access::Read };
    assert_eq!(region.finish_transfer(0, page), Ok(reduce));
}

proptest! {
    /// Table 5.3: the two maps differ only where the region knows it, and a finished transfer leaves nothing.
    #[test]
    fn the_low_map_follows_the_high_one(
        calls in proptest::collection::vec((0..8u8, 0..3usize, 0..3usize, 0..3usize, any::<bool>()), 0..150),
    ) {
        let mut region = IpcRegion::<3, 3>::new();
        let mut reducing = Vec::new();
        for (call, space, other, page, flag) in calls {
            let before = region.ownerships(page);
            let action = match call {
                0 => match region.get_ownership(space) {
                    Ok(page) => {
                        prop_assert_eq!(region.high(space, page), Access::Write);
                        prop_assert_eq!((0..3).map(|s| region.low(s, page)).max(), Some(Access::None));
                        Ok(LowAction::Nothing)
                    }
                    Err(why) => Err(why),
                },
                1 => region.release_ownership(space, page),
                2 => {
                    let action = region.start_transfer(space, other, page, flag);
                    prop_assert_eq!(region.ownerships(page), before);
                    action
                }
                3 => region.finish_transfer(space, page),
                4 => region.duplicate(space, page, flag),
                5 => region.make_writable(space, page),
                6 => region.mapin(space, page, if flag { Access::Read } else { Access::Write }),
                _ => {
                    if let Some((space, page)) = reducing.pop() {
                        prop_assert!(region.reduced(space, page).is_ok());
                    }
                    Ok(LowAction::Nothing)
                }
            };
            if let Ok(LowAction::Reduce { space, page, .. }) = action {
                reducing.push((space, page));
            }
            if call == 3 && action == Ok(LowAction::Nothing) {
                prop_assert!(region.low(space, page) <= region.high(space, page));
            }
            prop_assert!(region.check(), "after {call} {space} {other} {page} {flag}: {region:?}");
        }
    }

    /// 5.3.4.5: after an untrusting receive, nobody else can use the page for more than his ownerships allow; a
    /// trusting one never touches the sender's map if it was there first or was guessed right.
    #[test]
    fn a_received_message_is_protected(
        duplicate: bool, hint: bool, trust: bool, receive_first: bool, mapped: bool, use_at_once in 0..3u8,
    ) {
        let immediate_use = [Access::None, Access::Read, Access::Write][usize::from(use_at_once)];
        prop_assume!(!(duplicate && immediate_use == Access::Write));
        let (from, to) = (0, 1);
        let mut region = IpcRegion::<2, 2>::new();
        let page = region.get_ownership(from).unwrap();
        if mapped {
            region.mapin(from, page, Access::Write).unwrap();
        }
        let mut passing = Passing::new();
        let (send, receive) = (Send { duplicate, trust_hint: hint }, Receive { trust, immediate_use });
        if receive_first {
            prop_assert!(passing.receive(receive) && passing.send(send));
        } else {
            prop_assert!(passing.send(send) && !passing.send(send));
        }
        let mut reductions = 0;
        let mut turn = |passing: &mut Passing, region: &mut IpcRegion<2, 2>| {
            while let Some(step) = passing.step() {
                let act = |region: &mut IpcRegion<2, 2>| match step {
                    MessageStep::Duplicate { ownership_only } => region.duplicate(from, page, ownership_only),
                    MessageStep::StartTransfer { ownership_only } => {
                        region.start_transfer(from, to, page, ownership_only)
                    }
                    MessageStep::FinishTransfer => region.finish_transfer(from, page),
                    MessageStep::Mapin(access) => region.mapin(to, page, access),
                };
                while let LowAction::Reduce { space, page, .. } = act(region).unwrap() {
                    reductions += 1;
                    region.reduced(space, page).unwrap();
                    if step != MessageStep::FinishTransfer {
                        break;
                    }
                }
            }
        };
        turn(&mut passing, &mut region);
        if !receive_first {
            prop_assert!(passing.receive(receive));
            turn(&mut passing, &mut region);
        }
        prop_assert!(passing.is_received());
        prop_assert!(region.low(to, page) >= immediate_use);
        if !trust {
            prop_assert!(region.low(from, page) <= region.high(from, page));
        } else if receive_first || hint {
            prop_assert_eq!(reductions, 0, "a trusted transfer synchronizes nothing");
        }
        prop_assert!(region.check());
    }
}

#[test]
fn a_writable_copy_is_the_callers_alone() {
    let mut region = IpcRegion::<2, 2>::new();
    let page = region.get_ownership(0).unwrap();
    assert_eq!(region.mapin(1, page, Access::Read), Err(IpcError::Denied));
    region.duplicate(0, page, false).unwrap();
    region.start_transfer(0, 1, page, false).unwrap();
    let Ok(LowAction::Copy { copy, .. }) = region.make_writable(1, page) else { panic!("two own it") };
    assert_eq!((region.high(1, copy), region.high(0, page)), (Access::Write, Access::Write));
    assert_eq!(region.make_writable(0, page), Ok(LowAction::Map { space: 0, page, access: Access::Write }));
}
