//! What a simulated CPU unmaps, classified and gathered by the crate.

use tlbkit_addr::{Asid, Attr, FlushScope, Pages, Pfn, Vpn};
use tlbkit_dash::tolerance::{Advice, Context, Entry, classify};
use tlbkit_shootdown::{Batch, Target};

/// Pages of a batch beyond which the whole space is flushed.
const LIMIT: usize = 64;

/// Returns the pages that a CPU flushes one by one for a request; a whole space counts as [`LIMIT`].
pub(super) fn pages(what: Target) -> usize {
    match what {
        Target::Pages(_, pages) => pages.len().min(LIMIT),
        Target::Nothing => 0,
        Target::Listed(_) | Target::Space(_) | Target::All => LIMIT,
    }
}

/// A CPU's unmaps: one page after the other.
pub(super) struct Changes {
    batch: Batch,
    next: usize,
}

impl Default for Changes {
    fn default() -> Self {
        Self { batch: Batch::new(Asid::default(), LIMIT), next: 0 }
    }
}

/// What has become of an unmap.
pub(super) enum Gathered {
    /// No CPU needs to flush for it.
    Tolerated,
    /// More are to come.
    Waits,
    /// These are enough: what to flush, for how many.
    Ready(Target, usize),
}

impl Changes {
    /// Unmaps a page, and tells what to do when `enough` have been gathered. The inconsistency is tolerated where
    /// the page has been sent by a space that is trusted not to touch it (5.3.4), and may last a while in page-out.
    pub(super) fn unmap(&mut self, tolerated: bool, page_out: bool, enough: usize) -> Gathered {
        let context = match (tolerated, page_out) {
            (true, _) => Context::Sent { trusted: true },
            (false, true) => Context::PageOut,
            (false, false) => Context::Plain,
        };
        let old = Entry { frame: Pfn::new(self.next), attr: Attr::READ | Attr::WRITE };
        let page = Pages::one(Vpn::new(self.next));
        self.next += 1;
        if classify(Some(old), None, context).advice() == Advice::Skip {
            return Gathered::Tolerated;
        }
        self.batch.add(FlushScope::Everywhere, page);
        let unmaps = self.batch.changes();
        match (unmaps >= enough).then(|| self.batch.take()).flatten() {
            Some(flush) => Gathered::Ready(Target::of(self.batch.space(), &flush), unmaps),
            None => Gathered::Waits,
        }
    }
}
