//! Threads that write one table at a time: their changes have an order in which the model returns what the table has returned.
//!
//! Each thread makes operations of the suite, each with the right to write its pages alone, and draws a number while it has the right. So
//! of two changes that exclude each other the one that was made first has the lower number; two others have no page in common, and their
//! order makes no difference. (Herlihy and Wing's points of linearization, which the rights of the writers make known.)

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{PoisonError, RwLock};
use std::thread::{scope, yield_now};

use tlbkit_pagetable::{Error, Space, Table, Writer};

use crate::hang::{self, Step};
use crate::run::{Collector, Was, call};
use crate::subject::Made;
use crate::{Mismatch, Op, Profile, Runner};

/// The number of threads.
const WRITERS: usize = 3;
/// The number of operations of a thread.
const CALLS: usize = if cfg!(miri) { 40 } else { 3000 };

/// An operation that a table has performed.
struct Called {
    moment: usize,
    op: Op,
    result: Result<Was, Error>,
}

/// Three threads write a table, each with the right to the pages of its change. Then compares the table with the model, and destroys it.
///
/// # Errors
///
/// The first difference to the model, in the order of the changes.
///
/// # Panics
///
/// If a thread panics in the table.
pub fn race<'n>(table: impl Table<'n> + Sync + 'n, profile: Profile) -> Result<(), Mismatch> {
    run(Box::new(table), profile)
}

fn run<'n>(table: Box<dyn Made<'n> + Sync + 'n>, profile: Profile) -> Result<(), Mismatch> {
    let tell = |seconds: u64, _: &[Step]| {
        format!(
            "Several writers: the table has not come back for {seconds} seconds; either a change hangs, or the right to write a page \
             was not given back."
        )
    };
    hang::guard(tell, || {
        let mut runner = Runner::new(&*table, profile, 0);
        let compared = history(&*table, &runner).and_then(|calls| {
            calls.into_iter().try_for_each(|called| runner.follow(&called.op, called.result))?;
            runner.compare(&*table, None)
        });
        // SAFETY: the threads have ended.
        unsafe { table.destroy().reclaim() };
        compared
    })
}

/// Returns what the threads have done, in the order of its moments.
fn history<'n>(table: &(dyn Made<'n> + Sync + 'n), runner: &Runner<'_>) -> Result<Vec<Called>, Mismatch> {
    let (clock, walks, space) = (&AtomicUsize::new(0), &RwLock::new(()), runner.model().space());
    let all: Vec<_> = scope(|threads| {
        let writer = |number: usize| {
            threads.spawn(move || {
                let mut numbers = Numbers(0x9e37_79b9 + number as u64);
                (0..CALLS).map(|_| change(table, space, &mut numbers, clock, walks)).collect::<Vec<_>>()
            })
        };
        let writers: Vec<_> = (0..WRITERS).map(writer).collect();
        writers.into_iter().flat_map(|writer| writer.join().expect("a change that does not panic")).collect()
    });
    let mut calls = all.into_iter().collect::<Result<Vec<_>, _>>()?;
    calls.sort_unstable_by_key(|called| called.moment);
    Ok(calls)
}

/// Makes the next change, and reclaims its nodes when no thread is inside a change.
fn change<'n>(
    table: &(dyn Made<'n> + Sync + 'n),
    space: &Space,
    numbers: &mut Numbers,
    clock: &AtomicUsize,
    walks: &RwLock<()>,
) -> Result<Called, Mismatch> {
    let (op, pages) = loop {
        let op = Op::decode(space, numbers.bytes());
        if let Op::Map { .. } | Op::Unmap { .. } | Op::Protect { .. } | Op::Mark { .. } | Op::Fill { .. } = op
            && let Some(pages) = op.pages().filter(|pages| pages.len() <= Runner::MOST)
        {
            break (op, pages);
        }
    };
    let (called, batch) = loop {
        let _walk = walks.read().unwrap_or_else(PoisonError::into_inner);
        // A reader that waits for a right keeps no writer waiting for long.
        let mut left = 64;
        let mut wait = || {
            left -= 1;
            yield_now();
            left > 0
        };
        let mut writer = match Writer::over(table as &dyn Table<'n>, pages, &mut wait) {
            Ok(writer) => writer,
            Err(Error::Busy) => {
                yield_now();
                continue;
            }
            Err(error) => {
                return Err(Mismatch::of(format!("no right to write {pages}: {error}")).after(&op, None));
            }
        };
        if !matches!(Writer::over(table as &dyn Table<'n>, pages, &mut || false), Err(Error::Busy)) {
            return Err(Mismatch::of(format!("two writers of {pages} at a time")));
        }
        let moment = clock.fetch_add(1, Ordering::Relaxed);
        let result = call(&mut writer, space.base(), &op, &mut Collector::default(), &mut |_| ());
        break (Called { moment, op, result }, writer.finish());
    };
    let _alone = (batch.nodes() > 0).then(|| walks.write().unwrap_or_else(PoisonError::into_inner));
    // SAFETY: no thread walks the table, or the batch has no nodes.
    unsafe { batch.reclaim() };
    Ok(called)
}

/// A sequence of numbers (xorshift).
struct Numbers(u64);

impl Numbers {
    fn bytes(&mut self) -> [u8; Op::BYTES] {
        std::array::from_fn(|_| {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0 >> 24) as u8
        })
    }
}
