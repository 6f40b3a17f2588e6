//! Table 5.3: which space owns an IPC page, what the page table says of it, and how a message is passed.

use proptest::prelude::*;
use tlbkit_dash::ipc::{Access, IpcError, IpcRegion, LowAction, MessageStep, Passing, Receive, Send};

/// Found by the property below: three ownerships of a page that stays mapped for writing, one of which is copied away.
#[test]
fn what_was_duplicated_is_still_known_as_stale_after_a_copy() {
    let mut region = IpcRegion::<2, 1>::new();
    let page = region.get_ownership(0).unwrap();
    let _ = region.mapin(0, page, Access::Write).unwrap();
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
            let before = region.clone();
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
                    prop_assert_eq!(region.ownerships(page), before.ownerships(page));
                    action
                }
                3 => region.finish_transfer(space, page),
                4 => region.duplicate(space, page, flag),
                5 => region.make_writable(space, page),
                6 => region.mapin(space, page, if flag { Access::Read } else { Access::Write }),
                _ => {
                    match reducing.pop() {
                        Some((space, page)) => region.reduced(space, page),
                        None => Ok(LowAction::Nothing),
                    }
                }
            };
            match action {
                Ok(LowAction::Reduce { space, page, .. } | LowAction::Copy { space, page, reduce: Some(_), .. }) => {
                    reducing.push((space, page));
                }
                Ok(_) => {}
                Err(_) => prop_assert_eq!(format!("{:?}", region), format!("{:?}", before), "an error changes nothing"),
            }
            if call == 3 && action == Ok(LowAction::Nothing) {
                prop_assert!(region.low(space, page) <= region.high(space, page));
            }
            prop_assert!(region.check(), "after {call} {space} {other} {page} {flag}: {region:?}");
        }
    }

    /// 5.3.4.5: after an untrusting receive, no other space can use the page for more than its ownerships allow, not even one that
    /// has sent it to the sender; a trusting one never touches the sender's map if it was there first or was guessed right.
    #[test]
    fn a_received_message_is_protected(
        duplicate: bool, hint: bool, trust: bool, receive_first: bool, mapped: bool, use_at_once in 0..3u8,
        earlier: Option<bool>,
    ) {
        let immediate_use = [Access::None, Access::Read, Access::Write][usize::from(use_at_once)];
        prop_assume!(!(duplicate && immediate_use == Access::Write));
        let (from, to, before) = (0, 1, 2);
        let mut region = IpcRegion::<2, 3>::new();
        let page = region.get_ownership(if earlier.is_some() { before } else { from }).unwrap();
        if let Some(trusted) = earlier {
            let _ = region.mapin(before, page, Access::Write).unwrap();
            // Where the sender did not trust it, its mapping is still being reduced: the sender did not wait.
            let _ = region.start_transfer(before, from, page, trusted).unwrap();
        }
        if mapped {
            let _ = region.mapin(from, page, Access::Write).unwrap();
        }
        let mut passing = Passing::new();
        let (send, receive) = (Send { duplicate, trust_hint: hint }, Receive { trust, immediate_use });
        if receive_first {
            prop_assert!(passing.receive(receive) && passing.send(send));
        } else {
            prop_assert!(passing.send(send) && !passing.send(send));
        }
        let mut reductions = 0;
        let mut turn = |passing: &mut Passing, region: &mut IpcRegion<2, 3>| {
            while let Some(step) = passing.step() {
                let mut act = |region: &mut IpcRegion<2, 3>, action: Result<LowAction, IpcError>| {
                    match action.unwrap() {
                        LowAction::Reduce { space, page, .. } => {
                            reductions += 1;
                            assert_eq!(region.reduced(space, page), NOTHING);
                        }
                        LowAction::Wait { space, page } => assert_eq!(region.reduced(space, page), NOTHING),
                        _ => return true,
                    }
                    false
                };
                let action = match step {
                    MessageStep::Duplicate { ownership_only } => region.duplicate(from, page, ownership_only),
                    MessageStep::StartTransfer { ownership_only } => {
                        region.start_transfer(from, to, page, ownership_only)
                    }
                    MessageStep::FinishTransfer => {
                        while let Some(space) = region.unfinished_in(page) {
                            let action = region.finish_transfer(space, page);
                            act(region, action);
                        }
                        continue;
                    }
                    MessageStep::Mapin(access) => {
                        let mut mapped = false;
                        while !mapped {
                            let action = region.mapin(to, page, access);
                            mapped = act(region, action);
                        }
                        continue;
                    }
                };
                act(region, action);
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
            prop_assert!((0..3).all(|space| region.low(space, page) <= region.high(space, page)));
        } else if receive_first || hint {
            prop_assert_eq!(reductions, 0, "a trusted transfer synchronizes nothing");
        }
        prop_assert!(region.check());
    }
}

const NOTHING: Result<LowAction, IpcError> = Ok(LowAction::Nothing);

fn map(space: usize, page: usize, access: Access) -> Result<LowAction, IpcError> {
    Ok(LowAction::Map { space, page, access })
}

fn reduce(space: usize, page: usize, access: Access) -> Result<LowAction, IpcError> {
    Ok(LowAction::Reduce { space, page, access })
}

/// A page is free when no space owns it and every TLB has forgotten it.
#[test]
fn a_page_is_given_out_again_when_it_is_mapped_nowhere() {
    let mut region = IpcRegion::<1, 2>::new();
    let page = region.get_ownership(0).unwrap();
    let _ = region.mapin(0, page, Access::Write).unwrap();
    assert_eq!(region.duplicate(0, page, false), reduce(0, page, Access::Read));
    assert_eq!(region.reduced(0, page), NOTHING);
    assert_eq!(region.release_ownership(0, page), NOTHING, "what is left is one ownership");
    assert_eq!((region.ownerships(page), region.high(0, page)), (1, Access::Write));
    assert_eq!(region.release_ownership(0, page), reduce(0, page, Access::None));
    assert_eq!(region.ownerships(page), 0);
    assert_eq!(region.release_ownership(0, page), Err(IpcError::NotOwner));
    assert_eq!(region.get_ownership(1), Err(IpcError::NoPage));
    assert_eq!(region.finish_transfer(0, page), Ok(LowAction::Wait { space: 0, page }));
    assert_eq!(region.reduced(0, page), NOTHING);
    assert_eq!(region.finish_transfer(0, page), NOTHING);
    assert_eq!(region.get_ownership(1), Ok(page));
}

/// A page passed on by trust leaves a stale mapping behind wherever it has been used, and each is found.
#[test]
fn stale_mappings_are_found_one_by_one() {
    let mut region = IpcRegion::<2, 4>::new();
    // The other page has nothing to do with it.
    region.get_ownership(3).unwrap();
    let page = region.get_ownership(0).unwrap();
    assert_eq!(region.stale_in(page), None);
    for space in 0..3 {
        assert_eq!(region.mapin(space, page, Access::Write), map(space, page, Access::Write));
        assert_eq!(region.start_transfer(space, space + 1, page, true), NOTHING);
    }
    assert_eq!(region.release_ownership(3, page), NOTHING, "it was not mapped there");
    for space in 0..3 {
        assert_eq!(region.stale_in(page), Some(space));
        assert_eq!(region.finish_transfer(space, page), reduce(space, page, Access::None));
        assert_eq!(region.reduced(space, page), NOTHING);
    }
    assert_eq!(region.stale_in(page), None);
    assert_eq!(region.get_ownership(0), Ok(page));
    assert_eq!(region.stale_in(9), None);
}

/// A space that trusts no other has the page to itself when every space that had it has been finished: the one that was
/// never told, and the one whose mapping was being reduced, for which no CPU has waited.
#[test]
fn an_untrusting_receiver_is_safe_from_those_whom_others_have_trusted() {
    let mut region = IpcRegion::<2, 4>::new();
    let page = region.get_ownership(0).unwrap();
    let senders = [(0, Access::Write, true), (1, Access::Read, false), (2, Access::Read, false)];
    for (space, access, trusted) in senders {
        assert_eq!(region.mapin(space, page, access), map(space, page, access));
        let asked = if trusted { NOTHING } else { reduce(space, page, Access::None) };
        assert_eq!(region.start_transfer(space, space + 1, page, trusted), asked);
    }
    assert_eq!(region.unfinished_in(page), Some(0));
    assert_eq!(region.finish_transfer(0, page), reduce(0, page, Access::None));
    for space in 0..3 {
        assert_eq!(region.unfinished_in(page), Some(space), "its TLBs may still have it");
        assert_eq!(region.finish_transfer(space, page), Ok(LowAction::Wait { space, page }));
        assert_eq!(region.reduced(space, page), NOTHING);
        assert_eq!(region.low(space, page), Access::None);
    }
    assert_eq!((region.unfinished_in(page), region.unfinished_in(9)), (None, None));
}

/// What one has passed on by trust is still mapped when it comes back: good again if it comes back for writing, but not if
/// others have kept a copy.
#[test]
fn a_page_that_comes_back_finds_its_old_mapping() {
    for duplicate in [false, true] {
        let mut region = IpcRegion::<1, 2>::new();
        let page = region.get_ownership(0).unwrap();
        let _ = region.mapin(0, page, Access::Write).unwrap();
        if duplicate {
            assert_eq!(region.duplicate(0, page, true), NOTHING);
        }
        assert_eq!(region.start_transfer(0, 1, page, true), NOTHING);
        assert_eq!(region.stale_in(page), Some(0));
        assert_eq!(region.start_transfer(1, 0, page, true), NOTHING);
        assert_eq!(region.stale_in(page), duplicate.then_some(0));
        assert!(region.check());
        assert_eq!(region.make_writable(0, page).is_ok(), !duplicate, "there is no page for the copy");
    }
}

/// The receiver of a duplicate gives its copy up: the sender is the only owner again and may write, as its mapping, which
/// was stale, always let it. Finishing all stale mappings comes to an end.
#[test]
fn a_stale_mapping_is_good_again_when_the_others_let_go() {
    let mut region = IpcRegion::<1, 2>::new();
    let page = region.get_ownership(0).unwrap();
    let _ = region.mapin(0, page, Access::Write).unwrap();
    let _ = region.duplicate(0, page, true).unwrap();
    let _ = region.start_transfer(0, 1, page, true).unwrap();
    assert_eq!(region.stale_in(page), Some(0));
    let _ = region.release_ownership(1, page).unwrap();
    assert_eq!((region.low(0, page), region.high(0, page)), (Access::Write, Access::Write));
    assert_eq!(region.stale_in(page), None);
    assert_eq!(region.finish_transfer(0, page), NOTHING);
}

/// Guarantee (2) of 5.3.4.5, either way round. A duplicate has been passed without trust, and its transfer completed. One of
/// the two spaces takes a copy: the other owns the page alone, and will write to it. The first must not read that.
#[test]
fn a_space_that_takes_a_copy_reads_no_more_of_the_page() {
    for copier in [0, 1] {
        let mut region = IpcRegion::<2, 2>::new();
        let page = region.get_ownership(0).unwrap();
        assert_eq!(region.mapin(0, page, Access::Write), map(0, page, Access::Write));
        assert_eq!(region.duplicate(0, page, false), reduce(0, page, Access::Read));
        assert_eq!(region.reduced(0, page), NOTHING);
        assert_eq!(region.start_transfer(0, 1, page, false), NOTHING);
        assert_eq!(region.unfinished_in(page), None);
        assert_eq!(region.mapin(1, page, Access::Read), map(1, page, Access::Read));

        let copied = LowAction::Copy { space: copier, page, copy: 1, reduce: Some(Access::None) };
        assert_eq!(region.make_writable(copier, page), Ok(copied));
        let owner = 1 - copier;
        assert_eq!((region.high(owner, page), region.unfinished_in(page)), (Access::Write, Some(copier)));
        let wait = Ok(LowAction::Wait { space: copier, page });
        assert_eq!(region.make_writable(owner, page), wait);
        assert_eq!(region.mapin(owner, page, Access::Write), wait);
        assert_eq!(region.mapin(owner, page, Access::Read), NOTHING, "it has read the page before");
        assert_eq!(region.reduced(copier, page), NOTHING);
        assert_eq!((region.low(copier, page), region.unfinished_in(page)), (Access::None, None));
        assert_eq!(region.make_writable(owner, page), map(owner, page, Access::Write));
    }
}

/// As above, for a space that gives its ownership up.
#[test]
fn a_space_that_releases_a_page_reads_no_more_of_it() {
    let mut region = IpcRegion::<1, 2>::new();
    let page = region.get_ownership(0).unwrap();
    assert_eq!(region.duplicate(0, page, false), NOTHING);
    assert_eq!(region.start_transfer(0, 1, page, false), NOTHING);
    assert_eq!(region.mapin(0, page, Access::Read), map(0, page, Access::Read));
    assert_eq!(region.release_ownership(0, page), reduce(0, page, Access::None));
    assert_eq!(region.make_writable(1, page), Ok(LowAction::Wait { space: 0, page }));
    assert_eq!(region.reduced(0, page), NOTHING);
    assert_eq!(region.make_writable(1, page), map(1, page, Access::Write));
}

/// Space 1 has trusted space 0. Space 2, which gets a duplicate of the page and remains its only owner, has not been asked.
/// Before it writes, what space 0 may still do is taken away.
#[test]
fn no_space_has_to_trust_what_another_has_trusted() {
    let mut region = IpcRegion::<1, 3>::new();
    let page = region.get_ownership(0).unwrap();
    assert_eq!(region.mapin(0, page, Access::Write), map(0, page, Access::Write));
    assert_eq!(region.start_transfer(0, 1, page, true), NOTHING);
    assert_eq!(region.duplicate(1, page, false), NOTHING);
    assert_eq!(region.start_transfer(1, 2, page, false), NOTHING);
    assert_eq!(region.mapin(2, page, Access::Write), Err(IpcError::Denied));
    assert_eq!(region.release_ownership(1, page), NOTHING);
    assert_eq!(region.mapin(2, page, Access::Write), reduce(0, page, Access::None));
    assert_eq!(region.mapin(2, page, Access::Write), Ok(LowAction::Wait { space: 0, page }));
    assert_eq!(region.reduced(0, page), NOTHING);
    assert_eq!(region.mapin(2, page, Access::Write), map(2, page, Access::Write));
}

/// 5.3.4.6: the reduction that a duplicate starts overlaps with the rest of the send, and with the next one.
#[test]
fn a_send_does_not_wait_for_a_reduction() {
    let mut region = IpcRegion::<1, 3>::new();
    let page = region.get_ownership(0).unwrap();
    assert_eq!(region.mapin(0, page, Access::Write), map(0, page, Access::Write));
    assert_eq!(region.duplicate(0, page, false), reduce(0, page, Access::Read));
    assert_eq!(region.start_transfer(0, 1, page, false), NOTHING);
    assert_eq!(region.finish_transfer(0, page), Ok(LowAction::Wait { space: 0, page }));
    // The sender's own ownership goes too, while the mapping is still being reduced for the first receiver.
    assert_eq!(region.start_transfer(0, 2, page, false), NOTHING);
    assert_eq!((region.high(0, page), region.unfinished_in(page)), (Access::None, Some(0)));
    assert!(region.check());
    assert_eq!(region.reduced(0, page), reduce(0, page, Access::None), "it owns nothing of it any more");
    assert_eq!(region.reduced(0, page), NOTHING);
    assert_eq!((region.low(0, page), region.unfinished_in(page)), (Access::None, None));
}

#[test]
fn a_copy_leaves_nothing_of_the_mapping_that_there_was() {
    for mapped in [Access::None, Access::Read] {
        let mut region = IpcRegion::<2, 2>::new();
        let page = region.get_ownership(0).unwrap();
        let _ = region.duplicate(0, page, false).unwrap();
        let _ = region.start_transfer(0, 1, page, false).unwrap();
        let _ = region.mapin(0, page, mapped).unwrap();
        let left = (mapped > Access::None).then_some(Access::None);
        let copied = LowAction::Copy { space: 0, page, copy: 1, reduce: left };
        assert_eq!(region.make_writable(0, page), Ok(copied));
        assert_eq!((region.stale_in(page), region.unfinished_in(page)), (None, left.map(|_| 0)));
    }
}

/// While a mapping is being reduced its space cannot map the page; nor is it stale.
#[test]
fn a_reduction_is_waited_for() {
    let mut region = IpcRegion::<1, 2>::new();
    let page = region.get_ownership(0).unwrap();
    assert_eq!(region.reduced(0, page), Err(IpcError::NotReducing), "nothing is being reduced");
    let _ = region.mapin(0, page, Access::Write).unwrap();
    assert_eq!(region.duplicate(0, page, false), reduce(0, page, Access::Read));
    assert_eq!(region.stale_in(page), None);
    let wait = Ok(LowAction::Wait { space: 0, page });
    assert_eq!(region.mapin(0, page, Access::Read), wait);
    assert_eq!(region.finish_transfer(0, page), wait);
    assert_eq!(region.release_ownership(0, page), NOTHING, "it is the only owner again");
    assert_eq!((region.make_writable(0, page), region.high(0, page)), (wait, Access::Write));
    assert_eq!(region.reduced(0, page), NOTHING);
    assert_eq!(region.low(0, page), Access::Read);
    assert_eq!(region.mapin(0, page, Access::Read), NOTHING);
}

#[test]
fn what_is_not_there_or_not_owned_is_refused() {
    let mut region = IpcRegion::<1, 1>::new();
    let page = region.get_ownership(0).unwrap();
    for (space, of) in [(1, page), (0, 1)] {
        let out = Err(IpcError::OutOfRange);
        assert_eq!(region.release_ownership(space, of), out);
        assert_eq!(region.finish_transfer(space, of), out);
        assert_eq!(region.mapin(space, of, Access::None), out);
        assert_eq!((region.high(space, of), region.low(space, of)), (Access::None, Access::None));
    }
    assert_eq!(region.start_transfer(0, 1, page, false), Err(IpcError::OutOfRange));
    assert_eq!(region.ownerships(page), 1, "and nothing is lost");
    for _ in 1..u16::MAX {
        let _ = region.duplicate(0, page, false).unwrap();
    }
    assert_eq!(region.duplicate(0, page, false), Err(IpcError::TooMany));
    assert_eq!(region.ownerships(page), usize::from(u16::MAX));
}

#[test]
fn an_error_says_what_is_in_the_way() {
    use IpcError::{Denied, NoPage, NotOwner, NotReducing, OutOfRange, TooMany};
    let texts = [OutOfRange, NoPage, NotOwner, Denied, NotReducing, TooMany].map(|error| error.to_string());
    assert!(texts.iter().all(|text| !text.is_empty()));
    assert_eq!(std::collections::BTreeSet::from(texts).len(), 6, "each says something else");
}

/// 5.3.4.6: whose word decides whether the low map is left alone, what waits for the receiver, and what the receiver can spare.
#[test]
fn a_message_is_passed_as_its_flags_say() {
    let flags = [false, true];
    for case in 0..48 {
        let [receive_first, duplicate, trust_hint, trust] = [0, 1, 2, 3].map(|bit| flags[case >> bit & 1]);
        let immediate_use = [Access::None, Access::Read, Access::Write][case / 16];
        let (send, receive) = (Send { duplicate, trust_hint }, Receive { trust, immediate_use });

        let ownership_only = if receive_first { trust } else { trust_hint };
        let mut sending = Vec::new();
        if duplicate {
            sending.push(MessageStep::Duplicate { ownership_only });
        }
        sending.push(MessageStep::StartTransfer { ownership_only });
        let mut receiving = Vec::new();
        if !trust {
            receiving.push(MessageStep::FinishTransfer);
        }
        if immediate_use != Access::None {
            receiving.push(MessageStep::Mapin(immediate_use));
        }

        let mut passing = Passing::new();
        let steps = |passing: &mut Passing| std::iter::from_fn(|| passing.step()).collect::<Vec<_>>();
        if receive_first {
            assert!(passing.receive(receive) && !passing.receive(Receive::default()));
            assert_eq!(steps(&mut passing), []);
            assert!(passing.send(send) && !passing.is_received());
            assert_eq!(steps(&mut passing), [sending, receiving].concat(), "{send:?} {receive:?}");
        } else {
            assert!(passing.send(send) && !passing.send(Send::default()));
            assert_eq!(steps(&mut passing), sending, "{send:?}");
            assert!(!passing.is_received(), "it was not asked for");
            assert!(passing.receive(receive) && !passing.is_received());
            assert_eq!(steps(&mut passing), receiving, "{receive:?}");
        }
        assert!(passing.is_received());
        assert!(!passing.send(send) && !passing.receive(receive), "it is one message");
        assert_eq!(steps(&mut passing), []);
    }
}

#[test]
fn a_writable_copy_is_the_callers_alone() {
    let mut region = IpcRegion::<2, 2>::new();
    let page = region.get_ownership(0).unwrap();
    assert_eq!(region.mapin(1, page, Access::Read), Err(IpcError::Denied));
    let _ = region.duplicate(0, page, false).unwrap();
    let _ = region.start_transfer(0, 1, page, false).unwrap();
    let Ok(LowAction::Copy { copy, .. }) = region.make_writable(1, page) else { panic!("two own it") };
    assert_eq!((region.high(1, copy), region.high(0, page)), (Access::Write, Access::Write));
    assert_eq!(region.make_writable(0, page), Ok(LowAction::Map { space: 0, page, access: Access::Write }));
}

/// A trust that came while the mapping was being reduced has nothing left to be about when that is done.
#[test]
fn a_page_whose_trusted_mapping_is_gone_is_free() {
    let mut region = IpcRegion::<1, 2>::new();
    let page = region.get_ownership(0).unwrap();
    let _ = region.mapin(0, page, Access::Write).unwrap();
    assert_eq!(region.start_transfer(0, 1, page, false), reduce(0, page, Access::None));
    assert_eq!(region.start_transfer(1, 0, page, false), Ok(LowAction::Nothing));
    assert_eq!(region.start_transfer(0, 1, page, true), Ok(LowAction::Nothing));
    assert_eq!(region.reduced(0, page), Ok(LowAction::Nothing));
    assert_eq!(region.release_ownership(1, page), Ok(LowAction::Nothing));
    assert_eq!(region.get_ownership(0), Ok(page), "no space owns it, and it is mapped nowhere");
    // A space that was trusted with the page is not trusted with the next one of that number.
    let _ = region.mapin(0, page, Access::Write).unwrap();
    assert_eq!(region.start_transfer(0, 1, page, false), reduce(0, page, Access::None));
    assert_eq!(region.mapin(1, page, Access::Write), Ok(LowAction::Wait { space: 0, page }));
}

#[derive(Clone, Copy, Debug)]
enum Call {
    Get(usize),
    Release(usize, usize),
    Transfer(usize, usize, usize, bool),
    Finish(usize, usize),
    Reduced(usize),
    Duplicate(usize, usize, bool),
    MakeWritable(usize, usize),
    Mapin(usize, usize, Access),
}

fn call() -> impl Strategy<Value = Call> {
    let (space, page) = (0..3usize, 0..2usize);
    let access = prop_oneof![Just(Access::Read), Just(Access::Write)];
    prop_oneof![
        1 => space.clone().prop_map(Call::Get),
        2 => (space.clone(), page.clone()).prop_map(|(s, p)| Call::Release(s, p)),
        4 => (space.clone(), space.clone(), page.clone(), any::<bool>()).prop_map(|(f, t, p, o)| Call::Transfer(f, t, p, o)),
        1 => (space.clone(), page.clone()).prop_map(|(s, p)| Call::Finish(s, p)),
        3 => (0..8usize).prop_map(Call::Reduced),
        2 => (space.clone(), page.clone(), any::<bool>()).prop_map(|(s, p, o)| Call::Duplicate(s, p, o)),
        1 => (space.clone(), page.clone()).prop_map(|(s, p)| Call::MakeWritable(s, p)),
        4 => (space, page, access).prop_map(|(s, p, a)| Call::Mapin(s, p, a)),
    ]
}

proptest! {
    /// Whatever is called in whatever order: a space that may write in place has no other beside it that reads more
    /// than it owns, but for those that it has trusted; and a page that every space has released, with its mappings
    /// reduced, is given out again.
    #[test]
    fn no_order_of_calls_leaves_a_mapping_or_loses_a_page(calls in proptest::collection::vec(call(), 0..60)) {
        let mut region = IpcRegion::<2, 3>::new();
        // Of each page: which spaces each space has trusted at some time, and which reductions are under way.
        let mut trusts = [[[false; 3]; 3]; 2];
        let mut under_way = Vec::new();
        let note = |under_way: &mut Vec<(usize, usize)>, action: LowAction| match action {
            LowAction::Reduce { space, page, .. } | LowAction::Copy { space, page, reduce: Some(_), .. } => {
                assert!(!under_way.contains(&(space, page)), "one reduction of a mapping at a time");
                under_way.push((space, page));
            }
            _ => {}
        };
        for call in calls {
            let asked = match call {
                Call::Get(space) => { let _ = region.get_ownership(space); Ok(LowAction::Nothing) }
                Call::Release(space, page) => region.release_ownership(space, page),
                Call::Transfer(from, to, page, only) => {
                    let asked = region.start_transfer(from, to, page, only);
                    if asked.is_ok() && only {
                        let passed_on = trusts[page][from];
                        trusts[page][to][from] = true;
                        (0..3).filter(|&of| passed_on[of]).for_each(|of| trusts[page][to][of] = true);
                    }
                    asked
                }
                Call::Finish(space, page) => region.finish_transfer(space, page),
                Call::Reduced(nth) if !under_way.is_empty() => {
                    let (space, page) = under_way.swap_remove(nth % under_way.len());
                    region.reduced(space, page)
                }
                Call::Reduced(_) => Err(IpcError::NotReducing),
                Call::Duplicate(space, page, only) => region.duplicate(space, page, only),
                Call::MakeWritable(space, page) => region.make_writable(space, page),
                Call::Mapin(space, page, access) => region.mapin(space, page, access),
            };
            if let (Call::Mapin(space, page, Access::Write), Ok(LowAction::Nothing | LowAction::Map { .. })) = (call, asked) {
                for of in (0..3).filter(|&of| of != space && !trusts[page][space][of]) {
                    prop_assert!(region.low(of, page) <= region.high(of, page), "{space} writes what {of} still reads");
                }
            }
            asked.into_iter().for_each(|action| note(&mut under_way, action));
            prop_assert!(region.check());
        }
        for page in 0..2 {
            for space in 0..3 {
                while let Ok(action) = region.release_ownership(space, page) {
                    note(&mut under_way, action);
                }
            }
            while let Some(space) = region.unfinished_in(page) {
                let asked = region.finish_transfer(space, page).unwrap();
                note(&mut under_way, asked);
                if let Some(nth) = under_way.iter().position(|&at| at == (space, page)) {
                    under_way.swap_remove(nth);
                    let more = region.reduced(space, page).unwrap();
                    note(&mut under_way, more);
                }
            }
        }
        while let Some((space, page)) = under_way.pop() {
            note(&mut under_way, region.reduced(space, page).unwrap());
        }
        prop_assert_eq!([region.get_ownership(0), region.get_ownership(1)], [Ok(0), Ok(1)]);
    }
}
