//! The tests of this crate, in one program: what they share is compiled once.

mod aarch64_39;
mod agreement;
mod brute;
mod corners;
mod formats;
mod gallery;
mod own_code;
mod recorder;
mod walks;
mod words;
