//! Superpages: when is it worth bringing pages together so that one TLB entry maps them all?
//!
//! (worked example below)
#![no_std]
#![forbid(unsafe_code)]

mod capacity;
mod charges;
mod costs;
mod ladder;
mod ledger;
mod policy;
mod population;
mod presence;
mod segments;
mod setup;

pub use capacity::StackEntry;
pub use costs::{CostError, Costs};
pub use ladder::{Ladder, LadderError, MAX_LEVELS};
pub use policy::{
    Action, Activity, ApproxOnline, Asap, Asap464, Background, Miss, Online, OnlineMemory, Policy,
    Reservation, Superpage, Thrift, Tlb, Utilization,
};
pub use segments::{Footprint, Memory, Slot};
pub use setup::Setup;
