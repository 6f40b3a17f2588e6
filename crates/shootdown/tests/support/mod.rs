//! What several tests flush.
#![allow(dead_code, reason = "no test needs all of it")]

use std::sync::LazyLock;

use tlbkit_addr::{Flush, FlushScope, Pages, Vpn};

/// A whole address space.
pub(crate) static EVERYTHING: LazyLock<Flush> = LazyLock::new(|| {
    let mut flush = Flush::none();
    flush.add_all(FlushScope::Everywhere);
    flush
});

/// Its pages 0 to 3, one by one.
pub(crate) static PAGE: LazyLock<[Flush; 4]> = LazyLock::new(|| {
    std::array::from_fn(|page| {
        let mut flush = Flush::none();
        flush.add(FlushScope::Everywhere, Pages::one(Vpn::new(page)));
        flush
    })
});
