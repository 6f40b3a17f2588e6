//! A thousand hits in a loop, for callgrind to count: instructions, loads and branches of one.
//!
//! ```text
//! for subject in nothing direct 2-way shared x86_64; do
//!   valgrind --tool=callgrind --cache-sim=yes --branch-sim=yes --toggle-collect=collected \
//!     --callgrind-out-file=/dev/null target/release/examples/stlb_hit $subject
//! done
//! ```
//!
//! The loop over the addresses is the same for all; `nothing` is that alone. Subtract it.
#![allow(missing_docs)]

use std::hint::black_box;

use tlbkit_addr::{Asid, VirtAddr};
use tlbkit_benches::Subject;
use tlbkit_benches::peers::X86;
use tlbkit_benches::work::dense;
use tlbkit_stlb::{AsidTag, Assoc, Cache, CacheMemory, Direct, Page64, Shared};

const PAGES: usize = 1000;

/// What callgrind collects (`--toggle-collect=collected`).
///
/// Called through the trait object so that each subject's loop is one function, with the lookup inlined in it.
#[inline(never)]
#[unsafe(no_mangle)]
fn collected(work: &dyn Fn(&[usize]) -> usize, addresses: &[usize]) -> usize {
    work(addresses)
}

fn measure(addresses: &[usize], translate: impl Fn(usize) -> usize) {
    let work = |addresses: &[usize]| {
        let mut sum = 0usize;
        for &va in addresses {
            // Opaque to the optimizer, but in a register.
            sum = sum.wrapping_add(translate(va));
            // SAFETY: no instruction at all; it only keeps the loop from being unrolled or vectorized.
            unsafe { std::arch::asm!("", options(nomem, nostack, preserves_flags)) };
        }
        sum
    };
    black_box(collected(&work, black_box(addresses)));
}

fn main() {
    let addresses: Vec<usize> = dense(48, PAGES).into_iter().map(|vpn| vpn << 12).collect();
    let space: AsidTag<Page64> =
        black_box(AsidTag::new(Asid::new(7, 8).expect("8 bits")).expect("room for 8 bits"));
    let mut memory = CacheMemory::<{ 1024 * 32 }>::new();
    macro_rules! cache {
        ($cache:ty) => {{
            let mut cache = <$cache>::new(memory.bytes()).expect("room");
            addresses.iter().for_each(|&va| cache.fill(VirtAddr::new(va), space, va as u64));
            measure(&addresses, |va| cache.lookup(VirtAddr::new(va), space).unwrap_or(0) as usize);
        }};
    }
    match std::env::args().nth(1).as_deref() {
        Some("nothing") => measure(&addresses, |va| va),
        Some("direct") => cache!(Direct<'_, Page64, 1024>),
        Some("2-way") => cache!(Assoc<'_, Page64, 1024, 2>),
        Some("shared") => {
            let cache = Shared::<Page64, 1024, 1>::new(memory.bytes()).expect("room");
            for &va in &addresses {
                if let Err(ticket) = cache.lookup(VirtAddr::new(va), space) {
                    cache.fill(ticket, VirtAddr::new(va), space, va as u64);
                }
            }
            measure(&addresses, |va| cache.lookup(VirtAddr::new(va), space).unwrap_or(0) as usize);
        }
        Some("x86_64") => {
            let mut table = X86::<48>::new();
            addresses.iter().for_each(|&va| table.map(va >> 12, va >> 12));
            measure(&addresses, |va| table.translate(va).unwrap_or(0));
        }
        _ => {
            eprintln!("stlb_hit: name a subject: nothing, direct, 2-way, shared or x86_64");
            std::process::exit(2);
        }
    }
}
