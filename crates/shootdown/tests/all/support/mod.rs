//! What several tests flush.
#![allow(dead_code, reason = "no test needs all of it")]

use std::sync::LazyLock;

use tlbkit_addr::{Asid, Flush, FlushScope, Pages, Vpn};
use tlbkit_shootdown::{Edit, SharedSpace};

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

/// A change that changes nothing and has a flush.
#[derive(Debug)]
pub(crate) struct Nothing<'s> {
    pub(crate) space: &'s SharedSpace,
    pub(crate) asid: Asid,
    pub(crate) flush: Flush,
}

impl<'s> Nothing<'s> {
    pub(crate) fn new(space: &'s SharedSpace, flush: &Flush) -> Self {
        Self { space, asid: Asid::default(), flush: flush.clone() }
    }
}

impl Edit for Nothing<'_> {
    type Payload = ();

    fn exclude(&mut self) -> bool {
        true
    }
    fn release(&mut self) {}
    fn update(&mut self) {}
    fn space(&self) -> &SharedSpace {
        self.space
    }
    fn asid(&self) -> Asid {
        self.asid
    }
    fn flush(&self) -> &Flush {
        &self.flush
    }
}
