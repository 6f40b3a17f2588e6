//! The tests of this crate, in one program: what they share is compiled once.
#![cfg(not(tlbkit_loom))]

mod api;
mod asked;
mod batch;
mod broadcast;
mod carry;
mod deadlock;
mod late;
mod leave;
mod one_cpu;
mod overflow;
mod plan;
mod queue;
mod replier;
mod requester;
mod requests;
mod sleep;
mod straight;
mod support;
mod switch;
mod threads;
mod two_phase;
mod unwinding;
