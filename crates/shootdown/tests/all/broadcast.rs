//! The initiator of a broadcast, action by action, and the rule for a CPU's word.

use tlbkit_addr::CpuSet;
use tlbkit_shootdown::{
    Algorithm, Broadcast, BroadcastAction as Action, BroadcastSeen as Seen, Hardware, Loader, LowRights,
    Misuse, Plan, SectionKind, SectionWord, Unsuitable,
};

use SectionKind::{Use, Walk};

fn plan() -> Plan {
    Plan::new(Algorithm::PteFirst, &Hardware::AARCH64, LowRights::NeverWriteBack).unwrap()
}

fn cpus(of: &[usize]) -> CpuSet {
    of.iter().copied().collect()
}

fn look(of: &[usize], kind: SectionKind, since: Option<usize>) -> Action {
    Action::Look { cpus: cpus(of), kind, since }
}

/// Plays a change: each action that must come, and the answer to it. The change is over then.
fn play(mut change: Broadcast, script: &[(Action, Seen)]) {
    for &(action, seen) in script {
        assert_eq!(change.next(), action);
        change.did(seen).unwrap();
    }
    assert_eq!(change.next(), Action::Done);
    assert_eq!(change.did(Seen::Did), Err(Misuse::NotAsked));
}

/// The flush of each change below, in which CPUs 1 and 2 run the address space.
const FLUSH: [(Action, Seen); 3] =
    [(Action::Flush, Seen::Did), (Action::AllFlushed, Seen::No), (Action::AllFlushed, Seen::Yes)];

fn after_flush(rest: &[(Action, Seen)]) -> Vec<(Action, Seen)> {
    let running = (Action::ReadRunning, Seen::Cpus(cpus(&[1, 2])));
    FLUSH.into_iter().chain([running]).chain(rest.iter().copied()).collect()
}

const RELEASE: (Action, Seen) = (Action::Release, Seen::Did);
const RECLAIM: (Action, Seen) = (Action::Reclaim, Seen::Did);

#[test]
fn nobody_is_waited_for_if_nobody_walks() {
    let none = Seen::Cpus(cpus(&[]));
    let used = (look(&[1, 2], Use, None), none);
    play(Broadcast::new(&plan(), false), &after_flush(&[used, RELEASE, RECLAIM]));
    let walked = (look(&[1, 2], Walk, None), none);
    play(Broadcast::new(&plan(), true), &after_flush(&[used, RELEASE, walked, RECLAIM]));
}

#[test]
fn a_use_is_waited_for_before_frames_are_released() {
    let wait = [
        (look(&[1, 2], Use, None), Seen::Cpus(cpus(&[1, 2]))),
        (Action::BeginEpoch, Seen::Epoch(8)),
        (look(&[1, 2], Use, Some(8)), Seen::Cpus(cpus(&[2]))),
        (look(&[2], Use, Some(8)), Seen::Cpus(cpus(&[2]))),
        (look(&[2], Use, Some(8)), Seen::Cpus(cpus(&[]))),
        RELEASE,
    ];
    let without = [&wait[..], &[RECLAIM]].concat();
    play(Broadcast::new(&plan(), false), &after_flush(&without));
    // Another look, by all that run, for the nodes.
    let with = [&wait[..], &[(look(&[1, 2], Walk, None), Seen::Cpus(cpus(&[]))), RECLAIM]].concat();
    play(Broadcast::new(&plan(), true), &after_flush(&with));
}

#[test]
fn nodes_are_kept_and_waited_for_only_without_room() {
    let keep = [
        (look(&[1, 2], Use, None), Seen::Cpus(cpus(&[]))),
        RELEASE,
        (look(&[1, 2], Walk, None), Seen::Cpus(cpus(&[1]))),
        (Action::BeginEpoch, Seen::Epoch(0)),
    ];
    let kept = [&keep[..], &[(Action::Keep { since: 0 }, Seen::Yes)]].concat();
    play(Broadcast::new(&plan(), true), &after_flush(&kept));
    let full = [
        &keep[..],
        &[
            (Action::Keep { since: 0 }, Seen::No),
            (look(&[1], Walk, Some(0)), Seen::Cpus(cpus(&[1]))),
            (look(&[1], Walk, Some(0)), Seen::Cpus(cpus(&[]))),
            RECLAIM,
        ],
    ];
    play(Broadcast::new(&plan(), true), &after_flush(&full.concat()));
}

#[test]
fn walks_can_be_waited_for_alone() {
    let running = (Action::ReadRunning, Seen::Cpus(cpus(&[3])));
    play(Broadcast::walks(&plan()), &[running, (look(&[3], Walk, None), Seen::Cpus(cpus(&[])))]);
    let wait = [
        running,
        (look(&[3], Walk, None), Seen::Cpus(cpus(&[3]))),
        (Action::BeginEpoch, Seen::Epoch(4)),
        (look(&[3], Walk, Some(4)), Seen::Cpus(cpus(&[3]))),
        (look(&[3], Walk, Some(4)), Seen::Cpus(cpus(&[]))),
    ];
    play(Broadcast::walks(&plan()), &wait);
}

#[test]
fn an_answer_that_was_not_asked_for_changes_nothing() {
    let mut change = Broadcast::<1>::new(&plan(), true);
    for seen in [Seen::Yes, Seen::No, Seen::Cpus(cpus(&[])), Seen::Epoch(0)] {
        assert_eq!(change.did(seen), Err(Misuse::NotAsked));
    }
    assert_eq!(change.next(), Action::Flush);
}

#[test]
fn a_word_says_which_walks_may_have_found_the_old_table() {
    let epochs = [0, SectionWord::STEP, usize::MAX - 3, usize::MAX / 2 - 3];
    for since in epochs {
        let later = since.wrapping_add(SectionWord::STEP);
        let earlier = since.wrapping_sub(SectionWord::STEP);
        for kind in [Walk, Use] {
            let inside = |epoch, since| SectionWord::begun(epoch, kind).may_be_inside(kind, since);
            assert!(inside(since, Some(since)) && inside(earlier, Some(since)) && inside(later, None));
            assert!(!inside(later, Some(since)));
            assert!(!SectionWord::OUTSIDE.may_be_inside(kind, Some(since)));
        }
        // A use is a walk, too.
        assert!(SectionWord::begun(since, Use).may_be_inside(Walk, None));
        assert!(!SectionWord::begun(since, Walk).may_be_inside(Use, None));
        let word = SectionWord::begun(since, Use);
        assert_eq!(SectionWord::from_bits(word.bits()), word);
    }
}

#[test]
fn hardware_whose_walks_no_section_announces_is_refused() {
    let soft = Hardware { broadcasts: true, ..Hardware::MIPS32 };
    assert_eq!(soft.loader, Loader::Software);
    assert_eq!(Broadcast::suits(&soft), Err(Unsuitable::LoadedBySoftware));
    assert_eq!(Broadcast::suits(&Hardware::POWERPC_HASH), Err(Unsuitable::StatusOverwrites));
    for (name, hardware) in Hardware::TODAY.iter().filter(|(_, hardware)| hardware.broadcasts) {
        assert_eq!(Broadcast::suits(hardware).is_ok(), *name != "powerpc-hash");
        assert!(hardware.remote_flush, "a flush of all CPUs is one of each");
    }
    let broadcasting = Hardware::TODAY.iter().filter(|(_, hardware)| hardware.broadcasts).count();
    assert_eq!(broadcasting, 5);
}
