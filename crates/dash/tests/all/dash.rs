//! Table 5.2: a page's way through the machine-dependent interface.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::rc::Rc;

use proptest::prelude::*;
use tlbkit_addr::{Asid, Attr, Flush, FlushScope, PageSize, Pages, Pfn, Vpn};
use tlbkit_dash::tolerance::Entry;
use tlbkit_dash::unmapping::{
    Completed, Config, Dash, DashError, Hint, SharingId, Tables, Ticket, Unmapping,
};
use tlbkit_shootdown::{Algorithm, Hardware, LowRights, Outcome, Plan};

/// Page tables. A clone is the same tables: the hardware has one, to write status bits.
#[derive(Clone, Default)]
struct Map {
    entries: Rc<RefCell<HashMap<(Asid, Vpn), Entry>>>,
    /// What the hardware sets at the last moment: in the entry that is exchanged next, in the one after that, and so on.
    last: Rc<RefCell<VecDeque<Attr>>>,
}

impl Tables for Map {
    fn entry(&self, space: Asid, at: Vpn) -> Option<Entry> {
        self.entries.borrow().get(&(space, at)).copied()
    }
    fn exchange(&mut self, space: Asid, at: Vpn, new: Option<Entry>) -> Option<Entry> {
        let mut entries = self.entries.borrow_mut();
        if let Some(old) = entries.get_mut(&(space, at)) {
            old.attr |= self.last.borrow_mut().pop_front().unwrap_or_default();
        }
        match new {
            Some(new) => entries.insert((space, at), new),
            None => entries.remove(&(space, at)),
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

type Ended = Result<Option<Completed<u32>>, DashError>;

/// The operations of an unmapping as far as the update, in every space that shares the page.
fn update(dash: &mut Dash<Map, u32, 3, 4>, ticket: Ticket) {
    let spaces: Vec<_> = dash.spaces_of(ticket).unwrap().collect();
    for space in spaces {
        assert_eq!(dash.exclude(ticket, space), Ok(true));
        dash.update(ticket, space).unwrap();
        assert_eq!(dash.is_lowered(ticket, space), Ok(true));
        dash.release(ticket, space).unwrap();
    }
}

/// Their ends.
fn complete(dash: &mut Dash<Map, u32, 3, 4>, ticket: Ticket, outcome: Outcome) -> Ended {
    let spaces: Vec<_> = dash.spaces_of(ticket)?.collect();
    let ends: Vec<_> = spaces.into_iter().map(|space| dash.completed(ticket, space, outcome)).collect();
    let (last, others) = ends.split_last().unwrap();
    assert!(others.iter().all(|end| *end == Ok(None)), "the message comes with the last one");
    *last
}

fn unmap_synch(dash: &mut Dash<Map, u32, 3, 4>, of: u16, at: Vpn, readonly: bool) -> Unmapping {
    let unmapping = dash.unmap_synch(space(of), at, readonly, Hint::default()).unwrap();
    update(dash, unmapping.ticket);
    unmapping
}

fn done(message: Option<u32>, outcome: Outcome, status: Attr) -> Ended {
    Ok(Some(Completed { message, outcome, status }))
}

fn space(id: u16) -> Asid {
    Asid::new(id, 8).unwrap()
}

const RW: Attr = Attr::READ.union(Attr::WRITE);

fn page(attr: Attr) -> Entry {
    Entry { frame: Pfn::new(3), attr }
}

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
                        // It is superseded before its update, or after it.
                        if page == 0 { update(&mut dash, unmapping.ticket) }
                        out.push(unmapping.ticket);
                        sent += 1;
                    }
                    Err((_, message)) => prop_assert_eq!(message, Some(sent)),
                },
                2 if !out.is_empty() => {
                    let ticket = out.swap_remove(page % out.len());
                    let ended = complete(&mut dash, ticket, Outcome::Done).unwrap().unwrap();
                    came.push(ended.message.unwrap());
                    let again = dash.completed(ticket, space(1), Outcome::Done);
                    prop_assert_eq!(again, Err(DashError::UnknownTicket(ticket)));
                }
                3 if dash.clear_dirty(space(1), at).is_ok() => {
                    prop_assert_eq!(dash.is_dirty(space(1), at), Ok(false));
                }
                _ => {}
            }
            prop_assert!(dash.check());
        }
        for ticket in out {
            came.push(complete(&mut dash, ticket, Outcome::Done).unwrap().unwrap().message.unwrap());
        }
        came.sort_unstable();
        prop_assert_eq!(came, (0..sent).collect::<Vec<_>>());
    }
}

/// An unmapping in flight is of one page of one space; what is beside it goes on as if there were none.
#[test]
fn an_unmapping_in_flight_holds_up_its_page_only() {
    let mut dash = dash();
    let places = [(space(1), Vpn::new(0)), (space(1), Vpn::new(1)), (space(2), Vpn::new(0))];
    for (space, at) in places {
        dash.map(space, at, page(RW)).unwrap();
    }
    let tickets = places.map(|(space, at)| {
        let unmapping = dash.unmap_asynch(space, at, true, 0, Hint::default());
        let ticket = unmapping.expect("the others are other pages").ticket;
        update(&mut dash, ticket);
        ticket
    });
    for ((space, at), ticket) in places.into_iter().zip(tickets) {
        let again = dash.unmap_asynch(space, at, false, 7, Hint::default());
        assert_eq!(again.map(|_| ()), Err((DashError::BeingUnmapped(ticket), Some(7))));
        // A TLB that has it writable may still set the dirty bit.
        assert_eq!(dash.clear_dirty(space, at), Err(DashError::BeingUnmapped(ticket)));
        dash.completed(ticket, space, Outcome::Done).unwrap();
        assert_eq!(dash.clear_dirty(space, at), Ok(()));
    }
}

#[test]
fn what_cannot_be_done_changes_nothing() {
    let mut dash = dash();
    let at = Vpn::new(0);
    let missing = dash.unmap_asynch(space(1), at, false, 7, Hint::default()).map(|_| ());
    assert_eq!(missing, Err((DashError::NotMapped, Some(7))));
    assert_eq!(dash.is_dirty(space(1), at), Err(DashError::NotMapped));
    assert_eq!(dash.clear_dirty(space(1), at), Err(DashError::NotMapped));

    let dirty = page(RW | Attr::DIRTY);
    dash.map(space(1), at, dirty).unwrap();
    assert_eq!(
        dash.map(space(1), at, page(Attr::READ)),
        Err(DashError::Occupied(dirty)),
        "rights are lowered"
    );
    let other = Entry { frame: Pfn::new(9), ..dirty };
    assert_eq!(dash.map(space(1), at, other), Err(DashError::Occupied(dirty)), "another frame");
    assert_eq!(dash.clear_dirty(space(1), at), Err(DashError::Writable));
    assert_eq!(dash.tables().entry(space(1), at), Some(dirty));

    let many = |nth: usize| Vpn::new(1 + nth);
    for nth in 0..4 {
        dash.map(space(1), many(nth), page(RW)).unwrap();
    }
    for nth in 0..3 {
        dash.unmap_asynch(space(1), many(nth), false, 0, Hint::default()).unwrap();
    }
    let full = dash.unmap_asynch(space(1), many(3), false, 7, Hint::default()).map(|_| ());
    assert_eq!(full, Err((DashError::Full, Some(7))));
    assert_eq!(dash.tables().entry(space(1), many(3)), Some(page(RW)));

    for _ in 0..4 {
        dash.share(space(1), SharingId::AllSpaces, Pages::one(at)).unwrap();
    }
    assert_eq!(dash.share(space(2), SharingId::AllSpaces, Pages::one(at)), Err(DashError::Full));
}

/// A caller that waits gets the plan for callers that wait, however late it takes it.
#[test]
fn hints_choose_the_plan() {
    for (slow, conditional) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut dash = dash();
        let hint = Hint { slow, conditional };
        for at in [Vpn::new(0), Vpn::new(1)] {
            dash.map(space(1), at, page(RW)).unwrap();
        }
        let synch = dash.unmap_synch(space(1), Vpn::new(0), false, hint).unwrap();
        let asynch = dash.unmap_asynch(space(1), Vpn::new(1), false, 0, hint).unwrap();
        let Config { prompt, cheap, .. } = *dash.config();
        let wanted = |plan: Plan| if conditional { plan.conditional() } else { plan };
        assert_eq!(synch.plan, wanted(prompt));
        assert_eq!(asynch.plan, wanted(if slow { cheap } else { prompt }));
    }
}

#[test]
fn what_no_tlb_can_misuse_is_not_flushed() {
    let cases = [
        (RW, false, true),
        (RW, true, true),
        (Attr::READ, false, true),
        (Attr::READ, true, false),
        (Attr::DIRTY, false, false),
    ];
    for (attr, readonly, flushed) in cases {
        let mut dash = dash();
        let at = Vpn::new(5);
        dash.map(space(1), at, page(attr)).unwrap();
        let unmapping = unmap_synch(&mut dash, 1, at, readonly);
        let mut flush = Flush::none();
        if flushed {
            flush.add(FlushScope::Everywhere, Pages::one(at));
        }
        assert_eq!(unmapping.flush, flush, "{attr:?} {readonly}");
        let left = readonly.then_some(page(attr.difference(Attr::WRITE)));
        assert_eq!(dash.tables().entry(space(1), at), left);
        let ended = complete(&mut dash, unmapping.ticket, Outcome::Done);
        assert_eq!(ended, done(None, Outcome::Done, attr & Attr::DIRTY));
    }
}

#[test]
fn clearing_the_dirty_bit_clears_no_other() {
    let mut dash = dash();
    let (dirty, clean) = (Attr::READ | Attr::DIRTY | Attr::ACCESSED, Attr::READ | Attr::ACCESSED);
    dash.map(space(1), Vpn::new(0), page(dirty)).unwrap();
    assert_eq!(dash.is_dirty(space(1), Vpn::new(0)), Ok(true));
    dash.clear_dirty(space(1), Vpn::new(0)).unwrap();
    assert_eq!(dash.is_dirty(space(1), Vpn::new(0)), Ok(false));
    assert_eq!(dash.tables().entry(space(1), Vpn::new(0)), Some(page(clean)));
}

fn sharing() -> impl Strategy<Value = (u16, SharingId, Pages)> {
    let id = prop_oneof![Just(SharingId::AllSpaces), Just(SharingId::Group(0)), Just(SharingId::Group(7))];
    let segment = (0..4usize, 1..4usize).prop_map(|(first, n)| Pages::count(Vpn::new(first), n).unwrap());
    (1..4u16, id, segment)
}

proptest! {
    /// A page is seen by the spaces that have declared the same of it, and by those that have declared the same as one of
    /// these, against the definition; and each of them may end that for any part.
    #[test]
    fn sharers_are_those_who_said_the_same(
        declarations in proptest::collection::vec(sharing(), 1..5), me in 1..4u16, at in 0..7usize, (of, _, segment) in sharing(),
    ) {
        let at = Vpn::new(at);
        let mut dash = dash();
        for &(of, id, segment) in &declarations {
            dash.share(space(of), id, segment).unwrap();
        }
        let sees = |declarations: &[(u16, SharingId, Pages)]| {
            let here = declarations.iter().filter(|(.., segment)| segment.contains(at));
            let mut see = BTreeSet::from([me]);
            // As often as there are spaces, at most.
            for _ in 0..3 {
                let ids: Vec<_> = here.clone().filter(|(of, ..)| see.contains(of)).map(|(_, id, _)| id).collect();
                see.extend(here.clone().filter(|(_, id, _)| ids.contains(&id)).map(|(of, ..)| *of));
            }
            see
        };
        let mapped = |dash: &Dash<Map, u32, 3, 4>| {
            (1..4).filter(|&of| dash.tables().entry(space(of), at).is_some()).collect::<BTreeSet<_>>()
        };
        dash.map(space(me), at, page(RW)).unwrap();
        prop_assert_eq!(mapped(&dash), sees(&declarations));
        let ticket = unmap_synch(&mut dash, me, at, false).ticket;
        // A kernel runs an operation for each: no CPU is flushed twice.
        let mut stale: Vec<_> = dash.spaces_of(ticket).unwrap().collect();
        stale.sort_unstable();
        prop_assert!(stale.into_iter().eq(sees(&declarations).into_iter().map(space)));
        prop_assert_eq!(mapped(&dash), BTreeSet::new());

        complete(&mut dash, ticket, Outcome::Done).unwrap();
        let shares = |&(o, _, s): &(u16, SharingId, Pages)| o == of && s.intersect(segment).is_some();
        let ended = dash.unshare(space(of), segment);
        match ended {
            Ok(()) => prop_assert!(declarations.iter().any(shares)),
            Err(DashError::NotShared) => prop_assert!(!declarations.iter().any(shares)),
            // The pieces that would be left are more than there is room for; then nothing has changed.
            Err(why) => prop_assert_eq!(why, DashError::Full),
        }
        let ends = ended.is_ok() && segment.contains(at);
        let rest: Vec<_> = declarations.into_iter().filter(|&(o, ..)| !(ends && o == of)).collect();
        dash.map(space(me), at, page(RW)).unwrap();
        prop_assert_eq!(mapped(&dash), sees(&rest));
    }
}

/// Space 2 is in two groups of one page, with space 1 and with space 3. Whichever of the three unmaps it, all three lose it.
#[test]
fn a_space_in_two_groups_joins_them() {
    let at = Vpn::new(4);
    for first in 1..4 {
        let mut dash = dash();
        for (of, group) in [(1, 5), (2, 5), (2, 6), (3, 6)] {
            dash.share(space(of), SharingId::Group(group), Pages::one(at)).unwrap();
        }
        dash.map(space(first), at, page(RW)).unwrap();
        let unmapping = unmap_synch(&mut dash, first, at, false);
        assert_eq!(dash.spaces_of(unmapping.ticket).unwrap().count(), 3);
        let left: Vec<_> = (1..4).filter(|&of| dash.tables().entry(space(of), at).is_some()).collect();
        assert_eq!(left, [0; 0], "space {first} has unmapped the page");
        // It is in neither any more.
        complete(&mut dash, unmapping.ticket, Outcome::Done).unwrap();
        dash.unshare(space(2), Pages::one(at)).unwrap();
        assert_eq!(dash.unshare(space(2), Pages::one(at)), Err(DashError::NotShared));
        dash.map(space(1), at, page(RW)).unwrap();
        assert_eq!([2, 3].map(|of| dash.tables().entry(space(of), at)), [None, None]);
    }
}

/// A part of a segment, or more than it, can be unshared; the rest stays.
#[test]
fn a_part_of_a_segment_is_unshared() {
    let pages = |first, last| Pages::new(Vpn::new(first), Vpn::new(last)).unwrap();
    let shares = |dash: &mut Dash<Map, u32, 3, 4>, at| {
        dash.map(space(1), Vpn::new(at), page(RW)).unwrap();
        dash.tables().entry(space(2), Vpn::new(at)).is_some()
    };
    let mut dash = dash();
    for of in [1, 2] {
        dash.share(space(of), SharingId::AllSpaces, pages(8, 15)).unwrap();
    }
    assert_eq!(dash.unshare(space(2), pages(0, 7)), Err(DashError::NotShared));
    dash.unshare(space(2), pages(10, 11)).unwrap();
    assert_eq!([9, 10, 11, 12].map(|at| shares(&mut dash, at)), [true, false, false, true]);
    // Three declarations and a fourth; in the middle of a piece there would be a fifth.
    dash.share(space(3), SharingId::AllSpaces, pages(8, 15)).unwrap();
    assert_eq!(dash.unshare(space(2), pages(13, 13)), Err(DashError::Full));
    assert!(shares(&mut dash, 13), "nothing has changed");
    dash.unshare(space(2), pages(0, usize::MAX)).unwrap();
    assert_eq!([8, 15].map(|at| shares(&mut dash, at)), [false, false]);
}

/// Two spaces that share pages 8 to 15, of which page 9 is mapped.
fn shared() -> Dash<Map, u32, 3, 4> {
    let mut dash = dash();
    let segment = Pages::new(Vpn::new(8), Vpn::new(15)).unwrap();
    for of in [1, 2] {
        dash.share(space(of), SharingId::Group(5), segment).unwrap();
    }
    dash.map(space(1), Vpn::new(9), page(RW)).unwrap();
    dash
}

/// A space that writes to it leaves it dirty for all.
#[test]
fn a_shared_page_is_one_page() {
    let at = Vpn::new(9);
    let mut dash = shared();
    dash.tables().clone().exchange(space(2), at, Some(page(RW | Attr::DIRTY)));
    assert_eq!([1, 2].map(|of| dash.is_dirty(space(of), at)), [Ok(true); 2]);
    let unmapping = unmap_synch(&mut dash, 1, at, true);
    // Two spaces that have written to it are no fewer than one.
    let dirty = page(Attr::READ | Attr::DIRTY);
    dash.tables().clone().exchange(space(1), at, Some(dirty));
    assert_eq!(dash.is_dirty(space(1), at), Ok(true));
    // While a TLB of either may write to it, neither starts again nor forgets that it is dirty.
    let busy = DashError::BeingUnmapped(unmapping.ticket);
    for of in [1, 2].map(space) {
        assert_eq!(dash.unmap_synch(of, at, false, Hint::default()).map(|_| ()), Err(busy));
        assert_eq!(dash.clear_dirty(of, at), Err(busy));
    }
    let ended = complete(&mut dash, unmapping.ticket, Outcome::Done);
    assert_eq!(ended, done(None, Outcome::Done, Attr::DIRTY), "or the page would be dropped unwritten");
    dash.clear_dirty(space(1), at).unwrap();
    assert_eq!([1, 2].map(|of| dash.tables().entry(space(of), at)), [Some(page(Attr::READ)); 2]);
}

/// A space that stops sharing the page may still have it in a TLB as it was; a space that begins to share it has what
/// the others have.
#[test]
fn what_is_in_flight_goes_on_for_those_who_shared_the_page() {
    let at = Vpn::new(9);
    let segment = Pages::new(Vpn::new(8), Vpn::new(15)).unwrap();
    let mut dash = shared();
    let unmapping = unmap_synch(&mut dash, 1, at, true);
    dash.unshare(space(2), segment).unwrap();
    dash.share(space(3), SharingId::Group(5), segment).unwrap();
    dash.tables().clone().exchange(space(3), at, Some(page(Attr::READ)));
    let stale =
        |dash: &Dash<Map, u32, 3, 4>| dash.spaces_of(unmapping.ticket).map(|of| of.collect::<Vec<_>>());
    assert_eq!(stale(&dash), Ok(vec![space(2), space(1)]));
    for of in [1, 2, 3].map(space) {
        assert_eq!(dash.clear_dirty(of, at), Err(DashError::BeingUnmapped(unmapping.ticket)), "{of}");
    }
    for of in [1, 2, 3].map(space) {
        let why = "in another space, which does not share it, its rights would stay lowered";
        assert_eq!(dash.map(of, at, page(RW)), Err(DashError::BeingUnmapped(unmapping.ticket)), "{why}");
    }
    assert!(dash.check());
    let ended = complete(&mut dash, unmapping.ticket, Outcome::Done);
    assert_eq!(ended, done(None, Outcome::Done, Attr::empty()));
    assert_eq!(dash.clear_dirty(space(3), at), Ok(()));
    assert_eq!(stale(&dash), Err(DashError::UnknownTicket(unmapping.ticket)));
}

/// What two spaces had mapped before they said that they share it is theirs, and each entry is lowered from what it was.
#[test]
fn a_sharer_that_has_more_is_flushed_too() {
    let mut dash = shared();
    let mut tables = dash.tables().clone();
    tables.exchange(space(1), Vpn::new(9), Some(page(Attr::READ)));
    tables.exchange(space(1), Vpn::new(10), Some(page(RW)));
    let lowered = unmap_synch(&mut dash, 1, Vpn::new(9), true);
    assert_eq!(lowered.flush.scope(), FlushScope::Everywhere, "the other could write");
    unmap_synch(&mut dash, 1, Vpn::new(10), true);
    assert_eq!(tables.entry(space(2), Vpn::new(10)), None, "lowering maps nothing");
}

/// Either space brings the page back: the unmapping that the other one asked for has failed.
#[test]
fn a_shared_page_that_is_mapped_again_fails_its_unmapping() {
    for of in [1, 2] {
        let mut dash = shared();
        let unmapping = unmap_synch(&mut dash, 1, Vpn::new(9), false);
        dash.map(space(of), Vpn::new(9), page(RW)).unwrap();
        let ended = complete(&mut dash, unmapping.ticket, Outcome::Done);
        assert_eq!(ended, done(None, Outcome::Superseded, Attr::empty()));
    }
}

/// Each space has an operation of its own. The unmapping is through when the last one is, and has failed if one has.
#[test]
fn the_message_of_a_shared_page_comes_with_the_last_operation() {
    let at = Vpn::new(9);
    for (outcomes, whole) in [
        ([Outcome::Done; 2], Outcome::Done),
        ([Outcome::Overwritten, Outcome::Done], Outcome::Overwritten),
        ([Outcome::Done, Outcome::Superseded], Outcome::Superseded),
    ] {
        let mut dash = shared();
        let ticket = dash.unmap_asynch(space(1), at, false, 7, Hint::default()).unwrap().ticket;
        dash.tables().clone().exchange(space(2), at, Some(page(RW | Attr::DIRTY)));
        update(&mut dash, ticket);
        assert_eq!(dash.completed(ticket, space(1), outcomes[0]), Ok(None));
        // In that space it has ended; the page is still on its way out.
        let unknown = Err(DashError::UnknownTicket(ticket));
        assert_eq!(dash.completed(ticket, space(1), outcomes[0]), unknown);
        assert_eq!(dash.update(ticket, space(1)), Err(DashError::UnknownTicket(ticket)));
        let busy = dash.unmap_synch(space(1), at, false, Hint::default()).map(|_| ());
        assert_eq!(busy, Err(DashError::BeingUnmapped(ticket)));
        assert_eq!(dash.completed(ticket, space(2), outcomes[1]), done(Some(7), whole, Attr::DIRTY));
        assert_eq!(dash.completed(ticket, space(2), outcomes[1]), unknown);
    }
}

/// An operation that was never started has changed nothing, and the unmapping says so.
#[test]
fn an_unmapping_without_an_update_has_failed() {
    for outcome in [Outcome::Superseded, Outcome::Done] {
        let mut dash = dash();
        let at = Vpn::new(0);
        dash.map(space(1), at, page(RW)).unwrap();
        let ticket = dash.unmap_asynch(space(1), at, false, 7, Hint::default()).unwrap().ticket;
        assert_eq!(dash.tables().entry(space(1), at), Some(page(RW)), "the operation has not begun");
        let ended = dash.completed(ticket, space(1), outcome);
        assert_eq!(ended, done(Some(7), Outcome::Superseded, Attr::empty()));
        assert_eq!(dash.tables().entry(space(1), at), Some(page(RW)));
        assert!(dash.unmap_synch(space(1), at, false, Hint::default()).is_ok());
    }
}

/// An operation whose page was mapped again goes on to its end: it must not touch what is the next one's.
#[test]
fn a_superseded_operation_leaves_the_entry_alone() {
    let mut dash = dash();
    let at = Vpn::new(0);
    dash.map(space(1), at, page(RW)).unwrap();
    let first = dash.unmap_asynch(space(1), at, false, 1, Hint::default()).unwrap().ticket;
    assert_eq!(dash.exclude(first, space(1)), Ok(true));
    assert_eq!(dash.tentative(first, space(1)), Ok(None));
    dash.map(space(1), at, page(RW)).unwrap();
    assert_eq!(dash.tentative(first, space(1)), Ok(Some(page(RW))));
    let second = dash.unmap_asynch(space(1), at, true, 2, Hint::default()).unwrap().ticket;
    assert_eq!(dash.exclude(second, space(1)), Ok(false), "the first one's flag is set");
    assert_eq!(dash.tentative(second, space(1)), Ok(Some(page(Attr::READ))));
    dash.update(first, space(1)).unwrap();
    assert_eq!(dash.tables().entry(space(1), at), Some(page(RW)));
    assert_eq!(dash.is_lowered(first, space(1)), Ok(true), "or it would never end");
    assert_eq!(dash.is_lowered(second, space(1)), Ok(false));
    dash.release(first, space(1)).unwrap();
    assert_eq!(dash.exclude(second, space(1)), Ok(true));
    assert_eq!(dash.exclude(first, space(1)), Ok(false));
    let ended = dash.completed(first, space(1), Outcome::Done);
    assert_eq!(ended, done(Some(1), Outcome::Superseded, Attr::empty()));
    dash.update(second, space(1)).unwrap();
    assert_eq!(dash.tables().entry(space(1), at), Some(page(Attr::READ)));
    let ended = dash.completed(second, space(1), Outcome::Done);
    assert_eq!(ended, done(Some(2), Outcome::Done, Attr::empty()));
}

/// A plan for unmapping makes too few rounds where a page stays readable and its status bits are written back.
#[test]
fn a_plan_for_unmapping_does_not_protect() {
    for low in [LowRights::NeverWriteBack, LowRights::MayWriteBack] {
        let plan = Plan::new(Algorithm::TwoPhase, &Hardware::VAX, low).unwrap();
        let config = Config { page: PageSize::K4, prompt: plan, cheap: plan };
        let mut dash = Dash::<_, u32, 3, 4>::new(Map::default(), config);
        dash.map(space(1), Vpn::new(0), page(RW)).unwrap();
        let protect = dash.unmap_asynch(space(1), Vpn::new(0), true, 7, Hint::default());
        match low {
            LowRights::NeverWriteBack => {
                assert_eq!(protect.map(|_| ()), Err((DashError::OtherRights, Some(7))));
            }
            LowRights::MayWriteBack => {
                let ticket = protect.unwrap().ticket;
                dash.completed(ticket, space(1), Outcome::Superseded).unwrap();
            }
        }
        let unmapping = dash.unmap_synch(space(1), Vpn::new(0), false, Hint::default()).unwrap();
        assert_eq!(unmapping.low_rights, LowRights::NeverWriteBack);
    }
}

#[test]
fn a_page_that_is_mapped_again_fails_its_unmapping() {
    let mut dash = dash();
    let at = Vpn::new(0);
    dash.map(space(1), at, page(RW)).unwrap();
    let hint = Hint { slow: true, conditional: true };
    let first = dash.unmap_asynch(space(1), at, false, 1, hint).unwrap();
    update(&mut dash, first.ticket);
    dash.map(space(1), at, page(RW)).unwrap();
    // The next one does not wait for it.
    let second = dash.unmap_asynch(space(1), at, false, 2, hint).unwrap();
    assert!(dash.check());
    let ended = complete(&mut dash, first.ticket, Outcome::Done);
    assert_eq!(ended, done(Some(1), Outcome::Superseded, Attr::empty()));
    let ended = complete(&mut dash, second.ticket, Outcome::Overwritten);
    assert_eq!(ended, done(Some(2), Outcome::Overwritten, Attr::empty()));
}

/// A TLB may still have the page as it was before. What that would allow beyond the new entry is not allowed yet.
#[test]
fn a_page_is_mapped_again_only_as_a_tlb_may_have_it() {
    let at = Vpn::new(0);
    let executable = Entry { frame: Pfn::new(3), attr: Attr::READ | Attr::EXEC };
    let elsewhere = Entry { frame: Pfn::new(9), ..page(RW) };
    for readonly in [false, true] {
        for too_little in [page(Attr::READ), executable, elsewhere] {
            let mut dash = dash();
            dash.map(space(1), at, page(RW)).unwrap();
            let first = dash.unmap_asynch(space(1), at, readonly, 1, Hint::default()).unwrap();
            update(&mut dash, first.ticket);
            let left = dash.tables().entry(space(1), at);
            let busy = DashError::BeingUnmapped(first.ticket);
            let why =
                if readonly && too_little == elsewhere { DashError::Occupied(left.unwrap()) } else { busy };
            assert_eq!(dash.map(space(1), at, too_little), Err(why));
            assert_eq!(dash.tables().entry(space(1), at), left);
            let ended = complete(&mut dash, first.ticket, Outcome::Done);
            assert_eq!(ended, done(Some(1), Outcome::Done, Attr::empty()));
            assert_eq!(dash.map(space(1), at, too_little).is_ok(), !readonly || too_little != elsewhere);
        }
    }
}

/// Of a shared page it is what any of them may have.
#[test]
fn a_page_is_mapped_again_only_as_a_sharers_tlb_may_have_it() {
    let at = Vpn::new(9);
    let mut dash = shared();
    dash.tables().clone().exchange(space(1), at, Some(page(Attr::READ)));
    let unmapping = unmap_synch(&mut dash, 1, at, false);
    let busy = Err(DashError::BeingUnmapped(unmapping.ticket));
    assert_eq!([1, 2].map(|of| dash.map(space(of), at, page(Attr::READ))), [busy; 2]);
    assert_eq!(dash.map(space(1), at, page(RW)), Ok(()));
}

proptest! {
    /// A TLB that holds whatever it can: all rights that an entry has had since the last flush of it began. No CPU
    /// clears the dirty bit while it may write, and what it holds too much is flushed.
    #[test]
    fn what_a_tlb_may_hold_is_never_forgotten(calls in proptest::collection::vec((0..5u8, any::<bool>(), 0..3usize), 0..60)) {
        let (mut dash, at) = (dash(), Vpn::new(0));
        let mut held = Attr::empty();
        let mut flights = Vec::new();
        for (call, flag, nth) in calls {
            match call {
                0 => _ = dash.map(space(1), at, page(if flag { RW } else { Attr::READ })),
                1 | 2 => if let Ok(unmapping) = dash.unmap_asynch(space(1), at, flag, 0, Hint::default()) {
                    update(&mut dash, unmapping.ticket);
                    let left = dash.tables().entry(space(1), at).map_or(Attr::empty(), |entry| entry.attr);
                    if unmapping.flush.scope() == FlushScope::Everywhere {
                        flights.push((unmapping.ticket, left));
                    } else {
                        prop_assert!(left.contains(held), "{held:?} is not flushed");
                        complete(&mut dash, unmapping.ticket, Outcome::Done).unwrap();
                    }
                },
                3 if !flights.is_empty() => {
                    let (ticket, since) = flights.swap_remove(nth % flights.len());
                    complete(&mut dash, ticket, Outcome::Done).unwrap();
                    held &= since;
                }
                _ => if dash.clear_dirty(space(1), at).is_ok() {
                    prop_assert!(!held.contains(Attr::WRITE));
                },
            }
            let now = dash.tables().entry(space(1), at).map_or(Attr::empty(), |entry| entry.attr);
            held |= now;
            flights.iter_mut().for_each(|(_, since)| *since |= now);
            prop_assert!(dash.check());
        }
    }
}

proptest! {
    /// The same of two spaces, where operations take their time: each is begun, updates the entry, flushes and ends in a step
    /// of its own, and any other call may come in between. When an unmapping says that it is done, no TLB of a space that
    /// shared the page may use it.
    #[test]
    fn what_is_done_no_tlb_may_use(
        shared in any::<bool>(), calls in proptest::collection::vec((0..8u8, any::<bool>(), 1..3u16, 0..3usize), 0..80),
    ) {
        let (mut dash, at) = (dash(), Vpn::new(0));
        for of in (1..3).filter(|_| shared) {
            dash.share(space(of), SharingId::AllSpaces, Pages::one(at)).unwrap();
        }
        // What a TLB may hold of each space's page.
        let mut held = [Attr::empty(); 3];
        // Operations: of which unmapping, in which space, how far they have come, and what may have been loaded since the flush.
        let mut flights: Vec<(Ticket, bool, u16, u8, Attr)> = Vec::new();
        for (call, flag, of, nth) in calls {
            match call {
                0 | 1 => _ = dash.map(space(of), at, page(if flag { RW } else { Attr::READ })),
                2 | 3 => if let Ok(unmapping) = dash.unmap_asynch(space(of), at, flag, 0, Hint::default()) {
                    let spaces: Vec<_> = dash.spaces_of(unmapping.ticket).unwrap().map(Asid::get).collect();
                    // With nothing to flush, what a TLB holds stays.
                    let first = if unmapping.flush.scope() == FlushScope::Everywhere { 0 } else { 10 };
                    flights.extend(spaces.into_iter().map(|of| (unmapping.ticket, flag, of, first, Attr::empty())));
                },
                4..7 if !flights.is_empty() => {
                    let nth = nth % flights.len();
                    let (ticket, readonly, of, stage, _) = flights[nth];
                    match stage % 10 {
                        0 => flights[nth].3 += u8::from(dash.exclude(ticket, space(of)).unwrap()),
                        1 => {
                            dash.update(ticket, space(of)).unwrap();
                            dash.release(ticket, space(of)).unwrap();
                            flights[nth].3 += 1;
                        }
                        2 => (flights[nth].3, flights[nth].4) = (stage + 1, Attr::empty()),
                        _ => {
                            let (.., since) = flights.swap_remove(nth);
                            held[usize::from(of)] &= if stage < 10 { since } else { Attr::all() };
                            let ended = dash.completed(ticket, space(of), Outcome::Done).unwrap();
                            let last = flights.iter().all(|(other, ..)| *other != ticket);
                            prop_assert_eq!(last, ended.is_some());
                            if ended.is_some_and(|ended| ended.outcome == Outcome::Done) {
                                let denied = if readonly { Attr::WRITE } else { Attr::RIGHTS };
                                for of in (1..3).filter(|&one| shared || one == of) {
                                    prop_assert!(!held[usize::from(of)].intersects(denied), "space {of}");
                                }
                            }
                        }
                    }
                }
                _ => if dash.clear_dirty(space(of), at).is_ok() {
                    for one in (1..3).filter(|&one| shared || one == of) {
                        prop_assert!(!held[usize::from(one)].contains(Attr::WRITE));
                    }
                },
            }
            for of in 1..3 {
                let now = dash.tables().entry(space(of), at).map_or(Attr::empty(), |entry| entry.attr & Attr::RIGHTS);
                held[usize::from(of)] |= now;
                flights.iter_mut().filter(|flight| flight.2 == of).for_each(|flight| flight.4 |= now);
            }
            prop_assert!(dash.check());
        }
    }
}

/// What has been written to is not clean because its rights are raised, or because it is back before it was gone.
#[test]
fn a_page_that_is_mapped_again_is_as_dirty_as_it_was() {
    let at = Vpn::new(0);
    let used = RW | Attr::DIRTY | Attr::ACCESSED;
    for (unmapped, ended) in [(Some(true), true), (Some(true), false), (Some(false), false), (None, false)] {
        let mut dash = dash();
        dash.map(space(1), at, page(RW)).unwrap();
        dash.tables().clone().exchange(space(1), at, Some(page(used)));
        let unmapping = unmapped.map(|readonly| unmap_synch(&mut dash, 1, at, readonly));
        if ended {
            let status = Attr::DIRTY | Attr::ACCESSED;
            let ended = complete(&mut dash, unmapping.unwrap().ticket, Outcome::Done);
            assert_eq!(ended, done(None, Outcome::Done, status));
        }
        dash.map(space(1), at, page(RW)).unwrap();
        assert_eq!(dash.tables().entry(space(1), at), Some(page(used)), "{unmapped:?} {ended}");
    }
    // Another page has nothing of it.
    let mut dash = dash();
    dash.map(space(1), at, page(Attr::DIRTY)).unwrap();
    let other = Entry { frame: Pfn::new(9), attr: RW };
    dash.map(space(1), at, other).unwrap();
    assert_eq!(dash.tables().entry(space(1), at), Some(other));
}

/// The hardware sets status bits just before the entry is exchanged, and before it is exchanged again for that.
#[test]
fn a_status_bit_of_the_last_moment_is_kept() {
    let at = Vpn::new(0);
    let both = Attr::DIRTY | Attr::ACCESSED;
    for late in [vec![both], vec![Attr::DIRTY, Attr::ACCESSED], vec![Attr::ACCESSED, Attr::DIRTY]] {
        let used = || {
            let mut dash = dash();
            dash.map(space(1), at, page(RW)).unwrap();
            dash.tables().last.borrow_mut().extend(late.iter().copied());
            dash
        };
        let mut dash = used();
        dash.map(space(1), at, page(RW | Attr::EXEC)).unwrap();
        assert_eq!(dash.tables().entry(space(1), at), Some(page(RW | Attr::EXEC | both)));
        let mut dash = used();
        let lowered = unmap_synch(&mut dash, 1, at, true).ticket;
        assert_eq!(dash.tables().entry(space(1), at), Some(page(Attr::READ | both)));
        assert_eq!(complete(&mut dash, lowered, Outcome::Done), done(None, Outcome::Done, both));
        let mut dash = used();
        let unmapped = unmap_synch(&mut dash, 1, at, false).ticket;
        assert_eq!(complete(&mut dash, unmapped, Outcome::Done), done(None, Outcome::Done, late[0]));
        // A bit that is set after the update, in an entry that stays, is not lost either.
        let mut dash = used();
        dash.tables().last.borrow_mut().clear();
        let lowered = unmap_synch(&mut dash, 1, at, true).ticket;
        dash.tables().clone().exchange(space(1), at, Some(page(Attr::READ | Attr::DIRTY)));
        assert_eq!(complete(&mut dash, lowered, Outcome::Done), done(None, Outcome::Done, Attr::DIRTY));
    }
}

thread_local! {
    /// What the hook was told last.
    static FAULT: Cell<Option<(Asid, Vpn, Attr)>> = const { Cell::new(None) };
}

#[test]
fn a_fault_that_the_entry_allows_is_a_stale_copys_and_goes_no_further() {
    let mut dash = dash();
    let at = Vpn::new(0);
    dash.map(space(1), at, page(Attr::READ)).unwrap();
    assert!(!dash.fault(space(1), at, Attr::WRITE), "no CPU to be told yet");
    dash.set_page_fault_hdr(|space, at, wanted| FAULT.set(Some((space, at, wanted))));
    assert!(dash.fault(space(1), at, Attr::READ));
    assert_eq!(FAULT.take(), None);
    for (of, at, wanted) in [(1, 0, Attr::WRITE), (1, 0, RW), (1, 1, Attr::READ), (2, 0, Attr::READ)] {
        assert!(!dash.fault(space(of), Vpn::new(at), wanted));
        assert_eq!(FAULT.take(), Some((space(of), Vpn::new(at), wanted)));
    }
}

/// Figure 2.2: a status write puts the old entry back while the page is being unmapped.
#[test]
fn check_finds_an_entry_that_has_been_overwritten() {
    let mut dash = dash();
    let mut hardware = dash.tables().clone();
    let at = Vpn::new(0);
    dash.map(space(1), at, page(RW)).unwrap();
    let ticket = unmap_synch(&mut dash, 1, at, true).ticket;
    hardware.exchange(space(1), at, Some(page(Attr::READ | Attr::DIRTY)));
    assert!(dash.check(), "status bits are no rights");
    hardware.exchange(space(1), at, Some(page(RW | Attr::DIRTY)));
    assert!(!dash.check());
    assert_eq!(dash.is_lowered(ticket, space(1)), Ok(false));
    // The next round.
    dash.update(ticket, space(1)).unwrap();
    assert_eq!(dash.is_lowered(ticket, space(1)), Ok(true));
    hardware.exchange(space(1), at, Some(page(RW)));
    dash.map(space(1), at, page(RW)).unwrap();
    assert!(dash.check(), "now a space wants it so");
    let ended = complete(&mut dash, ticket, Outcome::Done);
    assert_eq!(ended, done(None, Outcome::Superseded, Attr::DIRTY));
}

#[test]
fn an_error_says_what_is_in_the_way() {
    let mut dash = dash();
    dash.map(space(1), Vpn::new(0), page(RW)).unwrap();
    let ticket = dash.unmap_synch(space(1), Vpn::new(0), true, Hint::default()).unwrap().ticket;
    let texts = [
        DashError::NotMapped,
        DashError::BeingUnmapped(ticket),
        DashError::Occupied(page(RW)),
        DashError::Writable,
        DashError::Full,
        DashError::NotShared,
        DashError::UnknownTicket(ticket),
        DashError::OtherRights,
    ]
    .map(|error| error.to_string());
    assert!(texts[2].contains("frame 0x3"), "{}", texts[2]);
    assert_eq!(BTreeSet::from(texts).len(), 8, "each says something else");
}
