//! Table 5.1 and Figure 5.8: who continues with which message, and which integers name an object.

use std::collections::VecDeque;

use proptest::prelude::*;
use tlbkit_dash::objects::{Mode, ObjectError, Received, References, RequestReply, Sent, Stream};

#[test]
fn a_reference_names_an_object_of_its_own_space_alone() {
    let mut spaces = [References::<u8, 2>::new(), References::new()];
    assert_eq!([7, 8, 9].map(|object| spaces[0].grant(object)), [Some(0), Some(1), None]);
    assert_eq!([0, 1, 2, usize::MAX].map(|at| spaces[0].object(at)), [Some(7), Some(8), None, None]);
    assert_eq!(spaces[1].object(0), None);
    assert_eq!((spaces[0].revoke(0), spaces[0].revoke(0), spaces[0].object(0)), (Some(7), None, None));
    assert_eq!((spaces[0].grant(9), spaces[0].object(0)), (Some(0), Some(9)));
}

#[test]
fn in_uni_process_mode_a_send_is_a_call() {
    let mut stream = Stream::<_, _, 1>::new(Mode::UniProcess);
    for message in 0..3 {
        assert_eq!(stream.send(message, 'a'), Ok(Sent::Call(message)));
    }
    assert_eq!(stream.receive('b'), Err(ObjectError::UniProcess));
    let mut object = RequestReply::<_, _, 1>::new(Mode::UniProcess);
    for request in 0..3 {
        assert_eq!(object.request_reply(request, 'a'), Ok(Sent::Call((request, 'a'))));
    }
    assert_eq!(object.get_request('b'), Err(ObjectError::UniProcess));
    assert_eq!(object.send_reply('a'), Err(ObjectError::NoRequest));
}

#[test]
fn a_reply_goes_to_a_client_whose_request_a_server_has() {
    let mut object = RequestReply::<_, _, 2>::new(Mode::DualProcess);
    assert_eq!(object.request_reply(1, 'a'), Ok(Sent::Queued));
    assert_eq!(object.send_reply('a'), Err(ObjectError::NoRequest));
    assert_eq!(object.get_request('s'), Ok(Received::Message((1, 'a'), None)));
    assert_eq!(object.get_request('s'), Ok(Received::Blocked));
    assert_eq!(object.request_reply(2, 'b'), Ok(Sent::Deliver('s', (2, 'b'))));
    assert_eq!(object.request_reply(3, 'c'), Err((3, ObjectError::TooMany)));
    assert_eq!(object.get_request('s'), Err(ObjectError::TooMany));
    assert_eq!(
        ['b', 'a', 'a'].map(|client| object.send_reply(client)),
        [Ok(()), Ok(()), Err(ObjectError::NoRequest)]
    );
}

/// A receiver that comes before a sender has continued does not wait beside another that is blocked.
#[test]
fn no_receiver_waits_while_a_sender_is_blocked() {
    let mut stream = Stream::<_, _, 1>::new(Mode::DualProcess);
    assert_eq!([1, 2].map(|message| stream.send(message, 'a')), [Ok(Sent::Queued), Ok(Sent::Blocked)]);
    assert_eq!(stream.send(3, 'b'), Err((3, ObjectError::TooMany)));
    assert_eq!(stream.receive('r'), Ok(Received::Message(1, Some('a'))));
    assert_eq!(stream.send(3, 'b'), Ok(Sent::Blocked));
    assert_eq!(stream.receive('r'), Ok(Received::Message(2, Some('b'))));
    assert_eq!(stream.receive('r'), Ok(Received::Message(3, None)));
    assert_eq!(stream.receive('r'), Ok(Received::Blocked));
    assert_eq!(stream.send(4, 'a'), Ok(Sent::Deliver('r', 4)));
}

proptest! {
    /// Every message reaches one receiver, in the order in which it was sent, and flow control blocks and resumes senders in turn.
    /// Senders and receivers never wait for each other.
    #[test]
    fn a_stream_loses_and_reorders_nothing(calls in proptest::collection::vec(0..8u8, 0..200)) {
        let mut stream = Stream::<u32, usize, 3>::new(Mode::DualProcess);
        let (mut waiting, mut receivers, mut senders) = (VecDeque::new(), VecDeque::new(), VecDeque::new());
        let mut most = 3;
        for (number, call) in calls.into_iter().enumerate() {
            let message = number as u32;
            match call {
                0..4 => {
                    let expected = match receivers.pop_front() {
                        Some(receiver) => Ok(Sent::Deliver(receiver, message)),
                        None if waiting.len() < most && senders.is_empty() => {
                            waiting.push_back(message);
                            Ok(Sent::Queued)
                        }
                        None if senders.len() < 3 => {
                            senders.push_back(number);
                            Ok(Sent::Blocked)
                        }
                        None => Err((message, ObjectError::TooMany)),
                    };
                    prop_assert_eq!(stream.send(message, number), expected);
                }
                4..7 => {
                    let expected = match waiting.pop_front() {
                        Some(message) => {
                            let resumed = if waiting.len() < most { senders.pop_front() } else { None };
                            waiting.extend(resumed.map(|sender| sender as u32));
                            Ok(Received::Message(message, resumed))
                        }
                        None if receivers.len() < 3 => {
                            receivers.push_back(number);
                            Ok(Received::Blocked)
                        }
                        None => Err(ObjectError::TooMany),
                    };
                    prop_assert_eq!(stream.receive(number), expected);
                }
                _ => {
                    most = number % 5;
                    stream.control(most);
                    most = most.clamp(1, 3);
                }
            }
            prop_assert!(receivers.is_empty() || waiting.is_empty() && senders.is_empty());
        }
    }
}
