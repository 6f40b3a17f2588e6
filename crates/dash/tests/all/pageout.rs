//! Page-out (Figure 5.4): when a page may be used again.

use proptest::prelude::*;
use tlbkit_dash::pageout::{PageAction, PageOut, State, WrongState};
use tlbkit_shootdown::Outcome;

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
    Written(usize, bool),
}

fn event() -> impl Strategy<Value = Event> {
    let frame = 0..6usize;
    prop_oneof![
        2 => any::<bool>().prop_map(Event::Allocate),
        1 => frame.clone().prop_map(Event::Zero),
        1 => Just(Event::PageIn),
        1 => frame.clone().prop_map(Event::Read),
        3 => Just(Event::Unmapper),
        2 => frame.clone().prop_map(Event::Fault),
        3 => (frame.clone(), any::<bool>(), any::<bool>()).prop_map(|(f, ok, d)| Event::Unmapped(f, ok, d)),
        2 => (frame, any::<bool>()).prop_map(|(f, ok)| Event::Written(f, ok)),
    ]
}

proptest! {
    /// Figure 5.4, with the messages that are due kept beside it: a page is never allocated while an unmapping or a write
    /// of it is in flight, and no dirty page becomes free unwritten, not even if it has been reclaimed since. Frame 5 does not
    /// exist.
    #[test]
    fn no_page_is_reused_before_its_message(events in proptest::collection::vec(event(), 0..200)) {
        let mut pages = PageOut::<5>::new(3);
        let (mut unmapping, mut writing, mut unwritten, mut hand) = ([false; 6], [false; 6], [false; 6], 0);
        for event in events {
            let before = pages.clone();
            let was = |frame| before.state(frame);
            let wrong = |frame| Err(WrongState { frame, state: was(frame) });
            let due = |frame: usize| unmapping[frame] || writing[frame];
            match event {
                Event::Allocate(zeroed) => {
                    let frame = pages.allocate(zeroed);
                    let any = |state| (0..5).any(|frame| was(frame) == Some(state));
                    let clean = !zeroed && any(State::Clean);
                    prop_assert_eq!(frame.is_some(), clean || any(State::Zeroed));
                    if let Some(frame) = frame {
                        let wanted = Some(if clean { State::Clean } else { State::Zeroed });
                        prop_assert_eq!((was(frame), due(frame)), (wanted, false));
                        prop_assert_eq!(pages.state(frame), Some(State::InUse));
                    }
                }
                Event::PageIn => {
                    let frame = pages.page_in();
                    let free = |frame| matches!(was(frame), Some(State::Clean | State::Zeroed));
                    prop_assert_eq!(frame.is_some(), (0..5).any(free));
                    if let Some(frame) = frame {
                        prop_assert!(free(frame) && !due(frame));
                        prop_assert_eq!(pages.state(frame), Some(State::BeingRead));
                    }
                }
                Event::Zero(frame) => {
                    let clean = was(frame) == Some(State::Clean);
                    prop_assert_eq!(pages.zero(frame), if clean { Ok(()) } else { wrong(frame) });
                }
                Event::Read(frame) => {
                    let reading = was(frame) == Some(State::BeingRead);
                    prop_assert_eq!(pages.read(frame), if reading { Ok(()) } else { wrong(frame) });
                }
                // What is clean or will be soon is enough; otherwise the next one in use with nothing under way.
                Event::Unmapper => {
                    let is_clean = |frame| was(frame) == Some(State::Clean);
                    let comes = |frame| due(frame) && was(frame) != Some(State::InUse);
                    let enough = (0..5).filter(|&frame| is_clean(frame) || comes(frame)).count() >= 3;
                    let mut round = (0..5).map(|step| (hand + step) % 5);
                    let next = round.find(|&frame| was(frame) == Some(State::InUse) && !due(frame));
                    match next.filter(|_| !enough) {
                        Some(frame) => {
                            prop_assert_eq!(pages.unmapper(), PageAction::Unmap(frame));
                            (unmapping[frame], hand) = (true, frame + 1);
                        }
                        None => prop_assert_eq!(pages.unmapper(), PageAction::Nothing),
                    }
                }
                Event::Fault(frame) => {
                    let kept = [State::BeingUnmapped, State::BeingWritten, State::Clean];
                    if was(frame).is_some_and(|state| kept.contains(&state)) {
                        prop_assert_eq!(pages.fault(frame), Ok(PageAction::Map(frame)));
                        prop_assert_eq!(pages.state(frame), Some(State::InUse));
                    } else {
                        prop_assert_eq!(pages.fault(frame).map(|_| ()), wrong(frame));
                    }
                }
                Event::Unmapped(frame, ok, dirty) => {
                    let outcome = if ok { Outcome::Done } else { Outcome::Overwritten };
                    let (action, state) = match was(frame) {
                        Some(State::BeingUnmapped) if ok && (dirty || unwritten[frame]) => (PageAction::Write(frame), State::BeingWritten),
                        Some(State::BeingUnmapped) if ok => (PageAction::Nothing, State::Clean),
                        _ => (PageAction::Nothing, State::InUse),
                    };
                    if unmapping[frame] {
                        prop_assert_eq!(pages.unmapped(frame, outcome, dirty), Ok(action));
                        prop_assert_eq!(pages.state(frame), Some(state));
                        (unmapping[frame], writing[frame]) = (false, state == State::BeingWritten);
                        unwritten[frame] = (dirty || unwritten[frame]) && state == State::InUse;
                    } else {
                        prop_assert_eq!(pages.unmapped(frame, outcome, dirty).map(|_| ()), wrong(frame));
                    }
                }
                Event::Written(frame, ok) => {
                    let reclaimed = was(frame) == Some(State::InUse);
                    let action = if ok {
                        pages.written(frame).map(|()| PageAction::Nothing)
                    } else {
                        pages.write_failed(frame)
                    };
                    if writing[frame] {
                        let mapped = if ok || reclaimed { PageAction::Nothing } else { PageAction::Map(frame) };
                        prop_assert_eq!(action, Ok(mapped));
                        let state = if reclaimed || !ok { State::InUse } else { State::Clean };
                        prop_assert_eq!(pages.state(frame), Some(state));
                        (writing[frame], unwritten[frame]) = (false, !ok);
                    } else {
                        prop_assert_eq!(action.map(|_| ()), wrong(frame));
                    }
                }
            }
            prop_assert!(pages.check());
        }
    }
}

#[test]
fn the_unmapper_goes_round_and_keeps_as_many_free_as_it_was_told() {
    let mut pages = PageOut::<4>::new(2);
    while pages.allocate(false).is_some() {}
    let unmapper = |pages: &mut PageOut<4>| [(); 3].map(|()| pages.unmapper());
    assert_eq!(unmapper(&mut pages), [PageAction::Unmap(0), PageAction::Unmap(1), PageAction::Nothing]);
    for frame in [0, 1] {
        assert_eq!(pages.unmapped(frame, Outcome::Done, false), Ok(PageAction::Nothing));
    }
    assert_eq!(pages.unmapper(), PageAction::Nothing, "two are free");
    while pages.allocate(false).is_some() {}
    assert_eq!(unmapper(&mut pages), [PageAction::Unmap(2), PageAction::Unmap(3), PageAction::Nothing]);
    // Both are wanted again at once; until their messages have come they cannot be selected again.
    for frame in [2, 3] {
        assert_eq!(pages.fault(frame), Ok(PageAction::Map(frame)));
    }
    assert_eq!(unmapper(&mut pages), [PageAction::Unmap(0), PageAction::Unmap(1), PageAction::Nothing]);
}

/// The new entry of a page that has been reclaimed says nothing of what was written through the old one.
#[test]
fn a_reclaimed_page_is_as_dirty_as_it_was() {
    for (reclaimed, outcome) in
        [(true, Outcome::Superseded), (true, Outcome::Done), (false, Outcome::Overwritten)]
    {
        let mut pages = PageOut::<1>::new(1);
        let frame = pages.allocate(false).unwrap();
        let unmap = |pages: &mut PageOut<1>, outcome, dirty| {
            assert_eq!(pages.unmapper(), PageAction::Unmap(frame));
            if reclaimed && dirty {
                pages.fault(frame).unwrap();
            }
            pages.unmapped(frame, outcome, dirty)
        };
        assert_eq!(unmap(&mut pages, outcome, true), Ok(PageAction::Nothing));
        // Once more for nothing: it has not been written yet.
        assert_eq!(unmap(&mut pages, Outcome::Superseded, false), Ok(PageAction::Nothing));
        assert_eq!(unmap(&mut pages, Outcome::Done, false), Ok(PageAction::Write(frame)));
        // What is written to from here on, the entry says.
        pages.fault(frame).unwrap();
        pages.written(frame).unwrap();
        assert_eq!(unmap(&mut pages, Outcome::Done, false), Ok(PageAction::Nothing));
        assert_eq!(pages.state(frame), Some(State::Clean));
    }
}

/// 5.3.3.2: the threshold is the clean list's. With as many pages zeroed as the threshold asks for and none clean, the unmapper
/// had nothing to do, and whatever was to be paged in waited for ever.
#[test]
fn zeroed_pages_are_no_clean_ones() {
    let mut pages = PageOut::<4>::new(2);
    for frame in [0, 1] {
        pages.zero(frame).unwrap();
    }
    assert_eq!((pages.allocate(false), pages.allocate(false)), (Some(2), Some(3)), "none is clean any more");
    for frame in [2, 3] {
        assert_eq!(pages.unmapper(), PageAction::Unmap(frame));
        assert_eq!(pages.unmapped(frame, Outcome::Done, false), Ok(PageAction::Nothing));
    }
    assert_eq!(pages.unmapper(), PageAction::Nothing);
    assert_eq!(
        [(); 3].map(|()| pages.page_in()),
        [Some(2), Some(3), Some(0)],
        "what is read into need not be clean"
    );
    assert_eq!([true, true].map(|zeroed| pages.allocate(zeroed)), [Some(1), None]);
}

/// What could not be written is in use again and still dirty; it is written when its turn comes.
#[test]
fn a_page_that_could_not_be_written_is_not_lost() {
    for reclaimed in [false, true] {
        let mut pages = PageOut::<1>::new(1);
        let frame = pages.allocate(false).unwrap();
        let wrong = Err(WrongState { frame, state: Some(State::InUse) });
        assert_eq!(pages.write_failed(frame), wrong, "nothing is being written");
        assert_eq!(pages.unmapper(), PageAction::Unmap(frame));
        assert_eq!(pages.unmapped(frame, Outcome::Done, true), Ok(PageAction::Write(frame)));
        if reclaimed {
            assert_eq!(pages.fault(frame), Ok(PageAction::Map(frame)));
        }
        let mapped = if reclaimed { PageAction::Nothing } else { PageAction::Map(frame) };
        assert_eq!(pages.write_failed(frame), Ok(mapped));
        assert_eq!((pages.state(frame), pages.written(frame)), (Some(State::InUse), wrong.map(|_| ())));
        // Its new entry is clean, but the page is not.
        assert_eq!(pages.unmapper(), PageAction::Unmap(frame));
        assert_eq!(pages.unmapped(frame, Outcome::Done, false), Ok(PageAction::Write(frame)));
        assert_eq!(pages.written(frame), Ok(()));
        assert!(pages.check());
    }
}

#[test]
fn an_error_says_what_the_page_is() {
    let mut pages = PageOut::<1>::new(1);
    let text = |error: WrongState| error.to_string();
    assert_eq!(pages.read(0).map_err(text), Err("frame 0 is Clean, which does not allow this".into()));
    assert_eq!(pages.read(1).map_err(text), Err("there is no frame 1".into()));
}
