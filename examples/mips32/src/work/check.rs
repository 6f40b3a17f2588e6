//! Counts what was checked and what was wrong, and says so for the first few.

/// The outcome of checks.
#[derive(Clone, Copy, Debug, Default)]
pub struct Checks {
    pub done: u32,
    pub failed: u32,
}

/// How many failures are told.
const TOLD: u32 = 5;

impl Checks {
    /// Checks something; `what` says what is wrong, if it is.
    #[inline]
    pub fn check(&mut self, holds: bool, what: impl FnOnce(&mut dyn FnMut(core::fmt::Arguments<'_>))) {
        self.done += 1;
        if !holds {
            self.failed += 1;
            if self.failed <= TOLD {
                what(&mut |text| crate::println!("    WRONG: {text}"));
            }
        }
    }
}
