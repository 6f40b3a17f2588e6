//! The algorithms: each is a short program of [`Line`]s, as in the pseudocode of Tzou 3.2.
//!
//! | file | holds |
//! |-|-|
//! | `pte_first`, `tlb_first`, `two_phase`, `optimistic` | the requesters' programs, with an asynchronous and a remote variant of all but 2-phase |
//! | `requester` | the action that each line asks for, and the next line after the answer |
//! | `replier` | the repliers' side of all ten algorithms |
//! | `miss` | the TLB miss handler of software-loaded TLBs, with the flag that TLB-first needs |

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

use crate::{Algorithm, Form, Plan, Repair};

/// A line of a requester's pseudocode.
///
/// Mutual exclusion, lazy CPUs and the end of an asynchronous operation, which the text describes in its section 3.3, are
/// lines here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Line {
    /// Take the exclusion: from here to `Release` no other CPU changes the entry.
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
    /// Mark targets that do not run the address space as stale: they flush before they run it again (3.3.2), and no CPU
    /// waits for them.
    Defer,
    /// `count = sizeof(target_set - requester)`, without the CPUs that `Defer` has marked. So are the sets of `Request` and `Wait`.
    Count,
    /// `for each processor in (target_set - requester) send an interprocessor request`.
    Request,
    /// As `Request`; with the last request the repliers own the operation.
    RequestAndLeave,
    /// `for each processor in (target_set - requester) flush hot_TLBes on that processor`.
    FlushRemotely,
    /// `for each processor in (target_set - requester) wait for an acknowledgement`.
    Wait,
    /// The requester enters 2-phase, and so counts as stopped for other requesters.
    Enter,
    /// 2-phase's wait until each replier has stopped.
    WaitStopped,
    /// `send a continuing signal` to all repliers.
    Continue,
    /// From here to `Close`, other CPUs may raise the rights again.
    Open,
    /// From here on other CPUs may not raise the rights. If one has raised them, the operation does not write the entry.
    Close,
    /// `while (PTE.access_rights != new_PTE.access_rights)`.
    Check,
    /// Give up the exclusion.
    Release,
    /// 2-phase: the requester serves the requests in its own queue, and leaves the algorithm.
    Serve,
    /// The operation has ended, and its payload goes back to its owner.
    Done,
}

/// Returns the requester's program.
fn program(plan: &Plan) -> &'static [Line] {
    use Algorithm as A;
    let after = plan.has(Repair::TARGETS_AFTER);
    match plan.algorithm() {
        A::PteFirst | A::PteFirstAsync | A::PteFirstRemote if !after => pte_first::TARGETS_TOO_EARLY,
        A::PteFirst if matches!(plan.form(), Form::Concurrent | Form::EarlyAcknowledgement) => {
            pte_first::CONCURRENT
        }
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
