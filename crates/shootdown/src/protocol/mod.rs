//! The algorithms, line by line: each is a short program over [`Line`]s, as in Tzou 3.2's pseudocode.
//!
//! | file | holds |
//! |-|-|
//! | `pte_first`, `tlb_first`, `two_phase`, `optimistic` | the requesters' programs, with their two variants |
//! | `requester` | what a line asks of the machine it runs on, and what follows from the answer |
//! | `replier` | the repliers' side of all ten |
//! | `miss` | the TLB miss handler that TLB-first needs, and every software-loaded TLB |

mod miss;
mod optimistic;
mod pte_first;
mod replier;
mod requester;
mod tlb_first;
mod two_phase;

pub use miss::{Miss, MissAction, Source};
pub use replier::{Replier, Reply};
pub use requester::{Action, Requester, Seen};

use crate::{Algorithm, Plan, Repair};

/// A line of a requester's pseudocode.
///
/// What the text leaves to its section 3.3 are lines of their own here: mutual exclusion, lazy CPUs, the end of an
/// asynchronous operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Line {
    /// No other CPU changes the entry.
    Exclude,
    /// `tentative_PTE = new_PTE`.
    Tentative,
    /// `changing_PTE_flag = true`.
    Changing,
    /// `changing_PTE_flag = false`.
    Unchanging,
    /// `PTE = new_PTE`.
    Update,
    /// The CPUs that may have loaded the entry: `target_set`.
    Targets,
    /// `if (requester in target_set) flush hot_TLBes locally`.
    FlushLocally,
    /// Targets that do not run the address space flush before they do again (3.3.2); no CPU waits for them.
    Defer,
    /// `count = sizeof(target_set - requester)`.
    Count,
    /// `for each processor in (target_set - requester) send an interprocessor request`.
    Request,
    /// The same, and with the last request the operation is the repliers'.
    RequestAndLeave,
    /// `for each processor in (target_set - requester) flush hot_TLBes on that processor`.
    FlushRemotely,
    /// `for each processor in (target_set - requester) wait for an acknowledgement`.
    Wait,
    /// The requester is in 2-phase itself: it counts as stopped.
    Enter,
    /// 2-phase's wait: until each replier has stopped.
    WaitStopped,
    /// `send a continuing signal` to all repliers.
    Continue,
    /// While replies are outstanding, the rights may be raised again.
    Open,
    /// From here on they may not; if they have been, the entry is left alone.
    Close,
    /// `while (PTE.access_rights != new_PTE.access_rights)`.
    Check,
    /// Others may change the entry.
    Release,
    /// 2-phase: the requests in the requester's own queue, then out of the algorithm.
    Serve,
    /// The payload goes back to its owner.
    Done,
}

/// Returns the requester's program.
fn program(plan: &Plan) -> &'static [Line] {
    use Algorithm as A;
    let after = plan.has(Repair::TARGETS_AFTER);
    match plan.algorithm() {
        A::PteFirst | A::PteFirstAsync | A::PteFirstRemote if !after => pte_first::TARGETS_TOO_EARLY,
        A::PteFirst => pte_first::SYNCHRONOUS,
        A::PteFirstAsync => pte_first::ASYNCHRONOUS,
        A::PteFirstRemote => pte_first::REMOTE,
        A::TlbFirst if !plan.has(Repair::VALUE_BEFORE_FLAG) => tlb_first::FLAG_BEFORE_VALUE,
        A::TlbFirst if !after => tlb_first::TARGETS_TOO_EARLY,
        A::TlbFirst => tlb_first::SYNCHRONOUS,
        A::TlbFirstAsync => tlb_first::ASYNCHRONOUS,
        A::TlbFirstRemote => tlb_first::REMOTE,
        A::TwoPhase if !plan.has(Repair::REQUESTER_FLUSHES_AFTER) => two_phase::REQUESTER_AS_PRINTED,
        A::TwoPhase => two_phase::SYNCHRONOUS,
        A::Optimistic | A::OptimisticAsync | A::OptimisticRemote if !after => optimistic::TARGETS_TOO_EARLY,
        A::Optimistic => optimistic::SYNCHRONOUS,
        A::OptimisticAsync => optimistic::ASYNCHRONOUS,
        A::OptimisticRemote => optimistic::REMOTE,
    }
}
