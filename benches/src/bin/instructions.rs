//! Does one operation a thousand times inside [`collected`], for callgrind to count its instructions.
//!
//! `cargo xtask instructions` runs it for every subject and operation and prints the counts by call; alone it only
//! lists what there is.
#![allow(missing_docs)]

use std::hint::black_box;

use tlbkit_benches::work::{dense, shuffled, sparse};
use tlbkit_benches::{Subject, ours, peers};

const CALLS: usize = 1000;

/// What callgrind collects (`--toggle-collect=collected`): the operation, called through a pointer so that each call
/// is a whole one. The loop costs the same for all; [`Operation::Nothing`] tells how much.
#[inline(never)]
#[unsafe(no_mangle)]
fn collected(work: &mut dyn FnMut(usize)) {
    for call in 0..CALLS {
        work(call);
    }
}

#[inline(never)]
fn translate<S: Subject>(table: &S, va: usize) -> Option<usize> {
    table.translate(va)
}

fn run<S: Subject>(operation: &str) -> bool {
    let mut table = S::new();
    let pages = match operation.rsplit(' ').next() {
        Some("sparse") => shuffled(sparse(8192)),
        _ => dense(8192),
    };
    let first = dense(1)[0] & !511;
    match operation {
        "nothing" => collected(&mut |call| {
            black_box(call);
        }),
        "hit dense" | "hit sparse" => {
            pages.iter().for_each(|&vpn| table.map(vpn, vpn));
            collected(&mut |call| {
                black_box(translate(&table, black_box(pages[call] << 12)));
            });
        }
        "map page" => {
            (0..512).for_each(|page| table.map(first + page, page));
            (0..256).for_each(|page| table.unmap(first + page));
            let mut calls = 0;
            while calls < CALLS {
                let now = (CALLS - calls).min(256);
                collect_some(now, &mut |call| table.map(black_box(first + call), 1));
                (0..now).for_each(|page| table.unmap(first + page));
                calls += now;
            }
        }
        "unmap page" => {
            (0..512).for_each(|page| table.map(first + page, page));
            let mut calls = 0;
            while calls < CALLS {
                let now = (CALLS - calls).min(256);
                collect_some(now, &mut |call| table.unmap(black_box(first + call)));
                (0..now).for_each(|page| table.map(first + page, 1));
                calls += now;
            }
        }
        "map 128" => {
            (0..256).for_each(|page| table.map(first + page, page));
            for _ in 0..CALLS {
                collect_some(1, &mut |_| table.map_range(black_box(first + 256), 1, 128));
                table.unmap_range(first + 256, 128);
            }
        }
        "unmap 128" => {
            (0..256).for_each(|page| table.map(first + page, page));
            for _ in 0..CALLS {
                table.map_range(first + 256, 1, 128);
                collect_some(1, &mut |_| table.unmap_range(black_box(first + 256), 128));
            }
        }
        "PROTN 128" => {
            (0..512).for_each(|page| table.map(first + page, page));
            collected(&mut |call| table.protect_range(black_box(first), 128, call % 2 == 0));
        }
        _ => return false,
    }
    true
}

#[inline(never)]
#[unsafe(no_mangle)]
fn collected_some(calls: usize, work: &mut dyn FnMut(usize)) {
    for call in 0..calls {
        work(call);
    }
}

use collected_some as collect_some;

const OPERATIONS: &[&str] =
    &["nothing", "hit dense", "hit sparse", "map page", "unmap page", "map 128", "unmap 128", "PROTN 128"];

fn main() {
    let mut arguments = std::env::args().skip(1);
    let (subject, operation) = (arguments.next().unwrap_or_default(), arguments.next().unwrap_or_default());
    let mut known = Vec::new();
    macro_rules! subjects {
        ($($subject:ty;)*) => { $(
            known.push(<$subject>::NAME);
            if subject == <$subject>::NAME && run::<$subject>(&operation) {
                return;
            }
        )* };
    }
    subjects! {
        peers::X86; peers::Multiarch; peers::HashBrown;
        ours::MptSolo; ours::MptShared;
    }
    println!("{}\n{}", known.join("\n"), OPERATIONS.join("\n"));
}
