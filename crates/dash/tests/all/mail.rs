//! The guarantees of 5.3.4.5, against a model that knows of messages alone: which space has received what from which,
//! and which spaces it has trusted to do so. Trust is of a message: it ends when the receiver gives the page away.

use std::collections::VecDeque;

use proptest::prelude::*;
use tlbkit_dash::ipc::{Access, IpcError, IpcRegion, LowAction, MessageStep, Passing, Receive, Send};

const SPACES: usize = 3;
const PAGES: usize = 3;

/// What a process does, by way of the kernel.
#[derive(Clone, Copy, Debug)]
enum Event {
    Get(usize),
    Send(usize, usize, usize, Send),
    /// Of the messages to a space one is asked for, before or after it is sent.
    Receive(usize, Receive),
    /// A receiver goes on with what its receive waits for.
    Finish(usize),
    Release(usize, usize),
    MakeWritable(usize, usize),
    Use(usize, usize, Access),
    /// A reduction has reached every TLB.
    Reduced(usize),
}

fn event() -> impl Strategy<Value = Event> {
    let (space, page) = (0..SPACES, 0..PAGES);
    let access = prop_oneof![Just(Access::Read), Just(Access::Write)];
    let immediate = prop_oneof![Just(Access::None), Just(Access::Read), Just(Access::Write)];
    let send = any::<(bool, bool)>().prop_map(|(duplicate, trust_hint)| Send { duplicate, trust_hint });
    let receive =
        (any::<bool>(), immediate).prop_map(|(trust, immediate_use)| Receive { trust, immediate_use });
    prop_oneof![
        1 => space.clone().prop_map(Event::Get),
        5 => (space.clone(), space.clone(), page.clone(), send).prop_map(|(f, t, p, s)| Event::Send(f, t, p, s)),
        4 => (space.clone(), receive).prop_map(|(s, r)| Event::Receive(s, r)),
        6 => (0..8usize).prop_map(Event::Finish),
        2 => (space.clone(), page.clone()).prop_map(|(s, p)| Event::Release(s, p)),
        3 => (space.clone(), page.clone()).prop_map(|(s, p)| Event::MakeWritable(s, p)),
        6 => (space, page, access).prop_map(|(s, p, a)| Event::Use(s, p, a)),
        6 => (0..8usize).prop_map(Event::Reduced),
    ]
}

/// A set of spaces.
type Spaces = [bool; SPACES];

/// A message that has not been received.
#[derive(Clone, Debug)]
struct Message {
    from: usize,
    to: usize,
    page: usize,
    passing: Passing,
    asked: Option<Receive>,
    /// A step that has been taken and is not yet done.
    step: Option<MessageStep>,
    /// The spaces that the sender trusted.
    trusted: Spaces,
}

/// What a space may count on, of a page that it owns.
#[derive(Clone, Copy, Debug, Default)]
struct Claim {
    /// No other space modifies the page, but those that it trusts.
    kept: bool,
    /// No other space reads it, but those that it trusts.
    secret: bool,
    trusted: Spaces,
}

#[derive(Default)]
struct Kernel {
    region: IpcRegion<PAGES, SPACES>,
    claims: [[Claim; PAGES]; SPACES],
    messages: VecDeque<Message>,
    /// Receives that came first.
    asked: [VecDeque<Receive>; SPACES],
    reducing: Vec<(usize, usize)>,
}

impl Kernel {
    /// Tells whether the call is through.
    fn act(&mut self, asked: Result<LowAction, IpcError>) -> bool {
        match asked.expect("the ownerships allow it") {
            LowAction::Nothing | LowAction::Map { .. } => true,
            LowAction::Wait { .. } => false,
            LowAction::Reduce { space, page, .. } => {
                assert!(!self.reducing.contains(&(space, page)), "one reduction of a mapping at a time");
                self.reducing.push((space, page));
                false
            }
            LowAction::Copy { space, page, reduce, .. } => {
                self.reducing.extend(reduce.map(|_| (space, page)));
                true
            }
        }
    }

    /// Tells whether a message with this page is on its way to a space: until its receive returns nothing is promised.
    fn is_coming(&self, space: usize, page: usize) -> bool {
        self.messages.iter().any(|message| message.page == page && message.to == space)
    }

    /// A space may write to a page, and knows it.
    fn is_writable(&mut self, space: usize, page: usize) {
        if !self.is_coming(space, page) {
            self.claims[space][page].kept = true;
            self.claims[space][page].secret = true;
        }
    }

    fn owns(&self, space: usize, page: usize) -> bool {
        self.region.high(space, page) > Access::None
    }

    /// Forgets what was promised to a space that has given a page away.
    fn settle(&mut self, space: usize, page: usize) {
        if !self.owns(space, page) {
            self.claims[space][page] = Claim::default();
        }
        // What is shared is no secret.
        if self.region.ownerships(page) > 1 {
            self.claims.iter_mut().for_each(|pages| pages[page].secret = false);
        }
    }

    /// Takes the steps of a message as far as they go. Tells whether it has been received.
    fn go_on(&mut self, nth: usize) -> bool {
        loop {
            let mut message = self.messages[nth].clone();
            let (from, to, page) = (message.from, message.to, message.page);
            let Some(step) = message.step.take().or_else(|| message.passing.step()) else {
                self.messages[nth] = message;
                return self.messages[nth].passing.is_received();
            };
            let through = match step {
                MessageStep::Duplicate { ownership_only } => {
                    let asked = self.region.duplicate(from, page, ownership_only);
                    self.act(asked);
                    true
                }
                MessageStep::StartTransfer { ownership_only } => {
                    let asked = self.region.start_transfer(from, to, page, ownership_only);
                    self.act(asked);
                    self.settle(from, page);
                    true
                }
                MessageStep::FinishTransfer => loop {
                    let Some(space) = self.region.unfinished_in(page) else { break true };
                    let asked = self.region.finish_transfer(space, page);
                    if !self.act(asked) {
                        break false;
                    }
                },
                MessageStep::Mapin(access) => match self.region.mapin(to, page, access) {
                    Err(IpcError::Denied) => true,
                    asked => self.act(asked),
                },
            };
            message.step = (!through).then_some(step);
            self.messages[nth] = message;
            if !through {
                return false;
            }
        }
    }

    fn receive(&mut self, nth: usize) {
        if !self.go_on(nth) {
            return;
        }
        let message = self.messages.remove(nth).expect("it is there");
        let (to, page) = (message.to, message.page);
        let trust = message.asked.expect("it has been asked for").trust;
        if !self.owns(to, page) {
            return;
        }
        let alone = self.region.ownerships(page) == 1;
        let claim = &mut self.claims[to][page];
        if trust {
            claim.trusted[message.from] = true;
            (0..SPACES).filter(|&of| message.trusted[of]).for_each(|of| claim.trusted[of] = true);
        } else {
            claim.trusted = Spaces::default();
            claim.secret = alone;
        }
        claim.kept = true;
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Get(space) => {
                if let Ok(page) = self.region.get_ownership(space) {
                    self.claims.iter_mut().for_each(|pages| pages[page] = Claim::default());
                    self.claims[space][page] = Claim { kept: true, secret: true, trusted: Spaces::default() };
                }
            }
            Event::Send(from, to, page, send) => {
                // A process sends what it has received, and not what is still on its way to it.
                if from == to || !self.owns(from, page) || self.is_coming(from, page) {
                    return;
                }
                let mut passing = Passing::new();
                let asked = self.asked[to].pop_front();
                asked.map(|receive| passing.receive(receive));
                assert!(passing.send(send));
                let trusted = self.claims[from][page].trusted;
                self.messages.push_back(Message { from, to, page, passing, asked, step: None, trusted });
                self.receive(self.messages.len() - 1);
            }
            Event::Receive(space, receive) => {
                let nth =
                    self.messages.iter().position(|message| message.to == space && message.asked.is_none());
                match nth {
                    Some(nth) => {
                        assert!(self.messages[nth].passing.receive(receive));
                        self.messages[nth].asked = Some(receive);
                        self.receive(nth);
                    }
                    None => self.asked[space].push_back(receive),
                }
            }
            Event::Finish(nth) => {
                if !self.messages.is_empty() {
                    self.receive(nth % self.messages.len());
                }
            }
            Event::Release(space, page) => {
                // The ownership of a message is not the receiver's to give away before it has the message.
                if self.owns(space, page) && !self.is_coming(space, page) {
                    let asked = self.region.release_ownership(space, page);
                    self.act(asked);
                    self.settle(space, page);
                }
            }
            Event::MakeWritable(space, page) if self.is_coming(space, page) => {}
            Event::MakeWritable(space, page) => match self.region.make_writable(space, page) {
                Err(IpcError::NotOwner | IpcError::NoPage) => {}
                asked => {
                    if let Ok(LowAction::Copy { copy, .. }) = asked {
                        self.claims.iter_mut().for_each(|pages| pages[copy] = Claim::default());
                        self.claims[space][copy] =
                            Claim { kept: true, secret: true, trusted: Spaces::default() };
                        self.act(asked);
                        self.settle(space, page);
                    } else if self.act(asked) {
                        self.is_writable(space, page);
                    }
                }
            },
            Event::Use(space, page, access) => {
                if access <= self.region.high(space, page) {
                    let asked = self.region.mapin(space, page, access);
                    if self.act(asked) && access == Access::Write {
                        self.is_writable(space, page);
                    }
                }
            }
            Event::Reduced(nth) => {
                if !self.reducing.is_empty() {
                    let (space, page) = self.reducing.swap_remove(nth % self.reducing.len());
                    let more = self.region.reduced(space, page);
                    self.act(more);
                }
            }
        }
    }

    /// Tells what another space may do that it must not.
    fn violation(&self) -> Option<(usize, usize, usize, Claim)> {
        for space in 0..SPACES {
            for page in (0..PAGES).filter(|&page| self.owns(space, page)) {
                let claim = self.claims[space][page];
                for other in (0..SPACES).filter(|&other| other != space && !claim.trusted[other]) {
                    let low = self.region.low(other, page);
                    if claim.kept && low == Access::Write || claim.secret && low > Access::None {
                        return Some((space, page, other, claim));
                    }
                }
            }
        }
        None
    }
}

proptest! {
    /// After a receive returns, no space that the receiver does not trust modifies the message, or reads more of it;
    /// nor after a page has been made writable.
    #[test]
    fn what_has_been_received_is_safe_from_those_who_are_not_trusted(
        events in proptest::collection::vec(event(), 0..120),
    ) {
        let mut kernel = Kernel::default();
        for (nth, event) in events.iter().enumerate() {
            kernel.happen(*event);
            prop_assert!(kernel.region.check());
            let violation = kernel.violation();
            prop_assert!(violation.is_none(), "{violation:?} after {:?}: {:?}", &events[..=nth], kernel.region);
        }
        // Everything comes to its end: what has been sent is received, what is given up is given out again.
        for space in 0..SPACES {
            while kernel.messages.iter().any(|message| message.to == space && message.asked.is_none()) {
                kernel.happen(Event::Receive(space, Receive::default()));
            }
        }
        for round in 0.. {
            prop_assert!(round < 1000, "it does not end");
            while !kernel.reducing.is_empty() {
                kernel.happen(Event::Reduced(0));
            }
            if kernel.messages.is_empty() {
                break;
            }
            kernel.happen(Event::Finish(round));
        }
        for (space, page) in (0..SPACES).flat_map(|space| (0..PAGES).map(move |page| (space, page))) {
            while kernel.owns(space, page) {
                kernel.happen(Event::Release(space, page));
            }
        }
        for page in 0..PAGES {
            while let Some(space) = kernel.region.unfinished_in(page) {
                let asked = kernel.region.finish_transfer(space, page);
                kernel.act(asked);
                while !kernel.reducing.is_empty() {
                    kernel.happen(Event::Reduced(0));
                }
            }
        }
        prop_assert!((0..PAGES).all(|page| kernel.region.get_ownership(0) == Ok(page)));
    }
}
