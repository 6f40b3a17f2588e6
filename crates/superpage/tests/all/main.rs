//! The tests of this crate, in one program: what they share is compiled once.

mod definition;
mod model;
mod policies;
mod population;
mod thrift;
