//! Which of the mutants woven into a crate is on. This file is no part of the program: it is the one source of a small crate
//! beside the woven ones, which they call wherever there is something to choose.
//!
//! ```text
//! MUTANT=7             the mutant 7 is on in this process
//! MUTANTS_REACHED=file none is; the numbers of those that were come by are added to the file
//! ```
#![feature(core_intrinsics, const_eval_select)]
#![allow(internal_features)]

use std::fs::File;
use std::intrinsics::const_eval_select;
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

const LISTS: u32 = u32::MAX - 1;
const UNREAD: u32 = u32::MAX;

/// The mutant that is on, 0 if none is.
static ON: AtomicU32 = AtomicU32::new(UNREAD);
static REACHED: [AtomicBool; 1 << 16] = [const { AtomicBool::new(false) }; 1 << 16];

/// Returns which of the mutants from `first` on is on, counted from 1; 0 if none of these `count` is, or at compile time.
#[inline(always)]
pub const fn pick(first: u32, count: u32) -> u32 {
    const_eval_select((first, count), none, at_run_time)
}

const fn none(_first: u32, _count: u32) -> u32 {
    0
}

#[inline(always)]
fn at_run_time(first: u32, count: u32) -> u32 {
    let on = ON.load(Relaxed);
    if on >= LISTS {
        return seldom(first, count);
    }
    let at = on.wrapping_sub(first);
    if at < count { at + 1 } else { 0 }
}

#[cold]
fn seldom(first: u32, count: u32) -> u32 {
    if ON.load(Relaxed) == UNREAD {
        let on = std::env::var("MUTANT").ok().and_then(|number| number.parse().ok());
        let none = if std::env::var_os("MUTANTS_REACHED").is_some() { LISTS } else { 0 };
        ON.store(on.unwrap_or(none), Relaxed);
        return at_run_time(first, count);
    }
    for number in first..first + count {
        let reached = &REACHED[number as usize];
        if !reached.load(Relaxed) && !reached.swap(true, Relaxed) {
            let path = std::env::var_os("MUTANTS_REACHED").unwrap();
            let mut file = File::options().append(true).create(true).open(path).unwrap();
            file.write_all(format!("{number}\n").as_bytes()).unwrap();
        }
    }
    0
}
