//! The shootdown crate: one wrong line, and two drivers that must notice: the explorer, and threads, the host's or
//! loom's. If one of them ran a model of the crate instead of the crate, it would notice nothing.

use super::{Change, Mutation, Test};

const fn line(what: &'static str, file: &'static str, line: &'static str, instead: &'static str) -> Mutation {
    Mutation { what, file, change: Change { after: "", line, instead }, test: Test::Shootdown }
}

const fn broadcast(
    what: &'static str,
    file: &'static str,
    line: &'static str,
    instead: &'static str,
) -> Mutation {
    Mutation { what, file, change: Change { after: "", line, instead }, test: Test::Broadcast }
}

const fn deferred(
    what: &'static str,
    file: &'static str,
    line: &'static str,
    instead: &'static str,
) -> Mutation {
    let test = Test::Plain("tlbkit", "deferred::");
    Mutation { what, file, change: Change { after: "", line, instead }, test }
}

pub(super) const MUTATIONS: [Mutation; 24] = [
    line(
        "PTE-first does not wait",
        "crates/shootdown/src/protocol/pte_first.rs",
        "Request, Wait, Release",
        "Request, Release",
    ),
    line(
        "PTE-first does not flush its own TLB",
        "crates/shootdown/src/protocol/pte_first.rs",
        "Targets, FlushLocally, Defer, Count",
        "Targets, Defer, Count",
    ),
    line(
        "PTE-first leaves lazy CPUs alone",
        "crates/shootdown/src/protocol/pte_first.rs",
        "FlushLocally, Defer, Count",
        "FlushLocally, Count",
    ),
    line(
        "PTE-first keeps its exclusion",
        "crates/shootdown/src/protocol/pte_first.rs",
        "Wait, Release, Done",
        "Wait, Done",
    ),
    line("TLB-first sets no flag", "crates/shootdown/src/protocol/tlb_first.rs", "    Changing,\n", ""),
    line(
        "2-phase does not wait until all have stopped",
        "crates/shootdown/src/protocol/two_phase.rs",
        "    WaitStopped,\n",
        "",
    ),
    line(
        "optimistic sends no requests",
        "crates/shootdown/src/protocol/optimistic.rs",
        "Count, Request, Wait",
        "Count, Wait",
    ),
    line(
        "a replier acknowledges without flushing",
        "crates/shootdown/src/protocol/replier.rs",
        "            self.at = At::Flush;\n",
        "            self.acknowledge();\n",
    ),
    line(
        "the last but one replier takes over",
        "crates/shootdown/src/protocol/replier.rs",
        "if left == 0 &&",
        "if left == 1 &&",
    ),
    line(
        "a taken-over operation is still with the repliers",
        "crates/shootdown/src/protocol/requester.rs",
        "        self.left = false;\n",
        "",
    ),
    line(
        "an overflow forgets which operation waits",
        "crates/shootdown/src/queue.rs",
        "            self.unacknowledged.insert(earlier.op);\n",
        "",
    ),
    line(
        "an offline CPU accepts requests",
        "crates/shootdown/src/queue.rs",
        "        self.closed = true;\n",
        "",
    ),
    line(
        "a CPU that comes back does not look whether it is stale",
        "crates/shootdown/src/lazy.rs",
        "S::TakeStale, S::FlushSpace]",
        "S::FlushSpace]",
    ),
    broadcast(
        "a broadcast has no barrier",
        "crates/shootdown/src/broadcast.rs",
        "if self.plan.has(Repair::BARRIER) => A::AllFlushed",
        "if self.plan.has(Repair::BARRIER) => A::ReadRunning",
    ),
    broadcast(
        "a broadcast waits for walks once",
        "crates/shootdown/src/broadcast.rs",
        "S::Cpus(cpus)) => A::Look { cpus, kind, since }",
        "S::Cpus(_)) => A::Look { cpus: CpuSet::empty(), kind, since }",
    ),
    broadcast(
        "nodes go back while a walk is in them",
        "crates/shootdown/src/broadcast.rs",
        "=> A::Keep { since }",
        "=> { let _ = since; A::Reclaim }",
    ),
    broadcast(
        "a walk of the epoch of a change counts as later",
        "crates/shootdown/src/section.rs",
        ".cast_signed() > 0",
        ".cast_signed() >= 0",
    ),
    Mutation {
        what: "a use is no walk",
        file: "crates/shootdown/src/section.rs",
        change: Change { after: "", line: "    Use = 2 | 1,\n", instead: "    Use = 2,\n" },
        // The explorer's changes wait for uses first. A change that waits for walks alone does not.
        test: Test::Plain("tlbkit-shootdown", "broadcast::"),
    },
    deferred(
        "a page that waits is mapped with one store, and no flush",
        "crates/tlbkit/src/once.rs",
        "let is_free = !call.waits(&self.0) || self.may_map(call, page, attr);",
        "let is_free = true;",
    ),
    deferred(
        "an edit does not look for pages that wait",
        "crates/tlbkit/src/settle.rs",
        "self.call.is_deferred(self.space, pages) && self.call.flush_deferred().is_some()",
        "false",
    ),
    deferred(
        "what waits is released before the flush",
        "crates/tlbkit/src/cpu_call/deferred.rs",
        "if !self.flush_all_cpus() {",
        "if false {",
    ),
    deferred(
        "a flush frees what was unmapped after it began",
        "crates/tlbkit/src/deferred.rs",
        "self.until.wrapping_sub(number).cast_signed() > 0",
        "self.until.wrapping_sub(number).cast_signed() >= 0",
    ),
    deferred(
        "the nodes of a flush that unwinds are lost",
        "crates/tlbkit/src/deferred.rs",
        "self.nodes.take().map(Carried::into_retired) else",
        "self.nodes.take().map(Carried::into_retired).filter(|_| false) else",
    ),
    deferred(
        "an address space does not know that pages of it wait",
        "crates/tlbkit/src/numbers.rs",
        "last.store(next, Ordering::Relaxed);",
        "let _ = last;",
    ),
];
