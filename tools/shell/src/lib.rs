//! How the project's commands run others.
//!
//! ```text
//! Line, Shell   a command line, run for people or for `cargo xtask test`
//! tools         what a step needs, installed, or one line that says how
//! places        where things are
//! ledger        what a long command has finished
//! progress      what it says meanwhile where no terminal shows a bar
//! output        what becomes of a program whose output nobody takes
//! near, Usage   what is wrong with the arguments, and what may have been meant
//! ```

pub mod ledger;
pub mod near;
pub mod output;
pub mod places;
pub mod progress;
mod shell;
pub mod tools;
mod usage;

pub use shell::{Line, Shell};
pub use usage::Usage;
