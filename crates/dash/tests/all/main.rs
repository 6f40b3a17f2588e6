//! The tests of this crate, in one program: what they share is compiled once.

mod dash;
mod dash_late;
mod ipc;
mod mail;
mod objects;
mod pageout;
mod tolerance;
mod vm;
