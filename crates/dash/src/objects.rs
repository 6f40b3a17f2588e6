//! Message-passing objects, MPOs (Table 5.1), and the references by which user processes name them (Figure 5.8).
//!
//! ```text
//!   trap with reference 1     References of the space          objects of the kernel
//!                             0 | none
//!                             1 | 4 ----------------------> 4: Stream, messages or receivers that wait
//!                             2 | 7 ----------------------> 7: RequestReply, requests, servers, and clients that wait
//! ```
//!
//! An object in dual-process mode pairs the calls of two processes. In uni-process mode a send is a procedure call, which the sender
//! cannot distinguish: the kernel calls the object's procedure with the message that [`Sent::Call`] returns.
//!
//! No call waits. A call whose process has to wait says so, and another call returns that process when it can continue. `P` names a
//! process, `M` is a message or a pointer to it. An object has room for `N` messages, and for `N` processes that wait for one reason.

use core::fmt;

use heapless::{Deque, Vec};

/// The references of one address space: small integers that act as capabilities to up to `N` objects of the kernel, named by `T`.
#[derive(Clone, Debug)]
pub struct References<T, const N: usize> {
    objects: [Option<T>; N],
}

impl<T: Copy, const N: usize> Default for References<T, N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Copy, const N: usize> References<T, N> {
    /// Returns a table without a reference.
    pub const fn new() -> Self {
        Self { objects: [None; N] }
    }

    /// Adds a reference to an object, and returns the smallest free integer; `None` if all `N` are in use.
    pub fn grant(&mut self, object: T) -> Option<usize> {
        let free = self.objects.iter().position(Option::is_none)?;
        *self.objects.get_mut(free)? = Some(object);
        Some(free)
    }

    /// Returns the object that a user process names. `None` if the space has no such reference: the integer may be any.
    pub fn object(&self, reference: usize) -> Option<T> {
        *self.objects.get(reference)?
    }

    /// Removes a reference, and returns its object. A later [`grant`](Self::grant) may return the same integer.
    pub fn revoke(&mut self, reference: usize) -> Option<T> {
        self.objects.get_mut(reference)?.take()
    }
}

/// The two derived classes of Table 5.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// A send, and a receive by another process.
    DualProcess,
    /// A send calls a procedure.
    UniProcess,
}

/// What becomes of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use = "it has the message"]
pub enum Sent<M, P> {
    /// Uni-process mode: the kernel calls the object's procedure with the message now.
    Call(M),
    /// This process has waited for the message, and continues with it.
    Deliver(P, M),
    /// The message waits.
    Queued,
    /// There is no room. The object keeps the message, and the sender waits until a [`Received::Message`] returns it.
    Blocked,
}

/// What a receive returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use = "it has the message"]
pub enum Received<M, P> {
    /// A message, and a sender for whose message there is room now: it continues.
    Message(M, Option<P>),
    /// There is none. The process waits until a [`Sent::Deliver`] returns it.
    Blocked,
}

/// The error of a call on an object. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ObjectError {
    /// An object in uni-process mode has no such member function.
    UniProcess,
    /// `N` processes wait already.
    TooMany,
    /// The process waits for no reply.
    NoRequest,
}

impl fmt::Display for ObjectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::UniProcess => "the object calls a procedure, and has no receiver",
            Self::TooMany => "too many processes wait for the object",
            Self::NoRequest => "the process waits for no reply",
        })
    }
}

impl core::error::Error for ObjectError {}

/// A stream MPO: `send`, `receive`, `control`.
///
/// Messages are received in the order in which they were sent, those of blocked senders among them. Receivers wait only while there
/// is no message, and a sender is blocked only while there are as many as [`control`](Self::control) allowed, or others are blocked.
#[derive(Clone, Debug)]
pub struct Stream<M, P, const N: usize> {
    mode: Mode,
    most: usize,
    messages: Deque<M, N>,
    receivers: Deque<P, N>,
    /// Blocked senders, each with its message.
    senders: Deque<(M, P), N>,
}

impl<M, P, const N: usize> Stream<M, P, N> {
    /// Returns a stream on which nothing has been sent. `N` messages may wait.
    pub const fn new(mode: Mode) -> Self {
        Self { mode, most: N, messages: Deque::new(), receivers: Deque::new(), senders: Deque::new() }
    }

    /// `send(message)` by process `sender`.
    ///
    /// # Errors
    ///
    /// The message, with [`ObjectError::TooMany`], if `N` senders are blocked.
    pub fn send(&mut self, message: M, sender: P) -> Result<Sent<M, P>, (M, ObjectError)> {
        if self.mode == Mode::UniProcess {
            return Ok(Sent::Call(message));
        }
        if let Some(receiver) = self.receivers.pop_front() {
            return Ok(Sent::Deliver(receiver, message));
        }
        if self.senders.is_empty() && self.messages.len() < self.most {
            // There is room: `most` is at most `N`.
            return match self.messages.push_back(message) {
                Ok(()) => Ok(Sent::Queued),
                Err(message) => Err((message, ObjectError::TooMany)),
            };
        }
        match self.senders.push_back((message, sender)) {
            Ok(()) => Ok(Sent::Blocked),
            Err((message, _)) => Err((message, ObjectError::TooMany)),
        }
    }

    /// `receive(message_buffer)` by process `receiver`.
    ///
    /// # Errors
    ///
    /// [`ObjectError::UniProcess`]; [`ObjectError::TooMany`] if `N` receivers wait.
    pub fn receive(&mut self, receiver: P) -> Result<Received<M, P>, ObjectError> {
        if self.mode == Mode::UniProcess {
            return Err(ObjectError::UniProcess);
        }
        if let Some(message) = self.messages.pop_front() {
            return Ok(Received::Message(message, self.resume()));
        }
        self.receivers.push_back(receiver).map_err(|_| ObjectError::TooMany)?;
        Ok(Received::Blocked)
    }

    /// Queues the message of the first blocked sender, if there is room, and returns that sender.
    ///
    /// No sender is blocked without a message in the queue: a receiver that waits then would have nothing to wake it.
    fn resume(&mut self) -> Option<P> {
        if self.messages.len() >= self.most {
            return None;
        }
        let (message, sender) = self.senders.pop_front()?;
        // There is room: `most` is at most `N`.
        let _ = self.messages.push_back(message);
        Some(sender)
    }

    /// `control(options)`: how many messages may wait, from 1 to `N`. Messages that wait already stay, and so do blocked senders
    /// until the next receive.
    pub fn control(&mut self, most: usize) {
        self.most = most.max(1).min(N);
    }
}

/// A request/reply MPO: `request_reply`, `get_request`, `send_reply`, `control`.
#[derive(Clone, Debug)]
pub struct RequestReply<M, P, const N: usize> {
    requests: Stream<(M, P), P, N>,
    /// Clients whose requests a server has got.
    served: Vec<P, N>,
}

impl<M, P: Copy + PartialEq, const N: usize> RequestReply<M, P, N> {
    /// Returns an object without a request.
    pub const fn new(mode: Mode) -> Self {
        Self { requests: Stream::new(mode), served: Vec::new() }
    }

    /// `request_reply(request, reply_buffer)` by process `client`. In uni-process mode, what the procedure returns is the reply.
    /// Otherwise the client waits for [`send_reply`](Self::send_reply), and has no other request of this object meanwhile.
    ///
    /// # Errors
    ///
    /// The request, with [`ObjectError::TooMany`], if there is no room for the client.
    pub fn request_reply(&mut self, request: M, client: P) -> Result<Sent<(M, P), P>, (M, ObjectError)> {
        if self.served.is_full() && self.requests.mode == Mode::DualProcess {
            return Err((request, ObjectError::TooMany));
        }
        let sent =
            self.requests.send((request, client), client).map_err(|((request, _), why)| (request, why))?;
        if let Sent::Deliver(..) = sent {
            // There is room: no other call is between.
            let _ = self.served.push(client);
        }
        Ok(sent)
    }

    /// `get_request(request_buffer)` by process `server`. The client is the name of the request for
    /// [`send_reply`](Self::send_reply). Another client that is returned as a sender has its request queued now, and waits for its
    /// reply.
    ///
    /// # Errors
    ///
    /// [`ObjectError::UniProcess`]; [`ObjectError::TooMany`] if `N` servers wait, or `N` requests have no reply yet.
    pub fn get_request(&mut self, server: P) -> Result<Received<(M, P), P>, ObjectError> {
        if self.served.is_full() {
            return Err(ObjectError::TooMany);
        }
        let received = self.requests.receive(server)?;
        if let Received::Message((_, client), _) = received {
            let _ = self.served.push(client);
        }
        Ok(received)
    }

    /// `send_reply(reply)`: the client continues with the reply, which the kernel hands over.
    ///
    /// # Errors
    ///
    /// [`ObjectError::NoRequest`] if no server has a request of the client.
    pub fn send_reply(&mut self, client: P) -> Result<(), ObjectError> {
        let at = self.served.iter().position(|of| *of == client).ok_or(ObjectError::NoRequest)?;
        self.served.swap_remove(at);
        Ok(())
    }

    /// `control(options)`, as [`Stream::control`].
    pub fn control(&mut self, most: usize) {
        self.requests.control(most);
    }
}
