//! What is wrong with the arguments.

use std::fmt;

/// What is wrong with the arguments, in one line: the program ends with 2, and not with 1 as for anything else.
#[derive(Debug)]
pub struct Usage(String);

impl Usage {
    /// Returns an error that says so.
    pub fn of(wrong: impl fmt::Display) -> anyhow::Error {
        Self(format!("{wrong:#}")).into()
    }
}

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// Returns from the function with the [`Usage`] that is formatted.
#[macro_export]
macro_rules! misused {
    ($($wrong:tt)*) => { return Err($crate::Usage::of(format!($($wrong)*))) };
}
