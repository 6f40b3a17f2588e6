//! What the machine is: its registers, its TLB, its exceptions, its serial line and its way out.

pub mod boot;
pub mod cp0;
pub mod exception;
pub mod firmware;
pub mod frame;
pub mod semihosting;
pub mod tlb;
pub mod touch;
pub mod uart;
pub mod vectors;
