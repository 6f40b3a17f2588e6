#![doc = include_str!("lib.md")]
#![cfg_attr(not(any(test, feature = "hazards")), no_std)]
#![cfg_attr(not(test), warn(unused_crate_dependencies))]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable))]

mod algorithm;
mod batch;
mod broadcast;
mod hardware;
#[cfg(test)]
mod hazards;
mod lazy;
mod mailbox;
mod op_id;
mod operation;
mod plan;
mod protocol;
mod queue;
mod section;
mod space;
mod sync;
mod system;
#[cfg(all(feature = "hazards", not(tlbkit_loom)))]
mod watched;

pub use algorithm::{Algorithm, Consistency, LowRights, Order, Style, Unsuitable};
pub use batch::Batch;
pub use broadcast::{Broadcast, BroadcastAction, BroadcastSeen};
pub use hardware::{Hardware, Loader, Status, StatusBit};
pub use lazy::{SpaceCpus, Switch, SwitchAction, SwitchKind};
pub use mailbox::Mailbox;
pub use op_id::{Misuse, OpId, Outcome};
pub use operation::{Ended, Operation, leaked};
pub use plan::{Form, Plan, Rendezvous, Repair, Want};
pub use protocol::{Action, Miss, MissAction, Replier, Reply, Requester, Seen, Source};
pub use queue::{Duty, OpSet, Queue, Request, Target, Work};
pub use section::{SectionKind, SectionWord};
pub use space::{SharedSet, SharedSpace};
pub use system::{CpuHandle, Edit, LocalCpu, PteFirst, RemoteTlbs, Synchronous, System};
#[cfg(all(feature = "hazards", not(tlbkit_loom)))]
pub use watched::{Access, watch};
